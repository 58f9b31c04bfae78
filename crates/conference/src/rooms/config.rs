use std::{net::IpAddr, time::Duration};

use millrace_room as room;
use millrace_sfu::congestion::Algorithm;
use serde::{Deserialize, Serialize};

/// Limits of rooms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Maximum number of rooms per node; 0 disables rooms.
    pub rooms_max: usize,
    /// Maximum number of participants per room.
    pub participants_max: usize,
    pub mesh_max: usize,
    /// Maximum number of children per participant in a tree.
    pub children_max: usize,
    /// Maximum number of rooms with topology `mixer`, each of which uses a thread; 0 disables the topology.
    pub mixers_max: usize,
    /// In rooms with topology `mixer`, all cameras become one video, on another thread.
    pub mixer_video: bool,
    /// Congestion control of the media that the SFU sends.
    pub congestion_control: Algorithm,
    /// Whether a room may have participants on several nodes that share an engine.
    pub over_nodes: bool,
    /// IP address at which other nodes reach the media port of this node. Empty: the first address of the port.
    pub link_address: String,
    /// Silent peer timeout: a participant that sends no report or signal for this time is removed.
    #[serde(with = "humantime_serde")]
    pub silence_max: Duration,
    /// Time for which the seat of a participant whose page reloads is held.
    #[serde(with = "humantime_serde")]
    pub away_max: Duration,
    /// Maximum number of signals and reports per participant and second, with a burst of five times as many; 0: no
    /// limit.
    pub signals_per_s: u32,
    /// Maximum size of a signal, in bytes. A report may have a quarter of this size.
    pub signal_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        let room::Config {
            participants_max, mesh_max, silent_timeout, away_timeout, signals_per_s, children_max, ..
        } = room::Config::default();
        Self {
            rooms_max: 10_000,
            participants_max,
            mesh_max,
            children_max,
            mixers_max: 0,
            mixer_video: false,
            congestion_control: Algorithm::default(),
            over_nodes: true,
            link_address: String::new(),
            silence_max: silent_timeout,
            away_max: away_timeout,
            signals_per_s,
            signal_bytes_max: 64 * 1024,
        }
    }
}

impl Config {
    /// Checks the limits.
    ///
    /// Errors: the name of the setting, and a description of the expected value.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if !(1..=1000).contains(&self.participants_max) || !(1..=100).contains(&self.children_max) {
            return Err(("rooms", "must have `participants_max` from 1 to 1000, and `children_max` from 1 to 100"));
        }
        if !self.link_address.is_empty() && self.link_address.parse::<IpAddr>().is_err() {
            return Err(("rooms.link_address", "must be an IP address such as `10.0.0.5`, or empty"));
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&self.silence_max) {
            return Err(("rooms.silence_max", "must be from 1s to 1day"));
        }
        if self.away_max > Duration::from_secs(600) {
            return Err(("rooms.away_max", "must be at most 10m"));
        }
        if !(1024..=1 << 20).contains(&self.signal_bytes_max) {
            return Err(("rooms.signal_bytes_max", "must be from 1024 to 1048576 bytes"));
        }
        Ok(())
    }

    pub(super) fn room(&self, has_switch: bool) -> room::Config {
        let Self { participants_max, mesh_max, children_max, silence_max, away_max, signals_per_s, .. } = *self;
        room::Config {
            participants_max,
            mesh_max,
            children_max,
            silent_timeout: silence_max,
            away_timeout: away_max,
            signals_per_s,
            has_switch,
            has_mixer: self.mixers_max > 0,
            ..room::Config::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn congestion_control_is_chosen_by_name() {
        let config = |name: &str| serde_json::from_value::<Config>(json!({ "congestion_control": name }));
        assert_eq!(config("nada").expect("known").congestion_control, Algorithm::Nada);
        let error = config("cubic").expect_err("unknown").to_string();
        assert!(error.contains("`cubic`") && error.contains("`rrtcc-strict`"), "{error}");
    }
}
