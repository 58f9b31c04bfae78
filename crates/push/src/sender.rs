//! Sends messages to push services, on a thread of its own, and repeats what a service asks to repeat.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use millrace_engine::Engine;
use millrace_hooks::{
    http_client::{ClientError, HttpClient},
    runtime::HookThread,
};
use millrace_protocol::{ChannelName, Code, Error, NewPublication};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};

use crate::{
    encrypt::Keys,
    endpoint::Hosts,
    metrics::{MessageEvent, Metrics, RequestResult, SubscriptionEvent},
    queue::{Entry, Message, Queue},
    take_over,
    vapid::Vapid,
};

/// Maximum number of messages that wait or are being sent on this node; further ones are dropped.
const JOBS_MAX: usize = 10_000;
/// Maximum number of requests at the same time.
const REQUESTS_MAX: usize = 64;
/// Maximum number of attempts to send a message.
const ATTEMPTS_MAX: u32 = 5;
/// Wait before the second attempt; it doubles with each further one.
const RETRY: Duration = Duration::from_secs(5);
/// Longest wait that a push service can ask for.
const RETRY_MAX: Duration = Duration::from_secs(60 * 60);
/// Maximum size of an answer of a push service in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Time beyond the time limit of a request for which a message is held.
const MARGIN: Duration = Duration::from_secs(2);
/// Wait before a write that the engine did not answer is repeated, and the number of repetitions.
const WRITE_RETRY: Duration = Duration::from_secs(1);
const WRITE_RETRIES: usize = 30;

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

/// Web Push of one node.
pub struct Push {
    shared: Arc<Shared>,
    /// `None` once Web Push is stopped.
    thread: Mutex<Option<HookThread>>,
}

pub(crate) struct Shared {
    config: Config,
    client: HttpClient,
    pub engine: Arc<dyn Engine>,
    pub queue: Queue,
    pub metrics: Metrics,
    pub jobs: Arc<Semaphore>,
    requests: Semaphore,
    /// Ids of the messages of this node.
    own: Mutex<HashSet<Box<str>>>,
}

