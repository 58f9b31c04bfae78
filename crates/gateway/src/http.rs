//! Signaling over HTTP: a peer joins with `POST /v1/connect` and an offer, as with a Millrace server.

use std::{convert::Infallible, net::IpAddr, rc::Rc, sync::Arc, time::Duration};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{self, HeaderMap, HeaderValue},
    service::{Service, service_fn},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use millrace_client::data_channel::{AnswerError, SDP};
use serde_json::json;
use subtle::ConstantTimeEq;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use crate::{
    forward::{PeerOptions, Refused},
    gateway::{JoinError, SharedState},
};

/// Maximum number of connections served at the same time; further connections wait to be accepted.
const CONNECTIONS_MAX: usize = 256;
/// Maximum time for which one connection is served.
const CONNECTION_MAX: Duration = Duration::from_secs(60);
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of an offer in bytes. The offer of a browser with a camera, a microphone and every codec has about
/// 10 KiB.
const OFFER_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of the prefix of urgent messages, in bytes.
const URGENT_BYTES_MAX: usize = 256;

/// Pause after an accept error that no single connection causes, such as too few file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) type Answer = Response<Full<Bytes>>;

/// Error response: status, code and what to do, as in the server (docs/reference/protocol.md, "Errors").
pub(crate) struct Problem(pub StatusCode, pub &'static str, pub String);

/// Accepts and serves connections until the future is dropped. Must run in a `LocalSet`. `service` gets the address at
/// which a connection arrived.
pub(crate) async fn accept<S>(listener: TcpListener, connections_max: usize, service: impl Fn(IpAddr) -> S)
where
    S: Service<Request<Incoming>, Response = Answer, Error = Infallible> + 'static,
{
    let permits = Arc::new(Semaphore::new(connections_max));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(local) = stream.local_addr() else { continue };
                let service = service(local.ip().to_canonical());
                tokio::task::spawn_local(async move {
                    serve(service, stream).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Serves offers and statistics of the gateway.
pub(crate) async fn run(state: Rc<SharedState>, listener: TcpListener) {
    let service = |local| {
        let state = state.clone();
        service_fn(move |request| {
            let state = state.clone();
            async move { Ok::<_, Infallible>(answer(&state, request, local).await) }
        })
    };
    accept(listener, CONNECTIONS_MAX, service).await;
}

async fn serve<S>(service: S, stream: TcpStream)
where
    S: Service<Request<Incoming>, Response = Answer, Error = Infallible>,
{
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    // A connection that closes early or exceeds the time limit needs no further handling.
    let _ = tokio::time::timeout(CONNECTION_MAX, connection).await;
}

async fn answer(state: &Rc<SharedState>, request: Request<Incoming>, local: IpAddr) -> Answer {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let origin =
        origin.filter(|origin| state.config.origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes()));
    let mut answer = route(state, request, local, origin.is_some()).await.unwrap_or_else(Problem::answer);
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Source: Fetch Standard, "CORS protocol".
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    answer
}

async fn route(
    state: &Rc<SharedState>,
    request: Request<Incoming>,
    local: IpAddr,
    is_allowed: bool,
) -> Result<Answer, Problem> {
    match (request.method(), request.uri().path()) {
        (&Method::OPTIONS, "/v1/connect" | "/v1/stats") if is_allowed => {
            let mut answer = Answer::default();
            *answer.status_mut() = StatusCode::NO_CONTENT;
            let headers = answer.headers_mut();
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
            let allowed = HeaderValue::from_static("authorization, content-type");
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
            headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
            Ok(answer)
        }
        (&Method::POST, "/v1/connect") => {
            authorize(state.config.secret.as_deref(), request.headers())?;
            connect(state, request, local).await
        }
        (&Method::GET, "/v1/stats") => {
            authorize(state.config.secret.as_deref(), request.headers())?;
            let (peers, stats) = state.stats();
            let mut body = json!(stats);
            body["peers"] = json!(peers);
            Ok(whole(StatusCode::OK, "application/json", body.to_string()))
        }
        (_, path @ ("/v1/connect" | "/v1/stats")) => {
            let allowed = if path == "/v1/stats" { "GET" } else { "POST" };
            Err(Problem(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", format!("allowed here: {allowed}")))
        }
        _ => {
            let detail = "unknown path; the paths are `POST /v1/connect?name=NAME&to=NAME` and `GET /v1/stats`";
            Err(Problem(StatusCode::NOT_FOUND, "not_found", detail.into()))
        }
    }
}

/// Checks the secret of a request, if the gateway has one.
pub(crate) fn authorize(secret: Option<&str>, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(secret) = secret else { return Ok(()) };
    let shown = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let shown = shown.strip_prefix(b"Bearer ").unwrap_or_default();
    match bool::from(shown.ct_eq(secret.as_bytes())) {
        true => Ok(()),
        false => {
            let detail = "send the gateway's secret, as `Authorization: Bearer SECRET`";
            Err(Problem(StatusCode::UNAUTHORIZED, "unauthorized", detail.into()))
        }
    }
}

async fn connect(state: &Rc<SharedState>, request: Request<Incoming>, local: IpAddr) -> Result<Answer, Problem> {
    let bad = |detail: String| Problem(StatusCode::BAD_REQUEST, "bad_request", detail);
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(SDP) {
        return Err(bad("expected an offer for data channels, as `Content-Type: application/sdp`".into()));
    }
    let options = options(request.uri().query().unwrap_or_default()).map_err(|error| bad(error.to_string()))?;
    let offer = Limited::new(request.into_body(), OFFER_BYTES_MAX).collect().await;
    let offer = offer.map_err(|_| bad(format!("the offer is incomplete, or larger than {OFFER_BYTES_MAX} bytes")))?;
    let offer = String::from_utf8(offer.to_bytes().into()).map_err(|_| bad("the offer is not UTF-8".into()))?;
    match state.join(options, &offer, local).await {
        Ok(answer) => Ok(whole(StatusCode::CREATED, SDP, answer)),
        Err(error) => {
            let (status, code) = match &error {
                JoinError::Refused(Refused::NameTaken) => (StatusCode::CONFLICT, "name_taken"),
                JoinError::Refused(Refused::Full) | JoinError::Answer(AnswerError::Socket(_)) => {
                    (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
                }
                JoinError::Refused(Refused::BadName) | JoinError::Answer(AnswerError::Offer(_)) => {
                    (StatusCode::BAD_REQUEST, "bad_request")
                }
            };
            Err(Problem(status, code, error.to_string()))
        }
    }
}

/// Reason why a query does not describe a peer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum QueryError {
    #[error("the peer has no name: use `/v1/connect?name=NAME`")]
    NoName,
    #[error("`urgent` is longer than {URGENT_BYTES_MAX} bytes")]
    UrgentTooLong,
    #[error("unknown parameter `{0}`; the parameters are `name`, `to` and `urgent`")]
    UnknownParameter(String),
}

/// Parses the query into the name and options of a peer.
fn options(query: &str) -> Result<PeerOptions, QueryError> {
    let mut options = PeerOptions::default();
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "name" => options.name = value.into_owned(),
            "to" => options.to = Some(value.into_owned()),
            "urgent" if value.len() <= URGENT_BYTES_MAX => options.urgent = Some(value.into_owned().into_bytes()),
            "urgent" => return Err(QueryError::UrgentTooLong),
            _ => return Err(QueryError::UnknownParameter(key.into_owned())),
        }
    }
    match options.name.is_empty() {
        true => Err(QueryError::NoName),
        false => Ok(options),
    }
}

pub(crate) fn whole(status: StatusCode, kind: &'static str, text: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

impl Problem {
    pub(crate) fn answer(self) -> Answer {
        let Problem(status, code, detail) = self;
        let retry = status == StatusCode::SERVICE_UNAVAILABLE;
        let body = json!({
            "type": format!("urn:millrace:error:{code}"),
            "title": status.canonical_reason().unwrap_or_default(),
            "status": status.as_u16(),
            "detail": detail,
            "code": code,
            "retry": retry,
        });
        let mut answer = whole(status, "application/problem+json", body.to_string());
        if status == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_names_the_peer_and_its_receiver() {
        let parsed = options("name=arm%201&to=up&urgent=%21").expect("options");
        assert_eq!(parsed, PeerOptions { name: "arm 1".into(), to: Some("up".into()), urgent: Some(b"!".to_vec()) });
        assert_eq!(options("name=a&urgent=").expect("options").urgent.as_deref(), Some(&b""[..]));
        for bad in ["", "to=up", "name=", "name=a&fro=b", &format!("name=a&urgent={}", "x".repeat(257))] {
            assert!(options(bad).is_err(), "{bad}");
        }
    }
}
