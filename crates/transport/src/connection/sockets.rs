//! The connections of a shard, as the hub and the event loop use them.
//!
//! The hub knows connections only by id. This module maps an id to a [`Socket`] (WebSocket; SSE and NDJSON over
//! HTTP/1.1) or to a [`VirtualConnection`]. After a partial write to a socket, the event loop notifies the hub when the
//! connection is writable again.

use std::{cell::RefCell, io, ops::Range, os::fd::OwnedFd, rc::Rc, sync::Arc, time::Duration};

use millrace_delivery::{ConnId, Wire, prefetch};
use millrace_node::{Client, Metrics, ShardObserver};
use millrace_protocol::{Transport, session::Policy};
use rustix::event::epoll::{self, EventFlags};

use super::{
    Calls, CommandQueue, ConnectionProtocol, Grants, Http1Connection, VirtualConnection, linger::linger, mqtt::Link,
    socket::Socket,
};
use crate::{
    SocketMetrics,
    admission::{access::Caller, limits::ConnectionQuotas},
    tls::Session,
};

/// Connections of one shard, for writing.
pub struct Sockets {
    epoll: Rc<OwnedFd>,
    endpoints: Vec<Option<Endpoint>>,
    /// Permissions of each connection.
    pub(crate) grants: Grants,
    observer: Option<ShardObserver>,
    /// Remote procedure calls of each connection.
    pub(crate) calls: Calls,
    /// Quotas in use by each connection. They are stored separately because they are seldom needed.
    quotas: Vec<Option<ConnectionQuotas>>,
    metrics: Arc<SocketMetrics>,
    /// Writes since the begin of the turn, by transport.
    turn_writes: [u32; Transport::COUNTED.len()],
}

/// An endpoint fits into one cache line. Each message touches the endpoints of its publisher and its reader, which
/// are usually not in the cache.
const _: () = assert!(size_of::<Option<Endpoint>>() <= 64);

enum Endpoint {
    Socket(Socket),
    Virtual(Virtual),
}

struct Virtual {
    generation: u32,
    connection: Rc<dyn VirtualConnection>,
    commands: Option<Box<CommandQueue>>,
}

impl Sockets {
    /// Creates the connections of a shard. Errors: the kernel cannot create an epoll descriptor.
    pub fn new(metrics: Arc<SocketMetrics>) -> io::Result<Self> {
        let epoll = Rc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let (endpoints, grants, observer, calls, quotas, turn_writes) = Default::default();
        Ok(Self { epoll, endpoints, grants, observer, calls, quotas, metrics, turn_writes })
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
        protocol: ConnectionProtocol,
        deflate: bool,
        quotas: ConnectionQuotas,
    ) {
        count(&self.metrics, &protocol, 1);
        self.put(id, Endpoint::Socket(Socket::new(id.generation, fd, tls, protocol, deflate)));
        self.put_quotas(id, quotas);
    }

    /// Registers a connection without a socket. `quotas`: the quotas that it uses, unless they are held elsewhere.
    pub(crate) fn add_virtual(
        &mut self,
        id: ConnId,
        connection: Rc<dyn VirtualConnection>,
        quotas: Option<ConnectionQuotas>,
    ) {
        if let Some(transport) = connection.transport() {
            self.metrics.opened(transport, 1);
        }
        self.put(id, Endpoint::Virtual(Virtual { generation: id.generation, connection, commands: None }));
        if let Some(quotas) = quotas {
            self.put_quotas(id, quotas);
        }
    }

    /// Removes a connection and returns its descriptor and quotas. The descriptor is no longer watched.
    pub(crate) fn take_socket(&mut self, id: ConnId) -> Option<(Socket, ConnectionQuotas)> {
        self.socket(id)?;
        let Some(Endpoint::Socket(socket)) = self.endpoints.get_mut(id.slot as usize)?.take() else { return None };
        count(&self.metrics, &socket.protocol, -1);
        socket.unwatch(&self.epoll);
        let quotas = self.quotas.get_mut(id.slot as usize)?.take()?;
        Some((socket, quotas))
    }

    /// Returns the state of an HTTP/1.1 connection on the event loop.
    pub(crate) fn http(&mut self, id: ConnId) -> Option<&mut Http1Connection> {
        match &mut self.socket(id)?.protocol {
            ConnectionProtocol::Http(http) => Some(http),
            _ => None,
        }
    }

    /// Returns the link of an MQTT connection. It must not be borrowed while the hub is called, which writes to it.
    pub(crate) fn mqtt(&mut self, id: ConnId) -> Option<Rc<RefCell<Link>>> {
        match &self.socket(id)?.protocol {
            ConnectionProtocol::Mqtt(link) => Some(link.clone()),
            _ => None,
        }
    }

    /// Sends what an MQTT link has for its client.
    pub(crate) fn flush_mqtt(&mut self, id: ConnId) {
        let epoll = self.epoll.clone();
        let sent = self.socket(id).map_or(0, |socket| socket.flush_mqtt(id, &epoll));
        Metrics::add(&self.metrics.sent_bytes, sent as u64);
    }

