use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use millrace_race::Mode;
use serde::{Deserialize, Serialize};

use crate::tls::storage::data_dir;

const REPORTS: RangeInclusive<usize> = 1..=10_000;
/// Minimum disk space for a report, in bytes.
const BYTES_MIN: u64 = 1 << 20;
const RUN: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 60 * 60);

/// Settings of the lab page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// When operators may run scenarios: `auto` on an open server on loopback, `on` on every server.
    pub enabled: Mode,
    /// Folder of the reports. Empty: a folder in the user's data directory.
    pub directory: String,
    /// Maximum number of reports.
    pub reports_max: usize,
    /// Maximum disk space of all reports, in bytes.
    pub bytes_max: u64,
    /// Maximum duration of a run.
    #[serde(with = "humantime_serde")]
    pub run_max: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: Mode::Auto,
            directory: String::new(),
            reports_max: 50,
            bytes_max: 1 << 30,
            run_max: Duration::from_secs(12 * 60 * 60),
        }
    }
}

impl Config {
    /// Returns whether operators may run scenarios. `is_open`: only this machine reaches the server, and without
    /// authentication.
    pub fn is_on(&self, is_open: bool) -> bool {
        match self.enabled {
            Mode::Auto => is_open,
            Mode::On => true,
            Mode::Off => false,
        }
    }

    /// Returns the folder of the reports.
    pub fn directory(&self) -> PathBuf {
        match self.directory.as_str() {
            "" => data_dir("lab"),
            path => path.into(),
        }
    }

    /// Checks what the types cannot express.
    ///
    /// Errors: the key and its allowed values.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        match () {
            () if !REPORTS.contains(&self.reports_max) => Err(("lab.reports_max", "must be from 1 to 10000")),
            () if self.bytes_max < BYTES_MIN => Err(("lab.bytes_max", "must be at least 1048576 bytes (1 MiB)")),
            () if !RUN.contains(&self.run_max) => Err(("lab.run_max", "must be from 1s to 30days")),
            () => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lab_is_off_where_other_machines_reach_the_server() {
        let is_on = |enabled, is_open| Config { enabled, ..Config::default() }.is_on(is_open);
        assert!(is_on(Mode::Auto, true) && is_on(Mode::On, true) && is_on(Mode::On, false));
        assert!(!is_on(Mode::Auto, false) && !is_on(Mode::Off, true) && !is_on(Mode::Off, false));
    }
}
