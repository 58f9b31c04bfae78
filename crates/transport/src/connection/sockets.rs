//! The only place that writes to readers. The hub knows connections only by id. This module maps an id to a file
//! descriptor (WebSocket; SSE and NDJSON over HTTP/1.1), to the body of a hyper response (streams over HTTP/2), or
//! to a data channel of a peer. After a partial write, it notifies the hub when the connection is writable again.

use std::{
    cell::RefCell,
    io,
    ops::Range,
    os::fd::OwnedFd,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use millrace_delivery::{ConnId, Wire, prefetch};
use millrace_engine::LogRateLimit;
use millrace_node::{Metrics, Transport};
use millrace_protocol::session::Policy;
use millrace_rtc::Lane;
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    net::{RecvFlags, SendFlags, Shutdown},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{ConnectionProtocol, Grants, Http1Connection};
use crate::{
    Shard,
    admission::limits::{ConnectionQuotas, ReaderSlot},
    data_channel::{PeerId, Peers},
    session::Waiting,
    tls::{Received, Session},
};

/// Maximum bytes buffered in the body of a stream. When the buffer is full, the connection is blocked.
const PIPE_BYTES_MAX: usize = 16 * 1024;
/// Time that the peer of a closed WebSocket has to read the close frame and to disconnect.
const LINGER: Duration = Duration::from_secs(2);

/// Connections of one shard, for writing.
pub struct Sockets {
    epoll: Rc<OwnedFd>,
    endpoints: Vec<Option<Endpoint>>,
    /// Permissions of each connection.
    pub(crate) grants: Grants,
    /// Quotas in use by each connection. They are stored separately because they are seldom needed.
    members: Vec<Option<ConnectionQuotas>>,
    /// Data channels, if enabled.
    pub(crate) peers: Option<Box<Peers>>,
    metrics: Arc<Metrics>,
}

/// An endpoint fits into one cache line. Each message touches the endpoints of its publisher and its reader, which
/// are usually not in the cache.
const _: () = assert!(size_of::<Option<Endpoint>>() <= 64);

enum Endpoint {
    Socket(Socket),
    Pipe(u32, Rc<RefCell<Pipe>>),
    Peer(u32, PeerId, Lane),
}

/// A file descriptor, with the decoder state of the bytes read from it.
pub(crate) struct Socket {
    generation: u32,
    pub(crate) fd: OwnedFd,
    pub(crate) decoder: millrace_protocol::websocket::Decoder,
    pub(crate) talk: ConnectionProtocol,
    /// True if the client may send compressed messages.
    pub(crate) deflate: bool,
    /// Second in which the hub was last notified of bytes from the peer. One notification per second is enough.
    heard_s: u32,
    /// Queued commands. While this is `Some`, the connection is not read. Boxed, because it is rare and an endpoint
    /// must fit into one cache line.
    pub(crate) waiting: Option<Box<Waiting>>,
    /// Low bits of the epoll flags of this descriptor. `ET` is not included, because it is always set.
    watched: u16,
    pub(crate) tls: Option<Box<Session>>,
}

#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    blocked: bool,
    closed: bool,
    waker: Option<Waker>,
}

impl Sockets {
    /// Creates the connections of a shard. Errors: the kernel cannot create an epoll descriptor.
    pub fn new(metrics: Arc<Metrics>) -> io::Result<Self> {
        let epoll = Rc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let (endpoints, grants, members) = Default::default();
        Ok(Self { epoll, endpoints, grants, members, peers: None, metrics })
    }

    pub(crate) fn epoll(&self) -> Rc<OwnedFd> {
        self.epoll.clone()
    }

    pub(crate) fn socket(&mut self, id: ConnId) -> Option<&mut Socket> {
        match self.endpoints.get_mut(id.slot as usize) {
            Some(Some(Endpoint::Socket(socket))) if socket.generation == id.generation => Some(socket),
            _ => None,
        }
    }

    /// Adds a file descriptor. It is not read before [`Sockets::watch`] is called.
    pub(crate) fn add_socket(
        &mut self,
        id: ConnId,
        fd: OwnedFd,
        tls: Option<Box<Session>>,
        talk: ConnectionProtocol,
        deflate: bool,
        member: ConnectionQuotas,
    ) {
        count(&self.metrics, &talk, 1);
        let socket = Socket {
            generation: id.generation,
            fd,
            decoder: Default::default(),
            talk,
            deflate,
            heard_s: 0,
            waiting: None,
            watched: 0,
            tls,
        };
        self.put(id, Endpoint::Socket(socket));
        self.admit(id, member);
    }

