//! MQTT 3.1.1 and 5 over TCP, TLS and WebSocket. The hub is the broker: a topic is a channel, a subscription is a
//! reader.
//!
//! - this file: packets of a connection, in their order
//! - [`connect`]: CONNECT: authentication, take-over of a session, will
//! - [`publish`]: PUBLISH of a client, wills and retained publications
//! - [`subscribe`]: SUBSCRIBE and UNSUBSCRIBE
//! - [`tasks`]: keep alive, wills that are due, and the copy of the retained publications
//!
//! What MQTT itself demands is decided in `crates/mqtt`. Source: docs/reference/mqtt.md.

mod connect;
mod publish;
mod subscribe;
mod tasks;
mod upgrade;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    future::Future,
    os::fd::OwnedFd,
    pin::Pin,
    rc::Rc,
    sync::{Arc, PoisonError},
    task::{Context, Poll, Waker},
};

use millrace_delivery::ConnId;
use millrace_mqtt::{Action, Connect, Frame, Reason};
use millrace_node::Metrics;
use millrace_protocol::{
    ChannelName, Encoding, Error,
    websocket::{self, DecoderLimits, Message},
};

use crate::{
    admission::{
        Publisher,
        access::Caller,
        limits::{ConnectionQuotas, ConnectionSlot, Direction},
    },
    connection::{
        CommandQueue, ConnectionProtocol, EventLoop, OUT_BYTES_MAX,
        mqtt::{Link, Node},
    },
    tls::Session as TlsSession,
};

pub use upgrade::accept as accept_upgrade;

/// Room of a packet beside the payload of a publication: topic and properties.
const PACKET_ROOM_BYTES: usize = 64 * 1024;
/// Maximum size of the first packet, besides its will.
const CONNECT_BYTES_MAX: usize = 32 * 1024;

/// The MQTT connections of one shard.
pub struct Host {
    pub event_loop: Rc<EventLoop>,
    pub node: Arc<Node>,
    topics: Rc<dyn TopicFormats>,
    /// Connections by the second at which their silence is checked next. Only the newest entry of each counts.
    silence: RefCell<BTreeMap<u32, Vec<ConnId>>>,
    /// Connections with shared subscriptions.
    shared: RefCell<BTreeSet<ConnId>>,
}

/// Formats of topics that code above this module knows.
pub trait TopicFormats {
    /// Returns true if publications of this channel have a known format.
    fn knows(&self, channel: &ChannelName) -> bool;

    /// Takes a publication of a known format, before it is published to its channel.
    ///
    /// Errors: the publication is refused.
    fn take<'a>(
        &'a self,
        publisher: &'a dyn Publisher,
        caller: &'a Caller,
        channel: &'a ChannelName,
        payload: &'a [u8],
    ) -> Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;
}

/// Work that continues after the packet that began it.
type Running = Pin<Box<dyn Future<Output = ()>>>;

impl Host {
    pub fn new(event_loop: Rc<EventLoop>, node: Arc<Node>, topics: Rc<dyn TopicFormats>) -> Rc<Self> {
        let (silence, shared) = Default::default();
        Rc::new(Self { event_loop, node, topics, silence, shared })
    }

    /// Takes over a connection. `rest` are bytes that were received already.
    pub fn adopt(
        self: &Rc<Self>,
        fd: OwnedFd,
        tls: Option<Box<TlsSession>>,
        head: &[u8],
        rest: &mut [u8],
        is_websocket: bool,
        connection_slot: ConnectionSlot,
    ) {
        let (shard, config) = (self.event_loop.shard(), self.event_loop.admission().config());
        let mut link = Link::new(is_websocket);
        link.control().extend_from_slice(head);
        link.silence_max_s = config.header_timeout.as_secs().max(1) as u32;
        let id = shard.with(|hub, sockets| {
            let id = hub.connect(Encoding::Records);
            link.heard_s = hub.now_s();
            let protocol = ConnectionProtocol::Mqtt(Rc::new(RefCell::new(link)));
            sockets.add_socket(id, fd, tls, protocol, false, ConnectionQuotas::new(connection_slot, None));
            sockets.flush_mqtt(id);
            id
        });
        self.check_silence_at(id, self.now_s() + config.header_timeout.as_secs().max(1) as u32);
        if !rest.is_empty() {
            self.received(id, rest);
        }
        self.event_loop.watch(id);
        shard.turn();
    }

