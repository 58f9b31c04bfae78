//! Universal Scalability Law: how throughput grows with workers, and where it declines.

use serde::{Deserialize, Serialize};

use super::bootstrap::{Interval, RESAMPLES, Resampler};

/// Curve `X(N) = lambda N / (1 + sigma (N - 1) + kappa N (N - 1))`.
///
/// Source: N. J. Gunther, "Guerrilla Capacity Planning", chapter 4.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usl {
    /// Throughput of one worker.
    pub lambda: f64,
    /// Contention: share of the work that only one worker can do at a time.
    pub sigma: f64,
    /// Coherence: cost that each worker adds to each other worker.
    pub kappa: f64,
}

impl Usl {
    /// Fits points `(N, X)` by least squares of relative errors. Returns `None` if the points determine no curve
    /// (fewer than three different `N`).
    ///
    /// `N / X = a + b (N - 1) + c N (N - 1)` is linear in `a = 1 / lambda`, `b = sigma / lambda`, `c = kappa /
    /// lambda`. Noise may make `sigma` or `kappa` slightly negative. Such values are returned unchanged.
    pub fn fit(points: &[(f64, f64)]) -> Option<Usl> {
        let (mut normal, mut right) = ([[0.0; 3]; 3], [0.0; 3]);
        for &(n, x) in points {
            // Divided by N / X, so every point counts by its relative error.
            let row = [1.0, n - 1.0, n * (n - 1.0)].map(|term| term * x / n);
            for i in 0..3 {
                (0..3).for_each(|j| normal[i][j] += row[i] * row[j]);
                right[i] += row[i];
            }
        }
        let whole = determinant(&normal);
        let scale = normal[0][0] * normal[1][1] * normal[2][2];
        if whole <= scale * 1e-12 {
            return None;
        }
        // Cramer's rule.
        let [a, b, c] = [0, 1, 2].map(|column| {
            let mut replaced = normal;
            (0..3).for_each(|row| replaced[row][column] = right[row]);
            determinant(&replaced) / whole
        });
        Some(Usl { lambda: 1.0 / a, sigma: b / a, kappa: c / a })
    }

    /// Returns the relative distance of each point from the curve.
    pub fn residuals(&self, points: &[(f64, f64)]) -> Vec<f64> {
        points.iter().map(|&(n, x)| x / self.at(n) - 1.0).collect()
    }

    /// Fits with confidence intervals. Returns `None` if [`Usl::fit`] does, or with three points, because a curve
    /// through three points has no residuals.
    ///
    /// Bootstrap of the residuals: each `N` stays, and gets the relative error of a random point. The errors are
    /// widened by `sqrt(n / (n - 3))`, because the fit has three parameters and makes the residuals too small.
    pub fn fit_with_intervals(points: &[(f64, f64)], seed: u64) -> Option<Fit> {
        let usl = Usl::fit(points)?;
        let count = points.len() as f64;
        if count <= 3.0 {
            return None;
        }
        let residuals = usl.residuals(points);
        let wider = (count / (count - 3.0)).sqrt();
        let mut again = Resampler::new(seed);
        let mut draw = || {
            let mut noisy =
                |&(n, _): &(f64, f64)| (n, usl.at(n) * (1.0 + wider * residuals[again.index(residuals.len())]));
            Usl::fit(&points.iter().map(&mut noisy).collect::<Vec<_>>())
        };
        let fits: Vec<Usl> = (0..RESAMPLES).filter_map(|_| draw()).collect();
        let interval = |of: fn(&Usl) -> f64| Interval::of_draws(of(&usl), &mut fits.iter().map(of).collect::<Vec<_>>());
        Some(Fit {
            lambda: interval(|usl| usl.lambda)?,
            sigma: interval(|usl| usl.sigma)?,
            kappa: interval(|usl| usl.kappa)?,
            peak: interval(|usl| usl.peak().unwrap_or(f64::INFINITY))?,
            residuals,
        })
    }

    pub fn at(&self, n: f64) -> f64 {
        self.lambda * n / (1.0 + self.sigma * (n - 1.0) + self.kappa * n * (n - 1.0))
    }

    /// Returns the `N` of the highest throughput, or `None` if the curve has no maximum.
    pub fn peak(&self) -> Option<f64> {
        (self.kappa > 0.0 && self.sigma < 1.0).then(|| ((1.0 - self.sigma) / self.kappa).sqrt())
    }
}

/// Fit with confidence intervals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    pub lambda: Interval,
    pub sigma: Interval,
    pub kappa: Interval,
    /// `N` of the highest throughput. Infinite (`null` in JSON) if the curve has no maximum. A value far above the
    /// largest measured `N` is only a guess.
    pub peak: Interval,
    /// Relative residuals, in the order of the points.
    pub residuals: Vec<f64>,
}

fn determinant(m: &[[f64; 3]; 3]) -> f64 {
    let minor = |i: usize, j: usize| m[1][i] * m[2][j] - m[1][j] * m[2][i];
    m[0][0] * minor(1, 2) - m[0][1] * minor(0, 2) + m[0][2] * minor(0, 1)
}
