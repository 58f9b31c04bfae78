//! Requests of local publishers: the publishing requests of a server, answered with `202` once the message is on disk.

use std::{convert::Infallible, rc::Rc, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use http_body_util::{BodyExt, Limited};
use hyper::{
    Method, Request, StatusCode,
    body::Incoming,
    header::{self, HeaderMap},
    service::service_fn,
};
use millrace_buffer::{Message, MessageError, PutError, Receipt, one_line};
use serde_json::{json, value::RawValue};
use tokio::{net::TcpListener, sync::Semaphore, task::LocalSet};

use super::{
    config::Config,
    store::{Store, StorePutError},
};
use crate::http::{Answer, Problem, accept, authorize, whole};

/// Maximum number of local connections at the same time.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of bodies in memory at the same time.
const BODIES_MAX: usize = 16;
/// Maximum size of a message in bytes, as in the server.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of lines in a batch, as in the server.
const LINES_MAX: usize = 1000;
const CHANNELS: &str = "/v1/channels/";

struct State {
    store: Arc<Store>,
    config: Rc<Config>,
    bodies: Semaphore,
}

/// Serves local publishers until the future is dropped.
pub async fn serve(listener: TcpListener, store: Arc<Store>, config: Rc<Config>) {
    let tasks = LocalSet::new();
    let state = Rc::new(State { store, config, bodies: Semaphore::new(BODIES_MAX) });
    let serve = accept(listener, CONNECTIONS_MAX, |_| {
        let state = state.clone();
        service_fn(move |request| {
            let state = state.clone();
            async move { Ok::<_, Infallible>(route(&state, request).await.unwrap_or_else(Problem::answer)) }
        })
    });
    tasks.run_until(serve).await;
}

async fn route(state: &State, request: Request<Incoming>) -> Result<Answer, Problem> {
    let State { store, config, bodies } = state;
    authorize(config.secret.as_deref(), request.headers())?;
    let (parts, body) = request.into_parts();
    let _permit = bodies.acquire().await;
    match (&parts.method, parts.uri.path()) {
        (&Method::POST, "/v1/publish") => {
            let body = read(body).await?;
            batch(store, &body).await
        }
        (&Method::POST, path) if path.starts_with(CHANNELS) => {
            let channel = decode(&path[CHANNELS.len()..])?;
            let body = read(body).await?;
            let message = message(&channel, &parts.headers, &body).map_err(bad_message)?;
            let receipts = store.put(vec![message]).await.map_err(refused)?;
            Ok(whole(StatusCode::ACCEPTED, "application/json", queued(&receipts[0]).to_string()))
        }
        (&Method::GET, "/v1/stats") => {
            let stats = store.stats().await.map_err(|error| refused(error.into()))?;
            Ok(whole(StatusCode::OK, "application/json", json!(stats).to_string()))
        }
        _ => {
            let detail = "unknown request; this gateway stores and forwards: `POST /v1/channels/CHANNEL`, `POST \
                          /v1/publish` and `GET /v1/stats`";
            Err(Problem(StatusCode::NOT_FOUND, "not_found", detail.into()))
        }
    }
}

async fn batch(store: &Store, body: &[u8]) -> Result<Answer, Problem> {
    let lines: Vec<_> = body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).collect();
    if lines.len() > LINES_MAX {
        let detail = format!("a batch has at most {LINES_MAX} lines");
        return Err(Problem(StatusCode::BAD_REQUEST, "too_many", detail));
    }
    let parsed: Vec<_> = lines.into_iter().map(parse).collect();
    let good: Vec<_> = parsed.iter().filter_map(|message| message.as_ref().ok()).cloned().collect();
    let receipts = match good.is_empty() {
        true => Vec::new(),
        false => store.put(good).await.map_err(refused)?,
    };
    let mut receipts = receipts.iter();
    let results: Vec<_> = parsed
        .into_iter()
        .map(|message| match message {
            Ok(_) => receipts.next().map_or_else(|| json!({}), queued),
            Err(error) => json!({"error": {"code": "bad_json", "detail": error.to_string(), "retry": false}}),
        })
        .collect();
    Ok(whole(StatusCode::ACCEPTED, "application/json", json!({ "results": results }).to_string()))
}

/// Parses one line of a batch.
pub fn parse(line: &[u8]) -> Result<Message<'static>, MessageError> {
    let text = std::str::from_utf8(line).map_err(|error| MessageError::Malformed(error.to_string()))?;
    Message::parse(text)
}

fn queued(receipt: &Receipt) -> serde_json::Value {
    match receipt.is_repeated {
        true => json!({"queued": receipt.seq, "repeated": true}),
        false => json!({"queued": receipt.seq}),
    }
}

