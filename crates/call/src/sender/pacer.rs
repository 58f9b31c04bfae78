use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// A packet that waits to be sent.
#[derive(Debug)]
pub enum Queued {
    Media { sequence: u16, time: u32, marker: bool, payload: Vec<u8> },
    Retransmission { sequence: u16 },
    Protection { payload: Vec<u8> },
}

impl Queued {
    fn bytes(&self) -> usize {
        match self {
            Queued::Media { payload, .. } | Queued::Protection { payload } => payload.len(),
            Queued::Retransmission { .. } => 0,
        }
    }
}

/// Spreads the packets of a frame over time. Repair comes before the video.
#[derive(Debug)]
pub struct Pacer {
    queue: VecDeque<Queued>,
    bytes: usize,
    next_at: Instant,
}

/// Packets leave at this multiple of the target rate, so that a keyframe leaves in time.
const FACTOR: f64 = 2.5;
/// Lowest rate of the pacer, in bit/s: one packet in 32 ms.
const RATE_MIN: f64 = 300_000.0;

impl Pacer {
    pub fn new(now: Instant) -> Self {
        Self { queue: VecDeque::new(), bytes: 0, next_at: now }
    }

    pub fn push(&mut self, queued: Queued) {
        self.bytes += queued.bytes();
        self.queue.push_back(queued);
    }

    pub fn push_first(&mut self, queued: Queued) {
        self.bytes += queued.bytes();
        self.queue.push_front(queued);
    }

    /// Returns the next packet if it is due.
    pub fn pop(&mut self, now: Instant) -> Option<Queued> {
        if self.next_at > now {
            return None;
        }
        let queued = self.queue.pop_front()?;
        self.bytes -= queued.bytes();
        Some(queued)
    }

    /// Counts bytes that were sent now.
    pub fn count(&mut self, bytes: usize, bits_per_s: u64, now: Instant) {
        let rate = (FACTOR * bits_per_s as f64).max(RATE_MIN);
        self.next_at = self.next_at.max(now) + Duration::from_secs_f64(bytes as f64 * 8.0 / rate);
    }

    /// Returns when the next packet is due, if one waits.
    pub fn timeout(&self) -> Option<Instant> {
        (!self.queue.is_empty()).then_some(self.next_at)
    }

    /// Returns how long the waiting packets take at the target rate.
    pub fn backlog(&self, bits_per_s: u64) -> Duration {
        Duration::from_secs_f64(self.bytes as f64 * 8.0 / bits_per_s.max(1) as f64)
    }
}
