use std::{collections::BTreeMap, time::Duration};

use millrace_hooks::{HookUrl, signature::Signer};
use serde::{Deserialize, Serialize};

/// A kind of events that the settings select.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// A channel has its first reader, or has lost its last one.
    Channel,
    /// A member has joined a channel, or has left it.
    Member,
    /// A connection was opened or closed.
    Connection,
    /// A client has published.
    Publication,
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventSet(u8);

impl EventSet {
    pub fn contains(self, kind: EventKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<EventKind> for EventSet {
    fn from_iter<I: IntoIterator<Item = EventKind>>(kinds: I) -> Self {
        Self(kinds.into_iter().fold(0, |set, kind| set | 1 << kind as u8))
    }
}

/// The kinds of events that the back end wants, per namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventSets {
    /// Kinds of all namespaces without a set of their own. Connections have no namespace.
    pub all: EventSet,
    pub namespaces: BTreeMap<String, EventSet>,
}

impl EventSets {
    /// Returns true if the back end wants events of this kind about this channel.
    pub fn wants(&self, kind: EventKind, channel: &str) -> bool {
        let namespace = channel.split('/').next().unwrap_or_default();
        self.namespaces.get(namespace).unwrap_or(&self.all).contains(kind)
    }

    /// Returns true if the back end wants events of this kind about any channel.
    pub fn wants_any(&self, kind: EventKind) -> bool {
        std::iter::once(&self.all).chain(self.namespaces.values()).any(|set| set.contains(kind))
    }
}

/// Limits of the dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of events of a batch.
    pub batch_max: usize,
    /// A batch is full once its events have this many bytes.
    pub batch_bytes_max: usize,
    /// Maximum time that an event waits for others in its batch.
    pub batch_wait: Duration,
    /// Longest pause between two attempts.
    pub pause_max: Duration,
    /// A batch that was not acknowledged for this long becomes dead letters.
    pub give_up: Duration,
}

/// Settings of all webhooks.
#[derive(Clone, Debug)]
pub struct Config {
    pub url: HookUrl,
    pub signer: Signer,
    /// Certificates (PEM) to trust in addition to those of the system.
    pub authorities: Vec<u8>,
    pub events: EventSets,
    /// Time limit of a request.
    pub timeout: Duration,
    pub limits: Limits,
    /// Maximum number of dead letters.
    pub dead_max: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_replaces_the_events_of_all() {
        let sets = EventSets {
            all: EventSet::from_iter([EventKind::Channel, EventKind::Connection]),
            namespaces: BTreeMap::from([
                ("chat".into(), EventSet::from_iter([EventKind::Publication])),
                ("off".into(), EventSet::default()),
            ]),
        };
        assert!(sets.wants(EventKind::Channel, "news/1") && !sets.wants(EventKind::Publication, "news/1"));
        assert!(!sets.wants(EventKind::Channel, "chat/1") && sets.wants(EventKind::Publication, "chat/1"));
        assert!(!sets.wants(EventKind::Channel, "off") && sets.wants_any(EventKind::Publication));
        assert!(!sets.wants_any(EventKind::Member));
    }
}
