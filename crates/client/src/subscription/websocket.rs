//! Session for all channels: `millrace.v1+json` over `/v1/connect`.

use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::json;
use tokio_tungstenite::tungstenite::client::ClientRequestBuilder;
use tokio_tungstenite::tungstenite::protocol::{WebSocketConfig, frame::coding::CloseCode};
use tokio_tungstenite::tungstenite::{Error, Message as Frame};
use tokio_tungstenite::{Connector, connect_async_tls_with_config};

use super::message::{Gap, MESSAGE_BYTES_MAX, Message, StateComplete, SubscriptionError};
use super::reader::{End, Reader, SILENCE_MAX, is_pattern, parse};
use crate::{http::cause, problem::Problem, server::Server, tls};

const SUBPROTOCOL: &str = "millrace.v1+json";

/// Message from the server, with the fields that a reader needs.
#[derive(Deserialize)]
struct ServerMessage {
    push: Option<String>,
    id: Option<usize>,
    ok: Option<Reply>,
    error: Option<Problem>,
    after_ms: Option<u64>,
    /// Push `drain`: the resume ticket.
    resume: Option<String>,
    /// Push `connected`: the channels and patterns that the ticket resumed.
    resumed: Option<Vec<String>>,
    /// Push `error`: the error code.
    code: Option<String>,
    detail: Option<String>,
}

#[derive(Deserialize)]
struct Reply {
    position: Option<String>,
    time: Option<u64>,
}

pub async fn read(reader: &mut Reader<'_, '_>) -> End {
    match connect_and_read(reader).await {
        Ok(never) => match never {},
        Err(end) => end,
    }
}

async fn connect_and_read(reader: &mut Reader<'_, '_>) -> Result<std::convert::Infallible, End> {
    let url = reader.options.server.websocket("/v1/connect");
    let uri = url.parse().map_err(|_| End::Fatal(SubscriptionError::Options(format!("{url} is not a valid URL"))))?;
    let mut request = ClientRequestBuilder::new(uri).with_sub_protocol(SUBPROTOCOL);
    if let Some((name, bearer)) = reader.options.server.authorization() {
        request = request.with_header(name, bearer);
    }
    let ticket = reader.ticket.take();
    if let Some(ticket) = &ticket {
        request = request.with_sub_protocol(format!("resume.{ticket}"));
    }
    let config = WebSocketConfig::default().max_message_size(Some(MESSAGE_BYTES_MAX));
    let connector = Connector::Rustls(tls::config(&["http/1.1"]).into());
    let opening = connect_async_tls_with_config(request, Some(config), true, Some(connector));
    let opened = tokio::time::timeout(SILENCE_MAX, opening).await;
    let (mut socket, _) = opened
        .map_err(|_| End::Lost("the server does not answer".into()))?
        .map_err(|error| refusal(error, &reader.options.server))?;
    // With a ticket, wait for the list of resumed channels before subscribing to the rest.
    let mut asked = false;
    let mut resumed: Option<Vec<String>> = ticket.is_none().then(Vec::new);
    loop {
        if let Some(resumed) = resumed.take().filter(|_| !asked) {
            asked = true;
            let commands = reader.options.channels.iter().zip(1..).filter(|(channel, _)| !resumed.contains(channel));
            for (channel, id) in commands {
                let command = json!({ "id": id, "subscribe": subscribe(reader, channel) }).to_string();
                socket.send(Frame::text(command)).await.map_err(|error| End::Lost(cause(&error)))?;
            }
        }
        match reader.receive(socket.next()).await? {
            None => return Err(End::Lost("the connection ended".into())),
            Some(Err(error)) => return Err(End::Lost(cause(&error))),
            Some(Ok(Frame::Text(text))) => resumed = handle_message(reader, text.as_bytes())?,
            Some(Ok(Frame::Close(close))) => return Err(closed(close.map(|c| (c.code, c.reason.to_string())))),
            Some(Ok(_)) => {}
        }
    }
}

fn subscribe(reader: &Reader<'_, '_>, channel: &str) -> serde_json::Value {
    let options = reader.options;
    let mut command = json!({ "channel": channel, "policy": options.policy });
    let asked = options.since.as_deref();
    if is_pattern(channel) {
        // Channels with a known position resume there; all others resume from the time at which the pattern began.
        match reader.cursors.pattern_since(channel) {
            None => {
                if let Some(since) = asked {
                    command["since"] = json!(since);
                }
            }
            Some(began_ms) => {
                let from_the_past = asked.filter(|&since| since != "now");
                command["since"] = json!(from_the_past.map_or_else(|| began_ms.to_string(), str::to_owned));
                let known = reader.cursors.positions().iter().filter(|(name, _)| matches(channel, name));
                command["positions"] = known.map(|(name, position)| (name.clone(), json!(position))).collect();
            }
        }
    } else if let Some(since) = reader.resume(channel).or(asked.map(str::to_owned)) {
        command["since"] = json!(since);
    }
    command
}

