use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use millrace_driving::{Event, Kind};

/// Counters of this node, for the metrics of the server. Only the thread of the service adds.
#[derive(Debug, Default)]
pub struct Metrics {
    events: [AtomicU64; Kind::ALL.len()],
    pub records: AtomicU64,
    pub drives: AtomicU64,
    /// Cars that this node follows.
    pub cars: AtomicU64,
    /// Records of cars that are not followed because there are too many.
    pub unfollowed: AtomicU64,
    /// True while this node follows the cars.
    pub is_following: AtomicBool,
}

impl Metrics {
    pub(super) fn count(&self, event: &Event) {
        self.events[event.kind as usize].fetch_add(1, Relaxed);
    }

    /// Returns the number of published events of each kind, with the name of the kind.
    pub fn events(&self) -> impl Iterator<Item = (String, u64)> {
        Kind::ALL.into_iter().map(move |kind| {
            let name = serde_json::to_value(kind).ok().and_then(|name| name.as_str().map(str::to_owned));
            (name.unwrap_or_default(), self.events[kind as usize].load(Relaxed))
        })
    }
}
