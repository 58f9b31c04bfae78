use std::time::{Duration, Instant};

/// So many per second, and at once as many as come in a while: when it will be whole again.
#[derive(Debug)]
pub struct Allowance {
    whole: Instant,
}

impl Allowance {
    pub fn new(now: Instant) -> Self {
        Self { whole: now }
    }

    /// Takes one. 0 per second is no limit.
    ///
    /// Errors: after how long there will be one.
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
