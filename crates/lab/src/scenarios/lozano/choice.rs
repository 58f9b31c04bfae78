use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_link::Rate;
use millrace_sfu::congestion::Algorithm;
use serde::Deserialize;

/// Parameters that all scenarios have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Common {
    targets: Vec<String>,
    /// Congestion controllers, by name.
    controllers: Vec<String>,
    /// Length of a call, in virtual time.
    #[serde(with = "humantime_serde")]
    pub test: Duration,
    pub repeats: u32,
    /// Target rate at the start of a call.
    pub first_rate: Rate,
    /// Highest rate of the encoder.
    pub ceiling: Rate,
}

const KEYS: [&str; 6] = ["targets", "controllers", "test", "repeats", "first_rate", "ceiling"];

impl Common {
    /// Reads the common parameters, and the others into the type of the scenario.
    ///
    /// Errors: a parameter is unknown, missing or out of range.
    pub fn read<T: for<'a> Deserialize<'a>>(parameters: &toml::Table) -> anyhow::Result<(Common, T)> {
        let (common, own): (toml::Table, toml::Table) =
            parameters.clone().into_iter().partition(|(key, _)| KEYS.contains(&key.as_str()));
        let common: Common = common.try_into()?;
        ensure!(common.targets == ["millrace"], "targets: millrace alone, whose call endpoint is measured");
        common.algorithms()?;
        ensure!((Duration::from_secs(2)..=Duration::from_secs(3600)).contains(&common.test), "test: 2s to 1h");
        ensure!((1..=100).contains(&common.repeats), "repeats: 1 to 100");
        ensure!(!common.controllers.is_empty(), "controllers: at least one");
        Ok((common, own.try_into()?))
    }

    pub fn algorithms(&self) -> anyhow::Result<Vec<Algorithm>> {
        self.controllers.iter().map(|name| name.parse().context("controllers")).collect()
    }

    /// Returns the estimated duration in seconds of this many calls of two, for each controller and repeat.
    pub fn estimate_s(&self, calls: usize) -> f64 {
        let runs = self.controllers.len() as f64 * f64::from(self.repeats);
        0.2 + runs * calls as f64 * self.test.as_secs_f64() * S_PER_CALL_SECOND
    }
}

/// Time that this machine needs to simulate one second of a call of two, in seconds.
const S_PER_CALL_SECOND: f64 = 0.005;
