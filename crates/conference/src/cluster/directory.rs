//! The SFUs of all nodes: their addresses, certificates and versions, in a keyed state of the engine. The entry of a
//! node that has ended expires.

use std::{collections::BTreeMap, net::SocketAddr};

use millrace_engine::{Engine, state_changes};
use millrace_protocol::{ChannelName, Error, Kind, NewPublication, Since};
use millrace_sfu::cascade::{Announcement, Fingerprint, NodeId, fingerprint, frame::VERSION};
use serde::{Deserialize, Serialize};

/// State with one key per SFU: `{node}.{shard}`.
const NODES: &str = ":millrace/room-nodes";
/// Time after which the entry of a node that has ended expires, in milliseconds.
const TTL_MS: u64 = 6000;

#[derive(Serialize, Deserialize)]
struct Entry {
    address: SocketAddr,
    fingerprint: String,
    version: u8,
}

/// Known SFUs of all nodes.
pub(super) struct Directory {
    state: ChannelName,
    since: Since,
    nodes: BTreeMap<Box<str>, Announcement>,
}

impl Directory {
    pub fn new() -> Self {
        let state = ChannelName::parse(NODES).expect("a channel name");
        Self { state, since: Since::State, nodes: BTreeMap::new() }
    }

    pub fn place(&self) -> (ChannelName, Since) {
        (self.state.clone(), self.since)
    }

    /// Takes over the changes of a read. Returns true if any node has changed.
    pub fn take(&mut self, changes: &millrace_engine::StateChanges) -> bool {
        let mut nodes = if changes.is_whole { BTreeMap::new() } else { self.nodes.clone() };
        for publication in &changes.publications {
            let Some(key) = publication.key.as_deref() else { continue };
            match decode(key, publication.data()).filter(|_| !publication.is_deletion) {
                Some(announcement) => drop(nodes.insert(key.into(), announcement)),
                None => drop(nodes.remove(key)),
            }
        }
        self.since = changes.next;
        let is_changed = nodes != self.nodes;
        self.nodes = nodes;
        is_changed
    }

    pub fn nodes(&self) -> Vec<Announcement> {
        self.nodes.values().cloned().collect()
    }

    pub fn contains(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }
}

/// Returns the publication that announces this SFU.
pub(super) fn announcement(name: &str, address: SocketAddr) -> (ChannelName, NewPublication) {
    let fingerprint: String = fingerprint().iter().map(|byte| format!("{byte:02x}")).collect();
    let entry = Entry { address, fingerprint, version: VERSION };
    let mut publication = NewPublication::new(Kind::Json, serde_json::to_vec(&entry).unwrap_or_default());
    (publication.key, publication.ttl_ms) = (Some(name.into()), Some(TTL_MS));
    (ChannelName::parse(NODES).expect("a channel name"), publication)
}

fn decode(key: &str, data: &[u8]) -> Option<Announcement> {
    let Entry { address, fingerprint, version } = serde_json::from_slice(data).ok()?;
    Some(Announcement { node: NodeId::new(key)?, address, fingerprint: parse(&fingerprint)?, version })
}

fn parse(text: &str) -> Option<Fingerprint> {
    let mut fingerprint = [0; 32];
    if text.len() != 2 * fingerprint.len() || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in fingerprint.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(fingerprint)
}

/// Reads the changes of a state.
///
/// Errors: those of the engine.
pub(super) async fn read(
    engine: &dyn Engine,
    (state, since): (ChannelName, Since),
) -> Result<millrace_engine::StateChanges, Error> {
    state_changes(engine, &state, since).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcement_is_read_as_written() {
        let address = "127.0.0.1:7000".parse().unwrap();
        let (channel, publication) = announcement("ab.0", address);
        assert_eq!((channel.as_str(), publication.key.as_deref()), (NODES, Some("ab.0")));
        let known = decode("ab.0", &publication.data).unwrap();
        let expected =
            Announcement { node: NodeId::new("ab.0").unwrap(), address, fingerprint: fingerprint(), version: VERSION };
        assert_eq!(known, expected);
    }

    #[test]
    fn malformed_announcement_is_ignored() {
        let entry =
            |fingerprint: &str| format!(r#"{{"address":"1.2.3.4:5","fingerprint":"{fingerprint}","version":1}}"#);
        assert!(decode("ab.0", entry(&"0f".repeat(32)).as_bytes()).is_some());
        for bad in ["", "0", &"0f".repeat(31), &"xy".repeat(32), &"é".repeat(32)] {
            assert!(decode("ab.0", entry(bad).as_bytes()).is_none(), "{bad}");
        }
        assert!(decode("", entry(&"0f".repeat(32)).as_bytes()).is_none());
        assert!(decode("ab.0", b"{").is_none());
    }
}
