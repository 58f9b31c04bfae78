//! Server-sent events: the transport that `EventSource` speaks by itself.
//!
//! Source: HTML Living Standard, "Server-sent events".

use millrace_node::Transport;
use millrace_protocol::Form;

use crate::{access::Caller, http::Ask, stream::Stream};

/// What an `EventSource` waits before it connects again, unless a drain says otherwise, in milliseconds.
const RETRY_MS: u32 = 2000;

pub fn stream(caller: Caller, ask: Ask) -> Stream {
    let form = if ask.many { Form::SseMany } else { Form::Sse };
    // An `id:` without data moves the client's position without an event: even a stream that is cut before its first message resumes.
    let preamble = |_: &_, list: &str| format!("retry: {RETRY_MS}\nid: {list}\n\n").into_bytes();
    Stream { caller, seat: None, ask, form, transport: Transport::Sse, content_type: "text/event-stream", preamble }
}
