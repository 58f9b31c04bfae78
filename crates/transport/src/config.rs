use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits of connections and requests. Whatever comes from outside meets one of these.
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
    /// A WebSocket that answers no ping for so long is closed.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// Most channels and patterns of one connection.
    pub subscriptions_max: usize,
    /// Most bytes of frames kept per channel and form for readers who are behind; further back they read history.
    pub log_bytes_max: usize,
    /// Most bytes of frames kept for all readers who are behind, over all channels, forms and shards.
    pub logs_bytes_max: usize,
    /// WebSocket messages may be compressed (permessage-deflate), for clients that offer it.
    pub compression: bool,
    /// Origins whose pages may use this server from a browser, such as `https://app.example`; `*` for all. Same origin always may.
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
            grace: Duration::from_secs(10),
            subscriptions_max: 1000,
            log_bytes_max: 4 << 20,
            logs_bytes_max: 256 << 20,
            compression: false,
            allowed_origins: Vec::new(),
        }
    }
}

impl Config {
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
