//! Checks our own measurement with Little's law, and checks whether a phase was steady enough for the law to hold.
//!
//! The law needs no assumption about the server. If it does not hold in a steady phase, a clock or a counter of the
//! lab is wrong.
//! Source: J. D. C. Little, "A Proof for the Queuing Formula: L = lambda W", Operations Research 9(3), 1961.

use serde::{Deserialize, Serialize};

use super::median;

/// Maximum relative difference between `N` and `X R`.
pub const TOLERANCE: f64 = 0.05;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Little {
    /// N: mean number in flight, counted.
    pub in_flight: f64,
    /// X R: number in flight that the law predicts.
    pub expected: f64,
    /// `N / (X R) - 1`. Zero if both are zero.
    pub relative_error: f64,
    pub holds: bool,
}

/// Compares the number in flight with the throughput per second times the mean residence time in seconds. All three
/// values must be measured independently.
pub fn check(in_flight: f64, per_s: f64, residence_s: f64) -> Little {
    let expected = per_s * residence_s;
    let relative_error = if in_flight == expected { 0.0 } else { in_flight / expected - 1.0 };
    Little { in_flight, expected, relative_error, holds: relative_error.abs() <= TOLERANCE }
}

/// Maximum change over one window, as a share of its mean. A window with a larger change, and more than chance
/// explains, is not steady.
pub const DRIFT_MAX: f64 = 0.10;
/// Number of standard errors of a slope that chance may explain. It is high, because there are many windows and
/// neighboring values are correlated.
const CHANCE: f64 = 4.0;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stationarity {
    /// Change from the first to the last value along the least-squares line, as a share of the mean.
    pub drift: f64,
    /// Index from which on every window is steady. Earlier values are warm-up. `None` if the last window is not
    /// steady.
    pub steady_from: Option<usize>,
}

impl Stationarity {
    /// Returns whether every window is steady.
    pub fn is_steady(&self) -> bool {
        self.steady_from == Some(0)
    }
}

/// Slides a window of `window` values over a series with equal time steps, and fits a line in each window. Returns
/// `None` if the series is shorter than a window, or the window has fewer than four values.
pub fn stationarity(series: &[f64], window: usize) -> Option<Stationarity> {
    if window < 4 || series.len() < window {
        return None;
    }
    let last = series.len() - window;
    let lines: Vec<Line> = series.windows(window).map(Line::of).collect();
    // Use the noise of the whole series, because the noise of only ten values may be small by chance.
    let noise = median(&lines.iter().map(|line| line.error).collect::<Vec<_>>());
    let bent = lines.iter().rposition(|line| line.change.abs() > DRIFT_MAX.max(CHANCE * noise));
    let steady_from = match bent {
        None => Some(0),
        Some(start) if start < last => Some(start + 1),
        Some(_) => None,
    };
    Some(Stationarity { drift: Line::of(series).change, steady_from })
}

/// Least-squares line: its change from first to last value as a share of the mean, and the standard error of that
/// change.
struct Line {
    change: f64,
    error: f64,
}

