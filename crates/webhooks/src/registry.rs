//! Registers channels before their first event, and notifies the dispatcher of changes. Each node has one registry.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use millrace_engine::Engine;
use millrace_protocol::{ChannelName, Error};
use millrace_transport::admission::webhooks::{PublicationEvents, Registering};
use tokio::sync::Notify;

use crate::{EventKind, EventSets, metrics::Metrics, store::Store};

/// Time for which a node relies on its registration of a channel. The dispatcher keeps a registration for longer than
/// [`KEEP`] after the newest one, so it never deletes one that a node relies on.
pub(crate) const RELY: Duration = Duration::from_secs(10 * 60);
/// Time after which the dispatcher deletes the registration of an idle channel.
pub(crate) const KEEP: Duration = Duration::from_secs(30 * 60);
/// Maximum number of channels that a node remembers as registered. Above it, the node registers again.
const KNOWN_MAX: usize = 200_000;
/// Maximum number of changed channels that wait for the dispatcher. Above it, the dispatcher looks at all channels.
const CHANGED_MAX: usize = 50_000;

/// Channels that may have changed.
#[derive(Debug, Default)]
pub struct Changes {
    pub channels: HashSet<ChannelName>,
    /// True if `channels` lacks some, so that all channels may have changed.
    pub is_cut: bool,
}

/// Registrations of this node.
pub struct Registry {
    store: Store,
    events: EventSets,
    metrics: Arc<Metrics>,
    /// When this node has registered the channels, or begun to.
    known: Mutex<HashMap<ChannelName, Instant>>,
    changes: Mutex<Changes>,
    changed: Notify,
}

impl Registry {
    pub fn new(engine: Arc<dyn Engine>, events: EventSets, metrics: Arc<Metrics>) -> Arc<Self> {
        let (known, changes, changed) = Default::default();
        Arc::new(Self { store: Store::new(engine), events, metrics, known, changes, changed })
    }

    /// Returns true if this node may publish into the log without registering it.
    pub fn is_registered(&self, log: &ChannelName) -> bool {
        lock(&self.known).get(log).is_some_and(|at| at.elapsed() < RELY)
    }

    /// Registers a log, unless this node has done so lately. Call it before an append that may be an event.
    ///
    /// Errors: those of the engine; [`millrace_protocol::Code::TooMany`] if too many channels are registered. The
    /// events of the log may be lost then.
    pub async fn register(&self, log: &ChannelName) -> Result<(), Error> {
        if self.is_registered(log) {
            return Ok(());
        }
        let began = Instant::now();
        if let Err(error) = self.store.register(log).await {
            self.metrics.unregistered.fetch_add(1, Relaxed);
            tracing::debug!(channel = %log, %error, "a channel cannot be registered for webhooks");
            return Err(error);
        }
        let mut known = lock(&self.known);
        if known.len() >= KNOWN_MAX {
            known.retain(|_, at| at.elapsed() < RELY);
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
        }
        known.insert(log.clone(), began);
        Ok(())
    }

    /// Reports that a log may have a new event. Never blocks; a lost report only delays the event.
    pub fn notify(&self, log: &ChannelName) {
        let mut changes = lock(&self.changes);
        match changes.channels.len() < CHANGED_MAX {
            true => drop(changes.channels.insert(log.clone())),
            false => changes.is_cut = true,
        }
        drop(changes);
        self.changed.notify_one();
    }

    /// Waits until a log may have changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the changes since the last call.
    pub fn take_changes(&self) -> Changes {
        std::mem::take(&mut *lock(&self.changes))
    }
}

/// The registry as admission uses it for publications of clients.
pub(crate) struct Publications(pub Arc<Registry>);

impl PublicationEvents for Publications {
    fn wants(&self, channel: &str) -> bool {
        self.0.events.wants(EventKind::Publication, channel)
    }

    fn register(&self, channel: &ChannelName) -> Option<Registering> {
        if self.0.is_registered(channel) {
            return None;
        }
        let (registry, channel) = (self.0.clone(), channel.clone());
        // The publication enters in any case: the metric counts what the back end may miss.
        Some(Box::pin(async move { drop(registry.register(&channel).await) }))
    }

    fn published(&self, channel: &ChannelName) {
        self.0.notify(channel);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
