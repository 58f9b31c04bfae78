//! Fuzzes the compositor with RTP packets of H.264 from two participants: valid or not, in any order and at any time.
//! The valid ones are those of a small video, so that changes of them reach the decoder.

#![no_main]

use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use libfuzzer_sys::{arbitrary::Arbitrary, fuzz_target};
use millrace_sfu::{
    MediaClient, MediaKind,
    compositor::{Compositor, Depacketizer, FRAME_TIME, Input, Output, UNIT_BYTES_MAX, VideoPacket, check},
    switch::{MemberId, Role, Switch},
};

const STEPS_MAX: usize = 60;
const PAYLOAD_BYTES_MAX: usize = 1200;

/// Member ids, which only a switch can create.
static MEMBERS: LazyLock<[MemberId; 2]> = LazyLock::new(|| {
    let (address, now) = (SocketAddr::from(([127, 0, 0, 1], 9)), Instant::now());
    let mut switch = Switch::new(address.into(), 2, 2);
    let (_, offer) = MediaClient::offer(address, &[], &[MediaKind::Audio], now);
    ["a", "b"]
        .map(|name| switch.join("room", (name, Role::Viewer), &offer, now, &mut |_, _| {}).expect("a good offer").0)
});

/// Payloads of the packets of an empty room's video: a keyframe.
static VALID: LazyLock<Vec<Arc<[u8]>>> = LazyLock::new(|| {
    let mut now = Instant::now();
    let mut compositor = Compositor::new(now);
    compositor.handle(Input::ViewerAdded(MEMBERS[0]), now);
    now += FRAME_TIME;
    compositor.handle_timeout(now);
    match compositor.poll_output() {
        Some(Output::Frame(frame)) => frame.packets,
        other => panic!("{other:?}"),
    }
});

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    Payload { from: u8, ahead: i8, marker: bool, payload: &'a [u8] },
    Valid { from: u8, which: u8, marker: bool, flips: [(u16, u8); 2] },
    Pass { ms: u8 },
    Muted { who: u8 },
    Wanted,
}

fuzz_target!(|steps: Vec<Step<'_>>| {
    let mut now = Instant::now();
    let mut compositor = Compositor::new(now);
    for id in *MEMBERS {
        compositor.handle(Input::Joined(id), now);
    }
    compositor.handle(Input::ViewerAdded(MEMBERS[0]), now);
    let mut depacketizer = Depacketizer::default();
    let (mut sequence, mut last) = (100_000_u64, 0);
    for step in steps.iter().take(STEPS_MAX) {
        let mut send = |compositor: &mut Compositor, sequence: u64, from: u8, marker, payload: Vec<u8>| {
            let packet = VideoPacket { sequence, time: sequence / 4, marker, payload: payload.into() };
            depacketizer.push(packet.clone(), now);
            while let Some(unit) = depacketizer.poll(now) {
                assert!(!unit.bytes.is_empty() && unit.bytes.len() <= UNIT_BYTES_MAX);
                let _ = check(&unit.bytes);
            }
            let from = MEMBERS[usize::from(from % 2)];
            compositor.handle(Input::Video { from, track: 0, layer: 0, packet }, now);
        };
        match *step {
            Step::Payload { from, ahead, marker, payload } => {
                sequence = sequence.saturating_add_signed(ahead.into());
                let payload = payload[..payload.len().min(PAYLOAD_BYTES_MAX)].into();
                send(&mut compositor, sequence, from, marker, payload);
            }
            Step::Valid { from, which, marker, flips } => {
                sequence += 1;
                let mut payload = VALID[usize::from(which) % VALID.len()].to_vec();
                for (at, bits) in flips {
                    let at = usize::from(at) % payload.len();
                    payload[at] ^= bits;
                }
                send(&mut compositor, sequence, from, marker, payload);
            }
            Step::Pass { ms } => now += Duration::from_millis(ms.into()),
            Step::Muted { who } => compositor.handle(Input::Muted(MEMBERS[usize::from(who % 2)]), now),
            Step::Wanted => compositor.handle(Input::KeyframeWanted, now),
        }
        compositor.handle_timeout(now);
        while let Some(output) = compositor.poll_output() {
            if let Output::Frame(frame) = output {
                assert!(frame.sequence > last && !frame.packets.is_empty());
                last = frame.sequence + frame.packets.len() as u64 - 1;
            }
        }
    }
});
