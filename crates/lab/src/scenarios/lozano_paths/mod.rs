//! Calls over latency, loss, and both (row L-07, tables 2 to 4).
//!
//! As in the thesis, the packets of both directions pass a relay. Latency applies once per direction, and loss both
//! into the relay and out of it (E-L3, E-L33).

use std::time::Duration;

use anyhow::ensure;
use humantime_serde::Serde;
use millrace_link::{Config, Direction, PipeConfig, Probability};
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
pub struct LozanoPaths;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    latencies: Vec<Serde<Duration>>,
    losses: Vec<Probability>,
    loss: Probability,
    loss_latencies: Vec<Serde<Duration>>,
}

const LATENCY: &str = "latency";
const LOSS: &str = "loss";
const BOTH: &str = "loss and latency";
/// Maximum difference of the round-trip time from twice the latency.
const RTT_EXTRA_MS: f64 = 3.0;
/// Rate of the thesis at 10 % loss and 50 ms: the printed mean, which is above the mean of its machines (E-L4).
const THESIS_10_PERCENT_50_MS: f64 = 57.19;

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<(Common, Choice)> {
        let (common, choice): (Common, Choice) = Common::read(parameters)?;
        let latencies = choice.latencies.iter().chain(&choice.loss_latencies);
        ensure!(latencies.into_iter().all(|latency| **latency <= Duration::from_secs(10)), "latencies: at most 10s");
        ensure!(!choice.study().cells.is_empty(), "latencies, losses, loss_latencies: at least one value");
        Ok((common, choice))
    }

    fn study(&self) -> Study {
        let ms = |latency: Duration| latency.as_secs_f64() * 1000.0;
        let text = |value: f64| format!("{value}");
        let percent = |loss: Probability| (loss.get() * 1e5).round() / 1e3;
        let mut cells = Vec::new();
        for latency in self.latencies.iter().map(|latency| **latency) {
            let ms = text(ms(latency));
            let thesis = published::rate_kbit_s(published::LATENCY, &[("path_latency_ms", ms.as_str())]);
            cells.push(cell(LATENCY, latency, Probability::ZERO, thesis));
        }
        for loss in &self.losses {
            let percent = text(percent(*loss));
            let thesis = published::rate_kbit_s(published::LOSS, &[("configured_loss_percent", percent.as_str())]);
            cells.push(cell(LOSS, Duration::ZERO, *loss, thesis));
        }
        for latency in self.loss_latencies.iter().map(|latency| **latency) {
            let ms = text(ms(latency));
            let thesis = published::rate_kbit_s(published::LOSS_AND_LATENCY, &[("path_latency_ms", ms.as_str())]);
            cells.push(cell(BOTH, latency, self.loss, thesis.filter(|_| percent(self.loss) == 10.0)));
        }
        Study {
            name: "paths",
            title: "Calls over latency and loss",
            keys: vec![("test", ""), ("latency", "ms"), ("loss", "%")],
            cells,
            notes: vec![
                "latency: one way, once per direction (E-L33). loss: configured; each packet passes the lossy rule twice, into the relay and out of it (E-L3).".to_owned(),
                "The thesis's round-trip time of 82.66 ms at 10 % and 25 ms is an outlier: its other rows are twice the latency (E-L5).".to_owned(),
            ],
        }
    }
}

/// A call through a relay. Link 0 is between A and the relay, link 1 between the relay and B.
fn cell(test: &str, latency: Duration, loss: Probability, thesis_kbit_s: Option<f64>) -> Cell {
    let link = Config {
        up: PipeConfig { delay: latency, loss, ..PipeConfig::default() },
        down: PipeConfig { loss, ..PipeConfig::default() },
        ..Config::default()
    };
    let call = CallPlan {
        to_b: vec![(0, Direction::Up), (1, Direction::Down)],
        to_a: vec![(1, Direction::Up), (0, Direction::Down)],
        start: Duration::ZERO,
    };
    Cell {
        key: vec![json!(test), json!(latency.as_secs_f64() * 1000.0), json!((loss.get() * 1e5).round() / 1e3)],
        setup: Setup { links: vec![link.clone(), link], calls: vec![call], ..Setup::default() },
        thesis_kbit_s,
        capacity_kbit_s: None,
    }
}

