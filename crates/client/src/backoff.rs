//! Backoff between attempts: uniform in `[0, min(max, base * 2^attempt))`, so that many clients do not reconnect at
//! the same time.
//! Source: "Exponential Backoff And Jitter", AWS Architecture Blog, "full jitter".

use std::fmt;
use std::time::{Duration, Instant};

use crate::random::Random;
use crate::server::Server;

#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    attempts: u32,
    random: Random,
    /// Maximum time without success; `None`: unlimited.
    retry_for: Option<Duration>,
    failing_since: Option<Instant>,
}

/// Failed attempt that will be followed by another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Server address without user and password.
    pub server: String,
    pub why: String,
    /// Number of the attempt since the last success, from 1; 0 if the server asked the client to reconnect.
    pub attempt: u32,
    pub wait: Duration,
}

/// Final failure after the last attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{server}: {why}. Gave up after {attempts} attempts in {:.1} s; is a server running there? --retry-for sets how long to try", after.as_secs_f64())]
pub struct GaveUp {
    /// Server address without user and password.
    pub server: String,
    pub why: String,
    pub attempts: u32,
    pub after: Duration,
}

impl fmt::Display for FailedAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, why, attempt, wait } = self;
        match attempt {
            0 => write!(f, "{server}: {why}; connecting again"),
            _ => write!(f, "{server}: attempt {attempt} failed: {why}; trying again in {:.1} s", wait.as_secs_f64()),
        }
    }
}

impl Backoff {
    pub fn new(base: Duration, max: Duration, random: Random) -> Self {
        Self { base, max, attempts: 0, random, retry_for: None, failing_since: None }
    }

    /// Limits the time without success; `None` removes the limit.
    pub fn for_at_most(self, retry_for: Option<Duration>) -> Self {
        Self { retry_for, ..self }
    }

    /// Records a failed attempt. Returns the wait before the next attempt, or [`GaveUp`] if that wait would exceed
    /// the limit.
    pub fn failed(&mut self, server: &Server, why: String) -> Result<FailedAttempt, GaveUp> {
        let after = self.failing_since.get_or_insert_with(Instant::now).elapsed();
        let (server, wait) = (server.shown(), self.next_wait());
        match self.retry_for.is_some_and(|longest| after + wait > longest) {
            true => Err(GaveUp { server, why, attempts: self.attempts, after }),
            false => Ok(FailedAttempt { server, why, attempt: self.attempts, wait }),
        }
    }

    /// Returns the random wait before the next attempt, and counts an attempt.
    pub fn next_wait(&mut self) -> Duration {
        let ceiling = self.base.saturating_mul(1 << self.attempts.min(20)).min(self.max);
        self.attempts += 1;
        ceiling.mul_f64(self.random.unit())
    }

    pub fn succeeded(&mut self) {
        self.attempts = 0;
        self.failing_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_spread_out_and_stay_bounded() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2), Random::from_seed(1));
        let mut longest = Duration::ZERO;
        for attempt in 0..200 {
            let wait = backoff.next_wait();
            assert!(wait < Duration::from_millis(100) * 2u32.pow(attempt.min(5)));
            assert!(wait < Duration::from_secs(2));
            longest = longest.max(wait);
        }
        assert!(longest > Duration::from_millis(1500));
        backoff.succeeded();
        assert!(backoff.next_wait() < Duration::from_millis(100));
    }

    #[test]
    fn failed_attempt_names_its_server_and_number() {
        let server = Server::parse("http://ann:s3cret@127.0.0.1:1/").expect("an address");
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1), Random::from_seed(1));
        let mut forever = backoff.clone();
        for attempt in 1..100 {
            let lost = forever.failed(&server, "refused".into()).expect("it never gives up");
            let shown = lost.to_string();
            assert!(shown.starts_with(&format!("http://127.0.0.1:1: attempt {attempt} failed: refused; ")), "{shown}");
        }
        let gave_up = backoff.for_at_most(Some(Duration::ZERO)).failed(&server, "refused".into()).expect_err("at once");
        let shown = gave_up.to_string();
        assert!(shown.contains("http://127.0.0.1:1: refused") && shown.contains("--retry-for"), "{shown}");
    }
}
