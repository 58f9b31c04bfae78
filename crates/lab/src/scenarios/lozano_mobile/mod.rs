//! A phone calls a wired participant (row L-15): profiles of mobile networks, with their queue or with a deep one.

use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_link::{Config, Handover, QueueLimit, Repeated, profiles};
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
    spikes: Vec<String>,
}

/// Name of the queue that a profile has.
const OF_PROFILE: &str = "profile";
/// Name of a call without a delay spike.
const NO_SPIKE: &str = "none";
/// Duration of a delay spike.
const SPIKE: Duration = Duration::from_secs(1);
/// A call has recovered from a spike once a second has at least this share of the rate before it, and a low delay.
const RECOVERED_SHARE: f64 = 0.8;
/// Seconds before a spike that give the rate before it.
const BEFORE_S: usize = 10;
/// Seconds of the first part of a call.
const FIRST_S: usize = 10;
/// A call has adapted once the mean delay of a second stays within this of the delay of the empty path until the end.
const QUEUE_MS: f64 = 200.0;
/// In this share of the further seconds.
const STEADY_SHARE: f64 = 0.9;

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<(Common, Choice)> {
        let (common, choice): (Common, Choice) = Common::read(parameters)?;
        let is_complete = ![&choice.profiles, &choice.queues, &choice.spikes].iter().any(|values| values.is_empty());
        ensure!(is_complete, "profiles, queues, spikes: at least one value each");
        choice.study()?;
        Ok((common, choice))
    }

    fn study(&self) -> anyhow::Result<Study> {
        let mut cells = Vec::new();
        for profile in &self.profiles {
            for queue in &self.queues {
                for spike in &self.spikes {
                    cells.push(cell(profile, queue, spike)?);
                }
            }
        }
        Ok(Study {
            name: "mobile",
            title: "Calls of a mobile phone",
            keys: vec![("profile", ""), ("queue", ""), ("delay spike", "")],
            cells,
            notes: vec![
                "delay spike: for one second in the middle of the call, all packets take this much longer, as in a handover between two base stations.".to_owned(),
                "A has the phone: A receives over the downlink, B over the uplink. There is no radio state in these profiles.".to_owned(),
                "The thesis, with a real 3G network: 200 kbit/s from the phone, about 2 Mbit/s from the wired host; more than 1 s of delay in the first part of a call, then 200 ms (LV11, LV12).".to_owned(),
            ],
        })
    }
}

/// Parses `DELAY@TIME`: a spike of this delay at this time of the call.
fn parse_spike(text: &str) -> anyhow::Result<Option<Handover>> {
    if text == NO_SPIKE {
        return Ok(None);
    }
    let parsed = text
        .split_once('@')
        .and_then(|(delay, at)| Some((humantime::parse_duration(delay).ok()?, humantime::parse_duration(at).ok()?)));
    let (delay, at) = parsed.with_context(|| {
        format!("spikes: {text:?} is neither `{NO_SPIKE}` nor a delay and its time in the call, such as 1s@30s")
    })?;
    Ok(Some(Handover { period: Repeated { at, lasts: SPIKE, every: None }, delay }))
}

fn cell(name: &str, queue: &str, spike: &str) -> anyhow::Result<Cell> {
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
    link.handover = parse_spike(spike)?;
    let call = CallPlan::over_one_link(Duration::ZERO);
    Ok(Cell {
        key: vec![json!(name), json!(queue), json!(spike)],
        setup: Setup { links: vec![link], calls: vec![call], ..Setup::default() },
        ..Cell::default()
    })
}

