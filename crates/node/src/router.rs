use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{
            AtomicU32, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
        },
    },
};

use millrace_delivery::{ChannelKey, ConnId, prefetch};
use millrace_engine::Deliver;
use millrace_protocol::{ChannelName, Code, Epoch, Error, Pattern, PatternMap, Position, Publication};
use smallvec::SmallVec;

use crate::{
    Delivery, Mailbox, NamespaceId, Namespaces, Observer,
    mailbox::{ChannelEvent, Moved},
    spans::RecordSpan,
};

const STRIPES: usize = 64;

/// Readers of one channel, per shard. The engine stores it beside the channel's log, and each [`Delivery`] carries it.
#[derive(Debug)]
pub struct Route {
    pub name: ChannelName,
    pub namespace: NamespaceId,
    /// Inline capacity for one shard saves a pointer dereference.
    ways: SmallVec<[Way; 1]>,
}

/// Readers of one channel in one shard.
#[derive(Debug, Default)]
pub struct Way {
    /// [`ChannelKey`] of the channel in the shard's hub.
    key: AtomicU64,
    readers: AtomicU32,
}

/// Number of readers per shard.
type Readers = Box<[u32]>;

/// Routing table: sends each publication to the mailboxes of the shards that have a reader for it, and to no others.
pub struct Router {
    /// One per shard, and those of the tap and of the service if they exist.
    mailboxes: Vec<Arc<Mailbox>>,
    shards: usize,
    /// Places of the mailboxes of the tap and of the service.
    tap: Option<usize>,
    service: Option<usize>,
    congested: Arc<AtomicUsize>,
    routes: Vec<Mutex<HashMap<ChannelName, Arc<Route>>>>,
    /// Number of channels with readers.
    channels: AtomicUsize,
    patterns: RwLock<PatternMap<Readers>>,
    pattern_count: AtomicUsize,
    patterns_max: AtomicUsize,
    namespaces: Namespaces,
    hasher: RandomState,
    node: OnceLock<Box<str>>,
    observer: OnceLock<Arc<dyn Observer>>,
    span_recorder: OnceLock<Arc<dyn RecordSpan>>,
}

impl Router {
    pub fn new(shards: usize) -> Self {
        Self::with_namespaces(shards, [])
    }

