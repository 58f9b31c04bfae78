//! Recovery of readers that are behind the log: they get history page by page, each page after the one before it
//! was sent.

use std::io::Write;

use millrace_protocol::{ChannelName, Epoch, Position, Since};

use super::{Conn, ConnId, Hub, Live, Output, ReadTicket, ReaderRef, Recovering, Wire, deliver::send_behind};
use crate::{
    Page,
    log::{SEGMENT_BYTES, WireLog},
};

impl Hub {
    /// Resumes a blocked connection: its socket takes bytes again.
    pub fn writable(&mut self, id: ConnId, wire: &mut impl Wire) {
        let now_s = self.now_s;
        let Some(conn) = self.conn_mut(id) else { return };
        conn.blocked = false;
        conn.pinged_s = conn.pinged_s.map(|_| now_s);
        if !conn.send_out(id, now_s, wire) {
            return;
        }
        if conn.closing {
            self.outputs.push_back(Output::Close(id));
        } else {
            self.catch_up(id, wire);
        }
    }

    /// Handles a page of history that [`Output::ReadHistory`] requested.
    pub fn handle_page(&mut self, ticket: ReadTicket, page: &Page, wire: &mut impl Wire) {
        let Some(conn) = self.conn_mut(ticket.conn) else { return };
        conn.asking = false;
        let reader = conn.readers.get(ticket.slot as usize).and_then(Option::as_ref);
        let reader = reader.filter(|reader| reader.serial == ticket.serial && !reader.live);
        if let Some(key) = reader.map(|reader| reader.channel) {
            let epoch = self.channels[key as usize].head.map(|head| head.epoch);
            if epoch != Some(page.top.epoch) {
                // The page was read after the request, so its epoch is newer than the known one, unless the channel
                // has begun an epoch meanwhile.
                if epoch != ticket.epoch {
                    self.ask(ticket.conn.slot);
                    return;
                }
                self.jump(key, page.top);
                self.wake_waiters(key);
            }
            self.write_page(ticket.conn, ticket.slot, page, wire);
        }
        self.catch_up(ticket.conn, wire);
    }

    /// Sends a page to a recovering reader and moves the reader to the page's end. The caller then calls
    /// [`Hub::catch_up`].
    pub(super) fn write_page(&mut self, id: ConnId, slot: u32, page: &Page, wire: &mut impl Wire) {
        let Some(reader) = self.conns[id.slot as usize].readers[slot as usize].as_ref() else { return };
        let key = reader.channel;
        let encoding = self.conns[id.slot as usize].encoding;
        let name = self.channels[key as usize].name.clone();
        let mut heads = encoding.has_reader_head().then(|| self.positions(id.slot));
        let mut frames = std::mem::take(&mut self.scratch);
        frames.clear();
        if let Some(gap) = page.gap {
            if let Some(heads) = &mut heads {
                write_head(&mut frames, heads, slot, gap.to);
            }
            encoding.encode_gap(&mut frames, &name, gap);
            if encoding.gap_closes() {
                self.close(id, &frames, wire);
                return;
            }
        }
        for publication in &page.publications {
            if let Some(heads) = &mut heads {
                let at = Position { epoch: page.end.epoch, offset: publication.offset };
                write_head(&mut frames, heads, slot, at);
            }
            encoding.encode(&mut frames, &name, page.end.epoch, publication);
        }
        if let Some(reader) = self.recovering_mut(id.slot, slot) {
            (reader.at, reader.hold, reader.top) = (page.end, page.end.offset, page.top.offset);
        }
        self.mark_moved(key);
        self.send(id, &frames, wire);
        if frames.capacity() <= 1 << 20 {
            self.scratch = frames;
        }
    }

