//! The state of a keyed channel: the newest publication of each key, for any length of time.
//!
//! ```text
//!   offset   1   2   3   4   5   6   7   8   9        log: bounded, holds 6 to 9 here
//!   key      a   b   c   a   d   b   c  -d   a        state (compacted log): 6 (b), 7 (c), 9 (a)
//!                                     └ deletion
//! ```
//!
//! A reader pages through the state in the order of offsets until it reaches the top. A key that changes meanwhile
//! moves behind every reader's position, so each reader gets the change later. A deletion is delivered while the log
//! holds it: a reader misses none of the deletions after the begin of its reading, or it begins anew.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{BuildHasher, RandomState},
};

use hashbrown::HashTable;
use millrace_protocol::{Code, Error, Expected, Gap, NewPublication, Position, Publication, Since};

use crate::page::{Page, PageLimit, Part};

/// Memory of a key besides its publication, in bytes: the entry by offset (16 bytes in nodes that are half full) and
/// the entry by key (8 bytes in a table that is 7/16 to 7/8 full).
const KEY_BYTES: usize = 48;
/// Memory of the entry by expiry of a key with a time to live, in bytes.
const EXPIRY_BYTES: usize = 32;

/// Index of the newest publication of each key.
#[derive(Debug)]
pub struct State {
    by_offset: BTreeMap<u64, Publication>,
    by_key: HashTable<Publication>,
    hasher: RandomState,
    /// Expiry time and offset of each entry with a time to live.
    by_expiry: BTreeSet<(u64, u64)>,
    /// Offsets of the deletions that the log holds.
    deletions: VecDeque<u64>,
    /// Every deletion that is no longer held has this offset or a lower one.
    lost_deletions: u64,
    /// Entries that the log no longer holds, and the bytes of their payloads and keys.
    old: usize,
    old_bytes: usize,
}

impl State {
    /// Creates the empty state of a log that ends at `top`. Earlier deletions are unknown.
    pub fn new(top: u64) -> Self {
        let (by_offset, by_expiry, deletions, old, old_bytes) = Default::default();
        let (by_key, hasher) = (HashTable::new(), RandomState::new());
        Self { by_offset, by_key, hasher, by_expiry, deletions, lost_deletions: top, old, old_bytes }
    }

    /// Returns the number of keys.
    pub fn key_count(&self) -> usize {
        self.by_offset.len()
    }

    /// Returns the bytes of payloads and keys that only the state holds, not the log.
    pub fn old_bytes(&self) -> usize {
        self.old_bytes
    }

    /// Returns the memory of the state, without the publications that the log holds, too.
    pub fn memory_bytes(&self) -> usize {
        self.old_bytes
            + self.old * Publication::BYTES
            + self.key_count() * KEY_BYTES
            + self.by_expiry.len() * EXPIRY_BYTES
            + self.deletions.len() * size_of::<u64>()
    }

    /// Returns the newest publication of a key.
    pub fn get(&self, key: &str) -> Option<&Publication> {
        self.by_key.find(self.hasher.hash_one(key), |entry| entry.key.as_deref() == Some(key))
    }

    /// Adds a publication that the log has just received. `first` is the oldest offset of the log. Cost: O(log keys).
    pub fn put(&mut self, publication: &Publication, first: u64) {
        let Some(key) = publication.key.as_deref() else { return };
        let hash = self.hasher.hash_one(key);
        let is_key = |entry: &Publication| entry.key.as_deref() == Some(key);
        let old = if publication.is_deletion {
            self.deletions.push_back(publication.offset);
            self.by_key.find_entry(hash, is_key).ok().map(|entry| entry.remove().0)
        } else {
            self.by_offset.insert(publication.offset, publication.clone());
            self.by_expiry.extend(publication.expires_ms.map(|at_ms| (at_ms, publication.offset)));
            match self.by_key.find_mut(hash, is_key) {
                Some(entry) => Some(std::mem::replace(entry, publication.clone())),
                None => {
                    let Self { by_key, hasher, .. } = self;
                    by_key.insert_unique(hash, publication.clone(), |entry| {
                        hasher.hash_one(entry.key.as_deref().unwrap_or_default())
                    });
                    None
                }
            }
        };
        let Some(old) = old else { return };
        self.by_offset.remove(&old.offset);
        if let Some(at_ms) = old.expires_ms {
            self.by_expiry.remove(&(at_ms, old.offset));
        }
        if old.offset < first {
            self.old -= 1;
            self.old_bytes -= old.cost_bytes();
        }
    }

