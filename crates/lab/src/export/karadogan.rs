//! Karadogan's tables of publishers and subscribers.

use crate::{
    histogram::Histogram,
    recording::{Phase, PhaseName, Recording, Run, Second},
};

use super::{
    group::{Group, groups},
    sheet::Row,
    statistics::Statistics,
};

pub const TWO_SERVERS: &str = "Needs two servers behind a balancer, which the lab does not start.";

pub fn response_time(recording: &Recording) -> Vec<Row> {
    let pooled = |group: &Group| Statistics::ms(&pooled(group, |test| &test.latency_us));
    groups(recording).iter().map(|group| timed(group, pooled(group))).collect()
}

pub fn service_time(recording: &Recording) -> Vec<Row> {
    let pooled = |group: &Group| Statistics::ms(&pooled(group, |test| &test.service_us));
    groups(recording).iter().map(|group| timed(group, pooled(group))).collect()
}

fn pooled(group: &Group, of: fn(&Phase) -> &Histogram) -> Histogram {
    group.pooled(PhaseName::Test, of)
}

pub fn loop_lag(recording: &Recording) -> Vec<Row> {
    let answer_ms = |second: &Second| Some(second.watched.as_ref()?.metrics?.answer_us as f64 / 1000.0);
    groups(recording).iter().map(|group| timed(group, Statistics::of(&by_second(group, answer_ms)))).collect()
}

fn timed(group: &Group, statistics: Statistics) -> Row {
    let mut row: Row = vec![
        ("publishers".into(), group.first.factors.publishers.into()),
        ("avg_ms".into(), statistics.mean.into()),
        ("stddev_ms".into(), statistics.sd.into()),
    ];
    // The median has the same name in the thesis and in the statistics.
    row.extend(statistics.row("ms"));
    row.extend(group.row());
    row
}

pub fn events(recording: &Recording) -> Vec<Row> {
    let row = |group: &Group| {
        let factors = group.first.factors;
        let statistics = Statistics::of(&by_second(group, |second| Some(second.counts.delivered as f64)));
        let mut row: Row = vec![
            ("publishers".into(), factors.publishers.into()),
            ("expected_events_per_s".into(), (factors.publishers as f64 * factors.each_per_s).into()),
            ("actual_events_per_s".into(), statistics.mean.into()),
            ("stddev_events_per_s".into(), statistics.sd.into()),
        ];
        row.extend(statistics.row("events_per_s"));
        row.extend(group.row());
        row
    };
    groups(recording).iter().map(row).collect()
}

/// Returns a value of each second that lies completely in the publishing part of a test.
fn by_second(group: &Group, of: impl Fn(&Second) -> Option<f64>) -> Vec<f64> {
    let of_run = |run: &&Run| -> Vec<f64> {
        let Some(test) = run.phase(PhaseName::Test) else { return Vec::new() };
        let inside = run.seconds.iter().filter(|second| second.at_s >= test.start_s && second.at_s + 1.0 <= test.end_s);
        inside.filter_map(&of).collect()
    };
    group.used.iter().flat_map(of_run).collect()
}
