//! Reader of channels over any transport, which reconnects after every disconnect.

use std::time::Duration;

use millrace_protocol::Transport;
use tokio::time::Instant;

use super::{
    cursors::Cursors,
    http,
    message::{Sink, SubscriptionError, Update},
    reader::{End, Options, Reader, TRANSPORTS, is_pattern},
    websocket,
};
use crate::{
    backoff::{Backoff, FailedAttempt},
    random::Random,
    server::Server,
};

/// Upper bound of the random wait before the first reconnection; doubled with every failure up to [`RETRY_MAX`].
pub const RETRY_BASE: Duration = Duration::from_millis(500);
pub const RETRY_MAX: Duration = Duration::from_secs(20);
/// Minimum time between two connections if the server asks the client to reconnect: a server may send every new
/// connection away at once.
const MOVE_MIN: Duration = Duration::from_millis(500);

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
            Transport::Session | Transport::DataChannel | Transport::Mqtt => {
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

pub fn moved(server: &Server, began: Instant) -> FailedAttempt {
    let wait = MOVE_MIN.saturating_sub(began.elapsed());
    FailedAttempt { server: server.shown(), why: "the server asks to reconnect".into(), attempt: 0, wait }
}

/// Waits until the next attempt. Returns false if the sink ended the subscription.
pub async fn pause(attempt: FailedAttempt, sink: &mut Sink<'_>) -> bool {
    let wait = attempt.wait;
    if sink(Update::Lost(attempt)).is_break() {
        return false;
    }
    tokio::time::sleep(wait).await;
    true
}

pub fn client() -> Result<reqwest::Client, SubscriptionError> {
    let client = crate::tls::http().connect_timeout(Duration::from_secs(10));
    client.build().map_err(|error| SubscriptionError::Options(error.to_string()))
}
