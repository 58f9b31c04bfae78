//! Index of a keyed state. The stored messages of a channel hold its state, too: the server keeps a fixed number of
//! messages per channel, and each new message carries what the oldest ones hold of the state.
//!
//! ```text
//!   message   #1  #2  #3  #4  #5          the server keeps four
//!   holds     a   b   c   a   d
//!   carries                   b           #1 held nothing newest; #5 carries `b`, as #2 is dropped with #6
//! ```
//!
//! One append changes log and state together, so a node that dies leaves nothing to repair.

use std::collections::{BTreeSet, HashMap, VecDeque};

use millrace_delivery::{Bounds, Page, PageLimit, State, check_expected, too_many_keys};
use millrace_protocol::{Code, Epoch, Error, NewPublication, Position, Publication, Since};

use super::wire::{Batch, CARRIED_BYTES, Carried, End, LogEnd, PUBLICATION_BYTES};

/// Messages that hold the state may go back this far at least, without being carried.
const SPAN_MIN: usize = 64;
/// Bytes that a message carries at most before it has to, unless its own publications have more.
const CARRY_BYTES: usize = 16 << 10;

/// The state of one channel, as far as this node has read its messages.
pub struct StateIndex {
    /// The newest message read.
    tail: LogEnd,
    state: State,
    /// Sequences of the stored messages from the oldest that holds a part of the state, oldest first.
    messages: VecDeque<u64>,
    /// Message that holds the newest publication of a key, and the offset of that publication.
    holders: BTreeSet<(u64, u64)>,
    /// Message that holds the publication with this offset.
    holder_of: HashMap<u64, u64>,
    /// The deletions in the log, each with the end of the log before it.
    deletions: VecDeque<(End, Publication)>,
}

impl StateIndex {
    /// Creates the index of a log of which nothing is known before `end`.
    pub fn new(epoch: Epoch, end: End) -> Self {
        let (messages, holders, holder_of, deletions) = Default::default();
        let tail = LogEnd { epoch, sequence: 0, end };
        Self { tail, state: State::new(end.offset), messages, holders, holder_of, deletions }
    }

    pub fn tail(&self) -> LogEnd {
        self.tail
    }

    /// Returns true if this message follows the newest one read.
    pub fn is_followed_by(&self, batch: &Batch) -> bool {
        match &batch.carried {
            Some(carried) => carried.previous == self.tail.sequence,
            None => batch.before == self.tail.end,
        }
    }

    /// Reads the next stored message of a stream that keeps `kept` messages per channel. Returns false if the message
    /// does not follow the one before. Then the server has dropped the messages between, and the index begins anew:
    /// every publication that only dropped messages held was superseded, deleted or carried.
    pub fn read(&mut self, sequence: u64, batch: &Batch, kept: usize) -> bool {
        let follows = self.is_followed_by(batch);
        if !follows {
            *self = Self::new(self.tail.epoch, batch.before);
        }
        for entry in batch.carried.iter().flat_map(|carried| &carried.entries) {
            let known = entry.key.as_deref().and_then(|key| self.state.get(key)).map(|known| known.offset);
            if known.is_none() {
                self.state.put(entry, 0);
            }
            if known.is_none_or(|known| known == entry.offset) {
                self.release(entry.offset);
                self.hold(sequence, entry.offset);
            }
        }
        for (before, publication) in batch.steps() {
            let Some(key) = publication.key.as_deref() else { continue };
            if let Some(known) = self.state.get(key).map(|known| known.offset) {
                self.release(known);
            }
            self.state.put(publication, 0);
            if publication.is_deletion {
                self.deletions.push_back((before, publication.clone()));
            } else {
                self.hold(sequence, publication.offset);
            }
        }
        self.tail = LogEnd { sequence, end: batch.end(), ..self.tail };
        self.messages.push_back(sequence);
        while self.messages.len() > kept {
            self.messages.pop_front();
        }
        follows
    }