    /// Registers a data channel as a connection. `member` is `Some` for the channel that carries the session.
    pub(crate) fn add_peer(&mut self, id: ConnId, peer: PeerId, lane: Lane, member: Option<ConnectionQuotas>) {
        self.put(id, Endpoint::Peer(id.generation, peer, lane));
        if let Some(member) = member {
            self.metrics.opened(Transport::DataChannel, 1);
            self.admit(id, member);
        }
    }

    /// Removes a connection and returns its descriptor and quotas. The descriptor is no longer watched.
    pub(crate) fn take_socket(&mut self, id: ConnId) -> Option<(Socket, ConnectionQuotas)> {
        self.socket(id)?;
        let Some(Endpoint::Socket(socket)) = self.endpoints.get_mut(id.slot as usize)?.take() else { return None };
        count(&self.metrics, &socket.talk, -1);
        if socket.watched != 0 {
            let _ = epoll::delete(&*self.epoll, &socket.fd);
        }
        let member = self.members.get_mut(id.slot as usize)?.take()?;
        Some((socket, member))
    }

    /// Returns the state of an HTTP/1.1 connection on the event loop.
    pub(crate) fn http(&mut self, id: ConnId) -> Option<&mut Http1Connection> {
        match &mut self.socket(id)?.talk {
            ConnectionProtocol::Http(http) => Some(http),
            _ => None,
        }
    }

    /// Returns true if bytes for this connection are queued outside the hub: the last TLS record, which the socket
    /// has not accepted completely.
    pub(crate) fn is_pending(&mut self, id: ConnId) -> bool {
        self.socket(id).is_some_and(|socket| socket.is_pending())
    }

    /// Returns the ids of the HTTP/1.1 connections that wait for a request.
    pub(crate) fn idle_http(&self) -> Vec<ConnId> {
        let idle = |(slot, endpoint): (usize, &Option<Endpoint>)| match endpoint {
            Some(Endpoint::Socket(Socket { generation, talk: ConnectionProtocol::Http(http), .. }))
                if http.is_idle() =>
            {
                Some(ConnId { slot: slot as u32, generation: *generation })
            }
            _ => None,
        };
        self.endpoints.iter().enumerate().filter_map(idle).collect()
    }

    fn admit(&mut self, id: ConnId, member: ConnectionQuotas) {
        let slot = id.slot as usize;
        if self.members.len() <= slot {
            self.members.resize_with(slot + 1, || None);
        }
        self.members[slot] = Some(member);
    }

    fn peer(&self, id: ConnId) -> Option<(PeerId, Lane)> {
        match self.endpoints.get(id.slot as usize) {
            Some(Some(Endpoint::Peer(generation, peer, lane))) if *generation == id.generation => Some((*peer, *lane)),
            _ => None,
        }
    }

    /// Returns the connection on which a session receives subscriptions with this policy: its own, or the separate
    /// lane for messages that may be lost.
    pub(crate) fn lane(&self, id: ConnId, policy: Policy) -> ConnId {
        match (policy, self.peer(id), &self.peers) {
            (Policy::Latest, Some((peer, Lane::Session)), Some(peers)) => peers.conn(peer, Lane::Latest).unwrap_or(id),
            _ => id,
        }
    }

    /// Returns true if the connection is the separate lane of a session.
    pub(crate) fn is_side(&self, id: ConnId) -> bool {
        matches!(self.peer(id), Some((_, Lane::Latest)))
    }

    /// Returns the queued commands of a session; `None` if the connection does not exist.
    pub(crate) fn waiting(&mut self, id: ConnId) -> Option<&mut Option<Box<Waiting>>> {
        match self.peer(id) {
            Some((peer, Lane::Session)) => self.peers.as_mut()?.waiting(peer),
            Some((_, Lane::Latest)) => None,
            None => Some(&mut self.socket(id)?.waiting),
        }
    }

    /// Returns the number of bytes that were read but not processed: an incomplete message, or requests that must
    /// wait.
    pub(crate) fn incoming_bytes(&mut self, id: ConnId) -> usize {
        match (self.peer(id), &self.peers) {
            (Some((peer, _)), Some(peers)) => peers.incoming_bytes(peer),
            _ => self.socket(id).map_or(0, |socket| match &socket.talk {
                ConnectionProtocol::Http(http) => http.unread_bytes(),
                _ => socket.decoder.buffered_bytes(),
            }),
        }
    }

