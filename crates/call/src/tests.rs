//! Both ends of a call over a simple path: delay, losses, reordering.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use millrace_sfu::{
    congestion::{Algorithm, CongestionController, rrtcc::Increase},
    egress::{is_media, is_report},
    rtcp::{self, ReportBlock},
};
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};

use crate::{
    Endpoint, Receiver, Sender, Source,
    packet::{Header, VIDEO},
    receiver::{self, Reports},
    recorder::Difference,
    sender, source,
};

const SSRC: [u32; 2] = [100, 200];

#[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
fn start() -> Instant {
    Instant::now()
}

fn sender(algorithm: Algorithm, ssrc: u32, now: Instant) -> Sender {
    let config = sender::Config {
        ssrc,
        is_numbered: !matches!(algorithm, Algorithm::Rrtcc(_)),
        retransmits: true,
        protects: true,
        ceiling_bits_per_s: 2_000_000,
    };
    Sender::new(config, algorithm.controller(5e5, now), now)
}

fn receiver(algorithm: Algorithm, ssrc: u32, of: u32, now: Instant) -> Receiver {
    let reports =
        if matches!(algorithm, Algorithm::Rrtcc(_)) { Reports::Remb(Increase::Jump) } else { Reports::Arrivals };
    Receiver::new(receiver::Config { ssrc, of, reports, requests: true, forwards: false }, now)
}

/// Arrival time, order of sending, receiver, packet.
type InTransit = (Instant, u64, usize, Vec<u8>);

/// A call over a path with a delay and independent losses.
struct Call {
    ends: [Endpoint; 2],
    start: Instant,
    now: Instant,
    delay: Duration,
    loss: f64,
    random: Pcg64Mcg,
    transit: BinaryHeap<Reverse<InTransit>>,
    sent: u64,
}

impl Call {
    fn new(algorithm: Algorithm, delay_ms: u64, loss: f64) -> Self {
        let start = start();
        let end = |n: usize| {
            let source = Source::new(source::Config { seed: n as u64, ..source::Config::default() }, start);
            let (own, other) = (SSRC[n], SSRC[1 - n]);
            Endpoint::new(Some(source), sender(algorithm, own, start), receiver(algorithm, own, other, start), start)
        };
        Self {
            ends: [end(0), end(1)],
            start,
            now: start,
            delay: Duration::from_millis(delay_ms),
            loss,
            random: Pcg64Mcg::seed_from_u64(7),
            transit: BinaryHeap::new(),
            sent: 0,
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let arrival = self.transit.peek().map(|Reverse((at, ..))| *at);
            let timers = self.ends.iter().map(Endpoint::timeout).chain(arrival);
            let next = timers.min().expect("two timers").max(self.now);
            if next > until {
                self.now = until;
                return;
            }
            self.now = next;
            while let Some(Reverse((at, order, to, datagram))) = self.transit.pop() {
                if at > next {
                    self.transit.push(Reverse((at, order, to, datagram)));
                    break;
                }
                self.ends[to].handle_datagram(&datagram, next);
            }
            for end in 0..2 {
                self.ends[end].handle_timeout(next);
                while let Some(datagram) = self.ends[end].poll_output(next) {
                    self.sent += 1;
                    let lost = (self.random.next_u32() as f64 / 4_294_967_296.0) < self.loss;
                    if !lost {
                        self.transit.push(Reverse((next + self.delay, self.sent, 1 - end, datagram)));
                    }
                }
            }
        }
    }
}

#[test]
fn free_call_reaches_its_ceiling() {
    for algorithm in [Algorithm::Gcc, Algorithm::Nada] {
        let mut call = Call::new(algorithm, 5, 0.0);
        call.run(Duration::from_secs(20));
        for end in &call.ends {
            let bins = end.received.bins();
            let kbit = bins[10..20].iter().map(|bin| bin.bytes * 8).sum::<u64>() / 10_000;
            assert!((1900..2400).contains(&kbit), "{algorithm}: {kbit}");
            let statistics = end.receiver.statistics();
            assert_eq!((statistics.lost, statistics.residual, statistics.broken_frames), (0, 0, 0), "{algorithm}");
        }
    }
}

#[test]
fn round_trip_time_is_twice_the_delay() {
    for algorithm in Algorithm::ALL {
        let mut call = Call::new(algorithm, 100, 0.0);
        call.run(Duration::from_secs(5));
        for end in &call.ends {
            let rtt = end.sender.round_trip_time().expect("reports have arrived").as_secs_f64();
            assert!((0.2..0.203).contains(&rtt), "{algorithm}: {rtt}");
        }
    }
}

