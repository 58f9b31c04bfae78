//! One client on one transport: its request, the parser of the answer, and the accounting of messages.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
};

use anyhow::{Context, bail, ensure};

use crate::{
    figures::Histogram,
    http::Answers,
    wire::{client_frame, frame, read_payload, upgrade},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Transport {
    WebSocket,
    Sse,
    Stream,
    LongPolling,
}

/// Parameters that all readers of a crowd share.
#[derive(Clone, Debug)]
pub struct Wish {
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
    wish: Wish,
    /// Number of the next expected message, per source.
    next: Vec<u64>,
    in_body: bool,
    /// Bytes of an incomplete head, frame, event or line.
    partial: Vec<u8>,
    answers: Answers,
    connected: bool,
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
    pub fn new(address: SocketAddr, wish: Wish) -> anyhow::Result<Self> {
        let stream = ask(address, &wish, &wish.since)?;
        let next = (0..wish.sources).map(|source| wish.first + source).collect();
        let connected = wish.transport == Transport::LongPolling;
        let answers = Answers::default();
        Ok(Self { stream, wish, next, in_body: false, partial: Vec::new(), answers, connected })
    }

    /// Returns true once the server has accepted the stream. A long poll gets no answer until a message exists.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    pub fn connect_again(&mut self, address: SocketAddr, since: &str) -> anyhow::Result<()> {
        self.stream = ask(address, &self.wish, since)?;
        (self.in_body, self.partial) = (false, Vec::new());
        Ok(())
    }

    /// Returns the number of messages before `end` that this reader neither received nor got a gap for.
    pub fn missing(&self, end: u64) -> u64 {
        let missing = |next: &u64| end.saturating_sub(*next).div_ceil(self.wish.sources);
        match self.wish.latest {
            true => self.next.iter().filter(|next| missing(next) > 0).count() as u64,
            false => self.next.iter().map(missing).sum(),
        }
    }

    /// Handles received bytes. Errors: the server violates the protocol.
    pub fn take(&mut self, bytes: &[u8], now_us: u64, ages: &mut Histogram, tally: &mut Tally) -> anyhow::Result<Next> {
        if self.wish.transport == Transport::LongPolling {
            return self.take_answers(bytes, now_us, ages, tally);
        }
        let joined;
        let mut bytes = bytes;
        if !self.in_body {
            self.partial.extend_from_slice(bytes);
            let Some(end) = self.partial.windows(4).position(|end| end == b"\r\n\r\n") else { return Ok(Next::Read) };
            let wanted: &[u8] =
                if self.wish.transport == Transport::WebSocket { b"HTTP/1.1 101" } else { b"HTTP/1.1 200" };
            ensure!(self.partial.starts_with(wanted), "refused: {}", String::from_utf8_lossy(&self.partial));
            joined = self.partial.split_off(end + 4);
            self.partial.clear();
            (self.in_body, self.connected) = (true, true);
            bytes = &joined;
        }
        if self.wish.transport != Transport::WebSocket {
            let mut body = std::mem::take(&mut self.partial);
            body.extend_from_slice(bytes);
            let used = match self.wish.transport {
                Transport::Sse => self.take_events(&body, now_us, ages, tally)?,
                _ => self.take_lines(&body, now_us, ages, tally)?,
            };
            body.drain(..used);
            self.partial = body;
            return Ok(Next::Read);
        }
        if self.partial.is_empty() {
            let (used, next) = self.take_frames(bytes, now_us, ages, tally)?;
            self.partial.extend_from_slice(&bytes[used..]);
            return Ok(next);
        }
        let mut all = std::mem::take(&mut self.partial);
        all.extend_from_slice(bytes);
        let (used, next) = self.take_frames(&all, now_us, ages, tally)?;
        all.drain(..used);
        self.partial = all;
        Ok(next)
    }

    fn take_frames(
        &mut self,
        bytes: &[u8],
        now_us: u64,
        ages: &mut Histogram,
        tally: &mut Tally,
    ) -> anyhow::Result<(usize, Next)> {
        let mut at = 0;
        while let Some((opcode, payload, end)) = frame(bytes, at) {
            at = end;
            let payload = &bytes[payload..end];
            match opcode {
                1 => self.saw(payload, now_us, ages, tally)?,
                8 if payload.starts_with(&4000u16.to_be_bytes()) => {
                    let since = std::str::from_utf8(&payload[2..])?.to_owned();
                    self.gap(offset(&since)?, tally);
                    return Ok((at, Next::Connect { since }));
                }
                8 => bail!("closed: {:?}", String::from_utf8_lossy(payload)),
                9 => {
                    let mut pong = Vec::new();
                    client_frame(&mut pong, 10, payload);
                    self.stream.write_all(&pong)?;
                }
                _ => {}
            }
        }
        Ok((at, Next::Read))
    }

    fn take_events(
        &mut self,
        body: &[u8],
        now_us: u64,
        ages: &mut Histogram,
        tally: &mut Tally,
    ) -> anyhow::Result<usize> {
        let mut at = 0;
        loop {
            let rest = &body[at..];
            // Try the common event first, without a search for its end.
            let line = rest.iter().take(64).position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let payload = line + 6..line + 6 + self.wish.bytes;
            if rest.starts_with(b"id: ") && rest[line..].starts_with(b"data: ") && rest.len() >= payload.end + 2 {
                self.saw(&rest[payload.clone()], now_us, ages, tally)?;
                ensure!(rest[payload.end..].starts_with(b"\n\n"), "an event does not end");
                at += payload.end + 2;
                continue;
            }
            let Some(end) = rest.windows(2).position(|end| end == b"\n\n") else { return Ok(at) };
            let event = &rest[..end];
            if event.starts_with(b"event: gap") {
                self.gap(quoted(event, b"\"to\":\"").and_then(offset)?, tally);
            }
            at += end + 2;
        }
    }

    fn take_lines(
        &mut self,
        body: &[u8],
        now_us: u64,
        ages: &mut Histogram,
        tally: &mut Tally,
    ) -> anyhow::Result<usize> {
        let mut at = 0;
        while let Some(end) = body[at..].iter().position(|byte| *byte == b'\n') {
            self.take_json(&body[at..at + end], now_us, ages, tally)?;
            at += end + 1;
        }
        Ok(at)
    }

    fn take_answers(
        &mut self,
        bytes: &[u8],
        now_us: u64,
        ages: &mut Histogram,
        tally: &mut Tally,
    ) -> anyhow::Result<Next> {
        let mut answers = std::mem::take(&mut self.answers);
        answers.push(bytes);
        while let Some(answer) = answers.whole()? {
            self.take_json(answer.body, now_us, ages, tally)?;
            let position = answer.header("millrace-position").context("an answer without a position")?;
            self.stream.write_all(request(&self.wish, position).as_bytes())?;
        }
        self.answers = answers;
        Ok(Next::Read)
    }

    /// Handles all messages of a JSON text. A gap precedes the messages.
    fn take_json(&mut self, json: &[u8], now_us: u64, ages: &mut Histogram, tally: &mut Tally) -> anyhow::Result<()> {
        const DATA: &[u8] = b"\"data\":";
        let mut at = 0;
        let head = &json[..json.len().min(200)];
        if let Some(gap) = head.windows(6).position(|bytes| bytes == b"\"gap\":") {
            self.gap(quoted(&json[gap..], b"\"to\":\"").and_then(offset)?, tally);
        }
        while let Some(data) = json[at..].windows(DATA.len()).position(|bytes| bytes == DATA) {
            let start = at + data + DATA.len();
            at = start + self.wish.bytes;
            self.saw(json.get(start..at).context("a message is cut")?, now_us, ages, tally)?;
        }
        Ok(())
    }

    fn saw(&mut self, payload: &[u8], now_us: u64, ages: &mut Histogram, tally: &mut Tally) -> anyhow::Result<()> {
        ensure!(payload.len() == self.wish.bytes, "a message of {} bytes", payload.len());
        let (n, sent_us) = read_payload(payload)?;
        let sources = self.wish.sources;
        let next = &mut self.next[(n % sources) as usize];
        if n < *next {
            tally.twice += 1;
        } else {
            if !self.wish.latest {
                tally.silent += (n - *next) / sources;
            }
            *next = n + sources;
        }
        tally.delivered += 1;
        ages.record(now_us.saturating_sub(sent_us));
        Ok(())
    }

    /// Counts a gap: everything up to the publication with offset `to` is missing. Only a single source has consecutive
    /// numbers.
    fn gap(&mut self, to: u64, tally: &mut Tally) {
        tally.gaps += 1;
        if self.wish.sources == 1 {
            tally.told_lost += to.saturating_sub(self.next[0]);
            self.next[0] = self.next[0].max(to);
        }
    }
}

