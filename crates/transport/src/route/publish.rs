//! Publishing over HTTP: one publication, or a batch of NDJSON lines.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, header, request::Parts};
use hyper::body::Incoming;
use millrace_protocol::{
    ChannelName, Code, Error, JSON_DEPTH_MAX, Kind, NewPublication, Position, TraceContext, session,
};
use serde_json::{Value, json};
use tokio::task::coop::consume_budget;

use super::context::Context;
use crate::{
    admission::{
        self, Admission, Congestion, PublishTarget, Publisher, Publishing,
        access::Caller,
        hooks::{HookClient, client_of},
        limits::{ForwardedFor, RequestConnection},
        read_body,
    },
    http::{Query, Response, json as json_answer, position_header},
};

// Header names, parsed once instead of once per request.
static KEY: HeaderName = HeaderName::from_static("millrace-key");
static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TTL: HeaderName = HeaderName::from_static("millrace-ttl");

/// Handles `POST /v1/channels/{channel}`: publishes the body.
///
/// Errors: `too_large`, `timeout`, `bad_json`, `bad_request`, and those of the engine.
pub async fn one(
    context: &Context,
    parts: &Parts,
    body: &mut Incoming,
    caller: &Caller,
    channel: ChannelName,
) -> Result<Response, Error> {
    let mut target = caller.may_publish(channel)?;
    Query::parse(parts, &[])?;
    let data =
        read_body(&context.admission, &parts.headers, body, context.admission.config().message_bytes_max).await?;
    let publication = with_headers(&parts.headers, NewPublication::new(kind(&parts.headers, &data)?, data))?;
    let publisher = RequestPublisher { admission: &context.admission, parts, caller };
    Ok(answer_position(publish(context, &publisher, &mut target, publication).await?))
}

/// Handles `DELETE /v1/channels/{channel}?key=..`: deletes a key from the state of the channel.
///
/// Errors: `bad_request`, `too_large`, and those of the engine.
pub async fn delete(
    context: &Context,
    parts: &Parts,
    caller: &Caller,
    channel: ChannelName,
) -> Result<Response, Error> {
    let mut target = caller.may_publish(channel)?;
    let query = Query::parse(parts, &["key"])?;
    let missing =
        || Error::new(Code::BadRequest, "`key` is missing: DELETE /v1/channels/CHANNEL?key=KEY deletes one key");
    let deletion = NewPublication::deletion(query.get("key").ok_or_else(missing)?.into());
    let deletion = with_conditions(&parts.headers, deletion)?.check()?;
    let publisher = RequestPublisher { admission: &context.admission, parts, caller };
    Ok(answer_position(publish(context, &publisher, &mut target, deletion).await?))
}

/// Handles `POST /v1/publish`: publishes one publication per line. Each line has its own result.
///
/// With `ordered`, a line that may succeed later stops its channel: later lines of this channel are not published, so
/// that a publisher that repeats them keeps their order.
///
/// Errors: `too_large`, `timeout`, `too_many` lines. A bad line is an error only in its own result.
pub async fn batch(context: &Context, parts: &Parts, body: &mut Incoming) -> Result<Response, Error> {
    let caller = context.admission.caller(parts).await?;
    caller.may_anything()?;
    let is_ordered = Query::parse(parts, &["ordered"])?.get("ordered").is_some();
    let data = read_body(&context.admission, &parts.headers, body, context.admission.config().batch_bytes_max).await?;
    let publisher = RequestPublisher { admission: &context.admission, parts, caller: &caller };
    let (mut results, mut stopped) = (Vec::new(), HashSet::new());
    for line in lines(context, &data)? {
        // Let other tasks run between the lines of a large batch.
        consume_budget().await;
        let result = match decode_line(line) {
            Ok((channel, _)) if stopped.contains(&channel) => {
                Err(Error::new(Code::Unavailable, "an earlier line of this channel was not published; repeat both"))
            }
            Ok((channel, publication)) => {
                let result = publish_decoded(context, &publisher, &caller, channel.clone(), publication).await;
                if is_ordered && result.as_ref().is_err_and(|error| error.code.may_retry()) {
                    stopped.insert(channel);
                }
                counted(context, result)
            }
            Err(error) => Err(error),
        };
        results.push(result);
    }
    Ok(results_answer(results))
}

/// Parses and publishes one line `{"channel", "data", ..}`, or deletes a key with `{"channel", "key", "delete": true}`.
pub async fn publish_line(
    context: &Context,
    publisher: &(impl Publisher + ?Sized),
    caller: &Caller,
    line: &[u8],
) -> Result<Position, Error> {
    let (channel, publication) = decode_line(line)?;
    publish_decoded(context, publisher, caller, channel, publication).await
}

fn decode_line(line: &[u8]) -> Result<(ChannelName, NewPublication), Error> {
    let text = std::str::from_utf8(line).map_err(|_| Error::new(Code::BadJson, "the line is not UTF-8"))?;
    session::decode_publish(text)
}

async fn publish_decoded(
    context: &Context,
    publisher: &(impl Publisher + ?Sized),
    caller: &Caller,
    channel: ChannelName,
    publication: NewPublication,
) -> Result<Position, Error> {
    let mut target = caller.may_publish(channel)?;
    publish(context, publisher, &mut target, publication).await
}

