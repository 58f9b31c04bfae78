//! The throughput equation of TCP-Friendly Rate Control. Source: RFC 5348, section 3.1.

use std::time::Duration;

/// Segment size in bytes: a video packet.
pub const SEGMENT_BYTES: f64 = 1200.0;
/// Minimum round-trip time of the equation. Shorter ones are within the precision of reports.
const RTT_MIN: Duration = Duration::from_millis(1);

/// Returns the rate in bit/s at which TCP would send.
///
/// `loss`: ratio of lost packets, used as the loss event rate; above 1, it counts as 1. `None`: nothing was lost, or
/// `loss` is no number, so that the equation gives no limit.
/// Source: RFC 5348, section 3.1, with one acknowledged packet per acknowledgment, and a retransmission timeout of 4
/// round-trip times.
pub fn bits_per_s(segment_bytes: f64, rtt: Duration, loss: f64) -> Option<f64> {
    if loss.is_nan() || loss <= 0.0 {
        return None;
    }
    let (loss, rtt_s) = (loss.min(1.0), rtt.max(RTT_MIN).as_secs_f64());
    let timeout_s = 4.0 * rtt_s;
    let after_loss = rtt_s * (2.0 * loss / 3.0).sqrt();
    let after_timeout = timeout_s * (3.0 * (3.0 * loss / 8.0).sqrt() * loss * (1.0 + 32.0 * loss * loss));
    Some(8.0 * segment_bytes / (after_loss + after_timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kbit_per_s(rtt_ms: f64, loss_percent: f64) -> f64 {
        let rtt = Duration::from_secs_f64(rtt_ms / 1000.0);
        bits_per_s(SEGMENT_BYTES, rtt, loss_percent / 100.0).unwrap() / 1000.0
    }

    /// Lozano 2013, table 4: measured round-trip time and loss (overall), and the rate of the equation in kbit/s,
    /// rounded down. The loss of the second row is the mean of both machines; the printed 22.97 % is not.
    #[test]
    fn equation_gives_rates_of_table_4() {
        for (rtt_ms, loss_percent, expected) in
            [(82.66, 18.91, 70.0), (101.26, 22.80, 37.0), (201.48, 18.77, 29.0), (403.83, 18.83, 14.0)]
        {
            let rate = kbit_per_s(rtt_ms, loss_percent);
            assert_eq!(rate.floor(), expected, "{rtt_ms} ms and {loss_percent} % give {rate} kbit/s");
        }
    }

    #[test]
    fn rate_falls_with_loss_and_round_trip_time() {
        assert!(kbit_per_s(10.0, 1.0) > kbit_per_s(10.0, 2.0));
        assert!(kbit_per_s(10.0, 1.0) > kbit_per_s(20.0, 1.0));
        let ratio = kbit_per_s(100.0, 10.0) / kbit_per_s(200.0, 10.0);
        assert!((ratio - 2.0).abs() < 1e-9, "the rate is inversely proportional to the round-trip time: {ratio}");
    }

    #[test]
    fn invalid_loss_gives_no_limit() {
        let rtt = Duration::from_millis(100);
        for loss in [0.0, -0.1, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(bits_per_s(SEGMENT_BYTES, rtt, loss), None, "{loss}");
        }
        for loss in [1.5, f64::INFINITY] {
            assert_eq!(bits_per_s(SEGMENT_BYTES, rtt, loss), bits_per_s(SEGMENT_BYTES, rtt, 1.0));
        }
        assert!(bits_per_s(SEGMENT_BYTES, Duration::ZERO, 0.1).is_some_and(f64::is_finite));
    }
}
