//! Addresses of clients behind proxies. Only headers of trusted proxies are used, because any other peer can send
//! arbitrary headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName, header};
use serde::{Deserialize, Serialize};

use crate::config::Network;

/// Maximum number of proxies between a client and this server. Further entries are ignored.
const HOPS_MAX: usize = 16;
/// Maximum length of a node name in bytes. An IPv6 address with its port has 53.
const NODE_BYTES_MAX: usize = 64;

/// Header that names the client. Only one header is used, because a proxy that writes one of them forwards the other
/// one as its client has sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardedHeader {
    /// `X-Forwarded-For`: a list of addresses.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

/// Trusted proxies.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    pub trusted: Vec<Network>,
    pub header: ForwardedHeader,
}

/// Address of the client that a trusted proxy has reported. It is an extension of each request of such a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForwardedFor(pub IpAddr);

impl Proxies {
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(address))
    }

    /// Returns the address of the client. Each proxy appends the address of its own peer at the right. So the
    /// entries are read from right to left while the last address is a trusted proxy. The first other address is the
    /// client. If an entry is not an address, the client is the proxy that wrote the entry. Without a header, it is
    /// `peer`.
    ///
    /// Cost: O([`HOPS_MAX`]), independent of the entries that the client has added at the left.
    pub fn client_of(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
        let (name, node): (_, fn(&str) -> Option<&str>) = match self.header {
            ForwardedHeader::XForwardedFor => (X_FORWARDED_FOR, whole),
            ForwardedHeader::Forwarded => (header::FORWARDED, node_of),
        };
        // A node name contains no comma. A comma in a quoted string of another parameter ends the chain. So does a
        // quote that the client has not closed: the proxy writes its own entry after a comma.
        let lines = headers.get_all(name).iter().rev();
        let hops = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
        let mut client = peer;
        for hop in hops.take(HOPS_MAX) {
            if !self.trusts(client) {
                break;
            }
            let told = std::str::from_utf8(hop).ok().and_then(node).and_then(address);
            match told {
                Some(address) => client = address,
                None => break,
            }
        }
        client
    }
}

fn whole(node: &str) -> Option<&str> {
    Some(node)
}

/// Returns the value of `for` in one element; `None` if it occurs twice. Source: RFC 7239, section 4.
fn node_of(element: &str) -> Option<&str> {
    let mut nodes = element.split(';').filter_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        name.eq_ignore_ascii_case("for").then_some(value)
    });
    let node = nodes.next()?;
    if nodes.next().is_some() {
        return None;
    }
    match node.strip_prefix('"') {
        Some(quoted) => quoted.strip_suffix('"'),
        None => Some(node),
    }
}

/// Parses an address with an optional port. Returns `None` for an obfuscated node (`unknown`, `_name`) and for
/// anything else. Source: RFC 7239, section 6.
fn address(node: &str) -> Option<IpAddr> {
    let node = node.trim_matches([' ', '\t']);
    if node.len() > NODE_BYTES_MAX {
        return None;
    }
    if let Some(rest) = node.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let is_good = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return address.parse::<Ipv6Addr>().ok().filter(|_| is_good).map(|ip| IpAddr::V6(ip).to_canonical());
    }
    if let Ok(address) = node.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let (address, port) = node.split_once(':')?;
    address.parse::<Ipv4Addr>().ok().filter(|_| is_port(port)).map(IpAddr::V4)
}

