//! Bandwidth estimate from the send and arrival times of packets: Google Congestion Control. Source:
//! draft-ietf-rmcat-gcc-02, with a trendline filter in place of its Kalman filter, as in browsers.
//!
//! ```text
//!   arrivals ─► groups ─► trend of the delay ─► grows | stable | shrinks ─► rate ─┐
//!      └─► losses ───────────────────────────────────────────────────────► bound ─┴─► minimum of both
//! ```

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// One packet that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub sent: Instant,
    /// Arrival time in microseconds of the receiver's clock.
    pub arrived_us: i64,
    pub bytes: usize,
}

/// Bandwidth estimator of one network path.
#[derive(Debug)]
pub struct Estimator {
    rate: f64,
    born: Instant,
    delay: Trend,
    throughput: Throughput,
    losses: Losses,
    /// Mean and deviation of the throughput, measured whenever the delay grew.
    capacity: Option<(f64, f64)>,
    decreased: Option<Instant>,
    adjusted: Instant,
    may_grow: bool,
}

pub const RATE_MIN: f64 = 30_000.0;
pub const RATE_MAX: f64 = 1e9;
/// When the delay grows, the rate becomes this share of the throughput.
const DECREASE: f64 = 0.85;
/// Growth factor per second while the capacity is unknown.
const GROWTH: f64 = 1.08;
/// Near a known capacity the rate grows by one packet per response time, which is `2 * rtt + RESPONSE_TIME_EXTRA`.
const PACKET_BITS: f64 = 1200.0 * 8.0;
const RESPONSE_TIME_EXTRA: Duration = Duration::from_millis(100);
/// The rate does not grow above `THROUGHPUT_FACTOR_MAX` times the throughput plus `THROUGHPUT_EXTRA_BITS`: more has not
/// been observed.
const THROUGHPUT_FACTOR_MAX: f64 = 1.5;
const THROUGHPUT_EXTRA_BITS: f64 = 10_000.0;
/// Weight of a new value in the mean of the capacity.
const CAPACITY_WEIGHT: f64 = 0.05;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Usage {
    /// Overuse: the delay grows.
    Over,
    /// Underuse: the delay shrinks because a queue on the path drains.
    Under,
    Normal,
}

impl Estimator {
    pub fn new(rate: f64, now: Instant) -> Self {
        Self {
            rate,
            born: now,
            delay: Trend::new(),
            throughput: Throughput::default(),
            losses: Losses::default(),
            capacity: None,
            decreased: None,
            adjusted: now,
            may_grow: true,
        }
    }

    pub fn bits_per_s(&self) -> u64 {
        self.rate.min(self.losses.bound.unwrap_or(RATE_MAX)) as u64
    }

    /// Returns the ratio of lost packets that was measured last, from 0 to 1; `None` before the first measurement.
    pub fn loss(&self) -> Option<f64> {
        self.losses.share
    }

    /// Returns whether probing is allowed: the delay is stable, and losses do not limit the rate.
    pub fn allows_probing(&self) -> bool {
        self.delay.usage == Usage::Normal && self.losses.bound.is_none()
    }

    /// Processes one report: the arrivals in the order of sending, and the number of lost packets. `rtt`: round-trip
    /// time.
    pub fn update(&mut self, arrivals: &[Arrival], lost: usize, rtt: Duration, now: Instant) {
        for arrival in arrivals {
            let sent_us = arrival.sent.saturating_duration_since(self.born).as_micros() as i64;
            self.delay.update(sent_us, arrival.arrived_us);
            self.throughput.update(arrival.arrived_us, arrival.bytes);
        }
        self.adjust(rtt, now);
        self.losses.update(arrivals.len(), lost, self.rate, rtt, now);
    }

    /// Raises the estimate to a rate that a probe has shown.
    pub fn raise_to(&mut self, bits_per_s: f64) {
        if bits_per_s > self.rate {
            self.rate = bits_per_s.min(RATE_MAX);
        }
    }

