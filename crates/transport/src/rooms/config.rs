use std::time::Duration;

use millrace_rtc::room;
use serde::{Deserialize, Serialize};

/// Bounds of rooms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Most rooms of this node; 0: there are none.
    pub rooms_max: usize,
    /// Most participants of a room, and of one in which everybody is connected with everybody.
    pub participants_max: usize,
    pub mesh_max: usize,
    /// Most children of one participant in a tree.
    pub children_max: usize,
    /// Most rooms of the topology `mixer`, each of which takes a thread; 0: there are none.
    pub mixers_max: usize,
    /// Who reports nothing for so long has left.
    #[serde(with = "humantime_serde")]
    pub silence_max: Duration,
    /// Signals and reports of one participant per second, five times as many at once; 0: no limit.
    pub signals_per_s: u32,
    /// Largest signal; a report may have a quarter of it.
    pub signal_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        let room::Config { participants_max, mesh_max, silence_max, signals_per_s, children_max, .. } =
            room::Config::default();
        Self {
            rooms_max: 10_000,
            participants_max,
            mesh_max,
            children_max,
            mixers_max: 0,
            silence_max,
            signals_per_s,
            signal_bytes_max: 64 * 1024,
        }
    }
}

impl Config {
    pub(super) fn room(&self, has_switch: bool) -> room::Config {
        let Self { participants_max, mesh_max, children_max, silence_max, signals_per_s, .. } = *self;
        room::Config {
            participants_max,
            mesh_max,
            children_max,
            silence_max,
            signals_per_s,
            has_switch,
            has_mixer: self.mixers_max > 0,
            ..room::Config::default()
        }
    }
}
