use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
};

use millrace_rtc::Candidates;
use serde::{Deserialize, Serialize};

use super::{RelaySockets, framed};

/// Send and receive buffer of each socket, in bytes: enough for the datagrams of one turn with thousands of peers.
const SOCKET_BYTES: usize = 8 << 20;

/// Settings of WebRTC data channels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Listen address HOST:PORT (UDP and TCP). Each shard uses the next port number; port 0 picks free ports. Empty:
    /// free ports if the server listens on loopback, otherwise disabled. `off`: disabled.
    pub listen: String,
    /// IP addresses to advertise to clients instead of the sockets' own, for a server behind a NAT.
    pub public: Vec<IpAddr>,
    /// Whether to accept TCP on the same port numbers, for clients that cannot use UDP (ICE over TCP).
    pub tcp: bool,
    /// Maximum number of peers per node, including peers that are still connecting.
    pub peers_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { listen: String::new(), public: Vec::new(), tcp: true, peers_max: 10_000 }
    }
}

impl Config {
    /// Returns the listen address for a server that listens on `server`; `None` if data channels are disabled.
    ///
    /// Errors: a description of the expected format.
    pub fn address(&self, server: SocketAddr) -> Result<Option<SocketAddr>, &'static str> {
        match self.listen.as_str() {
            "off" => Ok(None),
            "" if server.ip().to_canonical().is_loopback() => Ok(Some(SocketAddr::new(server.ip(), 0))),
            "" => Ok(None),
            address => address.parse().map(Some).map_err(|_| "is HOST:PORT such as `0.0.0.0:7000`, `off`, or empty"),
        }
    }
}

/// Sockets of one shard, and the addresses advertised to clients.
pub struct Port {
    pub(crate) socket: UdpSocket,
    pub(crate) streams: Option<TcpListener>,
    pub(crate) candidates: Candidates,
    pub(crate) peers_max: usize,
    /// `None` unless the port can be handed over to another process.
    pub relay: Option<RelaySockets>,
}

impl Port {
    /// Returns the address of the sockets.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Binds the sockets of all shards. `own`: addresses of this machine, advertised if a socket listens on all of
    /// them.
    ///
    /// Errors: the address is in use, or not an address of this machine.
    pub fn bind(config: &Config, address: SocketAddr, shards: usize, own: &[IpAddr]) -> io::Result<Vec<Port>> {
        (0..shards)
            .map(|shard| {
                let (socket, streams) = Self::bind_sockets(config, Self::address_of(address, shard)?)?;
                Self::new(config, shards, own, socket, streams)
            })
            .collect()
    }

    /// Returns the address of a shard: each uses the next port number.
    ///
    /// Errors: there is no such port number.
    pub fn address_of(mut first: SocketAddr, shard: usize) -> io::Result<SocketAddr> {
        if first.port() != 0 {
            let port = usize::from(first.port()) + shard;
            first.set_port(u16::try_from(port).map_err(|_| io::ErrorKind::AddrNotAvailable)?);
        }
        Ok(first)
    }

    /// Binds the sockets of one shard.
    ///
    /// Errors: see [`Port::bind`].
    pub fn bind_sockets(config: &Config, address: SocketAddr) -> io::Result<(UdpSocket, Option<TcpListener>)> {
        match config.tcp {
            true => framed::bind(address, SOCKET_BYTES).map(|(socket, streams)| (socket, Some(streams))),
            false => Ok((framed::bind_datagrams(address, SOCKET_BYTES)?, None)),
        }
    }

    /// Creates the port of one shard from its sockets, which do not block.
    ///
    /// Errors: the socket has no address.
    pub fn new(
        config: &Config,
        shards: usize,
        own: &[IpAddr],
        socket: UdpSocket,
        streams: Option<TcpListener>,
    ) -> io::Result<Port> {
        let local = socket.local_addr()?;
        let is_usable = |ip: &&IpAddr| local.is_ipv6() || ip.is_ipv4();
        let ips: Vec<IpAddr> = match (config.public.is_empty(), local.ip().is_unspecified()) {
            (false, _) => config.public.clone(),
            (true, true) => own.iter().filter(is_usable).copied().collect(),
            (true, false) => vec![local.ip()],
        };
        let addresses = ips.into_iter().map(|ip| SocketAddr::new(ip.to_canonical(), local.port())).collect();
        let candidates = Candidates { addresses, take_streams: streams.is_some() };
        Ok(Port { socket, streams, candidates, peers_max: config.peers_max.div_ceil(shards), relay: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_server_opens_port_by_default() {
        let at = |listen: &str, server: &str| {
            Config { listen: listen.into(), ..Config::default() }.address(server.parse().unwrap())
        };
        assert_eq!(at("", "127.0.0.1:8080"), Ok(Some("127.0.0.1:0".parse().unwrap())));
        assert_eq!(at("", "[::1]:8080"), Ok(Some("[::1]:0".parse().unwrap())));
        assert_eq!((at("", "0.0.0.0:8080"), at("off", "127.0.0.1:8080")), (Ok(None), Ok(None)));
        assert_eq!(at("0.0.0.0:7000", "127.0.0.1:8080"), Ok(Some("0.0.0.0:7000".parse().unwrap())));
        assert!(at("7000", "127.0.0.1:8080").is_err());
    }

    #[test]
    fn candidates_are_addresses_that_reach_the_socket() {
        let own = ["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()];
        let told = |config: &Config, address: &str| {
            let ports = Port::bind(config, address.parse().unwrap(), 2, &own).unwrap();
            let ips = |port: Port| port.candidates.addresses.iter().map(SocketAddr::ip).collect();
            ports.into_iter().map(ips).collect::<Vec<Vec<_>>>()
        };
        let config = Config::default();
        assert_eq!(told(&config, "127.0.0.1:0"), vec![vec!["127.0.0.1".parse::<IpAddr>().unwrap()]; 2]);
        assert_eq!(told(&config, "0.0.0.0:0"), vec![own[..1].to_vec(); 2]);
        let public = Config { public: vec!["198.51.100.1".parse().unwrap()], ..config };
        assert_eq!(told(&public, "127.0.0.1:0"), vec![public.public.clone(); 2]);
    }
}
