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
    future::Future,
    os::fd::OwnedFd,
    rc::Rc,
    task::{Context as TaskContext, Poll as TaskPoll, Waker},
};

use bytes::BytesMut;
use millrace_delivery::{ConnId, WaiterId};
use millrace_node::{Metrics, Woken};
use millrace_protocol::{Encoding, Error, Transport};
use tokio::{net::TcpStream, task::spawn_local, time::Instant};

use super::{http1::serve_http1, server::Server};
use crate::{
    Shard,
    admission::{
        Admission,
        limits::{ConnectionQuotas, ConnectionSlot, Direction, Limit},
    },
    connection::{ConnectionProtocol, Http1Connection, Http1State, HttpClient, UNREAD_BYTES_MAX, boxed},
    http::{Response, SimpleRequest, encode_answer, is_read, problem},
    polling::Poll,
    route::{Handover, Routed, route_read},
    tls::{Parts, Session, Stream},
    transports::stream,
};

/// Parts of a connection that leaves the event loop.
struct Taken {
    fd: OwnedFd,
    tls: Option<Box<Session>>,
    connection_slot: ConnectionSlot,
    served: Rc<HttpClient>,
}

impl Server {
    fn shard(&self) -> &Rc<Shard> {
        &self.context.shard
    }

    fn admission(&self) -> &Admission {
        &self.context.admission
    }

    /// Takes over a connection from hyper whose long poll waits.
    pub(crate) async fn adopt_poll(
        self: &Rc<Self>,
        fd: OwnedFd,
        tls: Option<Box<Session>>,
        http: Http1Connection,
        poll: Box<Poll>,
        connection_slot: ConnectionSlot,
    ) {
        let id = self.shard().with(|hub, sockets| {
            let id = hub.connect(Encoding::WholeResponses);
            sockets.add_socket(
                id,
                fd,
                tls,
                ConnectionProtocol::Http(Box::new(http)),
                false,
                ConnectionQuotas::new(connection_slot, None),
            );
            id
        });
        self.wait(id, poll).await;
        self.serve(id);
        self.event_loop.watch(id);
        self.shard().turn();
    }

    /// Answers the polls that a publication has woken, until the task is dropped.
    pub(crate) async fn answer_woken(self: Rc<Self>) {
        loop {
            for woken in self.shard().woken().await {
                self.woken(woken);
            }
            // Answer one round of polls, then let the connections be read.
            tokio::task::yield_now().await;
        }
    }

    /// Returns true if the event loop can answer the request: a GET that reads channels.
    fn is_read(&self, request: &http::Request<()>) -> bool {
        let (method, path) = (request.method(), request.uri().path());
        is_read(method, path)
            || *method == http::Method::GET && self.context.routes().iter().any(|routes| routes.is_read(path))
    }

    /// Handles the timeouts of connections until the task is dropped.
    pub(crate) async fn keep_time(self: Rc<Self>) {
        loop {
            let id = self.event_loop.timers.next().await;
            self.alarm(id);
        }
    }

