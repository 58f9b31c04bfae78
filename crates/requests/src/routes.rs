//! The HTTP requests: ask a device, list what a device has to do, confirm, answer, look at the state.

use std::{rc::Rc, sync::Arc, time::Duration};

use http::{HeaderValue, Method, StatusCode, header, request::Parts};
use hyper::body::Incoming;
use millrace_protocol::{ChannelName, Code, Error, Expected, Kind};
use millrace_transport::{
    Context, Routes,
    access::Caller,
    admission::{PublishTarget, read_body},
    http::{Query, Response, json},
    route::{
        Answering, Endpoint, decode, plain,
        publish::{self, RequestPublisher},
    },
};
use serde_json::{json, value::RawValue};
use sha2::{Digest, Sha256};

use crate::{
    NAMESPACE,
    entry::{Change, Entry, State},
    metrics::{Metrics, RequestEvent},
    store::{self, Found},
};

/// Endpoints of this crate.
pub const ENDPOINTS: &[&Endpoint] = &[&DEVICE, &REQUEST];

const DEVICE: Endpoint = Endpoint::new("/v1/requests/{device}", "GET, POST");
const REQUEST: Endpoint = Endpoint::new("/v1/requests/{device}/{id}", "GET, POST");

/// Default, minimum and maximum time to live of a request.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Maximum number of requests in a list.
const LIST_MAX: usize = 100;
/// Attempts to change an entry that another client changes at the same time.
const ATTEMPTS: usize = 8;

/// Routes of requests to devices.
pub struct RequestRoutes(pub Arc<Metrics>);

impl Routes for RequestRoutes {
    fn answer<'a>(
        &'a self,
        context: &'a Rc<Context>,
        parts: &'a Parts,
        body: &'a mut Incoming,
    ) -> Option<Answering<'a>> {
        let path = DEVICE.capture(parts.uri.path())?;
        Some(Box::pin(async move {
            let (device, id) = match path.split_once('/') {
                Some((device, id)) => (decode(device)?, Some(decode(id)?)),
                None => (decode(path)?, None),
            };
            let answer = match (&parts.method, id) {
                (&Method::POST, None) => ask(context, parts, body, channel(&device)?, &self.0).await,
                (&Method::GET, None) => list(context, parts, channel(&device)?).await,
                (&Method::POST, Some(id)) => change(context, parts, body, channel(&device)?, &id, &self.0).await,
                (&Method::GET, Some(id)) => show(context, parts, channel(&device)?, &id).await,
                _ => Ok(DEVICE.refuse_method()),
            };
            answer.map(plain)
        }))
    }
}

/// Returns the channel of a device. Errors: `bad_channel`.
fn channel(device: &str) -> Result<ChannelName, Error> {
    if device.contains('/') {
        return Err(Error::new(Code::BadChannel, "the name of a device has no `/`"));
    }
    ChannelName::parse(&format!("{NAMESPACE}/{device}"))
}

/// Handles `POST /v1/requests/{device}?ttl=`: stores a request. The body is JSON.
///
/// With an `Idempotency-Key`, the id follows from the key, so a repeated request finds the first one, also when the
/// engine has forgotten the key.
async fn ask(
    context: &Context,
    parts: &Parts,
    body: &mut Incoming,
    channel: ChannelName,
    metrics: &Metrics,
) -> Result<Response, Error> {
    let caller = context.admission.caller(parts).await?;
    let mut target = caller.may_publish(channel.clone())?;
    let ttl = Query::parse(parts, &["ttl"])?.duration("ttl")?.unwrap_or(TTL);
    if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
        return Err(Error::new(Code::BadRequest, "`ttl` is out of range: expected 1s to 30days"));
    }
    let request = body_json(context, parts, body).await?;
    let key = parts.headers.get("idempotency-key").map(HeaderValue::as_bytes);
    let now_ms = context.shard.engine.now_ms();
    let entry = Entry::new(id(&channel, key)?, request, now_ms, ttl);
    let publication = store::publication(&entry, now_ms).only_if(Expected::Absent);
    let publisher = RequestPublisher { admission: &context.admission, parts, caller: &caller };
    match publish::publish(context, &publisher, &mut target, publication).await {
        Ok(position) => {
            metrics.count(RequestEvent::Queued);
            Ok(accepted(&channel, &Found { position, entry }))
        }
        Err(error) if error.code == Code::PreconditionFailed && key.is_some() => {
            Ok(accepted(&channel, &store::find(context, &channel, &entry.id).await?))
        }
        Err(error) => {
            if error.code == Code::TooMany {
                metrics.count(RequestEvent::TooMany);
            }
            Err(error)
        }
    }
}

