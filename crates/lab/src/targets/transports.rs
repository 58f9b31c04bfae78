//! The transports of targets, and their names as typed.

use anyhow::{anyhow, bail};
pub use millrace_protocol::Transport;
use millrace_protocol::UnknownTransport;

use crate::nearest::nearest;

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
