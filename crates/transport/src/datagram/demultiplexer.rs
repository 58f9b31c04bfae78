use std::{
    cell::RefCell,
    io::{self, ErrorKind},
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::Instant,
};

use tokio::{io::Interest, net::UdpSocket};

use super::{
    DatagramProtocol, DatagramSender, PortMetrics, Verdict,
    batch::{Arrivals, BATCH},
    framed::Outgoing,
};
use crate::{Shard, admission::limits::Limits};

/// Bounds of the work on a port.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// Maximum size of a received datagram, in bytes.
    pub datagram_bytes_max: usize,
    /// Maximum number of datagrams received before other tasks run.
    pub turn_datagrams_max: usize,
}

/// A datagram port with its protocols. Each datagram goes to the protocol that it belongs to.
///
/// All received datagrams are handled before data is sent, because acknowledgments make room for more data.
pub struct Demultiplexer {
    socket: Rc<UdpSocket>,
    sender: Rc<DatagramSender>,
    protocols: RefCell<Vec<Rc<dyn DatagramProtocol>>>,
    arrivals: RefCell<Arrivals>,
    limits: Arc<Limits>,
    bounds: Bounds,
}

impl Demultiplexer {
    /// Creates a port without protocols.
    ///
    /// Errors: the runtime cannot watch the socket.
    pub fn new(
        socket: std::net::UdpSocket,
        bounds: Bounds,
        limits: Arc<Limits>,
        metrics: Arc<dyn PortMetrics>,
    ) -> io::Result<Rc<Self>> {
        let is_ipv6 = socket.local_addr()?.is_ipv6();
        let socket = Rc::new(UdpSocket::from_std(socket)?);
        let sender = DatagramSender::new(socket.clone(), is_ipv6, metrics);
        let arrivals = RefCell::new(Arrivals::new(bounds.datagram_bytes_max));
        Ok(Rc::new(Self { socket, sender, protocols: RefCell::default(), arrivals, limits, bounds }))
    }

    pub fn sender(&self) -> Rc<DatagramSender> {
        self.sender.clone()
    }

    pub fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }

    pub fn datagram_bytes_max(&self) -> usize {
        self.bounds.datagram_bytes_max
    }

    /// Adds a protocol behind the protocols that were added before. Call it before [`Demultiplexer::run`].
    pub fn add(&self, protocol: Rc<dyn DatagramProtocol>) {
        self.protocols.borrow_mut().push(protocol);
    }

    /// Serves the port until the task is dropped. The shard delivers in each turn, between receiving and sending;
    /// `None`: no protocol of the port delivers through a hub.
    pub async fn run(self: Rc<Self>, shard: Option<Rc<Shard>>) {
        let protocols = self.protocols.borrow().clone();
        loop {
            let timeout = protocols.iter().filter_map(|protocol| protocol.timeout()).min();
            tokio::select! {
                biased;
                _ = self.socket.ready(Interest::READABLE) => {}
                () = self.sender.work.notified() => {}
                () = due(timeout) => {}
                _ = self.socket.ready(Interest::WRITABLE), if self.sender.is_blocked() => {}
            }
            self.turn(&protocols, shard.as_ref());
            tokio::task::yield_now().await;
        }
    }

    /// Runs one turn: receives datagrams, handles timeouts, then sends.
    fn turn(&self, protocols: &[Rc<dyn DatagramProtocol>], shard: Option<&Rc<Shard>>) {
        let handle_events = || protocols.iter().for_each(|protocol| protocol.handle_events());
        let mailbox = shard.map(|shard| shard.mailbox());
        mailbox.iter().for_each(|mailbox| mailbox.attend());
        let mut taken = 0;
        loop {
            let received = self.receive();
            handle_events();
            taken += received;
            if received < BATCH || taken >= self.bounds.turn_datagrams_max {
                break;
            }
        }
        let now = Instant::now();
        protocols.iter().for_each(|protocol| protocol.handle_timeouts(now));
        handle_events();
        shard.iter().for_each(|shard| shard.turn());
        mailbox.iter().for_each(|mailbox| mailbox.leave());
        let receive_all = || while self.receive() == BATCH {};
        protocols.iter().for_each(|protocol| protocol.flush(&receive_all));
        self.sender.flush();
        // A failed write may have removed peers.
        handle_events();
    }

    /// Receives up to one batch of datagrams and returns their number.
    fn receive(&self) -> usize {
        let mut arrivals = self.arrivals.borrow_mut();
        // Read the socket directly: the runtime may not have reported it as readable yet.
        let (taken, is_emptied) = match arrivals.receive(&*self.socket) {
            Ok(taken) => (taken, taken < BATCH),
            // Any other error is an ICMP error for an earlier datagram: its destination is unreachable. The peer's
            // timeout handles that.
            Err(error) => (0, error.kind() == ErrorKind::WouldBlock),
        };
        if is_emptied {
            // Clear the readiness, so that the runtime reports the next datagram.
            let _ = self.socket.try_io(Interest::READABLE, || Err::<(), _>(ErrorKind::WouldBlock.into()));
        }
        self.sender.metrics.received(taken as u64);
        let protocols = self.protocols.borrow();
        // Forward media first, and send it before the other datagrams are handled.
        for is_first in [true, false] {
            for (from, datagram) in arrivals.iter().take(taken) {
                if protocols.iter().any(|protocol| protocol.is_urgent(datagram)) == is_first {
                    self.dispatch(SocketAddr::new(from.ip().to_canonical(), from.port()), datagram);
                }
            }
            if is_first {
                self.sender.flush();
            }
        }
        taken
    }

    /// Registers a TCP stream for this remote address and returns its send queue. Returns `None` if a protocol or
    /// another stream already uses the address.
    pub(super) fn connect_stream(&self, from: SocketAddr) -> Option<Rc<Outgoing>> {
        if self.is_known(&from) { None } else { self.sender.connect_stream(from) }
    }

    pub(super) fn disconnect_stream(&self, from: SocketAddr) {
        self.sender.disconnect_stream(from);
    }

    /// Handles a datagram received over a stream. Returns true if it belongs to a peer and is valid.
    pub(super) fn take(&self, from: SocketAddr, datagram: &[u8]) -> bool {
        self.sender.metrics.received(1);
        self.sender.wake();
        self.dispatch(from, datagram)
    }

    fn is_known(&self, address: &SocketAddr) -> bool {
        self.protocols.borrow().iter().any(|protocol| protocol.knows(address))
    }

    /// Gives a datagram to its protocol, and counts it as dropped if it is invalid or no protocol claims it. Returns
    /// true if it is valid.
    fn dispatch(&self, from: SocketAddr, datagram: &[u8]) -> bool {
        let is_valid = (self.is_known(&from) || self.limits.take_datagram(from.ip())) && {
            let now = Instant::now();
            let protocols = self.protocols.borrow();
            let mut verdicts = protocols.iter().map(|protocol| protocol.handle_datagram(now, from, datagram));
            verdicts.find(|verdict| *verdict != Verdict::Unclaimed) == Some(Verdict::Valid)
        };
        self.sender.metrics.dropped(u64::from(!is_valid));
        is_valid
    }
}

/// Waits until the timeout. Without one it waits forever, and the runtime needs no timer.
async fn due(timeout: Option<Instant>) {
    match timeout {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
