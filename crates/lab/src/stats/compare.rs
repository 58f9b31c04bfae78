//! Decides whether B is better than A, worse, or within the noise.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    bootstrap::{self, Interval},
    mann_whitney::mann_whitney,
};

/// Minimum number of runs per side. Three against three cannot reach 5 %: the two-sided exact p of complete
/// separation is 0.1. Four against four reach 0.029.
pub const RUNS_MIN: usize = 4;

/// Direction of improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    Lower,
    Higher,
}

/// Criteria for a difference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    pub better: Better,
    /// Band of practical equivalence: a relative change of the ratio up to this share is no difference, however
    /// certain it is.
    pub band: f64,
    /// Probability of a false alarm if both sides are equal.
    pub alpha: f64,
    /// Seed of the bootstrap.
    pub seed: u64,
}

impl Terms {
    /// Returns criteria with a band of 3 % and 5 % false alarms.
    pub fn new(better: Better) -> Self {
        Terms { better, band: 0.03, alpha: 0.05, seed: 1 }
    }

    /// Returns the verdict on a ratio with the p-value `p`.
    pub(super) fn judge(&self, p: f64, ratio: Interval) -> Verdict {
        let beyond_band = (ratio.estimate - 1.0).abs() > self.band;
        if p > self.alpha || ratio.contains(1.0) || !beyond_band {
            Verdict::WithinNoise
        } else if (ratio.estimate < 1.0) == (self.better == Better::Lower) {
            Verdict::Improved
        } else {
            Verdict::Regressed
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Improved,
    Regressed,
    WithinNoise,
    /// At least one side has fewer than [`RUNS_MIN`] runs.
    TooFewRuns,
    /// A value is zero, negative or not a number, so no ratio can be computed.
    NoRatio,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub verdict: Verdict,
    /// Median of B divided by the median of A.
    pub ratio: Option<Interval>,
    /// p-value of the Mann-Whitney test.
    pub p: Option<f64>,
    /// Probability that a run of B is above a run of A. One half means no difference.
    pub b_above_a: Option<f64>,
    /// True if the whole interval of the ratio lies inside the band. Then a relevant difference is ruled out, and not
    /// only unproven.
    pub equivalent: bool,
    pub runs: [usize; 2],
}

/// Compares the values of runs.
///
/// The sides differ if all three conditions hold: the p-value is at most `alpha`, the interval of the ratio does not
/// include 1, and the ratio lies outside the band.
pub fn compare(a: &[f64], b: &[f64], terms: &Terms) -> Comparison {
    let test = mann_whitney(a, b);
    let ratio = bootstrap::ratio_of_medians(a, b, terms.seed);
    let verdict = match (test, ratio) {
        _ if a.len().min(b.len()) < RUNS_MIN => Verdict::TooFewRuns,
        (Some(test), Some(ratio)) => terms.judge(test.p, ratio),
        _ => Verdict::NoRatio,
    };
    Comparison {
        verdict,
        ratio,
        p: test.map(|test| test.p),
        b_above_a: test.map(|test| test.b_above_a),
        equivalent: ratio.is_some_and(|ratio| ratio.low >= 1.0 - terms.band && ratio.high <= 1.0 + terms.band),
        runs: [a.len(), b.len()],
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Improved => "improved",
            Verdict::Regressed => "regressed",
            Verdict::WithinNoise => "within noise",
            Verdict::TooFewRuns => "no verdict: fewer than 4 runs on a side",
            Verdict::NoRatio => "no verdict: a value is not above zero",
        })
    }
}

/// Prints, for example, `regressed: +9.7 % [+6.2 %, +13.0 %], p = 0.008, 5 and 5 runs`.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.verdict)?;
        if let Some(ratio) = self.ratio {
            let [low, estimate, high] = [ratio.low, ratio.estimate, ratio.high].map(|ratio| (ratio - 1.0) * 100.0);
            write!(f, ": {estimate:+.1} % [{low:+.1} %, {high:+.1} %]")?;
        }
        if let Some(p) = self.p {
            write!(f, ", p = {p:.3}")?;
        }
        write!(f, ", {} and {} runs", self.runs[0], self.runs[1])
    }
}

#[cfg(test)]
mod tests {
    use rand_pcg::Pcg64Mcg;
    use rand_pcg::rand_core::{Rng, SeedableRng};

    use super::*;

