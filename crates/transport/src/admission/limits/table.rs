use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Number of locks, so that shards seldom contend for one.
const STRIPES: usize = 16;
/// Maximum number of entries per stripe for keys that clients can forge.
const ROOM: usize = 4096;

/// Counters per address or subject, shared by all shards.
pub struct Table<K, V> {
    stripes: [Mutex<HashMap<K, V>>; STRIPES],
    /// Shared entry for keys that get no entry of their own.
    others: Mutex<V>,
    hasher: RandomState,
}

impl<K, V: Default> Default for Table<K, V> {
    fn default() -> Self {
        Self { stripes: Default::default(), others: Mutex::default(), hasher: RandomState::new() }
    }
}

impl<K: Hash + Eq + Clone, V: Default> Table<K, V> {
    /// Calls `work` with the entry of this key, and creates the entry if necessary.
    pub fn with<T>(&self, key: &K, work: impl FnOnce(&mut V) -> T) -> T {
        let mut stripe = self.stripe(key);
        match stripe.get_mut(key) {
            Some(value) => work(value),
            None => work(stripe.entry(key.clone()).or_default()),
        }
    }

    /// Calls `work` like [`Table::with`], for keys that clients can forge at no cost. The size of the table is
    /// bounded: when a stripe is full, new keys share one entry.
    pub fn with_room<T>(&self, key: &K, work: impl FnOnce(&mut V) -> T) -> T {
        let mut stripe = self.stripe(key);
        if stripe.len() >= ROOM && !stripe.contains_key(key) {
            return work(&mut lock(&self.others));
        }
        work(stripe.entry(key.clone()).or_default())
    }

    pub fn retain(&self, wanted: impl Fn(&V) -> bool) {
        for stripe in &self.stripes {
            let mut stripe = lock(stripe);
            stripe.retain(|_, value| wanted(value));
            if stripe.len() < stripe.capacity() / 8 {
                stripe.shrink_to_fit();
            }
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.stripes.iter().map(|stripe| lock(stripe).len()).sum()
    }

    fn stripe<Q: Hash + ?Sized>(&self, key: &Q) -> MutexGuard<'_, HashMap<K, V>>
    where
        K: Borrow<Q>,
    {
        lock(&self.stripes[self.hasher.hash_one(key) as usize % STRIPES])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
