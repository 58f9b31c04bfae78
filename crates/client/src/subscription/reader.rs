//! State of a reader while one connection lasts.

use std::{ops::ControlFlow, time::Duration};

use millrace_protocol::Transport;
use serde::Deserialize;
use tokio::time::Instant;

use super::{
    cursors::Cursors,
    message::{Gap, Message, Sink, SubscriptionError, Update},
};
use crate::{backoff::Backoff, problem::Problem, server::Server};

/// Silence timeout. The server sends something at least every 25 s; a stream that is silent for longer than this is
/// dead.
pub const SILENCE_MAX: Duration = Duration::from_secs(40);
/// Minimum duration of a held poll without new publications: only a broken server or proxy answers earlier.
pub const EMPTY_PAUSE: Duration = Duration::from_millis(500);
/// Start of a keyed state, and prefix of a position from which to resume it.
pub const STATE: &str = "state";
/// Maximum delay that a server may request before the client reconnects.
const MOVE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Transports of [`super::read`]. A WebSocket carries a session.
pub const TRANSPORTS: [Transport; 5] =
    [Transport::WebSocket, Transport::Stream, Transport::Sse, Transport::LongPolling, Transport::Polling];

#[derive(Clone, Debug)]
pub struct Options {
    pub server: Server,
    /// Channel names; over a WebSocket also patterns with `+` and `#`.
    pub channels: Vec<String>,
    /// One of [`TRANSPORTS`].
    pub transport: Transport,
    /// Start: a position, `now`, `earliest`, `state` or a time. `None`: the transport's default.
    pub since: Option<String>,
    /// `every` or `latest`.
    pub policy: String,
    /// Pause between two polls.
    pub poll_interval: Duration,
    /// Maximum time without an answer; `None`: unlimited.
    pub retry_for: Option<Duration>,
}

pub fn is_pattern(channel: &str) -> bool {
    channel.contains(['+', '#'])
}

impl Options {
    /// Returns true if the channels are read as keyed states.
    pub fn is_state(&self) -> bool {
        self.since.as_deref().is_some_and(|since| since.starts_with(STATE))
    }
}

/// Reason why one connection or request ended.
#[derive(Debug)]
pub enum End {
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

/// State that a transport uses while a connection lasts.
pub struct Reader<'a, 'b> {
    pub options: &'a Options,
    pub cursors: &'a mut Cursors,
    pub backoff: &'a mut Backoff,
    pub sink: &'a mut Sink<'b>,
    /// Time to leave this server; until then the reader reads as before.
    pub moving: Option<Instant>,
    /// Resume ticket for the next session, which then need not subscribe to every channel.
    pub ticket: &'a mut Option<String>,
}

impl Reader<'_, '_> {
    /// Resets the backoff after the server answered, so the next disconnect starts with a short wait.
    pub fn connected(&mut self) {
        self.backoff.succeeded();
    }

    /// Schedules the move away from a server that drains. The server gives each reader a different time, so that
    /// not all reconnect at once.
    pub fn drain(&mut self, after_ms: u64) {
        self.moving.get_or_insert(Instant::now() + Duration::from_millis(after_ms).min(MOVE_MAX));
    }

    /// Waits for the next data from the server.
    ///
    /// Errors: [`End::Moved`] when it is time to move, [`End::Lost`] after [`SILENCE_MAX`] without data.
    pub async fn receive<T>(&self, next: impl Future<Output = T>) -> Result<T, End> {
        let silent = Instant::now() + SILENCE_MAX;
        let until = self.moving.unwrap_or(silent).min(silent);
        tokio::time::timeout_at(until, next).await.map_err(|_| match self.moving {
            Some(_) => End::Moved,
            None => End::Lost(format!("the server sent nothing for {} s", SILENCE_MAX.as_secs())),
        })
    }

    /// Passes a message to the sink unless it was already delivered.
    pub fn message(&mut self, message: Message) -> Result<(), End> {
        if !self.cursors.advance(&message.channel, &message.position) {
            return Ok(());
        }
        self.report(Update::Message(message))
    }

    pub fn gap(&mut self, gap: Gap) -> Result<(), End> {
        if self.options.is_state() {
            // The whole state follows, so the cursor moves back.
            self.cursors.set(&gap.channel, &gap.to);
        } else if !self.cursors.advance(&gap.channel, &gap.to) {
            // After a resume with a ticket, the server may repeat a gap that was already reported.
            return Ok(());
        }
        self.report(Update::Gap(gap))
    }

    /// Reports that the whole state of a channel was received.
    pub fn state_complete(&mut self, channel: String, position: &str) -> Result<(), End> {
        self.cursors.set(&channel, position);
        self.report(Update::StateComplete(channel))
    }

    /// Returns where to resume a channel; `None` before its first position is known.
    pub fn resume(&self, channel: &str) -> Option<String> {
        let position = self.cursors.position(channel)?;
        match self.options.is_state() && !position.starts_with(STATE) {
            true => Some(format!("{STATE}:{position}")),
            false => Some(position.to_owned()),
        }
    }

    pub fn report(&mut self, update: Update) -> Result<(), End> {
        match (self.sink)(update) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(End::Enough),
        }
    }
}

/// Parses JSON from the server. Errors: describes the invalid text.
pub fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, End> {
    serde_json::from_slice(text).map_err(|error| {
        let start = String::from_utf8_lossy(&text[..text.len().min(120)]).into_owned();
        End::Fatal(SubscriptionError::Protocol(format!("{error} in {start}")))
    })
}
