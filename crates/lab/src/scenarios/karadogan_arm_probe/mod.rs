//! Arm-probe (row K-14): ten wearers, of whom one moves at a time, and nine must feel each movement within 500 ms.
//!
//! - this file: repeats
//! - [`choice`]: parameters and their limits
//! - [`topology`]: mesh, star, server and relay
//! - [`measure`]: network, processes and connections of one topology
//! - [`connections`]: data channels between wearers or to a gateway, and clients of a server
//! - [`movements`]: who moves when, and who has felt it
//! - [`tables`]: percentiles, deliveries, promises

mod choice;
mod connections;
mod measure;
mod movements;
mod tables;
mod topology;

use anyhow::{Context, ensure};

use crate::{
    path::TunCable,
    recording::Form,
    sweep::{Bench, Experiment},
};

use choice::Choice;
use measure::{Setting, measure};

/// Entry in the list of scenarios.
pub struct KaradoganArmProbe;

/// Estimated time for the start of processes, for handshakes, and for the last deliveries, in seconds.
const AROUND_S: f64 = 2.0;

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
