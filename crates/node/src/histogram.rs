use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::Metrics;

/// Upper bounds of the buckets, in microseconds. A last bucket has no bound.
pub const BOUNDS_US: [u64; 17] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000,
];

/// Number of buckets.
const BUCKETS: usize = BOUNDS_US.len() + 1;

/// Distribution of durations. Only one thread adds to it, so that an addition needs no atomic operation with a lock;
/// any thread may read it.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// Content of one or more histograms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// Number of values per bucket, not cumulated.
    pub counts: [u64; BUCKETS],
    /// Sum of all values in seconds.
    pub sum_s: f64,
}

impl Histogram {
    /// Adds `count` values of the same duration.
    pub fn add(&self, value: Duration, count: u64) {
        let us = value.as_micros() as u64;
        let bucket = BOUNDS_US.iter().position(|bound| us <= *bound).unwrap_or(BOUNDS_US.len());
        Metrics::add(&self.buckets[bucket], count);
        Metrics::add(&self.sum_ns, (value.as_nanos() as u64).wrapping_mul(count));
    }

    pub fn samples(&self) -> Samples {
        let counts = std::array::from_fn(|bucket| self.buckets[bucket].load(Relaxed));
        Samples { counts, sum_s: self.sum_ns.load(Relaxed) as f64 / 1e9 }
    }
}

impl Samples {
    /// Returns the sum of the samples of several histograms.
    pub fn sum(all: impl IntoIterator<Item = Samples>) -> Samples {
        all.into_iter().fold(Samples::default(), |mut total, one| {
            total.counts.iter_mut().zip(one.counts).for_each(|(total, count)| *total += count);
            total.sum_s += one.sum_s;
            total
        })
    }

    /// Returns the samples since an earlier state of the same histograms.
    pub fn since(&self, earlier: &Samples) -> Samples {
        let counts = std::array::from_fn(|bucket| self.counts[bucket].wrapping_sub(earlier.counts[bucket]));
        Samples { counts, sum_s: self.sum_s - earlier.sum_s }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the mean in seconds; `None` without values.
    pub fn mean_s(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum_s / self.count() as f64)
    }

    /// Estimates the value that this fraction of the values does not exceed, in seconds; `None` without values. The
    /// values of a bucket count as evenly spread over it; those of the last bucket as its lower bound.
    pub fn quantile_s(&self, fraction: f64) -> Option<f64> {
        let rank = fraction * self.count() as f64;
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            if (below + count) as f64 >= rank {
                let lower_us = bucket.checked_sub(1).map_or(0, |bucket| BOUNDS_US[bucket]) as f64;
                let upper_us = BOUNDS_US.get(bucket).map_or(lower_us, |upper| *upper as f64);
                let inside = ((rank - below as f64) / *count as f64).max(0.0);
                return Some((lower_us + (upper_us - lower_us) * inside) / 1e6);
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_in_their_buckets() {
        let histogram = Histogram::default();
        for (us, count) in [(0, 1), (10, 2), (11, 3), (5_000_000, 4), (5_000_001, 5)] {
            histogram.add(Duration::from_micros(us), count);
        }
        let Samples { counts, sum_s } = Samples::sum([histogram.samples(), Samples::default()]);
        assert_eq!((counts[0], counts[1], counts[16], counts[17]), (3, 3, 4, 5));
        assert_eq!(counts.iter().sum::<u64>(), 15);
        assert!((sum_s - 45.000_058).abs() < 1e-9, "{sum_s}");
    }
    #[test]
    fn quantiles_are_interpolated_in_their_bucket() {
        let histogram = Histogram::default();
        assert_eq!(histogram.samples().quantile_s(0.5), None);
        histogram.add(Duration::from_micros(150), 98);
        let earlier = histogram.samples();
        histogram.add(Duration::from_micros(15), 100);
        histogram.add(Duration::from_secs(9), 2);
        let all = histogram.samples();
        let us = |samples: &Samples, fraction| (samples.quantile_s(fraction).unwrap() * 1e6).round();
        assert_eq!([0.25, 0.5, 0.99].map(|fraction| us(&all, fraction)), [15.0, 20.0, 200.0]);
        assert_eq!(us(&all, 0.999), 5_000_000.0, "the last bucket has no upper bound");
        let since = all.since(&earlier);
        assert_eq!((since.count(), us(&since, 0.5)), (102, 15.0));
        assert!((earlier.mean_s().unwrap() - 150e-6).abs() < 1e-9);
    }
}
