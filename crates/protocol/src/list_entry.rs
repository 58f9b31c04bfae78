use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The value of a key in a list that servers keep, such as the roster of a channel: the number of connections of each
/// node, and the time since which the key is in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListEntry {
    /// Time at which the first node added the key, in milliseconds since 1970.
    pub since_ms: u64,
    /// Information about a member, as JSON.
    pub info: Option<Arc<str>>,
    /// Number of connections by the name of the node. No number is 0.
    pub nodes: BTreeMap<Box<str>, u32>,
}

#[derive(Serialize, Deserialize)]
struct Json<'a> {
    connections: u64,
    since_ms: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    new: bool,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    info: Option<Cow<'a, RawValue>>,
    #[serde(borrow)]
    nodes: BTreeMap<Cow<'a, str>, u32>,
}

impl ListEntry {
    pub fn connections(&self) -> u64 {
        self.nodes.values().map(|connections| u64::from(*connections)).sum()
    }

    pub fn encode(&self) -> Vec<u8> {
        self.encode_as(false)
    }

    /// Encodes the first entry of a key, with `"new": true`. So a reader of the log distinguishes a new key from a
    /// changed one without knowing the earlier entries.
    pub fn encode_new(&self) -> Vec<u8> {
        self.encode_as(true)
    }

    fn encode_as(&self, new: bool) -> Vec<u8> {
        let nodes = self.nodes.iter().map(|(name, connections)| (Cow::from(&**name), *connections)).collect();
        let info = self.info.as_deref().and_then(|info| serde_json::from_str::<&RawValue>(info).ok());
        let (connections, since_ms) = (self.connections(), self.since_ms);
        let json = Json { connections, since_ms, new, info: info.map(Cow::Borrowed), nodes };
        serde_json::to_vec(&json).expect("maps with text keys, numbers and valid JSON can be encoded")
    }

    /// Decodes an entry. Returns `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let Json { since_ms, info, nodes, .. } = serde_json::from_slice(bytes).ok()?;
        let nodes = nodes.into_iter().filter(|(_, connections)| *connections > 0);
        let info = info.map(|info| Arc::from(info.get()));
        Some(Self {
            since_ms,
            info,
            nodes: nodes.map(|(name, connections)| (name.as_ref().into(), connections)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_survives_encoding() {
        let nodes = [("a".into(), 2), ("b.1".into(), 3)].into();
        let entry = ListEntry { since_ms: 7, info: Some(r#"{"name" : "Ann"}"#.into()), nodes };
        let text = entry.encode();
        let expected = r#"{"connections":5,"since_ms":7,"info":{"name" : "Ann"},"nodes":{"a":2,"b.1":3}}"#;
        assert_eq!(std::str::from_utf8(&text).unwrap(), expected);
        assert_eq!(ListEntry::decode(&text), Some(entry.clone()));
        let first = entry.encode_new();
        assert_eq!(first, expected.replace("7,\"info", "7,\"new\":true,\"info").as_bytes());
        assert_eq!(ListEntry::decode(&first), Some(entry));
        let plain = ListEntry { nodes: [("a".into(), 1)].into(), ..ListEntry::default() };
        assert_eq!(ListEntry::decode(&plain.encode()), Some(plain));
        for bad in ["", "{}", "[1]", r#"{"connections":1,"since_ms":-1,"nodes":{}}"#, "\u{1}"] {
            assert_eq!(ListEntry::decode(bad.as_bytes()), None, "{bad}");
        }
    }
}
