//! Source addresses of the generator's connections.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Maximum number of connections from one source address, well below the 28,232 ports that Linux offers for one.
pub const PER_SOURCE: usize = 4000;

/// Returns the source address of connection `i`: 127.x.0.1 and following, because the ports of one address do not
/// suffice. x depends on the process id, so that consecutive runs use different addresses. Only for loopback targets.
pub fn loopback_source(address: SocketAddr, i: usize) -> Option<IpAddr> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    let group = i / PER_SOURCE;
    ip.is_loopback().then(|| {
        let own = 1 + (std::process::id() % 250) as u8;
        Ipv4Addr::new(127, own, (group / 250) as u8, 1 + (group % 250) as u8).into()
    })
}
