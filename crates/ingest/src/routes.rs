use std::{borrow::Cow, rc::Rc, sync::Arc};

use http::{HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use hyper::body::Incoming;
use millrace_protocol::{ChannelName, Code, Error};
use millrace_transport::{
    Context, Routes,
    access::Caller,
    admission::{Publisher, read_body},
    http::{Body, Response, json, no_cache, problem, text},
    route::{Answering, Endpoint, Taking, plain, publish::RequestPublisher},
};

use crate::{
    DecodeError, DeviceId, Ingest, Report, RequestResult, Summary, credential,
    format::{Parameters, csv, get, gpx, osmand, overland, owntracks, parameters, torque},
    mqtt, obd, time,
};

/// Maximum number of points of an uploaded file. Other requests have the limit of lines of a batch.
const FILE_POINTS_MAX: usize = 20_000;

/// Header of an answer with the numbers of a [`Summary`].
static INGEST: HeaderName = HeaderName::from_static("millrace-ingest");

/// Endpoints of this crate. Requests of the OsmAnd protocol are answered at `/`, too; see [`Protocol::of`].
pub const ENDPOINTS: &[&Endpoint] =
    &[&OSMAND, &OWNTRACKS, &OWNTRACKS_RECORDER, &TORQUE, &OVERLAND, &GPX, &CSV, &OBD, &SCHEMA];

const OSMAND: Endpoint = Endpoint::new("/v1/ingest/osmand", "GET, POST");
const OWNTRACKS: Endpoint = Endpoint::new("/v1/ingest/owntracks", "POST");
/// Path of the OwnTracks Recorder.
const OWNTRACKS_RECORDER: Endpoint = Endpoint::new("/pub", "POST");
const TORQUE: Endpoint = Endpoint::new("/v1/ingest/torque", "GET");
const OVERLAND: Endpoint = Endpoint::new("/v1/ingest/overland", "POST");
const GPX: Endpoint = Endpoint::new("/v1/ingest/gpx", "POST");
const CSV: Endpoint = Endpoint::new("/v1/ingest/csv", "POST");
const OBD: Endpoint = Endpoint::new("/v1/ingest/obd", "POST");
/// The JSON schema of the records. It is the same on every server, and needs neither a token nor the routes.
const SCHEMA: Endpoint = Endpoint::new("/v1/ingest/device-record.schema.json", "GET");

/// JSON schema of a device record.
const DEVICE_RECORD: &str = include_str!("../../../docs/reference/device-record.schema.json");

/// Routes for phones, trackers and adapters. `None`: they are switched off.
pub struct IngestRoutes(pub Option<Arc<Ingest>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    OsmAnd,
    OwnTracks,
    Torque,
    Overland,
    Gpx,
    Csv,
    Obd,
}

impl Protocol {
    /// Returns the protocol and the endpoint of a request; `None` if the request is none of these.
    ///
    /// Apps of the OsmAnd protocol use the root of a server of their own. Here it is the start page, so a request must
    /// name a device and a position, or have a body in a format of these apps. No request of a browser for the page
    /// has either.
    fn of(parts: &Parts, is_on: bool) -> Option<(Self, &'static Endpoint)> {
        let path = parts.uri.path();
        if path == "/" {
            return (is_on && is_osmand(parts)).then_some((Self::OsmAnd, &OSMAND));
        }
        let all: [(Self, &'static Endpoint); 8] = [
            (Self::OsmAnd, &OSMAND),
            (Self::OwnTracks, &OWNTRACKS),
            (Self::OwnTracks, &OWNTRACKS_RECORDER),
            (Self::Torque, &TORQUE),
            (Self::Overland, &OVERLAND),
            (Self::Gpx, &GPX),
            (Self::Csv, &CSV),
            (Self::Obd, &OBD),
        ];
        all.into_iter().find(|(_, endpoint)| endpoint.path == path)
    }

    /// Returns true if the app has only a URL, so that the token can only be a parameter.
    fn is_url_only(self) -> bool {
        matches!(self, Self::OsmAnd | Self::Torque)
    }

    /// Returns where the sender gives the id of its device.
    fn id_hint(self) -> &'static str {
        match self {
            Self::OsmAnd => "add `id=ID` to the URL, or set the device identifier in the app",
            Self::OwnTracks => "set the user name and the device id in the app",
            Self::Torque => "the parameter `id` is missing",
            Self::Overland => "set the device id in the app, or add `?id=ID` to the URL",
            Self::Gpx | Self::Csv | Self::Obd => "add `?id=ID` to the URL",
        }
    }

    /// Returns the answer that the app expects.
    fn answer(self, summary: Summary) -> Response {
        let mut response = match self {
            Self::OsmAnd => http::Response::new(Body::Whole(None)),
            Self::OwnTracks => json("[]"),
            Self::Torque => text(StatusCode::OK, "text/plain", "OK!"),
            Self::Overland => json("{\"result\":\"ok\"}"),
            Self::Gpx | Self::Csv | Self::Obd => {
                let Summary { live, late, duplicate, dropped } = summary;
                let counts =
                    serde_json::json!({ "live": live, "late": late, "duplicate": duplicate, "dropped": dropped });
                json(counts.to_string())
            }
        };
        no_cache(&mut response);
        if let Ok(value) = HeaderValue::from_str(&summary.to_string()) {
            response.headers_mut().insert(&INGEST, value);
        }
        response
    }

    /// Returns the answer to a refused request. The apps that know no JSON get one line of text.
    ///
    /// Errors: the same error, for apps that get problem details.
    fn refuse(self, context: &Context, error: Error) -> Result<Response, Error> {
        if !self.is_url_only() {
            return Err(error);
        }
        // The route counts only errors that it turns into problem details.
        context.admission.limits.count_error(&error);
        let (mut head, _) = problem(&error).into_parts();
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        Ok(Response::from_parts(head, Body::Whole(Some(format!("{}\n", error.detail).into()))))
    }
}

/// Returns true if a request for `/` is one of the OsmAnd protocol.
fn is_osmand(parts: &Parts) -> bool {
    let query = parameters(parts.uri.query().unwrap_or_default().as_bytes());
    let has = |name: &str| get(&query, name).is_some();
    let content_type = parts.headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let has_body = ["application/json", "application/x-www-form-urlencoded"]
        .iter()
        .any(|kind| content_type.get(..kind.len()).is_some_and(|start| start.eq_ignore_ascii_case(kind.as_bytes())));
    let is_point = (has("id") || has("deviceid")) && (has("lat") && has("lon") || has("location"));
    match parts.method {
        Method::GET => is_point,
        Method::POST => is_point || has_body,
        _ => false,
    }
}

impl Routes for IngestRoutes {
    fn takes_mqtt(&self, channel: &ChannelName) -> bool {
        self.0.is_some() && owntracks::device_of_topic(channel.as_str()).is_some()
    }

    fn take_mqtt<'a>(
        &'a self,
        context: &'a Context,
        publisher: &'a dyn Publisher,
        caller: &'a Caller,
        channel: &'a ChannelName,
        payload: &'a [u8],
    ) -> Taking<'a> {
        Box::pin(async move {
            let Some(ingest) = &self.0 else { return Ok(()) };
            mqtt::take(ingest, context, publisher, caller, channel, payload).await
        })
    }

    fn answer<'a>(
        &'a self,
        context: &'a Rc<Context>,
        parts: &'a Parts,
        body: &'a mut Incoming,
    ) -> Option<Answering<'a>> {
        if parts.uri.path() == SCHEMA.path {
            let answer = match parts.method {
                Method::GET => text(StatusCode::OK, "application/schema+json", DEVICE_RECORD),
                _ => SCHEMA.refuse_method(),
            };
            return Some(Box::pin(std::future::ready(Ok(plain(answer)))));
        }
        let (protocol, endpoint) = Protocol::of(parts, self.0.is_some())?;
        Some(Box::pin(async move {
            if !endpoint.methods().any(|method| parts.method == method) {
                return Ok(plain(endpoint.refuse_method()));
            }
            let received = self.receive(protocol, context, parts, body).await;
            let result =
                received.as_ref().map_or_else(|error| RequestResult::of(error.code), |_| RequestResult::Accepted);
            self.0.iter().for_each(|ingest| ingest.metrics().count_request(result));
            match received {
                Ok(summary) => Ok(plain(protocol.answer(summary))),
                Err(error) => protocol.refuse(context, error).map(plain),
            }
        }))
    }
}

