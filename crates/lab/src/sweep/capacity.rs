//! Finds the largest load that keeps a service level. Increases the load in steps, then searches between the last
//! load that kept the service level and the first that did not.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::ensure;
use serde_json::json;

use super::{Axis, Bench, Design, Job, Parameters};
use crate::recording::{Column, LoadUnit, Run, Table};

/// Relative precision of the load. Loads closer together count as the same.
const PRECISION: f64 = 0.05;
const STEP: f64 = 2.0;
const STEPS_MAX: u32 = 30;
/// Number of runs that must agree before a level counts as kept or missed. A single lucky or unlucky run thus decides
/// nothing.
const AGREE: u32 = 2;
/// Number of invalid runs after which a level is given up.
const INVALID_MAX: u32 = 3;

/// Result of the runs of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckStatus {
    Kept,
    Missed,
    /// The bottleneck was the generator or the machine, not the server.
    Unknown,
}

/// Result of a capacity search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Largest load that kept the service level. `None` if even the smallest load missed it.
    pub kept: Option<f64>,
    /// Smallest load that missed the service level.
    pub missed: Option<f64>,
    /// Smallest load that could not be judged. The capacity may be larger than `kept`.
    pub unknown: Option<f64>,
}

/// Doubles the load from `from` until a load misses the service level or `most` is reached. Then halves the interval
/// until its ends are within 5 %.
pub fn search(
    from: f64,
    most: f64,
    mut ask: impl FnMut(f64) -> anyhow::Result<CheckStatus>,
) -> anyhow::Result<Capacity> {
    let mut found = Capacity { kept: None, missed: None, unknown: None };
    let mut load = from;
    for _ in 0..STEPS_MAX {
        match ask(load)? {
            CheckStatus::Kept => found.kept = Some(load),
            CheckStatus::Missed => found.missed = Some(load),
            CheckStatus::Unknown => found.unknown = Some(load),
        }
        let above = [found.missed, found.unknown].into_iter().flatten().reduce(f64::min);
        load = match (found.kept, above) {
            (None, _) => break,
            (Some(kept), _) if kept >= most => break,
            (Some(kept), None) => (kept * STEP).min(most),
            // Levels that are counts are whole numbers.
            (Some(kept), Some(above)) if above <= kept * (1.0 + PRECISION) || above - kept <= 1.0 && kept >= 1.0 => {
                break;
            }
            (Some(kept), Some(above)) => middle(kept, above),
        };
    }
    Ok(found)
}

fn middle(low: f64, high: f64) -> f64 {
    let middle = (low + high) / 2.0;
    if high - low > 2.0 { middle.round() } else { middle }
}

/// Searches the capacity of each combination of part, target and transport. Records all runs and a table.
pub fn measure(
    bench: &mut Bench<'_>,
    parts: &BTreeMap<String, Parameters>,
    design: &Design,
) -> anyhow::Result<Vec<Capacity>> {
    let mut all = Vec::new();
    let mut rows = Vec::new();
    for (part, parameters) in parts {
        ensure!(
            matches!(parameters.axis, Axis::Clients | Axis::EachPerS),
            "capacity goes along clients or each_per_s; the axis of {part} is another one: --set axis=clients"
        );
        let mut done = Vec::new();
        for job in design.jobs.iter().filter(|job| job.part == *part) {
            if done.contains(&(job.name.clone(), job.transport)) {
                continue;
            }
            done.push((job.name.clone(), job.transport));
            let unit = parameters.load(&job.factors).counts;
            let found = of(bench, parameters, job)?;
            let result = found.describe(unit);
            bench.note(&format!("{} {}: {result}", job.name, job.transport));
            let number = |value: Option<f64>| value.map_or(json!(null), |value| json!(value));
            rows.push(vec![
                json!(part),
                json!(job.name),
                json!(job.transport.name()),
                number(found.kept),
                number(found.missed),
                number(found.unknown),
            ]);
            all.push(found);
        }
    }
    let columns =
        [("part", ""), ("target", ""), ("transport", ""), ("kept", "load"), ("missed", "load"), ("not known", "load")];
    bench.table(Table {
        name: "capacity".into(),
        title: "The largest load that keeps the service level".into(),
        columns: columns.map(|(name, unit)| Column { name: name.into(), unit: unit.into() }).into(),
        rows,
        notes: vec![
            format!("A level is kept or missed when {AGREE} runs agree; both are within {:.0} %.", PRECISION * 100.0),
            "not known: the generator or the machine limited, not the server.".into(),
        ],
        ..Table::default()
    })?;
    Ok(all)
}

