//! A range of one channel's history, page by page: each is asked for when the one before it was handed on.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Backoff, Chance, End, Gap, Message, RETRY_BASE, RETRY_MAX, SILENCE_MAX, Sink, SubscriptionError, Update};
use super::{client, http, moved, parse, pause};
use crate::wire::{Server, body, query_value};

/// Most publications of one answer.
const PAGE: u64 = 1000;

/// What of a channel is read. Both ends are a position, a time or `now`; `since` may be `earliest`, too.
#[derive(Clone, Debug)]
pub struct Range {
    pub server: Server,
    pub channel: String,
    pub since: String,
    pub until: String,
    /// Most publications.
    pub limit: Option<u64>,
    /// Longest time without an answer.
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

/// As [`Message`], of a channel that needs no saying.
#[derive(Deserialize)]
struct Publication {
    position: String,
    time: u64,
    key: Option<String>,
    data: Box<RawValue>,
    encoding: Option<String>,
}

/// Reads the range to its end, or until `sink` breaks. Cuts are repaired; only what cannot succeed later is an error.
pub async fn read_range(range: &Range, sink: &mut Sink<'_>) -> Result<(), SubscriptionError> {
    let client = client()?;
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_MAX, Chance::from_system()).for_at_most(Some(range.retry_for));
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
            Err(End::Moved) => moved(&range.server),
        };
        if !pause(lost, sink).await {
            return Ok(());
        }
    }
}

/// True if there is more; `rest` begins there.
async fn read_page(rest: &mut Range, client: &reqwest::Client, sink: &mut Sink<'_>) -> Result<bool, End> {
    if rest.until == "now" {
        // One `now` for all pages: a range that grows while it is read might never end.
        let now = get(rest, client, "since=now").await?;
        rest.until = http::header(&now, "millrace-position");
    }
    let limit = rest.limit.unwrap_or(PAGE).min(PAGE);
    let query = format!("since={}&until={}&limit={limit}", query_value(&rest.since), query_value(&rest.until));
    let response = get(rest, client, &query).await?;
    if response.status() == 204 {
        return Ok(false);
    }
    let answer = body(response).await.map_err(End::Lost)?;
    let Answer { position, more, gap, messages } = parse(&answer)?;
    let mut hand = |update| if sink(update).is_break() { Err(End::Enough) } else { Ok(()) };
    if let Some(Place { from, to }) = gap {
        hand(Update::Gap(Gap { channel: rest.channel.clone(), from, to }))?;
    }
    // Asked again, it would say the same.
    if more && messages.is_empty() && position == rest.since {
        let what = format!("there is more after {position}, and the answer has nothing of it");
        return Err(End::Fatal(SubscriptionError::Protocol(what)));
    }
    rest.limit = rest.limit.map(|limit| limit.saturating_sub(messages.len() as u64));
    for Publication { position, time, key, data, encoding } in messages {
        hand(Update::Message(Message { channel: rest.channel.clone(), position, time, key, data, encoding }))?;
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
