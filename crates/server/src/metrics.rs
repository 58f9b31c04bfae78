//! Writes the metrics of the whole process as Prometheus text.
//!
//! This is the only writer of that format. Each part of the server keeps its counters where they are counted; a shard
//! adds to plain integers of its own. `prometheus-client` would replace them by its own types, and its text ends with
//! `# EOF` and appends `_total` to names by itself.
//!
//! Source: Prometheus exposition format 0.0.4.

use std::{
    fmt::{Display, Write as _},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use millrace_node::{Family, MetricKind, Metrics};
use millrace_protocol::Transport;
use millrace_transport::SocketMetrics;

/// Metrics of one shard.
#[derive(Clone, Debug, Default)]
pub struct ShardMetrics {
    pub delivery: Arc<Metrics>,
    pub sockets: Arc<SocketMetrics>,
}

/// Samples of a histogram.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// Number of values per bucket, not cumulated; the last bucket has no upper bound.
    pub counts: Vec<u64>,
    /// Sum of all values.
    pub sum: f64,
}

/// Metrics as text, one family after the other.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Appends a metric without labels.
    pub fn value(&mut self, name: &str, kind: MetricKind, help: &str, value: impl Display) {
        self.family::<0, &str, _>(name, kind, help, [([], value)]);
    }

    /// Appends a metric with one sample per combination of labels.
    pub fn family<'a, const LABELS: usize, L: AsRef<str>, V: Display>(
        &mut self,
        name: &str,
        kind: MetricKind,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'a str, L); LABELS], V)>,
    ) {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        self.head(name, kind, help);
        for (labels, value) in samples {
            let labels = quoted(&labels);
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }

    /// Appends a histogram per combination of labels. `bounds` are the upper bounds of all buckets but the last.
    pub fn histogram<'a, const LABELS: usize, L: AsRef<str>>(
        &mut self,
        name: &str,
        help: &str,
        bounds: &[f64],
        samples: impl IntoIterator<Item = ([(&'a str, L); LABELS], Histogram)>,
    ) {
        self.head(name, "histogram", help);
        for (labels, Histogram { counts, sum }) in samples {
            let labels = quoted(&labels);
            let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
            let mut total = 0;
            for (bound, count) in bounds.zip(&counts) {
                total += count;
                let _ = writeln!(self.0, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
            }
            let _ = writeln!(self.0, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {total}");
        }
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Appends the metrics of all shards. `history_bytes` is the size of the engine's history.
    pub fn shards(&mut self, shards: &[ShardMetrics], history_bytes: usize) {
        let delivery: Vec<&Metrics> = shards.iter().map(|shard| &*shard.delivery).collect();
        let sockets: Vec<&SocketMetrics> = shards.iter().map(|shard| &*shard.sockets).collect();
        self.family(
            "millrace_connections",
            MetricKind::Gauge,
            "Open readers. A poll counts while the server holds it.",
            by_transport(&sockets, SocketMetrics::open),
        );
        self.family(
            "millrace_connections_total",
            MetricKind::Counter,
            "Readers opened since the start.",
            by_transport(&sockets, SocketMetrics::total),
        );
        let of_delivery = Metrics::MEMORY.iter().map(|(kind, value)| (*kind, sum(&delivery, *value)));
        let of_sockets = SocketMetrics::MEMORY.iter().map(|(kind, value)| (*kind, sum(&sockets, *value)));
        let memory = of_delivery.chain(of_sockets).chain([("history", history_bytes as u64)]);
        self.family(
            "millrace_memory_bytes",
            MetricKind::Gauge,
            "Memory by use. The memory of connections is measured at least once a minute.",
            memory.map(|(kind, bytes)| ([("kind", kind)], bytes)),
        );
        self.sums(Metrics::FAMILIES, &delivery);
        self.sums(SocketMetrics::FAMILIES, &sockets);
    }

    fn sums<M: 'static>(&mut self, families: &[Family<M>], shards: &[&M]) {
        for Family { name, kind, help, value } in families {
            self.value(name, *kind, help, sum(shards, *value));
        }
    }

    pub fn into_text(self) -> String {
        self.0
    }
}

/// Formats labels without braces: `a="x",b="y"`.
fn quoted<L: AsRef<str>>(labels: &[(&str, L)]) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"");
    let one = |(label, text): &(&str, L)| format!("{label}=\"{}\"", quoted(text.as_ref()));
    labels.iter().map(one).collect::<Vec<_>>().join(",")
}

fn sum<M>(shards: &[&M], value: millrace_node::metrics::Value<M>) -> u64 {
    shards.iter().map(|shard| value(shard).load(Relaxed)).fold(0, u64::wrapping_add)
}

/// Returns one sample per label. Transports with the same label share a sample.
fn by_transport(
    shards: &[&SocketMetrics],
    value: fn(&SocketMetrics, Transport) -> u64,
) -> Vec<([(&'static str, &'static str); 1], u64)> {
    let mut samples: Vec<([(&str, &str); 1], u64)> = Vec::new();
    for transport in Transport::ALL {
        let labels = [("transport", transport.metric_label())];
        let count: u64 = shards.iter().map(|shard| value(shard, transport)).sum();
        match samples.iter_mut().find(|(known, _)| *known == labels) {
            Some((_, sum)) => *sum += count,
            None => samples.push((labels, count)),
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_escaped() {
        let mut out = Exposition::default();
        out.family("a_total", MetricKind::Counter, "one\\two\nthree", [([("x", "\"\\\n"), ("y", "z")], 1)]);
        out.value("b", MetricKind::Gauge, "\"b\"", -2);
        let text = "# HELP a_total one\\\\two\\nthree\n# TYPE a_total counter\na_total{x=\"\\\"\\\\\\n\",y=\"z\"} 1\n\
            # HELP b \"b\"\n# TYPE b gauge\nb -2\n";
        assert_eq!(out.into_text(), text);
    }

    #[test]
    fn histogram_is_cumulated() {
        let mut out = Exposition::default();
        let histogram = Histogram { counts: vec![2, 1, 4], sum: 1.5 };
        out.histogram("a_seconds", "time", &[0.1, 1.0], [([("x", "y")], histogram)]);
        let text = "# HELP a_seconds time\n# TYPE a_seconds histogram\na_seconds_bucket{x=\"y\",le=\"0.1\"} 2\n\
            a_seconds_bucket{x=\"y\",le=\"1\"} 3\na_seconds_bucket{x=\"y\",le=\"+Inf\"} 7\n\
            a_seconds_sum{x=\"y\"} 1.5\na_seconds_count{x=\"y\"} 7\n";
        assert_eq!(out.into_text(), text);
    }

    #[test]
    fn metrics_of_shards_are_summed() {
        let shards = [ShardMetrics::default(), ShardMetrics::default()];
        for (i, shard) in shards.iter().enumerate() {
            Metrics::add(&shard.delivery.publications, 2);
            Metrics::add(&shard.sockets.memory_out, 10);
            shard.sockets.opened(Transport::WebSocket, 1);
            shard.sockets.opened(Transport::Session, 1 - 2 * i as i64);
        }
        let mut out = Exposition::default();
        out.shards(&shards, 7);
        let text = out.into_text();
        for line in [
            "millrace_publications_total 4",
            "millrace_memory_bytes{kind=\"out\"} 20",
            "millrace_memory_bytes{kind=\"history\"} 7",
            "millrace_connections_total{transport=\"websocket\"} 3",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
    }
}
