//! Two tables beside the runs: the latency of the first message and of all, and the age of polled data against a
//! uniform distribution.

use crate::{
    histogram::Histogram,
    recording::{Column, PhaseName, Recording, Run, Table},
    targets::Transport,
};
use serde_json::{Value, json};

/// Figures of all runs of one target and transport.
struct Group<'a> {
    target: &'a str,
    transport: &'a str,
    connect: Histogram,
    first: Histogram,
    all: Histogram,
}

pub fn tables(recording: &Recording) -> Vec<Table> {
    let groups = groups(&recording.runs);
    let poll_every_s =
        recording.parameters[""]["poll_every"].as_str().and_then(|text| humantime::parse_duration(text).ok());
    let mut tables = vec![latency(&groups)];
    tables
        .extend(poll_every_s.map(|every| polling(&groups, every.as_secs_f64())).filter(|table| !table.rows.is_empty()));
    tables
}

fn groups(runs: &[Run]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for run in runs.iter().filter(|run| run.is_valid()) {
        let Some(test) = run.phase(PhaseName::Test) else { continue };
        let known = groups.iter().position(|group| group.target == run.target && group.transport == run.transport);
        let at = known.unwrap_or_else(|| {
            let (connect, first, all) = Default::default();
            groups.push(Group { target: &run.target, transport: &run.transport, connect, first, all });
            groups.len() - 1
        });
        groups[at].all.add(&test.latency_us);
        run.phase(PhaseName::Connect).iter().for_each(|connect| groups[at].connect.add(&connect.connect_us));
        let first = run.seconds.iter().find(|second| second.counts.delivered > 0);
        first.iter().for_each(|second| groups[at].first.add(&second.latency_us));
    }
    groups.sort_by_key(|group| (group.target, group.transport));
    groups
}

fn latency(groups: &[Group<'_>]) -> Table {
    let row = |group: &Group<'_>| {
        let (mean, sd) = mean_and_sd(&group.all);
        let connect_and_first =
            group.connect.mean_us().zip(group.first.mean_us()).map(|(connect, first)| (connect + first) / 1000.0);
        vec![
            json!(group.target),
            json!(group.transport),
            json!(group.all.count()),
            ms(group.connect.mean_us()),
            ms(group.first.mean_us()),
            json!(connect_and_first),
            ms(mean),
            ms(sd),
        ]
    };
    Table {
        name: "latency".into(),
        title: "Latency of the first message and of all messages".into(),
        columns: columns(&[
            ("target", ""),
            ("transport", ""),
            ("deliveries", ""),
            ("connect", "ms"),
            ("first", "ms"),
            ("connect and first message", "ms"),
            ("mean", "ms"),
            ("sd", "ms"),
        ]),
        rows: groups.iter().map(row).collect(),
        notes: vec![
            "first: the first second with a delivery. The first message of the thesis includes the connection.".into(),
            "sd: of the population, as in the thesis.".into(),
        ],
        ..Table::default()
    }
}

/// Compares the age of polled data with a uniform distribution. Data that arrives at a random time waits for the next
/// poll between zero and a whole interval, with equal probability.
fn polling(groups: &[Group<'_>], every_s: f64) -> Table {
    let polls = groups.iter().filter(|group| group.transport == Transport::Polling.name());
    let row = |group: &Group<'_>| {
        let (mean, sd) = mean_and_sd(&group.all);
        let distance = farthest_from_uniform(&group.all, every_s * 1e6);
        let expected = [every_s * 500.0, every_s * 1000.0 / 12f64.sqrt()];
        vec![
            json!(group.target),
            json!(every_s),
            ms(mean),
            json!(expected[0]),
            ms(sd),
            json!(expected[1]),
            json!(distance),
        ]
    };
    Table {
        name: "polling-age".into(),
        title: "Age of polled data, compared with a uniform distribution".into(),
        columns: columns(&[
            ("target", ""),
            ("interval", "s"),
            ("mean", "ms"),
            ("expected mean", "ms"),
            ("sd", "ms"),
            ("expected sd", "ms"),
            ("largest difference of the distributions", "share"),
        ]),
        rows: polls.map(row).collect(),
        notes: vec!["The excess over the expected mean is the round-trip time: 65 ms of 2.15 s in the thesis.".into()],
        ..Table::default()
    }
}

