use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Event in the life of a request, as this node has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEvent {
    Queued,
    Sent,
    Answered,
    /// The device has confirmed or answered after the time to live.
    Late,
    /// The device has sent another answer than before.
    Conflict,
    /// The device had too many requests.
    TooMany,
}

impl RequestEvent {
    pub const ALL: [Self; 6] = [Self::Queued, Self::Sent, Self::Answered, Self::Late, Self::Conflict, Self::TooMany];

    /// Returns the label of the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Sent => "sent",
            Self::Answered => "answered",
            Self::Late => "late",
            Self::Conflict => "conflict",
            Self::TooMany => "too_many",
        }
    }
}

/// Counters of a node. All shards add.
#[derive(Debug, Default)]
pub struct Metrics([AtomicU64; RequestEvent::ALL.len()]);

impl Metrics {
    pub(crate) fn count(&self, event: RequestEvent) {
        self.0[event as usize].fetch_add(1, Relaxed);
    }

    pub fn events(&self, event: RequestEvent) -> u64 {
        self.0[event as usize].load(Relaxed)
    }
}
