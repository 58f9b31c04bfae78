//! The interface to a server under test, and one running server as the target of a load.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{Options, Server, Transport};
use crate::load::{Dialect, LoadTarget, PER_SOURCE, Role, loopback_source};

/// One kind of server under test.
pub trait Target: Sync {
    fn name(&self) -> &'static str;

    /// Returns the version, as exactly as it is known without starting the server.
    ///
    /// Errors: the program is not available, or does not report its version.
    fn version(&self, options: &Options) -> anyhow::Result<String>;

    fn transports(&self) -> &'static [Transport];

    /// Starts the server on a free port of loopback, and waits until it listens. Installs the server first if
    /// necessary.
    ///
    /// Errors: the server cannot be installed, or did not start; the error contains the end of its log.
    fn start(&self, options: &Options) -> anyhow::Result<Server>;

    /// Returns the path of the server's metrics in the text format of Prometheus.
    fn metrics(&self) -> Option<&'static str> {
        None
    }

    /// True if one connection of this transport can publish and subscribe.
    fn is_duplex(&self, transport: Transport) -> bool {
        matches!(transport, Transport::WebSocket | Transport::Session | Transport::DataChannel)
    }

    /// Returns true if the target can listen on any address, by the setting `server.listen` of Millrace.
    fn can_listen_anywhere(&self) -> bool {
        false
    }

    /// Prepares the clients of a process that has not started the server itself.
    ///
    /// Errors: something that the clients need, such as a certificate, is missing.
    fn prepare_clients(&self, _options: &Options) -> anyhow::Result<()> {
        Ok(())
    }

    /// Creates a client for a transport of [`Target::transports`].
    fn dialect(&self, transport: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect>;
}

/// A target that can serve TLS.
pub trait TlsTarget: Target {
    /// Returns the transports of [`Target::transports`] that go over TCP.
    fn transports_over_tls(&self) -> &'static [Transport];

    /// Starts the server like [`Target::start`], with `cert.pem` and `key.pem` of this folder.
    fn start_with_certificate(&self, folder: &Path, options: &Options) -> anyhow::Result<Server>;
}

/// Task of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions<'a> {
    pub role: Role,
    pub channel: &'a str,
    /// Poll interval; only used for polling.
    pub poll_every: Duration,
}

/// Place of the connections that only publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PublisherPlace {
    /// Beside the clients: publications pass the link to the server, over the transport of the run.
    #[default]
    Clients,
    /// Beside the server, like a back end: publications do not pass the link. They use HTTP for every transport, if the
    /// target accepts them over HTTP.
    Server,
}

/// A running server with one of its transports, as the target of a load. Only its addresses are known.
pub struct Endpoint {
    target: &'static dyn Target,
    transport: Transport,
    address: SocketAddr,
    publish_address: SocketAddr,
    poll_every: Duration,
    publisher: PublisherPlace,
    device: Option<fn(usize) -> Ipv4Addr>,
    sources: Vec<Ipv4Addr>,
}

impl Endpoint {
    /// `poll_every`: poll interval; only used for polling.
    pub fn new(target: &'static dyn Target, transport: Transport, server: &Server, poll_every: Duration) -> Self {
        let publish_address = server.publish_address.unwrap_or(server.address);
        Self { publish_address, ..Self::at(target, transport, server.address, poll_every) }
    }

    /// Returns the endpoint of a server that another process has started.
    pub fn at(target: &'static dyn Target, transport: Transport, address: SocketAddr, poll_every: Duration) -> Self {
        let (publish_address, publisher) = (address, PublisherPlace::Clients);
        Self { target, transport, address, publish_address, poll_every, publisher, device: None, sources: Vec::new() }
    }

    pub fn with_publisher(self, publisher: PublisherPlace) -> Self {
        Self { publisher, ..self }
    }

    /// Gives each connection to the server's address the source address that `device` returns for its number.
    pub fn with_devices(self, device: fn(usize) -> Ipv4Addr) -> Self {
        Self { device: Some(device), ..self }
    }

    /// Gives [`PER_SOURCE`] connections each source address in turn. Empty: loopback addresses, or those that the
    /// kernel chooses.
    pub fn with_sources(self, sources: Vec<Ipv4Addr>) -> Self {
        Self { sources, ..self }
    }

    fn transport_of(&self, role: Role) -> Transport {
        let over_http =
            || self.target.transports().iter().copied().find(|transport| !self.target.is_duplex(*transport));
        match (role, self.publisher) {
            (Role::Publisher, PublisherPlace::Server) => over_http().unwrap_or(self.transport),
            _ => self.transport,
        }
    }
}

impl LoadTarget for Endpoint {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn publish_address(&self) -> SocketAddr {
        self.publish_address
    }

    fn source(&self, address: SocketAddr, number: usize) -> Option<IpAddr> {
        match self.device {
            Some(device) => (address.ip() == self.address.ip()).then(|| device(number).into()),
            None if self.sources.is_empty() => loopback_source(address, number),
            None => Some(self.sources[number / PER_SOURCE % self.sources.len()].into()),
        }
    }

    fn is_duplex(&self) -> bool {
        self.target.is_duplex(self.transport)
    }

    fn dialect(&self, role: Role, channel: &str) -> Box<dyn Dialect> {
        self.target.dialect(self.transport_of(role), &ClientOptions { role, channel, poll_every: self.poll_every })
    }
}
