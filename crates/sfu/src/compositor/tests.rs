use rand_pcg::rand_core::Rng as _;
use rusty_h264::{Encoder, EncoderConfig, YuvFrame};

use super::*;

/// Colors of the participants' videos: luma and chroma.
const COLORS: [[u8; 3]; 3] = [[80, 90, 240], [150, 50, 30], [100, 200, 110]];
const VIDEO_SIZE: (usize, usize) = (320, 240);

/// A camera that shows one color, and its encoder.
struct Camera {
    id: MemberId,
    color: [u8; 3],
    encoder: VideoEncoder,
    sequence: u64,
    frames: u64,
}

impl Camera {
    fn new(slot: u32) -> Self {
        let color = COLORS[slot as usize % COLORS.len()];
        let encoder = VideoEncoder::new(VIDEO_SIZE, FRAMES_PER_S);
        Self { id: MemberId::of_test(slot), color, encoder, sequence: 1000, frames: 0 }
    }

    /// Returns the packets of the next frame.
    fn shoot(&mut self, is_key: bool) -> Vec<Input> {
        let mut frame = YuvFrame::black(VIDEO_SIZE.0, VIDEO_SIZE.1);
        let [y, u, v] = self.color;
        frame.y.fill(y);
        frame.u.fill(u);
        frame.v.fill(v);
        // A moving line, so that each frame differs.
        let line = (self.frames as usize * 8) % VIDEO_SIZE.1;
        frame.y[line * VIDEO_SIZE.0..][..VIDEO_SIZE.0].fill(y / 2);
        let encoded = self.encoder.encode(&frame, is_key).unwrap();
        self.frames += 1;
        let payloads = packetizer::packetize(&encoded.bytes);
        let count = payloads.len();
        let packets = payloads.into_iter().enumerate().map(|(at, payload)| {
            self.sequence += 1;
            let (sequence, time) = (self.sequence, self.frames * 3000);
            VideoPacket { sequence, time, marker: at == count - 1, payload }
        });
        let from = self.id;
        packets.map(|packet| Input::Video { from, track: 0, layer: 0, packet }).collect()
    }
}

/// A viewer, which decodes the composite stream.
struct Viewer {
    depacketizer: Depacketizer,
    decoder: VideoDecoder,
    video: Option<YuvFrame>,
    keys: usize,
    times: Vec<u64>,
    /// Cells of the newest frame.
    cells: Vec<(MemberId, Cell)>,
}

struct Room {
    compositor: Compositor,
    cameras: Vec<Camera>,
    viewer: Viewer,
    now: Instant,
    /// Senders of which keyframes were requested.
    requests: Vec<MemberId>,
}

impl Room {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn new(participants: u32) -> Self {
        let now = Instant::now();
        let mut compositor = Compositor::new(now);
        let cameras: Vec<Camera> = (0..participants).map(Camera::new).collect();
        for camera in &cameras {
            compositor.handle(Input::Joined(camera.id), now);
        }
        compositor.handle(Input::ViewerAdded(MemberId::of_test(0)), now);
        let (depacketizer, decoder) = (Depacketizer::default(), VideoDecoder::default());
        let viewer = Viewer { depacketizer, decoder, video: None, keys: 0, times: Vec::new(), cells: Vec::new() };
        Self { compositor, cameras, viewer, now, requests: Vec::new() }
    }

    /// Lets a frame time pass, then runs the compositor and the viewer.
    fn pass(&mut self) {
        self.now += FRAME_TIME;
        self.compositor.handle_timeout(self.now);
        while let Some(output) = self.compositor.poll_output() {
            match output {
                Output::KeyframeWanted { from, track: 0 } => self.requests.push(from),
                Output::KeyframeWanted { .. } => panic!("a camera has one track"),
                Output::Frame(Composite { sequence, time, is_key, packets, cells }) => {
                    self.viewer.cells = cells.to_vec();
                    self.viewer.keys += usize::from(is_key);
                    self.viewer.times.push(time);
                    let count = packets.len() as u64;
                    for (at, payload) in (0..).zip(packets) {
                        let packet = VideoPacket { sequence: sequence + at, time, marker: at == count - 1, payload };
                        self.viewer.depacketizer.push(packet, self.now);
                    }
                }
            }
        }
        while let Some(unit) = self.viewer.depacketizer.poll(self.now) {
            self.viewer.video = self.viewer.decoder.decode(&unit).or(self.viewer.video.take());
        }
    }

