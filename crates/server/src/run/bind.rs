//! Opens every socket of the server, so that an address in use fails the start before anything else happens.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs as _, UdpSocket},
    sync::Arc,
};

use anyhow::Context as _;
use millrace_transport::{Limits, Listener, RtcPort, bind_udp};
use rustix::{
    net::{self, AddressFamily, SocketType},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use tokio::sync::watch;

use crate::{
    Config,
    tls::Tls,
    turn::Turn,
    upgrade::{Opener, Seed, SocketSet},
};

/// Bound sockets that are not served yet.
pub struct Sockets {
    pub address: SocketAddr,
    /// One listener per shard, all at `address`.
    pub listeners: Vec<Listener>,
    pub udp: Option<UdpSocket>,
    /// Socket for NMEA sentences.
    pub nmea: Option<UdpSocket>,
    /// One port per shard; empty if data channels are disabled.
    pub rtc: Vec<RtcPort>,
    pub turn: Turn,
    /// Listeners of MQTT, one per shard; empty if MQTT is disabled.
    pub mqtt: Vec<TcpListener>,
    /// Listener for HAProxy's agent check.
    pub agent: Option<TcpListener>,
    pub admin: Option<TcpListener>,
    /// Duplicates of all listening sockets, for the next process.
    pub kept: SocketSet,
    /// True once the next process has taken over.
    pub handed_over: watch::Sender<bool>,
}

impl Sockets {
    /// Returns the address of MQTT.
    pub fn mqtt_address(&self) -> io::Result<Option<SocketAddr>> {
        self.mqtt.first().map(TcpListener::local_addr).transpose()
    }

    /// Returns the address of the admin listener.
    pub fn admin_address(&self) -> io::Result<Option<SocketAddr>> {
        self.admin.as_ref().map(TcpListener::local_addr).transpose()
    }
}

/// Binds the sockets, loads the certificate, and creates the limits that all sockets share. Sockets of an old process
/// (`inherited`) are used again if they have the configured address.
///
/// Errors: an address that is in use or not an address of this machine, or an unusable certificate.
pub fn bind(config: &Config, inherited: SocketSet, seed: &Seed) -> anyhow::Result<(Sockets, Option<Tls>, Arc<Limits>)> {
    let (server, shards) = (&config.server, config.shards());
    let limits = Limits::behind(server.proxies(), &config.limits, raise_descriptor_limit());
    let (mut opener, handed_over) = (Opener { inherited, ..Opener::default() }, watch::Sender::new(false));
    let listeners = listen(&mut opener, "http", server.listen, shards).with_context(|| taken(server.listen))?;
    let listeners: Vec<Listener> = listeners.into_iter().map(Listener::new).collect();
    let address = listeners[0].address()?;
    let tls = Tls::load(&config.tls, shards).context("cannot set up TLS")?;
    let udp = open_datagrams(&mut opener, "udp", &server.udp)?;
    let nmea = Some(&config.ingest).filter(|ingest| ingest.enabled != millrace_ingest::Mode::Off);
    let nmea = open_datagrams(&mut opener, "nmea", nmea.map_or("", |ingest| &ingest.nmea_udp))?;
    let own = own_addresses();
    let rtc = match config.rtc.address(server.listen).map_err(|what| anyhow::anyhow!("`rtc.listen` {what}"))? {
        Some(address) => open_rtc((&mut opener, &handed_over), config, address, shards, &own)
            .with_context(|| format!("cannot receive data channels on {address}"))?,
        None => Vec::new(),
    };
    let mqtt = match config.mqtt_address() {
        None => Vec::new(),
        Some(address) => listen(&mut opener, "mqtt", address, shards)
            .with_context(|| format!("cannot serve MQTT on {address}; another program may use the address"))?,
    };
    let agent = open_optional(&mut opener, "agent", &server.agent, "answer agent checks")?;
    let admin = open_optional(&mut opener, "admin", &config.admin.listen, "serve the admin API")?;
    let turn = Turn::open(config, &own, tls.as_ref(), limits.clone(), (&mut opener, handed_over.subscribe()), seed)?;
    Ok((
        Sockets { address, listeners, udp, nmea, rtc, turn, mqtt, agent, admin, kept: opener.kept, handed_over },
        tls,
        limits,
    ))
}

/// Opens one listener per shard. `name`: prefix of the names of the sockets.
///
/// Errors: see [`bind`].
fn listen(opener: &mut Opener, name: &str, address: SocketAddr, shards: usize) -> io::Result<Vec<TcpListener>> {
    let mut address = address;
    let mut listeners = Vec::with_capacity(shards);
    for shard in 0..shards {
        let bind = || {
            if shard == 0 {
                check_free(address)?;
            }
            Listener::bind_socket(address, shards)
        };
        let socket = opener.open(&format!("{name}/{shard}"), address, bind)?;
        address = socket.local_addr()?;
        listeners.push(socket);
    }
    Ok(listeners)
}

/// Opens the datagram ports of all shards.
///
/// Errors: see [`bind`].
fn open_rtc(
    (opener, handed_over): (&mut Opener, &watch::Sender<bool>),
    config: &Config,
    address: SocketAddr,
    shards: usize,
    own: &[IpAddr],
) -> io::Result<Vec<RtcPort>> {
    let open = |shard| {
        let name = format!("rtc/{shard}");
        let (address, rtc) = (RtcPort::address_of(address, shard)?, &config.rtc);
        let bind = || RtcPort::bind_sockets(rtc, address);
        let (socket, streams) = opener.open_pair(&name, address, rtc.tcp, bind)?;
        let mut port = RtcPort::new(rtc, shards, own, socket, streams)?;
        port.relay = Some(opener.open_relay(&name, handed_over.subscribe())?);
        Ok(port)
    };
    (0..shards).map(open).collect()
}

/// Opens a socket for datagrams of devices, unless the address is empty.
fn open_datagrams(opener: &mut Opener, name: &str, address: &str) -> anyhow::Result<Option<UdpSocket>> {
    if address.is_empty() {
        return Ok(None);
    }
    let wanted = address.parse()?;
    let socket = opener.open(name, wanted, || bind_udp(wanted));
    socket.map(Some).with_context(|| format!("cannot receive datagrams on {address}"))
}

/// Opens a TCP listener, unless the address is empty. `purpose` completes the sentence "cannot … on ADDRESS".
fn open_optional(opener: &mut Opener, name: &str, address: &str, purpose: &str) -> anyhow::Result<Option<TcpListener>> {
    if address.is_empty() {
        return Ok(None);
    }
    let mut open = || {
        let wanted = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        opener.open(name, wanted, || {
            let listener = TcpListener::bind(wanted)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })
    };
    open().map(Some).with_context(|| format!("cannot {purpose} on {address}"))
}

/// Returns the addresses of this machine, without loopback.
fn own_addresses() -> Vec<IpAddr> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    interfaces.iter().map(|interface| interface.ip()).filter(|ip| !ip.is_loopback()).collect()
}

