mod saved;

use std::collections::{HashSet, VecDeque};

use millrace_protocol::{
    Epoch, Error, Gap, NewPublication, Position, Publication, PublicationHead, Since, session::Policy,
};

pub use saved::SavedHistory;

use crate::{
    idempotency::IdempotencyKeys,
    page::{Page, PageLimit, Part, take_page},
    state::{State, check_expected, check_fits, too_many_keys},
};

/// Memory of a publication in a history besides its payload and key: its own fields and its log entry.
const ENTRY_BYTES: usize = Publication::BYTES + size_of::<Publication>();

/// Limits of a channel's history. Whichever limit is reached first evicts the oldest publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub count_max: usize,
    pub bytes_max: usize,
    pub age_max_ms: u64,
    /// Maximum number of keys of a channel that is a keyed state; 0 for a channel that is none.
    pub keys_max: usize,
}

/// Assigns offsets to the publications of one channel and keeps its bounded history. The engine uses it to order
/// publications.
#[derive(Debug)]
pub struct History {
    epoch: Epoch,
    top: u64,
    log: VecDeque<Publication>,
    bytes: usize,
    /// Times of the newest publication and of the oldest one held. They are kept here so that reading them does not
    /// touch the publications.
    top_time_ms: u64,
    oldest_time_ms: u64,
    /// Every evicted publication is older than this time; 0 if none was evicted.
    trimmed_before_ms: u64,
    /// `None` unless publishers send idempotency keys.
    keys: Option<Box<IdempotencyKeys>>,
    /// `None` unless the channel is a keyed state with at least one publication.
    state: Option<Box<State>>,
}

/// Result of appending a publication.
#[derive(Debug)]
pub enum Appended {
    New(Publication),
    /// The idempotency key was used before; this is the offset of the first publication with it.
    Duplicate(u64),
    /// The channel is a keyed state and refuses the publication, or needs to be one for it.
    Refused(Box<Error>),
}

impl History {
    pub fn new(epoch: Epoch) -> Self {
        let log = VecDeque::new();
        let (top, bytes, top_time_ms, oldest_time_ms, trimmed_before_ms, keys, state) = Default::default();
        Self { epoch, top, log, bytes, top_time_ms, oldest_time_ms, trimmed_before_ms, keys, state }
    }

    /// Creates the part of a log that comes after `top`. The part up to `top` is stored elsewhere.
    pub fn after(top: Position) -> Self {
        let trimmed_before_ms = if top.offset > 0 { u64::MAX } else { 0 };
        Self { top: top.offset, trimmed_before_ms, ..Self::new(top.epoch) }
    }

    pub fn top(&self) -> Position {
        self.position(self.top)
    }

    pub fn newest(&self) -> Option<&Publication> {
        self.log.back()
    }

    /// Returns the bytes of payloads and keys held.
    pub fn bytes(&self) -> usize {
        self.bytes + self.state.as_ref().map_or(0, |state| state.old_bytes())
    }

    /// Returns the memory of the publications, the idempotency keys and the state.
    pub fn memory_bytes(&self) -> usize {
        self.bytes
            + self.log.len() * ENTRY_BYTES
            + self.keys.as_ref().map_or(0, |keys| keys.memory_bytes())
            + self.state_bytes()
    }

