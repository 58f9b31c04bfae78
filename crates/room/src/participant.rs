use std::{fmt, time::Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::rate_limiter::RateLimiter;

/// Maximum length of a participant's name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

const NUMBER_DIGITS: usize = 6;
const ID_BYTES_MAX: usize = 32;

/// Id of a participant, never reused in a room. The ids of one room sort in the order in which participants
/// joined.
/// Random digits follow the number, so a room that is created again does not repeat the ids of the old one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ParticipantId(pub(crate) String);

impl ParticipantId {
    pub(crate) fn new(number: u32, random: [u8; 16]) -> Self {
        let random: String = random[..5].iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{number:06x}{random}"))
    }

    /// Returns the id with this text. `None`: no room makes such an id.
    pub fn parse(id: &str) -> Option<Self> {
        let is_valid =
            id.len() >= NUMBER_DIGITS && id.len() <= ID_BYTES_MAX && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_valid.then(|| Self(id.to_owned()))
    }

    /// Returns the number of the participant in the order of joining.
    pub(crate) fn number(&self) -> u32 {
        self.0.get(..NUMBER_DIGITS).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ParticipantId {
    type Error = &'static str;

    fn try_from(id: String) -> Result<Self, Self::Error> {
        Self::parse(&id).ok_or("the id of a participant has 6 to 32 hexadecimal digits")
    }
}

impl fmt::Display for ParticipantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Role of a participant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    #[default]
    Member,
    /// Preferred as the hub of a star or the root of a tree.
    Hub,
    /// Sends neither audio nor video. Becomes hub or root only if all participants are viewers.
    Viewer,
}

/// Kinds of a participant's media that a moderator has muted for all other participants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Muted {
    pub audio: bool,
    pub video: bool,
}

pub struct Participant {
    pub name: String,
    pub role: Role,
    pub since_ms: u64,
    pub client_id: u32,
    /// Whether the participant has muted itself, according to its reports.
    pub muted: bool,
    pub muted_by_host: Muted,
    /// Whether the participant shares its screen, according to its reports.
    pub screen: bool,
    /// Place in the order in which hands were raised; `None` if the hand is down.
    pub hand: Option<u64>,
    pub secret: String,
    /// One-use ticket that resumes the seat after a reload of the page.
    pub ticket: String,
    /// Subject of the token with which the participant has joined. Only the same subject may resume the seat.
    pub subject: Option<String>,
    /// Time since which the page of the participant reloads.
    pub away_since: Option<Instant>,
    /// Number of times that the participant has resumed its seat. Each time, others replace their connections to it.
    pub resumed: u32,
    pub last_seen: Instant,
    pub rate_limiter: RateLimiter,
    /// Most recent report, unchanged.
    pub report: Map<String, Value>,
}