    /// Returns the quotas in use by a connection on the event loop.
    pub(crate) fn member(&mut self, id: ConnId) -> Option<&mut ConnectionQuotas> {
        if self.peer(id).is_none() {
            self.socket(id)?;
        }
        self.members.get_mut(id.slot as usize)?.as_mut()
    }

    fn leave(&mut self, id: ConnId) {
        if let Some(member) = self.members.get_mut(id.slot as usize) {
            *member = None;
        }
    }

    /// Sets the events that the event loop reports. `read`: report received bytes. Room in the send buffer is
    /// reported, too, while the connection is blocked.
    pub(crate) fn watch(&mut self, id: ConnId, read: bool) {
        if let (Some((peer, _)), Some(peers)) = (self.peer(id), &mut self.peers) {
            return peers.watch(peer, read);
        }
        let epoll = self.epoll.clone();
        let Some(socket) = self.socket(id) else { return };
        let mut wanted = socket.watched();
        wanted.set(EventFlags::IN, read);
        if socket.is_pending() {
            wanted |= EventFlags::OUT;
        }
        socket.change(id, wanted, &epoll);
    }

    /// Makes epoll report the current readiness again, because not all bytes were read.
    pub(crate) fn rearm(&mut self, id: ConnId) {
        let epoll = self.epoll.clone();
        let Some(socket) = self.socket(id) else { return };
        socket.change(id, socket.watched(), &epoll);
    }

    /// Removes a connection whose peer has disconnected.
    pub(crate) fn remove(&mut self, id: ConnId) {
        self.grants.remove(id);
        let Some(slot) = self.endpoints.get_mut(id.slot as usize) else { return };
        match slot {
            Some(Endpoint::Socket(socket)) if socket.generation == id.generation => {
                count(&self.metrics, &socket.talk, -1);
                *slot = None;
                self.leave(id);
            }
            Some(Endpoint::Pipe(generation, _)) if *generation == id.generation => *slot = None,
            Some(Endpoint::Peer(generation, _, lane)) if *generation == id.generation => {
                let lane = *lane;
                *slot = None;
                self.leave_peer(id, lane);
            }
            _ => {}
        }
    }

    fn leave_peer(&mut self, id: ConnId, lane: Lane) {
        if lane == Lane::Session {
            self.metrics.opened(Transport::DataChannel, -1);
            self.leave(id);
        }
    }

    /// Returns the number of slots. All connections are in lower slots.
    pub(crate) fn slots(&self) -> usize {
        self.endpoints.len()
    }

    /// Returns the memory of the connections in these slots, in bytes. A WebSocket holds more only while it receives
    /// a message.
    pub(crate) fn bytes_of(&self, slots: Range<usize>) -> usize {
        let held = |endpoint: &Endpoint| match endpoint {
            Endpoint::Socket(socket) => {
                let http = if let ConnectionProtocol::Http(http) = &socket.talk { http.bytes() } else { 0 };
                socket.decoder.buffered_bytes() + http + socket.tls.as_ref().map_or(0, |tls| tls.bytes())
            }
            Endpoint::Pipe(_, pipe) => pipe.borrow().bytes.capacity(),
            Endpoint::Peer(..) => 0,
        };
        let of_slot = |slot: usize| {
            let member = self.members.get(slot).and_then(Option::as_ref);
            let endpoint = self.endpoints.get(slot).and_then(Option::as_ref);
            endpoint.map_or(0, held) + member.map_or(0, ConnectionQuotas::bytes)
        };
        slots.map(of_slot).sum()
    }

    /// Returns the memory shared by all connections, in bytes. Cost: O(peers of data channels).
    pub(crate) fn shared_bytes(&self) -> usize {
        self.endpoints.capacity() * size_of::<Option<Endpoint>>()
            + self.members.capacity() * size_of::<Option<ConnectionQuotas>>()
            + self.grants.bytes()
            + self.peers.as_ref().map_or(0, |peers| peers.bytes())
    }

    fn put(&mut self, id: ConnId, endpoint: Endpoint) {
        let slot = id.slot as usize;
        if self.endpoints.len() <= slot {
            self.endpoints.resize_with(slot + 1, || None);
        }
        self.endpoints[slot] = Some(endpoint);
    }
}

