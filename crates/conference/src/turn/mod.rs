//! TURN and STUN server: one port for UDP, TCP and TLS, and one UDP socket for each relay.
//!
//! - this file: the port, and the tasks of the thread
//! - [`settings`]: settings of the server
//! - [`driver`]: passes messages from clients and peers to [`millrace_turn::Server`], and executes its results
//! - [`relays`]: opens relay sockets in the configured port range
//! - [`stream`]: clients over TCP and TLS, on the same port
//! - [`offer`]: `POST /v1/turn`: the server's URLs and short-lived credentials
//! - [`peers`]: the policy for peer addresses
//!
//! The server runs on one thread of its own. Relayed data touches no channel, so there is no state to share with a
//! shard, and a busy relay delays no reader.
//!
//! Source: docs/reference/turn.md; docs/adr/0007.

mod driver;
mod offer;
mod peers;
mod relays;
mod settings;
mod stream;

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    rc::Rc,
    sync::Arc,
};

use millrace_transport::datagram::{Bounds, Demultiplexer, RelaySockets, framed};
use tokio::task::spawn_local;

pub use millrace_turn::{AllocationRow, Client, Counts, Credentials, Metrics, REALM_BYTES_MAX};
pub(crate) use offer::answer;
pub use offer::{IceServer, IceServers, Offer};
pub use peers::{BadPeers, Peers};
pub use settings::Settings;

use driver::{DATAGRAMS_PER_TURN, PortCounters, Protocol, TurnDriver};

/// Send and receive buffer of the port, in bytes.
const SOCKET_BYTES: usize = 4 << 20;
/// Bounds of the port. A datagram may have any size that UDP allows.
const BOUNDS: Bounds = Bounds { datagram_bytes_max: 1 << 16, turn_datagrams_max: DATAGRAMS_PER_TURN };

/// Bound sockets for clients.
pub struct Port {
    datagrams: UdpSocket,
    streams: TcpListener,
    address: SocketAddr,
    /// `None` unless the port can be handed over to another process.
    pub relay: Option<RelaySockets>,
}

impl Port {
    /// Binds UDP and TCP to the same port number; port 0 takes a free one.
    ///
    /// Errors: the address is in use, or not an address of this machine.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let (datagrams, streams) = Self::bind_sockets(address)?;
        Self::new(datagrams, streams)
    }

    /// Binds the sockets of [`Port::bind`].
    ///
    /// Errors: see there.
    pub fn bind_sockets(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
        framed::bind(address, SOCKET_BYTES)
    }

    /// Creates a port from bound sockets, which do not block.
    ///
    /// Errors: a socket has no address.
    pub fn new(datagrams: UdpSocket, streams: TcpListener) -> io::Result<Self> {
        Ok(Self { address: datagrams.local_addr()?, datagrams, streams, relay: None })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of this family to advertise to clients and peers. `own`: addresses of this machine, for a
    /// port that listens on all of them.
    pub fn advertised(&self, public: &[IpAddr], own: &[IpAddr], is_ipv6: bool) -> Option<IpAddr> {
        let ip = self.address.ip();
        let is_wanted = |ip: &&IpAddr| ip.is_ipv6() == is_ipv6;
        let is_served = ip.is_ipv6() == is_ipv6 || ip.is_ipv6() && ip.is_unspecified();
        let own = if ip.is_unspecified() { own } else { std::slice::from_ref(&ip) };
        // A link-local address has no meaning on other links.
        let is_advertised = |ip: &&IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        is_served.then(|| {
            public.iter().find(is_wanted).or_else(|| own.iter().filter(is_advertised).find(is_wanted)).copied()
        })?
    }
}

/// Serves clients until `stop` completes. Must run inside a `LocalRuntime` or a `LocalSet`.
///
/// Errors: the runtime cannot watch the sockets.
pub async fn serve(port: Port, own: &[IpAddr], settings: Settings, stop: impl Future<Output = ()>) -> io::Result<()> {
    let advertised = [false, true].map(|is_ipv6| port.advertised(&settings.public, own, is_ipv6));
    let allowed = peers::policy(settings.peers_allowed.clone(), port.address.ip().to_canonical().is_loopback());
    let limits = millrace_turn::Limits {
        allocations_max: settings.allocations_max,
        allocations_per_user_max: settings.allocations_per_user_max,
        lifetime_max_s: u32::try_from(settings.lifetime_max.as_secs()).unwrap_or(u32::MAX),
        bytes_per_s_max: settings.bytes_per_s_max,
        may_reach: Box::new(allowed),
    };
    let ports = relays::Ports::new(port.address.ip(), advertised, settings.relay_ports.clone())?;
    let counters = Arc::new(PortCounters(settings.metrics.clone()));
    let datagrams =
        Demultiplexer::new(port.datagrams, BOUNDS, settings.connection_limits.clone(), counters, port.relay)?;
    let streams = tokio::net::TcpListener::from_std(port.streams)?;
    let driver = TurnDriver::new(limits, ports, datagrams.sender(), settings)?;
    datagrams.add(Rc::new(Protocol { driver: driver.clone(), port: Rc::downgrade(&datagrams) }));
    let (accepting, accepted) = (datagrams.clone(), driver.clone());
    let accept = async move {
        tokio::select! {
            () = stream::accept(accepted, streams) => {}
            () = accepting.handed_over() => {}
        }
    };
    let tasks = [spawn_local(datagrams.run(None)), spawn_local(accept)];
    stop.await;
    tasks.iter().for_each(|task| task.abort());
    driver.close();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_advertises_addresses_that_reach_it() {
        let ips = |text: &str| text.split(' ').map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let own = ips("192.0.2.7 fe80::7 2001:db8::7");
        let advertised = |address: &str, public: &[IpAddr]| {
            let port = Port::bind(address.parse().unwrap()).unwrap();
            [false, true].map(|is_ipv6| port.advertised(public, &own, is_ipv6).map(|ip| ip.to_string()))
        };
        let some = |ip: &str| Some(ip.to_owned());
        assert_eq!(advertised("127.0.0.1:0", &[]), [some("127.0.0.1"), None]);
        assert_eq!(advertised("0.0.0.0:0", &[]), [some("192.0.2.7"), None]);
        assert_eq!(advertised("[::]:0", &[]), [some("192.0.2.7"), some("2001:db8::7")]);
        assert_eq!(advertised("0.0.0.0:0", &ips("198.51.100.1 2001:db8::1")), [some("198.51.100.1"), None]);
    }
}
