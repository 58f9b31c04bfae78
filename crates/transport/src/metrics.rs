use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use millrace_node::{Family, Histogram, MetricKind, metrics::Value};
use millrace_protocol::Transport;

/// Counters of the sockets of one shard. Only the shard's own thread writes them; any thread may read them.
#[derive(Debug, Default)]
pub struct SocketMetrics {
    pub publishers_paused: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
    pub writes: AtomicU64,
    /// Messages on WebSockets and data channels.
    pub messages: AtomicU64,
    pub pings: AtomicU64,
    pub http_requests: AtomicU64,
    pub http_errors: AtomicU64,
    pub udp_received: AtomicU64,
    pub udp_dropped: AtomicU64,
    pub rtc_peers: AtomicU64,
    pub rtc_streams: AtomicU64,
    pub rtc_failed: AtomicU64,
    pub rtc_panicked: AtomicU64,
    pub rtc_received: AtomicU64,
    pub room_links: AtomicU64,
    pub room_link_bytes_per_s: AtomicU64,
    pub room_link_layers: AtomicU64,
    pub room_owner_changes: AtomicU64,
    pub rtc_dropped: AtomicU64,
    pub composite_frames: AtomicU64,
    pub composite_frames_skipped: AtomicU64,
    pub composite_units_dropped: AtomicU64,
    pub tls_handshakes: AtomicU64,
    pub tls_resumed: AtomicU64,
    pub tls_failed: AtomicU64,
    pub tls_refused: AtomicU64,
    pub memory_out: AtomicU64,
    pub memory_connections: AtomicU64,
    open: [AtomicI64; Transport::COUNTED.len()],
    total: [AtomicU64; Transport::COUNTED.len()],
    publish_to_write: [Histogram; Transport::COUNTED.len()],
}

impl SocketMetrics {
    /// Counts a reader that opened (`1`) or closed (`-1`) on this transport.
    pub fn opened(&self, transport: Transport, change: i64) {
        self.open[transport as usize].fetch_add(change, Relaxed);
        if change > 0 {
            self.total[transport as usize].fetch_add(change as u64, Relaxed);
        }
    }

    /// Returns the number of open readers on this transport.
    pub fn open(&self, transport: Transport) -> u64 {
        self.open[transport as usize].load(Relaxed).max(0) as u64
    }

    /// Returns the number of readers ever opened on this transport.
    pub fn total(&self, transport: Transport) -> u64 {
        self.total[transport as usize].load(Relaxed)
    }

    /// Counts writes of a turn to readers on this transport. `age` is the time since the oldest publication of the turn
    /// was accepted.
    pub fn written(&self, transport: Transport, age: Duration, writes: u64) {
        self.publish_to_write[transport as usize].add(age, writes);
    }

    /// Returns the ages of publications when they were written to readers on this transport.
    pub fn publish_to_write(&self, transport: Transport) -> &Histogram {
        &self.publish_to_write[transport as usize]
    }

    /// Returns the number of everything that clients have sent: messages, HTTP requests, and datagrams of devices.
    pub fn received(&self) -> u64 {
        [&self.messages, &self.http_requests, &self.udp_received].iter().map(|counter| counter.load(Relaxed)).sum()
    }

    /// Returns the number of open readers on all transports.
    pub fn open_readers(&self) -> usize {
        Transport::COUNTED.iter().map(|transport| self.open(*transport) as usize).sum()
    }

