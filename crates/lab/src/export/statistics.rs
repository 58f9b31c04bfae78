//! Mean, standard deviation, median, p95, p99, maximum and number of samples.

use crate::histogram::Histogram;

use super::sheet::{Cell, Row, column_name};

/// Names of the statistics, in the order of their columns.
pub const NAMES: [&str; 7] = ["mean", "sd", "median", "p95", "p99", "max", "n"];

/// Statistics of one quantity. Unknown values are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Statistics {
    pub mean: Option<f64>,
    pub sd: Option<f64>,
    pub median: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
    pub n: Option<u64>,
}

impl Statistics {
    /// Returns the statistics of durations, in milliseconds; `sd` is that of the population.
    ///
    /// Durations above the range of the histogram are in `n`, but their lengths are unknown: then mean, standard
    /// deviation and maximum are unknown, too.
    pub fn ms(of: &Histogram) -> Statistics {
        let is_complete = of.overflow() == 0;
        let ms = |us: Option<f64>| us.map(|us| us / 1000.0);
        let at = |share| ms(of.quantile_us(share).map(|us| us as f64));
        Statistics {
            mean: ms(of.mean_us()).filter(|_| is_complete),
            sd: ms(of.sd_us()).filter(|_| is_complete && of.count() > 1),
            median: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            max: ms(of.max_us().map(|us| us as f64)).filter(|_| is_complete),
            n: Some(of.count()),
        }
    }

    /// Returns the statistics of single values, such as one per run or per second; `sd` is that of the sample.
    pub fn of(values: &[f64]) -> Statistics {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let mean = (count > 0).then(|| sorted.iter().sum::<f64>() / count as f64);
        let deviation = |mean: f64| {
            let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
            (squares / (count - 1) as f64).sqrt()
        };
        // The nearest rank, as in the histogram.
        let at = |share: f64| sorted.get(((share * count as f64).ceil() as usize).max(1) - 1).copied();
        let middle = || (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
        Statistics {
            mean,
            sd: mean.filter(|_| count > 1).map(deviation),
            median: (count > 0).then(middle),
            p95: at(0.95),
            p99: at(0.99),
            max: sorted.last().copied(),
            n: Some(count as u64),
        }
    }

    /// Returns the cells, with the unit in the names: `mean_ms`. The number of samples has no unit.
    pub fn row(&self, unit: &str) -> Row {
        let Statistics { mean, sd, median, p95, p99, max, n } = *self;
        let values = [mean, sd, median, p95, p99, max].map(Cell::from).into_iter().chain([n.into()]);
        columns(unit).into_iter().map(Into::into).zip(values).collect()
    }
}

/// Returns the names of the columns.
pub fn columns(unit: &str) -> Vec<String> {
    NAMES.map(|name| column_name(name, if name == "n" { "" } else { unit })).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_measured_is_nothing_and_not_zero() {
        for nothing in [Statistics::ms(&Histogram::default()), Statistics::of(&[])] {
            assert_eq!(nothing, Statistics { n: Some(0), ..Statistics::default() });
        }
        let mut one = Histogram::default();
        one.record_us(3000);
        for one in [Statistics::of(&[3.0]), Statistics::ms(&one)] {
            assert_eq!((one.mean, one.sd, one.n), (Some(3.0), None, Some(1)), "one value has no deviation");
        }
    }

    #[test]
    fn statistics_of_values_and_of_durations_agree() {
        let mut histogram = Histogram::default();
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        values.iter().for_each(|ms| histogram.record_us((ms * 1000.0) as u64));
        let (of, ms) = (Statistics::of(&values), Statistics::ms(&histogram));
        assert_eq!(
            (of.mean, of.median, of.p95, of.p99, of.max, of.n),
            (Some(100.5), Some(100.5), Some(190.0), Some(198.0), Some(200.0), Some(200))
        );
        assert_eq!(ms.mean, of.mean);
        assert!((ms.p95.unwrap() / 190.0 - 1.0).abs() < 0.001 && (ms.max.unwrap() / 200.0 - 1.0).abs() < 0.001);
        // Population and sample differ by the square root of n / (n - 1).
        assert!((of.sd.unwrap() / ms.sd.unwrap() - (200f64 / 199.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn durations_of_unknown_length_leave_mean_and_maximum_empty() {
        let mut histogram = Histogram::default();
        [1000, 2000, u64::MAX].into_iter().for_each(|us| histogram.record_us(us));
        let Statistics { mean, sd, median, p95, max, n, .. } = Statistics::ms(&histogram);
        assert_eq!((mean, sd, p95, max, n), (None, None, None, None, Some(3)));
        assert!(median.is_some_and(|ms| (ms / 2.0 - 1.0).abs() < 0.001));
    }
}
