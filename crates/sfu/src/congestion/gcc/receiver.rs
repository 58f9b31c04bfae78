use std::time::{Duration, Instant};

use super::{Gcc, sequence_losses::SequenceLosses};
use crate::congestion::RATE_MAX;

/// Estimates at the receiver which rate the path from a sender carries, for a REMB to a sender without transport-wide
/// congestion control. It is the delay-based half of [`Gcc`], and counts losses, because some of these senders do not
/// react to losses.
#[derive(Debug)]
pub struct ReceiverEstimator {
    gcc: Gcc,
    born: Instant,
    /// Clock of the sender, once a packet has shown it.
    clock: Option<SenderClock>,
    losses: SequenceLosses,
    /// Arrival time of the first packet.
    first: Option<Instant>,
    adjusted: Option<Instant>,
    is_started: bool,
    /// Estimate in bit/s that was reported last.
    reported: Option<u64>,
}

/// Time at which a packet was sent, by a clock of the sender that wraps.
#[derive(Clone, Copy, Debug)]
pub enum SendTime {
    /// Absolute send time (24 bits), which all streams share: one of the times that it can mean. They are 64 s apart.
    Absolute(Instant),
    /// RTP timestamp of one stream. It counts while no other stream is used.
    Rtp { ssrc: u32, timestamp: u32, clock_hz: u32 },
}

#[derive(Debug)]
struct SenderClock {
    /// SSRC of the stream whose RTP timestamps are used; `None`: absolute send times.
    ssrc: Option<u32>,
    newest_us: i64,
    /// Time of the newest packet without wraps, in microseconds since the first packet.
    unwrapped_us: i64,
    arrived: Instant,
}

/// Time after the first packet in which the received rate is measured before the first estimate, and minimum of that
/// estimate in bit/s. A path that carries less shows it by its delay.
const START: Duration = Duration::from_secs(1);
const FIRST_ESTIMATE: f64 = 1_000_000.0;
/// Interval of adjustments of the rate, as that of a browser's reports.
const ADJUST_INTERVAL: Duration = Duration::from_millis(50);
/// Round-trip time that is assumed: the receiver does not measure it.
const RTT: Duration = Duration::from_millis(100);
/// RTP timestamps of another stream are used after this time without a packet of the stream used before.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// No packet is delayed by more than this, compared with the packet before.
const JUMP_US: i64 = 3_000_000;
/// An estimate below this share of the reported one must be reported at once.
const FALL: f64 = 0.97;
/// Time in microseconds after which an absolute send time wraps. It has 24 bits, 6 of them for seconds.
const ABSOLUTE_WRAPS_US: i64 = 64_000_000;

impl SenderClock {
    /// Returns the time of a packet without wraps. Of all times that it can mean, this is the one nearest to the time
    /// that has passed since the newest packet.
    fn unwrap(&mut self, sent_us: i64, wraps_us: i64, now: Instant) -> i64 {
        let elapsed_us = now.saturating_duration_since(self.arrived).as_micros() as i64;
        let beyond_us = (sent_us - self.newest_us - elapsed_us).rem_euclid(wraps_us);
        let beyond_us = if beyond_us > wraps_us / 2 { beyond_us - wraps_us } else { beyond_us };
        // The clock has jumped: go on as if it had not.
        let beyond_us = if beyond_us.abs() > JUMP_US { 0 } else { beyond_us };
        self.unwrapped_us += elapsed_us + beyond_us;
        (self.newest_us, self.arrived) = (sent_us, now);
        self.unwrapped_us
    }
}

impl ReceiverEstimator {
    pub fn new(now: Instant) -> Self {
        Self {
            gcc: Gcc::new(RATE_MAX, now),
            born: now,
            clock: None,
            losses: SequenceLosses::default(),
            first: None,
            adjusted: None,
            is_started: false,
            reported: None,
        }
    }

    /// Processes a packet. `sent`: `None` if its send time is unknown; then it counts for the received rate only.
    pub fn handle_packet(&mut self, sent: Option<SendTime>, bytes: usize, now: Instant) {
        let first = *self.first.get_or_insert(now);
        let arrived_us = now.saturating_duration_since(first).as_micros() as i64;
        self.gcc.throughput.update(arrived_us, bytes);
        if self.losses.is_over(now) {
            self.gcc.decrease(now);
        }
        let Some(sent_us) = sent.and_then(|sent| self.sent_us(sent, now)) else { return };
        self.gcc.delay.update(sent_us, arrived_us);
        if self.adjusted.is_some_and(|at| now.saturating_duration_since(at) < ADJUST_INTERVAL) {
            return;
        }
        self.adjusted = Some(now);
        if !self.is_started && now.saturating_duration_since(first) >= START {
            self.is_started = true;
            let received = self.gcc.throughput.bits_per_s().unwrap_or(FIRST_ESTIMATE);
            self.gcc.rate = self.gcc.rate.min(received.max(FIRST_ESTIMATE));
        }
        self.gcc.adjust(RTT, now);
    }

