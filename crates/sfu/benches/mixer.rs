//! Cost of 20 ms of a mixed room on its thread: decoding the active speakers, mixing, and encoding once for each
//! speaker and once for all listeners.
//!
//! ```sh
//! cargo bench -p millrace-sfu --bench mixer
//! ```

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_sfu::{
    MediaClient, MediaKind,
    mixer::{FRAME, FRAME_TIME, Input, Mixer},
    switch::{MemberId, Role, Switch},
};
use opus_pure::{Application, OpusEncoder};

/// Number of active speakers, and number of all members.
const ROOMS: &[(usize, usize)] = &[(1, 3), (3, 3), (1, 100), (3, 100), (10, 100)];
const WARM_UP: u32 = 50;
const FRAMES: u32 = 500;

#[expect(clippy::disallowed_methods, reason = "what is measured is time")]
fn main() {
    println!("{:>9} {:>9} {:>12} {:>20}", "speak", "listen", "us per 20 ms", "rooms on one core");
    for (speakers, listeners) in ROOMS {
        let start = Instant::now();
        let members = members(*listeners, start);
        let mut mixer = Mixer::new(start);
        for id in &members {
            mixer.handle(Input::ListenerAdded(*id), start);
        }
        let mut voices: Vec<_> =
            (0..*speakers).map(|_| OpusEncoder::new(48_000, 1, Application::Voip).expect("a rate of Opus")).collect();
        let (mut spent, mut given) = (Duration::ZERO, 0);
        for frame in 0..WARM_UP + FRAMES {
            let now = start + FRAME_TIME * (frame + 1);
            for (at, voice) in voices.iter_mut().enumerate() {
                let payload = hum(voice, at, frame);
                let sequence = u64::from(frame) + 1;
                let began = Instant::now();
                mixer.handle(Input::Audio { from: members[at], track: 0, sequence, payload }, now);
                spent += began.elapsed();
            }
            let began = Instant::now();
            let mixed = mixer.handle_timeout(now);
            if frame >= WARM_UP {
                spent += began.elapsed();
                given += mixed.map_or(0, |mixed| mixed.to.len());
            } else {
                spent = Duration::ZERO;
            }
        }
        assert_eq!(given, listeners * FRAMES as usize, "everybody is given something each time");
        let us = spent.as_secs_f64() * 1e6 / f64::from(FRAMES);
        println!("{speakers:>9} {listeners:>9} {us:>12.0} {:>20.0}", FRAME_TIME.as_secs_f64() * 1e6 / us);
    }
}

/// Returns a packet of a synthetic voice: tones that rise and fall.
fn hum(voice: &mut OpusEncoder, at: usize, frame: u32) -> Arc<[u8]> {
    let sound: [f32; FRAME] = std::array::from_fn(|i| {
        let time = (frame as usize * FRAME + i) as f32 / 48_000.0;
        let pitch = 110.0 + 30.0 * at as f32 + 20.0 * (time * 3.0).sin();
        let harmonics = (1..8).map(|n| (std::f32::consts::TAU * pitch * n as f32 * time).sin() / n as f32);
        0.15 * harmonics.sum::<f32>()
    });
    let mut packet = [0; 1000];
    let length = voice.encode(&sound, FRAME, &mut packet).expect("a frame of 20 ms");
    packet[..length].into()
}

/// Returns ids of members. Only a switch creates them.
fn members(count: usize, now: Instant) -> Vec<MemberId> {
    let address: SocketAddr = "127.0.0.1:9".parse().expect("an address");
    let mut switch = Switch::new(address.into(), count, count);
    let (_, offer) = MediaClient::offer(address, &[], &[MediaKind::Audio], now);
    let join = |_| switch.join("room", ("one", Role::Viewer), &offer, now, &mut |_, _| {}).expect("a good offer").0;
    (0..count).map(join).collect()
}