    /// Sends a connection that is not blocked everything in the logs, and requests history where the logs do not
    /// reach back far enough.
    pub(super) fn catch_up(&mut self, id: ConnId, wire: &mut impl Wire) {
        let Some(conn) = self.conn(id) else { return };
        if conn.blocked || conn.closing {
            return;
        }
        let mut heads = conn.encoding.has_reader_head().then(|| self.positions(id.slot));
        for slot in 0..self.conns[id.slot as usize].readers.len() as u32 {
            let Some(reader) = self.conns[id.slot as usize].readers[slot as usize].as_ref() else { continue };
            if !reader.live {
                self.go_live_if_covered(id.slot, slot);
            }
            let Hub { conns, channels, now_s, .. } = &mut *self;
            let conn = &mut conns[id.slot as usize];
            let Some(reader) = conn.readers[slot as usize].as_ref().filter(|reader| reader.live) else { continue };
            let key = reader.channel;
            let channel = &mut channels[key as usize];
            let epoch = channel.epoch();
            let group = &mut channel.groups[reader.group as usize];
            let live = &mut group.live[reader.index as usize];
            if live.cursor < group.log.first() {
                self.lapse(id.slot, slot);
                continue;
            }
            if live.cursor >= group.log.next() {
                continue;
            }
            if let Some(heads) = &mut heads {
                send_with_heads(&group.log, live, conn, heads, epoch, *now_s, wire);
            } else {
                send_behind(&group.log, live, conn, *now_s, wire);
            }
            let blocked = conn.blocked;
            self.mark_dirty(key);
            if blocked {
                return;
            }
        }
        self.ask(id.slot);
    }

    /// Requests the next page for one recovering reader, if the connection has nothing left to send.
    pub(super) fn ask(&mut self, conn_slot: u32) {
        let Some(conn) = self.conns.get_mut(conn_slot as usize) else { return };
        if conn.asking || conn.closing || conn.blocked || !conn.out.is_empty() {
            return;
        }
        let recovering = |reader: &Option<ReaderRef>| reader.as_ref().is_some_and(|reader| !reader.live);
        let Some(slot) = conn.readers.iter().position(recovering) else { return };
        let Some(reader) = &conn.readers[slot] else { return };
        let channel = &mut self.channels[reader.channel as usize];
        let group = &mut channel.groups[reader.group as usize];
        let waiting = &mut group.recovering[reader.index as usize];
        waiting.hold = channel.head.map_or(waiting.at.offset, |head| head.offset);
        conn.asking = true;
        let id = ConnId { slot: conn_slot, generation: conn.generation };
        let epoch = channel.head.map(|head| head.epoch);
        let ticket = ReadTicket { conn: id, slot: slot as u32, serial: reader.serial, epoch };
        let since = Since::Position(waiting.at);
        self.outputs.push_back(Output::ReadHistory {
            ticket,
            channel: channel.name.clone(),
            since,
            policy: group.policy,
        });
    }

    /// Changes the state `Recovering → Live` if the log reaches back to the reader's position.
    pub(super) fn go_live_if_covered(&mut self, conn_slot: u32, slot: u32) {
        let Some(reader) = self.conns[conn_slot as usize].readers[slot as usize].as_ref() else { return };
        if reader.live {
            return;
        }
        let channel = &self.channels[reader.channel as usize];
        let group = &channel.groups[reader.group as usize];
        let Recovering { at, top, .. } = group.recovering[reader.index as usize];
        let Some(head) = channel.head.filter(|head| head.epoch == at.epoch) else { return };
        if at.offset + 1 < group.log.first() || top > head.offset.max(at.offset) {
            return;
        }
        self.relink(conn_slot, slot, |group, conn, slot| {
            group.live.push(Live { conn, slot, cursor: at.offset + 1 });
            (true, group.live.len())
        });
    }

