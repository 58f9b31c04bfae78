//! How the wearers are connected.

use std::time::Duration;

use millrace_link::Config;
use serde::Deserialize;

use crate::targets::Transport;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// Each wearer is connected to every other wearer.
    Mesh,
    /// Each wearer is connected to the first wearer, which forwards movements.
    Star,
    /// Each wearer publishes to and reads one channel of a server over a data channel.
    Server,
    /// The same over a WebSocket.
    ServerWebsocket,
    /// Each wearer has a data channel to a gateway, which gathers movements for a window.
    Relay,
    /// The same with movements that are urgent: the gateway sends their bundles at once.
    RelayUrgent,
}

impl Topology {
    pub fn name(self) -> &'static str {
        match self {
            Topology::Mesh => "mesh",
            Topology::Star => "star",
            Topology::Server | Topology::ServerWebsocket => "server",
            Topology::Relay | Topology::RelayUrgent => "relay",
        }
    }

    /// Returns the transport of the connections.
    pub fn transport(self) -> Transport {
        match self {
            Topology::ServerWebsocket => Transport::Session,
            _ => Transport::DataChannel,
        }
    }

    /// Returns whether movements are urgent, or `-` if nothing gathers them.
    pub fn urgent(self) -> &'static str {
        match self {
            Topology::Relay => "off",
            Topology::RelayUrgent => "on",
            _ => "-",
        }
    }

    /// Returns all three of these, in one text for notes.
    pub fn label(self) -> String {
        let urgent = match self.urgent() {
            "-" => String::new(),
            urgent => format!(", urgent {urgent}"),
        };
        format!("{}, {}{urgent}", self.name(), self.transport().name())
    }

    /// Returns the shortest time in which a movement can pass the links between two wearers.
    pub fn shortest(self, link: &Config) -> Duration {
        let (up, down) = (link.up.delay, link.down.delay);
        match self {
            Topology::Mesh | Topology::Star => up.min(down),
            Topology::Server | Topology::ServerWebsocket | Topology::Relay | Topology::RelayUrgent => up + down,
        }
    }
}
