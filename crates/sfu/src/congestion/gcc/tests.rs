use crate::congestion::Arrival;

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
fn send(estimator: &mut Gcc, path: &mut Path, most: f64, from: Instant, span: Duration) -> (Vec<f64>, f64) {
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
            let covered = arrivals.len() + lost;
            estimator.handle_report(&Report {
                now,
                arrivals: &arrivals,
                lost,
                covered,
                rtt: RTT,
                remb_bits_per_s: None,
            });
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
    let (mut estimator, now) = (Gcc::new(1e6, start()), start());
    let (estimates, longest_ms) = send(&mut estimator, &mut path(3e6, 0), f64::INFINITY, now, Duration::from_secs(120));
    let late = &estimates[estimates.len() / 2..];
    let mean = late.iter().sum::<f64>() / late.len() as f64;
    assert!((2.2e6..3.1e6).contains(&mean), "{mean}");
    assert!(longest_ms < 400.0, "{longest_ms} ms in the queue");
}

#[test]
fn estimate_follows_capacity_drop() {
    let (mut estimator, now) = (Gcc::new(2e6, start()), start());
    let mut path = path(5e6, 0);
    send(&mut estimator, &mut path, 2e6, now, Duration::from_secs(10));
    path.bits_per_s = 5e5;
    let later = now + Duration::from_secs(10);
    let (estimates, _) = send(&mut estimator, &mut path, f64::INFINITY, later, Duration::from_secs(10));
    assert!(estimates.iter().skip(60).all(|rate| *rate < 7e5), "{estimates:?}");
}

#[test]
fn low_send_rate_keeps_estimate() {
    let (mut estimator, now) = (Gcc::new(1e6, start()), start());
    let (estimates, _) = send(&mut estimator, &mut path(1e7, 0), 3e5, now, Duration::from_secs(60));
    assert!(estimates.iter().all(|rate| (9.9e5..=1.01e6).contains(rate)), "{estimates:?}");
    estimator.raise_to(2.5e6);
    estimator.raise_to(2e6);
    assert_eq!(estimator.bits_per_s(), 2_500_000);
    assert!(estimator.allows_probing());
}

#[test]
fn losses_limit_estimate_while_they_last() {
    let (mut estimator, now) = (Gcc::new(2e6, start()), start());
    let mut path = path(1e8, 5);
    let (estimates, _) = send(&mut estimator, &mut path, 2e6, now, Duration::from_secs(20));
    assert!(estimates[estimates.len() - 1] < 3e5 && !estimator.allows_probing(), "{estimates:?}");
    path.lose_every = 0;
    let later = now + Duration::from_secs(20);
    let (estimates, _) = send(&mut estimator, &mut path, 2e6, later, Duration::from_secs(60));
    assert!(estimates[estimates.len() - 1] > 1.5e6 && estimator.allows_probing(), "{}", estimates[estimates.len() - 1]);
    // A radio link normally loses 1% of the packets.
    path.lose_every = 100;
    let later = later + Duration::from_secs(60);
    let (estimates, _) = send(&mut estimator, &mut path, 2e6, later, Duration::from_secs(20));
    assert!(estimates.iter().all(|rate| *rate > 1.5e6));
}
