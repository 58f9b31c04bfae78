//! Connections of a shard: the only code that reads and writes stream sockets.
//!
//! - [`calls`]: remote procedure calls in progress
//! - [`event_loop`]: waits for sockets, reads them in turns, and passes what arrives to a [`Handler`]
//! - [`sockets`]: the endpoint behind each connection id; [`socket`]: one of them, the only place that writes
//! - [`linger`]: closes a connection after its peer has read the last bytes
//! - [`virtual_connection`]: a connection without a socket; [`response_stream`]: the body of a response over HTTP/2
//! - [`pace`]: quotas of one connection; a client that sends too fast is not read for a while
//! - [`protocol`]: what a connection on the event loop speaks
//! - [`http1`]: state of an HTTP/1.1 connection between two requests; [`timers`] has its timeouts
//! - [`mqtt`]: the link of an MQTT connection, and the sessions of all shards
//! - [`grants`]: the permissions of each connection; [`expiry`] closes connections whose token has ended

mod calls;
mod event_loop;
mod expiry;
mod grants;
mod http1;
mod linger;
pub(crate) mod mqtt;
mod pace;
mod protocol;
mod response_stream;
mod socket;
mod sockets;
mod timers;
mod virtual_connection;

use std::rc::Rc;

use millrace_delivery::ConnId;

pub(crate) use calls::{CALLS_MAX, Calls};
pub(crate) use event_loop::{EventLoop, Handler, OUT_BYTES_MAX};
pub(crate) use expiry::{end, end_expired, end_revoked};
pub(crate) use grants::Grants;
pub(crate) use http1::{Http1Connection, Http1State, HttpClient, UNREAD_BYTES_MAX, boxed};
pub(crate) use linger::linger;
pub(crate) use pace::{BarePublisher, SessionPublisher};
pub(crate) use protocol::ConnectionProtocol;
pub(crate) use response_stream::PipeBody;
pub use sockets::Sockets;
pub(crate) use timers::ConnectionTimers;
pub(crate) use virtual_connection::{CommandQueue, Queued, VirtualConnection};

use crate::Shard;

/// Returns the id of a connection for operators and the app's back end: `SHARD-SLOT-GENERATION`.
pub(crate) fn connection_id(shard: usize, id: ConnId) -> String {
    format!("{shard}-{}-{}", id.slot, id.generation)
}

/// Sends a text message in the encoding of its connection.
pub(crate) fn send_text(shard: &Rc<Shard>, id: ConnId, text: &str) {
    let bytes = encode_text(shard, id, text);
    shard.with(|hub, sockets| hub.send(id, &bytes, sockets));
}

/// Encodes a text message in the encoding of its connection. Returns nothing if the connection is closed.
pub(crate) fn encode_text(shard: &Rc<Shard>, id: ConnId, text: &str) -> Vec<u8> {
    let encoding = shard.with(|hub, _| hub.encoding(id));
    let mut out = Vec::with_capacity(text.len() + 10);
    if let Some(encoding) = encoding {
        encoding.encode_text(&mut out, text);
    }
    out
}
