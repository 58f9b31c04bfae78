//! Datagrams between two processes that share a port while the binary is upgraded. The new process receives the
//! datagrams of all peers, and forwards those that belong to peers of the old one.

use std::{
    cell::RefCell,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::unix::net::UnixDatagram as BoundUnix,
};

use tokio::{io::Interest, net::UnixDatagram, sync::watch};

/// Bytes in front of a forwarded datagram: its source address, as IPv6, and port.
const SOURCE_BYTES: usize = 18;

/// The two ends of a relay. The old process keeps one, and passes the other to the new process.
pub struct RelaySockets {
    /// Receives what the next process forwards.
    pub incoming: BoundUnix,
    /// Sends to the process before this one, if there is one.
    pub predecessor: Option<BoundUnix>,
    /// True once the next process has taken over.
    pub handed_over: watch::Receiver<bool>,
}

impl RelaySockets {
    /// Creates the ends of a relay: that of this process, and that of the next one.
    ///
    /// Errors: the process has no descriptor left.
    pub fn pair() -> io::Result<(BoundUnix, BoundUnix)> {
        let (own, next) = BoundUnix::pair()?;
        own.set_nonblocking(true)?;
        next.set_nonblocking(true)?;
        Ok((own, next))
    }
}

/// Relay of a port in use.
pub struct Relay {
    incoming: UnixDatagram,
    predecessor: RefCell<Option<BoundUnix>>,
    handed_over: watch::Receiver<bool>,
    buffer: RefCell<Vec<u8>>,
}

impl Relay {
    /// Errors: the runtime cannot watch the socket.
    pub fn new(sockets: RelaySockets, datagram_bytes_max: usize) -> io::Result<Self> {
        let RelaySockets { incoming, predecessor, handed_over } = sockets;
        let (incoming, predecessor) = (UnixDatagram::from_std(incoming)?, RefCell::new(predecessor));
        let buffer = RefCell::new(vec![0; SOURCE_BYTES + datagram_bytes_max]);
        Ok(Self { incoming, predecessor, handed_over, buffer })
    }

    /// Returns true once the next process receives the datagrams of the port.
    pub fn is_handed_over(&self) -> bool {
        *self.handed_over.borrow()
    }

    /// Completes once the next process receives the datagrams of the port.
    pub async fn handed_over(&self) {
        if self.handed_over.clone().wait_for(|handed_over| *handed_over).await.is_err() {
            // The server ends.
            std::future::pending().await
        }
    }

    /// Waits until a datagram may have been forwarded.
    pub async fn ready(&self) {
        self.handed_over().await;
        let _ = self.incoming.ready(Interest::READABLE).await;
    }

    /// Handles the forwarded datagrams that have arrived, at most `max`. Returns their number.
    pub fn receive(&self, max: usize, mut handle: impl FnMut(SocketAddr, &[u8])) -> usize {
        let mut buffer = self.buffer.borrow_mut();
        for received in 0..max {
            let Ok(length) = self.incoming.try_recv(&mut buffer) else { return received };
            let Some((source, datagram)) = buffer[..length].split_first_chunk::<SOURCE_BYTES>() else { continue };
            let (ip, port) = source.split_at(16);
            let ip: [u8; 16] = ip.try_into().unwrap_or_default();
            let port = u16::from_be_bytes(port.try_into().unwrap_or_default());
            handle(SocketAddr::new(IpAddr::from(ip).to_canonical(), port), datagram);
        }
        max
    }

    pub fn has_predecessor(&self) -> bool {
        self.predecessor.borrow().is_some()
    }

    /// Forwards a datagram to the old process. Returns false if there is none, or it has no room.
    pub fn forward(&self, from: SocketAddr, datagram: &[u8]) -> bool {
        let mut predecessor = self.predecessor.borrow_mut();
        let Some(socket) = &*predecessor else { return false };
        let ip: Ipv6Addr = match from.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let forwarded = [&ip.octets(), &from.port().to_be_bytes()[..], datagram].concat();
        match socket.send(&forwarded) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => {
                // The old process has ended.
                *predecessor = None;
                false
            }
        }
    }
}

/// Returns true for a datagram that is no STUN request and therefore belongs to a peer that is already connected.
/// Source: RFC 7983, section 7.
pub fn is_of_connected_peer(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| *first > 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn forwarded_datagrams_keep_their_source() {
        let (own, next) = RelaySockets::pair().unwrap();
        let (handing, handed_over) = watch::channel(false);
        let relay = |incoming, predecessor| {
            Relay::new(RelaySockets { incoming, predecessor, handed_over: handed_over.clone() }, 100).unwrap()
        };
        let old = relay(own, None);
        let new = relay(RelaySockets::pair().unwrap().0, Some(next));
        let sources = ["192.0.2.7:9", "[2001:db8::7]:65535"].map(|source| source.parse::<SocketAddr>().unwrap());
        assert!(sources.iter().all(|source| new.forward(*source, b"hello")) && !old.forward(sources[0], b"x"));
        assert!(!old.is_handed_over());
        handing.send_replace(true);
        old.ready().await;
        let mut received = Vec::new();
        assert_eq!(old.receive(10, |from, datagram| received.push((from, datagram.to_vec()))), 2);
        assert_eq!(received, sources.map(|source| (source, b"hello".to_vec())));
        drop(old);
        assert!(!new.forward(sources[0], b"x") && !new.has_predecessor());
    }

    #[test]
    fn only_stun_requests_may_be_of_new_peers() {
        let of_connected = [&[20, 254][..], &[0x40, 0], &[0x80, 96]].map(is_of_connected_peer);
        assert_eq!((of_connected, is_of_connected_peer(&[0, 1]), is_of_connected_peer(&[])), ([true; 3], false, false));
    }
}
