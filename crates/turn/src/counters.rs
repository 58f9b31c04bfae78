//! Counters per allocation, for operators. The number of rows is bounded: live allocations by
//! [`Limits::allocations_max`](crate::Limits), ended ones by [`ENDED_MAX`]. Counts of older ones are added up, so the
//! sum of everything always equals the totals in [`Metrics`](crate::Metrics).

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::allocation::{Client, RelayId};

/// Maximum number of ended allocations that are kept, so that an allocation that ends between two readings is seen.
const ENDED_MAX: usize = 256;

/// Traffic of one allocation. Only one thread writes; any thread may read.
#[derive(Debug, Default)]
pub struct Counters {
    pub datagrams_to_peers: AtomicU64,
    pub bytes_to_peers: AtomicU64,
    pub datagrams_to_clients: AtomicU64,
    pub bytes_to_clients: AtomicU64,
    pub over_quota: AtomicU64,
}

/// Counts at the time of a reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub datagrams_to_peers: u64,
    pub bytes_to_peers: u64,
    pub datagrams_to_clients: u64,
    pub bytes_to_clients: u64,
    pub over_quota: u64,
}

/// One allocation at the time of a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationRow {
    /// Number of the relay, never reused by this server.
    pub id: u64,
    pub user: Arc<str>,
    pub client: Client,
    pub relayed: SocketAddr,
    pub began_ms: u64,
    pub has_ended: bool,
    pub counts: Counts,
}

#[derive(Clone, Debug)]
struct Entry {
    user: Arc<str>,
    client: Client,
    relayed: SocketAddr,
    began_ms: u64,
    counters: Arc<Counters>,
}

/// The counters of all allocations.
#[derive(Debug, Default)]
pub struct Registry(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    live: BTreeMap<u64, Entry>,
    ended: VecDeque<(u64, Entry)>,
    /// Sum of the ended allocations that are not kept.
    rest: Counts,
}

impl Counters {
    fn read(&self) -> Counts {
        Counts {
            datagrams_to_peers: self.datagrams_to_peers.load(Relaxed),
            bytes_to_peers: self.bytes_to_peers.load(Relaxed),
            datagrams_to_clients: self.datagrams_to_clients.load(Relaxed),
            bytes_to_clients: self.bytes_to_clients.load(Relaxed),
            over_quota: self.over_quota.load(Relaxed),
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.datagrams_to_peers += other.datagrams_to_peers;
        self.bytes_to_peers += other.bytes_to_peers;
        self.datagrams_to_clients += other.datagrams_to_clients;
        self.bytes_to_clients += other.bytes_to_clients;
        self.over_quota += other.over_quota;
    }
}

impl Registry {
    pub(super) fn begin(
        &self,
        relay: RelayId,
        (user, client): (Arc<str>, Client),
        relayed: SocketAddr,
        began_ms: u64,
    ) -> Arc<Counters> {
        let counters = Arc::<Counters>::default();
        let entry = Entry { user, client, relayed, began_ms, counters: counters.clone() };
        self.with(|entries| entries.live.insert(relay.0, entry));
        counters
    }

    pub(super) fn end(&self, relay: RelayId) {
        self.with(|entries| {
            if let Some(entry) = entries.live.remove(&relay.0) {
                entries.ended.push_back((relay.0, entry));
            }
            if entries.ended.len() > ENDED_MAX
                && let Some((_, oldest)) = entries.ended.pop_front()
            {
                entries.rest += oldest.counters.read();
            }
        });
    }

    /// Returns the live allocations and the last ones that have ended, by their ids; and the sum of all other ones.
    pub fn read(&self) -> (Vec<AllocationRow>, Counts) {
        self.with(|entries| {
            let row = |(id, entry): (&u64, &Entry), has_ended| AllocationRow {
                id: *id,
                user: entry.user.clone(),
                client: entry.client,
                relayed: entry.relayed,
                began_ms: entry.began_ms,
                has_ended,
                counts: entry.counters.read(),
            };
            let ended = entries.ended.iter().map(|(id, entry)| row((id, entry), true));
            let mut rows: Vec<_> = ended.chain(entries.live.iter().map(|live| row(live, false))).collect();
            rows.sort_by_key(|row| row.id);
            (rows, entries.rest)
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Entries) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_allocations_are_bounded_and_their_sum_is_kept() {
        let registry = Registry::default();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        for id in 1..=1000 {
            let counters = registry.begin(RelayId(id), ("ann".into(), Client::Datagram(address)), address, id);
            counters.bytes_to_peers.fetch_add(10, Relaxed);
            registry.end(RelayId(id));
            registry.end(RelayId(id));
        }
        let live = registry.begin(RelayId(1001), ("bob".into(), Client::Datagram(address)), address, 7);
        live.over_quota.fetch_add(3, Relaxed);
        let (rows, mut sum) = registry.read();
        assert_eq!(rows.len(), ENDED_MAX + 1);
        assert_eq!((rows[0].id, rows[0].has_ended), (1001 - ENDED_MAX as u64, true));
        assert_eq!((&*rows[ENDED_MAX].user, rows[ENDED_MAX].has_ended, rows[ENDED_MAX].began_ms), ("bob", false, 7));
        rows.iter().for_each(|row| sum += row.counts);
        assert_eq!(sum, Counts { bytes_to_peers: 10_000, over_quota: 3, ..Counts::default() });
    }
}
