//! Mann-Whitney test: the probability that two sets of runs come from the same distribution. It uses only ranks, so
//! one slow run among ten counts as one rank.
//!
//! Source: H. B. Mann, D. R. Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger than
//! the Other", Annals of Mathematical Statistics 18(1), 1947.

use serde::{Deserialize, Serialize};

/// Maximum number of runs on both sides together for an exact p-value. For more runs, the error of the normal
/// approximation is smaller than the rounding of a displayed p-value.
pub const EXACT_MAX: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MannWhitney {
    /// Number of pairs in which the run of `b` is above the run of `a`. A tie counts half.
    pub u: f64,
    /// [`MannWhitney::u`] divided by the number of pairs: the probability that a run of `b` is above a run of `a`.
    /// One half means no difference.
    pub b_above_a: f64,
    /// Two-sided p-value: the probability that chance alone brings the rank sum at least as far from its mean.
    pub p: f64,
    pub exact: bool,
}

/// Runs the test. Returns `None` if a side is empty or a value is not a number.
///
/// Up to [`EXACT_MAX`] runs, p comes from the full permutation distribution of the sum of midranks, counted by
/// dynamic programming. This also covers ties. For more runs, p comes from the normal distribution, corrected for
/// ties and continuity.
/// Cost: O(runs^4) for the exact p-value, at most a few milliseconds.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Option<MannWhitney> {
    if a.is_empty() || b.is_empty() || a.iter().chain(b).any(|value| value.is_nan()) {
        return None;
    }
    let ranks = doubled_midranks(a, b);
    let (m, n) = (a.len(), b.len());
    let sum: usize = ranks[m..].iter().sum();
    let u = (sum - n * (n + 1)) as f64 / 2.0;
    let exact = m + n <= EXACT_MAX;
    let p = if exact { exact_p(&ranks, n, sum) } else { normal_p(&ranks, m, n, sum) };
    Some(MannWhitney { u, b_above_a: u / (m * n) as f64, p: p.min(1.0), exact })
}

/// Returns the ranks from 1, doubled. Equal values share the mean of their ranks, and twice that is a whole number.
/// Ranks of `a` come first.
fn doubled_midranks(a: &[f64], b: &[f64]) -> Vec<usize> {
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let rank = |value: &f64| {
        let below = all.iter().filter(|other| *other < value).count();
        let equal = all.iter().filter(|other| *other == value).count();
        2 * below + equal + 1
    };
    all.iter().map(rank).collect()
}

/// Returns the share of all choices of `n` ranks whose sum is at least as far from the mean as `sum`.
fn exact_p(ranks: &[usize], n: usize, sum: usize) -> f64 {
    let total: usize = ranks.iter().sum();
    // ways[k][s]: number of choices of k ranks with the sum s. The largest number, 60 over 30 = 1.2e17, has a
    // relative error below 1e-15 in f64.
    let mut ways = vec![vec![0.0f64; total + 1]; n + 1];
    ways[0][0] = 1.0;
    for &rank in ranks {
        for k in (1..=n).rev() {
            let (fewer, more) = ways.split_at_mut(k);
            for s in rank..=total {
                more[0][s] += fewer[k - 1][s - rank];
            }
        }
    }
    // The mean is total * n / ranks. The comparison uses whole numbers, so an equal distance counts as at least as
    // far.
    let off = |s: usize| (s * ranks.len()).abs_diff(total * n);
    let (mut far, mut all) = (0.0, 0.0);
    for (s, count) in ways[n].iter().enumerate() {
        all += count;
        if off(s) >= off(sum) {
            far += count;
        }
    }
    far / all
}

fn normal_p(ranks: &[usize], m: usize, n: usize, sum: usize) -> f64 {
    let (m, n) = (m as f64, n as f64);
    let all = m + n;
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    let ties: f64 = sorted.chunk_by(|a, b| a == b).map(|tie| (tie.len() as f64).powi(3) - tie.len() as f64).sum();
    let variance = m * n / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    let off = (sum as f64 / 2.0 - n * (all + 1.0) / 2.0).abs() - 0.5;
    if variance <= 0.0 || off <= 0.0 {
        return 1.0;
    }
    erfc(off / (2.0 * variance).sqrt())
}

