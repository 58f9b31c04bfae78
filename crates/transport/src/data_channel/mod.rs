//! WebRTC data channels: the offer arrives by `POST /v1/connect`, then datagrams arrive on the shard's own port.
//!
//! - this file: answers the offer, and passes received data to the session
//! - [`peers`]: the peers of a shard, by address and by ICE name; incoming datagrams, timers, outgoing datagrams
//! - [`lane`]: the send queue of one channel
//! - [`datagrams`]: sends and receives datagrams in batches
//! - [`streams`]: datagrams over TCP
//! - [`config`]: listen addresses and limits
//!
//! Channel `millrace` is a stream of lines, independent of message boundaries: each line is a command, a reply or a
//! push of the session. Channel `latest` is unreliable: each message is its number followed by whole lines. All
//! received datagrams are handled before any are sent, because acknowledgments make room for more data.
//!
//! Source: docs/reference/protocol.md, "Data channels"; docs/adr/0006.

mod config;
mod datagrams;
mod lane;
mod peers;
mod streams;

use std::{io, rc::Rc, time::Instant};

use http::{HeaderValue, StatusCode, header, request::Parts};
use hyper::body::Incoming;
use millrace_delivery::ConnId;
use millrace_node::Metrics;
use millrace_protocol::{
    Code, Error, Form,
    websocket::{self, Broken},
};
use millrace_rtc::{Event, Lane};
use tokio::{
    io::Interest,
    net::{TcpListener, UdpSocket},
    task::JoinSet,
};

pub use config::{Config, Port};
pub use peers::{Datagram, PeerId, Peers};

use crate::{
    access::Caller,
    http::{Context, Query, Response, read_body, text},
    limits::{ConnectionQuotas, ConnectionSlot, Direction, ReaderSlot, RequestConnection},
    media, session,
    websocket::EventLoop,
};
use datagrams::BATCH;

/// Maximum size of an offer, in bytes. A browser with a camera, a microphone and every codec sends about 10 KiB.
const OFFER_BYTES_MAX: usize = 64 * 1024;
const SDP: &str = "application/sdp";
/// Maximum number of datagrams received before other tasks run.
const TURN_DATAGRAMS: usize = 1024;

/// State of a connecting client, from its offer until its channel opens.
pub struct Guests {
    pub caller: Caller,
    pub ticket: Option<String>,
    pub permit: ConnectionSlot,
    pub seat: Option<ReaderSlot>,
}

