//! Events about publications for the app's back end: a channel is registered before its first publication, so that no
//! event is lost.
//!
//! Source: docs/reference/webhooks.md.

use std::pin::Pin;

use millrace_protocol::ChannelName;

/// Future that is ready once the channel is registered, or cannot be.
pub type Registering = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Receiver of publications that are events. All shards share one.
pub trait PublicationEvents: Send + Sync {
    /// Returns true if the publications of this channel are events.
    fn wants(&self, channel: &str) -> bool;

    /// Registers a channel before a publication enters. `None` if the channel is registered.
    fn register(&self, channel: &ChannelName) -> Option<Registering>;

    /// Reports that a publication has entered. Never blocks.
    fn published(&self, channel: &ChannelName);
}
