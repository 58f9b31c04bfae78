use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use millrace_engine::Deliver;
use millrace_protocol::{ChannelName, Epoch, Pattern, Publication};

use crate::{Delivery, Mailbox};

const STRIPES: usize = 64;

/// Readers per shard.
type Readers = Box<[u32]>;

/// Who is interested in what: brings each publication to the mailboxes of the shards that have a reader for it, and to no other.
pub struct Router {
    mailboxes: Vec<Arc<Mailbox>>,
    channels: Vec<RwLock<HashMap<ChannelName, Readers>>>,
    patterns: RwLock<HashMap<Pattern, Readers>>,
    pattern_count: AtomicUsize,
    hasher: RandomState,
}

impl Router {
    pub fn new(shards: usize) -> Self {
        Self {
            mailboxes: (0..shards).map(|_| Arc::default()).collect(),
            channels: (0..STRIPES).map(|_| RwLock::default()).collect(),
            patterns: RwLock::default(),
            pattern_count: AtomicUsize::new(0),
            hasher: RandomState::new(),
        }
    }

    pub fn shards(&self) -> usize {
        self.mailboxes.len()
    }

    pub fn mailbox(&self, shard: usize) -> &Arc<Mailbox> {
        &self.mailboxes[shard]
    }

    /// A shard has so many readers of a channel now.
    pub fn set_readers(&self, shard: usize, channel: &ChannelName, readers: u32) {
        let mut channels = self.stripe(channel).write().unwrap_or_else(PoisonError::into_inner);
        set(&mut channels, channel, shard, self.shards(), readers);
    }

    /// A shard has so many listeners of a pattern now. Cost per publication: one match per pattern in use.
    pub fn set_pattern_readers(&self, shard: usize, pattern: &Pattern, readers: u32) {
        let mut patterns = self.patterns.write().unwrap_or_else(PoisonError::into_inner);
        set(&mut patterns, pattern, shard, self.shards(), readers);
        self.pattern_count.store(patterns.len(), Ordering::SeqCst);
    }

    /// Subscriptions of a channel on all shards.
    pub fn readers(&self, channel: &ChannelName) -> u32 {
        let channels = self.stripe(channel).read().unwrap_or_else(PoisonError::into_inner);
        channels.get(channel).map_or(0, |readers| readers.iter().sum())
    }

    fn stripe(&self, channel: &ChannelName) -> &RwLock<HashMap<ChannelName, Readers>> {
        &self.channels[self.hasher.hash_one(channel) as usize % STRIPES]
    }

    fn push(&self, shard: usize, channel: &ChannelName, epoch: Epoch, publication: &Arc<Publication>) {
        let delivery = Delivery { channel: channel.clone(), epoch, publication: publication.clone() };
        self.mailboxes[shard].push(delivery);
    }
}

impl Deliver for Router {
    fn deliver(&self, channel: &ChannelName, epoch: Epoch, publication: &Arc<Publication>) {
        let channels = self.stripe(channel).read().unwrap_or_else(PoisonError::into_inner);
        let readers = channels.get(channel);
        let by_name = |shard: usize| readers.is_some_and(|readers| readers[shard] > 0);
        if self.pattern_count.load(Ordering::SeqCst) == 0 {
            (0..self.shards())
                .filter(|shard| by_name(*shard))
                .for_each(|shard| self.push(shard, channel, epoch, publication));
            return;
        }
        let patterns = self.patterns.read().unwrap_or_else(PoisonError::into_inner);
        let matching: Vec<&Readers> = patterns
            .iter()
            .filter(|(pattern, _)| pattern.matches(channel.as_str()))
            .map(|(_, readers)| readers)
            .collect();
        let by_pattern = |shard: usize| matching.iter().any(|readers| readers[shard] > 0);
        (0..self.shards())
            .filter(|shard| by_name(*shard) || by_pattern(*shard))
            .for_each(|shard| self.push(shard, channel, epoch, publication));
    }
}

fn set<K: Clone + Eq + std::hash::Hash>(
    map: &mut HashMap<K, Readers>,
    key: &K,
    shard: usize,
    shards: usize,
    readers: u32,
) {
    let entry = map.entry(key.clone()).or_insert_with(|| vec![0; shards].into());
    entry[shard] = readers;
    if entry.iter().all(|readers| *readers == 0) {
        map.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_protocol::Kind;

    #[test]
    fn only_interested_shards_get_it_and_only_once() {
        let router = Router::new(3);
        let channel = ChannelName::parse("a/b").unwrap();
        router.set_readers(0, &channel, 2);
        router.set_pattern_readers(0, &Pattern::parse("a/+").unwrap(), 1);
        router.set_pattern_readers(2, &Pattern::parse("#").unwrap(), 1);
        let data = Default::default();
        let publication = Publication { offset: 1, time_ms: 0, key: None, expires_ms: None, kind: Kind::Text, data };
        router.deliver(&channel, Epoch(1), &Arc::new(publication));
        let counts: Vec<_> = (0..3).map(|shard| router.mailbox(shard).take(Vec::new()).len()).collect();
        assert_eq!((counts, router.readers(&channel)), (vec![1, 0, 1], 2));
        router.set_readers(0, &channel, 0);
        assert_eq!(router.readers(&channel), 0);
    }
}
