use std::{cell::RefCell, rc::Rc};

use opus_pure::{Application, OpusEncoder};

use super::*;
use crate::mixer::{FRAME, Mixer};

/// A room with mixed audio, which runs by the clock of its [`Net`].
struct Mixed {
    net: Net,
    inputs: Rc<RefCell<Vec<Input>>>,
    mixer: Mixer,
    encoder: OpusEncoder,
    sent: u32,
}

impl Mixed {
    fn new(net: Net) -> Self {
        let (inputs, mixer) = (Rc::default(), Mixer::new(net.now));
        let encoder = OpusEncoder::new(48_000, 1, Application::Voip).unwrap();
        let mut mixed = Self { net, inputs, mixer, encoder, sent: 0 };
        let inputs = mixed.inputs.clone();
        let Net { switch, in_flight, now, .. } = &mut mixed.net;
        let tell = Box::new(move |input| inputs.borrow_mut().push(input));
        switch.set_mixer("room", tell, *now, &mut |to, datagram| in_flight.push((to, datagram)));
        mixed.net.run(SETTLED);
        mixed
    }

    /// One member sends a tone for this number of packets, 20 ms each.
    fn hum(&mut self, from: usize, packets: u32) {
        for _ in 0..packets {
            let tone = |at: usize| 0.3 * ((self.sent as usize * FRAME + at) as f32 * 0.06).sin();
            let sound: [f32; FRAME] = std::array::from_fn(tone);
            let mut packet = [0; 1000];
            let length = self.encoder.encode(&sound, FRAME, &mut packet).unwrap();
            self.sent += 1;
            let client = &mut self.net.clients[from];
            let sent = (self.sent * FRAME as u32, false, packet[..length].into());
            client.end.send(0, sent, self.net.now, &mut client.out).unwrap();
            for _ in 0..4 {
                self.net.run(Duration::from_millis(5));
                self.mix();
            }
        }
    }

    fn mix(&mut self) {
        let Net { switch, in_flight, now, .. } = &mut self.net;
        for input in self.inputs.borrow_mut().drain(..) {
            self.mixer.handle(input, *now);
        }
        if let Some(mixed) = self.mixer.handle_timeout(*now) {
            switch.send_mixed("room", &mixed, *now, &mut |to, datagram| in_flight.push((to, datagram)));
        }
    }

    /// Returns the lines on which packets arrived since the last call, and the number of packets.
    fn heard(&mut self, at: usize) -> (Vec<usize>, usize) {
        let events = std::mem::take(&mut self.net.clients[at].out.events).into_iter();
        let packet = |event| match event {
            MediaEvent::Packet { line, sequence, .. } => Some((line, sequence)),
            _ => None,
        };
        let packets: Vec<(usize, u64)> = events.filter_map(packet).collect();
        assert!(packets.windows(2).all(|pair| pair[1].1 == pair[0].1 + 1), "{packets:?}");
        let mut lines: Vec<usize> = packets.iter().map(|(line, _)| *line).collect();
        lines.dedup();
        (lines, packets.len())
    }

    fn froms(&self) -> Vec<Vec<String>> {
        let reports = self.net.switch.reports("room", self.net.now).into_iter();
        reports.map(|report| report.receives.into_iter().map(|track| track.from).collect()).collect()
    }
}

#[test]
fn mixed_room_sends_one_audio_stream() {
    let mut net = Net::new();
    let (a, b) = (net.join("a", Role::Member, AUDIO, &[]), net.join("b", Role::Member, AUDIO, &[]));
    net.run(SETTLED);
    let mut room = Mixed::new(net);
    assert!(room.net.switch.is_mixed("room"));
    assert_eq!(room.froms(), [[MIX], [MIX]], "instead of what they were sent before");
    let c = room.net.join("c", Role::Member, AUDIO, &[]);
    let viewer = room.net.join("d", Role::Viewer, &[], AUDIO);
    room.net.run(SETTLED);
    assert_eq!(room.froms(), [[MIX]; 4]);
    room.hum(a, 100);
    for other in [b, c, viewer] {
        let (lines, packets) = room.heard(other);
        assert!(lines.len() == 1 && (90..=100).contains(&packets), "{other}: {packets} by {lines:?}");
    }
    assert!(room.heard(a).1 >= 90, "the speaker receives the others, who are silent");
    let id = room.net.clients[b].id;
    let Net { switch, in_flight, now, .. } = &mut room.net;
    switch.leave(id, *now, &mut |to, datagram| in_flight.push((to, datagram)));
    room.net.run(Duration::from_millis(10));
    [b, c].iter().for_each(|other| drop(room.heard(*other)));
    room.hum(a, 50);
    assert_eq!((room.heard(b).1, room.heard(c).1), (0, 50));
}

#[test]
fn mixed_room_forwards_video() {
    let mut net = Net::new();
    let a = net.join("a", Role::Member, &[MediaKind::Video, MediaKind::Audio], &[]);
    let b = net.join("b", Role::Member, AUDIO, &[]);
    net.run(SETTLED);
    let mut room = Mixed::new(net);
    assert_eq!(room.froms(), [vec![MIX], vec!["a", MIX]]);
    room.net.talk(a, 30);
    assert_eq!(room.net.seen(b).0, (0..30).collect::<Vec<u32>>());
}

#[test]
fn muted_member_is_not_mixed() {
    let mut net = Net::new();
    let (a, b) = (net.join("a", Role::Member, AUDIO, &[]), net.join("b", Role::Member, AUDIO, &[]));
    net.run(SETTLED);
    let mut room = Mixed::new(net);
    let mute = |room: &mut Mixed, audio| {
        let id = room.net.clients[a].id;
        let Net { switch, in_flight, now, .. } = &mut room.net;
        let muted = Muted { audio, video: false };
        switch.mute(id, muted, *now, &mut |to, datagram| in_flight.push((to, datagram)));
    };
    room.hum(a, 50);
    assert!(room.heard(b).1 > 40);
    mute(&mut room, true);
    room.hum(a, 50);
    assert!(room.heard(b).1 <= 2);
    mute(&mut room, false);
    room.hum(a, 50);
    assert!(room.heard(b).1 > 40);
}
