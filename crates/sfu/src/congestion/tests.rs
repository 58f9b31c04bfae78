//! Tests that every algorithm must pass.

use super::*;

#[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
fn start() -> Instant {
    Instant::now()
}

/// Feeds reports at arbitrary times, also back in time, with arbitrary contents.
#[test]
fn arbitrary_reports_keep_rate_within_limits() {
    let born = start() + Duration::from_secs(1000);
    for algorithm in Algorithm::ALL {
        let mut controller = algorithm.controller(1e6, born);
        for seed in 0..20_000_u64 {
            // Fibonacci hashing: arbitrary but repeatable.
            let random = |n: u64| (seed * 8 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let now = born + Duration::from_millis(random(0) % 10_000) - Duration::from_millis(random(1) % 10_000);
            let sent = now - Duration::from_millis(random(2) % 3000);
            let arrived_us = match random(3) % 8 {
                0 => i64::MAX,
                1 => i64::MIN,
                _ => random(4) as i64,
            };
            let arrivals = [Arrival { sent, arrived_us, bytes: (random(5) % 70_000) as usize }; 3];
            let arrivals = &arrivals[..(random(6) % 4) as usize];
            let remb_bits_per_s = [None, Some(0), Some(u64::MAX), Some(random(7))][(random(6) % 4) as usize];
            let (lost, covered) = ((random(2) % 9) as usize, (random(3) % 9) as usize);
            let rtt = Duration::from_millis(random(4) % 5000);
            controller.handle_report(&Report { now, arrivals, lost, covered, rtt, remb_bits_per_s });
            match random(5) % 5 {
                0 => controller.handle_timeout(now),
                1 => controller.raise_to([f64::NAN, f64::INFINITY, -1.0, 2e6][(random(1) % 4) as usize]),
                2 => controller.set_bits_per_s([0.0, 1e12, f64::NAN][(random(1) % 3) as usize]),
                3 => controller.set_max([f64::NAN, 1e12, 1e6][(random(1) % 3) as usize]),
                _ => {}
            }
            let rate = controller.bits_per_s() as f64;
            assert!((RATE_MIN - 1.0..=RATE_MAX).contains(&rate), "{algorithm}, seed {seed}: {rate}");
            assert!(controller.loss().is_none_or(|loss| (0.0..=1.0).contains(&loss)), "{algorithm}, seed {seed}");
        }
    }
}

#[test]
fn receiver_estimate_is_followed_without_arrival_times() {
    for algorithm in Algorithm::ALL {
        let now = start();
        let mut controller = algorithm.controller(1e6, now);
        for second in 1..=10 {
            let now = now + second * Duration::from_secs(1);
            let remb_bits_per_s = Some(400_000);
            controller.handle_report(&Report {
                now,
                arrivals: &[],
                lost: 0,
                covered: 50,
                rtt: Duration::from_millis(50),
                remb_bits_per_s,
            });
        }
        assert_eq!(controller.bits_per_s(), 400_000, "{algorithm}");
    }
}