/// Returns the complementary error function for `x >= 0`, with an error below 1.5e-7.
///
/// Source: M. Abramowitz, I. Stegun, "Handbook of Mathematical Functions", 7.1.26.
fn erfc(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let series = [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    series.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t) * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(a: &[f64], b: &[f64]) -> f64 {
        mann_whitney(a, b).unwrap().p
    }

    fn apart(each: usize) -> (Vec<f64>, Vec<f64>) {
        ((0..each).map(|i| i as f64).collect(), (0..each).map(|i| 100.0 + i as f64).collect())
    }

    /// Two of all choices are as extreme as complete separation: p = 2 / C(2n, n).
    #[test]
    fn complete_separation_has_the_smallest_p_value() {
        for (each, choices) in [(3, 20.0), (4, 70.0), (5, 252.0), (10, 184_756.0)] {
            let (a, b) = apart(each);
            assert!((p(&a, &b) * choices / 2.0 - 1.0).abs() < 1e-12, "{each} each");
        }
    }

    /// M. Hollander, D. A. Wolfe, "Nonparametric Statistical Methods" (1973), page 69. For these data, R's
    /// `?wilcox.test` gives W = 35 and a one-sided p = 0.1272.
    #[test]
    fn p_value_matches_the_membrane_example() {
        let term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
        let weeks = [1.15, 0.88, 0.90, 0.74, 1.21];
        let test = mann_whitney(&weeks, &term).unwrap();
        assert_eq!(test.u, 35.0);
        assert_eq!(test.b_above_a, 0.7);
        assert!((test.p - 2.0 * 0.1272).abs() < 1e-4, "{test:?}");
    }

    /// Critical values of the two-sided test at 5 %, as in tables of U: 2 for 5 and 5 runs, 13 for 8 and 8 runs, 23
    /// for 10 and 10 runs.
    #[test]
    fn critical_values_match_published_tables() {
        for (each, critical) in [(5, 2), (8, 13), (10, 23)] {
            let of = |u: usize| {
                exact_p(&(1..=2 * each).map(|rank| 2 * rank).collect::<Vec<_>>(), each, each * (each + 1) + 2 * u)
            };
            assert!(of(critical) <= 0.05 && of(critical + 1) > 0.05, "{each} each");
        }
    }

    #[test]
    fn all_equal_is_no_difference() {
        assert_eq!(p(&[4.0; 5], &[4.0; 5]), 1.0);
        assert_eq!(p(&[4.0; 40], &[4.0; 40]), 1.0);
    }

    /// Compares with a plain enumeration of every choice, for values with ties.
    #[test]
    fn ties_agree_with_plain_enumeration() {
        let (a, b) = ([1.0, 2.0, 2.0, 3.0, 5.0], [2.0, 3.0, 3.0, 7.0, 7.0, 8.0]);
        let ranks = doubled_midranks(&a, &b);
        let mean = ranks.iter().sum::<usize>() as f64 * b.len() as f64 / ranks.len() as f64;
        let sum_of = |chosen: u32| (0..11).filter(|i| chosen >> i & 1 == 1).map(|i| ranks[i]).sum::<usize>() as f64;
        let observed = (ranks[5..].iter().sum::<usize>() as f64 - mean).abs();
        let choices: Vec<u32> = (0u32..1 << 11).filter(|chosen| chosen.count_ones() == 6).collect();
        assert_eq!(choices.len(), 462);
        let far = choices.iter().filter(|chosen| (sum_of(**chosen) - mean).abs() > observed - 1e-9).count();
        assert!((p(&a, &b) - far as f64 / 462.0).abs() < 1e-12);
    }

    #[test]
    fn exchanged_sides_give_the_same_p_value() {
        let (a, b) = ([1.0, 2.0, 2.0, 3.0, 5.0], [2.0, 3.0, 3.0, 7.0, 7.0, 8.0]);
        let (forth, back) = (mann_whitney(&a, &b).unwrap(), mann_whitney(&b, &a).unwrap());
        assert!((forth.p - back.p).abs() < 1e-12);
        assert_eq!(forth.u + back.u, 30.0);
    }

    #[test]
    fn normal_approximation_is_close_to_exact_value() {
        // 30 and 30 interleaved runs. The second half of one side is shifted up, so there is some overlap and some
        // ties.
        let a: Vec<f64> = (0..30).map(f64::from).collect();
        let b: Vec<f64> = (0..30).map(|i| f64::from(i) + if i < 15 { 0.5 } else { 8.0 }).collect();
        let ranks = doubled_midranks(&a, &b);
        let sum = ranks[30..].iter().sum();
        let (exact, normal) = (exact_p(&ranks, 30, sum), normal_p(&ranks, 30, 30, sum));
        assert!((exact - normal).abs() < 0.002, "{exact} {normal}");
    }

    /// Values from Abramowitz and Stegun, table 7.1.
    #[test]
    fn error_function_matches_known_values() {
        for (x, erf) in [(0.5, 0.520_499_878), (1.0, 0.842_700_793), (2.0, 0.995_322_265)] {
            assert!((1.0 - erfc(x) - erf).abs() < 1.5e-7, "{x}");
        }
    }

    #[test]
    fn empty_input_has_no_p_value() {
        assert_eq!(mann_whitney(&[], &[1.0]), None);
        assert_eq!(mann_whitney(&[1.0], &[f64::NAN]), None);
    }
}
