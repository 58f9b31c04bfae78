use std::{net::SocketAddr, rc::Rc};

use bytes::Bytes;
use millrace_link::{Flow, Packet};
use tokio::{net::UdpSocket, sync::OwnedSemaphorePermit};

/// IPv4 and TCP headers without options, and IPv4 and UDP headers.
const TCP_HEADER_BYTES: usize = 40;
const UDP_HEADER_BYTES: usize = 28;

/// Number of a connection of a lane.
pub type ConnectionId = u64;

/// A piece of a byte stream, or a datagram, on its way through the link.
#[derive(Clone)]
pub struct Unit {
    pub destination: Destination,
    /// Empty for a stream: the stream has ended.
    pub data: Bytes,
    /// Place in the window of the stream, free again when the unit has been written.
    pub permit: Option<Rc<OwnedSemaphorePermit>>,
}

#[derive(Clone)]
pub enum Destination {
    Stream(ConnectionId),
    /// A socket, and the address if the socket is not connected.
    Datagram(Rc<UdpSocket>, Option<SocketAddr>),
}

impl Packet for Unit {
    fn bytes(&self) -> usize {
        let header = match self.destination {
            Destination::Stream(_) => TCP_HEADER_BYTES,
            Destination::Datagram(..) => UDP_HEADER_BYTES,
        };
        header + self.data.len()
    }

    fn flow(&self) -> Option<Flow> {
        None
    }

    fn is_opening(&self) -> bool {
        false
    }

    fn corrupt(&mut self, _: usize) {}

    fn reset(&self) -> Option<Self> {
        None
    }
}
