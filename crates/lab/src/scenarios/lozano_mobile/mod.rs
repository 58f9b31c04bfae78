//! A phone calls a wired participant (row L-15): profiles of mobile networks, with their queue or with a deep one.

use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_link::{Config, QueueLimit, profiles};
use serde::Deserialize;
use serde_json::{Value, json};

use super::lozano::{
    calls::{CallPlan, Setup},
    choice::Common,
    figures::{StreamFigures, mean},
    study::{self, Cell, Point, Study},
    tables,
};
use crate::{
    nearest::nearest,
    recording::Table,
    sweep::{Bench, Experiment},
};

/// Entry in the list of scenarios.
pub struct LozanoMobile;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    profiles: Vec<String>,
    queues: Vec<String>,
}

/// Name of the queue that a profile has.
const OF_PROFILE: &str = "profile";
/// Seconds of the first part of a call.
const FIRST_S: usize = 10;
/// A call has adapted once the mean delay of a second stays within this of the delay of the empty path until the end.
const QUEUE_MS: f64 = 200.0;
/// In this share of the further seconds.
const STEADY_SHARE: f64 = 0.9;

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<(Common, Choice)> {
        let (common, choice): (Common, Choice) = Common::read(parameters)?;
        ensure!(!choice.profiles.is_empty() && !choice.queues.is_empty(), "profiles, queues: at least one value each");
        choice.study()?;
        Ok((common, choice))
    }

    fn study(&self) -> anyhow::Result<Study> {
        let cells = self.profiles.iter().flat_map(|profile| self.queues.iter().map(move |queue| cell(profile, queue)));
        Ok(Study {
            name: "mobile",
            title: "Calls of a mobile phone",
            keys: vec![("profile", ""), ("queue", "")],
            cells: cells.collect::<anyhow::Result<_>>()?,
            notes: vec![
                "A has the phone: A receives over the downlink, B over the uplink. There is no radio state in these profiles.".to_owned(),
                "The thesis, with a real 3G network: 200 kbit/s from the phone, about 2 Mbit/s from the wired host; more than 1 s of delay in the first part of a call, then 200 ms (LV11, LV12).".to_owned(),
            ],
        })
    }
}

fn cell(name: &str, queue: &str) -> anyhow::Result<Cell> {
    let profile = profiles().get(name).with_context(|| {
        format!("profiles: no profile {name}{}", nearest(name, profiles().keys().map(String::as_str)))
    })?;
    let mut link: Config = profile.config.clone();
    if queue != OF_PROFILE {
        let limit: QueueLimit = queue.parse().context("queues: `profile` or a limit")?;
        for pipe in [&mut link.up, &mut link.down].into_iter().filter(|pipe| pipe.rate.is_some()) {
            pipe.queue = Some(limit);
        }
    }
    let call = CallPlan::over_one_link(Duration::ZERO);
    Ok(Cell {
        key: vec![json!(name), json!(queue)],
        setup: Setup { links: vec![link], calls: vec![call], ..Setup::default() },
        ..Cell::default()
    })
}

impl Experiment for LozanoMobile {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |(common, choice): (Common, Choice)| common.estimate_s(choice.profiles.len() * choice.queues.len());
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let (common, choice) = Choice::read(parameters)?;
        let study = choice.study()?;
        study::run(&study, &common, bench, |points, measured| {
            vec![adaptation(&study, points), tables::checks(study.name, vec![tables::heads_check(measured)])]
        })
    }
}

/// Returns the second from which on the delay stays low. `None`: never.
fn adapted_after(delays: &[f64], empty_ms: f64) -> Option<usize> {
    let is_low = |delay: &&f64| **delay <= empty_ms + QUEUE_MS;
    (0..delays.len()).find(|from| {
        let rest = &delays[*from..];
        let low = rest.iter().filter(is_low).count();
        is_low(&&rest[0]) && low as f64 >= STEADY_SHARE * rest.len() as f64
    })
}

