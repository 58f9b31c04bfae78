//! One client on one transport: its request, the parser of the answer, and the accounting of messages.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
};

use anyhow::{Context, bail, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use millrace_lab::{
    histogram::Histogram,
    load::{
        http::{Answer, Part, Stream, get, join},
        payload::{Stamp, payloads},
        sse,
        websocket::{Frame, WebSocket, between},
    },
};
pub use millrace_protocol::Transport;

/// Transports that a [`Reader`] can use.
pub const TRANSPORTS: [Transport; 4] =
    [Transport::LongPolling, Transport::Sse, Transport::Stream, Transport::WebSocket];

/// Parses one of [`TRANSPORTS`].
pub fn transport() -> impl TypedValueParser<Value = Transport> {
    PossibleValuesParser::new(TRANSPORTS.map(Transport::name)).try_map(|name| name.parse::<Transport>())
}

/// Parameters that all readers of a group share.
#[derive(Clone, Debug)]
pub struct ReaderOptions {
    pub transport: Transport,
    pub channel: String,
    /// `policy=latest`: per source, only messages that are newer than the last one received.
    pub latest: bool,
    /// Position before the first message.
    pub since: String,
    /// Number of the first message. Message `n` is the publication with the offset `n + 1`.
    pub first: u64,
    /// Message `n` comes from source `n mod sources`: a key, or a client of the chat. The order is checked per source.
    pub sources: u64,
    /// Bytes of a payload.
    pub bytes: usize,
}

/// Counts of messages received and missing.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    pub delivered: u64,
    /// Number of gaps reported to readers, and number of messages in them.
    pub gaps: u64,
    pub told_lost: u64,
    /// Messages missing without a report, which is a defect.
    pub silent: u64,
    pub twice: u64,
}

impl Tally {
    /// Checks the counts. Errors: messages were lost or repeated without a report.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.silent == 0 && self.twice == 0, "{} messages lost silently, {} repeated", self.silent, self.twice);
        Ok(())
    }
}

pub struct Reader {
    pub stream: TcpStream,
    parser: Parser,
    account: Account,
    /// Received bytes that the parser has not consumed yet.
    partial: Vec<u8>,
    connected: bool,
}

/// Parser of the transport.
enum Parser {
    WebSocket(WebSocket),
    Sse { body: Stream, has_begun: bool },
    Lines(Stream),
    Answers,
}

/// Messages that a reader expects.
struct Account {
    options: ReaderOptions,
    /// Number of the next expected message, per source.
    next: Vec<u64>,
}

/// Action that a reader requires after a read.
pub enum Next {
    Read,
    /// The server has reported a gap and closed the connection: reconnect.
    Connect {
        since: String,
    },
}

impl Reader {
    pub fn new(address: SocketAddr, options: ReaderOptions) -> anyhow::Result<Self> {
        let (stream, parser) = open(address, &options, &options.since)?;
        let next = (0..options.sources).map(|source| options.first + source).collect();
        let connected = options.transport == Transport::LongPolling;
        Ok(Self { stream, parser, account: Account { options, next }, partial: Vec::new(), connected })
    }

    /// Returns true once the server has accepted the stream. A long poll gets no answer until a message exists.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    pub fn connect_again(&mut self, address: SocketAddr, since: &str) -> anyhow::Result<()> {
        (self.stream, self.parser) = open(address, &self.account.options, since)?;
        self.partial.clear();
        Ok(())
    }

    /// Returns the number of messages before `end` that this reader neither received nor got a gap for.
    pub fn missing(&self, end: u64) -> u64 {
        let Account { options, next } = &self.account;
        let missing = |next: &u64| end.saturating_sub(*next).div_ceil(options.sources);
        match options.latest {
            true => next.iter().filter(|next| missing(next) > 0).count() as u64,
            false => next.iter().map(missing).sum(),
        }
    }

    /// Handles received bytes. Errors: the server violates the protocol.
    pub fn take(&mut self, bytes: &[u8], now_us: u64, ages: &mut Histogram, tally: &mut Tally) -> anyhow::Result<Next> {
        let Self { stream, parser, account, partial, connected } = self;
        let (mut out, mut next, mut outcome) = (Vec::new(), Next::Read, Ok(()));
        let mut saw = |account: &mut Account, payload: &[u8], tally: &mut Tally| {
            if outcome.is_ok() {
                outcome = account.message(payload, now_us, ages, tally);
            }
        };
        join(partial, bytes, |bytes| match parser {
            Parser::WebSocket(socket) => socket.feed(bytes, &mut out, &mut |frame, _| {
                match frame {
                    Frame::Open => *connected = true,
                    Frame::Message(payload) => saw(account, payload, tally),
                    Frame::Close(4000, since) => {
                        let since = std::str::from_utf8(since)?.to_owned();
                        account.gap(offset(&since)?, tally);
                        next = Next::Connect { since };
                    }
                    Frame::Close(code, reason) => bail!("closed: {code} {:?}", String::from_utf8_lossy(reason)),
                }
                Ok(())
            }),
            Parser::Sse { body, has_begun } => body.feed(bytes, &mut |part| {
                let mut gap = Ok(());
                let used = match part {
                    Part::Head(_) => {
                        *connected = true;
                        0
                    }
                    Part::Body(body) => sse::events(body, has_begun, |event| match event.data {
                        Some(data) if event.name == Some(b"gap") => {
                            let reported = gap_end(&data).map(|to| account.gap(to, tally));
                            gap = std::mem::replace(&mut gap, Ok(())).and(reported);
                        }
                        Some(data) => saw(account, &data, tally),
                        None => {}
                    }),
                };
                gap.map(|()| used)
            }),
            Parser::Lines(body) => body.feed(bytes, &mut |part| {
                let Part::Body(body) = part else {
                    *connected = true;
                    return Ok(0);
                };
                let mut used = 0;
                while let Some(length) = body[used..].iter().position(|byte| *byte == b'\n') {
                    let line = &body[used..used + length];
                    account.gap_of(line, tally)?;
                    payloads(line, |payload| saw(account, payload, tally));
                    used += length + 1;
                }
                Ok(used)
            }),
            Parser::Answers => {
                let mut used = 0;
                while let Some(answer) = Answer::read(&bytes[used..])? {
                    answer.check()?;
                    used += answer.used;
                    account.gap_of(&answer.body, tally)?;
                    payloads(&answer.body, |payload| saw(account, payload, tally));
                    let position = answer.head.header("millrace-position").context("an answer without a position")?;
                    request(&account.options, position, &mut out);
                }
                Ok(used)
            }
        })?;
        outcome?;
        if !out.is_empty() {
            stream.write_all(&out)?;
        }
        Ok(next)
    }
}