impl Experiment for LozanoPaths {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        Choice::read(parameters).map_or(0.0, |(common, choice)| common.estimate_s(choice.study().cells.len()))
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let (common, choice) = Choice::read(parameters)?;
        let study = choice.study();
        let own =
            |points: &[Point<'_>], measured: &[Measured]| vec![tables::checks(study.name, checks(points, measured))];
        study::run(&study, &common, bench, own)
    }
}

fn checks(points: &[Point<'_>], measured: &[Measured]) -> Vec<Check> {
    let mut checks: Vec<Check> = points.iter().flat_map(of_point).collect();
    let target = [json!(BOTH), json!(50.0), json!(10.0)];
    let rates = points.iter().filter(|point| point.cell.key == target).map(|point| (rate(point), point));
    if let Some((best, point)) = rates.max_by(|a, b| a.0.total_cmp(&b.0)) {
        checks.push(Check {
            of: "10 % and 50 ms, best controller".into(),
            check: format!("rate above the thesis's {THESIS_10_PERCENT_50_MS} kbit/s (55.34 by its machines, E-L4)"),
            is_promised: true,
            passed: best > THESIS_10_PERCENT_50_MS,
            found: format!("{}: {best:.0} kbit/s, {:.2} times", point.algorithm, best / THESIS_10_PERCENT_50_MS),
        });
    }
    checks.push(tables::heads_check(measured));
    checks
}

fn rate(point: &Point<'_>) -> f64 {
    Pooled::of(point.runs.iter().flat_map(|run| &run.calls).flat_map(|call| &call.received)).rate
}

fn of_point(point: &Point<'_>) -> Vec<Check> {
    let pooled = Pooled::of(point.runs.iter().flat_map(|run| &run.calls).flat_map(|call| &call.received));
    let of = tables::case(point);
    let number = |at: usize| point.cell.key[at].as_f64().unwrap_or_default();
    let (twice, loss) = (2.0 * number(1), number(2) / 100.0);
    let mut checks = Vec::new();
    if point.cell.key[0] != LOSS {
        let rtt = pooled.rtt.unwrap_or(f64::NAN);
        checks.push(Check {
            of: of.clone(),
            check: format!("round-trip time is {twice} ms + at most {RTT_EXTRA_MS} ms"),
            is_promised: true,
            passed: (twice..=twice + RTT_EXTRA_MS).contains(&rtt),
            found: format!("{rtt:.2} ms"),
        });
    }
    if loss > 0.0 {
        // Both passes, within four standard deviations of independent losses.
        let expected = 1.0 - (1.0 - loss).powi(2);
        let sent = pooled.delay.count() as f64 / (1.0 - pooled.packet_loss).max(0.01);
        let tolerance = 4.0 * (expected * (1.0 - expected) / sent.max(1.0)).sqrt();
        checks.push(Check {
            of,
            check: format!("packet loss is {:.2} %, that of two passes (E-L3)", expected * 100.0),
            is_promised: true,
            passed: (pooled.packet_loss - expected).abs() <= tolerance,
            found: format!("{:.2} %", pooled.packet_loss * 100.0),
        });
    }
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
    fn cells_are_those_of_the_thesis() {
        let (_, choice) = read("").expect("valid");
        let cells = choice.study().cells;
        assert_eq!(cells.len(), 12);
        let rates: Vec<f64> = cells.iter().filter_map(|cell| cell.thesis_kbit_s).map(f64::round).collect();
        assert_eq!(rates, [1914.0, 1485.0, 561.0, 256.0, 1897.0, 1569.0, 1141.0, 314.0, 72.0, 55.0, 64.0, 66.0]);
        let (_, other) = read("loss = \"5%\"\nlatencies = [\"30ms\"]").expect("valid");
        let cells = other.study().cells;
        assert_eq!(cells[0].thesis_kbit_s.or(cells[5].thesis_kbit_s), None, "the thesis has no such cells");
    }

    #[test]
    fn invalid_parameters_are_refused() {
        for refused in [
            "targets = [\"ws\"]",
            "controllers = [\"cubic\"]",
            "controllers = []",
            "latencies = [\"1h\"]",
            "losses = [\"101%\"]",
            "latencies = []\nlosses = []\nloss_latencies = []",
            "test = \"1s\"",
            "repeats = 0",
            "other = 1",
        ] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn quick_form_keeps_its_promises() {
        let (common, choice) = Choice::read(&quick(include_str!("scenario.toml"))).expect("valid");
        let study = choice.study();
        study::tests::assert_promises(&study, &common, checks);
    }
}
