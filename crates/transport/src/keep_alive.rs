//! HTTP/1.1 connections on the event loop, without hyper: while a long poll waits, and between two polls.
//!
//! ```text
//!   hyper ── a long poll finds nothing ──► Polling ── a publication, or the deadline ──► Sending ──┐ the response
//!     ▲                                       ▲                                             ▲      │ has been sent
//!     │                                       └── no data ── Answering ── response is ready ┘      │
//!     │                                                          ▲                                 ▼
//!     │                                                          └── a GET that reads channels ─ Idle
//!     └── any other request, or an incomplete request ─────────────────────────────────────────────┘
//! ```
//!
//! A waiting poll needs a few hundred bytes here. A hyper connection with its buffers and its task needs over 20,000.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    future::Future,
    os::fd::OwnedFd,
    rc::Rc,
    task::{Context as TaskContext, Poll as TaskPoll, Waker},
};

use bytes::BytesMut;
use http::HeaderMap;
use millrace_delivery::{ConnId, WaiterId};
use millrace_node::Metrics;
use millrace_protocol::{Error, Form};
use tokio::{net::TcpStream, sync::Notify, task::spawn_local, time::Instant};

use crate::{
    http::{Handover, Response, Routed, SimpleRequest, encode_answer, is_read, problem, route_read},
    limits::{ConnectionQuotas, ConnectionSlot, Direction, Limit},
    listener::{self, HttpClient},
    long_polling::Poll,
    tls::{Parts, Session, Stream},
    websocket::{ConnectionProtocol, EventLoop},
};

/// Maximum bytes of later requests buffered while one request is answered. Above it, the connection is not read.
const UNREAD_BYTES_MAX: usize = 16 * 1024;

/// An HTTP/1.1 connection on the event loop.
pub(crate) struct HttpConnection {
    served: Rc<HttpClient>,
    state: State,
    /// True if the connection closes after the response to the current request.
    closes: bool,
    /// True if a publication arrived while the poll was reading history.
    was_woken: bool,
    /// Headers that are added to those of the response itself.
    more: Option<Box<HeaderMap>>,
    /// Bytes received after the request that is being answered.
    unread: Vec<u8>,
    /// Deadline of the current state.
    until: Instant,
    /// Time at which [`ConnectionTimers`] reports this connection; never later than `until`.
    alarm: Option<Instant>,
}

/// Parts of a connection that leaves the event loop.
struct Taken {
    fd: OwnedFd,
    tls: Option<Box<Session>>,
    permit: ConnectionSlot,
    served: Rc<HttpClient>,
}

enum State {
    /// The connection waits for a request, for at most `limits.header_timeout`.
    Idle,
    /// A request is being answered.
    Answering,
    /// A long poll waits for a publication.
    Polling(Box<Poll>),
    /// The client has not read the whole response yet. It has `limits.write_timeout` to do so.
    Sending,
}

