use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet, VecDeque},
    future::poll_fn,
    io,
    num::NonZeroU16,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    rc::Rc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use millrace_delivery::{ConnId, Wire};
use millrace_engine::{Answer, Place};
use millrace_node::Metrics;
use millrace_protocol::{
    ChannelName, Code, Error, Kind, NewPublication, Right,
    session::{Subscription, encode_connected, encode_reply},
    websocket::{self, Accept, Broken, Message},
};
use rustix::{
    event::epoll::{self, Event, EventFlags},
    io::Errno,
    net::RecvFlags,
};
use tokio::io::unix::AsyncFd;

use super::{ConnectionProtocol, Upgrade};
use crate::{
    Shard,
    access::Caller,
    http::{Body, Context, Response, encode_head},
    keep_alive::ConnectionTimers,
    limits::{ConnectionQuotas, ConnectionSlot, Direction},
    session,
    stream::Stream,
    tls::{Received, Session},
};

/// Maximum bytes per read of one connection. This limit is also the back-pressure on publishers.
const READ_BYTES: usize = 64 * 1024;
/// Maximum bytes per read of a session, unless it is in the middle of a message. A command of a few bytes can cost
/// as much as a publication of many bytes.
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

/// Event loop for the connections of one shard: an epoll descriptor, which itself is one event source of the shard's
/// runtime.
pub struct EventLoop {
    context: Rc<Context>,
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
    pub(super) pongs: RefCell<Vec<u8>>,
    pub(crate) alarms: ConnectionTimers,
}

struct Source(Rc<OwnedFd>);

impl AsRawFd for Source {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl EventLoop {
    pub fn new(context: Rc<Context>) -> Rc<Self> {
        let epoll = context.shard.sockets().epoll();
        let scratch = RefCell::new(vec![0; READ_BYTES]);
        let (plain, read_bytes, paused, slowed, pongs, alarms) = Default::default();
        Rc::new(Self { context, epoll, scratch, plain, read_bytes, paused, slowed, pongs, alarms })
    }

