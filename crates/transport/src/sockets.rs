//! The one place that writes to readers. A hub knows connections by id; here an id becomes a descriptor (WebSocket, and SSE or NDJSON over
//! HTTP/1.1), the body of a hyper response (streams over HTTP/2) or a data channel of a peer, and "it took less than offered" becomes
//! "tell the hub when it is writable".

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
use millrace_engine::Seldom;
use millrace_node::{Metrics, Transport};
use millrace_protocol::session::Policy;
use millrace_rtc::Lane;
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    net::{RecvFlags, SendFlags, Shutdown},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    Shard,
    access::Grants,
    data_channel::{PeerId, Peers},
    keep_alive::HttpConnection,
    limits::{Member, Seat},
    session::Waiting,
    tls::{Received, Session},
    websocket::Talk,
};

/// Most bytes that a stream's body holds before its connection counts as blocked.
const PIPE_BYTES_MAX: usize = 16 * 1024;
/// How long a closed WebSocket may take to read the close frame and hang up.
const LINGER: Duration = Duration::from_secs(2);

/// Where the connections of one shard are written to.
pub struct Sockets {
    epoll: Rc<OwnedFd>,
    endpoints: Vec<Option<Endpoint>>,
    /// What each of them may do.
    pub(crate) grants: Grants,
    /// What they take of the node, beside them: it is seldom looked at.
    members: Vec<Option<Member>>,
    /// The ends of data channels, where there are any.
    pub(crate) peers: Option<Box<Peers>>,
    metrics: Arc<Metrics>,
}

/// One cache line: a message touches those of its publisher and of its reader, which are seldom still in the cache.
const _: () = assert!(size_of::<Option<Endpoint>>() <= 64);

enum Endpoint {
    Socket(Socket),
    Pipe(u32, Rc<RefCell<Pipe>>),
    Peer(u32, PeerId, Lane),
}

/// A descriptor and what has been read from it so far.
pub(crate) struct Socket {
    generation: u32,
    pub(crate) fd: OwnedFd,
    pub(crate) decoder: millrace_protocol::websocket::Decoder,
    pub(crate) talk: Talk,
    /// The client may send compressed messages.
    pub(crate) deflate: bool,
    /// When the hub was told last that the peer has said something: once per second is enough.
    heard_s: u32,
    /// While `Some`, nothing is read. Boxed: it is rare, and an endpoint is one cache line.
    pub(crate) waiting: Option<Box<Waiting>>,
    /// Low bits of the flags that the kernel watches for: all but `ET`, which is always there.
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
    /// Errors: the kernel has no epoll descriptor to give.
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