#[test]
fn keyframe_arrives_within_a_round_trip_of_its_request() {
    let mut call = Call::new(Algorithm::Gcc, 50, 0.0);
    call.run(Duration::from_millis(3010));
    let asked = call.now;
    call.ends[0].receiver.request_keyframe(asked);
    call.run(Duration::from_secs(1));
    let arrived = call.ends[0].receiver.keyframe_arrived().expect("a keyframe");
    let frame = Duration::from_secs(1) / source::FRAMES_PER_S;
    // The request leaves at the next timer, at most 50 ms later, and the camera has the next picture after one frame.
    let took = arrived.saturating_duration_since(asked);
    assert!(took >= 2 * call.delay && took <= 2 * call.delay + frame + Duration::from_millis(50), "{took:?}");
    assert_eq!(call.ends[1].sender.statistics().keyframe_requests, 1);
}

#[test]
fn repair_makes_residual_loss_smaller_than_packet_loss() {
    let mut call = Call::new(Algorithm::Gcc, 20, 0.05);
    call.run(Duration::from_secs(30));
    for (n, end) in call.ends.iter().enumerate() {
        let until = Duration::from_secs(29);
        let comparison = call.ends[1 - n].sent.compare(&end.received, SSRC[1 - n], until);
        let loss = comparison.lost as f64 / comparison.sent as f64;
        let statistics = end.receiver.statistics();
        let residual = statistics.residual as f64 / (statistics.packets + statistics.lost) as f64;
        assert!((0.03..0.07).contains(&loss), "{loss}");
        assert!(residual < 0.002, "{residual}");
        assert!(statistics.retransmitted > 10 && statistics.corrected > 10, "{statistics:?}");
    }
}

#[test]
fn forward_error_correction_repairs_alone() {
    let mut call = Call::new(Algorithm::Gcc, 20, 0.05);
    for (n, end) in call.ends.iter_mut().enumerate() {
        let config = receiver::Config {
            ssrc: SSRC[n],
            of: SSRC[1 - n],
            reports: Reports::Arrivals,
            requests: false,
            forwards: false,
        };
        end.receiver = Receiver::new(config, call.start);
    }
    call.run(Duration::from_secs(30));
    for end in &call.ends {
        let statistics = end.receiver.statistics();
        // The padding of probes may repair a packet, too.
        assert!(statistics.retransmitted * 10 <= statistics.corrected, "{statistics:?}");
        assert!(statistics.corrected * 5 > statistics.lost * 2, "more than 40 %: {statistics:?}");
    }
}

#[test]
fn heads_explain_the_difference_of_capture_and_statistics() {
    for algorithm in [Algorithm::Gcc, Algorithm::ALL[1]] {
        let mut call = Call::new(algorithm, 20, 0.03);
        call.run(Duration::from_secs(20));
        for end in &call.ends {
            let (sent, received) = (end.sender.statistics(), end.receiver.statistics());
            for (capture, payload, heads) in [
                (
                    end.sent.total(),
                    sent.payload_bytes + sent.retransmitted_bytes + sent.protection_bytes,
                    sent.header_bytes,
                ),
                (end.received.total(), received.payload_bytes + received.repair_bytes, received.header_bytes),
            ] {
                let difference =
                    Difference { capture_bytes: capture.bytes, statistics_bytes: payload, head_bytes: heads };
                assert!(difference.unexplained() < 0.01, "{algorithm}: {difference:?}");
                assert!(heads > 0 && heads < capture.bytes / 5);
                assert_eq!(capture.payload_bytes, payload, "{algorithm}");
            }
        }
    }
}

#[test]
fn same_seed_gives_the_same_call() {
    let run = || {
        let mut call = Call::new(Algorithm::Gcc, 30, 0.02);
        call.run(Duration::from_secs(5));
        (call.sent, call.ends.map(|end| (end.received.total(), end.receiver.statistics())))
    };
    assert_eq!(run(), run());
}

/// A controller that records its reports.
#[derive(Debug)]
struct Fixed;

impl CongestionController for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn bits_per_s(&self) -> u64 {
        1_000_000
    }

    fn loss(&self) -> Option<f64> {
        None
    }

    fn allows_probing(&self) -> bool {
        false
    }

    fn handle_report(&mut self, report: &millrace_sfu::congestion::Report<'_>) {
        assert!(report.lost <= report.covered, "{report:?}");
    }

    fn raise_to(&mut self, _bits_per_s: f64) {}

    fn set_bits_per_s(&mut self, _bits_per_s: f64) {}

    fn handle_timeout(&mut self, _now: Instant) {}
}

fn fixed(now: Instant) -> Sender {
    let config = sender::Config {
        ssrc: SSRC[0],
        is_numbered: false,
        retransmits: true,
        protects: true,
        ceiling_bits_per_s: 2_000_000,
    };
    Sender::new(config, Box::new(Fixed), now)
}

