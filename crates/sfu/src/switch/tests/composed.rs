use std::{cell::RefCell, rc::Rc};

use opus_pure::{Application, OpusEncoder};
use rusty_h264::YuvFrame;

use super::*;
use crate::{
    compositor::{
        self, Compositor, Depacketizer, FRAME_TIME, Output, SIZE, VideoDecoder, VideoEncoder, VideoPacket, packetize,
    },
    mixer::{FRAME, Mixer},
};

/// Luma of the frames that a camera sends.
const DARK: u8 = 60;
const BRIGHT: u8 = 200;
/// Luma of a cell without video.
const EMPTY: u8 = 40;

/// A room with composite video and mixed audio, which runs by the clock of its [`Net`].
struct Studio {
    net: Net,
    audio: Rc<RefCell<Vec<Input>>>,
    video: Rc<RefCell<Vec<compositor::Input>>>,
    mixer: Mixer,
    compositor: Compositor,
}

struct Camera {
    client: usize,
    encoder: VideoEncoder,
    frames: u32,
}

struct Viewer {
    client: usize,
    depacketizer: Depacketizer,
    decoder: VideoDecoder,
    frame: Option<YuvFrame>,
}

impl Studio {
    fn new(net: Net) -> Self {
        let (audio, video) = Default::default();
        let (mixer, compositor) = (Mixer::new(net.now), Compositor::new(net.now));
        let mut studio = Self { net, audio, video, mixer, compositor };
        let (audio, video) = (studio.audio.clone(), studio.video.clone());
        let Net { switch, in_flight, now, .. } = &mut studio.net;
        let send = &mut |to, datagram| in_flight.push((to, datagram));
        switch.set_mixer("room", Box::new(move |input| audio.borrow_mut().push(input)), *now, send);
        switch.set_compositor("room", Box::new(move |input| video.borrow_mut().push(input)), *now, send);
        studio.run(SETTLED);
        studio
    }

    fn run(&mut self, span: Duration) {
        let end = self.net.now + span;
        while self.net.now < end {
            self.net.run(Duration::from_millis(5));
            let Net { switch, in_flight, now, .. } = &mut self.net;
            let send = &mut |to, datagram| in_flight.push((to, datagram));
            self.audio.borrow_mut().drain(..).for_each(|input| self.mixer.handle(input, *now));
            if let Some(mixed) = self.mixer.handle_timeout(*now) {
                switch.send_mixed("room", &mixed, *now, send);
            }
            self.compositor.handle(compositor::Input::AudioDelay(self.mixer.delay()), *now);
            self.video.borrow_mut().drain(..).for_each(|input| self.compositor.handle(input, *now));
            self.compositor.handle_timeout(*now);
            while let Some(output) = self.compositor.poll_output() {
                match output {
                    Output::Frame(frame) => switch.send_composite("room", &frame, *now, send),
                    Output::KeyframeWanted { from, track } => {
                        switch.request_composed_keyframe(from, track, *now, send);
                    }
                }
            }
        }
    }

    /// Sends a frame of one color, as a keyframe if one was requested.
    fn shoot(&mut self, camera: &mut Camera, luma: u8) {
        let client = &mut self.net.clients[camera.client];
        let is_request = |event: &MediaEvent| matches!(event, MediaEvent::KeyframeWanted { line: 0 });
        let is_key = client.out.events.iter().any(is_request);
        client.out.events.retain(|event| !is_request(event));
        let mut frame = YuvFrame::black(320, 240);
        frame.y.fill(luma);
        let encoded = camera.encoder.encode(&frame, is_key).unwrap();
        camera.frames += 1;
        let payloads = packetize(&encoded.bytes);
        let count = payloads.len();
        for (at, payload) in payloads.into_iter().enumerate() {
            let packet = (camera.frames * 3000, at == count - 1, payload);
            client.end.send(0, packet, self.net.now, &mut client.out).unwrap();
        }
    }

