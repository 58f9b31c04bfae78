//! Counters of this node, for the metrics of the server.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Event in the life of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageEvent {
    Queued,
    Delivered,
    /// The subscription no longer existed.
    Gone,
    /// The push service refused the message, or every attempt has failed.
    Failed,
    /// The time to live ended first.
    Expired,
    /// Too many messages waited.
    Dropped,
    /// Another node or process had queued the message and has ended.
    TakenOver,
}

/// Result of a request to a push service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestResult {
    Accepted,
    /// `404` or `410`.
    Gone,
    /// `429`.
    Throttled,
    /// Another status below `500`.
    Refused,
    /// `5xx`.
    ServerError,
    /// No answer in time.
    NoAnswer,
}

/// Event in the life of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionEvent {
    Stored,
    /// The browser has ended it.
    Ended,
    /// The push service no longer knew it.
    Removed,
}

impl MessageEvent {
    pub const ALL: [Self; 7] =
        [Self::Queued, Self::Delivered, Self::Gone, Self::Failed, Self::Expired, Self::Dropped, Self::TakenOver];

    /// Returns the label of the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Delivered => "delivered",
            Self::Gone => "gone",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Dropped => "dropped",
            Self::TakenOver => "taken_over",
        }
    }
}

impl RequestResult {
    pub const ALL: [Self; 6] =
        [Self::Accepted, Self::Gone, Self::Throttled, Self::Refused, Self::ServerError, Self::NoAnswer];

    /// Returns the label of the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Gone => "gone",
            Self::Throttled => "throttled",
            Self::Refused => "refused",
            Self::ServerError => "server_error",
            Self::NoAnswer => "no_answer",
        }
    }
}

impl SubscriptionEvent {
    pub const ALL: [Self; 3] = [Self::Stored, Self::Ended, Self::Removed];

    /// Returns the label of the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Ended => "ended",
            Self::Removed => "removed",
        }
    }
}

/// Counters. Any thread may add.
#[derive(Debug, Default)]
pub struct Metrics {
    messages: [AtomicU64; MessageEvent::ALL.len()],
    requests: [AtomicU64; RequestResult::ALL.len()],
    subscriptions: [AtomicU64; SubscriptionEvent::ALL.len()],
}

impl Metrics {
    pub(crate) fn count_message(&self, event: MessageEvent) {
        self.messages[event as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn count_request(&self, result: RequestResult) {
        self.requests[result as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn count_subscription(&self, event: SubscriptionEvent) {
        self.subscriptions[event as usize].fetch_add(1, Relaxed);
    }

    pub fn messages(&self, event: MessageEvent) -> u64 {
        self.messages[event as usize].load(Relaxed)
    }

    pub fn requests(&self, result: RequestResult) -> u64 {
        self.requests[result as usize].load(Relaxed)
    }

    pub fn subscriptions(&self, event: SubscriptionEvent) -> u64 {
        self.subscriptions[event as usize].load(Relaxed)
    }
}