impl HttpConnection {
    /// Creates a connection whose request is being answered. The response gets the headers of `head` in addition to
    /// its own. `unread` are the bytes received after the request. If `closes` is true, the connection closes after
    /// the response.
    pub(crate) fn new(served: Rc<HttpClient>, head: Response, unread: &[u8], closes: bool) -> Self {
        Self {
            served,
            state: State::Answering,
            closes,
            was_woken: false,
            more: boxed(head.into_parts().0.headers),
            unread: unread.to_vec(),
            until: Instant::now(),
            alarm: None,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Returns true if the connection should not be read until the request is answered.
    pub(crate) fn is_full(&self) -> bool {
        self.unread.len() > UNREAD_BYTES_MAX
    }

    pub(crate) fn unread_bytes(&self) -> usize {
        self.unread.capacity()
    }

    /// Returns the memory of the connection in bytes, without memory that it shares with others.
    pub(crate) fn bytes(&self) -> usize {
        let poll = if let State::Polling(poll) = &self.state { size_of::<Poll>() + poll.bytes() } else { 0 };
        size_of::<Self>() + self.unread.capacity() + poll
    }
}

fn boxed(more: HeaderMap) -> Option<Box<HeaderMap>> {
    (!more.is_empty()).then(|| Box::new(more))
}

/// Timers of the connections. Each connection has at most one entry. The entry moves only when it has fired, or if
/// it would fire too late.
#[derive(Default)]
pub(crate) struct ConnectionTimers {
    due: RefCell<BTreeSet<(Instant, ConnId)>>,
    earlier: Notify,
}

impl ConnectionTimers {
    fn set(&self, id: ConnId, old: Option<Instant>, at: Instant) {
        let mut due = self.due.borrow_mut();
        if let Some(old) = old {
            due.remove(&(old, id));
        }
        due.insert((at, id));
        if due.first() == Some(&(at, id)) {
            self.earlier.notify_one();
        }
    }

    /// Waits until a connection is due, and returns it. Only one task may call it.
    async fn next(&self) -> ConnId {
        loop {
            let first = self.due.borrow().first().copied();
            let Some((at, id)) = first else {
                self.earlier.notified().await;
                continue;
            };
            if at <= Instant::now() {
                self.due.borrow_mut().remove(&(at, id));
                return id;
            }
            tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = self.earlier.notified() => {}
            }
        }
    }
}

impl EventLoop {
    /// Takes over a connection from hyper whose long poll waits.
    pub(crate) async fn adopt_poll(
        self: &Rc<Self>,
        fd: OwnedFd,
        tls: Option<Box<Session>>,
        http: HttpConnection,
        poll: Box<Poll>,
        permit: ConnectionSlot,
    ) {
        let id = self.shard().with(|hub, sockets| {
            let id = hub.connect(Form::Answers);
            sockets.add_socket(
                id,
                fd,
                tls,
                ConnectionProtocol::Http(Box::new(http)),
                false,
                ConnectionQuotas::new(permit, None),
            );
            id
        });
        self.wait(id, poll).await;
        self.serve(id);
        self.watch(id);
        self.shard().turn();
    }

    /// Answers the polls that a publication has woken, until the task is dropped.
    pub(crate) async fn answer_woken(self: Rc<Self>) {
        loop {
            for id in self.shard().woken().await {
                self.woken(id);
            }
            // Answer one round of polls, then let the connections be read.
            tokio::task::yield_now().await;
        }
    }

    /// Handles the timeouts of connections until the task is dropped.
    pub(crate) async fn keep_time(self: Rc<Self>) {
        loop {
            let id = self.alarms.next().await;
            self.alarm(id);
        }
    }

    /// Closes the connections that wait for a request, because the server drains.
    pub(crate) fn close_idle(&self) {
        let idle = self.shard().sockets().idle_http();
        idle.into_iter().for_each(|id| self.end(id));
    }

    /// Handles received bytes.
    pub(crate) fn http_received(self: &Rc<Self>, id: ConnId, bytes: &[u8]) {
        let is_full = {
            let mut sockets = self.shard().sockets();
            let Some(http) = sockets.http(id) else { return };
            http.unread.extend_from_slice(bytes);
            http.is_full()
        };
        self.serve(id);
        if is_full {
            self.watch(id);
        }
    }

    /// Handles room in the send buffer of the socket. If the whole response has been sent, serves the next request.
    pub(crate) fn http_sent(self: &Rc<Self>, id: ConnId) {
        let has_left = self.shard().with(|hub, sockets| {
            let is_sending = sockets.http(id).is_some_and(|http| matches!(http.state, State::Sending));
            is_sending && hub.out_bytes(id) == 0 && !sockets.is_pending(id)
        });
        if has_left {
            self.set_state(id, State::Idle);
            self.serve(id);
        }
    }

