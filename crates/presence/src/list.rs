//! One list, as this node writes it: its own numbers, and when they are due.
//!
//! ```text
//!                    change                 batch            position
//!   equal ──────────────────────► due ───────────────► busy ───────────► equal
//!     ▲ returned to the written     │  412: current position │
//!     │ number                      │                        ▼
//!     └─────────────────────────────┘        busy ◄── entry read, merged, written again
//! ```

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use millrace_protocol::{Epoch, Expected, Kind, NewPublication, Position};

use crate::{Entry, lists::is_same_node};

/// Minimum interval between two batches of one list, in milliseconds.
pub const BATCH_MS: u64 = 1000;
/// Maximum number of writes of one list in flight.
const IN_FLIGHT_MAX: usize = 1000;
/// Pause before a write without an answer is retried, in milliseconds.
const RETRY_MS: u64 = 1000;
/// Interval at which keys are retried that a full list has refused, and their maximum number per interval.
const REFUSED_RETRY_MS: u64 = 10_000;
const REFUSED_AT_ONCE: usize = 100;
/// Time after which a list without entries of this node is given up, in milliseconds.
const IDLE_MS: u64 = 10_000;

/// A position that no publication has.
pub const NOWHERE: Position = Position { epoch: Epoch(0), offset: 0 };

/// A list, as this node writes it.
pub struct List {
    /// Time for which a smaller number is not written, in milliseconds.
    grace_ms: u64,
    keys: HashMap<Arc<str>, Tracked>,
    due: BTreeSet<(u64, Arc<str>)>,
    /// Keys that the full list has refused, and when they are retried.
    refused: BTreeSet<Arc<str>>,
    refused_retry_ms: u64,
    last_batch_ms: Option<u64>,
    /// While a batch is being sent: keys due up to this time belong to it.
    batch_until_ms: Option<u64>,
    in_flight: usize,
    pub registration: Registration,
    idle_since_ms: u64,
    /// True while the node leaves: every number becomes 0 at once.
    is_leaving: bool,
    /// Number of keys that have this node in their entry.
    pub written: usize,
}

/// Whether the list is among the lists of this node, so that other nodes remove its entries if it dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    None,
    /// A request was not answered.
    Unknown,
    Beginning,
    Done,
    Ending,
}

/// A key of which this node has, had or writes connections.
struct Tracked {
    wanted: u32,
    info: Option<Arc<str>>,
    known: Known,
    due_ms: Option<u64>,
    is_busy: bool,
    /// A write was not answered, so `known` may be wrong.
    is_uncertain: bool,
}

/// State of the entry of a key, as this node knows it.
enum Known {
    /// Nothing, or that the key does not exist.
    Absent,
    At(Box<Written>),
}

struct Written {
    at: Position,
    /// Number of connections of this node in the entry.
    own: u32,
    /// The entry without this node.
    others: Entry,
}

impl Tracked {
    fn own(&self) -> u32 {
        match &self.known {
            Known::Absent => 0,
            Known::At(written) => written.own,
        }
    }

    /// Forgets that this node is in the entry. Whether it is there is unknown.
    fn forget(&mut self) {
        if let Known::At(written) = &mut self.known {
            written.own = 0;
            self.is_uncertain = true;
        }
    }
}

/// A write of one key.
pub struct Write {
    pub publication: NewPublication,
    pub sent: Sent,
}

/// Content of a write.
#[derive(Clone, Debug)]
pub struct Sent {
    own: u32,
    others: Entry,
    is_deletion: bool,
}

/// Next step after the answer to a write.
pub enum Next {
    Nothing,
    /// Write the key again, now.
    WriteAgain,
    /// Read the entry at this position.
    Read(Position),
    /// The engine has lost entries of this node.
    Lost,
}

