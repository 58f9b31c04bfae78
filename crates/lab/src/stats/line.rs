//! Linear fit with intervals, for example for the memory cost of one more connection.

use serde::{Deserialize, Serialize};

use super::bootstrap::{Interval, RESAMPLES, Resampler};

/// Line `y = base + slope x`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub base: f64,
    pub slope: f64,
}

/// Line with confidence intervals.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    pub base: Interval,
    pub slope: Interval,
    /// Share of the variance of `y` that the line explains.
    pub r_squared: f64,
}

impl Line {
    /// Fits a line to points `(x, y)` by least squares. Returns `None` with fewer than two different `x`.
    pub fn fit(points: &[(f64, f64)]) -> Option<Line> {
        let n = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
        let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
        let squares: f64 = points.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
        if squares.is_nan() || squares <= 0.0 {
            return None;
        }
        let slope = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum::<f64>() / squares;
        Some(Line { base: y_mean - slope * x_mean, slope })
    }

    pub fn at(&self, x: f64) -> f64 {
        self.base + self.slope * x
    }

    /// Fits a line with bootstrap intervals. Resamples the points as pairs, so points may have different noise.
    ///
    /// Returns `None` with fewer than four points, or fewer than three different `x`: two always lie on a line.
    pub fn fit_with_intervals(points: &[(f64, f64)], seed: u64) -> Option<Fit> {
        let line = Line::fit(points)?;
        let mut levels: Vec<f64> = points.iter().map(|point| point.0).collect();
        levels.sort_unstable_by(f64::total_cmp);
        levels.dedup();
        if points.len() < 4 || levels.len() < 3 {
            return None;
        }
        let mut again = Resampler::new(seed);
        let mut draw = || Line::fit(&points.iter().map(|_| points[again.index(points.len())]).collect::<Vec<_>>());
        let draws: Vec<Line> = (0..RESAMPLES).filter_map(|_| draw()).collect();
        let interval =
            |of: fn(&Line) -> f64| Interval::of_draws(of(&line), &mut draws.iter().map(of).collect::<Vec<_>>());
        let y_mean = points.iter().map(|(_, y)| y).sum::<f64>() / points.len() as f64;
        let all: f64 = points.iter().map(|(_, y)| (y - y_mean).powi(2)).sum();
        let left: f64 = points.iter().map(|(x, y)| (y - line.at(*x)).powi(2)).sum();
        let r_squared = if all > 0.0 { 1.0 - left / all } else { 1.0 };
        Some(Fit { base: interval(|line| line.base)?, slope: interval(|line| line.slope)?, r_squared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_and_intercept_are_found() {
        let points: Vec<_> = [0.0, 10.0, 20.0, 40.0].map(|x| (x, 5.0 + 3.0 * x)).into();
        let fit = Line::fit_with_intervals(&points, 1).unwrap();
        assert!((fit.slope.estimate - 3.0).abs() < 1e-12 && (fit.base.estimate - 5.0).abs() < 1e-9);
        assert!(fit.r_squared > 1.0 - 1e-12 && fit.slope.high - fit.slope.low < 1e-9);
    }

    /// F. J. Anscombe, "Graphs in Statistical Analysis", The American Statistician 27(1), 1973: y = 3.00 + 0.500 x,
    /// r^2 = 0.67.
    #[test]
    fn fit_matches_anscombes_first_data_set() {
        let x = [10.0, 8.0, 13.0, 9.0, 11.0, 14.0, 6.0, 4.0, 12.0, 7.0, 5.0];
        let y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68];
        let points: Vec<_> = x.into_iter().zip(y).collect();
        let fit = Line::fit_with_intervals(&points, 1).unwrap();
        assert!((fit.base.estimate - 3.0).abs() < 0.001 && (fit.slope.estimate - 0.5).abs() < 0.0005, "{fit:?}");
        assert!((fit.r_squared - 0.67).abs() < 0.005 && fit.slope.contains(0.5) && !fit.slope.contains(0.0));
    }

    #[test]
    fn two_levels_give_no_fit() {
        assert!(Line::fit(&[(1.0, 2.0), (1.0, 3.0)]).is_none());
        assert!(Line::fit_with_intervals(&[(1.0, 2.0), (1.0, 2.1), (2.0, 3.0), (2.0, 3.1)], 1).is_none());
    }
}
