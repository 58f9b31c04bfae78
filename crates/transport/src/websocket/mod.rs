//! WebSocket: the handshake over HTTP/1.1, then frames on the bare descriptor in this shard's own event loop.
//!
//! - [`handshake`]: what is checked before `101`
//! - [`event_loop`]: reads descriptors, decodes frames, ends connections; writing is [`crate::sockets`]'
//! - [`pace`]: what one of them may take
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

/// How a WebSocket talks.
pub enum Talk {
    /// Payloads of one channel, both ways if its client may publish: that stays so as long as it is open.
    Bare { channel: ChannelName, place: Place, may_publish: bool, holder: Holder },
    /// Commands and pushes.
    Session,
    /// It is no WebSocket but an HTTP response that goes on: nothing more is expected from its client.
    Stream(Transport),
    /// It is no WebSocket but HTTP/1.1, between two requests or while a long poll waits.
    Http(Box<HttpConnection>),
}

impl Talk {
    /// The transport that the connection counts for as long as it is open; a long poll counts by itself while it waits.
    pub fn transport(&self) -> Option<Transport> {
        match self {
            Talk::Stream(transport) => Some(*transport),
            Talk::Bare { .. } | Talk::Session => Some(Transport::WebSocket),
            Talk::Http(_) => None,
        }
    }
}