    /// Runs the event loop until the task is dropped.
    ///
    /// Errors: the runtime cannot watch the epoll descriptor.
    pub async fn run(self: Rc<Self>) -> io::Result<()> {
        // SAFETY: `Source` shares ownership of the descriptor, so the descriptor stays open and the same while
        // `source` lives.
        let source = unsafe { AsyncFd::register(Source(self.epoll.clone())) }?;
        let mut events = Vec::with_capacity(EVENTS);
        let mut queue = VecDeque::with_capacity(EVENTS);
        let mailbox = self.context.shard.mailbox();
        loop {
            let mut ready = poll_fn(|cx| source.poll_read_ready(cx)).await?;
            // The runtime and the sockets are edge-triggered. After all ready events have been taken, a later event
            // is a new edge.
            let mut emptied = false;
            for _ in 0..TURNS {
                emptied = self.take_events(&mut events)?;
                if events.is_empty() {
                    break;
                }
                self.expect(&events);
                mailbox.attend();
                queue.extend(events.drain(..));
                let mut handled = 0;
                while let Some(event) = queue.pop_front() {
                    handled += 1;
                    self.handle(id_of(&event), event.flags);
                    if self.read_bytes.get() > TURN_BYTES {
                        // Connections that send much must not delay the others.
                        self.read_bytes.set(0);
                        self.context.shard.turn();
                        mailbox.leave();
                        tokio::task::yield_now().await;
                        mailbox.attend();
                        if handled < EVENTS {
                            emptied &= self.queue_new_events(&mut queue, &mut events)?;
                        }
                    }
                }
                self.read_bytes.set(0);
                // Everything published in this turn is sent with one write per reader.
                self.context.shard.turn();
                mailbox.leave();
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
    fn queue_new_events(self: &Rc<Self>, queue: &mut VecDeque<Event>, events: &mut Vec<Event>) -> io::Result<bool> {
        let emptied = self.take_events(events)?;
        for event in events.drain(..) {
            let is_http = self.context.shard.sockets().http(id_of(&event)).is_some();
            match is_http {
                true => self.handle(id_of(&event), event.flags),
                false => queue.push_back(event),
            }
        }
        Ok(emptied)
    }

    /// Takes over a connection after its WebSocket upgrade. `rest` are the bytes received after the handshake, and
    /// `head` is the response to it. A bare WebSocket that reads a channel gets the head only when it is a reader.
    /// So the client receives every publication after the handshake.
    pub async fn adopt(
        self: &Rc<Self>,
        fd: OwnedFd,
        tls: Option<Box<Session>>,
        rest: Bytes,
        upgrade: Upgrade,
        head: &Response,
        permit: ConnectionSlot,
    ) {
        let shard = &self.context.shard;
        let form = upgrade.form();
        let Upgrade { caller, seat, ask, session, ticket, heartbeat, deflate } = upgrade;
        let heartbeat_s = self.context.config().heartbeat_s(heartbeat);
        let talk = match (&ask, session) {
            (Some(ask), false) => {
                let channel = ask.channels[0].0.clone();
                let may_publish = caller.may(Right::Publish, &channel).is_ok();
                ConnectionProtocol::Bare { channel, place: Place::default(), may_publish, holder: caller.holder }
            }
            _ => ConnectionProtocol::Session,
        };
        let id = shard.with(|hub, sockets| {
            let id = hub.connect_with(form, heartbeat_s);
            sockets.add_socket(id, fd, tls, talk, deflate.is_some(), ConnectionQuotas::new(permit, seat));
            sockets.grants.put(id, caller.clone());
            id
        });
        let ask = ask.filter(|ask| ask.subscribe);
        let mut head = encode_head(head);
        if session || ask.is_none() {
            shard.with(|hub, sockets| hub.send(id, &std::mem::take(&mut head), sockets));
        }
        if session {
            self.begin_session(id, &caller, ticket.as_deref(), heartbeat_s).await;
        }
        if let Some(ask) = ask {
            let now_ms = shard.engine.now_ms();
            let preamble = |starts: &[millrace_node::Start]| match session {
                true => session::frame(shard, id, &session::subscribed(0, &starts[0], now_ms)),
                false => std::mem::take(&mut head),
            };
            if let Err(error) = shard.subscribe(id, &ask.starts(), ask.policy, preamble).await {
                if session {
                    self.say(id, &encode_reply(0, &Err(error)));
                } else {
                    shard.with(|hub, sockets| hub.send(id, &head, sockets));
                    self.close(id, Broken { code: websocket::CLOSE_TRY_LATER, reason: error.code.name() });
                }
            }
        }
        if !rest.is_empty() {
            self.decode(id, &mut rest.to_vec());
        }
        self.watch(id);
        shard.turn();
    }

    /// Sends the first push of a session, and restores the subscriptions of its resume ticket.
    pub(crate) async fn begin_session(
        &self,
        id: ConnId,
        caller: &Caller,
        ticket: Option<&str>,
        heartbeat_s: Option<NonZeroU16>,
    ) {
        let config = self.context.config();
        let heartbeat = heartbeat_s.map_or(config.heartbeat, |own| Duration::from_secs(own.get().into()));
        let (ping_ms, now_ms) = (heartbeat.as_millis() as u64, self.context.shard.engine.now_ms());
        let verified = ticket.map(|ticket| self.verify_ticket(ticket, caller));
        let resumed = verified.as_ref().map(|verified| verified.as_deref().unwrap_or_default());
        self.say(id, &encode_connected(ping_ms, config.message_bytes_max, now_ms, caller.expires_ms(), resumed));
        match verified {
            Some(Ok(subscriptions)) => self.resume_session(id, subscriptions).await,
            Some(Err(error)) => self.say(id, &encode_reply(0, &Err(error))),
            None => {}
        }
    }

    /// Verifies a resume ticket and returns its subscriptions. A ticket grants no permissions; the caller needs the
    /// permission for each subscription.
    ///
    /// Errors: those of [`TicketKey::verify`](millrace_protocol::ticket::TicketKey::verify); [`Code::Forbidden`].
    fn verify_ticket(&self, ticket: &str, caller: &Caller) -> Result<Vec<Subscription>, Error> {
        let now_ms = self.context.shard.engine.now_ms();
        let subscriptions = self.context.tickets.verify(ticket, caller.grant.subject.as_deref(), now_ms)?;
        subscriptions.iter().try_for_each(|asked| caller.check(Right::Subscribe, &asked.target))?;
        Ok(subscriptions)
    }

    /// Restores all subscriptions of a resume ticket. If one fails, the session is closed, and its client must
    /// subscribe by itself the next time.
    async fn resume_session(&self, id: ConnId, subscriptions: Vec<Subscription>) {
        for subscription in subscriptions {
            if let Err(error) = session::subscribe(&self.context.shard, id, 0, subscription).await {
                let reason = error.code.name();
                self.say(id, &encode_reply(0, &Err(error)));
                return self.close(id, Broken { code: websocket::CLOSE_TRY_LATER, reason });
            }
        }
    }

    /// Takes over a connection whose request asks for a stream. `head` is the response head as far as it is known.
    pub async fn adopt_stream(
        self: &Rc<Self>,
        fd: OwnedFd,
        tls: Option<Box<Session>>,
        mut stream: Stream,
        head: Response,
        permit: ConnectionSlot,
    ) {
        let shard = &self.context.shard;
        let id = shard.with(|hub, sockets| {
            let id = hub.connect_with(stream.form, self.context.config().heartbeat_s(stream.ask.heartbeat));
            let member = ConnectionQuotas::new(permit, stream.seat.take());
            sockets.add_socket(id, fd, tls, ConnectionProtocol::Stream(stream.transport), false, member);
            sockets.grants.put(id, stream.caller.clone());
            id
        });
        if let Err(refusal) = stream.start(shard, id, head, encode_head).await {
            let (head, body) = refusal.into_parts();
            let mut answer = encode_head(&http::Response::from_parts(head, Body::Whole(None)));
            answer.extend(body.into_whole());
            shard.with(|hub, sockets| hub.close(id, &answer, sockets));
        }
        self.watch(id);
        shard.turn();
    }

    /// Enables or disables reads from a connection. A connection is not read while commands are queued, its client
    /// does not read its replies, or the client sends more than can be served.
    pub(crate) fn watch(&self, id: ConnId) {
        self.context.shard.with(|hub, sockets| {
            let Some(waiting) = sockets.waiting(id) else { return };
            let busy =
                waiting.is_some() || self.paused.borrow().contains(&id) || self.slowed.borrow().contains_key(&id);
            let full = sockets.http(id).is_some_and(|http| http.is_full());
            sockets.watch(id, !busy && !full && hub.out_bytes(id) <= OUT_BYTES_MAX);
        });
    }

    /// Prefetches the connections of all events together.
    fn expect(&self, events: &[Event]) {
        let sockets = self.context.shard.sockets();
        events.iter().for_each(|event| sockets.expect(event.data.u64() as u32));
    }

    fn handle(self: &Rc<Self>, id: ConnId, flags: EventFlags) {
        let shard = &self.context.shard;
        if flags.contains(EventFlags::OUT) {
            shard.with(|hub, sockets| {
                let epoll = sockets.epoll();
                let Some(socket) = sockets.socket(id) else { return };
                if socket.unblocked(id, &epoll) {
                    hub.writable(id, sockets);
                }
            });
            self.weigh(id, Direction::Out);
            session::go_on(self, id);
            self.http_sent(id);
            self.watch(id);
        }
        let ends = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let has_more = (ends || flags.contains(EventFlags::IN)) && self.read(id);
        if has_more || ends {
            shard.sockets().rearm(id);
        }
    }

    /// Reads from a connection. Returns true if more bytes may be available.
    fn read(self: &Rc<Self>, id: ConnId) -> bool {
        let mut scratch = self.scratch.borrow_mut();
        let mut most = READ_BYTES;
        let received = {
            let mut sockets = self.context.shard.sockets();
            let Some(socket) = sockets.socket(id) else { return false };
            if socket.is_tls() {
                drop((sockets, scratch));
                return self.read_tls(id);
            }
            match socket.talk {
                ConnectionProtocol::Session if socket.decoder.buffered_bytes() == 0 => most = READ_COMMANDS_BYTES,
                ConnectionProtocol::Http(_) => most = READ_REQUESTS_BYTES,
                _ => {}
            }
            if let ConnectionProtocol::Bare { place, .. } = socket.talk {
                self.context.shard.engine.expect(place);
            }
            rustix::net::recv(socket.fd.as_fd(), &mut scratch[..most], RecvFlags::DONTWAIT)
        };
        match received {
            Ok((1.., length)) => {
                Metrics::add(&self.context.shard.metrics.received_bytes, length as u64);
                self.read_bytes.set(self.read_bytes.get() + length * (READ_BYTES / most));
                self.decode(id, &mut scratch[..length]);
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
    fn read_tls(self: &Rc<Self>, id: ConnId) -> bool {
        let mut plain = self.plain.borrow_mut();
        plain.clear();
        let mut weight = 1;
        let received = {
            let mut sockets = self.context.shard.sockets();
            let Some(socket) = sockets.socket(id) else { return false };
            if matches!(socket.talk, ConnectionProtocol::Session) {
                weight = READ_BYTES / READ_COMMANDS_BYTES;
            }
            socket.read_tls(id, &mut plain, &self.epoll)
        };
        if !plain.is_empty() {
            Metrics::add(&self.context.shard.metrics.received_bytes, plain.len() as u64);
            self.read_bytes.set(self.read_bytes.get() + plain.len() * weight);
            self.decode(id, &mut plain);
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
        let ended = self.context.shard.with(|hub, sockets| {
            let ended = hub.disconnect(id);
            sockets.remove(id);
            ended
        });
        self.read_bytes.set(self.read_bytes.get() + ended * ENDED_BYTES);
    }

    /// Decodes received bytes and handles the messages.
    fn decode(self: &Rc<Self>, id: ConnId, bytes: &mut [u8]) {
        let shard = &self.context.shard;
        let Some((mut decoder, mut talk, deflate)) = shard.with(|hub, sockets| {
            let socket = sockets.socket(id)?;
            // Notify the hub only once per second: the hub's entry of this connection is usually not in the cache.
            if socket.is_news(hub.now_s()) {
                hub.heard(id);
            }
            if let ConnectionProtocol::Stream(_) | ConnectionProtocol::Http(_) = socket.talk {
                return None;
            }
            // Moved, not copied, because the channel name is usually not in the cache either.
            let talk = std::mem::replace(&mut socket.talk, ConnectionProtocol::Session);
            Some((std::mem::take(&mut socket.decoder), talk, socket.deflate))
        }) else {
            return self.http_received(id, bytes);
        };
        let max = self.context.config().message_bytes_max.max(1);
        // The envelope of a session message needs room beside the largest payload, which may be base64.
        let message_bytes_max = if matches!(talk, ConnectionProtocol::Session) { max.saturating_mul(2) } else { max };
        let config = self.context.config();
        let (fragments_max, inflate_ratio_max) = (config.fragments_max, config.inflate_ratio_max);
        let accept = Accept { message_bytes_max, fragments_max, inflate_ratio_max, deflate };
        let held = decoder.buffered_bytes();
        let mut messages = 0;
        let decoded = decoder.decode(bytes, accept, |message| {
            messages += 1;
            self.handle_message(id, &mut talk, message)
        });
        self.send_pongs(id);
        let holds = decoder.buffered_bytes();
        let is_session = matches!(talk, ConnectionProtocol::Session);
        if let Some(socket) = shard.sockets().socket(id) {
            (socket.decoder, socket.talk) = (decoder, talk);
        }
        if held != holds {
            self.weigh(id, Direction::In);
        }
        // Only a session has replies. For other connections this skips the hub entry, which is usually not in the
        // cache.
        if is_session {
            self.weigh(id, Direction::Out);
        }
        self.pace(id, messages);
        if let Err(broken) = decoded {
            self.context.limits.count_broken(broken);
            // Deliver the publications before the broken frame, also to this reader.
            shard.turn();
            self.close(id, broken);
        }
    }

    /// Handles a message. Returns false if no further messages may be decoded.
    fn handle_message(self: &Rc<Self>, id: ConnId, talk: &mut ConnectionProtocol, message: Message<'_>) -> bool {
        if !matches!(message, Message::Ping(_)) {
            self.send_pongs(id);
        }
        match (message, talk) {
            (Message::Text(text), ConnectionProtocol::Session) => session::handle(self, id, text),
            (Message::Binary(_), ConnectionProtocol::Session) => {
                self.close(id, Broken { code: websocket::CLOSE_UNSUPPORTED, reason: "a session speaks text" });
                return false;
            }
            (Message::Text(_) | Message::Binary(_), ConnectionProtocol::Bare { may_publish: false, .. }) => {
                self.close(id, Broken { code: websocket::CLOSE_FORBIDDEN, reason: Code::Forbidden.name() });
                return false;
            }
            (Message::Text(text), ConnectionProtocol::Bare { channel, place, holder, .. }) => {
                self.publish(id, channel, place, NewPublication::new(Kind::Utf8, text).held_by(*holder));
            }
            (Message::Binary(data), ConnectionProtocol::Bare { channel, place, holder, .. }) => {
                self.publish(id, channel, place, NewPublication::new(Kind::Binary, data).held_by(*holder));
            }
            (Message::Text(_) | Message::Binary(_), ConnectionProtocol::Stream(_) | ConnectionProtocol::Http(_)) => {
                return false;
            }
            (Message::Ping(payload), _) => {
                websocket::encode(&mut self.pongs.borrow_mut(), websocket::PONG, payload);
            }
            (Message::Pong, _) => {}
            (Message::Close(code), _) => {
                self.close(id, Broken { code: code.unwrap_or(websocket::CLOSE_NORMAL), reason: "" });
                return false;
            }
        }
        true
    }

    /// Publishes a message of a bare WebSocket. The protocol cannot report a refused publication, so the connection
    /// is closed instead.
    fn publish(self: &Rc<Self>, id: ConnId, channel: &mut ChannelName, place: &mut Place, publication: NewPublication) {
        if let Err(error) = self.owe(id, publication.data.len()) {
            return self.close(id, Broken { code: websocket::CLOSE_TRY_LATER, reason: error.code.name() });
        }
        let answer = self.context.shard.accept_at(place, channel, publication);
        self.slow_down(id, channel);
        match answer {
            Answer::Now(Some(Ok(_))) => {}
            answer => {
                let this = self.clone();
                tokio::task::spawn_local(async move {
                    if let Err(error) = answer.await {
                        this.close(id, Broken { code: websocket::CLOSE_TRY_LATER, reason: error.code.name() });
                    }
                });
            }
        }
    }

    /// Stops reading from this publisher for a moment if the readers of its channel are served late. Its next
    /// messages then wait in the socket buffers, and soon in the publisher itself.
    pub(crate) fn slow_down(self: &Rc<Self>, id: ConnId, channel: &ChannelName) {
        if !self.context.shard.is_congested(channel) || !self.paused.borrow_mut().insert(id) {
            return;
        }
        Metrics::add(&self.context.shard.metrics.publishers_paused, 1);
        self.watch(id);
        if self.paused.borrow().len() == 1 {
            tokio::task::spawn_local(self.clone().resume());
        }
    }

    /// Ends all pauses when no reader is served late any more, or after the maximum time.
    async fn resume(self: Rc<Self>) {
        for _ in 0..PAUSES_MAX {
            tokio::time::sleep(PAUSE).await;
            if !self.context.shard.is_node_congested() {
                break;
            }
        }
        let paused = std::mem::take(&mut *self.paused.borrow_mut());
        paused.into_iter().for_each(|id| self.watch(id));
    }

    /// Sends a text message.
    pub(crate) fn say(&self, id: ConnId, text: &str) {
        session::say(&self.context.shard, id, text);
    }

    pub(crate) fn shard(&self) -> &Rc<Shard> {
        &self.context.shard
    }

    pub(crate) fn context(&self) -> &Rc<Context> {
        &self.context
    }

    pub(crate) fn close(&self, id: ConnId, broken: Broken) {
        self.context.shard.with(|hub, sockets| {
            let Some(form) = hub.form(id) else { return };
            let mut last = Vec::new();
            form.encode_close(&mut last, broken.code, broken.reason);
            hub.close(id, &last, sockets);
        });
    }
}

/// Returns the connection of an event.
fn id_of(event: &Event) -> ConnId {
    let token = event.data.u64();
    ConnId { slot: token as u32, generation: (token >> 32) as u32 }
}
