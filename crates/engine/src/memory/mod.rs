//! Order and history in this process: nothing to install, nothing survives a restart (a new epoch tells every reader so).

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use millrace_delivery::{Appended, History, Page, PageLimit};
use millrace_protocol::{ChannelName, Code, Epoch, Error, NewPublication, Pattern, Position, Since, session::Policy};

use crate::{Answer, Config, Deliver, Engine, Newest};

/// Locks over the channels, so that shards seldom meet.
const STRIPES: usize = 64;

/// See the module. Order per channel holds because delivery happens under the channel's lock.
pub struct MemoryEngine {
    config: Config,
    epoch: Epoch,
    deliver: Arc<dyn Deliver>,
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    stripes: Vec<Mutex<HashMap<ChannelName, History>>>,
    hasher: RandomState,
    channels: AtomicUsize,
}

impl MemoryEngine {
    /// `clock` gives milliseconds since 1970; `epoch` must differ from one life of the process to the next.
    pub fn new(
        config: Config,
        epoch: Epoch,
        deliver: Arc<dyn Deliver>,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let stripes = (0..STRIPES).map(|_| Mutex::default()).collect();
        let (clock, hasher) = (Box::new(clock), RandomState::new());
        Self { config, epoch, deliver, clock, stripes, hasher, channels: AtomicUsize::new(0) }
    }

    fn stripe(&self, channel: &ChannelName) -> MutexGuard<'_, HashMap<ChannelName, History>> {
        lock(&self.stripes[self.hasher.hash_one(channel) as usize % STRIPES])
    }

    /// Reads a channel. One that was never written is empty, and reading leaves nothing behind.
    fn read<T>(&self, channel: &ChannelName, work: impl FnOnce(&mut History) -> T) -> T {
        match self.stripe(channel).get_mut(channel) {
            Some(history) => work(history),
            None => work(&mut History::new(self.epoch)),
        }
    }
}

impl Engine for MemoryEngine {
    fn append(&self, channel: &ChannelName, publication: NewPublication) -> Answer<Result<Position, Error>> {
        let bounds = self.config.bounds(channel.namespace());
        let mut stripe = self.stripe(channel);
        if !stripe.contains_key(channel) {
            if self.channels.load(Ordering::Relaxed) >= self.config.channels_max {
                let detail = format!("this server keeps at most {} channels", self.config.channels_max);
                return Answer::now(Err(Error::new(Code::TooMany, detail)));
            }
            self.channels.fetch_add(1, Ordering::Relaxed);
            stripe.insert(channel.clone(), History::new(self.epoch));
        }
        let history = stripe.get_mut(channel).expect("inserted above");
        let offset = match history.append(publication, self.now_ms(), &bounds) {
            Appended::Duplicate(offset) => offset,
            Appended::New(publication) => {
                self.deliver.deliver(channel, self.epoch, &publication);
                publication.offset
            }
        };
        Answer::now(Ok(Position { epoch: self.epoch, offset }))
    }

    fn page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
    ) -> Answer<Result<Page, Error>> {
        let (bounds, now_ms) = (self.config.bounds(channel.namespace()), self.now_ms());
        Answer::now(Ok(self.read(channel, |history| history.page(since, policy, limit, now_ms, &bounds))))
    }

    fn newest(&self, channel: &ChannelName) -> Answer<Result<Newest, Error>> {
        let (bounds, now_ms) = (self.config.bounds(channel.namespace()), self.now_ms());
        Answer::now(Ok(self.read(channel, |history| {
            history.trim(now_ms, &bounds);
            let publication = history.newest().filter(|newest| !newest.is_expired(now_ms)).cloned();
            Newest { top: history.top(), publication }
        })))
    }

    fn channels(&self, pattern: &Pattern, max: usize) -> Answer<Result<Vec<ChannelName>, Error>> {
        let mut found = Vec::new();
        for stripe in &self.stripes {
            let stripe = lock(stripe);
            let matching = stripe.keys().filter(|name| pattern.matches(name.as_str()));
            found.extend(matching.take(max - found.len()).cloned());
        }
        Answer::now(Ok(found))
    }

    fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    fn size(&self) -> (usize, usize) {
        let bytes = self.stripes.iter().map(|stripe| lock(stripe).values().map(History::bytes).sum::<usize>()).sum();
        (self.channels.load(Ordering::Relaxed), bytes)
    }

    fn sweep(&self) {
        let now_ms = self.now_ms();
        for stripe in &self.stripes {
            for (name, history) in lock(stripe).iter_mut() {
                history.trim(now_ms, &self.config.bounds(name.namespace()));
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
