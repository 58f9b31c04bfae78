use super::*;
use crate::congestion::Arrival;

const RTT: Duration = Duration::from_millis(100);

#[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
fn start() -> Instant {
    Instant::now()
}

fn report(now: Instant, lost: usize, covered: usize, remb_bits_per_s: Option<u64>) -> Report<'static> {
    Report { now, arrivals: &[], lost, covered, rtt: RTT, remb_bits_per_s }
}

/// Returns the rate after one report per second.
fn after_reports(config: Config, first: f64, reports: &[(usize, usize, Option<u64>)]) -> f64 {
    let now = start();
    let mut controller = Controller::new(config, first, now);
    for ((lost, covered, remb), second) in reports.iter().zip(1..) {
        controller.handle_report(&report(now + second * INTERVAL, *lost, *covered, *remb));
    }
    controller.bits_per_s() as f64
}

#[test]
fn equation_8_has_three_branches() {
    let next = |usage, increase, before| next_estimate(before, usage, 1e6, increase, Duration::from_secs(1));
    for increase in [Increase::Jump, Increase::Gradual] {
        assert_eq!(next(Usage::Over, increase, Some(2e6)), Some(0.85e6));
        assert_eq!(next(Usage::Normal, increase, None), None);
    }
    assert_eq!(next(Usage::Normal, Increase::Jump, Some(7e5)), Some(7e5));
    assert_eq!(next(Usage::Under, Increase::Jump, Some(7e5)), Some(1.5e6));
    assert_eq!(next(Usage::Under, Increase::Jump, None), Some(1.5e6));
}

#[test]
fn draft_increases_gradually_up_to_its_cap() {
    let next = |usage, before| next_estimate(Some(before), usage, 1e6, Increase::Gradual, Duration::from_secs(1));
    assert_eq!(next(Usage::Normal, 7e5), Some(7e5 * 1.08));
    assert_eq!(next(Usage::Normal, 1.45e6), Some(1.5e6), "the cap is 1.5 times the received rate");
    assert_eq!(next(Usage::Normal, 1.7e6), Some(1.7e6), "the cap does not lower the estimate");
    assert_eq!(next(Usage::Under, 7e5), Some(7e5));
}

#[test]
fn equation_9_has_three_branches() {
    assert_eq!(next_rate(1e6, 0.0), 1.05 * (1e6 + 1000.0));
    assert_eq!(next_rate(1e6, 0.0199), 1.05 * (1e6 + 1000.0));
    assert_eq!(next_rate(1e6, 0.02), 1e6, "at 2 % the rate stays");
    assert_eq!(next_rate(1e6, 0.05), 1e6);
    assert_eq!(next_rate(1e6, 0.10), 1e6, "at 10 % the rate stays");
    assert_eq!(next_rate(1e6, 0.1001), 1e6 * (1.0 - 0.5 * 0.1001));
    assert_eq!(next_rate(1e6, 1.0), 5e5);
}

#[test]
fn controller_takes_loss_from_counts() {
    let high = RATE_MAX as u64;
    // Without a loss, TFRC gives no limit in either variant.
    for config in [Config::DEFAULT, Config::STRICT] {
        assert_eq!(after_reports(config, 1e6, &[(0, 100, Some(high))]), 1_051_050.0);
    }
    // Exactly 2 % and 10 % of 100 packets: TFRC at 100 ms is 738 and 206 kbit/s, below the rate of 1 Mbit/s.
    assert_eq!(after_reports(Config::DEFAULT, 1e6, &[(2, 100, Some(high))]), 1e6);
    assert_eq!(after_reports(Config::DEFAULT, 1e6, &[(10, 100, Some(high))]), 1e6);
    assert_eq!(after_reports(Config::DEFAULT, 1e6, &[(20, 100, Some(high))]), 9e5);
}

#[test]
fn tfrc_is_minimum_or_strict_maximum() {
    let tfrc = tfrc::bits_per_s(tfrc::SEGMENT_BYTES, RTT, 0.05).unwrap();
    assert!((300e3..500e3).contains(&tfrc), "{tfrc}");
    let reports = [(5, 100, None)];
    assert_eq!(after_reports(Config::DEFAULT, 1e6, &reports), 1e6, "above TFRC");
    assert_eq!(after_reports(Config::STRICT, 1e6, &reports), tfrc.floor());
    assert_eq!(after_reports(Config::DEFAULT, 3e5, &reports), tfrc.floor(), "raised to TFRC");
    assert_eq!(after_reports(Config::DEFAULT, 1e5, &reports), 2e5, "TFRC raises at most to the double");
    assert_eq!(after_reports(Config::STRICT, 3e5, &reports), 3e5, "below TFRC");
    // REMB is the maximum in both variants, also below TFRC.
    for config in [Config::DEFAULT, Config::STRICT] {
        assert_eq!(after_reports(config, 1e6, &[(5, 100, Some(250_000))]), 250_000.0);
    }
}

#[test]
fn lower_remb_holds_at_once() {
    let now = start();
    let mut controller = Controller::new(Config::DEFAULT, 1e6, now);
    controller.handle_report(&report(now + Duration::from_millis(100), 0, 0, Some(400_000)));
    assert_eq!(controller.bits_per_s(), 400_000);
    // A later report without an estimate keeps the last one.
    controller.handle_report(&report(now + INTERVAL, 0, 100, None));
    assert_eq!(controller.bits_per_s(), 400_000);
}

#[test]
fn frequent_reports_are_one_step_per_second() {
    let now = start();
    let mut controller = Controller::new(Config::DEFAULT, 1e6, now);
    for tick in 1..=200 {
        controller.handle_report(&report(now + tick * Duration::from_millis(50), 0, 5, None));
    }
    let expected = (0..10).fold(1e6, |rate, _| next_rate(rate, 0.0));
    assert_eq!(controller.bits_per_s(), expected as u64);
}

