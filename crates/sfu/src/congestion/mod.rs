//! Congestion control of a sender: which rate a network path carries, from the reports of the receiver.
//!
//! - [`CongestionController`]: the interface of every algorithm
//! - [`Algorithm`]: the choice of one, by name
//! - [`gcc`]: Google Congestion Control, as browsers use it; the default. [`gcc::ReceiverEstimator`] is its half at the
//!   receiver
//! - [`rrtcc`]: the congestion control of browsers in 2013
//! - [`nada`]: network-assisted dynamic adaptation, RFC 8698
//! - [`tfrc`]: the throughput equation of TCP-Friendly Rate Control, a bound of `rrtcc`
//! - [`coupled`]: shares the sum of several controllers' rates between their flows, RFC 8699
//!
//! No clock and no packets: reports and the time are inputs.

mod algorithm;
pub mod coupled;
pub mod gcc;
pub mod nada;
pub mod rrtcc;
pub mod tfrc;
mod throughput;

#[cfg(test)]
mod tests;

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

pub use algorithm::{Algorithm, UnknownAlgorithm};

/// Limits of every target rate, in bit/s.
pub const RATE_MIN: f64 = 30_000.0;
pub const RATE_MAX: f64 = 1e9;
/// The highest usable rate of a sender counts as this rate in bit/s at least. Source: RFC 8698, default of RMAX.
const USABLE_MIN: f64 = 1_500_000.0;

/// One packet that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub sent: Instant,
    /// Arrival time in microseconds of the receiver's clock.
    pub arrived_us: i64,
    pub bytes: usize,
}

/// Report of a receiver to its sender, decoded.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    pub now: Instant,
    /// Packets that arrived, in the order of sending; empty if the receiver reports no arrival times.
    pub arrivals: &'a [Arrival],
    /// Packets that this report calls lost.
    pub lost: usize,
    /// Packets that this report covers, the lost ones included.
    pub covered: usize,
    /// Round-trip time.
    pub rtt: Duration,
    /// The receiver's own estimate in bit/s (REMB), if the report has one.
    pub remb_bits_per_s: Option<u64>,
}

impl Report<'_> {
    /// Returns the ratio of lost packets, from 0 to 1. `None`: the report covers no packets.
    pub fn loss(&self) -> Option<f64> {
        (self.covered > 0).then(|| self.lost.min(self.covered) as f64 / self.covered as f64)
    }
}

/// A congestion controller of one sender and one network path.
pub trait CongestionController: Debug + Send {
    fn name(&self) -> &'static str;

    /// Returns the target rate of the sender in bit/s.
    fn bits_per_s(&self) -> u64;

    /// Returns the ratio of lost packets that was measured last, from 0 to 1; `None` before the first measurement.
    fn loss(&self) -> Option<f64>;

    /// Returns whether the sender may probe for more bandwidth now.
    fn allows_probing(&self) -> bool;

    fn handle_report(&mut self, report: &Report<'_>);

    /// Raises the target rate to a rate in bit/s that a probe has shown.
    fn raise_to(&mut self, bits_per_s: f64);

    /// Replaces the target rate by one in bit/s that coupled control has assigned.
    fn set_bits_per_s(&mut self, bits_per_s: f64);

    /// Sets the highest rate in bit/s that the sender can use. Some algorithms ignore it.
    fn set_max(&mut self, _bits_per_s: f64) {}

    /// Handles the passing of time without a report. Callers call it at least once per second.
    fn handle_timeout(&mut self, now: Instant);
}

/// Returns a rate in bit/s within the limits. What is no number becomes the minimum.
fn within_limits(bits_per_s: f64) -> f64 {
    if bits_per_s.is_nan() { RATE_MIN } else { bits_per_s.clamp(RATE_MIN, RATE_MAX) }
}
