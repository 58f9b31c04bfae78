//! Builds an [`Analysis`].

use std::collections::HashMap;

use anyhow::{Context, ensure};

use crate::{
    host::provenance::Provenance,
    judged::judged,
    recording::{self, Factors, Load, LoadUnit, Placement, Recording, Run, Table},
    scenarios,
    slo::Slo,
    stats::compare::{Terms, compare},
    sweep::Scenario,
};

use super::{Analysis, FORMAT, Head, Machine, Metric, Point, Rival, RunNote, SloVerdict, curve, gates, point, series};

/// Maximum number of steps of all series in a report. A step needs about 150 bytes, so a report stays below 5 MB.
const STEPS_ALL: usize = 15_000;
/// Maximum number of steps of one series. This is more than the pixel width of a phone.
const STEPS_MAX: usize = 300;
const STEPS_MIN: usize = 20;

/// Analyzes one or several recordings of the same scenario.
///
/// Cost: about 10 ms per point, for the bootstrap.
/// Errors: the list is empty, a recording has another format, scenarios or forms differ, or a service level objective
/// cannot be parsed.
pub fn analyse(recordings: &[Recording]) -> anyhow::Result<Analysis> {
    let first = recordings.first().context("there is no recording to analyse")?;
    for recording in recordings {
        let format = recording.format;
        ensure!(format == recording::FORMAT, "a recording of format {format}; this lab reads {}", recording::FORMAT);
        let same = (&recording.scenario, recording.form) == (&first.scenario, first.form);
        ensure!(same, "recordings of different scenarios: {} and {}", first.scenario, recording.scenario);
    }
    let noted = recordings
        .iter()
        .enumerate()
        .flat_map(|(index, recording)| recording.runs.iter().map(move |run| (run_note(run, index as u32), run)));
    let (notes, runs): (Vec<RunNote>, Vec<&Run>) = noted.unzip();

    let groups = grouped(runs.iter().enumerate().map(|(index, run)| (index as u32, *run)), point_key);
    let steps = (STEPS_ALL / groups.len().max(1)).clamp(STEPS_MIN, STEPS_MAX);
    let mut points: Vec<Point> = groups.iter().map(|group| point::point(group, steps)).collect();
    // The sort is stable: loads rise within a curve, and all other order stays as first seen.
    let order: Vec<String> = in_order(points.iter().map(curve_key));
    points.sort_by(|a, b| {
        let place = |point: &Point| order.iter().position(|key| *key == curve_key(point));
        place(a).cmp(&place(b)).then(a.load.value.total_cmp(&b.load.value))
    });
    let slo = slo_verdict(first, &mut points, &runs)?;
    let indexed = || points.iter().enumerate().map(|(index, point)| (index as u32, point));
    let curves = grouped(indexed(), curve_key).iter().map(|group| curve::curve(group, &runs)).collect();
    let is_shown = |metric: &Metric| points.iter().any(|point| point.metrics.contains_key(metric));
    Ok(Analysis {
        format: FORMAT,
        head: head(recordings, &runs, slo),
        metrics: Metric::ALL.into_iter().filter(is_shown).map(Metric::info).collect(),
        rivals: rivals(&points),
        curves,
        tables: recordings.iter().flat_map(|recording| recording.tables.clone()).collect(),
        wire_cost: recordings.iter().find_map(|recording| recording.wire_cost.clone()),
        runs: notes,
        heat_edges_us: series::heat_edges_us(),
        points,
    })
}

/// Groups items with the same key. Groups are in the order in which their keys first occur.
fn grouped<T: Copy>(all: impl Iterator<Item = (u32, T)>, key: impl Fn(T) -> String) -> Vec<Vec<(u32, T)>> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut groups: Vec<Vec<(u32, T)>> = Vec::new();
    for (index, one) in all {
        let place = *places.entry(key(one)).or_insert(groups.len());
        if place == groups.len() {
            groups.push(Vec::new());
        }
        groups[place].push((index, one));
    }
    groups
}

