//! The newest part of every log, in memory. It serves most reads without access to the file.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use millrace_delivery::{Bounds, History, Page, PageLimit};
use millrace_protocol::{ChannelName, Epoch, Pattern, Position, Publication, Since, session::Policy};

use crate::{Config, Deliver, Newest, smallest::Smallest};

/// Maximum publications and bytes per channel, and maximum bytes of all channels. Older history is read from the file.
const COUNT_MAX: usize = 1000;
const BYTES_MAX: usize = 1 << 20;
const ALL_BYTES_MAX: usize = 256 << 20;

const STRIPES: usize = 64;

pub(super) struct RecentHistory<D: Deliver> {
    deliver: Arc<D>,
    stripes: Vec<Mutex<HashMap<ChannelName, Tail<D::Route>>>>,
    hasher: RandomState,
    channels: AtomicUsize,
    /// Memory used by all histories, and its limit, in bytes.
    bytes: AtomicUsize,
    bytes_max: usize,
}

struct Tail<R> {
    route: R,
    bounds: Bounds,
    history: History,
}

/// Result of a lookup in memory.
pub(super) enum Found<T> {
    Here(T),
    /// The file has the missing part.
    InFile,
    /// The channel does not exist.
    Nothing,
}

impl<D: Deliver> RecentHistory<D> {
    pub fn new(config: &Config, deliver: Arc<D>) -> Self {
        let stripes = (0..STRIPES).map(|_| Mutex::default()).collect();
        let (hasher, bytes_max) = (RandomState::new(), config.history_bytes_max.min(ALL_BYTES_MAX));
        let (channels, bytes) = Default::default();
        Self { deliver, stripes, hasher, channels, bytes, bytes_max }
    }

    /// Starts to keep a channel that exists in the file. Publications after `top` will be kept here.
    pub fn open(&self, name: &ChannelName, top: Position, bounds: Bounds) {
        self.stripe(name).entry(name.clone()).or_insert_with(|| self.begin(name, top, bounds));
    }

    /// Delivers a committed publication and stores it.
    pub fn receive(&self, name: &ChannelName, epoch: Epoch, publication: &Publication, bounds: Bounds, now_ms: u64) {
        let mut stripe = self.stripe(name);
        if !stripe.contains_key(name) {
            let before = Position { epoch, offset: publication.offset - 1 };
            stripe.insert(name.clone(), self.begin(name, before, bounds));
        }
        let Some(Tail { route, bounds, history }) = stripe.get_mut(name) else { return };
        // Both calls run under the lock, so a later reader of the tail sees every publication delivered before.
        self.deliver.deliver(route, name, epoch, publication);
        self.count(history, |history| history.adopt(publication.clone(), now_ms, bounds));
    }

    pub fn page(&self, name: &ChannelName, since: Since, policy: Policy, limit: PageLimit, now_ms: u64) -> Found<Page> {
        self.read(name, |history, bounds| {
            history.trim(now_ms, bounds);
            history.covers(since).then(|| history.page(since, policy, limit, now_ms, bounds))
        })
    }

    pub fn newest(&self, name: &ChannelName, now_ms: u64) -> Found<Newest> {
        self.read(name, |history, bounds| {
            history.trim(now_ms, bounds);
            let publication = history.newest()?;
            let publication = (!publication.is_expired(now_ms)).then(|| publication.clone());
            Some(Newest { top: history.top(), publication })
        })
    }

    pub fn channels(&self, pattern: &Pattern, after: Option<&ChannelName>, max: usize) -> Vec<ChannelName> {
        let mut found = Smallest::new(after, max);
        for stripe in &self.stripes {
            for name in lock(stripe).keys() {
                if found.wants(name.as_str()) && pattern.matches(name.as_str()) {
                    found.offer(name);
                }
            }
        }
        found.into_names()
    }

    pub fn channels_len(&self) -> usize {
        self.channels.load(Relaxed)
    }

    /// Drops the history of a channel in memory, because the file has trimmed part of it.
    pub fn forget(&self, name: &ChannelName) {
        if let Some(Tail { history, .. }) = self.stripe(name).get_mut(name) {
            self.count(history, |history| history.shrink(0));
        }
    }

    /// Removes a channel that was evicted from the file.
    pub fn close(&self, name: &ChannelName) {
        let mut stripe = self.stripe(name);
        if let Some(Tail { route, history, .. }) = stripe.remove(name) {
            self.channels.fetch_sub(1, Relaxed);
            self.bytes.fetch_sub(history.memory_bytes(), Relaxed);
            self.deliver.forget(name, route);
        }
    }

    /// Halves every history if all together exceed the limit. Cost when it does: O(channels), with one stripe locked
    /// at a time.
    pub fn make_room(&self) {
        if self.bytes.load(Relaxed) > self.bytes_max {
            self.for_each(|history, _| history.shrink(history.memory_bytes() / 2));
        }
    }

    /// Drops publications above the age limit.
    pub fn sweep(&self, now_ms: u64) {
        self.for_each(|history, bounds| history.trim(now_ms, bounds));
    }

    fn for_each(&self, work: impl Fn(&mut History, &Bounds)) {
        for stripe in &self.stripes {
            for Tail { history, bounds, .. } in lock(stripe).values_mut() {
                self.count(history, |history| work(history, bounds));
            }
        }
    }

    fn begin(&self, name: &ChannelName, top: Position, bounds: Bounds) -> Tail<D::Route> {
        self.channels.fetch_add(1, Relaxed);
        let (count_max, bytes_max) = (bounds.count_max.min(COUNT_MAX), bounds.bytes_max.min(BYTES_MAX));
        let bounds = Bounds { count_max, bytes_max, ..bounds };
        Tail { route: self.deliver.route(name), bounds, history: History::after(top) }
    }

    fn read<T>(&self, name: &ChannelName, work: impl FnOnce(&mut History, &Bounds) -> Option<T>) -> Found<T> {
        match self.stripe(name).get_mut(name) {
            Some(Tail { history, bounds, .. }) => {
                self.count(history, |history| work(history, bounds)).map_or(Found::InFile, Found::Here)
            }
            None => Found::Nothing,
        }
    }

    /// Changes a history and updates the sum of the memory of all histories.
    fn count<T>(&self, history: &mut History, work: impl FnOnce(&mut History) -> T) -> T {
        let before = history.memory_bytes();
        let result = work(history);
        self.bytes.fetch_add(history.memory_bytes().wrapping_sub(before), Relaxed);
        result
    }

    fn stripe(&self, name: &ChannelName) -> MutexGuard<'_, HashMap<ChannelName, Tail<D::Route>>> {
        lock(&self.stripes[self.hasher.hash_one(name) as usize % STRIPES])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
