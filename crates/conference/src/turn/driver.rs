use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    io,
    net::SocketAddr,
    rc::{Rc, Weak},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use millrace_engine::LogRateLimit;
use millrace_turn::{Action, Client, Limits, Metrics, NoRelay, RelayId, Relays, Server, needs_allocation};
use tokio::{
    net::UdpSocket,
    sync::watch,
    task::{JoinHandle, spawn_local},
};

use super::{Settings, relays::Ports};
use millrace_transport::{
    datagram::{
        DatagramProtocol, DatagramSender, Demultiplexer, PortMetrics, Verdict,
        framed::{Outgoing, OverflowPolicy},
    },
    tls,
};

/// Maximum size of a UDP datagram, in bytes.
const DATAGRAM_BYTES_MAX: usize = 1 << 16;
/// Maximum number of datagrams received from one socket before other tasks run.
pub const DATAGRAMS_PER_TURN: usize = 64;
/// Interval of the check for expired allocations.
const TICK: Duration = Duration::from_secs(1);

/// Connects the TURN server with its sockets. Everything runs on one thread.
pub struct TurnDriver {
    server: RefCell<Server>,
    ports: RefCell<Ports>,
    relays: RefCell<HashMap<RelayId, Relay>>,
    streams: RefCell<HashMap<u64, Rc<Outgoing>>>,
    last_stream: Cell<u64>,
    sender: Rc<DatagramSender>,
    /// Scratch buffers for the last datagram from a peer, and for a response. Their content is not kept.
    buffer: RefCell<Vec<u8>>,
    answer: RefCell<Vec<u8>>,
    pub connection_limits: Arc<millrace_transport::Limits>,
    metrics: Arc<Metrics>,
    pub tls: Option<watch::Receiver<tls::Settings>>,
    pub write_timeout: Duration,
    next_tick: Cell<Instant>,
    started: Instant,
    started_ms: u64,
}

struct Relay {
    socket: Rc<UdpSocket>,
    task: JoinHandle<()>,
}

/// Opens relay sockets for the server.
struct Opener<'a>(&'a Rc<TurnDriver>);

impl TurnDriver {
    /// Creates the server.
    ///
    /// Errors: the system has no random numbers.
    pub fn new(limits: Limits, ports: Ports, sender: Rc<DatagramSender>, settings: Settings) -> io::Result<Rc<Self>> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        let server = Server::new(limits, settings.credentials, settings.metrics.clone(), seed);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Rc::new(Self {
            server: RefCell::new(server),
            ports: RefCell::new(ports),
            relays: RefCell::default(),
            streams: RefCell::default(),
            last_stream: Cell::default(),
            sender,
            next_tick: Cell::new(Instant::now()),
            buffer: RefCell::new(vec![0; DATAGRAM_BYTES_MAX]),
            answer: RefCell::default(),
            connection_limits: settings.connection_limits,
            metrics: settings.metrics,
            tls: settings.tls,
            write_timeout: settings.write_timeout,
            started: Instant::now(),
            started_ms: since.as_millis() as u64,
        }))
    }

    /// Handles a datagram, or one message of a stream.
    pub fn handle(self: &Rc<Self>, client: Client, message: &[u8]) {
        let mut answer = self.answer.borrow_mut();
        let mut server = self.server.borrow_mut();
        let action = server.handle(self.now_ms(), client, message, &mut Opener(self), &mut answer);
        self.close_relays(&mut server);
        drop(server);
        match action {
            Action::Nothing => {}
            Action::Answer => self.send(client, &answer, OverflowPolicy::Ends),
            Action::Relay { relay, peer, payload } => {
                let relays = self.relays.borrow();
                let sent = relays.get(&relay).map(|relay| relay.socket.try_send_to(payload, peer));
                if !matches!(sent, Some(Ok(_))) {
                    Metrics::add(&self.metrics.dropped, 1);
                }
            }
        }
    }

    pub fn is_known(&self, client: Client) -> bool {
        self.server.borrow().is_known(client)
    }

    fn handle_timeout(&self) {
        let mut server = self.server.borrow_mut();
        server.handle_timeout(self.now_ms());
        self.close_relays(&mut server);
    }

    /// Registers a new stream. Returns its id and its send queue.
    pub fn connect(&self, from: SocketAddr) -> (Client, Rc<Outgoing>) {
        let id = self.last_stream.get() + 1;
        self.last_stream.set(id);
        let outgoing = Rc::<Outgoing>::default();
        self.streams.borrow_mut().insert(id, outgoing.clone());
        (Client::Stream(id, from), outgoing)
    }

    pub fn disconnect(&self, client: Client) {
        if let Client::Stream(id, _) = client {
            self.streams.borrow_mut().remove(&id);
        }
        let mut server = self.server.borrow_mut();
        server.disconnect(client);
        self.close_relays(&mut server);
    }

    /// Closes all relays and streams.
    pub fn close(&self) {
        self.relays.borrow_mut().drain().for_each(|(_, relay)| relay.task.abort());
        self.streams.borrow().values().for_each(|outgoing| outgoing.end());
    }

    fn close_relays(&self, server: &mut Server) {
        while let Some(id) = server.poll_closed() {
            if let Some(relay) = self.relays.borrow_mut().remove(&id) {
                relay.task.abort();
            }
        }
    }

    fn send(&self, client: Client, bytes: &[u8], overflow: OverflowPolicy) {
        let is_sent = match client {
            Client::Datagram(to) => self.sender.try_send(to, bytes),
            Client::Stream(id, _) => {
                self.streams.borrow().get(&id).is_some_and(|outgoing| outgoing.push(&[bytes], overflow))
            }
        };
        if !is_sent {
            Metrics::add(&self.metrics.dropped, 1);
        }
    }

    /// Returns the time in milliseconds since 1970. Never goes back, even if the system clock is set.
    fn now_ms(&self) -> u64 {
        self.started_ms + self.started.elapsed().as_millis() as u64
    }
}