/// Returns true if a pattern matches a name: `+` matches one level, `#` matches the rest, including the parent
/// level.
fn matches(pattern: &str, name: &str) -> bool {
    let (mut wanted, mut levels) = (pattern.split('/'), name.split('/'));
    loop {
        match (wanted.next(), levels.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(_)) => {}
            (Some(level), Some(other)) if level == other => {}
            _ => return false,
        }
    }
}

/// Handles one message. Once the session begins, returns the channels that the ticket resumed; the caller
/// subscribes to the others.
fn handle_message(reader: &mut Reader<'_, '_>, text: &[u8]) -> Result<Option<Vec<String>>, End> {
    let message: ServerMessage = parse(text)?;
    match message.push.as_deref() {
        Some("message") => reader.message(parse::<Message>(text)?)?,
        Some("gap") => reader.gap(parse::<Gap>(text)?)?,
        Some("state") => {
            let StateComplete { channel, position } = parse(text)?;
            reader.state_complete(channel, &position)?;
        }
        Some("connected") => {
            reader.connected();
            return Ok(Some(message.resumed.unwrap_or_default()));
        }
        Some("drain") => {
            reader.drain(message.after_ms.unwrap_or(0));
            *reader.ticket = message.resume;
        }
        Some("error" | "unsubscribed") => {
            let what = format!("{}: {}", message.code.unwrap_or_default(), message.detail.unwrap_or_default());
            return Err(End::Fatal(SubscriptionError::Protocol(what)));
        }
        // Ignore unknown pushes of a newer server.
        Some(_) => {}
        None => {}
    }
    match message.error {
        // The error belongs to the ticket, not to a command. The ticket resumed nothing, so the caller subscribes
        // to every channel.
        Some(_) if message.id == Some(0) => return Ok(None),
        Some(problem) => return Err(problem.into()),
        None => {}
    }
    let channel = message.id.and_then(|id| reader.options.channels.get(id.checked_sub(1)?));
    if let (Some(channel), Some(reply)) = (channel, message.ok) {
        match (is_pattern(channel), reply.position, reply.time) {
            (true, _, Some(time_ms)) => reader.cursors.start_pattern(channel, time_ms),
            (false, Some(position), _) => reader.cursors.start(channel, &position),
            _ => {}
        }
    }
    Ok(None)
}

/// Returns the reason for a failed handshake. A response other than `101` is classified like any other HTTP
/// response.
fn refusal(error: Error, server: &Server) -> End {
    match error {
        Error::Http(response) => {
            let body = response.body().as_deref().unwrap_or_default();
            Problem::of(response.status().as_u16(), body).into()
        }
        error => match tls::permanent_reason(&error, server) {
            Some(why) => End::Fatal(SubscriptionError::Options(why)),
            None => End::Lost(cause(&error)),
        },
    }
}