fn of(bench: &mut Bench<'_>, parameters: &Parameters, like: &Job) -> anyhow::Result<Capacity> {
    let lowest = match parameters.axis {
        Axis::EachPerS => parameters.each_per_s.iter().copied().fold(f64::INFINITY, f64::min),
        _ => parameters.clients.iter().copied().min().unwrap_or(1) as f64,
    };
    let most = bench.machine.most(parameters);
    search(lowest, most, |load| {
        let mut parameters = parameters.clone();
        match parameters.axis {
            Axis::EachPerS => parameters.each_per_s = vec![load],
            _ => parameters.clients = vec![load as usize],
        }
        let factors = *parameters.factors().first().expect("each factor has a level");
        let job = Job { parameters: Arc::new(parameters), factors, ..like.clone() };
        judge(bench, job)
    })
}

/// Repeats the runs of a level until enough of them agree.
fn judge(bench: &mut Bench<'_>, mut job: Job) -> anyhow::Result<CheckStatus> {
    let (mut kept, mut missed, mut invalid) = (0, 0, 0);
    for repeat in 0.. {
        job.repeat = repeat;
        let run = bench.measure(&job)?;
        // If the server dies or does not accept all connections, the run counts as missed.
        let failed =
            |run: &Run| run.validity.iter().any(|finding| ["server_died", "failed"].contains(&finding.code.as_str()));
        let counts = match (failed(&run), run.is_valid(), bench.missed(&run).is_empty()) {
            (true, ..) | (_, true, false) => &mut missed,
            (_, true, true) => &mut kept,
            _ => &mut invalid,
        };
        *counts += 1;
        bench.record(run)?;
        if kept >= AGREE {
            return Ok(CheckStatus::Kept);
        }
        if missed >= AGREE {
            return Ok(CheckStatus::Missed);
        }
        if invalid >= INVALID_MAX {
            break;
        }
    }
    Ok(CheckStatus::Unknown)
}

impl Capacity {
    fn describe(&self, unit: LoadUnit) -> String {
        let unit = match unit {
            LoadUnit::Clients => "clients",
            LoadUnit::Publishers => "publishers",
            LoadUnit::Connections => "connections",
            LoadUnit::EachPerSecond => "publications per second and publisher",
            LoadUnit::Bytes => "bytes",
            LoadUnit::ServerCpus => "CPUs",
        };
        match (self.kept, self.missed, self.unknown) {
            (Some(kept), Some(missed), None) => format!("keeps it with {kept} {unit}, and not with {missed}"),
            (Some(kept), _, Some(unknown)) => {
                format!("keeps it with {kept} {unit}; {unknown} could not be judged here")
            }
            (Some(kept), None, None) => format!("keeps it with {kept} {unit}, and that is all that can be asked here"),
            (None, Some(missed), _) => format!("misses it with {missed} {unit} already"),
            (None, None, _) => "could not be judged here".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a server that keeps the service level up to `limit`.
    fn ask(limit: f64) -> impl FnMut(f64) -> anyhow::Result<CheckStatus> {
        move |load| Ok(if load <= limit { CheckStatus::Kept } else { CheckStatus::Missed })
    }

    #[test]
    fn capacity_is_found_within_five_percent() {
        for limit in [1.0, 3.0, 57.0, 999.0, 12_345.0, 900_000.0] {
            let mut asked = 0;
            let found = search(1.0, 1e6, |load| {
                asked += 1;
                ask(limit)(load)
            })
            .unwrap();
            let (kept, missed) = (found.kept.unwrap(), found.missed.unwrap());
            assert!(kept <= limit && limit < missed, "{limit}: {found:?}");
            assert!(missed <= kept * 1.05 || missed - kept <= 1.0, "{limit}: {found:?}");
            assert!(asked <= 26, "{limit}: {asked} steps");
        }
    }

    #[test]
    fn bounds_of_capacity_are_distinguished() {
        let at = |from, most, limit| search(from, most, ask(limit)).unwrap();
        assert_eq!(at(10.0, 1e6, 5.0), Capacity { kept: None, missed: Some(10.0), unknown: None });
        assert_eq!(at(10.0, 35.0, 1e9), Capacity { kept: Some(35.0), missed: None, unknown: None });
        let limited =
            search(10.0, 1e6, |load| Ok(if load < 50.0 { CheckStatus::Kept } else { CheckStatus::Unknown })).unwrap();
        assert!(limited.missed.is_none() && limited.unknown.unwrap() <= limited.kept.unwrap() * 1.05, "{limited:?}");
        assert!(search(1.0, 2.0, |_| anyhow::bail!("no")).is_err());
    }
}
