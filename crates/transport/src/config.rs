use std::{num::NonZeroU16, time::Duration};

use serde::{Deserialize, Serialize};

use crate::limits::Network;

/// Shortest heartbeat that a client may ask for: each is a system call or two.
const HEARTBEAT_MIN: Duration = Duration::from_secs(5);

/// Limits of connections and requests. Whatever comes from outside meets one of these; 0 is no limit where a comment does not say otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Largest publication, in bytes; also of one WebSocket message over all its fragments.
    pub message_bytes_max: usize,
    /// Largest batch body, in bytes, and most lines in it.
    pub batch_bytes_max: usize,
    pub batch_lines_max: usize,
    /// Time for the head of a request to arrive; also how long an idle HTTP connection is kept.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// Time for the body of a request to arrive.
    #[serde(with = "humantime_serde")]
    pub body_timeout: Duration,
    /// Longest a long poll is held.
    #[serde(with = "humantime_serde")]
    pub hold_max: Duration,
    /// Silence after which a heartbeat or ping is sent.
    #[serde(with = "humantime_serde")]
    pub heartbeat: Duration,
    /// Longest that a client may ask for instead.
    #[serde(with = "humantime_serde")]
    pub heartbeat_max: Duration,
    /// A WebSocket that answers no ping for so long is closed.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// Most channels and patterns of one connection.
    pub subscriptions_max: usize,
    /// Most bytes of frames kept per channel and form for readers who are behind; further back they read history.
    pub log_bytes_max: usize,
    /// Most bytes of frames kept for all readers who are behind, over all channels, forms and shards.
    pub logs_bytes_max: usize,
    /// Most connections of any kind; 0: as many as descriptors allow.
    pub connections_max: usize,
    /// Most of one address (of IPv6: of one /64), and most readers of one subject.
    pub connections_per_address_max: usize,
    pub connections_per_subject_max: usize,
    /// New connections per second, of all addresses and of one; ten times as many at once.
    pub connects_per_s: u64,
    pub connects_per_address_per_s: u64,
    /// Networks whose addresses are not counted one by one, such as those of balancers.
    pub exempt: Vec<Network>,
    /// An HTTP connection is closed after so many requests.
    pub requests_per_connection_max: u64,
    /// Publications, and bytes of them, that one connection may publish per second.
    pub publishes_per_s: u64,
    pub publish_bytes_per_s: u64,
    /// The same for one subject, over all its connections.
    pub subject_publishes_per_s: u64,
    pub subject_publish_bytes_per_s: u64,
    /// Messages per second that are read from one WebSocket, pings and commands of any kind; beyond, it is read more slowly.
    pub messages_per_s: u64,
    /// Datagrams per second that are looked at from one address.
    pub datagrams_per_s: u64,
    /// Most fragments of one WebSocket message.
    pub fragments_max: u32,
    /// A compressed message is at most so many times as large as what came of it.
    pub inflate_ratio_max: usize,
    /// Bytes that may wait for all clients together, and for the rest of what they send; 0: an eighth of `memory_bytes_max`.
    pub pending_bytes_max: usize,
    /// A client that takes nothing of an answer for so long is cut off.
    #[serde(with = "humantime_serde")]
    pub write_timeout: Duration,
    /// Most different patterns that are listened to on a node.
    pub patterns_max: usize,
    /// Memory of the whole process; 0: three quarters of what the machine, or the container, has.
    pub memory_bytes_max: usize,
    /// WebSocket messages may be compressed (permessage-deflate), for clients that offer it.
    pub compression: bool,
    /// Origins whose pages may use this server from a browser, such as `https://app.example`; `*` for all. The server's
    /// own origin is always allowed. Empty: on loopback, pages of all loopback origins are allowed.
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
    /// Bytes that may wait for all clients together.
    pub fn pending_bytes_max(&self) -> usize {
        match (self.pending_bytes_max, self.memory_bytes_max) {
            (0, 0) => usize::MAX,
            (0, memory) => memory / 8,
            (own, _) => own,
        }
    }

    /// The heartbeat of a client that asks for one of its own, in seconds.
    pub fn heartbeat_s(&self, asked: Option<Duration>) -> Option<NonZeroU16> {
        let least = HEARTBEAT_MIN.min(self.heartbeat);
        let granted = asked?.clamp(least, self.heartbeat_max.max(least));
        Some(NonZeroU16::new(granted.as_secs().min(u16::MAX.into()) as u16).unwrap_or(NonZeroU16::MIN))
    }

    /// Bounds of all hubs of a node; [`millrace_node::Shard::new`] gives each its share of what they have in common.
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

/// Whole seconds, at least one.
fn seconds(duration: Duration) -> u32 {
    duration.as_secs().clamp(1, u64::from(u32::MAX / 16)) as u32
}
