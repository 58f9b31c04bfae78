use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
};

use millrace_turn::NoRelay;
use socket2::{Domain, Protocol, Socket, Type};

/// Maximum number of ports tried for one allocation, from a random start in the range.
const ATTEMPTS: usize = 256;
/// Receive buffer of a relay, in bytes.
const SOCKET_BYTES: usize = 256 << 10;

/// Port range of the relays.
pub struct Ports {
    range: RangeInclusive<u16>,
    /// Bind address and advertised address of each family.
    families: [Option<(IpAddr, IpAddr)>; 2],
    /// Offset of the next search in the range, random at first. It only increases, so that a closed port is not reused
    /// at once.
    next: u32,
}

impl Ports {
    /// Creates the port range. `advertised`: advertised addresses for IPv4 and IPv6, if the server has them.
    ///
    /// Errors: the system has no random numbers.
    pub fn new(listen: IpAddr, advertised: [Option<IpAddr>; 2], range: RangeInclusive<u16>) -> io::Result<Self> {
        let any = |is_ipv6| match (listen.is_unspecified(), is_ipv6) {
            (false, _) => listen,
            (true, false) => Ipv4Addr::UNSPECIFIED.into(),
            (true, true) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let families = [false, true].map(|is_ipv6| advertised[usize::from(is_ipv6)].map(|ip| (any(is_ipv6), ip)));
        Ok(Self { range, families, next: getrandom::u32().map_err(io::Error::other)? })
    }

    /// Opens `count` sockets on consecutive ports. Returns the advertised address of the first, and the sockets.
    pub fn open(
        &mut self,
        count: usize,
        is_ipv6: bool,
        even: bool,
    ) -> Result<(SocketAddr, Vec<std::net::UdpSocket>), NoRelay> {
        let (ip, advertised) = self.families[usize::from(is_ipv6)].ok_or(NoRelay::Family)?;
        let (first, last) = (u32::from(*self.range.start()), u32::from(*self.range.end()));
        let size = last - first + 1;
        for _ in 0..ATTEMPTS.min(size as usize) {
            let port = first + self.next % size;
            self.next = self.next.wrapping_add(1);
            if even && port % 2 == 1 || port + count as u32 - 1 > last {
                continue;
            }
            let ports = (port..).map_while(|port| u16::try_from(port).ok()).take(count);
            // Another program uses the port.
            let Ok(sockets) = ports.map(|port| bind(SocketAddr::new(ip, port))).collect::<io::Result<Vec<_>>>() else {
                continue;
            };
            return Ok((SocketAddr::new(advertised, port as u16), sockets));
        }
        Err(NoRelay::Full)
    }
}

fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        // Otherwise the socket would also accept IPv4-mapped addresses.
        socket.set_only_v6(true)?;
    }
    let _ = socket.set_recv_buffer_size(SOCKET_BYTES);
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(range: RangeInclusive<u16>) -> Ports {
        let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
        Ports::new(ip, [Some(ip), None], range).unwrap()
    }

    #[test]
    fn relay_ports_stay_in_range_and_pairs_start_even() {
        let mut ports = ports(42_000..=42_399);
        assert_eq!(ports.open(1, true, false).unwrap_err(), NoRelay::Family);
        let mut open = Vec::new();
        for _ in 0..20 {
            let (address, sockets) = ports.open(2, false, true).unwrap();
            assert!(address.port() % 2 == 0 && (42_000..=42_398).contains(&address.port()), "{address}");
            let bound: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
            assert_eq!(bound, [address.port(), address.port() + 1]);
            open.extend(sockets);
        }
    }

    #[test]
    fn used_range_is_full() {
        let mut ports = ports(42_400..=42_403);
        let open: Vec<_> = std::iter::from_fn(|| ports.open(1, false, false).ok()).take(5).collect();
        assert!((1..=4).contains(&open.len()), "{}", open.len());
        assert_eq!(ports.open(1, false, false).unwrap_err(), NoRelay::Full);
        drop(open);
        assert!(ports.open(1, false, false).is_ok());
    }
}
