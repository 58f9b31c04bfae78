use std::collections::{HashMap, VecDeque};

use millrace_protocol::session::Policy;

/// A segment holds this many bytes of frames; a larger frame has one of its own. Frames never straddle segments.
pub const SEGMENT_BYTES: usize = 64 * 1024;

/// The frames that live readers of one channel and form have not all been sent yet, in wire form, contiguous.
///
/// A cursor is an offset; sending is one write of a slice, whatever the number of readers. When nobody is behind, the log is empty and its
/// first segment is used again, so it stays small and warm. For [`Policy::Latest`] it remembers which frames a newer one of the same key
/// has superseded, so that readers who are behind skip them.
#[derive(Debug)]
pub struct WireLog {
    segments: VecDeque<Segment>,
    /// One per frame, oldest first; the frame of offset `first + i` is `frames[i]`.
    frames: VecDeque<Frame>,
    first: u64,
    newest_by_key: Option<HashMap<Option<Box<str>>, u64>>,
}

#[derive(Debug)]
struct Segment {
    /// Address of its first byte; addresses rise over the life of the log.
    start: u64,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    start: u64,
    superseded: bool,
}

/// Frames that can leave in one write.
#[derive(Debug)]
pub struct Run<'a> {
    /// Offset of the first frame, at or after the cursor that was asked for.
    pub first: u64,
    /// Offset after the last frame.
    pub end: u64,
    pub bytes: &'a [u8],
}

impl WireLog {
    /// A log whose next frame will have the offset `next`.
    pub fn new(policy: Policy, next: u64) -> Self {
        let newest_by_key = (policy == Policy::Latest).then(HashMap::new);
        Self { segments: VecDeque::new(), frames: VecDeque::new(), first: next, newest_by_key }
    }

    /// The oldest offset that is here.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The offset that the next frame will have.
    pub fn next(&self) -> u64 {
        self.first + self.frames.len() as u64
    }

