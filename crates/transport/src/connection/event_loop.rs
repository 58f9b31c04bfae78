//! The event loop of a shard: waits for its stream sockets, reads them in turns, and passes what arrives to a
//! [`Handler`].

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet, VecDeque},
    future::poll_fn,
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    rc::Rc,
    time::Duration,
};

use bytes::BytesMut;
use millrace_delivery::{ConnId, Wire};
use millrace_node::Metrics;
use millrace_protocol::{Transport, websocket::CloseFrame};
use rustix::{
    event::epoll::{self, Event, EventFlags},
    io::Errno,
    net::RecvFlags,
};
use tokio::io::unix::AsyncFd;

use super::{ConnectionProtocol, ConnectionTimers, connection_id, send_text};
use crate::{
    Shard,
    admission::{Admission, hooks::HookClient, limits::Direction},
    tls::Received,
};

/// Maximum bytes per read of one connection. This limit is also the back-pressure on publishers.
const READ_BYTES: usize = 64 * 1024;
/// Maximum bytes per read of a session, and of a bare WebSocket for whose publications the app's back end is asked,
/// unless it is in the middle of a message. A command of a few bytes can cost as much as a publication of many bytes.
const READ_COMMANDS_BYTES: usize = 4 * 1024;
/// Maximum bytes per read of an HTTP/1.1 connection. A client with more requests than this is read in turns, too.
const READ_REQUESTS_BYTES: usize = 16 * 1024;
/// Maximum number of events per epoll call.
const EVENTS: usize = 1024;
/// Number of turns before the loop yields to other tasks.
const TURNS: usize = 4;
/// Bytes read from all connections before the loop yields to other tasks. A full read counts as `READ_BYTES` for
/// every kind of connection.
const TURN_BYTES: usize = 4 * READ_BYTES;
/// Cost of ending one subscription, expressed in bytes read.
const ENDED_BYTES: usize = 1024;
/// Maximum bytes queued for a connection while the server still reads from it. A client that does not read its
/// replies cannot cause more of them.
pub(crate) const OUT_BYTES_MAX: usize = 64 * 1024;
/// Interval of the check whether readers are still served late. Meanwhile their publishers are not read.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of these checks. A paused publisher's pongs are not read either, so the whole pause must be far
/// below any grace period.
const PAUSES_MAX: u32 = 40;

/// Protocols on the connections of an event loop.
pub trait Handler {
    /// Handles bytes received from a connection.
    fn received(&self, id: ConnId, bytes: &mut [u8]);

    /// Handles room in the send buffer of a connection, after queued bytes have been written.
    fn writable(&self, id: ConnId);
}

/// Event loop for the connections of one shard: an epoll descriptor, which itself is one event source of the shard's
/// runtime.
pub struct EventLoop {
    shard: Rc<Shard>,
    admission: Rc<Admission>,
    epoll: Rc<OwnedFd>,
    /// Read buffer shared by all connections, so that an idle connection needs none.
    scratch: RefCell<Vec<u8>>,
    /// Decrypted bytes of the current TLS read, shared for the same reason.
    plain: RefCell<BytesMut>,
    /// Bytes read in this turn, plus other work in equivalent bytes.
    read_bytes: Cell<usize>,
    /// Publishers that are not read because readers are served late.
    paused: RefCell<HashSet<ConnId>>,
    /// Connections that are not read because they send too fast, with the end of each pause.
    pub(super) slowed: RefCell<HashMap<ConnId, tokio::time::Instant>>,
    /// Pongs for the pings of one read. They are sent together.
    pub(crate) pongs: RefCell<Vec<u8>>,
    pub(crate) timers: ConnectionTimers,
}

struct Source(Rc<OwnedFd>);

impl AsRawFd for Source {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl EventLoop {
    pub fn new(shard: Rc<Shard>, admission: Rc<Admission>) -> Rc<Self> {
        let epoll = shard.sockets().epoll();
        let scratch = RefCell::new(vec![0; READ_BYTES]);
        let (plain, read_bytes, paused, slowed, pongs, timers) = Default::default();
        Rc::new(Self { shard, admission, epoll, scratch, plain, read_bytes, paused, slowed, pongs, timers })
    }

