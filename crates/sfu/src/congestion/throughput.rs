use std::collections::VecDeque;

/// Throughput of the recent past, as received.
#[derive(Debug, Default)]
pub struct Throughput {
    arrivals: VecDeque<(i64, usize)>,
    bytes: usize,
}

const THROUGHPUT_US: i64 = 500_000;
/// Minimum time span for a usable rate.
const THROUGHPUT_MIN_US: i64 = 100_000;
/// Maximum number of packets kept, enough for 150 Mbit/s during half a second.
const THROUGHPUT_PACKETS: usize = 8192;

impl Throughput {
    pub fn update(&mut self, arrived_us: i64, bytes: usize) {
        // The clock has jumped, or sending was paused: start again.
        if self
            .arrivals
            .back()
            .is_some_and(|(last, _)| arrived_us.saturating_sub(*last).unsigned_abs() > THROUGHPUT_US as u64)
        {
            *self = Self::default();
        }
        self.arrivals.push_back((arrived_us, bytes));
        self.bytes += bytes;
        let is_old = |(at, _): &(i64, usize)| arrived_us.saturating_sub(*at) > THROUGHPUT_US;
        while self.arrivals.len() > THROUGHPUT_PACKETS || self.arrivals.front().is_some_and(is_old) {
            self.bytes -= self.arrivals.pop_front().map_or(0, |(_, bytes)| bytes);
        }
    }

    pub fn bits_per_s(&self) -> Option<f64> {
        let ((first, head), (last, _)) = (self.arrivals.front()?, self.arrivals.back()?);
        let span = last - first;
        (span >= THROUGHPUT_MIN_US).then(|| (self.bytes - head) as f64 * 8e6 / span as f64)
    }
}