fn is_port(text: &str) -> bool {
    let is_hidden = text.starts_with('_') && text.len() > 1;
    is_hidden || (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn proxies(header: ForwardedHeader) -> Proxies {
        let trusted = ["10.0.0.0/8", "2001:db8:1::/48"].map(|network| network.parse().unwrap()).into();
        Proxies { trusted, header }
    }

    fn client(header: ForwardedHeader, peer: &str, lines: &[&str]) -> String {
        let name = match header {
            ForwardedHeader::XForwardedFor => "x-forwarded-for",
            ForwardedHeader::Forwarded => "forwarded",
        };
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        proxies(header).client_of(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn first_untrusted_hop_is_the_client() {
        for (peer, lines, expected) in [
            ("10.0.0.1", &["192.0.2.1"][..], "192.0.2.1"),
            ("10.0.0.1", &["192.0.2.1, 10.0.0.2"], "192.0.2.1"),
            ("10.0.0.1", &["192.0.2.1", "10.0.0.2 ,10.0.0.3"], "192.0.2.1"),
            ("10.0.0.1", &["198.51.100.1, 192.0.2.1, 10.0.0.2"], "192.0.2.1"),
            ("10.0.0.1", &["198.51.100.1", "192.0.2.1"], "192.0.2.1"),
            ("10.0.0.1", &["192.0.2.1:4711"], "192.0.2.1"),
            ("10.0.0.1", &["2001:db8::1"], "2001:db8::1"),
            ("10.0.0.1", &["[2001:db8::1]:4711"], "2001:db8::1"),
            ("10.0.0.1", &["::ffff:192.0.2.1"], "192.0.2.1"),
            ("::ffff:10.0.0.1", &["192.0.2.1"], "192.0.2.1"),
            ("2001:db8:1::5", &["192.0.2.1"], "192.0.2.1"),
            // All are trusted: the client is the leftmost address.
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &[], "10.0.0.1"),
        ] {
            assert_eq!(client(ForwardedHeader::XForwardedFor, peer, lines), expected, "{peer} {lines:?}");
        }
    }

    #[test]
    fn untrusted_sender_header_is_ignored() {
        for header in [ForwardedHeader::XForwardedFor, ForwardedHeader::Forwarded] {
            for line in ["192.0.2.1", "for=192.0.2.1", "10.0.0.1", "for=10.0.0.1, for=192.0.2.1"] {
                assert_eq!(client(header, "203.0.113.9", &[line]), "203.0.113.9", "{line}");
            }
        }
        let all = HeaderMap::from_iter([(header::FORWARDED, HeaderValue::from_static("for=192.0.2.1"))]);
        let nobody = Proxies::default().client_of("10.0.0.1".parse().unwrap(), &all);
        assert_eq!(nobody.to_string(), "10.0.0.1");
        // The client sends the header that its proxy does not write.
        assert_eq!(
            proxies(ForwardedHeader::XForwardedFor).client_of("10.0.0.1".parse().unwrap(), &all).to_string(),
            "10.0.0.1"
        );
    }

    #[test]
    fn forwarded_header_is_parsed_by_rfc() {
        for (line, expected) in [
            ("for=192.0.2.1", "192.0.2.1"),
            ("For=\"192.0.2.1:4711\"", "192.0.2.1"),
            ("proto=https; FOR=192.0.2.1;by=203.0.113.43", "192.0.2.1"),
            ("for=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
            ("for=\"[2001:db8:cafe::17]:_port\"", "2001:db8:cafe::17"),
            ("for=192.0.2.1, for=10.0.0.2", "192.0.2.1"),
            ("for=198.51.100.1, for=192.0.2.1;host=a.example, for=10.0.0.2", "192.0.2.1"),
            // A hidden or missing address: the result is the proxy that wrote the entry.
            ("for=192.0.2.1, for=unknown", "10.0.0.1"),
            ("for=192.0.2.1, for=_hidden", "10.0.0.1"),
            ("for=192.0.2.1, by=10.0.0.2", "10.0.0.1"),
            ("for=192.0.2.1;for=198.51.100.1", "10.0.0.1"),
            ("for=unknown, for=10.0.0.7", "10.0.0.7"),
            // A quote that the client leaves open does not hide the entry of the proxy.
            ("for=\"198.51.100.1, for=192.0.2.1", "192.0.2.1"),
            ("host=\"a\\\", for=192.0.2.1", "192.0.2.1"),
            ("for=198.51.100.1;x=\", for=192.0.2.1", "192.0.2.1"),
        ] {
            assert_eq!(client(ForwardedHeader::Forwarded, "10.0.0.1", &[line]), expected, "{line}");
        }
    }

    #[test]
    fn invalid_address_ends_proxy_chain() {
        for text in [
            "",
            " ",
            ",",
            ",,,,",
            "unknown",
            "_hidden",
            "localhost",
            "192.0.2",
            "192.0.2.1.5",
            "192.0.2.256",
            "0300.0.2.1",
            "192.0.2.1:",
            "192.0.2.1:123456",
            "192.0.2.1:a",
            "192.0.2.1 192.0.2.2",
            "[192.0.2.1]",
            "[2001:db8::1",
            "2001:db8::1]",
            "[2001:db8::1]4711",
            "[2001:db8::1]:",
            "[]",
            "[",
            "fe80::1%eth0",
            "2001:db8::1::2",
            ":::",
            "192.0.2.1;x",
            "\"192.0.2.1\"",
            "192.0.2.1\u{a0}",
            "١٩٢.0.2.1",
        ] {
            assert_eq!(client(ForwardedHeader::XForwardedFor, "10.0.0.1", &[text]), "10.0.0.1", "{text:?}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", HeaderValue::from_bytes(b"192.0.2.1, \xff\xfe").unwrap());
        let broken = proxies(ForwardedHeader::XForwardedFor).client_of("10.0.0.1".parse().unwrap(), &headers);
        assert_eq!(broken.to_string(), "10.0.0.1");
    }

    #[test]
    fn number_of_parsed_hops_is_limited() {
        let hops = |count: usize| vec!["10.0.0.2"; count].join(",");
        let line = |count| format!("192.0.2.1,{}", hops(count));
        assert_eq!(client(ForwardedHeader::XForwardedFor, "10.0.0.1", &[&line(HOPS_MAX - 1)]), "192.0.2.1");
        assert_eq!(client(ForwardedHeader::XForwardedFor, "10.0.0.1", &[&line(HOPS_MAX)]), "10.0.0.2");
        let long = format!("{}, 192.0.2.1", "x".repeat(60_000));
        assert_eq!(client(ForwardedHeader::XForwardedFor, "10.0.0.1", &[&long]), "192.0.2.1");
        let lines = vec!["10.0.0.2"; 90];
        assert_eq!(client(ForwardedHeader::XForwardedFor, "10.0.0.1", &lines), "10.0.0.2");
    }
}