    /// Returns true if bytes for this connection are queued outside the hub: the last TLS record, which the socket
    /// has not accepted completely.
    pub(crate) fn is_pending(&mut self, id: ConnId) -> bool {
        self.socket(id).is_some_and(|socket| socket.is_pending())
    }

    /// Returns the ids of the HTTP/1.1 connections that wait for a request.
    pub(crate) fn idle_http(&self) -> Vec<ConnId> {
        let idle = |(slot, endpoint): (usize, &Option<Endpoint>)| match endpoint {
            Some(Endpoint::Socket(Socket { generation, protocol: ConnectionProtocol::Http(http), .. }))
                if http.is_idle() =>
            {
                Some(ConnId { slot: slot as u32, generation: *generation })
            }
            _ => None,
        };
        self.endpoints.iter().enumerate().filter_map(idle).collect()
    }

    fn put_quotas(&mut self, id: ConnId, quotas: ConnectionQuotas) {
        let slot = id.slot as usize;
        if self.quotas.len() <= slot {
            self.quotas.resize_with(slot + 1, || None);
        }
        self.quotas[slot] = Some(quotas);
    }

    fn virtual_connection(&self, id: ConnId) -> Option<&dyn VirtualConnection> {
        match self.endpoints.get(id.slot as usize) {
            Some(Some(Endpoint::Virtual(endpoint))) if endpoint.generation == id.generation => {
                Some(&*endpoint.connection)
            }
            _ => None,
        }
    }

    /// Returns the connection on which a session receives subscriptions with this policy: its own, or a separate
    /// connection, for example for messages that may be lost.
    pub(crate) fn lane(&self, id: ConnId, policy: Policy) -> ConnId {
        self.virtual_connection(id).and_then(|connection| connection.lane(policy)).unwrap_or(id)
    }

    /// Returns true if the connection is the separate lane of a session.
    pub(crate) fn is_side(&self, id: ConnId) -> bool {
        self.virtual_connection(id).is_some_and(VirtualConnection::is_side)
    }

    /// Returns the queued commands of a session; `None` if the connection does not exist or takes no commands.
    pub(crate) fn commands(&mut self, id: ConnId) -> Option<&mut Option<Box<CommandQueue>>> {
        match self.endpoints.get_mut(id.slot as usize)?.as_mut()? {
            Endpoint::Socket(socket) if socket.generation == id.generation => Some(&mut socket.commands),
            Endpoint::Virtual(endpoint) if endpoint.generation == id.generation => {
                endpoint.connection.takes_commands().then_some(&mut endpoint.commands)
            }
            _ => None,
        }
    }

    /// Returns the number of bytes that were read but not processed: an incomplete message, or requests that must
    /// wait.
    pub(crate) fn incoming_bytes(&mut self, id: ConnId) -> usize {
        if let Some(connection) = self.virtual_connection(id) {
            return connection.incoming_bytes();
        }
        self.socket(id).map_or(0, |socket| match &socket.protocol {
            ConnectionProtocol::Http(http) => http.unread_bytes(),
            ConnectionProtocol::Mqtt(link) => link.borrow().input.len() + socket.decoder.buffered_bytes(),
            _ => socket.decoder.buffered_bytes(),
        })
    }

    /// Returns the transport of a connection; `None` for HTTP/1.1 between two requests and for a stream over HTTP/2.
    pub(crate) fn transport(&mut self, id: ConnId) -> Option<Transport> {
        match self.virtual_connection(id) {
            Some(connection) => connection.transport(),
            None => self.socket(id)?.protocol.transport(),
        }
    }

    /// Returns true if the connection carries a session, which receives pushes.
    pub(crate) fn is_session(&mut self, id: ConnId) -> bool {
        match self.virtual_connection(id) {
            Some(connection) => connection.takes_commands(),
            None => self.socket(id).is_some_and(|socket| matches!(socket.protocol, ConnectionProtocol::Session)),
        }
    }

    /// Returns the quotas in use by a connection.
    pub(crate) fn quotas(&mut self, id: ConnId) -> Option<&mut ConnectionQuotas> {
        if self.virtual_connection(id).is_none() {
            self.socket(id)?;
        }
        self.quotas.get_mut(id.slot as usize)?.as_mut()
    }

    fn remove_quotas(&mut self, id: ConnId) {
        if let Some(quotas) = self.quotas.get_mut(id.slot as usize) {
            *quotas = None;
        }
    }

