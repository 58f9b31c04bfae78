//! Ages of messages, one histogram per time slice; quantiles and medians.

use std::time::Duration;

use millrace_lab::histogram::Histogram;

/// Returns a quantile in milliseconds; NaN if the histogram is empty, infinity above the range of the histogram.
pub fn quantile_ms(histogram: &Histogram, q: f64) -> f64 {
    match histogram.quantile_us(q) {
        Some(us) => us as f64 / 1000.0,
        None if histogram.count() == 0 => f64::NAN,
        None => f64::INFINITY,
    }
}

/// Returns the maximum in milliseconds; NaN if the histogram is empty.
pub fn max_ms(histogram: &Histogram) -> f64 {
    quantile_ms(histogram, 1.0)
}

/// Returns the median of an odd number of values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
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
        let show = |slice: &Histogram| match slice.count() {
            0 => "-".into(),
            _ => {
                format!("{:.1}/{:.1}/{:.1}", quantile_ms(slice, 0.5), quantile_ms(slice, 0.99), max_ms(slice))
            }
        };
        self.slices.iter().map(show).collect::<Vec<_>>().join("  ")
    }
}
