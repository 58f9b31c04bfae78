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
    DatagramProtocol, DatagramSender, PortMetrics, RelaySockets, Verdict,
    batch::{Arrivals, BATCH},
    framed::Outgoing,
    relay::{Relay, is_of_connected_peer},
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
    /// `None` for a port that is not handed over in an upgrade.
    relay: Option<Relay>,
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
        relay: Option<RelaySockets>,
    ) -> io::Result<Rc<Self>> {
        let is_ipv6 = socket.local_addr()?.is_ipv6();
        let socket = Rc::new(UdpSocket::from_std(socket)?);
        let sender = DatagramSender::new(socket.clone(), is_ipv6, metrics);
        let arrivals = RefCell::new(Arrivals::new(bounds.datagram_bytes_max));
        let relay = relay.map(|relay| Relay::new(relay, bounds.datagram_bytes_max)).transpose()?;
        Ok(Rc::new(Self { socket, sender, protocols: RefCell::default(), arrivals, limits, bounds, relay }))
    }

    /// Returns true while datagrams may belong to peers of an old process.
    pub fn has_predecessor(&self) -> bool {
        self.relay.as_ref().is_some_and(Relay::has_predecessor)
    }

    /// Returns true once another process receives the datagrams of this port.
    fn is_handed_over(&self) -> bool {
        self.relay.as_ref().is_some_and(Relay::is_handed_over)
    }

    /// Completes once another process receives the datagrams of this port.
    pub async fn handed_over(&self) {
        match &self.relay {
            Some(relay) => relay.handed_over().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until another process has taken over the port, and a datagram may have been forwarded.
    async fn forwarded(&self) {
        match &self.relay {
            Some(relay) => relay.ready().await,
            None => std::future::pending().await,
        }
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
                _ = self.socket.ready(Interest::READABLE), if !self.is_handed_over() => {}
                () = self.forwarded() => {}
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
        shard.iter().for_each(|shard| shard.attend(None));
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
        shard.iter().for_each(|shard| {
            shard.turn();
            shard.leave();
        });
        let receive_all = || while self.receive() == BATCH {};
        protocols.iter().for_each(|protocol| protocol.flush(&receive_all));
        self.sender.flush();
        // A failed write may have removed peers.
        handle_events();
    }

    /// Receives up to one batch of datagrams and returns their number.
    fn receive(&self) -> usize {
        if let Some(relay) = self.relay.as_ref().filter(|relay| relay.is_handed_over()) {
            let received = relay.receive(BATCH, |from, datagram| _ = self.dispatch(from, datagram));
            self.sender.metrics.received(received as u64);
            return received;
        }
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
        let is_known = self.is_known(&from);
        let relay = self.relay.as_ref().filter(|relay| relay.has_predecessor());
        if let Some(relay) = relay.filter(|_| !is_known && is_of_connected_peer(datagram)) {
            // The old process has its own limits.
            return relay.forward(from, datagram);
        }
        let is_valid = (is_known || self.limits.take_datagram(from.ip())) && {
            let now = Instant::now();
            let protocols = self.protocols.borrow();
            let mut verdicts = protocols.iter().map(|protocol| protocol.handle_datagram(now, from, datagram));
            match verdicts.find(|verdict| *verdict != Verdict::Unclaimed) {
                Some(verdict) => verdict == Verdict::Valid,
                None => relay.is_some_and(|relay| relay.forward(from, datagram)),
            }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;
    use crate::Config;

    #[derive(Default)]
    struct Counts {
        received: AtomicU64,
        dropped: AtomicU64,
    }

    impl PortMetrics for Counts {
        fn received(&self, datagrams: u64) {
            self.received.fetch_add(datagrams, Relaxed);
        }

        fn dropped(&self, datagrams: u64) {
            self.dropped.fetch_add(datagrams, Relaxed);
        }

        fn streams(&self, _open: u64) {}
    }

    /// Claims the datagrams that begin with one of these letters. `!` after the letter makes a datagram invalid.
    struct Letters {
        letters: &'static str,
        is_urgent: bool,
        handled: Rc<RefCell<Vec<String>>>,
    }

    impl Letters {
        fn claims(&self, datagram: &[u8]) -> bool {
            datagram.first().is_some_and(|first| self.letters.as_bytes().contains(first))
        }
    }

    impl DatagramProtocol for Letters {
        fn knows(&self, _: &SocketAddr) -> bool {
            false
        }

        fn handle_datagram(&self, _: Instant, _: SocketAddr, datagram: &[u8]) -> Verdict {
            if !self.claims(datagram) {
                return Verdict::Unclaimed;
            }
            self.handled.borrow_mut().push(format!("{}: {}", self.letters, String::from_utf8_lossy(datagram)));
            if datagram.get(1) == Some(&b'!') { Verdict::Invalid } else { Verdict::Valid }
        }

        fn is_urgent(&self, datagram: &[u8]) -> bool {
            self.is_urgent && self.claims(datagram)
        }

        fn timeout(&self) -> Option<Instant> {
            None
        }

        fn handle_timeouts(&self, _: Instant) {}
    }

    #[tokio::test]
    async fn first_claiming_protocol_handles_a_datagram() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let (counts, bounds) = (Arc::<Counts>::default(), Bounds { datagram_bytes_max: 16, turn_datagrams_max: 64 });
        let port =
            Demultiplexer::new(socket, bounds, Limits::new(&Config::default(), 64), counts.clone(), None).unwrap();
        let handled = Rc::<RefCell<Vec<String>>>::default();
        for (letters, is_urgent) in [("ax", false), ("bx", true)] {
            port.add(Rc::new(Letters { letters, is_urgent, handled: handled.clone() }));
        }
        let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for datagram in ["a1", "c1", "x1", "a!", "b1"] {
            client.send_to(datagram.as_bytes(), address).unwrap();
        }
        assert_eq!(port.receive(), 5);
        // Urgent datagrams come first, and nothing reaches a second protocol.
        assert_eq!(*handled.borrow(), ["ax: x1", "bx: b1", "ax: a1", "ax: a!"].map(String::from));
        assert_eq!((counts.received.load(Relaxed), counts.dropped.load(Relaxed)), (5, 2));
        assert_eq!(port.receive(), 0);
    }
}
