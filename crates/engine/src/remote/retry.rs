use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use millrace_protocol::{Code, Error};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::broker::BrokerError;
use crate::Answer;

/// Counters, see [`Engine::counters`](crate::Engine::counters).
#[derive(Default)]
pub(super) struct RequestCounts {
    pub requests: AtomicU64,
    pub retries: AtomicU64,
    pub failures: AtomicU64,
}

/// Pauses between attempts. They double from 20-40 ms to 1-2 s, with random jitter.
pub(crate) struct Pauses(u32);

impl Pauses {
    pub fn new() -> Self {
        Self(0)
    }

    pub async fn pause(&mut self) {
        let longest_ms = 40u64 << self.0.min(6);
        self.0 += 1;
        let chance = u64::from(getrandom::u32().unwrap_or_default());
        tokio::time::sleep(Duration::from_millis(longest_ms / 2 + chance % (longest_ms / 2))).await;
    }
}

/// Repeats a request until the broker answers or the time is over.
pub(super) async fn retry<T, F>(counts: &RequestCounts, until: Instant, ask: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, BrokerError>>,
{
    let mut pauses = Pauses::new();
    counts.requests.fetch_add(1, Relaxed);
    let attempts = async {
        loop {
            match ask().await {
                Err(BrokerError::Unavailable(why)) => tracing::debug!(why, "retrying an engine request"),
                Err(BrokerError::Refused(error)) => return Err(error),
                Ok(value) => return Ok(value),
            }
            pauses.pause().await;
            counts.retries.fetch_add(1, Relaxed);
        }
    };
    timeout_at(until, attempts).await.unwrap_or_else(|_| {
        counts.failures.fetch_add(1, Relaxed);
        Err(unavailable())
    })
}

pub(super) fn unavailable() -> Error {
    Error::new(Code::Unavailable, "the engine does not answer; try again")
}

pub(super) fn later<T: Send + 'static>(receiver: oneshot::Receiver<Result<T, Error>>) -> Answer<Result<T, Error>> {
    Answer::Later(Box::pin(async move { receiver.await.unwrap_or_else(|_| Err(unavailable())) }))
}