    /// Sets the events that the event loop reports. `read`: report received bytes. Room in the send buffer is
    /// reported, too, while the connection is blocked.
    pub(crate) fn watch(&mut self, id: ConnId, read: bool) {
        if let Some(connection) = self.virtual_connection(id) {
            return connection.set_reading(read);
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

    /// Sets the caller of a new connection, whose grant applies from now on.
    pub(crate) fn set_caller(&mut self, id: ConnId, caller: Caller, transport: Transport) {
        if let Some(observer) = &self.observer {
            observer.opened(id, caller.grant.subject.as_ref(), transport);
        }
        self.grants.put(id, caller);
    }

    /// Removes the caller of a connection that closes, with its permissions.
    pub(crate) fn remove_caller(&mut self, id: ConnId) {
        if self.grants.remove(id)
            && let Some(observer) = &self.observer
        {
            observer.closed(id);
        }
    }

    /// Removes a connection whose peer has disconnected.
    pub(crate) fn remove(&mut self, id: ConnId) {
        self.remove_caller(id);
        self.calls.withdraw(id);
        let Some(slot) = self.endpoints.get_mut(id.slot as usize) else { return };
        match slot {
            Some(Endpoint::Socket(socket)) if socket.generation == id.generation => {
                count(&self.metrics, &socket.protocol, -1);
                *slot = None;
                self.remove_quotas(id);
            }
            Some(Endpoint::Virtual(endpoint)) if endpoint.generation == id.generation => {
                let transport = endpoint.connection.transport();
                *slot = None;
                self.leave_virtual(id, transport);
            }
            _ => {}
        }
    }

    fn leave_virtual(&mut self, id: ConnId, transport: Option<Transport>) {
        if let Some(transport) = transport {
            self.metrics.opened(transport, -1);
        }
        self.remove_quotas(id);
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
                let http = match &socket.protocol {
                    ConnectionProtocol::Http(http) => http.bytes(),
                    ConnectionProtocol::Mqtt(link) => link.borrow().bytes(),
                    _ => 0,
                };
                socket.decoder.buffered_bytes() + http + socket.tls.as_ref().map_or(0, |tls| tls.bytes())
            }
            Endpoint::Virtual(endpoint) => endpoint.connection.bytes(),
        };
        let of_slot = |slot: usize| {
            let quotas = self.quotas.get(slot).and_then(Option::as_ref);
            let endpoint = self.endpoints.get(slot).and_then(Option::as_ref);
            endpoint.map_or(0, held) + quotas.map_or(0, ConnectionQuotas::bytes)
        };
        slots.map(of_slot).sum()
    }

    /// Returns the memory shared by all connections, in bytes.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.endpoints.capacity() * size_of::<Option<Endpoint>>()
            + self.quotas.capacity() * size_of::<Option<ConnectionQuotas>>()
            + self.grants.bytes()
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
        let (taken, transport) = match self.endpoints.get_mut(conn.slot as usize) {
            Some(Some(Endpoint::Socket(socket))) if socket.generation == conn.generation => {
                (socket.write(conn, bytes, &self.epoll), socket.protocol.transport())
            }
            Some(Some(Endpoint::Virtual(endpoint))) if endpoint.generation == conn.generation => {
                (endpoint.connection.write(bytes), endpoint.connection.carrier())
            }
            _ => return bytes.len(),
        };
        if let Some(transport) = transport.filter(|_| taken > 0) {
            self.turn_writes[transport as usize] += 1;
        }
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
    type Metrics = SocketMetrics;

    fn metrics(&self) -> Arc<SocketMetrics> {
        self.metrics.clone()
    }

    fn begin_turn(&mut self) {
        // Writes before the turn are replies and pages of history.
        self.turn_writes = Default::default();
    }

    fn end_turn(&mut self, age: Duration) {
        for (transport, writes) in Transport::COUNTED.into_iter().zip(std::mem::take(&mut self.turn_writes)) {
            if writes > 0 {
                self.metrics.written(transport, age, writes.into());
            }
        }
    }

    fn observe(&mut self, observer: ShardObserver) {
        self.observer = Some(observer);
    }

    fn client(&self, conn: ConnId) -> Option<Client> {
        let conn = self.virtual_connection(conn).and_then(VirtualConnection::main).unwrap_or(conn);
        let grant = &self.grants.get(conn)?.grant;
        Some(Client { conn, subject: grant.subject.clone(), info: grant.info.clone() })
    }

    fn close(&mut self, conn: ConnId) {
        self.remove_caller(conn);
        self.calls.withdraw(conn);
        let Some(endpoint) = self.endpoints.get_mut(conn.slot as usize) else { return };
        match endpoint.take() {
            Some(Endpoint::Socket(socket)) if socket.generation == conn.generation => {
                count(&self.metrics, &socket.protocol, -1);
                socket.unwatch(&self.epoll);
                linger(socket.fd, socket.tls);
                self.remove_quotas(conn);
            }
            Some(Endpoint::Virtual(closed)) if closed.generation == conn.generation => {
                self.leave_virtual(conn, closed.connection.transport());
                closed.connection.close();
            }
            other => *endpoint = other,
        }
    }
}

fn count(metrics: &SocketMetrics, protocol: &ConnectionProtocol, change: i64) {
    if let Some(transport) = protocol.transport() {
        metrics.opened(transport, change);
    }
}