    /// Runs the event loop until the task is dropped.
    ///
    /// Errors: the runtime cannot watch the epoll descriptor.
    pub async fn run(self: Rc<Self>, handler: &impl Handler) -> io::Result<()> {
        // SAFETY: `Source` shares ownership of the descriptor, so the descriptor stays open and the same while
        // `source` lives.
        let source = unsafe { AsyncFd::register(Source(self.epoll.clone())) }?;
        let mut events = Vec::with_capacity(EVENTS);
        let mut queue = VecDeque::with_capacity(EVENTS);
        loop {
            let mut ready = poll_fn(|cx| source.poll_read_ready(cx)).await?;
            // The runtime and the sockets are edge-triggered. After all ready events have been taken, a later event
            // is a new edge.
            let mut emptied = false;
            // End of the last turn, which saves a read of the clock.
            let mut now = None;
            for _ in 0..TURNS {
                emptied = self.take_events(&mut events)?;
                if events.is_empty() {
                    break;
                }
                self.expect(&events);
                self.shard.attend(now);
                queue.extend(events.drain(..));
                let mut handled = 0;
                while let Some(event) = queue.pop_front() {
                    handled += 1;
                    self.handle(id_of(&event), event.flags, handler);
                    if self.read_bytes.get() > TURN_BYTES {
                        // Connections that send much must not delay the others.
                        self.read_bytes.set(0);
                        self.shard.turn();
                        self.shard.leave();
                        tokio::task::yield_now().await;
                        self.shard.attend(None);
                        if handled < EVENTS {
                            emptied &= self.queue_new_events(&mut queue, &mut events, handler)?;
                        }
                    }
                }
                self.read_bytes.set(0);
                // Everything published in this turn is sent with one write per reader.
                now = Some(self.shard.turn());
                self.shard.leave();
                // After several events, more have probably arrived. Calling epoll again is cheaper than a round
                // through the runtime.
                if emptied && handled == 1 {
                    break;
                }
            }
            if emptied {
                ready.clear_ready();
            } else {
                // The readiness flag stays set, so the loop continues after other tasks have run.
                drop(ready);
                tokio::task::yield_now().await;
            }
        }
    }

    /// Takes the ready events, at most [`EVENTS`], without waiting. Returns false if more events may be ready.
    ///
    /// Errors: epoll fails.
    fn take_events(&self, events: &mut Vec<Event>) -> io::Result<bool> {
        events.clear();
        match epoll::wait(&*self.epoll, rustix::buffer::spare_capacity(events), Some(&Default::default())) {
            Ok(_) | Err(Errno::INTR) => Ok(events.len() < EVENTS),
            Err(error) => Err(error.into()),
        }
    }

    /// Queues the events that arrived while others were handled. HTTP/1.1 requests are answered at once, because a
    /// poll must not wait behind sessions that send many commands. Returns false if more events may be ready.
    ///
    /// Errors: epoll fails.
    fn queue_new_events(
        self: &Rc<Self>,
        queue: &mut VecDeque<Event>,
        events: &mut Vec<Event>,
        handler: &impl Handler,
    ) -> io::Result<bool> {
        let emptied = self.take_events(events)?;
        for event in events.drain(..) {
            let is_http = self.shard.sockets().http(id_of(&event)).is_some();
            match is_http {
                true => self.handle(id_of(&event), event.flags, handler),
                false => queue.push_back(event),
            }
        }
        Ok(emptied)
    }

    /// Enables or disables reads from a connection. A connection is not read while commands are queued, its client
    /// does not read its replies, or the client sends more than can be served.
    pub(crate) fn watch(&self, id: ConnId) {
        self.shard.with(|hub, sockets| {
            let Some(commands) = sockets.commands(id) else { return };
            let busy =
                commands.is_some() || self.paused.borrow().contains(&id) || self.slowed.borrow().contains_key(&id);
            let full = sockets.http(id).is_some_and(|http| http.is_full());
            sockets.watch(id, !busy && !full && hub.out_bytes(id) <= OUT_BYTES_MAX);
        });
    }

    /// Prefetches the connections of all events together.
    fn expect(&self, events: &[Event]) {
        let sockets = self.shard.sockets();
        events.iter().for_each(|event| sockets.expect(event.data.u64() as u32));
    }

    fn handle(self: &Rc<Self>, id: ConnId, flags: EventFlags, handler: &impl Handler) {
        let shard = &self.shard;
        if flags.contains(EventFlags::OUT) {
            shard.with(|hub, sockets| {
                let epoll = sockets.epoll();
                let Some(socket) = sockets.socket(id) else { return };
                if socket.unblocked(id, &epoll) {
                    hub.writable(id, sockets);
                }
            });
            self.update_pending_bytes(id, Direction::Out);
            handler.writable(id);
            self.watch(id);
        }
        let ends = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let has_more = (ends || flags.contains(EventFlags::IN)) && self.read(id, handler);
        if has_more || ends {
            shard.sockets().rearm(id);
        }
    }

