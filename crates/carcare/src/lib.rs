//! Routes of the CarCare service of 2014, for the channels `cars/{id}/telemetry`. Every record is also published to
//! the channel `fleet` with the car's id as its key. `fleet` is a keyed state: it has the newest record of each car.
//!
//! The module [`feedback`] turns the records into driving feedback.
//!
//! Read first: [`CarCare`], [`feedback::Feedback`].
//!
//! Source: docs/reference/protocol.md, "CarCare aliases".

pub mod feedback;

use std::{rc::Rc, time::Duration};

use bytes::Bytes;
use http::{Method, StatusCode, header, request::Parts};
use hyper::body::Incoming;
use millrace_engine::Newest;
use millrace_protocol::{ChannelName, Code, Error, Kind, NewPublication, Position, Publication, Since, encoding::xml};
use serde_json::Value;
use tokio::task::coop::consume_budget;

use millrace_transport::{
    Context, Routes,
    access::Caller,
    admission::{Admission, Congestion, PublishTarget, Publisher, hooks::HookClient, read_body},
    http::{Query, ReadRequest, Response, ResponseFormat, json, no_cache, no_content, position_header, text},
    polling::{self, PollStart, Read},
    route::{
        Answering, Endpoint, Publishing, decode, plain,
        publish::{self, RequestPublisher},
        upgrade, wait_for,
    },
};

/// Maximum duration of a long poll, as specified in the thesis.
const HOLD: Duration = Duration::from_secs(30);

/// Channel with the newest record of each car: a keyed state, unless the operator has configured it as a log.
pub const FLEET: &str = "fleet";

/// Time after which a car without a new record leaves the fleet.
const FLEET_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Routes of the CarCare service.
pub struct CarCare;

/// A parsed path with the id of a car.
enum Path<'a> {
    ClientPolling(&'a str),
    LongPolling(&'a str),
    WebSocket(&'a str),
}

impl<'a> Path<'a> {
    fn parse(path: &'a str) -> Option<Self> {
        let polling = CLIENT_POLLING.capture(path).map(Path::ClientPolling);
        polling
            .or_else(|| LONG_POLLING.capture(path).map(Path::LongPolling))
            .or_else(|| WEBSOCKET.capture(path).map(Path::WebSocket))
    }
}

/// Endpoints of this crate.
pub const ENDPOINTS: &[&Endpoint] = &[&INPUT, &CLIENT_POLLING, &LONG_POLLING, &WEBSOCKET];

const INPUT: Endpoint = Endpoint::new("/rest/input", "POST");
const CLIENT_POLLING: Endpoint = Endpoint::new("/rest/clientpolling/{id}/sensordata", "GET");
const LONG_POLLING: Endpoint = Endpoint::new("/rest/longpolling/{id}/sensordata", "GET");
const WEBSOCKET: Endpoint = Endpoint::new("/websocket/{id}/sensordata", "GET");

impl Routes for CarCare {
    fn answer<'a>(
        &'a self,
        context: &'a Rc<Context>,
        parts: &'a Parts,
        body: &'a mut Incoming,
    ) -> Option<Answering<'a>> {
        let path = parts.uri.path();
        match Path::parse(path) {
            Some(_) if parts.method != Method::GET => Some(refuse(&CLIENT_POLLING)),
            Some(Path::WebSocket(car)) => Some(Box::pin(async move {
                let caller = context.admission.caller(parts).await?;
                upgrade(context, parts, caller, channel(&decode(car)?)?).await
            })),
            Some(_) => self.read(context, parts),
            None if path != INPUT.path => None,
            None if parts.method != Method::POST => Some(refuse(&INPUT)),
            None => Some(Box::pin(async { input(context, parts, body).await.map(plain) })),
        }
    }

    fn is_read(&self, path: &str) -> bool {
        matches!(Path::parse(path), Some(Path::ClientPolling(_) | Path::LongPolling(_)))
    }

    fn read<'a>(&'a self, context: &'a Rc<Context>, parts: &'a Parts) -> Option<Answering<'a>> {
        match Path::parse(parts.uri.path())? {
            Path::ClientPolling(car) => {
                Some(Box::pin(async move { client_polling(context, parts, &decode(car)?).await.map(plain) }))
            }
            Path::LongPolling(car) => Some(Box::pin(async move {
                let begun = async { long_polling(context, parts, &decode(car)?).await };
                wait_for(context, parts, begun).await
            })),
            Path::WebSocket(_) => None,
        }
    }

    fn publish_datagram<'a>(
        &'a self,
        context: &'a Context,
        publisher: &'a dyn Publisher,
        caller: &'a Caller,
        datagram: Bytes,
    ) -> Option<Publishing<'a>> {
        Some(Box::pin(record(context, publisher, caller, datagram, None)))
    }
}