async fn read(body: Incoming) -> Result<Vec<u8>, Problem> {
    let body = Limited::new(body, MESSAGE_BYTES_MAX).collect().await;
    let problem = |_| {
        let detail = format!("the body is incomplete, or larger than {MESSAGE_BYTES_MAX} bytes");
        Problem(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    };
    Ok(body.map_err(problem)?.to_bytes().into())
}

/// Decodes a channel in a path (RFC 3986, section 2.1).
fn decode(path: &str) -> Result<String, Problem> {
    // A plus sign in a path is a plus sign; the decoder of forms takes it for a space.
    let form = format!("c={}", path.replace('+', "%2B").replace('&', "%26"));
    let channel = form_urlencoded::parse(form.as_bytes()).next().map(|(_, channel)| channel.into_owned());
    channel.ok_or_else(|| Problem(StatusCode::BAD_REQUEST, "bad_channel", "the channel is missing".into()))
}

/// Makes a message of a body and its headers, as the server does (docs/reference/protocol.md, "Writing").
fn message(channel: &str, headers: &HeaderMap, body: &[u8]) -> Result<Message<'static>, MessageError> {
    let text = |name: &str| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    if headers.contains_key(header::IF_MATCH) {
        return Err(MessageError::IfMatch);
    }
    let kind = text("content-type").unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let as_text = std::str::from_utf8(body).ok().filter(|_| kind != "application/octet-stream");
    let as_json = as_text.filter(|_| !kind.starts_with("text/"));
    let as_json = as_json.filter(|text| serde_json::from_str::<&RawValue>(text).is_ok());
    let data = match (as_json, as_text) {
        (Some(json), _) => format!("\"data\":{}", one_line(json.trim())),
        (None, _) if kind == "application/json" => {
            return Err(MessageError::Malformed("the body is not JSON".into()));
        }
        (None, Some(text)) => format!("\"data\":{}", json!(text)),
        (None, None) => format!("\"data\":\"{}\",\"encoding\":\"base64\"", BASE64_STANDARD.encode(body)),
    };
    let ttl = match text("millrace-ttl") {
        Some(ttl) => Some(ttl.parse().map_err(|_| MessageError::Ttl)?),
        None => None,
    };
    let member = |name: &str, value: Option<String>| value.map(|value| format!(",\"{name}\":{}", json!(value)));
    let members = [data, member("key", text("millrace-key")).unwrap_or_default()].concat()
        + &member("trace", text("traceparent")).unwrap_or_default();
    Message::new(channel, text("idempotency-key").as_deref(), ttl, members)
}

fn bad_message(error: MessageError) -> Problem {
    let code = match error {
        MessageError::Channel(_) => "bad_channel",
        MessageError::Malformed(_) => "bad_json",
        _ => "bad_request",
    };
    Problem(StatusCode::BAD_REQUEST, code, error.to_string())
}

fn refused(error: StorePutError) -> Problem {
    let (status, code) = match &error {
        StorePutError::Put(put) if matches!(**put, PutError::TooLarge(_)) => {
            (StatusCode::PAYLOAD_TOO_LARGE, "too_large")
        }
        _ => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    };
    Problem(status, code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(kind: &str, body: &[u8]) -> Result<String, MessageError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, kind.parse().expect("a content type"));
        message("a", &headers, body).map(|message| message.members.into_owned())
    }

    #[test]
    fn content_type_and_body_decide_the_encoding() {
        for (kind, body, expected) in [
            ("application/json", &b"{\n\"a\": 1}\n"[..], r#""data":{ "a": 1}"#),
            ("text/plain", b"{}", r#""data":"{}""#),
            ("application/x-www-form-urlencoded", b"7", r#""data":7"#),
            ("application/x-www-form-urlencoded", b"a\nb", r#""data":"a\nb""#),
            ("application/octet-stream", b"7", r#""data":"Nw==","encoding":"base64""#),
            ("x/y", &[0xff], r#""data":"/w==","encoding":"base64""#),
        ] {
            assert_eq!(members(kind, body).as_deref(), Ok(expected), "{kind}");
        }
        assert!(members("application/json", b"{").is_err());
    }

    #[test]
    fn headers_become_members() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("millrace-key", "k\""), ("millrace-ttl", "60"), ("idempotency-key", "i")] {
            headers.insert(name, value.parse().expect("a header"));
        }
        let found = message("a", &headers, b"1").expect("a message");
        assert_eq!((&*found.members, found.ttl_ms), (r#""data":1,"key":"k\"""#, Some(60_000)));
        headers.insert("if-match", "0".parse().expect("a header"));
        assert_eq!(message("a", &headers, b"1"), Err(MessageError::IfMatch));
    }

    #[test]
    fn channel_of_a_path_is_decoded() {
        let decoded = |path| decode(path).ok();
        assert_eq!(decoded("cars/1%2Ftelemetry+a").as_deref(), Some("cars/1/telemetry+a"));
        assert_eq!(decoded("a%20b&c").as_deref(), Some("a b&c"));
    }
}
