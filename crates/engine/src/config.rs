use std::{collections::BTreeMap, time::Duration};

use millrace_delivery::Bounds;
use serde::{Deserialize, Serialize};

/// How much past the channels keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Bounds of every channel, unless its namespace says otherwise.
    pub history: HistoryConfig,
    /// Bounds of the channels whose first level is the key.
    pub namespaces: BTreeMap<String, HistoryConfig>,
    /// Namespaces that have their own share of the channels, besides those in `namespaces`.
    pub reserved: Vec<String>,
    /// Most channels with a past; further ones are refused with `too_many`.
    pub channels_max: usize,
    /// Memory (of the engine `sqlite`: disk) for the past of all channels: payloads and keys, and about a hundred bytes for each publication. Beyond, the channels that
    /// have been silent longest are forgotten first; offsets go on.
    pub history_bytes_max: usize,
    /// Where an engine is shared: how long a publication, or a page of history, waits for one that does not answer.
    #[serde(with = "humantime_serde")]
    pub wait: Duration,
    /// Where an engine is shared: what the names of everything there begin with, so that several clusters fit into one.
    pub prefix: String,
}

/// Whichever bound is reached first trims the oldest publication.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HistoryConfig {
    /// Publications.
    pub count_max: usize,
    /// Bytes of payloads and keys.
    pub bytes_max: usize,
    #[serde(with = "humantime_serde")]
    pub age_max: Duration,
    /// An accepted publication survives a power failure: the engine answers only once it is on disk.
    pub durable: bool,
}

impl Default for Config {
    fn default() -> Self {
        let history = HistoryConfig::default();
        Self {
            history,
            namespaces: BTreeMap::new(),
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
        Self { count_max: 10_000, bytes_max: 16 << 20, age_max: Duration::from_secs(60 * 60), durable: false }
    }
}

impl Config {
    /// What a namespace (a channel's first level) is kept by.
    pub fn of(&self, namespace: &str) -> &HistoryConfig {
        self.namespaces.get(namespace).unwrap_or(&self.history)
    }

    /// The first setting that asks for durability, such as `namespaces.cars.durable`.
    pub fn first_durable(&self) -> Option<String> {
        let of =
            |(name, history): (&String, &HistoryConfig)| history.durable.then(|| format!("namespaces.{name}.durable"));
        if self.history.durable { Some("history.durable".into()) } else { self.namespaces.iter().find_map(of) }
    }

    pub fn bounds(&self, namespace: &str) -> Bounds {
        self.of(namespace).bounds()
    }
}

impl HistoryConfig {
    pub fn bounds(&self) -> Bounds {
        Bounds { count_max: self.count_max, bytes_max: self.bytes_max, age_max_ms: self.age_max.as_millis() as u64 }
    }
}
