//! Reader of a range of one channel's history, page by page. Each page is requested after the previous one was
//! delivered.

use std::time::Duration;

use tokio::time::Instant;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::http;
use super::message::{Gap, Message, Sink, SubscriptionError, Update, null};
use super::reader::{End, SILENCE_MAX, parse};
use super::reconnect::{RETRY_BASE, RETRY_MAX, client, moved, pause};
use crate::backoff::Backoff;
use crate::http::{body, query_value};
use crate::random::Random;
use crate::server::Server;

/// Maximum publications of one response.
const PAGE: u64 = 1000;

/// Range of a channel's history. Both ends are a position, a time or `now`; `since` may also be `earliest`.
#[derive(Clone, Debug)]
pub struct Range {
    pub server: Server,
    pub channel: String,
    pub since: String,
    pub until: String,
    /// Maximum number of publications.
    pub limit: Option<u64>,
    /// Maximum time without an answer.
    pub retry_for: Duration,
}

#[derive(Deserialize)]
struct Answer {
    position: String,
    #[serde(default)]
    more: bool,
    gap: Option<Place>,
    messages: Vec<Publication>,
}

#[derive(Deserialize)]
struct Place {
    from: String,
    to: String,
}

/// Like [`Message`], without the channel, which is known.
#[derive(Deserialize)]
struct Publication {
    position: String,
    time: u64,
    key: Option<String>,
    trace: Option<String>,
    #[serde(default = "null")]
    data: Box<RawValue>,
    #[serde(default)]
    deleted: bool,
    encoding: Option<String>,
}

/// Reads the range to its end, or until `sink` breaks. Reconnects after disconnects; only permanent failures and an
/// exceeded `retry_for` are errors.
pub async fn read_range(range: &Range, sink: &mut Sink<'_>) -> Result<(), SubscriptionError> {
    let client = client()?;
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_MAX, Random::from_system()).for_at_most(Some(range.retry_for));
    let mut rest = range.clone();
    loop {
        let lost = match read_page(&mut rest, &client, sink).await {
            Ok(true) => {
                backoff.succeeded();
                continue;
            }
            Ok(false) | Err(End::Enough) => return Ok(()),
            Err(End::Fatal(error)) => return Err(error),
            Err(End::Lost(why)) => backoff.failed(&range.server, why)?,
            Err(End::Moved) => moved(&range.server, Instant::now()),
        };
        if !pause(lost, sink).await {
            return Ok(());
        }
    }
}

/// Reads one page. Returns true if there is more; `rest` then begins after the page.
async fn read_page(rest: &mut Range, client: &reqwest::Client, sink: &mut Sink<'_>) -> Result<bool, End> {
    if rest.until == "now" {
        // Resolve `now` once for all pages: a range that grows while it is read might never end.
        let now = get(rest, client, "since=now").await?;
        rest.until = http::header(&now, "millrace-position");
    }
    let limit = rest.limit.unwrap_or(PAGE).min(PAGE);
    let query = format!("since={}&until={}&limit={limit}", query_value(&rest.since), query_value(&rest.until));
    let response = get(rest, client, &query).await?;
    if response.status() == 204 {
        return Ok(false);
    }
    let answer = body(response).await.map_err(|error| End::Lost(error.to_string()))?;
    let Answer { position, more, gap, messages } = parse(&answer)?;
    let mut report = |update| if sink(update).is_break() { Err(End::Enough) } else { Ok(()) };
    if let Some(Place { from, to }) = gap {
        report(Update::Gap(Gap { channel: rest.channel.clone(), from, to }))?;
    }
    // A repeated request would get the same response.
    if more && messages.is_empty() && position == rest.since {
        let what = format!("the answer says that {position} is not the end, but has no messages");
        return Err(End::Fatal(SubscriptionError::Protocol(what)));
    }
    rest.limit = rest.limit.map(|limit| limit.saturating_sub(messages.len() as u64));
    for Publication { position, time, key, trace, data, deleted, encoding } in messages {
        let channel = rest.channel.clone();
        report(Update::Message(Message { channel, position, time, key, trace, data, deleted, encoding }))?;
    }
    rest.since = position;
    Ok(more && rest.limit != Some(0))
}

async fn get(range: &Range, client: &reqwest::Client, query: &str) -> Result<reqwest::Response, End> {
    let path = format!("/v1/channels/{}?{query}", query_value(&range.channel));
    let request = range
        .server
        .get(client, &path)
        .header("Accept", "application/json")
        .timeout(SILENCE_MAX + Duration::from_secs(20));
    http::ok(request.send().await, &range.server).await
}
