//! HTTP/1.1 client: requests, complete responses, and endless bodies. Contains the usual dialects to read
//! (server-sent events) and to publish (`POST`).

use std::{
    fmt,
    io::{Read, Write},
    net::TcpStream,
};

use anyhow::{Context, bail, ensure};
use memchr::memchr;

use super::{
    dialect::{Dialect, Event},
    payload::payloads,
    sse,
};

/// Maximum size of a response head.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of unanswered requests on one publishing connection. More requests would only wait in the server
/// instead of here.
const PIPELINED_MAX: usize = 32;

/// Maximum number of headers of a response.
const HEADERS_MAX: usize = 64;

/// Head of a response.
#[derive(Debug, PartialEq, Eq)]
pub struct Head<'a> {
    pub status: u16,
    reason: &'a str,
    headers: [httparse::Header<'a>; HEADERS_MAX],
    pub body_at: usize,
    pub framing: Framing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

impl<'a> Head<'a> {
    /// Returns the head at the start of these bytes, or `None` if it is incomplete.
    ///
    /// Errors: the bytes are not the head of an HTTP/1.1 response, or the head is too long.
    pub fn read(bytes: &'a [u8]) -> anyhow::Result<Option<Head<'a>>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(bytes).with_context(|| format!("not HTTP/1.1: {:?}", first_line(bytes)))?;
        let httparse::Status::Complete(body_at) = parsed else {
            ensure!(bytes.len() <= HEAD_BYTES_MAX, "a head of more than {HEAD_BYTES_MAX} bytes");
            return Ok(None);
        };
        ensure!(response.version == Some(1), "not HTTP/1.1: {:?}", first_line(bytes));
        let (status, reason) = (response.code.context("no status")?, response.reason.unwrap_or_default());
        let mut head = Head { status, reason, headers, body_at, framing: Framing::UntilClose };
        head.framing = match (head.header("content-length"), head.header("transfer-encoding")) {
            _ if status == 204 || status == 304 || status < 200 => Framing::Length(0),
            (Some(length), _) => Framing::Length(length.parse()?),
            (None, Some(coding)) if coding.eq_ignore_ascii_case("chunked") => Framing::Chunked,
            _ => Framing::UntilClose,
        };
        Ok(Some(head))
    }

    /// Returns the value of a header, or `None` if there is no such header or its value is not UTF-8.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        let header = self.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok().map(str::trim)
    }

    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns true if the server closes the connection after this answer.
    pub fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// Prints status and reason: `503 Service Unavailable`.
impl fmt::Display for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.reason)
    }
}

fn first_line(bytes: &[u8]) -> String {
    let line = bytes[..bytes.len().min(200)].split(|byte| *byte == b'\n').next().unwrap_or_default();
    String::from_utf8_lossy(line).trim_end().to_owned()
}

/// A complete response.
pub struct Answer<'a> {
    pub head: Head<'a>,
    pub body: std::borrow::Cow<'a, [u8]>,
    /// Number of bytes of head and body as received.
    pub used: usize,
}

impl<'a> Answer<'a> {
    /// Returns the response at the start of these bytes, or `None` if it is incomplete.
    ///
    /// Errors: the bytes are not HTTP/1.1, or the body ends only when the connection closes.
    pub fn read(bytes: &'a [u8]) -> anyhow::Result<Option<Answer<'a>>> {
        let Some(head) = Head::read(bytes)? else { return Ok(None) };
        let rest = &bytes[head.body_at..];
        match head.framing {
            Framing::Length(length) => {
                let Some(body) = rest.get(..length) else { return Ok(None) };
                let used = head.body_at + length;
                Ok(Some(Answer { head, body: body.into(), used }))
            }
            Framing::Chunked => {
                let (mut chunks, mut body) = (Chunks::default(), Vec::new());
                let used = chunks.feed(rest, &mut |piece| body.extend_from_slice(piece))?;
                let used = head.body_at + used;
                Ok(chunks.is_over().then(|| Answer { head, body: body.into(), used }))
            }
            Framing::UntilClose => bail!("an answer of unknown length: {head}"),
        }
    }

    /// Checks the status.
    ///
    /// Errors: the status reports a failure; the error contains the response body.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.head.is_success(), "refused: {} {}", self.head, String::from_utf8_lossy(&self.body));
        Ok(())
    }
}

