//! Publishing over HTTP: one publication, or a batch of lines.

use bytes::Bytes;
use http::{HeaderMap, header, request::Parts};
use hyper::body::Incoming;
use millrace_protocol::{ChannelName, Code, Error, JSON_DEPTH_MAX, Kind, NewPublication, Position, Right, session};
use serde_json::{Value, json};
use tokio::task::coop::consume_budget;

use crate::{
    access::Caller,
    http::{Context, Query, Response, json as json_answer, position_header, read_body},
};

/// `POST /v1/channels/{channel}`: the body is the payload.
///
/// Errors: `too_large`, `timeout`, `bad_json`, `bad_request`, and the engine's.
pub async fn one(
    context: &Context,
    parts: &Parts,
    body: &mut Incoming,
    caller: &Caller,
    channel: ChannelName,
) -> Result<Response, Error> {
    caller.may(Right::Publish, &channel)?;
    Query::parse(parts, &[])?;
    let data = read_body(context, &parts.headers, body, context.config().message_bytes_max).await?;
    let publication = with_headers(&parts.headers, NewPublication::new(kind(&parts.headers, &data)?, data))?;
    context.check_publish(parts, caller, publication.data.len())?;
    let position = context.shard.publish(&channel, publication).await?;
    Ok(answer_position(position))
}

/// `POST /v1/publish`: one publication per line; each line has its own result.
///
/// Errors: `too_large`, `timeout`, `too_many` lines; a bad line is an error in its result only.
pub async fn batch(context: &Context, parts: &Parts, body: &mut Incoming) -> Result<Response, Error> {
    let caller = context.caller(parts).await?;
    caller.may_anything()?;
    Query::parse(parts, &[])?;
    let data = read_body(context, &parts.headers, body, context.config().batch_bytes_max).await?;
    let mut results = Vec::new();
    for line in lines(context, &data)? {
        // A thousand lines are not published before anybody else has a turn.
        consume_budget().await;
        results.push(match context.check_publish(parts, &caller, line.len()) {
            Ok(()) => publish_line(context, &caller, line).await,
            Err(error) => Err(error),
        });
    }
    Ok(results_answer(results))
}

/// Reads and publishes one line `{"channel", "data", ..}`.
pub async fn publish_line(context: &Context, caller: &Caller, line: &[u8]) -> Result<Position, Error> {
    let text = std::str::from_utf8(line).map_err(|_| Error::new(Code::BadJson, "a line is UTF-8"))?;
    let (channel, publication) = session::decode_publish(text)?;
    caller.may(Right::Publish, &channel)?;
    check_size(context, &publication)?;
    context.shard.publish(&channel, publication).await
}

/// Errors: [`Code::TooLarge`].
pub fn check_size(context: &Context, publication: &NewPublication) -> Result<(), Error> {
    let max = context.config().message_bytes_max;
    if publication.data.len() > max {
        return Err(Error::new(Code::TooLarge, format!("a publication has at most {max} bytes")));
    }
    Ok(())
}

/// The lines of a batch that hold something. Errors: [`Code::TooMany`].
pub fn lines<'a>(context: &Context, data: &'a Bytes) -> Result<Vec<&'a [u8]>, Error> {
    let max = context.config().batch_lines_max;
    let lines: Vec<_> =
        data.split(|b| *b == b'\n').filter(|line| !line.trim_ascii().is_empty()).take(max + 1).collect();
    if lines.len() > max {
        return Err(Error::new(Code::TooMany, format!("a batch has at most {max} lines")));
    }
    Ok(lines)
}

pub fn results_answer(results: Vec<Result<Position, Error>>) -> Response {
    let result = |result: Result<Position, Error>| match result {
        Ok(position) => json!({ "position": position.to_string() }),
        Err(error) => json!({ "error": error.to_json() }),
    };
    let results: Vec<Value> = results.into_iter().map(result).collect();
    json_answer(json!({ "results": results }).to_string())
}

pub fn answer_position(position: Position) -> Response {
    let mut response = json_answer(json!({ "position": position.to_string() }).to_string());
    position_header(&mut response, &position.to_string());
    response
}

/// Key, time to live and idempotency key from the headers. Errors: `bad_request`, `too_large`.
pub fn with_headers(headers: &HeaderMap, mut publication: NewPublication) -> Result<NewPublication, Error> {
    let text = |name: &str| -> Result<Option<&str>, Error> {
        let value = headers.get(name).map(|value| std::str::from_utf8(value.as_bytes())).transpose();
        value.map_err(|_| Error::new(Code::BadRequest, format!("`{name}` is UTF-8")))
    };
    publication.key = text("millrace-key")?.map(Into::into);
    publication.idempotency_key = text("idempotency-key")?.map(Into::into);
    if let Some(ttl) = text("millrace-ttl")? {
        let seconds = ttl.parse().map_err(|_| Error::new(Code::BadRequest, "`Millrace-TTL` is a number of seconds"))?;
        publication.ttl_ms = Some(session::ttl_ms(seconds)?);
    }
    publication.check()
}

/// What the payload is, by its content type; without a telling one, by looking. Errors: `bad_json`, `bad_request`.
fn kind(headers: &HeaderMap, data: &[u8]) -> Result<Kind, Error> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let detected = Kind::detect(data);
    match essence.as_str() {
        "application/json" if detected != Kind::Json => {
            let detail = format!("the body is not JSON, or is nested deeper than {JSON_DEPTH_MAX} levels");
            Err(Error::new(Code::BadJson, detail))
        }
        "application/octet-stream" => Ok(Kind::Binary),
        text if text.starts_with("text/") => match detected {
            Kind::Binary => Err(Error::new(Code::BadRequest, "a text body is UTF-8")),
            _ => Ok(Kind::Text),
        },
        _ => Ok(detected),
    }
}
