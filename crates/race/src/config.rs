use serde::{Deserialize, Serialize};

use crate::Control;

/// Settings of the race page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// When the lanes exist.
    pub enabled: Mode,
}

/// When the lanes exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// On an open server on loopback.
    #[default]
    Auto,
    /// On every server. Where the server is not open, only operators impair a lane.
    On,
    Off,
}

impl Config {
    /// Returns the callers that may impair a lane; `None` without lanes. `is_open`: only this machine reaches the
    /// server, and without authentication.
    pub fn control(&self, is_open: bool) -> Option<Control> {
        match (self.enabled, is_open) {
            (Mode::Off, _) | (Mode::Auto, false) => None,
            (Mode::Auto | Mode::On, true) => Some(Control::Everyone),
            (Mode::On, false) => Some(Control::Operators),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_never_control_a_server_that_is_not_open() {
        let control = |enabled, is_open| Config { enabled }.control(is_open);
        assert_eq!(control(Mode::Auto, true), Some(Control::Everyone));
        assert_eq!(control(Mode::On, true), Some(Control::Everyone));
        assert_eq!(control(Mode::On, false), Some(Control::Operators));
        assert_eq!(control(Mode::Auto, false), None);
        assert_eq!((control(Mode::Off, true), control(Mode::Off, false)), (None, None));
    }
}