#[test]
fn loss_is_that_of_the_reception_report() {
    let now = start();
    let mut sender = fixed(now);
    let report = |of: u32, highest: u32, fraction_lost: u8| {
        rtcp::receiver_report(9, &ReportBlock { ssrc: of, highest, fraction_lost, ..ReportBlock::default() })
    };
    for (of, highest, fraction, expected) in [
        // Unknown streams change nothing.
        (999, 100, 255, 0.0),
        (SSRC[0], 1000, 0, 0.0),
        (SSRC[0], 1100, 64, 0.25),
        // A report that does not grow, and one that goes back.
        (SSRC[0], 1100, 255, 0.25),
        (SSRC[0], 500, 255, 0.25),
        (SSRC[0], 600, 128, 0.5),
    ] {
        sender.handle_report(&report(of, highest, fraction), now);
        assert!((sender.loss() - expected).abs() < 0.01, "{highest}: {}", sender.loss());
    }
}

#[test]
fn bad_estimates_keep_the_rate_within_limits() {
    for bits_per_s in [0, 1, u64::MAX] {
        for algorithm in Algorithm::ALL {
            let now = start();
            let mut sender = sender(algorithm, SSRC[0], now);
            let block = ReportBlock { ssrc: SSRC[0], highest: 5, ..ReportBlock::default() };
            for n in 1..5 {
                let compound = [rtcp::receiver_report(9, &block), rtcp::remb(9, SSRC[0], bits_per_s)].concat();
                sender.handle_report(&compound, now + Duration::from_secs(n));
            }
            assert!((30_000..=1_000_000_000).contains(&sender.bits_per_s()), "{algorithm}: {}", sender.bits_per_s());
            // Alone, it is the limit of a forwarder.
            sender.handle_report(&rtcp::remb(9, SSRC[0], bits_per_s), now + Duration::from_secs(6));
            assert!(sender.media_bits_per_s() <= bits_per_s);
        }
    }
}

#[test]
fn time_may_jump_back() {
    for algorithm in Algorithm::ALL {
        let now = start() + Duration::from_secs(3600);
        let mut source = Source::new(source::Config::default(), now);
        let (mut sender, mut receiver) = (sender(algorithm, SSRC[0], now), receiver(algorithm, SSRC[1], SSRC[0], now));
        for at in [0, 100, 50, 2000, 1000, 1000, 3000, 0, 5000]
            .map(|ms| now - Duration::from_secs(3) + Duration::from_millis(ms))
        {
            if let Some(frame) = source.poll_frame(at, false) {
                sender.push_frame(&frame, at);
            }
            sender.handle_timeout(at);
            while let Some(datagram) = sender.poll_output() {
                match is_report(&datagram) {
                    true => receiver.handle_report(&datagram, at),
                    false => receiver.handle_packet(&datagram, at),
                }
            }
            receiver.handle_timeout(at);
            while let Some(report) = receiver.poll_output() {
                sender.handle_report(&report, at);
            }
            assert!(sender.round_trip_time().is_none_or(|rtt| rtt <= Duration::from_secs(10)));
        }
    }
}

#[test]
fn random_datagrams_never_panic() {
    for seed in 0..300 {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut below = move |limit: u64| random.next_u64() % limit;
        let algorithm = Algorithm::ALL[below(4) as usize];
        let mut call = Call::new(algorithm, 10, 0.1);
        call.run(Duration::from_millis(500));
        let now = call.now;
        // Datagrams of both ends, and random bytes.
        let mut datagrams: Vec<Vec<u8>> = call.transit.drain().map(|Reverse((.., datagram))| datagram).collect();
        for n in 0..20 {
            datagrams.push((0..below(80)).map(|_| below(256) as u8).collect());
            let ssrc = SSRC[0] + below(3) as u32;
            let header = Header {
                payload_type: VIDEO + below(3) as u8,
                marker: n % 2 == 0,
                sequence: below(65_536) as u16,
                time: below(1 << 32) as u32,
                ssrc,
                number: Some(below(65_536) as u16),
            };
            datagrams.push(header.write(&vec![n; below(40) as usize]));
        }
        let mut out = 0;
        for _ in 0..300 {
            let mut datagram = datagrams[below(datagrams.len() as u64) as usize].clone();
            if below(2) == 0 && !datagram.is_empty() {
                let at = below(datagram.len() as u64) as usize;
                datagram[at] ^= below(256) as u8;
                datagram.truncate(1 + below(datagram.len() as u64) as usize);
            }
            // Reports are recognized by their first bytes: both kinds of input reach both parsers.
            let at = now + Duration::from_millis(below(3000)) - Duration::from_millis(below(400));
            let end = &mut call.ends[below(2) as usize];
            end.handle_datagram(&datagram, at);
            end.sender.handle_report(&datagram, at);
            end.receiver.handle_packet(&datagram, at);
            end.handle_timeout(at);
            while let Some(datagram) = end.poll_output(at) {
                assert!(is_media(&datagram) || is_report(&datagram));
                out += datagram.len();
            }
            assert!((30_000..=1_000_000_000).contains(&end.sender.bits_per_s()));
        }
        assert!(out < 4_000_000, "seed {seed}: {out}");
    }
}
