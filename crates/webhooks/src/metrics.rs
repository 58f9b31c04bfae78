//! Counters of events, for the metrics of the server.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::event::EventType;

/// End of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Delivered,
    /// The event has become a dead letter.
    Dead,
}

impl Outcome {
    pub const ALL: [Outcome; 2] = [Outcome::Delivered, Outcome::Dead];

    /// Returns the label `result` of the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Delivered => "delivered",
            Outcome::Dead => "dead",
        }
    }
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestResult {
    Acknowledged,
    /// No answer, or a status that asks for another attempt.
    Failed,
    /// A status that refuses the batch for good.
    Rejected,
}

impl RequestResult {
    pub const ALL: [RequestResult; 3] = [RequestResult::Acknowledged, RequestResult::Failed, RequestResult::Rejected];

    /// Returns the label `result` of the metrics.
    pub fn name(self) -> &'static str {
        match self {
            RequestResult::Acknowledged => "acknowledged",
            RequestResult::Failed => "failed",
            RequestResult::Rejected => "rejected",
        }
    }
}

/// Counters of this node. Any thread may add.
#[derive(Debug, Default)]
pub struct Metrics {
    events: [[AtomicU64; Outcome::ALL.len()]; EventType::ALL.len()],
    requests: [AtomicU64; RequestResult::ALL.len()],
    /// Publications that left history before they were read.
    pub dropped: AtomicU64,
    /// Dead letters that were deleted because there were too many.
    pub letters_dropped: AtomicU64,
    /// Channels that could not be registered.
    pub unregistered: AtomicU64,
    /// Number of dead letters, as far as the dispatcher knows.
    pub letters: AtomicU64,
    /// Number of logs that the dispatcher reads.
    pub logs: AtomicU64,
    /// Time of the oldest event that is not acknowledged, in milliseconds since 1970; 0 if there is none.
    pub oldest_ms: AtomicU64,
    /// True while this node sends the events.
    pub is_dispatching: AtomicBool,
    /// True while the last request has failed, so that its batch is repeated.
    pub is_failing: AtomicBool,
}

impl Metrics {
    pub fn count(&self, event_type: EventType, outcome: Outcome) {
        self.events[event_type as usize][outcome as usize].fetch_add(1, Relaxed);
    }

    pub fn events(&self, event_type: EventType, outcome: Outcome) -> u64 {
        self.events[event_type as usize][outcome as usize].load(Relaxed)
    }

    pub fn count_request(&self, result: RequestResult) {
        self.requests[result as usize].fetch_add(1, Relaxed);
    }

    pub fn requests(&self, result: RequestResult) -> u64 {
        self.requests[result as usize].load(Relaxed)
    }

    /// Returns the age of the oldest event that is not acknowledged.
    pub fn lag_ms(&self, now_ms: u64) -> u64 {
        match self.oldest_ms.load(Relaxed) {
            0 => 0,
            oldest_ms => now_ms.saturating_sub(oldest_ms),
        }
    }
}
