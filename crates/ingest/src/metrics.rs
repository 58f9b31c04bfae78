use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use millrace_protocol::Code;

use crate::filter::Reason;

/// Result of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointResult {
    Live,
    Late,
    Duplicate,
    /// Dropped: its time is in the future.
    Future,
    /// Dropped: its position is too far from the one before.
    Jump,
    /// Dropped: it has no value.
    Empty,
}

impl PointResult {
    pub const ALL: [Self; 6] = [Self::Live, Self::Late, Self::Duplicate, Self::Future, Self::Jump, Self::Empty];

    /// Returns the label of the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Late => "late",
            Self::Duplicate => "duplicate",
            Self::Future => "future",
            Self::Jump => "jump",
            Self::Empty => "empty",
        }
    }
}

impl From<Reason> for PointResult {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Future => Self::Future,
            Reason::Jump => Self::Jump,
            Reason::Empty => Self::Empty,
        }
    }
}

/// Result of a request or datagram of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestResult {
    Accepted,
    /// No valid token, or no permission.
    Unauthorized,
    /// Not in the format of its endpoint, or without an id of a device.
    Malformed,
    /// Over a limit.
    Limited,
    /// Any other reason, such as an engine that does not answer.
    Failed,
}

impl RequestResult {
    pub const ALL: [Self; 5] = [Self::Accepted, Self::Unauthorized, Self::Malformed, Self::Limited, Self::Failed];

    /// Returns the label of the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Unauthorized => "unauthorized",
            Self::Malformed => "malformed",
            Self::Limited => "limited",
            Self::Failed => "failed",
        }
    }

    /// Returns the result of a request that is refused with this code.
    pub fn of(code: Code) -> Self {
        match code {
            Code::Unauthorized | Code::Forbidden => Self::Unauthorized,
            Code::BadRequest | Code::BadJson | Code::BadChannel => Self::Malformed,
            Code::TooLarge | Code::TooMany | Code::RateLimited | Code::Timeout => Self::Limited,
            _ => Self::Failed,
        }
    }
}

/// Counters of a node. All shards add.
#[derive(Debug, Default)]
pub struct Metrics {
    points: [AtomicU64; PointResult::ALL.len()],
    requests: [AtomicU64; RequestResult::ALL.len()],
}

impl Metrics {
    pub(crate) fn count_point(&self, result: PointResult) {
        self.points[result as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn count_request(&self, result: RequestResult) {
        self.requests[result as usize].fetch_add(1, Relaxed);
    }

    pub fn points(&self, result: PointResult) -> u64 {
        self.points[result as usize].load(Relaxed)
    }

    pub fn requests(&self, result: RequestResult) -> u64 {
        self.requests[result as usize].load(Relaxed)
    }
}
