//! Cost of composite video: decoding the videos of all participants, drawing them into one frame, and encoding it.
//!
//! ```sh
//! cargo bench -p millrace-sfu --bench compositor
//! ```
//!
//! The videos move all the time: a pattern that scrolls, with noise. The time is CPU time of the thread.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use millrace_sfu::{
    MediaClient, MediaKind,
    compositor::{Compositor, FRAME_TIME, Input, Output, VideoEncoder, VideoPacket, packetize},
    switch::{MemberId, Role, Switch},
};
use rusty_h264::YuvFrame;

/// Number of participants, and size of their videos.
const ROOMS: &[(usize, (usize, usize))] =
    &[(1, (640, 480)), (3, (640, 480)), (3, (320, 240)), (9, (320, 240)), (3, (1280, 720))];
const WARM_UP: u32 = 30;
const FRAMES: u32 = 150;

#[expect(clippy::disallowed_methods, reason = "what is measured is time")]
fn main() {
    println!("{:>12} {:>10} {:>14} {:>12} {:>10}", "participants", "video", "ms per frame", "cores", "kbit/s");
    for (participants, size) in ROOMS {
        let start = Instant::now();
        let ids = members(*participants, start);
        let mut compositor = Compositor::new(start);
        ids.iter().for_each(|id| compositor.handle(Input::Joined(*id), start));
        compositor.handle(Input::ViewerAdded(ids[0]), start);
        let film = film(*size);
        let (mut spent, mut frames, mut bytes) = (Duration::ZERO, 0, 0);
        let mut sequence = 0;
        for (at, packets) in (0..).zip(&film) {
            let now = start + FRAME_TIME * (at + 1);
            for payload in packets {
                sequence += 1;
                let marker = std::ptr::eq(payload, packets.last().expect("a frame has packets"));
                for id in &ids {
                    let time = u64::from(at) * 3000;
                    let packet = VideoPacket { sequence, time, marker, payload: payload.clone() };
                    compositor.handle(Input::Video { from: *id, track: 0, layer: 0, packet }, now);
                }
            }
            let began = cpu_time();
            compositor.handle_timeout(now);
            let took = cpu_time() - began;
            while let Some(output) = compositor.poll_output() {
                if let (Output::Frame(frame), true) = (output, at >= WARM_UP) {
                    frames += 1;
                    bytes += frame.packets.iter().map(|packet| packet.len()).sum::<usize>();
                }
            }
            if at >= WARM_UP {
                spent += took;
            }
        }
        assert_eq!(compositor.take_statistics().units_dropped, 0, "every video is shown");
        assert_eq!(frames, FRAMES, "every frame is composed");
        let ms = spent.as_secs_f64() * 1e3 / f64::from(FRAMES);
        let seconds = FRAME_TIME.as_secs_f64() * f64::from(FRAMES);
        let (cores, kbps) = (spent.as_secs_f64() / seconds, bytes as f64 * 8.0 / 1000.0 / seconds);
        let video = format!("{}x{}", size.0, size.1);
        println!("{participants:>12} {video:>10} {ms:>14.1} {cores:>12.2} {kbps:>10.0}");
    }
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Encodes a video of a pattern that scrolls. Returns the payloads of each frame.
fn film(size: (usize, usize)) -> Vec<Vec<std::sync::Arc<[u8]>>> {
    let (width, height) = size;
    let mut encoder = VideoEncoder::new(size, 30);
    let mut seed = 1_u32;
    let mut noise = || {
        seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        (seed >> 16) as u8 & 3
    };
    let mut frame = |at: usize| {
        let mut picture = YuvFrame::black(width, height);
        for (place, luma) in picture.y.iter_mut().enumerate() {
            let (x, y) = (place % width + 3 * at, place / width + at);
            *luma = 60 + ((x / 24 + y / 16) % 8 * 18) as u8 + (x % 24) as u8 + noise();
        }
        for (place, (u, v)) in picture.u.iter_mut().zip(&mut picture.v).enumerate() {
            let x = place % (width / 2) + at;
            (*u, *v) = (100 + (x / 12 % 6 * 10) as u8, 150 - (x / 20 % 5 * 8) as u8);
        }
        packetize(&encoder.encode(&picture, at == 0).expect("a frame").bytes)
    };
    (0..(WARM_UP + FRAMES) as usize).map(&mut frame).collect()
}

/// Returns ids of members. Only a switch creates them.
fn members(count: usize, now: Instant) -> Vec<MemberId> {
    let address: SocketAddr = "127.0.0.1:9".parse().expect("an address");
    let mut switch = Switch::new(address.into(), count, count);
    let (_, offer) = MediaClient::offer(address, &[], &[MediaKind::Audio], now);
    let join = |_| switch.join("room", ("one", Role::Viewer), &offer, now, &mut |_, _| {}).expect("a good offer").0;
    (0..count).map(join).collect()
}
