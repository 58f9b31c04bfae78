//! Reads channels over any transport and goes on where it was after every cut: in order, nothing twice, gaps named.

mod cursors;
mod http;
/// Public only so that it can be fuzzed by itself (`fuzz/`).
#[doc(hidden)]
pub mod lines;
mod past;
mod websocket;

pub use past::{Range, read_range};

use std::ops::ControlFlow;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::backoff::{Backoff, GaveUp, Lost};
use crate::chance::Chance;
use crate::wire::{Problem, Server};
use cursors::Cursors;

/// Waits before connecting again: uniform below this, doubled with every failure up to [`RETRY_MAX`].
const RETRY_BASE: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(20);
/// The server is heard from every 25 s; a stream that is silent for longer than this is dead.
const SILENCE_MAX: Duration = Duration::from_secs(40);
/// Before the first request to the next server: the server may ask each reader to go away at once, and that again and again.
const MOVE_PAUSE: Duration = Duration::from_millis(20);
/// After a held poll that came back at once with nothing new, which only a broken server or proxy does.
const EMPTY_PAUSE: Duration = Duration::from_millis(100);
/// Longest that a server may ask to stay before leaving it.
const MOVE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Most bytes of one message with its envelope: 1 MiB as base64 and room for the rest.
const MESSAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    WebSocket,
    Stream,
    Sse,
    LongPolling,
    Polling,
}

impl Transport {
    pub const ALL: [(&'static str, Self); 5] = [
        ("websocket", Self::WebSocket),
        ("stream", Self::Stream),
        ("sse", Self::Sse),
        ("long-polling", Self::LongPolling),
        ("polling", Self::Polling),
    ];
}

#[derive(Clone, Debug)]
pub struct Options {
    pub server: Server,
    /// Names; over a WebSocket also patterns with `+` and `#`.
    pub channels: Vec<String>,
    pub transport: Transport,
    /// A position, `now`, `earliest` or a time; the transport's default when none.
    pub since: Option<String>,
    /// `every` or `latest`.
    pub policy: String,
    /// Between two polls.
    pub poll_interval: Duration,
    /// Longest time without an answer; `None`: it is tried for ever.
    pub retry_for: Option<Duration>,
}

/// A publication with its envelope, as in `docs/protocol.md`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Message {
    pub channel: String,
    pub position: String,
    /// Milliseconds since 1970.
    pub time: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// JSON; base64 in a string when `encoding` says so.
    pub data: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
}

impl Message {
    /// The payload on one line: text without quotes unless it has line breaks, JSON as it was published, binary as base64.
    pub fn line(&self) -> String {
        let json = self.data.get();
        match serde_json::from_str::<String>(json) {
            Ok(text) if !text.contains(['\n', '\r']) => text,
            _ => json.replace(['\n', '\r'], " "),
        }
    }
}

/// Publications after `from` up to and including `to` are missing.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Gap {
    pub channel: String,
    pub from: String,
    pub to: String,
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { channel, from, to } = self;
        write!(f, "gap in {channel}: what came after {from} up to and including {to} is missing")
    }
}

#[derive(Debug)]
pub enum Update {
    Message(Message),
    Gap(Gap),
    /// The connection is lost and will be made again.
    Lost(Lost),
}

#[derive(Debug, thiserror::Error)]
pub enum SubscriptionError {
    #[error("the server refuses: {0}")]
    Refused(Problem),
    #[error("the server does not speak this: {0}")]
    Protocol(String),
    #[error("{0}")]
    Options(String),
    #[error(transparent)]
    GaveUp(#[from] GaveUp),
}

/// Hands an update to the reader. Break means that the reader has had enough.
pub type Sink<'a> = dyn FnMut(Update) -> ControlFlow<()> + 'a;

/// Why one connection or request ended.
#[derive(Debug)]
enum End {
    /// The reader has had enough.
    Enough,
    /// Connect again after backing off.
    Lost(String),
    /// The server asked to connect again, and its moment has come.
    Moved,
    Fatal(SubscriptionError),
}

impl From<Problem> for End {
    fn from(problem: Problem) -> Self {
        if problem.retry { Self::Lost(problem.to_string()) } else { Self::Fatal(SubscriptionError::Refused(problem)) }
    }
}

/// Reads until `sink` breaks. Cuts are repaired; only what cannot succeed later is an error.
pub async fn read(options: &Options, sink: &mut Sink<'_>) -> Result<(), SubscriptionError> {
    let wildcard = options.channels.iter().find(|name| is_pattern(name));
    if let (Some(pattern), false) = (wildcard, options.transport == Transport::WebSocket) {
        let what = format!("`{pattern}` is a pattern: patterns need --transport websocket");
        return Err(SubscriptionError::Options(what));
    }
    let client = client()?;
    let mut cursors = Cursors::default();
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_MAX, Chance::from_system()).for_at_most(options.retry_for);
    let mut ticket = None;
    loop {
        let mut reader = Reader {
            options,
            cursors: &mut cursors,
            backoff: &mut backoff,
            sink: &mut *sink,
            moving: None,
            ticket: &mut ticket,
        };
        let end = match options.transport {
            Transport::WebSocket => websocket::read(&mut reader).await,
            Transport::Stream => http::stream(&mut reader, &client).await,
            Transport::Sse => http::sse(&mut reader, &client).await,
            Transport::LongPolling | Transport::Polling => http::poll(&mut reader, &client).await,
        };
        let lost = match end {
            End::Enough => return Ok(()),
            End::Fatal(error) => return Err(error),
            End::Lost(why) => backoff.failed(&options.server, why)?,
            End::Moved => moved(&options.server),
        };
        if !pause(lost, sink).await {
            return Ok(());
        }
    }
}