    /// Lets these cameras send one frame each, then passes a frame time.
    fn shoot(&mut self, cameras: &[usize]) {
        for at in cameras {
            let camera = &mut self.cameras[*at];
            let is_key = self.requests.contains(&camera.id);
            self.requests.retain(|id| *id != camera.id);
            camera.shoot(is_key).into_iter().for_each(|input| self.compositor.handle(input, self.now));
        }
        self.pass();
    }

    /// Returns the mean luma and chroma in the middle of a cell, as the viewer sees it.
    fn seen(&self, cells: usize, at: usize) -> [u8; 3] {
        let cell = grid::grid(cells, SIZE)[at];
        let video = self.viewer.video.as_ref().expect("the viewer has a frame");
        let mean = |plane: &[u8], scale: usize| {
            let (x, y) = ((cell.x + cell.width / 4) / scale, (cell.y + cell.height / 4) / scale);
            let (width, height) = (cell.width / 2 / scale, cell.height / 2 / scale);
            let rows = (y..y + height).flat_map(|row| &plane[row * SIZE.0 / scale + x..][..width]);
            (rows.map(|value| usize::from(*value)).sum::<usize>() / (width * height)) as u8
        };
        [mean(&video.y, 1), mean(&video.u, 2), mean(&video.v, 2)]
    }

    #[track_caller]
    fn assert_seen(&self, cells: usize, at: usize, expected: [u8; 3]) {
        let seen = self.seen(cells, at);
        let is_near = seen.iter().zip(expected).all(|(seen, expected)| seen.abs_diff(expected) <= 8);
        assert!(is_near, "cell {at} shows {seen:?}, expected {expected:?}");
    }
}

const EMPTY: [u8; 3] = [40, 128, 128];

#[test]
fn viewer_sees_each_participant_in_a_cell() {
    let mut room = Room::new(3);
    for _ in 0..10 {
        room.shoot(&[0, 1, 2]);
    }
    for (at, color) in COLORS.into_iter().enumerate() {
        room.assert_seen(3, at, color);
    }
    assert_eq!(room.viewer.keys, 1);
    assert!(room.viewer.times.windows(2).all(|pair| pair[1] - pair[0] == 3000 || pair[1] - pair[0] == 2999));
    let statistics = room.compositor.take_statistics();
    assert_eq!((statistics.frames, statistics.frames_skipped, statistics.units_dropped), (10, 0, 0));
}

#[test]
fn frames_name_the_participants_of_the_cells() {
    let mut room = Room::new(2);
    // A viewer that stays.
    room.compositor.handle(Input::ViewerAdded(MemberId::of_test(9)), room.now);
    room.shoot(&[0]);
    let [first, second] = [0, 1].map(|at| room.cameras[at].id);
    let left = Cell { x: 0, y: 0, width: 320, height: 480 };
    assert_eq!(room.viewer.cells, [(first, left), (second, Cell { x: 320, ..left })]);
    // A participant that returns has another cell.
    room.compositor.handle(Input::Left(first), room.now);
    room.compositor.handle(Input::Joined(first), room.now);
    room.shoot(&[1]);
    assert_eq!(room.viewer.cells.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [second, first]);
    room.compositor.handle(Input::Left(first), room.now);
    room.shoot(&[1]);
    assert_eq!(room.viewer.cells, [(second, Cell { x: 0, y: 0, width: SIZE.0, height: SIZE.1 })]);
}

#[test]
fn composite_stream_describes_its_color() {
    let mut encoder = VideoEncoder::new(SIZE, FRAMES_PER_S);
    let frame = YuvFrame::black(SIZE.0, SIZE.1);
    for is_key in [true, false, true] {
        let encoded = encoder.encode(&frame, is_key).unwrap();
        assert_eq!(encoded.is_key, is_key);
        // A stream without description would get one.
        assert_eq!(sps::describe_color(&encoded.bytes), encoded.bytes);
    }
}

