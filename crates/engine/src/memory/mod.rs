//! Order and history in the memory of this process. This engine needs no installation. History does not survive a
//! restart, which readers notice by a new epoch.

mod evict;
mod hand_over;
mod level;
mod remove;

pub(crate) use evict::IDLE_MS;
pub(crate) use level::{level, up_to};

use std::{
    hash::{BuildHasher, RandomState},
    io,
    num::NonZeroU32,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use hashbrown::HashTable;
use millrace_delivery::{
    Appended, Bounds, History, Page, PageLimit, check_expected, check_fits, no_room_for_keys, no_state, prefetch_at,
};
use millrace_protocol::{
    ChannelName, Epoch, Error, Holder, NewPublication, Pattern, Position, Since,
    session::{Policy, Target},
};

use crate::{
    Answer, ChannelSlot, Config, Deliver, Engine, Newest,
    hand_over::HandOver,
    shares::{Namespace, Shares},
    smallest::Smallest,
};

/// Maximum number of keys of states that one sweep expires.
const EXPIRE_MAX: usize = 10_000;

/// Number of locks over the channels. Many stripes keep lock contention between shards rare.
const STRIPES: usize = 64;
/// Bits of a [`ChannelSlot`] for the index. The remaining bits hold the stripe.
const INDEX_BITS: u32 = 26;

/// Memory of one channel without its history and name, in bytes; measured with a million channels on two shards.
const CHANNEL_BYTES: usize = 512;
/// Minimum of the channel limit, however small the memory limit is.
const CHANNELS_MIN: usize = 1000;

/// The engine `memory`. Order per channel holds because delivery happens under the lock of the channel's stripe.
pub struct MemoryEngine<D: Deliver> {
    config: Config,
    /// The configured maximum, reduced so that the channels themselves use at most half of the memory for history.
    channels_max: usize,
    /// Earliest time of the next scan for idle channels to evict, and of the next scan for channels of holders above
    /// their share.
    look_again_ms: AtomicU64,
    displace_again_ms: AtomicU64,
    /// Earliest time of the next eviction, after one that could not free enough.
    evict_again_ms: AtomicU64,
    /// Number of channels of each holder.
    shares: Shares,
    /// History limits of the channels of each class of [`Shares`].
    bounds: Vec<Bounds>,
    epoch: Epoch,
    deliver: Arc<D>,
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    stripes: Vec<Mutex<Stripe<D::Route>>>,
    hasher: RandomState,
    channels: AtomicUsize,
    /// Memory used by all channels and their histories, in bytes.
    bytes: AtomicUsize,
    /// Highest offset, and time of the newest publication, of all evicted channels.
    forgotten: Mutex<(u64, u64)>,
    /// Locked during an eviction, so that only one thread evicts.
    evicting: Mutex<()>,
    /// The engine that has the channels of the stripes that were handed over.
    successor: RwLock<Option<Arc<dyn Engine>>>,
}

/// Part of the channels. Their indexes are stable until channels of this stripe are evicted.
struct Stripe<R> {
    channels: Vec<Channel<R>>,
    by_name: HashTable<u32>,
    /// Channels that were handed over to another process. From then on `channels` is empty, and no channel is created.
    handed_over: Option<Vec<Channel<R>>>,
}

/// All that one publication touches, in two cache lines: these are rarely still in the cache.
#[repr(align(64))]
struct Channel<R> {
    name: ChannelName,
    route: R,
    /// Also the index into [`MemoryEngine::bounds`].
    namespace: Namespace,
    holder: Holder,
    history: History,
}

const _: () = assert!(size_of::<Channel<Arc<()>>>() <= 128);

impl<D: Deliver> MemoryEngine<D> {
    /// Creates the engine. `clock` returns milliseconds since 1970. `epoch` must differ between two runs of the
    /// process.
    pub fn new(config: Config, epoch: Epoch, deliver: Arc<D>, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let stripe = || Stripe { channels: Vec::new(), by_name: HashTable::new(), handed_over: None };
        let stripes = (0..STRIPES).map(|_| Mutex::new(stripe())).collect();
        let (clock, hasher) = (Box::new(clock), RandomState::new());
        let (channels, bytes, forgotten, look_again_ms, displace_again_ms, evict_again_ms) = Default::default();
        let channels_max = config.channels_max.min((config.history_bytes_max / 2 / CHANNEL_BYTES).max(CHANNELS_MIN));
        let shares = Shares::new(&config, channels_max);
        let bounds = shares.classes().map(|class| config.of_class(class).bounds()).collect();
        let (evicting, successor) = Default::default();
        Self {
            config,
            channels_max,
            look_again_ms,
            displace_again_ms,
            evict_again_ms,
            shares,
            bounds,
            epoch,
            deliver,
            clock,
            stripes,
            hasher,
            channels,
            bytes,
            forgotten,
            evicting,
            successor,
        }
    }

    /// Returns the index of the stripe and the hash for the lookup in it. One hash serves both.
    fn stripe(&self, name: &ChannelName) -> (usize, u64) {
        let hash = self.hasher.hash_one(name);
        // The table uses the highest and the lowest bits.
        ((hash >> 32) as usize % STRIPES, hash)
    }

    /// Runs `work` on the history of a channel. An unknown channel reads as empty, and the read does not create it.
    /// Returns `None` if the channel was handed over.
    fn read<T>(&self, name: &ChannelName, work: impl FnOnce(&mut History, &Bounds) -> T) -> Option<T> {
        let (stripe, hash) = self.stripe(name);
        let mut stripe = lock(&self.stripes[stripe]);
        match stripe.find(hash, name) {
            Some(index) => {
                let Channel { history, namespace, .. } = &mut stripe.channels[index as usize];
                Some(self.count(history, |history| work(history, &self.bounds[*namespace as usize])))
            }
            None if stripe.handed_over.is_some() => None,
            None => Some(work(&mut self.empty(), &self.config.bounds(name))),
        }
    }

    /// Returns the history of an unknown channel, which never existed or was evicted.
    fn empty(&self) -> History {
        let (offset, before_ms) = *lock(&self.forgotten);
        History::after_forgotten(Position { epoch: self.epoch, offset }, before_ms)
    }

    /// Changes a history and updates the sum of the memory of all histories.
    fn count<T>(&self, history: &mut History, work: impl FnOnce(&mut History) -> T) -> T {
        let before = history.memory_bytes();
        let result = work(history);
        let change = history.memory_bytes().wrapping_sub(before);
        if change != 0 {
            self.bytes.fetch_add(change, Ordering::Relaxed);
        }
        result
    }

    fn append_to(&self, channel: &mut Channel<D::Route>, publication: NewPublication) -> Result<Position, Error> {
        let Channel { name, route, namespace, history, .. } = channel;
        self.deliver.expect(route);
        let now_ms = self.now_ms();
        let bounds = &self.bounds[*namespace as usize];
        if bounds.keys_max > 0 && self.bytes.load(Ordering::Relaxed) > self.config.history_bytes_max {
            check_room(history, &publication)?;
        }
        let offset = match self.count(history, |history| history.append(publication, now_ms, bounds)) {
            Appended::Duplicate(offset) => offset,
            Appended::New(publication) => {
                self.deliver.deliver(route, name, self.epoch, &publication);
                publication.offset
            }
            Appended::Refused(error) => return Err(*error),
        };
        Ok(Position { epoch: self.epoch, offset })
    }

    /// Appends the deletions of keys whose time to live has ended, at most `most`. Returns their number.
    fn expire(&self, channel: &mut Channel<D::Route>, now_ms: u64, most: usize) -> usize {
        let Channel { name, route, namespace, history, .. } = channel;
        let bounds = &self.bounds[*namespace as usize];
        let expired = std::iter::from_fn(|| self.count(history, |history| history.expire(now_ms, bounds)));
        let deliver = |deletion| self.deliver.deliver(route, name, self.epoch, &deletion);
        expired.take(most).map(deliver).count()
    }

    fn append_and_evict(
        &self,
        slot: &mut ChannelSlot,
        name: &ChannelName,
        publication: NewPublication,
    ) -> Answer<Result<Position, Error>> {
        let appended = self.append_to_any(slot, name, publication);
        if self.bytes.load(Ordering::Relaxed) > self.config.history_bytes_max {
            self.evict();
        }
        appended
    }

    fn append_to_any(
        &self,
        slot: &mut ChannelSlot,
        name: &ChannelName,
        publication: NewPublication,
    ) -> Answer<Result<Position, Error>> {
        if let Some((stripe, index)) = slot.parts()
            && let Some(channel) = lock(&self.stripes[stripe]).channels.get_mut(index)
            && channel.name == *name
        {
            return Answer::now(self.append_to(channel, publication));
        }
        let (number, hash) = self.stripe(name);
        let mut stripe = lock(&self.stripes[number]);
        if let Some(index) = stripe.find(hash, name) {
            *slot = ChannelSlot::new(number, index);
            return Answer::now(self.append_to(&mut stripe.channels[index as usize], publication));
        }
        if stripe.handed_over.is_some() {
            drop(stripe);
            return match self.handed_over_to() {
                Some(successor) => successor.append(name, publication),
                // The channels were taken back meanwhile.
                None => self.append_to_any(slot, name, publication),
            };
        }
        let (holder, namespace) = (publication.holder, self.shares.namespace(name));
        if let Err(refused) = self.check_first(&publication, namespace) {
            return Answer::now(Err(refused));
        }
        if !self.may_create(holder, namespace) {
            drop(stripe);
            if !self.forget_channels(holder, namespace) {
                return Answer::now(Err(self.shares.too_many(holder, self.channels.load(Ordering::Relaxed))));
            }
            return self.append_to_any(slot, name, publication);
        }
        let index = self.create(&mut stripe, hash, name, holder, self.empty());
        *slot = ChannelSlot::new(number, index);
        Answer::now(self.append_to(&mut stripe.channels[index as usize], publication))
    }

    /// Adds a channel that the stripe does not have, and returns its index.
    fn create(
        &self,
        stripe: &mut Stripe<D::Route>,
        hash: u64,
        name: &ChannelName,
        holder: Holder,
        history: History,
    ) -> u32 {
        let namespace = self.shares.namespace(name);
        self.channels.fetch_add(1, Ordering::Relaxed);
        self.shares.take(holder, namespace);
        self.bytes.fetch_add(channel_bytes(name) + history.memory_bytes(), Ordering::Relaxed);
        let channel = Channel { name: name.clone(), route: self.deliver.route(name), namespace, holder, history };
        stripe.insert(channel, hash, &self.hasher)
    }

    /// Checks the first publication of a channel, so that a refused one creates no channel.
    fn check_first(&self, publication: &NewPublication, namespace: Namespace) -> Result<(), Error> {
        check_fits(publication, self.bounds[namespace as usize].keys_max > 0)?;
        check_expected(publication.expected, None)
    }

    fn may_create(&self, holder: Holder, namespace: Namespace) -> bool {
        self.shares.may_create(holder, namespace, self.channels.load(Ordering::Relaxed))
    }
}

impl<D: Deliver> Engine for MemoryEngine<D> {
    fn append(&self, name: &ChannelName, publication: NewPublication) -> Answer<Result<Position, Error>> {
        self.append_and_evict(&mut ChannelSlot::default(), name, publication)
    }

    fn append_at(
        &self,
        slot: &mut ChannelSlot,
        name: &mut ChannelName,
        publication: NewPublication,
    ) -> Answer<Result<Position, Error>> {
        let known = *slot;
        let appended = self.append_and_evict(slot, name, publication);
        if *slot != known
            && let Some((stripe, index)) = slot.parts()
            && let Some(channel) = lock(&self.stripes[stripe]).channels.get(index)
            && channel.name == *name
        {
            *name = channel.name.clone();
        }
        appended
    }

    fn expect(&self, slot: ChannelSlot) {
        if let Some((stripe, index)) = slot.parts()
            && let Ok(stripe) = self.stripes[stripe].try_lock()
        {
            let first = stripe.channels.as_ptr();
            drop(stripe);
            // The channel may have moved meanwhile; a prefetch of stale memory is harmless.
            prefetch_at(first.wrapping_add(index));
        }
    }

    fn page(&self, name: &ChannelName, since: Since, policy: Policy, limit: PageLimit) -> Answer<Result<Page, Error>> {
        let now_ms = self.now_ms();
        let page = self.read(name, |history, bounds| match since.is_state() && bounds.keys_max == 0 {
            true => Err(no_state()),
            false => Ok(history.page(since, policy, limit, now_ms, bounds)),
        });
        let Some(page) = page else {
            return match self.handed_over_to() {
                Some(successor) => successor.page(name, since, policy, limit),
                // The channels were taken back meanwhile.
                None => self.page(name, since, policy, limit),
            };
        };
        Answer::now(page)
    }

    fn newest(&self, name: &ChannelName) -> Answer<Result<Newest, Error>> {
        let now_ms = self.now_ms();
        let newest = self.read(name, |history, bounds| {
            history.trim(now_ms, bounds);
            let publication = history.newest().filter(|newest| !newest.is_expired(now_ms)).cloned();
            Newest { top: history.top(), publication }
        });
        let Some(newest) = newest else {
            return match self.handed_over_to() {
                Some(successor) => successor.newest(name),
                None => self.newest(name),
            };
        };
        Answer::now(Ok(newest))
    }

    fn channels(
        &self,
        pattern: &Pattern,
        after: Option<&ChannelName>,
        max: usize,
    ) -> Answer<Result<Vec<ChannelName>, Error>> {
        if let Some(successor) = self.handed_over_to() {
            return successor.channels(pattern, after, max);
        }
        let mut found = Smallest::new(after, max);
        for stripe in &self.stripes {
            for Channel { name, .. } in &lock(stripe).channels {
                if found.wants(name.as_str()) && pattern.matches(name.as_str()) {
                    found.offer(name);
                }
            }
        }
        Answer::now(Ok(found.into_names()))
    }

    /// All readers are on this node.
    fn presence(&self, name: &ChannelName) -> Answer<Result<u32, Error>> {
        if let Some(successor) = self.handed_over_to() {
            return successor.presence(name);
        }
        Answer::now(Ok(self.deliver.readers(name)))
    }

    /// Does nothing: every publication of this process is delivered.
    fn watch(&self, _: &Target, _: bool) {}

    fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    fn size(&self) -> (usize, usize) {
        let stripes = self.stripes.iter().map(lock);
        let bytes = stripes.map(|stripe| stripe.channels.iter().map(|c| c.history.bytes()).sum::<usize>()).sum();
        (self.channels.load(Ordering::Relaxed), bytes)
    }

    fn make_room(&self, bytes: usize) {
        self.evict_to(self.bytes.load(Ordering::Relaxed).saturating_sub(bytes), false);
    }

    fn hand_over(&self, to: &HandOver) -> io::Result<()> {
        self.send_channels(to)
    }

    fn take_back(&self) -> io::Result<()> {
        self.restore_channels();
        Ok(())
    }

    fn sweep(&self) {
        let (now_ms, mut left) = (self.now_ms(), EXPIRE_MAX);
        for stripe in &self.stripes {
            for channel in &mut lock(stripe).channels {
                if channel.history.has_expired(now_ms) {
                    left -= self.expire(channel, now_ms, left);
                }
                let Channel { namespace, history, .. } = channel;
                self.count(history, |history| history.trim(now_ms, &self.bounds[*namespace as usize]));
            }
        }
    }
}

impl<R> Stripe<R> {
    fn find(&self, hash: u64, name: &ChannelName) -> Option<u32> {
        self.by_name.find(hash, |index| self.channels[*index as usize].name == *name).copied()
    }

    /// Adds a channel and returns its index. The caller has checked that no channel has this name.
    fn insert(&mut self, channel: Channel<R>, hash: u64, hasher: &RandomState) -> u32 {
        let index = self.channels.len() as u32;
        self.channels.push(channel);
        let Self { channels, by_name, .. } = self;
        by_name.insert_unique(hash, index, |index| hasher.hash_one(&channels[*index as usize].name));
        index
    }

    /// Removes and returns the channels for which `leaves` is true. The remaining channels move together. Cost:
    /// O(channels).
    fn extract(&mut self, mut leaves: impl FnMut(&Channel<R>) -> bool, hasher: &RandomState) -> Vec<Channel<R>> {
        let leaving: Vec<bool> = self.channels.iter().map(&mut leaves).collect();
        if !leaving.contains(&true) {
            return Vec::new();
        }
        let mut leaving = leaving.into_iter();
        let (left, stay): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.channels).into_iter().partition(|_| leaving.next() == Some(true));
        self.by_name = HashTable::with_capacity(stay.len());
        for channel in stay {
            let hash = hasher.hash_one(&channel.name);
            self.insert(channel, hash, hasher);
        }
        left
    }
}

impl ChannelSlot {
    /// Returns an empty slot if the numbers do not fit.
    fn new(stripe: usize, index: u32) -> Self {
        const { assert!(STRIPES <= 1 << (32 - INDEX_BITS)) };
        let bits = (stripe as u32) << INDEX_BITS | (index + 1);
        Self(NonZeroU32::new(bits).filter(|_| index + 1 < 1 << INDEX_BITS))
    }

    fn parts(self) -> Option<(usize, usize)> {
        let bits = self.0?.get();
        Some(((bits >> INDEX_BITS) as usize, (bits & ((1 << INDEX_BITS) - 1)) as usize - 1))
    }
}

/// Checks whether a publication may enter a state while the memory is used up.
///
/// Errors: `too_many` for a new key.
fn check_room(history: &History, publication: &NewPublication) -> Result<(), Error> {
    match &publication.key {
        Some(key) if !publication.is_deletion && !history.has_key(key) => Err(no_room_for_keys()),
        _ => Ok(()),
    }
}

/// Returns the bytes that a channel uses besides its history: its entry, its name and its route to the shards.
fn channel_bytes(name: &ChannelName) -> usize {
    CHANNEL_BYTES + 2 * name.as_str().len()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