impl Account {
    fn message(&mut self, payload: &[u8], now_us: u64, ages: &mut Histogram, tally: &mut Tally) -> anyhow::Result<()> {
        let stamp = Stamp::read(payload, self.options.bytes).context("not a message of this generator")?;
        let (n, sources) = (stamp.sequence, self.options.sources);
        let next = &mut self.next[(n % sources) as usize];
        if n < *next {
            tally.twice += 1;
        } else {
            if !self.options.latest {
                tally.silent += (n - *next) / sources;
            }
            *next = n + sources;
        }
        tally.delivered += 1;
        ages.record_us(now_us.saturating_sub(stamp.due_ns / 1000));
        Ok(())
    }

    /// Counts the gap of a JSON text, if the text reports one. A gap precedes the messages.
    fn gap_of(&mut self, json: &[u8], tally: &mut Tally) -> anyhow::Result<()> {
        let head = &json[..json.len().min(200)];
        match head.windows(6).position(|bytes| bytes == b"\"gap\":") {
            Some(gap) => {
                self.gap(gap_end(&json[gap..])?, tally);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Counts a gap: everything up to the publication with offset `to` is missing. Only a single source has consecutive
    /// numbers.
    fn gap(&mut self, to: u64, tally: &mut Tally) {
        tally.gaps += 1;
        if self.options.sources == 1 {
            tally.told_lost += to.saturating_sub(self.next[0]);
            self.next[0] = self.next[0].max(to);
        }
    }
}

/// Connects, sends the request, and returns the connection with its parser.
fn open(address: SocketAddr, options: &ReaderOptions, since: &str) -> anyhow::Result<(TcpStream, Parser)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut out = Vec::new();
    let parser = match options.transport {
        Transport::WebSocket => {
            let mut socket = WebSocket::new(path(options, since), None);
            socket.open(&mut out);
            Parser::WebSocket(socket)
        }
        Transport::Sse => Parser::Sse { body: Stream::default(), has_begun: false },
        Transport::Stream => Parser::Lines(Stream::default()),
        Transport::LongPolling => Parser::Answers,
        other => bail!("transport {other}: expected one of {}", TRANSPORTS.map(Transport::name).join(", ")),
    };
    request(options, since, &mut out);
    stream.write_all(&out)?;
    Ok((stream, parser))
}

fn path(options: &ReaderOptions, since: &str) -> String {
    let policy = if options.latest { "latest" } else { "every" };
    format!("/v1/channels/{}?since={since}&policy={policy}", options.channel)
}

/// Appends the request of a transport over HTTP. Other transports append none here.
fn request(options: &ReaderOptions, since: &str, out: &mut Vec<u8>) {
    let path = path(options, since);
    match options.transport {
        Transport::Sse => get(&path, "Accept: text/event-stream\r\n", out),
        Transport::Stream => get(&path, "Accept: application/x-ndjson\r\n", out),
        Transport::LongPolling => get(&format!("{path}&wait=30&limit=1000"), "Accept: application/json\r\n", out),
        _ => {}
    }
}

/// Returns the offset of the last missing publication of a gap.
fn gap_end(json: &[u8]) -> anyhow::Result<u64> {
    let to = between(json, b"\"to\":\"", b"\"").context("a gap without an end")?;
    offset(std::str::from_utf8(to)?)
}

/// Returns the offset of a position. Errors: the text is not a position.
pub fn offset(position: &str) -> anyhow::Result<u64> {
    let (_, offset) = position.split_once(':').context("not a position")?;
    Ok(offset.parse()?)
}
