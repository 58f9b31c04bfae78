//! Streaming: one response that goes on for ever, one JSON line per publication. SSE opens its streams here, too.

use http::{HeaderValue, StatusCode, header};
use millrace_node::{Start, Transport};
use millrace_protocol::{Error, Form, form::Envelope};

use crate::{
    http::{Ask, Body, Context, Response, no_cache, position_header, text},
    sockets::PipeBody,
};

pub async fn answer(context: &Context, ask: &Ask) -> Result<Response, Error> {
    let form = if ask.many { Form::NdjsonMany } else { Form::Ndjson };
    // `/v1/stream` lists the positions in its first line; a channel's own URL has its position in the response's head.
    let preamble = |starts: &[Start], _: &str| match form {
        Form::NdjsonMany => Envelope::many(starts.iter().map(|start| (&start.channel, start.position))).into_line(),
        _ => Vec::new(),
    };
    open(context, ask, form, Transport::Stream, "application/x-ndjson", preamble).await
}

/// A response whose body is a connection of the hub.
///
/// Errors: the engine's. `preamble` makes the first bytes from the starts and their list (`P`, or `a@P,b@Q`).
pub async fn open(
    context: &Context,
    ask: &Ask,
    form: Form,
    transport: Transport,
    content_type: &'static str,
    preamble: impl FnOnce(&[Start], &str) -> Vec<u8>,
) -> Result<Response, Error> {
    let shard = &context.shard;
    let conn = shard.with(|hub, _| hub.connect(form));
    let body = PipeBody::new(shard, conn, transport);
    let mut list = String::new();
    let first = |starts: &[Start]| {
        list = match starts {
            [only] if !ask.many => only.position.to_string(),
            all => {
                all.iter().map(|start| format!("{}@{}", start.channel, start.position)).collect::<Vec<_>>().join(",")
            }
        };
        preamble(starts, &list)
    };
    // On an error the body is dropped, and the connection with it.
    shard.subscribe(conn, &ask.starts(), ask.policy, first).await?;
    let mut response = text(StatusCode::OK, content_type, "").map(|_| Body::Pipe(body));
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response.headers_mut().remove(header::CONTENT_LENGTH);
    no_cache(&mut response);
    position_header(&mut response, &list);
    Ok(response)
}