impl Experiment for LozanoMobile {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |(common, choice): (Common, Choice)| {
            common.estimate_s(choice.profiles.len() * choice.queues.len() * choice.spikes.len())
        };
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

/// Returns the seconds from the end of a spike until rate and delay are as before, or `None` if that does not happen.
fn recovered_after(stream: &StreamFigures, spike: &Handover, empty_ms: f64) -> Option<usize> {
    let at = spike.period.at.as_secs() as usize;
    let before = mean(stream.rates.get(at.saturating_sub(BEFORE_S)..at)?)?;
    let end = at + SPIKE.as_secs() as usize;
    let is_recovered = |second: &usize| {
        let delay = stream.delays.get(*second).copied().flatten();
        stream.rates[*second] >= RECOVERED_SHARE * before && delay.is_some_and(|delay| delay <= empty_ms + QUEUE_MS)
    };
    (end..stream.rates.len()).find(is_recovered).map(|second| second - end)
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
            let start = |stream: &StreamFigures| {
                let at = link.handover.map_or(usize::MAX, |spike| spike.period.at.as_secs() as usize);
                seconds(stream).into_iter().take(at).collect::<Vec<f64>>()
            };
            let adapted: Vec<f64> =
                streams().filter_map(|stream| adapted_after(&start(stream), empty_ms)).map(|s| s as f64).collect();
            let recovered = |stream| recovered_after(stream, &link.handover?, empty_ms).map(|s| s as f64);
            let recovered: Vec<f64> = streams().filter_map(recovered).collect();
            let rates: Vec<f64> = streams().map(StreamFigures::rate).collect();
            let rounded = |value: Option<f64>| value.map_or(Value::Null, |value| json!((value * 10.0).round() / 10.0));
            let mut row = point.cell.key.clone();
            row.extend([json!(point.algorithm.name()), json!(way), rounded(mean(&rates)), json!(empty_ms)]);
            row.extend([rounded(first), rounded(worst), rounded(rest), rounded(mean(&adapted))]);
            row.push(json!(streams().count() - adapted.len()));
            row.push(rounded(mean(&recovered)));
            row.push(json!(link.handover.map(|_| streams().count() - recovered.len())));
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
        ("recovered after", "s"),
        ("not recovered", ""),
    ];
    let notes = vec![
        format!("first part: the first {FIRST_S} s. Delays: means of each second. longest second: of all calls."),
        format!(
            "adapted: from this second on, the queue has less than {QUEUE_MS} ms in {} % of the seconds, up to a delay spike.",
            STEADY_SHARE * 100.0
        ),
        format!(
            "recovered: seconds from the end of the spike until a second has {} % of the rate of the {BEFORE_S} s before it, and less than {QUEUE_MS} ms of queue.",
            RECOVERED_SHARE * 100.0
        ),
    ];
    tables::table(
        "mobile-adaptation",
        "Delay at the start of a call and after a spike",
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
        assert_eq!(read("").expect("valid").1.study().expect("valid").cells.len(), 16);
        let error = read("profiles = [\"ltee\"]").expect_err("unknown").to_string();
        assert!(error.contains("did you mean lte?"), "{error}");
        for refused in
            ["queues = [\"deep\"]", "queues = []", "profiles = []", "spikes = [\"1s\"]", "spikes = [\"x@y\"]"]
        {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn recovered_is_the_first_second_with_rate_and_delay() {
        let spike = parse_spike("1s@3s").expect("valid").expect("a spike");
        let stream = StreamFigures {
            rates: vec![100.0, 100.0, 100.0, 5.0, 200.0, 50.0, 80.0, 100.0],
            delays: [75.0, 75.0, 75.0, 1075.0, 900.0, 75.0, 75.0, 75.0].map(Some).to_vec(),
            ..StreamFigures::default()
        };
        assert_eq!(recovered_after(&stream, &spike, 75.0), Some(2));
        assert_eq!(recovered_after(&StreamFigures { rates: vec![100.0; 4], ..stream }, &spike, 75.0), None);
    }

    #[test]
    fn quick_form_keeps_its_promises() {
        let (common, choice) = Choice::read(&quick(include_str!("scenario.toml"))).expect("valid");
        let study = choice.study().expect("valid");
        study::tests::assert_promises(&study, &common, |_, measured| vec![tables::heads_check(measured)]);
    }
}
