use std::time::{Duration, Instant};

/// Rate limiter of operations per second, with bursts. `whole` is the time at which the full burst is available
/// again.
#[derive(Debug)]
pub struct RateLimiter {
    whole: Instant,
}

impl RateLimiter {
    pub fn new(now: Instant) -> Self {
        Self { whole: now }
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
        let whole = self.whole.max(now) + Duration::from_secs(1) / per_s;
        match (whole - now).checked_sub(burst) {
            None | Some(Duration::ZERO) => {
                self.whole = whole;
                Ok(())
            }
            Some(late) => Err(late),
        }
    }
}
