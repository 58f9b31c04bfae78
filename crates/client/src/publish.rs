//! Publishing over HTTP: a request is retried with the same `Idempotency-Key` until it is answered, so that it counts
//! once.

use std::time::{Duration, Instant};

use reqwest::Method;

use crate::backoff::{Backoff, FailedAttempt, GaveUp};
use crate::http::{body, cause};
use crate::problem::Problem;
use crate::random::Random;
use crate::server::{InvalidAddress, Server};
use crate::tls::permanent_reason;

const RETRY_BASE: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Reason why a request was given up.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error(transparent)]
    Address(#[from] InvalidAddress),
    /// No HTTP client can be created.
    #[error("no HTTP client: {0}")]
    Client(String),
    /// The server rejects the request permanently.
    #[error("the server refuses: {0}")]
    Refused(Problem),
    #[error(transparent)]
    GaveUp(#[from] GaveUp),
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub retries: u64,
    /// Round-trip time of the last answered request.
    pub round_trip: Option<Duration>,
}

/// Publisher that sends one request at a time.
pub struct HttpPublisher {
    client: reqwest::Client,
    backoff: Backoff,
    /// Random number of this run, so that keys differ between runs.
    run: u64,
    requests: u64,
    on_retry: fn(&FailedAttempt),
    pub stats: Stats,
}

/// Reason why an attempt failed.
#[derive(Debug)]
pub enum AttemptError {
    /// A retry may succeed.
    Retryable(String),
    /// The server rejects the request permanently.
    Refused(Problem),
}

impl From<Problem> for AttemptError {
    fn from(problem: Problem) -> Self {
        if problem.retry { Self::Retryable(problem.to_string()) } else { Self::Refused(problem) }
    }
}

impl HttpPublisher {
    /// Creates a publisher. A request fails once the server has not accepted it for `retry_for`.
    pub fn new(retry_for: Duration, on_retry: fn(&FailedAttempt)) -> Result<Self, PublishError> {
        let client = crate::tls::http().timeout(ANSWER_TIME).build();
        let client = client.map_err(|error| PublishError::Client(cause(&error)))?;
        let mut random = Random::from_system();
        let run = random.bits();
        let backoff = Backoff::new(RETRY_BASE, RETRY_MAX, random).for_at_most(Some(retry_for));
        Ok(Self { client, backoff, run, requests: 0, on_retry, stats: Stats::default() })
    }

    /// Posts to a path of a server; see [`HttpPublisher::send`].
    pub async fn post(
        &mut self,
        server: &Server,
        path: &str,
        headers: &[(&str, &str)],
        bytes: Vec<u8>,
        check: impl Fn(&[u8]) -> Result<(), AttemptError>,
    ) -> Result<Vec<u8>, PublishError> {
        self.send(Method::POST, server, path, headers, bytes, check).await
    }

    /// Sends a request to a path of a server, with the server's token, until the server answers with success and
    /// `check` accepts the answer. Returns the answer.
    ///
    /// The idempotency key makes the server repeat its first answer to a repeated request, or to any line of it. So
    /// a retry after a lost answer publishes nothing twice.
    ///
    /// Errors: [`PublishError::Refused`], [`PublishError::GaveUp`].
    pub async fn send(
        &mut self,
        method: Method,
        server: &Server,
        path: &str,
        headers: &[(&str, &str)],
        bytes: Vec<u8>,
        check: impl Fn(&[u8]) -> Result<(), AttemptError>,
    ) -> Result<Vec<u8>, PublishError> {
        self.requests += 1;
        let key = format!("{:016x}-{}", self.run, self.requests);
        self.backoff.succeeded();
        loop {
            let started = Instant::now();
            let request = self.client.request(method.clone(), server.http(path));
            let mut request = request.header("Idempotency-Key", &key);
            request = request.body(bytes.clone());
            for (name, value) in headers.iter().copied().chain(server.authorization()) {
                request = request.header(name, value);
            }
            let why = match attempt(request, server).await.and_then(|answer| check(&answer).map(|()| answer)) {
                Ok(answer) => {
                    self.stats.round_trip = Some(started.elapsed());
                    return Ok(answer);
                }
                Err(AttemptError::Refused(problem)) => return Err(PublishError::Refused(problem)),
                Err(AttemptError::Retryable(why)) => why,
            };
            let lost = self.backoff.failed(server, why)?;
            self.stats.retries += 1;
            (self.on_retry)(&lost);
            tokio::time::sleep(lost.wait).await;
        }
    }
}

async fn attempt(request: reqwest::RequestBuilder, server: &Server) -> Result<Vec<u8>, AttemptError> {
    let response = request.send().await.map_err(|error| match error.is_builder() {
        // An invalid address or header is a permanent error.
        true => AttemptError::Refused(Problem {
            code: "bad_request".into(),
            detail: cause(&error),
            retry: false,
            reason: None,
        }),
        false => match permanent_reason(&error, server) {
            Some(detail) => AttemptError::Refused(Problem { code: "tls".into(), detail, retry: false, reason: None }),
            None => AttemptError::Retryable(cause(&error)),
        },
    })?;
    let status = response.status();
    let answer = body(response).await.map_err(|error| AttemptError::Retryable(error.to_string()))?;
    match status.is_success() {
        true => Ok(answer),
        false => Err(Problem::of(status.as_u16(), &answer).into()),
    }
}
