//! Reader of channels over any transport. It resumes at its last position after every disconnect: publications
//! arrive in order and at most once, and gaps are reported.
//!
//! - [`reconnect`]: connects and reconnects over any transport
//! - [`reader`]: the state of one connection
//! - [`websocket`], [`http`]: the transports
//! - [`past`]: a range of the history of one channel

mod cursors;
mod http;
/// Public only so that it can be fuzzed separately (`fuzz/`).
#[doc(hidden)]
pub mod lines;
mod message;
mod past;
mod reader;
mod reconnect;
mod websocket;

pub use message::{Gap, Message, Sink, SubscriptionError, Update};
pub use millrace_protocol::Transport;
pub use past::{Range, read_range};
pub use reader::{Options, TRANSPORTS, is_pattern};
pub use reconnect::read;
