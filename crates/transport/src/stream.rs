//! Streaming: one response that goes on for ever, one JSON line per publication. SSE streams differ in form and preamble only.
//!
//! Over HTTP/1.1 the socket leaves hyper before the first byte and is written to as a WebSocket is: what a slow reader has not taken yet is
//! nowhere but in the shared log. Over HTTP/2 the stream is a body ([`PipeBody`]).

use http::{HeaderValue, StatusCode, header};
use millrace_delivery::ConnId;
use millrace_node::{Metrics, Start, Transport};
use millrace_protocol::{Error, Form, form::Envelope};

use crate::{
    Shard,
    access::Caller,
    http::{Ask, Body, Context, Response, no_cache, position_header, problem, text},
    limits::Seat,
    sockets::PipeBody,
};

/// A response that goes on for ever, before it has begun.
pub struct Stream {
    pub caller: Caller,
    /// Its place among those of its subject; nobody has asked for one yet.
    pub seat: Option<Seat>,
    pub ask: Ask,
    pub form: Form,
    pub transport: Transport,
    pub content_type: &'static str,
    /// The first bytes, from the starts and their list (`P`, or `a@P,b@Q`).
    pub preamble: fn(&[Start], &str) -> Vec<u8>,
}

pub fn stream(caller: Caller, ask: Ask) -> Stream {
    let (transport, content_type) = (Transport::Stream, "application/x-ndjson");
    if ask.many {
        // `/v1/stream` lists the positions in its first line; a channel's own URL has its position in the response's head.
        let preamble = |starts: &[Start], _: &str| {
            Envelope::many(starts.iter().map(|start| (&start.channel, start.position))).into_line()
        };
        return Stream { caller, seat: None, ask, form: Form::NdjsonMany, transport, content_type, preamble };
    }
    Stream { caller, seat: None, ask, form: Form::Ndjson, transport, content_type, preamble: |_, _| Vec::new() }
}

impl Stream {
    /// The head as far as it is known before the stream starts.
    pub fn head(&self) -> Response {
        let mut head = text(StatusCode::OK, self.content_type, "");
        head.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
        head.headers_mut().remove(header::CONTENT_LENGTH);
        no_cache(&mut head);
        head
    }

    /// Makes the connection a reader; its first bytes are what `first` puts before the preamble, given the whole head.
    ///
    /// Errors: the engine's, as the answer that says so; then the connection reads nothing.
    pub async fn start(
        &self,
        shard: &std::rc::Rc<Shard>,
        conn: ConnId,
        mut head: Response,
        first: impl FnOnce(&Response) -> Vec<u8>,
    ) -> Result<Response, Response> {
        let begin = |starts: &[Start]| {
            let list = list(starts, self.ask.many);
            position_header(&mut head, &list);
            let mut bytes = first(&head);
            bytes.extend((self.preamble)(starts, &list));
            bytes
        };
        match shard.subscribe(conn, &self.ask.starts(), self.ask.policy, begin).await {
            Ok(()) => Ok(head),
            Err(error) => Err(refuse(shard, &error, &head)),
        }
    }

    /// As the body of a response.
    pub async fn respond(mut self, context: &Context, head: Response) -> Response {
        let shard = &context.shard;
        let heartbeat_s = context.config().heartbeat_s(self.ask.heartbeat);
        let conn = shard.with(|hub, _| hub.connect_with(self.form, heartbeat_s));
        // On an error the body is dropped, and the connection with it.
        let body = PipeBody::new(shard, conn, self.transport, self.seat.take());
        shard.sockets().grants.put(conn, self.caller.clone());
        match self.start(shard, conn, head, |_| Vec::new()).await {
            Ok(head) => head.map(|_| Body::Pipe(body)),
            Err(refusal) => refusal,
        }
    }
}

/// `P`, or of several channels `a@P,b@Q`.
pub fn list(starts: &[Start], many: bool) -> String {
    match starts {
        [only] if !many => only.position.to_string(),
        all => all.iter().map(|start| format!("{}@{}", start.channel, start.position)).collect::<Vec<_>>().join(","),
    }
}

/// What else was said in the head (which origins may read it) holds for the refusal, too.
fn refuse(shard: &Shard, error: &Error, head: &Response) -> Response {
    Metrics::add(&shard.metrics.http_errors, 1);
    let mut refusal = problem(error);
    for (name, value) in head.headers() {
        if *name == header::VARY || name.as_str().starts_with("access-control-") {
            refusal.headers_mut().append(name, value.clone());
        }
    }
    refusal
}
