//! Results of a run: medians, ratios, and their form in the output.

use std::fmt;

/// Results of a run. Figures that a workload does not measure are `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// CPU time of the server per delivery; for `Post`, per publication.
    pub cpu_us: Option<f64>,
    pub per_s: Option<f64>,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub pss_kb: Option<f64>,
    pub bytes_per_connection: Option<f64>,
    pub idle_cpu_percent: Option<f64>,
}

impl Figures {
    /// Returns the median of each figure separately.
    pub fn median(runs: &[Figures]) -> Figures {
        let median = |pick: fn(&Figures) -> Option<f64>| {
            let mut values: Vec<f64> = runs.iter().filter_map(pick).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        Figures {
            cpu_us: median(|f| f.cpu_us),
            per_s: median(|f| f.per_s),
            p50_ms: median(|f| f.p50_ms),
            p99_ms: median(|f| f.p99_ms),
            pss_kb: median(|f| f.pss_kb),
            bytes_per_connection: median(|f| f.bytes_per_connection),
            idle_cpu_percent: median(|f| f.idle_cpu_percent),
        }
    }

    /// Formats this result over the other, for the figures that are compared.
    pub fn ratio(&self, other: &Figures) -> String {
        let mut out = Vec::new();
        for (name, this, other) in [
            ("CPU", self.cpu_us, other.cpu_us),
            ("per second", self.per_s, other.per_s),
            ("p99", self.p99_ms, other.p99_ms),
            ("bytes", self.bytes_per_connection, other.bytes_per_connection),
        ] {
            if let (Some(this), Some(other)) = (this, other) {
                out.push(format!("{name} x{:.2}", this / other));
            }
        }
        format!("[{}]", out.join(", "))
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut add = |value: Option<f64>, show: fn(f64) -> String| parts.extend(value.map(show));
        add(self.cpu_us, |v| format!("{v:6.3} us CPU each"));
        add(self.per_s, |v| format!("{:8.1} k/s", v / 1000.0));
        add(self.p50_ms, |v| format!("p50 {v:.2} ms"));
        add(self.p99_ms, |v| format!("p99 {v:.2} ms"));
        add(self.bytes_per_connection, |v| format!("{v:6.0} bytes per connection"));
        add(self.idle_cpu_percent, |v| format!("{v:.2} % CPU while idle"));
        add(self.pss_kb, |v| format!("{:.1} MB", v / 1024.0));
        write!(f, "{}", parts.join(", "))
    }
}
