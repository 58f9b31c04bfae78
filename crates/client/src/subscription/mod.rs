//! Reader of channels over any transport. It resumes at its last position after every disconnect: publications
//! arrive in order and at most once, and gaps are reported.

mod cursors;
mod http;
/// Public only so that it can be fuzzed separately (`fuzz/`).
#[doc(hidden)]
pub mod lines;
mod past;
mod websocket;

pub use past::{Range, read_range};

use std::ops::ControlFlow;
use std::time::Duration;

pub use millrace_protocol::Transport;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::backoff::{Backoff, FailedAttempt, GaveUp};
use crate::problem::Problem;
use crate::random::Random;
use crate::server::Server;
use cursors::Cursors;

/// Upper bound of the random wait before the first reconnection; doubled with every failure up to [`RETRY_MAX`].
const RETRY_BASE: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(20);
/// Silence timeout. The server sends something at least every 25 s; a stream that is silent for longer than this is
/// dead.
const SILENCE_MAX: Duration = Duration::from_secs(40);
/// Minimum time between two connections if the server asks the client to reconnect: a server may send every new
/// connection away at once.
const MOVE_MIN: Duration = Duration::from_millis(500);
/// Minimum duration of a held poll without new publications: only a broken server or proxy answers earlier.
const EMPTY_PAUSE: Duration = Duration::from_millis(500);
/// Maximum delay that a server may request before the client reconnects.
const MOVE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum bytes of one message with its envelope: 1 MiB as base64 plus room for the rest.
const MESSAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Transports of [`read`]. A WebSocket carries a session.
pub const TRANSPORTS: [Transport; 5] =
    [Transport::WebSocket, Transport::Stream, Transport::Sse, Transport::LongPolling, Transport::Polling];

#[derive(Clone, Debug)]
pub struct Options {
    pub server: Server,
    /// Channel names; over a WebSocket also patterns with `+` and `#`.
    pub channels: Vec<String>,
    /// One of [`TRANSPORTS`].
    pub transport: Transport,
    /// Start: a position, `now`, `earliest` or a time. `None`: the transport's default.
    pub since: Option<String>,
    /// `every` or `latest`.
    pub policy: String,
    /// Pause between two polls.
    pub poll_interval: Duration,
    /// Maximum time without an answer; `None`: unlimited.
    pub retry_for: Option<Duration>,
}

/// Publication with its envelope, as in `docs/reference/protocol.md`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Message {
    pub channel: String,
    pub position: String,
    /// Milliseconds since 1970.
    pub time: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Payload as JSON; if `encoding` is `base64`, a string with base64.
    pub data: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
}

impl Message {
    /// Returns the payload on one line: text without quotes unless it has line breaks, JSON with line breaks
    /// replaced by spaces, binary as base64.
    pub fn line(&self) -> String {
        let json = self.data.get();
        match serde_json::from_str::<String>(json) {
            Ok(text) if !text.contains(['\n', '\r']) => text,
            _ => json.replace(['\n', '\r'], " "),
        }
    }
}

/// Gap: the publications after `from`, up to and including `to`, are missing.
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
    /// The connection was lost; the reader will reconnect.
    Lost(FailedAttempt),
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

/// Callback that receives each update. `Break` ends the subscription.
pub type Sink<'a> = dyn FnMut(Update) -> ControlFlow<()> + 'a;

/// Reason why one connection or request ended.
#[derive(Debug)]
enum End {
    /// The sink ended the subscription, or the server closed normally.
    Enough,
    /// Reconnect after a backoff.
    Lost(String),
    /// The server asked the client to reconnect, and the delay is over.
    Moved,
    Fatal(SubscriptionError),
}

impl From<Problem> for End {
    fn from(problem: Problem) -> Self {
        if problem.retry { Self::Lost(problem.to_string()) } else { Self::Fatal(SubscriptionError::Refused(problem)) }
    }
}

