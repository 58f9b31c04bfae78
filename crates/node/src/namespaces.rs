//! Counters per namespace, which is the first level of a channel name.
//!
//! Clients choose names of channels, so the number of namespaces with counters of their own is limited to
//! [`NAMESPACES_MAX`]: the configured namespaces, and the first others. All further namespaces share [`OTHER`].

use std::{
    collections::HashMap,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
};

use millrace_protocol::{ChannelName, is_internal};

/// Maximum number of namespaces with counters of their own.
pub const NAMESPACES_MAX: usize = NUMBERS.len() - 1;
/// Maximum number of configured namespaces among them, so that others have room, too.
const CONFIGURED_MAX: usize = 48;
/// Label of all further namespaces, and of the channels of the server itself. No channel has this name.
pub const OTHER: &str = "(other)";

/// Number of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceId(Number);

/// Declares [`Number`]. It is an enum and no integer, because the compiler stores other information in its unused
/// values: a connection that publishes holds a number, and must fit into one cache line.
macro_rules! numbers {
    ($($name:ident)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Number { $($name),* }

        const NUMBERS: &[Number] = &[$(Number::$name),*];
    };
}

#[rustfmt::skip]
numbers! {
    A0 A1 A2 A3 A4 A5 A6 A7
    B0 B1 B2 B3 B4 B5 B6 B7
    C0 C1 C2 C3 C4 C5 C6 C7
    D0 D1 D2 D3 D4 D5 D6 D7
    E0 E1 E2 E3 E4 E5 E6 E7
    F0 F1 F2 F3 F4 F5 F6 F7
    G0 G1 G2 G3 G4 G5 G6 G7
    H0 H1 H2 H3 H4 H5 H6 H7
}

/// Counters of one namespace and one shard. Only the shard's own thread writes them.
#[derive(Debug, Default)]
pub struct NamespaceCounters {
    pub publications: AtomicU64,
    pub refused: AtomicU64,
    pub deliveries: AtomicU64,
}

/// Counters of all namespaces of a node.
#[derive(Debug)]
pub struct Namespaces {
    ids: RwLock<HashMap<Box<str>, NamespaceId>>,
    /// Counters per shard and namespace.
    counters: Vec<Box<[NamespaceCounters]>>,
    readers: Box<[AtomicI64]>,
}

/// Copy of the numbers in one shard, which saves the lock.
#[derive(Debug, Default)]
pub struct NamespaceCache {
    ids: HashMap<Box<str>, NamespaceId>,
    /// No further namespace gets a number.
    is_complete: bool,
}

impl NamespaceCache {
    /// Returns the number of a channel's namespace; see [`Namespaces::id`].
    pub fn id(&mut self, channel: &ChannelName, all: &Namespaces) -> NamespaceId {
        if let Some(id) = self.ids.get(channel.namespace()) {
            return *id;
        }
        if self.is_complete {
            return NamespaceId::OTHER;
        }
        let id = all.id(channel);
        let ids = all.ids.read().unwrap_or_else(PoisonError::into_inner);
        self.is_complete = ids.len() >= NAMESPACES_MAX;
        if self.is_complete || id != NamespaceId::OTHER {
            self.ids.clone_from(&ids);
        }
        id
    }
}

/// Sum of the counters of one namespace over all shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSample {
    pub namespace: String,
    pub publications: u64,
    pub refused: u64,
    pub deliveries: u64,
    pub readers: u64,
}

impl NamespaceId {
    const OTHER: NamespaceId = NamespaceId(NUMBERS[0]);

    fn index(self) -> usize {
        self.0 as usize
    }
}