impl Line {
    fn of(values: &[f64]) -> Line {
        let n = values.len() as f64;
        let (middle, mean) = ((n - 1.0) / 2.0, values.iter().sum::<f64>() / n);
        let from_middle = |(i, value): (usize, &f64)| (i as f64 - middle, value - mean);
        let squares = n * (n * n - 1.0) / 12.0;
        let slope = values.iter().enumerate().map(from_middle).map(|(x, y)| x * y).sum::<f64>() / squares;
        let left: f64 = values.iter().enumerate().map(from_middle).map(|(x, y)| (y - slope * x).powi(2)).sum();
        let per_step = if mean == 0.0 { 0.0 } else { (n - 1.0) / mean.abs() };
        Line { change: slope * per_step, error: (left / (n - 2.0) / squares).sqrt() * per_step }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rand_pcg::Pcg64Mcg;
    use rand_pcg::rand_core::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn law_tolerates_five_percent_error() {
        // 4,000 per second with 25 ms each: 100 in flight.
        assert_eq!(
            check(100.0, 4000.0, 0.025),
            Little { in_flight: 100.0, expected: 100.0, relative_error: 0.0, holds: true }
        );
        assert!(check(104.9, 4000.0, 0.025).holds && check(95.1, 4000.0, 0.025).holds);
        assert!(!check(105.2, 4000.0, 0.025).holds && !check(94.8, 4000.0, 0.025).holds);
    }

    #[test]
    fn law_without_arrivals_requires_an_empty_system() {
        assert!(check(0.0, 0.0, 0.0).holds);
        assert!(!check(3.0, 0.0, 0.0).holds, "some are inside that nobody saw pass");
    }

    /// Simulates an M/M/1 queue event by event: Poisson arrivals of 80 per second, exponential service of 10 ms. In
    /// theory rho / (1 - rho) = 4 are in the system (L. Kleinrock, "Queueing Systems" I, 3.2), each for 1 / (mu -
    /// lambda) = 50 ms.
    #[test]
    fn the_law_holds_in_a_simulated_queue() {
        let mut chance = Pcg64Mcg::seed_from_u64(1961);
        let mut exponential = |mean: f64| -mean * (1.0 - (chance.next_u64() >> 11) as f64 / (1u64 << 53) as f64).ln();
        // `area` is the integral of the number in the system over time.
        let (mut arrives, mut free, mut inside, mut area, mut now) = (0.0, 0.0f64, VecDeque::<f64>::new(), 0.0, 0.0);
        let (count, mut residence) = (200_000, 0.0);
        for _ in 0..count {
            arrives += exponential(1.0 / 80.0);
            // Departures before this arrival. Departures are in order.
            while inside.front().is_some_and(|leaves| *leaves <= arrives) {
                area += (inside[0] - now) * inside.len() as f64;
                now = inside.pop_front().expect("there is a first");
            }
            area += (arrives - now) * inside.len() as f64;
            now = arrives;
            free = free.max(arrives) + exponential(0.01);
            inside.push_back(free);
            residence += free - arrives;
        }
        let seen = check(area / now, f64::from(count) / now, residence / f64::from(count));
        assert!(seen.holds, "{seen:?}");
        assert!((seen.expected - 4.0).abs() < 0.3, "{seen:?}");
    }

    fn noisy(count: usize, seed: u64, value: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut chance = Pcg64Mcg::seed_from_u64(seed);
        (0..count).map(|i| value(i) * (0.9 + 0.2 * (chance.next_u64() >> 11) as f64 / (1u64 << 53) as f64)).collect()
    }

    #[test]
    fn noise_around_a_level_is_steady() {
        let steady =
            (0..200).filter(|seed| stationarity(&noisy(60, *seed, |_| 500.0), 10).unwrap().is_steady()).count();
        assert!(steady >= 190, "{steady} of 200");
    }

    #[test]
    fn a_queue_that_grows_is_not_steady() {
        let seen = stationarity(&noisy(60, 3, |i| 10.0 + 5.0 * i as f64), 10).unwrap();
        assert!(!seen.is_steady() && seen.drift > 1.0, "{seen:?}");
        let at_the_end =
            stationarity(&noisy(60, 3, |i| if i < 50 { 10.0 } else { 5.0 * i as f64 - 235.0 }), 10).unwrap();
        assert_eq!(at_the_end.steady_from, None);
    }

    #[test]
    fn steady_state_begins_after_warm_up() {
        let seen = stationarity(&noisy(60, 5, |i| if i < 15 { 20.0 + 32.0 * i as f64 } else { 500.0 }), 10).unwrap();
        let from = seen.steady_from.unwrap();
        assert!((10..=16).contains(&from), "{from}");
    }

    #[test]
    fn drift_is_the_relative_rise_of_the_line() {
        let line: Vec<f64> = (0..11).map(|i| 95.0 + f64::from(i)).collect();
        assert!((stationarity(&line, 5).unwrap().drift - 0.1).abs() < 1e-12);
        assert_eq!(stationarity(&[0.0; 8], 4).unwrap(), Stationarity { drift: 0.0, steady_from: Some(0) });
        assert_eq!(stationarity(&line, 12), None);
        assert_eq!(stationarity(&line, 3), None);
    }
}