fn refuse(endpoint: &Endpoint) -> Answering<'static> {
    Box::pin(std::future::ready(Ok(plain(endpoint.refuse_method()))))
}

/// Returns the channel `cars/{id}/telemetry` of a car. Errors: `bad_channel`.
fn channel(car: &str) -> Result<ChannelName, Error> {
    if car.contains('/') {
        return Err(Error::new(Code::BadChannel, "a car's id has no `/`"));
    }
    ChannelName::parse(&format!("cars/{car}/telemetry"))
}

/// Handles `POST /rest/input`: publishes one record as JSON, or several as NDJSON lines. An `Idempotency-Key` covers
/// the whole request.
async fn input(context: &Context, parts: &Parts, body: &mut Incoming) -> Result<Response, Error> {
    let caller = context.admission.caller(parts).await?;
    caller.may_anything()?;
    Query::parse(parts, &[])?;
    let key = parts.headers.get("idempotency-key").map(|value| value.to_str()).transpose();
    let key = key.map_err(|_| Error::new(Code::BadRequest, "`Idempotency-Key` is ASCII"))?;
    let publisher = RequestPublisher { admission: &context.admission, parts, caller: &caller };
    let content_type =
        parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if content_type.starts_with("application/x-ndjson") {
        let data =
            read_body(&context.admission, &parts.headers, body, context.admission.config().batch_bytes_max).await?;
        let mut results = Vec::new();
        for (i, line) in publish::lines(context, &data)?.into_iter().enumerate() {
            consume_budget().await;
            let key = key.map(|key| format!("{key}/{}", i + 1));
            let result = record(context, &publisher, &caller, Bytes::copy_from_slice(line), key).await;
            results.push(publish::counted(context, result));
        }
        return Ok(publish::results_answer(results));
    }
    let data =
        read_body(&context.admission, &parts.headers, body, context.admission.config().message_bytes_max).await?;
    Ok(publish::answer_position(record(context, &publisher, &caller, data, key.map(str::to_owned)).await?))
}

/// Publishes one record to the channel of its car, and to `fleet`. The caller needs the permission to publish to the
/// channel of the car only; the server owns `fleet`.
///
/// Errors: `unauthorized` or `forbidden`; `bad_json` unless the record is a JSON object with a `carId` that is a
/// number or a string; those of the engine.
async fn record(
    context: &Context,
    publisher: &(impl Publisher + ?Sized),
    caller: &Caller,
    data: Bytes,
    key: Option<String>,
) -> Result<Position, Error> {
    let bad = |detail: &str| Error::new(Code::BadJson, detail);
    let fields: Value = serde_json::from_slice(&data).map_err(|error| bad(&error.to_string()))?;
    let car = match fields.get("carId") {
        Some(Value::Number(id)) => id.to_string(),
        Some(Value::String(id)) => id.clone(),
        _ => return Err(bad("a record has a `carId`")),
    };
    let mut target = caller.may_publish(channel(&car)?)?;
    let mut publication = NewPublication::new(Kind::Json, data);
    publication.idempotency_key = key.map(Into::into);
    publish_record(context, publisher, &mut target, &car, publication.check()?).await
}

