use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Counters of one shard; written by its own thread only, read by whoever renders them.
#[derive(Debug, Default)]
pub struct Metrics {
    pub publications: AtomicU64,
    pub publications_refused: AtomicU64,
    pub published_bytes: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
    pub writes: AtomicU64,
    pub gaps: AtomicU64,
    pub turns: AtomicU64,
    pub http_requests: AtomicU64,
    pub http_errors: AtomicU64,
    pub udp_received: AtomicU64,
    pub udp_dropped: AtomicU64,
    pub log_bytes: AtomicU64,
    pub out_bytes: AtomicU64,
    pub channels: AtomicU64,
    open: [AtomicI64; Transport::ALL.len()],
    total: [AtomicU64; Transport::ALL.len()],
}

/// The transports, as the metrics name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Polling,
    LongPolling,
    Sse,
    Stream,
    WebSocket,
}

impl Transport {
    pub const ALL: [Transport; 5] =
        [Transport::Polling, Transport::LongPolling, Transport::Sse, Transport::Stream, Transport::WebSocket];

    pub fn name(self) -> &'static str {
        match self {
            Transport::Polling => "polling",
            Transport::LongPolling => "long_polling",
            Transport::Sse => "sse",
            Transport::Stream => "stream",
            Transport::WebSocket => "websocket",
        }
    }
}

impl Metrics {
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }

    /// One more reader on this transport (`1`), or one less (`-1`).
    pub fn opened(&self, transport: Transport, change: i64) {
        self.open[transport as usize].fetch_add(change, Relaxed);
        if change > 0 {
            self.total[transport as usize].fetch_add(change as u64, Relaxed);
        }
    }

    /// The sum over all shards, as Prometheus text. Source: Prometheus exposition format 0.0.4.
    pub fn render(shards: &[std::sync::Arc<Metrics>]) -> String {
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, i64)]| {
            out.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
            for (labels, value) in samples {
                out.push_str(&format!("{name}{labels} {value}\n"));
            }
        };
        let sum = |pick: fn(&Metrics) -> &AtomicU64| -> Vec<(String, i64)> {
            vec![(String::new(), shards.iter().map(|shard| pick(shard).load(Relaxed) as i64).sum())]
        };
        let by_transport = |pick: &dyn Fn(&Metrics, usize) -> i64| -> Vec<(String, i64)> {
            let label = |transport: &Transport| format!("{{transport=\"{}\"}}", transport.name());
            let value = |transport: &Transport| shards.iter().map(|shard| pick(shard, *transport as usize)).sum();
            Transport::ALL.iter().map(|transport| (label(transport), value(transport))).collect()
        };
        family(
            "millrace_connections",
            "gauge",
            "Open readers by transport; polls count while they are held.",
            &by_transport(&|shard, i| shard.open[i].load(Relaxed)),
        );
        family(
            "millrace_connections_total",
            "counter",
            "Readers ever opened, by transport.",
            &by_transport(&|shard, i| shard.total[i].load(Relaxed) as i64),
        );
        let counter = "counter";
        family("millrace_publications_total", counter, "Publications accepted.", &sum(|m| &m.publications));
        family(
            "millrace_publications_refused_total",
            counter,
            "Publications refused.",
            &sum(|m| &m.publications_refused),
        );
        family("millrace_published_bytes_total", counter, "Payload bytes accepted.", &sum(|m| &m.published_bytes));
        family(
            "millrace_sent_bytes_total",
            counter,
            "Bytes written to streams and WebSockets.",
            &sum(|m| &m.sent_bytes),
        );
        family("millrace_received_bytes_total", counter, "Bytes read from WebSockets.", &sum(|m| &m.received_bytes));
        family("millrace_writes_total", counter, "Writes to streams and WebSockets.", &sum(|m| &m.writes));
        family("millrace_gaps_total", counter, "Gaps told to readers.", &sum(|m| &m.gaps));
        family("millrace_turns_total", counter, "Turns of the shard loops.", &sum(|m| &m.turns));
        family("millrace_http_requests_total", counter, "HTTP requests.", &sum(|m| &m.http_requests));
        family("millrace_http_errors_total", counter, "HTTP requests answered 4xx or 5xx.", &sum(|m| &m.http_errors));
        family("millrace_udp_received_total", counter, "Datagrams received.", &sum(|m| &m.udp_received));
        family(
            "millrace_udp_dropped_total",
            counter,
            "Datagrams dropped because they were malformed.",
            &sum(|m| &m.udp_dropped),
        );
        family("millrace_log_bytes", "gauge", "Memory of the logs that readers are behind in.", &sum(|m| &m.log_bytes));
        family(
            "millrace_out_bytes",
            "gauge",
            "Memory of bytes waiting for single connections.",
            &sum(|m| &m.out_bytes),
        );
        family("millrace_channels_open", "gauge", "Channels with a reader, summed over shards.", &sum(|m| &m.channels));
        out
    }
}