/// Publishes with the current settings; see [`admission::publish`].
pub fn publish<'a>(
    context: &'a Context,
    publisher: &'a (impl Publisher + ?Sized),
    target: &'a mut PublishTarget,
    publication: NewPublication,
) -> Publishing<'a> {
    admission::publish(&context.shard, publisher, context.admission.config().message_bytes_max, target, publication)
}

/// Counts the error of one line or datagram if a limit has caused it. The errors of whole requests are counted by
/// [`route`](super::route).
pub fn counted<T>(context: &Context, result: Result<T, Error>) -> Result<T, Error> {
    result.inspect_err(|error| context.admission.limits.count_error(error))
}

/// Publisher of one request. Its connection, its subject, or the address that a proxy has reported pays.
pub struct RequestPublisher<'a> {
    pub admission: &'a Admission,
    pub parts: &'a Parts,
    pub caller: &'a Caller,
}

impl Publisher for RequestPublisher<'_> {
    fn take_quota(&self, bytes: usize) -> Result<(), Error> {
        let (limits, subject) = (&self.admission.limits, self.caller.grant.subject.as_ref());
        let extensions = &self.parts.extensions;
        if let Some(ForwardedFor(address)) = extensions.get() {
            return limits.check_forwarded_publish(*address, subject, bytes);
        }
        match extensions.get::<Arc<RequestConnection>>() {
            Some(connection) => connection.check_publish(limits, subject, bytes),
            None => limits.check_publish(None, subject, bytes),
        }
    }

    fn meet_congestion(&self) -> Congestion {
        Congestion::Refuse
    }

    fn admission(&self) -> Option<&Admission> {
        Some(self.admission)
    }

    fn client(&self) -> HookClient {
        client_of(self.parts, self.caller)
    }
}

/// Returns the lines of a batch that are not blank. Errors: [`Code::TooMany`].
pub fn lines<'a>(context: &Context, data: &'a Bytes) -> Result<Vec<&'a [u8]>, Error> {
    let max = context.admission.config().batch_lines_max;
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

/// Encodes the response to a publish request. It is written by hand because every `POST` uses it, and building a
/// JSON value for one use costs many times as much.
pub fn answer_position(position: Position) -> Response {
    let mut text = Vec::with_capacity(32);
    position.write(&mut text);
    let mut response = json_answer([b"{\"position\":\"", &text[..], b"\"}"].concat());
    position_header(&mut response, &text);
    response
}

/// Sets key, time to live, idempotency key, condition and trace context from the headers.
///
/// Errors: `bad_request`, `bad_position`, `too_large`.
pub fn with_headers(headers: &HeaderMap, publication: NewPublication) -> Result<NewPublication, Error> {
    let mut publication = with_conditions(headers, publication)?;
    publication.key = header_text(headers, &KEY)?.map(Into::into);
    if let Some(ttl) = header_text(headers, &TTL)? {
        let seconds =
            ttl.parse().map_err(|_| Error::new(Code::BadRequest, "`Millrace-TTL` must be a number of seconds"))?;
        publication.ttl_ms = Some(session::ttl_ms(seconds)?);
    }
    publication.check()
}

/// Sets idempotency key, condition and trace context from the headers. A malformed context is ignored, and so is a
/// second one.
///
/// Errors: `bad_request`, `bad_position`. Source: W3C Trace Context, level 1, section 3.2.
fn with_conditions(headers: &HeaderMap, mut publication: NewPublication) -> Result<NewPublication, Error> {
    publication.idempotency_key = header_text(headers, &IDEMPOTENCY_KEY)?.map(Into::into);
    if let Some(expected) = header_text(headers, &header::IF_MATCH)? {
        publication.expected = Some(expected.parse()?);
        if headers.get_all(header::IF_MATCH).iter().count() > 1 {
            return Err(Error::new(Code::BadRequest, "`If-Match` is given twice; give one position"));
        }
    }
    let trace = headers.get(&TRACEPARENT).and_then(|value| TraceContext::parse(value.as_bytes()).ok());
    Ok(if trace.is_some() { publication.traced(trace) } else { publication })
}

fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Error> {
    let value = headers.get(name).map(|value| std::str::from_utf8(value.as_bytes())).transpose();
    value.map_err(|_| Error::new(Code::BadRequest, format!("`{name}` is not UTF-8")))
}

/// Returns the kind of a payload. The content type decides; if it does not determine the kind, the payload does.
/// Errors: `bad_json`, `bad_request`.
fn kind(headers: &HeaderMap, data: &[u8]) -> Result<Kind, Error> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let is = |name: &str| essence.eq_ignore_ascii_case(name);
    let is_text = essence.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("text/"));
    if is("application/octet-stream") {
        return Ok(Kind::Binary);
    }
    match Kind::detect(data) {
        detected if is("application/json") && detected != Kind::Json => {
            let detail = format!("the body is not JSON, or is nested deeper than {JSON_DEPTH_MAX} levels");
            Err(Error::new(Code::BadJson, detail))
        }
        Kind::Binary if is_text => Err(Error::new(Code::BadRequest, "the body has a text type and is not UTF-8")),
        _ if is_text => Ok(Kind::Text),
        detected => Ok(detected),
    }
}