/// Removes the chunked transfer encoding from a body.
///
/// ```text
///   Size ──"1a\r\n"──► Data ──26 bytes──► End ──"\r\n"──► Size
///     └──"0\r\n"──► Last ──"\r\n"──► Over
/// ```
#[derive(Default)]
struct Chunks {
    state: ChunkState,
}

#[derive(Clone, Copy, Default)]
enum ChunkState {
    #[default]
    Size,
    Data(usize),
    End,
    Last,
    Over,
}

impl Chunks {
    fn is_over(&self) -> bool {
        matches!(self.state, ChunkState::Over)
    }

    fn feed(&mut self, bytes: &[u8], take: &mut dyn FnMut(&[u8])) -> anyhow::Result<usize> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            match self.state {
                ChunkState::Size => {
                    let Some(end) = memchr(b'\n', rest) else {
                        ensure!(rest.len() < 1024, "a chunk without a size");
                        return Ok(at);
                    };
                    let size = std::str::from_utf8(&rest[..end])?.split(';').next().unwrap_or_default().trim();
                    let size = usize::from_str_radix(size, 16).context("a chunk without a size")?;
                    self.state = if size == 0 { ChunkState::Last } else { ChunkState::Data(size) };
                    at += end + 1;
                }
                ChunkState::Data(size) => {
                    let there = size.min(rest.len());
                    if there == 0 {
                        return Ok(at);
                    }
                    take(&rest[..there]);
                    self.state = if there == size { ChunkState::End } else { ChunkState::Data(size - there) };
                    at += there;
                }
                ChunkState::End | ChunkState::Last => {
                    if rest.len() < 2 {
                        return Ok(at);
                    }
                    ensure!(rest.starts_with(b"\r\n"), "a chunk that does not end");
                    self.state =
                        if matches!(self.state, ChunkState::End) { ChunkState::Size } else { ChunkState::Over };
                    at += 2;
                }
                ChunkState::Over => return Ok(at),
            }
        }
    }
}

/// An endless body, without its head and its chunk framing.
#[derive(Default)]
pub struct Stream {
    chunks: Option<Chunks>,
    is_open: bool,
    /// Received bytes that were not consumed yet.
    rest: Vec<u8>,
}

