//! Counts values without storing them: a histogram of microseconds, one per time slice.

use std::time::Duration;

/// Values below this one are counted exactly, values above it with an error of at most 3 %.
const EXACT: usize = 64;
const PER_OCTAVE: usize = 32;

#[derive(Clone, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    pub total: u64,
    pub max_us: u64,
}

impl Histogram {
    pub fn record(&mut self, us: u64) {
        let bucket = match us {
            0..64 => us as usize,
            _ => {
                let octave = us.ilog2() as usize;
                EXACT + (octave - 6) * PER_OCTAVE + (us >> (octave - 5)) as usize - PER_OCTAVE
            }
        };
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + PER_OCTAVE, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.max_us = self.max_us.max(us);
    }

    pub fn add(&mut self, other: &Histogram) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, more)| *mine += more);
        self.total += other.total;
        self.max_us = self.max_us.max(other.max_us);
    }

    /// Returns a quantile in milliseconds; NaN if the histogram is empty.
    pub fn quantile_ms(&self, q: f64) -> f64 {
        let wanted = (self.total as f64 * q).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                let us = match bucket.checked_sub(EXACT) {
                    None => bucket,
                    Some(above) => (PER_OCTAVE + above % PER_OCTAVE + 1) << (above / PER_OCTAVE + 1),
                };
                return (us as u64).min(self.max_us) as f64 / 1000.0;
            }
        }
        f64::NAN
    }
}

/// Age of the data, by the time of receipt.
pub struct Ages {
    slice_us: u64,
    pub slices: Vec<Histogram>,
}

impl Ages {
    pub fn new(slice: Duration) -> Self {
        Self { slice_us: slice.as_micros() as u64, slices: Vec::new() }
    }

    pub fn at(&mut self, now_us: u64) -> &mut Histogram {
        let index = (now_us / self.slice_us) as usize;
        if self.slices.len() <= index {
            self.slices.resize_with(index + 1, Histogram::default);
        }
        &mut self.slices[index]
    }

    pub fn all(&self) -> Histogram {
        self.after(0)
    }

    /// Returns the histogram without the first `slices` slices.
    pub fn after(&self, slices: usize) -> Histogram {
        let mut all = Histogram::default();
        self.slices.iter().skip(slices).for_each(|slice| all.add(slice));
        all
    }

    /// Formats `p50 / p99 / max` of each slice, in milliseconds.
    pub fn by_slice(&self) -> String {
        let show = |slice: &Histogram| match slice.total {
            0 => "-".into(),
            _ => {
                let max_ms = slice.max_us as f64 / 1000.0;
                format!("{:.1}/{:.1}/{max_ms:.1}", slice.quantile_ms(0.5), slice.quantile_ms(0.99))
            }
        };
        self.slices.iter().map(show).collect::<Vec<_>>().join("  ")
    }
}

/// Returns the CPU time of this thread and the time that it waited for a CPU, in nanoseconds; 0 if the kernel does not
/// report them.
pub fn own_ns() -> (u64, u64) {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let mut fields = stat.split_whitespace().map(|ns| ns.parse().unwrap_or(0));
    (fields.next().unwrap_or(0), fields.next().unwrap_or(0))
}
