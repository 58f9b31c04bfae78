//! Transports: client sockets and the protocols on them. A channel has one URL and can be read in six ways; each way
//! is a file or folder.
//!
//! A transport makes no delivery decisions. It reads bytes, calls the [`millrace_node::Shard`], and gives the hub a
//! connection to write to. hyper handles HTTP. After an upgrade the file descriptor leaves hyper for this crate's
//! own event loop ([`websocket`]), in the same thread.
//!
//! Read first: [`http::Context`] (everything that a request handler can use), [`sockets`] (the only place that
//! writes), [`TRANSPORTS`].

pub mod access;
pub mod admin;
mod carcare;
mod config;
mod data_channel;
mod drain;
mod framed;
pub mod http;
mod keep_alive;
pub mod limits;
mod listener;
mod long_polling;
pub mod media;
mod memory_meter;
mod polling;
mod publish;
mod range;
mod replay;
pub mod rooms;
mod session;
mod sockets;
mod sse;
mod stream;
mod ticks;
pub mod tls;
pub mod turn;
mod udp;
mod websocket;

pub use config::Config;
pub use data_channel::{Config as RtcConfig, Port as RtcPort};
pub use drain::{Drain, RECONNECT_GRACE};
pub use limits::Limits;
pub use listener::{Listener, serve};
pub use millrace_rtc::is_contained;
pub use rooms::Config as RoomsConfig;
pub use sockets::Sockets;
pub use udp::bind as bind_udp;

/// A shard whose connections are real sockets.
pub type Shard = millrace_node::Shard<Sockets>;

/// Every transport that can read a channel, with the name used in metrics and tests.
pub const TRANSPORTS: &[millrace_node::Transport] = &millrace_node::Transport::ALL;
