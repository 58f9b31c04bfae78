//! The client side of a protocol on one connection, without the socket: bytes in, bytes out.

use std::net::{IpAddr, SocketAddr};

use super::source::loopback_source;

/// Client protocol on one connection. A state machine without sockets or clocks.
pub trait Dialect: Send {
    /// Appends the first bytes of a new connection. Returns true if the connection is ready at once; no
    /// [`Event::Ready`] follows then.
    /// Called again after the connection broke. The dialect then resumes at its last position, if the protocol can.
    fn open(&mut self, out: &mut Vec<u8>) -> bool;

    /// Processes received bytes and returns how many were consumed. The other bytes are passed again, together with
    /// the next ones. Appends immediate replies (a pong, the next poll) to `out`.
    ///
    /// Errors: the server refused the client or violated the protocol. The connection is closed.
    fn feed(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize>;

    /// Appends a publication. Call it only for a role that publishes, when the connection is ready and
    /// [`Dialect::can_publish`].
    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>);

    /// Returns false while too many publications are unanswered and the next one must wait.
    fn can_publish(&self) -> bool {
        true
    }

    /// Returns the time at which [`Dialect::wake`] must be called, on the clock of [`Dialect::feed`].
    fn wake_at_ns(&self) -> Option<u64> {
        None
    }

    /// Handles the timer of [`Dialect::wake_at_ns`], for example by sending the next poll.
    fn wake(&mut self, _now_ns: u64, _out: &mut Vec<u8>) {}

    /// Appends plain bytes from an outer layer in the form in which this connection sends them, for example
    /// encrypted.
    fn wrap(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(plain);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The connection is ready: from now on it receives every publication and accepts publications.
    Ready,
    Message(&'a [u8]),
    /// The server accepted a publication.
    Accepted,
    /// The server refused a publication.
    Refused,
    /// The server reported that messages are missing.
    Gap,
    /// The server ended this connection. The client must connect again.
    Closed,
    /// The connection ends, and the client continues with UDP datagrams to and from this address. Each datagram is
    /// passed whole to `feed`, and sent with [`append_datagram`].
    Datagrams(SocketAddr),
}

/// Appends a datagram to the output, after its length as 16 bits.
pub fn append_datagram(datagram: &[u8], out: &mut Vec<u8>) {
    let length = u16::try_from(datagram.len()).expect("a datagram is no longer");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(datagram);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Subscriber,
    Publisher,
    /// Publishes and subscribes on one connection.
    Both,
}

impl Role {
    pub fn subscribes(self) -> bool {
        self != Role::Publisher
    }

    pub fn publishes(self) -> bool {
        self != Role::Subscriber
    }
}

/// Target of the load: a server with one of its transports.
pub trait LoadTarget: Sync {
    fn address(&self) -> SocketAddr;

    /// Returns the address for connections that only publish.
    fn publish_address(&self) -> SocketAddr {
        self.address()
    }

    /// Returns the source address of connection `number` of the generator to `address`; `None`: the kernel chooses.
    fn source(&self, address: SocketAddr, number: usize) -> Option<IpAddr> {
        loopback_source(address, number)
    }

    /// Returns true if one connection can be [`Role::Both`]. Otherwise a client that publishes needs a second
    /// connection.
    fn is_duplex(&self) -> bool;

    fn dialect(&self, role: Role, channel: &str) -> Box<dyn Dialect>;
}