    /// Decodes what a viewer has received on its first line. Returns the luma in the middle of each cell.
    fn watch(&mut self, viewer: &mut Viewer, cells: &[(usize, usize)]) -> Option<Vec<u8>> {
        for event in std::mem::take(&mut self.net.clients[viewer.client].out.events) {
            if let MediaEvent::Packet { line: 0, sequence, time, marker, payload } = event {
                let packet = VideoPacket { sequence, time: time.into(), marker, payload };
                viewer.depacketizer.push(packet, self.net.now);
            }
        }
        while let Some(unit) = viewer.depacketizer.poll(self.net.now) {
            viewer.frame = viewer.decoder.decode(&unit).or(viewer.frame.take());
        }
        let frame = viewer.frame.as_ref()?;
        assert_eq!((frame.width, frame.height), SIZE);
        Some(cells.iter().map(|(x, y)| frame.y[y * frame.width + x]).collect())
    }
}

impl Camera {
    fn new(client: usize) -> Self {
        Self { client, encoder: VideoEncoder::new((320, 240), 30), frames: 0 }
    }
}

impl Viewer {
    fn new(client: usize) -> Self {
        Self { client, depacketizer: Depacketizer::default(), decoder: VideoDecoder::default(), frame: None }
    }
}

#[track_caller]
fn assert_near(seen: &[u8], expected: &[u8]) {
    let is_near = seen.len() == expected.len() && seen.iter().zip(expected).all(|(a, b)| a.abs_diff(*b) <= 8);
    assert!(is_near, "{seen:?}, expected {expected:?}");
}

#[test]
fn room_with_compositor_sends_one_video_of_all() {
    let mut net = Net::new();
    let (a, b) = (net.join_h264("a", Role::Member, VIDEO, &[]), net.join_h264("b", Role::Member, VIDEO, &[]));
    net.run(SETTLED);
    let mut studio = Studio::new(net);
    assert!(studio.net.switch.has_compositor("room"));
    let mut viewer = Viewer::new(studio.net.join_h264("c", Role::Viewer, &[], VIDEO));
    studio.run(SETTLED);
    let froms = |studio: &Studio| -> Vec<Vec<String>> {
        let reports = studio.net.switch.reports("room", studio.net.now).into_iter();
        let video = |track: &Receives| track.kind == "video";
        reports.map(|report| report.receives.into_iter().filter(video).map(|track| track.from).collect()).collect()
    };
    assert_eq!(froms(&studio), [[MIX], [MIX], [MIX]], "instead of what they were sent before");
    let cells = [(160, 240), (480, 240)];
    let mut cameras = [Camera::new(a), Camera::new(b)];
    let film = |studio: &mut Studio, cameras: &mut [Camera; 2], lumas: [Option<u8>; 2]| {
        for _ in 0..40 {
            for (camera, luma) in cameras.iter_mut().zip(lumas) {
                luma.into_iter().for_each(|luma| studio.shoot(camera, luma));
            }
            studio.run(FRAME_TIME);
        }
    };
    film(&mut studio, &mut cameras, [Some(BRIGHT), Some(DARK)]);
    assert_near(&studio.watch(&mut viewer, &cells).unwrap(), &[BRIGHT, DARK]);
    // A later viewer gets a keyframe, and a muted camera an empty cell.
    let mut late = Viewer::new(studio.net.join_h264("d", Role::Viewer, &[], VIDEO));
    let id = studio.net.clients[b].id;
    let Net { switch, in_flight, now, .. } = &mut studio.net;
    let muted = Muted { audio: false, video: true };
    switch.mute(id, muted, *now, &mut |to, datagram| in_flight.push((to, datagram)));
    film(&mut studio, &mut cameras, [Some(BRIGHT), Some(DARK)]);
    assert_near(&studio.watch(&mut late, &cells).unwrap(), &[BRIGHT, EMPTY]);
    // After the mute the camera is asked for a keyframe.
    let Net { switch, in_flight, now, .. } = &mut studio.net;
    switch.mute(id, Muted::default(), *now, &mut |to, datagram| in_flight.push((to, datagram)));
    film(&mut studio, &mut cameras, [Some(BRIGHT), Some(DARK)]);
    assert_near(&studio.watch(&mut late, &cells).unwrap(), &[BRIGHT, DARK]);
    // The last participant has the whole frame.
    let Net { switch, in_flight, now, .. } = &mut studio.net;
    switch.leave(id, *now, &mut |to, datagram| in_flight.push((to, datagram)));
    film(&mut studio, &mut cameras, [Some(BRIGHT), None]);
    assert_near(&studio.watch(&mut late, &cells).unwrap(), &[BRIGHT, BRIGHT]);
}