/// Reads until `sink` breaks or the server closes normally. Reconnects after disconnects.
///
/// Errors: a permanent failure, an exceeded `retry_for`, or a transport that is not in [`TRANSPORTS`].
pub async fn read(options: &Options, sink: &mut Sink<'_>) -> Result<(), SubscriptionError> {
    let wildcard = options.channels.iter().find(|name| is_pattern(name));
    if let (Some(pattern), false) = (wildcard, options.transport == Transport::WebSocket) {
        let what = format!("`{pattern}` is a pattern: patterns need --transport websocket");
        return Err(SubscriptionError::Options(what));
    }
    let client = client()?;
    let mut cursors = Cursors::default();
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_MAX, Random::from_system()).for_at_most(options.retry_for);
    let mut ticket = None;
    loop {
        let began = Instant::now();
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
            Transport::Session | Transport::DataChannel => {
                let names = TRANSPORTS.map(Transport::name).join(", ");
                let what = format!("transport {}: expected one of {names}", options.transport);
                return Err(SubscriptionError::Options(what));
            }
        };
        let lost = match end {
            End::Enough => return Ok(()),
            End::Fatal(error) => return Err(error),
            End::Lost(why) => backoff.failed(&options.server, why)?,
            End::Moved => moved(&options.server, began),
        };
        if !pause(lost, sink).await {
            return Ok(());
        }
    }
}

fn moved(server: &Server, began: Instant) -> FailedAttempt {
    let wait = MOVE_MIN.saturating_sub(began.elapsed());
    FailedAttempt { server: server.shown(), why: "the server asks to connect again".into(), attempt: 0, wait }
}

/// Waits until the next attempt. Returns false if the sink ended the subscription.
async fn pause(attempt: FailedAttempt, sink: &mut Sink<'_>) -> bool {
    let wait = attempt.wait;
    if sink(Update::Lost(attempt)).is_break() {
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

/// State that a transport uses while a connection lasts.
struct Reader<'a, 'b> {
    options: &'a Options,
    cursors: &'a mut Cursors,
    backoff: &'a mut Backoff,
    sink: &'a mut Sink<'b>,
    /// Time to leave this server; until then the reader reads as before.
    moving: Option<Instant>,
    /// Resume ticket for the next session, which then need not subscribe to every channel.
    ticket: &'a mut Option<String>,
}

impl Reader<'_, '_> {
    /// Resets the backoff after the server answered, so the next disconnect starts with a short wait.
    fn connected(&mut self) {
        self.backoff.succeeded();
    }

    /// Schedules the move away from a server that drains. The server gives each reader a different time, so that
    /// not all reconnect at once.
    fn told_to_move(&mut self, after_ms: u64) {
        self.moving.get_or_insert(Instant::now() + Duration::from_millis(after_ms).min(MOVE_MAX));
    }

    /// Waits for the next data from the server.
    ///
    /// Errors: [`End::Moved`] when it is time to move, [`End::Lost`] after [`SILENCE_MAX`] without data.
    async fn hear<T>(&self, next: impl Future<Output = T>) -> Result<T, End> {
        let silent = Instant::now() + SILENCE_MAX;
        let until = self.moving.unwrap_or(silent).min(silent);
        tokio::time::timeout_at(until, next).await.map_err(|_| match self.moving {
            Some(_) => End::Moved,
            None => End::Lost(format!("nothing heard for {} s", SILENCE_MAX.as_secs())),
        })
    }

    /// Passes a message to the sink unless it was already delivered.
    fn message(&mut self, message: Message) -> Result<(), End> {
        if !self.cursors.advance(&message.channel, &message.position) {
            return Ok(());
        }
        self.hand(Update::Message(message))
    }

    fn gap(&mut self, gap: Gap) -> Result<(), End> {
        // After a resume with a ticket, the server may repeat a gap that was already reported.
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

/// Parses JSON from the server. Errors: describes the invalid text.
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
    fn message_is_one_line_and_keeps_its_payload() {
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