    /// Memory held, in bytes.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.bytes.capacity()).sum()
    }

    /// Appends the frame of offset [`WireLog::next`]; over `bytes_max` the oldest segment goes, and cursors in it have lapsed.
    pub fn append(&mut self, key: &Option<Box<str>>, bytes_max: usize, encode: impl FnOnce(&mut Vec<u8>)) {
        let offset = self.next();
        if let Some(newest) = &mut self.newest_by_key {
            let before = match newest.get_mut(key) {
                Some(before) => Some(std::mem::replace(before, offset)),
                None => newest.insert(key.clone(), offset),
            };
            if let Some(frame) = before.and_then(|before| self.frames.get_mut(before.wrapping_sub(self.first) as usize))
            {
                frame.superseded = true;
            }
        }
        let start = self.end_address();
        if self.segments.back().is_none_or(|last| last.bytes.len() >= SEGMENT_BYTES) {
            self.segments.push_back(Segment { start, bytes: Vec::new() });
        }
        let last = self.segments.back_mut().expect("pushed above");
        let before = last.bytes.len();
        encode(&mut last.bytes);
        if before > 0 && last.bytes.len() > SEGMENT_BYTES {
            let frame = last.bytes.split_off(before);
            self.segments.push_back(Segment { start, bytes: frame });
        }
        self.frames.push_back(Frame { start, superseded: false });
        while self.segments.len() > 1 && self.bytes() > bytes_max {
            self.drop_oldest_segment();
        }
    }

    /// The frames at and after `cursor` that lie side by side, at most to the end of a segment; `None` when there are none.
    ///
    /// `cursor` must not have lapsed (be below [`WireLog::first`]).
    pub fn run(&self, cursor: u64) -> Option<Run<'_>> {
        debug_assert!(cursor >= self.first, "a lapsed cursor reads history");
        let mut index = usize::try_from(cursor.checked_sub(self.first)?).ok()?;
        while self.frames.get(index)?.superseded {
            index += 1;
        }
        let start = self.frames[index].start;
        let at = self.segments.partition_point(|segment| segment.start <= start) - 1;
        let segment = &self.segments[at];
        let segment_end = segment.start + segment.bytes.len() as u64;
        let whole_segment = self.newest_by_key.is_none();
        let end_index = if whole_segment && at + 1 == self.segments.len() {
            self.frames.len()
        } else {
            let rest = self.frames.range(index..);
            index + rest.take_while(|frame| frame.start < segment_end && !frame.superseded).count()
        };
        let end = self.frames.get(end_index).map_or(segment_end, |frame| frame.start.min(segment_end));
        let bytes = &segment.bytes[(start - segment.start) as usize..(end - segment.start) as usize];
        Some(Run { first: self.first + index as u64, end: self.first + end_index as u64, bytes })
    }

    /// Where a write of `written` bytes of `run` ended: the offset of the first frame of which nothing was sent,
    /// and how many bytes of `run` lie before it.
    pub fn split(&self, run: &Run<'_>, written: usize) -> (u64, usize) {
        let from = (run.first - self.first) as usize;
        let start = self.frames[from].start;
        let frames = self.frames.range(from..from + (run.end - run.first) as usize);
        let whole = frames.clone().take_while(|frame| frame.start - start < written as u64).count();
        let end = self.frames.get(from + whole).map_or(start + run.bytes.len() as u64, |frame| frame.start);
        (run.first + whole as u64, ((end - start) as usize).min(run.bytes.len()))
    }

    /// Single frames of a run, with their offsets.
    pub fn frames<'a>(&'a self, run: &'a Run<'a>) -> impl Iterator<Item = (u64, &'a [u8])> {
        let from = (run.first - self.first) as usize;
        let start = self.frames[from].start;
        (0..(run.end - run.first) as usize).map(move |i| {
            let begin = (self.frames[from + i].start - start) as usize;
            let end = self.frames.get(from + i + 1).map_or(run.bytes.len(), |next| (next.start - start) as usize);
            (run.first + i as u64, &run.bytes[begin..end.min(run.bytes.len())])
        })
    }

    /// Forgets what no reader needs: everything before the offset `wanted`.
    pub fn trim(&mut self, wanted: u64) {
        if wanted >= self.next() {
            self.restart(self.next());
            return;
        }
        while self.first < wanted {
            self.frames.pop_front();
            self.first += 1;
        }
        let Some(oldest) = self.frames.front() else { return };
        let held = self.segments.len();
        while self.segments.get(1).is_some_and(|second| second.start <= oldest.start) {
            self.segments.pop_front();
        }
        if let Some(newest) = self.newest_by_key.as_mut().filter(|_| self.segments.len() < held) {
            newest.retain(|_, offset| *offset >= self.first);
        }
    }

    /// Forgets everything; the next frame will have the offset `next`.
    pub fn restart(&mut self, next: u64) {
        let end = self.end_address();
        self.frames.clear();
        self.first = next;
        if let Some(newest) = &mut self.newest_by_key {
            newest.clear();
        }
        self.segments.truncate(1);
        if let Some(segment) = self.segments.front_mut() {
            segment.start = end;
            segment.bytes.clear();
            segment.bytes.shrink_to(SEGMENT_BYTES);
        }
    }

    fn drop_oldest_segment(&mut self) {
        self.segments.pop_front();
        let Some(oldest) = self.segments.front() else { return };
        while self.frames.front().is_some_and(|frame| frame.start < oldest.start) {
            self.frames.pop_front();
            self.first += 1;
        }
        if let Some(newest) = &mut self.newest_by_key {
            newest.retain(|_, offset| *offset >= self.first);
        }
    }

    fn end_address(&self) -> u64 {
        self.segments.back().map_or(0, |last| last.start + last.bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(log: &mut WireLog, key: Option<&str>, text: &str) {
        log.append(&key.map(Into::into), 1 << 20, |out| out.extend_from_slice(text.as_bytes()));
    }

    #[test]
    fn a_run_is_everything_behind_the_cursor() {
        let mut log = WireLog::new(Policy::Every, 1);
        for text in ["one", "two", "three"] {
            append(&mut log, None, text);
        }
        let run = log.run(2).unwrap();
        assert_eq!((run.first, run.end, run.bytes), (2, 4, b"twothree".as_slice()));
        assert!(log.run(4).is_none());
        let frames: Vec<_> = log.frames(&run).collect();
        assert_eq!(frames, [(2, b"two".as_slice()), (3, b"three")]);
    }

    #[test]
    fn a_partial_write_ends_at_a_frame() {
        let mut log = WireLog::new(Policy::Every, 1);
        for text in ["one", "two", "three"] {
            append(&mut log, None, text);
        }
        let run = log.run(1).unwrap();
        assert_eq!(log.split(&run, 0), (1, 0));
        assert_eq!(log.split(&run, 1), (2, 3));
        assert_eq!(log.split(&run, 3), (2, 3));
        assert_eq!(log.split(&run, 4), (3, 6));
        assert_eq!(log.split(&run, 10), (4, 11));
    }

    #[test]
    fn latest_skips_what_was_superseded() {
        let mut log = WireLog::new(Policy::Latest, 1);
        for (key, text) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1")] {
            append(&mut log, Some(key), text);
        }
        let run = log.run(1).unwrap();
        assert_eq!((run.first, run.end, run.bytes), (2, 5, b"b1a2c1".as_slice()));
        append(&mut log, Some("b"), "b2");
        append(&mut log, Some("a"), "a3");
        let run = log.run(1).unwrap();
        assert_eq!((run.first, run.end, run.bytes), (4, 7, b"c1b2a3".as_slice()));
        assert_eq!(log.split(&run, 3), (6, 4));
    }

    #[test]
    fn segments_bound_the_log_and_large_frames_have_their_own() {
        let mut log = WireLog::new(Policy::Every, 1);
        let big = "x".repeat(SEGMENT_BYTES - 10);
        for text in [big.as_str(), "small", &big, &"y".repeat(200_000), "end"] {
            log.append(&None, usize::MAX, |out| out.extend_from_slice(text.as_bytes()));
        }
        let mut cursor = 1;
        let mut total = 0;
        while let Some(run) = log.run(cursor) {
            cursor = run.end;
            total += run.bytes.len();
        }
        assert_eq!((cursor, total), (6, 2 * big.len() + 200_008));
        log.append(&None, 100, |out| out.extend_from_slice(b"last"));
        assert!(log.first() > 1 && log.run(log.first()).is_some());
        log.trim(7);
        assert_eq!((log.first(), log.next(), log.run(7).is_none()), (7, 7, true));
        append(&mut log, None, "again");
        assert_eq!(log.run(7).unwrap().bytes, b"again");
    }

    #[test]
    fn trimming_keeps_what_is_wanted() {
        let mut log = WireLog::new(Policy::Every, 5);
        for i in 0..1000 {
            append(&mut log, None, &format!("{i:0>200}"));
        }
        log.trim(900);
        assert_eq!(log.first(), 900);
        assert!(log.bytes() <= 2 * SEGMENT_BYTES + 100_000, "{}", log.bytes());
        assert!(log.run(900).unwrap().bytes.starts_with(format!("{:0>200}", 895).as_bytes()));
    }
}
