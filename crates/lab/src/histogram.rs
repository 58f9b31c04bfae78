//! Histogram of durations: an HdrHistogram from 1 us to 60 s with three significant digits.

use std::fmt;

use base64::{Engine, prelude::BASE64_STANDARD};
use hdrhistogram::{
    Histogram as Hdr,
    serialization::{Deserializer as HdrReader, Serializer as HdrWriter, V2DeflateSerializer},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};

/// Largest duration that the histogram resolves, in microseconds.
pub const MAX_US: u64 = 60_000_000;
const DIGITS: u8 = 3;

/// Counts of durations, in microseconds.
///
/// A duration below 1 us counts as 1 us. A duration above [`MAX_US`] is counted separately, in `overflow`, and is
/// never returned as a quantile. A report must mention the overflow if it is not zero. Memory: 139 KB.
///
/// Mean and standard deviation come from exact sums. Old recordings have no sums. Both are then computed from the
/// cells, each of which is at most 0.1 % wide.
#[derive(Clone, PartialEq)]
pub struct Histogram {
    counts: Hdr<u64>,
    overflow: u64,
    /// `None` if a part of the histogram was read from a recording without sums.
    sums: Option<Sums>,
}

/// Sums over all durations up to [`MAX_US`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    us: u64,
    squares: u128,
}

/// Prints one line with a summary, because the histogram has too many cells to print.
impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, p50, p99, max) = (self.count(), self.quantile_us(0.5), self.quantile_us(0.99), self.max_us());
        write!(f, "Histogram({count}, p50 {p50:?}, p99 {p99:?}, max {max:?} us)")
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: Hdr::new_with_bounds(1, MAX_US, DIGITS).expect("constant bounds that are in order"),
            overflow: 0,
            sums: Some(Sums::default()),
        }
    }
}

impl Histogram {
    #[inline]
    pub fn record_us(&mut self, us: u64) {
        let us = us.max(1);
        if us > MAX_US || self.counts.record(us).is_err() {
            self.overflow += 1;
        } else if let Some(sums) = &mut self.sums {
            sums.us += us;
            sums.squares += u128::from(us * us);
        }
    }

    #[inline]
    pub fn record_ns(&mut self, ns: u64) {
        self.record_us(ns / 1000);
    }

    pub fn add(&mut self, other: &Histogram) {
        self.counts.add(&other.counts).expect("both have the same bounds");
        self.overflow += other.overflow;
        self.sums = self
            .sums
            .zip(other.sums)
            .map(|(one, other)| Sums { us: one.us + other.us, squares: one.squares + other.squares });
    }

    pub fn clear(&mut self) {
        self.counts.reset();
        self.overflow = 0;
        self.sums = Some(Sums::default());
    }

    /// Returns the number of recorded durations, including those above [`MAX_US`].
    pub fn count(&self) -> u64 {
        self.counts.len() + self.overflow
    }

    /// Returns the number of durations above [`MAX_US`].
    pub fn overflow(&self) -> u64 {
        self.overflow
    }

    /// Returns the duration that a share `q` (0 to 1) of all durations does not exceed, in microseconds.
    ///
    /// Returns `None` if the histogram is empty or if the quantile is above [`MAX_US`].
    pub fn quantile_us(&self, q: f64) -> Option<u64> {
        let rank = ((q * self.count() as f64).ceil() as u64).max(1);
        if rank > self.counts.len() {
            return None;
        }
        let share = rank as f64 / self.counts.len() as f64;
        Some(self.counts.value_at_quantile(share))
    }

    /// Returns the longest duration up to [`MAX_US`].
    pub fn max_us(&self) -> Option<u64> {
        (!self.counts.is_empty()).then(|| self.counts.max())
    }

    /// Returns the mean of the durations up to [`MAX_US`].
    pub fn mean_us(&self) -> Option<f64> {
        let count = self.counts.len();
        (count > 0).then(|| self.sums.map_or_else(|| self.counts.mean(), |sums| sums.us as f64 / count as f64))
    }

    /// Returns the standard deviation of the durations up to [`MAX_US`]: that of the population.
    pub fn sd_us(&self) -> Option<f64> {
        let count = u128::from(self.counts.len());
        let exact = |sums: Sums| {
            // All terms are integers, so that no digit is lost: below 2^26 us and 2^32 durations, they fit.
            let squares = (count * sums.squares).saturating_sub(u128::from(sums.us).pow(2));
            (squares as f64).sqrt() / count as f64
        };
        (count > 0).then(|| self.sums.map_or_else(|| self.counts.stdev(), exact))
    }

    /// Returns false if mean and standard deviation are computed from the cells, which are up to 0.1 % wide.
    pub fn has_sums(&self) -> bool {
        self.sums.is_some()
    }

    /// Returns the number of durations longer than `us`: the samples that lie beyond a quantile.
    pub fn beyond(&self, us: u64) -> u64 {
        self.overflow + self.counts.len() - self.counts.count_between(0, us.min(MAX_US))
    }