    fn adjust(&mut self, rtt: Duration, now: Instant) {
        let elapsed = now.saturating_duration_since(self.adjusted).min(Duration::from_secs(1)).as_secs_f64();
        self.adjusted = now;
        let Some(received) = self.throughput.bits_per_s() else { return };
        match self.delay.usage {
            Usage::Over => {
                let again = rtt.clamp(Duration::from_millis(10), Duration::from_millis(200)) + RESPONSE_TIME_EXTRA;
                if self.decreased.is_none_or(|at| now.saturating_duration_since(at) >= again) {
                    self.rate = self.rate.min(DECREASE * received).max(RATE_MIN);
                    self.update_capacity(received);
                    self.decreased = Some(now);
                }
                self.may_grow = false;
            }
            Usage::Under => self.may_grow = false,
            // The queue has just drained: growth begins with the next report.
            Usage::Normal if !self.may_grow => self.may_grow = true,
            Usage::Normal => {
                let is_near = self.capacity.is_some_and(|(mean, deviation)| (received - mean).abs() < 3.0 * deviation);
                if self.capacity.is_some_and(|(mean, deviation)| received > mean + 3.0 * deviation) {
                    self.capacity = None;
                }
                let grown = if is_near {
                    self.rate + PACKET_BITS / (2 * rtt + RESPONSE_TIME_EXTRA).as_secs_f64() * elapsed
                } else {
                    self.rate * GROWTH.powf(elapsed)
                };
                self.rate =
                    grown.min(THROUGHPUT_FACTOR_MAX * received + THROUGHPUT_EXTRA_BITS).max(self.rate).min(RATE_MAX);
            }
        }
    }

    fn update_capacity(&mut self, received: f64) {
        let (mean, deviation) = self.capacity.unwrap_or((received, 0.1 * received));
        let error = received - mean;
        let mean = mean + CAPACITY_WEIGHT * error;
        let deviation = (1.0 - CAPACITY_WEIGHT) * deviation + CAPACITY_WEIGHT * error.abs();
        self.capacity = Some((mean, deviation.clamp(0.02 * mean, 0.1 * mean)));
    }
}

/// Detector of a growing one-way delay.
#[derive(Debug)]
struct Trend {
    current: Option<Group>,
    before: Option<Group>,
    first_us: i64,
    /// Accumulated delay variation, raw and smoothed, in milliseconds.
    accumulated: f64,
    smoothed: f64,
    /// Arrival time of each group and the smoothed delay at that time, both in milliseconds.
    points: VecDeque<(f64, f64)>,
    group_count: u32,
    slope: f64,
    /// Limit of the trend. It adapts to the observed trend, so that competing flows do not take all of the bandwidth.
    threshold: f64,
    updated_ms: Option<f64>,
    over_ms: f64,
    over_count: u32,
    usage: Usage,
}

/// Group of packets that left together.
#[derive(Clone, Copy, Debug)]
struct Group {
    first_sent_us: i64,
    sent_us: i64,
    arrived_us: i64,
}

const GROUP_US: i64 = 5000;
/// Groups that are further apart than this are not compared.
const PAUSE_US: i64 = 3_000_000;
const POINTS: usize = 20;
const SMOOTHING: f64 = 0.9;
const GAIN: f64 = 4.0;
const GROUP_COUNT_MAX: u32 = 60;
const THRESHOLD: f64 = 12.5;
const THRESHOLD_RANGE: (f64, f64) = (6.0, 600.0);
const THRESHOLD_UP: f64 = 0.0087;
const THRESHOLD_DOWN: f64 = 0.039;
/// A trend that exceeds the threshold by more than this does not change the threshold.
const JUMP: f64 = 15.0;
const OVER_MS: f64 = 10.0;

impl Trend {
    fn new() -> Self {
        Self {
            current: None,
            before: None,
            first_us: 0,
            accumulated: 0.0,
            smoothed: 0.0,
            points: VecDeque::new(),
            group_count: 0,
            slope: 0.0,
            threshold: THRESHOLD,
            updated_ms: None,
            over_ms: 0.0,
            over_count: 0,
            usage: Usage::Normal,
        }
    }

