use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
};

use millrace_protocol::Transport;

/// Counters of one shard. Only the shard's own thread writes them; any thread may read them.
#[derive(Debug, Default)]
pub struct Metrics {
    pub publications: AtomicU64,
    pub publications_refused: AtomicU64,
    pub publishers_paused: AtomicU64,
    pub published_bytes: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
    pub writes: AtomicU64,
    pub gaps: AtomicU64,
    pub history_retries: AtomicU64,
    pub turns: AtomicU64,
    pub http_requests: AtomicU64,
    pub http_errors: AtomicU64,
    pub udp_received: AtomicU64,
    pub udp_dropped: AtomicU64,
    pub rtc_peers: AtomicU64,
    pub rtc_streams: AtomicU64,
    pub rtc_failed: AtomicU64,
    pub rtc_panicked: AtomicU64,
    pub rtc_received: AtomicU64,
    pub rtc_dropped: AtomicU64,
    pub tls_handshakes: AtomicU64,
    pub tls_resumed: AtomicU64,
    pub tls_failed: AtomicU64,
    pub tls_refused: AtomicU64,
    pub memory_logs: AtomicU64,
    pub memory_spare: AtomicU64,
    pub memory_out: AtomicU64,
    pub memory_connections: AtomicU64,
    pub channels: AtomicU64,
    open: [AtomicI64; Transport::ALL.len()],
    total: [AtomicU64; Transport::ALL.len()],
}

impl Metrics {
    /// Adds to a counter. Only the shard's own thread adds, so a load and a store replace an atomic addition, at a
    /// fraction of its cost.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Counts a reader that opened (`1`) or closed (`-1`) on this transport.
    pub fn opened(&self, transport: Transport, change: i64) {
        self.open[transport as usize].fetch_add(change, Relaxed);
        if change > 0 {
            self.total[transport as usize].fetch_add(change as u64, Relaxed);
        }
    }

    /// Returns the number of open readers on all transports.
    pub fn open_readers(&self) -> usize {
        self.open.iter().map(|open| open.load(Relaxed).max(0) as usize).sum()
    }

    /// Returns the sums over all shards as Prometheus text. `history_bytes` is the size of the engine's history.
    ///
    /// Source: Prometheus exposition format 0.0.4.
    pub fn render(shards: &[Arc<Metrics>], history_bytes: usize) -> String {
        let mut out = String::new();
        let sum = |pick: &dyn Fn(&Metrics) -> i64| shards.iter().map(|shard| pick(shard)).sum::<i64>();
        let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, i64)]| {
            out.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
            for (labels, value) in samples {
                out.push_str(&format!("{name}{labels} {value}\n"));
            }
        };
        let by_transport = |pick: &dyn Fn(&Metrics, usize) -> i64| {
            let mut samples: Vec<(String, i64)> = Vec::new();
            for transport in Transport::ALL {
                let label = format!("{{transport=\"{}\"}}", transport.metric_label());
                let value = sum(&|shard| pick(shard, transport as usize));
                match samples.iter_mut().find(|(other, _)| *other == label) {
                    Some((_, sum)) => *sum += value,
                    None => samples.push((label, value)),
                }
            }
            samples
        };
        let open = by_transport(&|shard, i| shard.open[i].load(Relaxed));
        let total = by_transport(&|shard, i| shard.total[i].load(Relaxed) as i64);
        let memory = MEMORY
            .iter()
            .map(|(kind, pick)| (format!("{{kind=\"{kind}\"}}"), sum(&|shard| pick(shard).load(Relaxed) as i64)));
        let history = ("{kind=\"history\"}".to_owned(), history_bytes as i64);
        let memory: Vec<_> = memory.chain([history]).collect();
        family("millrace_connections", "gauge", "Open readers; polls count while they are held.", &open);
        family("millrace_connections_total", "counter", "Readers ever opened.", &total);
        family(
            "millrace_memory_bytes",
            "gauge",
            "Memory by what for; of connections looked at once a minute or more often.",
            &memory,
        );
        for (name, kind, help, pick) in FAMILIES {
            family(name, kind, help, &[(String::new(), sum(&|shard| pick(shard).load(Relaxed) as i64))]);
        }
        out
    }
}

