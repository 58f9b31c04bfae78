use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::counters::{Counters, Registry};

/// Maximum burst of one user, as a duration at the permitted rate, in microseconds.
const BURST_US: u64 = 1_000_000;

/// Client of the server, identified by its UDP address or by its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    Datagram(SocketAddr),
    /// Unique number of the connection, and the address of the client.
    Stream(u64, SocketAddr),
}

/// Id of a relay socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelayId(pub u64);

/// Opens relay sockets, which exchange datagrams with peers.
pub trait Relays {
    /// Opens one socket for each of `ids`, on consecutive ports. If `even` is true, the first port is even. Returns
    /// the address at which peers reach the first socket.
    fn open(&mut self, ids: &[RelayId], is_ipv6: bool, even: bool) -> Result<SocketAddr, NoRelay>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRelay {
    /// The server has no address of this family.
    Family,
    /// All ports are in use.
    Full,
}

/// Limits and permissions of clients.
pub struct Limits {
    pub allocations_max: usize,
    pub allocations_per_user_max: usize,
    /// Maximum lifetime of an allocation until the client must refresh it, in seconds.
    pub lifetime_max_s: u32,
    /// Maximum payload bytes per second of all allocations of one user, both directions together. 0 means no limit.
    pub bytes_per_s_max: u64,
    /// Returns whether a relay may exchange data with this address. Addresses that are not unicast are always
    /// forbidden.
    pub may_reach: Box<dyn Fn(IpAddr) -> bool + Send>,
}

/// Allocation of one client.
pub struct Allocation {
    pub relay: RelayId,
    pub relayed: SocketAddr,
    pub username: Box<str>,
    pub user: Arc<str>,
    pub key: [u8; 16],
    pub counters: Arc<Counters>,
    pub expires_ms: u64,
    /// Transaction id of the request that created the allocation. If the same request is repeated, it gets the same
    /// answer.
    pub transaction: [u8; 12],
    pub lifetime_s: u32,
    /// Reservation token of the next port.
    pub token: Option<[u8; 8]>,
    /// Expiry time of the permission of each peer address, in milliseconds since 1970.
    pub permissions: HashMap<IpAddr, u64>,
    pub channels: HashMap<u16, Channel>,
    /// Channel number of each peer that has one.
    pub peers: HashMap<SocketAddr, u16>,
}

#[derive(Clone, Copy)]
pub struct Channel {
    pub peer: SocketAddr,
    pub expires_ms: u64,
}

/// Reserved next port of a pair, until a client requests it or the reservation expires.
pub struct Reservation {
    pub relay: RelayId,
    pub relayed: SocketAddr,
    pub user: Arc<str>,
    pub expires_ms: u64,
}

/// Usage of one user, over all of its allocations.
#[derive(Default)]
pub struct User {
    /// Number of allocations, including reserved ports.
    pub allocations: usize,
    /// Time at which the full burst is available again, in microseconds.
    full_burst_at_us: u64,
}

/// Metrics for operators. Only one thread writes; any thread may read.
#[derive(Debug, Default)]
pub struct Metrics {
    pub allocations: AtomicU64,
    pub allocated: AtomicU64,
    pub refused: AtomicU64,
    pub unauthorized: AtomicU64,
    pub forbidden: AtomicU64,
    pub datagrams_to_peers: AtomicU64,
    pub bytes_to_peers: AtomicU64,
    pub datagrams_to_clients: AtomicU64,
    pub bytes_to_clients: AtomicU64,
    /// Datagrams that were dropped because their user exceeded its rate limit.
    pub over_quota: AtomicU64,
    /// Counters of each allocation.
    pub registry: Registry,
    /// Messages that were dropped: without an allocation, without a permission, or malformed.
    pub dropped: AtomicU64,
}

impl Client {
    pub fn address(self) -> SocketAddr {
        match self {
            Client::Datagram(address) | Client::Stream(_, address) => address,
        }
    }
}

impl Allocation {
    pub fn may_send(&self, peer: IpAddr, now_ms: u64) -> bool {
        self.permissions.get(&peer).is_some_and(|until_ms| *until_ms > now_ms)
    }

    /// Removes expired permissions and channels.
    pub fn sweep(&mut self, now_ms: u64) {
        self.permissions.retain(|_, until_ms| *until_ms > now_ms);
        self.channels.retain(|_, channel| channel.expires_ms > now_ms);
        let channels = &self.channels;
        self.peers.retain(|_, number| channels.contains_key(number));
    }
}

impl User {
    /// Takes this many bytes from the user's rate limit. Returns false if the limit does not allow them now.
    pub fn take(&mut self, bytes: usize, per_s: u64, now_ms: u64) -> bool {
        if per_s == 0 {
            return true;
        }
        let now_us = now_ms.saturating_mul(1000);
        let cost_us = (bytes as u64).saturating_mul(1_000_000) / per_s;
        let full_burst_at_us = self.full_burst_at_us.max(now_us).saturating_add(cost_us);
        // A payload that is larger than the maximum burst is allowed when the full burst is available.
        let is_there = full_burst_at_us - now_us <= BURST_US || self.full_burst_at_us <= now_us;
        if is_there {
            self.full_burst_at_us = full_burst_at_us;
        }
        is_there
    }

    pub fn is_idle(&self, now_ms: u64) -> bool {
        self.allocations == 0 && self.full_burst_at_us <= now_ms.saturating_mul(1000)
    }
}

impl Metrics {
    /// Adds `n` to a counter. Only one thread writes, so a load and a store are sufficient.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_rate_limit_allows_burst() {
        let mut user = User::default();
        let mut taken = |attempts: usize, now_ms| (0..attempts).filter(|_| user.take(100, 1000, now_ms)).count();
        assert_eq!(taken(50, 5000), 10);
        assert_eq!(taken(50, 5500), 5);
        assert_eq!(taken(50, 60_000), 10);
        assert!(!user.is_idle(60_000) && user.is_idle(61_000));
        assert!(user.take(1 << 20, 1000, 70_000), "what is larger than the bucket takes all of it");
        assert!(!user.take(1, 1000, 80_000));
        assert!(User::default().take(usize::MAX, 0, 0));
    }
}
