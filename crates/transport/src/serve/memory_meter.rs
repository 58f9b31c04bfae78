//! Measures the memory of a shard, a part of its connections per second.

use std::{rc::Rc, sync::atomic::Ordering::Relaxed};

use millrace_delivery::Memory;

use crate::Shard;

/// Minimum number of slots counted per second. A large shard counts more, so that a full count takes about
/// `SECONDS_MAX` at most.
const SLOTS_PER_S: usize = 256;
/// Maximum duration of a full count, in seconds.
const SECONDS_MAX: usize = 60;

/// Measures the memory of a shard. Each second it counts a part of the connections. Counting all at once would take
/// a large node about a second, and block all its clients.
#[derive(Default)]
pub struct MemoryMeter {
    /// First slot that was not counted yet.
    slot: usize,
    connections: Memory,
    sockets: usize,
}

impl MemoryMeter {
    /// Counts the next part of the connections and updates the metrics. Call it once per second. `more`: memory of
    /// connections that is not held by the shard's sockets, in bytes.
    pub fn count_next(&mut self, shard: &Rc<Shard>, more: impl FnOnce() -> usize) {
        let slots = shard.with(|hub, sockets| hub.slots().max(sockets.slots()));
        let part = self.slot..slots.min(self.slot + SLOTS_PER_S.max(slots / SECONDS_MAX));
        self.slot = part.end;
        let (shared, channels) = shard.with(|hub, sockets| {
            hub.count(part.clone(), &mut self.connections);
            self.sockets += sockets.bytes_of(part);
            (hub.shared_memory(), hub.channel_count())
        });
        let metrics = &shard.metrics;
        metrics.channels.store(channels as u64, Relaxed);
        metrics.memory_logs.store(shared.logs as u64, Relaxed);
        metrics.memory_spare.store(shared.spare as u64, Relaxed);
        if self.slot >= slots {
            let Self { connections: own, sockets, .. } = std::mem::take(self);
            let connections = own.connections + shared.connections + sockets + shard.sockets().shared_bytes() + more();
            let metrics = &shard.socket_metrics;
            metrics.memory_out.store(own.out as u64, Relaxed);
            metrics.memory_connections.store(connections as u64, Relaxed);
        }
    }
}
