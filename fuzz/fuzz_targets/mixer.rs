//! Fuzzes the mixer with audio packets of a room's members: valid or not, in any order and at any time.

#![no_main]

use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use libfuzzer_sys::{arbitrary::Arbitrary, fuzz_target};
use millrace_sfu::{
    MediaClient, MediaKind,
    mixer::{FRAME_TIME, Input as MixerInput, Mixer},
    switch::{MemberId, Role, Switch},
};

const STEPS_MAX: usize = 200;
const PACKET_BYTES_MAX: usize = 1200;

/// Member ids, which only a switch can create.
static MEMBERS: LazyLock<[MemberId; 3]> = LazyLock::new(|| {
    let (address, now) = (SocketAddr::from(([127, 0, 0, 1], 9)), Instant::now());
    let mut switch = Switch::new(address.into(), 3, 3);
    let (_, offer) = MediaClient::offer(address, &[], &[MediaKind::Audio], now);
    ["a", "b", "c"]
        .map(|name| switch.join("room", (name, Role::Viewer), &offer, now, &mut |_, _| {}).expect("a good offer").0)
});

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    Sound { from: u8, track: u8, ahead: i16, payload: &'a [u8] },
    Pass { ms: u8 },
    Listens { who: u8 },
    Silent { who: u8 },
    Left { who: u8 },
}

fuzz_target!(|steps: Vec<Step<'_>>| {
    let mut now = Instant::now();
    let mut mixer = Mixer::new(now);
    let member = |who: u8| MEMBERS[usize::from(who) % 3];
    let (mut sequence, mut last) = (100_000_u64, None);
    for step in steps.iter().take(STEPS_MAX) {
        match *step {
            Step::Sound { from, track, ahead, payload } => {
                sequence = sequence.saturating_add_signed(ahead.into());
                let payload = Arc::from(&payload[..payload.len().min(PACKET_BYTES_MAX)]);
                mixer.handle(
                    MixerInput::Audio { from: member(from), track: usize::from(track % 2), sequence, payload },
                    now,
                );
            }
            Step::Pass { ms } => now += Duration::from_millis(ms.into()),
            Step::Listens { who } => mixer.handle(MixerInput::ListenerAdded(member(who)), now),
            Step::Silent { who } => mixer.handle(MixerInput::Muted(member(who)), now),
            Step::Left { who } => mixer.handle(MixerInput::Left(member(who)), now),
        }
        let mut turns = 0;
        while mixer.timeout().is_some_and(|due| due <= now) {
            if let Some(mixed) = mixer.handle_timeout(now) {
                assert!(last.is_none_or(|(sequence, time)| mixed.sequence == sequence + 1 && mixed.time > time));
                assert!(mixed.to.len() <= 3 && mixed.to.iter().all(|(_, packet)| !packet.is_empty()));
                last = Some((mixed.sequence, mixed.time));
            }
            turns += 1;
            assert!(turns <= 255 / FRAME_TIME.as_millis() + 1, "it catches up");
        }
    }
});
