//! One long TCP flow with CUBIC in virtual time. Source: RFC 9438 (CUBIC), RFC 8985 (loss detection by time, RACK), RFC
//! 6298 (timeout), RFC 9406 (HyStart++, here only its delay threshold).
//!
//! Segments have numbers instead of byte offsets. An acknowledgment has the number up to which everything has arrived,
//! and the numbers of the segments that caused it, as selective acknowledgments do.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use super::network::Outgoing;

/// Payload of a segment, and its size on a link with the headers of IP and TCP and the timestamp option.
const PAYLOAD_BYTES: usize = 1448;
const SEGMENT_BYTES: usize = 1500;
const ACKNOWLEDGMENT_BYTES: usize = 52;

const WINDOW_FIRST: f64 = 10.0;
const WINDOW_MIN: f64 = 2.0;
/// Constants of CUBIC.
const C: f64 = 0.4;
const BETA: f64 = 0.7;
const TIMEOUT_FIRST: Duration = Duration::from_secs(1);
const TIMEOUT_MIN: Duration = Duration::from_millis(200);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
const DELAYED_ACKNOWLEDGMENT: Duration = Duration::from_millis(40);
/// Slow start ends after this many round-trip times in a row above the threshold.
const HYSTART_SAMPLES: u32 = 8;

#[derive(Debug)]
struct Segment {
    sent: Instant,
    is_retransmitted: bool,
    is_received: bool,
    is_lost: bool,
}

/// Sender of a flow that never ends.
#[derive(Debug)]
pub struct TcpSender {
    start: Instant,
    is_started: bool,
    window: f64,
    threshold: f64,
    /// Window before the last loss, and the begin of the current epoch.
    window_max: f64,
    epoch: Option<(Instant, f64)>,
    next: u64,
    outstanding: BTreeMap<u64, Segment>,
    in_flight: usize,
    lost: BTreeSet<u64>,
    /// Until this segment is acknowledged, further losses belong to the same event.
    recovery_end: u64,
    srtt: Option<(f64, f64)>,
    rtt_min: f64,
    slow_samples: u32,
    /// Latest send time of a segment that has arrived.
    newest_arrived: Option<Instant>,
    timeout_at: Option<Instant>,
    backoff: u32,
}