type Pick = fn(&Metrics) -> &AtomicU64;

/// Kinds of `millrace_memory_bytes` that the shards report.
const MEMORY: &[(&str, Pick)] = &[
    ("logs", |m| &m.memory_logs),
    ("spare", |m| &m.memory_spare),
    ("out", |m| &m.memory_out),
    ("connections", |m| &m.memory_connections),
];

const FAMILIES: &[(&str, &str, &str, Pick)] = &[
    ("millrace_channels_open", "gauge", "Channels with a reader, summed over shards.", |m| &m.channels),
    ("millrace_publications_total", "counter", "Publications accepted.", |m| &m.publications),
    ("millrace_publications_refused_total", "counter", "Publications refused.", |m| &m.publications_refused),
    (
        "millrace_publishers_paused_total",
        "counter",
        "Pauses in reading from WebSockets that publish faster than readers are served.",
        |m| &m.publishers_paused,
    ),
    ("millrace_published_bytes_total", "counter", "Payload bytes offered.", |m| &m.published_bytes),
    ("millrace_sent_bytes_total", "counter", "Bytes written to streams and WebSockets.", |m| &m.sent_bytes),
    ("millrace_received_bytes_total", "counter", "Bytes read from WebSockets.", |m| &m.received_bytes),
    ("millrace_writes_total", "counter", "Writes to streams and WebSockets.", |m| &m.writes),
    ("millrace_gaps_total", "counter", "Gaps told to readers.", |m| &m.gaps),
    (
        "millrace_history_retries_total",
        "counter",
        "Reads of history for a reader that failed, and were tried again.",
        |m| &m.history_retries,
    ),
    ("millrace_turns_total", "counter", "Turns of the shard loops.", |m| &m.turns),
    ("millrace_http_requests_total", "counter", "HTTP requests.", |m| &m.http_requests),
    ("millrace_http_errors_total", "counter", "HTTP requests answered 4xx or 5xx.", |m| &m.http_errors),
    ("millrace_udp_received_total", "counter", "Datagrams received.", |m| &m.udp_received),
    ("millrace_udp_dropped_total", "counter", "Datagrams dropped: malformed, or refused.", |m| &m.udp_dropped),
    ("millrace_rtc_peers", "gauge", "Peers of data channels, unfinished ones, too.", |m| &m.rtc_peers),
    ("millrace_rtc_streams", "gauge", "TCP streams that carry the datagrams of clients.", |m| &m.rtc_streams),
    ("millrace_rtc_failed_total", "counter", "Peers that ended before their channel was open.", |m| &m.rtc_failed),
    (
        "millrace_rtc_panicked_total",
        "counter",
        "Peers that ended because the library panicked over what they sent.",
        |m| &m.rtc_panicked,
    ),
    ("millrace_rtc_received_total", "counter", "Datagrams received for data channels.", |m| &m.rtc_received),
    (
        "millrace_rtc_dropped_total",
        "counter",
        "Of those, dropped: from nobody known, malformed, or too many of one address.",
        |m| &m.rtc_dropped,
    ),
    ("millrace_tls_handshakes_total", "counter", "TLS handshakes done in full.", |m| &m.tls_handshakes),
    ("millrace_tls_resumed_total", "counter", "TLS handshakes that went on from an earlier one.", |m| &m.tls_resumed),
    ("millrace_tls_failed_total", "counter", "TLS handshakes that failed or took too long.", |m| &m.tls_failed),
    ("millrace_tls_refused_total", "counter", "Connections turned away: too many handshakes.", |m| &m.tls_refused),
];