/// A camera of BT.709, as some programs send it, and the composite video of BT.601.
#[test]
fn colors_of_other_cameras_are_converted() {
    const PARAMETERS: [(u32, u32); 7] = [(0b1001, 4), (5, 3), (0b01, 2), (1, 8), (1, 8), (1, 8), (0, 6)];
    let mut room = Room::new(1);
    let mut encoder = Encoder::new(EncoderConfig::baseline(VIDEO_SIZE.0, VIDEO_SIZE.1)).unwrap();
    let mut frame = YuvFrame::black(VIDEO_SIZE.0, VIDEO_SIZE.1);
    // Green.
    frame.y.fill(173);
    frame.u.fill(42);
    frame.v.fill(26);
    let bytes = sps::add_parameters(&encoder.try_encode(&frame).unwrap(), &PARAMETERS);
    let (from, payloads) = (room.cameras[0].id, packetize(&bytes));
    let count = payloads.len() as u64;
    for (sequence, payload) in (1..).zip(payloads) {
        let packet = VideoPacket { sequence, time: 0, marker: sequence == count, payload };
        room.compositor.handle(Input::Video { from, track: 0, layer: 0, packet }, room.now);
    }
    room.pass();
    room.assert_seen(1, 0, [145, 54, 34]);
}

#[test]
fn participant_without_video_has_an_empty_cell() {
    let mut room = Room::new(3);
    (0..5).for_each(|_| room.shoot(&[0, 2]));
    room.assert_seen(3, 0, COLORS[0]);
    room.assert_seen(3, 1, EMPTY);
    // A muted participant keeps its cell, and a participant that leaves gives it up.
    room.compositor.handle(Input::Muted(room.cameras[2].id), room.now);
    (0..2).for_each(|_| room.shoot(&[0]));
    room.assert_seen(3, 2, EMPTY);
    room.compositor.handle(Input::Left(room.cameras[1].id), room.now);
    (0..2).for_each(|_| room.shoot(&[0]));
    room.assert_seen(2, 0, COLORS[0]);
    room.assert_seen(2, 1, EMPTY);
}

#[test]
fn silent_video_is_no_longer_shown() {
    let mut room = Room::new(1);
    (0..5).for_each(|_| room.shoot(&[0]));
    (0..4 * FRAMES_PER_S).for_each(|_| room.pass());
    room.assert_seen(1, 0, COLORS[0]);
    (0..2 * FRAMES_PER_S).for_each(|_| room.pass());
    room.assert_seen(1, 0, EMPTY);
}

#[test]
fn lost_packets_cause_one_keyframe_request_per_second() {
    let mut room = Room::new(1);
    (0..5).for_each(|_| room.shoot(&[0]));
    assert!(room.requests.is_empty());
    room.cameras[0].sequence += 1;
    for _ in 0..FRAMES_PER_S {
        let packets = room.cameras[0].shoot(false);
        packets.into_iter().for_each(|input| room.compositor.handle(input, room.now));
        room.pass();
    }
    assert_eq!(room.requests, [room.cameras[0].id]);
    (0..5).for_each(|_| room.shoot(&[0]));
    assert!(room.requests.is_empty());
    room.assert_seen(1, 0, COLORS[0]);
}

#[test]
fn viewer_requests_are_merged() {
    let mut room = Room::new(1);
    for _ in 0..2 * FRAMES_PER_S {
        room.compositor.handle(Input::KeyframeWanted, room.now);
        room.shoot(&[0]);
    }
    assert!((3..=5).contains(&room.viewer.keys), "{} keyframes in 2 s", room.viewer.keys);
}

#[test]
fn late_compositor_skips_frames() {
    let mut room = Room::new(1);
    (0..3).for_each(|_| room.shoot(&[0]));
    room.compositor.take_statistics();
    room.now += FRAME_TIME * 4;
    room.shoot(&[0]);
    let statistics = room.compositor.take_statistics();
    assert_eq!((statistics.frames, statistics.frames_skipped), (1, 4));
    room.compositor.handle_timeout(room.now);
    assert_eq!(room.compositor.take_statistics(), Statistics::default(), "the next frame is not due yet");
}