/// Handles `GET /v1/requests/{device}`: lists the requests that the device has to answer, oldest first.
async fn list(context: &Context, parts: &Parts, channel: ChannelName) -> Result<Response, Error> {
    let caller = context.admission.caller(parts).await?;
    context.admission.may_read_channel(&caller, parts, &channel).await?;
    Query::parse(parts, &[])?;
    let found = store::open_requests(context, &channel, LIST_MAX).await?;
    let requests: Vec<_> = found.iter().map(shown).collect();
    Ok(no_store(json(json!({ "requests": requests }).to_string())))
}

/// Handles `GET /v1/requests/{device}/{id}`: returns a request with its state.
async fn show(context: &Context, parts: &Parts, channel: ChannelName, id: &str) -> Result<Response, Error> {
    let caller = context.admission.caller(parts).await?;
    context.admission.may_read_channel(&caller, parts, &channel).await?;
    Query::parse(parts, &[])?;
    let found = store::find(context, &channel, id).await?;
    Ok(no_store(json(shown(&found).to_string())))
}

/// Handles `POST /v1/requests/{device}/{id}`: the body is the answer of the device. With `?state=sent`, the device
/// confirms that it has received the request.
///
/// Needs the permission to publish to `requests/{device}/answers`, a channel without messages: so a client that asks
/// cannot answer.
async fn change(
    context: &Context,
    parts: &Parts,
    body: &mut Incoming,
    channel: ChannelName,
    id: &str,
    metrics: &Metrics,
) -> Result<Response, Error> {
    let caller = context.admission.caller(parts).await?;
    let mut target = may_answer(&caller, &channel)?.copy_to(channel.clone());
    let change = match Query::parse(parts, &["state"])?.get("state") {
        None => Change::Answer(body_json(context, parts, body).await?),
        Some("sent") => Change::Sent,
        Some(_) => {
            let detail = "`state` can be `sent` only; a request without `state` is the answer";
            return Err(Error::new(Code::BadRequest, detail));
        }
    };
    let publisher = RequestPublisher { admission: &context.admission, parts, caller: &caller };
    for _ in 0..ATTEMPTS {
        let Found { position, mut entry } = store::find(context, &channel, id).await?;
        let now_ms = context.shard.engine.now_ms();
        let is_late = entry.state == State::Expired;
        let is_changed = entry.apply(change.clone(), now_ms).inspect_err(|_| {
            metrics.count(if is_late { RequestEvent::Late } else { RequestEvent::Conflict });
        })?;
        if !is_changed {
            return Ok(no_store(json(shown(&Found { position, entry }).to_string())));
        }
        let publication = store::publication(&entry, now_ms).only_if(Expected::At(position));
        match publish::publish(context, &publisher, &mut target, publication).await {
            Ok(position) => {
                metrics.count(if entry.state == State::Sent { RequestEvent::Sent } else { RequestEvent::Answered });
                return Ok(no_store(json(shown(&Found { position, entry }).to_string())));
            }
            // Another client has changed the request, or it has expired meanwhile.
            Err(error) if error.code == Code::PreconditionFailed => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::new(Code::Unavailable, "other clients change this request all the time; try again"))
}

/// Checks the permission to answer for the device of `channel`.
fn may_answer(caller: &Caller, channel: &ChannelName) -> Result<PublishTarget, Error> {
    caller.may_publish(ChannelName::parse(&format!("{channel}/answers"))?)
}

/// Reads a JSON body. Errors: `bad_json`, `too_large`, `timeout`.
async fn body_json(context: &Context, parts: &Parts, body: &mut Incoming) -> Result<Box<RawValue>, Error> {
    let max = context.admission.config().message_bytes_max;
    let data = read_body(&context.admission, &parts.headers, body, max).await?;
    if Kind::detect(&data) != Kind::Json {
        return Err(Error::new(Code::BadJson, "the body must be JSON, at most 100 levels deep"));
    }
    serde_json::from_slice(&data).map_err(|error| Error::new(Code::BadJson, error.to_string()))
}

/// Returns the id of a new request: random, or the hash of channel and idempotency key.
fn id(channel: &ChannelName, key: Option<&[u8]>) -> Result<String, Error> {
    let mut bytes = [0; 16];
    match key {
        Some(key) => {
            let hash = Sha256::new().chain_update(channel.as_str()).chain_update([0]).chain_update(key).finalize();
            bytes.copy_from_slice(&hash[..16]);
        }
        None => getrandom::fill(&mut bytes).map_err(|error| Error::new(Code::Internal, error.to_string()))?,
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn shown(found: &Found) -> serde_json::Value {
    let mut value = serde_json::to_value(&found.entry).unwrap_or_default();
    value["position"] = found.position.to_string().into();
    value
}

fn accepted(channel: &ChannelName, found: &Found) -> Response {
    let mut value = shown(found);
    value["channel"] = channel.as_str().into();
    let mut response = no_store(json(value.to_string()));
    *response.status_mut() = StatusCode::ACCEPTED;
    // A device whose name has other characters has no location; its id is in the body.
    let location = format!("/v1/{channel}/{}", found.entry.id);
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn no_store(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
