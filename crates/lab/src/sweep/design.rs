//! Plan of a sweep: runs, CPUs, order, and estimated duration.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use rand::{SeedableRng, seq::SliceRandom};
use rand_pcg::Pcg64;

use super::{Job, Kind, Machine, Parameters, Scenario, Settings};
use crate::{load::Plan, targets};

/// All runs of a scenario, in the order of execution.
pub struct Design {
    pub jobs: Vec<Job>,
    pub targets: BTreeSet<String>,
    /// Requested combinations that are impossible here, as text for the user.
    pub left_out: Vec<String>,
    experiment_s: f64,
}

impl Design {
    /// Plans all runs. Within a repeat, all combinations are in a random order that the seed determines. The next
    /// repeat follows only after all of them, so that a change over time affects all combinations.
    ///
    /// Errors: an unknown target, with the most similar name; a load that this generator cannot make; nothing to run.
    pub fn of(scenario: &Scenario, settings: &Settings, machine: &Machine, seed: u64) -> anyhow::Result<Design> {
        let mut design = Design { jobs: Vec::new(), targets: BTreeSet::new(), left_out: Vec::new(), experiment_s: 0.0 };
        if let Kind::Experiment(experiment) = scenario.kind {
            design.experiment_s = settings.parts.values().map(|part| experiment.estimate_s(part)).sum();
            for name in settings.parts.values().filter_map(|part| part.get("targets")?.as_array()).flatten() {
                let name = name.as_str().unwrap_or_default();
                targets::find(name)?;
                design.targets.insert(name.to_owned());
            }
            return Ok(design);
        }
        let mut blocks: Vec<Vec<Job>> = Vec::new();
        for (part, parameters) in settings.sweep()? {
            // A scenario goes on without the part whose servers are not installed.
            if parameters.failover
                && let Some(why) = unavailable(&parameters)?
            {
                design.left_out.push(format!("{part} SKIPPED: {why}"));
                continue;
            }
            let parameters = Arc::new(design.fitting(&part, parameters, machine)?);
            for name in &parameters.targets {
                design.targets.insert(name.clone());
                design.combine(&part, &parameters, name, &mut blocks)?;
            }
        }
        for (repeat, mut block) in blocks.into_iter().enumerate() {
            block.shuffle(&mut Pcg64::seed_from_u64(seed.wrapping_add(repeat as u64)));
            design.jobs.extend(block);
        }
        ensure!(!design.jobs.is_empty(), "nothing to run: {}", design.left_out.join("; "));
        Ok(design)
    }

    /// Removes the levels for which this machine has too few CPUs or descriptors.
    ///
    /// Errors: no level is left.
    fn fitting(&mut self, part: &str, mut parameters: Parameters, machine: &Machine) -> anyhow::Result<Parameters> {
        let part = if part.is_empty() { String::new() } else { format!("{part}: ") };
        let mut keep = |levels: &mut Vec<usize>, name: &str, why: String, fits: &dyn Fn(usize) -> bool| {
            let (fit, not): (Vec<usize>, Vec<usize>) = levels.iter().partition(|level| fits(**level));
            if !not.is_empty() {
                self.left_out.push(format!("{part}{name} {not:?} left out: {why}"));
            }
            ensure!(!fit.is_empty(), "{part}{name} {not:?}: {why}");
            *levels = fit;
            Ok(())
        };
        let cpus = machine.cpus.len();
        keep(&mut parameters.server_cpus, "server_cpus", format!("this machine has {cpus}"), &|level| level <= cpus)?;
        let (shape, per_node) = (parameters.shape, parameters.connections_per_node);
        let why = machine.limit(per_node);
        let fits = |clients| machine.fits(&Plan { shape, clients, ..Plan::default() }, per_node);
        keep(&mut parameters.clients, "clients", why, &fits)?;
        Ok(parameters)
    }

    fn combine(
        &mut self,
        part: &str,
        parameters: &Arc<Parameters>,
        name: &str,
        blocks: &mut Vec<Vec<Job>>,
    ) -> anyhow::Result<()> {
        let target = targets::find(name)?;
        for transport in &parameters.transports {
            if !target.transports().contains(transport) {
                self.left_out.push(format!("{name} has no {transport}"));
                continue;
            }
            for factors in parameters.factors() {
                parameters.plan(&factors).check().with_context(|| format!("{} clients", factors.clients))?;
                for repeat in 0..parameters.repeats {
                    let (parameters, name) = (Arc::clone(parameters), name.to_owned());
                    let job =
                        Job { part: part.into(), parameters, name, target, transport: *transport, factors, repeat };
                    blocks.resize_with(blocks.len().max(repeat as usize + 1), Vec::new);
                    blocks[repeat as usize].push(job);
                }
            }
        }
        Ok(())
    }

    pub fn estimate_s(&self) -> f64 {
        self.experiment_s + self.jobs.iter().map(Job::estimate_s).sum::<f64>()
    }
}

/// Returns why a target cannot be started on this machine, if one cannot.
///
/// Errors: an unknown target.
fn unavailable(parameters: &Parameters) -> anyhow::Result<Option<String>> {
    for name in &parameters.targets {
        if let Err(error) = targets::find(name)?.version(&targets::Options::default()) {
            return Ok(Some(format!("{name}: {error:#}")));
        }
    }
    Ok(None)
}