    fn update(&mut self, sent_us: i64, arrived_us: i64) {
        let Some(current) = &mut self.current else {
            self.first_us = arrived_us;
            self.current = Some(Group { first_sent_us: sent_us, sent_us, arrived_us });
            return;
        };
        if sent_us < current.first_sent_us {
            return;
        }
        // Packets that were queued and then arrived in a burst count as sent together.
        let arrived_after = arrived_us - current.arrived_us;
        let is_burst = arrived_after <= GROUP_US && arrived_after < sent_us - current.sent_us && arrived_after >= 0;
        if sent_us - current.first_sent_us <= GROUP_US || is_burst {
            current.sent_us = current.sent_us.max(sent_us);
            current.arrived_us = current.arrived_us.max(arrived_us);
            return;
        }
        let (done, next) = (*current, Group { first_sent_us: sent_us, sent_us, arrived_us });
        if let Some(before) = self.before {
            let (sent, received) = (done.sent_us - before.sent_us, done.arrived_us - before.arrived_us);
            if sent > PAUSE_US || received.abs() > PAUSE_US {
                // The receiver's clock has jumped, or sending was paused: start again.
                *self = Self { threshold: self.threshold, first_us: arrived_us, current: Some(next), ..Self::new() };
                return;
            } else if received >= 0 {
                self.compare(sent as f64 / 1000.0, received as f64 / 1000.0, done.arrived_us);
            }
        }
        (self.before, self.current) = (Some(done), Some(next));
    }

    fn compare(&mut self, sent_ms: f64, arrived_ms: f64, at_us: i64) {
        let at_ms = (at_us - self.first_us) as f64 / 1000.0;
        self.group_count = (self.group_count + 1).min(GROUP_COUNT_MAX);
        self.accumulated += arrived_ms - sent_ms;
        self.smoothed = SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * self.accumulated;
        self.points.push_back((at_ms, self.smoothed));
        if self.points.len() > POINTS {
            self.points.pop_front();
        }
        let slope = if self.points.len() == POINTS { slope(&self.points).unwrap_or(self.slope) } else { self.slope };
        self.detect(slope, sent_ms, at_ms);
    }

    fn detect(&mut self, slope: f64, sent_ms: f64, at_ms: f64) {
        let trend = f64::from(self.group_count) * slope * GAIN;
        if trend > self.threshold {
            self.over_ms += if self.over_count == 0 { sent_ms / 2.0 } else { sent_ms };
            self.over_count += 1;
            if self.over_ms > OVER_MS && self.over_count > 1 && slope >= self.slope {
                (self.over_ms, self.over_count) = (0.0, 0);
                self.usage = Usage::Over;
            }
        } else {
            (self.over_ms, self.over_count) = (0.0, 0);
            self.usage = if trend < -self.threshold { Usage::Under } else { Usage::Normal };
        }
        self.slope = slope;
        let since = (at_ms - self.updated_ms.unwrap_or(at_ms)).clamp(0.0, 100.0);
        self.updated_ms = Some(at_ms);
        let beyond = trend.abs() - self.threshold;
        if beyond <= JUMP {
            let speed = if beyond < 0.0 { THRESHOLD_DOWN } else { THRESHOLD_UP };
            let (least, most) = THRESHOLD_RANGE;
            self.threshold = (self.threshold + speed * beyond * since).clamp(least, most);
        }
    }
}

/// Returns the slope of the regression line through the points. `None`: all points have the same time.
fn slope(points: &VecDeque<(f64, f64)>) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
    let rise: f64 = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
    let run: f64 = points.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
    (run > 0.0).then(|| rise / run)
}

/// Throughput of the recent past, as received.
#[derive(Debug, Default)]
struct Throughput {
    arrivals: VecDeque<(i64, usize)>,
    bytes: usize,
}

