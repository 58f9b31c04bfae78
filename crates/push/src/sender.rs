//! Sends messages to push services, on a thread of its own, and repeats what a service asks to repeat.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use millrace_engine::Engine;
use millrace_hooks::{
    http_client::{ClientError, HttpClient},
    runtime::HookThread,
};
use millrace_protocol::{ChannelName, NewPublication};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    encrypt::Keys,
    endpoint::{Endpoint, Hosts},
    vapid::Vapid,
};

/// Maximum number of messages that wait or are being sent; further ones are dropped.
const JOBS_MAX: usize = 10_000;
/// Maximum number of requests at the same time.
const REQUESTS_MAX: usize = 64;
const ATTEMPTS_MAX: u32 = 5;
/// Wait before the second attempt; it doubles with each further one.
const RETRY: Duration = Duration::from_secs(5);
/// Longest wait that a push service can ask for.
const RETRY_MAX: Duration = Duration::from_secs(60 * 60);
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Settings of Web Push.
#[derive(Debug)]
pub struct Config {
    pub vapid: Vapid,
    pub hosts: Hosts,
    /// Time limit of a request.
    pub timeout: Duration,
    /// Certificates (PEM) to trust in addition to those of the system.
    pub authorities: Vec<u8>,
}

/// Reason why Web Push cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// A message for one subscription.
pub struct Job {
    pub endpoint: Endpoint,
    pub keys: Keys,
    pub message: Bytes,
    /// Time for which the push service keeps the message, in seconds.
    pub ttl_s: u64,
    pub urgency: &'static str,
    /// Channel and key of the subscription.
    pub subscription: (ChannelName, Box<str>),
}

/// Web Push of one node.
pub struct Push {
    shared: Arc<Shared>,
    thread: HookThread,
}

struct Shared {
    config: Config,
    client: HttpClient,
    engine: Arc<dyn Engine>,
    jobs: Arc<Semaphore>,
    requests: Semaphore,
}

/// Decision after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Done,
    /// The subscription no longer exists.
    Remove,
    Retry(Duration),
    GiveUp,
}

impl Push {
    /// Starts the thread. Errors: an invalid certificate, or no thread.
    pub fn start(config: Config, engine: Arc<dyn Engine>) -> Result<Self, PushError> {
        let client = HttpClient::new(ANSWER_BYTES_MAX, &config.authorities)?;
        let (jobs, requests) = (Arc::new(Semaphore::new(JOBS_MAX)), Semaphore::new(REQUESTS_MAX));
        let thread = HookThread::start("push").map_err(PushError::Thread)?;
        Ok(Self { shared: Arc::new(Shared { config, client, engine, jobs, requests }), thread })
    }

    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    pub(crate) fn engine(&self) -> &dyn Engine {
        &*self.shared.engine
    }

    /// Runs a task on the thread of Web Push.
    pub(crate) fn start_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.thread.start_task(task);
    }

    /// Sends a message in the background. Returns false if too many messages wait already.
    pub fn send(&self, job: Job) -> bool {
        let Ok(permit) = self.shared.jobs.clone().try_acquire_owned() else { return false };
        let shared = self.shared.clone();
        self.thread.start_task(async move {
            shared.run(job).await;
            drop(permit);
        });
        true
    }
}

impl Shared {
    async fn run(&self, job: Job) {
        for attempt in 1.. {
            let (status, retry_after) = self.attempt(&job).await;
            match decide(status, retry_after, attempt) {
                Decision::Done => return,
                Decision::Retry(wait) => sleep(wait).await,
                Decision::Remove => {
                    let (channel, key) = job.subscription;
                    // If the engine does not answer, the next message removes the subscription.
                    let _ = self.engine.append(&channel, NewPublication::deletion(key)).await;
                    return;
                }
                Decision::GiveUp => {
                    tracing::info!(origin = %job.endpoint.origin, status = ?status, "a push service took no message");
                    return;
                }
            }
        }
    }

    /// Sends one request. `None`: no answer in time.
    async fn attempt(&self, job: &Job) -> (Option<StatusCode>, Option<Duration>) {
        let Ok(_permit) = self.requests.acquire().await else { return (None, None) };
        let now_s = self.engine.now_ms() / 1000;
        let Ok(authorization) = self.config.vapid.authorization(&job.endpoint.origin, now_s) else {
            return (None, None);
        };
        // A new key pair and salt for each attempt: a nonce is never used twice.
        let Ok(body) = job.keys.encrypt(&job.message) else { return (Some(StatusCode::BAD_REQUEST), None) };
        let mut headers = HeaderMap::new();
        let Ok(authorization) = HeaderValue::from_str(&authorization) else { return (None, None) };
        headers.insert(header::AUTHORIZATION, authorization);
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("aes128gcm"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert("ttl", job.ttl_s.into());
        headers.insert("urgency", HeaderValue::from_static(job.urgency));
        let request = self.client.exchange(&job.endpoint.url, headers, body.into());
        match timeout(self.config.timeout, request).await {
            Ok(Ok((status, headers))) => {
                let retry_after = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                (Some(status), retry_after.map(Duration::from_secs))
            }
            _ => (None, None),
        }
    }
}

/// Source: RFC 8030, sections 5 and 7.3; RFC 9110, section 10.2.3.
fn decide(status: Option<StatusCode>, retry_after: Option<Duration>, attempt: u32) -> Decision {
    match status {
        Some(status) if status.is_success() => Decision::Done,
        Some(StatusCode::NOT_FOUND | StatusCode::GONE) => Decision::Remove,
        Some(status) if status != StatusCode::TOO_MANY_REQUESTS && !status.is_server_error() => Decision::GiveUp,
        _ if attempt >= ATTEMPTS_MAX => Decision::GiveUp,
        _ => Decision::Retry(retry_after.unwrap_or(RETRY * 2u32.pow(attempt.min(8) - 1)).min(RETRY_MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_decides_about_message_and_subscription() {
        let secs = Duration::from_secs;
        for (code, after, attempt, expected) in [
            (Some(201), None, 1, Decision::Done),
            (Some(404), None, 1, Decision::Remove),
            (Some(410), None, 1, Decision::Remove),
            (Some(400), None, 1, Decision::GiveUp),
            (Some(403), None, 1, Decision::GiveUp),
            (Some(413), None, 1, Decision::GiveUp),
            (Some(302), None, 1, Decision::GiveUp),
            (Some(429), Some(secs(90)), 1, Decision::Retry(secs(90))),
            (Some(429), Some(secs(1_000_000)), 1, Decision::Retry(RETRY_MAX)),
            (Some(503), None, 2, Decision::Retry(secs(10))),
            (None, None, 1, Decision::Retry(secs(5))),
            (None, None, 5, Decision::GiveUp),
            (Some(429), Some(secs(1)), 5, Decision::GiveUp),
        ] {
            let status = code.map(|code| StatusCode::from_u16(code).unwrap());
            assert_eq!(decide(status, after, attempt), expected, "{code:?}, attempt {attempt}");
        }
    }
}