    /// Returns normally distributed runs around `mean`. `sd` is the standard deviation as a share of the mean. Uses
    /// the Box-Muller method.
    fn runs(chance: &mut Pcg64Mcg, count: usize, mean: f64, sd: f64) -> Vec<f64> {
        let mut unit = || (chance.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut normal = || (-2.0 * (1.0 - unit()).ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
        (0..count).map(|_| mean * (1.0 + sd * normal())).collect()
    }

    /// Compares 5 runs with 5 runs in 300 trials, and counts the verdicts.
    fn tries(factor: f64, sd: f64, of_runs: usize) -> [usize; 3] {
        let mut chance = Pcg64Mcg::seed_from_u64(2026);
        let mut seen = [0; 3];
        for seed in 0..300 {
            let a = runs(&mut chance, of_runs, 40.0, sd);
            let b = runs(&mut chance, of_runs, 40.0 * factor, sd);
            match compare(&a, &b, &Terms { seed, ..Terms::new(Better::Lower) }).verdict {
                Verdict::Improved => seen[0] += 1,
                Verdict::WithinNoise => seen[1] += 1,
                Verdict::Regressed => seen[2] += 1,
                other => panic!("{other}"),
            }
        }
        seen
    }

    #[test]
    fn equal_samples_are_within_noise() {
        for (sd, of_runs) in [(0.01, 5), (0.03, 4), (0.03, 5), (0.03, 10), (0.10, 5), (0.20, 10)] {
            let [_, noise, _] = tries(1.0, sd, of_runs);
            assert!(noise >= 285, "sd {sd}, {of_runs} runs: {noise} of 300");
        }
    }

    #[test]
    fn ten_percent_more_is_found() {
        for (sd, found) in [(0.02, 297), (0.025, 294), (0.03, 285)] {
            let [_, _, slower] = tries(1.1, sd, 5);
            assert!(slower >= found, "sd {sd}: {slower} of 300");
        }
        let [faster, ..] = tries(1.0 / 1.1, 0.025, 5);
        assert!(faster >= 294, "{faster}");
    }

    const FAST: [f64; 5] = [100.0, 101.0, 99.0, 102.0, 98.0];
    const SLOW: [f64; 5] = [110.0, 112.0, 108.0, 111.0, 109.0];

    #[test]
    fn the_direction_decides_what_is_better() {
        let verdict = |a, b, better| compare(a, b, &Terms::new(better)).verdict;
        assert_eq!(verdict(&FAST, &SLOW, Better::Lower), Verdict::Regressed);
        assert_eq!(verdict(&SLOW, &FAST, Better::Lower), Verdict::Improved);
        assert_eq!(verdict(&FAST, &SLOW, Better::Higher), Verdict::Improved);
        assert_eq!(verdict(&SLOW, &FAST, Better::Higher), Verdict::Regressed);
    }

    #[test]
    fn a_certain_but_small_change_is_noise() {
        let (a, b) = ([100.0, 100.1, 100.2, 100.3, 100.4], [102.0, 102.1, 102.2, 102.3, 102.4]);
        let seen = compare(&a, &b, &Terms::new(Better::Lower));
        assert_eq!(seen.verdict, Verdict::WithinNoise);
        assert!(seen.p.unwrap() < 0.01 && seen.equivalent, "{seen}");
        let strict = Terms { band: 0.01, ..Terms::new(Better::Lower) };
        assert_eq!(compare(&a, &b, &strict).verdict, Verdict::Regressed);
    }

    #[test]
    fn missing_evidence_is_not_equivalence() {
        let seen = compare(&[80.0, 90.0, 100.0, 110.0], &[85.0, 95.0, 105.0, 115.0], &Terms::new(Better::Lower));
        assert_eq!((seen.verdict, seen.equivalent), (Verdict::WithinNoise, false));
    }

    #[test]
    fn three_runs_get_no_verdict() {
        let seen = compare(&FAST[..3], &SLOW, &Terms::new(Better::Lower));
        assert_eq!(seen.verdict, Verdict::TooFewRuns);
        assert!(seen.ratio.is_some(), "the figures are shown all the same");
    }

    #[test]
    fn zeros_get_no_verdict() {
        assert_eq!(compare(&[0.0; 5], &SLOW, &Terms::new(Better::Lower)).verdict, Verdict::NoRatio);
    }

    #[test]
    fn comparison_reports_its_values() {
        let said = compare(&FAST, &SLOW, &Terms::new(Better::Lower)).to_string();
        assert_eq!(said, "regressed: +10.0 % [+6.9 %, +13.1 %], p = 0.008, 5 and 5 runs");
    }
}