    /// Returns each non-empty cell as (its highest value in microseconds, its count).
    pub fn cells(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter_recorded().map(|cell| (cell.value_iterated_to(), cell.count_at_value()))
    }
}

/// Serialized form. `v2_deflate` is the V2 format with DEFLATE, in base64, which the HdrHistogram libraries can read.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    v2_deflate: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    overflow: u64,
    /// Sum of the durations. Absent in old recordings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum_us: Option<u64>,
    /// Sum of their squares. In JSON a number that may exceed 64 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum_us2: Option<u128>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&self.counts, &mut bytes).map_err(S::Error::custom)?;
        let sums = self.sums.filter(|_| !self.counts.is_empty());
        Written {
            v2_deflate: BASE64_STANDARD.encode(bytes),
            overflow: self.overflow,
            sum_us: sums.map(|sums| sums.us),
            sum_us2: sums.map(|sums| sums.squares),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Written::deserialize(deserializer)?;
        let bytes = BASE64_STANDARD.decode(written.v2_deflate).map_err(D::Error::custom)?;
        let counts: Hdr<u64> = HdrReader::new().deserialize(&mut bytes.as_slice()).map_err(D::Error::custom)?;
        let mut read = Histogram { overflow: written.overflow, ..Histogram::default() };
        read.counts.add(counts).map_err(D::Error::custom)?;
        if !read.counts.is_empty() {
            read.sums = written.sum_us.zip(written.sum_us2).map(|(us, squares)| Sums { us, squares });
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_is_counted_apart_and_moves_quantiles() {
        let mut histogram = Histogram::default();
        for us in [0, 1, 10, MAX_US] {
            histogram.record_us(us);
        }
        for _ in 0..4 {
            histogram.record_us(MAX_US + 1);
        }
        assert_eq!((histogram.count(), histogram.overflow()), (8, 4));
        assert_eq!(histogram.quantile_us(0.25), Some(1));
        assert!(histogram.quantile_us(0.5).is_some_and(|us| us.abs_diff(MAX_US) < MAX_US / 1000));
        assert_eq!(histogram.quantile_us(0.51), None, "the median is known, what is above it is not");
        assert_eq!(histogram.beyond(10), 5);
    }

    #[test]
    fn three_digits_survive_writing_and_reading() {
        let mut histogram = Histogram::default();
        (1..100_000).for_each(|n| histogram.record_us(n * 599));
        histogram.record_us(u64::MAX);
        let text = serde_json::to_string(&histogram).unwrap();
        let read: Histogram = serde_json::from_str(&text).unwrap();
        assert_eq!(read, histogram);
        let p99 = read.quantile_us(0.99).unwrap() as f64;
        assert!((p99 / (0.99 * 100_000.0 * 599.0) - 1.0).abs() < 0.001, "{p99}");
        assert!(serde_json::from_str::<Histogram>(r#"{"v2_deflate":"AAAA"}"#).is_err());
    }

    #[test]
    fn mean_and_deviation_are_exact() {
        let mut histogram = Histogram::default();
        for us in [0, 50_000_001, 50_000_003, MAX_US + 1] {
            histogram.record_us(us);
        }
        let mut other = Histogram::default();
        other.record_us(50_000_003);
        histogram.add(&other);
        let mean = (1.0 + 50_000_001.0 + 2.0 * 50_000_003.0) / 4.0;
        assert_eq!(histogram.mean_us(), Some(mean));
        let of = |us: f64| (us - mean).powi(2);
        let sd = ((of(1.0) + of(50_000_001.0) + 2.0 * of(50_000_003.0)) / 4.0).sqrt();
        assert!((histogram.sd_us().unwrap() / sd - 1.0).abs() < 1e-12);
        let text = serde_json::to_string(&histogram).unwrap();
        assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), histogram);
        histogram.clear();
        assert_eq!((histogram.mean_us(), histogram.sd_us(), histogram.has_sums()), (None, None, true));
    }

    #[test]
    fn old_recordings_have_a_mean_of_cells() {
        let mut histogram = Histogram::default();
        [10_007, 20_011, 90_001].into_iter().for_each(|us| histogram.record_us(us));
        let mut written = serde_json::to_value(&histogram).unwrap();
        written.as_object_mut().unwrap().retain(|key, _| key == "v2_deflate");
        let mut old: Histogram = serde_json::from_value(written).unwrap();
        assert!(!old.has_sums() && old != histogram);
        for (old, exact) in [(old.mean_us(), histogram.mean_us()), (old.sd_us(), histogram.sd_us())] {
            assert!((old.unwrap() / exact.unwrap() - 1.0).abs() < 0.001, "{old:?} {exact:?}");
        }
        // An empty histogram without sums does not make a sum unknown.
        let mut empty: Histogram =
            serde_json::from_str(&serde_json::to_string(&Histogram::default()).unwrap()).unwrap();
        empty.add(&histogram);
        assert_eq!(empty, histogram);
        old.add(&histogram);
        assert!(!old.has_sums());
    }
}
