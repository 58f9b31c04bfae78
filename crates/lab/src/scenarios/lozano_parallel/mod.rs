//! Calls that share a bottleneck (row L-11, tables 10 to 12): Jain's index, and the recovery of the first call when
//! another one starts.

use std::time::Duration;

use anyhow::{Context, ensure};
use humantime_serde::Serde;
use millrace_link::{Config, PipeConfig, QueueLimit, Rate};
use serde::Deserialize;
use serde_json::{Value, json};

use super::lozano::{
    calls::{CallFigures, CallPlan, RunFigures, Setup},
    choice::Common,
    figures::mean,
    published,
    study::{self, Cell, Measured, Point, Study},
    tables::{self, Check},
};
use crate::{
    recording::Table,
    stats::fairness::jain,
    sweep::{Bench, Experiment},
};

/// Entry in the list of scenarios.
pub struct LozanoParallel;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    calls: Vec<usize>,
    offsets: Vec<Serde<Duration>>,
    bottlenecks: Vec<String>,
    #[serde(with = "humantime_serde")]
    queue: Duration,
    #[serde(with = "humantime_serde")]
    delay: Duration,
}

const NONE: &str = "none";
/// Seconds at the end over which fairness is measured.
const FAIR_S: usize = 30;
/// A call has recovered once it has this share of its fair rate, in this many seconds in a row.
const RECOVERED_SHARE: f64 = 0.8;
const RECOVERED_S: usize = 3;
/// Minimum of Jain's index for our controller.
const JAIN_MIN: f64 = 0.9;

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<(Common, Choice)> {
        let (common, choice): (Common, Choice) = Common::read(parameters)?;
        ensure!(choice.calls.iter().all(|calls| (1..=50).contains(calls)), "calls: 1 to 50");
        let all = [choice.calls.len(), choice.offsets.len(), choice.bottlenecks.len()];
        ensure!(all.iter().all(|length| *length > 0), "calls, offsets, bottlenecks: at least one value each");
        ensure!(!choice.queue.is_zero(), "queue: longer than 0");
        for (calls, offset) in choice.calls.iter().flat_map(|calls| choice.offsets.iter().map(move |o| (*calls, **o))) {
            let last = offset * (calls as u32 - 1);
            ensure!(
                last + Duration::from_secs(5) <= common.test,
                "test: the last call starts at {last:?}, and needs 5 s"
            );
        }
        choice.study(&common)?;
        Ok((common, choice))
    }

    fn study(&self, common: &Common) -> anyhow::Result<Study> {
        let mut cells = Vec::new();
        for calls in &self.calls {
            for offset in self.offsets.iter().map(|offset| **offset) {
                for bottleneck in &self.bottlenecks {
                    cells.push(self.cell(common, *calls, offset, bottleneck)?);
                }
            }
        }
        Ok(Study {
            name: "parallel",
            title: "Parallel calls",
            keys: vec![("test", ""), ("bottleneck", "Mbit/s")],
            cells,
            notes: vec![
                format!(
                    "All calls share the bottleneck, per direction: a queue of {} ms and a one-way delay of {} ms.",
                    self.queue.as_millis(),
                    self.delay.as_millis()
                ),
                "thesis: only for comparison. Its rates of calls without a bottleneck are limited by its machines: three calls have more than two (E-L19), and 20 Mbit/s more than no bottleneck (E-L17). Its residual losses are sums (E-L14).".to_owned(),
            ],
        })
    }

    fn cell(&self, common: &Common, calls: usize, offset: Duration, bottleneck: &str) -> anyhow::Result<Cell> {
        let rate = match bottleneck {
            NONE => None,
            rate => Some(rate.parse::<Rate>().context("bottlenecks: `none` or a rate")?),
        };
        let pipe = PipeConfig {
            rate,
            queue: rate.map(|_| QueueLimit::Time(self.queue)),
            delay: self.delay,
            ..PipeConfig::default()
        };
        let plan = |n: usize| CallPlan::over_one_link(offset * n as u32);
        let ceiling = common.ceiling.bits_per_s() as f64 / 1000.0;
        let share = rate.map_or(ceiling, |rate| rate.bits_per_s() as f64 / 1000.0 / calls as f64);
        let mbit = rate.map(|rate| rate.bits_per_s() as f64 / 1e6);
        Ok(Cell {
            key: vec![json!(test_name(calls, offset)), mbit.map_or(json!(NONE), |mbit| json!(mbit))],
            setup: Setup {
                links: vec![Config { up: pipe.clone(), down: pipe, ..Config::default() }],
                calls: (0..calls).map(plan).collect(),
                ..Setup::default()
            },
            thesis_kbit_s: thesis(calls, offset, mbit),
            capacity_kbit_s: Some(share.min(ceiling)),
        })
    }
}

