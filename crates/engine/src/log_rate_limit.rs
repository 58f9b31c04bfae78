use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

const PAUSE: Duration = Duration::from_secs(60);

/// Limits a log line to one per minute, for faults of this machine that many clients meet at the same time.
#[derive(Debug)]
pub struct LogRateLimit(Mutex<Option<Instant>>);

impl LogRateLimit {
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns true at the first call, and after that at most once per minute.
    pub fn is_due(&self) -> bool {
        let (mut last, now) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        let is_due = last.is_none_or(|last| now.duration_since(last) >= PAUSE);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

impl Default for LogRateLimit {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_logged_once_per_minute() {
        let seldom = LogRateLimit::new();
        assert!(seldom.is_due() && !seldom.is_due());
        *seldom.0.lock().unwrap() = Instant::now().checked_sub(PAUSE);
        assert!(seldom.is_due() && !seldom.is_due());
    }
}