/// Removes levels, never repeats, until the estimated duration fits the budget. Returns the remaining levels as text.
///
/// Errors: even with two levels of each factor, the lowest and the highest, the runs take longer.
pub fn thin(
    scenario: &Scenario,
    settings: &mut Settings,
    machine: &Machine,
    budget: Duration,
) -> anyhow::Result<Vec<String>> {
    let estimate =
        |settings: &Settings| Ok::<_, anyhow::Error>(Design::of(scenario, settings, machine, 0)?.estimate_s());
    let mut changed = BTreeSet::new();
    loop {
        let takes_s = estimate(settings)?;
        if takes_s <= budget.as_secs_f64() {
            let shown = |(part, factor): &(String, &str)| {
                format!("to fit the budget, {factor}: {}", settings.parts[part][*factor])
            };
            return Ok(changed.iter().map(shown).collect());
        }
        // The factor with the most levels, in any part.
        let levels = |part: &str, factor: &str| {
            settings.parts[part].get(factor).and_then(|list| list.as_array()).map_or(0, Vec::len)
        };
        let all = settings.parts.keys().flat_map(|part| FACTORS.map(|factor| (part.clone(), factor)));
        let most =
            all.max_by_key(|(part, factor)| levels(part, factor)).filter(|(part, factor)| levels(part, factor) > 2);
        let Some((part, factor)) = most else {
            anyhow::bail!("it takes {:.0} minutes even with two levels of each factor", takes_s / 60.0)
        };
        let list =
            settings.parts.get_mut(&part).and_then(|table| table.get_mut(factor)).and_then(|list| list.as_array_mut());
        let list = list.context("it has levels")?;
        let (had, left) = (list.len(), list.len() - 1);
        *list = (0..left).map(|i| list[(i * (had - 1) + (left - 1) / 2) / (left - 1)].clone()).collect();
        changed.insert((part, factor));
    }
}

const FACTORS: [&str; 4] = ["clients", "each_per_s", "bytes", "server_cpus"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Form;

    static BROADCAST: Scenario =
        Scenario::sweep("thorsen-broadcast", include_str!("../scenarios/thorsen_broadcast/scenario.toml"));

    fn machine() -> Machine {
        Machine { cpus: vec![0, 1], descriptors: 20_000, memory_bytes: 24 << 30 }
    }

    fn read(sets: &[(&str, &str)]) -> Settings {
        let sets: Vec<_> = sets.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Settings::read(&BROADCAST, Form::Full, &sets).unwrap()
    }

    fn design(sets: &[(&str, &str)], seed: u64) -> anyhow::Result<Design> {
        Design::of(&BROADCAST, &read(sets), &machine(), seed)
    }

    fn order(design: &Design) -> Vec<(u64, &'static str, u32)> {
        design.jobs.iter().map(|job| (job.factors.clients, job.transport.name(), job.repeat)).collect()
    }

    #[test]
    fn repeats_are_interleaved_and_the_seed_decides() {
        let sets = [("clients", "1,2,3"), ("transports", "websocket,sse"), ("repeats", "3")];
        let (one, again, other) = (design(&sets, 1).unwrap(), design(&sets, 1).unwrap(), design(&sets, 2).unwrap());
        assert_eq!(order(&one), order(&again));
        assert_ne!(order(&one), order(&other));
        for (repeat, block) in order(&one).chunks(6).enumerate() {
            assert!(block.iter().all(|(.., of)| *of == repeat as u32), "{block:?}");
            assert_eq!(block.iter().collect::<BTreeSet<_>>().len(), 6);
        }
    }

    #[test]
    fn programs_of_one_kind_alternate() {
        let design = design(
            &[
                ("targets", "millrace@old,millrace@new"),
                ("transports", "websocket"),
                ("clients", "1"),
                ("repeats", "6"),
            ],
            1,
        )
        .unwrap();
        let names: Vec<&str> = design.jobs.iter().map(|job| job.name.as_str()).collect();
        let firsts: BTreeSet<&str> = names.chunks(2).map(|pair| pair[0]).collect();
        assert!(names.chunks(2).all(|pair| pair[0] != pair[1]) && firsts.len() == 2, "{names:?}");
    }

    #[test]
    fn impossible_combinations_are_left_out_and_reported() {
        let left = design(&[("targets", "millrace,ws"), ("transports", "websocket,sse"), ("server_cpus", "1,2,8")], 1)
            .unwrap();
        let many = design(&[("clients", "10,30000")], 1).unwrap();
        assert_eq!(left.left_out, ["server_cpus [8] left out: this machine has 2", "ws has no sse"]);
        assert!(
            many.left_out[0].starts_with("clients [30000] left out: a process may have 20000"),
            "{:?}",
            many.left_out
        );
        let error = |sets: &[(&str, &str)]| format!("{:#}", design(sets, 1).err().unwrap());
        assert!(error(&[("targets", "mosquito")]).contains("did you mean mosquitto?"));
        assert!(error(&[("targets", "ws"), ("transports", "sse")]).contains("ws has no sse"));
        assert!(error(&[("bytes", "2")]).contains("bytes: 51"));
    }

    #[test]
    fn budget_removes_levels_but_no_repeats() {
        let (mut settings, machine) = (read(&[]), machine());
        let before = settings.sweep().unwrap()[""].clone();
        let budget = Duration::from_secs_f64(design(&[], 1).unwrap().estimate_s() / 3.0);
        let said = thin(&BROADCAST, &mut settings, &machine, budget).unwrap();
        let after = settings.sweep().unwrap()[""].clone();
        assert!(Design::of(&BROADCAST, &settings, &machine, 1).unwrap().estimate_s() <= budget.as_secs_f64());
        assert!(after.clients.len() < before.clients.len() / 2 && after.clients.len() >= 2, "{:?}", after.clients);
        assert_eq!((after.clients.first(), after.clients.last()), (before.clients.first(), before.clients.last()));
        assert_eq!((after.repeats, after.transports), (before.repeats, before.transports));
        assert!(said.len() == 1 && said[0].contains("clients"), "{said:?}");
        assert!(thin(&BROADCAST, &mut settings, &machine, Duration::from_secs(9)).is_err());
    }
}
