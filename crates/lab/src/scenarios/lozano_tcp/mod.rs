//! A call beside long TCP flows (row L-10, table 9). Both participants have an access link, and the flows pass the same
//! links as the call.

use std::time::Duration;

use anyhow::ensure;
use millrace_link::{Config, Direction, PipeConfig, QueueLimit, Rate};
use serde::Deserialize;
use serde_json::{Value, json};

use super::lozano::{
    calls::{CallPlan, Setup, TcpPlan},
    choice::Common,
    figures::mean,
    published,
    study::{self, Cell, Point, Study},
    tables,
};
use crate::{
    recording::Table,
    sweep::{Bench, Experiment},
};

/// Entry in the list of scenarios.
pub struct LozanoTcp;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    paths: Vec<Path>,
    flows: Vec<usize>,
    queue: QueueLimit,
    #[serde(with = "humantime_serde")]
    tcp_start: Duration,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Path {
    down: Rate,
    up: Rate,
    #[serde(with = "humantime_serde")]
    latency: Duration,
}

/// Seconds after the start of the flows that do not count: slow start.
const SLOW_START_S: usize = 2;

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<(Common, Choice)> {
        let (common, choice): (Common, Choice) = Common::read(parameters)?;
        ensure!(!choice.paths.is_empty() && !choice.flows.is_empty(), "paths, flows: at least one value each");
        ensure!(choice.flows.iter().all(|flows| *flows <= 20), "flows: at most 20");
        ensure!(choice.paths.iter().all(|path| path.latency <= Duration::from_secs(10)), "latency: at most 10s");
        ensure!(choice.tcp_start + Duration::from_secs(5) <= common.test, "tcp_start: at least 5 s before the end");
        Ok((common, choice))
    }

    fn study(&self, common: &Common) -> Study {
        let cells =
            self.paths.iter().flat_map(|path| self.flows.iter().map(move |flows| self.cell(common, path, *flows)));
        Study {
            name: "tcp",
            title: "Calls beside TCP",
            keys: vec![("bottleneck", ""), ("latency", "ms"), ("flows per direction", "")],
            cells: cells.collect(),
            notes: vec![
                "bottleneck: down/up of both participants, in Mbit/s. latency: one way, once per direction.".to_owned(),
                format!("The flows start after {} s. TCP: CUBIC with selective acknowledgments, a model in virtual time.", self.tcp_start.as_secs()),
                "utilization: rate / fair share; the fair share is the bottleneck divided by the flows and the call, and at most the ceiling of the encoder.".to_owned(),
                "The row 10/10 of the thesis is a copy of another one (E-L12), so there is no valid result of it. Its rates for 10/1 contradict its figure 35 (E-L16) and are only for comparison. Its residual losses are sums (E-L14).".to_owned(),
            ],
        }
    }

    fn cell(&self, common: &Common, path: &Path, flows: usize) -> Cell {
        let pipe =
            |rate, delay| PipeConfig { rate: Some(rate), queue: Some(self.queue), delay, ..PipeConfig::default() };
        let link =
            Config { up: pipe(path.up, path.latency), down: pipe(path.down, Duration::ZERO), ..Config::default() };
        let to_b = vec![(0, Direction::Up), (1, Direction::Down)];
        let to_a = vec![(1, Direction::Up), (0, Direction::Down)];
        let flow = |data: &Vec<_>, acknowledgments: &Vec<_>| TcpPlan {
            data: data.clone(),
            acknowledgments: acknowledgments.clone(),
            start: self.tcp_start,
        };
        let both = [flow(&to_b, &to_a), flow(&to_a, &to_b)];
        let mbit = |rate: Rate| rate.bits_per_s() as f64 / 1e6;
        let share = path.up.min(path.down).bits_per_s() as f64 / 1000.0 / (flows + 1) as f64;
        let latency_ms = path.latency.as_secs_f64() * 1000.0;
        let latency = latency_ms.to_string();
        let row = [("bottleneck_down_up_mbit_s", "10/1"), ("path_latency_ms", latency.as_str())];
        let is_of_thesis = flows == 1 && (mbit(path.down), mbit(path.up)) == (10.0, 1.0);
        Cell {
            key: vec![json!(format!("{}/{}", mbit(path.down), mbit(path.up))), json!(latency_ms), json!(flows)],
            setup: Setup {
                links: vec![link.clone(), link],
                calls: vec![CallPlan { to_b: to_b.clone(), to_a: to_a.clone(), start: Duration::ZERO }],
                tcp: both.into_iter().flat_map(|flow| vec![flow; flows]).collect(),
            },
            thesis_kbit_s: published::rate_kbit_s(published::TCP, &row).filter(|_| is_of_thesis),
            capacity_kbit_s: Some(share.min(common.ceiling.bits_per_s() as f64 / 1000.0)),
        }
    }
}