    /// Counts the sequence number of a packet, to detect losses.
    pub fn count(&mut self, ssrc: u32, sequence: u16) {
        self.losses.count(ssrc, sequence);
    }

    /// Returns the send time without wraps. `None`: another clock is in use.
    fn sent_us(&mut self, sent: SendTime, now: Instant) -> Option<i64> {
        let (ssrc, newest_us, wraps_us) = match sent {
            SendTime::Absolute(at) => (None, micros_between(self.born, at), ABSOLUTE_WRAPS_US),
            SendTime::Rtp { ssrc, timestamp, clock_hz } => {
                let us = |units: u64| (units * 1_000_000 / u64::from(clock_hz.max(1))) as i64;
                (Some(ssrc), us(timestamp.into()), us(1 << 32))
            }
        };
        let Some(clock) = &mut self.clock else {
            self.clock = Some(SenderClock { ssrc, newest_us, unwrapped_us: 0, arrived: now });
            return Some(0);
        };
        if clock.ssrc == ssrc {
            return Some(clock.unwrap(newest_us, wraps_us, now));
        }
        let elapsed = now.saturating_duration_since(clock.arrived);
        if ssrc.is_some() && elapsed < CLOCK_TIMEOUT {
            return None;
        }
        let unwrapped_us = clock.unwrapped_us + elapsed.as_micros() as i64;
        *clock = SenderClock { ssrc, newest_us, unwrapped_us, arrived: now };
        Some(unwrapped_us)
    }

    /// Returns the estimate in bit/s. `None`: it is too early, and nothing has limited the rate yet.
    pub fn bits_per_s(&self) -> Option<u64> {
        (self.gcc.rate < RATE_MAX).then_some(self.gcc.rate as u64)
    }

    /// Returns whether NACKs may request lost packets. On a collapsed path, retransmissions would only keep the queue
    /// full.
    pub fn allows_retransmissions(&self) -> bool {
        !self.losses.is_collapsed
    }

    /// Returns whether the estimate has fallen since it was reported, so that the sender must know at once.
    pub fn has_fallen(&self) -> bool {
        let Some(estimate) = self.bits_per_s() else { return false };
        self.reported.is_none_or(|reported| (estimate as f64) < FALL * reported as f64)
    }

    /// Returns the estimate for a report to the sender.
    pub fn report(&mut self) -> Option<u64> {
        self.reported = self.bits_per_s();
        self.reported
    }
}