impl TcpSender {
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            is_started: false,
            window: WINDOW_FIRST,
            threshold: f64::INFINITY,
            window_max: 0.0,
            epoch: None,
            next: 0,
            outstanding: BTreeMap::new(),
            in_flight: 0,
            lost: BTreeSet::new(),
            recovery_end: 0,
            srtt: None,
            rtt_min: f64::INFINITY,
            slow_samples: 0,
            newest_arrived: None,
            timeout_at: None,
            backoff: 0,
        }
    }

    pub fn timeout(&self) -> Option<Instant> {
        if self.is_started { self.timeout_at } else { Some(self.start) }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.is_started |= now >= self.start;
        if self.timeout_at.is_some_and(|at| at <= now) {
            self.timeout_at = None;
            self.decrease();
            self.window = 1.0;
            self.backoff += 1;
            for (number, segment) in &mut self.outstanding {
                if !segment.is_received && !segment.is_lost {
                    segment.is_lost = true;
                    self.lost.insert(*number);
                    self.in_flight -= 1;
                }
            }
        }
    }

    pub fn poll_output(&mut self, now: Instant) -> Option<Outgoing> {
        if !self.is_started || self.in_flight as f64 >= self.window.max(1.0) {
            return None;
        }
        let (number, is_retransmitted) = match self.lost.pop_first() {
            Some(number) => (number, true),
            None => (self.next, false),
        };
        self.next = self.next.max(number + 1);
        self.in_flight += 1;
        let segment = Segment { sent: now, is_retransmitted, is_received: false, is_lost: false };
        self.outstanding.insert(number, segment);
        if self.timeout_at.is_none() {
            self.timeout_at = Some(now + self.patience());
        }
        Some(Outgoing { bytes: number.to_be_bytes().to_vec(), size: SEGMENT_BYTES })
    }

    pub fn handle_acknowledgment(&mut self, bytes: &[u8], now: Instant) {
        let mut numbers = bytes.chunks_exact(8).filter_map(|chunk| chunk.first_chunk()).map(|n| u64::from_be_bytes(*n));
        let Some(complete) = numbers.next() else { return };
        let mut arrived = 0;
        let named: Vec<u64> = numbers.collect();
        let before: Vec<u64> = self.outstanding.range(..complete).map(|(number, _)| *number).collect();
        for number in before.iter().chain(&named) {
            arrived += usize::from(self.arrive(*number, now));
        }
        self.outstanding = self.outstanding.split_off(&complete);
        if arrived > 0 {
            self.backoff = 0;
            self.timeout_at = (!self.outstanding.is_empty()).then(|| now + self.patience());
        }
        self.detect_losses();
        if complete >= self.recovery_end {
            (0..arrived).for_each(|_| self.increase(now));
        }
    }

    /// Records the arrival of a segment. Returns false if it is known.
    fn arrive(&mut self, number: u64, now: Instant) -> bool {
        let Some(segment) = self.outstanding.get_mut(&number).filter(|segment| !segment.is_received) else {
            return false;
        };
        segment.is_received = true;
        match segment.is_lost {
            true => drop(self.lost.remove(&number)),
            false => self.in_flight -= 1,
        }
        self.newest_arrived = self.newest_arrived.max(Some(segment.sent));
        if !segment.is_retransmitted {
            let rtt = now.saturating_duration_since(segment.sent).as_secs_f64();
            self.measure(rtt);
        }
        true
    }

    fn measure(&mut self, rtt: f64) {
        let (mean, deviation) = self.srtt.unwrap_or((rtt, rtt / 2.0));
        self.srtt = Some((0.875 * mean + 0.125 * rtt, 0.75 * deviation + 0.25 * (mean - rtt).abs()));
        self.rtt_min = self.rtt_min.min(rtt);
        let slow = self.rtt_min + (self.rtt_min / 8.0).clamp(0.004, 0.016);
        self.slow_samples = if rtt > slow { self.slow_samples + 1 } else { 0 };
        if self.window < self.threshold && self.slow_samples >= HYSTART_SAMPLES {
            self.threshold = self.window;
        }
    }

    fn patience(&self) -> Duration {
        let base = self.srtt.map_or(TIMEOUT_FIRST, |(mean, deviation)| {
            Duration::from_secs_f64(mean + (4.0 * deviation).max(TIMEOUT_MIN.as_secs_f64()))
        });
        (base * 2_u32.pow(self.backoff.min(6))).min(TIMEOUT_MAX)
    }

    /// A segment is lost if one that was sent a quarter of a round-trip time later has arrived.
    fn detect_losses(&mut self) {
        let Some(newest) = self.newest_arrived else { return };
        let reorder = Duration::from_secs_f64(if self.rtt_min.is_finite() { self.rtt_min / 4.0 } else { 0.01 });
        let mut is_new_event = false;
        for (number, segment) in &mut self.outstanding {
            if !segment.is_received && !segment.is_lost && segment.sent + reorder < newest {
                segment.is_lost = true;
                self.lost.insert(*number);
                self.in_flight -= 1;
                is_new_event |= *number >= self.recovery_end;
            }
        }
        if is_new_event {
            self.decrease();
        }
    }

    fn decrease(&mut self) {
        self.recovery_end = self.next;
        // Fast convergence: a window that did not reach the last maximum leaves bandwidth to new flows.
        let is_below = self.window < self.window_max;
        self.window_max = if is_below { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.window = (self.window * BETA).max(WINDOW_MIN);
        self.threshold = self.window;
        self.epoch = None;
    }

    fn increase(&mut self, now: Instant) {
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let window = self.window;
        let (begun, first) = *self.epoch.get_or_insert((now, window));
        if self.window_max < first {
            self.window_max = first;
        }
        let rtt = self.srtt.map_or(0.1, |(mean, _)| mean);
        let time = now.saturating_duration_since(begun).as_secs_f64() + rtt;
        let k = ((self.window_max - first) / C).cbrt();
        let cubic = C * (time - k).powi(3) + self.window_max;
        // The window of Reno is the minimum: RFC 9438, section 4.3.
        let reno = first + 3.0 * (1.0 - BETA) / (1.0 + BETA) * (time / rtt.max(0.001));
        let target = cubic.max(reno).clamp(self.window, 1.5 * self.window);
        self.window += ((target - self.window) / self.window).max(0.01 / self.window);
    }
}

/// Receiver of a flow.
#[derive(Debug)]
pub struct TcpReceiver {
    base: Instant,
    complete: u64,
    above: BTreeSet<u64>,
    /// Segments that the next acknowledgment names.
    named: Vec<u64>,
    acknowledge_at: Option<Instant>,
    out: VecDeque<Vec<u8>>,
    /// Segments in order, per second.
    seconds: Vec<u64>,
}

