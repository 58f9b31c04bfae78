mod network;

use std::{num::NonZeroU16, time::Duration};

use serde::{Deserialize, Serialize};

pub use network::{BadNetwork, Network};

/// Shortest heartbeat interval that a client may request. Each heartbeat costs one or two system calls.
const HEARTBEAT_MIN: Duration = Duration::from_secs(5);

/// Limits of connections and requests. All external input is subject to one of them. Unless a comment says
/// otherwise, 0 means no limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Maximum size of a publication in bytes, and of a WebSocket message over all its fragments.
    pub message_bytes_max: usize,
    /// Maximum size of a batch body in bytes.
    pub batch_bytes_max: usize,
    /// Maximum number of lines in a batch.
    pub batch_lines_max: usize,
    /// Timeout for the head of a request. An idle HTTP connection is closed after the same time.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// Timeout for the body of a request.
    #[serde(with = "humantime_serde")]
    pub body_timeout: Duration,
    /// Maximum duration of a long poll.
    #[serde(with = "humantime_serde")]
    pub hold_max: Duration,
    /// Idle time after which the server sends a heartbeat or a ping.
    #[serde(with = "humantime_serde")]
    pub heartbeat: Duration,
    /// Maximum heartbeat interval that a client may request.
    #[serde(with = "humantime_serde")]
    pub heartbeat_max: Duration,
    /// A WebSocket that answers no ping for this long is closed.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// Maximum number of channels and patterns per connection.
    pub subscriptions_max: usize,
    /// Maximum bytes of frames kept per channel and encoding for slow readers. A reader further behind reads from
    /// history.
    pub log_bytes_max: usize,
    /// Maximum bytes of frames kept for all slow readers, over all channels, encodings and shards.
    pub logs_bytes_max: usize,
    /// Maximum number of connections of any kind. 0: as many as the limit of file descriptors allows.
    pub connections_max: usize,
    /// Maximum number of connections per address (IPv6: per /64).
    pub connections_per_address_max: usize,
    /// Maximum number of readers per subject.
    pub connections_per_subject_max: usize,
    /// Maximum number of new connections per second, over all addresses. The burst is ten times as large.
    pub connects_per_s: u64,
    /// Maximum number of new connections per second and address. The burst is ten times as large.
    pub connects_per_address_per_s: u64,
    /// Networks, such as those of load balancers, whose connections count only toward `connections_max`.
    pub exempt: Vec<Network>,
    /// Maximum number of requests per HTTP connection. The server closes the connection after the last one.
    pub requests_per_connection_max: u64,
    /// Maximum number of publications per second and connection.
    pub publishes_per_s: u64,
    /// Maximum bytes of publications per second and connection.
    pub publish_bytes_per_s: u64,
    /// Maximum number of publications per second and subject, over all its connections.
    pub subject_publishes_per_s: u64,
    /// Maximum bytes of publications per second and subject, over all its connections.
    pub subject_publish_bytes_per_s: u64,
    /// Maximum number of messages per second read from one WebSocket, including pings and commands of any kind. The
    /// server reads from a faster client more slowly.
    pub messages_per_s: u64,
    /// Maximum number of datagrams per second processed from one address. Further datagrams are dropped.
    pub datagrams_per_s: u64,
    /// Maximum number of fragments of one WebSocket message.
    pub fragments_max: u32,
    /// Maximum ratio of the decompressed to the compressed size of a WebSocket message.
    pub inflate_ratio_max: usize,
    /// Maximum bytes queued for all clients together, including incomplete bodies and messages received from them.
    /// 0: an eighth of `memory_bytes_max`.
    pub pending_bytes_max: usize,
    /// A client that reads nothing of a response for this long is disconnected.
    #[serde(with = "humantime_serde")]
    pub write_timeout: Duration,
    /// Maximum number of distinct patterns with subscribers on a node.
    pub patterns_max: usize,
    /// Memory limit of the whole process. 0: three quarters of the memory of the machine or the container.
    pub memory_bytes_max: usize,
    /// Enables compression of WebSocket messages (permessage-deflate) for clients that offer it.
    pub compression: bool,
    /// Origins whose pages may use this server from a browser, such as `https://app.example`; `*` for all. The
    /// server's own origin is always allowed. If the list is empty, a server on loopback allows pages of all
    /// loopback origins.
    pub allowed_origins: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            message_bytes_max: 1 << 20,
            batch_bytes_max: 8 << 20,
            batch_lines_max: 1000,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            hold_max: Duration::from_secs(60),
            heartbeat: Duration::from_secs(25),
            heartbeat_max: Duration::from_secs(600),
            grace: Duration::from_secs(10),
            subscriptions_max: 1000,
            log_bytes_max: 4 << 20,
            logs_bytes_max: 256 << 20,
            connections_max: 0,
            connections_per_address_max: 10_000,
            connections_per_subject_max: 10_000,
            connects_per_s: 10_000,
            connects_per_address_per_s: 500,
            exempt: ["127.0.0.0/8", "::1/128"].map(|network| network.parse().expect("a network")).into(),
            requests_per_connection_max: 1_000_000,
            publishes_per_s: 0,
            publish_bytes_per_s: 0,
            subject_publishes_per_s: 0,
            subject_publish_bytes_per_s: 0,
            messages_per_s: 0,
            datagrams_per_s: 5000,
            fragments_max: 131_072,
            inflate_ratio_max: 200,
            pending_bytes_max: 0,
            write_timeout: Duration::from_secs(30),
            patterns_max: 10_000,
            memory_bytes_max: 0,
            compression: false,
            allowed_origins: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the maximum number of bytes queued for all clients together.
    pub fn pending_bytes_max(&self) -> usize {
        match (self.pending_bytes_max, self.memory_bytes_max) {
            (0, 0) => usize::MAX,
            (0, memory) => memory / 8,
            (own, _) => own,
        }
    }

    /// Returns the heartbeat interval granted to a client that requests its own, in seconds. Returns `None` if the
    /// client requests none.
    pub fn heartbeat_s(&self, asked: Option<Duration>) -> Option<NonZeroU16> {
        let least = HEARTBEAT_MIN.min(self.heartbeat);
        let granted = asked?.clamp(least, self.heartbeat_max.max(least));
        Some(NonZeroU16::new(granted.as_secs().min(u16::MAX.into()) as u16).unwrap_or(NonZeroU16::MIN))
    }

    /// Returns the maximum time for which a client of a stream may leave sent bytes unacknowledged: a heartbeat
    /// interval, its own or the default, plus the grace of a WebSocket's pong.
    pub fn unacknowledged_max(&self, asked: Option<Duration>) -> Duration {
        let own = self.heartbeat_s(asked).map(|seconds| Duration::from_secs(seconds.get().into()));
        own.unwrap_or(self.heartbeat) + self.grace
    }

    /// Returns the limits of all hubs of a node. [`millrace_node::Shard::new`] gives each shard its share of the
    /// limits that apply to all shards together.
    pub fn hub(&self) -> millrace_delivery::Config {
        millrace_delivery::Config {
            log_bytes_max: self.log_bytes_max,
            logs_bytes_max: self.logs_bytes_max,
            subscriptions_max: self.subscriptions_max,
            heartbeat_s: seconds(self.heartbeat),
            grace_s: seconds(self.grace),
        }
    }
}

/// Converts a duration to whole seconds, at least one.
fn seconds(duration: Duration) -> u32 {
    duration.as_secs().clamp(1, u64::from(u32::MAX / 16)) as u32
}