/// Returns the name of a test: `3, 30 s apart`.
fn test_name(calls: usize, offset: Duration) -> String {
    match offset.is_zero() {
        true => format!("{calls} at once"),
        false => format!("{calls}, {} s apart", offset.as_secs_f64()),
    }
}

fn thesis(calls: usize, offset: Duration, mbit: Option<f64>) -> Option<f64> {
    let bottleneck = mbit.map_or(NONE.to_owned(), |mbit| mbit.to_string());
    match (calls, offset.as_secs(), mbit) {
        (2, 0, _) => published::rate_kbit_s(published::TWO_CALLS, &[("bottleneck_mbit_s", bottleneck.as_str())]),
        (3, 0, None) => published::rate_kbit_s(published::THREE_CALLS, &[]),
        (3, 30, None) => published::rate_kbit_s(published::THREE_SHIFTED_CALLS, &[]),
        _ => None,
    }
}

impl Experiment for LozanoParallel {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |(common, choice): (Common, Choice)| {
            let calls: usize = choice.calls.iter().sum();
            common.estimate_s(calls * choice.offsets.len() * choice.bottlenecks.len())
        };
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let (common, choice) = Choice::read(parameters)?;
        let study = choice.study(&common)?;
        study::run(&study, &common, bench, |points, measured| {
            vec![fairness(&study, points), tables::checks(study.name, checks(points, measured))]
        })
    }
}

/// Mean rate of each call in the last seconds, both directions.
fn shares(run: &RunFigures) -> Vec<f64> {
    let share = |call: &CallFigures| {
        let rates = call.received.iter().map(|stream| {
            let seconds = stream.rates.len();
            stream.rate_between(seconds.saturating_sub(FAIR_S), seconds)
        });
        rates.sum::<f64>() / 2.0
    };
    run.calls.iter().map(share).collect()
}

/// Lowest rate of the first call after the start of the last one, and the time until it has recovered.
struct Recovery {
    lowest_kbit_s: f64,
    /// `None`: not before the end.
    after_s: Option<usize>,
}

/// Returns the recovery of the first call. `None`: the calls start together.
fn recovery(run: &RunFigures, fair_kbit_s: f64) -> Option<Recovery> {
    let [first, .., last] = &run.calls[..] else { return None };
    let start = (last.start.checked_sub(first.start)?.as_secs() as usize).checked_sub(1)? + 1;
    let rates: Vec<f64> = (start..first.received[0].rates.len())
        .map(|second| first.received.iter().map(|stream| stream.rates[second]).sum::<f64>() / 2.0)
        .collect();
    let has_recovered = |window: &[f64]| window.iter().all(|rate| *rate >= RECOVERED_SHARE * fair_kbit_s);
    Some(Recovery {
        lowest_kbit_s: rates.iter().copied().reduce(f64::min)?,
        after_s: rates.windows(RECOVERED_S).position(has_recovered),
    })
}