    /// Notes that the log has dropped its oldest publication. Kept out of line for channels that are no state.
    #[inline(never)]
    pub fn trimmed(&mut self, oldest: &Publication) {
        if oldest.is_deletion {
            self.deletions.pop_front();
            self.lost_deletions = oldest.offset;
        } else if self.by_offset.contains_key(&oldest.offset) {
            self.old += 1;
            self.old_bytes += oldest.cost_bytes();
        }
    }

    /// Returns the offset up to which deletions may be missing. A reader that began before must begin anew.
    pub fn lost_deletions(&self) -> u64 {
        self.lost_deletions
    }

    /// Returns the offsets of the deletions held after `after`, oldest first.
    pub fn deletions_after(&self, after: u64) -> impl Iterator<Item = u64> {
        let from = self.deletions.partition_point(|offset| *offset <= after);
        self.deletions.range(from..).copied()
    }

    /// Returns the entries after `after` in the order of offsets, for a reader that began at `began`. Expired entries
    /// up to `began` are left out. The reader may hold an older value of the later ones, so it gets them, and their
    /// deletion next.
    pub fn entries_after(&self, after: u64, began: u64, now_ms: u64) -> impl Iterator<Item = &Publication> {
        let entries = self.by_offset.range(after.saturating_add(1)..).map(|(_, entry)| entry);
        entries.filter(move |entry| entry.offset > began || !entry.is_expired(now_ms))
    }

    /// Returns the entries before `first`, in the order of offsets.
    pub fn entries_before(&self, first: u64) -> impl Iterator<Item = &Publication> {
        self.by_offset.range(..first).map(|(_, entry)| entry)
    }

    /// Returns the key whose time to live ended first, if it has ended.
    pub fn first_expired(&self, now_ms: u64) -> Option<&str> {
        self.expired(now_ms).next()
    }

    /// Returns the keys whose time to live has ended, in this order.
    pub fn expired(&self, now_ms: u64) -> impl Iterator<Item = &str> {
        let expired = self.by_expiry.iter().take_while(move |(at_ms, _)| *at_ms <= now_ms);
        expired.filter_map(|(_, offset)| self.by_offset.get(offset)?.key.as_deref())
    }

    /// Returns a part of the state of a log that ends at `top`: its entries, and the deletions since the reader began
    /// with the state, in the order of offsets. If deletions may be missing, or the log is another one, the reader gets
    /// a gap and begins anew. `deletion_at` returns a deletion that the log holds.
    pub fn page<'a>(
        state: Option<&'a Self>,
        top: Position,
        since: Since,
        limit: PageLimit,
        now_ms: u64,
        deletion_at: impl Fn(u64) -> &'a Publication,
    ) -> Page {
        let lost = state.map_or(top.offset, Self::lost_deletions);
        let (after, began, gap) = match since {
            Since::StateAfter { epoch, offset, began }
                if epoch == top.epoch && offset <= top.offset && (lost..=top.offset).contains(&began) =>
            {
                (offset, began, None)
            }
            Since::StateAfter { epoch, offset, .. } => {
                (0, top.offset, Some(Gap { from: Position { epoch, offset }, to: Position { offset: 0, ..top } }))
            }
            _ => (0, top.offset, None),
        };
        let mut held = state.into_iter().flat_map(|state| state.entries_after(after, began, now_ms)).peekable();
        let deletions = state.into_iter().flat_map(|state| state.deletions_after(after.max(began)));
        let mut deletions = deletions.map(deletion_at).peekable();
        let merged = std::iter::from_fn(|| match (held.peek(), deletions.peek()) {
            (Some(entry), Some(deletion)) if deletion.offset < entry.offset => deletions.next(),
            (None, Some(_)) => deletions.next(),
            _ => held.next(),
        });
        let (mut publications, mut bytes, mut is_end) = (Vec::new(), 0, true);
        for publication in merged {
            bytes += publication.cost_bytes();
            if publications.len() >= limit.count || bytes > limit.bytes && !publications.is_empty() {
                is_end = false;
                break;
            }
            publications.push(publication.clone());
        }
        let end = if is_end { top.offset } else { publications.last().map_or(after, |last: &Publication| last.offset) };
        let part = if is_end { Part::StateEnd { began } } else { Part::State { began } };
        Page { gap, publications, end: Position { offset: end, ..top }, top, part }
    }
}

