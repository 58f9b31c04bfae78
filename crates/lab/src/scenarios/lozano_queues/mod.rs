//! Calls through a bottleneck with a queue (row L-08, tables 5 to 7): a queue of its own per direction, with the limit
//! of equation 10.

use std::time::Duration;

use anyhow::ensure;
use humantime_serde::Serde;
use millrace_link::{Config, PipeConfig, QueueLimit, Rate};
use serde::Deserialize;
use serde_json::json;

use super::lozano::{
    calls::{CallPlan, Setup},
    choice::Common,
    figures::Pooled,
    published,
    study::{self, Cell, Measured, Point, Study},
    tables::{self, Check},
};
use crate::sweep::{Bench, Experiment};

/// Entry in the list of scenarios.
pub struct LozanoQueues;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    rates: Vec<Rate>,
    queues: Vec<Serde<Duration>>,
    #[serde(with = "humantime_serde")]
    delay: Duration,
}

/// Utilization of the thesis (LV07), which at 5 Mbit/s is that of the link: E-L26.
const UTILIZATION_MIN: f64 = 0.4;

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<(Common, Choice)> {
        let (common, choice): (Common, Choice) = Common::read(parameters)?;
        ensure!(!choice.rates.is_empty() && !choice.queues.is_empty(), "rates, queues: at least one value each");
        ensure!(choice.queues.iter().all(|queue| !queue.is_zero()), "queues: longer than 0");
        ensure!(choice.delay <= Duration::from_secs(10), "delay: at most 10s");
        Ok((common, choice))
    }

    fn study(&self, common: &Common) -> Study {
        let cells = self.rates.iter().flat_map(|rate| self.queues.iter().map(move |queue| (*rate, **queue)));
        let cell = |(rate, queue): (Rate, Duration)| {
            let pipe = PipeConfig {
                rate: Some(rate),
                queue: Some(QueueLimit::Time(queue)),
                delay: self.delay,
                ..PipeConfig::default()
            };
            Cell {
                key: vec![
                    json!(rate.to_string()),
                    json!(queue.as_millis() as u64),
                    json!(QueueLimit::packets_in(rate, queue)),
                ],
                setup: Setup {
                    links: vec![Config { up: pipe.clone(), down: pipe, ..Config::default() }],
                    calls: vec![CallPlan::over_one_link(Duration::ZERO)],
                    ..Setup::default()
                },
                thesis_kbit_s: thesis(rate, queue),
                capacity_kbit_s: Some(rate.min(common.ceiling).bits_per_s() as f64 / 1000.0),
            }
        };
        Study {
            name: "queues",
            title: "Calls through a queue",
            keys: vec![("bandwidth", ""), ("queue", "ms"), ("queue limit", "packets")],
            cells: cells.map(cell).collect(),
            notes: vec![
                format!("The path has a one-way delay of {} ms without a queue.", self.delay.as_secs_f64() * 1000.0),
                "utilization: rate / min(bandwidth, ceiling of the encoder). At 5 Mbit/s the encoder limits the rate, not the path (E-L26).".to_owned(),
                "The rows of the thesis for 5 Mbit/s with 500 ms and with 10 s are copies of each other, and are not compared (E-L9).".to_owned(),
            ],
        }
    }
}

fn thesis(rate: Rate, queue: Duration) -> Option<f64> {
    let table = match rate.bits_per_s() {
        500_000 => 0,
        1_000_000 => 1,
        5_000_000 => 2,
        _ => return None,
    };
    let is_copied = table == 2 && matches!(queue.as_millis(), 500 | 10_000);
    let ms = queue.as_millis().to_string();
    published::rate_kbit_s(published::QUEUES[table], &[("queue_ms", ms.as_str())]).filter(|_| !is_copied)
}

impl Experiment for LozanoQueues {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |(common, choice): (Common, Choice)| common.estimate_s(choice.rates.len() * choice.queues.len());
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let (common, choice) = Choice::read(parameters)?;
        let study = choice.study(&common);
        let own =
            |points: &[Point<'_>], measured: &[Measured]| vec![tables::checks(study.name, checks(points, measured))];
        study::run(&study, &common, bench, own)
    }
}

/// Our controller must use the path; the others are for comparison.
fn checks(points: &[Point<'_>], measured: &[Measured]) -> Vec<Check> {
    let mut checks = Vec::new();
    for point in points {
        let pooled = Pooled::of(point.runs.iter().flat_map(|run| &run.calls).flat_map(|call| &call.received));
        let utilization = pooled.rate / point.cell.capacity_kbit_s.unwrap_or(f64::NAN);
        let p95_ms = pooled.delay.quantile_us(0.95).map_or(f64::NAN, |us| us as f64 / 1000.0);
        checks.push(Check {
            of: tables::case(point),
            check: format!("utilization above {UTILIZATION_MIN}"),
            is_promised: point.algorithm.name() == "gcc",
            passed: utilization > UTILIZATION_MIN,
            found: format!("{utilization:.2}, p95 of the one-way delay {p95_ms:.1} ms"),
        });
    }
    checks.push(tables::heads_check(measured));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::test_parameters::{parameters, quick};

    fn read(text: &str) -> anyhow::Result<(Common, Choice)> {
        Choice::read(&parameters(include_str!("scenario.toml"), text))
    }

    #[test]
    fn limits_are_those_of_the_thesis() {
        let slots = include_str!("../../../data/lozano_queue_slots.csv");
        let (common, choice) = read("").expect("valid");
        let study = choice.study(&common);
        assert_eq!(study.cells.len(), 12);
        for cell in &study.cells {
            let number = |at: usize| cell.key[at].as_f64().expect("a number");
            let rate: Rate = cell.key[0].as_str().and_then(|rate| rate.parse().ok()).expect("a rate");
            let row = format!("{},{},", rate.bits_per_s(), number(1) / 1000.0);
            let line = slots.lines().find(|line| line.starts_with(&row)).expect("a row of the thesis");
            let packets: f64 = line[row.len()..].parse().expect("a number");
            assert_eq!(number(2), packets.round(), "{row}");
        }
        // Two of the twelve are copied.
        assert_eq!(study.cells.iter().filter(|cell| cell.thesis_kbit_s.is_some()).count(), 10);
    }

    #[test]
    fn invalid_parameters_are_refused() {
        for refused in ["rates = []", "queues = []", "queues = [\"0s\"]", "rates = [\"fast\"]", "delay = \"1h\""] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn quick_form_keeps_its_promises() {
        let (common, choice) = Choice::read(&quick(include_str!("scenario.toml"))).expect("valid");
        let study = choice.study(&common);
        study::tests::assert_promises(&study, &common, checks);
    }
}
