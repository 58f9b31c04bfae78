//! `durable-streams`: the Durable Streams protocol in Rust, with one URL per stream, over server-sent events and long
//! polling. `scripts/durable-streams.sh` builds it with `cargo install`. The streams contain text: a reader gets the
//! appended messages one after the other, as the log stores them.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, ensure};

use crate::{
    load::{
        Dialect, Event,
        http::{Answer, Part, Poster, Stream, get, put},
        sse,
        websocket::between,
    },
    targets::{
        ClientOptions, Options, Server, Target, Transport, install,
        process::{Ready, free_address},
    },
};

/// Same version as in `scripts/durable-streams.sh`.
const VERSION: &str = "0.1.5";
const PROGRAM: &str = "durable-streams-server";
const TEXT: &str = "Content-Type: text/plain\r\n";

pub struct DurableStreams;

impl Target for DurableStreams {
    fn name(&self) -> &'static str {
        "durable-streams"
    }

    /// Returns the pinned version, or the path of another program. The program does not print its version.
    fn version(&self, options: &Options) -> anyhow::Result<String> {
        let program = program(options)?;
        let built = built(options);
        Ok(if program == built { format!("durable-streams {VERSION}") } else { program.display().to_string() })
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::Sse, Transport::LongPolling]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        let (folder, address) = (tempfile::tempdir()?, free_address()?);
        let mut command = Command::new(program(options)?);
        command.args(["--host", "127.0.0.1", "--port", &address.port().to_string(), "--data-dir"]);
        command.arg(folder.path().join("data"));
        Server::start(command, Ready::Accepts(address), folder, options)
    }

    fn dialect(&self, transport: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        let path = format!("/{}", ask.channel);
        let inner: Box<dyn Dialect> = match transport {
            _ if ask.role.publishes() => Box::new(Poster::new(&path, TEXT)),
            Transport::Sse => Box::new(Tail::new(&path)),
            _ => Box::new(LongPoll::new(&path)),
        };
        Box::new(Creating { path, inner, is_created: false })
    }
}

/// Errors: the program is not built yet. The error names the script that builds it.
fn program(options: &Options) -> anyhow::Result<PathBuf> {
    let built = Some(built(options)).filter(|program| program.is_file());
    install::find(options, "durable-streams", PROGRAM).or(built).context(
        "durable-streams is not built yet: run scripts/durable-streams.sh (it takes a few minutes), or name the binary \
         (durable-streams=PATH, or MILLRACE_DURABLE_STREAMS)",
    )
}

/// Returns the path at which the script installs the program.
fn built(options: &Options) -> PathBuf {
    options.cache.join("durable-streams").join(VERSION).join("bin").join(PROGRAM)
}

/// Creates the stream before the inner dialect starts. A stream that already exists is no error.
struct Creating {
    path: String,
    inner: Box<dyn Dialect>,
    is_created: bool,
}

impl Dialect for Creating {
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        self.is_created = false;
        put(&self.path, TEXT, out);
        false
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        if self.is_created {
            return self.inner.feed(bytes, now_ns, out, emit);
        }
        let Some(answer) = Answer::read(bytes)? else { return Ok(0) };
        answer.check()?;
        self.is_created = true;
        if self.inner.open(out) {
            emit(Event::Ready);
        }
        Ok(answer.used + self.inner.feed(&bytes[answer.used..], now_ns, out, emit)?)
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.inner.publish(payload, out);
    }

    fn can_publish(&self) -> bool {
        self.is_created && self.inner.can_publish()
    }
}

/// Reports the messages in a piece of the log. A message contains `]` only as its last byte.
fn messages(log: &[u8], emit: &mut dyn FnMut(Event<'_>)) {
    for message in log.split_inclusive(|byte| *byte == b']') {
        emit(Event::Message(message));
    }
}

/// Server-sent events: `data` is a piece of the log, `control` contains the offset of its end. Ready after the first
/// `control`.
struct Tail {
    path: String,
    stream: Stream,
    has_begun: bool,
    is_ready: bool,
    offset: Vec<u8>,
}

impl Tail {
    fn new(path: &str) -> Self {
        Self { path: path.into(), stream: Stream::default(), has_begun: false, is_ready: false, offset: b"now".into() }
    }
}

impl Dialect for Tail {
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        self.stream.reset();
        (self.has_begun, self.is_ready) = (false, false);
        let offset = String::from_utf8_lossy(&self.offset);
        get(&format!("{}?offset={offset}&live=sse", self.path), "Accept: text/event-stream\r\n", out);
        false
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        _: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let (has_begun, is_ready, offset) = (&mut self.has_begun, &mut self.is_ready, &mut self.offset);
        let used = self.stream.feed(bytes, &mut |part| match part {
            Part::Head(_) => Ok(0),
            Part::Body(body) => Ok(sse::events(body, has_begun, |event| match (event.name, event.data) {
                (Some(b"data"), Some(log)) => messages(&log, emit),
                (Some(b"control"), Some(control)) => {
                    if let Some(next) = between(&control, b"\"streamNextOffset\":\"", b"\"") {
                        offset.clear();
                        offset.extend_from_slice(next);
                    }
                    if !std::mem::replace(is_ready, true) {
                        emit(Event::Ready);
                    }
                }
                _ => {}
            })),
        })?;
        if self.stream.is_over() {
            emit(Event::Closed);
        }
        Ok(used)
    }

    fn publish(&mut self, _: &[u8], _: &mut Vec<u8>) {
        unreachable!("a reader of server-sent events does not publish");
    }
}

