//! Counts the channels of each holder, so that one client cannot take all of them.
//!
//! Nothing is refused while more than a ninth of the places is free. Below that, a holder may create a channel while it
//! holds fewer than eight times the free places: one flooding client stops with a ninth free, ten clients stop with an
//! 81st. A namespace may hold 32 times the free places, so a namespace that many clients flood leaves a 33rd to the
//! other namespaces. Source: docs/adr/0011.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use millrace_protocol::{ChannelName, Code, Error, Holder};

use crate::{Config, config::Class};

/// A holder may take a place while it holds fewer than this many times the free places.
const HOLDER_TIMES: usize = 8;
/// The same limit for a namespace.
const NAMESPACE_TIMES: usize = 32;

/// Number of places of each holder. A holder without a place has no entry, so the table is bounded by the number of
/// places.
#[derive(Debug, Default)]
pub struct HolderCounts(Mutex<HashMap<Holder, usize>>);

/// Returns whether a holder may take one more place while `free` of `max` are free. `held` returns the number of places
/// of the holder; it is called only if few are free.
pub fn may_take(max: usize, free: usize, held: impl FnOnce() -> usize) -> bool {
    free > max / (HOLDER_TIMES + 1) || free > 0 && held() < HOLDER_TIMES.saturating_mul(free)
}

impl HolderCounts {
    pub fn of(&self, holder: Holder) -> usize {
        self.lock().get(&holder).copied().unwrap_or(0)
    }

    pub fn take(&self, holder: Holder) {
        *self.lock().entry(holder).or_default() += 1;
    }

    pub fn give_back(&self, holder: Holder) {
        let mut counts = self.lock();
        if let Some(places) = counts.get_mut(&holder) {
            *places = places.saturating_sub(1);
            if *places == 0 {
                counts.remove(&holder);
            }
        }
    }

    /// Number of holders with at least one place.
    pub fn holders(&self) -> usize {
        self.lock().len()
    }

    /// Returns the holders of more than `floor` places. Cost: O(holders).
    pub fn over(&self, floor: usize) -> HashMap<Holder, usize> {
        let counts = self.lock();
        counts.iter().filter(|(_, places)| **places > floor).map(|(holder, places)| (*holder, *places)).collect()
    }