fn fairness(study: &Study, points: &[Point<'_>]) -> Table {
    let mut rows = Vec::new();
    for point in points {
        let index = |run: &&RunFigures| jain(&shares(run));
        let indexes: Vec<f64> = point.runs.iter().filter_map(index).collect();
        let fair = point.cell.capacity_kbit_s.unwrap_or_default();
        let recoveries: Vec<Recovery> = point.runs.iter().filter_map(|run| recovery(run, fair)).collect();
        let lowest = recoveries.iter().map(|one| one.lowest_kbit_s).reduce(f64::min);
        let times: Vec<f64> = recoveries.iter().filter_map(|one| Some(one.after_s? as f64)).collect();
        let number = |value: Option<f64>| value.map_or(Value::Null, |value| json!((value * 1000.0).round() / 1000.0));
        let mut row = point.cell.key.clone();
        row.push(json!(point.algorithm.name()));
        row.extend([number(mean(&indexes)), number(indexes.iter().copied().reduce(f64::min)), json!(fair)]);
        row.extend([number(lowest), number(mean(&times)), number(times.iter().copied().reduce(f64::max))]);
        row.extend([json!(recoveries.len()), json!(recoveries.len() - times.len())]);
        rows.push(row);
    }
    let own = [
        ("controller", ""),
        ("Jain's index, mean", ""),
        ("Jain's index, lowest", ""),
        ("fair rate", "kbit/s"),
        ("lowest rate of the first call", "kbit/s"),
        ("recovery, mean", "s"),
        ("recovery, longest", "s"),
        ("runs", ""),
        ("not recovered", ""),
    ];
    let notes = vec![
        format!("Jain's index: of the calls' mean rates in the last {FAIR_S} s. 1: all are equal."),
        format!(
            "recovery: from the start of the last call until the first call has {RECOVERED_SHARE} of its fair rate for {RECOVERED_S} s. Calls that start together have none."
        ),
    ];
    tables::table("parallel-fairness", "Fairness and recovery", &[&study.keys[..], &own[..]].concat(), rows, notes)
}

fn checks(points: &[Point<'_>], measured: &[Measured]) -> Vec<Check> {
    let mut checks = Vec::new();
    for point in points {
        let indexes: Vec<f64> = point.runs.iter().filter_map(|run| jain(&shares(run))).collect();
        let index = mean(&indexes).unwrap_or_default();
        checks.push(Check {
            of: tables::case(point),
            check: format!("Jain's index at least {JAIN_MIN}"),
            is_promised: point.algorithm.name() == "gcc",
            passed: index >= JAIN_MIN,
            found: format!("{index:.3}"),
        });
    }
    checks.push(tables::heads_check(measured));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::{
        lozano::figures::StreamFigures,
        test_parameters::{parameters, quick},
    };

    fn read(text: &str) -> anyhow::Result<(Common, Choice)> {
        Choice::read(&parameters(include_str!("scenario.toml"), text))
    }

    fn call(start: u64, rates: &[f64]) -> CallFigures {
        let stream = StreamFigures { rates: rates.to_vec(), ..StreamFigures::default() };
        CallFigures { start: Duration::from_secs(start), received: [stream.clone(), stream] }
    }

    #[test]
    fn recovery_counts_from_the_start_of_the_last_call() {
        let first = [900.0, 900.0, 300.0, 200.0, 450.0, 410.0, 390.0, 500.0, 500.0, 500.0];
        let run = RunFigures { calls: vec![call(0, &first), call(2, &[500.0; 8])], tcp: Vec::new() };
        let Recovery { lowest_kbit_s, after_s } = recovery(&run, 500.0).expect("a later call");
        // 390 is below 0.8 x 500, so three seconds in a row begin after five.
        assert_eq!((lowest_kbit_s, after_s), (200.0, Some(5)));
        assert_eq!(recovery(&run, 1000.0).expect("a later call").after_s, None);
        let together = RunFigures { calls: vec![call(0, &first), call(0, &first)], tcp: Vec::new() };
        assert!(recovery(&together, 500.0).is_none());
    }

    #[test]
    fn fair_rate_is_the_share_or_the_ceiling() {
        let (common, choice) = read("").expect("valid");
        let study = choice.study(&common).expect("valid");
        let capacity =
            |key: [Value; 2]| study.cells.iter().find(|cell| cell.key == key).and_then(|cell| cell.capacity_kbit_s);
        assert_eq!(capacity([json!("3, 30 s apart"), json!(3.0)]), Some(1000.0));
        assert_eq!(capacity([json!("3, 30 s apart"), json!(NONE)]), Some(2000.0));
        assert_eq!(capacity([json!("2 at once"), json!(20.0)]), Some(2000.0));
        let compared = study.cells.iter().filter(|cell| cell.thesis_kbit_s.is_some()).count();
        assert_eq!(compared, 5, "three of table 10, and tables 11 and 12");
    }

    #[test]
    fn invalid_parameters_are_refused() {
        for refused in ["calls = [0]", "calls = []", "bottlenecks = [\"wide\"]", "test = \"60s\"", "queue = \"0s\""] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn quick_form_keeps_its_promises() {
        let (common, choice) = Choice::read(&quick(include_str!("scenario.toml"))).expect("valid");
        let study = choice.study(&common).expect("valid");
        study::tests::assert_promises(&study, &common, checks);
    }
}