fn moved(server: &Server) -> Lost {
    Lost { server: server.shown(), why: "the server asks to connect again".into(), attempt: 0, wait: MOVE_PAUSE }
}

/// Until the next attempt. False if the reader has had enough.
async fn pause(lost: Lost, sink: &mut Sink<'_>) -> bool {
    let wait = lost.wait;
    if sink(Update::Lost(lost)).is_break() {
        return false;
    }
    tokio::time::sleep(wait).await;
    true
}

fn client() -> Result<reqwest::Client, SubscriptionError> {
    let client = crate::tls::http().connect_timeout(Duration::from_secs(10));
    client.build().map_err(|error| SubscriptionError::Options(error.to_string()))
}

pub fn is_pattern(channel: &str) -> bool {
    channel.contains(['+', '#'])
}

/// What every transport works with while a connection lasts.
struct Reader<'a, 'b> {
    options: &'a Options,
    cursors: &'a mut Cursors,
    backoff: &'a mut Backoff,
    sink: &'a mut Sink<'b>,
    /// When to leave this server; until then it is read from as before.
    moving: Option<Instant>,
    /// What the next session shows to go on without asking for every channel.
    ticket: &'a mut Option<String>,
}

impl Reader<'_, '_> {
    /// The server answered: the next cut starts with a short wait.
    fn connected(&mut self) {
        self.backoff.succeeded();
    }

    /// The server goes away: this is this reader's own moment to leave, so that not all leave at once.
    fn told_to_move(&mut self, after_ms: u64) {
        self.moving.get_or_insert(Instant::now() + Duration::from_millis(after_ms).min(MOVE_MAX));
    }

    /// Waits for what the server says next, as long as it may take.
    ///
    /// Errors: it is time to move, or too long nothing was heard.
    async fn hear<T>(&self, next: impl Future<Output = T>) -> Result<T, End> {
        let silent = Instant::now() + SILENCE_MAX;
        let until = self.moving.unwrap_or(silent).min(silent);
        tokio::time::timeout_at(until, next).await.map_err(|_| match self.moving {
            Some(_) => End::Moved,
            None => End::Lost(format!("nothing heard for {} s", SILENCE_MAX.as_secs())),
        })
    }

    /// Hands a message on unless it was seen.
    fn message(&mut self, message: Message) -> Result<(), End> {
        if !self.cursors.advance(&message.channel, &message.position) {
            return Ok(());
        }
        self.hand(Update::Message(message))
    }

    fn gap(&mut self, gap: Gap) -> Result<(), End> {
        // Gone on with from a ticket, a gap may be told that was heard already.
        if !self.cursors.advance(&gap.channel, &gap.to) {
            return Ok(());
        }
        self.hand(Update::Gap(gap))
    }

    fn hand(&mut self, update: Update) -> Result<(), End> {
        match (self.sink)(update) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(End::Enough),
        }
    }
}

/// Reads JSON the server sent. Errors: what it was not.
fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, End> {
    serde_json::from_slice(text).map_err(|error| {
        let start = String::from_utf8_lossy(&text[..text.len().min(120)]).into_owned();
        End::Fatal(SubscriptionError::Protocol(format!("{error} in {start}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_and_its_envelope_keeps_the_payload() {
        let line = |data: &str| {
            let text = format!(r#"{{"channel":"a","position":"e:1","time":1,"data":{data}}}"#);
            let message: Message = serde_json::from_str(&text).expect("a message");
            assert_eq!(serde_json::to_string(&message).expect("JSON"), text);
            message.line()
        };
        assert_eq!(line(r#""hello""#), "hello");
        assert_eq!(line(r#"{"a":  1}"#), r#"{"a":  1}"#);
        assert_eq!(line("[1,\n2]"), "[1, 2]");
        assert_eq!(line(r#""two\nlines""#), r#""two\nlines""#);
    }
}
