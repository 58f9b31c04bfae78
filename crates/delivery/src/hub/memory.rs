//! Memory accounting of a hub. It can be counted at once, or in parts, because counting a million connections at
//! once would block the thread too long.

use std::ops::Range;

use super::{Conn, ConnId, Hub, Live, PatternRef, ReaderRef};

/// Memory of a hub in bytes, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Frames that at least one reader has not been sent yet.
    pub logs: usize,
    /// Spare room for frames: bounded, and reused by the next log that fills.
    pub spare: usize,
    /// Bytes queued for single connections.
    pub out: usize,
    /// Connections and their cursors.
    pub connections: usize,
}

impl Hub {
    /// Returns the memory of this hub. Cost: O(connections + channels).
    pub fn memory(&self) -> Memory {
        let mut memory = self.shared_memory();
        self.count(0..self.slots(), &mut memory);
        let groups = self.channels.iter().flat_map(|(_, channel)| &channel.groups);
        let logs: usize = groups.map(|group| group.log.bytes()).sum();
        debug_assert_eq!(memory.logs, logs, "no byte is counted twice");
        memory
    }

    /// Returns the number of slots: all connections and channels are in slots below it.
    pub fn slots(&self) -> usize {
        self.conns.capacity().max(self.channels.capacity())
    }

    /// Adds the memory of the connections and channels in these slots. Cost: O(slots).
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

    /// Returns the memory that belongs to no single slot, including the logs. Cost: O(seconds of a heartbeat).
    pub fn shared_memory(&self) -> Memory {
        let due: usize = self.due.values().map(|ids| ids.capacity() * size_of::<ConnId>()).sum();
        let connections = self.conns.capacity() * size_of::<Conn>() + due;
        Memory { logs: self.pool.used_bytes(), spare: self.pool.spare_bytes(), out: 0, connections }
    }
}
