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
}