    /// Takes over a descriptor. Nothing is read before [`Sockets::watch`].
    pub(crate) fn add_socket(
        &mut self,
        id: ConnId,
        fd: OwnedFd,
        tls: Option<Box<Session>>,
        talk: Talk,
        deflate: bool,
        member: Member,
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

    /// Makes a channel of a peer a connection; `member` is there for the one that carries its session.
    pub(crate) fn add_peer(&mut self, id: ConnId, peer: PeerId, lane: Lane, member: Option<Member>) {
        self.put(id, Endpoint::Peer(id.generation, peer, lane));
        if let Some(member) = member {
            self.metrics.opened(Transport::DataChannel, 1);
            self.admit(id, member);
        }
    }

    /// Gives a descriptor back, with what belongs to it. Nothing of it is watched any more.
    pub(crate) fn take_socket(&mut self, id: ConnId) -> Option<(Socket, Member)> {
        self.socket(id)?;
        let Some(Endpoint::Socket(socket)) = self.endpoints.get_mut(id.slot as usize)?.take() else { return None };
        count(&self.metrics, &socket.talk, -1);
        if socket.watched != 0 {
            let _ = epoll::delete(&*self.epoll, &socket.fd);
        }
        let member = self.members.get_mut(id.slot as usize)?.take()?;
        Some((socket, member))
    }

    /// The state of an HTTP/1.1 connection of the event loop.
    pub(crate) fn http(&mut self, id: ConnId) -> Option<&mut HttpConnection> {
        match &mut self.socket(id)?.talk {
            Talk::Http(http) => Some(http),
            _ => None,
        }
    }

    /// True if bytes for this connection wait outside the hub: the last TLS record that the socket did not take.
    pub(crate) fn is_pending(&mut self, id: ConnId) -> bool {
        self.socket(id).is_some_and(|socket| socket.is_pending())
    }

    /// The ids of the HTTP/1.1 connections that wait for a request.
    pub(crate) fn idle_http(&self) -> Vec<ConnId> {
        let idle = |(slot, endpoint): (usize, &Option<Endpoint>)| match endpoint {
            Some(Endpoint::Socket(Socket { generation, talk: Talk::Http(http), .. })) if http.is_idle() => {
                Some(ConnId { slot: slot as u32, generation: *generation })
            }
            _ => None,
        };
        self.endpoints.iter().enumerate().filter_map(idle).collect()
    }

    fn admit(&mut self, id: ConnId, member: Member) {
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

    /// Which connection tells a session what it reads by this policy: its own, or the one for what may get lost.
    pub(crate) fn lane(&self, id: ConnId, policy: Policy) -> ConnId {
        match (policy, self.peer(id), &self.peers) {
            (Policy::Latest, Some((peer, Lane::Session)), Some(peers)) => peers.conn(peer, Lane::Latest).unwrap_or(id),
            _ => id,
        }
    }

    /// Is it a lane of a session that is another connection?
    pub(crate) fn is_side(&self, id: ConnId) -> bool {
        matches!(self.peer(id), Some((_, Lane::Latest)))
    }

    /// The commands that wait of a session, or `None` if there is no such connection.
    pub(crate) fn waiting(&mut self, id: ConnId) -> Option<&mut Option<Box<Waiting>>> {
        match self.peer(id) {
            Some((peer, Lane::Session)) => self.peers.as_mut()?.waiting(peer),
            Some((_, Lane::Latest)) => None,
            None => Some(&mut self.socket(id)?.waiting),
        }
    }

    /// What has been read and is not a whole message yet, or not to be looked at yet.
    pub(crate) fn incoming_bytes(&mut self, id: ConnId) -> usize {
        match (self.peer(id), &self.peers) {
            (Some((peer, _)), Some(peers)) => peers.incoming_bytes(peer),
            _ => self.socket(id).map_or(0, |socket| match &socket.talk {
                Talk::Http(http) => http.unread_bytes(),
                _ => socket.decoder.buffered_bytes(),
            }),
        }
    }

    /// What a connection of the event loop takes of the node.
    pub(crate) fn member(&mut self, id: ConnId) -> Option<&mut Member> {
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

    /// Sets what the event loop shall report: `read` for new bytes; room to write is added while the connection is blocked.
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

    /// Reports again what is still ready: it was not all taken.
    pub(crate) fn rearm(&mut self, id: ConnId) {
        let epoll = self.epoll.clone();
        let Some(socket) = self.socket(id) else { return };
        socket.change(id, socket.watched(), &epoll);
    }

    /// Its peer has gone.
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

    /// Connections lie in the slots below this.
    pub(crate) fn slots(&self) -> usize {
        self.endpoints.len()
    }

    /// Memory held for the connections in these slots, in bytes; a WebSocket holds more only between the first and the last byte of a
    /// message.
    pub(crate) fn bytes_of(&self, slots: Range<usize>) -> usize {
        let held = |endpoint: &Endpoint| match endpoint {
            Endpoint::Socket(socket) => {
                let http = if let Talk::Http(http) = &socket.talk { http.bytes() } else { 0 };
                socket.decoder.buffered_bytes() + http + socket.tls.as_ref().map_or(0, |tls| tls.bytes())
            }
            Endpoint::Pipe(_, pipe) => pipe.borrow().bytes.capacity(),
            Endpoint::Peer(..) => 0,
        };
        let of_slot = |slot: usize| {
            let member = self.members.get(slot).and_then(Option::as_ref);
            let endpoint = self.endpoints.get(slot).and_then(Option::as_ref);
            endpoint.map_or(0, held) + member.map_or(0, Member::bytes)
        };
        slots.map(of_slot).sum()
    }

    /// The same of what they have in common. Cost: O(peers of data channels).
    pub(crate) fn shared_bytes(&self) -> usize {
        self.endpoints.capacity() * size_of::<Option<Endpoint>>()
            + self.members.capacity() * size_of::<Option<Member>>()
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
                // Dead; the event loop hears of it, too, and cleans up.
                Err(_) => return bytes.len(),
            }
        };
        if taken < bytes.len() && !self.watched().contains(EventFlags::OUT) {
            self.change(id, self.watched() | EventFlags::OUT, epoll);
        }
        taken
    }

    /// The same through TLS, where the last record that was taken may wait in the session.
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

    /// Receives through TLS, and answers what the protocol asks for.
    ///
    /// Errors: the link's; `WouldBlock` if nothing is there; `InvalidData` for what is no TLS.
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

    /// Says what shall be reported from now on. What is ready at this moment is reported once more: descriptors report edges, and are not
    /// looked at again in between.
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
                static SAID: Seldom = Seldom::new();
                if SAID.is_due() {
                    tracing::error!(%error, "cannot register a socket with epoll");
                }
            }
        }
    }

    /// Is it the first time in this second that the peer has said something?
    pub(crate) fn is_news(&mut self, now_s: u32) -> bool {
        std::mem::replace(&mut self.heard_s, now_s) != now_s
    }

    /// Room to write was reported: no more of it until the next partial write. False if what was taken before has used it up.
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

fn count(metrics: &Metrics, talk: &Talk, change: i64) {
    if let Some(transport) = talk.transport() {
        metrics.opened(transport, change);
    }
}

fn send(fd: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// Lets the peer read the close frame: closing at once, with its bytes unread, would reset the connection and lose the frame.
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

/// The body of a response that never ends by itself: what the hub writes to its connection.
pub struct PipeBody {
    pipe: Rc<RefCell<Pipe>>,
    shard: Rc<Shard>,
    conn: ConnId,
    transport: Transport,
    _seat: Option<Seat>,
}

impl PipeBody {
    /// Makes the connection's endpoint; when the body is dropped, the connection is forgotten.
    pub(crate) fn new(shard: &Rc<Shard>, conn: ConnId, transport: Transport, seat: Option<Seat>) -> Self {
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
