use std::fmt;

use serde::{Deserialize, Serialize};

/// Who is connected with whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// Two at most, with each other.
    P2p,
    /// Everybody with everybody.
    #[default]
    Mesh,
    /// Everybody with the hub, which forwards.
    Star,
    /// Everybody with the server, which forwards.
    Switch,
    /// Everybody with the server, which mixes what is said into one stream for each.
    Mixer,
    /// As a mesh, but through a relay only.
    Relay,
    /// Each with its parent and its children.
    Tree,
    /// A mesh of two, a switch from the third on.
    Auto,
}

impl Topology {
    /// Everybody is connected with [`super::SWITCH`].
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
