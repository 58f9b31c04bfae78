//! Counters of questions, for the metrics of the server.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use millrace_transport::admission::hooks::Hook;

/// Result of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The back end allows, or has returned a result.
    Allowed,
    Refused,
    /// The back end did not answer in time.
    Timeout,
    /// No connection, a broken connection, an error status, or an invalid answer.
    Error,
    /// The question was not sent, because the circuit breaker is open.
    BreakerOpen,
    /// The question was not sent, because too many others were in progress.
    Overloaded,
}

impl Outcome {
    pub const ALL: [Outcome; 6] = [
        Outcome::Allowed,
        Outcome::Refused,
        Outcome::Timeout,
        Outcome::Error,
        Outcome::BreakerOpen,
        Outcome::Overloaded,
    ];

    /// Outcomes without a usable answer.
    pub const FAILURES: [Outcome; 4] = [Outcome::Timeout, Outcome::Error, Outcome::BreakerOpen, Outcome::Overloaded];

    /// Returns the label `result` of the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Allowed => "allowed",
            Outcome::Refused => "refused",
            Outcome::Timeout => "timeout",
            Outcome::Error => "error",
            Outcome::BreakerOpen => "breaker_open",
            Outcome::Overloaded => "overloaded",
        }
    }
}

/// Upper bounds of the latency buckets, in milliseconds. A last bucket has no bound.
pub const BUCKETS_MS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];

/// Counters of one hook. Any thread may add.
#[derive(Debug, Default)]
pub struct HookMetrics {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    cached: AtomicU64,
    buckets: [AtomicU64; BUCKETS_MS.len() + 1],
    sum_us: AtomicU64,
}

/// Counters of all hooks.
#[derive(Debug, Default)]
pub struct Metrics([HookMetrics; Hook::ALL.len()]);

impl Metrics {
    pub fn of(&self, hook: Hook) -> &HookMetrics {
        &self.0[hook as usize]
    }
}

impl HookMetrics {
    /// Counts a question that was not answered from the cache. `latency` includes the wait for a free slot.
    pub fn count(&self, outcome: Outcome, latency: Duration) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
        let us = latency.as_micros() as u64;
        let bucket = BUCKETS_MS.iter().position(|ms| us <= ms * 1000).unwrap_or(BUCKETS_MS.len());
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
    }

    /// Counts an answer from the cache.
    pub fn count_cached(&self) {
        self.cached.fetch_add(1, Relaxed);
    }

    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Relaxed)
    }

    pub fn cached(&self) -> u64 {
        self.cached.load(Relaxed)
    }

    /// Returns the number of questions per bucket, not cumulated, and the sum of all latencies in seconds.
    pub fn latencies(&self) -> ([u64; BUCKETS_MS.len() + 1], f64) {
        let counts = std::array::from_fn(|bucket| self.buckets[bucket].load(Relaxed));
        (counts, self.sum_us.load(Relaxed) as f64 / 1e6)
    }

    /// Estimates a quantile of the latencies in milliseconds, evenly distributed within a bucket; above the last bound
    /// it is that bound. Returns `None` without questions.
    pub fn quantile_ms(&self, quantile: f64) -> Option<f64> {
        let (counts, _) = self.latencies();
        let all: u64 = counts.iter().sum();
        let rank = quantile * all as f64;
        let mut below = 0.0;
        for (bucket, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            let count = count as f64;
            if below + count >= rank {
                let low = bucket.checked_sub(1).map_or(0, |before| BUCKETS_MS[before]) as f64;
                let high = BUCKETS_MS.get(bucket).map_or(low, |high| *high as f64);
                return Some(low + (high - low) * (rank - below) / count);
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
    fn latency_is_counted_in_its_bucket() {
        let metrics = Metrics::default();
        for us in [0, 1000, 1001, 5_000_000, 5_000_001] {
            metrics.of(Hook::Publish).count(Outcome::Allowed, Duration::from_micros(us));
        }
        let (counts, sum_s) = metrics.of(Hook::Publish).latencies();
        assert_eq!((counts[0], counts[1], counts[11], counts[12]), (2, 1, 1, 1));
        assert!((sum_s - 10.002_002).abs() < 1e-9, "{sum_s}");
        assert_eq!(metrics.of(Hook::Rpc).outcome(Outcome::Allowed), 0);
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let metrics = HookMetrics::default();
        assert_eq!(metrics.quantile_ms(0.5), None);
        for _ in 0..98 {
            metrics.count(Outcome::Allowed, Duration::from_millis(4));
        }
        metrics.count(Outcome::Error, Duration::from_millis(150));
        metrics.count(Outcome::Timeout, Duration::from_secs(9));
        assert_eq!(metrics.quantile_ms(0.5), Some(2.0 + 3.0 * 50.0 / 98.0));
        assert_eq!((metrics.quantile_ms(0.99), metrics.quantile_ms(1.0)), (Some(200.0), Some(5000.0)));
    }
}
