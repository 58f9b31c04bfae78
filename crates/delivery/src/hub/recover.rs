//! Recovery of readers that are behind the log: they get history page by page, each page after the one before it
//! was sent.

use std::io::Write;

use millrace_protocol::{ChannelName, Epoch, Gap, Position, Since};

use super::{Conn, ConnId, Hub, Live, Output, ReadTicket, ReaderRef, Recovering, Snapshot, Wire, deliver::send_behind};
use crate::{
    Page, Part,
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
            self.note_caught_up(id);
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
        self.note_caught_up(ticket.conn);
    }

    /// Sends a page to a recovering reader and moves the reader to the page's end. The caller then calls
    /// [`Hub::catch_up`].
    pub(super) fn write_page(&mut self, id: ConnId, slot: u32, page: &Page, wire: &mut impl Wire) {
        let Some(reader) = self.conns[id.slot as usize].readers[slot as usize].as_ref() else { return };
        let key = reader.channel;
        let encoding = self.conns[id.slot as usize].encoding;
        let name = self.channels[key as usize].name.clone();
        // History does not reach back to the position of a reader of the state: it reads the whole state again.
        let begins_anew = reader.is_state && page.part == Part::Log && page.gap.is_some();
        let begin = Position { epoch: page.top.epoch, offset: 0 };
        let gap = page.gap.map(|gap| if begins_anew { Gap { to: begin, ..gap } } else { gap });
        let mut heads = encoding.has_reader_head().then(|| self.places(id.slot));
        let mut frames = std::mem::take(&mut self.scratch);
        frames.clear();
        if let Some(gap) = gap {
            let gaps = &mut self.conns[id.slot as usize].gaps;
            *gaps = gaps.saturating_add(1);
            if let Some(heads) = &mut heads {
                let is_begin = begins_anew || page.part != Part::Log;
                let to = if is_begin { Since::State } else { Since::Position(gap.to) };
                write_head(&mut frames, heads, slot, to);
            }
            encoding.encode_gap(&mut frames, &name, gap);
            if encoding.gap_closes() {
                self.close(id, &frames, wire);
                return;
            }
        }
        for publication in page.publications.iter().filter(|_| !begins_anew) {
            let Position { epoch, .. } = page.end;
            let at = page.place_of(publication.offset);
            if let Some(heads) = &mut heads {
                write_head(&mut frames, heads, slot, at);
            }
            encoding.encode_at(&mut frames, &name, at, epoch, publication);
        }
        if let Part::StateEnd { .. } = page.part {
            if let Some(heads) = &mut heads {
                write_head(&mut frames, heads, slot, Since::Position(page.end));
            }
            encoding.encode_state_end(&mut frames, &name, page.end);
        }
        if let Some(reader) = self.recovering_mut(id.slot, slot) {
            (reader.at, reader.hold, reader.top) = (page.end, page.end.offset, page.top.offset);
            reader.snapshot = match page.part {
                Part::Log if begins_anew => Snapshot::Begin,
                Part::Log | Part::StateEnd { .. } => Snapshot::Outside,
                Part::State { began } => Snapshot::Inside { began },
            };
            if reader.snapshot != Snapshot::Outside {
                // The rest of the state, and everything up to the top, is read from history.
                reader.hold = page.top.offset;
            }
            if begins_anew {
                reader.at = begin;
            }
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
        let mut heads = conn.encoding.has_reader_head().then(|| self.places(id.slot));
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
        conn.behind_s = conn.behind_s.min(self.now_s);
        let id = ConnId { slot: conn_slot, generation: conn.generation };
        let epoch = channel.head.map(|head| head.epoch);
        let ticket = ReadTicket { conn: id, slot: slot as u32, serial: reader.serial, epoch };
        let since = waiting.place();
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
        let Recovering { at, top, snapshot, .. } = group.recovering[reader.index as usize];
        if snapshot != Snapshot::Outside {
            return;
        }
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
            group.recovering.push(Recovering {
                conn,
                slot,
                at,
                hold: group.log.next() - 1,
                top: 0,
                snapshot: Snapshot::Outside,
            });
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

    /// Returns the place from which a reader would resume.
    pub(super) fn place(&self, reader: &ReaderRef) -> Since {
        if reader.live {
            return Since::Position(self.position(reader));
        }
        let group = &self.channels[reader.channel as usize].groups[reader.group as usize];
        group.recovering[reader.index as usize].place()
    }

    /// Returns the place of every reader of a connection, by slot. The `id:` of an event stream with several channels
    /// lists them.
    fn places(&self, conn_slot: u32) -> Vec<Option<(ChannelName, Since)>> {
        let stand = |reader: &ReaderRef| (self.channels[reader.channel as usize].name.clone(), self.place(reader));
        self.conns[conn_slot as usize].readers.iter().map(|reader| reader.as_ref().map(stand)).collect()
    }
}

/// Sends like [`send_behind`], for encodings whose frames have a head per reader. Bytes that the socket does not take
/// at once are queued, about one segment at most.
fn send_with_heads(
    log: &WireLog,
    reader: &mut Live,
    conn: &mut Conn,
    heads: &mut [Option<(ChannelName, Since)>],
    epoch: Epoch,
    now_s: u32,
    wire: &mut impl Wire,
) {
    let (slot, id) = (reader.slot, ConnId { slot: reader.conn, generation: conn.generation });
    let mut bytes = Vec::new();
    while let Some(run) = log.run(reader.cursor) {
        for (offset, frame) in log.frames(&run) {
            write_head(&mut bytes, heads, slot, Since::Position(Position { epoch, offset }));
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

impl Recovering {
    /// Returns where the next page begins.
    fn place(&self) -> Since {
        let Position { epoch, offset } = self.at;
        match self.snapshot {
            Snapshot::Outside => Since::Position(self.at),
            Snapshot::Begin => Since::State,
            Snapshot::Inside { began } => Since::StateAfter { epoch, offset, began },
        }
    }
}

/// Appends `id: a@P,b@Q`, after moving the reader in `slot` to `at`.
fn write_head(out: &mut Vec<u8>, heads: &mut [Option<(ChannelName, Since)>], slot: u32, at: Since) {
    if let Some((_, place)) = &mut heads[slot as usize] {
        *place = at;
    }
    out.extend_from_slice(b"id: ");
    for (i, (name, place)) in heads.iter().flatten().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(out, "{comma}{name}@{place}");
    }
    out.push(b'\n');
}
