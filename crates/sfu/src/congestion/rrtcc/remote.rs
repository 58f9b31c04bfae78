use std::time::{Duration, Instant};

use super::inter_arrival::InterArrival;
use crate::congestion::{RATE_MAX, RATE_MIN, throughput::Throughput};

/// The receiver's half of RRTCC: estimates the rate of the path from the arrivals, for a REMB each second.
#[derive(Debug)]
pub struct RemoteEstimator {
    increase: Increase,
    inter_arrival: InterArrival,
    throughput: Throughput,
    /// Strongest signal since the last call of [`RemoteEstimator::bits_per_s`]: overuse, then underuse.
    usage: Usage,
    /// `Ar` of equation 8. `None`: nothing has limited the rate yet.
    rate: Option<f64>,
    asked: Option<Instant>,
}

/// Use of the path, as the inter-arrival filter detects it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Usage {
    /// Overuse: the queue grows.
    Over,
    Normal,
    /// Underuse: the queue drains.
    Under,
}

/// When and how the receiver's estimate rises.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Increase {
    /// In underuse the estimate becomes 1.5 times the received rate, and stays in normal use. Source: Lozano 2013,
    /// equation 8.
    #[default]
    Jump,
    /// In normal use the estimate rises by 8 % per second up to 1.5 times the received rate, and stays in underuse.
    /// Source: draft-alvestrand-rtcweb-congestion-03, section 3.4, with the factor of draft-ietf-rmcat-gcc-02.
    Gradual,
}

/// Factors of equation 8, to the received rate.
const DECREASE: f64 = 0.85;
const INCREASE: f64 = 1.5;
/// Factor per second of [`Increase::Gradual`].
const GROWTH: f64 = 1.08;

impl RemoteEstimator {
    pub fn new(increase: Increase) -> Self {
        Self {
            increase,
            inter_arrival: InterArrival::new(),
            throughput: Throughput::default(),
            usage: Usage::Normal,
            rate: None,
            asked: None,
        }
    }

    /// Processes a packet. `timestamp_us`: its send time, or its RTP timestamp, in microseconds.
    pub fn handle_packet(&mut self, arrived_us: i64, timestamp_us: i64, bytes: usize) {
        self.inter_arrival.update(arrived_us, timestamp_us, bytes);
        self.throughput.update(arrived_us, bytes);
        self.usage = match (self.inter_arrival.usage(), self.usage) {
            (Usage::Over, _) | (_, Usage::Over) => Usage::Over,
            (Usage::Under, _) | (_, Usage::Under) => Usage::Under,
            (Usage::Normal, Usage::Normal) => Usage::Normal,
        };
    }

    /// Returns the estimate in bit/s, for a REMB. Callers ask once per second: each call is one step of equation 8.
    ///
    /// `None`: too few packets have arrived, or nothing has limited the rate yet.
    pub fn bits_per_s(&mut self, now: Instant) -> Option<u64> {
        let since = self.asked.map_or(Duration::ZERO, |asked| now.saturating_duration_since(asked));
        self.asked = Some(now);
        let usage = std::mem::replace(&mut self.usage, Usage::Normal);
        if let Some(received) = self.throughput.bits_per_s() {
            self.rate = next_estimate(self.rate, usage, received, self.increase, since);
        }
        self.rate.map(|rate| rate as u64)
    }
}

/// Equation 8: returns `Ar(i)` from `Ar(i-1)` and the received rate, in bit/s.
pub fn next_estimate(
    before: Option<f64>,
    usage: Usage,
    received: f64,
    increase: Increase,
    since: Duration,
) -> Option<f64> {
    let next = match (usage, increase) {
        (Usage::Over, _) => Some(DECREASE * received),
        (Usage::Under, Increase::Jump) => Some(INCREASE * received),
        (Usage::Normal, Increase::Gradual) => before.map(|before| {
            let grown = before * GROWTH.powf(since.as_secs_f64().min(1.0));
            grown.min(INCREASE * received).max(before)
        }),
        (Usage::Normal, Increase::Jump) | (Usage::Under, Increase::Gradual) => before,
    };
    next.map(|rate| rate.clamp(RATE_MIN, RATE_MAX))
}