    /// Closes the connections that wait for a request, at the end of a drain.
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
            self.event_loop.watch(id);
        }
    }

    /// Handles room in the send buffer of the socket. If the whole response has been sent, serves the next request.
    pub(crate) fn http_sent(self: &Rc<Self>, id: ConnId) {
        let has_left = self.shard().with(|hub, sockets| {
            let is_sending = sockets.http(id).is_some_and(|http| matches!(http.state, Http1State::Sending));
            is_sending && hub.out_bytes(id) == 0 && !sockets.is_pending(id)
        });
        if has_left {
            self.set_state(id, Http1State::Idle);
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
            let simple = simple.filter(|simple| self.is_read(&simple.request));
            let Some(SimpleRequest { mut request, head_bytes, closes }) = simple else {
                return self.hand_back(id, &unread);
            };
            let is_last = served.take(&mut request, &self.admission().limits);
            if let Some(http) = self.shard().sockets().http(id) {
                http.unread.extend_from_slice(&unread[head_bytes..]);
                (http.state, http.closes) = (Http1State::Answering, closes || is_last);
            }
            if was_full {
                self.event_loop.watch(id);
            }
            let (this, parts) = (self.clone(), request.into_parts().0);
            self.start(id, async move {
                let routed = route_read(this.context.clone(), parts).await;
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
            Some(Handover::Stream(wanted)) => {
                let Some(Taken { fd, tls, connection_slot, .. }) = self.take(id) else { return };
                stream::adopt(&self.event_loop, fd, tls, wanted, response, connection_slot).await;
            }
            // Unreachable: a `SimpleRequest` never asks for an upgrade.
            Some(Handover::WebSocket(_) | Handover::Mqtt) => self.end(id),
        }
    }

    /// Makes a poll wait, unless it can be answered now.
    async fn wait(self: &Rc<Self>, id: ConnId, mut poll: Box<Poll>) {
        loop {
            self.shard().wait_conn(id, &poll.channels());
            // Start the wait before reading history, so that no publication in between is missed.
            match poll.look(self.shard(), self.admission()).await {
                Ok(Some(response)) => return self.answer(id, response),
                Err(error) => return self.refuse(id, &error),
                Ok(None) => {}
            }
            let mut sockets = self.shard().sockets();
            let Some(http) = sockets.http(id) else { return };
            if !std::mem::take(&mut http.was_woken) {
                let until = poll.deadline;
                drop(sockets);
                return self.set_state_until(id, Http1State::Polling(poll), until);
            }
        }
    }

    /// Handles a publication for the poll of this connection.
    fn woken(self: &Rc<Self>, Woken { conn: id, since }: Woken) {
        let Some(mut poll) = self.take_poll(id) else {
            if let Some(http) = self.shard().sockets().http(id) {
                http.was_woken = matches!(http.state, Http1State::Answering);
            }
            return;
        };
        let this = self.clone();
        self.start(id, async move {
            match poll.look_again(this.shard(), this.admission()).await {
                Ok(Some(response)) => {
                    this.answer(id, response);
                    if let Some(since) = since {
                        this.shard().socket_metrics.written(Transport::LongPolling, since.elapsed(), 1);
                    }
                }
                Ok(None) => this.wait(id, poll).await,
                Err(error) => this.refuse(id, &error),
            }
        });
        self.serve(id);
    }

    /// Takes the waiting poll out of the connection and sets the state to [`Http1State::Answering`].
    fn take_poll(&self, id: ConnId) -> Option<Box<Poll>> {
        let mut sockets = self.shard().sockets();
        let http = sockets.http(id)?;
        match std::mem::replace(&mut http.state, Http1State::Answering) {
            Http1State::Polling(poll) => Some(poll),
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
        self.admission().limits.count_error(error);
        Metrics::add(&self.shard().socket_metrics.http_errors, 1);
        self.answer(id, problem(error));
    }

    /// Sends the response to the request of this connection.
    fn answer(self: &Rc<Self>, id: ConnId, response: Response) {
        let is_draining = self.admission().is_draining();
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
            Some(true) => self.set_state(id, Http1State::Idle),
            Some(false) => {
                self.set_state(id, Http1State::Sending);
                self.event_loop.update_pending_bytes(id, Direction::Out);
            }
            None => {}
        }
    }

    fn set_state(&self, id: ConnId, state: Http1State) {
        let config = self.admission().config();
        let lasts = if matches!(state, Http1State::Sending) { config.write_timeout } else { config.header_timeout };
        self.set_state_until(id, state, Instant::now() + lasts);
    }

    fn set_state_until(&self, id: ConnId, state: Http1State, until: Instant) {
        let mut sockets = self.shard().sockets();
        let Some(http) = sockets.http(id) else { return };
        (http.state, http.until) = (state, until);
        if http.alarm.is_none_or(|alarm| alarm > until) {
            self.event_loop.timers.set(id, http.alarm.replace(until), until);
        }
    }

    /// Handles a timer of this connection: ends its state if the deadline has passed, or sets the timer again.
    fn alarm(self: &Rc<Self>, id: ConnId) {
        let mut sockets = self.shard().sockets();
        let Some(http) = sockets.http(id) else { return };
        http.alarm = None;
        if http.until > Instant::now() {
            http.alarm = Some(http.until);
            self.event_loop.timers.set(id, None, http.until);
            return;
        }
        let is_sending = matches!(http.state, Http1State::Sending);
        let is_idle = http.is_idle();
        drop(sockets);
        if let Some(poll) = self.take_poll(id) {
            self.answer(id, poll.nothing());
            self.serve(id);
        } else if is_sending {
            self.admission().limits.count(Limit::WriteTimeout);
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
        let ConnectionProtocol::Http(http) = socket.protocol else { return None };
        Some(Taken {
            fd: socket.fd,
            tls: socket.tls,
            connection_slot: member.into_connection_slot(),
            served: http.served.clone(),
        })
    }

    /// Hands the connection back to hyper, which handles the request at the start of `unread`.
    fn hand_back(self: &Rc<Self>, id: ConnId, unread: &[u8]) {
        let Some(Taken { fd, tls, connection_slot, served }) = self.take(id) else { return };
        let Ok(tcp) = TcpStream::from_std(fd.into()) else { return };
        let stream = Stream::from_parts(Parts { tcp, tls, head: BytesMut::from(unread) });
        spawn_local(serve_http1(self.clone(), stream, served, connection_slot));
    }
}