    /// Changes the state `Live → Recovering`: the log has moved past the reader's position.
    pub(super) fn lapse(&mut self, conn_slot: u32, slot: u32) {
        let Some(reader) = self.conns[conn_slot as usize].readers[slot as usize].as_ref() else { return };
        let channel = &self.channels[reader.channel as usize];
        let at = channel.before(channel.groups[reader.group as usize].live[reader.index as usize].cursor);
        self.relink(conn_slot, slot, |group, conn, slot| {
            group.recovering.push(Recovering { conn, slot, at, hold: group.log.next() - 1, top: 0 });
            (false, group.recovering.len())
        });
    }

    fn relink(&mut self, conn_slot: u32, slot: u32, link: impl FnOnce(&mut super::Group, u32, u32) -> (bool, usize)) {
        let Some(mut reader) = self.conns[conn_slot as usize].readers[slot as usize].take() else { return };
        let group = &mut self.channels[reader.channel as usize].groups[reader.group as usize];
        let (live, len) = link(group, conn_slot, slot);
        self.unlink(&reader);
        // A page that was requested in the previous state must be discarded, so the serial changes.
        self.serial = self.serial.wrapping_add(1);
        (reader.live, reader.index, reader.serial) = (live, len as u32 - 1, self.serial);
        self.conns[conn_slot as usize].readers[slot as usize] = Some(reader);
    }

    fn recovering_mut(&mut self, conn_slot: u32, slot: u32) -> Option<&mut Recovering> {
        let reader = self.conns[conn_slot as usize].readers[slot as usize].as_ref().filter(|reader| !reader.live)?;
        Some(
            &mut self.channels[reader.channel as usize].groups[reader.group as usize].recovering[reader.index as usize],
        )
    }

    /// Returns the position up to which a reader was sent everything.
    pub(super) fn position(&self, reader: &ReaderRef) -> Position {
        let channel = &self.channels[reader.channel as usize];
        let group = &channel.groups[reader.group as usize];
        if reader.live {
            channel.before(group.live[reader.index as usize].cursor)
        } else {
            group.recovering[reader.index as usize].at
        }
    }

    /// Returns the position of every reader of a connection, by slot. The `id:` of an event stream with several
    /// channels lists them.
    fn positions(&self, conn_slot: u32) -> Vec<Option<(ChannelName, Position)>> {
        let stand = |reader: &ReaderRef| (self.channels[reader.channel as usize].name.clone(), self.position(reader));
        self.conns[conn_slot as usize].readers.iter().map(|reader| reader.as_ref().map(stand)).collect()
    }
}

/// Sends like [`send_behind`], for encodings whose frames have a head per reader. Bytes that the socket does not take
/// at once are queued, about one segment at most.
fn send_with_heads(
    log: &WireLog,
    reader: &mut Live,
    conn: &mut Conn,
    heads: &mut [Option<(ChannelName, Position)>],
    epoch: Epoch,
    now_s: u32,
    wire: &mut impl Wire,
) {
    let (slot, id) = (reader.slot, ConnId { slot: reader.conn, generation: conn.generation });
    let mut bytes = Vec::new();
    while let Some(run) = log.run(reader.cursor) {
        for (offset, frame) in log.frames(&run) {
            write_head(&mut bytes, heads, slot, Position { epoch, offset });
            bytes.extend_from_slice(frame);
            reader.cursor = offset + 1;
            if bytes.len() >= SEGMENT_BYTES {
                conn.send(id, &bytes, now_s, wire);
                bytes.clear();
                if conn.blocked {
                    return;
                }
            }
        }
    }
    reader.cursor = reader.cursor.max(log.next());
    conn.send(id, &bytes, now_s, wire);
}

/// Appends `id: a@P,b@Q`, after moving the reader in `slot` to `at`.
fn write_head(out: &mut Vec<u8>, heads: &mut [Option<(ChannelName, Position)>], slot: u32, at: Position) {
    if let Some((_, position)) = &mut heads[slot as usize] {
        *position = at;
    }
    out.extend_from_slice(b"id: ");
    for (i, (name, position)) in heads.iter().flatten().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(out, "{comma}{name}@{position}");
    }
    out.push(b'\n');
}
