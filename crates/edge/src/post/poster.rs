//! One HTTP request until it is answered: retried with the same `Idempotency-Key`, so that it counts once.

use std::time::{Duration, Instant};

use super::PostError;
use crate::backoff::Backoff;
use crate::chance::Chance;
use crate::wire::{Problem, body, cause, client};

/// Attempts before a request is given up: at the longest after about 40 s of waiting, on average 20 s.
const ATTEMPTS_MAX: u32 = 12;
const RETRY_BASE: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
const ANSWER_TIME: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub retries: u64,
    /// Of the last request that was answered.
    pub round_trip: Option<Duration>,
}

pub struct Poster {
    client: reqwest::Client,
    backoff: Backoff,
    /// Differs from run to run, so that keys do, too.
    run: u64,
    requests: u64,
    on_retry: fn(&str),
    pub stats: Stats,
}

/// Why an attempt failed.
#[derive(Debug)]
pub enum Failure {
    Again(String),
    Refused(Problem),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        if problem.retry { Self::Again(problem.to_string()) } else { Self::Refused(problem) }
    }
}

impl Poster {
    pub fn new(on_retry: fn(&str)) -> Result<Self, PostError> {
        let client = client().timeout(ANSWER_TIME).build();
        let client = client.map_err(|error| PostError::Address(cause(&error)))?;
        let mut chance = Chance::from_system();
        let run = chance.bits();
        let backoff = Backoff::new(RETRY_BASE, RETRY_MAX, chance);
        Ok(Self { client, backoff, run, requests: 0, on_retry, stats: Stats::default() })
    }

    /// Posts until the server answers with success and `check` agrees. Returns the answer.
    ///
    /// The key makes the server answer a repeated request, or any line of it, as it did the first time: a retry after a lost
    /// answer publishes nothing twice. Errors: [`PostError::Refused`], [`PostError::GaveUp`].
    pub async fn post(
        &mut self,
        url: &str,
        headers: &[(&str, &str)],
        bytes: Vec<u8>,
        check: impl Fn(&[u8]) -> Result<(), Failure>,
    ) -> Result<Vec<u8>, PostError> {
        self.requests += 1;
        let key = format!("{:016x}-{}", self.run, self.requests);
        self.backoff.succeeded();
        loop {
            let started = Instant::now();
            let mut request = self.client.post(url).header("Idempotency-Key", &key).body(bytes.clone());
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let why = match attempt(request).await.and_then(|answer| check(&answer).map(|()| answer)) {
                Ok(answer) => {
                    self.stats.round_trip = Some(started.elapsed());
                    return Ok(answer);
                }
                Err(Failure::Refused(problem)) => return Err(PostError::Refused(problem)),
                Err(Failure::Again(why)) => why,
            };
            if self.backoff.attempts() + 1 >= ATTEMPTS_MAX {
                return Err(PostError::GaveUp { attempts: ATTEMPTS_MAX, last: why });
            }
            self.stats.retries += 1;
            (self.on_retry)(&why);
            tokio::time::sleep(self.backoff.next_wait()).await;
        }
    }
}

async fn attempt(request: reqwest::RequestBuilder) -> Result<Vec<u8>, Failure> {
    let response = request.send().await.map_err(|error| match error.is_builder() {
        // An address or a header that HTTP cannot carry gets no better with time.
        true => Failure::Refused(Problem { code: "bad_request".into(), detail: cause(&error), retry: false }),
        false => Failure::Again(cause(&error)),
    })?;
    let status = response.status();
    let answer = body(response).await.map_err(Failure::Again)?;
    match status.is_success() {
        true => Ok(answer),
        false => Err(Problem::of(status.as_u16(), &answer).into()),
    }
}
