use std::{fmt, net::IpAddr, str::FromStr};

use millrace_turn::is_public;
use serde::{Deserialize, Serialize};

use millrace_transport::{BadNetwork, Network};

/// Peer addresses that relays may send to: public internet addresses, or those of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Peers {
    Public,
    Network(Network),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; or `public`")]
pub struct BadPeers(#[from] BadNetwork);

/// Returns the policy for peer addresses. An empty list allows public addresses, and loopback addresses if the server
/// listens on loopback.
pub fn policy(mut allowed: Vec<Peers>, is_loopback: bool) -> impl Fn(IpAddr) -> bool + Send {
    if allowed.is_empty() {
        allowed.push(Peers::Public);
        if is_loopback {
            let own = ["127.0.0.0/8", "::1/128"].map(|network| network.parse().expect("a network"));
            allowed.extend(own.map(Peers::Network));
        }
    }
    move |ip| {
        allowed.iter().any(|peers| match peers {
            Peers::Public => is_public(ip),
            Peers::Network(network) => network.contains(ip),
        })
    }
}

impl FromStr for Peers {
    type Err = BadPeers;

    fn from_str(text: &str) -> Result<Self, BadPeers> {
        if text == "public" { Ok(Peers::Public) } else { Ok(Peers::Network(text.parse()?)) }
    }
}

impl TryFrom<String> for Peers {
    type Error = BadPeers;

    fn try_from(text: String) -> Result<Self, BadPeers> {
        text.parse()
    }
}

impl From<Peers> for String {
    fn from(peers: Peers) -> Self {
        peers.to_string()
    }
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peers::Public => f.write_str("public"),
            Peers::Network(network) => network.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relay_reaches_private_networks_only_if_configured() {
        let reach = |allowed: &[&str], is_loopback| {
            let policy = policy(allowed.iter().map(|peers| peers.parse().unwrap()).collect(), is_loopback);
            ["8.8.8.8", "127.0.0.1", "10.0.0.1", "192.168.0.1", "169.254.169.254", "2a00::1", "fe80::1"]
                .map(|ip| policy(ip.parse().unwrap()))
        };
        assert_eq!(reach(&[], false), [true, false, false, false, false, true, false]);
        assert_eq!(reach(&[], true), [true, true, false, false, false, true, false]);
        assert_eq!(reach(&["10.0.0.0/8"], true), [false, false, true, false, false, false, false]);
        assert_eq!(reach(&["public", "10.0.0.0/8"], false), [true, false, true, false, false, true, false]);
        assert!("private".parse::<Peers>().unwrap_err().to_string().contains("`private` is not a network"));
        assert_eq!("public".parse::<Peers>().unwrap().to_string(), "public");
    }
}
