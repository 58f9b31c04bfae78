use std::collections::{HashMap, VecDeque};

use millrace_protocol::Holder;
use serde::{Deserialize, Serialize};

/// Time for which an idempotency key is remembered.
pub const IDEMPOTENCY_MS: u64 = 5 * 60 * 1000;
/// Maximum number of idempotency keys per channel. When it is reached, the holder with the most keys loses its
/// oldest keys. Many keys are dropped at once, because finding that holder scans all keys.
const KEYS_MAX: usize = 10_000;
const KEYS_DROPPED: usize = KEYS_MAX / 8;

/// Memory of an idempotency key besides its text: its entries by name and by age, and the allocation overhead of
/// two short strings.
const KEY_BYTES: usize =
    size_of::<(Box<str>, u64)>() * 2 + size_of::<(u64, Holder, Box<str>)>() + 2 * size_of::<usize>();

/// Offsets of recent publications by idempotency key.
#[derive(Debug, Default)]
pub struct IdempotencyKeys {
    offsets: HashMap<Box<str>, u64>,
    by_age: VecDeque<(u64, Holder, Box<str>)>,
    /// Total length of the keys, each counted once.
    bytes: usize,
}

/// An idempotency key as plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedKey {
    time_ms: u64,
    holder: Holder,
    key: Box<str>,
    offset: u64,
}

impl IdempotencyKeys {
    /// Returns all keys, oldest first.
    pub fn save(&self) -> impl Iterator<Item = SavedKey> {
        self.by_age.iter().map(|(time_ms, holder, key)| SavedKey {
            time_ms: *time_ms,
            holder: *holder,
            offset: self.offsets.get(key).copied().unwrap_or_default(),
            key: key.clone(),
        })
    }

    pub fn restore(saved: Vec<SavedKey>) -> Self {
        let mut keys = Self::default();
        for SavedKey { time_ms, holder, key, offset } in saved {
            keys.bytes += key.len();
            keys.offsets.insert(key.clone(), offset);
            keys.by_age.push_back((time_ms, holder, key));
        }
        keys
    }

    /// Returns the offset already stored for this key. If there is none, stores `offset` for it.
    /// Kept out of line so that [`crate::History::append`] stays small for publications without a key.
    #[inline(never)]
    pub fn find_or_insert(&mut self, key: Box<str>, holder: Holder, offset: u64, now_ms: u64) -> Option<u64> {
        self.forget(now_ms);
        if let Some(&known) = self.offsets.get(&key) {
            return Some(known);
        }
        if self.by_age.len() >= KEYS_MAX {
            self.drop_of_largest();
        }
        self.bytes += key.len();
        self.offsets.insert(key.clone(), offset);
        self.by_age.push_back((now_ms, holder, key));
        None
    }

    /// Returns the offset stored for this key.
    pub fn find(&mut self, key: &str, now_ms: u64) -> Option<u64> {
        self.forget(now_ms);
        self.offsets.get(key).copied()
    }

    /// Drops the keys that are older than [`IDEMPOTENCY_MS`].
    pub fn forget(&mut self, now_ms: u64) {
        while let Some((at, ..)) = self.by_age.front() {
            if now_ms.saturating_sub(*at) < IDEMPOTENCY_MS {
                return;
            }
            self.drop_oldest();
        }
    }

    /// Drops the oldest key. Returns false if there is none.
    pub fn drop_oldest(&mut self) -> bool {
        let Some((.., key)) = self.by_age.pop_front() else { return false };
        self.bytes -= key.len();
        self.offsets.remove(&key);
        true
    }

    /// Drops the oldest keys of the holder that has the most keys. Cost: O(keys).
    fn drop_of_largest(&mut self) {
        let mut counts = HashMap::<Holder, usize>::new();
        self.by_age.iter().for_each(|(_, holder, _)| *counts.entry(*holder).or_default() += 1);
        let Some((largest, _)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return };
        let (Self { offsets, bytes, by_age }, mut left) = (self, KEYS_DROPPED);
        by_age.retain(|(_, holder, key)| {
            let stays = *holder != largest || left == 0;
            if !stays {
                left -= 1;
                *bytes -= key.len();
                offsets.remove(key);
            }
            stays
        });
    }

    pub fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// Returns the memory of all keys. Each key is stored twice.
    pub fn memory_bytes(&self) -> usize {
        2 * self.bytes + self.by_age.len() * KEY_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_flood_drops_keys_of_the_flooder() {
        let mut keys = IdempotencyKeys::default();
        let mut offset = 0;
        let mut insert = |holder: u32, i: usize| {
            offset += 1;
            keys.find_or_insert(format!("{holder}/{i}").into(), Holder::new(holder), offset, 0)
        };
        assert_eq!(insert(2, 0), None);
        for i in 0..3 * KEYS_MAX {
            insert(1, i);
        }
        assert_eq!(insert(2, 0), Some(1));
        assert!(insert(1, 3 * KEYS_MAX - 1).is_some());
        assert_eq!(insert(1, 0), None);
        assert!(keys.by_age.len() <= KEYS_MAX && keys.offsets.len() == keys.by_age.len());
        assert_eq!(keys.bytes, keys.by_age.iter().map(|(.., key)| key.len()).sum::<usize>());
    }
}