fn ask(address: SocketAddr, wish: &Wish, since: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.write_all(request(wish, since).as_bytes())?;
    Ok(stream)
}

fn request(wish: &Wish, since: &str) -> String {
    let policy = if wish.latest { "latest" } else { "every" };
    let path = format!("/v1/channels/{}?since={since}&policy={policy}", wish.channel);
    let get = |path: &str, accept: &str| format!("GET {path} HTTP/1.1\r\nHost: bench\r\nAccept: {accept}\r\n\r\n");
    match wish.transport {
        Transport::WebSocket => upgrade(&path, ""),
        Transport::Sse => get(&path, "text/event-stream"),
        Transport::Stream => get(&path, "application/x-ndjson"),
        Transport::LongPolling => get(&format!("{path}&wait=30&limit=1000"), "application/json"),
    }
}

/// Returns the offset of a position. Errors: the text is not a position.
pub fn offset(position: &str) -> anyhow::Result<u64> {
    let (_, offset) = position.split_once(':').context("not a position")?;
    Ok(offset.parse()?)
}

/// Returns the text between `before` and the next quote.
fn quoted<'a>(text: &'a [u8], before: &[u8]) -> anyhow::Result<&'a str> {
    let start = text.windows(before.len()).position(|bytes| bytes == before).context("not there")? + before.len();
    let length = text[start..].iter().position(|byte| *byte == b'"').context("not closed")?;
    Ok(std::str::from_utf8(&text[start..start + length])?)
}
