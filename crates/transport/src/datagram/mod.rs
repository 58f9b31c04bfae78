//! Datagram ports: one UDP socket, and optionally a TCP listener on the same port number.
//!
//! - this file: the interface between a port and the protocols on it
//! - [`port`]: settings and bound sockets of a shard's port
//! - [`demultiplexer`]: receives datagrams and gives each to the protocol that it belongs to
//! - [`sender`]: sends the datagrams of all protocols of a port
//! - [`batch`]: receives and sends up to 64 datagrams with one system call
//! - [`framed`]: datagrams over TCP: the sockets, the send queue of a stream, and reading
//! - [`streams`]: ICE over TCP
//!
//! The protocols of a port sit side by side. None knows the others; each holds the sender of the port.

mod batch;
mod demultiplexer;
pub mod framed;
mod port;
mod relay;
mod sender;
mod streams;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

pub use batch::BATCH;
pub use demultiplexer::{Bounds, Demultiplexer};
pub use port::{Config, Port};
pub use relay::RelaySockets;
pub use sender::{DatagramSender, PortMetrics};
pub use streams::accept as accept_streams;

/// Maximum time from the start of a peer's connection until the peer has proved its identity.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// Silent peer timeout. A live client sends a consent check at least every few seconds. Source: RFC 7675, section 5.1:
/// 30 s.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Result of offering a datagram to a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The datagram does not belong to this protocol.
    Unclaimed,
    /// The datagram belongs to this protocol, but is not valid.
    Invalid,
    Valid,
}

/// A protocol on a datagram port. The port calls these methods while it handles one turn, and no method calls the port
/// back, except to send and through `receive` of [`DatagramProtocol::flush`].
pub trait DatagramProtocol {
    /// Returns true if this address belongs to an authenticated peer. Datagrams from all other addresses are subject to
    /// `limits.datagrams_per_s`.
    fn knows(&self, address: &SocketAddr) -> bool;

    /// Handles a datagram. The port offers it to its protocols in their order, until one claims it.
    fn handle_datagram(&self, now: Instant, from: SocketAddr, datagram: &[u8]) -> Verdict;

    /// Returns true if the port handles this datagram before the others of its batch.
    fn is_urgent(&self, _datagram: &[u8]) -> bool {
        false
    }

    /// Returns the deadline of the next [`DatagramProtocol::handle_timeouts`]; `None` if there is no timer.
    fn timeout(&self) -> Option<Instant>;

    fn handle_timeouts(&self, now: Instant);

    /// Handles the events since the last call. Called after each batch of datagrams, after timeouts, and after sending.
    fn handle_events(&self) {}

    /// Sends what was written since the last flush. Between parts of a long flush, `receive` handles the datagrams that
    /// have arrived.
    fn flush(&self, _receive: &dyn Fn()) {}
}
