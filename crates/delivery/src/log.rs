use std::collections::{HashMap, VecDeque};

use millrace_protocol::session::Policy;

/// Bytes of frames in one segment. A larger frame has a segment of its own. A frame never spans two segments.
pub const SEGMENT_BYTES: usize = 64 * 1024;

/// Contiguous wire-format frames of one channel and encoding that at least one live reader has not been sent yet.
///
/// A cursor is an offset. Sending is one write of a slice, whatever the number of readers. While no reader is
/// behind, the log is empty and holds no memory: its memory goes to the [`Pool`], still in the processor cache, for
/// the next log of the shard that fills. For [`Policy::Latest`] the log marks frames that a newer frame of the same
/// key supersedes, so that readers that are behind skip them.
#[derive(Debug)]
pub struct WireLog {
    first: u64,
    policy: Policy,
    storage: Option<Box<LogStorage>>,
}

/// Memory of all logs of a shard: the bytes they hold, and spare memory of emptied logs for the next logs that
/// fill. The spare memory covers all logs that fill within one turn, up to a limit.
#[derive(Debug, Default)]
pub struct Pool {
    used_bytes: usize,
    #[expect(clippy::vec_box, reason = "they go from log to log without being moved")]
    spare: Vec<Box<LogStorage>>,
    spare_bytes: usize,
}

/// Maximum spare memory. Memory above this limit goes back to the allocator.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// Contents of a log while at least one reader is behind.
#[derive(Debug, Default)]
struct LogStorage {
    segments: VecDeque<Segment>,
    /// Capacity of all segments.
    bytes: usize,
    /// One entry per frame, oldest first. The frame with offset `first + i` is `frames[i]`.
    frames: VecDeque<Frame>,
    newest_by_key: HashMap<Option<Box<str>>, u64>,
}

#[derive(Debug)]
struct Segment {
    /// Address of the first byte. Addresses increase over the lifetime of the log.
    start: u64,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    start: u64,
    superseded: bool,
}

/// Contiguous frames that one write can send.
#[derive(Debug)]
pub struct Run<'a> {
    /// Offset of the first frame, at or after the requested cursor.
    pub first: u64,
    /// Offset after the last frame.
    pub end: u64,
    pub bytes: &'a [u8],
}

impl Pool {
    /// Returns the bytes that all logs hold.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Returns the capacity of the spare memory in bytes.
    pub fn spare_bytes(&self) -> usize {
        self.spare_bytes
    }

    /// Frees the spare memory.
    pub fn purge(&mut self) {
        (self.spare, self.spare_bytes) = (Vec::new(), 0);
    }

    fn take(&mut self) -> Box<LogStorage> {
        let storage = self.spare.pop().unwrap_or_default();
        self.spare_bytes -= storage.bytes;
        self.used_bytes += storage.bytes;
        storage
    }

    /// Takes back the memory of an emptied log and keeps one of its segments as spare.
    fn put(&mut self, mut storage: Box<LogStorage>) {
        self.used_bytes -= storage.bytes;
        storage.frames.clear();
        storage.newest_by_key.clear();
        storage.segments.truncate(1);
        storage.bytes = 0;
        if let Some(segment) = storage.segments.front_mut() {
            segment.start = 0;
            segment.bytes.clear();
            segment.bytes.shrink_to(SEGMENT_BYTES);
            storage.bytes = segment.bytes.capacity();
        }
        if self.spare_bytes + storage.bytes <= SPARE_BYTES_MAX {
            self.spare_bytes += storage.bytes;
            self.spare.push(storage);
        }
    }
}

impl WireLog {
    /// Creates an empty log whose next frame will have the offset `next`.
    pub fn new(policy: Policy, next: u64) -> Self {
        Self { first: next, policy, storage: None }
    }

    /// Returns the oldest offset in the log.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the offset that the next frame will have.
    pub fn next(&self) -> u64 {
        self.first + self.storage.as_ref().map_or(0, |storage| storage.frames.len() as u64)
    }

