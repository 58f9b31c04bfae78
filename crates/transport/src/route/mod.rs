//! Routing: maps URLs to handlers.

mod context;
mod handover;
pub mod publish;
mod routes;
mod rpc;

use std::{borrow::Cow, rc::Rc, time::Duration};

use http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header, request::Parts};
use hyper::body::Incoming;
use millrace_node::Metrics;
use millrace_protocol::{ChannelName, Code, Error, Permission, session::RosterPage};
use percent_encoding::percent_decode_str;

use crate::{
    admission::{
        access::{Caller, CorsAccess},
        discard,
    },
    data_channel,
    http::{
        Body, CHANNEL, CONNECT, HEARTBEAT, MQTT, PRESENCE, PUBLISH, Query, RPC, ReadRequest, Response, ResponseFormat,
        STREAM, is_upgrade, json, position_header, problem,
    },
    polling::{self, PollStart, Read},
    transports::{
        mqtt, replay, sse,
        stream::{self, Stream},
        websocket::{self, Upgrade},
    },
};

pub use crate::http::{ENDPOINTS, Endpoint, method_not_allowed};
pub use context::{Arrival, Context, Door, Pages};
pub use handover::{Handover, Routed, plain};
pub use routes::{Answering, Publishing, Question, Routes, ShardPort, Taking};

/// Handles a request. Errors become problem details. No input causes a panic.
pub async fn route(context: Rc<Context>, request: http::Request<Incoming>) -> Routed {
    let metrics = context.shard.socket_metrics.clone();
    Metrics::add(&metrics.http_requests, 1);
    context.keep_timer();
    let (parts, mut body) = request.into_parts();
    let (mut response, handover) = match answer(&context, &parts, &mut body).await {
        Ok(routed) => routed,
        Err(error) => {
            context.admission.limits.count_error(&error);
            (problem(&error), None)
        }
    };
    if is_error(&response) {
        Metrics::add(&metrics.http_errors, 1);
        if response.status() != StatusCode::REQUEST_TIMEOUT {
            discard(&parts.headers, &mut body).await;
        }
    }
    allow_origin(&context, &parts, &mut response);
    (response, handover)
}

/// Handles a request for which [`is_read`](crate::http::is_read) is true, like [`route`].
pub async fn route_read(context: Rc<Context>, parts: Parts) -> Routed {
    let metrics = &context.shard.socket_metrics;
    Metrics::add(&metrics.http_requests, 1);
    let answered = async {
        context.admission.access.check_origin(&parts, &context.admission.config().allowed_origins)?;
        read_channels(&context, &parts).await.unwrap_or_else(|| Err(not_found()))
    };
    let (mut response, handover) = answered.await.unwrap_or_else(|error| {
        context.admission.limits.count_error(&error);
        (problem(&error), None)
    });
    if is_error(&response) {
        Metrics::add(&metrics.http_errors, 1);
    }
    allow_origin(&context, &parts, &mut response);
    (response, handover)
}

fn is_error(response: &Response) -> bool {
    response.status().is_client_error() || response.status().is_server_error()
}

fn not_found() -> Error {
    Error::new(Code::NotFound, "no resource has this path; docs/reference/protocol.md lists all paths")
}

/// Handles a GET of channels; returns `None` for other requests.
async fn read_channels(context: &Rc<Context>, parts: &Parts) -> Option<Result<Routed, Error>> {
    if parts.method != Method::GET {
        return None;
    }
    let path = parts.uri.path();
    if let Some(channel) = CHANNEL.capture(path).filter(|_| !is_upgrade(parts)) {
        Some(read_one(context, parts, channel).await)
    } else if path == STREAM.path {
        Some(read_many(context, parts).await)
    } else {
        let routes = context.routes().iter().find(|routes| routes.is_read(path)).cloned()?;
        let answering = routes.read(context, parts)?;
        Some(answering.await)
    }
}

async fn read_one(context: &Context, parts: &Parts, channel: &str) -> Result<Routed, Error> {
    let caller = context.admission.caller(parts).await?;
    let channel = ChannelName::parse(&decode(channel)?)?;
    read(context, parts, caller, ReadRequest::one(parts, channel)?).await
}

async fn read_many(context: &Context, parts: &Parts) -> Result<Routed, Error> {
    let caller = context.admission.caller(parts).await?;
    read(context, parts, caller, ReadRequest::many(parts)?).await
}