impl Wire for Sockets {
    fn write(&mut self, conn: ConnId, bytes: &[u8]) -> usize {
        let taken = match self.endpoints.get_mut(conn.slot as usize) {
            Some(Some(Endpoint::Socket(socket))) if socket.generation == conn.generation => {
                socket.write(conn, bytes, &self.epoll)
            }
            Some(Some(Endpoint::Pipe(generation, pipe))) if *generation == conn.generation => {
                pipe.borrow_mut().write(bytes)
            }
            Some(Some(Endpoint::Peer(generation, peer, lane))) if *generation == conn.generation => {
                match &mut self.peers {
                    Some(peers) => peers.write(*peer, *lane, bytes),
                    None => return bytes.len(),
                }
            }
            _ => return bytes.len(),
        };
        Metrics::add(&self.metrics.writes, 1);
        Metrics::add(&self.metrics.sent_bytes, taken as u64);
        taken
    }

    fn expect(&self, slot: u32) {
        if let Some(endpoint) = self.endpoints.get(slot as usize) {
            prefetch(endpoint);
        }
    }
}

impl millrace_node::Sockets for Sockets {
    fn close(&mut self, conn: ConnId) {
        self.grants.remove(conn);
        let Some(endpoint) = self.endpoints.get_mut(conn.slot as usize) else { return };
        match endpoint.take() {
            Some(Endpoint::Socket(socket)) if socket.generation == conn.generation => {
                count(&self.metrics, &socket.talk, -1);
                if socket.watched != 0 {
                    let _ = epoll::delete(&*self.epoll, &socket.fd);
                }
                linger(socket.fd, socket.tls);
                self.leave(conn);
            }
            Some(Endpoint::Pipe(generation, pipe)) if generation == conn.generation => pipe.borrow_mut().close(),
            Some(Endpoint::Peer(generation, peer, lane)) if generation == conn.generation => {
                self.leave_peer(conn, lane);
                if let Some(peers) = &mut self.peers {
                    peers.end(peer, lane);
                }
            }
            other => *endpoint = other,
        }
    }
}

impl Socket {
    fn write(&mut self, id: ConnId, bytes: &[u8], epoll: &OwnedFd) -> usize {
        if self.tls.is_some() {
            return self.write_tls(id, bytes, epoll);
        }
        let taken = loop {
            match send(&self.fd, bytes) {
                Ok(taken) => break taken,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break 0,
                // The connection is dead. The event loop receives the error, too, and removes the connection.
                Err(_) => return bytes.len(),
            }
        };
        if taken < bytes.len() && !self.watched().contains(EventFlags::OUT) {
            self.change(id, self.watched() | EventFlags::OUT, epoll);
        }
        taken
    }

    /// Writes through TLS. The last accepted record may stay queued in the TLS session.
    #[inline(never)]
    fn write_tls(&mut self, id: ConnId, bytes: &[u8], epoll: &OwnedFd) -> usize {
        let Self { fd, tls: Some(tls), .. } = self else { return bytes.len() };
        let Ok(taken) = tls.write(bytes, |bytes| Ok(send(fd, bytes)?)) else { return bytes.len() };
        if (taken < bytes.len() || tls.is_pending()) && !self.watched().contains(EventFlags::OUT) {
            self.change(id, self.watched() | EventFlags::OUT, epoll);
        }
        taken
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Receives through TLS and sends the responses that the TLS protocol requires.
    ///
    /// Errors: those of the socket; `WouldBlock` if no bytes are available; `InvalidData` for bytes that are not
    /// TLS.
    pub(crate) fn read_tls(&mut self, id: ConnId, plain: &mut BytesMut, epoll: &OwnedFd) -> io::Result<Received> {
        let Self { fd, tls: Some(tls), .. } = self else { return Ok(Received::End) };
        let received = tls.read(plain, |buffer| Ok(rustix::net::recv(&*fd, buffer, RecvFlags::DONTWAIT)?.1));
        tls.flush(|bytes| Ok(send(fd, bytes)?))?;
        if tls.is_pending() && !self.watched().contains(EventFlags::OUT) {
            self.change(id, self.watched() | EventFlags::OUT, epoll);
        }
        received
    }

    fn watched(&self) -> EventFlags {
        EventFlags::from_bits_retain(self.watched.into())
    }

    fn is_pending(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_pending())
    }

