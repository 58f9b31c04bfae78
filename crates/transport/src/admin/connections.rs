use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use millrace_delivery::{ConnId, Hub, Lag};
use millrace_protocol::{
    Encoding, Transport,
    session::{Policy, Target},
};
use serde::Serialize;

use super::tcp;
use crate::{Sockets, connection::connection_id, route::Context, session::lanes};

/// Maximum number of subscriptions that the description of a connection names.
pub const SUBSCRIPTIONS_MAX: usize = 100;

/// An open connection: a WebSocket, a data channel or a stream. Polls are not listed, because they are short-lived.
#[derive(Clone, Debug, Serialize)]
pub struct Connection {
    #[serde(skip)]
    pub key: ConnectionKey,
    pub transport: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Address of the peer. It is unknown for a stream over HTTP/2 and for a data channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Address of the client, as reported by a trusted proxy.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub client: Option<IpAddr>,
    /// Expiry time of the token, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// Time at which the connection was opened, in milliseconds since 1970, rounded down to seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened_ms: Option<u64>,
    /// Channels and patterns that the connection subscribes to, at most [`SUBSCRIPTIONS_MAX`].
    pub subscriptions: Vec<String>,
    /// Number of all subscriptions.
    pub subscriptions_total: usize,
    /// Delivery policy of the subscriptions: `every`, `latest` or `mixed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<&'static str>,
    /// Publications that the connection has not been sent yet, over all its channels.
    pub behind: u64,
    /// Bytes that wait for the connection in the memory of its shard.
    pub behind_bytes: usize,
    /// Time since the connection lacks publications, if its socket takes no bytes at present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_ms: Option<u64>,
    /// Bytes that the kernel has sent on the TCP connection, without retransmissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_out: Option<u64>,
    #[serde(skip)]
    pub lag: Lag,
}

/// Filter for connections. A connection matches if it matches all fields that are set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectionFilter {
    pub key: Option<ConnectionKey>,
    pub subject: Option<String>,
    /// Address of the peer, or of the client that a trusted proxy reports.
    pub address: Option<IpAddr>,
    pub transport: Option<Transport>,
    /// A channel that the connection reads, by its name or by a pattern; or a pattern that it subscribes to.
    pub channel: Option<Target>,
}

/// Sort key of a connection in the list of all connections of a node: `SHARD-SLOT-GENERATION`. It is never reused while
/// the node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionKey {
    pub shard: usize,
    slot: u32,
    generation: u32,
}

/// The text is not `SHARD-SLOT-GENERATION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected SHARD-SLOT-GENERATION")]
pub struct InvalidKey;

impl ConnectionKey {
    pub(super) fn new(shard: usize, id: ConnId) -> Self {
        Self { shard, slot: id.slot, generation: id.generation }
    }
}

impl FromStr for ConnectionKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let mut parts = text.split('-').map(|part| part.parse::<u32>().ok().filter(|_| is_number(part)));
        let mut next = || parts.next().flatten().ok_or(InvalidKey);
        let key = Self { shard: next()? as usize, slot: next()?, generation: next()? };
        if parts.next().is_some() { Err(InvalidKey) } else { Ok(key) }
    }
}

impl fmt::Display for ConnectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shard, slot, generation } = *self;
        f.write_str(&connection_id(shard, ConnId { slot, generation }))
    }
}

impl Context {
    /// Returns the ids of all matching connections.
    pub(super) fn matching(&self, which: &ConnectionFilter) -> Vec<ConnId> {
        let all: Vec<ConnId> = self.shard.with(|hub, _| hub.conns().map(|(id, _)| id).collect());
        let shard = self.shard.id;
        all.into_iter().filter(|id| self.shard.with(|hub, sockets| is_match(hub, sockets, shard, *id, which))).collect()
    }

    /// Describes connections. Those that have closed are missing.
    pub fn describe(&self, keys: &[ConnectionKey]) -> Vec<Connection> {
        keys.iter().filter_map(|key| self.describe_one(*key)).collect()
    }

