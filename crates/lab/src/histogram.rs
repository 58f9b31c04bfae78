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
#[derive(Clone, PartialEq)]
pub struct Histogram {
    counts: Hdr<u64>,
    overflow: u64,
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
        }
    }
}

impl Histogram {
    #[inline]
    pub fn record_us(&mut self, us: u64) {
        if us > MAX_US || self.counts.record(us.max(1)).is_err() {
            self.overflow += 1;
        }
    }

    #[inline]
    pub fn record_ns(&mut self, ns: u64) {
        self.record_us(ns / 1000);
    }

    pub fn add(&mut self, other: &Histogram) {
        self.counts.add(&other.counts).expect("both have the same bounds");
        self.overflow += other.overflow;
    }

    pub fn clear(&mut self) {
        self.counts.reset();
        self.overflow = 0;
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
        (!self.counts.is_empty()).then(|| self.counts.mean())
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
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&self.counts, &mut bytes).map_err(S::Error::custom)?;
        Written { v2_deflate: BASE64_STANDARD.encode(bytes), overflow: self.overflow }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Written::deserialize(deserializer)?;
        let bytes = BASE64_STANDARD.decode(written.v2_deflate).map_err(D::Error::custom)?;
        let counts: Hdr<u64> = HdrReader::new().deserialize(&mut bytes.as_slice()).map_err(D::Error::custom)?;
        let mut read = Histogram { overflow: written.overflow, ..Histogram::default() };
        read.counts.add(counts).map_err(D::Error::custom)?;
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
}
