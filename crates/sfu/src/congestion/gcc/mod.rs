//! Bandwidth estimate from the send and arrival times of packets: Google Congestion Control. Source:
//! draft-ietf-rmcat-gcc-02, with a trendline filter in place of its Kalman filter, as in browsers.
//!
//! ```text
//!   arrivals ─► groups ─► trend of the delay ─► grows | stable | shrinks ─► rate ─┐
//!      └─► losses ───────────────────────────────────────────────────────► bound ─┴─► minimum of both
//! ```

mod losses;
mod receiver;
mod sequence_losses;
mod trend;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use super::{CongestionController, RATE_MAX, RATE_MIN, Report, throughput::Throughput, within_limits};
use losses::Losses;
pub use receiver::{ReceiverEstimator, SendTime};
use trend::{Trend, Usage};

/// Google Congestion Control of one network path.
#[derive(Debug)]
pub struct Gcc {
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

impl Gcc {
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
}

impl CongestionController for Gcc {
    fn name(&self) -> &'static str {
        "gcc"
    }

    fn bits_per_s(&self) -> u64 {
        self.rate.min(self.losses.bound.unwrap_or(RATE_MAX)) as u64
    }

    fn loss(&self) -> Option<f64> {
        self.losses.share
    }

    /// Probing is allowed while the delay is stable and losses do not limit the rate.
    fn allows_probing(&self) -> bool {
        self.delay.usage == Usage::Normal && self.losses.bound.is_none()
    }

    fn handle_report(&mut self, report: &Report<'_>) {
        for arrival in report.arrivals {
            let sent_us = arrival.sent.saturating_duration_since(self.born).as_micros() as i64;
            self.delay.update(sent_us, arrival.arrived_us);
            self.throughput.update(arrival.arrived_us, arrival.bytes);
        }
        if let (true, Some(estimate)) = (report.arrivals.is_empty(), report.remb_bits_per_s) {
            // The receiver runs the delay-based half of the algorithm.
            self.rate = within_limits(estimate as f64);
        }
        self.adjust(report.rtt, report.now);
        self.losses.update(report.covered, report.lost, self.rate, report.rtt, report.now);
    }

    fn raise_to(&mut self, bits_per_s: f64) {
        if bits_per_s > self.rate {
            self.rate = bits_per_s.min(RATE_MAX);
        }
    }

    fn set_bits_per_s(&mut self, bits_per_s: f64) {
        self.rate = within_limits(bits_per_s);
        self.losses.bound = self.losses.bound.map(|_| self.rate);
    }

    fn handle_timeout(&mut self, _: Instant) {}
}

impl Gcc {
    fn adjust(&mut self, rtt: Duration, now: Instant) {
        let elapsed = now.saturating_duration_since(self.adjusted).min(Duration::from_secs(1)).as_secs_f64();
        self.adjusted = now;
        let Some(received) = self.throughput.bits_per_s() else { return };
        match self.delay.usage {
            Usage::Over => {
                let again = rtt.clamp(Duration::from_millis(10), Duration::from_millis(200)) + RESPONSE_TIME_EXTRA;
                if self.decreased.is_none_or(|at| now.saturating_duration_since(at) >= again) {
                    self.decrease(now);
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

    /// Reduces the rate to a part of the received rate.
    fn decrease(&mut self, now: Instant) {
        let Some(received) = self.throughput.bits_per_s() else { return };
        self.rate = self.rate.min(DECREASE * received).max(RATE_MIN);
        self.update_capacity(received);
        self.decreased = Some(now);
    }

    fn update_capacity(&mut self, received: f64) {
        let (mean, deviation) = self.capacity.unwrap_or((received, 0.1 * received));
        let error = received - mean;
        let mean = mean + CAPACITY_WEIGHT * error;
        let deviation = (1.0 - CAPACITY_WEIGHT) * deviation + CAPACITY_WEIGHT * error.abs();
        self.capacity = Some((mean, deviation.clamp(0.02 * mean, 0.1 * mean)));
    }
}
