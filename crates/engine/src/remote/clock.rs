use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The broker's time, estimated from this node's clock and the times that the broker reports.
pub(crate) struct Clock {
    local_ms: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Broker's time minus local time.
    offset_ms: AtomicI64,
    /// Round-trip time of the sample in use. It grows with each rejected sample, so that clock drift is followed.
    round_trip_us: AtomicU64,
}

impl Clock {
    pub fn new(local_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { local_ms: Box::new(local_ms), offset_ms: AtomicI64::new(0), round_trip_us: AtomicU64::new(u64::MAX) }
    }

    pub fn now_ms(&self) -> u64 {
        (self.local_ms)().saturating_add_signed(self.offset_ms.load(Relaxed))
    }

    /// Adds a sample: the broker reported this time within the round trip that ends now. A sample with a shorter round
    /// trip is more exact. A broker clock that was set to another time is followed at once.
    pub fn set(&self, broker_ms: u64, round_trip: Duration) {
        let round_trip_us = round_trip.as_micros() as u64;
        let then_ms = (self.local_ms)().saturating_sub(round_trip_us / 2000);
        let offset_ms = broker_ms.wrapping_sub(then_ms) as i64;
        let best_us = self.round_trip_us.load(Relaxed);
        let is_off = (offset_ms - self.offset_ms.load(Relaxed)).unsigned_abs() > round_trip_us.div_ceil(1000) + 1;
        if round_trip_us <= best_us || is_off {
            self.offset_ms.store(offset_ms, Relaxed);
            self.round_trip_us.store(round_trip_us, Relaxed);
        } else {
            self.round_trip_us.store(best_us + best_us / 16 + 1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn clock_uses_answer_with_shortest_round_trip() {
        let ours = Arc::new(AtomicU64::new(1_000_000));
        let clock = Clock::new({
            let ours = ours.clone();
            move || ours.load(Relaxed)
        });
        assert_eq!(clock.now_ms(), 1_000_000);
        clock.set(5_000_000, Duration::from_millis(2));
        assert_eq!(clock.now_ms(), 5_000_001);
        clock.set(5_000_030, Duration::from_millis(60));
        assert_eq!(clock.now_ms(), 5_000_001, "a slow answer that agrees says nothing new");
        ours.fetch_add(7, Relaxed);
        assert_eq!(clock.now_ms(), 5_000_008);
        clock.set(4_000_000, Duration::from_millis(60));
        assert_eq!(clock.now_ms(), 4_000_030, "the broker's clock was set");
    }
}
