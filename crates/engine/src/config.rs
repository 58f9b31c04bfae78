use std::{collections::BTreeMap, time::Duration};

use millrace_delivery::Bounds;
use millrace_protocol::{ChannelName, is_internal, is_room_state, roster_of};
use serde::{Deserialize, Serialize};

/// Limits of the history that channels keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// History limits of every channel whose namespace has no own limits.
    pub history: HistoryConfig,
    /// History limits per namespace. The key is the first level of the channel name.
    pub namespaces: BTreeMap<String, HistoryConfig>,
    /// History limits of the logs of the server itself ([`INTERNAL_LOGS`]).
    pub internal: HistoryConfig,
    /// History limits of all other channels of the server itself, which are keyed states. `None`: the server uses none.
    pub internal_states: Option<HistoryConfig>,
    /// Namespaces that have their own share of the channels, in addition to those in `namespaces`.
    pub reserved: Vec<String>,
    /// Maximum number of channels with history. Further channels are refused with `too_many`.
    pub channels_max: usize,
    /// Maximum memory (engine `sqlite`: disk) for the history of all channels, in bytes. It counts payloads, keys and
    /// about a hundred bytes per publication. Above the limit, the channels that are idle longest lose their history
    /// first; offsets continue.
    pub history_bytes_max: usize,
    /// Shared engines only: how long a publication or a history request waits for an engine that does not answer.
    #[serde(with = "humantime_serde")]
    pub wait: Duration,
    /// Shared engines only: prefix of all names in the backend, so that several clusters can use one backend.
    pub prefix: String,
}

/// History limits of a channel. The limit that is reached first trims the oldest publication.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HistoryConfig {
    /// Maximum number of publications.
    pub count_max: usize,
    /// Maximum bytes of payloads and keys.
    pub bytes_max: usize,
    #[serde(with = "humantime_serde")]
    pub age_max: Duration,
    /// Makes accepted publications survive a power failure: the engine answers only after the publication is on disk.
    pub durable: bool,
    /// Makes the channels keyed states: each keeps the newest publication of each key for any length of time, besides
    /// its history. Every publication needs a key.
    pub state: bool,
    /// Maximum number of keys of a state. Publications of further keys are refused with `too_many`.
    pub keys_max: usize,
    /// Keeps a roster of each channel: `{channel}/:members`, a keyed state with these limits.
    pub roster: bool,
    /// Time for which a member without a connection stays in the roster, so that it can reconnect.
    #[serde(with = "humantime_serde")]
    pub roster_grace: Duration,
}

/// Channels of the server itself that are logs. Its other channels are keyed states.
pub const INTERNAL_LOGS: &[&str] = &[":millrace/revocations"];

/// Namespace of the channels of rooms.
pub(crate) const ROOMS: &str = "rooms";

/// The limits that apply to a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class<'a> {
    /// Those of a namespace.
    Namespace(&'a str),
    /// Those of a namespace, for the roster of one of its channels.
    Roster(&'a str),
    /// Those of the namespace `rooms`, for the states of rooms.
    RoomState,
    InternalLog,
    InternalState,
}

impl<'a> Class<'a> {
    pub fn of(channel: &'a ChannelName) -> Self {
        let name = channel.as_str();
        if is_internal(name) {
            return if INTERNAL_LOGS.contains(&name) { Self::InternalLog } else { Self::InternalState };
        }
        match roster_of(name) {
            None if is_room_state(name) => Self::RoomState,
            None => Self::Namespace(channel.namespace()),
            Some(_) => Self::Roster(channel.namespace()),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        let history = HistoryConfig::default();
        Self {
            history,
            namespaces: BTreeMap::new(),
            internal: history,
            internal_states: None,
            reserved: Vec::new(),
            channels_max: 1_000_000,
            history_bytes_max: 1 << 30,
            wait: Duration::from_secs(5),
            prefix: "millrace".into(),
        }
    }
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self {
            count_max: 10_000,
            bytes_max: 16 << 20,
            age_max: Duration::from_secs(60 * 60),
            durable: false,
            state: false,
            keys_max: 100_000,
            roster: false,
            roster_grace: Duration::from_secs(2),
        }
    }
}

impl Config {
    /// Returns the history limits of a channel: those of its namespace, which is the first level of its name. A roster
    /// has the limits of its namespace, as a keyed state.
    pub fn of(&self, channel: &ChannelName) -> HistoryConfig {
        self.of_class(Class::of(channel))
    }

    pub(crate) fn of_class(&self, class: Class<'_>) -> HistoryConfig {
        match class {
            Class::Namespace(namespace) => *self.namespaces.get(namespace).unwrap_or(&self.history),
            Class::Roster(namespace) => {
                let history = self.of_class(Class::Namespace(namespace));
                HistoryConfig { state: history.roster, ..history }
            }
            // The whole state of a room has one key.
            Class::RoomState => HistoryConfig { state: true, keys_max: 1, ..self.of_class(Class::Namespace(ROOMS)) },
            Class::InternalLog => self.internal,
            Class::InternalState => self.internal_states.unwrap_or(self.internal),
        }
    }

    /// Returns true if any namespace keeps rosters.
    pub fn has_rosters(&self) -> bool {
        self.history.roster || self.namespaces.values().any(|history| history.roster)
    }

    /// Returns the name of the first setting that requires durability, such as `namespaces.cars.durable`.
    pub fn first_durable(&self) -> Option<String> {
        let of =
            |(name, history): (&String, &HistoryConfig)| history.durable.then(|| format!("namespaces.{name}.durable"));
        if self.history.durable { Some("history.durable".into()) } else { self.namespaces.iter().find_map(of) }
    }

    /// Returns the name of the first setting that makes channels keyed states, such as `namespaces.fleet.state`.
    pub fn first_state(&self) -> Option<String> {
        let of = |(name, history): (&String, &HistoryConfig)| history.state.then(|| format!("namespaces.{name}.state"));
        if self.history.state { Some("history.state".into()) } else { self.namespaces.iter().find_map(of) }
    }

    pub fn bounds(&self, channel: &ChannelName) -> Bounds {
        self.of(channel).bounds()
    }
}

impl HistoryConfig {
    pub fn bounds(&self) -> Bounds {
        Bounds {
            count_max: self.count_max,
            bytes_max: self.bytes_max,
            age_max_ms: self.age_max.as_millis() as u64,
            keys_max: if self.state { self.keys_max.max(1) } else { 0 },
        }
    }
}
