//! Names of the lists, and of the nodes that write them.

use millrace_protocol::{ChannelName, Expected, INTERNAL, Kind, NewPublication, Position};

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

/// Returns the channel that holds the names of all nodes.
pub(crate) fn nodes_channel() -> ChannelName {
    internal("nodes")
}

/// Returns the channel that holds the lists in which a node has entries.
pub(crate) fn lists_channel(node: &str) -> Option<ChannelName> {
    ChannelName::parse(&format!("{INTERNAL}/nodes/{node}")).ok()
}

/// Returns true if both names are names of one node.
pub(crate) fn is_same_node(name: &str, other: &str) -> bool {
    base_of(name) == base_of(other)
}

/// Returns the name under which a node has started. Its later names have a number after a dot.
pub(crate) fn base_of(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Value of the key of a node that is being removed.
pub(crate) const MARK: &[u8] = br#"{"removing":true}"#;

/// Returns the publication that marks the key of a dead node.
pub(crate) fn mark(name: &str, at: Position) -> NewPublication {
    let expected = Some(Expected::At(at));
    NewPublication { key: Some(name.into()), expected, ..NewPublication::new(Kind::Json, MARK) }
}