    /// Creates a router. The configured namespaces always have counters of their own.
    pub fn with_namespaces<'a>(shards: usize, configured: impl IntoIterator<Item = &'a str>) -> Self {
        let congested = Arc::<AtomicUsize>::default();
        Self {
            mailboxes: (0..shards).map(|_| Arc::new(Mailbox::new(congested.clone()))).collect(),
            shards,
            tap: None,
            service: None,
            congested,
            routes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            channels: AtomicUsize::new(0),
            patterns: RwLock::default(),
            pattern_count: AtomicUsize::new(0),
            patterns_max: AtomicUsize::new(usize::MAX),
            namespaces: Namespaces::new(shards, configured),
            hasher: RandomState::new(),
            node: OnceLock::new(),
            observer: OnceLock::new(),
            span_recorder: OnceLock::new(),
        }
    }

    /// Sets the name of this node, and the observer of its readers, if any. Call it once, before the shards start.
    pub fn set_node(&self, name: &str, observer: Option<Arc<dyn Observer>>) {
        let _ = self.node.set(name.into());
        if let Some(observer) = observer {
            let _ = self.observer.set(observer);
        }
    }

    /// Records the spans of publications with a trace context from now on. Call it once, before the shards start.
    pub fn record_spans(&self, recorder: Arc<dyn RecordSpan>) {
        let _ = self.span_recorder.set(recorder);
    }

    /// Returns the receiver of spans, if spans are recorded.
    #[inline]
    pub fn span_recorder(&self) -> Option<&Arc<dyn RecordSpan>> {
        self.span_recorder.get()
    }

    pub fn observer(&self) -> Option<&Arc<dyn Observer>> {
        self.observer.get()
    }

    /// Returns the id of a connection, unique over all nodes: `NODE-SHARD-SLOT-GENERATION`.
    pub fn connection_id(&self, shard: usize, conn: ConnId) -> String {
        let node = self.node.get().map_or("", |node| node);
        format!("{node}-{shard}-{}-{}", conn.slot, conn.generation)
    }

    /// Adds a tap: a mailbox that receives the publications of all channels, for the readers of another process. It
    /// never slows publishers down. Call it before the first channel is opened.
    pub fn with_tap(mut self) -> Self {
        self.tap = Some(self.mailboxes.len());
        self.mailboxes.push(Arc::default());
        self.set_tap(true);
        self
    }

    /// Adds the mailbox of a service: a reader in this process that is no connection. It never slows publishers down.
    /// Call it before the first channel is opened.
    pub fn with_service(mut self) -> Self {
        self.service = Some(self.mailboxes.len());
        self.mailboxes.push(Arc::default());
        self
    }

    /// Returns the mailbox of the service.
    pub fn service(&self) -> Option<&Arc<Mailbox>> {
        self.mailboxes.get(self.service?)
    }

    /// Begins or ends the deliveries of a pattern to the service. Calls `watch` as in [`Router::set_readers`].
    pub fn set_service_reader(&self, pattern: &Pattern, is_read: bool, watch: impl FnOnce(bool)) {
        if let Some(service) = self.service {
            self.set_pattern_readers(service, pattern, u32::from(is_read), watch);
        }
    }

    /// Returns the mailbox of the tap.
    pub fn tap(&self) -> Option<&Mailbox> {
        self.mailboxes.get(self.tap?).map(|mailbox| &**mailbox)
    }

    /// Ends the deliveries to the tap.
    pub fn close_tap(&self) {
        self.set_tap(false);
    }

    fn set_tap(&self, is_open: bool) {
        if let Some(tap) = self.tap {
            let all = Pattern::parse("#").expect("`#` is a pattern");
            self.set_pattern_readers(tap, &all, u32::from(is_open), |_| {});
        }
    }

    pub fn shards(&self) -> usize {
        self.shards
    }

    pub fn mailbox(&self, shard: usize) -> &Arc<Mailbox> {
        &self.mailboxes[shard]
    }

    /// Returns the counters per namespace.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Returns true if any mailbox is congested. Cost: one load.
    pub fn is_congested(&self) -> bool {
        self.congested.load(Relaxed) > 0
    }

    /// Returns the fraction of mailboxes that are congested, from 0 to 1.
    pub fn congested_share(&self) -> f64 {
        self.congested.load(Relaxed) as f64 / self.shards.max(1) as f64
    }

    /// Returns true if a publication of this channel would go to a congested mailbox.
    pub fn is_congested_for(&self, channel: &ChannelName) -> bool {
        if !self.is_congested() {
            return false;
        }
        let mut wanted = self.by_pattern(channel);
        if let Some(route) = self.stripe(channel).get(channel) {
            wanted.iter_mut().zip(&route.ways).for_each(|(wanted, way)| *wanted |= way.readers.load(Relaxed) > 0);
        }
        wanted.iter().zip(&self.mailboxes).take(self.shards).any(|(wanted, mailbox)| *wanted && mailbox.is_congested())
    }

    /// Sets the number of readers of a channel in a shard, and returns the change. Calls `watch` if this gives the node
    /// its first reader of the channel, or removes the last one.
    pub fn set_readers(
        &self,
        shard: usize,
        channel: &ChannelName,
        key: ChannelKey,
        readers: u32,
        watch: impl FnOnce(bool),
    ) -> i64 {
        let mut routes = self.stripe(channel);
        let route = self.open(&mut routes, channel);
        let was_read = is_read(route);
        route.ways[shard].key.store(key.to_bits(), Relaxed);
        let readers_before = route.ways[shard].readers.swap(readers, AcqRel);
        self.namespaces.add_readers(route.namespace, i64::from(readers) - i64::from(readers_before));
        let is_read = is_read(route);
        // Only the table holds the route: the engine has no reference to it.
        if !is_read && Arc::strong_count(route) == 1 {
            routes.remove(channel);
        }
        // Called under the lock, so that changes by several shards stay in order.
        if is_read != was_read {
            match is_read {
                true => self.channels.fetch_add(1, Relaxed),
                false => self.channels.fetch_sub(1, Relaxed),
            };
            watch(is_read);
        }
        i64::from(readers) - i64::from(readers_before)
    }

    /// Returns the number of channels with readers. A channel with readers in several shards counts once.
    pub fn channels(&self) -> usize {
        self.channels.load(Relaxed)
    }

    /// Sets the number of readers of a pattern in a shard. Calls `watch` as in [`Router::set_readers`]. Cost per
    /// publication: see [`PatternMap`].
    pub fn set_pattern_readers(&self, shard: usize, pattern: &Pattern, readers: u32, watch: impl FnOnce(bool)) {
        let mut patterns = self.patterns.write().unwrap_or_else(PoisonError::into_inner);
        let entry = patterns.get_or_insert_with(pattern, || vec![0; self.mailboxes.len()].into());
        let was_read = entry.iter().any(|readers| *readers > 0);
        entry[shard] = readers;
        let is_read = entry.iter().any(|readers| *readers > 0);
        if !is_read {
            patterns.remove(pattern);
        }
        self.pattern_count.store(patterns.len(), SeqCst);
        if is_read != was_read {
            watch(is_read);
        }
    }

    /// Sets the maximum number of different patterns. Existing patterns stay. 0 means no limit.
    pub fn set_patterns_max(&self, max: usize) {
        self.patterns_max.store(if max == 0 { usize::MAX } else { max }, Relaxed);
    }

    /// Checks that this pattern fits within the limit. A pattern that already has a reader always fits.
    ///
    /// Errors: [`Code::TooMany`].
    pub fn check_pattern(&self, pattern: &Pattern) -> Result<(), Error> {
        let max = self.patterns_max.load(Relaxed);
        if self.pattern_count.load(Relaxed) < max {
            return Ok(());
        }
        match self.patterns.read().unwrap_or_else(PoisonError::into_inner).get(pattern).is_some() {
            true => Ok(()),
            false => Err(Error::new(Code::TooMany, format!("this server listens to {max} different patterns already"))),
        }
    }

    fn stripe(&self, channel: &ChannelName) -> MutexGuard<'_, HashMap<ChannelName, Arc<Route>>> {
        let stripe = &self.routes[self.hasher.hash_one(channel) as usize % STRIPES];
        stripe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open<'a>(&self, routes: &'a mut HashMap<ChannelName, Arc<Route>>, channel: &ChannelName) -> &'a Arc<Route> {
        routes.entry(channel.clone()).or_insert_with(|| {
            let ways = self.mailboxes.iter().map(|_| Way::default()).collect();
            Arc::new(Route { name: channel.clone(), namespace: self.namespaces.id(channel), ways })
        })
    }

    /// Sends event of a channel to every shard that has a reader for it.
    fn notify(&self, route: &Arc<Route>, event: impl Fn() -> ChannelEvent) {
        let has_patterns = self.pattern_count.load(SeqCst) > 0;
        let by_pattern = if has_patterns { self.by_pattern(&route.name) } else { Vec::new() };
        for (shard, way) in route.ways.iter().enumerate() {
            if way.readers.load(Acquire) > 0 || by_pattern.get(shard).is_some_and(|listens| *listens) {
                let key = ChannelKey::from_bits(way.key.load(Relaxed));
                self.mailboxes[shard].push(Delivery { route: route.clone(), key, event: event() });
            }
        }
    }

    /// Returns, for each shard, whether it has a reader of a pattern that matches.
    fn by_pattern(&self, channel: &ChannelName) -> Vec<bool> {
        let mut shards = vec![false; self.mailboxes.len()];
        let patterns = self.patterns.read().unwrap_or_else(PoisonError::into_inner);
        patterns.matching(channel.as_str(), |_, readers| {
            shards.iter_mut().zip(readers).for_each(|(listens, readers)| *listens |= *readers > 0);
            true
        });
        shards
    }
}