    /// Halves every count. Used when the end of a place is not reported.
    pub fn fade(&self) {
        self.lock().retain(|_, places| {
            *places /= 2;
            *places > 0
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Holder, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of channels of each holder and of each namespace.
pub(crate) struct Shares {
    max: usize,
    counts: HolderCounts,
    /// Entry 0 stands for all namespaces that the configuration does not name; the others are sorted by name.
    names: Vec<String>,
    /// Number of channels of each class: for each namespace its channels, then for each namespace its rosters, then the
    /// logs and the states of the server itself, then the states of rooms.
    counts_by_class: Vec<AtomicUsize>,
}

/// Index of a class of channels in [`Shares`]: a namespace, where 0 stands for all namespaces that the configuration
/// does not name; the rosters of a namespace; or the channels of the server itself.
pub(crate) type Namespace = u32;

impl Shares {
    pub fn new(config: &Config, max: usize) -> Self {
        let named = config.namespaces.keys().chain(&config.reserved).filter(|name| !name.is_empty());
        let names: std::collections::BTreeSet<&String> = named.collect();
        let names: Vec<String> = std::iter::once(String::new()).chain(names.into_iter().cloned()).collect();
        let counts_by_class = (0..2 * names.len() + 3).map(|_| AtomicUsize::new(0)).collect();
        Self { max, counts: HolderCounts::default(), names, counts_by_class }
    }

    pub fn namespace(&self, name: &ChannelName) -> Namespace {
        let named = |namespace: &str| {
            self.names[1..].binary_search_by(|name| name.as_str().cmp(namespace)).map_or(0, |i| i + 1)
        };
        let class = match Class::of(name) {
            Class::Namespace(namespace) => named(namespace),
            Class::Roster(namespace) => self.names.len() + named(namespace),
            Class::InternalLog => 2 * self.names.len(),
            Class::InternalState => 2 * self.names.len() + 1,
            Class::RoomState => 2 * self.names.len() + 2,
        };
        class as u32
    }

    /// Returns all classes in the order of their indexes.
    pub fn classes(&self) -> impl Iterator<Item = Class<'_>> {
        let names = || self.names.iter().map(String::as_str);
        let of_namespaces = names().map(Class::Namespace).chain(names().map(Class::Roster));
        of_namespaces.chain([Class::InternalLog, Class::InternalState, Class::RoomState])
    }

    /// Returns whether this holder may create a channel in this namespace while there are `used` channels.
    pub fn may_create(&self, holder: Holder, namespace: Namespace, used: usize) -> bool {
        let free = self.max.saturating_sub(used);
        may_take(self.max, free, || if holder == Holder::NONE { 0 } else { self.counts.of(holder) })
            && self.in_namespace(namespace) < NAMESPACE_TIMES.saturating_mul(free)
    }

    /// Returns true if enough places are free that any holder may create a channel.
    pub fn has_plenty(&self, used: usize) -> bool {
        may_take(self.max, self.max.saturating_sub(used), || usize::MAX)
    }

    pub fn take(&self, holder: Holder, namespace: Namespace) {
        self.counts.take(holder);
        self.counts_by_class[namespace as usize].fetch_add(1, Relaxed);
    }

    pub fn give_back(&self, holder: Holder, namespace: Namespace) {
        self.counts.give_back(holder);
        let _ = self.counts_by_class[namespace as usize].fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
    }

    pub fn fade(&self) {
        self.counts.fade();
        for channels in &self.counts_by_class {
            channels.store(channels.load(Relaxed) / 2, Relaxed);
        }
    }

    /// Number of channels in a namespace. Eviction for a namespace takes channels from the same or from larger
    /// namespaces.
    pub fn in_namespace(&self, namespace: Namespace) -> usize {
        self.counts_by_class[namespace as usize].load(Relaxed)
    }

    /// Returns the holders whose idle channels may be evicted for `holder`: those with at least as many channels.
    pub fn as_large(&self, holder: Holder) -> HashMap<Holder, usize> {
        self.counts.over(self.counts.of(holder).saturating_sub(1))
    }

    /// Returns an equal share, and the holders above it, whose channels may be evicted for `holder` even if they are
    /// not idle. No holder is returned if `holder` has its share already.
    pub fn over_share(&self, holder: Holder) -> (usize, HashMap<Holder, usize>) {
        let share = self.max / self.counts.holders().max(1);
        let is_below = self.counts.of(holder) < share;
        (share, if is_below { self.counts.over(share) } else { HashMap::new() })
    }

    /// Returns the error for a channel that [`Shares::may_create`] refuses.
    pub fn too_many(&self, holder: Holder, used: usize) -> Error {
        let (max, counts, free) = (self.max, self.counts.of(holder), self.max.saturating_sub(used));
        let detail = if holder != Holder::NONE && free > 0 && counts >= HOLDER_TIMES.saturating_mul(free) {
            format!(
                "this client has created {counts} of at most {max} channels, and the {free} free ones are kept for other \
                 clients: publish into existing channels, or try again when idle ones have been evicted"
            )
        } else {
            format!(
                "the server has {used} of at most {max} channels (`engine.channels_max`), and none is idle; try again later"
            )
        };
        Error::new(Code::TooMany, detail)
    }
}

/// Chooses at most `most` of the candidates (holder, time of the last publication). The largest holders lose channels
/// first, starting with their longest idle ones. No holder goes below `floor`. Returns for each holder the newest time
/// to evict and the number of channels.
pub(crate) fn victims(
    mut candidates: Vec<(Holder, u64)>,
    counts: &HashMap<Holder, usize>,
    floor: usize,
    most: usize,
) -> HashMap<Holder, (u64, usize)> {
    candidates.sort_unstable();
    let runs: Vec<&[(Holder, u64)]> = candidates.chunk_by(|a, b| a.0 == b.0).collect();
    let gives = |run: &[(Holder, u64)], level: usize| {
        run.len().min(counts.get(&run[0].0).copied().unwrap_or(0).saturating_sub(level))
    };
    let sum = |level: usize| runs.iter().map(|run| gives(run, level)).sum::<usize>();
    // Binary search for the highest level that frees enough channels. The result is the floor if no level does.
    let (mut enough, mut too_few) = (floor, counts.values().copied().max().unwrap_or(0).max(floor) + 1);
    while too_few - enough > 1 {
        let middle = enough + (too_few - enough) / 2;
        if sum(middle) >= most { enough = middle } else { too_few = middle }
    }
    let mut picked: Vec<(u64, Holder)> = runs
        .iter()
        .flat_map(|run| run[..gives(run, enough)].iter().map(|(holder, time_ms)| (*time_ms, *holder)))
        .collect();
    if picked.len() > most {
        picked.select_nth_unstable(most);
        picked.truncate(most);
    }
    let mut victims = HashMap::new();
    for (time_ms, holder) in picked {
        let (until_ms, count) = victims.entry(holder).or_insert((0, 0));
        *until_ms = time_ms.max(*until_ms);
        *count += 1;
    }
    victims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(max: usize) -> Shares {
        let config = Config { reserved: vec!["rooms".into()], ..Config::default() };
        Shares::new(&config, max)
    }

    /// Creates channels until this holder is refused. Returns the number of channels created.
    fn flood(shares: &Shares, used: &mut usize, holder: u32, namespace: Namespace) -> usize {
        let before = *used;
        while shares.may_create(Holder::new(holder), namespace, *used) {
            shares.take(Holder::new(holder), namespace);
            *used += 1;
        }
        *used - before
    }

    #[test]
    fn each_holder_leaves_a_ninth_of_free_places() {
        let (shares, mut used) = (shares(9000), 0);
        assert_eq!(flood(&shares, &mut used, 1, 0), 8000);
        assert_eq!(flood(&shares, &mut used, 2, 1), 889);
        assert!(!shares.may_create(Holder::new(1), 1, used) && !shares.may_create(Holder::new(2), 1, used));
        assert!(shares.may_create(Holder::new(3), 1, used));
        let told = shares.too_many(Holder::new(1), used);
        assert_eq!((told.code, told.detail.contains("has created 8000 of at most 9000")), (Code::TooMany, true));
    }

    #[test]
    fn flooded_namespace_leaves_room_for_others() {
        let (shares, mut used) = (shares(3300), 0);
        while shares.may_create(Holder::new(used as u32 + 1), 0, used) {
            shares.take(Holder::new(used as u32 + 1), 0);
            used += 1;
        }
        assert_eq!(used, 3200);
        let rooms = shares.namespace(&ChannelName::parse("rooms/a/chat").unwrap());
        assert_eq!((rooms, shares.classes().nth(1)), (1, Some(Class::Namespace("rooms"))));
        let states = shares.namespace(&ChannelName::parse("rooms/a/state").unwrap());
        assert_eq!(shares.classes().nth(states as usize), Some(Class::RoomState));
        assert!(
            shares.may_create(Holder::new(9999), rooms, used) && shares.may_create(Holder::new(9999), states, used)
        );
        assert!(!shares.may_create(Holder::new(9999), 0, used));
    }

    #[test]
    fn server_may_use_all_channels() {
        let (shares, mut used) = (shares(33), 0);
        assert_eq!(flood(&shares, &mut used, 0, 0), 32);
        assert_eq!(flood(&shares, &mut used, 0, 1), 1);
        assert!(shares.too_many(Holder::new(7), used).detail.contains("none is idle"));
    }

    #[test]
    fn eviction_takes_idle_channels_of_largest_holder() {
        let counts = [(Holder::new(1), 100), (Holder::new(2), 10), (Holder::new(3), 3)].into();
        let of = |holder: u32, times: std::ops::Range<u64>| times.map(move |time| (Holder::new(holder), time));
        let all: Vec<_> = of(1, 50..150).chain(of(2, 0..10)).chain(of(3, 0..3)).collect();
        let picked = |floor, most| {
            let mut picked: Vec<_> = victims(all.clone(), &counts, floor, most).into_iter().collect();
            picked.sort_unstable();
            picked.into_iter().map(|(holder, (until_ms, count))| (holder.number(), until_ms, count)).collect::<Vec<_>>()
        };
        assert_eq!(picked(0, 20), [(1, 69, 20)]);
        assert_eq!(picked(0, 92), [(1, 140, 91), (2, 0, 1)]);
        assert_eq!(picked(50, 1000), [(1, 99, 50)]);
        assert_eq!(picked(100, 1000), []);
        assert_eq!(picked(0, 1000).iter().map(|(_, _, count)| count).sum::<usize>(), 113);
    }

    #[test]
    fn empty_holders_are_removed() {
        let counts = HolderCounts::default();
        counts.take(Holder::new(1));
        counts.take(Holder::new(1));
        counts.take(Holder::new(2));
        counts.give_back(Holder::new(2));
        counts.give_back(Holder::new(3));
        assert_eq!((counts.of(Holder::new(1)), counts.of(Holder::new(2)), counts.holders()), (2, 0, 1));
        counts.fade();
        assert_eq!(counts.of(Holder::new(1)), 1);
        counts.fade();
        assert_eq!(counts.holders(), 0);
    }
}
