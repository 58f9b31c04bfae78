use std::{fmt, net::IpAddr, str::FromStr};

use millrace_protocol::{Code, Error, Transport, session::Target};
use millrace_transport::admin::{ConnectionFilter, ConnectionKey};
use serde::{Deserialize, Serialize};

/// Maximum length of a node's name.
const NODE_BYTES_MAX: usize = 64;

/// Selects connections of all nodes, as an operator sends it and as nodes send it to each other. A connection matches
/// if it matches all fields that are set.
///
/// An unknown field is an error, so that a node of an earlier version never applies a change to more connections than
/// the operator has selected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// Id of the connection, `NODE-SHARD-SLOT-GENERATION`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
}

/// Id of a connection of any node. Ids are sorted by node first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId {
    pub node: String,
    pub key: ConnectionKey,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.node, self.key)
    }
}

impl FromStr for ConnectionId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let (node, key) = text.split_once('-')?;
            let is_node = !node.is_empty() && node.len() <= NODE_BYTES_MAX && node.bytes().all(is_hexadecimal);
            Some(Self { node: node.to_owned(), key: key.parse().ok().filter(|_| is_node)? })
        };
        let detail = "the id of a connection is NODE-SHARD-SLOT-GENERATION, as the list of connections shows it";
        parse().ok_or_else(|| Error::new(Code::BadRequest, detail))
    }
}

fn is_hexadecimal(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

impl Filter {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the filter for the connections of one node; `None` if no connection of this node can match.
    ///
    /// Errors: `bad_request` for a malformed id or an unknown transport; `bad_channel`.
    pub fn on(&self, node: &str) -> Result<Option<ConnectionFilter>, Error> {
        let id: Option<ConnectionId> = self.id.as_deref().map(str::parse).transpose()?;
        let transport = self.transport.as_deref().map(|name| {
            let found = Transport::COUNTED.into_iter().find(|transport| transport.name() == name);
            found.ok_or_else(|| {
                let known = Transport::COUNTED.map(Transport::name).join(", ");
                Error::new(Code::BadRequest, format!("unknown `transport`; the transports are {known}"))
            })
        });
        let filter = ConnectionFilter {
            key: id.as_ref().map(|id| id.key),
            subject: self.subject.clone(),
            address: self.address,
            transport: transport.transpose()?,
            channel: self.channel.as_deref().map(Target::parse).transpose()?,
        };
        Ok(id.is_none_or(|id| id.node == node).then_some(filter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_ids_are_refused() {
        let id: ConnectionId = "0123456789abcdef-1-20-3".parse().unwrap();
        assert_eq!(id.to_string(), "0123456789abcdef-1-20-3");
        let long = format!("{}-1-2-3", "a".repeat(65));
        for bad in ["", "1-2-3", "-1-2-3", "ab-1-2", "ab-1-2-3-4", "AB-1-2-3", "xyz-1-2-3", "ab-1-2--3", &long] {
            assert_eq!(bad.parse::<ConnectionId>().unwrap_err().code, Code::BadRequest, "{bad}");
        }
    }

    #[test]
    fn id_selects_a_connection_of_one_node() {
        let filter = Filter { id: Some("ab-1-2-3".into()), ..Filter::default() };
        assert_eq!(filter.on("ab").unwrap().unwrap().key, Some("1-2-3".parse().unwrap()));
        assert_eq!(filter.on("cd"), Ok(None));
        assert!(Filter::default().on("ab").unwrap().is_some());
    }

    #[test]
    fn unknown_filter_fields_are_refused() {
        assert!(serde_json::from_str::<Filter>(r#"{"subject": "ann", "since": 5}"#).is_err());
        let bad = |filter: &str| {
            let filter: Filter = serde_json::from_str(filter).unwrap();
            filter.on("ab").unwrap_err().code
        };
        assert_eq!(bad(r#"{"transport": "pigeon"}"#), Code::BadRequest);
        assert_eq!(bad(r#"{"channel": "<b>"}"#), Code::BadChannel);
    }
}