#[test]
fn member_without_h264_has_an_empty_cell() {
    let mut net = Net::new();
    let a = net.join_h264("a", Role::Member, VIDEO, &[]);
    // A client of VP8 in a room whose members may use H.264 only.
    let address = net.next_address();
    let offered = MediaClient::offer(address, &[MediaKind::Audio, MediaKind::Video], &[], net.now);
    net.admit(("b", Role::Member), address, offered, VideoCodecs::Composite);
    net.run(SETTLED);
    let mut studio = Studio::new(net);
    let mut viewer = Viewer::new(studio.net.join_h264("c", Role::Viewer, &[], VIDEO));
    let mut camera = Camera::new(a);
    studio.run(SETTLED);
    for _ in 0..30 {
        studio.shoot(&mut camera, BRIGHT);
        studio.run(FRAME_TIME);
    }
    assert_near(&studio.watch(&mut viewer, &[(160, 240), (480, 240)]).unwrap(), &[BRIGHT, EMPTY]);
}

#[test]
fn shared_screen_is_forwarded_beside_composite_video() {
    let mut net = Net::new();
    let a = net.join_h264("a", Role::Member, VIDEO, &[]);
    net.join_h264("b", Role::Member, AUDIO, &[]);
    net.run(SETTLED);
    let id = net.clients[a].id;
    net.switch.member(id).unwrap().tracks[0].is_screen = true;
    let studio = Studio::new(net);
    let reports = studio.net.switch.reports("room", studio.net.now);
    let mut froms: Vec<&str> =
        reports[1].receives.iter().filter(|track| track.kind == "video").map(|track| &*track.from).collect();
    froms.sort_unstable();
    assert_eq!(froms, ["a", MIX]);
}

#[test]
fn composite_video_is_in_step_with_mixed_audio() {
    let mut net = Net::new();
    let speaker = net.join_h264("a", Role::Member, &[MediaKind::Video, MediaKind::Audio], &[]);
    net.run(SETTLED);
    let mut studio = Studio::new(net);
    let listener = studio.net.join_h264("b", Role::Viewer, &[], AUDIO);
    let mut viewer = Viewer::new(studio.net.join_h264("c", Role::Viewer, &[], VIDEO));
    let mut camera = Camera::new(speaker);
    let mut encoder = OpusEncoder::new(48_000, 1, Application::Voip).unwrap();
    studio.run(SETTLED);
    let mut arrivals = (None, None);
    // The speaker begins to speak, and the video becomes bright, at the same moment: after 1 s.
    for packet in 0..100_u32 {
        let is_on = packet >= 50;
        let tone = |at: usize| if is_on { 0.3 * ((packet as usize * FRAME + at) as f32 * 0.06).sin() } else { 0.0 };
        let sound: [f32; FRAME] = std::array::from_fn(tone);
        let mut bytes = [0; 1000];
        let length = encoder.encode(&sound, FRAME, &mut bytes).unwrap();
        let client = &mut studio.net.clients[speaker];
        let sent = (packet * FRAME as u32, false, bytes[..length].into());
        client.end.send(1, sent, studio.net.now, &mut client.out).unwrap();
        if packet % 2 == 0 {
            studio.shoot(&mut camera, if is_on { BRIGHT } else { DARK });
        }
        for _ in 0..4 {
            studio.run(Duration::from_millis(5));
            let now = studio.net.now;
            let events = std::mem::take(&mut studio.net.clients[listener].out.events);
            if events.iter().any(|event| matches!(event, MediaEvent::Packet { .. })) {
                arrivals.0.get_or_insert((now, is_on));
            }
            let seen = studio.watch(&mut viewer, &[(320, 240)]);
            if seen.is_some_and(|luma| luma[0].abs_diff(BRIGHT) <= 8) {
                arrivals.1.get_or_insert((now, is_on));
            }
        }
    }
    let (Some((heard, true)), Some((shown, true))) = arrivals else { panic!("{arrivals:?}") };
    let apart = heard.max(shown) - heard.min(shown);
    assert!(apart <= Duration::from_millis(100), "{apart:?}");
}