    /// Changes the events that epoll reports. Events that are ready now are reported once more. This matters because
    /// the descriptors are edge-triggered: epoll does not report a readiness twice by itself.
    fn change(&mut self, id: ConnId, wanted: EventFlags, epoll: &OwnedFd) {
        let data = EventData::new_u64(u64::from(id.generation) << 32 | u64::from(id.slot));
        let wanted = wanted | EventFlags::RDHUP | EventFlags::ET;
        let changed = match self.watched == 0 {
            true => epoll::add(epoll, &self.fd, data, wanted),
            false => epoll::modify(epoll, &self.fd, data, wanted),
        };
        match changed {
            Ok(()) => self.watched = wanted.bits() as u16,
            Err(error) => {
                static SAID: LogRateLimit = LogRateLimit::new();
                if SAID.is_due() {
                    tracing::error!(%error, "cannot register a socket with epoll");
                }
            }
        }
    }

    /// Returns true at the first call in each second. Call it when bytes from the peer arrive.
    pub(crate) fn is_news(&mut self, now_s: u32) -> bool {
        std::mem::replace(&mut self.heard_s, now_s) != now_s
    }

    /// Handles room in the send buffer: flushes TLS, and stops watching for room until the next partial write.
    /// Returns false if queued TLS bytes have filled the send buffer again.
    pub(crate) fn unblocked(&mut self, id: ConnId, epoll: &OwnedFd) -> bool {
        if let Self { fd, tls: Some(tls), .. } = self
            && matches!(tls.flush(|bytes| Ok(send(fd, bytes)?)), Ok(false))
        {
            return false;
        }
        self.change(id, self.watched() - EventFlags::OUT, epoll);
        true
    }
}

fn count(metrics: &Metrics, talk: &ConnectionProtocol, change: i64) {
    if let Some(transport) = talk.transport() {
        metrics.opened(transport, change);
    }
}

fn send(fd: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// Closes a connection after the peer has had time to read the close frame. Closing at once, with unread bytes from
/// the peer, would reset the connection and lose the frame.
pub(crate) fn linger(fd: OwnedFd, tls: Option<Box<Session>>) {
    let last = tls.map_or_else(Vec::new, |mut tls| {
        tls.end();
        tls.into_pending()
    });
    if last.is_empty() {
        let _ = rustix::net::shutdown(&fd, Shutdown::Write);
    }
    let Ok(mut stream) = tokio::net::TcpStream::from_std(fd.into()) else { return };
    tokio::task::spawn_local(async move {
        let mut rest = [0; 4096];
        let read_all = async {
            if !last.is_empty() && (stream.write_all(&last).await.is_err() || stream.shutdown().await.is_err()) {
                return;
            }
            while matches!(stream.read(&mut rest).await, Ok(n) if n > 0) {}
        };
        let _ = tokio::time::timeout(LINGER, read_all).await;
    });
}

impl Pipe {
    fn write(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(PIPE_BYTES_MAX.saturating_sub(self.bytes.len()));
        self.bytes.extend_from_slice(&bytes[..taken]);
        self.blocked |= taken < bytes.len();
        self.wake();
        taken
    }

    fn close(&mut self) {
        self.closed = true;
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Body of a response without an end. It contains the bytes that the hub writes to its connection.
pub struct PipeBody {
    pipe: Rc<RefCell<Pipe>>,
    shard: Rc<Shard>,
    conn: ConnId,
    transport: Transport,
    _seat: Option<ReaderSlot>,
}

impl PipeBody {
    /// Registers the endpoint of a connection. Dropping the body removes the connection.
    pub(crate) fn new(shard: &Rc<Shard>, conn: ConnId, transport: Transport, seat: Option<ReaderSlot>) -> Self {
        let pipe = Rc::new(RefCell::new(Pipe::default()));
        shard.sockets().put(conn, Endpoint::Pipe(conn.generation, pipe.clone()));
        shard.metrics.opened(transport, 1);
        Self { pipe, shard: shard.clone(), conn, transport, _seat: seat }
    }
}

impl http_body::Body for PipeBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let (bytes, blocked) = {
            let mut pipe = self.pipe.borrow_mut();
            if pipe.bytes.is_empty() {
                if pipe.closed {
                    return Poll::Ready(None);
                }
                pipe.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            (std::mem::take(&mut pipe.bytes), std::mem::take(&mut pipe.blocked))
        };
        if blocked {
            self.shard.with(|hub, sockets| hub.writable(self.conn, sockets));
        }
        Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
    }
}

impl Drop for PipeBody {
    fn drop(&mut self) {
        self.shard.metrics.opened(self.transport, -1);
        self.shard.with(|hub, sockets| {
            hub.disconnect(self.conn);
            sockets.remove(self.conn);
        });
    }
}
