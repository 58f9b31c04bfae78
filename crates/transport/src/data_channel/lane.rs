//! Send queue of one channel: data that the hub wrote in this turn, and data that the peer has not yet acknowledged.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use millrace_delivery::ConnId;
use millrace_rtc::Lane;

/// Maximum number of queued and unacknowledged bytes; the hub writes again when half of them are left. A client that
/// reads nothing holds no more memory than this.
const SESSION_BYTES_MAX: usize = 128 * 1024;
const LATEST_BYTES_MAX: usize = 16 * 1024;
/// Maximum size of a message on the session channel, in bytes. Small, because a receiver sees a message only once all
/// of it has arrived.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Target size of a message on the unreliable channel, in bytes, so that it fits into one datagram. A longer line
/// exceeds it.
const DATAGRAM_BYTES_MAX: usize = 1100;
/// Minimum age of the oldest unacknowledged data at which sending pauses; twice the usual delay if that is longer. The
/// hub then has newer data when sending resumes.
const AGE_MAX: Duration = Duration::from_millis(100);

pub struct Out {
    lane: Lane,
    pub conn: Option<ConnId>,
    pending: Vec<u8>,
    buffered: usize,
    pub is_blocked: bool,
    /// Number of messages sent on [`Lane::Latest`].
    number: u64,
    written: u64,
    /// End offset and send time of each unacknowledged write.
    marks: VecDeque<(u64, Instant)>,
    usual: Duration,
}

impl Out {
    pub fn new(lane: Lane) -> Self {
        Self {
            lane,
            conn: None,
            pending: Vec::new(),
            buffered: 0,
            is_blocked: false,
            number: 0,
            written: 0,
            marks: VecDeque::new(),
            usual: Duration::ZERO,
        }
    }

    /// Appends as many bytes as there is room for, and returns their number. [`Lane::Session`] may take any part;
    /// [`Lane::Latest`] takes whole lines only.
    pub fn take(&mut self, bytes: &[u8], now: Instant) -> usize {
        let room = if self.is_late(now) { 0 } else { self.bytes_max() };
        let room = room.saturating_sub(self.buffered + self.pending.len());
        let taken = match self.lane {
            _ if bytes.len() <= room => bytes.len(),
            Lane::Session => floor_char(bytes, room),
            // A line longer than the whole queue is accepted if the queue is empty.
            Lane::Latest if self.buffered + self.pending.len() == 0 && room > 0 => {
                first_lines(bytes, room).unwrap_or(bytes.len())
            }
            Lane::Latest => first_lines(bytes, room).unwrap_or(0),
        };
        self.pending.extend_from_slice(&bytes[..taken]);
        self.is_blocked = taken < bytes.len();
        taken
    }

    /// Returns the next message of the pending bytes; `None` if no bytes are left. Advances `from` past it.
    pub fn next_message(&mut self, from: &mut usize) -> Option<Vec<u8>> {
        let rest = self.pending.get(*from..).filter(|rest| !rest.is_empty())?;
        match self.lane {
            Lane::Session => {
                let end =
                    if rest.len() <= MESSAGE_BYTES_MAX { rest.len() } else { floor_char(rest, MESSAGE_BYTES_MAX) };
                *from += end;
                Some(rest[..end].to_vec())
            }
            Lane::Latest => {
                let one_line = memchr::memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
                let end = first_lines(rest, DATAGRAM_BYTES_MAX).unwrap_or(one_line);
                *from += end;
                self.number += 1;
                let mut message = format!("{}\n", self.number).into_bytes();
                message.extend_from_slice(&rest[..end]);
                Some(message)
            }
        }
    }

