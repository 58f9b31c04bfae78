//! Limits and quotas per client and per node, counted for all shards together. They are counted when connections
//! begin and end and when publications arrive, never when publications are delivered.
//!
//! The connections of a trusted proxy do not identify its clients. Behind such a proxy, readers and publications are
//! counted for the address that the proxy reports ([`Proxies`]).
//!
//! An address is one IPv4 address, or the /64 of an IPv6 address, because a client that has one address of a /64 has
//! all of them. Every refusal is counted for the limit that was reached: `millrace_refused_total{limit=".."}`.
//! docs/reference/limits.md lists all limits.

mod bucket;
mod connection_quotas;
mod forwarded;
mod pending;
mod slots;
mod table;

use std::{
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    num::NonZeroU64,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use millrace_protocol::{
    Code, Error, Holder,
    websocket::{self, CloseFrame},
};

pub use bucket::{Bucket, Rate};
pub(crate) use connection_quotas::UNCOUNTED_BYTES;
pub use connection_quotas::{ConnectionQuotas, Direction, RequestConnection};
pub(crate) use forwarded::ForwardedFor;
pub use forwarded::{ForwardedHeader, Proxies};
pub use pending::Pending;
pub use slots::{ConnectionSlot, ReaderSlot};
use table::Table;

use crate::config::{Config, Network};

/// Burst of new connections. It is long because many clients connect at the same time after a restart, or when the
/// network of an office is back.
const CONNECTS_BURST: Duration = Duration::from_secs(10);
const BURST: Duration = Duration::from_secs(1);

/// Limits whose refusals are counted, named after their setting or constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Connections,
    ConnectionsPerAddress,
    ConnectionsPerSubject,
    Connects,
    ConnectsPerAddress,
    RequestsPerConnection,
    Publishes,
    PublishBytes,
    SubjectPublishes,
    SubjectPublishBytes,
    Messages,
    Datagrams,
    Pending,
    WriteTimeout,
    HeaderTimeout,
    BodyTimeout,
    MessageBytes,
    Fragments,
    InflateRatio,
    TooMany,
    MemoryPublications,
    MemoryConnections,
}

impl Limit {
    pub const ALL: [(Limit, &'static str); 22] = [
        (Limit::Connections, "connections_max"),
        (Limit::ConnectionsPerAddress, "connections_per_address_max"),
        (Limit::ConnectionsPerSubject, "connections_per_subject_max"),
        (Limit::Connects, "connects_per_s"),
        (Limit::ConnectsPerAddress, "connects_per_address_per_s"),
        (Limit::RequestsPerConnection, "requests_per_connection_max"),
        (Limit::Publishes, "publishes_per_s"),
        (Limit::PublishBytes, "publish_bytes_per_s"),
        (Limit::SubjectPublishes, "subject_publishes_per_s"),
        (Limit::SubjectPublishBytes, "subject_publish_bytes_per_s"),
        (Limit::Messages, "messages_per_s"),
        (Limit::Datagrams, "datagrams_per_s"),
        (Limit::Pending, "pending_bytes_max"),
        (Limit::WriteTimeout, "write_timeout"),
        (Limit::HeaderTimeout, "header_timeout"),
        (Limit::BodyTimeout, "body_timeout"),
        (Limit::MessageBytes, "message_bytes_max"),
        (Limit::Fragments, "fragments_max"),
        (Limit::InflateRatio, "inflate_ratio_max"),
        (Limit::TooMany, "too_many"),
        (Limit::MemoryPublications, "memory_publications"),
        (Limit::MemoryConnections, "memory_connections"),
    ];
}

/// Limits and counters of one node.
pub struct Limits {
    rules: RwLock<Rules>,
    /// Proxies that are trusted to report the addresses of their clients.
    pub proxies: Proxies,
    /// True if a limit of publications is set. Otherwise publishing skips the rules.
    counts_publishes: AtomicBool,
    /// True if a limit of WebSocket messages is set.
    counts_messages: AtomicBool,
    connections: AtomicUsize,
    connects: Mutex<Bucket>,
    addresses: Table<NonZeroU64, Address>,
    subjects: Table<Arc<str>, Subject>,
    pending_bytes: AtomicUsize,
    pending_bytes_max: AtomicUsize,
    pressure: AtomicUsize,
    refused: [AtomicU64; Limit::ALL.len()],
    started: Instant,
    /// Hashes subjects and addresses to holders. Its random key keeps clients from choosing a subject that collides
    /// with another one.
    hasher: RandomState,
    /// Maximum number of file descriptors of the process. Descriptors are the scarcest resource of a connection.
    descriptors: usize,
}

/// Limits from the configuration.
struct Rules {
    connections_max: usize,
    connections_per_address_max: usize,
    connections_per_subject_max: usize,
    connects: Option<Rate>,
    connects_per_address: Option<Rate>,
    datagrams: Option<Rate>,
    publishes: PublishRates,
    subject_publishes: PublishRates,
    messages: Option<Rate>,
    exempt: Vec<Network>,
}

/// Maximum number and maximum bytes of publications per second.
#[derive(Clone, Copy, Default)]
struct PublishRates {
    count: Option<Rate>,
    bytes: Option<Rate>,
}

#[derive(Default)]
struct Address {
    connections: usize,
    connects: Bucket,
    datagrams: Bucket,
    /// Publications through a proxy. One connection of a proxy carries the publications of many clients.
    publishes: Publishes,
}

#[derive(Default)]
struct Subject {
    connections: usize,
    publishes: Publishes,
}

/// Recent publications of a connection, a subject or an address.
#[derive(Clone, Copy, Debug, Default)]
pub struct Publishes {
    count: Bucket,
    bytes: Bucket,
}

/// Stage of the memory limit, and the action that it requires. See docs/reference/limits.md, "Memory".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    None,
    /// Spare memory is freed, and the channels that have been idle longest are evicted.
    Shrink,
    /// In addition, publications are refused.
    RefusePublications,
    /// In addition, new connections are refused.
    RefuseConnections,
}

