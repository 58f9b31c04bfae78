use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Histogram;

/// Counters of the publications and readers of one shard. Only the shard's own thread writes them; any thread may read
/// them.
#[derive(Debug, Default)]
pub struct Metrics {
    pub publications: AtomicU64,
    pub publications_refused: AtomicU64,
    pub published_bytes: AtomicU64,
    pub gaps: AtomicU64,
    pub history_retries: AtomicU64,
    pub turns: AtomicU64,
    pub channels: AtomicU64,
    pub memory_logs: AtomicU64,
    pub memory_spare: AtomicU64,
    /// CPU time of the shard's thread in nanoseconds.
    pub cpu_ns: AtomicU64,
    /// Time that the shard works in each turn.
    pub turn_time: Histogram,
    /// Delay of a timer of the shard.
    pub loop_lag: Histogram,
}

impl Metrics {
    /// Adds to a counter. Only the shard's own thread adds, so a load and a store replace an atomic addition, at a
    /// fraction of its cost.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Every metric that has no label. The server sums each over all shards.
    pub const FAMILIES: &[Family<Metrics>] = &[
        Family {
            name: "millrace_channels_open",
            kind: MetricKind::Gauge,
            help: "Channels with at least one reader. A channel with readers on several shards counts once per shard.",
            value: |m| &m.channels,
        },
        Family {
            name: "millrace_publications_total",
            kind: MetricKind::Counter,
            help: "Accepted publications.",
            value: |m| &m.publications,
        },
        Family {
            name: "millrace_publications_refused_total",
            kind: MetricKind::Counter,
            help: "Refused publications.",
            value: |m| &m.publications_refused,
        },
        Family {
            name: "millrace_published_bytes_total",
            kind: MetricKind::Counter,
            help: "Payload bytes of publications, accepted or refused.",
            value: |m| &m.published_bytes,
        },
        Family {
            name: "millrace_gaps_total",
            kind: MetricKind::Counter,
            help: "Gaps reported to readers.",
            value: |m| &m.gaps,
        },
        Family {
            name: "millrace_history_retries_total",
            kind: MetricKind::Counter,
            help: "Failed reads of history for a reader. The server retries them.",
            value: |m| &m.history_retries,
        },
        Family {
            name: "millrace_turns_total",
            kind: MetricKind::Counter,
            help: "Turns of the shards. Each turn delivers everything that arrived since the last one.",
            value: |m| &m.turns,
        },
    ];

    /// Kinds of `millrace_memory_bytes` that a shard measures.
    pub const MEMORY: &[(&str, Value<Metrics>)] = &[("logs", |m| &m.memory_logs), ("spare", |m| &m.memory_spare)];
}

/// Returns one value of a struct of metrics.
pub type Value<M> = fn(&M) -> &AtomicU64;

/// Description of a metric without labels, one field of `M`.
pub struct Family<M: 'static> {
    pub name: &'static str,
    pub kind: MetricKind,
    /// Description for operators, in one or two sentences.
    pub help: &'static str,
    pub value: Value<M>,
}

/// Types of metrics. Source: Prometheus exposition format 0.0.4, "TYPE".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only increases, until the process restarts.
    Counter,
    /// Increases and decreases.
    Gauge,
}
