use serde::{Deserialize, Serialize};

/// Settings of `[ingest]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether this server answers requests of phones and trackers.
    pub enabled: Mode,
    /// Listen address for NMEA sentences over UDP. Empty: disabled.
    pub nmea_udp: String,
    /// Maximum number of devices whose newest time and position are remembered.
    pub devices_max: usize,
}

/// When the server answers requests of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Where everyone may publish in any case: on a server without authentication.
    #[default]
    Auto,
    On,
    Off,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: Mode::Auto, nmea_udp: String::new(), devices_max: 10_000 }
    }
}

impl Config {
    /// Returns whether the routes are on. `authenticates`: the server requires tokens, or asks the app's back end.
    pub fn is_on(&self, authenticates: bool) -> bool {
        match self.enabled {
            Mode::Auto => !authenticates,
            Mode::On => true,
            Mode::Off => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_with_tokens_is_off_by_default() {
        let is_on = |enabled, authenticates| Config { enabled, ..Config::default() }.is_on(authenticates);
        assert_eq!([is_on(Mode::Auto, false), is_on(Mode::Auto, true)], [true, false]);
        assert_eq!([is_on(Mode::On, true), is_on(Mode::Off, false)], [true, false]);
    }
}
