//! Names of the lists.

use millrace_protocol::{ChannelName, INTERNAL};

/// Returns the list of the channels with readers, over all nodes. Its keys are the names of the channels.
pub fn channels() -> ChannelName {
    internal("channels")
}

/// Returns the list of the open connections of all nodes. Its keys are the ids of the connections.
pub fn connections() -> ChannelName {
    internal("connections")
}

pub(crate) fn internal(name: &str) -> ChannelName {
    ChannelName::parse(&format!("{INTERNAL}/{name}")).expect("a valid channel name")
}
