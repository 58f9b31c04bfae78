//! What a hub holds: at once, or a part at a time, because a look at a million connections takes longer than anybody should wait.

use std::ops::Range;

use super::{Conn, ConnId, Hub, Live, PatternRef, ReaderRef};

/// Bytes that a hub holds, by what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Frames that readers are behind in.
    pub logs: usize,
    /// Room for frames that nobody is behind in now: bounded, and used again by the next log that fills.
    pub spare: usize,
    /// Bytes that wait for single connections.
    pub out: usize,
    /// Connections and their cursors.
    pub connections: usize,
}

impl Hub {
    /// What this hub holds. Cost: O(connections + channels).
    pub fn memory(&self) -> Memory {
        let mut memory = self.shared_memory();
        self.count(0..self.slots(), &mut memory);
        let groups = self.channels.iter().flat_map(|(_, channel)| &channel.groups);
        let logs: usize = groups.map(|group| group.log.bytes()).sum();
        debug_assert_eq!(memory.logs, logs, "no byte is counted twice");
        memory
    }

    /// Connections and channels lie in the slots below this.
    pub fn slots(&self) -> usize {
        self.conns.capacity().max(self.channels.capacity())
    }

    /// Adds what is held for the connections and channels in these slots. Cost: O(slots).
    pub fn count(&self, slots: Range<usize>, memory: &mut Memory) {
        for slot in slots {
            if let Some(conn) = self.conns.get(slot) {
                memory.out += conn.out.bytes.capacity();
                memory.connections += conn.readers.capacity() * size_of::<Option<ReaderRef>>()
                    + conn.patterns.capacity() * size_of::<Option<PatternRef>>();
            }
            if let Some(channel) = self.channels.get(slot) {
                let cursors: usize = channel.groups.iter().map(|group| group.live.capacity()).sum();
                memory.connections += cursors * size_of::<Live>();
            }
        }
    }

    /// What they have in common, logs among it. Cost: O(seconds of a heartbeat).
    pub fn shared_memory(&self) -> Memory {
        let due: usize = self.due.values().map(|ids| ids.capacity() * size_of::<ConnId>()).sum();
        let connections = self.conns.capacity() * size_of::<Conn>() + due;
        Memory { logs: self.pool.used_bytes(), spare: self.pool.spare_bytes(), out: 0, connections }
    }
}