impl Experiment for LozanoTcp {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |(common, choice): (Common, Choice)| {
            // A flow costs about as much as some calls.
            let flows: usize = choice.flows.iter().map(|flows| 1 + 4 * flows).sum();
            common.estimate_s(choice.paths.len() * flows)
        };
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let (common, choice) = Choice::read(parameters)?;
        let study = choice.study(&common);
        study::run(&study, &common, bench, |points, measured| {
            vec![shares(&study, &choice, points), tables::checks(study.name, vec![tables::heads_check(measured)])]
        })
    }
}

/// Returns the rates of the call and of each flow while all of them run.
fn shares(study: &Study, choice: &Choice, points: &[Point<'_>]) -> Table {
    let from = choice.tcp_start.as_secs() as usize + SLOW_START_S;
    let mut rows = Vec::new();
    for point in points {
        let streams = || point.runs.iter().flat_map(|run| &run.calls).flat_map(|call| &call.received);
        let calls: Vec<f64> = streams().map(|stream| stream.rate_between(from, stream.rates.len())).collect();
        let flow = |rates: &Vec<f64>| mean(rates.get(from.min(rates.len())..).unwrap_or_default()).unwrap_or_default();
        let flows: Vec<f64> = point.runs.iter().flat_map(|run| &run.tcp).map(flow).collect();
        let before: Vec<f64> =
            streams().map(|stream| stream.rate_between(0, choice.tcp_start.as_secs() as usize)).collect();
        let call = mean(&calls);
        let per_flow = mean(&flows);
        let rounded = |value: Option<f64>| value.map_or(Value::Null, |value| json!((value * 100.0).round() / 100.0));
        let mut row = point.cell.key.clone();
        row.extend([json!(point.algorithm.name()), rounded(mean(&before)), rounded(call), rounded(per_flow)]);
        row.push(rounded(call.zip(per_flow).map(|(call, flow)| call / flow)));
        row.push(rounded(call.zip(point.cell.capacity_kbit_s).map(|(call, fair)| call / fair)));
        rows.push(row);
    }
    let own = [
        ("controller", ""),
        ("call before", "kbit/s"),
        ("call beside TCP", "kbit/s"),
        ("each TCP flow", "kbit/s"),
        ("call / flow", ""),
        ("call / fair share", ""),
    ];
    let notes = vec![format!(
        "beside TCP: from {SLOW_START_S} s after the start of the flows on; both directions. A flow has payload in order, the call RTP."
    )];
    tables::table("tcp-shares", "Shares of call and TCP", &[&study.keys[..], &own[..]].concat(), rows, notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::test_parameters::{parameters, quick};

    fn read(text: &str) -> anyhow::Result<(Common, Choice)> {
        Choice::read(&parameters(include_str!("scenario.toml"), text))
    }

    #[test]
    fn copied_row_of_the_thesis_is_not_compared() {
        let (common, choice) = read("").expect("valid");
        let study = choice.study(&common);
        assert_eq!(study.cells.len(), 12);
        let compared: Vec<&Value> =
            study.cells.iter().filter(|cell| cell.thesis_kbit_s.is_some()).map(|cell| &cell.key[1]).collect();
        assert_eq!(compared, [0.0, 25.0, 100.0], "the three rows of 10/1 with one flow per direction");
        assert_eq!(study.cells[2].capacity_kbit_s.map(f64::round), Some(333.0));
        assert_eq!(study.cells[2].setup.tcp.len(), 4);
    }

    #[test]
    fn invalid_parameters_are_refused() {
        for refused in ["paths = []", "flows = [21]", "flows = []", "queue = \"0 packets\"", "tcp_start = \"58s\""] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn quick_form_keeps_its_promises() {
        let (common, choice) = Choice::read(&quick(include_str!("scenario.toml"))).expect("valid");
        let study = choice.study(&common);
        study::tests::assert_promises(&study, &common, |_, measured| vec![tables::heads_check(measured)]);
    }
}