fn in_order(keys: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = Vec::new();
    keys.for_each(|key| {
        if !seen.contains(&key) {
            seen.push(key);
        }
    });
    seen
}

/// Returns the key of a point. Runs with the same key are repeats.
pub(super) fn point_key(run: &Run) -> String {
    format!("{}\n{}\n{}\n{:?}\n{:?}", run.part, run.target, run.transport, run.load, run.factors)
}

/// Returns the key of a curve. Points with the same key differ only in load. If clients are the load, the number of
/// publishers may change with it.
fn curve_key(point: &Point) -> String {
    let Point { part, target, transport, load, factors, .. } = point;
    let fixed = match load.counts {
        LoadUnit::Clients | LoadUnit::Publishers | LoadUnit::Connections => {
            Factors { clients: 0, publishers: 0, ..*factors }
        }
        LoadUnit::EachPerSecond => Factors { each_per_s: 0.0, ..*factors },
        LoadUnit::Bytes => Factors { bytes: 0, ..*factors },
        LoadUnit::ServerCpus => Factors { server_cpus: 0, ..*factors },
    };
    format!("{part}\n{target}\n{transport}\n{fixed:?}")
}

fn run_note(run: &Run, recording: u32) -> RunNote {
    RunNote {
        part: run.part.clone(),
        target: run.target.clone(),
        transport: run.transport.clone(),
        load: run.load,
        repeat: run.repeat,
        order: run.order,
        recording,
        is_valid: run.is_valid(),
        findings: run.validity.iter().map(|finding| format!("{}: {}", finding.code, finding.detail)).collect(),
    }
}

/// Checks the points against the service level objective. A point misses it if at least half of its valid runs miss
/// it.
fn slo_verdict(recording: &Recording, points: &mut [Point], runs: &[&Run]) -> anyhow::Result<Option<SloVerdict>> {
    let Some(said_slo) = recording.slo.clone() else { return Ok(None) };
    let slo: Slo = said_slo.parse()?;
    let (mut judged, mut missed) = (0, Vec::new());
    for point in points.iter_mut().filter(|point| !point.is_invalid) {
        let valid = point.runs.iter().map(|index| runs[*index as usize]).filter(|run| run.is_valid());
        let of_runs: Vec<Vec<String>> = valid.map(|run| slo.missed(run)).collect();
        let misses: Vec<&Vec<String>> = of_runs.iter().filter(|missed| !missed.is_empty()).collect();
        let is_met = misses.len() * 2 < of_runs.len();
        point.meets_slo = Some(is_met);
        judged += 1;
        if !is_met {
            let what = misses[misses.len() / 2].join(", ");
            missed.push(format!("{} {} at {}: {what}", point.target, point.transport, said(point.load)));
        }
    }
    Ok(Some(SloVerdict { slo: said_slo, passed: judged > 0 && missed.is_empty(), points: judged, missed }))
}

/// Formats a load: `50 clients`.
pub(super) fn said(load: Load) -> String {
    let unit = match load.counts {
        LoadUnit::Clients => "clients",
        LoadUnit::Publishers => "publishers",
        LoadUnit::Connections => "connections",
        LoadUnit::EachPerSecond => "per second each",
        LoadUnit::Bytes => "bytes",
        LoadUnit::ServerCpus => "CPUs",
    };
    format!("{} {unit}", load.value)
}

