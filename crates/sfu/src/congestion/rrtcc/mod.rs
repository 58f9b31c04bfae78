//! RRTCC: the congestion control of browsers in 2013. Source: Lozano 2013, equations 5 to 9;
//! draft-alvestrand-rtcweb-congestion-03.
//!
//! ```text
//!   receiver: arrivals ─► inter-arrival filter (5 to 7) ─► over | normal | under ─► Ar (8) ─► REMB, each second ─┐
//!   sender:   loss ratio of reports ─► As (9) ─► bounds: TFRC, REMB ◄───────────────────────────────────────────┘
//! ```
//!
//! [`RemoteEstimator`] is the receiver's half, [`Controller`] the sender's. The equations hold where the prose of the
//! thesis differs: the rate stays the same between 2 % and 10 % loss, and rises below 2 %.

mod inter_arrival;
mod remote;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use super::{CongestionController, RATE_MAX, RATE_MIN, Report, USABLE_MIN, tfrc, within_limits};

pub use remote::{Increase, RemoteEstimator, Usage, next_estimate};

/// Variant of RRTCC.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Config {
    /// True: TFRC is a maximum, so the rate is the minimum of `As`, TFRC and REMB. False: TFRC is a minimum, so the
    /// rate is between TFRC and REMB. The thesis states both.
    pub is_strict: bool,
    pub increase: Increase,
}

impl Config {
    pub const DEFAULT: Self = Self { is_strict: false, increase: Increase::Jump };
    pub const STRICT: Self = Self { is_strict: true, increase: Increase::Jump };
}

/// The sender's half of RRTCC.
#[derive(Debug)]
pub struct Controller {
    config: Config,
    /// `As` of equation 9 after its bounds, in bit/s.
    rate: f64,
    /// Highest usable rate. Without it, `As` would rise without end while the sender has little to send.
    rate_max: f64,
    born: Instant,
    /// Estimate of the receiver, if it sends one.
    remb_bits_per_s: Option<u64>,
    /// Runs here for receivers that report arrival times and no estimate.
    remote: RemoteEstimator,
    covered: usize,
    lost: usize,
    loss: Option<f64>,
    /// Time from which a report is a step of equation 9.
    step_at: Instant,
    /// Time at which the rate is halved unless a report arrives.
    halve_at: Instant,
}

/// Loss ratios of equation 9: above `LOSS_HIGH` the rate falls, below `LOSS_LOW` it rises.
const LOSS_HIGH: f64 = 0.10;
const LOSS_LOW: f64 = 0.02;
const INCREASE: f64 = 1.05;
const INCREASE_BITS_PER_S: f64 = 1000.0;
/// Interval of reports: one step of both equations.
const INTERVAL: Duration = Duration::from_secs(1);
/// Reports are sent at random times around the interval, so a step may follow after less time. Source: RFC 3550,
/// section 6.3.1.
const INTERVAL_MIN: Duration = Duration::from_millis(500);
/// Without a report in this time the rate is halved.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// TFRC as a minimum raises the rate at most by this factor per step. Source: RFC 5348, section 4.3, where the limit is
/// twice the received rate.
const TFRC_FACTOR_MAX: f64 = 2.0;

impl Controller {
    pub fn new(config: Config, first_bits_per_s: f64, now: Instant) -> Self {
        Self {
            config,
            rate: within_limits(first_bits_per_s),
            rate_max: RATE_MAX,
            born: now,
            remb_bits_per_s: None,
            remote: RemoteEstimator::new(config.increase),
            covered: 0,
            lost: 0,
            loss: None,
            step_at: now + INTERVAL_MIN,
            halve_at: now + REPORT_TIMEOUT,
        }
    }

    fn step(&mut self, loss: f64, rtt: Duration, now: Instant, remb_bits_per_s: Option<u64>) {
        let tfrc = tfrc::bits_per_s(tfrc::SEGMENT_BYTES, rtt, loss);
        let remb = remb_bits_per_s.map_or(RATE_MAX, |bits_per_s| bits_per_s as f64);
        self.rate = bounded(self.rate, next_rate(self.rate, loss), tfrc, remb, self.config).min(self.rate_max);
        self.loss = Some(loss);
        self.step_at = (self.step_at + INTERVAL).max(now + INTERVAL_MIN);
    }
}

impl CongestionController for Controller {
    fn name(&self) -> &'static str {
        if self.config.is_strict { "rrtcc-strict" } else { "rrtcc" }
    }

    fn bits_per_s(&self) -> u64 {
        self.rate as u64
    }

    fn loss(&self) -> Option<f64> {
        self.loss
    }

    /// RRTCC has no probing.
    fn allows_probing(&self) -> bool {
        false
    }

    fn handle_report(&mut self, report: &Report<'_>) {
        let now = report.now;
        self.halve_at = now + REPORT_TIMEOUT;
        self.remb_bits_per_s = report.remb_bits_per_s.or(self.remb_bits_per_s);
        for arrival in report.arrivals {
            let sent_us = arrival.sent.saturating_duration_since(self.born).as_micros() as i64;
            self.remote.handle_packet(arrival.arrived_us, sent_us, arrival.bytes);
        }
        self.covered += report.covered;
        self.lost += report.lost.min(report.covered);
        if self.covered == 0 || now < self.step_at {
            // A lower estimate of the receiver holds at once.
            let remb = self.remb_bits_per_s.map_or(RATE_MAX, |bits_per_s| bits_per_s as f64);
            self.rate = self.rate.min(remb).max(RATE_MIN);
            return;
        }
        let loss = self.lost as f64 / self.covered as f64;
        (self.covered, self.lost) = (0, 0);
        let own_estimate = self.remote.bits_per_s(now);
        self.step(loss, report.rtt, now, self.remb_bits_per_s.or(own_estimate));
    }

    fn raise_to(&mut self, bits_per_s: f64) {
        if bits_per_s > self.rate {
            self.rate = bits_per_s.min(RATE_MAX);
        }
    }

    fn set_max(&mut self, bits_per_s: f64) {
        self.rate_max = within_limits(bits_per_s).max(USABLE_MIN);
    }

    fn set_bits_per_s(&mut self, bits_per_s: f64) {
        self.rate = within_limits(bits_per_s);
    }

    fn handle_timeout(&mut self, now: Instant) {
        if now >= self.halve_at {
            self.rate = (self.rate / 2.0).max(RATE_MIN);
            self.halve_at = now + REPORT_TIMEOUT;
        }
    }
}

/// Equation 9: returns `As(i)` before its bounds, from `As(i-1)` and the loss ratio.
pub fn next_rate(before: f64, loss: f64) -> f64 {
    if loss > LOSS_HIGH {
        before * (1.0 - 0.5 * loss.min(1.0))
    } else if loss < LOSS_LOW {
        INCREASE * (before + INCREASE_BITS_PER_S)
    } else {
        before
    }
}

/// Returns the rate within its bounds: at least TFRC and at most REMB, or with [`Config::is_strict`] the minimum of
/// all. `tfrc`: `None` if nothing was lost.
fn bounded(before: f64, next: f64, tfrc: Option<f64>, remb: f64, config: Config) -> f64 {
    let next = match tfrc {
        Some(tfrc) if config.is_strict => next.min(tfrc),
        Some(tfrc) => next.max(tfrc.min(TFRC_FACTOR_MAX * before)),
        None => next,
    };
    next.min(remb).clamp(RATE_MIN, RATE_MAX)
}