impl Namespaces {
    /// Creates the counters for this number of shards. `configured` namespaces always have counters of their own.
    pub fn new<'a>(shards: usize, configured: impl IntoIterator<Item = &'a str>) -> Self {
        let configured = configured.into_iter().take(CONFIGURED_MAX);
        let numbered = NUMBERS[1..].iter().copied().map(NamespaceId);
        let ids: HashMap<Box<str>, NamespaceId> = configured.map(Box::from).zip(numbered).collect();
        let of_shard = || (0..NUMBERS.len()).map(|_| NamespaceCounters::default()).collect();
        Self {
            ids: RwLock::new(ids),
            counters: (0..shards).map(|_| of_shard()).collect(),
            readers: (0..NUMBERS.len()).map(|_| AtomicI64::default()).collect(),
        }
    }

    /// Returns the number of a channel's namespace. An unknown namespace gets the next free number, if there is one.
    ///
    /// Cost: a shared lock and a hash.
    pub fn id(&self, channel: &ChannelName) -> NamespaceId {
        let namespace = channel.namespace();
        {
            let ids = self.ids.read().unwrap_or_else(PoisonError::into_inner);
            match ids.get(namespace) {
                Some(id) => return *id,
                None if ids.len() >= NAMESPACES_MAX || is_internal(channel.as_str()) => return NamespaceId::OTHER,
                None => {}
            }
        }
        let mut ids = self.ids.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = ids.get(namespace) {
            return *id;
        }
        if ids.len() >= NAMESPACES_MAX {
            return NamespaceId::OTHER;
        }
        let id = NamespaceId(NUMBERS[ids.len() + 1]);
        ids.insert(namespace.into(), id);
        id
    }

    /// Returns the counters of a namespace in a shard.
    pub fn of(&self, shard: usize, id: NamespaceId) -> &NamespaceCounters {
        &self.counters[shard][id.index()]
    }

    /// Adds to the number of readers of a namespace.
    pub fn add_readers(&self, id: NamespaceId, change: i64) {
        self.readers[id.index()].fetch_add(change, Relaxed);
    }

    /// Returns the sums of all namespaces, sorted by name; [`OTHER`] is the first.
    pub fn samples(&self) -> Vec<NamespaceSample> {
        let ids = self.ids.read().unwrap_or_else(PoisonError::into_inner);
        let known = ids.iter().map(|(name, id)| (&**name, *id));
        let mut all: Vec<(&str, NamespaceId)> = known.chain([(OTHER, NamespaceId::OTHER)]).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        let sum = |id: NamespaceId, value: fn(&NamespaceCounters) -> &AtomicU64| {
            self.counters.iter().map(|shard| value(&shard[id.index()]).load(Relaxed)).sum()
        };
        let sample = |(name, id): (&str, NamespaceId)| NamespaceSample {
            namespace: name.to_owned(),
            publications: sum(id, |counters| &counters.publications),
            refused: sum(id, |counters| &counters.refused),
            deliveries: sum(id, |counters| &counters.deliveries),
            readers: self.readers[id.index()].load(Relaxed).max(0) as u64,
        };
        all.into_iter().map(sample).collect()
    }

    /// Returns the deliveries of a shard in all namespaces.
    pub fn deliveries(&self, shard: usize) -> u64 {
        self.counters[shard].iter().map(|counters| counters.deliveries.load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metrics;

    fn channel(name: &str) -> ChannelName {
        ChannelName::parse(name).unwrap()
    }

    #[test]
    fn number_of_namespaces_is_limited() {
        let (namespaces, mut caches) =
            (Namespaces::new(2, ["configured"]), [(); 2].map(|()| NamespaceCache::default()));
        for i in 0..1000 {
            let id = caches[i % 2].id(&channel(&format!("n{i}/x")), &namespaces);
            assert_eq!(id == NamespaceId::OTHER, i >= NAMESPACES_MAX - 1, "{i}");
            Metrics::add(&namespaces.of(i % 2, id).publications, 1);
        }
        let late = caches[0].id(&channel("configured/a/b"), &namespaces);
        assert_ne!(late, NamespaceId::OTHER, "a configured namespace always has its own counters");
        assert_eq!(namespaces.id(&channel("n0")), caches[1].id(&channel("n0/y/z"), &namespaces));
        assert_eq!(namespaces.id(&channel(":millrace/revoked")), NamespaceId::OTHER);
        let samples = namespaces.samples();
        assert_eq!(samples.len(), NAMESPACES_MAX + 1);
        let of = |name: &str| samples.iter().find(|sample| sample.namespace == name).unwrap().publications;
        assert_eq!((of("(other)"), of("n0"), of("n61"), of("configured")), (938, 1, 1, 0));
    }

    #[test]
    fn most_configured_namespaces_fit() {
        let names: Vec<String> = (0..1000).map(|i| format!("c{i}")).collect();
        let namespaces = Namespaces::new(1, names.iter().map(String::as_str));
        assert_eq!(namespaces.samples().len(), CONFIGURED_MAX + 1);
        names.iter().for_each(|name| Metrics::add(&namespaces.of(0, namespaces.id(&channel(name))).refused, 1));
        let samples = namespaces.samples();
        assert_eq!(samples.len(), NAMESPACES_MAX + 1);
        assert_eq!(samples.iter().map(|sample| sample.refused).sum::<u64>(), 1000);
    }
}