/// Answers an offer. The new peer must open its channel before a timeout.
///
/// Errors: `not_found` if data channels are disabled, `bad_request`, `too_large`, `too_many`, `unavailable` if there
/// are too many peers, and the other errors of a connection.
pub async fn answer(context: &Context, parts: &Parts, body: &mut Incoming, caller: Caller) -> Result<Response, Error> {
    Query::parse(parts, &[])?;
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(SDP) {
        let detail =
            "a POST brings an offer for data channels, as `Content-Type: application/sdp`; a WebSocket comes by GET";
        return Err(Error::new(Code::BadRequest, detail));
    }
    let has_port = context.shard.sockets().peers.as_ref().map(|peers| peers.is_full());
    match has_port {
        None => {
            return Err(Error::new(
                Code::NotFound,
                "this server speaks no data channels; `rtc.listen` says where it would",
            ));
        }
        Some(true) => return Err(Error::new(Code::Unavailable, "this server has as many peers as it may; try again")),
        Some(false) => {}
    }
    let guest = parts.extensions.get::<std::sync::Arc<RequestConnection>>();
    let Some(address) = guest.map(|guest| guest.address) else {
        return Err(Error::new(Code::BadRequest, "the address of the request is not known"));
    };
    let permit = context.limits.connect(address)?;
    let seat = context.admit(parts, &caller)?;
    let ticket = parts.headers.get("millrace-resume").and_then(|ticket| ticket.to_str().ok()).map(str::to_owned);
    let offer = read_body(context, &parts.headers, body, OFFER_BYTES_MAX).await?;
    let offer = std::str::from_utf8(&offer).map_err(|_| Error::new(Code::BadRequest, "the offer is not UTF-8"))?;
    let guests = Guests { caller, ticket, permit, seat };
    let mut sockets = context.shard.sockets();
    let peers = sockets.peers.as_mut().ok_or_else(|| Error::new(Code::Unavailable, "the port has gone"))?;
    let answer = peers.answer(offer, guests, Instant::now())?;
    let mut response = text(StatusCode::CREATED, SDP, answer);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Opens a shard's port. The returned future serves the port until it is dropped.
///
/// Errors: the runtime cannot watch the socket.
pub fn serve(event_loop: Rc<EventLoop>, port: Port) -> io::Result<impl Future<Output = ()>> {
    let socket = Rc::new(UdpSocket::from_std(port.socket)?);
    let streams = port.streams.map(TcpListener::from_std).transpose()?;
    let context = event_loop.context().clone();
    let peers = Peers::new(socket.clone(), port.candidates, port.peers_max, context.shard.metrics.clone());
    let awake = peers.awake();
    context.shard.sockets().peers = Some(Box::new(peers));
    context.rooms.set_switch(Rc::new(media::Participants));
    Ok(async move {
        // Dropped with this future, which ends the task.
        let mut accepting = JoinSet::new();
        if let Some(listener) = streams {
            accepting.spawn_local(streams::accept(context.clone(), listener));
        }
        let driver = Driver { event_loop, context };
        loop {
            let (timeout, is_stuck) = driver.with_peers(|peers| (peers.timeout(), peers.is_stuck()));
            tokio::select! {
                biased;
                _ = socket.ready(Interest::READABLE) => {}
                _ = awake.notified() => {}
                () = due(timeout) => {}
                _ = socket.ready(Interest::WRITABLE), if is_stuck => {}
            }
            driver.turn();
            tokio::task::yield_now().await;
        }
    })
}

/// Waits until the timeout. Without one it waits forever, and the runtime needs no timer.
async fn due(timeout: Option<Instant>) {
    match timeout {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

struct Driver {
    event_loop: Rc<EventLoop>,
    context: Rc<Context>,
}

impl Driver {
    fn with_peers<T>(&self, work: impl FnOnce(&mut Peers) -> T) -> T {
        let mut sockets = self.context.shard.sockets();
        work(sockets.peers.as_mut().expect("set before this began, and never taken away"))
    }

    /// Runs one turn: receives datagrams, handles timeouts, then sends.
    fn turn(&self) {
        let shard = &self.context.shard;
        let mailbox = shard.mailbox();
        mailbox.attend();
        let mut taken = 0;
        loop {
            let received = self.with_peers(|peers| peers.receive(&self.context.limits));
            self.handle_events();
            taken += received;
            if received < BATCH || taken >= TURN_DATAGRAMS {
                break;
            }
        }
        self.with_peers(|peers| peers.handle_timeouts(Instant::now()));
        self.handle_events();
        shard.turn();
        mailbox.leave();
        self.with_peers(|peers| peers.flush(&self.context.limits));
        // A failed write may have removed peers.
        self.handle_events();
        media::handle_events(&self.context);
    }

    fn handle_events(&self) {
        loop {
            let Some((peer, event)) = self.with_peers(Peers::poll_event) else { return };
            match event {
                peers::PeerEvent::Event(Event::Open(lane)) => self.open(peer, lane),
                peers::PeerEvent::Event(Event::Data(Lane::Session, data)) => self.read(peer, data),
                peers::PeerEvent::Resume => self.read(peer, Vec::new()),
                peers::PeerEvent::Writable(lane) => {
                    if let Some(id) = self.with_peers(|peers| peers.conn(peer, lane)) {
                        self.context.shard.with(|hub, sockets| hub.writable(id, sockets));
                        if lane == Lane::Session {
                            self.event_loop.weigh(id, Direction::Out);
                            session::go_on(&self.event_loop, id);
                            self.event_loop.watch(id);
                        }
                    }
                }
                peers::PeerEvent::Gone(conns) => self.context.shard.with(|hub, sockets| {
                    for id in conns.into_iter().flatten() {
                        hub.disconnect(id);
                        sockets.remove(id);
                    }
                }),
                peers::PeerEvent::Event(Event::Closed) => self.with_peers(|peers| peers.remove(peer)),
                // Data on the other channel is ignored: it carries no commands.
                peers::PeerEvent::Event(_) => {}
            }
        }
    }

    fn open(&self, peer: PeerId, lane: Lane) {
        let guests = self.with_peers(|peers| peers.open(peer, lane));
        let Some(guests) = guests else { return self.open_latest(peer) };
        let Guests { caller, ticket, permit, seat } = guests;
        let shard = &self.context.shard;
        let id = shard.with(|hub, sockets| {
            let id = hub.connect(Form::Lines);
            sockets.add_peer(id, peer, Lane::Session, Some(ConnectionQuotas::new(permit, seat)));
            sockets.grants.put(id, caller.clone());
            id
        });
        self.with_peers(|peers| peers.connect(peer, Lane::Session, id));
        self.open_latest(peer);
        let event_loop = self.event_loop.clone();
        tokio::task::spawn_local(async move {
            // Received data stays unread until the session has begun.
            event_loop.begin_session(id, &caller, ticket.as_deref(), None).await;
            event_loop.watch(id);
            event_loop.shard().turn();
        });
    }

    /// Opens the unreliable channel's connection once both the session and the channel are open.
    fn open_latest(&self, peer: PeerId) {
        if self.with_peers(|peers| peers.wants_latest(peer)) {
            let id = self.context.shard.with(|hub, sockets| {
                let id = hub.connect(Form::Lines);
                sockets.add_peer(id, peer, Lane::Latest, None);
                id
            });
            self.with_peers(|peers| peers.connect(peer, Lane::Latest, id));
        }
    }

    /// Handles data received on the session channel. Every whole line is a command.
    fn read(&self, peer: PeerId, data: Vec<u8>) {
        Metrics::add(&self.context.shard.metrics.received_bytes, data.len() as u64);
        // A session's envelope needs room around the largest payload, which may be base64.
        let max = self.context.config().message_bytes_max.max(1).saturating_mul(2);
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
        self.event_loop.weigh(id, Direction::In);
        self.event_loop.weigh(id, Direction::Out);
        self.event_loop.pace(id, messages);
    }

    fn refuse(&self, id: ConnId, code: u16, reason: &'static str) {
        let broken = Broken { code, reason };
        self.context.limits.count_broken(broken);
        self.event_loop.close(id, broken);
    }
}
