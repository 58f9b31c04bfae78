//! Task of the gateway in one part of the scenario.

use serde::Deserialize;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    Forward,
    Multiplex,
    Demultiplex,
    #[serde(rename = "both")]
    Bidirectional,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Forward => "forward",
            Mode::Multiplex => "multiplex",
            Mode::Demultiplex => "demultiplex",
            Mode::Bidirectional => "both",
        }
    }

    /// Returns true if messages wait for a window. In other modes, the gateway refuses a window.
    pub fn gathers(self) -> bool {
        matches!(self, Mode::Multiplex | Mode::Bidirectional)
    }
}