/// Protocol of the TURN server on its datagram port.
pub struct Protocol {
    pub driver: Rc<TurnDriver>,
    pub port: Weak<Demultiplexer>,
}

impl Protocol {
    /// Returns true if this request may concern an allocation of the process before this one.
    fn is_of_predecessor(&self, from: SocketAddr, datagram: &[u8]) -> bool {
        self.port.upgrade().is_some_and(|port| port.has_predecessor())
            && needs_allocation(datagram)
            && !self.driver.is_known(Client::Datagram(from))
    }
}

impl DatagramProtocol for Protocol {
    /// A client with an allocation is authenticated, and has its own rate limit.
    fn knows(&self, address: &SocketAddr) -> bool {
        self.driver.is_known(Client::Datagram(*address))
    }

    fn handle_datagram(&self, _now: Instant, from: SocketAddr, datagram: &[u8]) -> Verdict {
        if self.is_of_predecessor(from, datagram) {
            return Verdict::Unclaimed;
        }
        self.driver.handle(Client::Datagram(from), datagram);
        // The server counts invalid messages itself.
        Verdict::Valid
    }

    fn timeout(&self) -> Option<Instant> {
        Some(self.driver.next_tick.get())
    }

    fn handle_timeouts(&self, now: Instant) {
        if self.driver.next_tick.get() <= now {
            self.driver.next_tick.set(now + TICK);
            self.driver.handle_timeout();
        }
    }
}

/// Counts the datagrams of the port.
pub struct PortCounters(pub Arc<Metrics>);

impl PortMetrics for PortCounters {
    fn received(&self, _datagrams: u64) {}

    fn dropped(&self, datagrams: u64) {
        Metrics::add(&self.0.dropped, datagrams);
    }

    fn streams(&self, _open: u64) {}
}

impl Relays for Opener<'_> {
    fn open(&mut self, ids: &[RelayId], is_ipv6: bool, even: bool) -> Result<SocketAddr, NoRelay> {
        let driver = self.0;
        let (address, sockets) = driver.ports.borrow_mut().open(ids.len(), is_ipv6, even)?;
        let sockets: io::Result<Vec<_>> = sockets.into_iter().map(UdpSocket::from_std).collect();
        let sockets = sockets.map_err(|error| {
            static LOGGED: LogRateLimit = LogRateLimit::new();
            if LOGGED.is_due() {
                tracing::error!(%error, "cannot register a TURN relay socket with epoll");
            }
            NoRelay::Full
        })?;
        for (id, socket) in ids.iter().zip(sockets) {
            let socket = Rc::new(socket);
            let task = spawn_local(forward_from_peers(driver.clone(), *id, socket.clone()));
            driver.relays.borrow_mut().insert(*id, Relay { socket, task });
        }
        Ok(address)
    }
}

/// Forwards datagrams from peers to the client of a relay.
async fn forward_from_peers(driver: Rc<TurnDriver>, id: RelayId, socket: Rc<UdpSocket>) {
    loop {
        if socket.readable().await.is_err() {
            continue;
        }
        for _ in 0..DATAGRAMS_PER_TURN {
            let mut buffer = driver.buffer.borrow_mut();
            match socket.try_recv_from(&mut buffer) {
                Ok((length, peer)) => {
                    let mut out = driver.answer.borrow_mut();
                    let client =
                        driver.server.borrow_mut().handle_peer(driver.now_ms(), id, peer, &buffer[..length], &mut out);
                    if let Some(client) = client {
                        driver.send(client, &out, OverflowPolicy::Loses);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // An ICMP error for an earlier datagram: its destination is unreachable.
                Err(_) => {}
            }
        }
        tokio::task::yield_now().await;
    }
}
