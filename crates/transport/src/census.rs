use std::{rc::Rc, sync::atomic::Ordering::Relaxed};

use millrace_delivery::Memory;

use crate::Shard;

/// So many connections are looked at each second, or as many as it takes to have seen all within a minute.
const SLOTS_PER_S: usize = 256;
const SECONDS_MAX: usize = 60;

/// Counts what a shard holds. Its connections are looked at a part each second: all at once would cost a large node a second's work, and make
/// everybody wait for it.
#[derive(Default)]
pub struct Census {
    /// The first that was not looked at yet.
    slot: usize,
    connections: Memory,
    sockets: usize,
}

impl Census {
    /// Once a second.
    pub fn go_on(&mut self, shard: &Rc<Shard>) {
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
            let connections = own.connections + shared.connections + sockets + shard.sockets().shared_bytes();
            metrics.memory_out.store(own.out as u64, Relaxed);
            metrics.memory_connections.store(connections as u64, Relaxed);
        }
    }
}