impl IngestRoutes {
    /// Publishes what a request reports.
    ///
    /// Errors: `not_found` if the routes are off; `unauthorized`, `forbidden`; `bad_request`, `bad_json`,
    /// `bad_channel`, `too_large`, `too_many`; those of a publication.
    async fn receive(
        &self,
        protocol: Protocol,
        context: &Context,
        parts: &Parts,
        body: &mut Incoming,
    ) -> Result<Summary, Error> {
        let off = "this server takes no requests of devices; set `ingest.enabled = \"on\"` (docs/reference/config.md)";
        let ingest = self.0.as_ref().ok_or_else(|| Error::new(Code::NotFound, off))?;
        credential::check_site(parts)?;
        let query = parameters(parts.uri.query().unwrap_or_default().as_bytes());
        let parts = credential::with_bearer(parts, &query, protocol.is_url_only())?;
        let parts: &Parts = &parts;
        let caller = context.admission.caller(parts).await?;
        caller.may_anything()?;
        let (bytes_max, points_max) = {
            let config = context.admission.config();
            (config.batch_bytes_max, config.batch_lines_max)
        };
        let body = match parts.method {
            Method::POST => read_body(&context.admission, &parts.headers, body, bytes_max).await?,
            _ => Default::default(),
        };
        let (reports, left_out) = decode(protocol, &query, &body, points_max)?;
        let mut devices: Vec<(DeviceId, Vec<Report>)> = Vec::new();
        for mut report in reports {
            let id = report.device.take().map(Cow::Owned).or_else(|| id_beside(protocol, parts, &query, &caller));
            let id = id.ok_or(DecodeError::NoDevice(protocol.id_hint()))?;
            let id = DeviceId::parse(&id).map_err(DecodeError::from)?;
            match devices.iter_mut().find(|(known, _)| *known == id) {
                Some((_, reports)) => reports.push(report),
                None => devices.push((id, vec![report])),
            }
        }
        // All permissions are checked before anything is published.
        let targets: Result<Vec<_>, Error> =
            devices.iter().map(|(device, _)| caller.may_publish(device.telemetry())).collect();
        let publisher = RequestPublisher { admission: &context.admission, parts, caller: &caller };
        let mut summary = Summary { dropped: left_out, ..Summary::default() };
        for ((device, reports), target) in devices.into_iter().zip(targets?) {
            summary += ingest.deliver(context, &publisher, &device, target, reports).await?;
        }
        Ok(summary)
    }
}

