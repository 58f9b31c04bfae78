//! Percentile bootstrap: how far a figure moves when the runs are drawn again, with replacement, from those that there are.
//!
//! Source: B. Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics 7(1), 1979; percentile intervals:
//! B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", chapter 13.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::median_of;

/// So many that an end of an interval of 95 % rests on 250 of them.
pub const RESAMPLES: usize = 10_000;
pub const CONFIDENCE: f64 = 0.95;

/// An estimate and its confidence interval of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub estimate: f64,
    pub high: f64,
}

impl Interval {
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Of `draws` of an estimate; their order is lost. None without draws.
    pub(super) fn of_draws(estimate: f64, draws: &mut [f64]) -> Option<Interval> {
        draws.sort_unstable_by(f64::total_cmp);
        let tail = (1.0 - CONFIDENCE) / 2.0;
        let at = |share: f64| draws.get(((draws.len() as f64 * share).ceil() as usize).saturating_sub(1)).copied();
        Some(Interval { low: at(tail)?, estimate, high: at(1.0 - tail)? })
    }
}

/// The median of the values of runs; none without values.
///
/// With five runs the interval is their range: the lowest of five is the median of 5.8 % of all resamples. That is wide because five
/// runs say no more.
pub fn median(runs: &[f64], seed: u64) -> Option<Interval> {
    if runs.is_empty() {
        return None;
    }
    let mut again = Resampler::new(seed);
    let mut buffer = runs.to_vec();
    let mut draws: Vec<f64> = (0..RESAMPLES).map(|_| median_of(again.draw(runs, &mut buffer))).collect();
    Interval::of_draws(super::median(runs), &mut draws)
}

/// The median of `b` over the median of `a`, each drawn again by itself; none unless all values are finite and above zero.
pub fn ratio_of_medians(a: &[f64], b: &[f64], seed: u64) -> Option<Interval> {
    let usable = |runs: &[f64]| !runs.is_empty() && runs.iter().all(|run| run.is_finite() && *run > 0.0);
    if !usable(a) || !usable(b) {
        return None;
    }
    let mut again = Resampler::new(seed);
    let (mut of_a, mut of_b) = (a.to_vec(), b.to_vec());
    let mut draw = || median_of(again.draw(b, &mut of_b)) / median_of(again.draw(a, &mut of_a));
    let mut draws: Vec<f64> = (0..RESAMPLES).map(|_| draw()).collect();
    Interval::of_draws(super::median(b) / super::median(a), &mut draws)
}

/// Draws with replacement; the same seed draws the same on every machine.
pub(super) struct Resampler(Pcg64Mcg);

impl Resampler {
    pub(super) fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// Uniform in `0..count`.
    pub(super) fn index(&mut self, count: usize) -> usize {
        ((u128::from(self.0.next_u64()) * count as u128) >> 64) as usize
    }

    fn draw<'a>(&mut self, from: &[f64], into: &'a mut [f64]) -> &'a mut [f64] {
        into.iter_mut().for_each(|slot| *slot = from[self.index(from.len())]);
        into
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bootstrap distribution of a median is known: a resample of n = 2m - 1 values has its median at or below the k-th lowest with
    /// the probability that a binomial(n, k/n) is at least m (Efron 1979, section 3).
    fn exact_ends(n: u32) -> (usize, usize) {
        let at_or_below = |k: u32| -> f64 {
            let p = f64::from(k) / f64::from(n);
            let term = |i: u32| choose(n, i) * p.powi(i as i32) * (1.0 - p).powi((n - i) as i32);
            (n / 2 + 1..=n).map(term).sum()
        };
        let end = |share: f64| (1..=n).find(|k| at_or_below(*k) >= share).unwrap() as usize;
        (end(0.025), end(0.975))
    }

    fn choose(n: u32, k: u32) -> f64 {
        (0..k).map(|i| f64::from(n - i) / f64::from(i + 1)).product()
    }

    #[test]
    fn the_interval_of_a_median_is_the_one_that_theory_gives() {
        for n in [5, 7, 9, 11, 25] {
            let runs: Vec<f64> = (1..=n).map(f64::from).collect();
            let interval = median(&runs, u64::from(n)).unwrap();
            let (low, high) = exact_ends(n);
            assert_eq!((interval.low, interval.high), (low as f64, high as f64), "{n} runs");
            assert_eq!(interval.estimate, f64::from(n / 2 + 1));
        }
        assert_eq!(exact_ends(5), (1, 5), "the range, as the documentation says");
    }

    #[test]
    fn a_ratio_of_equal_runs_is_certain() {
        let ratio = ratio_of_medians(&[2.0; 5], &[3.0; 5], 1).unwrap();
        assert_eq!(ratio, Interval { low: 1.5, estimate: 1.5, high: 1.5 });
    }

    #[test]
    fn a_ratio_turns_over_with_its_sides() {
        let (a, b) = ([10.0, 11.0, 12.0, 10.5, 11.5], [12.0, 13.0, 12.5, 14.0, 13.5]);
        let (forth, back) = (ratio_of_medians(&a, &b, 1).unwrap(), ratio_of_medians(&b, &a, 2).unwrap());
        assert!((forth.estimate - 13.0 / 11.0).abs() < 1e-12);
        assert!((forth.low * back.high - 1.0).abs() < 0.01 && (forth.high * back.low - 1.0).abs() < 0.01);
        assert!(forth.low > 1.0 && !forth.contains(1.0));
    }

    #[test]
    fn a_seed_is_a_result() {
        let (a, b) = ([1.0, 2.0, 4.0, 8.0], [1.5, 2.5, 3.5, 9.0]);
        assert_eq!(ratio_of_medians(&a, &b, 7), ratio_of_medians(&a, &b, 7));
    }

    #[test]
    fn there_is_no_ratio_to_nothing() {
        assert_eq!(ratio_of_medians(&[0.0, 1.0], &[1.0, 1.0], 1), None);
        assert_eq!(ratio_of_medians(&[1.0], &[f64::NAN], 1), None);
        assert_eq!(ratio_of_medians(&[], &[1.0], 1), None);
        assert_eq!(median(&[], 1), None);
    }
}