/// Publishes a record to the channel of its car, which is `target`, and to `fleet` with the id of the car as key.
///
/// Errors: those of [`publish::publish`].
pub async fn publish_record(
    context: &Context,
    publisher: &(impl Publisher + ?Sized),
    target: &mut PublishTarget,
    car: &str,
    publication: NewPublication,
) -> Result<Position, Error> {
    let mut newest = publication.clone();
    newest.key = Some(car.into());
    newest.ttl_ms = Some(FLEET_TTL.as_millis() as u64);
    let mut fleet = target.copy_to(ChannelName::parse(FLEET).expect("a valid name"));
    let position = publish::publish(context, publisher, target, publication).await?;
    publish::publish(context, &CopyPublisher, &mut fleet, newest).await?;
    Ok(position)
}

/// Publisher of the copy in `fleet`. The client has paid for the record already.
struct CopyPublisher;

impl Publisher for CopyPublisher {
    fn take_quota(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn meet_congestion(&self) -> Congestion {
        Congestion::Refuse
    }

    fn admission(&self) -> Option<&Admission> {
        None
    }

    fn client(&self) -> HookClient {
        HookClient::default()
    }
}

/// Handles `GET /rest/clientpolling/{id}/sensordata?since={ms}`: returns the newest record if it is newer than
/// `since`.
async fn client_polling(context: &Context, parts: &Parts, car: &str) -> Result<Response, Error> {
    let channel = channel(car)?;
    let caller = context.admission.caller(parts).await?;
    context.admission.may_read_channel(&caller, parts, &channel).await?;
    let query = Query::parse(parts, &["since"])?;
    let since_ms = query.get("since").unwrap_or("0").parse::<u64>();
    let since_ms = since_ms.map_err(|_| Error::new(Code::BadRequest, "`since` is in milliseconds since 1970"))?;
    let wanted = wanted(parts)?;
    let Newest { top, publication } = context.shard.engine.newest(&channel).await?;
    let is_newer = |newest: &Publication| timestamp_ms(newest) > since_ms;
    let mut response = publication.filter(is_newer).map_or_else(no_content, |newest| sensor_data(&newest, wanted));
    position_header(&mut response, &top.to_string());
    Ok(response)
}

/// Handles `GET /rest/longpolling/{id}/sensordata`: returns the next record, or the first record after the position
/// `since`. The thesis had no `since` here.
async fn long_polling(context: &Context, parts: &Parts, car: &str) -> Result<PollStart, Error> {
    let caller = context.admission.caller(parts).await?;
    let query = Query::parse(parts, &["since"])?;
    let since: Option<Since> = query.get("since").map(str::parse).transpose()?;
    let wanted = wanted(parts)?;
    let channels = vec![(channel(car)?, since)];
    let policy = Default::default();
    let request = ReadRequest {
        channels,
        many: false,
        until: None,
        policy,
        limit: Some(1),
        wait: None,
        heartbeat: None,
        subscribe: true,
        is_state_page: false,
    };
    context.admission.may_read(&caller, parts, &request).await?;
    let answer = |read: Read, _: &ReadRequest, wanted| {
        let mut response = read.newest().map_or_else(no_content, |record| sensor_data(record, wanted));
        if let Some((_, Some(Since::Position(end)))) = read.ends().first() {
            position_header(&mut response, &end.to_string());
        }
        response
    };
    polling::begin(&context.shard, &context.admission, parts, caller, request, wanted, HOLD, answer).await
}

fn wanted(parts: &Parts) -> Result<ResponseFormat, Error> {
    match ResponseFormat::negotiate(&parts.headers)? {
        wanted @ (ResponseFormat::Json | ResponseFormat::Xml) => Ok(wanted),
        _ => Err(Error::new(Code::NotAcceptable, "this route speaks application/json and application/xml")),
    }
}

/// Returns the timestamp that the device has set; without one, the time when the server received the record.
fn timestamp_ms(record: &Publication) -> u64 {
    let fields: Option<Value> = serde_json::from_slice(record.data()).ok();
    fields.and_then(|fields| fields.get("timestamp")?.as_u64()).unwrap_or(record.time_ms)
}

fn sensor_data(record: &Publication, wanted: ResponseFormat) -> Response {
    if wanted == ResponseFormat::Json {
        return json(record.data().to_vec());
    }
    let document = xml::document("sensordata", &xml::value(record.data()));
    let mut response = text(StatusCode::OK, "application/xml", document);
    no_cache(&mut response);
    response
}
