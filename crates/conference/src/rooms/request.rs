//! Requests to a room, after the checks of permissions.

use millrace_room::{Join, Refused, Resume, Room};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Request to a room. A node sends it to the room's owner, so that nodes of one version must agree on its form.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    Join {
        join: Join,
        resume: Option<Resume>,
    },
    Away {
        id: String,
        secret: String,
    },
    /// Checks a signal to the SFU, and returns the node of the participant, which handles the signal.
    CheckSignal {
        from: String,
        secret: String,
    },
    /// Makes the sender of the request the node of a participant.
    Move {
        id: String,
        secret: String,
    },
    Signal {
        from: String,
        to: String,
        secret: String,
        fields: Map<String, Value>,
        holder: u32,
        key: Option<Box<str>>,
    },
    /// `switch`: report of the participant's SFU on it.
    Report {
        from: String,
        secret: String,
        figures: Map<String, Value>,
        switch: Value,
    },
    Mute {
        by: Moderator,
        id: String,
        audio: Option<bool>,
        video: Option<bool>,
    },
    Lock {
        by: Moderator,
        is_locked: bool,
    },
    /// Removes a participant: by its own secret, or by a moderator.
    Remove {
        id: String,
        secret: Option<String>,
        by: Option<Moderator>,
    },
    /// Returns the state of the room with its reports.
    Show,
}

/// A caller that may moderate.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moderator {
    ByToken,
    /// The host, if this secret is the host's.
    AsHost(String),
}

impl Moderator {
    pub(super) fn check(&self, room: &Room) -> Result<(), Refused> {
        match self {
            Self::ByToken => Ok(()),
            Self::AsHost(secret) => room.check_host(secret),
        }
    }
}