const THROUGHPUT_US: i64 = 500_000;
/// Minimum time span for a usable rate.
const THROUGHPUT_MIN_US: i64 = 100_000;
/// Maximum number of packets kept, enough for 150 Mbit/s during half a second.
const THROUGHPUT_PACKETS: usize = 8192;

impl Throughput {
    fn update(&mut self, arrived_us: i64, bytes: usize) {
        // The clock has jumped, or sending was paused: start again.
        if self.arrivals.back().is_some_and(|(last, _)| (arrived_us - last).abs() > THROUGHPUT_US) {
            *self = Self::default();
        }
        self.arrivals.push_back((arrived_us, bytes));
        self.bytes += bytes;
        let is_old = |(at, _): &(i64, usize)| arrived_us - at > THROUGHPUT_US;
        while self.arrivals.len() > THROUGHPUT_PACKETS || self.arrivals.front().is_some_and(is_old) {
            self.bytes -= self.arrivals.pop_front().map_or(0, |(_, bytes)| bytes);
        }
    }

    fn bits_per_s(&self) -> Option<f64> {
        let ((first, head), (last, _)) = (self.arrivals.front()?, self.arrivals.back()?);
        let span = last - first;
        (span >= THROUGHPUT_MIN_US).then(|| (self.bytes - head) as f64 * 8e6 / span as f64)
    }
}

/// Limit of the rate by losses.
#[derive(Debug, Default)]
struct Losses {
    received: usize,
    lost: usize,
    /// Maximum of the estimate in bit/s. `None`: losses do not limit the estimate.
    bound: Option<f64>,
    evaluated: Option<Instant>,
    /// Ratio of lost packets at the last evaluation.
    share: Option<f64>,
}

/// Minimum number of packets for a loss ratio. The ratio of fewer packets is chance.
const LOSS_PACKETS_MIN: usize = 20;
const LOSS_INTERVAL_MIN: Duration = Duration::from_millis(200);
/// Loss ratios: above `LOSS_HIGH` the bound falls, below `LOSS_LOW` it rises.
const LOSS_HIGH: f64 = 0.1;
const LOSS_LOW: f64 = 0.02;
const RECOVERY: f64 = 1.08;