    /// Returns the memory held, in bytes.
    pub fn bytes(&self) -> usize {
        self.storage.as_ref().map_or(0, |storage| storage.bytes)
    }

    /// Returns the bytes of the frames from `cursor` on. A cursor that has lapsed gets all frames that are left.
    pub fn bytes_from(&self, cursor: u64) -> usize {
        let Some(LogStorage { segments, frames, .. }) = self.storage.as_deref() else { return 0 };
        let end = segments.back().map_or(0, |last| last.start + last.bytes.len() as u64);
        let index = usize::try_from(cursor.saturating_sub(self.first)).unwrap_or(usize::MAX);
        frames.get(index).map_or(0, |frame| (end - frame.start) as usize)
    }

    /// Appends the frame with offset [`WireLog::next`]. Above `bytes_max` bytes the log drops its oldest segments;
    /// cursors that point into a dropped segment have lapsed.
    pub fn append(
        &mut self,
        key: &Option<Box<str>>,
        bytes_max: usize,
        pool: &mut Pool,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        let storage = self.storage.get_or_insert_with(|| pool.take());
        let before = storage.bytes;
        if self.policy == Policy::Latest {
            storage.supersede(key, self.first);
        }
        storage.push(encode);
        while storage.segments.len() > 1 && storage.bytes > bytes_max {
            self.first += storage.drop_oldest_segment();
            storage.forget_keys_before(self.first);
        }
        pool.used_bytes = pool.used_bytes + storage.bytes - before;
    }

    /// Drops the oldest segment. Cursors that point into it have lapsed.
    pub fn drop_oldest_segment(&mut self, pool: &mut Pool) {
        match &mut self.storage {
            Some(storage) if storage.segments.len() > 1 => {
                let before = storage.bytes;
                self.first += storage.drop_oldest_segment();
                storage.forget_keys_before(self.first);
                pool.used_bytes -= before - storage.bytes;
            }
            _ => self.restart(self.next(), pool),
        }
    }

    /// Returns the contiguous frames from `cursor` on, up to the end of a segment at most. Returns `None` if there
    /// are no frames.
    ///
    /// `cursor` must not have lapsed (must not be below [`WireLog::first`]).
    #[inline(always)]
    pub fn run(&self, cursor: u64) -> Option<Run<'_>> {
        debug_assert!(cursor >= self.first, "a lapsed cursor reads history");
        let LogStorage { segments, frames, .. } = self.storage.as_deref()?;
        let mut index = usize::try_from(cursor.checked_sub(self.first)?).ok()?;
        while frames.get(index)?.superseded {
            index += 1;
        }
        let start = frames[index].start;
        let at = segments.partition_point(|segment| segment.start <= start) - 1;
        let segment = &segments[at];
        let segment_end = segment.start + segment.bytes.len() as u64;
        let end_index = match self.policy {
            Policy::Every if at + 1 == segments.len() => frames.len(),
            Policy::Every => frames.partition_point(|frame| frame.start < segment_end),
            Policy::Latest => {
                let rest = frames.range(index..);
                index + rest.take_while(|frame| frame.start < segment_end && !frame.superseded).count()
            }
        };
        let end = frames.get(end_index).map_or(segment_end, |frame| frame.start.min(segment_end));
        let bytes = &segment.bytes[(start - segment.start) as usize..(end - segment.start) as usize];
        Some(Run { first: self.first + index as u64, end: self.first + end_index as u64, bytes })
    }

    /// Returns where a write of `written` bytes of `run` ended: the offset of the first frame of which nothing was
    /// sent, and the number of bytes of `run` before that frame.
    pub fn split(&self, run: &Run<'_>, written: usize) -> (u64, usize) {
        let mut end = 0;
        for (offset, frame) in self.frames(run) {
            if end >= written {
                return (offset, end);
            }
            end += frame.len();
        }
        (run.end, end)
    }

    /// Returns the single frames of a run with their offsets.
    pub fn frames<'a>(&'a self, run: &'a Run<'a>) -> impl Iterator<Item = (u64, &'a [u8])> {
        let from = (run.first - self.first) as usize;
        let frames = self.storage.as_deref().map(|storage| &storage.frames);
        let start = move |index| frames.and_then(|frames| frames.get(index)).map(|frame: &Frame| frame.start);
        let base = start(from).unwrap_or(0);
        (0..(run.end - run.first) as usize).map(move |i| {
            let begin = start(from + i).map_or(run.bytes.len(), |start| (start - base) as usize);
            let end = start(from + i + 1).map_or(run.bytes.len(), |next| (next - base) as usize);
            (run.first + i as u64, &run.bytes[begin..end.min(run.bytes.len())])
        })
    }

    /// Drops all frames before the offset `wanted`: no reader needs them.
    pub fn trim(&mut self, wanted: u64, pool: &mut Pool) {
        if wanted >= self.next() {
            self.restart(self.next(), pool);
            return;
        }
        let Some(storage) = &mut self.storage else { return };
        while self.first < wanted {
            storage.frames.pop_front();
            self.first += 1;
        }
        let Some(oldest) = storage.frames.front() else { return };
        let (oldest, before) = (oldest.start, storage.bytes);
        while storage.segments.get(1).is_some_and(|second| second.start <= oldest) {
            storage.pop_segment();
        }
        if storage.bytes < before {
            storage.forget_keys_before(self.first);
            pool.used_bytes -= before - storage.bytes;
        }
    }

    /// Drops all frames. The next frame will have the offset `next`.
    pub fn restart(&mut self, next: u64, pool: &mut Pool) {
        self.first = next;
        if let Some(storage) = self.storage.take() {
            pool.put(storage);
        }
    }
}