    /// Answers the received requests in order, as long as each is answered without waiting.
    fn serve(self: &Rc<Self>, id: ConnId) {
        loop {
            let (unread, served) = {
                let mut sockets = self.shard().sockets();
                let Some(http) = sockets.http(id) else { return };
                if !http.is_idle() || http.unread.is_empty() {
                    return;
                }
                (std::mem::take(&mut http.unread), http.served.clone())
            };
            let was_full = unread.len() > UNREAD_BYTES_MAX;
            let simple = SimpleRequest::parse(&unread);
            let simple = simple.filter(|simple| is_read(simple.request.method(), simple.request.uri().path()));
            let Some(SimpleRequest { mut request, head_bytes, closes }) = simple else {
                return self.hand_back(id, &unread);
            };
            let is_last = served.take(&mut request, &self.context().limits);
            if let Some(http) = self.shard().sockets().http(id) {
                http.unread.extend_from_slice(&unread[head_bytes..]);
                (http.state, http.closes) = (State::Answering, closes || is_last);
            }
            if was_full {
                self.watch(id);
            }
            let (this, parts) = (self.clone(), request.into_parts().0);
            self.start(id, async move {
                let routed = route_read(this.context().clone(), parts).await;
                this.routed(id, routed).await;
            });
        }
    }

    async fn routed(self: &Rc<Self>, id: ConnId, (response, handover): Routed) {
        match handover {
            None => {
                if let Some(http) = self.shard().sockets().http(id) {
                    http.more = None;
                }
                self.answer(id, response);
            }
            Some(Handover::LongPoll(poll)) => {
                if let Some(http) = self.shard().sockets().http(id) {
                    http.more = boxed(response.into_parts().0.headers);
                }
                self.wait(id, poll).await;
            }
            Some(Handover::Stream(stream)) => {
                let Some(Taken { fd, tls, permit, .. }) = self.take(id) else { return };
                self.adopt_stream(fd, tls, stream, response, permit).await;
            }
            // Unreachable: a `SimpleRequest` never asks for an upgrade.
            Some(Handover::WebSocket(_)) => self.end(id),
        }
    }

    /// Makes a poll wait, unless it can be answered now.
    async fn wait(self: &Rc<Self>, id: ConnId, mut poll: Box<Poll>) {
        loop {
            self.shard().wait_conn(id, &poll.channels());
            // Start the wait before reading history, so that no publication in between is missed.
            match poll.look(self.context()).await {
                Ok(Some(response)) => return self.answer(id, response),
                Err(error) => return self.refuse(id, &error),
                Ok(None) => {}
            }
            let mut sockets = self.shard().sockets();
            let Some(http) = sockets.http(id) else { return };
            if !std::mem::take(&mut http.was_woken) {
                let until = poll.deadline;
                drop(sockets);
                return self.set_state_until(id, State::Polling(poll), until);
            }
        }
    }

    /// Handles a publication for the poll of this connection.
    fn woken(self: &Rc<Self>, id: ConnId) {
        let Some(mut poll) = self.take_poll(id) else {
            if let Some(http) = self.shard().sockets().http(id) {
                http.was_woken = matches!(http.state, State::Answering);
            }
            return;
        };
        let this = self.clone();
        self.start(id, async move {
            match poll.look_again(this.context()).await {
                Ok(Some(response)) => this.answer(id, response),
                Ok(None) => this.wait(id, poll).await,
                Err(error) => this.refuse(id, &error),
            }
        });
        self.serve(id);
    }

    /// Takes the waiting poll out of the connection and sets the state to [`State::Answering`].
    fn take_poll(&self, id: ConnId) -> Option<Box<Poll>> {
        let mut sockets = self.shard().sockets();
        let http = sockets.http(id)?;
        match std::mem::replace(&mut http.state, State::Answering) {
            State::Polling(poll) => Some(poll),
            other => {
                http.state = other;
                None
            }
        }
    }

    /// Runs a step of a connection: at once if it completes without waiting, otherwise as a task. The task then
    /// serves the next request.
    fn start(self: &Rc<Self>, id: ConnId, step: impl Future<Output = ()> + 'static) {
        let mut step = Box::pin(step);
        if step.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) == TaskPoll::Ready(()) {
            return;
        }
        let this = self.clone();
        spawn_local(async move {
            step.await;
            this.serve(id);
            this.shard().turn();
        });
    }

