//! WebSocket: the handshake over HTTP/1.1, then frames on the file descriptor in the shard's own event loop.
//!
//! - [`handshake`]: the checks before the `101` response
//! - [`event_loop`]: reads descriptors, decodes frames, closes connections; [`crate::sockets`] does the writing
//! - [`pace`]: limits of one connection
//! - [`crate::session`]: commands of `millrace.v1+json`
//!
//! Source: RFC 6455; docs/adr/0003, "Own the socket after the upgrade".

mod event_loop;
mod handshake;
mod pace;

pub use event_loop::EventLoop;
pub(crate) use event_loop::OUT_BYTES_MAX;
pub use handshake::{Upgrade, accept_channel, accept_session, is_upgrade, offered};

use millrace_engine::Place;
use millrace_node::Transport;
use millrace_protocol::{ChannelName, Holder};

use crate::keep_alive::HttpConnection;

/// Protocol of a connection on the event loop.
pub enum ConnectionProtocol {
    /// Bare payloads of one channel, in both directions if the client may publish. This permission does not change
    /// while the connection is open.
    Bare { channel: ChannelName, place: Place, may_publish: bool, holder: Holder },
    /// A session: commands, replies and pushes.
    Session,
    /// Not a WebSocket, but an HTTP response without an end. Bytes from the client are ignored.
    Stream(Transport),
    /// Not a WebSocket, but HTTP/1.1: between two requests, or while a long poll waits.
    Http(Box<HttpConnection>),
}

impl ConnectionProtocol {
    /// Returns the transport that the connection is counted for while it is open. A long poll counts itself while it
    /// waits.
    pub fn transport(&self) -> Option<Transport> {
        match self {
            ConnectionProtocol::Stream(transport) => Some(*transport),
            ConnectionProtocol::Bare { .. } | ConnectionProtocol::Session => Some(Transport::WebSocket),
            ConnectionProtocol::Http(_) => None,
        }
    }
}
