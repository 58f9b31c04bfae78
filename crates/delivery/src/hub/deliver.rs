//! Path of a publication to the sockets: one append per encoding, then one write per reader and turn.

use std::collections::BinaryHeap;

use millrace_protocol::{ChannelName, Epoch, Position, Publication};
use slab::Slab;

use super::{ChannelKey, Conn, ConnId, Group, Hub, Live, Wire};
use crate::cache::prefetch;
use crate::log::{Pool, SEGMENT_BYTES, WireLog};

/// Log size above which stuck readers no longer hold the log.
const GROWN_BYTES: usize = 4 * SEGMENT_BYTES;
/// Time in seconds after which a blocked reader that took no byte no longer holds a grown log.
const STUCK_S: u32 = 3;

impl Hub {
    /// Appends a publication to the logs of its channel. Nothing is written before [`Hub::flush`].
    ///
    /// Known offsets are ignored. After a jump in offsets or a new epoch, readers fetch the missing publications
    /// from history. `key` is the key of the last [`Output::Interest`], if the caller has it. Returns the number of
    /// readers that get the publication, now or when they have caught up; polls do not count.
    ///
    /// [`Output::Interest`]: super::Output::Interest
    pub fn deliver(
        &mut self,
        name: &ChannelName,
        key: Option<ChannelKey>,
        epoch: Epoch,
        publication: &Publication,
    ) -> usize {
        let before = Position { epoch, offset: publication.offset - 1 };
        let Some(key) = self.find(name, key, before) else { return 0 };
        let head = self.channels[key as usize].head;
        let is_known = head.is_some_and(|head| head.epoch == epoch && head.offset > before.offset);
        if !is_known && head != Some(before) {
            self.jump(key, before);
        }
        if !std::mem::replace(&mut self.channels[key as usize].heard, true) {
            self.attach_patterns(key, before, |_, _| true);
            if !self.channels.contains(key as usize) {
                return 0;
            }
        }
        let mut readers = 0;
        if !is_known {
            let Hub { config, channels, pool, .. } = &mut *self;
            let channel = &mut channels[key as usize];
            channel.head = Some(Position { epoch, offset: publication.offset });
            for Group { encoding, log, live, recovering, .. } in &mut channel.groups {
                let of_group = live.len() + recovering.len();
                if of_group == 0 {
                    log.restart(publication.offset + 1, pool);
                } else {
                    readers += of_group;
                    let encode = |out: &mut Vec<u8>| encoding.encode(out, name, epoch, publication);
                    log.append(&publication.key, config.log_bytes_max, pool, encode);
                }
            }
            self.mark_dirty(key);
        }
        // A page may have advanced the head before the publication arrived, but a page does not wake waiters.
        self.wake_waiters(key);
        readers
    }

    /// Prefetches a channel to which a publication is about to be delivered.
    pub fn expect(&self, key: Option<ChannelKey>) {
        if let Some(channel) = key.and_then(|key| self.channels.get(key.slot as usize)) {
            prefetch(channel);
        }
    }

    /// Moves the channel's head to `top`. Publications after `from` (the position known to the sender of this call)
    /// up to `top` will not arrive at this hub; readers fetch them from history.
    pub fn moved(&mut self, name: &ChannelName, key: Option<ChannelKey>, from: Position, top: Position) {
        let Some(key) = self.find(name, key, from) else { return };
        if !std::mem::replace(&mut self.channels[key as usize].heard, true) {
            self.attach_patterns(key, from, |_, _| true);
            if !self.channels.contains(key as usize) {
                return;
            }
        }
        let head = self.channels[key as usize].head;
        if head.is_none_or(|head| head.epoch != top.epoch || head.offset < top.offset) {
            self.jump(key, top);
            self.wake_waiters(key);
        }
    }

    /// Returns an open channel, or opens it if a pattern matches its name. `before` is the position of the new
    /// readers.
    fn find(&mut self, name: &ChannelName, key: Option<ChannelKey>, before: Position) -> Option<u32> {
        self.note_for_opening(name, before);
        let by_key = key.filter(|key| self.channels.get(key.slot as usize).is_some_and(|c| c.serial == key.serial));
        match by_key.map(|key| key.slot).or_else(|| self.by_name.get(name).copied()) {
            Some(key) => Some(key),
            None if self.patterns.matches(name.as_str()) => Some(self.open(name, Some(before))),
            None => None,
        }
    }

    /// Returns true if the logs exceed their limit. The caller must then call [`Hub::flush`] before it delivers
    /// more.
    pub fn is_full(&self) -> bool {
        self.pool.used_bytes() > self.config.logs_bytes_max
    }

    /// Writes everything delivered since the last turn: each reader that is not blocked gets everything it is
    /// behind. Then drops log frames until the logs of the blocked readers fit [`Config::logs_bytes_max`].
    ///
    /// Cost: per reader its cursor and its socket.
    ///
    /// [`Config::logs_bytes_max`]: super::Config::logs_bytes_max
    pub fn flush(&mut self, wire: &mut impl Wire) {
        let dirty = std::mem::take(&mut self.dirty);
        self.expect_readers(&dirty, wire);
        // Readers whose frames have a per-reader head, and readers that the publications of one turn have outrun.
        let mut one_by_one: Vec<ConnId> = Vec::new();
        for &key in &dirty {
            let Hub { conns, channels, now_s, .. } = &mut *self;
            let channel = &mut channels[key as usize];
            channel.dirty = false;
            for Group { encoding, log, live, .. } in &mut channel.groups {
                for reader in live {
                    let conn = &mut conns[reader.conn as usize];
                    if conn.blocked {
                        continue;
                    }
                    if encoding.has_reader_head() || reader.cursor < log.first() {
                        one_by_one.push(ConnId { slot: reader.conn, generation: conn.generation });
                    } else {
                        send_behind(log, reader, conn, *now_s, wire);
                    }
                }
            }
        }
        for id in one_by_one {
            self.catch_up(id, wire);
        }
        for &key in &dirty {
            let Hub { conns, channels, now_s, pool, .. } = &mut *self;
            if let Some(channel) = channels.get_mut(key as usize) {
                channel.groups.iter_mut().for_each(|group| group.trim(conns, *now_s, pool));
            }
        }
        // Catching up may have marked channels that were just trimmed; they need no second turn.
        if self.dirty.is_empty() {
            self.dirty = dirty;
            self.dirty.clear();
        }
        if self.is_full() {
            self.enforce_log_limit();
        }
    }