impl Losses {
    fn update(&mut self, received: usize, lost: usize, rate: f64, rtt: Duration, now: Instant) {
        (self.received, self.lost) = (self.received + received, self.lost + lost);
        let since = now.saturating_duration_since(*self.evaluated.get_or_insert(now));
        let all = self.received + self.lost;
        if all < LOSS_PACKETS_MIN || since < LOSS_INTERVAL_MIN + rtt {
            return;
        }
        let share = self.lost as f64 / all as f64;
        let bound = self.bound.unwrap_or(rate).min(rate);
        if share > LOSS_HIGH {
            self.bound = Some((bound * (1.0 - 0.5 * share)).max(RATE_MIN));
        } else if share < LOSS_LOW && self.bound.is_some() {
            let grown = bound * RECOVERY.powf(since.as_secs_f64().min(1.0)) + 1000.0;
            self.bound = (grown < rate).then_some(grown);
        }
        (self.received, self.lost, self.evaluated, self.share) = (0, 0, Some(now), Some(share));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network path behind a queue: each packet arrives after the time that the path needs to transmit it.
    struct Path {
        bits_per_s: f64,
        free_us: f64,
        lose_every: usize,
        count: usize,
    }

    const PACKET: usize = 1200;
    const RTT: Duration = Duration::from_millis(40);

    /// Sends for the time `span` at the estimated rate, but at most at `most`, with one report every 50 ms. Returns the
    /// estimate after each report, and the longest delay in milliseconds.
    fn send(estimator: &mut Estimator, path: &mut Path, most: f64, from: Instant, span: Duration) -> (Vec<f64>, f64) {
        let (mut estimates, mut arrivals, mut lost, mut longest) = (Vec::new(), Vec::new(), 0, 0.0_f64);
        let (mut at_us, mut report_us) = (0.0, 50_000.0);
        while at_us < span.as_micros() as f64 {
            let rate = (estimator.bits_per_s() as f64).min(most);
            let sent = from + Duration::from_micros(at_us as u64);
            path.count += 1;
            if path.lose_every > 0 && path.count.is_multiple_of(path.lose_every) {
                lost += 1;
            } else {
                path.free_us = path.free_us.max(at_us) + PACKET as f64 * 8e6 / path.bits_per_s;
                longest = longest.max(path.free_us - at_us);
                // Arrival times are by a clock that is independent of the sender's.
                arrivals.push(Arrival { sent, arrived_us: 77_000_000 + path.free_us as i64, bytes: PACKET });
            }
            at_us += PACKET as f64 * 8e6 / rate;
            if at_us > report_us {
                let now = from + Duration::from_micros(at_us as u64) + RTT / 2;
                estimator.update(&arrivals, lost, RTT, now);
                arrivals.clear();
                (lost, report_us) = (0, at_us + 50_000.0);
                estimates.push(estimator.bits_per_s() as f64);
            }
        }
        path.free_us -= at_us;
        (estimates, longest / 1000.0)
    }

    fn path(bits_per_s: f64, lose_every: usize) -> Path {
        Path { bits_per_s, free_us: 0.0, lose_every, count: 0 }
    }

    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn estimate_finds_capacity_with_short_queue() {
        let (mut estimator, now) = (Estimator::new(1e6, start()), start());
        let (estimates, longest_ms) =
            send(&mut estimator, &mut path(3e6, 0), f64::INFINITY, now, Duration::from_secs(120));
        let late = &estimates[estimates.len() / 2..];
        let mean = late.iter().sum::<f64>() / late.len() as f64;
        assert!((2.2e6..3.1e6).contains(&mean), "{mean}");
        assert!(longest_ms < 400.0, "{longest_ms} ms in the queue");
    }

    #[test]
    fn estimate_follows_capacity_drop() {
        let (mut estimator, now) = (Estimator::new(2e6, start()), start());
        let mut path = path(5e6, 0);
        send(&mut estimator, &mut path, 2e6, now, Duration::from_secs(10));
        path.bits_per_s = 5e5;
        let later = now + Duration::from_secs(10);
        let (estimates, _) = send(&mut estimator, &mut path, f64::INFINITY, later, Duration::from_secs(10));
        assert!(estimates.iter().skip(60).all(|rate| *rate < 7e5), "{estimates:?}");
    }

    #[test]
    fn low_send_rate_keeps_estimate() {
        let (mut estimator, now) = (Estimator::new(1e6, start()), start());
        let (estimates, _) = send(&mut estimator, &mut path(1e7, 0), 3e5, now, Duration::from_secs(60));
        assert!(estimates.iter().all(|rate| (9.9e5..=1.01e6).contains(rate)), "{estimates:?}");
        estimator.raise_to(2.5e6);
        estimator.raise_to(2e6);
        assert_eq!(estimator.bits_per_s(), 2_500_000);
        assert!(estimator.allows_probing());
    }

    #[test]
    fn losses_limit_estimate_while_they_last() {
        let (mut estimator, now) = (Estimator::new(2e6, start()), start());
        let mut path = path(1e8, 5);
        let (estimates, _) = send(&mut estimator, &mut path, 2e6, now, Duration::from_secs(20));
        assert!(estimates[estimates.len() - 1] < 3e5 && !estimator.allows_probing(), "{estimates:?}");
        path.lose_every = 0;
        let later = now + Duration::from_secs(20);
        let (estimates, _) = send(&mut estimator, &mut path, 2e6, later, Duration::from_secs(60));
        assert!(
            estimates[estimates.len() - 1] > 1.5e6 && estimator.allows_probing(),
            "{}",
            estimates[estimates.len() - 1]
        );
        // A radio link normally loses 1% of the packets.
        path.lose_every = 100;
        let later = later + Duration::from_secs(60);
        let (estimates, _) = send(&mut estimator, &mut path, 2e6, later, Duration::from_secs(20));
        assert!(estimates.iter().all(|rate| *rate > 1.5e6));
    }
}
