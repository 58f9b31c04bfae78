//! Answers that the back end allows to reuse, bounded in number and size.

use std::{
    collections::HashMap,
    mem,
    sync::{Mutex, PoisonError},
};

use sha2::{Digest, Sha256};
use tokio::time::Instant;

/// Key of an answer: a hash, so that a cached token does not stay in memory.
pub type Key = [u8; 32];

/// Maximum bytes of all answers in a cache.
const BYTES_MAX: usize = 16 << 20;

/// Cache of answers.
///
/// The cache has two halves. When the young half is full, it replaces the old half, and entries of the old half that
/// were not used since are dropped.
#[derive(Debug)]
pub struct AnswerCache<T> {
    entries_max: usize,
    bytes_max: usize,
    halves: Mutex<[Half<T>; 2]>,
}

#[derive(Debug)]
struct Half<T> {
    entries: HashMap<Key, Entry<T>>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    value: T,
    expires: Instant,
    bytes: usize,
}

impl<T> Default for Half<T> {
    fn default() -> Self {
        Self { entries: HashMap::new(), bytes: 0 }
    }
}

impl<T: Clone> AnswerCache<T> {
    /// Creates a cache. 0 entries disable it.
    pub fn new(entries_max: usize) -> Self {
        Self { entries_max: entries_max / 2, bytes_max: BYTES_MAX / 2, halves: Mutex::default() }
    }

    /// Returns an answer that has not expired.
    pub fn get(&self, key: &Key, now: Instant) -> Option<T> {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        let [young, old] = &mut *halves;
        if let Some(entry) = young.entries.get(key) {
            return (now < entry.expires).then(|| entry.value.clone());
        }
        let entry = old.entries.remove(key)?;
        old.bytes -= entry.bytes;
        if now >= entry.expires {
            return None;
        }
        let value = entry.value.clone();
        self.put(&mut halves, *key, entry);
        Some(value)
    }

    /// Adds an answer of `bytes` bytes.
    pub fn insert(&self, key: Key, value: T, bytes: usize, expires: Instant) {
        if self.entries_max > 0 && bytes <= self.bytes_max {
            let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
            self.put(&mut halves, key, Entry { value, expires, bytes });
        }
    }

    fn put(&self, [young, old]: &mut [Half<T>; 2], key: Key, entry: Entry<T>) {
        if young.entries.len() >= self.entries_max || young.bytes + entry.bytes > self.bytes_max {
            *old = mem::take(young);
        }
        young.bytes += entry.bytes;
        if let Some(earlier) = young.entries.insert(key, entry) {
            young.bytes -= earlier.bytes;
        }
    }

    #[cfg(test)]
    fn size(&self) -> (usize, usize) {
        let halves = self.halves.lock().unwrap();
        (halves.iter().map(|half| half.entries.len()).sum(), halves.iter().map(|half| half.bytes).sum())
    }
}

/// Returns the key of a question with these parts. The length of each part is hashed, too, so that no other parts have
/// the same key.
pub fn key<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Key {
    let hash = parts
        .into_iter()
        .fold(Sha256::new(), |hash, part| hash.chain_update((part.len() as u64).to_be_bytes()).chain_update(part));
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn number(n: u32) -> Key {
        key([n.to_be_bytes().as_slice()])
    }

    #[test]
    fn answers_expire() {
        let (cache, now) = (AnswerCache::new(10), Instant::now());
        let later = now + Duration::from_secs(60);
        cache.insert(number(1), "a", 1, later);
        assert_eq!((cache.get(&number(1), now), cache.get(&number(2), now)), (Some("a"), None));
        assert_eq!(cache.get(&number(1), later), None);
    }

    #[test]
    fn cache_is_bounded_and_keeps_used_answers() {
        let (cache, now) = (AnswerCache::new(100), Instant::now());
        let later = now + Duration::from_secs(60);
        cache.insert(number(0), 0, 1, later);
        for n in 1..10_000 {
            cache.insert(number(n), n, 1, later);
            assert_eq!(cache.get(&number(0), now), Some(0), "{n}");
            assert!(cache.size().0 <= 100, "{n}");
        }
        let large = AnswerCache::new(1_000_000);
        (0..1000).for_each(|n| large.insert(number(n), n, 64 << 10, later));
        assert!(large.size().1 <= BYTES_MAX, "{}", large.size().1);
        large.insert(number(2000), 0, BYTES_MAX, later);
        assert_eq!(large.get(&number(2000), now), None, "too large for any cache");
        let none = AnswerCache::new(0);
        none.insert(number(1), 1, 1, later);
        assert_eq!(none.get(&number(1), now), None);
    }

    #[test]
    fn parts_are_kept_apart() {
        assert_ne!(key([b"ab".as_slice(), b"c"]), key([b"a".as_slice(), b"bc"]));
    }
}
