use std::time::{Duration, Instant};

use crate::congestion::Arrival;

/// A probe for more bandwidth: packets are sent at a higher rate for a moment, and their arrival rate shows the
/// capacity.
#[derive(Debug)]
pub struct Probe {
    bits_per_s: f64,
    begun: Instant,
    bytes: usize,
    sent_bytes: usize,
    /// Numbers of the packets that belong to the probe.
    numbers: std::ops::Range<u64>,
    arrivals: Option<ProbeArrivals>,
}

/// Too few packets of a probe were reported as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too few packets of the probe were reported as received")]
pub struct TooFewReported;

/// Arrivals of the probe's packets.
#[derive(Clone, Copy, Debug)]
struct ProbeArrivals {
    first: Arrival,
    last: Arrival,
    bytes: usize,
    count: usize,
}

const DURATION: Duration = Duration::from_millis(20);
const BYTES_MIN: usize = 5000;
/// Maximum time until the last packet of the probe is reported. After it the probe is judged by the reports received.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);
const SHARE_MIN: f64 = 0.8;
const COUNT_MIN: usize = 4;
/// If the arrival rate is below the share `SATURATED_BELOW` of the send rate, the probe exceeded the capacity. The result is
/// then the share `SATURATED_RATE_SHARE` of the arrival rate.
const SATURATED_BELOW: f64 = 0.9;
const SATURATED_RATE_SHARE: f64 = 0.95;

impl Probe {
    /// Begins a probe. `number`: number of the next packet.
    pub fn new(bits_per_s: f64, number: u64, now: Instant) -> Self {
        let bytes = ((bits_per_s * DURATION.as_secs_f64() / 8.0) as usize).max(BYTES_MIN);
        Self { bits_per_s, begun: now, bytes, sent_bytes: 0, numbers: number..number, arrivals: None }
    }

    /// Returns whether the whole probe was sent.
    pub fn is_sent(&self) -> bool {
        self.sent_bytes >= self.bytes
    }

    /// Returns when the next packet of the probe is due. Once all are sent, returns the deadline for the reports.
    pub fn timeout(&self) -> Instant {
        if self.is_sent() {
            return self.begun + REPORT_TIMEOUT;
        }
        self.begun + Duration::from_secs_f64(self.sent_bytes as f64 * 8.0 / self.bits_per_s)
    }

    /// Counts a packet that was sent. All packets count, not only those of the probe.
    pub fn count(&mut self, bytes: usize, number: u64) {
        if !self.is_sent() {
            self.sent_bytes += bytes;
            self.numbers.end = number + 1;
        }
    }

    pub fn update(&mut self, number: u64, arrival: Arrival) {
        if self.numbers.contains(&number) {
            let arrivals =
                self.arrivals.get_or_insert(ProbeArrivals { first: arrival, last: arrival, bytes: 0, count: 0 });
            (arrivals.last, arrivals.bytes, arrivals.count) =
                (arrival, arrivals.bytes + arrival.bytes, arrivals.count + 1);
        }
    }

    /// Returns the measured rate in bit/s. `None`: the last packet of the probe, or a later one, is not reported yet.
    ///
    /// Errors: [`TooFewReported`].
    pub fn result(&self, newest: Option<u64>, now: Instant) -> Option<Result<f64, TooFewReported>> {
        let is_reported = self.is_sent() && newest.is_some_and(|newest| newest + 1 >= self.numbers.end);
        if !is_reported && now.saturating_duration_since(self.begun) < REPORT_TIMEOUT {
            return None;
        }
        Some(self.rate().ok_or(TooFewReported))
    }

    fn rate(&self) -> Option<f64> {
        let ProbeArrivals { first, last, bytes, count } = self.arrivals?;
        let sent = (self.numbers.end - self.numbers.start) as f64;
        if count < COUNT_MIN || (count as f64) < SHARE_MIN * sent {
            return None;
        }
        let took = last.sent.saturating_duration_since(first.sent).as_secs_f64();
        let took_to_arrive = (last.arrived_us - first.arrived_us) as f64 / 1e6;
        if took <= 0.0 || took_to_arrive < 0.0 {
            return None;
        }
        // Each rate covers the time between the first and the last packet, so the size of one of the two is not
        // counted.
        let sent = (bytes - last.bytes) as f64 * 8.0 / took;
        let received =
            if took_to_arrive > 0.0 { (bytes - first.bytes) as f64 * 8.0 / took_to_arrive } else { f64::INFINITY };
        Some(if received < SATURATED_BELOW * sent { SATURATED_RATE_SHARE * received } else { sent.min(received) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends ten packets of 1,000 bytes at 4 Mbit/s over a path with the given capacity.
    fn probe(capacity: f64, lose: usize) -> Option<Result<f64, TooFewReported>> {
        #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
        let begun = Instant::now();
        let mut probe = Probe::new(4e6, 70, begun);
        let (mut number, mut free_us) = (70, 0.0);
        while !probe.is_sent() {
            let sent = probe.timeout();
            probe.count(1000, number);
            let at = sent.saturating_duration_since(begun).as_micros() as f64;
            free_us = f64::max(free_us, at) + 8e9 / capacity;
            if number >= 70 + lose as u64 {
                probe.update(number, Arrival { sent, arrived_us: 5_000_000 + free_us as i64, bytes: 1000 });
            }
            number += 1;
        }
        assert_eq!(number, 80);
        assert_eq!(probe.result(Some(78), begun), None, "the last has not been heard of");
        assert!(probe.result(None, begun + REPORT_TIMEOUT).is_some());
        probe.result(Some(79), begun)
    }

    #[test]
    fn probe_reports_send_rate_or_bottleneck_rate() {
        let near = |result: Option<Result<f64, TooFewReported>>, expected: f64| {
            let rate = result.unwrap().unwrap();
            assert!((rate / expected - 1.0).abs() < 0.05, "{rate} for {expected}");
        };
        near(probe(1e9, 0), 4e6);
        near(probe(4.2e6, 0), 4e6);
        near(probe(2e6, 0), SATURATED_RATE_SHARE * 2e6);
        near(probe(1e9, 2), 4e6);
        assert_eq!(probe(1e9, 3), Some(Err(TooFewReported)), "too much was lost");
    }
}