impl Pressure {
    pub const ALL: [Pressure; 4] =
        [Pressure::None, Pressure::Shrink, Pressure::RefusePublications, Pressure::RefuseConnections];
}

impl Limits {
    /// Creates the limits of a node. `descriptors` is the maximum number of file descriptors of this process.
    pub fn new(config: &Config, descriptors: usize) -> Arc<Self> {
        Self::behind(Proxies::default(), config, descriptors)
    }

    /// Creates limits like [`Limits::new`], with trusted proxies.
    pub fn behind(proxies: Proxies, config: &Config, descriptors: usize) -> Arc<Self> {
        let limits = Self {
            proxies,
            rules: RwLock::new(Rules::of(config, descriptors)),
            counts_publishes: AtomicBool::default(),
            counts_messages: AtomicBool::default(),
            connections: AtomicUsize::default(),
            connects: Mutex::default(),
            addresses: Table::default(),
            subjects: Table::default(),
            pending_bytes: AtomicUsize::default(),
            pending_bytes_max: AtomicUsize::new(usize::MAX),
            pressure: AtomicUsize::default(),
            refused: Default::default(),
            started: Instant::now(),
            hasher: RandomState::new(),
            descriptors,
        };
        limits.configure(config);
        Arc::new(limits)
    }

    /// Replaces the limits. Existing connections stay open.
    pub fn configure(&self, config: &Config) {
        let rules = Rules::of(config, self.descriptors);
        let any = |rates: PublishRates| rates.count.or(rates.bytes).is_some();
        self.counts_publishes.store(any(rules.publishes) || any(rules.subject_publishes), Relaxed);
        self.counts_messages.store(rules.messages.is_some(), Relaxed);
        self.pending_bytes_max.store(config.pending_bytes_max(), Relaxed);
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// Admits a new connection.
    ///
    /// Errors: `too_many` if the address has too many connections; `rate_limited` if connections arrive too fast;
    /// `unavailable` if the node has no room for any connection.
    pub fn connect(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionSlot, Error> {
        self.connect_at(address, self.now_ns())
    }

    fn connect_at(self: &Arc<Self>, address: IpAddr, now_ns: u64) -> Result<ConnectionSlot, Error> {
        if self.pressure() >= Pressure::RefuseConnections {
            let detail = "this server is short of memory; try again, or use another server";
            return Err(self.refuse(Limit::MemoryConnections, Error::new(Code::Unavailable, detail)));
        }
        let rules = self.rules();
        let is_own = !rules.is_exempt(address) && !self.proxies.trusts(address);
        let address = is_own.then(|| key(address));
        if let Some(address) = address {
            self.addresses.with(&address, |entry| {
                self.check_connections(entry.connections, rules.connections_per_address_max)?;
                let late =
                    |limit| move |wait| self.too_fast(limit, "connections come faster than they are taken", wait);
                if let Some(rate) = rules.connects_per_address {
                    entry.connects.take(1, rate, now_ns).map_err(late(Limit::ConnectsPerAddress))?;
                }
                // Checked last, so that a connection refused for its address takes no token from the others.
                if let Some(rate) = rules.connects {
                    let mut connects = self.connects.lock().unwrap_or_else(PoisonError::into_inner);
                    connects.take(1, rate, now_ns).map_err(late(Limit::Connects))?;
                }
                entry.connections += 1;
                Ok::<(), Error>(())
            })?;
        }
        // From here on the connection is counted. Dropping the slot uncounts it.
        let connection_slot = ConnectionSlot { limits: self.clone(), address };
        if self.connections.fetch_add(1, Relaxed) >= rules.connections_max {
            let detail = "this server has its maximum number of connections; try again, or use another server";
            return Err(self.refuse(Limit::Connections, Error::new(Code::Unavailable, detail)));
        }
        Ok(connection_slot)
    }

    /// Admits a new long-lived reader: a session, a stream or a long poll. `address` is set behind a proxy, where
    /// the connection does not identify the client. Returns `None` if there is nothing to count.
    ///
    /// Errors: `too_many`.
    pub fn admit(
        self: &Arc<Self>,
        subject: Option<&Arc<str>>,
        address: Option<IpAddr>,
    ) -> Result<Option<ReaderSlot>, Error> {
        if subject.is_none() && address.is_none() {
            return Ok(None);
        }
        let rules = self.rules();
        let mut reader_slot = ReaderSlot { limits: self.clone(), subject: None, address, is_counted: false };
        if let Some(address) = address.filter(|address| !rules.is_exempt(*address)) {
            self.addresses.with(&key(address), |entry| {
                self.check_connections(entry.connections, rules.connections_per_address_max)?;
                entry.connections += 1;
                reader_slot.is_counted = true;
                Ok::<(), Error>(())
            })?;
        }
        if let Some(subject) = subject {
            self.subjects.with(subject, |entry| {
                if over(entry.connections, rules.connections_per_subject_max) {
                    let detail = format!("this subject has {} connections already", rules.connections_per_subject_max);
                    return Err(self.refuse(Limit::ConnectionsPerSubject, Error::new(Code::TooMany, detail)));
                }
                entry.connections += 1;
                reader_slot.subject = Some(subject.clone());
                Ok(())
            })?;
        }
        Ok(Some(reader_slot))
    }

    /// Returns the holder that new channels and rooms of a client are charged to: the holder of its subject, or
    /// without a subject that of its address, exempt or not.
    pub fn holder(&self, subject: Option<&Arc<str>>, address: Option<IpAddr>) -> Holder {
        let hash = match (subject, address) {
            (Some(subject), _) => self.hasher.hash_one(("subject", subject)),
            (None, Some(address)) => self.hasher.hash_one(("address", key(address))),
            (None, None) => return Holder::NONE,
        };
        match Holder::new(hash as u32) {
            Holder::NONE => Holder::new(1),
            holder => holder,
        }
    }

    fn check_connections(&self, connections: usize, max: usize) -> Result<(), Error> {
        if over(connections, max) {
            let detail = format!("this address has {max} connections already");
            return Err(self.refuse(Limit::ConnectionsPerAddress, Error::new(Code::TooMany, detail)));
        }
        Ok(())
    }

    /// Checks whether a publication is accepted now, and counts it. `own` counts the publications of its connection.
    ///
    /// Errors: `rate_limited`, with the time of the next attempt; `unavailable` while memory is short.
    pub fn check_publish(
        &self,
        own: Option<&mut Publishes>,
        subject: Option<&Arc<str>>,
        bytes: usize,
    ) -> Result<(), Error> {
        if self.pressure() >= Pressure::RefusePublications {
            let detail = "this server is short of memory; try again";
            let error = Error::new(Code::Unavailable, detail).retry_after(Duration::from_secs(1));
            return Err(self.refuse(Limit::MemoryPublications, error));
        }
        match self.counts_publishes.load(Relaxed) {
            true => self.check_publish_at(own, subject, bytes as u64, self.now_ns()),
            false => Ok(()),
        }
    }

    fn check_publish_at(
        &self,
        own: Option<&mut Publishes>,
        subject: Option<&Arc<str>>,
        bytes: u64,
        now_ns: u64,
    ) -> Result<(), Error> {
        let rules = self.rules();
        let late = |(limit, wait)| self.too_fast(limit, "publications come faster than they are taken", wait);
        if let Some(own) = own {
            let limits = (Limit::Publishes, Limit::PublishBytes);
            own.take(rules.publishes, limits, bytes, now_ns).map_err(late)?;
        }
        if let Some(subject) = subject {
            let limits = (Limit::SubjectPublishes, Limit::SubjectPublishBytes);
            let take = |entry: &mut Subject| entry.publishes.take(rules.subject_publishes, limits, bytes, now_ns);
            self.subjects.with(subject, take).map_err(late)?;
        }
        Ok(())
    }

    /// Checks a publication like [`Limits::check_publish`], for a client address that a proxy has reported.
    pub fn check_forwarded_publish(
        &self,
        address: IpAddr,
        subject: Option<&Arc<str>>,
        bytes: usize,
    ) -> Result<(), Error> {
        match self.counts_publishes.load(Relaxed) && !self.rules().is_exempt(address) {
            true => self
                .addresses
                .with(&key(address), |entry| self.check_publish(Some(&mut entry.publishes), subject, bytes)),
            false => self.check_publish(None, subject, bytes),
        }
    }

    /// Counts a publication that can no longer be refused. Returns how long its connection must not be read.
    pub fn owe_publish(&self, own: &mut Publishes, subject: Option<&Arc<str>>, bytes: usize) -> Duration {
        if !self.counts_publishes.load(Relaxed) {
            return Duration::ZERO;
        }
        let (rules, now_ns, bytes) = (self.rules(), self.now_ns(), bytes as u64);
        let mut wait = own.owe(rules.publishes, bytes, now_ns);
        let mut limit = Limit::Publishes;
        if let Some(subject) = subject {
            let owe = |entry: &mut Subject| entry.publishes.owe(rules.subject_publishes, bytes, now_ns);
            let subject_wait = self.subjects.with(subject, owe);
            if subject_wait > wait {
                (wait, limit) = (subject_wait, Limit::SubjectPublishes);
            }
        }
        if wait > Duration::ZERO {
            self.count(limit);
        }
        wait
    }

    /// Counts messages of a WebSocket. Returns how long the WebSocket must not be read.
    pub fn owe_messages(&self, own: &mut Bucket, messages: u64) -> Duration {
        let rate = if self.counts_messages.load(Relaxed) { self.rules().messages } else { None };
        let wait = rate.map_or(Duration::ZERO, |rate| own.owe(messages, rate, self.now_ns()));
        if wait > Duration::ZERO {
            self.count(Limit::Messages);
        }
        wait
    }

    /// Returns true if publications or messages on WebSockets are counted.
    pub fn counts_incoming(&self) -> bool {
        self.counts_publishes.load(Relaxed) || self.counts_messages.load(Relaxed)
    }

    /// Counts a datagram. Returns false if its source sends too many; then the datagram must be dropped.
    pub fn take_datagram(&self, address: IpAddr) -> bool {
        let rules = self.rules();
        let Some(rate) = rules.datagrams.filter(|_| !rules.is_exempt(address)) else { return true };
        let now_ns = self.now_ns();
        // Source addresses can be forged. When the table is full, all new sources share one entry.
        let taken = self.addresses.with_room(&key(address), |entry| entry.datagrams.take(1, rate, now_ns).is_ok());
        if !taken {
            self.count(Limit::Datagrams);
        }
        taken
    }

    pub fn pressure(&self) -> Pressure {
        Pressure::ALL[self.pressure.load(Relaxed).min(Pressure::ALL.len() - 1)]
    }

    pub fn set_pressure(&self, pressure: Pressure) {
        self.pressure.store(pressure as usize, Relaxed);
    }

    /// Returns the number of open connections of all kinds, including idle and unfinished ones.
    pub fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Counts one refusal, disconnection or slowdown for this limit.
    pub fn count(&self, limit: Limit) {
        self.refused[limit as usize].fetch_add(1, Relaxed);
    }

    /// Counts a protocol error of a client if a limit has caused it.
    pub fn count_close(&self, close: CloseFrame) {
        match close.reason {
            websocket::TOO_LARGE => self.count(Limit::MessageBytes),
            websocket::TOO_MANY_FRAGMENTS => self.count(Limit::Fragments),
            websocket::TOO_COMPRESSIBLE => self.count(Limit::InflateRatio),
            _ => {}
        }
    }

    /// Counts the error of a request or command if a limit has caused it.
    pub fn count_error(&self, error: &Error) {
        match error.code {
            Code::TooLarge => self.count(Limit::MessageBytes),
            Code::Timeout => self.count(Limit::BodyTimeout),
            Code::TooMany => self.count(Limit::TooMany),
            _ => {}
        }
    }

    /// Returns the name of each limit, and how often it was reached.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Limit::ALL.iter().map(|(limit, name)| (*name, self.refused[*limit as usize].load(Relaxed)))
    }

    /// Removes idle addresses and subjects. Call it every few seconds. Cost: O(addresses).
    pub fn sweep(&self) {
        self.sweep_at(self.now_ns());
    }

    fn sweep_at(&self, now_ns: u64) {
        let idle = |a: &Address| {
            a.connections == 0
                && a.connects.is_full(now_ns)
                && a.datagrams.is_full(now_ns)
                && a.publishes.is_full(now_ns)
        };
        self.addresses.retain(|address| !idle(address));
        self.subjects.retain(|subject| subject.connections > 0 || !subject.publishes.is_full(now_ns));
    }

    fn refuse(&self, limit: Limit, error: Error) -> Error {
        self.count(limit);
        error
    }

    fn too_fast(&self, limit: Limit, detail: &str, wait: Duration) -> Error {
        let error = Error::new(Code::RateLimited, format!("{detail}; try again in {wait:.0?}"));
        self.refuse(limit, error.retry_after(wait))
    }

    fn rules(&self) -> std::sync::RwLockReadGuard<'_, Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Rules {
    fn of(config: &Config, descriptors: usize) -> Self {
        let publishes = |count, bytes| PublishRates { count: Rate::of(count, BURST), bytes: Rate::of(bytes, BURST) };
        Self {
            connections_max: match config.connections_max {
                // Keep a reserve for engines, files, and connections that receive their refusal.
                0 => descriptors.saturating_sub(64 + descriptors / 32),
                max => max,
            },
            connections_per_address_max: config.connections_per_address_max,
            connections_per_subject_max: config.connections_per_subject_max,
            connects: Rate::of(config.connects_per_s, CONNECTS_BURST),
            connects_per_address: Rate::of(config.connects_per_address_per_s, CONNECTS_BURST),
            datagrams: Rate::of(config.datagrams_per_s, BURST),
            publishes: publishes(config.publishes_per_s, config.publish_bytes_per_s),
            subject_publishes: publishes(config.subject_publishes_per_s, config.subject_publish_bytes_per_s),
            messages: Rate::of(config.messages_per_s, BURST),
            exempt: config.exempt.clone(),
        }
    }

    fn is_exempt(&self, address: IpAddr) -> bool {
        self.exempt.iter().any(|network| network.contains(address))
    }
}

impl Publishes {
    fn take(
        &mut self,
        rates: PublishRates,
        (count, size): (Limit, Limit),
        bytes: u64,
        now_ns: u64,
    ) -> Result<(), (Limit, Duration)> {
        if let Some(rate) = rates.bytes {
            self.bytes.check(bytes, rate, now_ns).map_err(|wait| (size, wait))?;
        }
        if let Some(rate) = rates.count {
            self.count.take(1, rate, now_ns).map_err(|wait| (count, wait))?;
        }
        if let Some(rate) = rates.bytes {
            self.bytes.owe(bytes, rate, now_ns);
        }
        Ok(())
    }

    fn is_full(&self, now_ns: u64) -> bool {
        self.count.is_full(now_ns) && self.bytes.is_full(now_ns)
    }

    fn owe(&mut self, rates: PublishRates, bytes: u64, now_ns: u64) -> Duration {
        let count = rates.count.map_or(Duration::ZERO, |rate| self.count.owe(1, rate, now_ns));
        count.max(rates.bytes.map_or(Duration::ZERO, |rate| self.bytes.owe(bytes, rate, now_ns)))
    }
}

/// Returns the key of an address: an IPv4 address itself, or the /64 of an IPv6 address. The two kinds never
/// collide, because no global IPv6 address begins with 32 zero bits.
fn key(address: IpAddr) -> NonZeroU64 {
    let key = match address.to_canonical() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    };
    NonZeroU64::new(key).unwrap_or(NonZeroU64::MIN)
}

/// Returns true if the count has reached the limit. A limit of 0 means no limit.
fn over(count: usize, max: usize) -> bool {
    max > 0 && count >= max
}

#[cfg(test)]
mod tests;
