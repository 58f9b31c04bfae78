//! Addresses with which a relay may exchange data.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns true if this is the address of a machine on the public internet.
///
/// These addresses are not public: loopback, private and link-local networks, the shared range behind a
/// carrier's NAT, multicast, other reserved ranges, and ranges that embed an address of another kind (tunnels,
/// translators).
///
/// Source: IANA's registries of special-purpose addresses (RFC 6890).
pub fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

/// Returns true if the address can belong to a single machine.
pub fn is_unicast(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    !ip.is_unspecified() && !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_kept = match (a, b, c) {
        (0 | 10 | 127, ..) | (100, 64..=127, _) | (169, 254, _) | (172, 16..=31, _) | (192, 168, _) => true,
        // IETF protocols, documentation, AS112, AMT, the former 6to4 relays, benchmarking.
        (192, 0, 0 | 2) | (192, 31, 196) | (192, 52, 193) | (192, 88, 99) | (192, 175, 48) | (198, 18 | 19, _) => true,
        (198, 51, 100) | (203, 0, 113) | (224.., ..) => true,
        _ => false,
    };
    !is_kept
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let segments = ip.segments();
    // Reserved ranges in the global unicast space: Teredo, benchmarking, ORCHID and similar, documentation, 6to4,
    // documentation.
    let is_kept = match (segments[0], segments[1]) {
        (0x2001, 0..=0x1ff | 0xdb8) | (0x2002, _) | (0x3fff, 0..=0xfff) => true,
        (first, _) => first & 0xe000 != 0x2000,
    };
    !is_kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_and_reserved_networks_are_not_public() {
        let inside = "0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.255.0.1 169.254.169.254 172.16.0.1 172.31.255.255
            192.0.0.1 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1
            255.255.255.255 :: ::1 ::10.0.0.1 ::ffff:10.0.0.1 ::ffff:127.0.0.1 64:ff9b::10.0.0.1 100::1 2001::1 2001:10::1 2001:db8::1
            2002:a00:1::1 3fff::1 fc00::1 fdff::1 fe80::1 fec0::1 ff02::1 5f00::1";
        for ip in inside.split_whitespace() {
            assert!(!is_public(ip.parse().unwrap()), "{ip}");
        }
        let outside = "1.1.1.1 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.0.1.1 192.169.0.1 198.17.0.1
            198.20.0.1 223.255.255.255 ::ffff:8.8.8.8 2001:200::1 2003::1 2606:4700::1111 2a00::1 3ffe::1";
        for ip in outside.split_whitespace() {
            assert!(is_public(ip.parse().unwrap()), "{ip}");
        }
    }

    #[test]
    fn non_unicast_addresses_are_not_peers() {
        for ip in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1", "::ffff:224.0.0.1"] {
            assert!(!is_unicast(ip.parse().unwrap()), "{ip}");
        }
        assert!(is_unicast("127.0.0.1".parse().unwrap()) && is_unicast("fe80::1".parse().unwrap()));
    }
}