/// Long polling. The first request returns the end of the log; each next request waits for data after the last
/// response.
struct LongPoll {
    path: String,
    offset: String,
}

impl LongPoll {
    fn new(path: &str) -> Self {
        Self { path: path.into(), offset: String::new() }
    }

    fn ask(&self, out: &mut Vec<u8>) {
        let query =
            if self.offset.is_empty() { "offset=now" } else { &format!("offset={}&live=long-poll", self.offset) };
        get(&format!("{}?{query}", self.path), "", out);
    }
}

impl Dialect for LongPoll {
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        self.ask(out);
        !self.offset.is_empty()
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let mut at = 0;
        while let Some(answer) = Answer::read(&bytes[at..])? {
            at += answer.used;
            answer.check()?;
            let is_first = self.offset.is_empty();
            self.offset.clear();
            self.offset.push_str(answer.head.header("stream-next-offset").context("an answer without an offset")?);
            ensure!(!self.offset.is_empty(), "an answer with an empty offset");
            messages(&answer.body, emit);
            if is_first {
                emit(Event::Ready);
            }
            self.ask(out);
        }
        Ok(at)
    }

    fn publish(&mut self, _: &[u8], _: &mut Vec<u8>) {
        unreachable!("a polling reader does not publish");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::{Role, script::in_pieces};

    const CREATED: &str = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";

    fn dialect(transport: Transport, role: Role) -> Box<dyn Dialect> {
        DurableStreams.dialect(transport, &ClientOptions { role, channel: "lab/all", poll_every: Duration::ZERO })
    }

    #[test]
    fn long_poll_continues_after_last_answer() {
        let script = format!(
            "{CREATED}HTTP/1.1 200 OK\r\nStream-Next-Offset: 0_0\r\nContent-Length: 0\r\n\r\n\
             HTTP/1.1 200 OK\r\nStream-Next-Offset: 0_10\r\nContent-Length: 10\r\n\r\n[\"a\"][\"b\"]\
             HTTP/1.1 204 No Content\r\nStream-Next-Offset: 0_10\r\n\r\n"
        );
        let heard = in_pieces(|| dialect(Transport::LongPolling, Role::Subscriber), script.as_bytes());
        assert_eq!(heard.events, ["Ready", "[\"a\"]", "[\"b\"]"]);
        let asked: Vec<&str> = heard.sent.lines().filter(|line| line.ends_with("HTTP/1.1")).collect();
        assert_eq!(
            asked,
            [
                "PUT /lab/all HTTP/1.1",
                "GET /lab/all?offset=now HTTP/1.1",
                "GET /lab/all?offset=0_0&live=long-poll HTTP/1.1",
                "GET /lab/all?offset=0_10&live=long-poll HTTP/1.1",
                "GET /lab/all?offset=0_10&live=long-poll HTTP/1.1"
            ]
        );
    }

    #[test]
    fn event_stream_resumes_at_last_control() {
        let control =
            |at: &str| format!("event: control\ndata:{{\"streamNextOffset\":\"{at}\",\"upToDate\":true}}\n\n");
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        let script =
            format!("{CREATED}{head}{}event: data\ndata:[\"a\"][\"b\"]\n\n{}", control("0_0"), control("0_10"));
        let heard = in_pieces(|| dialect(Transport::Sse, Role::Subscriber), script.as_bytes());
        assert_eq!(heard.events, ["Ready", "[\"a\"]", "[\"b\"]"]);
        let (mut tail, mut out) = (Tail::new("/c"), Vec::new());
        let stream = script.split_once(CREATED).expect("the response to the creation").1;
        tail.feed(stream.as_bytes(), 0, &mut out, &mut |_| {}).expect("a good script");
        tail.open(&mut out);
        assert!(out.starts_with(b"GET /c?offset=0_10&live=sse HTTP/1.1\r\n"));
    }

    #[test]
    fn publisher_waits_for_its_stream() {
        let (mut publisher, mut out) = (dialect(Transport::Sse, Role::Publisher), Vec::new());
        assert!(!publisher.open(&mut out) && !publisher.can_publish());
        let mut ready = 0;
        publisher
            .feed(CREATED.as_bytes(), 0, &mut out, &mut |event| ready += usize::from(event == Event::Ready))
            .unwrap();
        assert!(ready == 1 && publisher.can_publish());
        let refused = b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n";
        publisher.open(&mut out);
        assert!(publisher.feed(refused, 0, &mut out, &mut |_| {}).is_err());
    }
}