/// Returns the microseconds from `zero` to `at`, negative if `at` is earlier.
fn micros_between(zero: Instant, at: Instant) -> i64 {
    let after_us = at.saturating_duration_since(zero).as_micros() as i64;
    after_us - zero.saturating_duration_since(at).as_micros() as i64
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A sender of video that obeys the estimates, over a path with a queue that drops from its tail.
    struct Sender {
        estimator: ReceiverEstimator,
        born: Instant,
        now_us: u64,
        free_us: f64,
        /// Packets on the path, with their arrival time.
        in_flight: VecDeque<(u64, Sent)>,
        sequence: u16,
        /// How often it sends a lost packet again, with the send time of the first time (as aiortc does).
        retransmissions: u32,
        lost: Vec<Sent>,
        /// Last keyframe, and whether packets are missing since then: the receiver requests another one.
        key: u64,
        misses: bool,
        frames: u64,
        bits_per_s: f64,
        has_absolute_times: bool,
    }

    #[derive(Clone, Copy)]
    struct Sent {
        frame: u64,
        sequence: u16,
        bytes: usize,
        again: u32,
    }

    const FRAME_US: u64 = 66_667;
    /// IP, UDP, RTP with extensions, and the tag of SRTP.
    const HEAD_BYTES: usize = 62;
    /// The receiver requests the lost ones of this number of packets.
    const REQUESTED_MAX: u16 = 100;
    const QUEUE_US: f64 = 300_000.0;
    const DELAY_US: u64 = 20_000;
    /// Every `KEY_EVERY`th frame is a keyframe, four times as large as the others.
    const KEY_EVERY: u64 = 300;
    const RATE: std::ops::Range<f64> = 200_000.0..1_500_000.0;

    impl Sender {
        #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
        fn new(has_absolute_times: bool) -> Self {
            // Send times may be far before the first arrival.
            let born = Instant::now() + Duration::from_secs(1000);
            Self {
                estimator: ReceiverEstimator::new(born),
                born,
                now_us: 0,
                free_us: 0.0,
                in_flight: VecDeque::new(),
                sequence: 0,
                retransmissions: 0,
                lost: Vec::new(),
                key: 0,
                misses: false,
                frames: 0,
                bits_per_s: 500_000.0,
                has_absolute_times,
            }
        }

        /// Returns the send time of a frame as the receiver sees it, by a clock that is five hours ahead.
        fn sent(&self, frame: u64) -> SendTime {
            let us = frame * FRAME_US + 5 * 3_600_000_000;
            if self.has_absolute_times {
                // 24 bits, in units of 2^-18 s; any of the times that they can mean.
                let units = (us << 18) / 1_000_000 % (1 << 24);
                let us = (units * 1_000_000) >> 18;
                SendTime::Absolute(
                    self.born - Duration::from_micros(64_000_000 * (frame % 3)) + Duration::from_micros(us),
                )
            } else {
                let timestamp = (us * 9 / 100) as u32;
                SendTime::Rtp { ssrc: 1, timestamp, clock_hz: 90_000 }
            }
        }

        /// Sends for some seconds over a path with this capacity. Returns the sent rate of each second in kbit/s.
        fn send(&mut self, capacity: f64, seconds: u64) -> Vec<f64> {
            let (mut rates, mut bytes) = (Vec::new(), 0);
            for frame in 1..=seconds * 15 {
                let is_requested = self.misses && self.frames - self.key >= 15;
                let is_key = self.frames.is_multiple_of(KEY_EVERY) || is_requested;
                if is_key {
                    (self.key, self.misses) = (self.frames, false);
                }
                let size = self.bits_per_s / 8.0 / 15.0 * if is_key { 4.0 } else { 1.0 };
                let packets = (size / 1200.0).ceil();
                let packet = (size / packets) as usize;
                let newest = self.sequence;
                self.lost.retain(|sent| newest.wrapping_sub(sent.sequence) < REQUESTED_MAX);
                let allows = self.estimator.allows_retransmissions();
                let mut burst = if allows { std::mem::take(&mut self.lost) } else { Vec::new() };
                for _ in 0..packets as usize {
                    self.sequence = self.sequence.wrapping_add(1);
                    let (frame, sequence) = (self.frames, self.sequence);
                    burst.push(Sent { frame, sequence, bytes: packet + HEAD_BYTES, again: 0 });
                }
                for sent in burst {
                    bytes += sent.bytes;
                    let starts_us = self.free_us.max(self.now_us as f64);
                    if starts_us - self.now_us as f64 <= QUEUE_US {
                        self.free_us = starts_us + sent.bytes as f64 * 8e6 / capacity;
                        self.in_flight.push_back((self.free_us as u64 + DELAY_US, sent));
                    } else if sent.again < self.retransmissions {
                        self.lost.push(Sent { again: sent.again + 1, ..sent });
                    } else {
                        self.misses = true;
                    }
                }
                self.frames += 1;
                self.now_us += FRAME_US;
                self.receive();
                if frame % 15 == 0 {
                    rates.push(std::mem::take(&mut bytes) as f64 * 8.0 / 1000.0);
                    self.obey();
                }
            }
            rates
        }

        fn receive(&mut self) {
            while let Some((at_us, sent)) = self.in_flight.pop_front_if(|(at_us, _)| *at_us <= self.now_us) {
                let now = self.born + Duration::from_micros(at_us);
                self.estimator.count(1, sent.sequence);
                self.estimator.handle_packet(Some(self.sent(sent.frame)), sent.bytes, now);
                if self.estimator.has_fallen() {
                    self.obey();
                }
            }
        }

        fn obey(&mut self) {
            if let Some(estimate) = self.estimator.report() {
                self.bits_per_s = (estimate as f64).clamp(RATE.start, RATE.end);
            }
        }
    }

    fn mean(rates: &[f64]) -> f64 {
        rates.iter().sum::<f64>() / rates.len() as f64
    }

    #[test]
    fn sender_obeys_bottleneck_and_recovers() {
        for has_absolute_times in [true, false] {
            let mut sender = Sender::new(has_absolute_times);
            let before = sender.send(50e6, 30);
            assert!(mean(&before[22..]) > 1300.0, "{has_absolute_times}: {before:?}");
            let during = sender.send(300e3, 30);
            // A tenth of the packets may be lost.
            assert!((150.0..345.0).contains(&mean(&during[20..])), "{has_absolute_times}: {during:?}");
            let after = sender.send(50e6, 30);
            assert!(mean(&after[22..]) > 600.0, "{has_absolute_times}: {after:?}");
        }
    }

    #[test]
    fn sender_that_retransmits_obeys_bottleneck() {
        for has_absolute_times in [true, false] {
            let mut sender = Sender { retransmissions: 5, ..Sender::new(has_absolute_times) };
            sender.send(50e6, 30);
            let during = sender.send(300e3, 30);
            assert!((150.0..330.0).contains(&mean(&during[20..])), "{has_absolute_times}: {during:?}");
            let after = sender.send(50e6, 30);
            assert!(mean(&after[22..]) > 600.0, "{has_absolute_times}: {after:?}");
        }
    }

    #[test]
    fn wraps_of_send_time_do_not_lower_estimate() {
        for has_absolute_times in [true, false] {
            let mut sender = Sender::new(has_absolute_times);
            let rates = sender.send(10e6, 300);
            assert!(mean(&rates[20..]) > 1400.0, "{has_absolute_times}: {rates:?}");
        }
    }

    #[test]
    fn packets_without_send_time_give_no_estimate() {
        let mut sender = Sender::new(true);
        for ms in 0..5000 {
            sender.estimator.handle_packet(None, 1200, sender.born + Duration::from_millis(ms));
        }
        assert_eq!((sender.estimator.bits_per_s(), sender.estimator.has_fallen()), (None, false));
    }

    #[test]
    fn rtp_timestamps_of_second_stream_are_ignored_until_first_ends() {
        let born = Sender::new(true).born;
        let mut estimator = ReceiverEstimator::new(born);
        let rtp = |ssrc, ms: u64| SendTime::Rtp { ssrc, timestamp: (ms * 90) as u32, clock_hz: 90_000 };
        let at = |ms| born + Duration::from_millis(ms);
        assert_eq!(estimator.sent_us(rtp(1, 77), at(0)), Some(0));
        assert_eq!(estimator.sent_us(rtp(2, 900), at(1000)), None);
        assert_eq!(estimator.sent_us(rtp(1, 1177), at(1100)), Some(1_100_000));
        assert_eq!(estimator.sent_us(rtp(2, 3000), at(3100)), Some(3_100_000), "counting continues");
        assert_eq!(
            estimator.sent_us(SendTime::Absolute(at(9)), at(3200)),
            Some(3_200_000),
            "absolute times are better"
        );
        assert_eq!(estimator.sent_us(rtp(2, 3300), at(3300)), None);
        // A clock that jumps by ten seconds, and one of a rate that cannot be.
        assert_eq!(estimator.sent_us(SendTime::Absolute(at(10_109)), at(3300)), Some(3_300_000));
        let zero = SendTime::Rtp { ssrc: 3, timestamp: u32::MAX, clock_hz: 0 };
        assert_eq!(estimator.sent_us(zero, at(9300)), Some(9_300_000));
    }

    #[test]
    fn any_send_times_keep_estimate_within_limits() {
        let born = Sender::new(true).born;
        let mut estimator = ReceiverEstimator::new(born);
        for seed in 0..50_000_u64 {
            // Fibonacci hashing: arbitrary but repeatable.
            let random = |n: u64| (seed * 8 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let now = born + Duration::from_millis(random(0) % 100_000) - Duration::from_millis(random(1) % 2000);
            let sent = match random(2) % 4 {
                0 => None,
                1 => Some(SendTime::Absolute(now - Duration::from_millis(random(3) % 900_000))),
                _ => {
                    let (ssrc, timestamp, clock_hz) = (random(4) as u32 % 3, random(5) as u32, random(6) as u32 % 3);
                    Some(SendTime::Rtp { ssrc, timestamp, clock_hz })
                }
            };
            estimator.handle_packet(sent, (random(7) % 70_000) as usize, now);
            let estimate = estimator.bits_per_s();
            assert!(estimate.is_none_or(|rate| (30_000..1_000_000_000).contains(&rate)), "{seed}: {estimate:?}");
        }
    }
}
