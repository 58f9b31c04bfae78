//! The servers under test: how to install, start and use each. Each has a folder and a line in [`TARGETS`].
//!
//! The program of each target does the same as Millrace's plain WebSocket: it sends a message to all subscribers of
//! its channel. It contains as little code as its library allows. Compression is off everywhere.

mod bun;
mod centrifugo;
mod durable_streams;
mod engineio;
mod install;
mod mercure;
mod millrace;
mod mosquitto;
mod nats;
mod nchan;
mod process;
mod pushpin;
mod socketcluster;
mod socketio;
mod tls;
mod uws;
mod ws;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, anyhow, bail};
pub use millrace_protocol::Transport;
use millrace_protocol::UnknownTransport;

use crate::{
    load::{Dialect, LoadTarget, Role},
    nearest::nearest,
};

pub use millrace::start_gateway;
pub use process::{Ready, Server, free_address};

/// All targets, in the order in which they are listed.
pub static TARGETS: &[&dyn Target] = &[
    &millrace::Millrace,
    &ws::Ws,
    &bun::Bun,
    &uws::Uws,
    &socketio::SocketIo,
    &engineio::EngineIo,
    &socketcluster::SocketCluster,
    &nats::Nats,
    &nchan::Nchan,
    &mosquitto::Mosquitto,
    &pushpin::Pushpin,
    &centrifugo::Centrifugo,
    &mercure::Mercure,
    &durable_streams::DurableStreams,
    &tls::MILLRACE,
    &tls::RESUMED_MILLRACE,
    &tls::NCHAN,
];

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

/// Task of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions<'a> {
    pub role: Role,
    pub channel: &'a str,
    /// Poll interval; only used for polling.
    pub poll_every: Duration,
}

/// Transports that stay on the TCP connection with which they begin.
pub const OVER_TCP: &[Transport] = <[Transport]>::split_at(&Transport::ALL, 6).0;

/// Checks the transports for a scenario that observes TCP connections.
///
/// Errors: a transport leaves its TCP connection.
pub fn check_over_tcp(all: &[Transport]) -> anyhow::Result<()> {
    match all.iter().find(|transport| !OVER_TCP.contains(transport)) {
        Some(transport) => bail!("transports: {transport} does not stay on TCP, which is what is looked at here"),
        None => Ok(()),
    }
}

/// Reads the name of a transport. The error suggests the nearest name.
pub fn parse_transport(name: &str) -> anyhow::Result<Transport> {
    let parsed: Result<Transport, UnknownTransport> = name.parse();
    parsed.map_err(|error| anyhow!("{error}{}", nearest(name, Transport::ALL.map(Transport::name))))
}

/// Options to start a target.
#[derive(Clone, Debug)]
pub struct Options {
    /// CPUs that the server may use. Empty: any CPU.
    pub cpus: Vec<usize>,
    /// Program to use instead of the one that would be found or installed.
    pub binary: Option<PathBuf>,
    /// Folder for installed programs.
    pub cache: PathBuf,
    /// Minimum number of file descriptors of the server.
    pub descriptors: u64,
    /// Additional arguments of the program.
    pub arguments: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { cpus: Vec::new(), binary: None, cache: cache(), descriptors: 0, arguments: Vec::new() }
    }
}

/// `$XDG_CACHE_HOME/millrace/lab`, or `~/.cache/millrace/lab`.
fn cache() -> PathBuf {
    let folder = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let base = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    base.unwrap_or_else(std::env::temp_dir).join("millrace/lab")
}

/// Returns the kind of server for a target name. Several programs of one kind have names like `millrace@LABEL`.
pub fn kind(name: &str) -> &str {
    name.split_once('@').map_or(name, |(kind, _)| kind)
}

/// Returns the target with this name, with or without a label.
///
/// Errors: no target has this name. The error lists all names.
pub fn find(name: &str) -> anyhow::Result<&'static dyn Target> {
    let (name, all) = (kind(name), || TARGETS.iter().map(|target| target.name()));
    let found = TARGETS.iter().copied().find(|target| target.name() == name);
    found.with_context(|| {
        let all_names = all().collect::<Vec<_>>().join(", ");
        format!("no target {name}; there are {all_names}{}", nearest(name, all()))
    })
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
