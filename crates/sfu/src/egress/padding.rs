use std::time::{Duration, Instant};

/// Padding up to the estimate of a client that estimates the bandwidth itself (REMB).
///
/// Such a client raises its estimate at most to a multiple of what it receives. Without padding, a receiver of a small
/// layer would never reach the estimate that a better layer needs. Padding never exceeds the client's own estimate, and
/// ends when the estimate falls or has not risen for a while.
#[derive(Debug)]
pub struct Padding {
    /// Bytes that may be sent now; negative after media above the estimate.
    budget: f64,
    updated: Instant,
    /// Estimate in bit/s that counts as a rise when exceeded by `RISE_MIN`, and the time since which it was not.
    mark: f64,
    marked: Instant,
}

/// Interval at which padding is sent.
const INTERVAL: Duration = Duration::from_millis(20);
/// Limits of the budget in bytes: what a pause may save, and what media above the estimate may use in advance.
const BUDGET_MAX: f64 = 4000.0;
const BUDGET_MIN: f64 = -30_000.0;
const RISE_MIN: f64 = 1.05;
const FALL_MAX: f64 = 0.95;
/// Maximum time without a rise of the estimate.
const RISE_TIMEOUT: Duration = Duration::from_secs(5);

impl Padding {
    pub fn new(estimate: f64, now: Instant) -> Self {
        Self { budget: 0.0, updated: now, mark: estimate, marked: now }
    }

    /// Returns when padding is due.
    pub fn timeout(&self) -> Instant {
        self.updated + INTERVAL
    }

    /// Counts a packet that was sent, whether it is media or padding.
    pub fn count(&mut self, bytes: usize) {
        self.budget = (self.budget - bytes as f64).max(BUDGET_MIN);
    }

    /// Returns whether a padding packet may be sent now.
    pub fn is_due(&self) -> bool {
        self.budget > 0.0
    }

    /// Returns the highest estimate so far, in steps of `RISE_MIN`.
    pub fn peak(&self) -> f64 {
        self.mark
    }

    /// Handles the passing of time. Returns false if padding must end.
    pub fn advance(&mut self, estimate: f64, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.updated);
        self.budget = (self.budget + estimate / 8.0 * since.as_secs_f64()).min(BUDGET_MAX);
        self.updated = now;
        if estimate > RISE_MIN * self.mark {
            (self.mark, self.marked) = (estimate, now);
        }
        estimate >= FALL_MAX * self.mark && now.saturating_duration_since(self.marked) < RISE_TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Advances padding in steps of its interval with these estimates. Returns the bytes sent in packets of 1,000
    /// bytes, and whether padding continues after the last step.
    fn run(padding: &mut Padding, estimates: &[f64], media: usize) -> (usize, bool) {
        let (mut bytes, mut continues) = (0, true);
        for estimate in estimates {
            padding.count(media);
            let now = padding.timeout();
            continues = padding.advance(*estimate, now);
            while continues && padding.is_due() {
                padding.count(1000);
                bytes += 1000;
            }
        }
        (bytes, continues)
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn padding_fills_up_to_estimate() {
        // 400 kbit/s are 1,000 bytes per interval, 50 per second.
        let begun = || Padding::new(4e5, Instant::now());
        assert_eq!(run(&mut begun(), &[4e5; 100], 0), (100_000, true));
        assert_eq!(run(&mut begun(), &[4e5; 100], 600).0, 40_000, "media count");
        assert_eq!(run(&mut begun(), &[4e5; 100], 1100).0, 0, "media alone exceed the estimate");
        let mut late = begun();
        assert!(late.advance(4e5, late.timeout() + Duration::from_secs(3)));
        assert_eq!(late.budget, BUDGET_MAX, "a late timer causes no burst");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn padding_ends_when_estimate_falls_or_stays() {
        let begun = || Padding::new(4e5, Instant::now());
        assert!(run(&mut begun(), &[4e5; 249], 0).1);
        assert!(!run(&mut begun(), &[4e5; 250], 0).1, "no rise within five seconds");
        assert!(!run(&mut begun(), &[3.7e5], 0).1, "it fell");
        let mut risen = begun();
        assert_eq!((run(&mut risen, &[4.5e5, 4.1e5], 0).1, risen.peak()), (false, 4.5e5), "it fell after a rise");
        let rising: Vec<f64> = (0..1000).map(|step| 4e5 * 1.0016_f64.powi(step)).collect();
        assert!(run(&mut begun(), &rising, 0).1, "8 % per second");
    }
}
