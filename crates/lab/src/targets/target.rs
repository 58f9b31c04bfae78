//! The interface to a server under test, and one running server as the target of a load.

use std::{net::SocketAddr, path::Path, time::Duration};

use super::{Options, Server, Transport};
use crate::load::{Dialect, LoadTarget, Role};

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

/// A running server with one of its transports, as the target of a load.
pub struct Endpoint<'a> {
    pub target: &'static dyn Target,
    pub transport: Transport,
    pub server: &'a Server,
    pub poll_every: Duration,
}

impl LoadTarget for Endpoint<'_> {
    fn address(&self) -> SocketAddr {
        self.server.address
    }

    fn publish_address(&self) -> SocketAddr {
        self.server.publish_address.unwrap_or(self.server.address)
    }

    fn is_duplex(&self) -> bool {
        self.target.is_duplex(self.transport)
    }

    fn dialect(&self, role: Role, channel: &str) -> Box<dyn Dialect> {
        self.target.dialect(self.transport, &ClientOptions { role, channel, poll_every: self.poll_every })
    }
}
