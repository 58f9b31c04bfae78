//! Percentile bootstrap: how much a figure varies when the runs are resampled with replacement.
//!
//! Source: B. Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics 7(1), 1979; percentile
//! intervals: B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", chapter 13.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::median_of;

/// Number of random resamples. With this number, each end of a 95 % interval rests on 250 resamples. Medians of few
/// runs need no random resamples, because all resamples are enumerated.
pub const RESAMPLES: usize = 10_000;
/// Maximum number of runs for which all resamples are enumerated. Larger samples are close to normal, and are
/// resampled at random.
const COUNTED_MAX: usize = 24;
pub const CONFIDENCE: f64 = 0.95;

/// Estimate and its 95 % confidence interval.
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

    /// Builds the interval from random draws of an estimate. Sorts `draws`. Returns `None` without draws.
    pub(super) fn of_draws(estimate: f64, draws: &mut [f64]) -> Option<Interval> {
        draws.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| draws.get(((draws.len() as f64 * share).ceil() as usize).saturating_sub(1)).copied();
        Some(Interval { low: at(TAIL)?, estimate, high: at(1.0 - TAIL)? })
    }

    /// Builds the interval from all possible values of an estimate, each with its probability. Sorts `all`. Returns
    /// `None` without values.
    fn of_chances(estimate: f64, all: &mut [(f64, f64)]) -> Option<Interval> {
        all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let at = |share: f64| {
            let mut sum = 0.0;
            // A sum of probabilities may be off in its last digit.
            let reaches = |chance: f64| {
                sum += chance;
                sum >= share - 1e-12
            };
            all.iter().map(|(_, chance)| *chance).position(reaches).map(|index| all[index].0)
        };
        Some(Interval { low: at(TAIL)?, estimate, high: at(1.0 - TAIL)? })
    }
}

const TAIL: f64 = (1.0 - CONFIDENCE) / 2.0;

/// Returns the median of the values of runs with its interval, or `None` without values.
///
/// With five runs the interval is their full range, because the lowest of five is the median of 5.8 % of all
/// resamples. Five runs do not allow a narrower interval.
pub fn median(runs: &[f64], seed: u64) -> Option<Interval> {
    if runs.is_empty() {
        return None;
    }
    if runs.len() <= COUNTED_MAX {
        return Interval::of_chances(super::median(runs), &mut medians(runs));
    }
    let mut again = Resampler::new(seed);
    let mut buffer = runs.to_vec();
    let mut draws: Vec<f64> = (0..RESAMPLES).map(|_| median_of(again.draw(runs, &mut buffer))).collect();
    Interval::of_draws(super::median(runs), &mut draws)
}

/// Returns the median of `b` divided by the median of `a`, with both sides resampled independently. Returns `None`
/// unless all values are finite and above zero.
pub fn ratio_of_medians(a: &[f64], b: &[f64], seed: u64) -> Option<Interval> {
    let usable = |runs: &[f64]| !runs.is_empty() && runs.iter().all(|run| run.is_finite() && *run > 0.0);
    if !usable(a) || !usable(b) {
        return None;
    }
    let estimate = super::median(b) / super::median(a);
    if a.len().max(b.len()) <= COUNTED_MAX {
        let (of_a, of_b) = (medians(a), medians(b));
        let over = |&(b, of_b): &(f64, f64)| of_a.iter().map(move |&(a, of_a)| (b / a, of_a * of_b));
        return Interval::of_chances(estimate, &mut of_b.iter().flat_map(over).collect::<Vec<_>>());
    }
    let mut again = Resampler::new(seed);
    let (mut of_a, mut of_b) = (a.to_vec(), b.to_vec());
    let mut draw = || median_of(again.draw(b, &mut of_b)) / median_of(again.draw(a, &mut of_a));
    let mut draws: Vec<f64> = (0..RESAMPLES).map(|_| draw()).collect();
    Interval::of_draws(estimate, &mut draws)
}

/// Returns all possible medians of a resample, each with its probability.
///
/// Let n be the number of runs, and let each draw be at or below the k-th lowest run with probability k/n. The m-th
/// lowest value of a resample is at or below the k-th lowest run if at least m of the n draws are (Efron 1979,
/// section 3).
///
/// If n is even, the median is the mean of two neighbors i and j of the sorted resample. With i < j, half of the
/// draws are at or below i, with at least one of them i itself. The other half are at or above j, with at least one
/// of them j.
fn medians(runs: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted = runs.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let n = sorted.len();
    let middle = n.div_ceil(2);
    let share = |k: usize| k as f64 / n as f64;
    let at_or_below = |k: usize| (middle..=n).map(|hits| binomial(n, hits, share(k))).sum::<f64>();
    let is_middle = |i: usize| at_or_below(i) - at_or_below(i - 1);
    if n % 2 == 1 {
        return (1..=n).map(|i| (sorted[i - 1], is_middle(i))).collect();
    }
    let half = |k: usize| share(k).powi(middle as i32);
    let both = |i: usize, j: usize| choose(n, middle) * (half(i) - half(i - 1)) * (half(n - j + 1) - half(n - j));
    let of_lower = |i: usize| {
        let higher: Vec<f64> = (i + 1..=n).map(|j| both(i, j)).collect();
        let same = is_middle(i) - higher.iter().sum::<f64>();
        let between = |(step, chance): (usize, f64)| ((sorted[i - 1] + sorted[i - 1 + step]) / 2.0, chance);
        std::iter::once(same).chain(higher).enumerate().map(between).collect::<Vec<_>>()
    };
    (1..=n).flat_map(of_lower).collect()
}