    fn hold(&mut self, sequence: u64, offset: u64) {
        self.holders.insert((sequence, offset));
        self.holder_of.insert(offset, sequence);
    }

    fn release(&mut self, offset: u64) {
        if let Some(sequence) = self.holder_of.remove(&offset) {
            self.holders.remove(&(sequence, offset));
        }
    }

    /// Checks publications in their order, each against the state that the accepted ones before it leave.
    pub fn check(&self, new: &[NewPublication], now_ms: u64, bounds: &Bounds) -> Vec<Result<(), Error>> {
        // Keys that the accepted publications change, each with its new offset and expiry; `None` if it is deleted.
        let mut changed = HashMap::<&str, Option<(u64, Option<u64>)>>::new();
        let (mut keys, mut top) = (self.state.key_count(), self.tail.end.offset);
        let mut outcomes = Vec::with_capacity(new.len());
        for new in new {
            let key = new.key.as_deref().unwrap_or_default();
            let stored = || self.state.get(key).map(|known| (known.offset, known.expires_ms));
            let known = changed.get(key).copied().unwrap_or_else(stored);
            let current = known.filter(|(_, expires_ms)| expires_ms.is_none_or(|at_ms| at_ms > now_ms));
            let current = current.map(|(offset, _)| Position { epoch: self.tail.epoch, offset });
            let is_full = known.is_none() && !new.is_deletion && keys >= bounds.keys_max;
            let outcome = check_expected(new.expected, current);
            let outcome = outcome.and(if is_full { Err(too_many_keys(bounds.keys_max)) } else { Ok(()) });
            if outcome.is_ok() {
                top += 1;
                keys = keys + usize::from(!new.is_deletion) - usize::from(known.is_some());
                let expires_ms = new.ttl_ms.map(|ttl_ms| now_ms.saturating_add(ttl_ms));
                changed.insert(key, (!new.is_deletion).then_some((top, expires_ms)));
            }
            outcomes.push(outcome);
        }
        outcomes
    }

    /// Returns what the next message has to carry, because the server drops the oldest message, and some of what will
    /// have to be carried soon. `bytes` and `count` are those of the publications of the message.
    ///
    /// Errors: [`Code::TooLarge`] if that does not fit into a message.
    pub fn carry(&self, bytes: usize, count: usize, message_max: usize, kept: usize) -> Result<Carried, Error> {
        let stored = self.messages.len();
        // The message that will have this number of messages after it; messages up to it are older.
        let before = |span: usize| stored.checked_sub(span).and_then(|at| self.messages.get(at)).copied().unwrap_or(0);
        let span_max = kept - kept / 4;
        // A short way back makes it cheap for a node to read the state.
        let span = (2 * self.state.key_count()).max(SPAN_MIN).min(span_max);
        let (must, may) = (before(kept), before(span));
        let (bytes_max, count_max) = (CARRY_BYTES.max(bytes), 4 * count + 4);
        let mut carried = Carried { previous: self.tail.sequence, oldest: 0, entries: Vec::new() };
        let mut used = 0;
        for &(holder, offset) in &self.holders {
            let has_to = holder <= must;
            let has_room = used < bytes_max && carried.entries.len() < count_max;
            let entry = self.state.entries_after(offset - 1, 0, 0).next();
            let size = CARRIED_BYTES + PUBLICATION_BYTES + entry.map_or(0, Publication::cost_bytes);
            let fits = bytes + used + size <= message_max;
            if has_to && !fits {
                let detail = format!(
                    "the keyed state is too large for NATS: a message of {} bytes does not hold the publication and what the \
                     log drops: raise `max_payload` of nats-server, or publish smaller values",
                    message_max
                );
                return Err(Error::new(Code::TooLarge, detail));
            }
            if !has_to && (holder > may || !has_room || !fits) {
                carried.oldest = holder;
                break;
            }
            used += size;
            carried.entries.extend(entry.cloned());
        }
        Ok(carried)
    }

