//! Sockets. One channel URL, six ways to read it; each way is a file or folder.
//!
//! A transport decides nothing about delivery: it reads bytes, asks the [`millrace_node::Shard`], and gives its hub somewhere to write.
//! HTTP is hyper's; after an upgrade the descriptor leaves it for this crate's own event loop ([`websocket`]), inside the same thread.
//!
//! Read first: [`http::Context`] (what a request can reach), [`sockets`] (the only place that writes), [`TRANSPORTS`].

pub mod access;
pub mod admin;
mod carcare;
mod census;
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
pub use drain::{Drain, MOVE};
pub use limits::Limits;
pub use listener::{Listener, serve};
pub use millrace_rtc::is_contained;
pub use rooms::Config as RoomsConfig;
pub use sockets::Sockets;
pub use udp::bind as bind_udp;

/// A shard whose connections are real sockets.
pub type Shard = millrace_node::Shard<Sockets>;

/// Every transport that can read a channel, by the name used in metrics and tests.
pub const TRANSPORTS: &[millrace_node::Transport] = &millrace_node::Transport::ALL;