    fn now_s(&self) -> u32 {
        self.event_loop.shard().with(|hub, _| hub.now_s())
    }

    fn check_silence_at(&self, id: ConnId, at_s: u32) {
        let Some(link) = self.link(id) else { return };
        link.borrow_mut().check_s = at_s;
        self.silence.borrow_mut().entry(at_s).or_default().push(id);
    }

    fn link(&self, id: ConnId) -> Option<Rc<RefCell<Link>>> {
        self.event_loop.shard().sockets().mqtt(id)
    }

    /// Handles received bytes. Returns false if the connection is not one of MQTT.
    pub fn received(self: &Rc<Self>, id: ConnId, bytes: &mut [u8]) -> bool {
        let (link, now_s) = match self.event_loop.shard().with(|hub, sockets| (sockets.mqtt(id), hub.now_s())) {
            (Some(link), now_s) => (link, now_s),
            (None, _) => return false,
        };
        let is_websocket = {
            let mut link = link.borrow_mut();
            link.heard_s = now_s;
            if link.is_closing {
                return true;
            }
            link.is_websocket
        };
        let has_input = link.borrow().is_running || !link.borrow().input.is_empty();
        let messages = match (is_websocket, has_input) {
            (true, _) => self.decode_frames(id, &link, bytes),
            (false, false) => self.handle(id, &link, bytes),
            (false, true) => {
                link.borrow_mut().input.extend_from_slice(bytes);
                self.handle_input(id, &link)
            }
        };
        self.event_loop.update_pending_bytes(id, Direction::In);
        self.event_loop.pace(id, messages);
        true
    }

    /// Decodes frames of a WebSocket. Source: MQTT 5.0, section 6.
    fn decode_frames(self: &Rc<Self>, id: ConnId, link: &Rc<RefCell<Link>>, bytes: &mut [u8]) -> u64 {
        let (event_loop, config) = (&self.event_loop, self.event_loop.admission().config());
        let Some(mut decoder) =
            event_loop.shard().sockets().socket(id).map(|socket| std::mem::take(&mut socket.decoder))
        else {
            return 0;
        };
        let limits = DecoderLimits {
            message_bytes_max: self.packet_bytes_max(),
            fragments_max: config.fragments_max,
            inflate_ratio_max: config.inflate_ratio_max,
            deflate: false,
        };
        let mut closes = false;
        let decoded = decoder.decode(bytes, limits, |message| match message {
            Message::Binary(data) => {
                link.borrow_mut().input.extend_from_slice(data);
                true
            }
            Message::Ping(payload) => {
                Metrics::add(&event_loop.shard().socket_metrics.pings, 1);
                websocket::encode(link.borrow_mut().control(), websocket::PONG, payload);
                true
            }
            Message::Pong => true,
            Message::Text(_) | Message::Close(_) => {
                closes = true;
                false
            }
        });
        if let Some(socket) = event_loop.shard().sockets().socket(id) {
            socket.decoder = decoder;
        }
        let messages = self.handle_input(id, link);
        event_loop.shard().sockets().flush_mqtt(id);
        if decoded.is_err() || closes {
            self.close(id, Reason::PROTOCOL_ERROR);
        }
        messages
    }