    /// Every metric that has no label. The server sums each over all shards.
    pub const FAMILIES: &[Family<SocketMetrics>] = &[
        Family {
            name: "millrace_publishers_paused_total",
            kind: MetricKind::Counter,
            help: "Pauses in reading from WebSockets that publish faster than their readers receive.",
            value: |m| &m.publishers_paused,
        },
        Family {
            name: "millrace_sent_bytes_total",
            kind: MetricKind::Counter,
            help: "Bytes written to streams and WebSockets.",
            value: |m| &m.sent_bytes,
        },
        Family {
            name: "millrace_received_bytes_total",
            kind: MetricKind::Counter,
            help: "Bytes read from WebSockets and data channels.",
            value: |m| &m.received_bytes,
        },
        Family {
            name: "millrace_writes_total",
            kind: MetricKind::Counter,
            help: "Writes to streams and WebSockets.",
            value: |m| &m.writes,
        },
        Family {
            name: "millrace_http_requests_total",
            kind: MetricKind::Counter,
            help: "HTTP requests.",
            value: |m| &m.http_requests,
        },
        Family {
            name: "millrace_http_errors_total",
            kind: MetricKind::Counter,
            help: "HTTP responses with a status of 4xx or 5xx.",
            value: |m| &m.http_errors,
        },
        Family {
            name: "millrace_udp_received_total",
            kind: MetricKind::Counter,
            help: "Datagrams received at server.udp.",
            value: |m| &m.udp_received,
        },
        Family {
            name: "millrace_udp_dropped_total",
            kind: MetricKind::Counter,
            help: "Datagrams received at server.udp and dropped because they were malformed or refused.",
            value: |m| &m.udp_dropped,
        },
        Family {
            name: "millrace_rtc_peers",
            kind: MetricKind::Gauge,
            help: "Peers of data channels, including peers that are still connecting.",
            value: |m| &m.rtc_peers,
        },
        Family {
            name: "millrace_rtc_streams",
            kind: MetricKind::Gauge,
            help: "TCP connections that carry WebRTC datagrams.",
            value: |m| &m.rtc_streams,
        },
        Family {
            name: "millrace_rtc_failed_total",
            kind: MetricKind::Counter,
            help: "Peers that ended before their data channel was open.",
            value: |m| &m.rtc_failed,
        },
        Family {
            name: "millrace_rtc_panicked_total",
            kind: MetricKind::Counter,
            help: "Peers that ended because the WebRTC library panicked.",
            value: |m| &m.rtc_panicked,
        },
        Family {
            name: "millrace_room_links",
            kind: MetricKind::Gauge,
            help: "Links between the SFUs of this node and those of other nodes.",
            value: |m| &m.room_links,
        },
        Family {
            name: "millrace_room_link_bytes_per_second",
            kind: MetricKind::Gauge,
            help: "Sum of the bandwidth estimates of all links to other nodes.",
            value: |m| &m.room_link_bytes_per_s,
        },
        Family {
            name: "millrace_room_link_layers",
            kind: MetricKind::Gauge,
            help: "Layers of tracks that this node sends over links to other nodes.",
            value: |m| &m.room_link_layers,
        },
        Family {
            name: "millrace_room_owner_changes_total",
            kind: MetricKind::Counter,
            help: "Times that this node has become the owner of a room over several nodes.",
            value: |m| &m.room_owner_changes,
        },
        Family {
            name: "millrace_composite_frames_total",
            kind: MetricKind::Counter,
            help: "Frames of composite videos, one for all viewers of a room.",
            value: |m| &m.composite_frames,
        },
        Family {
            name: "millrace_composite_frames_skipped_total",
            kind: MetricKind::Counter,
            help: "Frames of composite videos that were skipped because the compositor was late.",
            value: |m| &m.composite_frames_skipped,
        },
        Family {
            name: "millrace_composite_units_dropped_total",
            kind: MetricKind::Counter,
            help: "Frames of participants that no composite video shows: invalid, unsupported, or too many.",
            value: |m| &m.composite_units_dropped,
        },
        Family {
            name: "millrace_rtc_received_total",
            kind: MetricKind::Counter,
            help: "WebRTC datagrams received.",
            value: |m| &m.rtc_received,
        },
        Family {
            name: "millrace_rtc_dropped_total",
            kind: MetricKind::Counter,
            help: "WebRTC datagrams dropped: from an unknown sender, malformed, or too many from one address.",
            value: |m| &m.rtc_dropped,
        },
        Family {
            name: "millrace_tls_handshakes_total",
            kind: MetricKind::Counter,
            help: "Full TLS handshakes.",
            value: |m| &m.tls_handshakes,
        },
        Family {
            name: "millrace_tls_resumed_total",
            kind: MetricKind::Counter,
            help: "TLS handshakes that resumed an earlier session.",
            value: |m| &m.tls_resumed,
        },
        Family {
            name: "millrace_tls_failed_total",
            kind: MetricKind::Counter,
            help: "TLS handshakes that failed or exceeded tls.handshake_timeout.",
            value: |m| &m.tls_failed,
        },
        Family {
            name: "millrace_tls_refused_total",
            kind: MetricKind::Counter,
            help: "Connections closed because too many TLS handshakes were in progress.",
            value: |m| &m.tls_refused,
        },
    ];

    /// Kinds of `millrace_memory_bytes` that the sockets of a shard use.
    pub const MEMORY: &[(&str, Value<SocketMetrics>)] =
        &[("out", |m| &m.memory_out), ("connections", |m| &m.memory_connections)];
}
