use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use millrace_protocol::Grant;

use super::api_key::{Hash, hash};

/// Cache of verified tokens, so that frequent requests with one token do not verify its signature each time.
///
/// The cache has two halves. When the young half is full, it replaces the old half, and entries of the old half that
/// were not used since are dropped.
pub struct Cache {
    half_max: usize,
    halves: Mutex<[HashMap<Hash, Entry>; 2]>,
}

#[derive(Clone)]
struct Entry {
    grant: Arc<Grant>,
    /// Version of the key set that verified the token.
    version: u64,
}

impl Cache {
    pub fn new(entries_max: usize) -> Self {
        Self { half_max: entries_max / 2, halves: Mutex::default() }
    }

    /// Returns the grant of a token that was verified with this version of the keys and has not expired.
    ///
    /// Cost: one SHA-256 of the token.
    pub fn get(&self, token: &str, version: u64, now_s: u64) -> Option<Arc<Grant>> {
        if self.half_max == 0 {
            return None;
        }
        let hash = hash(token);
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        let [young, old] = &mut *halves;
        let is_good =
            |entry: &Entry| entry.version == version && entry.grant.expires_s.is_none_or(|expires| now_s < expires);
        if let Some(entry) = young.get(&hash) {
            return is_good(entry).then(|| entry.grant.clone());
        }
        let entry = old.remove(&hash).filter(is_good)?;
        let grant = entry.grant.clone();
        self.put(&mut halves, hash, entry);
        Some(grant)
    }

    pub fn insert(&self, token: &str, version: u64, grant: Arc<Grant>) {
        if self.half_max > 0 {
            let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
            self.put(&mut halves, hash(token), Entry { grant, version });
        }
    }

    fn put(&self, [young, old]: &mut [HashMap<Hash, Entry>; 2], hash: Hash, entry: Entry) {
        if young.len() >= self.half_max {
            *old = mem::take(young);
        }
        young.insert(hash, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(expires_s: u64) -> Arc<Grant> {
        Arc::new(Grant { expires_s: Some(expires_s), ..Grant::nothing() })
    }

    #[test]
    fn expired_tokens_are_not_returned() {
        let cache = Cache::new(10);
        cache.insert("a", 1, until(100));
        assert!(cache.get("a", 1, 99).is_some() && cache.get("b", 1, 0).is_none());
        assert!(cache.get("a", 1, 100).is_none(), "it has expired");
        assert!(cache.get("a", 2, 99).is_none(), "the keys have changed");
    }

    #[test]
    fn cache_is_bounded_and_keeps_used_tokens() {
        let cache = Cache::new(10);
        cache.insert("often", 0, until(100));
        for n in 0..1000 {
            cache.insert(&n.to_string(), 0, until(100));
            assert!(cache.get("often", 0, 0).is_some(), "{n}");
            assert!(cache.halves.lock().unwrap().iter().map(HashMap::len).sum::<usize>() <= 10, "{n}");
        }
        assert!(cache.get("999", 0, 0).is_some() && cache.get("500", 0, 0).is_none());
        let none = Cache::new(0);
        none.insert("a", 0, until(100));
        assert!(none.get("a", 0, 0).is_none());
    }
}
