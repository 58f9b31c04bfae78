//! The two channels of a peer: their connections, received lines, and queued data.

use std::time::Instant;

use millrace_delivery::ConnId;
use millrace_rtc::Lane;

use super::{AdmittedSession, Carrier, LINGER, PeerEvent, PeerId, Peers};

/// Maximum bytes kept from a client while reading is paused. SCTP has no way to stop the sender, so a client that sends
/// more is closed.
const INBOX_BYTES_MAX: usize = 256 * 1024;

impl Peers {
    /// Marks a channel as open. Returns the connecting client's state when the session channel first opens.
    pub fn open(&mut self, id: PeerId, lane: Lane) -> Option<AdmittedSession> {
        let entry = self.entry(id)?;
        match lane {
            Lane::Session => {
                entry.ends = None;
                entry.admitted.take()
            }
            Lane::Latest => {
                entry.has_latest = true;
                None
            }
        }
    }

    pub fn wants_latest(&mut self, id: PeerId) -> bool {
        let conns = [Lane::Session, Lane::Latest].map(|lane| self.conn(id, lane));
        self.entry(id).is_some_and(|entry| entry.has_latest) && matches!(conns, [Some(_), None])
    }

    pub fn connect(&mut self, id: PeerId, lane: Lane, conn: ConnId) {
        if let Some(entry) = self.entry(id) {
            entry.lanes[lane as usize].conn = Some(conn);
        }
    }

    pub fn conn(&self, id: PeerId, lane: Lane) -> Option<ConnId> {
        let entry = self.entries.get(id.slot as usize).filter(|entry| entry.id == id)?;
        entry.lanes[lane as usize].conn
    }

    pub fn incoming_bytes(&self, id: PeerId) -> usize {
        let entry = self.entries.get(id.slot as usize).filter(|entry| entry.id == id);
        entry.map_or(0, |entry| entry.incoming.len())
    }

    /// Pauses or resumes the reading of a peer's data.
    pub fn watch(&mut self, id: PeerId, read: bool) {
        let Some(entry) = self.entry(id) else { return };
        let begins = read && !std::mem::replace(&mut entry.is_read, read);
        if begins && !entry.incoming.is_empty() {
            self.events.push_back((id, PeerEvent::Resume));
            self.sender.wake();
        }
    }

    /// Appends received data and returns its whole lines, or `None` while reading is paused.
    ///
    /// Errors: the session's connection, if its line is longer than `max`, or if too much arrives while reading is
    /// paused.
    pub fn take_lines(&mut self, id: PeerId, data: Vec<u8>, max: usize) -> Result<Option<(ConnId, Vec<u8>)>, ConnId> {
        let Some(entry) = self.entry(id) else { return Ok(None) };
        let Some(conn) = entry.lanes[Lane::Session as usize].conn else { return Ok(None) };
        entry.incoming.extend_from_slice(&data);
        if !entry.is_read {
            return if entry.incoming.len() > INBOX_BYTES_MAX.max(max) { Err(conn) } else { Ok(None) };
        }
        let end = memchr::memrchr(b'\n', &entry.incoming).map_or(0, |at| at + 1);
        let rest = entry.incoming.split_off(end);
        let lines = std::mem::replace(&mut entry.incoming, rest);
        match entry.incoming.len() > max {
            true => Err(conn),
            false => Ok(Some((conn, lines)).filter(|(_, lines)| !lines.is_empty())),
        }
    }

    /// Queues bytes for the next [`Peers::flush_peer`]. Returns the number of bytes accepted.
    pub fn write(&mut self, id: PeerId, lane: Lane, bytes: &[u8]) -> usize {
        let Some(entry) = self.entry(id) else { return bytes.len() };
        // A heartbeat is not needed here: ICE has its own, and the session channel carries one.
        if lane == Lane::Latest && bytes == b"\n" {
            return bytes.len();
        }
        let taken = entry.lanes[lane as usize].take(bytes, Instant::now());
        self.mark_dirty(id);
        if taken < bytes.len() {
            self.watch_blocked(id);
        }
        taken
    }

    fn mark_dirty(&mut self, id: PeerId) {
        let Some(entry) = self.entry(id) else { return };
        if !std::mem::replace(&mut entry.is_dirty, true) {
            self.dirty.push(id);
            if self.dirty.len() == 1 {
                self.sender.wake();
            }
        }
    }

    /// Ends a connection. Data already written is sent first; when the session ends, the peer is then closed.
    pub fn end(&mut self, id: PeerId, lane: Lane) {
        let Some(entry) = self.entry(id) else { return };
        entry.lanes[lane as usize].conn = None;
        match lane {
            Lane::Latest => entry.has_latest = false,
            Lane::Session => {
                entry.is_ending = true;
                entry.ends = Some(Instant::now() + LINGER);
                self.mark_dirty(id);
            }
        }
    }

    /// Takes the peers with queued data, for [`Peers::flush_peer`].
    pub fn take_dirty(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.dirty)
    }

    /// Gives the memory of a list of [`Peers::take_dirty`] back.
    pub fn reuse_dirty(&mut self, mut dirty: Vec<PeerId>) {
        if self.dirty.is_empty() {
            dirty.clear();
            self.dirty = dirty;
        }
    }

    /// Sends the queued data of a peer.
    pub fn flush_peer(&mut self, id: PeerId, now: Instant) {
        let Some(entry) = self.entry(id) else { return };
        entry.is_dirty = false;
        let mut wrote = false;
        for lane in Lane::ALL {
            wrote |= self.flush_lane(id, lane, now);
        }
        if wrote || self.entry(id).is_some_and(|entry| entry.is_ending) {
            self.settle(id, now);
        }
    }

    /// Writes the queued messages of one channel. Returns true if there were any.
    fn flush_lane(&mut self, id: PeerId, lane: Lane, now: Instant) -> bool {
        let (mut from, mut bytes) = (0, 0);
        while let Some(message) = self.entry(id).and_then(|entry| entry.lanes[lane as usize].next_message(&mut from)) {
            bytes += message.len();
            let written = match self.entry(id).map(|entry| &entry.carrier) {
                Some(Carrier::Shared(connection)) => Some(connection.write(now, lane, &message)),
                _ => self.work(id, |peer, out| peer.write(now, lane, true, &message, out)),
            };
            match written {
                Some(true) => {}
                // The queue never accepts more than the channel can, so the channel is closed, and the session with it.
                Some(false) if lane == Lane::Session => {
                    self.remove(id);
                    return false;
                }
                Some(false) => break,
                None => return false,
            }
        }
        if let Some(entry) = self.entry(id).filter(|_| from > 0) {
            entry.lanes[lane as usize].sent(bytes, now);
        }
        from > 0
    }
}