/// Checks what needs no look into the channel: whether the publication fits into a channel that is a state
/// (`is_state`), or into one that is none. All engines use this check, so the answers are the same.
///
/// Errors: [`Code::BadRequest`].
pub fn check_fits(new: &NewPublication, is_state: bool) -> Result<(), Error> {
    let detail = match (is_state, &new.key) {
        (true, Some(_)) => return Ok(()),
        (true, None) => "the channel is a keyed state (setting `state`): publish with a key (`Millrace-Key`, or `key`)",
        (false, _) if new.is_deletion => {
            "only a key of a keyed state can be deleted, and the channel is none: set `state = true` for its namespace"
        }
        (false, _) if new.expected.is_some() => {
            "`If-Match` needs a keyed state, and the channel is none: set `state = true` for its namespace"
        }
        (false, _) => return Ok(()),
    };
    Err(Error::new(Code::BadRequest, detail))
}

/// Returns the error for a reader that wants the state of a channel that is none.
pub fn no_state() -> Error {
    let detail = "the channel is no keyed state: set `state = true` for its namespace, or read it without `state`";
    Error::new(Code::BadRequest, detail)
}

/// Checks the condition of a publication. `current` is the position of the newest publication of its key; `None` if
/// the key does not exist, was deleted, or has expired. All engines use this check.
///
/// Errors: [`Code::PreconditionFailed`], with the current position.
pub fn check_expected(expected: Option<Expected>, current: Option<Position>) -> Result<(), Error> {
    let detail = match (expected, current) {
        (None, _) | (Some(Expected::Absent), None) => return Ok(()),
        (Some(Expected::At(at)), Some(current)) if at == current => return Ok(()),
        (Some(Expected::Absent), Some(current)) => format!("the key exists; {CURRENT}{current}"),
        (Some(Expected::At(_)), Some(current)) => format!("the key has changed; {CURRENT}{current}"),
        (Some(Expected::At(_)), None) => {
            format!("the key does not exist: it was deleted, has expired, or never existed; {CURRENT}0")
        }
    };
    Err(Error::new(Code::PreconditionFailed, detail))
}

/// Returns the current position of the key from an error of [`check_expected`]: [`Expected::Absent`] if the key does
/// not exist. `None` for other errors.
pub fn current_position(error: &Error) -> Option<Expected> {
    let (_, current) = error.detail.rsplit_once(CURRENT)?;
    (error.code == Code::PreconditionFailed).then(|| current.parse().ok()).flatten()
}

/// Introduces the current position of a key in an error.
const CURRENT: &str = "its current position is ";

/// Returns the error for a new key while the histories of all channels are above their limit.
pub fn no_room_for_keys() -> Error {
    let detail = "the history of all channels is above `engine.history_bytes_max`, so states take no new keys: delete some \
                  keys, or change existing ones";
    Error::new(Code::TooMany, detail)
}

/// Returns the error for a new key in a state that has its maximum number of keys.
pub fn too_many_keys(keys_max: usize) -> Error {
    let detail =
        format!("the state has {keys_max} keys, the maximum (`keys_max`): delete some keys, or change existing ones");
    Error::new(Code::TooMany, detail)
}
