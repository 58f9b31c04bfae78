use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Time limits of an upgrade. At each limit, the old process ends the new one, and serves as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Time for the new process to read its configuration and take the sockets.
    #[serde(with = "humantime_serde")]
    pub ready_timeout: Duration,
    /// Time for the new process to receive and open the engine, and to start its threads. Publications wait meanwhile.
    #[serde(with = "humantime_serde")]
    pub serving_timeout: Duration,
}

/// Minimum time limit: no process starts faster.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
const TIMEOUT_MAX: Duration = Duration::from_secs(60 * 60);

impl Default for Config {
    fn default() -> Self {
        Self { ready_timeout: Duration::from_secs(60), serving_timeout: Duration::from_secs(120) }
    }
}

impl Config {
    /// Errors: the key, and the allowed values.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let is_allowed = |timeout: &Duration| (TIMEOUT_MIN..=TIMEOUT_MAX).contains(timeout);
        let keys = [("upgrade.ready_timeout", self.ready_timeout), ("upgrade.serving_timeout", self.serving_timeout)];
        match keys.iter().find(|(_, timeout)| !is_allowed(timeout)) {
            Some((key, _)) => Err((*key, "must be from 100ms to 1h")),
            None => Ok(()),
        }
    }
}