/// Input that a [`Stream`] has decoded.
#[expect(
    clippy::large_enum_variant,
    reason = "a part lives for one call, and a box would cost each response an allocation"
)]
pub enum Part<'a> {
    Head(Head<'a>),
    /// Bytes of the body. The callback returns how many it consumed; the others are passed again with the next ones.
    Body(&'a [u8]),
}

impl Stream {
    /// Prepares for a new connection.
    pub fn reset(&mut self) {
        *self = Stream::default();
    }

    pub fn feed(
        &mut self,
        bytes: &[u8],
        take: &mut dyn FnMut(Part<'_>) -> anyhow::Result<usize>,
    ) -> anyhow::Result<usize> {
        let mut at = 0;
        if !self.is_open {
            let Some(head) = Head::read(bytes)? else { return Ok(0) };
            ensure!(head.is_success(), "refused: {head} {}", String::from_utf8_lossy(&bytes[head.body_at..]));
            at = head.body_at;
            self.chunks = (head.framing == Framing::Chunked).then(Chunks::default);
            self.is_open = true;
            take(Part::Head(head))?;
        }
        let Stream { chunks, rest, .. } = self;
        let mut outcome = Ok(());
        let mut piece = |piece: &[u8]| {
            if outcome.is_ok() {
                outcome = join(rest, piece, |body| take(Part::Body(body)));
            }
        };
        let used = match chunks {
            Some(chunks) => chunks.feed(&bytes[at..], &mut piece)?,
            None => {
                piece(&bytes[at..]);
                bytes.len() - at
            }
        };
        outcome?;
        Ok(at + used)
    }

    /// Returns true once the server has ended the body.
    pub fn is_over(&self) -> bool {
        self.chunks.as_ref().is_some_and(Chunks::is_over)
    }
}

/// Calls `take` with `piece` appended to the unused bytes of earlier pieces. Keeps the bytes that `take` does not
/// consume.
pub fn join(
    rest: &mut Vec<u8>,
    piece: &[u8],
    mut take: impl FnMut(&[u8]) -> anyhow::Result<usize>,
) -> anyhow::Result<()> {
    if rest.is_empty() {
        let used = take(piece)?;
        rest.extend_from_slice(&piece[used..]);
    } else {
        rest.extend_from_slice(piece);
        let used = take(rest)?;
        rest.drain(..used);
    }
    Ok(())
}

/// Sends a request on a blocking connection, waits for the response, and returns what `read` takes from it.
///
/// Errors: the connection fails or ends; the status reports a failure.
pub fn exchange<T>(
    stream: &mut TcpStream,
    request: &[u8],
    read: impl FnOnce(&Answer<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    stream.write_all(request)?;
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(answer) = Answer::read(&bytes)? {
            answer.check()?;
            return read(&answer);
        }
        let length = stream.read(&mut piece)?;
        ensure!(length > 0, "the connection ended within a response");
        bytes.extend_from_slice(&piece[..length]);
    }
}

/// Appends a `GET` request. `headers`: complete lines with their line ends.
pub fn get(path: &str, headers: &str, out: &mut Vec<u8>) {
    write!(out, "GET {path} HTTP/1.1\r\nHost: lab\r\n{headers}\r\n").expect("memory takes it");
}

/// Appends a `PUT` request without a body.
pub fn put(path: &str, headers: &str, out: &mut Vec<u8>) {
    write!(out, "PUT {path} HTTP/1.1\r\nHost: lab\r\n{headers}Content-Length: 0\r\n\r\n").expect("memory takes it");
}

/// Appends a `POST` request.
pub fn post(path: &str, headers: &str, body: &[u8], out: &mut Vec<u8>) {
    write!(out, "POST {path} HTTP/1.1\r\nHost: lab\r\n{headers}Content-Length: {}\r\n\r\n", body.len())
        .expect("memory takes it");
    out.extend_from_slice(body);
}

/// Posts an offer on a blocking connection and returns the answer (docs/reference/protocol.md, "Data channels").
///
/// Errors: like [`exchange`]; the answer is not text.
pub fn post_offer(stream: &mut TcpStream, path: &str, sdp: &str) -> anyhow::Result<String> {
    let mut request = Vec::new();
    post(path, "Content-Type: application/sdp\r\n", sdp.as_bytes(), &mut request);
    exchange(stream, &request, |answer| Ok(String::from_utf8(answer.body.to_vec())?))
}

/// Publishes each message with its own `POST` request on a persistent connection.
pub struct Poster {
    path: String,
    headers: String,
    /// Builds the request body from a payload.
    wrap: Wrap,
    body: Vec<u8>,
    unanswered: usize,
}

/// Appends the request body for a payload.
pub type Wrap = Box<dyn Fn(&[u8], &mut Vec<u8>) + Send>;

impl Poster {
    /// `headers`: complete lines with their line ends.
    pub fn new(path: &str, headers: &str) -> Self {
        Self::wrapping(path, headers, Box::new(|payload, body| body.extend_from_slice(payload)))
    }

    pub fn wrapping(path: &str, headers: &str, wrap: Wrap) -> Self {
        Self { path: path.into(), headers: headers.into(), wrap, body: Vec::new(), unanswered: 0 }
    }
}

impl Dialect for Poster {
    fn open(&mut self, _: &mut Vec<u8>) -> bool {
        self.unanswered = 0;
        true
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        _: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let mut at = 0;
        while let Some(answer) = Answer::read(&bytes[at..])? {
            at += answer.used;
            self.unanswered = self.unanswered.saturating_sub(1);
            emit(if answer.head.is_success() { Event::Accepted } else { Event::Refused });
            if answer.head.closes() {
                emit(Event::Closed);
            }
        }
        Ok(at)
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.body.clear();
        (self.wrap)(payload, &mut self.body);
        post(&self.path, &self.headers, &self.body, out);
        self.unanswered += 1;
    }

    fn can_publish(&self) -> bool {
        self.unanswered < PIPELINED_MAX
    }
}

/// Reads server-sent events. Each `data` is a message; `event: gap` reports missing messages. Resumes with
/// `Last-Event-ID`.
pub struct EventSource {
    path: String,
    is_json: bool,
    stream: Stream,
    has_begun: bool,
    last_id: Vec<u8>,
}

impl EventSource {
    pub fn new(path: &str) -> Self {
        Self { path: path.into(), is_json: false, stream: Stream::default(), has_begun: false, last_id: Vec::new() }
    }

    /// Creates a reader for payloads inside JSON envelopes, under the key `data`.
    pub fn of_json(path: &str) -> Self {
        Self { is_json: true, ..Self::new(path) }
    }
}

impl Dialect for EventSource {
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        self.stream.reset();
        self.has_begun = false;
        let resume = match self.last_id.is_empty() {
            true => String::new(),
            false => format!("Last-Event-ID: {}\r\n", String::from_utf8_lossy(&self.last_id)),
        };
        get(&self.path, &format!("Accept: text/event-stream\r\n{resume}"), out);
        false
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        _: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let (last_id, has_begun, is_json) = (&mut self.last_id, &mut self.has_begun, self.is_json);
        let used = self.stream.feed(bytes, &mut |part| match part {
            Part::Head(_) => {
                emit(Event::Ready);
                Ok(0)
            }
            Part::Body(body) => Ok(sse::events(body, has_begun, |event| {
                if let Some(id) = event.id {
                    last_id.clear();
                    last_id.extend_from_slice(id);
                }
                match event.data {
                    Some(_) if event.name == Some(b"gap") => emit(Event::Gap),
                    Some(data) if is_json => payloads(&data, |payload| emit(Event::Message(payload))),
                    Some(data) => emit(Event::Message(&data)),
                    None => {}
                }
            })),
        })?;
        if self.stream.is_over() {
            emit(Event::Closed);
        }
        Ok(used)
    }

    fn publish(&mut self, _: &[u8], _: &mut Vec<u8>) {
        unreachable!("server-sent events go one way");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::script::{in_pieces, run_script};

    #[test]
    fn event_stream_survives_any_split() {
        let chunk = |text: &str| format!("{:x};x=y\r\n{text}\r\n", text.len());
        let mut script =
            String::from("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        script += &chunk("retry: 2000\nid: e:1\n\n:heartbeat\n\nid: e:2\nda");
        script += &chunk("ta: [\"one\"]\n\nevent: gap\nid: e:5\ndata: {}\n\n");
        script += &chunk("id: e:6\r\ndata: two\r\ndata:lines\r\n\r\n");
        script += "0\r\n\r\n";
        let heard = in_pieces(|| Box::new(EventSource::new("/c")), script.as_bytes());
        assert_eq!(heard.events, ["Ready", "[\"one\"]", "Gap", "two\nlines", "Closed"]);
        let mut source = EventSource::new("/c");
        run_script(&mut source, script.as_bytes(), 7).unwrap();
        let mut again = Vec::new();
        source.open(&mut again);
        assert!(String::from_utf8(again).unwrap().contains("\r\nLast-Event-ID: e:6\r\n"));
    }

    #[test]
    fn body_until_close_is_a_stream() {
        let script = b"HTTP/1.1 200 OK\r\n\r\ndata: a\n\ndata: b\n\n";
        assert_eq!(in_pieces(|| Box::new(EventSource::new("/c")), script).events, ["Ready", "a", "b"]);
    }

    const JSON: &str = "Content-Type: application/json\r\n";

    #[test]
    fn accepted_and_refused_posts_are_counted() {
        let script = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 2\r\n\r\n{}HTTP/1.1 204 No Content\r\n\r\n\
            HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let heard = in_pieces(|| Box::new(Poster::new("/c", JSON)), script);
        assert_eq!(heard.events, ["Accepted", "Accepted", "Refused", "Accepted", "Closed"]);
    }

    #[test]
    fn a_publisher_waits_for_answers() {
        let (mut poster, mut out) = (Poster::new("/c", JSON), Vec::new());
        let mut published = 0;
        while poster.can_publish() {
            poster.publish(b"[1]", &mut out);
            published += 1;
        }
        assert_eq!(published, PIPELINED_MAX);
        let one = "POST /c HTTP/1.1\r\nHost: lab\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n[1]";
        assert_eq!(out, one.repeat(published).as_bytes());
        poster.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0, &mut out, &mut |_| {}).unwrap();
        assert!(poster.can_publish());
    }

    #[test]
    fn malformed_http_is_an_error() {
        let refused = [
            &b"SMTP ready\r\n\r\n"[..],
            b"HTTP/1.1 503 Busy\r\n\r\nlater",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
        ];
        for script in refused {
            assert!(
                run_script(&mut EventSource::new("/c"), script, 1000).is_err(),
                "{}",
                String::from_utf8_lossy(script)
            );
        }
        assert!(run_script(&mut Poster::new("/c", ""), b"HTTP/1.1 200 OK\r\n\r\nabc", 1000).is_err(), "no length");
    }
}
