//! Server-sent events (SSE): the transport that browsers support with `EventSource`.
//!
//! Source: HTML Living Standard, "Server-sent events".

use millrace_protocol::{Encoding, Since, Transport};

use super::stream::Stream;
use crate::{admission::access::Caller, http::ReadRequest};

/// Delay before an `EventSource` reconnects, in milliseconds. A drain sets another delay.
const RETRY_MS: u32 = 2000;

pub fn stream(caller: Caller, request: ReadRequest) -> Stream {
    // The state of a channel needs keys, so its events are envelopes.
    let is_state = request.channels.iter().any(|(_, since)| since.is_some_and(Since::is_state));
    let encoding = match (request.many, is_state) {
        (true, _) => Encoding::SseMany,
        (false, true) => Encoding::SseState,
        (false, false) => Encoding::Sse,
    };
    // An `id:` without data sets the client's position without an event. So even a stream that breaks off before its
    // first message can be resumed.
    let preamble = |_: &_, list: &str| format!("retry: {RETRY_MS}\nid: {list}\n\n").into_bytes();
    Stream {
        caller,
        reader_slot: None,
        request,
        encoding,
        transport: Transport::Sse,
        content_type: "text/event-stream",
        preamble,
    }
}