/// A message that this node sends.
pub(crate) struct Job {
    pub entry: Entry,
    /// True if the message is claimed before its first attempt, because another node may send it, or has sent it.
    pub is_shared: bool,
    pub permit: OwnedSemaphorePermit,
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
        let thread = HookThread::start("push").map_err(PushError::Thread)?;
        let shared = Arc::new(Shared {
            config,
            client,
            queue: Queue::new(engine.clone()),
            engine,
            metrics: Metrics::default(),
            jobs: Arc::new(Semaphore::new(JOBS_MAX)),
            requests: Semaphore::new(REQUESTS_MAX),
            own: Mutex::default(),
        });
        thread.start_task(take_over::run(shared.clone()));
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Stops sending. Messages that wait stay in the queue, for another node or the next process.
    pub fn stop(&self) {
        drop(self.thread.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    pub(crate) fn engine(&self) -> &dyn Engine {
        &*self.shared.engine
    }

    /// Runs a task on the thread of Web Push, unless it is stopped.
    pub(crate) fn start_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.start_task(task);
        }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Returns the number of messages of this node that wait or are being sent.
    pub fn waiting(&self) -> usize {
        JOBS_MAX - self.shared.jobs.available_permits()
    }

    /// Queues a message, and sends it in the background. Returns false if too many messages wait already.
    ///
    /// `id` names the message; with `is_repeated`, the caller may queue it again, and it is sent once.
    ///
    /// Errors: those of the engine.
    pub async fn send(&self, id: Box<str>, mut message: Message, is_repeated: bool) -> Result<bool, Error> {
        let shared = &self.shared;
        let dropped = || shared.metrics.count_message(MessageEvent::Dropped);
        let Ok(permit) = shared.jobs.clone().try_acquire_owned() else {
            dropped();
            return Ok(false);
        };
        (message.attempt, message.due_ms) = (1, shared.held_until_ms());
        let entry = match shared.queue.add(id, message).await {
            Ok(entry) => entry,
            Err(error) if error.code == Code::PreconditionFailed => return Ok(true),
            Err(error) if error.code == Code::TooMany => {
                dropped();
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        shared.metrics.count_message(MessageEvent::Queued);
        self.start_task(shared.clone().run(Job { entry, is_shared: is_repeated, permit }));
        Ok(true)
    }
}

impl Shared {
    /// Returns the time until which a message is held that is sent now.
    fn held_until_ms(&self) -> u64 {
        self.engine.now_ms() + (self.config.timeout + MARGIN).as_millis() as u64
    }

    pub fn own(&self) -> MutexGuard<'_, HashSet<Box<str>>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message, and waits between the attempts.
    pub async fn run(self: Arc<Self>, Job { mut entry, is_shared, permit }: Job) {
        let id = entry.id.clone();
        self.own().insert(id.clone());
        let event = self.send(&mut entry, is_shared).await;
        if let Some(event) = event {
            self.remove(&entry).await;
            self.metrics.count_message(event);
        }
        self.own().remove(&id);
        drop(permit);
    }

    /// Returns the end of the message; `None` if another node sends it.
    async fn send(&self, entry: &mut Entry, is_shared: bool) -> Option<MessageEvent> {
        let mut is_held = !is_shared;
        loop {
            if entry.message.attempt > 1 && self.engine.now_ms() >= entry.message.expires_ms {
                return Some(MessageEvent::Expired);
            }
            let slot = self.requests.acquire().await.ok()?;
            // After a long wait for the slot, another node may have taken the message over.
            let end_ms = self.engine.now_ms() + self.config.timeout.as_millis() as u64;
            if !is_held || end_ms > entry.message.due_ms {
                self.claim(entry).await?;
            }
            let (status, retry_after) = self.attempt(&entry.message).await;
            drop(slot);
            self.metrics.count_request(result(status));
            match decide(status, retry_after, entry.message.attempt) {
                Decision::Done => return Some(MessageEvent::Delivered),
                Decision::Remove => {
                    self.remove_subscription(&entry.message).await;
                    return Some(MessageEvent::Gone);
                }
                Decision::GiveUp => {
                    let origin = self.config.hosts.check(&entry.message.endpoint).map(|endpoint| endpoint.origin);
                    let origin = origin.unwrap_or_default();
                    tracing::info!(origin, status = ?status, "gave up a message to a push service");
                    return Some(MessageEvent::Failed);
                }
                Decision::Retry(wait) => {
                    let due_ms = self.engine.now_ms() + wait.as_millis() as u64;
                    if due_ms >= entry.message.expires_ms {
                        return Some(MessageEvent::Expired);
                    }
                    entry.message.due_ms = due_ms;
                    // Without an answer of the engine, this node goes on: the claim before the next attempt decides.
                    if self.queue.write(entry).await.is_err_and(|error| error.code == Code::PreconditionFailed) {
                        return None;
                    }
                    sleep(wait).await;
                    entry.message.attempt += 1;
                    is_held = false;
                }
            }
        }
    }

    /// Makes this node the one that sends the message now. `None`: another node does, or the engine does not answer.
    async fn claim(&self, entry: &mut Entry) -> Option<()> {
        for _ in 0..WRITE_RETRIES {
            entry.message.due_ms = self.held_until_ms();
            match self.queue.write(entry).await {
                Ok(()) => return Some(()),
                Err(error) if error.code.may_retry() => sleep(WRITE_RETRY).await,
                Err(_) => return None,
            }
        }
        None
    }

    /// Removes a message from the queue. If the engine does not answer for a long time, another attempt follows.
    async fn remove(&self, entry: &Entry) {
        for _ in 0..WRITE_RETRIES {
            match self.queue.remove(entry).await {
                Err(error) if error.code.may_retry() => sleep(WRITE_RETRY).await,
                _ => return,
            }
        }
    }

    async fn remove_subscription(&self, message: &Message) {
        let Ok(channel) = ChannelName::parse(&message.subscriptions) else { return };
        let deletion = NewPublication::deletion(message.subscription.as_str().into());
        // If the engine does not answer, the next message removes the subscription.
        if self.engine.append(&channel, deletion).await.is_ok() {
            self.metrics.count_subscription(SubscriptionEvent::Removed);
        }
    }

    /// Sends one request. `None`: no answer in time.
    async fn attempt(&self, message: &Message) -> (Option<StatusCode>, Option<Duration>) {
        let refused = (Some(StatusCode::BAD_REQUEST), None);
        // The permitted services may be others than when the message was queued.
        let Ok(endpoint) = self.config.hosts.check(&message.endpoint) else { return refused };
        let (Ok(keys), Ok(plain)) =
            (Keys::parse(&message.p256dh, &message.auth), BASE64_STANDARD.decode(&message.body))
        else {
            return refused;
        };
        let now_ms = self.engine.now_ms();
        let Ok(authorization) = self.config.vapid.authorization(&endpoint.origin, now_ms / 1000) else {
            return (None, None);
        };
        // A new key pair and salt for each attempt: a nonce is never used twice.
        let Ok(body) = keys.encrypt(&plain) else { return refused };
        let mut headers = HeaderMap::new();
        let (Ok(authorization), Ok(urgency)) =
            (HeaderValue::from_str(&authorization), HeaderValue::from_str(&message.urgency))
        else {
            return refused;
        };
        headers.insert(header::AUTHORIZATION, authorization);
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("aes128gcm"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        // Rounded, so that the time that the server itself has needed does not shorten a time to live of seconds.
        headers.insert("ttl", ((message.expires_ms.saturating_sub(now_ms) + 500) / 1000).into());
        headers.insert("urgency", urgency);
        let request = self.client.exchange(&endpoint.url, headers, body.into());
        match timeout(self.config.timeout, request).await {
            Ok(Ok((status, headers))) => {
                let retry_after = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                (Some(status), retry_after.map(Duration::from_secs))
            }
            _ => (None, None),
        }
    }
}

fn result(status: Option<StatusCode>) -> RequestResult {
    match status {
        None => RequestResult::NoAnswer,
        Some(status) if status.is_success() => RequestResult::Accepted,
        Some(StatusCode::NOT_FOUND | StatusCode::GONE) => RequestResult::Gone,
        Some(StatusCode::TOO_MANY_REQUESTS) => RequestResult::Throttled,
        Some(status) if status.is_server_error() => RequestResult::ServerError,
        Some(_) => RequestResult::Refused,
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