async fn answer(context: &Rc<Context>, parts: &Parts, body: &mut Incoming) -> Result<Routed, Error> {
    check_coding(parts)?;
    let path = parts.uri.path();
    if parts.method == Method::OPTIONS && parts.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        return Ok((preflight(), None));
    }
    // Load balancers check the health under host names of their own. The responses reveal nothing.
    if !matches!(path, "/healthz" | "/readyz") {
        context.admission.access.check_origin(parts, &context.admission.config().allowed_origins)?;
    }
    if let Some(routed) = read_channels(context, parts).await {
        return routed;
    }
    if let Some(rest) = CHANNEL.capture(path) {
        let caller = context.admission.caller(parts).await?;
        let channel = ChannelName::parse(&decode(rest)?)?;
        return match parts.method {
            Method::GET => upgrade(context, parts, caller, channel).await,
            Method::POST => publish::one(context, parts, body, &caller, channel).await.map(plain),
            Method::DELETE => publish::delete(context, parts, &caller, channel).await.map(plain),
            _ => Ok(plain(CHANNEL.refuse_method())),
        };
    }
    if let Some(channel) = PRESENCE.capture(path) {
        let channel = ChannelName::parse(&decode(channel)?)?;
        return match parts.method {
            Method::GET => presence(context, parts, channel).await.map(plain),
            _ => Ok(plain(PRESENCE.refuse_method())),
        };
    }
    if let Some(method) = RPC.capture(path) {
        return match parts.method {
            Method::POST => rpc::answer(context, parts, body, method).await.map(plain),
            _ => Ok(plain(RPC.refuse_method())),
        };
    }
    if path == STREAM.path {
        return Ok(plain(STREAM.refuse_method()));
    }
    if path == CONNECT.path {
        return connect(context, parts, body).await;
    }
    if path == MQTT.path {
        if parts.method != Method::GET {
            return Ok(plain(MQTT.refuse_method()));
        }
        if context.mqtt().is_none() {
            return Err(Error::new(Code::NotFound, "MQTT is disabled on this server; `mqtt.listen` enables it"));
        }
        check_stays(context)?;
        return Ok((mqtt::accept_upgrade(parts)?, Some(Handover::Mqtt)));
    }
    if path == PUBLISH.path {
        return match parts.method {
            Method::POST => publish::batch(context, parts, body).await.map(plain),
            _ => Ok(plain(PUBLISH.refuse_method())),
        };
    }
    other_routes(context, parts, body).await
}

/// Opens a session: over a WebSocket, or over a data channel.
async fn connect(context: &Rc<Context>, parts: &Parts, body: &mut Incoming) -> Result<Routed, Error> {
    if !matches!(parts.method, Method::GET | Method::POST) {
        return Ok(plain(CONNECT.refuse_method()));
    }
    let caller = context.admission.caller(parts).await?;
    caller.may_anything()?;
    check_stays(context)?;
    if parts.method == Method::GET {
        let compression = context.admission.config().compression;
        return with_upgrade(context, parts, websocket::accept_session(parts, caller, compression)?);
    }
    let peers = context.data_channels.get().map(|peers| &**peers);
    data_channel::answer(peers, &context.admission, parts, body, caller).await.map(plain)
}

/// Answers a request with the routes of other crates, or with a page.
async fn other_routes(context: &Rc<Context>, parts: &Parts, body: &mut Incoming) -> Result<Routed, Error> {
    let all: Vec<_> = context.routes().to_vec();
    for routes in &all {
        if let Some(answering) = routes.answer(context, parts, body) {
            return answering.await;
        }
    }
    match context.pages.answer(parts) {
        Some(_) if !matches!(parts.method, Method::GET | Method::HEAD) => Ok(plain(method_not_allowed("GET, HEAD"))),
        Some(page) => Ok(plain(page)),
        None => Err(not_found()),
    }
}

/// Refuses a compressed transfer coding, because the body would be published in compressed form.
///
/// Source: RFC 9112, section 6.1.
///
/// Errors: [`Code::NotImplemented`] for any transfer coding but a single `chunked`.
fn check_coding(parts: &Parts) -> Result<(), Error> {
    let mut codings = parts.headers.get_all(header::TRANSFER_ENCODING).into_iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => {
            Err(Error::new(Code::NotImplemented, "the only supported transfer coding is `Transfer-Encoding: chunked`"))
        }
    }
}