impl LogStorage {
    /// Marks the previous frame with the same key as superseded by the next frame.
    fn supersede(&mut self, key: &Option<Box<str>>, first: u64) {
        let offset = first + self.frames.len() as u64;
        let before = match self.newest_by_key.get_mut(key) {
            Some(before) => std::mem::replace(before, offset),
            None => {
                self.newest_by_key.insert(key.clone(), offset);
                return;
            }
        };
        if let Some(frame) = self.frames.get_mut(before.wrapping_sub(first) as usize) {
            frame.superseded = true;
        }
    }

    fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.segments.back().map_or(0, |last| last.start + last.bytes.len() as u64);
        if self.segments.back().is_none_or(|last| last.bytes.len() >= SEGMENT_BYTES) {
            self.segments.push_back(Segment { start, bytes: Vec::new() });
        }
        let last = self.segments.back_mut().expect("pushed above");
        let (before, room) = (last.bytes.len(), last.bytes.capacity());
        encode(&mut last.bytes);
        self.bytes += last.bytes.capacity() - room;
        if before > 0 && last.bytes.len() > SEGMENT_BYTES {
            let frame = last.bytes.split_off(before);
            self.bytes += frame.capacity();
            self.segments.push_back(Segment { start, bytes: frame });
        }
        self.frames.push_back(Frame { start, superseded: false });
    }

    /// Drops the oldest segment and returns the number of frames dropped with it.
    fn drop_oldest_segment(&mut self) -> u64 {
        self.pop_segment();
        let oldest = self.segments.front().map_or(0, |segment| segment.start);
        let mut gone = 0;
        while self.frames.front().is_some_and(|frame| frame.start < oldest) {
            self.frames.pop_front();
            gone += 1;
        }
        gone
    }

    fn pop_segment(&mut self) {
        self.bytes -= self.segments.pop_front().map_or(0, |segment| segment.bytes.capacity());
    }

    fn forget_keys_before(&mut self, first: u64) {
        self.newest_by_key.retain(|_, offset| *offset >= first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(log: &mut WireLog, key: Option<&str>, text: &str) {
        log.append(&key.map(Into::into), 1 << 20, &mut Pool::default(), |out| out.extend_from_slice(text.as_bytes()));
    }

    #[test]
    fn run_covers_everything_after_cursor() {
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
    fn bytes_from_counts_frames_after_cursor() {
        let mut log = WireLog::new(Policy::Every, 1);
        assert_eq!(log.bytes_from(1), 0);
        for text in ["one", "two", "three"] {
            append(&mut log, None, text);
        }
        assert_eq!([1, 2, 3, 4, 9].map(|cursor| log.bytes_from(cursor)), [11, 8, 5, 0, 0]);
        log.trim(3, &mut Pool::default());
        assert_eq!([1, 3].map(|cursor| log.bytes_from(cursor)), [5, 5], "a lapsed cursor gets what is left");
    }

    #[test]
    fn partial_write_ends_at_frame_boundary() {
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
    fn latest_skips_superseded_frames() {
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
    fn large_frame_gets_its_own_segment() {
        let (mut log, mut pool) = (WireLog::new(Policy::Every, 1), Pool::default());
        let big = "x".repeat(SEGMENT_BYTES - 10);
        for text in [big.as_str(), "small", &big, &"y".repeat(200_000), "end"] {
            log.append(&None, usize::MAX, &mut pool, |out| out.extend_from_slice(text.as_bytes()));
        }
        let mut cursor = 1;
        let mut total = 0;
        while let Some(run) = log.run(cursor) {
            cursor = run.end;
            total += run.bytes.len();
        }
        assert_eq!((cursor, total), (6, 2 * big.len() + 200_008));
        log.append(&None, 100, &mut pool, |out| out.extend_from_slice(b"last"));
        assert!(log.first() > 1 && log.run(log.first()).is_some());
        log.trim(7, &mut pool);
        assert_eq!((log.bytes(), pool.used_bytes()), (0, 0), "an empty log holds no memory");
        assert!((1..=SEGMENT_BYTES).contains(&pool.spare_bytes()), "{}", pool.spare_bytes());
        assert_eq!((log.first(), log.next(), log.run(7).is_none()), (7, 7, true));
        append(&mut log, None, "again");
        assert_eq!(log.run(7).unwrap().bytes, b"again");
    }

    #[test]
    fn trim_keeps_unread_frames() {
        let mut log = WireLog::new(Policy::Every, 5);
        let mut pool = Pool::default();
        for i in 0..1000 {
            log.append(&None, 1 << 20, &mut pool, |out| out.extend_from_slice(format!("{i:0>200}").as_bytes()));
        }
        log.trim(900, &mut pool);
        assert_eq!((log.first(), log.bytes()), (900, pool.used_bytes()));
        assert!(log.bytes() <= 2 * SEGMENT_BYTES + 100_000, "{}", log.bytes());
        assert!(log.run(900).unwrap().bytes.starts_with(format!("{:0>200}", 895).as_bytes()));
    }

    #[test]
    fn pool_counts_bytes_of_all_logs() {
        let (mut logs, mut pool) = ([1, 7].map(|next| WireLog::new(Policy::Every, next)), Pool::default());
        let text = "x".repeat(SEGMENT_BYTES - 100);
        let storage = |logs: &[WireLog; 2]| logs.iter().map(WireLog::bytes).sum::<usize>();
        for i in 0..7 {
            logs[i % 2].append(&None, usize::MAX, &mut pool, |out| out.extend_from_slice(text.as_bytes()));
            assert_eq!(pool.used_bytes(), storage(&logs));
        }
        let mut firsts = Vec::new();
        while logs[0].bytes() > 0 {
            logs[0].drop_oldest_segment(&mut pool);
            firsts.push(logs[0].first());
            assert_eq!(pool.used_bytes(), storage(&logs));
        }
        assert_eq!((firsts, logs[0].next()), (vec![2, 3, 4, 5], 5), "one by one, and the last one, too");
    }
}
