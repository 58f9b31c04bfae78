//! Calls of several participants (rows L-12 and L-13, tables 13 and 14).
//!
//! - this file: parameters, repeats
//! - [`topology`]: networks of a mesh and of a unit
//! - [`mesh`], [`unit`]: their nodes
//! - [`layout`], [`watch`]: numbers of streams, and what a participant receives
//! - [`tables`]: rates of the streams, checks

mod layout;
mod mesh;
mod tables;
mod topology;
mod unit;
mod watch;

use std::time::Duration;

use anyhow::ensure;
use millrace_link::Rate;
use serde::Deserialize;

use super::lozano::{calls::Settings, choice::Common, tables::Check};
use crate::{
    recording::Table,
    sweep::{Bench, Experiment},
};

use tables::Measured;
use topology::{Case, Control, Policy};

/// Entry in the list of scenarios.
pub struct LozanoMultiparty;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    mesh: Vec<Control>,
    mesh_peers: Vec<usize>,
    mesh_access: Rate,
    unit: Vec<Policy>,
    unit_peers: Vec<usize>,
    unit_up: Rate,
    unit_down: Rate,
    unit_narrow: Rate,
    #[serde(with = "humantime_serde")]
    queue: Duration,
    #[serde(with = "humantime_serde")]
    delay: Duration,
}

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<(Common, Choice)> {
        let (common, choice): (Common, Choice) = Common::read(parameters)?;
        let peers = choice.mesh_peers.iter().chain(&choice.unit_peers);
        ensure!(peers.clone().all(|peers| (2..=50).contains(peers)), "mesh_peers, unit_peers: 2 to 50");
        ensure!(!choice.queue.is_zero(), "queue: longer than 0");
        ensure!(!choice.cases().is_empty(), "mesh, unit: at least one with a number of participants");
        Ok((common, choice))
    }

    fn cases(&self) -> Vec<Case> {
        let mesh = self.mesh_peers.iter().flat_map(|n| self.mesh.iter().map(move |control| Case::Mesh(*control, *n)));
        let unit = self.unit_peers.iter().flat_map(|n| self.unit.iter().map(move |policy| Case::Unit(*policy, *n)));
        mesh.chain(unit).collect()
    }
}

impl Experiment for LozanoMultiparty {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |(common, choice): (Common, Choice)| {
            // Half of a call of two per stream and receiver.
            let streams: usize = choice.cases().iter().map(|case| case.peers() * (case.peers() - 1)).sum();
            common.estimate_s(streams.div_ceil(2))
        };
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let (common, choice) = Choice::read(parameters)?;
        if bench.has_table(tables::STREAMS) {
            return Ok(());
        }
        let seed = bench.seed;
        let each = |one: &Measured| {
            bench.note(&tables::describe(one));
            bench.go_on()
        };
        let measured = choice.measure_all(&common, seed, each)?;
        let (all, checks) = tables::tables(&common, &choice.access(), &measured);
        all.into_iter().chain([checks_table(checks)]).try_for_each(|table| bench.table(table))
    }
}

fn checks_table(checks: Vec<Check>) -> Table {
    super::lozano::tables::checks(tables::STREAMS, checks)
}

impl Choice {
    /// Makes all calls. `each` gets each of them, and ends everything by an error.
    fn measure_all(
        &self,
        common: &Common,
        seed: u64,
        mut each: impl FnMut(&Measured) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<Measured>> {
        let mut measured = Vec::new();
        for repeat in 0..common.repeats {
            for case in self.cases() {
                for algorithm in common.algorithms()? {
                    let settings = Settings::new(common, algorithm, seed.wrapping_add(u64::from(repeat)));
                    let streams = topology::measure(case, &self.access(), &settings)?;
                    let one = Measured { case, algorithm, streams };
                    each(&one)?;
                    measured.push(one);
                }
            }
        }
        Ok(measured)
    }

    fn access(&self) -> topology::Access {
        topology::Access {
            mesh: self.mesh_access,
            up: self.unit_up,
            down: self.unit_down,
            narrow: self.unit_narrow,
            queue: self.queue,
            delay: self.delay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::test_parameters::{parameters, quick};

    fn read(text: &str) -> anyhow::Result<(Common, Choice)> {
        Choice::read(&parameters(include_str!("scenario.toml"), text))
    }

    #[test]
    fn invalid_parameters_are_refused() {
        assert_eq!(read("").expect("valid").1.cases().len(), 6 + 12);
        for refused in ["mesh_peers = [1]", "unit_peers = [51]", "unit = [\"mixed\"]", "mesh = []\nunit = []"] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn quick_form_keeps_its_promises() {
        let quick = quick(include_str!("scenario.toml"));
        let (common, choice) = Choice::read(&quick).expect("valid");
        let each = |one: &Measured| {
            println!("{}", tables::describe(one));
            Ok(())
        };
        let measured = choice.measure_all(&common, 1, each).expect("valid links");
        let (tables, checks) = tables::tables(&common, &choice.access(), &measured);
        crate::scenarios::lozano::study::tests::assert_kept(&checks);
        assert!(tables.iter().all(|table| table.rows.iter().all(|row| row.len() == table.columns.len())));
    }
}