/// Maps a close code to the next action. Source: docs/reference/protocol.md, "WebSocket".
fn closed(close: Option<(CloseCode, String)>) -> End {
    let Some((code, reason)) = close else { return End::Lost("closed without a reason".into()) };
    let what = format!("closed with {code} {reason}");
    match u16::from(code) {
        1000 => End::Enough,
        // The token was revoked.
        4003 => Problem { code: "unauthorized".into(), detail: reason, retry: false, reason: None }.into(),
        1002 | 1003 | 1007 | 1009 => End::Fatal(SubscriptionError::Protocol(what)),
        _ => End::Lost(what),
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::super::cursors::Cursors;
    use super::super::{Options, Transport, Update};
    use super::*;
    use crate::backoff::Backoff;
    use crate::random::Random;
    use std::time::Duration;

    /// Feeds server messages to a reader of `channel`. Returns its output and the next `subscribe` command, or the
    /// ticket.
    fn session(channel: &str, since: Option<&str>, said: &[&str]) -> (Vec<String>, serde_json::Value) {
        let options = Options {
            server: Server::parse("http://127.0.0.1:1").expect("an address"),
            channels: vec![channel.to_owned()],
            transport: Transport::WebSocket,
            since: since.map(str::to_owned),
            policy: "every".into(),
            poll_interval: Duration::from_secs(1),
            retry_for: None,
        };
        let mut cursors = Cursors::default();
        let mut backoff = Backoff::new(Duration::ZERO, Duration::ZERO, Random::from_seed(1));
        let (mut out, mut ticket) = (Vec::new(), None);
        let mut sink = |update: Update| {
            out.push(match update {
                Update::Message(message) => format!("{} {}", message.position, message.data.get()),
                Update::Gap(gap) => format!("gap {} {}", gap.from, gap.to),
                Update::StateComplete(channel) => format!("complete {channel}"),
                Update::Lost(lost) => lost.why,
            });
            ControlFlow::Continue(())
        };
        let mut reader = Reader {
            options: &options,
            cursors: &mut cursors,
            backoff: &mut backoff,
            sink: &mut sink,
            moving: None,
            ticket: &mut ticket,
        };
        for text in said {
            handle_message(&mut reader, text.as_bytes()).expect("it goes on");
        }
        assert_eq!(reader.moving.is_some(), reader.ticket.is_some());
        let command = match reader.ticket.take() {
            Some(ticket) => json!(ticket),
            None => subscribe(&reader, channel),
        };
        (out, command)
    }

    #[test]
    fn session_resumes_after_last_message_and_drops_duplicates() {
        let (out, next) = session(
            "a",
            None,
            &[
                r#"{"push":"connected","ping_ms":25000,"message_bytes_max":1048576,"time":1}"#,
                r#"{"id":1,"ok":{"channel":"a","position":"e:4","recovered":true,"time":1}}"#,
                r#"{"push":"message","channel":"a","position":"e:5","time":1,"data":"x"}"#,
                r#"{"push":"message","channel":"a","position":"e:5","time":1,"data":"x"}"#,
                r#"{"push":"gap","channel":"a","from":"e:5","to":"e:8"}"#,
            ],
        );
        assert_eq!(out, ["e:5 \"x\"", "gap e:5 e:8"]);
        assert_eq!(next, json!({ "channel": "a", "policy": "every", "since": "e:8" }));
    }

    #[test]
    fn draining_reader_reads_on_and_keeps_its_ticket() {
        let (out, ticket) = session(
            "a",
            Some("e:4"),
            &[
                r#"{"push":"drain","after_ms":5000,"resume":"a-ticket"}"#,
                r#"{"push":"message","channel":"a","position":"e:5","time":1,"data":"x"}"#,
                // The reader presents the ticket to the next server, whose position is older than the reader's.
                r#"{"push":"connected","ping_ms":25000,"message_bytes_max":1048576,"time":1,"resumed":["a"]}"#,
                r#"{"id":0,"ok":{"channel":"a","position":"e:4","recovered":true,"time":1}}"#,
                r#"{"push":"message","channel":"a","position":"e:5","time":1,"data":"x"}"#,
                r#"{"push":"message","channel":"a","position":"e:6","time":1,"data":"y"}"#,
            ],
        );
        assert_eq!(
            (out.as_slice(), ticket),
            (["e:5 \"x\"".to_owned(), "e:6 \"y\"".to_owned()].as_slice(), json!("a-ticket"))
        );
        let refused = r#"{"id":0,"error":{"code":"bad_ticket","detail":"it has expired","retry":false}}"#;
        assert_eq!(session("a", Some("e:4"), &[refused]).1["since"], "e:4", "it is asked for as without a ticket");
    }

    #[test]
    fn reader_without_messages_resumes_at_its_start() {
        let reply = r#"{"id":1,"ok":{"channel":"a","position":"e:4","recovered":true,"time":1}}"#;
        assert_eq!(session("a", Some("now"), &[reply]).1["since"], "e:4");
        assert_eq!(session("a", Some("earliest"), &[]).1["since"], "earliest");
    }

    #[test]
    fn pattern_resumes_with_positions_and_start_time() {
        let said = [
            r#"{"id":1,"ok":{"channel":"cars/+/telemetry","time":77}}"#,
            r#"{"push":"message","channel":"cars/1/telemetry","position":"e:5","time":80,"data":1}"#,
        ];
        let (out, next) = session("cars/+/telemetry", None, &said);
        assert_eq!(out, ["e:5 1"]);
        assert_eq!((&next["since"], &next["positions"]), (&json!("77"), &json!({ "cars/1/telemetry": "e:5" })));
        assert_eq!(session("cars/+/telemetry", Some("earliest"), &said).1["since"], "earliest");
    }

    #[test]
    fn patterns_match_as_in_the_protocol() {
        for (pattern, name, wanted) in [
            ("cars/+/telemetry", "cars/1/telemetry", true),
            ("cars/+", "cars/1/telemetry", false),
            ("cars/#", "cars/1/telemetry", true),
            ("cars/#", "cars", true),
            ("cars/#", "car", false),
        ] {
            assert_eq!(matches(pattern, name), wanted, "{pattern} {name}");
        }
    }

    #[test]
    fn close_codes_decide_whether_to_reconnect() {
        let end = |code: u16| closed(Some((CloseCode::from(code), String::new())));
        assert!([1001, 1012].into_iter().all(|code| matches!(end(code), End::Lost(_))));
        assert!(matches!(end(1000), End::Enough));
        assert!([1002, 1003, 1007, 1009].into_iter().all(|code| matches!(end(code), End::Fatal(_))));
    }
}
