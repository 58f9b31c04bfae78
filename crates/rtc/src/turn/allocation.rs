use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// What one user may send at once, of what comes in this time.
const BURST_US: u64 = 1_000_000;

/// Whoever speaks to the server: one socket's address, or one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    Datagram(SocketAddr),
    /// With a number that no other connection has.
    Stream(u64, SocketAddr),
}

/// One relay socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelayId(pub u64);

/// Opens the sockets that peers see.
pub trait Relays {
    /// One socket for each of `ids`, on consecutive ports; where `even`, the first port is. Gives how peers reach the first.
    fn open(&mut self, ids: &[RelayId], is_ipv6: bool, even: bool) -> Result<SocketAddr, NoRelay>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRelay {
    /// The server has no address of this family.
    Family,
    /// All ports are taken.
    Full,
}

/// What clients may take.
pub struct Rules {
    pub allocations_max: usize,
    pub allocations_per_user_max: usize,
    /// Longest time until a client has to ask again, in seconds.
    pub lifetime_max_s: u32,
    /// Payload of all allocations of one user, both ways; 0: no limit.
    pub bytes_per_s_max: u64,
    /// Whom a relay may speak to. What is no single machine never is.
    pub may_reach: Box<dyn Fn(IpAddr) -> bool + Send>,
}

/// What one client has.
pub struct Allocation {
    pub relay: RelayId,
    pub relayed: SocketAddr,
    pub username: Box<str>,
    pub user: Arc<str>,
    pub key: [u8; 16],
    pub expires_ms: u64,
    /// Of the request that made it: the same request again is answered again.
    pub transaction: [u8; 12],
    pub lifetime_s: u32,
    /// What the next port is reserved by.
    pub token: Option<[u8; 8]>,
    /// Until when each may send something.
    pub permissions: HashMap<IpAddr, u64>,
    pub channels: HashMap<u16, Channel>,
    /// The channel of each peer that has one.
    pub peers: HashMap<SocketAddr, u16>,
}

#[derive(Clone, Copy)]
pub struct Channel {
    pub peer: SocketAddr,
    pub expires_ms: u64,
}

/// The next port of a pair, until somebody asks for it.
pub struct Reservation {
    pub relay: RelayId,
    pub relayed: SocketAddr,
    pub user: Arc<str>,
    pub expires_ms: u64,
}

/// What one user has of all.
#[derive(Default)]
pub struct User {
    /// Reserved ones, too.
    pub allocations: usize,
    /// When all that was sent will be paid for, in microseconds.
    paid_us: u64,
}

/// What operators see. One thread writes, anybody reads.
#[derive(Debug, Default)]
pub struct Figures {
    pub allocations: AtomicU64,
    pub allocated: AtomicU64,
    pub refused: AtomicU64,
    pub unauthorized: AtomicU64,
    pub forbidden: AtomicU64,
    pub datagrams_to_peers: AtomicU64,
    pub bytes_to_peers: AtomicU64,
    pub datagrams_to_clients: AtomicU64,
    pub bytes_to_clients: AtomicU64,
    /// More than its user may send.
    pub over_quota: AtomicU64,
    /// For nobody who has a relay, from nobody who may send there, or malformed.
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

    /// Forgets what is over.
    pub fn sweep(&mut self, now_ms: u64) {
        self.permissions.retain(|_, until_ms| *until_ms > now_ms);
        self.channels.retain(|_, channel| channel.expires_ms > now_ms);
        let channels = &self.channels;
        self.peers.retain(|_, number| channels.contains_key(number));
    }
}

impl User {
    /// May so many bytes more go now?
    pub fn take(&mut self, bytes: usize, per_s: u64, now_ms: u64) -> bool {
        if per_s == 0 {
            return true;
        }
        let now_us = now_ms.saturating_mul(1000);
        let cost_us = (bytes as u64).saturating_mul(1_000_000) / per_s;
        let paid_us = self.paid_us.max(now_us).saturating_add(cost_us);
        // What is larger than a whole burst waits for all of it.
        let is_there = paid_us - now_us <= BURST_US || self.paid_us <= now_us;
        if is_there {
            self.paid_us = paid_us;
        }
        is_there
    }

    pub fn is_idle(&self, now_ms: u64) -> bool {
        self.allocations == 0 && self.paid_us <= now_ms.saturating_mul(1000)
    }
}

impl Figures {
    /// One thread writes, so a load and a store do what an addition would.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_sends_a_burst_and_then_the_rate() {
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