#[test]
fn idle_room_needs_no_timer() {
    let mut room = Room::new(1);
    (0..2).for_each(|_| room.pass());
    room.assert_seen(1, 0, EMPTY);
    assert_eq!(room.compositor.timeout(), None);
    room.now += Duration::from_secs(60);
    room.shoot(&[0]);
    assert_eq!(room.compositor.take_statistics().frames_skipped, 0);
    room.assert_seen(1, 0, COLORS[0]);
}

#[test]
fn video_is_delayed_like_audio() {
    let mut room = Room::new(1);
    let delay = Duration::from_millis(100);
    room.compositor.handle(Input::AudioDelay(delay), room.now);
    let arrived = room.now;
    room.shoot(&[0]);
    room.assert_seen(1, 0, EMPTY);
    let is_shown = |room: &Room| room.seen(1, 0)[1].abs_diff(COLORS[0][1]) <= 8;
    while !is_shown(&room) {
        room.pass();
    }
    let after = room.now - arrived;
    assert!(after >= delay && after <= delay + FRAME_TIME, "{after:?}");
}

#[test]
fn flood_of_frames_is_limited() {
    let mut room = Room::new(1);
    for _ in 0..2 * FRAMES_PER_S {
        (0..4).flat_map(|_| room.cameras[0].shoot(false)).for_each(|input| room.compositor.handle(input, room.now));
        room.pass();
    }
    let dropped = room.compositor.take_statistics().units_dropped;
    assert!(dropped >= 60, "{dropped} of 240 frames in 2 s");
}

#[test]
fn flood_in_alternating_layers_is_limited() {
    let mut room = Room::new(1);
    for at in 0..2 * FRAMES_PER_S as usize {
        let inputs: Vec<Input> = (0..4).flat_map(|n| room.cameras[0].shoot(n == 0)).collect();
        for input in inputs {
            let Input::Video { from, track, packet, .. } = input else { continue };
            room.compositor.handle(Input::Video { from, track, layer: at % 2, packet }, room.now);
        }
        room.pass();
    }
    let dropped = room.compositor.take_statistics().units_dropped;
    assert!(dropped >= 60, "{dropped} of 240 frames in 2 s");
}

#[test]
fn participants_beyond_the_grid_are_not_decoded() {
    let mut room = Room::new(CELLS_MAX as u32 + 1);
    (0..3).for_each(|_| room.shoot(&[0, CELLS_MAX]));
    room.assert_seen(CELLS_MAX, 0, COLORS[0]);
    assert_eq!(room.compositor.participants.len(), CELLS_MAX);
}

/// Flips bits, truncates and repeats packets, and checks that the video returns with the next keyframe.
#[test]
fn broken_video_never_ends_the_compositor() {
    let mut dice = rand_pcg::Pcg32::new(7, 7);
    let mut roll = |below: usize| dice.next_u32() as usize % below;
    let mut room = Room::new(2);
    for _ in 0..300 {
        let is_key = room.requests.contains(&room.cameras[0].id);
        room.requests.retain(|id| *id != room.cameras[0].id);
        for mut input in room.cameras[0].shoot(is_key) {
            if let Input::Video { packet, .. } = &mut input {
                let mut payload = packet.payload.to_vec();
                match roll(8) {
                    0 => {
                        let at = roll(payload.len());
                        payload[at] ^= 1 << roll(8);
                    }
                    1 => payload.truncate(roll(payload.len() + 1)),
                    2 => payload = (0..roll(1200)).map(|_| roll(256) as u8).collect(),
                    3 => packet.sequence += roll(3) as u64,
                    _ => {}
                }
                packet.payload = payload.into();
            }
            room.compositor.handle(input, room.now);
        }
        room.shoot(&[1]);
    }
    assert!(room.compositor.take_statistics().units_dropped > 0);
    (0..2 * FRAMES_PER_S).for_each(|_| room.shoot(&[0, 1]));
    room.assert_seen(2, 0, COLORS[0]);
    room.assert_seen(2, 1, COLORS[1]);
}
