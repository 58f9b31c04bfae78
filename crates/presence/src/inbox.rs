use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use millrace_node::{Member, Observer};
use millrace_protocol::{ChannelName, Transport, is_internal, roster_of};
use serde_json::json;
use tokio::sync::Notify;

use crate::lists;

/// The lists to keep. A change in another list costs one call.
pub struct Wanted {
    /// Returns the time in milliseconds for which a member without a connection stays in the roster of this channel.
    /// `None`: the channel has no roster.
    pub roster_grace_ms: GraceOf,
    /// Returns true if the channel is listed while it has readers.
    pub is_channel_listed: Box<dyn Fn(&ChannelName) -> bool + Send + Sync>,
    pub connections: bool,
    /// Time for which a channel without readers stays listed, in milliseconds.
    pub channels_grace_ms: u64,
}

/// Returns the grace time of a channel's roster in milliseconds; `None`: the channel has no roster.
pub type GraceOf = Box<dyn Fn(&ChannelName) -> Option<u64> + Send + Sync>;

impl Wanted {
    /// Returns the grace time of a list, in milliseconds.
    pub(crate) fn grace_ms(&self, list: &ChannelName) -> u64 {
        match roster_of(list.as_str()).and_then(|channel| ChannelName::parse(channel).ok()) {
            Some(channel) => (self.roster_grace_ms)(&channel).unwrap_or(0),
            None if *list == lists::channels() => self.channels_grace_ms,
            None => 0,
        }
    }
}

/// Changes that the shards report and the writer has not taken yet. Changes of one key are added up, so their number is
/// bounded by the number of readers.
pub struct Inbox {
    pub wanted: Wanted,
    changes: Mutex<HashMap<(ChannelName, Arc<str>), Change>>,
    pub has_changes: Notify,
    channels: ChannelName,
    connections: ChannelName,
}

/// Sum of the changes of one key.
#[derive(Debug, Default)]
pub struct Change {
    pub connections: i64,
    pub info: Option<Arc<str>>,
}

impl Inbox {
    pub fn new(wanted: Wanted) -> Self {
        let (channels, connections) = (lists::channels(), lists::connections());
        Self { wanted, changes: Mutex::default(), has_changes: Notify::new(), channels, connections }
    }

    pub fn take(&self) -> HashMap<(ChannelName, Arc<str>), Change> {
        std::mem::take(&mut self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, list: ChannelName, key: Arc<str>, connections: i64, info: Option<Arc<str>>) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = changes.is_empty();
        let change = changes.entry((list, key)).or_default();
        change.connections += connections;
        change.info = info.or(change.info.take());
        drop(changes);
        if was_empty {
            self.has_changes.notify_one();
        }
    }
}

impl Observer for Inbox {
    fn has_roster(&self, channel: &ChannelName) -> bool {
        (self.wanted.roster_grace_ms)(channel).is_some() && channel.members().is_some()
    }

    fn joined(&self, channel: &ChannelName, member: &Member) {
        if let Some(list) = channel.members() {
            self.add(list, member.id.clone(), 1, member.info.clone());
        }
    }

    fn left(&self, channel: &ChannelName, member: &Member) {
        if let Some(list) = channel.members() {
            self.add(list, member.id.clone(), -1, None);
        }
    }

    fn readers_changed(&self, channel: &ChannelName, change: i64) {
        let name = channel.as_str();
        if change != 0 && !is_internal(name) && roster_of(name).is_none() && (self.wanted.is_channel_listed)(channel) {
            self.add(self.channels.clone(), name.into(), change, None);
        }
    }

    fn opened(&self, id: &str, subject: Option<&Arc<str>>, transport: Transport) {
        if self.wanted.connections {
            let mut info = json!({ "transport": transport.name() });
            if let Some(subject) = subject {
                info["subject"] = (**subject).into();
            }
            self.add(self.connections.clone(), id.into(), 1, Some(info.to_string().into()));
        }
    }

    fn closed(&self, id: &str) {
        if self.wanted.connections {
            self.add(self.connections.clone(), id.into(), -1, None);
        }
    }
}