/// Returns the URLs at which the server can be reached: all own addresses if it listens on all of them.
pub fn urls(scheme: &str, address: SocketAddr) -> Vec<String> {
    if !address.ip().is_unspecified() {
        return vec![format!("{scheme}://{address}")];
    }
    let mut urls = vec![format!("{scheme}://localhost:{}", address.port())];
    let reachable = own_addresses().into_iter().filter(IpAddr::is_ipv4);
    urls.extend(reachable.map(|ip| format!("{scheme}://{}", SocketAddr::new(ip, address.port()))));
    urls
}

/// Returns the error for a listen address that cannot be bound.
pub fn taken(address: SocketAddr) -> String {
    format!("cannot listen on {address}; another program may use the address")
}

/// Checks that the address is free. The shards share one port, and the kernel would let a second server of the same
/// user share it, too. Half of the connections would then silently go to that server, so this check binds the port
/// exclusively first.
///
/// Errors: the address is in use, or not an address of this machine.
pub fn check_free(address: SocketAddr) -> io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket(family, SocketType::STREAM, None)?;
    // Lingering connections of an earlier run do not count as a server.
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &address)?;
    Ok(())
}

/// Raises the limit of file descriptors to its maximum and returns it. Each connection needs a descriptor.
fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize)
}
