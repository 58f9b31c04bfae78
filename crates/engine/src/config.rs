use std::{collections::BTreeMap, time::Duration};

use millrace_delivery::Bounds;
use millrace_protocol::INTERNAL;
use serde::{Deserialize, Serialize};

/// Limits of the history that channels keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// History limits of every channel whose namespace has no own limits.
    pub history: HistoryConfig,
    /// History limits per namespace. The key is the first level of the channel name.
    pub namespaces: BTreeMap<String, HistoryConfig>,
    /// History limits of the channels of the server itself ([`INTERNAL`]).
    pub internal: HistoryConfig,
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
}

impl Default for Config {
    fn default() -> Self {
        let history = HistoryConfig::default();
        Self {
            history,
            namespaces: BTreeMap::new(),
            internal: history,
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
        }
    }
}

impl Config {
    /// Returns the history limits of a namespace (the first level of a channel name).
    pub fn of(&self, namespace: &str) -> &HistoryConfig {
        match namespace {
            INTERNAL => &self.internal,
            _ => self.namespaces.get(namespace).unwrap_or(&self.history),
        }
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

    pub fn bounds(&self, namespace: &str) -> Bounds {
        self.of(namespace).bounds()
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
