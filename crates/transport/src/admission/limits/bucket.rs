use std::time::Duration;

/// A rate per second, and the burst: as many as the rate allows in this time may come at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub per_s: u64,
    pub burst: Duration,
}

/// Token bucket in eight bytes. It stores when the bucket will be full again, in nanoseconds of any monotonic clock.
///
/// It is the "virtual scheduling" form of the generic cell rate algorithm. Source: ITU-T I.371, annex A.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    full_ns: u64,
}

impl Rate {
    /// Creates a rate. Returns `None`, which means no limit, for 0.
    pub fn of(per_s: u64, burst: Duration) -> Option<Self> {
        (per_s > 0).then_some(Self { per_s, burst })
    }

    fn cost_ns(self, count: u64) -> u64 {
        u64::try_from(u128::from(count) * 1_000_000_000 / u128::from(self.per_s)).unwrap_or(u64::MAX)
    }

    fn burst_ns(self) -> u64 {
        u64::try_from(self.burst.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Bucket {
    /// Takes `count` tokens, or none. A count above the size of the bucket needs a full bucket, and the bucket then
    /// takes longer to refill.
    ///
    /// Errors: the time after which the tokens will be available.
    pub fn take(&mut self, count: u64, rate: Rate, now_ns: u64) -> Result<(), Duration> {
        self.check(count, rate, now_ns)?;
        self.owe(count, rate, now_ns);
        Ok(())
    }

    /// Checks whether [`Bucket::take`] would succeed.
    pub fn check(&self, count: u64, rate: Rate, now_ns: u64) -> Result<(), Duration> {
        let (debt_ns, burst_ns) = (self.full_ns.saturating_sub(now_ns), rate.burst_ns());
        let needed_ns = debt_ns.saturating_add(rate.cost_ns(count).min(burst_ns));
        match needed_ns.checked_sub(burst_ns) {
            None | Some(0) => Ok(()),
            Some(late_ns) => Err(Duration::from_nanos(late_ns)),
        }
    }

    /// Takes tokens without a check, for events that have already happened. Returns the time until the debt is paid.
    pub fn owe(&mut self, count: u64, rate: Rate, now_ns: u64) -> Duration {
        self.full_ns = self.full_ns.max(now_ns).saturating_add(rate.cost_ns(count));
        Duration::from_nanos((self.full_ns - now_ns).saturating_sub(rate.burst_ns()))
    }

    pub fn is_full(&self, now_ns: u64) -> bool {
        self.full_ns <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn rate(per_s: u64, burst_s: u64) -> Rate {
        Rate::of(per_s, Duration::from_secs(burst_s)).unwrap()
    }

    /// Returns the number of attempts at this time that get a token.
    fn taken(bucket: &mut Bucket, rate: Rate, attempts: usize, now_ns: u64) -> usize {
        (0..attempts).filter(|_| bucket.take(1, rate, now_ns).is_ok()).count()
    }

    #[test]
    fn bucket_refills_for_next_burst() {
        let (mut bucket, rate) = (Bucket::default(), rate(10, 2));
        assert_eq!(taken(&mut bucket, rate, 100, SECOND), 20);
        assert_eq!(bucket.take(1, rate, SECOND), Err(Duration::from_millis(100)));
        assert_eq!(taken(&mut bucket, rate, 100, 2 * SECOND), 10);
        // After any idle time, the bucket holds no more than one burst.
        assert!(!bucket.is_full(3 * SECOND));
        assert!(bucket.is_full(1000 * SECOND));
        assert_eq!(taken(&mut bucket, rate, 100, 1000 * SECOND), 20);
    }

    #[test]
    fn bucket_keeps_exact_long_term_rate() {
        let (mut bucket, rate) = (Bucket::default(), rate(7, 1));
        let total: usize = (0..1000).map(|tenth| taken(&mut bucket, rate, 5, tenth * SECOND / 10)).sum();
        assert!((700..=707).contains(&total), "{total}");
    }

    #[test]
    fn oversized_request_waits_for_full_bucket() {
        let (mut bucket, rate) = (Bucket::default(), rate(1000, 1));
        assert_eq!(bucket.take(5000, rate, 0), Ok(()));
        assert_eq!(bucket.take(1, rate, 0), Err(Duration::from_millis(4001)));
        assert_eq!(bucket.take(5000, rate, 4 * SECOND), Err(Duration::from_secs(1)));
        assert_eq!(bucket.take(5000, rate, 5 * SECOND), Ok(()));
    }

    #[test]
    fn debt_returns_wait_time() {
        let (mut bucket, rate) = (Bucket::default(), rate(100, 1));
        assert_eq!(bucket.owe(100, rate, 0), Duration::ZERO);
        assert_eq!(bucket.owe(50, rate, 0), Duration::from_millis(500));
        assert_eq!(bucket.owe(0, rate, SECOND / 2), Duration::ZERO);
        assert!(bucket.owe(u64::MAX, rate, SECOND).as_secs() > 1_000_000);
    }

    #[test]
    fn zero_disables_the_limit() {
        assert_eq!(Rate::of(0, Duration::from_secs(1)), None);
    }
}
