//! Server-sent events: the transport that `EventSource` speaks by itself.
//!
//! Source: HTML Living Standard, "Server-sent events".

use millrace_node::{Start, Transport};
use millrace_protocol::{Error, Form};

use crate::{
    http::{Ask, Context, Response},
    stream,
};

/// What an `EventSource` waits before it connects again, unless a drain says otherwise, in milliseconds.
const RETRY_MS: u32 = 2000;

pub async fn answer(context: &Context, ask: &Ask) -> Result<Response, Error> {
    let form = if ask.many { Form::SseMany } else { Form::Sse };
    // An `id:` without data moves the client's position without an event: even a stream that is cut before its first message resumes.
    let preamble = |_: &[Start], list: &str| format!("retry: {RETRY_MS}\nid: {list}\n\n").into_bytes();
    stream::open(context, ask, form, Transport::Sse, "text/event-stream", preamble).await
}