    fn describe_one(&self, key: ConnectionKey) -> Option<Connection> {
        let id = ConnId { slot: key.slot, generation: key.generation };
        self.shard.with(|hub, sockets| {
            let lag = lag_of(hub, sockets, id);
            let grant = sockets.grants.get(id).map(|caller| caller.grant.clone())?;
            let mut subscriptions: Vec<String> =
                targets_of(hub, sockets, id).map(|target| target.as_str().to_owned()).collect();
            let subscriptions_total = subscriptions.len();
            subscriptions.truncate(SUBSCRIPTIONS_MAX);
            Some(Connection {
                key,
                transport: transport_of(hub, sockets, id).map_or("http", Transport::name),
                subject: grant.subject.as_deref().map(str::to_owned),
                address: address_of(sockets, id),
                client: client_of(sockets, id),
                expires_s: grant.expires_s,
                opened_ms: sockets.grants.opened_s(id).map(|opened_s| u64::from(opened_s) * 1000),
                subscriptions,
                subscriptions_total,
                policy: match lag.policy {
                    Some(_) if lag.has_mixed_policies => Some("mixed"),
                    policy => policy.map(Policy::name),
                },
                behind: lag.behind,
                behind_bytes: lag.bytes,
                blocked_ms: lag.since_s.filter(|_| lag.is_blocked).map(|since_s| u64::from(since_s) * 1000),
                bytes_out: sockets.socket(id).and_then(|socket| tcp::bytes_sent(&socket.fd)),
                lag,
            })
        })
    }
}

/// Returns whether an open connection of a client matches. A separate lane of a session is no connection of its own.
pub(super) fn is_match(hub: &Hub, sockets: &mut Sockets, shard: usize, id: ConnId, which: &ConnectionFilter) -> bool {
    let Some(caller) = sockets.grants.get(id) else { return false };
    let has_subject = which.subject.is_none() || which.subject.as_deref() == caller.grant.subject.as_deref();
    has_subject
        && which.key.is_none_or(|key| key == ConnectionKey::new(shard, id))
        && which.transport.is_none_or(|transport| transport_of(hub, sockets, id) == Some(transport))
        && which.address.is_none_or(|ip| {
            client_of(sockets, id) == Some(ip) || address_of(sockets, id).is_some_and(|at| at.ip() == ip)
        })
        && which.channel.as_ref().is_none_or(|channel| {
            targets_of(hub, sockets, id).any(|target| match (&target, channel) {
                (Target::Pattern(pattern), Target::Channel(name)) => pattern.matches(name.as_str()),
                (target, channel) => target == channel,
            })
        })
}

/// Returns how far a client is behind on all lanes of its connection.
pub(super) fn lag_of(hub: &Hub, sockets: &Sockets, id: ConnId) -> Lag {
    lanes(sockets, id).filter_map(|lane| hub.lag(lane)).fold(Lag::default(), |mut all, lag| {
        all.add(lag);
        all
    })
}

/// Returns the subscriptions of a connection on all its lanes.
pub(super) fn targets_of(hub: &Hub, sockets: &Sockets, id: ConnId) -> impl Iterator<Item = Target> {
    lanes(sockets, id).flat_map(|lane| hub.targets(lane))
}

fn transport_of(hub: &Hub, sockets: &mut Sockets, id: ConnId) -> Option<Transport> {
    sockets.transport(id).or_else(|| match hub.encoding(id)? {
        Encoding::Sse | Encoding::SseMany => Some(Transport::Sse),
        Encoding::Ndjson | Encoding::NdjsonMany => Some(Transport::Stream),
        _ => None,
    })
}

fn address_of(sockets: &mut Sockets, id: ConnId) -> Option<SocketAddr> {
    let address = rustix::net::getpeername(&sockets.socket(id)?.fd).ok().flatten()?;
    SocketAddr::try_from(address).ok()
}

fn client_of(sockets: &mut Sockets, id: ConnId) -> Option<IpAddr> {
    sockets.quotas(id)?.client()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_keys_are_parsed() {
        let key: ConnectionKey = "1-2-3".parse().unwrap();
        assert_eq!(key.to_string(), "1-2-3");
        for bad in ["", "1-2", "1-2-3-4", "1-2-", "+1-2-3", "1-2-4294967296", "a-b-c", "1--2-3", " 1-2-3"] {
            assert_eq!(bad.parse::<ConnectionKey>(), Err(InvalidKey), "{bad}");
        }
        assert!(key < "1-10-1".parse().unwrap() && key > "0-9-9".parse().unwrap(), "keys are compared as numbers");
    }
}
