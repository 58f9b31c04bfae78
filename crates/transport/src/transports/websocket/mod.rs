//! WebSocket: the handshake over HTTP/1.1, then frames on the file descriptor in the shard's own event loop.
//!
//! - [`handshake`]: the checks before the `101` response
//! - [`connection`]: frames and messages after it
//! - [`publish_queue`]: publications for which the app's back end is asked
//!
//! Source: RFC 6455; docs/adr/0003, "Own the socket after the upgrade".

mod connection;
mod handshake;
mod publish_queue;

pub use connection::{adopt, received};
pub use handshake::{Upgrade, accept_channel, accept_other, accept_session};