    /// Marks all pending bytes as written to the channel.
    pub fn sent(&mut self, bytes: usize, now: Instant) {
        self.pending.clear();
        self.pending.shrink_to(DATAGRAM_BYTES_MAX);
        self.buffered += bytes;
        if self.lane == Lane::Latest && bytes > 0 {
            self.written += bytes as u64;
            self.marks.push_back((self.written, now));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.buffered == 0
    }

    /// Returns true if the number of unacknowledged bytes must be queried. Otherwise it can only have shrunk, and it
    /// was small already.
    pub fn is_watched(&self, now: Instant) -> bool {
        let is_old = |(_, at): &(u64, Instant)| now.saturating_duration_since(*at) > AGE_MAX / 4;
        self.is_blocked || self.buffered > self.bytes_max() / 2 || self.marks.front().is_some_and(is_old)
    }

    fn bytes_max(&self) -> usize {
        match self.lane {
            Lane::Session => SESSION_BYTES_MAX,
            Lane::Latest => LATEST_BYTES_MAX,
        }
    }

    /// Updates the number of unacknowledged bytes. Returns true if the hub may write again.
    pub fn set_buffered(&mut self, buffered: usize, now: Instant) -> bool {
        self.buffered = buffered;
        let acknowledged = self.written.saturating_sub(buffered as u64);
        while let Some((_, at)) = self.marks.front().copied().filter(|(end, _)| *end <= acknowledged) {
            self.marks.pop_front();
            let took = now.saturating_duration_since(at);
            self.usual = if self.usual.is_zero() { took } else { took.min(self.usual + self.usual / 16) };
        }
        let is_free = self.is_blocked && buffered + self.pending.len() <= self.bytes_max() / 2 && !self.is_late(now);
        if is_free {
            self.is_blocked = false;
        }
        is_free
    }

    fn is_late(&self, now: Instant) -> bool {
        let most = AGE_MAX.max(2 * self.usual);
        // One lost datagram is no stall: it is given up only when later datagrams arrive, so sending must continue.
        self.buffered > DATAGRAM_BYTES_MAX
            && self.marks.front().is_some_and(|(_, at)| now.saturating_duration_since(*at) > most)
    }

    pub fn bytes(&self) -> usize {
        self.pending.capacity() + self.buffered + self.marks.capacity() * size_of::<(u64, Instant)>()
    }
}

/// Returns the length of the whole lines that fit into `max` bytes; `None` if already the first is longer.
fn first_lines(bytes: &[u8], max: usize) -> Option<usize> {
    if bytes.len() <= max {
        return Some(bytes.len());
    }
    memchr::memrchr(b'\n', &bytes[..max]).map(|at| at + 1)
}

/// Returns the largest length up to `max` that does not cut a UTF-8 character.
fn floor_char(bytes: &[u8], max: usize) -> usize {
    let is_start = |at: &usize| bytes[*at] & 0xc0 != 0x80;
    (max.saturating_sub(3)..=max).rev().find(is_start).unwrap_or(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(out: &mut Out) -> Vec<String> {
        let mut from = 0;
        let all = std::iter::from_fn(|| out.next_message(&mut from));
        let all: Vec<_> = all.map(|message| String::from_utf8(message).unwrap()).collect();
        out.sent(all.iter().map(String::len).sum(), Instant::now());
        all
    }

    #[test]
    fn session_stream_splits_no_character() {
        let (mut out, now) = (Out::new(Lane::Session), Instant::now());
        let text = "äöü€😀\n".repeat(2000);
        assert_eq!(out.take(text.as_bytes(), now), text.len());
        let all = messages(&mut out);
        assert!(all.len() > 1 && all.iter().all(|message| message.len() <= MESSAGE_BYTES_MAX), "{}", all.len());
        assert_eq!(all.concat(), text);
        out.set_buffered(SESSION_BYTES_MAX - 5, now);
        assert_eq!(out.take("€€€".as_bytes(), now), 3);
        assert!(out.is_blocked && !out.set_buffered(SESSION_BYTES_MAX - 100, now));
        assert!(out.set_buffered(0, now) && !out.is_blocked);
    }

    #[test]
    fn unreliable_messages_are_numbered_and_hold_whole_lines() {
        let (mut out, now) = (Out::new(Lane::Latest), Instant::now());
        let (line, long) = (format!("{}\n", "x".repeat(400)), format!("{}\n", "y".repeat(3000)));
        let text = format!("{line}{line}{line}{long}{line}");
        assert_eq!(out.take(text.as_bytes(), now), text.len());
        let expected = [format!("1\n{line}{line}"), format!("2\n{line}"), format!("3\n{long}"), format!("4\n{line}")];
        assert_eq!(messages(&mut out), expected);
    }

    #[test]
    fn expired_buffer_accepts_no_lines() {
        let (mut out, now) = (Out::new(Lane::Latest), Instant::now());
        let line = format!("{}\n", "a".repeat(DATAGRAM_BYTES_MAX));
        assert_eq!(out.take(line.as_bytes(), now), line.len());
        let mut from = 0;
        let sent = out.next_message(&mut from).unwrap().len();
        out.sent(sent, now);
        assert!(!out.is_watched(now) && out.is_watched(now + AGE_MAX) && !out.set_buffered(sent, now));
        let late = now + AGE_MAX + Duration::from_millis(1);
        assert_eq!(out.take(b"b\n", now + AGE_MAX), 2);
        assert_eq!(out.take(b"c\n", late), 0);
        assert!(!out.set_buffered(sent, late) && out.set_buffered(0, late));
        assert_eq!(out.take(b"d\n", late), 2);
    }

    #[test]
    fn line_larger_than_window_is_sent() {
        let (mut out, now) = (Out::new(Lane::Latest), Instant::now());
        let long = format!("{}\nnext\n", "x".repeat(2 * LATEST_BYTES_MAX));
        assert_eq!(out.take(long.as_bytes(), now), long.len());
        assert_eq!(messages(&mut out).len(), 2);
    }
}
