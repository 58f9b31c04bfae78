use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Ways to read and publish. Server, clients, lab and documents use the same names: [`Transport::name`].
///
/// Source: docs/protocol.md, "Reading".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// WebSocket. On `/v1/channels/{channel}` each message is a bare payload of one channel. Clients and metrics that
    /// do not distinguish bare payloads from sessions use this variant for both.
    #[serde(rename = "websocket")]
    WebSocket,
    /// WebSocket on `/v1/connect`: commands, replies and pushes for any number of channels.
    Session,
    /// Server-sent events: an HTTP response of type `text/event-stream` without an end.
    Sse,
    /// HTTP streaming (NDJSON): an HTTP response with one line of JSON per publication, without an end.
    #[serde(alias = "ndjson")]
    Stream,
    /// HTTP request that the server answers when a publication arrives, or after the requested time (`wait`).
    LongPolling,
    /// HTTP request that the server answers at once with the publications after a position.
    Polling,
    /// A session over a WebRTC data channel: an offer over HTTP, then datagrams.
    DataChannel,
    /// MQTT 3.1.1 or 5, for clients of others. It has no resume positions, so the clients of this repository do not use
    /// it.
    Mqtt,
}

impl Transport {
    /// The transports of the clients of this repository.
    pub const ALL: [Transport; 7] = [
        Transport::WebSocket,
        Transport::Session,
        Transport::Sse,
        Transport::Stream,
        Transport::LongPolling,
        Transport::Polling,
        Transport::DataChannel,
    ];

    /// All transports that the server counts.
    pub const COUNTED: [Transport; 8] = {
        let [a, b, c, d, e, f, g] = Self::ALL;
        [a, b, c, d, e, f, g, Transport::Mqtt]
    };

    /// Returns the name in flags, settings, recordings and documents.
    pub fn name(self) -> &'static str {
        match self {
            Transport::WebSocket => "websocket",
            Transport::Session => "session",
            Transport::Sse => "sse",
            Transport::Stream => "stream",
            Transport::LongPolling => "long-polling",
            Transport::Polling => "polling",
            Transport::DataChannel => "data-channel",
            Transport::Mqtt => "mqtt",
        }
    }

    /// Returns the label `transport` of metrics. Sessions and bare payloads over a WebSocket share a label.
    pub fn metric_label(self) -> &'static str {
        match self {
            Transport::WebSocket | Transport::Session => "websocket",
            Transport::LongPolling => "long_polling",
            Transport::DataChannel => "data_channel",
            other => other.name(),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name is none of [`Transport::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no transport {name}; there are {}", Transport::ALL.map(Transport::name).join(", "))]
pub struct UnknownTransport {
    pub name: String,
}

impl FromStr for Transport {
    type Err = UnknownTransport;

    /// Reads a name. Recordings of the lab from before 2026-11-25 call [`Transport::Stream`] `ndjson`.
    fn from_str(name: &str) -> Result<Self, UnknownTransport> {
        let known = Transport::ALL.into_iter().find(|transport| transport.name() == name);
        let earlier = (name == "ndjson").then_some(Transport::Stream);
        known.or(earlier).ok_or_else(|| UnknownTransport { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for transport in Transport::ALL {
            assert_eq!(transport.to_string().parse::<Transport>(), Ok(transport));
            assert_eq!(serde_json::to_value(transport).unwrap(), transport.name());
            assert_eq!(serde_json::from_value::<Transport>(transport.name().into()).unwrap(), transport);
        }
        assert_eq!("ndjson".parse::<Transport>(), Ok(Transport::Stream));
        assert_eq!(serde_json::from_str::<Transport>("\"ndjson\"").unwrap(), Transport::Stream);
        let error = "udp".parse::<Transport>().unwrap_err().to_string();
        assert_eq!(
            error,
            "no transport udp; there are websocket, session, sse, stream, long-polling, polling, data-channel"
        );
    }

    #[test]
    fn all_lists_every_variant_once() {
        assert_eq!(Transport::COUNTED.len(), Transport::Mqtt as usize + 1);
        assert!(Transport::COUNTED.iter().enumerate().all(|(i, transport)| *transport as usize == i));
    }
}