    /// Handles what was received before. Returns the number of packets.
    fn handle_input(self: &Rc<Self>, id: ConnId, link: &Rc<RefCell<Link>>) -> u64 {
        let input = {
            let mut link = link.borrow_mut();
            let bytes_max = if link.session.is_some() { self.packet_bytes_max() } else { self.connect_bytes_max() };
            // An incomplete packet stays where it is, so that a client that sends single bytes causes no copies.
            if link.is_running || matches!(Frame::decode(&link.input, bytes_max), Ok(None)) {
                return 0;
            }
            std::mem::take(&mut link.input)
        };
        self.handle(id, link, &input)
    }

    /// Handles packets until one of them waits for something. The rest of the bytes is kept.
    fn handle(self: &Rc<Self>, id: ConnId, link: &Rc<RefCell<Link>>, bytes: &[u8]) -> u64 {
        let (mut rest, mut messages) = (bytes, 0);
        let running = loop {
            match self.next(id, link, rest) {
                Ok(Some((taken, running))) => {
                    rest = &rest[taken..];
                    messages += 1;
                    if let Some(mut running) = running
                        && !is_done(running.as_mut())
                    {
                        break Some(running);
                    }
                    if link.borrow().is_closing {
                        return messages;
                    }
                }
                Ok(None) => break None,
                Err(reason) => {
                    self.close(id, reason);
                    return messages;
                }
            }
        };
        link.borrow_mut().input.extend_from_slice(rest);
        self.event_loop.shard().sockets().flush_mqtt(id);
        self.update_out(id, link);
        if let Some(running) = running {
            self.spawn(id, link, running);
        }
        messages
    }

    /// Handles the rest of the input after `running`. The connection is not read meanwhile.
    fn spawn(self: &Rc<Self>, id: ConnId, link: &Rc<RefCell<Link>>, running: Running) {
        link.borrow_mut().is_running = true;
        self.set_busy(id, true);
        let (host, link) = (self.clone(), Rc::downgrade(link));
        tokio::task::spawn_local(async move {
            running.await;
            let Some(link) = link.upgrade() else { return };
            link.borrow_mut().is_running = false;
            host.set_busy(id, false);
            host.handle_input(id, &link);
            host.event_loop.shard().turn();
        });
    }

    fn set_busy(&self, id: ConnId, is_busy: bool) {
        if let Some(place) = self.event_loop.shard().sockets().commands(id) {
            *place = is_busy.then(|| Box::new(CommandQueue::running()));
        }
        self.event_loop.watch(id);
    }

    /// Stops reading from a client that does not read its answers.
    fn update_out(self: &Rc<Self>, id: ConnId, link: &Rc<RefCell<Link>>) {
        let (is_full, is_running) = {
            let link = link.borrow();
            (link.pending_bytes() > OUT_BYTES_MAX, link.is_running)
        };
        if is_full && !is_running {
            let mut link = link.borrow_mut();
            (link.is_running, link.waits_for_room) = (true, true);
            drop(link);
            self.set_busy(id, true);
        }
    }