fn adaptation(study: &Study, points: &[Point<'_>]) -> Table {
    let mut rows = Vec::new();
    for point in points {
        let link = &point.cell.setup.links[0];
        for (n, way, empty) in [(0, "to the phone", link.down.delay), (1, "from the phone", link.up.delay)] {
            let empty_ms = empty.as_secs_f64() * 1000.0;
            let streams = || point.runs.iter().flat_map(|run| &run.calls).map(move |call| &call.received[n]);
            let seconds = |stream: &StreamFigures| stream.delays.iter().flatten().copied().collect::<Vec<f64>>();
            let part = |of: &dyn Fn(&[f64]) -> Vec<f64>| {
                mean(&streams().flat_map(|stream| of(&seconds(stream))).collect::<Vec<f64>>())
            };
            let first = part(&|delays| delays[..FIRST_S.min(delays.len())].to_vec());
            let rest = part(&|delays| delays[FIRST_S.min(delays.len())..].to_vec());
            let worst = streams().flat_map(seconds).reduce(f64::max);
            let adapted: Vec<f64> =
                streams().filter_map(|stream| adapted_after(&seconds(stream), empty_ms)).map(|s| s as f64).collect();
            let rates: Vec<f64> = streams().map(StreamFigures::rate).collect();
            let rounded = |value: Option<f64>| value.map_or(Value::Null, |value| json!((value * 10.0).round() / 10.0));
            let mut row = point.cell.key.clone();
            row.extend([json!(point.algorithm.name()), json!(way), rounded(mean(&rates)), json!(empty_ms)]);
            row.extend([rounded(first), rounded(worst), rounded(rest), rounded(mean(&adapted))]);
            row.push(json!(streams().count() - adapted.len()));
            rows.push(row);
        }
    }
    let own = [
        ("controller", ""),
        ("stream", ""),
        ("rate", "kbit/s"),
        ("empty path", "ms"),
        ("delay of the first part", "ms"),
        ("longest second", "ms"),
        ("delay of the rest", "ms"),
        ("adapted after", "s"),
        ("not adapted", ""),
    ];
    let notes = vec![
        format!("first part: the first {FIRST_S} s. Delays: means of each second. longest second: of all calls."),
        format!(
            "adapted: from this second on, the queue has less than {QUEUE_MS} ms in {} % of the seconds.",
            STEADY_SHARE * 100.0
        ),
    ];
    tables::table(
        "mobile-adaptation",
        "Delay at the start of a call",
        &[&study.keys[..], &own[..]].concat(),
        rows,
        notes,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::test_parameters::{parameters, quick};

    fn read(text: &str) -> anyhow::Result<(Common, Choice)> {
        Choice::read(&parameters(include_str!("scenario.toml"), text))
    }

    #[test]
    fn adapted_is_the_first_second_of_a_low_rest() {
        let delays = [900.0, 1500.0, 200.0, 800.0, 150.0, 150.0, 150.0, 150.0];
        assert_eq!(adapted_after(&delays, 75.0), Some(4));
        assert_eq!(adapted_after(&[100.0; 3], 75.0), Some(0));
        assert_eq!(adapted_after(&[500.0; 3], 75.0), None);
        assert_eq!(adapted_after(&[], 75.0), None);
    }

    #[test]
    fn unknown_profile_suggests_the_nearest() {
        assert_eq!(read("").expect("valid").1.study().expect("valid").cells.len(), 8);
        let error = read("profiles = [\"ltee\"]").expect_err("unknown").to_string();
        assert!(error.contains("did you mean lte?"), "{error}");
        for refused in ["queues = [\"deep\"]", "queues = []", "profiles = []"] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn quick_form_keeps_its_promises() {
        let (common, choice) = Choice::read(&quick(include_str!("scenario.toml"))).expect("valid");
        let study = choice.study().expect("valid");
        study::tests::assert_promises(&study, &common, |_, measured| vec![tables::heads_check(measured)]);
    }
}
