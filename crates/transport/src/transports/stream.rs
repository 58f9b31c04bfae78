//! Streaming: a response without an end, with one JSON line per publication. SSE streams differ only in encoding and
//! preamble.
//!
//! Over HTTP/1.1 the socket leaves hyper before the first byte and is written to like a WebSocket. The backlog of a
//! slow reader exists only in the shared log. Over HTTP/2 the stream is a response body ([`PipeBody`]).

use std::{os::fd::OwnedFd, rc::Rc};

use http::{HeaderValue, StatusCode, header};
use millrace_delivery::ConnId;
use millrace_node::{Metrics, Start};
use millrace_protocol::{Encoding, Error, Transport, encoding::Envelope};

use crate::{
    Shard,
    accept::limit_unacknowledged,
    admission::{
        Admission,
        access::Caller,
        limits::{ConnectionQuotas, ConnectionSlot, ReaderSlot},
    },
    connection::{ConnectionProtocol, EventLoop, PipeBody},
    http::{Body, ReadRequest, Response, encode_head, no_cache, position_header, problem, text},
    tls::Session,
};

/// A streaming response that has not started yet.
pub struct Stream {
    pub caller: Caller,
    /// Slot of the reader in the quota of its subject; `None` until it is reserved.
    pub reader_slot: Option<ReaderSlot>,
    pub request: ReadRequest,
    pub encoding: Encoding,
    pub transport: Transport,
    pub content_type: &'static str,
    /// Encodes the first bytes of the stream. Its arguments are the start positions and their list (`P`, or
    /// `a@P,b@Q`).
    pub preamble: fn(&[Start], &str) -> Vec<u8>,
}

pub fn stream(caller: Caller, request: ReadRequest) -> Stream {
    let (transport, content_type) = (Transport::Stream, "application/x-ndjson");
    if request.many {
        // `/v1/stream` lists the positions in its first line. The URL of a single channel has its position in the
        // response head.
        let preamble = |starts: &[Start], _: &str| {
            Envelope::many(starts.iter().map(|start| (&start.channel, start.position))).into_line()
        };
        return Stream {
            caller,
            reader_slot: None,
            request,
            encoding: Encoding::NdjsonMany,
            transport,
            content_type,
            preamble,
        };
    }
    Stream {
        caller,
        reader_slot: None,
        request,
        encoding: Encoding::Ndjson,
        transport,
        content_type,
        preamble: |_, _| Vec::new(),
    }
}

impl Stream {
    /// Returns the part of the head that is known before the stream starts.
    pub fn head(&self) -> Response {
        let mut head = text(StatusCode::OK, self.content_type, "");
        head.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
        head.headers_mut().remove(header::CONTENT_LENGTH);
        no_cache(&mut head);
        head
    }

    /// Subscribes the connection. Its first bytes are the result of `first`, which receives the complete head, and
    /// then the preamble.
    ///
    /// Errors: the response to send if the engine fails; then the connection has no subscription.
    pub async fn start(
        &self,
        shard: &Rc<Shard>,
        conn: ConnId,
        mut head: Response,
        first: impl FnOnce(&Response) -> Vec<u8>,
    ) -> Result<Response, Response> {
        let begin = |starts: &[Start]| {
            let list = list(starts, self.request.many);
            position_header(&mut head, &list);
            let mut bytes = first(&head);
            bytes.extend((self.preamble)(starts, &list));
            bytes
        };
        match shard.subscribe(conn, &self.request.starts(), self.request.policy, begin).await {
            Ok(()) => Ok(head),
            Err(error) => Err(refuse(shard, &error, &head)),
        }
    }

    /// Starts the stream as the body of a response.
    pub async fn respond(mut self, shard: &Rc<Shard>, admission: &Admission, head: Response) -> Response {
        let heartbeat_s = admission.config().heartbeat_s(self.request.heartbeat);
        let conn = shard.with(|hub, _| hub.connect_with(self.encoding, heartbeat_s));
        // On an error the body is dropped, which also removes the connection.
        let body = PipeBody::new(shard, conn, self.transport, self.reader_slot.take());
        shard.sockets().set_caller(conn, self.caller.clone(), self.transport);
        match self.start(shard, conn, head, |_| Vec::new()).await {
            Ok(head) => head.map(|_| Body::Stream(Box::pin(body))),
            Err(refusal) => refusal,
        }
    }
}

/// Takes over a connection whose request asks for a stream. `head` is the response head as far as it is known.
pub async fn adopt(
    event_loop: &Rc<EventLoop>,
    fd: OwnedFd,
    tls: Option<Box<Session>>,
    mut stream: Stream,
    head: Response,
    connection_slot: ConnectionSlot,
) {
    let shard = event_loop.shard();
    let id = shard.with(|hub, sockets| {
        let config = event_loop.admission().config();
        let id = hub.connect_with(stream.encoding, config.heartbeat_s(stream.request.heartbeat));
        limit_unacknowledged(&fd, config.unacknowledged_max(stream.request.heartbeat));
        let member = ConnectionQuotas::new(connection_slot, stream.reader_slot.take());
        sockets.add_socket(id, fd, tls, ConnectionProtocol::Stream(stream.transport), false, member);
        sockets.set_caller(id, stream.caller.clone(), stream.transport);
        id
    });
    if let Err(refusal) = stream.start(shard, id, head, encode_head).await {
        let (head, body) = refusal.into_parts();
        let mut answer = encode_head(&http::Response::from_parts(head, Body::Whole(None)));
        answer.extend(body.into_whole());
        shard.with(|hub, sockets| hub.close(id, &answer, sockets));
    }
    event_loop.watch(id);
    shard.turn();
}

/// Formats positions: `P`, or for several channels `a@P,b@Q`.
pub fn list(starts: &[Start], many: bool) -> String {
    match starts {
        [only] if !many => only.position.to_string(),
        all => all.iter().map(|start| format!("{}@{}", start.channel, start.position)).collect::<Vec<_>>().join(","),
    }
}

/// Returns the response to a failed start. It keeps the CORS headers of the original head.
fn refuse(shard: &Shard, error: &Error, head: &Response) -> Response {
    Metrics::add(&shard.socket_metrics.http_errors, 1);
    let mut refusal = problem(error);
    for (name, value) in head.headers() {
        if *name == header::VARY || name.as_str().starts_with("access-control-") {
            refusal.headers_mut().append(name, value.clone());
        }
    }
    refusal
}
