use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
};

use millrace_rtc::turn::NoRelay;
use socket2::{Domain, Protocol, Socket, Type};

/// Ports that are tried for one relay, beginning anywhere in the range.
const ATTEMPTS: usize = 256;
/// Room of a relay for what its peers have sent.
const SOCKET_BYTES: usize = 256 << 10;

/// The ports that are kept for relays.
pub struct Ports {
    range: RangeInclusive<u16>,
    /// Of each family: where its sockets are bound, and what peers are told.
    families: [Option<(IpAddr, IpAddr)>; 2],
    /// Where the next search begins, so that a port that was given back rests for a while; begins anywhere.
    next: u32,
}

impl Ports {
    /// `told`: what peers are told, of IPv4 and of IPv6, where the server has such.
    ///
    /// Errors: the system gives no chance.
    pub fn new(listen: IpAddr, told: [Option<IpAddr>; 2], range: RangeInclusive<u16>) -> io::Result<Self> {
        let any = |is_ipv6| match (listen.is_unspecified(), is_ipv6) {
            (false, _) => listen,
            (true, false) => Ipv4Addr::UNSPECIFIED.into(),
            (true, true) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let families = [false, true].map(|is_ipv6| told[usize::from(is_ipv6)].map(|told| (any(is_ipv6), told)));
        Ok(Self { range, families, next: getrandom::u32().map_err(io::Error::other)? })
    }

    /// So many sockets on consecutive ports, and how peers reach the first.
    pub fn open(
        &mut self,
        count: usize,
        is_ipv6: bool,
        even: bool,
    ) -> Result<(SocketAddr, Vec<std::net::UdpSocket>), NoRelay> {
        let (ip, told) = self.families[usize::from(is_ipv6)].ok_or(NoRelay::Family)?;
        let (first, last) = (u32::from(*self.range.start()), u32::from(*self.range.end()));
        let size = last - first + 1;
        for _ in 0..ATTEMPTS.min(size as usize) {
            let port = first + self.next % size;
            self.next = self.next.wrapping_add(1);
            if even && port % 2 == 1 || port + count as u32 - 1 > last {
                continue;
            }
            let ports = (port..).map_while(|port| u16::try_from(port).ok()).take(count);
            // Another program has it.
            let Ok(sockets) = ports.map(|port| bind(SocketAddr::new(ip, port))).collect::<io::Result<Vec<_>>>() else {
                continue;
            };
            return Ok((SocketAddr::new(told, port as u16), sockets));
        }
        Err(NoRelay::Full)
    }
}

fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        // Else an address of IPv4 in the clothes of IPv6 would be reached.
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
    fn relays_stay_in_their_range_and_pairs_begin_even() {
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
    fn a_range_that_is_taken_is_full() {
        let mut ports = ports(42_400..=42_403);
        let open: Vec<_> = std::iter::from_fn(|| ports.open(1, false, false).ok()).take(5).collect();
        assert!((1..=4).contains(&open.len()), "{}", open.len());
        assert_eq!(ports.open(1, false, false).unwrap_err(), NoRelay::Full);
        drop(open);
        assert!(ports.open(1, false, false).is_ok());
    }
}