#[test]
fn rate_rises_to_highest_usable_rate() {
    let now = start();
    let mut controller = Controller::new(Config::DEFAULT, 1e6, now);
    controller.set_max(4e6);
    (1..100).for_each(|second| controller.handle_report(&report(now + second * INTERVAL, 0, 100, None)));
    assert_eq!(controller.bits_per_s(), 4_000_000);
}

#[test]
fn rate_halves_after_two_intervals_without_report() {
    let now = start();
    let mut controller = Controller::new(Config::DEFAULT, 1e6, now);
    controller.handle_report(&report(now + INTERVAL, 5, 100, None));
    assert_eq!(controller.bits_per_s(), 1_000_000);
    let at = |ms| now + INTERVAL + Duration::from_millis(ms);
    controller.handle_timeout(at(1999));
    assert_eq!(controller.bits_per_s(), 1_000_000);
    controller.handle_timeout(at(2000));
    controller.handle_timeout(at(2010));
    assert_eq!(controller.bits_per_s(), 500_000);
    controller.handle_timeout(at(4000));
    assert_eq!(controller.bits_per_s(), 250_000);
    controller.handle_report(&report(at(4500), 0, 0, None));
    controller.handle_timeout(at(6000));
    assert_eq!(controller.bits_per_s(), 250_000, "the report begins another period");
    (10..2000).for_each(|second| controller.handle_timeout(at(second * 1000)));
    assert_eq!(controller.bits_per_s() as f64, RATE_MIN);
}

#[test]
fn extreme_estimates_stay_within_limits() {
    assert_eq!(after_reports(Config::DEFAULT, 1e6, &[(0, 100, Some(0))]), RATE_MIN);
    assert_eq!(after_reports(Config::DEFAULT, 1e6, &[(0, 100, Some(u64::MAX))]), 1_051_050.0);
    // More lost than covered: everything is lost.
    assert_eq!(after_reports(Config::DEFAULT, 1e6, &[(500, 100, None)]), 5e5);
}

/// Sends packets of 1,200 bytes at a rate through a path with another one. Returns the estimates, one per second.
fn estimates(increase: Increase, rates: &[(f64, u64)], capacity: f64) -> Vec<Option<u64>> {
    let (mut estimator, born) = (RemoteEstimator::new(increase), start());
    let (mut at_us, mut free_us, mut estimates) = (0.0, 0.0_f64, Vec::new());
    let mut ask_us = 1e6;
    let mut end_us = 0.0;
    for (rate, seconds) in rates {
        end_us += *seconds as f64 * 1e6;
        while at_us < end_us {
            free_us = free_us.max(at_us) + 9600e6 / capacity;
            estimator.handle_packet(5_000_000 + free_us as i64, at_us as i64, 1200);
            at_us += 9600e6 / rate;
            if at_us >= ask_us {
                estimates.push(estimator.bits_per_s(born + Duration::from_micros(ask_us as u64)));
                ask_us += 1e6;
            }
        }
    }
    estimates
}

#[test]
fn estimator_detects_overuse_and_underuse() {
    let free = estimates(Increase::Jump, &[(5e5, 10)], 1e6);
    assert!(free.iter().all(Option::is_none), "nothing limits the rate: {free:?}");
    // Ten percent above the capacity, then far below it until the queue is empty.
    let queued = estimates(Increase::Jump, &[(1.2e6, 10), (3e5, 10)], 1e6);
    let over = queued[9].unwrap() as f64;
    assert!((0.8e6..0.87e6).contains(&over), "0.85 times the capacity: {over}");
    assert!(
        queued[10..].iter().any(|rate| rate.unwrap() as f64 > 1.2e6),
        "a queue that drains is underuse: {queued:?}"
    );
}

#[test]
fn estimator_survives_jumps_of_clocks() {
    let mut estimator = RemoteEstimator::new(Increase::Jump);
    let now = start();
    for (arrived_us, sent_us) in [
        (0, 0),
        (i64::MAX, 10_000),
        (i64::MIN, 20_000),
        (0, i64::MIN),
        (0, i64::MAX),
        (1_000, -5_000),
        (-1_000_000_000, 30_000),
    ] {
        for step in 0..50 {
            estimator.handle_packet(
                arrived_us.saturating_add(step * 10_000),
                sent_us.saturating_add(step * 10_000),
                1200,
            );
        }
        let estimate = estimator.bits_per_s(now).map_or(RATE_MIN, |rate| rate as f64);
        assert!((RATE_MIN..=RATE_MAX).contains(&estimate), "{estimate}");
    }
}

#[test]
fn controller_estimates_from_arrivals() {
    let (now, path, rate) = (start(), 1e6, 2e6);
    let mut controller = Controller::new(Config::DEFAULT, rate, now);
    let (mut at_us, mut free_us) = (0.0, 0.0_f64);
    for tick in 1..=60_u32 {
        let mut arrivals = Vec::new();
        while at_us < f64::from(tick) * 50_000.0 {
            free_us = free_us.max(at_us) + 9600e6 / path;
            let sent = now + Duration::from_micros(at_us as u64);
            arrivals.push(Arrival { sent, arrived_us: free_us as i64, bytes: 1200 });
            at_us += 9600e6 / rate;
        }
        let (now, covered) = (now + tick * Duration::from_millis(50), arrivals.len());
        let report = Report { now, arrivals: &arrivals, lost: 0, covered, rtt: RTT, remb_bits_per_s: None };
        controller.handle_report(&report);
    }
    let estimate = controller.bits_per_s() as f64;
    assert!((0.8e6..0.9e6).contains(&estimate), "0.85 times the capacity: {estimate}");
}
