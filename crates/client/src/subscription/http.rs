//! Polling, long polling, streaming and server-sent events. All use `GET /v1/stream` and differ in `Accept` and
//! `wait`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millrace_protocol::Transport;
use serde::Deserialize;

use super::lines::{Events, Lines};
use super::message::{Gap, Message, StateComplete, SubscriptionError, Update};
use super::reader::{EMPTY_PAUSE, End, Reader, SILENCE_MAX, STATE, parse};
use crate::http::{body, cause, query_value};
use crate::problem::Problem;
use crate::server::Server;
use crate::tls::permanent_reason;

/// Time for which a long poll is held.
const HOLD_S: u64 = 30;
/// Maximum publications of one response.
const LIMIT: usize = 1000;

/// JSON response of a poll.
#[derive(Deserialize)]
struct Answer {
    positions: BTreeMap<String, String>,
    #[serde(default)]
    more: bool,
    #[serde(default)]
    gaps: Vec<Gap>,
    messages: Vec<Message>,
}

/// Content of a stream line that is not a message.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Line {
    positions: Option<BTreeMap<String, String>>,
    gap: Option<Gap>,
    drain: Option<Drain>,
    state: Option<StateComplete>,
    denied: Option<Problem>,
}

#[derive(Deserialize)]
struct Drain {
    after_ms: u64,
}

pub async fn poll(reader: &mut Reader<'_, '_>, client: &reqwest::Client) -> End {
    loop {
        if let Err(end) = poll_once(reader, client).await {
            return end;
        }
        if reader.options.transport == Transport::Polling {
            tokio::time::sleep(reader.options.poll_interval).await;
        }
    }
}

async fn poll_once(reader: &mut Reader<'_, '_>, client: &reqwest::Client) -> Result<(), End> {
    // The first long poll is not held: it gets the positions of the channels, so that a disconnect during a later,
    // held poll loses nothing.
    let long = reader.options.transport == Transport::LongPolling;
    let placed = reader.options.channels.iter().all(|channel| reader.cursors.position(channel).is_some());
    let mut path = path(reader, long.then_some("now"));
    path += &format!("&limit={LIMIT}");
    if long && placed {
        path += &format!("&wait={HOLD_S}");
    }
    let request = reader.options.server.get(client, &path).header("Accept", "application/json");
    let request = request.timeout(Duration::from_secs(HOLD_S) + SILENCE_MAX);
    let asked = Instant::now();
    let response = ok(request.send().await, &reader.options.server).await?;
    reader.connected();
    let list = header(&response, "millrace-position");
    if response.status() == 204 {
        // The first answer without a message: the state is empty.
        let empty = reader.options.channels.iter().filter(|_| reader.options.is_state() && !placed).cloned();
        let empty: Vec<String> = empty.collect();
        reader.cursors.start_list(&list);
        for channel in empty {
            reader.report(Update::StateComplete(channel))?;
        }
        if long && placed {
            tokio::time::sleep(EMPTY_PAUSE.saturating_sub(asked.elapsed())).await;
        }
        return Ok(());
    }
    let answer = body(response).await.map_err(|error| End::Lost(error.to_string()))?;
    let answer: Answer = parse(&answer)?;
    // A state is complete with the first plain position, unless more of it follows.
    let is_void = |channel: &str| answer.gaps.iter().any(|gap| gap.channel == channel);
    let is_inside = |at: Option<&str>| at.is_none_or(|at| at.starts_with(STATE));
    let begun =
        answer.positions.iter().filter(|(channel, _)| is_void(channel) || is_inside(reader.cursors.position(channel)));
    let begun: Vec<String> = begun.map(|(channel, _)| channel.clone()).filter(|_| reader.options.is_state()).collect();
    for gap in answer.gaps {
        reader.gap(gap)?;
    }
    for message in answer.messages {
        reader.message(message)?;
    }
    for (channel, position) in answer.positions {
        // Until the state is complete, the cursor keeps the prefix, so that the next answer is known to continue it.
        let is_begun = begun.contains(&channel);
        match is_begun && answer.more && !position.starts_with(STATE) {
            true => reader.cursors.set(&channel, &format!("{STATE}:{position}")),
            false => reader.cursors.set(&channel, &position),
        }
        if is_begun && !is_inside(reader.cursors.position(&channel)) {
            reader.report(Update::StateComplete(channel))?;
        }
    }
    Ok(())
}

pub async fn stream(reader: &mut Reader<'_, '_>, client: &reqwest::Client) -> End {
    read_lines(reader, client, "application/x-ndjson", |reader, line| {
        if line.is_empty() {
            return Ok(());
        }
        match parse::<Line>(line)? {
            Line { positions: Some(positions), .. } => {
                positions.iter().for_each(|(channel, position)| reader.cursors.start(channel, position));
                Ok(())
            }
            Line { gap: Some(gap), .. } => reader.gap(gap),
            Line { state: Some(StateComplete { channel, position }), .. } => reader.state_complete(channel, &position),
            Line { drain: Some(drain), .. } => {
                reader.drain(drain.after_ms);
                Ok(())
            }
            Line { denied: Some(problem), .. } => Err(problem.into()),
            Line { .. } => reader.message(parse(line)?),
        }
    })
    .await
}

