use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use millrace_delivery::ConnId;
use millrace_mqtt::{Begun, Group, Registry, RegistryLimits, Retained, Saved, SessionKey};
use millrace_protocol::{ChannelName, INTERNAL, NewPublication};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, watch};

use crate::admission::{PublishTarget, access::Caller};

/// Settings of MQTT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Listen address. Empty: disabled.
    pub listen: String,
    /// Maximum time between two packets of a client of MQTT 5; a client may choose a shorter one.
    #[serde(with = "humantime_serde")]
    pub keep_alive_max: Duration,
    /// Maximum time for which a session outlives its connection.
    #[serde(with = "humantime_serde")]
    pub session_expiry_max: Duration,
    /// Maximum number of saved sessions of a node. The oldest one makes room for a new one.
    pub sessions_max: usize,
    /// Maximum memory of all saved sessions of a node, in bytes.
    pub session_bytes_max: usize,
    /// Maximum size of the payload of a will, in bytes.
    pub will_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: String::new(),
            keep_alive_max: Duration::from_secs(600),
            session_expiry_max: Duration::from_secs(60 * 60),
            sessions_max: 100_000,
            session_bytes_max: 64 << 20,
            will_bytes_max: 65_535,
        }
    }
}

/// A connection of any shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionRef {
    pub shard: usize,
    pub id: ConnId,
}

/// Publication for the case that a connection ends without DISCONNECT. The permission was checked at its CONNECT.
#[derive(Debug)]
pub(crate) struct Will {
    pub caller: Caller,
    pub target: PublishTarget,
    pub publication: NewPublication,
    pub is_retained: bool,
}

/// Name of a group, and the filter that its members share.
type GroupKey = (Box<str>, Box<str>);

/// State that the shards of a node share: sessions, retained publications, and groups of shared subscriptions.
pub struct Node {
    pub config: Config,
    registry: Mutex<Registry<ConnectionRef, Will>>,
    pub(crate) retained: RwLock<Retained>,
    /// True once the retained publications of the engine were read.
    pub(crate) has_retained: watch::Sender<bool>,
    groups: Mutex<HashMap<GroupKey, Arc<Group>>>,
    /// Notified when a connection has ended.
    pub(crate) ended: Notify,
    /// Notified when a will was added.
    pub(crate) has_will: Notify,
    /// Receivers of connections to close, because another one has taken their session over. One per shard.
    closers: Vec<mpsc::UnboundedSender<ConnId>>,
    closing: Mutex<Vec<Option<mpsc::UnboundedReceiver<ConnId>>>>,
    members: AtomicU64,
    publishers: AtomicU32,
}

impl Node {
    pub fn new(config: Config, shards: usize) -> Arc<Self> {
        let limits = RegistryLimits { sessions_max: config.sessions_max, bytes_max: config.session_bytes_max };
        // At most one entry per connection of the shard waits, so the queue needs no other bound.
        let (closers, closing) = (0..shards).map(|_| mpsc::unbounded_channel()).map(|(tx, rx)| (tx, Some(rx))).unzip();
        let (retained, groups, members) = Default::default();
        Arc::new(Self {
            config,
            registry: Mutex::new(Registry::new(limits)),
            retained,
            has_retained: watch::Sender::new(false),
            groups,
            ended: Notify::new(),
            has_will: Notify::new(),
            closers,
            closing: Mutex::new(closing),
            members,
            publishers: AtomicU32::new(1),
        })
    }

    /// Returns the state that holds the retained publications in the engine. No client can read it.
    pub(crate) fn retained_channel() -> ChannelName {
        ChannelName::parse(&format!("{INTERNAL}/retained")).expect("a valid channel name")
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry<ConnectionRef, Will>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session, after the end of an earlier connection with the same identifier.
    pub(crate) async fn begin(
        &self,
        key: &SessionKey,
        link: ConnectionRef,
        is_clean: bool,
        wait: Duration,
    ) -> (u64, Option<Box<Saved>>) {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            let force = tokio::time::Instant::now() >= deadline;
            match self.registry().connect(key, link, is_clean, force, unix_ms()) {
                Begun::Session { serial, saved } => {
                    self.has_will.notify_one();
                    return (serial, saved);
                }
                Begun::Busy(earlier) => drop(self.closers[earlier.shard].send(earlier.id)),
            }
            let _ = tokio::time::timeout_at(deadline, ended).await;
        }
    }

    /// Returns the receiver of the connections of a shard that must be closed. It is taken once.
    pub(crate) fn take_closing(&self, shard: usize) -> Option<mpsc::UnboundedReceiver<ConnId>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner).get_mut(shard)?.take()
    }

    /// Returns the group of a shared subscription.
    pub(crate) fn group(&self, name: &str, filter: &str) -> Arc<Group> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        // Empty groups are removed from time to time.
        if groups.len().is_power_of_two() {
            groups.retain(|_, group| Arc::strong_count(group) > 1 || !group.is_empty());
        }
        groups.entry((name.into(), filter.into())).or_default().clone()
    }

    /// Returns a number for a new member of a group.
    pub(crate) fn next_member(&self) -> u64 {
        self.members.fetch_add(1, Relaxed)
    }

    /// Returns the number of a new session; not 0.
    pub(crate) fn next_publisher(&self) -> u32 {
        self.publishers.fetch_add(1, Relaxed).max(1)
    }

    /// Returns the numbers of connected and saved sessions, the bytes of the latter, and the number of retained
    /// publications.
    pub fn size(&self) -> (usize, usize, usize, usize) {
        let (connected, saved, bytes) = self.registry().size();
        let retained = self.retained.read().unwrap_or_else(PoisonError::into_inner).size().0;
        (connected, saved, bytes, retained)
    }
}

pub(crate) fn unix_ms() -> u64 {
    millrace_engine::unix_ms()
}
