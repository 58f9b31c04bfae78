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

use millrace_node::{
    Family, MetricKind, Metrics, Namespaces, Router,
    histogram::{BOUNDS_US, Samples},
    namespaces::NamespaceSample,
};
use millrace_protocol::Transport;
use millrace_transport::SocketMetrics;

/// Metrics of one shard.
#[derive(Clone, Debug, Default)]
pub struct ShardMetrics {
    pub delivery: Arc<Metrics>,
    pub sockets: Arc<SocketMetrics>,
}

/// Metrics of all shards.
pub struct NodeMetrics {
    pub shards: Vec<ShardMetrics>,
    /// The counters of the namespaces.
    pub router: Arc<Router>,
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

    /// Appends the metrics of the node. `history_bytes` is the size of the engine's history.
    pub fn node(&mut self, NodeMetrics { shards, router }: &NodeMetrics, history_bytes: usize) {
        self.shards(shards, history_bytes);
        self.each_shard(shards, router.namespaces());
        self.namespaces(router.namespaces());
    }

    /// Appends the sums over all shards. `history_bytes` is the size of the engine's history.
    fn shards(&mut self, shards: &[ShardMetrics], history_bytes: usize) {
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

    /// Appends the histograms and the counters of each shard.
    fn each_shard(&mut self, shards: &[ShardMetrics], namespaces: &Namespaces) {
        let bounds = BOUNDS_US.map(|us| us as f64 / 1e6);
        let sockets: Vec<&SocketMetrics> = shards.iter().map(|shard| &*shard.sockets).collect();
        self.histogram(
            "millrace_publish_to_write_seconds",
            "Time from the acceptance of a publication by this node, or its arrival from the engine, to the end of the \
            turn that wrote it. Each write counts once, with the age of the oldest publication of the turn: an upper \
            bound. Not measured: writes to readers that were behind, polls that were answered at once, and long polls \
            over HTTP/2.",
            &bounds,
            written(&sockets),
        );
        let labels: Vec<String> = (0..shards.len()).map(|id| id.to_string()).collect();
        let of_shards = |value: fn(&ShardMetrics) -> Samples| {
            labels.iter().zip(shards).map(move |(id, shard)| ([("shard", id.as_str())], value(shard).into()))
        };
        self.histogram(
            "millrace_turn_seconds",
            "Time that a shard works in a turn: from the first event to the end of the writes to all readers.",
            &bounds,
            of_shards(|shard| shard.delivery.turn_time.samples()),
        );
        self.histogram(
            "millrace_loop_lag_seconds",
            "Delay of a timer of the shard, measured once per second. A ready connection waits about as long.",
            &bounds,
            of_shards(|shard| shard.delivery.loop_lag.samples()),
        );
        let deliveries = labels.iter().enumerate().map(|(shard, id)| ([("shard", id)], namespaces.deliveries(shard)));
        self.family(
            "millrace_shard_deliveries_total",
            MetricKind::Counter,
            "Publications to each of their readers, by shard. Polls are not included.",
            deliveries,
        );
        for (name, kind, help, value) in SHARD_FAMILIES {
            let samples = labels.iter().zip(shards).map(|(id, shard)| ([("shard", id)], value(shard)));
            self.family(name, *kind, help, samples);
        }
    }

    /// Appends the counters of each namespace.
    fn namespaces(&mut self, namespaces: &Namespaces) {
        let all = namespaces.samples();
        for (name, kind, help, value) in NAMESPACE_FAMILIES {
            self.family(name, *kind, help, all.iter().map(|one| ([("namespace", &one.namespace)], value(one))));
        }
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

/// Name, type, help text and value of a metric with one sample per `T`.
type FamilyPer<T, V> = (&'static str, MetricKind, &'static str, fn(&T) -> V);

const NAMESPACE_FAMILIES: &[FamilyPer<NamespaceSample, u64>] = &[
    (
        "millrace_namespace_publications_total",
        MetricKind::Counter,
        "Accepted publications of clients, by first level of the channel. Only a limited number of namespaces \
        has a label; the others are counted as `(other)`.",
        |sample| sample.publications,
    ),
    (
        "millrace_namespace_refused_total",
        MetricKind::Counter,
        "Refused publications of clients with the permission to publish, by namespace: too large in a \
        message or a line, over a quota, refused by the back end or by the engine, or congested. A whole request that \
        is too large does not count.",
        |sample| sample.refused,
    ),
    (
        "millrace_namespace_deliveries_total",
        MetricKind::Counter,
        "Publications to each of their readers, by namespace. Polls are not included.",
        |sample| sample.deliveries,
    ),
    (
        "millrace_namespace_readers",
        MetricKind::Gauge,
        "Readers of channels, by namespace. A client that reads two channels counts twice.",
        |sample| sample.readers,
    ),
];

const SHARD_FAMILIES: &[FamilyPer<ShardMetrics, f64>] = &[
    (
        "millrace_shard_connections",
        MetricKind::Gauge,
        "Open readers, by shard. The sum over all shards is the sum of millrace_connections.",
        |shard| shard.sockets.open_readers() as f64,
    ),
    (
        "millrace_shard_messages_total",
        MetricKind::Counter,
        "Messages, HTTP requests and datagrams of devices received, by shard.",
        |shard| shard.sockets.received() as f64,
    ),
    (
        "millrace_shard_pings_total",
        MetricKind::Counter,
        "Pings of clients answered, by shard: those of the WebSocket protocol and those of sessions.",
        |shard| shard.sockets.pings.load(Relaxed) as f64,
    ),
    (
        "millrace_shard_publications_total",
        MetricKind::Counter,
        "Accepted publications, by shard of the publisher.",
        |shard| shard.delivery.publications.load(Relaxed) as f64,
    ),
    (
        "millrace_shard_cpu_seconds_total",
        MetricKind::Counter,
        "CPU time of the shard's thread, measured once per second.",
        |shard| shard.delivery.cpu_ns.load(Relaxed) as f64 / 1e9,
    ),
];

/// Formats labels without braces: `a="x",b="y"`.
fn quoted<L: AsRef<str>>(labels: &[(&str, L)]) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"");
    let one = |(label, text): &(&str, L)| format!("{label}=\"{}\"", quoted(text.as_ref()));
    labels.iter().map(one).collect::<Vec<_>>().join(",")
}

fn sum<M>(shards: &[&M], value: millrace_node::metrics::Value<M>) -> u64 {
    shards.iter().map(|shard| value(shard).load(Relaxed)).fold(0, u64::wrapping_add)
}

impl From<Samples> for Histogram {
    fn from(Samples { counts, sum_s }: Samples) -> Self {
        Self { counts: counts.into(), sum: sum_s }
    }
}

/// Returns the ages of publications per label of a transport.
fn written(shards: &[&SocketMetrics]) -> Vec<([(&'static str, &'static str); 1], Histogram)> {
    let mut labels: Vec<&str> = Transport::COUNTED.map(Transport::metric_label).into();
    labels.dedup();
    let of_label = |label: &'static str| {
        let transports = Transport::COUNTED.into_iter().filter(move |transport| transport.metric_label() == label);
        let samples = transports.flat_map(|one| shards.iter().map(move |shard| shard.publish_to_write(one).samples()));
        ([("transport", label)], Samples::sum(samples).into())
    };
    labels.into_iter().map(of_label).collect()
}

/// Returns one sample per label. Transports with the same label share a sample.
fn by_transport(
    shards: &[&SocketMetrics],
    value: fn(&SocketMetrics, Transport) -> u64,
) -> Vec<([(&'static str, &'static str); 1], u64)> {
    let mut samples: Vec<([(&str, &str); 1], u64)> = Vec::new();
    for transport in Transport::COUNTED {
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
