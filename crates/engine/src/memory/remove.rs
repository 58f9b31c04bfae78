//! Removal of single channels, for channels whose owner knows when they end.

use millrace_protocol::ChannelName;

use super::{MemoryEngine, lock};
use crate::Deliver;

impl<D: Deliver> MemoryEngine<D> {
    /// Returns true if the channel exists: something was published, and it was not evicted or removed.
    pub fn has_channel(&self, name: &ChannelName) -> bool {
        let (stripe, hash) = self.stripe(name);
        lock(&self.stripes[stripe]).find(hash, name).is_some()
    }

    /// Removes a channel with its history. Cost: O(channels).
    pub fn remove(&self, name: &ChannelName) {
        self.forget(|channel| channel.name == *name);
    }
}
