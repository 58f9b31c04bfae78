//! Parameters of the scenario.

use std::time::Duration;

use anyhow::ensure;
use serde::Deserialize;

use super::{movements::Plan, topology::Topology};
use crate::{load::payload, path::PathSettings};

/// Maximum number of clients. In a mesh, each client needs one socket per other client.
const CLIENTS_MAX: usize = 50;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// Only Millrace is possible: no other target has data channels and a gateway.
    pub targets: Vec<String>,
    pub topologies: Vec<Topology>,
    pub clients: usize,
    pub each_per_s: f64,
    pub bytes: usize,
    #[serde(with = "humantime_serde")]
    pub test: Duration,
    pub repeats: u32,
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    /// Emulated link that each connection passes.
    pub path: PathSettings,
}

impl Choice {
    pub fn read(parameters: &toml::Table) -> anyhow::Result<Choice> {
        let choice: Choice = parameters.clone().try_into()?;
        ensure!(choice.targets == ["millrace"], "targets: millrace alone, which has data channels and a gateway");
        ensure!(
            !choice.topologies.is_empty(),
            "topologies: one or more of mesh, star, server, server-websocket, relay-urgent, relay"
        );
        ensure!((2..=CLIENTS_MAX).contains(&choice.clients), "clients: 2 to {CLIENTS_MAX}");
        ensure!((0.1..=1000.0).contains(&choice.each_per_s), "each_per_s: 0.1 to 1,000");
        let bytes_min = payload::BYTES_MIN;
        ensure!((bytes_min..=8192).contains(&choice.bytes), "bytes: {bytes_min} to 8,192");
        ensure!((Duration::from_millis(500)..=Duration::from_secs(3600)).contains(&choice.test), "test: 500ms to 1h");
        ensure!((1..=100).contains(&choice.repeats), "repeats: 1 to 100");
        let windows = Duration::from_millis(1)..=Duration::from_secs(10);
        ensure!(windows.contains(&choice.window), "window: 1ms to 10s");
        choice.path.config_without_trace()?;
        Ok(choice)
    }

    pub fn plan(&self, seed: u64) -> Plan {
        Plan { wearers: self.clients, each_per_s: self.each_per_s, bytes: self.bytes, test: self.test, seed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::test_parameters::parameters;

    #[test]
    fn invalid_parameters_are_refused() {
        let read = |text: &str| Choice::read(&parameters(include_str!("scenario.toml"), text));
        assert!(read("").is_ok() && read("path = \"lte\"").is_ok());
        for refused in [
            "targets = [\"ws\"]",
            "topologies = []",
            "topologies = [\"ring\"]",
            "clients = 1",
            "test = \"1ms\"",
            "bytes = 50",
            "repeats = 0",
            "window = \"0s\"",
            "path = \"3gg\"",
            "other = 1",
        ] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }
}