/// Handles a read request with the transport that content negotiation selects.
async fn read(context: &Context, parts: &Parts, caller: Caller, request: ReadRequest) -> Result<Routed, Error> {
    context.admission.may_read(&caller, parts, &request).await?;
    let wanted = ResponseFormat::negotiate(&parts.headers)?;
    let ends = request.until.is_some() || matches!(wanted, ResponseFormat::Json | ResponseFormat::Xml);
    if ends && request.heartbeat.is_some() {
        return Err(Error::new(Code::BadRequest, "`heartbeat` applies only to streams and WebSockets"));
    }
    if request.is_state_page {
        return match wanted {
            ResponseFormat::Json | ResponseFormat::Xml => {
                let page = polling::state::answer(&context.shard, &request, wanted).await?;
                context.admission.charge(page).map(plain)
            }
            ResponseFormat::Sse | ResponseFormat::Ndjson => {
                let detail =
                    "`?state` answers in JSON or XML; for a stream of the state and its changes, use `since=state`";
                Err(Error::new(Code::NotAcceptable, detail))
            }
        };
    }
    match (wanted, request.wait) {
        (ResponseFormat::Sse | ResponseFormat::Ndjson, Some(_)) => {
            Err(Error::new(Code::BadRequest, "`wait` applies only to JSON and XML responses"))
        }
        (ResponseFormat::Sse | ResponseFormat::Ndjson, None) => {
            check_stays(context)?;
            let until = request.until;
            let stream = if wanted == ResponseFormat::Sse {
                sse::stream(caller, request)
            } else {
                stream::stream(caller, request)
            };
            match until {
                Some(until) => replay::answer(&context.shard, &context.admission, stream, until).await.map(plain),
                None => with_stream(context, parts, stream),
            }
        }
        (ResponseFormat::Xml, _) if request.many => {
            Err(Error::new(Code::NotAcceptable, "XML supports one channel only; request JSON for several channels"))
        }
        (ResponseFormat::Json | ResponseFormat::Xml, Some(wait)) => {
            let begun = polling::begin(
                &context.shard,
                &context.admission,
                parts,
                caller,
                request,
                wanted,
                wait,
                Read::into_response,
            );
            wait_for(context, parts, begun).await
        }
        (ResponseFormat::Json | ResponseFormat::Xml, None) => {
            context.admission.charge(polling::answer(&context.shard, &request, wanted).await?).map(plain)
        }
    }
}

/// Returns the response to a long poll that [`polling::begin`] has begun, or hands the waiting poll over. Only an
/// HTTP/1.1 connection serves a single poll at a time, so only there the poll can wait beside its connection.
pub async fn wait_for(
    context: &Context,
    parts: &Parts,
    begun: impl Future<Output = Result<PollStart, Error>>,
) -> Result<Routed, Error> {
    match begun.await? {
        PollStart::Answered(response) => context.admission.charge(response).map(plain),
        // The bytes of a request body would be parsed as the next request.
        PollStart::Waits(poll) if parts.version == Version::HTTP_11 && !has_body(&parts.headers) => {
            Ok((http::Response::new(Body::Whole(None)), Some(Handover::LongPoll(poll))))
        }
        PollStart::Waits(poll) => {
            context.admission.charge(poll.hold(&context.shard, &context.admission).await?).map(plain)
        }
    }
}

/// Returns true if the request has a body. Source: RFC 9112, section 6.
fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(header::CONTENT_LENGTH) || headers.contains_key(header::TRANSFER_ENCODING)
}

/// Handles a WebSocket upgrade on the URL of a channel, or on an alias of it.
///
/// Errors: `unauthorized`, `forbidden`, `bad_request`; `unavailable` while the server drains; those of the app's back
/// end.
pub async fn upgrade(context: &Context, parts: &Parts, caller: Caller, channel: ChannelName) -> Result<Routed, Error> {
    let request = ReadRequest::one(parts, channel)?;
    match request.subscribe {
        true => context.admission.may_read(&caller, parts, &request).await?,
        false => caller.may(Permission::Publish, &request.channels[0].0)?,
    }
    check_stays(context)?;
    with_upgrade(
        context,
        parts,
        websocket::accept_channel(parts, caller, request, context.admission.config().compression)?,
    )
}

