use std::fmt;

use serde::{Deserialize, Serialize};

/// Id of the server as a participant, in a room with the topology `switch` or `mixer`. No list of participants
/// contains it.
pub const SWITCH: &str = "switch";

/// Topology of a room: which participants connect to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// At most two participants, connected to each other.
    P2p,
    /// Every participant connects to every other one.
    #[default]
    Mesh,
    /// Every participant connects to the hub, which forwards media.
    Star,
    /// Every participant connects to the server, which forwards media.
    Switch,
    /// Every participant connects to the server, which mixes all audio into one stream per participant.
    Mixer,
    /// Like a mesh, but every connection goes through a TURN relay.
    Relay,
    /// Every participant connects to its parent and its children.
    Tree,
    /// A mesh for up to two participants, a switch from the third on.
    Auto,
}

impl Topology {
    /// Returns true if every participant connects to [`SWITCH`].
    pub fn is_by_server(self) -> bool {
        matches!(self, Topology::Switch | Topology::Mixer)
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Topology::P2p => "p2p",
            Topology::Mesh => "mesh",
            Topology::Star => "star",
            Topology::Switch => "switch",
            Topology::Mixer => "mixer",
            Topology::Relay => "relay",
            Topology::Tree => "tree",
            Topology::Auto => "auto",
        })
    }
}
