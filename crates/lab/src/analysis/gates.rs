//! Badges: what must hold for figures to be believed, with value and limit, of the worst run.

use std::collections::BTreeMap;

use crate::{
    host::validity::Limits,
    recording::{PhaseName, Run},
};

use super::{
    Gate,
    metric::{Metric, lasted_s},
};

/// How one run stands to a gate.
struct Seen {
    value: f64,
    limit: f64,
}

/// A gate that every run tells with a number: code, label, factor and unit of what is shown, and how it is read.
type Measured = (&'static str, &'static str, f64, &'static str, fn(&Run) -> Option<Seen>);

const MEASURED: [Measured; 6] = [
    ("generator_lateness", "generator late to publish (p99)", 1e-3, "ms", lateness),
    ("generator_cpu", "CPU of the generator", 100.0, "% of its CPUs", generator_cpu),
    ("steal", "CPU taken by the hypervisor", 100.0, "%", steal),
    ("others", "CPU of other processes", 1.0, "cores", others),
    ("pressure", "time in which something waited for a CPU", 100.0, "%", pressure),
    ("corrupt", "messages that nobody published", 1.0, "", corrupt),
];

/// Findings that the gates above tell better, with their numbers.
const TOLD: [&str; 2] = ["generator_bound", "corrupt"];

fn lateness(run: &Run) -> Option<Seen> {
    let limits = Limits::default();
    let value = Metric::GeneratorLatenessP99Us.of(run)?;
    let of_p50 = Metric::LatencyP50Us.of(run).unwrap_or(0.0) * limits.lateness_of_p50;
    Some(Seen { value, limit: of_p50.max(limits.lateness_p99_s * 1e6) })
}

fn generator_cpu(run: &Run) -> Option<Seen> {
    let cpus = run.placement.generator_cpus.len().max(1) as f64;
    Some(Seen { value: Metric::GeneratorCpuCores.of(run)? / cpus, limit: Limits::default().generator_cpu })
}

fn steal(run: &Run) -> Option<Seen> {
    let test = run.phase(PhaseName::Test)?;
    let watched = test.watched.as_ref().map(|watched| watched.steal);
    // Without a watcher: steal of the seconds, over a single CPU, which is the worst case.
    let of_seconds = || {
        let of_test = run.seconds.iter().filter(|second| second.at_s >= test.start_s && second.at_s < test.drained_s);
        of_test.map(|second| second.steal_s).sum::<f64>() / lasted_s(test)
    };
    Some(Seen { value: watched.unwrap_or_else(of_seconds), limit: Limits::default().steal })
}

fn others(run: &Run) -> Option<Seen> {
    let value = run.phase(PhaseName::Test)?.watched.as_ref()?.others_cores;
    Some(Seen { value, limit: Limits::default().others_cores })
}

/// Server and generator wait for one another as well, so this judges nothing; it is shown.
fn pressure(run: &Run) -> Option<Seen> {
    let value = run.phase(PhaseName::Test)?.watched.as_ref()?.pressure?;
    Some(Seen { value, limit: f64::INFINITY })
}

fn corrupt(run: &Run) -> Option<Seen> {
    let value = run.phases.iter().map(|phase| phase.counts.corrupt).sum::<u64>() as f64;
    Some(Seen { value, limit: 0.0 })
}

pub(super) fn gates(runs: &[&Run]) -> Vec<Gate> {
    let mut gates: Vec<Gate> = MEASURED.iter().filter_map(|measured| gate(measured, runs)).collect();
    // What invalidates and is no number of ours.
    let mut others: BTreeMap<&str, (u32, &str)> = BTreeMap::new();
    for run in runs {
        let mut codes: Vec<_> = run.validity.iter().filter(|finding| finding.invalidates).collect();
        codes.dedup_by(|a, b| a.code == b.code);
        for finding in codes {
            others.entry(&finding.code).or_insert((0, &finding.detail)).0 += 1;
        }
    }
    for (code, (runs_failed, detail)) in others {
        let measured = gates.iter_mut().find(|gate| gate.code == code);
        if let Some(gate) = measured {
            (gate.passed, gate.runs_failed) = (false, gate.runs_failed.max(runs_failed));
            gate.note = Some(detail.to_owned());
        } else if !TOLD.contains(&code) || gates.iter().all(|gate| gate.passed) {
            gates.push(Gate {
                code: code.to_owned(),
                label: code.replace('_', " "),
                value: None,
                limit: None,
                unit: String::new(),
                passed: false,
                runs_failed,
                note: Some(detail.to_owned()),
            });
        }
    }
    gates
}

fn gate((code, label, factor, unit, seen): &Measured, runs: &[&Run]) -> Option<Gate> {
    let seen: Vec<Seen> = runs.iter().filter_map(|run| seen(run)).collect();
    let failed = |seen: &&Seen| seen.value.is_nan() || seen.value > seen.limit;
    // By how far over the limit; with a limit of zero or none, by value.
    let excess = |seen: &Seen| match seen.limit > 0.0 && seen.limit.is_finite() {
        true => seen.value / seen.limit,
        false => seen.value,
    };
    let worst = seen.iter().max_by(|a, b| excess(a).total_cmp(&excess(b)))?;
    let runs_failed = seen.iter().filter(failed).count() as u32;
    Some(Gate {
        code: (*code).to_owned(),
        label: (*label).to_owned(),
        value: Some(worst.value * factor),
        limit: worst.limit.is_finite().then_some(worst.limit * factor),
        unit: (*unit).to_owned(),
        passed: runs_failed == 0,
        runs_failed,
        note: None,
    })
}