/// Decodes the reports of a request. Also returns the number of parts that were left out.
fn decode(
    protocol: Protocol,
    query: &Parameters<'_>,
    body: &[u8],
    points_max: usize,
) -> Result<(Vec<Report>, usize), DecodeError> {
    let reports = match protocol {
        Protocol::OsmAnd if body.trim_ascii_start().starts_with(b"{") || body.trim_ascii_start().starts_with(b"[") => {
            osmand::decode_json(body, points_max)?
        }
        Protocol::OsmAnd => {
            let all: Vec<_> = query.iter().cloned().chain(parameters(body)).collect();
            let report = osmand::decode_parameters(&all)?;
            let is_point = report.reading.position().is_some() || report.time_ms.is_some();
            let expected = "is missing: the request has neither a position nor a time";
            if !is_point && get(&all, "valid").is_none() {
                return Err(DecodeError::Field { field: "lat", expected });
            }
            vec![report]
        }
        Protocol::OwnTracks => owntracks::decode(body, points_max)?,
        Protocol::Torque => torque::decode(query)?.into_iter().collect(),
        Protocol::Overland => return overland::decode(body, points_max),
        Protocol::Gpx => gpx::decode(body, FILE_POINTS_MAX)?,
        Protocol::Csv => csv::decode(body, FILE_POINTS_MAX)?,
        Protocol::Obd => vec![obd_report(query, body)?],
    };
    Ok((reports, 0))
}