/// Refuses new long-lived connections while the server drains.
fn check_stays(context: &Context) -> Result<(), Error> {
    match context.admission.is_draining() {
        true => {
            Err(Error::new(Code::Unavailable, "this server is shutting down; connect again to reach another server"))
        }
        false => Ok(()),
    }
}

async fn presence(context: &Context, parts: &Parts, channel: ChannelName) -> Result<Response, Error> {
    context.admission.caller(parts).await?.may(Permission::Presence, &channel)?;
    let query = Query::parse(parts, &["members", "limit", "after"])?;
    match query.get("members") {
        Some("") => {
            let limit = query.get("limit").map(|limit| limit.parse().unwrap_or(0));
            let page = RosterPage::parse(limit, query.get("after"))?;
            let page = polling::members::page(&context.shard, &channel, page).await?;
            let mut response = json(page.to_json(Some(&channel)).to_string());
            position_header(&mut response, &page.position.to_string());
            return context.admission.charge(response);
        }
        Some(_) => return Err(Error::new(Code::BadRequest, "`members` takes no value: `?members`")),
        None if query.get("limit").or(query.get("after")).is_some() => {
            return Err(Error::new(Code::BadRequest, "`limit` and `after` apply only to `?members`"));
        }
        None => {}
    }
    let count = context.shard.engine.presence(&channel).await?;
    Ok(json(serde_json::json!({ "channel": channel.as_str(), "count": count }).to_string()))
}

fn with_upgrade(
    context: &Context,
    parts: &Parts,
    (mut response, mut upgrade): (Response, Upgrade),
) -> Result<Routed, Error> {
    upgrade.reader_slot = context.admission.admit(parts, &upgrade.caller)?;
    tell_heartbeat(context, upgrade.heartbeat, &mut response);
    Ok((response, Some(Handover::WebSocket(upgrade))))
}

fn with_stream(context: &Context, parts: &Parts, mut stream: Stream) -> Result<Routed, Error> {
    stream.reader_slot = context.admission.admit(parts, &stream.caller)?;
    let mut head = stream.head();
    tell_heartbeat(context, stream.request.heartbeat, &mut head);
    Ok((head, Some(Handover::Stream(stream))))
}

/// Adds the granted heartbeat interval, in seconds, to the head if the client has requested one.
fn tell_heartbeat(context: &Context, asked: Option<Duration>, head: &mut Response) {
    if let Some(heartbeat_s) = context.admission.config().heartbeat_s(asked) {
        head.headers_mut().insert(HEARTBEAT, heartbeat_s.get().into());
    }
}

/// Decodes the percent-encoding of a path segment.
///
/// Errors: `bad_channel` if the text is not UTF-8.
pub fn decode(segment: &str) -> Result<Cow<'_, str>, Error> {
    let text = percent_decode_str(segment).decode_utf8();
    text.map_err(|_| Error::new(Code::BadChannel, "the name is not UTF-8"))
}

fn preflight() -> Response {
    let mut response = http::Response::new(Body::Whole(None));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, PATCH, DELETE"));
    let allowed = "authorization, content-type, idempotency-key, if-match, last-event-id, millrace-key, \
         millrace-participant, millrace-resume, millrace-timeout, millrace-ttl, traceparent, tracestate";
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(allowed));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

/// Response headers that scripts of other origins may read, in addition to the headers that CORS always permits.
const EXPOSED: &str = "etag, link, location, millrace-heartbeat, millrace-position, retry-after";

/// Adds the CORS headers. A page of a refused origin can read its refusal, which depends only on the origin. Its
/// preflight succeeds, because otherwise the browser would not send the request that is refused.
///
/// Source: Fetch Standard, "CORS protocol".
fn allow_origin(context: &Context, parts: &Parts, response: &mut Response) {
    let Some(origin) = parts.headers.get(header::ORIGIN) else { return };
    let is_refusal = response.status() == StatusCode::FORBIDDEN || parts.method == Method::OPTIONS;
    let headers = response.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    match context.admission.access.shown_to(parts, &context.admission.config().allowed_origins) {
        CorsAccess::Answer { with_cookies } => {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
            if with_cookies && !context.admission.access.cookie.is_empty() {
                headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
            }
        }
        CorsAccess::Refusal if is_refusal => {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        }
        CorsAccess::Refusal | CorsAccess::Unsaid => {}
    }
}
