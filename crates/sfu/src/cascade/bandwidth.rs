//! Bandwidth estimate of a link, over all rooms that use it, and probes for more bandwidth.

use std::time::{Duration, Instant};

use super::sent::SentFrames;
use crate::{
    congestion::{Algorithm, Arrival, CongestionController, Report},
    egress::Probe,
};

/// Initial estimate in bit/s. Nodes are usually close to each other; losses and delay lower it within a second.
const FIRST_ESTIMATE: f64 = 5_000_000.0;
/// Pause between probes. Each probe that shows no more bandwidth doubles it, up to `PROBE_PAUSE_MAX`.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(16);
const PROBE_GAIN_MIN: f64 = 1.05;
/// A probe's rate is `PROBE_RATE_STEP` times the estimate, but at most `PROBE_RATE_OVERSHOOT` times the desired rate.
const PROBE_RATE_STEP: f64 = 2.0;
const PROBE_RATE_OVERSHOOT: f64 = 1.2;

#[derive(Debug)]
pub struct Bandwidth {
    controller: Box<dyn CongestionController>,
    desired_bits_per_s: f64,
    probe: Option<(Probe, f64)>,
    probe_at: Instant,
    probe_pause: Duration,
    has_reports: bool,
}

impl Bandwidth {
    pub fn new(algorithm: Algorithm, now: Instant) -> Self {
        Self {
            controller: algorithm.controller(FIRST_ESTIMATE, now),
            desired_bits_per_s: 0.0,
            probe: None,
            probe_at: now,
            probe_pause: PROBE_PAUSE,
            has_reports: false,
        }
    }

    pub fn bits_per_s(&self) -> u64 {
        self.controller.bits_per_s()
    }

    pub fn loss(&self) -> Option<f64> {
        self.controller.loss()
    }

    /// Sets the bit rate of everything that the other node wants. Probing begins if it exceeds the estimate.
    pub fn set_desired(&mut self, bits_per_s: u64) {
        self.desired_bits_per_s = bits_per_s as f64;
    }

    /// Counts a frame that was sent with this number.
    pub fn count(&mut self, bytes: usize, number: u64) {
        if let Some((probe, _)) = &mut self.probe {
            probe.count(bytes, number);
        }
    }

    pub fn arrived(&mut self, number: u64, arrival: Arrival) {
        if let Some((probe, _)) = &mut self.probe {
            probe.update(number, arrival);
        }
    }

    /// Handles the report that `sent` has read.
    pub fn handle_report(&mut self, sent: &SentFrames, now: Instant) {
        self.has_reports = true;
        let SentFrames { arrivals, lost, covered, rtt, .. } = sent;
        let (lost, covered, rtt) = (*lost, *covered, *rtt);
        self.controller.handle_report(&Report { now, arrivals, lost, covered, rtt, remb_bits_per_s: None });
        self.finish_probe(sent.newest_reported, now);
        self.begin_probe(sent.next, now);
    }

    fn finish_probe(&mut self, newest: Option<u64>, now: Instant) {
        let Some((probe, before)) = &self.probe else { return };
        let Some(result) = probe.result(newest, now) else { return };
        let found_more = result.is_ok_and(|rate| rate > PROBE_GAIN_MIN * before);
        if let Ok(rate) = result {
            self.controller.raise_to(rate);
        }
        self.probe_pause = if found_more { PROBE_PAUSE } else { (2 * self.probe_pause).min(PROBE_PAUSE_MAX) };
        self.probe_at = now + if found_more { Duration::ZERO } else { self.probe_pause };
        self.probe = None;
    }

    fn begin_probe(&mut self, next: u64, now: Instant) {
        let estimate = self.controller.bits_per_s() as f64;
        let is_wanted = self.has_reports && self.desired_bits_per_s > estimate && self.controller.allows_probing();
        if is_wanted && self.probe.is_none() && now >= self.probe_at {
            let rate = (PROBE_RATE_STEP * estimate).min(PROBE_RATE_OVERSHOOT * self.desired_bits_per_s);
            self.probe = Some((Probe::new(rate, next, now), estimate));
        }
    }

    pub fn timeout(&self) -> Option<Instant> {
        self.probe.as_ref().map(|(probe, _)| probe.timeout())
    }

    /// Call it once per second at the latest.
    pub fn handle_timeout(&mut self, newest_reported: Option<u64>, now: Instant) {
        self.controller.handle_timeout(now);
        self.finish_probe(newest_reported, now);
    }

    /// Returns whether a probe must send padding now.
    pub fn needs_padding(&self, now: Instant) -> bool {
        self.probe.as_ref().is_some_and(|(probe, _)| !probe.is_sent() && probe.timeout() <= now)
    }
}
