use std::sync::Arc;

use millrace_protocol::{ChannelName, Transport};

/// Receives who reads what on this node. The threads of the shards call it, so no method may block.
///
/// A publication never reaches an observer.
pub trait Observer: Send + Sync {
    /// Returns true if the members of this channel are wanted. Called once when a shard opens a channel.
    fn has_roster(&self, channel: &ChannelName) -> bool;

    /// One more connection of this member reads the channel. Called only for channels with a roster.
    fn joined(&self, channel: &ChannelName, member: &Member);

    /// One connection less of this member reads the channel.
    fn left(&self, channel: &ChannelName, member: &Member);

    /// The number of readers of a channel changed, waiting long polls included.
    fn readers_changed(&self, channel: &ChannelName, change: i64);

    /// A WebSocket, data channel or stream opened. `id`: see [`Router::connection_id`](crate::Router::connection_id).
    fn opened(&self, id: &str, subject: Option<&Arc<str>>, transport: Transport);

    /// A connection that was reported as opened closed.
    fn closed(&self, id: &str);
}

/// A reader as the other members of a channel see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The subject of its token, or the id of its connection.
    pub id: Arc<str>,
    /// Information about the client, as JSON.
    pub info: Option<Arc<str>>,
}