    /// Notes which deletions the log does not hold any more.
    pub fn trim(&mut self, now_ms: u64, bounds: &Bounds) {
        while let Some((before, deletion)) = self.deletions.front()
            && !self.tail.end.holds(*before, deletion.time_ms, now_ms, bounds)
        {
            self.state.trimmed(deletion);
            self.deletions.pop_front();
        }
    }

    /// Returns a part of the state, see [`Engine::page`](crate::Engine::page).
    pub fn page(&self, since: Since, limit: PageLimit, now_ms: u64) -> Page {
        let top = Position { epoch: self.tail.epoch, offset: self.tail.end.offset };
        let deletion = |offset| {
            let at = self.deletions.partition_point(|(_, deletion)| deletion.offset < offset);
            &self.deletions[at].1
        };
        State::page(Some(&self.state), top, since, limit, now_ms, deletion)
    }

    /// Returns keys whose time to live has ended.
    pub fn expired(&self, now_ms: u64, max: usize) -> Vec<Box<str>> {
        self.state.expired(now_ms).take(max).map(Into::into).collect()
    }

    /// Returns true if a key has a time to live.
    pub fn will_expire(&self) -> bool {
        self.state.expired(u64::MAX).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use millrace_protocol::{Expected, Kind};
    use rand_pcg::{Pcg64, rand_core::Rng};

    use super::*;
    use crate::nats::wire::Token;

    const BOUNDS: Bounds = Bounds { count_max: 3, bytes_max: 1 << 20, age_max_ms: 1 << 40, keys_max: 1000 };
    const ALL: PageLimit = PageLimit { count: 10_000, bytes: 1 << 30 };

    /// The messages of one channel, as the server keeps them.
    struct Server {
        kept: usize,
        messages: VecDeque<(u64, Bytes)>,
    }

    impl Server {
        fn read(&self, index: &mut StateIndex, from: u64) {
            let later = self.messages.iter().filter(|(sequence, _)| *sequence >= from);
            later.for_each(|(sequence, bytes)| {
                _ = index.read(*sequence, &Batch::decode(bytes.clone()).unwrap(), self.kept)
            });
        }

        fn append(&mut self, index: &mut StateIndex, new: &[NewPublication]) -> Batch {
            let token = Token { node: "n".into(), number: 1, part: 0 };
            let mut batch = Batch::new(token, index.tail().end, new, 1);
            batch.carried = Some(index.carry(batch.payload_bytes(), new.len(), 1 << 20, self.kept).unwrap());
            // Messages of other channels lie between.
            let sequence = index.tail().sequence + 3;
            self.messages.push_back((sequence, batch.encode()));
            if self.messages.len() > self.kept {
                self.messages.pop_front();
            }
            index.read(sequence, &batch, self.kept);
            batch
        }
    }

    fn put(key: &str, data: &str) -> NewPublication {
        NewPublication { key: Some(key.into()), ..NewPublication::new(Kind::Text, data) }
    }

    fn new_index() -> StateIndex {
        StateIndex::new(Epoch(1), End::default())
    }

    fn map(index: &StateIndex) -> BTreeMap<String, Vec<u8>> {
        let page = index.page(Since::State, ALL, 0);
        page.publications.iter().map(|p| (p.key.as_deref().unwrap().into(), p.data().to_vec())).collect()
    }

    #[test]
    fn stored_messages_always_hold_the_whole_state() {
        let mut dice = Pcg64::new(7, 7);
        let mut roll = move |below: u64| dice.next_u64() % below;
        for (kept, keys) in [(1, 5), (4, 1), (8, 40), (300, 20), (300, 400)] {
            let mut server = Server { kept, messages: VecDeque::new() };
            let (mut index, mut truth) = (new_index(), BTreeMap::new());
            let mut slow = new_index();
            for step in 0..2000u64 {
                let batch: Vec<_> = (0..=roll(3))
                    .map(|_| {
                        let key = format!("k{}", roll(keys).min(roll(keys)));
                        let data = step.to_string();
                        if roll(5) == 0 {
                            truth.remove(&key);
                            return NewPublication::deletion(key.into());
                        }
                        truth.insert(key.clone(), data.clone().into_bytes());
                        put(&key, &data)
                    })
                    .collect();
                let message = server.append(&mut index, &batch);
                assert_eq!(map(&index), truth, "step {step}, {kept} messages");
                if roll(20) == 0 {
                    let mut whole = new_index();
                    server.read(&mut whole, 0);
                    assert_eq!(map(&whole), truth, "all messages, step {step}, {kept} messages");
                    let mut recent = new_index();
                    let oldest = message.carried.unwrap().oldest;
                    server.read(&mut recent, if oldest == 0 { index.tail().sequence } else { oldest });
                    assert_eq!(map(&recent), truth, "from the oldest, step {step}, {kept} messages");
                    assert!(
                        recent.messages.len() <= (2 * truth.len() + 40).max(2 * SPAN_MIN),
                        "{} messages",
                        recent.messages.len()
                    );
                }
                if roll(50) == 0 {
                    let from = slow.tail().sequence + 1;
                    server.read(&mut slow, from);
                    assert_eq!(map(&slow), truth, "a reader that was slow, step {step}, {kept} messages");
                }
            }
        }
    }

    #[test]
    fn message_too_small_for_what_is_dropped_is_refused() {
        let mut server = Server { kept: 2, messages: VecDeque::new() };
        let mut index = new_index();
        (0..2).for_each(|i| _ = server.append(&mut index, &[put(&i.to_string(), &"x".repeat(1000))]));
        assert_eq!(index.carry(500, 1, 1400, 2).unwrap_err().code, Code::TooLarge);
        assert_eq!(index.carry(0, 1, 1400, 2).unwrap().entries.len(), 1);
    }

    #[test]
    fn publications_of_a_batch_are_checked_in_turn() {
        let mut index = new_index();
        let mut server = Server { kept: 9, messages: VecDeque::new() };
        server.append(&mut index, &[NewPublication { ttl_ms: Some(9), ..put("old", "") }, put("a", "")]);
        let with = |expected, new| NewPublication { expected: Some(expected), ..new };
        let at = |offset| Expected::At(Position { epoch: Epoch(1), offset });
        let batch = [
            with(Expected::Absent, put("old", "")),
            with(at(2), put("a", "")),
            with(at(2), put("a", "")),
            with(at(4), NewPublication::deletion("a".into())),
            put("b", ""),
            put("c", ""),
        ];
        let codes: Vec<_> = index
            .check(&batch, 10, &Bounds { keys_max: 2, ..BOUNDS })
            .into_iter()
            .map(|check| check.map_err(|error| error.code).err())
            .collect();
        let (failed, many) = (Some(Code::PreconditionFailed), Some(Code::TooMany));
        assert_eq!(codes, [None, None, failed, None, None, many]);
    }

    #[test]
    fn dropped_deletions_are_noted() {
        let mut index = new_index();
        let mut server = Server { kept: 9, messages: VecDeque::new() };
        server.append(&mut index, &[put("a", ""), NewPublication::deletion("a".into()), put("b", "")]);
        index.trim(1, &BOUNDS);
        let inside = Since::StateAfter { epoch: Epoch(1), offset: 1, began: 1 };
        let offsets = |page: Page| page.publications.iter().map(|p| p.offset).collect::<Vec<_>>();
        assert_eq!(offsets(index.page(inside, ALL, 0)), [2, 3]);
        server.append(&mut index, &[put("b", ""), put("b", "")]);
        index.trim(1, &BOUNDS);
        let again = index.page(inside, ALL, 0);
        assert!(again.gap.is_some());
        assert_eq!(offsets(again), [5]);
    }
}
