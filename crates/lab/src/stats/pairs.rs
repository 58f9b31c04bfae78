//! Paired comparison of two programs that were measured in turns. Each run of B is compared with the run of A next to
//! it, so changes of the machine that affect both cancel out.
//!
//! Source: R. A. Fisher, "The Design of Experiments", 1935, section 21: under the null hypothesis, the signs of the
//! differences are random.

use super::{
    bootstrap::{self, Interval, Resampler},
    compare::{Comparison, Terms, Verdict},
};

/// Minimum number of pairs. Five pairs cannot reach 5 %: if all of them agree, p is 2 / 32. Six pairs reach 0.031.
pub const PAIRS_MIN: usize = 6;
/// Maximum number of pairs for which all 2^n sign combinations are tested. For more pairs, a random sample is tested.
const COUNTED_MAX: usize = 13;
const DRAWS: usize = 10_000;

/// Returns the same as [`compare`](super::compare::compare) for paired runs: `a[i]` and `b[i]` were measured one
/// after the other.
pub fn compare(a: &[f64], b: &[f64], terms: &Terms) -> Comparison {
    let usable = |run: &f64| run.is_finite() && *run > 0.0;
    let ratios: Vec<f64> = a.iter().zip(b).filter(|(a, b)| usable(a) && usable(b)).map(|(a, b)| b / a).collect();
    let is_whole = ratios.len() == a.len() && a.len() == b.len();
    let ratio: Option<Interval> = if is_whole { bootstrap::median(&ratios, terms.seed) } else { None };
    let p = (is_whole && !ratios.is_empty()).then(|| sign_flips(&ratios, terms.seed));
    let verdict = match (ratio, p) {
        _ if a.len().min(b.len()) < PAIRS_MIN => Verdict::TooFewRuns,
        (Some(ratio), Some(p)) => terms.judge(p, ratio),
        _ => Verdict::NoRatio,
    };
    let above = ratios.iter().map(|ratio| {
        if *ratio > 1.0 {
            1.0
        } else if *ratio < 1.0 {
            0.0
        } else {
            0.5
        }
    });
    Comparison {
        verdict,
        ratio,
        p,
        b_above_a: is_whole.then(|| above.sum::<f64>() / ratios.len().max(1) as f64),
        equivalent: ratio.is_some_and(|ratio| ratio.low >= 1.0 - terms.band && ratio.high <= 1.0 + terms.band),
        runs: [a.len(), b.len()],
    }
}

/// Returns the probability that chance alone makes the mean of the logarithms at least as large. The order in a pair
/// is random, so each sign is random.
fn sign_flips(ratios: &[f64], seed: u64) -> f64 {
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let seen = logs.iter().sum::<f64>().abs() * (1.0 - 1e-9);
    let sum = |signs: usize| {
        let signed = logs.iter().enumerate().map(|(i, log)| if signs >> i & 1 == 1 { -log } else { *log });
        signed.sum::<f64>().abs()
    };
    if logs.len() <= COUNTED_MAX {
        let all = 1usize << logs.len();
        return (0..all).filter(|signs| sum(*signs) >= seen).count() as f64 / all as f64;
    }
    let mut chance = Resampler::new(seed);
    let mut drawn = || logs.iter().map(|log| if chance.index(2) == 1 { -log } else { *log }).sum::<f64>().abs();
    let reached = (0..DRAWS).filter(|_| drawn() >= seen).count();
    (reached + 1) as f64 / (DRAWS + 1) as f64
}

/// Returns the distance of the mean logarithm of the ratios from zero, in standard errors. `least` is added to the
/// standard deviation.
pub(super) fn statistic(logs: &[f64], pairs: usize, least: f64) -> f64 {
    let (of_a, of_b) = logs.split_at(pairs);
    let differences: Vec<f64> = of_a.iter().zip(of_b).map(|(a, b)| b - a).collect();
    let count = differences.len().max(1) as f64;
    let mean = differences.iter().sum::<f64>() / count;
    let squares = differences.iter().map(|difference| (difference - mean).powi(2)).sum::<f64>();
    let deviation = (squares / (count - 1.0).max(1.0)).sqrt();
    mean.abs() / ((deviation + least) / count.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::compare::Better;

    /// Returns runs on a machine that becomes slower and slower. B takes `factor` times as long as A.
    fn drifting(factor: f64) -> ([f64; 8], [f64; 8]) {
        let of_a: [f64; 8] = std::array::from_fn(|i| 10.0 * 1.05f64.powi(i as i32));
        let wobble = [1.01, 0.99, 1.0, 1.02, 0.98, 1.01, 0.995, 1.0];
        (of_a, std::array::from_fn(|i| of_a[i] * factor * wobble[i]))
    }

    #[test]
    fn pairs_cancel_common_drift() {
        let terms = Terms::new(Better::Lower);
        let (a, b) = drifting(1.1);
        let seen = compare(&a, &b, &terms);
        assert_eq!((seen.verdict, seen.p), (Verdict::Regressed, Some(2.0 / 256.0)), "{seen}");
        assert_eq!(
            crate::stats::compare::compare(&a, &b, &terms).verdict,
            Verdict::WithinNoise,
            "side by side it is lost"
        );
        assert_eq!(compare(&b, &a, &terms).verdict, Verdict::Improved);
        let (a, b) = drifting(1.0);
        assert_eq!(compare(&a, &b, &terms).verdict, Verdict::WithinNoise);
    }

    #[test]
    fn five_pairs_or_zeros_get_no_verdict() {
        let terms = Terms::new(Better::Lower);
        let (a, b) = drifting(2.0);
        assert_eq!(compare(&a[..5], &b[..5], &terms).verdict, Verdict::TooFewRuns);
        assert_eq!(compare(&[0.0; 8], &b, &terms).verdict, Verdict::NoRatio);
    }

    #[test]
    fn all_sign_assignments_are_enumerated() {
        let e = std::f64::consts::E;
        // Of the 8 sums +-1 +-1 +-2, two are as far from 0 as 4.
        assert_eq!(sign_flips(&[e, e, e * e], 1), 2.0 / 8.0);
        // All of the sums +-1 +-1 +-2 are at least as far from 0 as 0.
        assert_eq!(sign_flips(&[e, e, 1.0 / (e * e)], 1), 1.0);
    }
}
