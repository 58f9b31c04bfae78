//! Thorsen's tables: averages of the idle phase, and the loads at which a server was saturated.

use std::{borrow::Cow, collections::BTreeMap};

use crate::{
    analysis::{Metric, lasted_s},
    histogram::Histogram,
    recording::{Phase, PhaseName, Recording, Run},
};

use super::{
    group::{Group, groups},
    sheet::{Cell, Row},
    statistics::Statistics,
};

pub const IDLE_NOTE: &str = "Means of one value per run: CPU in percent of one core, memory (PSS) in MB, mean response time of the probe in ms. published_avg and recomputed_avg are equal here. n: runs.";
pub const SATURATION_NOTE: &str = "cpu_max_at_clients: the lowest measured load whose CPU is within 2 % of the highest; empty with fewer than two loads. The statistics are those of the response time at 500 clients: of the probe for the broadcast, of messages for the chat.";

/// Share of the highest CPU usage from which on a server counts as saturated.
const NEAR_MAXIMUM: f64 = 0.98;
/// Loads for which the thesis has figures.
const ONE_CLIENT: u64 = 1;
const MANY_CLIENTS: u64 = 500;

/// Figure of the idle phase: name in the thesis, unit, and its value in a phase.
type IdleMetric = (&'static str, &'static str, fn(&Phase) -> Option<f64>);

pub fn idle(recording: &Recording) -> Vec<Row> {
    let of_idle = |of: fn(&Phase) -> Option<f64>| move |run: &Run| run.phase(PhaseName::Idle).and_then(of);
    let metrics: [IdleMetric; 3] = [
        ("cpu", "percent", |idle| Some(cpu_percent(idle))),
        ("memory", "MB", memory_mb),
        ("response_time", "ms", |idle| idle.probe_us.mean_us().map(|us| us / 1000.0)),
    ];
    let groups = groups(recording);
    let row = |(metric, unit, of): IdleMetric, group: &Group| {
        let statistics = Statistics::of(&group.values(of_idle(of)));
        let mut row = vec![transport(group), ("clients".into(), group.first.factors.clients.into())];
        row.extend([
            ("metric".into(), metric.into()),
            ("published_avg".into(), statistics.mean.into()),
            ("recomputed_avg".into(), statistics.mean.into()),
            ("recomputed_stddev".into(), statistics.sd.into()),
        ]);
        row.extend(statistics.row(""));
        row.push(("unit".into(), unit.into()));
        row.extend(group.row());
        row
    };
    let is_measured = |group: &&Group| group.first.phase(PhaseName::Idle).is_some();
    metrics.iter().flat_map(|metric| groups.iter().filter(is_measured).map(|group| row(*metric, group))).collect()
}

pub fn saturation_of_broadcast(recording: &Recording) -> Vec<Row> {
    saturation(recording, 1, |test| &test.probe_us)
}

pub fn saturation_of_chat(recording: &Recording) -> Vec<Row> {
    saturation(recording, 2, |test| &test.latency_us)
}

/// Returns one line per target, transport and path, over all loads. `scenario`: the number in the thesis.
fn saturation(recording: &Recording, scenario: u64, response: fn(&Phase) -> &Histogram) -> Vec<Row> {
    let groups = groups(recording);
    let mut curves: BTreeMap<_, Vec<&Group>> = BTreeMap::new();
    for group in &groups {
        let Run { part, target, transport, .. } = group.first;
        curves.entry((part, target, transport, super::group::path(group.first))).or_default().push(group);
    }
    let row = |curve: Vec<&Group>| {
        let cpu = |group: &Group| mean(group, |run| run.phase(PhaseName::Test).map(cpu_percent));
        let known: Vec<(&Group, f64)> = curve.iter().filter_map(|group| Some((*group, cpu(group)?))).collect();
        let highest = known.iter().map(|(_, percent)| *percent).reduce(f64::max).filter(|_| known.len() > 1);
        let saturated = highest.and_then(|highest| {
            known.iter().find(|(_, percent)| *percent >= highest * NEAR_MAXIMUM).map(|(group, _)| *group)
        });
        let at = |clients: u64| curve.iter().copied().find(|group| group.first.factors.clients == clients);
        let many = at(MANY_CLIENTS);
        let response = many.map(|group| Statistics::ms(&group.pooled(PhaseName::Test, response)));
        let memory = many.and_then(|group| mean(group, |run| run.phase(PhaseName::After).and_then(memory_mb)));
        let equal = |value: Option<f64>| value.map(|_| "eq");
        let mut row: Row = vec![transport(curve[0])];
        row.extend([
            ("scenario".into(), scenario.into()),
            ("cpu_max_at_clients".into(), saturated.map(|group| group.first.factors.clients).into()),
            ("cpu_max_percent".into(), highest.into()),
            ("cpu_at_1_client_percent".into(), at(ONE_CLIENT).and_then(cpu).into()),
            ("response_at_500_clients_relation".into(), equal(response.and_then(|all| all.mean)).into()),
            ("response_at_500_clients_ms".into(), response.and_then(|all| all.mean).into()),
            ("memory_after_500_clients_relation".into(), equal(memory).into()),
            ("memory_after_500_clients_mb".into(), memory.into()),
            (
                "offered_deliveries_per_s_at_cpu_max".into(),
                saturated.and_then(|group| mean(group, |run| Metric::OfferedPerS.of(run))).into(),
            ),
        ]);
        row.extend(response.unwrap_or_default().row("ms"));
        row.push(("loads".into(), curve.len().into()));
        // The line is about all loads, so those of one group do not describe it.
        let is_of_one_load = |name: &str| ["clients", "publishers", "runs", "runs_valid"].contains(&name);
        row.extend(curve[0].row().into_iter().filter(|(name, _)| !is_of_one_load(name)));
        row
    };
    curves.into_values().map(row).collect()
}

/// Returns the transport as in the thesis: `long_polling`.
fn transport(group: &Group) -> (Cow<'static, str>, Cell) {
    ("transport".into(), group.first.transport.replace('-', "_").into())
}

fn mean(group: &Group, of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    Statistics::of(&group.values(of)).mean
}

fn cpu_percent(phase: &Phase) -> f64 {
    phase.server.cpu_s() / lasted_s(phase) * 100.0
}

fn memory_mb(phase: &Phase) -> Option<f64> {
    Some(phase.server.pss_bytes as f64 / 1e6).filter(|mb| *mb > 0.0)
}