pub async fn sse(reader: &mut Reader<'_, '_>, client: &reqwest::Client) -> End {
    let mut events = Events::default();
    read_lines(reader, client, "text/event-stream", |reader, line| {
        let Some(event) = events.take(line) else { return Ok(()) };
        if let Some(data) = event.data {
            match event.kind.as_str() {
                "gap" => reader.gap(parse(data.as_bytes())?)?,
                "state" => {
                    let StateComplete { channel, position } = parse(data.as_bytes())?;
                    reader.state_complete(channel, &position)?;
                }
                "drain" => reader.drain(parse::<Drain>(data.as_bytes())?.after_ms),
                "denied" => return Err(parse::<Problem>(data.as_bytes())?.into()),
                _ => reader.message(parse(data.as_bytes())?)?,
            }
        }
        if let Some(list) = event.id {
            reader.cursors.set_list(&list);
        }
        Ok(())
    })
    .await
}

async fn read_lines(
    reader: &mut Reader<'_, '_>,
    client: &reqwest::Client,
    accept: &str,
    mut each: impl FnMut(&mut Reader<'_, '_>, &[u8]) -> Result<(), End>,
) -> End {
    let opening = reader.options.server.get(client, &path(reader, None)).header("Accept", accept).send();
    let response = match tokio::time::timeout(SILENCE_MAX, opening).await {
        Ok(response) => ok(response, &reader.options.server).await,
        Err(_) => return End::Lost("the server does not answer".into()),
    };
    let mut response = match response {
        Ok(response) => response,
        Err(end) => return end,
    };
    reader.connected();
    reader.cursors.start_list(&header(&response, "millrace-position"));
    let mut lines = Lines::default();
    loop {
        let chunk = match reader.receive(response.chunk()).await {
            Err(end) => return end,
            Ok(Err(error)) => return End::Lost(cause(&error)),
            Ok(Ok(None)) => return End::Lost("the stream ended".into()),
            Ok(Ok(Some(chunk))) => chunk,
        };
        if let Err(error) = lines.push(&chunk) {
            return End::Lost(error.to_string());
        }
        while let Some(line) = lines.next_line() {
            if let Err(end) = each(reader, line) {
                return end;
            }
        }
    }
}

/// Returns the request path with all channels. A channel with a known position starts there; the others start at
/// the configured `since`, or at `default`.
fn path(reader: &Reader<'_, '_>, default: Option<&str>) -> String {
    let options = reader.options;
    let channels = options.channels.iter().map(|channel| match reader.resume(channel) {
        Some(position) => format!("channel={}", query_value(&format!("{channel}@{position}"))),
        None => format!("channel={}", query_value(channel)),
    });
    let mut query = channels.collect::<Vec<_>>().join("&");
    if let Some(since) = options.since.as_deref().or(default) {
        query += &format!("&since={}", query_value(since));
    }
    query += &format!("&policy={}", query_value(&options.policy));
    format!("/v1/stream?{query}")
}

pub(super) async fn ok(
    response: reqwest::Result<reqwest::Response>,
    server: &Server,
) -> Result<reqwest::Response, End> {
    let response = response.map_err(|error| match permanent_reason(&error, server) {
        Some(why) => End::Fatal(SubscriptionError::Options(why)),
        None => End::Lost(cause(&error)),
    })?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let answer = body(response).await.map_err(|error| End::Lost(error.to_string()))?;
    Err(Problem::of(status.as_u16(), &answer).into())
}

pub(super) fn header(response: &reqwest::Response, name: &str) -> String {
    response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_kinds_are_distinguished() {
        let line = |text: &str| parse::<Line>(text.as_bytes()).expect("a line");
        assert_eq!(line(r#"{"positions":{"a":"e:1"}}"#).positions.expect("positions")["a"], "e:1");
        assert_eq!(line(r#"{"gap":{"channel":"a","from":"e:1","to":"e:5"}}"#).gap.expect("a gap").to, "e:5");
        assert_eq!(line(r#"{"drain":{"after_ms":900}}"#).drain.expect("a drain").after_ms, 900);
        let message = line(r#"{"channel":"a","position":"e:1","time":1,"data":{"gap":1}}"#);
        assert!(message.positions.is_none() && message.gap.is_none() && message.drain.is_none());
    }

    #[test]
    fn poll_answer_has_messages_gaps_and_positions() {
        let text = r#"{"positions":{"a":"e:2"},"gaps":[{"channel":"a","from":"d:1","to":"e:1"}],
            "messages":[{"channel":"a","position":"e:2","time":5,"key":"k","data":{"x": 1}}]}"#;
        let answer: Answer = parse(text.as_bytes()).expect("an answer");
        assert_eq!(answer.gaps[0].from, "d:1");
        let message = &answer.messages[0];
        assert_eq!((message.data.get(), message.key.as_deref(), message.time), ("{\"x\": 1}", Some("k"), 5));
    }
}
