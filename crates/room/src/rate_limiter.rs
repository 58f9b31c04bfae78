use std::time::{Duration, Instant};

/// Rate limiter of operations per second, with bursts. `full_at` is the time at which the full burst is available
/// again.
#[derive(Debug)]
pub struct RateLimiter {
    full_at: Instant,
}

impl RateLimiter {
    pub fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Takes one operation from a limit of `per_s` operations per second. If `per_s` is 0, there is no limit.
    ///
    /// `burst` is the time whose operations may be taken at once.
    ///
    /// Errors: the duration until the next operation is allowed.
    pub fn take(&mut self, now: Instant, per_s: u32, burst: Duration) -> Result<(), Duration> {
        if per_s == 0 {
            return Ok(());
        }
        let full_at = self.full_at.max(now) + Duration::from_secs(1) / per_s;
        match (full_at - now).checked_sub(burst) {
            None | Some(Duration::ZERO) => {
                self.full_at = full_at;
                Ok(())
            }
            Some(late) => Err(late),
        }
    }
}