/// Decodes the output of an adapter. `timestamp`, `lat` and `lon` of the query are those of the reading.
fn obd_report(query: &Parameters<'_>, body: &[u8]) -> Result<Report, DecodeError> {
    let decoded = obd::decode(std::str::from_utf8(body).map_err(|_| DecodeError::Utf8)?);
    if decoded.answers == 0 {
        return Err(DecodeError::Unsupported(
            "no line of the body is an answer of a vehicle, such as `41 0C 0E 70` or `7E8#04410C0E70`",
        ));
    }
    let mut report = Report { reading: decoded.reading, ..Report::default() };
    if let Some(text) = get(query, "timestamp") {
        let expected = "must be seconds or milliseconds since 1970, or a time such as `2026-11-26T10:00:00Z`";
        report.time_ms = Some(time::parse(text).ok_or(DecodeError::Field { field: "timestamp", expected })?);
    }
    if let (Some(latitude), Some(longitude)) = (get(query, "lat"), get(query, "lon")) {
        report.reading.set_position(crate::text::field("lat", latitude)?, crate::text::field("lon", longitude)?);
    }
    Ok(report)
}

/// Returns the id of the device beside the data: in headers or parameters, or else the subject of the token.
fn id_beside<'a>(
    protocol: Protocol,
    parts: &'a Parts,
    query: &'a Parameters<'_>,
    caller: &'a Caller,
) -> Option<Cow<'a, str>> {
    let header =
        |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).filter(|text| !text.is_empty());
    if protocol == Protocol::OwnTracks {
        let user = header("x-limit-u").or_else(|| get(query, "u")).unwrap_or_default();
        if let Some(device) = header("x-limit-d").or_else(|| get(query, "d")) {
            return Some(owntracks::device_of(user, device).into());
        }
    }
    get(query, "id").or_else(|| caller.grant.subject.as_deref()).map(Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(method: Method, uri: &str, content_type: &str) -> Parts {
        let request = http::Request::builder().method(method).uri(uri).header("content-type", content_type);
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn root_is_the_start_page_unless_the_request_is_a_point() {
        let is_osmand = |method, uri, content_type| {
            Protocol::of(&parts(method, uri, content_type), true).map(|(protocol, _)| protocol)
                == Some(Protocol::OsmAnd)
        };
        for uri in ["/?id=7&lat=1&lon=2", "/?deviceid=7&location=1,2"] {
            assert!(is_osmand(Method::GET, uri, ""), "{uri}");
            assert_eq!(Protocol::of(&parts(Method::GET, uri, ""), false), None, "the routes are off");
        }
        for uri in ["/", "/?", "/?id=7", "/?lat=1&lon=2", "/?id=&lat=1&lon=2", "/?utm_source=id"] {
            assert!(!is_osmand(Method::GET, uri, ""), "{uri}");
        }
        assert!(is_osmand(Method::POST, "/", "application/json; charset=utf-8"));
        assert!(is_osmand(Method::POST, "/", "application/x-www-form-urlencoded"));
        assert!(!is_osmand(Method::POST, "/", "text/plain") && !is_osmand(Method::HEAD, "/?id=7&lat=1&lon=2", ""));
    }

    #[test]
    fn every_endpoint_has_a_protocol() {
        for endpoint in ENDPOINTS.iter().filter(|endpoint| ***endpoint != SCHEMA) {
            let found = Protocol::of(&parts(Method::GET, endpoint.path, ""), false);
            assert_eq!(found.map(|(_, endpoint)| endpoint.path), Some(endpoint.path));
        }
    }
}