fn head(recordings: &[Recording], runs: &[&Run], slo: Option<SloVerdict>) -> Head {
    let first = &recordings[0];
    // If this lab no longer has the scenario, the report has no title.
    let about = scenarios::find(&first.scenario).ok().map(Scenario::about);
    // If the provenance is missing or has another format, its fields stay empty.
    let provenance: Provenance = serde_json::from_value(first.provenance.clone()).unwrap_or_default();
    let revision =
        provenance.lab_revision.as_deref().map(|revision| format!("{}, ", &revision[..revision.len().min(12)]));
    let planned: u32 = recordings.iter().map(|recording| recording.planned).sum();
    let runs_valid = runs.iter().filter(|run| run.is_valid()).count() as u32;
    let tables: Vec<&Table> = recordings.iter().flat_map(|recording| &recording.tables).collect();
    let gates = gates::gates(runs, &tables);
    Head {
        scenario: first.scenario.clone(),
        title: about.as_ref().map(|about| about.title.clone()).unwrap_or_default(),
        thesis_rows: about.map(|about| about.rows).unwrap_or_default(),
        form: first.form,
        seed: first.seed,
        started: first.started.clone(),
        command: first.command.clone(),
        parameters: first.parameters.clone(),
        target_versions: runs.iter().map(|run| (run.target.clone(), run.target_version.clone())).collect(),
        machine: Machine {
            kernel: provenance.kernel,
            cpu_model: provenance.cpu_model,
            cores: provenance.cores,
            cpu_quota_cores: provenance.cpu_quota,
            memory_bytes: provenance.memory_bytes,
            cpu_pinning: in_order(runs.iter().map(|run| pinning(&run.placement))).join("; "),
            lab: format!("{} ({}{})", provenance.lab_version, revision.unwrap_or_default(), provenance.lab_profile),
        },
        is_valid: runs_valid as usize == runs.len() && tables.iter().all(|table| table.is_valid()),
        gates,
        runs_planned: planned.max(runs.len() as u32),
        runs_total: runs.len() as u32,
        runs_valid,
        slo,
        judged: recordings.iter().flat_map(|one| judged(one.wire_cost.as_ref(), &one.tables)).collect(),
    }
}

/// Formats the CPUs of server and generator: `server 0, generator 1`.
pub(super) fn pinning(placement: &Placement) -> String {
    let cpus = |cpus: &[usize]| match cpus {
        [] => "any".to_owned(),
        cpus => cpus.iter().map(usize::to_string).collect::<Vec<_>>().join("+"),
    };
    let shared = if placement.is_shared { ", shared" } else { "" };
    format!("server {}, generator {}{shared}", cpus(&placement.server_cpus), cpus(&placement.generator_cpus))
}

/// Compares the first target with every other target at equal points.
///
/// Each comparison stands alone and is not corrected for the number of comparisons. With five runs, a correction
/// would leave no verdict. The useful results here are the ratios and their intervals.
fn rivals(points: &[Point]) -> Vec<Rival> {
    let Some(ours) = points.iter().map(|point| point.target.as_str()).min_by_key(|name| *name != "millrace") else {
        return Vec::new();
    };
    let comparable =
        |a: &Point, b: &Point| (&a.part, &a.transport, a.load, a.factors) == (&b.part, &b.transport, b.load, b.factors);
    let mut rivals = Vec::new();
    for (index, point) in points.iter().enumerate().filter(|(_, point)| point.target == ours && !point.is_invalid) {
        let others = points.iter().enumerate().filter(|(_, other)| other.target != ours && !other.is_invalid);
        for (rival_index, rival) in others.filter(|(_, other)| comparable(point, other)) {
            for metric in Metric::PRIMARY {
                let values = |point: &Point| point.metrics.get(&metric).map(|figure| figure.runs.clone());
                let (Some(of_ours), Some(of_rival), Some(better)) =
                    (values(point), values(rival), metric.info().better)
                else {
                    continue;
                };
                rivals.push(Rival {
                    point: index as u32,
                    rival_point: rival_index as u32,
                    target: point.target.clone(),
                    rival: rival.target.clone(),
                    transport: point.transport.clone(),
                    load: point.load,
                    metric,
                    comparison: compare(&of_rival, &of_ours, &Terms::new(better)),
                });
            }
        }
    }
    rivals
}