impl Deliver for Router {
    type Route = Arc<Route>;

    fn route(&self, channel: &ChannelName) -> Arc<Route> {
        self.open(&mut self.stripe(channel), channel).clone()
    }

    fn deliver(&self, route: &Arc<Route>, _: &ChannelName, epoch: Epoch, publication: &Publication) {
        self.notify(route, || ChannelEvent::Published(epoch, publication.clone()));
    }

    fn moved(&self, route: &Arc<Route>, _: &ChannelName, from: Position, top: Position) {
        self.notify(route, || ChannelEvent::Moved(Box::new(Moved { from, top })));
    }

    fn forget(&self, channel: &ChannelName, route: Arc<Route>) {
        let mut routes = self.stripe(channel);
        drop(route);
        if routes.get(channel).is_some_and(|route| !is_read(route) && Arc::strong_count(route) == 1) {
            routes.remove(channel);
        }
    }

    fn expect(&self, route: &Arc<Route>) {
        prefetch(&**route);
    }

    fn readers(&self, channel: &ChannelName) -> u32 {
        let routes = self.stripe(channel);
        routes.get(channel).map_or(0, |route| route.ways.iter().map(|way| way.readers.load(Relaxed)).sum())
    }
}

fn is_read(route: &Route) -> bool {
    route.ways.iter().any(|way| way.readers.load(Relaxed) > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::tests::publication;

    #[test]
    fn publication_reaches_each_reading_shard_once() {
        let router = Router::new(3);
        let channel = ChannelName::parse("a/b").unwrap();
        let key = ChannelKey::from_bits(1 << 32).unwrap();
        let route = router.route(&channel);
        router.set_readers(0, &channel, key, 2, |is_read| assert!(is_read));
        router.set_readers(0, &channel, key, 2, |_| panic!("nothing has changed"));
        router.set_pattern_readers(0, &Pattern::parse("a/+").unwrap(), 1, |is_read| assert!(is_read));
        router.set_pattern_readers(2, &Pattern::parse("#").unwrap(), 1, |is_read| assert!(is_read));
        router.deliver(&route, &channel, Epoch(1), &publication(1));
        let counts: Vec<_> = (0..3).map(|shard| router.mailbox(shard).take(Vec::new()).0.len()).collect();
        assert_eq!((counts, router.readers(&channel)), (vec![1, 0, 1], 2));
        router.set_readers(1, &channel, key, 1, |_| panic!("the node reads the channel already"));
        assert_eq!(router.channels(), 1, "readers in two shards read one channel");
        router.set_readers(1, &channel, key, 0, |_| panic!("another shard still reads"));
        router.set_readers(0, &channel, key, 0, |is_read| assert!(!is_read));
        assert_eq!((router.readers(&channel), router.channels()), (0, 0));
        assert!(Arc::ptr_eq(&route, &router.route(&channel)), "the holder of a route sees later readers");
        drop(route);
        router.set_readers(0, &channel, key, 0, |_| panic!("nothing has changed"));
        assert!(router.stripe(&channel).is_empty(), "an unused route is removed");
    }

    #[test]
    fn only_publisher_into_full_mailbox_is_congested() {
        let router = Router::new(2);
        let [busy, quiet, matched] = ["busy", "quiet", "matched/x"].map(|name| ChannelName::parse(name).unwrap());
        let key = ChannelKey::from_bits(1 << 32).unwrap();
        router.set_readers(1, &busy, key, 1, |_| {});
        router.set_readers(0, &quiet, key, 1, |_| {});
        router.set_pattern_readers(1, &Pattern::parse("matched/#").unwrap(), 1, |_| {});
        let seen = || [&busy, &quiet, &matched].map(|channel| router.is_congested_for(channel));
        assert_eq!(seen(), [false; 3]);
        let route = router.route(&busy);
        let publication = publication(1);
        while !router.is_congested() {
            router.deliver(&route, &busy, Epoch(1), &publication);
        }
        assert_eq!(seen(), [true, false, true]);
        router.mailbox(1).take(Vec::new());
        assert_eq!(seen(), [false; 3]);
    }
}
