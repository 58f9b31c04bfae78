use std::{cell::RefCell, net::SocketAddr, rc::Rc, time::Instant};

use millrace_delivery::ConnId;
use millrace_node::Metrics;
use millrace_protocol::{
    Encoding, Transport,
    websocket::{self, CloseFrame},
};
use millrace_rtc::{Event, Lane};

use super::{AdmittedSession, PeerId, Peers, endpoint::DataChannel, peers::PeerEvent};
use crate::{
    admission::limits::{ConnectionQuotas, Direction},
    connection::EventLoop,
    datagram::{BATCH, DatagramProtocol, Verdict},
    session,
};

/// Passes what peers send to their sessions. It is the protocol of the data channels on a datagram port.
pub struct Driver {
    event_loop: Rc<EventLoop>,
    peers: Rc<RefCell<Peers>>,
}

impl DatagramProtocol for Driver {
    fn knows(&self, address: &SocketAddr) -> bool {
        self.peers.borrow().knows(address)
    }

    fn handle_datagram(&self, now: Instant, from: SocketAddr, datagram: &[u8]) -> Verdict {
        self.peers.borrow_mut().handle_datagram(now, from, datagram)
    }

    fn timeout(&self) -> Option<Instant> {
        self.peers.borrow().timeout()
    }

    fn handle_timeouts(&self, now: Instant) {
        self.peers.borrow_mut().handle_timeouts(now);
    }

    fn handle_events(&self) {
        loop {
            let Some((peer, event)) = self.with_peers(Peers::poll_event) else { return };
            match event {
                PeerEvent::Event(Event::Open(lane)) => self.open(peer, lane),
                PeerEvent::Event(Event::Data(Lane::Session, data)) => self.read(peer, data),
                PeerEvent::Resume => self.read(peer, Vec::new()),
                PeerEvent::Writable(lane) => {
                    if let Some(id) = self.with_peers(|peers| peers.conn(peer, lane)) {
                        self.event_loop.shard().with(|hub, sockets| hub.writable(id, sockets));
                        if lane == Lane::Session {
                            self.event_loop.update_pending_bytes(id, Direction::Out);
                            session::resume_commands(&self.event_loop, id);
                            self.event_loop.watch(id);
                        }
                    }
                }
                PeerEvent::Gone(conns) => self.event_loop.shard().with(|hub, sockets| {
                    for id in conns.into_iter().flatten() {
                        hub.disconnect(id);
                        sockets.remove(id);
                    }
                }),
                PeerEvent::Event(Event::Closed) => self.with_peers(|peers| peers.remove(peer)),
                // Data on the other channel is ignored: it carries no commands.
                PeerEvent::Event(_) => {}
            }
        }
    }

    fn flush(&self, receive: &dyn Fn()) {
        let now = Instant::now();
        let dirty = self.with_peers(Peers::take_dirty);
        for (i, peer) in dirty.iter().enumerate() {
            if i > 0 && i.is_multiple_of(BATCH) {
                receive();
            }
            self.with_peers(|peers| peers.flush_peer(*peer, now));
        }
        self.with_peers(|peers| peers.reuse_dirty(dirty));
    }
}

impl Driver {
    pub fn new(event_loop: Rc<EventLoop>, peers: Rc<RefCell<Peers>>) -> Self {
        Self { event_loop, peers }
    }

    /// Runs `work` on the peers. It must not call the hub, which writes to peers.
    fn with_peers<T>(&self, work: impl FnOnce(&mut Peers) -> T) -> T {
        work(&mut self.peers.borrow_mut())
    }

    fn open(&self, peer: PeerId, lane: Lane) {
        let admitted = self.with_peers(|peers| peers.open(peer, lane));
        let Some(admitted) = admitted else { return self.open_latest(peer) };
        let AdmittedSession { caller, ticket, connection_slot, reader_slot } = admitted;
        let shard = self.event_loop.shard();
        let id = shard.with(|hub, sockets| {
            let id = hub.connect(Encoding::Lines);
            let quotas = ConnectionQuotas::new(connection_slot, reader_slot);
            sockets.add_virtual(id, self.endpoint(peer, Lane::Session), Some(quotas));
            sockets.set_caller(id, caller.clone(), Transport::DataChannel);
            id
        });
        self.with_peers(|peers| peers.connect(peer, Lane::Session, id));
        self.open_latest(peer);
        let event_loop = self.event_loop.clone();
        tokio::task::spawn_local(async move {
            // Received data stays unread until the session has begun.
            session::begin(&event_loop, id, &caller, ticket.as_deref(), None).await;
            event_loop.watch(id);
            event_loop.shard().turn();
        });
    }

    fn endpoint(&self, peer: PeerId, lane: Lane) -> Rc<DataChannel> {
        Rc::new(DataChannel { peers: self.peers.clone(), peer, lane })
    }

    /// Opens the unreliable channel's connection once both the session and the channel are open.
    fn open_latest(&self, peer: PeerId) {
        if self.with_peers(|peers| peers.wants_latest(peer)) {
            let id = self.event_loop.shard().with(|hub, sockets| {
                let id = hub.connect(Encoding::Lines);
                sockets.add_virtual(id, self.endpoint(peer, Lane::Latest), None);
                id
            });
            self.with_peers(|peers| peers.connect(peer, Lane::Latest, id));
        }
    }

    /// Handles data received on the session channel. Every whole line is a command.
    fn read(&self, peer: PeerId, data: Vec<u8>) {
        Metrics::add(&self.event_loop.shard().socket_metrics.received_bytes, data.len() as u64);
        // A session's envelope needs room around the largest payload, which may be base64.
        let max = self.event_loop.admission().config().message_bytes_max.max(1).saturating_mul(2);
        let (id, lines) = match self.with_peers(|peers| peers.take_lines(peer, data, max)) {
            Ok(Some(lines)) => lines,
            Ok(None) => return,
            Err(id) => return self.refuse(id, websocket::CLOSE_TOO_LARGE, websocket::TOO_LARGE),
        };
        let mut messages = 0;
        for line in lines.split(|byte| *byte == b'\n') {
            match std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)) {
                Ok("") => {}
                Ok(text) => {
                    messages += 1;
                    session::handle(&self.event_loop, id, text);
                }
                Err(_) => return self.refuse(id, websocket::CLOSE_NOT_UTF8, "a line is not UTF-8"),
            }
        }
        self.event_loop.update_pending_bytes(id, Direction::In);
        self.event_loop.update_pending_bytes(id, Direction::Out);
        self.event_loop.pace(id, messages);
    }

    fn refuse(&self, id: ConnId, code: u16, reason: &'static str) {
        let close = CloseFrame { code, reason };
        self.event_loop.admission().limits.count_close(close);
        self.event_loop.close(id, close);
    }
}
