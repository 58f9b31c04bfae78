use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A network such as `10.0.0.0/8`: all addresses with the same leading bits. It can also be a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network(IpNet);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a network: expected one such as `10.0.0.0/8`, `2001:db8::/32` or `192.0.2.1`")]
pub struct BadNetwork(String);

impl Network {
    /// Returns whether an address belongs to the network. An IPv4 address in IPv6 notation counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Self, BadNetwork> {
        let network = match text.contains('/') {
            true => text.parse().ok(),
            false => text.parse::<IpAddr>().ok().map(IpNet::from),
        };
        network.map(Self).ok_or_else(|| BadNetwork(text.into()))
    }
}

impl TryFrom<String> for Network {
    type Error = BadNetwork;

    fn try_from(text: String) -> Result<Self, BadNetwork> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_contains_addresses_with_its_prefix() {
        let holds =
            |network: &str, address: &str| network.parse::<Network>().unwrap().contains(address.parse().unwrap());
        for (network, inside, outside) in [
            ("127.0.0.0/8", "127.255.0.1", "128.0.0.1"),
            ("192.0.2.1", "192.0.2.1", "192.0.2.0"),
            ("10.0.0.0/31", "10.0.0.1", "10.0.0.2"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("::1", "::1", "::2"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"),
        ] {
            assert!(holds(network, inside) && !holds(network, outside), "{network}");
        }
        assert!(holds("0.0.0.0/0", "255.0.0.1") && holds("::/0", "ffff::"));
        assert!(!holds("0.0.0.0/0", "::1"));
    }

    #[test]
    fn invalid_network_error_names_value() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "host", "::/129", "10.0.0.0/-1"] {
            assert!(text.parse::<Network>().unwrap_err().to_string().contains(text), "{text}");
        }
        assert_eq!("10.0.0.0/8".parse::<Network>().unwrap().to_string(), "10.0.0.0/8");
    }
}
