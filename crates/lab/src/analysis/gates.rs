//! Badges of a report: the conditions for valid figures, each with value and limit of the worst run.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    host::validity::Limits,
    recording::{PhaseName, Run, Table},
};

use super::{
    Gate,
    metric::{Metric, lasted_s},
};

/// Value of one run, and the limit of the gate for this run.
struct Reading {
    value: f64,
    limit: f64,
}

/// Gate with a numeric value in every run.
struct Measured {
    code: &'static str,
    label: &'static str,
    /// Code of the finding that makes a run invalid for this gate.
    finding: &'static str,
    /// Factor from the measured unit to the displayed unit.
    factor: f64,
    unit: &'static str,
    seen: fn(&Run) -> Option<Reading>,
}

const fn measured(
    code: &'static str,
    label: &'static str,
    finding: &'static str,
    (factor, unit): (f64, &'static str),
    seen: fn(&Run) -> Option<Reading>,
) -> Measured {
    Measured { code, label, finding, factor, unit, seen }
}

const MEASURED: [Measured; 6] = [
    measured("generator_lateness", "lateness of the generator (p99)", "generator_bound", (1e-3, "ms"), lateness),
    measured("generator_cpu", "CPU of the generator", "generator_bound", (100.0, "% of its CPUs"), generator_cpu),
    measured("steal", "CPU taken by the hypervisor", "steal", (100.0, "%"), steal),
    measured("others", "CPU of other processes", "others", (1.0, "cores"), others),
    measured("pressure", "time in which a process waited for a CPU", "pressure", (100.0, "%"), pressure),
    measured("corrupt", "messages that no publisher sent", "corrupt", (1.0, ""), corrupt),
];

fn lateness(run: &Run) -> Option<Reading> {
    let limits = Limits::default();
    let value = Metric::GeneratorLatenessP99Us.of(run)?;
    let of_p50 = Metric::LatencyP50Us.of(run).unwrap_or(0.0) * limits.lateness_of_p50;
    Some(Reading { value, limit: of_p50.max(limits.lateness_p99_s * 1e6) })
}

fn generator_cpu(run: &Run) -> Option<Reading> {
    let cpus = run.placement.generator_cpus.len().max(1) as f64;
    Some(Reading { value: Metric::GeneratorCpuCores.of(run)? / cpus, limit: Limits::default().generator_cpu })
}

fn steal(run: &Run) -> Option<Reading> {
    let test = run.phase(PhaseName::Test)?;
    let watched = test.watched.as_ref().map(|watched| watched.steal);
    // Without a watcher, use the steal time of the seconds as if all of it hit one CPU, which is the worst case.
    let of_seconds = || {
        let of_test = run.seconds.iter().filter(|second| second.at_s >= test.start_s && second.at_s < test.drained_s);
        of_test.map(|second| second.steal_s).sum::<f64>() / lasted_s(test)
    };
    Some(Reading { value: watched.unwrap_or_else(of_seconds), limit: Limits::default().steal })
}

fn others(run: &Run) -> Option<Reading> {
    let value = run.phase(PhaseName::Test)?.watched.as_ref()?.others_cores;
    Some(Reading { value, limit: Limits::default().others_cores })
}

/// Returns the CPU pressure for display only. It has no limit, because server and generator also wait for each other.
fn pressure(run: &Run) -> Option<Reading> {
    let value = run.phase(PhaseName::Test)?.watched.as_ref()?.pressure?;
    Some(Reading { value, limit: f64::INFINITY })
}

fn corrupt(run: &Run) -> Option<Reading> {
    let value = run.phases.iter().map(|phase| phase.counts.corrupt).sum::<u64>() as f64;
    Some(Reading { value, limit: 0.0 })
}

/// Builds the gates of a report. The values are measured here, but a gate fails only by the findings of the runs and
/// tables. The findings depend on the form: in the quick form, noise of the machine does not invalidate a run.
pub(super) fn gates(runs: &[&Run], tables: &[&Table]) -> Vec<Gate> {
    // For each finding code: the number of invalid runs, and the detail of the first one.
    let mut found: BTreeMap<&str, (u32, &str)> = BTreeMap::new();
    for run in runs {
        let against = run.validity.iter().filter(|finding| finding.invalidates);
        let codes: BTreeMap<&str, &str> = against.map(|finding| (&*finding.code, &*finding.detail)).collect();
        for (code, detail) in codes {
            found.entry(code).or_insert((0, detail)).0 += 1;
        }
    }
    let mut reported = BTreeSet::new();
    let mut gates = Vec::new();
    for measured in &MEASURED {
        let seen: Vec<Reading> = runs.iter().filter_map(|run| (measured.seen)(run)).collect();
        let Some(worst) = seen.iter().max_by(|a, b| a.excess().total_cmp(&b.excess())) else { continue };
        let above = seen.iter().filter(|seen| seen.is_above()).count();
        let against = found.get(measured.finding).filter(|_| above > 0);
        reported.extend(against.map(|_| measured.finding));
        gates.push(Gate {
            code: measured.code.to_owned(),
            label: measured.label.to_owned(),
            value: Some(worst.value * measured.factor),
            limit: worst.limit.is_finite().then_some(worst.limit * measured.factor),
            unit: measured.unit.to_owned(),
            passed: against.is_none(),
            runs_failed: against.map_or(0, |(runs, _)| *runs),
            note: match against {
                Some((_, detail)) => Some((*detail).to_owned()),
                None => (above > 0).then(|| format!("above the limit in {above} runs (ignored in this mode)")),
            },
        });
    }
    let rest = found.into_iter().filter(|(code, _)| !reported.contains(code));
    gates.extend(rest.map(|(code, (runs_failed, detail))| failed(code, runs_failed, detail.to_owned())));
    for table in tables {
        let against = table.validity.iter().filter(|finding| finding.invalidates);
        let note = |detail: &str| format!("table \"{}\": {detail}", table.title);
        gates.extend(against.map(|finding| failed(&finding.code, 0, note(&finding.detail))));
    }
    gates
}

/// Returns a gate without a value.
fn failed(code: &str, runs_failed: u32, note: String) -> Gate {
    Gate {
        code: code.to_owned(),
        label: code.replace('_', " "),
        value: None,
        limit: None,
        unit: String::new(),
        passed: false,
        runs_failed,
        note: Some(note),
    }
}

impl Reading {
    fn is_above(&self) -> bool {
        self.value.is_nan() || self.value > self.limit
    }

    /// Returns the value relative to the limit. Returns the value itself if the limit is zero or infinite.
    fn excess(&self) -> f64 {
        if self.limit > 0.0 && self.limit.is_finite() { self.value / self.limit } else { self.value }
    }
}
