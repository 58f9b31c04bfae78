//! Due times of publications. They are fixed before the run, regardless of the server: the loop is open.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Publication `k` is due at `k / rate`. With stream `k mod streams`, this is Thorsen's spread, `i x period / N`.
    Even,
    /// Gaps are exponentially distributed, as with many independent sources. The seed determines them.
    Poisson,
}

/// The publications of a run, in order: `(k, time after the start in ns)`.
#[derive(Clone, Debug)]
pub struct Schedule {
    k: u64,
    per_s: f64,
    end_ns: u64,
    /// Poisson only: random generator, and due time of the last publication in nanoseconds.
    chance: Option<(Pcg64, f64)>,
}

impl Schedule {
    pub fn new(arrivals: Arrivals, per_s: f64, lasts: Duration, seed: u64) -> Self {
        let chance = (arrivals == Arrivals::Poisson).then(|| (Pcg64::seed_from_u64(seed), 0.0));
        Self { k: 0, per_s, end_ns: lasts.as_nanos() as u64, chance }
    }
}

impl Iterator for Schedule {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        if self.per_s <= 0.0 {
            return None;
        }
        let k = self.k;
        let due_ns = match &mut self.chance {
            None => k as f64 * 1e9 / self.per_s,
            Some((rng, at)) => {
                // `1 - u` is never 0, so the logarithm is finite.
                *at -= (1.0 - rng.random::<f64>()).ln() * 1e9 / self.per_s;
                *at
            }
        } as u64;
        self.k += 1;
        (due_ns < self.end_ns).then_some((k, due_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_arrivals_do_not_drift() {
        let all: Vec<_> = Schedule::new(Arrivals::Even, 3.0, Duration::from_secs(1000), 0).collect();
        assert_eq!(all.len(), 3000);
        assert_eq!(all[2997], (2997, 999_000_000_000));
        assert_eq!(Schedule::new(Arrivals::Even, 0.0, Duration::from_secs(1), 0).count(), 0);
    }

    #[test]
    fn poisson_arrivals_match_rate_spread_and_seed() {
        let gaps = |seed| {
            let due: Vec<u64> =
                Schedule::new(Arrivals::Poisson, 1000.0, Duration::from_secs(100), seed).map(|(_, due)| due).collect();
            due.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect::<Vec<_>>()
        };
        let (one, again, other) = (gaps(1), gaps(1), gaps(2));
        assert!(one == again && one != other);
        let mean = one.iter().sum::<f64>() / one.len() as f64;
        let sd = (one.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / one.len() as f64).sqrt();
        assert!((mean / 1e6 - 1.0).abs() < 0.02 && (sd / mean - 1.0).abs() < 0.03, "mean {mean}, sd {sd}");
    }
}