impl List {
    pub fn new(grace_ms: u64, now_ms: u64) -> Self {
        Self {
            grace_ms,
            keys: HashMap::new(),
            due: BTreeSet::new(),
            refused: BTreeSet::new(),
            refused_retry_ms: 0,
            last_batch_ms: None,
            batch_until_ms: None,
            in_flight: 0,
            registration: Registration::None,
            idle_since_ms: now_ms,
            is_leaving: false,
            written: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn refused_count(&self) -> usize {
        self.refused.len()
    }

    /// Changes the number of connections of a key on this node.
    pub fn change(&mut self, key: &Arc<str>, change: i64, info: Option<Arc<str>>, now_ms: u64) {
        if self.is_leaving {
            return;
        }
        let tracked = self.keys.entry(key.clone()).or_insert_with(|| Tracked {
            wanted: 0,
            info: None,
            known: Known::Absent,
            due_ms: None,
            is_busy: false,
            is_uncertain: false,
        });
        tracked.wanted = (i64::from(tracked.wanted) + change).clamp(0, u32::MAX.into()) as u32;
        if change > 0 && info.is_some() {
            tracked.info = info;
        }
        if tracked.wanted == 0 {
            self.refused.remove(key);
        }
        self.schedule(key, now_ms);
    }

    /// Sets when the key is written, if it has to be.
    fn schedule(&mut self, key: &Arc<str>, now_ms: u64) {
        let Some(tracked) = self.keys.get_mut(key) else { return };
        if let Some(due_ms) = tracked.due_ms.take() {
            self.due.remove(&(due_ms, key.clone()));
        }
        if tracked.is_busy || self.refused.contains(key) {
            return;
        }
        let (wanted, own) = (tracked.wanted, tracked.own());
        if wanted == own && !tracked.is_uncertain {
            if wanted == 0 {
                self.keys.remove(key);
                self.idle_since_ms = now_ms;
            }
            return;
        }
        let grace_ms = if wanted < own && !self.is_leaving { self.grace_ms } else { 0 };
        self.set_due(key, now_ms + grace_ms);
    }

    fn set_due(&mut self, key: &Arc<str>, due_ms: u64) {
        if let Some(tracked) = self.keys.get_mut(key) {
            tracked.due_ms = Some(due_ms);
            self.due.insert((due_ms, key.clone()));
        }
    }

    /// Returns when the list has something to do.
    pub fn timeout_ms(&self) -> Option<u64> {
        if self.registration == Registration::Ending || self.registration == Registration::Beginning {
            return None;
        }
        if self.keys.is_empty() {
            return Some(if self.is_leaving { 0 } else { self.idle_since_ms + IDLE_MS });
        }
        let batch_ms = match self.batch_until_ms {
            // The rest of the batch follows when writes are answered.
            Some(_) => (self.in_flight < IN_FLIGHT_MAX).then_some(0),
            None => {
                let next_ms = self.last_batch_ms.filter(|_| !self.is_leaving).map_or(0, |last_ms| last_ms + BATCH_MS);
                self.due.first().map(|(due_ms, _)| next_ms.max(*due_ms))
            }
        };
        let retry_ms = (!self.refused.is_empty()).then_some(self.refused_retry_ms);
        batch_ms.into_iter().chain(retry_ms).min()
    }

    /// Returns true if the list has to be registered before [`List::writes`].
    pub fn wants_registration(&self, now_ms: u64) -> bool {
        let has_none = matches!(self.registration, Registration::None | Registration::Unknown);
        has_none && !self.keys.is_empty() && self.timeout_ms().is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// Returns true if no entry has been in the list for a while.
    pub fn is_idle(&self, now_ms: u64) -> bool {
        self.keys.is_empty() && self.timeout_ms().is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// Returns the next writes that are due, by key.
    pub fn writes(&mut self, node: &str, now_ms: u64, unix_ms: u64) -> Vec<(Arc<str>, Write)> {
        if !self.refused.is_empty() && self.refused_retry_ms <= now_ms {
            self.refused_retry_ms = now_ms + REFUSED_RETRY_MS;
            let some: Vec<Arc<str>> = self.refused.iter().take(REFUSED_AT_ONCE).cloned().collect();
            for key in some {
                self.refused.remove(&key);
                self.schedule(&key, now_ms);
            }
        }
        if self.batch_until_ms.is_none() && self.timeout_ms().is_some_and(|at_ms| at_ms <= now_ms) {
            (self.batch_until_ms, self.last_batch_ms) = (Some(now_ms), Some(now_ms));
        }
        let mut writes = Vec::new();
        while let Some(until_ms) = self.batch_until_ms {
            let next = self.due.first().filter(|(due_ms, _)| *due_ms <= until_ms).map(|(_, key)| key.clone());
            let Some(key) = next else {
                self.batch_until_ms = None;
                break;
            };
            if self.in_flight >= IN_FLIGHT_MAX {
                break;
            }
            let write = self.write(&key, node, unix_ms);
            match write {
                Some(write) => writes.push((key, write)),
                None => self.schedule(&key, now_ms),
            }
        }
        writes
    }

    /// Begins the write of a key. Returns `None` if there is nothing to write.
    fn write(&mut self, key: &Arc<str>, node: &str, unix_ms: u64) -> Option<Write> {
        let tracked = self.keys.get_mut(key)?;
        if let Some(due_ms) = tracked.due_ms.take() {
            self.due.remove(&(due_ms, key.clone()));
        }
        let own = tracked.wanted;
        let (expected, others) = match &tracked.known {
            Known::Absent if own == 0 && !tracked.is_uncertain => return None,
            // No key ever has this position, so the condition fails and returns the current one.
            Known::Absent if own == 0 => (Expected::At(NOWHERE), Entry::default()),
            Known::Absent => (Expected::Absent, Entry { since_ms: unix_ms, ..Entry::default() }),
            Known::At(written) => (Expected::At(written.at), written.others.clone()),
        };
        let mut entry = others.clone();
        if tracked.info.is_some() {
            entry.info = tracked.info.clone();
        }
        if own > 0 {
            entry.nodes.insert(node.into(), own);
        }
        let is_deletion = entry.nodes.is_empty();
        let data = if expected == Expected::Absent { entry.encode_new() } else { entry.encode() };
        let publication = match is_deletion {
            true => NewPublication::deletion((**key).into()),
            false => NewPublication { key: Some((**key).into()), ..NewPublication::new(Kind::Json, data) },
        };
        tracked.is_busy = true;
        self.in_flight += 1;
        let publication = NewPublication { expected: Some(expected), ..publication };
        Some(Write { publication, sent: Sent { own, others, is_deletion } })
    }

    /// Handles the position of a write. `is_current`: the write has the current name of this node.
    pub fn written(&mut self, key: &Arc<str>, sent: Sent, at: Position, is_current: bool, now_ms: u64) -> Next {
        self.in_flight -= 1;
        let Some(tracked) = self.keys.get_mut(key) else { return Next::Nothing };
        let was_written = tracked.own() > 0;
        (tracked.is_busy, tracked.is_uncertain) = (false, false);
        let own = if is_current { sent.own } else { 0 };
        tracked.known = match sent.is_deletion {
            true => Known::Absent,
            false => Known::At(Box::new(Written { at, own, others: sent.others })),
        };
        self.written = self.written + usize::from(own > 0) - usize::from(was_written);
        if sent.is_deletion {
            // A refused key may take the place.
            self.refused_retry_ms = 0;
        }
        self.schedule(key, now_ms);
        Next::Nothing
    }

    /// Handles a write whose condition failed. `current`: the current position of the key.
    pub fn failed(&mut self, key: &Arc<str>, current: Option<Expected>, is_current: bool) -> Next {
        match current {
            Some(Expected::At(at)) => Next::Read(at),
            _ => self.gone(key, is_current),
        }
    }

    /// Handles an entry that does not exist, although a write has expected it.
    fn gone(&mut self, key: &Arc<str>, is_current: bool) -> Next {
        let Some(tracked) = self.keys.get_mut(key) else { return Next::Nothing };
        let (was_written, was_uncertain) = (tracked.own() > 0, tracked.is_uncertain);
        (tracked.known, tracked.is_uncertain) = (Known::Absent, false);
        self.written -= usize::from(was_written);
        if was_written && is_current && !was_uncertain { Next::Lost } else { Next::WriteAgain }
    }

    /// Handles the entry that was read after a failed condition.
    pub fn read(&mut self, key: &Arc<str>, entry: Option<(Position, Entry)>, node: &str, is_current: bool) -> Next {
        // The key has changed again. The next condition fails and returns its position.
        let Some((at, mut others)) = entry else {
            if let Some(tracked) = self.keys.get_mut(key) {
                tracked.is_uncertain = true;
            }
            return Next::WriteAgain;
        };
        let Some(tracked) = self.keys.get_mut(key) else { return Next::Nothing };
        let own = others.nodes.remove(node).unwrap_or(0);
        // Earlier names of this node.
        others.nodes.retain(|name, _| !is_same_node(name, node));
        let (was_written, was_uncertain) = (tracked.own() > 0, tracked.is_uncertain);
        self.written = self.written + usize::from(own > 0) - usize::from(was_written);
        (tracked.known, tracked.is_uncertain) = (Known::At(Box::new(Written { at, own, others })), false);
        if was_written && own == 0 && is_current && !was_uncertain { Next::Lost } else { Next::WriteAgain }
    }

    /// Writes a key again whose write has not ended. Returns `None` if its number is right already.
    pub fn write_again(&mut self, key: &Arc<str>, node: &str, now_ms: u64, unix_ms: u64) -> Option<Write> {
        self.in_flight -= 1;
        let tracked = self.keys.get_mut(key)?;
        tracked.is_busy = false;
        let is_right = tracked.wanted == tracked.own() && !tracked.is_uncertain;
        let write = if is_right { None } else { self.write(key, node, unix_ms) };
        if write.is_none() {
            self.schedule(key, now_ms);
        }
        write
    }

    /// Ends a write that has to be repeated, and repeats it when this node may write.
    pub fn postpone(&mut self, key: &Arc<str>, now_ms: u64) {
        self.in_flight -= 1;
        if let Some(tracked) = self.keys.get_mut(key) {
            tracked.is_busy = false;
        }
        self.schedule(key, now_ms);
    }

    /// Tries to give up an empty list later.
    pub fn retry_later(&mut self, now_ms: u64) {
        self.idle_since_ms = now_ms;
    }

    /// Handles a write that was not answered. Whether it was executed is unknown.
    pub fn unanswered(&mut self, key: &Arc<str>, now_ms: u64) -> Next {
        self.in_flight -= 1;
        if let Some(tracked) = self.keys.get_mut(key) {
            (tracked.is_busy, tracked.is_uncertain) = (false, true);
        }
        self.schedule(key, now_ms + RETRY_MS);
        Next::Nothing
    }

    /// Handles a key that the full list has refused.
    pub fn refuse(&mut self, key: &Arc<str>, now_ms: u64) -> Next {
        self.in_flight -= 1;
        let Some(tracked) = self.keys.get_mut(key) else { return Next::Nothing };
        tracked.is_busy = false;
        if tracked.wanted > 0 && !self.is_leaving {
            if self.refused.is_empty() {
                self.refused_retry_ms = now_ms + REFUSED_RETRY_MS;
            }
            self.refused.insert(key.clone());
        } else {
            tracked.known = Known::Absent;
        }
        self.schedule(key, now_ms);
        Next::Nothing
    }

    /// Writes all entries again: the engine has lost them, or this node has a new name.
    pub fn rewrite(&mut self, now_ms: u64) {
        self.written = 0;
        self.refused.clear();
        let keys: Vec<Arc<str>> = self.keys.keys().cloned().collect();
        for key in keys {
            if let Some(tracked) = self.keys.get_mut(&key) {
                tracked.forget();
            }
            self.schedule(&key, now_ms);
        }
    }

    /// Removes this node from all entries, without a grace time.
    pub fn leave(&mut self, now_ms: u64) {
        self.is_leaving = true;
        self.refused.clear();
        let keys: Vec<Arc<str>> = self.keys.keys().cloned().collect();
        for key in keys {
            if let Some(tracked) = self.keys.get_mut(&key) {
                tracked.wanted = 0;
            }
            self.schedule(&key, now_ms);
        }
    }
}