    fn refuse(self: &Rc<Self>, id: ConnId, error: &Error) {
        self.context().limits.count_error(error);
        Metrics::add(&self.shard().metrics.http_errors, 1);
        self.answer(id, problem(error));
    }

    /// Sends the response to the request of this connection.
    fn answer(self: &Rc<Self>, id: ConnId, response: Response) {
        let is_draining = self.context().is_draining();
        let left = self.shard().with(|hub, sockets| {
            hub.forget(WaiterId::Conn(id));
            let http = sockets.http(id)?;
            let closes = http.closes || is_draining;
            let more = http.more.take();
            http.was_woken = false;
            let bytes = encode_answer(response, more.as_deref(), closes);
            match closes {
                true => hub.close(id, &bytes, sockets),
                false => hub.send(id, &bytes, sockets),
            }
            Some(!closes && hub.out_bytes(id) == 0 && !sockets.is_pending(id))
        });
        match left {
            Some(true) => self.set_state(id, State::Idle),
            Some(false) => {
                self.set_state(id, State::Sending);
                self.weigh(id, Direction::Out);
            }
            None => {}
        }
    }

    fn set_state(&self, id: ConnId, state: State) {
        let config = self.context().config();
        let lasts = if matches!(state, State::Sending) { config.write_timeout } else { config.header_timeout };
        self.set_state_until(id, state, Instant::now() + lasts);
    }

    fn set_state_until(&self, id: ConnId, state: State, until: Instant) {
        let mut sockets = self.shard().sockets();
        let Some(http) = sockets.http(id) else { return };
        (http.state, http.until) = (state, until);
        if http.alarm.is_none_or(|alarm| alarm > until) {
            self.alarms.set(id, http.alarm.replace(until), until);
        }
    }

    /// Handles a timer of this connection: ends its state if the deadline has passed, or sets the timer again.
    fn alarm(self: &Rc<Self>, id: ConnId) {
        let mut sockets = self.shard().sockets();
        let Some(http) = sockets.http(id) else { return };
        http.alarm = None;
        if http.until > Instant::now() {
            http.alarm = Some(http.until);
            self.alarms.set(id, None, http.until);
            return;
        }
        let is_sending = matches!(http.state, State::Sending);
        let is_idle = http.is_idle();
        drop(sockets);
        if let Some(poll) = self.take_poll(id) {
            self.answer(id, poll.nothing());
            self.serve(id);
        } else if is_sending {
            self.context().limits.count(Limit::WriteTimeout);
            self.end(id);
        } else if is_idle {
            self.end(id);
        }
    }

    /// Closes the connection. Bytes that the client has not read are dropped.
    fn end(&self, id: ConnId) {
        self.shard().with(|hub, sockets| {
            hub.disconnect(id);
            millrace_node::Sockets::close(sockets, id);
        });
    }

    /// Removes the connection from the event loop and returns its parts.
    fn take(&self, id: ConnId) -> Option<Taken> {
        let (socket, member) = self.shard().with(|hub, sockets| {
            let taken = sockets.take_socket(id);
            hub.disconnect(id);
            taken
        })?;
        let ConnectionProtocol::Http(http) = socket.talk else { return None };
        Some(Taken { fd: socket.fd, tls: socket.tls, permit: member.into_permit(), served: http.served.clone() })
    }

    /// Hands the connection back to hyper, which handles the request at the start of `unread`.
    fn hand_back(self: &Rc<Self>, id: ConnId, unread: &[u8]) {
        let Some(Taken { fd, tls, permit, served }) = self.take(id) else { return };
        let Ok(tcp) = TcpStream::from_std(fd.into()) else { return };
        let stream = Stream::from_parts(Parts { tcp, tls, head: BytesMut::from(unread) });
        spawn_local(listener::serve_http1(self.context().clone(), self.clone(), stream, served, permit));
    }
}
