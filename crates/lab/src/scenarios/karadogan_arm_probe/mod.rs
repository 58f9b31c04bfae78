//! Arm-probe (row K-14): ten wearers, of whom one moves at a time, and nine must feel each movement within 500 ms.
//!
//! - this file: parameters and repeats
//! - [`topology`]: mesh, star, server and relay
//! - [`measure`]: network, processes and connections of one topology
//! - [`connections`]: data channels between wearers or to a gateway, and clients of a server
//! - [`movements`]: who moves when, and who has felt it
//! - [`tables`]: percentiles, deliveries, promises

mod connections;
mod measure;
mod movements;
mod tables;
mod topology;

use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::{
    load::payload,
    path::{PathSettings, TunCable},
    recording::Form,
    sweep::{Bench, Experiment},
};

use measure::{Setting, measure};
use movements::Plan;
use topology::Topology;

/// Entry in the list of scenarios.
pub struct KaradoganArmProbe;

/// Estimated time for the start of processes, for handshakes, and for the last deliveries, in seconds.
const AROUND_S: f64 = 2.0;
/// Maximum number of clients. In a mesh, each client needs one socket per other client.
const CLIENTS_MAX: usize = 50;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    /// Only Millrace is possible: no other target has data channels and a gateway.
    targets: Vec<String>,
    topologies: Vec<Topology>,
    clients: usize,
    each_per_s: f64,
    bytes: usize,
    #[serde(with = "humantime_serde")]
    test: Duration,
    repeats: u32,
    #[serde(with = "humantime_serde")]
    window: Duration,
    /// Emulated link that each connection passes.
    path: PathSettings,
}

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<Choice> {
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

    fn plan(&self, seed: u64) -> Plan {
        Plan { wearers: self.clients, each_per_s: self.each_per_s, bytes: self.bytes, test: self.test, seed }
    }
}

impl Experiment for KaradoganArmProbe {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |choice: Choice| {
            let runs = choice.topologies.len() as f64 * f64::from(choice.repeats);
            runs * (choice.test.as_secs_f64() + AROUND_S)
        };
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let choice = Choice::read(parameters)?;
        if bench.has_table(tables::DELAY) {
            return Ok(());
        }
        let mut link = choice.path.config_without_trace()?;
        if link.is_some()
            && let Err(error) = TunCable::check()
        {
            ensure!(bench.form == Form::Quick, "no emulated links on this machine: {error:#}");
            bench.note(&format!("over loopback instead of the path {}: {error:#}", choice.path.name()));
            link = None;
        }
        let mut measured = Vec::new();
        // The topologies take turns, so that a change of the machine affects each of them.
        for repeat in 0..choice.repeats {
            for &topology in &choice.topologies {
                bench.go_on()?;
                let go_on = bench.go_on_elsewhere();
                let setting = Setting {
                    choice: &choice,
                    link: link.clone(),
                    seed: bench.seed.wrapping_add(repeat.into()),
                    options: bench.options("millrace", &[]),
                    go_on: &go_on,
                };
                let one = measure(topology, &setting).with_context(|| topology.label())?;
                drop(go_on);
                bench.note(&tables::describe(&one));
                measured.push(one);
            }
        }
        tables::tables(&choice, link.as_ref(), &measured).into_iter().try_for_each(|table| bench.table(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_parameters_are_refused() {
        let parameters = |text: &str| {
            let given: toml::Table = text.parse().expect("a table");
            let all: toml::Table = include_str!("scenario.toml").parse().expect("a table");
            let mut all = all["parameters"].as_table().expect("parameters").clone();
            all.extend(given);
            Choice::read(&all)
        };
        assert!(parameters("").is_ok() && parameters("path = \"lte\"").is_ok());
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
            assert!(parameters(refused).is_err(), "{refused}");
        }
    }
}
