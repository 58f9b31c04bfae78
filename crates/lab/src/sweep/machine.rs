//! Resources of the machine, and their division between server and generator.

use rustix::{
    process::{Resource, getrlimit},
    thread::{CpuSet, sched_getaffinity},
};

use super::{Axis, Parameters};
use crate::{load::Plan, recording::Placement};

/// Descriptors of a server or a generator in addition to those of its connections.
const DESCRIPTORS_BESIDE: u64 = 200;

/// Resources that runs may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub cpus: Vec<usize>,
    /// Maximum number of descriptors of one process.
    pub descriptors: u64,
}

impl Machine {
    pub fn read() -> anyhow::Result<Machine> {
        let allowed = sched_getaffinity(None)?;
        let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        Ok(Machine { cpus: (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect(), descriptors })
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
            plans.into_iter().all(|plan| plan.check().is_ok() && descriptors(&plan) <= self.descriptors)
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
pub fn descriptors(plan: &Plan) -> u64 {
    (plan.clients + plan.streams()) as u64 + DESCRIPTORS_BESIDE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_and_generator_get_separate_cpus() {
        let place =
            |cpus: &[usize], server, threads| Machine { cpus: cpus.to_vec(), descriptors: 0 }.place(server, threads);
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
}
