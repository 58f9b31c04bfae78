//! Transports: client sockets and the protocols on them. A channel has one URL and can be read in six ways.
//!
//! A transport makes no delivery decisions. It reads bytes, calls the [`millrace_node::Shard`], and gives the hub a
//! connection to write to.
//!
//! The modules are layers: each may use those below it, and none above it. `tests/it/layers.rs` checks this.
//!
//! ```text
//!   admin, serve                       listeners, HTTP/1.1 and HTTP/2, drain
//!   route                              maps URLs to handlers
//!   transports, data_channel           WebSocket, MQTT, SSE, streaming, replay, data channels, datagrams of devices
//!   session                            commands and replies
//!   connection, datagram               stream sockets and their event loop; datagram ports and their demultiplexer
//!   polling                            requests that are answered once, from history
//!   admission                          who may do what, and how much of it; one decision for every publication
//!   http                               parsing and encoding of messages
//!   accept, config, ticks, tls
//! ```
//!
//! Read first: [`admission`], [`connection`], [`route`], [`TRANSPORTS`].

mod accept;
pub mod admin;
pub mod admission;
mod config;
mod connection;
pub mod data_channel;
pub mod datagram;
pub mod http;
mod metrics;
pub mod polling;
pub mod route;
mod serve;
mod session;
mod ticks;
pub mod tls;
mod transports;

pub use accept::cannot_accept;
pub use admission::{Admission, Drain, access, limits, limits::Limits};
pub use config::{BadNetwork, Config, Network};
pub use connection::{
    Sockets,
    mqtt::{Config as MqttConfig, Node as MqttNode},
};
pub use datagram::{Config as RtcConfig, Port as RtcPort};
pub use metrics::SocketMetrics;
pub use millrace_rtc::is_contained;
pub use route::{Arrival, Context, Door, Pages, Question, Routes, ShardPort};
pub use serve::{DatagramFormat, Listener, RECONNECT_GRACE, bind_udp, receive_datagrams, serve};

/// A shard whose connections are real sockets.
pub type Shard = millrace_node::Shard<Sockets>;

/// Every transport that can read a channel.
pub const TRANSPORTS: &[millrace_protocol::Transport] = &millrace_protocol::Transport::ALL;
