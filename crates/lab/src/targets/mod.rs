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
mod mqtt;
mod nats;
mod nchan;
mod options;
mod process;
mod pushpin;
mod socketcluster;
mod socketio;
mod target;
mod tls;
mod transports;
mod uws;
mod ws;

use anyhow::Context;

use crate::nearest::nearest;

pub use millrace::{CLUSTER_NODE, kit, start_gateway};
pub use options::Options;
pub use process::{Ready, Server, free_address};
pub use target::{ClientOptions, Endpoint, PublisherPlace, Target, TlsTarget};
pub use tls::{KeyKind, TlsOptions, TlsVersion, secured_client, start_secured};
pub use transports::{OVER_TCP, Transport, check_over_tcp, parse_transport};

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
    &millrace::MillraceMqtt,
    &millrace::MillraceCluster,
    &mosquitto::Mosquitto,
    &pushpin::Pushpin,
    &centrifugo::Centrifugo,
    &mercure::Mercure,
    &durable_streams::DurableStreams,
    &tls::MILLRACE,
    &tls::RESUMED_MILLRACE,
    &tls::RSA_MILLRACE,
    &tls::MILLRACE12,
    &tls::RESUMED_MILLRACE12,
    &tls::RSA_MILLRACE12,
    &tls::NCHAN,
];

/// Returns the `millrace` program of this build, for processes that belong to the lab.
///
/// Errors: there is no `millrace` binary beside this program.
pub fn own_program() -> anyhow::Result<std::path::PathBuf> {
    millrace::binary(&Options::default())
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
