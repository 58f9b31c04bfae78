//! A stand-in for an OpenTelemetry collector: an HTTP server that decodes the requests with the official types.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    common::v1::any_value::Value,
    trace::v1::Span,
};
use prost::Message as _;
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle};

/// Maximum time that a test waits for anything.
pub const BOUND: Duration = Duration::from_secs(30);

/// Answers requests to `/v1/traces`.
pub struct Collector {
    pub address: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

struct State {
    /// A request is answered when it gets a permit.
    permits: Semaphore,
    status: Mutex<StatusCode>,
    requests: Mutex<Vec<ExportTraceServiceRequest>>,
    /// `traceparent` headers of the hook's questions.
    questions: Mutex<Vec<String>>,
}

impl Collector {
    /// Starts a collector that answers the first `permits` requests.
    pub async fn start(permits: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State {
            permits: Semaphore::new(permits),
            status: Mutex::new(StatusCode::OK),
            requests: Mutex::default(),
            questions: Mutex::default(),
        });
        let serving = state.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = serving.clone();
                let service = service_fn(move |request| {
                    let state = state.clone();
                    async move { Ok::<_, Infallible>(state.answer(request).await) }
                });
                tokio::spawn(async move {
                    let served = hyper::server::conn::http1::Builder::new();
                    let _ = served.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, state, task }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}/v1/traces", self.address)
    }

    /// Answers with this status from now on.
    pub fn answer_with(&self, status: StatusCode) {
        *self.state.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// Answers this many more requests.
    pub fn permit(&self, requests: usize) {
        self.state.permits.add_permits(requests);
    }

    /// Returns the `traceparent` headers that the hook has received.
    pub fn questions(&self) -> Vec<String> {
        self.state.questions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns all accepted spans. Checks what every request says about the service.
    pub fn spans(&self) -> Vec<Span> {
        let requests = self.state.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let mut spans = Vec::new();
        for resource in requests.iter().flat_map(|request| &request.resource_spans) {
            let about = resource.resource.as_ref().expect("a resource");
            let service = about.attributes.iter().find(|attribute| attribute.key == "service.name");
            let service = service.and_then(|attribute| attribute.value.clone()?.value);
            assert_eq!(service, Some(Value::StringValue("millrace".into())));
            for scope in &resource.scope_spans {
                assert_eq!(scope.scope.as_ref().expect("a scope").name, "millrace");
                spans.extend(scope.spans.iter().cloned());
            }
        }
        spans
    }

    /// Waits until `count` spans were accepted, and returns them.
    pub async fn wait_for(&self, count: usize) -> Vec<Span> {
        let end = tokio::time::Instant::now() + BOUND;
        loop {
            let spans = self.spans();
            if spans.len() >= count {
                return spans;
            }
            assert!(tokio::time::Instant::now() < end, "{count} spans, not {spans:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    async fn answer(&self, request: http::Request<hyper::body::Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        if head.uri.path() == "/hook" {
            let header = |headers: &HeaderMap| Some(headers.get("traceparent")?.to_str().ok()?.to_owned());
            let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
            questions.extend(header(&head.headers));
            return Response::new(Full::from("{\"allow\":true}"));
        }
        assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/v1/traces"));
        assert_eq!(head.headers["content-type"], "application/x-protobuf");
        let decoded = ExportTraceServiceRequest::decode(body).expect("the official types decode it");
        self.permits.acquire().await.expect("it is not closed").forget();
        let status = *self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if status == StatusCode::OK {
            self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(decoded);
        }
        let mut response = Response::new(Full::from(ExportTraceServiceResponse::default().encode_to_vec()));
        *response.status_mut() = status;
        response.headers_mut().insert("content-type", "application/x-protobuf".parse().expect("a value"));
        response
    }
}
