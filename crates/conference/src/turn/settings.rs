use std::{net::IpAddr, ops::RangeInclusive, sync::Arc, time::Duration};

use millrace_transport::{Limits, tls};
use millrace_turn::{Credentials, Metrics};
use tokio::sync::watch;

use super::Peers;

/// Settings of the server.
pub struct Settings {
    /// Addresses to advertise instead of the sockets' own; only the first of each family is used.
    pub public: Vec<IpAddr>,
    /// Port range of the relays.
    pub relay_ports: RangeInclusive<u16>,
    pub allocations_max: usize,
    pub allocations_per_user_max: usize,
    pub lifetime_max: Duration,
    /// Maximum payload bytes per second of all allocations of one user, both directions together; 0: no limit.
    pub bytes_per_s_max: u64,
    pub peers_allowed: Vec<Peers>,
    /// Timeout after which a stream client that reads nothing is disconnected.
    pub write_timeout: Duration,
    pub credentials: Arc<Credentials>,
    /// Limits of connections and of datagrams per address, shared with the other ports.
    pub connection_limits: Arc<Limits>,
    pub metrics: Arc<Metrics>,
    /// TLS settings for the same port, as on the other ports.
    pub tls: Option<watch::Receiver<tls::Settings>>,
}