    /// Reads from a connection. Returns true if more bytes may be available.
    fn read(&self, id: ConnId, handler: &impl Handler) -> bool {
        let mut scratch = self.scratch.borrow_mut();
        let mut most = READ_BYTES;
        let received = {
            let mut sockets = self.shard.sockets();
            let Some(socket) = sockets.socket(id) else { return false };
            if socket.is_tls() {
                drop((sockets, scratch));
                return self.read_tls(id, handler);
            }
            match socket.protocol {
                ConnectionProtocol::Session if socket.decoder.buffered_bytes() == 0 => most = READ_COMMANDS_BYTES,
                ConnectionProtocol::Http(_) => most = READ_REQUESTS_BYTES,
                _ => {}
            }
            if let ConnectionProtocol::Bare { target: Some(target) } = &socket.protocol {
                self.shard.engine.expect(target.slot());
                // The publications of one read are queued while the app's back end is asked for them.
                if self.admission.may_delay(target.channel()) && socket.decoder.buffered_bytes() == 0 {
                    most = READ_COMMANDS_BYTES;
                }
            }
            rustix::net::recv(socket.fd.as_fd(), &mut scratch[..most], RecvFlags::DONTWAIT)
        };
        match received {
            Ok((1.., length)) => {
                Metrics::add(&self.shard.socket_metrics.received_bytes, length as u64);
                self.read_bytes.set(self.read_bytes.get() + length * (READ_BYTES / most));
                handler.received(id, &mut scratch[..length]);
                length == most
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Ok(_) | Err(_) => {
                self.remove(id);
                false
            }
        }
    }

    /// Reads like [`Self::read`], through TLS.
    fn read_tls(&self, id: ConnId, handler: &impl Handler) -> bool {
        let mut plain = self.plain.borrow_mut();
        plain.clear();
        let mut weight = 1;
        let received = {
            let mut sockets = self.shard.sockets();
            let Some(socket) = sockets.socket(id) else { return false };
            if matches!(socket.protocol, ConnectionProtocol::Session) {
                weight = READ_BYTES / READ_COMMANDS_BYTES;
            }
            socket.read_tls(id, &mut plain, &self.epoll)
        };
        if !plain.is_empty() {
            Metrics::add(&self.shard.socket_metrics.received_bytes, plain.len() as u64);
            self.read_bytes.set(self.read_bytes.get() + plain.len() * weight);
            handler.received(id, &mut plain);
        }
        match received {
            Ok(Received::All) => false,
            Ok(Received::More) => true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Ok(Received::End) | Err(_) => {
                self.remove(id);
                false
            }
        }
    }

    /// Removes a connection whose peer has disconnected.
    pub(crate) fn remove(&self, id: ConnId) {
        let ended = self.shard.with(|hub, sockets| {
            let ended = hub.disconnect(id);
            sockets.remove(id);
            ended
        });
        self.read_bytes.set(self.read_bytes.get() + ended * ENDED_BYTES);
    }

    /// Stops reading from a publisher for a moment, because the readers of its channel are served late. Its next
    /// messages then wait in the socket buffers, and soon in the publisher itself.
    pub(super) fn slow_down(self: &Rc<Self>, id: ConnId) {
        if !self.paused.borrow_mut().insert(id) {
            return;
        }
        Metrics::add(&self.shard.socket_metrics.publishers_paused, 1);
        self.watch(id);
        if self.paused.borrow().len() == 1 {
            tokio::task::spawn_local(self.clone().resume());
        }
    }

    /// Ends all pauses when no reader is served late any more, or after the maximum time.
    async fn resume(self: Rc<Self>) {
        for _ in 0..PAUSES_MAX {
            tokio::time::sleep(PAUSE).await;
            if !self.shard.is_node_congested() {
                break;
            }
        }
        let paused = std::mem::take(&mut *self.paused.borrow_mut());
        paused.into_iter().for_each(|id| self.watch(id));
    }

    /// Sends a text message.
    pub(crate) fn send_text(&self, id: ConnId, text: &str) {
        send_text(&self.shard, id, text);
    }

    pub(crate) fn shard(&self) -> &Rc<Shard> {
        &self.shard
    }

    pub(crate) fn admission(&self) -> &Rc<Admission> {
        &self.admission
    }

    pub(crate) fn close(&self, id: ConnId, close: CloseFrame) {
        self.close_with(id, close.code, close.reason);
    }

    /// Closes a connection like [`Self::close`], with a reason that is known only at runtime.
    pub(crate) fn close_with(&self, id: ConnId, code: u16, reason: &str) {
        self.shard.with(|hub, sockets| {
            let Some(encoding) = hub.encoding(id) else { return };
            let mut last = Vec::new();
            encoding.encode_close(&mut last, code, reason);
            hub.close(id, &last, sockets);
        });
    }

    /// Returns the client of a connection, for a question to the app's back end. The address of a data channel is not
    /// known here.
    pub(crate) fn client(&self, id: ConnId) -> HookClient {
        let connection = Some(connection_id(self.shard.id, id));
        let mut sockets = self.shard.sockets();
        let subject = sockets.grants.get(id).and_then(|caller| caller.grant.subject.clone());
        let forwarded = sockets.quotas(id).and_then(|quotas| quotas.client());
        let (transport, peer) = match sockets.socket(id) {
            Some(socket) => {
                let transport = match socket.protocol {
                    ConnectionProtocol::Bare { .. } => Transport::WebSocket,
                    ConnectionProtocol::Mqtt(_) => Transport::Mqtt,
                    _ => Transport::Session,
                };
                (transport, rustix::net::getpeername(&socket.fd).ok().flatten())
            }
            None => (Transport::DataChannel, None),
        };
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let address = forwarded.or(peer.map(|peer| peer.ip()));
        HookClient { subject, connection, transport: transport.name(), address }
    }
}

/// Returns the connection of an event.
fn id_of(event: &Event) -> ConnId {
    let token = event.data.u64();
    ConnId { slot: token as u32, generation: (token >> 32) as u32 }
}