fn columns(of: &[(&str, &str)]) -> Vec<Column> {
    of.iter().map(|(name, unit)| Column { name: (*name).into(), unit: (*unit).into() }).collect()
}

fn ms(us: Option<f64>) -> Value {
    us.map_or(Value::Null, |us| json!(us / 1000.0))
}

pub fn mean_and_sd(of: &Histogram) -> (Option<f64>, Option<f64>) {
    (of.mean_us(), of.sd_us())
}

/// Returns the Kolmogorov-Smirnov statistic: the largest difference between the two cumulative distributions.
fn farthest_from_uniform(of: &Histogram, most_us: f64) -> f64 {
    let (all, mut below, mut farthest) = (of.count().max(1) as f64, 0.0, 0f64);
    for (us, times) in of.cells() {
        let expected = (us as f64 / most_us).min(1.0);
        farthest = farthest.max((below / all - expected).abs());
        below += times as f64;
        farthest = farthest.max((below / all - expected).abs());
    }
    farthest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{Phase, Second};

    fn run(transport: &str, us: impl Iterator<Item = u64> + Clone) -> Run {
        let histogram = |us: &mut dyn Iterator<Item = u64>| {
            let mut histogram = Histogram::default();
            us.for_each(|us| histogram.record_us(us));
            histogram
        };
        let connect = Phase { connect_us: histogram(&mut [500].into_iter()), ..Phase::default() };
        let test = Phase { name: PhaseName::Test, latency_us: histogram(&mut us.clone()), ..Phase::default() };
        let empty = Second::default();
        let mut first = Second { latency_us: histogram(&mut us.take(1)), ..Second::default() };
        first.counts.delivered = 1;
        Run {
            target: "millrace".into(),
            transport: transport.into(),
            phases: vec![connect, test],
            seconds: vec![empty, first],
            ..Run::default()
        }
    }

    fn recording(runs: Vec<Run>) -> Recording {
        let json = json!({"format": 1, "scenario": "carcare-latency", "form": "full", "seed": 1, "started": "", "provenance": null, "runs": [],
            "parameters": {"": {"poll_every": "4s"}}});
        Recording { runs, ..serde_json::from_value(json).unwrap() }
    }

    #[test]
    fn only_evenly_spread_ages_agree_with_chance() {
        let even = run("polling", (0..4000).map(|n| n * 1000 + 500));
        let [latency, polling] = &tables(&recording(vec![even.clone(), even]))[..] else { panic!("two tables") };
        assert_eq!(latency.rows[0][2], 8000);
        assert_eq!(
            (&latency.rows[0][3], &latency.rows[0][4], &latency.rows[0][5]),
            (&json!(0.5), &json!(0.5), &json!(1.0))
        );
        let number = |at: usize| polling.rows[0][at].as_f64().unwrap();
        assert!((number(2) - 2000.0).abs() < 2.0 && (number(4) - 1154.7).abs() < 2.0, "{polling:?}");
        assert_eq!((number(3), number(5).round()), (2000.0, 1155.0));
        assert!(number(6) < 0.002, "{polling:?}");
        let early = run("polling", (0..4000).map(|n| n * 500));
        assert!(tables(&recording(vec![early]))[1].rows[0][6].as_f64().unwrap() > 0.4);
    }

    #[test]
    fn push_transports_are_not_compared_with_chance() {
        let tables =
            tables(&recording(vec![run("websocket", [900, 100].into_iter()), run("sse", [1000, 1000].into_iter())]));
        assert_eq!(tables.len(), 1);
        assert_eq!(tables[0].rows.iter().map(|row| row[1].as_str().unwrap()).collect::<Vec<_>>(), ["sse", "websocket"]);
        assert_eq!(tables[0].rows[1][6..], [json!(0.5), json!(0.4)]);
    }
}
