//! Waiting between attempts: uniform in `[0, min(max, base * 2^attempt))`, so that many clients never come back at once.
//! Source: "Exponential Backoff And Jitter", AWS Architecture Blog, "full jitter".

use std::time::Duration;

use crate::chance::Chance;

#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    attempts: u32,
    chance: Chance,
}

impl Backoff {
    pub fn new(base: Duration, max: Duration, chance: Chance) -> Self {
        Self { base, max, attempts: 0, chance }
    }

    /// How long to wait before the next attempt.
    pub fn next_wait(&mut self) -> Duration {
        let ceiling = self.base.saturating_mul(1 << self.attempts.min(20)).min(self.max);
        self.attempts += 1;
        ceiling.mul_f64(self.chance.unit())
    }

    /// Attempts since the last success.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    pub fn succeeded(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_spread_out_and_stay_bounded() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2), Chance::from_seed(1));
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
}
