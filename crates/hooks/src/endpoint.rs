//! A configured URL with its limits: requests are signed, bounded in number and time, and stop while the URL does not
//! answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode};
use millrace_protocol::TraceContext;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use crate::{
    HookUrl,
    circuit_breaker::{BreakerConfig, BreakerState, CircuitBreaker, IsOpen},
    http_client::{CallError, HttpClient},
    metrics::HookMetrics,
    signature::{Signer, signed_headers},
};

/// Maximum number of waiting requests, as a multiple of the requests in progress.
const WAITING_PER_SLOT: usize = 64;

/// Limits of a URL.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// Maximum number of requests in progress.
    pub concurrency: usize,
    pub breaker: BreakerConfig,
}

/// A URL that is called.
#[derive(Debug)]
pub struct Endpoint {
    url: HookUrl,
    client: HttpClient,
    breaker: Arc<CircuitBreaker>,
    slots: Semaphore,
    waiting: AtomicUsize,
    waiting_max: usize,
    metrics: HookMetrics,
}

/// When a failed request is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Once, if the connection failed before the first byte of an answer. For requests without an effect.
    BeforeAnswer,
    /// Once, if no connection could be opened, so that the server has not received the request.
    IfNotSent,
}

/// A request to an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointRequest {
    /// A repeated request has the same id.
    pub event_id: String,
    pub body: Bytes,
    /// Sent as the header `traceparent`. It is not signed.
    pub trace: Option<TraceContext>,
    pub repeat: Repeat,
    /// Time by which the answer must be complete. Waiting for a free slot counts.
    pub deadline: Instant,
    /// False if a client has set the deadline. A client must not open the circuit breaker by short deadlines.
    pub is_outage_when_late: bool,
}

/// Reasons why an endpoint returns no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("the circuit breaker is open, because the last requests were not answered")]
    BreakerOpen { wait: Duration },
    #[error("too many requests wait for it")]
    Overloaded,
    #[error("no answer in time")]
    Timeout,
    #[error(transparent)]
    Call(#[from] CallError),
}

impl EndpointError {
    /// Returns true if the server may have received the request.
    pub fn is_sent(&self) -> bool {
        match self {
            EndpointError::BreakerOpen { .. } | EndpointError::Overloaded => false,
            EndpointError::Timeout => true,
            EndpointError::Call(error) => !matches!(error, CallError::NotSent(_)),
        }
    }
}

/// Releases the place of a waiting request.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Endpoint {
    /// Creates an endpoint. `name` is its name in the log, beside the URL.
    pub fn new(name: &'static str, url: HookUrl, client: HttpClient, config: EndpointConfig) -> Self {
        let breaker = CircuitBreaker::new(name, url.shown(), config.breaker);
        let slots = Semaphore::new(config.concurrency);
        let waiting_max = config.concurrency.saturating_mul(WAITING_PER_SLOT);
        Self { url, client, breaker, slots, waiting: AtomicUsize::new(0), waiting_max, metrics: HookMetrics::default() }
    }

    pub fn url(&self) -> &HookUrl {
        &self.url
    }

    /// Returns the counters of this URL.
    pub fn metrics(&self) -> &HookMetrics {
        &self.metrics
    }

    pub fn breaker_state(&self) -> BreakerState {
        self.breaker.state_at(Instant::now())
    }

    /// Sends a request and returns the body of its answer.
    ///
    /// Errors: see [`EndpointError`]. An answer with an error status counts as an answer for the circuit breaker,
    /// except a status that says that the server is not available.
    pub async fn call(&self, signer: &Signer, request: &EndpointRequest) -> Result<Vec<u8>, EndpointError> {
        let EndpointRequest { event_id, body, trace, repeat, deadline, is_outage_when_late } = request;
        let _slot = match self.slots.try_acquire() {
            Ok(slot) => slot,
            Err(_) => {
                let before = self.waiting.fetch_add(1, Relaxed);
                let _waiting = Waiting(&self.waiting);
                if before >= self.waiting_max {
                    return Err(EndpointError::Overloaded);
                }
                let free = timeout_at(*deadline, self.slots.acquire()).await;
                free.ok().and_then(Result::ok).ok_or(EndpointError::Overloaded)?
            }
        };
        let permit =
            self.breaker.try_acquire(Instant::now()).map_err(|IsOpen { wait }| EndpointError::BreakerOpen { wait })?;
        let calling = async {
            let mut is_first = true;
            loop {
                let headers = with_trace(signed_headers(signer, event_id, body), *trace);
                let called = self.client.post(&self.url, headers, body.clone()).await;
                let may_repeat = match &called {
                    Err(CallError::NotSent(_)) => true,
                    Err(CallError::NoAnswer(_)) => *repeat == Repeat::BeforeAnswer,
                    _ => false,
                };
                if !(may_repeat && std::mem::replace(&mut is_first, false)) {
                    return called;
                }
            }
        };
        let called = timeout_at(*deadline, calling).await;
        let now = Instant::now();
        let called = match called {
            Ok(called) => called.map_err(EndpointError::from),
            Err(_) => Err(EndpointError::Timeout),
        };
        match &called {
            // The permit is dropped: the result does not show whether the server answers.
            Err(EndpointError::Timeout) if !is_outage_when_late => {}
            Err(error) if is_outage(error) => permit.failed(now),
            _ => permit.succeeded(now),
        }
        called
    }
}

/// Adds the header of W3C Trace Context, level 1, section 3.2.
fn with_trace(mut headers: HeaderMap, trace: Option<TraceContext>) -> HeaderMap {
    if let Some(value) = trace.and_then(|trace| trace.to_string().parse().ok()) {
        headers.insert(HeaderName::from_static("traceparent"), value);
    }
    headers
}

/// Returns true if the server did not answer, or a proxy in front of it answered in its place. A wrong answer is no
/// outage: one client with unusual data must not stop the questions of all others.
fn is_outage(error: &EndpointError) -> bool {
    match error {
        EndpointError::Call(CallError::Status(status)) => matches!(
            *status,
            StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
                | StatusCode::TOO_MANY_REQUESTS
        ),
        EndpointError::Call(CallError::TooLarge(_)) => false,
        _ => true,
    }
}
