//! Fuzzes both ends of a native call: datagrams that were changed, reordered, repeated or invented, and times that
//! jump.

#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::{arbitrary::Arbitrary, fuzz_target};
use millrace_call::{
    Endpoint, Receiver, Sender, Source,
    receiver::{self, Reports},
    sender, source,
};
use millrace_sfu::{
    congestion::{Algorithm, rrtcc::Increase},
    egress::{is_media, is_report},
    rtcp,
};

const SSRC: [u32; 2] = [100, 200];
const STEPS_MAX: usize = 200;
const IN_TRANSIT_MAX: usize = 256;
const OUT_BYTES_MAX: usize = 16 << 20;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    algorithm: u8,
    steps: Vec<Step<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    /// Time passes, or jumps back.
    Pass { ms: i16 },
    /// Delivers a datagram in transit, perhaps changed, perhaps again.
    Deliver { which: u8, at: u16, xor: u8, again: bool },
    /// Delivers bytes that no end has sent.
    Invent { to: bool, bytes: &'a [u8] },
}

fuzz_target!(|input: Input<'_>| {
    let algorithm = Algorithm::ALL[usize::from(input.algorithm) % Algorithm::ALL.len()];
    let start = Instant::now() + Duration::from_secs(3600);
    let is_rrtcc = matches!(algorithm, Algorithm::Rrtcc(_));
    let end = |n: usize| {
        let config = sender::Config {
            ssrc: SSRC[n],
            is_numbered: !is_rrtcc,
            retransmits: true,
            protects: true,
            ceiling_bits_per_s: 2_000_000,
        };
        let reports = if is_rrtcc { Reports::Remb(Increase::Jump) } else { Reports::Arrivals };
        let receiver = receiver::Config { ssrc: SSRC[n], of: SSRC[1 - n], reports, requests: true, forwards: n == 0 };
        Endpoint::new(
            Some(Source::new(source::Config::default(), start)),
            Sender::new(config, algorithm.controller(3e5, start), start),
            Receiver::new(receiver, start),
            start,
        )
    };
    let mut ends = [end(0), end(1)];
    let (mut now, mut transit, mut out) = (start, Vec::new(), 0);
    for step in input.steps.iter().take(STEPS_MAX) {
        match *step {
            Step::Pass { ms } if ms >= 0 => now += Duration::from_millis(ms as u64 / 16),
            Step::Pass { ms } => now -= Duration::from_millis(u64::from(ms.unsigned_abs()) / 64),
            Step::Deliver { which, at, xor, again } => {
                let index = usize::from(which);
                if index < transit.len() {
                    let (to, mut datagram): (usize, Vec<u8>) =
                        if again { Clone::clone(&transit[index]) } else { transit.swap_remove(index) };
                    if let Some(byte) = datagram.get_mut(usize::from(at)) {
                        *byte ^= xor;
                    }
                    ends[to].handle_datagram(&datagram, now);
                }
            }
            Step::Invent { to, bytes } => {
                let end = &mut ends[usize::from(to)];
                end.handle_datagram(bytes, now);
                end.sender.handle_report(bytes, now);
                end.receiver.handle_packet(bytes, now);
                rtcp::read(bytes, |_| {});
            }
        }
        for n in 0..2 {
            ends[n].handle_timeout(now);
            while let Some(datagram) = ends[n].poll_output(now) {
                assert!(is_media(&datagram) || is_report(&datagram));
                out += datagram.len();
                if transit.len() < IN_TRANSIT_MAX {
                    transit.push((1 - n, datagram));
                }
            }
            while ends[n].receiver.poll_packet().is_some() {}
            assert!((30_000..=1_000_000_000).contains(&ends[n].sender.bits_per_s()));
            assert!(ends[n].sender.media_bits_per_s() <= ends[n].sender.bits_per_s());
        }
    }
    // The encoder and its repair, for as long as the time has passed.
    let seconds = now.saturating_duration_since(start).as_secs() as usize + 10;
    assert!(out <= OUT_BYTES_MAX + seconds * 2_000_000, "{out} bytes in {seconds} s");
});