    /// Returns the memory of the state, which [`History::shrink`] keeps.
    pub fn state_bytes(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.memory_bytes())
    }

    /// Returns true if the state contains this key.
    pub fn has_key(&self, key: &str) -> bool {
        self.state.as_ref().is_some_and(|state| state.get(key).is_some())
    }

    /// Returns the number of keys of the state.
    pub fn state_keys(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.key_count())
    }

    /// Returns the time of the newest publication; 0 if there never was one.
    pub fn top_time_ms(&self) -> u64 {
        self.top_time_ms
    }

    /// Appends the publication with the next offset and a time that never decreases. Cost: O(publications evicted).
    /// In a keyed state it is also O(log keys).
    pub fn append(&mut self, new: NewPublication, now_ms: u64, bounds: &Bounds) -> Appended {
        if bounds.keys_max > 0 || new.is_deletion || new.expected.is_some() {
            return self.append_to_state(new, now_ms, bounds);
        }
        match self.place(new, now_ms) {
            Ok(publication) => {
                self.trim(now_ms, bounds);
                Appended::New(publication)
            }
            Err(offset) => Appended::Duplicate(offset),
        }
    }

    /// Appends a publication to a keyed state, or refuses one that needs a keyed state. Kept out of line so that
    /// [`History::append`] stays small for channels that are no state.
    #[inline(never)]
    fn append_to_state(&mut self, new: NewPublication, now_ms: u64, bounds: &Bounds) -> Appended {
        if let Some(outcome) = self.check_state(&new, now_ms, bounds) {
            return outcome;
        }
        match self.place(new, now_ms) {
            Ok(publication) => {
                let (top, first) = (self.top, self.first());
                self.state.get_or_insert_with(|| Box::new(State::new(top - 1))).put(&publication, first);
                self.trim(now_ms, bounds);
                Appended::New(publication)
            }
            Err(offset) => Appended::Duplicate(offset),
        }
    }

    /// Adds a publication at the end of the log. Returns the offset of the first publication with its idempotency key
    /// if there is one.
    #[inline(always)]
    fn place(&mut self, new: NewPublication, now_ms: u64) -> Result<Publication, u64> {
        if let Some(key) = new.idempotency_key {
            let keys = self.keys.get_or_insert_default();
            if let Some(offset) = keys.find_or_insert(key, new.holder, self.top + 1, now_ms) {
                return Err(offset);
            }
        }
        let head = PublicationHead {
            offset: self.top + 1,
            time_ms: self.top_time_ms.max(now_ms),
            key: new.key,
            expires_ms: new.ttl_ms.map(|ttl| now_ms.saturating_add(ttl)),
            is_traced: false,
            kind: new.kind,
            is_deletion: new.is_deletion,
        };
        let publication = Publication::placed(head, new.data);
        self.push(publication.clone());
        Ok(publication)
    }

    /// Checks a publication into a keyed state, or one that needs a keyed state. Returns the outcome if the publication
    /// does not enter. A repeated idempotency key comes first: the condition held when the key was first used.
    fn check_state(&mut self, new: &NewPublication, now_ms: u64, bounds: &Bounds) -> Option<Appended> {
        if let Some(key) = &new.idempotency_key
            && let Some(offset) = self.keys.as_mut().and_then(|keys| keys.find(key, now_ms))
        {
            return Some(Appended::Duplicate(offset));
        }
        let check = || {
            check_fits(new, bounds.keys_max > 0)?;
            let state = self.state.as_deref();
            let known = state.zip(new.key.as_deref()).and_then(|(state, key)| state.get(key));
            let current = known.filter(|newest| !newest.is_expired(now_ms));
            check_expected(new.expected, current.map(|newest| self.position(newest.offset)))?;
            let is_full = state.is_some_and(|state| state.key_count() >= bounds.keys_max);
            if is_full && known.is_none() && !new.is_deletion { Err(too_many_keys(bounds.keys_max)) } else { Ok(()) }
        };
        check().err().map(|error| Appended::Refused(Box::new(error)))
    }

    /// Appends a deletion of the key whose time to live ended first. Returns `None` if no key has expired.
    pub fn expire(&mut self, now_ms: u64, bounds: &Bounds) -> Option<Publication> {
        let key = self.state.as_ref()?.first_expired(now_ms)?.into();
        match self.append(NewPublication::deletion(key), now_ms, bounds) {
            Appended::New(deletion) => Some(deletion),
            Appended::Duplicate(_) | Appended::Refused(_) => None,
        }
    }

    /// Returns true if a time to live has ended, so that [`History::expire`] has work.
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.state.as_ref().is_some_and(|state| state.first_expired(now_ms).is_some())
    }

    /// Appends a publication that already has an offset. Returns false and changes nothing if it is not the next
    /// offset.
    pub fn adopt(&mut self, publication: Publication, now_ms: u64, bounds: &Bounds) -> bool {
        if publication.offset != self.top + 1 {
            return false;
        }
        self.push(publication);
        self.trim(now_ms, bounds);
        true
    }

    /// Returns true if this history holds everything after `since`. If false, another store may hold more.
    pub fn covers(&self, since: Since) -> bool {
        let first = self.first();
        match since {
            Since::Now => true,
            Since::Earliest => first == 1,
            // A part of a log has no state.
            Since::State | Since::StateAfter { .. } => false,
            Since::Position(at) | Since::StateOr(at) => {
                at.epoch == self.epoch && (first - 1..=self.top).contains(&at.offset)
            }
            Since::Time(ms) => first == 1 || self.log.front().is_some_and(|oldest| oldest.time_ms < ms),
        }
    }

    fn push(&mut self, publication: Publication) {
        self.top = publication.offset;
        self.top_time_ms = publication.time_ms;
        self.bytes += publication.cost_bytes();
        if self.log.is_empty() {
            self.oldest_time_ms = publication.time_ms;
        }
        self.log.push_back(publication);
    }

    /// Returns the publications after `since`, oldest first; with [`Policy::Latest`] only the newest per key.
    ///
    /// Cost: O(items returned); for `latest` O(items held after `since`).
    /// Source: docs/reference/protocol.md, "Words" (gap) and "Reading".
    pub fn page(&mut self, since: Since, policy: Policy, limit: PageLimit, now_ms: u64, bounds: &Bounds) -> Page {
        self.trim(now_ms, bounds);
        if let Since::State | Since::StateAfter { .. } = since {
            return self.state_page(since, limit, now_ms);
        }
        // In a keyed state, a deletion follows when the time to live ends. So nothing is missing that needs a gap.
        let is_expired = |publication: &Publication| bounds.keys_max == 0 && publication.is_expired(now_ms);
        let first = self.first();
        let (asked, mut next) = self.start(since, first);
        while next <= self.top && is_expired(self.at(next, first)) {
            next += 1;
        }
        let from = asked.unwrap_or(self.position(next - 1));
        let gap = (from != self.position(next - 1)).then(|| Gap { from, to: self.position(next - 1) });
        let held = self.log.range((next - first) as usize..);
        let (publications, end) = match policy {
            Policy::Every => {
                let fresh = held.take_while(|publication| !is_expired(publication));
                let page = take_page(fresh, limit);
                let end = page.last().map_or(next - 1, |last| last.offset);
                (page, end)
            }
            Policy::Latest => {
                let mut seen = HashSet::new();
                let newest: Vec<_> = held.rev().filter(|p| !is_expired(p) && seen.insert(p.key.clone())).collect();
                let all = newest.len();
                let page = take_page(newest.into_iter().rev(), limit);
                let end =
                    if page.len() == all { self.top.max(next - 1) } else { page.last().map_or(next - 1, |p| p.offset) };
                (page, end)
            }
        };
        Page { gap, publications, end: self.position(end), top: self.top(), part: Part::Log }
    }

    fn state_page(&self, since: Since, limit: PageLimit, now_ms: u64) -> Page {
        let first = self.first();
        State::page(self.state.as_deref(), self.top(), since, limit, now_ms, |offset| self.at(offset, first))
    }

    /// Returns the oldest offset of the log; the offset after the top if the log is empty.
    fn first(&self) -> u64 {
        self.top + 1 - self.log.len() as u64
    }

    /// Evicts publications above the limits. Offsets do not change.
    #[inline(always)]
    pub fn trim(&mut self, now_ms: u64, bounds: &Bounds) {
        if self.keys.is_some() {
            self.forget_keys(now_ms);
        }
        while self.log.len() > bounds.count_max
            || self.bytes > bounds.bytes_max
            || now_ms.saturating_sub(self.oldest_time_ms) >= bounds.age_max_ms
        {
            if !self.drop_oldest() {
                return;
            }
        }
    }

    /// Kept out of line so that [`History::trim`] is inlined.
    #[inline(never)]
    fn forget_keys(&mut self, now_ms: u64) {
        if let Some(keys) = &mut self.keys {
            keys.forget(now_ms);
            if keys.is_empty() {
                self.keys = None;
            }
        }
    }

    /// Evicts the oldest publications until the history takes at most this many bytes of memory. Offsets do not
    /// change. Idempotency keys are dropped last; after that a repeated publication counts as new. The state stays,
    /// whatever memory it takes.
    pub fn shrink(&mut self, memory_bytes_max: usize) {
        while self.memory_bytes() > memory_bytes_max && self.drop_oldest() {}
        self.log.shrink_to_fit();
        while self.memory_bytes() > memory_bytes_max && self.keys.as_mut().is_some_and(|keys| keys.drop_oldest()) {}
        self.keys = self.keys.take().filter(|keys| !keys.is_empty());
    }

    /// Creates a history for a new channel that follows forgotten channels. `top` is the newest position that those
    /// channels used, so no position is assigned twice. A reader that resumes from a forgotten position gets a gap.
    /// `before_ms` is the time of the newest lost publication.
    pub fn after_forgotten(top: Position, before_ms: u64) -> Self {
        let trimmed_before_ms = if top.offset > 0 { before_ms + 1 } else { 0 };
        Self { top: top.offset, trimmed_before_ms, ..Self::new(top.epoch) }
    }

    /// Drops the oldest publication. Returns false if there is none.
    #[inline(always)]
    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.log.pop_front() else { return false };
        self.bytes -= oldest.cost_bytes();
        self.trimmed_before_ms = oldest.time_ms + 1;
        if let Some(state) = &mut self.state {
            state.trimmed(&oldest);
        }
        self.oldest_time_ms = self.log.front().map_or(0, |oldest| oldest.time_ms);
        true
    }

    /// Returns the position that the reader claims (if it names one), and the first offset that it can receive.
    fn start(&self, since: Since, first: u64) -> (Option<Position>, u64) {
        match since {
            Since::Now => (None, self.top + 1),
            Since::Earliest | Since::State | Since::StateAfter { .. } => (None, first),
            Since::Position(at) | Since::StateOr(at) if at.epoch != self.epoch => (Some(at), first),
            // This log never assigned this position: the reader knows a different log.
            Since::Position(at) | Since::StateOr(at) if at.offset > self.top => (Some(at), self.top + 1),
            Since::Position(at) | Since::StateOr(at) => (Some(at), first.max(at.offset + 1)),
            Since::Time(ms) => {
                let next = first + self.log.partition_point(|publication| publication.time_ms < ms) as u64;
                let lost_some = self.trimmed_before_ms > ms;
                (Some(self.position(if lost_some { 0 } else { next - 1 })), next)
            }
        }
    }

    fn at(&self, offset: u64, first: u64) -> &Publication {
        &self.log[(offset - first) as usize]
    }

    fn position(&self, offset: u64) -> Position {
        Position { epoch: self.epoch, offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::IDEMPOTENCY_MS;
    use millrace_protocol::Kind;

    const BOUNDS: Bounds = Bounds { count_max: 5, bytes_max: 1000, age_max_ms: 1000, keys_max: 0 };
    const LIMIT: PageLimit = PageLimit { count: 100, bytes: 1 << 20 };

    fn new(data: &str) -> NewPublication {
        NewPublication::new(Kind::Text, data.as_bytes())
    }

    fn filled(count: u64) -> History {
        let mut history = History::new(Epoch(1));
        for i in 1..=count {
            history.append(new(&i.to_string()), i, &BOUNDS);
        }
        history
    }

    fn at(epoch: u32, offset: u64) -> Position {
        Position { epoch: Epoch(epoch), offset }
    }

    fn read(history: &mut History, since: Since) -> (Option<(u64, u64)>, Vec<u64>) {
        let page = history.page(since, Policy::Every, LIMIT, 10, &BOUNDS);
        (page.gap.map(|gap| (gap.from.offset, gap.to.offset)), page.publications.iter().map(|p| p.offset).collect())
    }

    #[test]
    fn offsets_increase_by_one_within_bounds() {
        let mut history = filled(8);
        assert_eq!(read(&mut history, Since::Earliest), (None, vec![4, 5, 6, 7, 8]));
        assert_eq!(read(&mut history, Since::Now), (None, vec![]));
        assert_eq!(read(&mut history, Since::Position(at(1, 6))), (None, vec![7, 8]));
        assert_eq!(read(&mut history, Since::Position(at(1, 3))), (None, vec![4, 5, 6, 7, 8]));
    }

    #[test]
    fn missing_publications_are_reported_as_gap() {
        let mut history = filled(8);
        assert_eq!(read(&mut history, Since::Position(at(1, 1))), (Some((1, 3)), vec![4, 5, 6, 7, 8]));
        assert_eq!(read(&mut history, Since::Position(at(9, 77))), (Some((77, 3)), vec![4, 5, 6, 7, 8]));
        assert_eq!(read(&mut history, Since::Position(at(1, 99))), (Some((99, 8)), vec![]));
        assert_eq!(read(&mut History::new(Epoch(2)), Since::Position(at(1, 3))), (Some((3, 0)), vec![]));
    }

    #[test]
    fn time_selects_first_later_publication() {
        let mut history = filled(8);
        assert_eq!(read(&mut history, Since::Time(6)), (None, vec![6, 7, 8]));
        assert_eq!(read(&mut history, Since::Time(2)), (Some((0, 3)), vec![4, 5, 6, 7, 8]));
        assert_eq!(read(&mut history, Since::Time(99)), (None, vec![]));
    }

    #[test]
    fn idempotency_keys_are_counted_and_evicted_last() {
        let mut history = History::new(Epoch(1));
        let keyed = |i: u64| NewPublication { idempotency_key: Some(format!("key {i:03}").into()), ..new("a") };
        for i in 0..100 {
            history.append(keyed(i), 1, &BOUNDS);
        }
        let held = history.memory_bytes() - history.bytes() - history.log.len() * ENTRY_BYTES;
        assert!(held >= 100 * (2 * 7 + 64), "{held}");
        history.shrink(held);
        assert!(history.log.is_empty() && matches!(history.append(keyed(0), 1, &BOUNDS), Appended::Duplicate(1)));
        history.shrink(held / 2);
        assert!(matches!(history.append(keyed(99), 1, &BOUNDS), Appended::Duplicate(100)));
        assert!(matches!(history.append(keyed(0), 1, &BOUNDS), Appended::New(_)), "the oldest key was forgotten");
        history.shrink(0);
        assert_eq!(history.memory_bytes(), 0);
    }

    #[test]
    fn eviction_reports_gap_only_after_possible_loss() {
        let mut history = History::after_forgotten(at(1, 8), 50);
        assert_eq!(read(&mut history, Since::Position(at(1, 3))), (Some((3, 8)), vec![]));
        history.append(new("a"), 60, &BOUNDS);
        assert_eq!(read(&mut history, Since::Position(at(1, 8))), (None, vec![9]));
        assert_eq!(read(&mut history, Since::Earliest), (None, vec![9]));
        assert_eq!(read(&mut history, Since::Time(51)), (None, vec![9]));
        assert_eq!(read(&mut history, Since::Time(50)), (Some((0, 8)), vec![9]));
        assert!(History::after_forgotten(at(1, 0), 0).covers(Since::Earliest));
    }

    #[test]
    fn age_and_size_trim_history() {
        let mut history = filled(3);
        assert!(history.page(Since::Earliest, Policy::Every, LIMIT, 1002, &BOUNDS).publications.len() == 1);
        let mut history = History::new(Epoch(1));
        for _ in 0..3 {
            history.append(new(&"x".repeat(400)), 1, &BOUNDS);
        }
        assert_eq!((history.bytes(), history.top().offset), (800, 3));
    }

    #[test]
    fn range_ends_at_its_bound() {
        let cut = |since, until| {
            let page = filled(8).page(since, Policy::Every, LIMIT, 8, &BOUNDS).cut(since, until);
            let gap = page.gap.map(|gap| (gap.from, gap.to));
            (gap, page.publications.iter().map(|p| p.offset).collect::<Vec<_>>(), page.end, page.has_more())
        };
        let since = |offset| Since::Position(at(1, offset));
        assert_eq!(cut(Since::Earliest, at(1, 6)), (None, vec![4, 5, 6], at(1, 6), false));
        assert_eq!(cut(since(6), at(1, 6)), (None, vec![], at(1, 6), false));
        assert_eq!(cut(since(6), at(1, 99)), (None, vec![7, 8], at(1, 8), false));
        // The gap is cut to the requested range, too.
        assert_eq!(cut(since(1), at(1, 2)), (Some((at(1, 1), at(1, 2))), vec![], at(1, 2), false));
        assert_eq!(cut(since(1), at(1, 4)), (Some((at(1, 1), at(1, 3))), vec![4], at(1, 4), false));
        assert_eq!(cut(since(2), at(1, 2)), (None, vec![], at(1, 2), false));
        let old = |offset| Since::Position(at(7, offset));
        assert_eq!(cut(old(5), at(1, 4)), (Some((at(7, 5), at(1, 3))), vec![4], at(1, 4), false));
        assert_eq!(cut(old(5), at(7, 9)), (Some((at(7, 5), at(7, 9))), vec![], at(7, 9), false));
        assert_eq!(cut(old(9), at(7, 9)), (None, vec![], at(7, 9), false));
        assert_eq!(cut(Since::Earliest, at(7, 9)), (Some((at(7, 0), at(7, 9))), vec![], at(7, 9), false));
    }

    #[test]
    fn page_reports_whether_more_follows() {
        let two = PageLimit { count: 2, bytes: 1000 };
        let more = |since, until| {
            let since = Since::Position(since);
            filled(8).page(since, Policy::Every, two, 8, &BOUNDS).cut(since, until).has_more()
        };
        assert!(more(at(1, 3), at(1, 8)) && more(at(1, 3), at(1, 6)));
        assert!(!more(at(1, 3), at(1, 5)) && !more(at(1, 6), at(1, 99)));
    }

    #[test]
    fn shrunk_history_reports_gap() {
        let mut history = filled(5);
        let one = history.memory_bytes() / 5;
        history.shrink(2 * one);
        assert_eq!(read(&mut history, Since::Position(at(1, 1))), (Some((1, 3)), vec![4, 5]));
        history.shrink(0);
        assert_eq!((history.memory_bytes(), history.top()), (0, at(1, 5)));
        assert_eq!(read(&mut history, Since::Position(at(1, 1))), (Some((1, 5)), vec![]));
        assert_eq!(read(&mut history, Since::Time(3)), (Some((0, 5)), vec![]));
        history.append(new("6"), 6, &BOUNDS);
        assert_eq!(read(&mut history, Since::Position(at(1, 5))), (None, vec![6]));
    }

    #[test]
    fn partial_log_reports_missing_publications() {
        let mut whole = filled(8);
        let mut part = History::after(at(1, 5));
        assert!(part.covers(Since::Now) && part.covers(Since::Position(at(1, 5))) && !part.covers(Since::Earliest));
        assert!(!part.covers(Since::Time(0)) && !part.covers(Since::Position(at(1, 6))));
        let page = whole.page(Since::Position(at(1, 5)), Policy::Every, LIMIT, 10, &BOUNDS);
        let [six, seven, eight] = page.publications.try_into().unwrap();
        assert!(part.adopt(six.clone(), 10, &BOUNDS) && part.adopt(seven, 10, &BOUNDS));
        assert!(!part.adopt(six, 10, &BOUNDS), "it is there already");
        assert_eq!(part.top(), at(1, 7));
        assert_eq!([4, 5, 7, 8].map(|offset| part.covers(Since::Position(at(1, offset)))), [false, true, true, false]);
        assert_eq!([6, 7].map(|ms| part.covers(Since::Time(ms))), [false, true]);
        assert!(!part.covers(Since::Position(at(2, 7))));
        assert_eq!(read(&mut part, Since::Position(at(1, 5))), (None, vec![6, 7]));
        let mut from_the_start = History::after(at(1, 0));
        assert!(!from_the_start.adopt(eight, 10, &BOUNDS), "a hole");
        assert!(from_the_start.covers(Since::Earliest) && from_the_start.covers(Since::Time(0)));
    }

    #[test]
    fn expired_publications_are_reported_as_gap() {
        let mut history = filled(2);
        let mut short = new("short");
        short.ttl_ms = Some(5);
        history.append(short, 3, &BOUNDS);
        history.append(new("4"), 4, &BOUNDS);
        assert_eq!(read(&mut history, Since::Position(at(1, 0))), (None, vec![1, 2]));
        assert_eq!(read(&mut history, Since::Position(at(1, 2))), (Some((2, 3)), vec![4]));
        assert_eq!(read(&mut history, Since::Time(3)), (Some((2, 3)), vec![4]));
        assert_eq!(read(&mut history, Since::Time(2)), (None, vec![2]));
    }

    #[test]
    fn idempotency_key_publishes_once() {
        let mut history = History::new(Epoch(1));
        let keyed = || NewPublication { idempotency_key: Some("k".into()), ..new("a") };
        assert!(matches!(history.append(keyed(), 0, &BOUNDS), Appended::New(_)));
        assert!(matches!(history.append(keyed(), 1, &BOUNDS), Appended::Duplicate(1)));
        assert!(matches!(history.append(keyed(), IDEMPOTENCY_MS, &BOUNDS), Appended::New(_)));
        assert_eq!(history.top().offset, 2);
    }

    #[test]
    fn latest_returns_newest_per_key_on_each_page() {
        let mut history = History::new(Epoch(1));
        for key in ["a", "b", "a", "c", "b"] {
            history.append(NewPublication { key: Some(key.into()), ..new(key) }, 1, &BOUNDS);
        }
        let offsets = |page: &Page| page.publications.iter().map(|p| p.offset).collect::<Vec<_>>();
        let page = history.page(Since::Earliest, Policy::Latest, LIMIT, 1, &BOUNDS);
        assert_eq!((offsets(&page), page.end.offset), (vec![3, 4, 5], 5));
        let two = PageLimit { count: 2, bytes: 1000 };
        let page = history.page(Since::Earliest, Policy::Latest, two, 1, &BOUNDS);
        assert_eq!((offsets(&page), page.end.offset), (vec![3, 4], 4));
        let page = history.page(Since::Position(page.end), Policy::Latest, two, 1, &BOUNDS);
        assert_eq!((offsets(&page), page.end.offset), (vec![5], 5));
    }
}
