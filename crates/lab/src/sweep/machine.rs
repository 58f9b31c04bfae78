//! Resources of the machine, and their division between server and generator.

use rustix::{
    process::{Resource, getrlimit},
    thread::{CpuSet, sched_getaffinity},
};

use super::{Axis, Parameters};
use crate::{
    host::limits,
    load::Plan,
    recording::Placement,
    spread::{Division, NODES_MAX},
};

/// Descriptors of a server or a generator in addition to those of its connections.
const DESCRIPTORS_BESIDE: u64 = 200;
/// Memory of one connection: both sockets in the kernel, the server's state and the generator's, with a margin for
/// data in flight.
const CONNECTION_BYTES: u64 = 32 << 10;

/// Resources that runs may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub cpus: Vec<usize>,
    /// Maximum number of descriptors of one process.
    pub descriptors: u64,
    pub memory_bytes: u64,
}

impl Machine {
    pub fn read() -> anyhow::Result<Machine> {
        let allowed = sched_getaffinity(None)?;
        let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        Ok(Machine { cpus, descriptors, memory_bytes: limits::memory_bytes()? })
    }

    /// Returns the largest load along the axis of these parameters that this machine can generate.
    pub fn most(&self, parameters: &Parameters) -> f64 {
        let can = |load: f64| {
            let mut at = parameters.clone();
            match parameters.axis {
                Axis::EachPerS => at.each_per_s = vec![load],
                _ => at.clients = vec![load as usize],
            }
            let plans = at.factors().into_iter().map(|factors| at.plan(&factors));
            plans.into_iter().all(|plan| plan.check().is_ok() && self.fits(&plan, at.connections_per_node))
        };
        let (mut low, mut high) = (0.0, 1e8f64);
        while high - low >= 1.0 {
            let middle = ((low + high) / 2.0).floor();
            if middle <= low {
                break;
            }
            if can(middle) { low = middle } else { high = middle }
        }
        low
    }

    /// Returns the maximum number of connections of one process. `per_node`: maximum that the user has set.
    pub fn connections(&self, per_node: u64) -> u64 {
        self.descriptors.saturating_sub(DESCRIPTORS_BESIDE).min(per_node)
    }

    /// Returns true if this machine has the descriptors and the memory for a load. `per_node`: maximum number of
    /// connections of one node, or 0 if there is only one node.
    pub fn fits(&self, plan: &Plan, per_node: u64) -> bool {
        match per_node {
            0 => descriptors(plan) <= self.descriptors,
            _ => {
                let connections = (plan.clients + plan.streams()) as u64;
                connections.saturating_mul(CONNECTION_BYTES) <= self.memory_bytes
                    && Division::of(plan, self.connections(per_node)).is_ok()
            }
        }
    }

    /// Returns the reason why larger loads do not fit, as text for the user.
    pub fn limit(&self, per_node: u64) -> String {
        match per_node {
            0 => format!("a process may have {} descriptors (millrace lab doctor)", self.descriptors),
            _ => format!(
                "{} GiB of memory, at {} KiB per connection, or {NODES_MAX} nodes with {} connections each, do not suffice",
                self.memory_bytes >> 30,
                CONNECTION_BYTES >> 10,
                self.connections(per_node)
            ),
        }
    }

    /// Assigns the first CPUs to the server and the last ones to the generator. If there are too few CPUs, both share
    /// the last one.
    pub fn place(&self, server_cpus: usize, threads: usize) -> Placement {
        let (server, rest) = self.cpus.split_at(server_cpus.min(self.cpus.len()));
        let is_shared = rest.is_empty();
        let free = if is_shared { &self.cpus[self.cpus.len() - 1..] } else { rest };
        let generator = &free[free.len().saturating_sub(threads)..];
        Placement { server_cpus: server.to_vec(), generator_cpus: generator.to_vec(), is_shared }
    }
}

/// Returns the number of descriptors that the generator, or the server, needs.
fn descriptors(plan: &Plan) -> u64 {
    (plan.clients + plan.streams()) as u64 + DESCRIPTORS_BESIDE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_and_generator_get_separate_cpus() {
        let place = |cpus: &[usize], server, threads| {
            Machine { cpus: cpus.to_vec(), descriptors: 0, memory_bytes: 0 }.place(server, threads)
        };
        let of = |server: &[usize], generator: &[usize], is_shared| Placement {
            server_cpus: server.to_vec(),
            generator_cpus: generator.to_vec(),
            is_shared,
        };
        assert_eq!(place(&[0, 1], 1, 1), of(&[0], &[1], false));
        assert_eq!(place(&[0, 1], 2, 1), of(&[0, 1], &[1], true));
        assert_eq!(place(&[3], 1, 1), of(&[3], &[3], true));
        assert_eq!(place(&[0, 2, 4, 6], 1, 2), of(&[0], &[4, 6], false));
        assert_eq!(place(&[0, 2, 4, 6], 3, 2), of(&[0, 2, 4], &[6], false));
    }

    #[test]
    fn several_nodes_take_more_than_one_process_may() {
        let machine = |memory_bytes| Machine { cpus: vec![0, 1], descriptors: 20_000, memory_bytes };
        let plan = |clients| Plan { shape: crate::load::Shape::Pairs, clients, ..Plan::default() };
        let large = machine(24 << 30);
        assert!(large.fits(&plan(9900), 0) && !large.fits(&plan(9901), 0));
        assert!(large.fits(&plan(100_000), 1_000_000) && !large.fits(&plan(100_000), 1000), "too many nodes");
        assert!(!machine(4 << 30).fits(&plan(100_000), 1_000_000), "too little memory");
        assert!(large.limit(1_000_000).contains("24 GiB") && large.limit(0).contains("20000 descriptors"));
    }
}