    /// Handles the first packet of `bytes`. Returns its length, and what continues after it; `None` while it is
    /// incomplete.
    ///
    /// Errors: the reason to close the connection.
    fn next(
        self: &Rc<Self>,
        id: ConnId,
        shared: &Rc<RefCell<Link>>,
        bytes: &[u8],
    ) -> Result<Option<(usize, Option<Running>)>, Reason> {
        let mut link = shared.borrow_mut();
        let Some((session, out)) = link.session_and_out() else {
            drop(link);
            let Some(frame) = Frame::decode(bytes, self.connect_bytes_max())? else { return Ok(None) };
            let connect = Connect::decode(frame);
            return Ok(Some((frame.bytes, Some(Box::pin(self.clone().connect(id, shared.clone(), connect))))));
        };
        let Some(frame) = Frame::decode(bytes, self.packet_bytes_max())? else { return Ok(None) };
        if frame.is_connect() {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let action = session.handle(frame, out)?;
        let is_behind = std::mem::take(&mut link.is_behind);
        drop(link);
        let running: Option<Running> = match action {
            Action::Nothing => {
                shared.borrow_mut().is_behind = is_behind;
                None
            }
            Action::Continue => {
                self.send_more(id, shared, is_behind);
                None
            }
            Action::Publish(incoming) => {
                shared.borrow_mut().is_behind = is_behind;
                self.publish(id, shared, incoming)
            }
            Action::Subscribe { id: packet, identifier, filters } => {
                shared.borrow_mut().is_behind = is_behind;
                let work = self.clone().subscribe(id, shared.clone(), packet, identifier, filters);
                Some(Box::pin(work))
            }
            Action::Unsubscribe { id: packet, filters } => {
                shared.borrow_mut().is_behind = is_behind;
                Some(Box::pin(self.clone().unsubscribe(id, shared.clone(), packet, filters)))
            }
            Action::Disconnect { will } => {
                if let Some(ending) = shared.borrow_mut().ending.as_mut().filter(|_| !will) {
                    ending.will = None;
                }
                self.end(id, shared);
                None
            }
        };
        Ok(Some((frame.bytes, running)))
    }

    /// Maximum size of the first packet of a client.
    fn connect_bytes_max(&self) -> usize {
        CONNECT_BYTES_MAX + self.node.config.will_bytes_max
    }

    /// Maximum size of another packet of a client.
    fn packet_bytes_max(&self) -> usize {
        self.event_loop.admission().config().message_bytes_max.max(1).saturating_add(PACKET_ROOM_BYTES)
    }

    /// Sends retained publications, then what the hub has, as far as the client takes them.
    fn send_more(&self, id: ConnId, link: &Rc<RefCell<Link>>, is_behind: bool) {
        self.send_retained(link);
        let shard = self.event_loop.shard();
        shard.sockets().flush_mqtt(id);
        if is_behind {
            shard.with(|hub, sockets| hub.writable(id, sockets));
        }
    }

    /// Sends retained publications as far as the client takes them.
    fn send_retained(&self, link: &Rc<RefCell<Link>>) {
        let mut link = link.borrow_mut();
        if link.session.as_ref().is_none_or(|session| session.scan().is_none()) {
            return;
        }
        let retained = self.node.retained.read().unwrap_or_else(PoisonError::into_inner);
        let now_ms = millrace_engine::unix_ms();
        while link.pending_bytes() < OUT_BYTES_MAX {
            let Some((session, out)) = link.session_and_out() else { return };
            let Some(scan) = session.scan() else { return };
            match retained.next(&scan.target, scan.after.as_ref()) {
                Some((channel, publication)) => {
                    if !session.deliver_retained(channel, publication, now_ms, out) {
                        return;
                    }
                }
                None => session.end_scan(),
            }
        }
    }

    /// Handles room in the send buffer of a connection. Returns false if the connection is not one of MQTT.
    pub fn writable(self: &Rc<Self>, id: ConnId) -> bool {
        let Some(link) = self.link(id) else { return false };
        self.send_retained(&link);
        self.event_loop.shard().sockets().flush_mqtt(id);
        let was_full = {
            let mut link = link.borrow_mut();
            let resumes = link.waits_for_room && link.pending_bytes() <= OUT_BYTES_MAX / 2;
            if resumes {
                (link.is_running, link.waits_for_room) = (false, false);
            }
            resumes
        };
        if was_full {
            self.set_busy(id, false);
            self.handle_input(id, &link);
        }
        true
    }

    /// Closes a connection with a reason, which a client of MQTT 5 receives.
    fn close(&self, id: ConnId, reason: Reason) {
        self.event_loop.close_with(id, reason.0.into(), "");
    }

    /// Closes a connection without a reason.
    fn end(&self, id: ConnId, link: &Rc<RefCell<Link>>) {
        link.borrow_mut().is_closing = true;
        self.event_loop.shard().with(|hub, sockets| hub.close(id, &[], sockets));
    }
}

fn is_done(running: Pin<&mut (impl Future<Output = ()> + ?Sized)>) -> bool {
    matches!(running.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()))
}