/// Returns the probability of exactly `hits` hits in `n` draws.
fn binomial(n: usize, hits: usize, share: f64) -> f64 {
    choose(n, hits) * share.powi(hits as i32) * (1.0 - share).powi((n - hits) as i32)
}

fn choose(n: usize, k: usize) -> f64 {
    (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product()
}

/// Draws with replacement. The same seed gives the same draws on every machine.
pub(super) struct Resampler(Pcg64Mcg);

impl Resampler {
    pub(super) fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// Returns a uniform random index in `0..count`.
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

    /// Compares with a plain enumeration of every resample.
    #[test]
    fn medians_agree_with_plain_enumeration() {
        for n in 1..=6usize {
            let runs: Vec<f64> = [3.0, 1.0, 4.5, 1.5, 9.0, 2.6][..n].to_vec();
            let mut counted: Vec<(f64, f64)> = Vec::new();
            for code in 0..n.pow(n as u32) {
                let mut resample: Vec<f64> = (0..n as u32).map(|place| runs[code / n.pow(place) % n]).collect();
                counted.push((median_of(&mut resample), 1.0 / n.pow(n as u32) as f64));
            }
            let below = |all: &[(f64, f64)], limit: f64| {
                all.iter().filter(|(value, _)| *value <= limit).map(|(_, chance)| chance).sum::<f64>()
            };
            for step in 0..100 {
                let limit = f64::from(step) / 10.0 + 0.01;
                let (seen, known) = (below(&medians(&runs), limit), below(&counted, limit));
                assert!((seen - known).abs() < 1e-12, "{n} runs, {limit}: {seen} {known}");
            }
        }
    }

    #[test]
    fn random_resampling_agrees_with_enumeration() {
        for n in [9usize, 10, 23, 24] {
            let runs: Vec<f64> = (1..=n).map(|run| (run * run) as f64).collect();
            let mut again = Resampler::new(n as u64);
            let mut buffer = runs.clone();
            let mut draws: Vec<f64> = (0..RESAMPLES).map(|_| median_of(again.draw(&runs, &mut buffer))).collect();
            let drawn = Interval::of_draws(0.0, &mut draws).unwrap();
            let counted = median(&runs, 1).unwrap();
            // An end of the interval may fall on the neighboring value if its probability is close to 2.5 %.
            let places = |value: f64| value.sqrt();
            let off =
                (places(drawn.low) - places(counted.low)).abs().max((places(drawn.high) - places(counted.high)).abs());
            assert!(off <= 1.0, "{n} runs: {drawn:?} {counted:?}");
        }
        let many: Vec<f64> = (0..100).map(f64::from).collect();
        let interval = median(&many, 1).unwrap();
        // Ranks by the binomial distribution: 50 -+ 1.96 x 5.
        assert!((interval.low - 39.5).abs() < 2.0 && (interval.high - 59.5).abs() < 2.0, "{interval:?}");
    }

    #[test]
    fn interval_of_five_runs_is_their_range() {
        let interval = median(&[5.0, 1.0, 4.0, 2.0, 3.0], 1).unwrap();
        assert_eq!(interval, Interval { low: 1.0, estimate: 3.0, high: 5.0 });
    }

    #[test]
    fn ratio_of_constant_runs_has_a_zero_width_interval() {
        let ratio = ratio_of_medians(&[2.0; 5], &[3.0; 5], 1).unwrap();
        assert_eq!(ratio, Interval { low: 1.5, estimate: 1.5, high: 1.5 });
    }

    #[test]
    fn swapped_sides_invert_the_ratio() {
        let (a, b) = ([10.0, 11.0, 12.0, 10.5, 11.5], [12.0, 13.0, 12.5, 14.0, 13.5]);
        let (forth, back) = (ratio_of_medians(&a, &b, 1).unwrap(), ratio_of_medians(&b, &a, 2).unwrap());
        assert!((forth.estimate - 13.0 / 11.0).abs() < 1e-12);
        assert!((forth.low * back.high - 1.0).abs() < 0.01 && (forth.high * back.low - 1.0).abs() < 0.01);
        assert!(forth.low > 1.0 && !forth.contains(1.0));
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let (a, b) = ([1.0, 2.0, 4.0, 8.0], [1.5, 2.5, 3.5, 9.0]);
        assert_eq!(ratio_of_medians(&a, &b, 7), ratio_of_medians(&a, &b, 7));
    }

    #[test]
    fn ratio_to_zero_is_undefined() {
        assert_eq!(ratio_of_medians(&[0.0, 1.0], &[1.0, 1.0], 1), None);
        assert_eq!(ratio_of_medians(&[1.0], &[f64::NAN], 1), None);
        assert_eq!(ratio_of_medians(&[], &[1.0], 1), None);
        assert_eq!(median(&[], 1), None);
    }
}