    /// Prefetches the connections of channels that have exactly one reader.
    fn expect_readers(&self, dirty: &[u32], wire: &impl Wire) {
        for &key in dirty {
            if let [Group { live, .. }] = &*self.channels[key as usize].groups
                && let [reader] = &**live
            {
                prefetch(&self.conns[reader.conn as usize]);
                wire.expect(reader.conn);
            }
        }
    }

    /// Drops the oldest segments of the longest logs until one eighth of the limit is free. Readers that are not
    /// blocked were already sent everything. Blocked readers notice the loss when they can write again, and read
    /// history.
    ///
    /// Cost: O(channels) per call; each call frees one eighth of the limit.
    #[cold]
    fn enforce_log_limit(&mut self) {
        let Hub { config, channels, pool, .. } = &mut *self;
        let goal = config.logs_bytes_max - config.logs_bytes_max / 8;
        let groups =
            channels.iter().flat_map(|(key, channel)| channel.groups.iter().enumerate().map(move |g| (key, g)));
        let mut longest: BinaryHeap<_> = groups.map(|(key, (i, group))| (group.log.bytes(), key, i)).collect();
        while pool.used_bytes() > goal
            && let Some((_, key, i)) = longest.pop()
        {
            let log = &mut channels[key].groups[i].log;
            log.drop_oldest_segment(pool);
            longest.push((log.bytes(), key, i));
        }
    }

    /// Continues the channel at `head`, which does not follow the previous head: an epoch ended, or publications
    /// were lost on the way to this hub. Readers that miss publications fetch them from history.
    pub(super) fn jump(&mut self, key: u32, head: Position) {
        let Hub { channels, pool, .. } = &mut *self;
        let channel = &mut channels[key as usize];
        let same_epoch = channel.epoch() == head.epoch;
        let mut lapsed = Vec::new();
        for group in &mut channel.groups {
            group.log.restart(head.offset + 1, pool);
            let missing = |reader: &&Live| !same_epoch || reader.cursor <= head.offset;
            lapsed.extend(group.live.iter().filter(missing).map(|reader| (reader.conn, reader.slot)));
            for reader in &mut group.recovering {
                reader.hold = head.offset;
            }
        }
        for &(conn, slot) in &lapsed {
            self.lapse(conn, slot);
        }
        self.channels[key as usize].head = Some(head);
        for (conn, _) in lapsed {
            self.ask(conn);
        }
    }

    /// Schedules a trim after a reader was added, removed or moved, because frames that only this reader needed may
    /// be dropped. If the logs are empty, this does nothing: otherwise many readers that join or leave one by one
    /// would cost quadratic time.
    pub(super) fn mark_moved(&mut self, key: u32) {
        if self.channels[key as usize].groups.iter().any(|group| group.log.bytes() > 0) {
            self.mark_dirty(key);
        }
    }

    pub(super) fn mark_dirty(&mut self, key: u32) {
        let channel = &mut self.channels[key as usize];
        if !channel.dirty {
            channel.dirty = true;
            self.dirty.push(key);
        }
    }
}

impl Group {
    /// Keeps the frames that the slowest reader still needs, within the log's own limit. A log that has grown is
    /// not kept for readers that took nothing for [`STUCK_S`]; when they take bytes again, they read the missing
    /// publications from history.
    fn trim(&mut self, conns: &Slab<Conn>, now_s: u32, pool: &mut Pool) {
        let recovering = self.recovering.iter().map(|reader| reader.hold + 1).min().unwrap_or(u64::MAX);
        let mut wanted = self.live.iter().map(|reader| reader.cursor).min().unwrap_or(u64::MAX).min(recovering);
        if wanted < self.log.next() && self.log.bytes() > GROWN_BYTES {
            let moves = |reader: &&Live| {
                let conn = &conns[reader.conn as usize];
                !conn.blocked || now_s.saturating_sub(conn.wrote_s) < STUCK_S
            };
            let moving = self.live.iter().filter(moves).map(|reader| reader.cursor);
            wanted = moving.min().unwrap_or(u64::MAX).min(recovering);
        }
        self.log.trim(wanted, pool);
    }
}

/// Sends a live reader everything it is behind, or as much as its socket takes. The rest of a partially sent frame
/// goes to `Conn::out`, so a cursor always stands between two frames.
pub(super) fn send_behind(log: &WireLog, reader: &mut Live, conn: &mut Conn, now_s: u32, wire: &mut impl Wire) {
    let id = ConnId { slot: reader.conn, generation: conn.generation };
    while let Some(run) = log.run(reader.cursor) {
        let taken = wire.write(id, run.bytes);
        if taken > 0 {
            conn.wrote_s = now_s;
        }
        if taken < run.bytes.len() {
            let (next, whole) = log.split(&run, taken);
            conn.out.push(&run.bytes[taken..whole]);
            conn.block(now_s);
            reader.cursor = next;
            return;
        }
        reader.cursor = run.end;
    }
    // No reader needs superseded frames at the end of a `latest` log.
    reader.cursor = reader.cursor.max(log.next());
}