impl TcpReceiver {
    pub fn new(base: Instant) -> Self {
        Self {
            base,
            complete: 0,
            above: BTreeSet::new(),
            named: Vec::new(),
            acknowledge_at: None,
            out: VecDeque::new(),
            seconds: Vec::new(),
        }
    }

    pub fn timeout(&self) -> Option<Instant> {
        self.acknowledge_at
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        if self.acknowledge_at.is_some_and(|at| at <= now) {
            self.acknowledge();
        }
    }

    pub fn handle_segment(&mut self, bytes: &[u8], now: Instant) {
        let Some(number) = bytes.first_chunk().map(|number| u64::from_be_bytes(*number)) else { return };
        let before = self.complete;
        if number >= self.complete {
            self.above.insert(number);
        }
        while self.above.remove(&self.complete) {
            self.complete += 1;
        }
        let second = now.saturating_duration_since(self.base).as_secs() as usize;
        self.seconds.resize(self.seconds.len().max(second + 1), 0);
        self.seconds[second] += self.complete - before;
        self.named.push(number);
        self.acknowledge_at.get_or_insert(now + DELAYED_ACKNOWLEDGMENT);
        if self.named.len() >= 2 || !self.above.is_empty() {
            self.acknowledge();
        }
    }

    fn acknowledge(&mut self) {
        let numbers = std::iter::once(self.complete).chain(self.named.drain(..));
        self.out.push_back(numbers.flat_map(u64::to_be_bytes).collect());
        self.acknowledge_at = None;
    }

    pub fn poll_output(&mut self) -> Option<Outgoing> {
        self.out.pop_front().map(|bytes| Outgoing { bytes, size: ACKNOWLEDGMENT_BYTES })
    }

    /// Returns the payload that arrived in order in each whole second, in kbit/s.
    pub fn kbit_per_s(&self, test: Duration) -> Vec<f64> {
        let rate = |second| self.seconds.get(second).map_or(0.0, |n| (*n as usize * PAYLOAD_BYTES * 8) as f64 / 1000.0);
        (0..test.as_secs() as usize).map(rate).collect()
    }
}

#[cfg(test)]
mod tests {
    use millrace_link::Direction;

    use super::*;
    use crate::scenarios::lozano::{
        calls::{Settings, Setup, TcpPlan, measure},
        figures::mean,
    };

    fn rates(link: &str, flows: usize, seconds: u64) -> Vec<f64> {
        let flow = TcpPlan {
            data: vec![(0, Direction::Up)],
            acknowledgments: vec![(0, Direction::Down)],
            ..TcpPlan::default()
        };
        let setup =
            Setup { links: vec![toml::from_str(link).expect("a link")], tcp: vec![flow; flows], ..Setup::default() };
        let settings = Settings {
            algorithm: millrace_sfu::congestion::Algorithm::Gcc,
            first_bits_per_s: 3e5,
            ceiling_bits_per_s: 2_000_000,
            test: Duration::from_secs(seconds),
            seed: 1,
        };
        let figures = measure(&setup, &settings).expect("a valid link");
        figures.tcp.iter().map(|rates| mean(&rates[2..]).expect("seconds")).collect()
    }

    #[test]
    fn one_flow_fills_the_link() {
        let link =
            "up = { rate = \"10Mbit/s\", queue = \"100 packets\", delay = \"20ms\" }\ndown = { delay = \"20ms\" }";
        let rate = rates(link, 1, 20)[0];
        // 1,448 of 1,500 bytes are payload.
        assert!((8500.0..9660.0).contains(&rate), "{rate}");
    }

    #[test]
    fn two_flows_share_the_link() {
        let link =
            "up = { rate = \"10Mbit/s\", queue = \"100 packets\", delay = \"20ms\" }\ndown = { delay = \"20ms\" }";
        let rates = rates(link, 2, 60);
        let sum: f64 = rates.iter().sum();
        assert!((8500.0..9660.0).contains(&sum), "{rates:?}");
        assert!(rates.iter().all(|rate| *rate > 0.25 * sum), "{rates:?}");
    }

    #[test]
    fn losses_limit_a_flow() {
        let link = "up = { loss = \"2%\", delay = \"50ms\" }\ndown = { delay = \"50ms\" }";
        let rate = rates(link, 1, 60)[0];
        // The response function of Reno: 1.22 / sqrt(0.02) segments per round-trip time are 1,000 kbit/s.
        assert!((500.0..2500.0).contains(&rate), "{rate}");
    }
}
