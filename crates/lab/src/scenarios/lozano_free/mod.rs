//! Calls without a bottleneck (row L-09, table 8): over real UDP sockets on loopback, with ICE, DTLS and SRTP. This
//! scenario runs in real time, because set-up takes CPU time and timers of the libraries.
//!
//! - this file: parameters, repeats
//! - [`pair`]: two ends of a call, their sockets, and what arrives
//! - [`tables`]: set-up time, rate and delay, checks

mod pair;
mod tables;

use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_link::Rate;
use serde::Deserialize;

use crate::sweep::{Bench, Experiment};

use pair::{Pair, Streams};

/// Entry in the list of scenarios.
pub struct LozanoFree;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    targets: Vec<String>,
    calls: u32,
    #[serde(with = "humantime_serde")]
    patience: Duration,
    #[serde(with = "humantime_serde")]
    test: Duration,
    repeats: u32,
    ceiling: Rate,
}

/// Estimated time to set up a call, in seconds.
const SETUP_S: f64 = 0.15;

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<Choice> {
        let choice: Choice = parameters.clone().try_into()?;
        ensure!(choice.targets == ["millrace"], "targets: millrace alone, whose call endpoint is measured");
        ensure!((1..=100_000).contains(&choice.calls), "calls: 1 to 100,000");
        ensure!((Duration::from_secs(1)..=Duration::from_secs(60)).contains(&choice.patience), "patience: 1s to 1min");
        ensure!((Duration::from_secs(2)..=Duration::from_secs(3600)).contains(&choice.test), "test: 2s to 1h");
        ensure!((1..=100).contains(&choice.repeats), "repeats: 1 to 100");
        Ok(choice)
    }
}

impl Experiment for LozanoFree {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |choice: Choice| {
            f64::from(choice.calls) * SETUP_S + f64::from(choice.repeats) * (choice.test.as_secs_f64() + SETUP_S)
        };
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let choice = Choice::read(parameters)?;
        if bench.has_table(tables::FREE) {
            return Ok(());
        }
        let mut setups = Vec::new();
        for call in 0..choice.calls {
            bench.go_on()?;
            let mut pair = Pair::new(bench.seed.wrapping_add(call.into()), choice.ceiling)?;
            setups.push(pair.set_up(choice.patience)?);
        }
        bench.note(&tables::describe_setups(&setups));
        let mut streams: Vec<Streams> = Vec::new();
        for repeat in 0..choice.repeats {
            let mut pair = Pair::new(bench.seed.wrapping_add(repeat.into()), choice.ceiling)?;
            pair.set_up(choice.patience)?.context("the call has no media")?;
            let go_on = bench.go_on_elsewhere();
            let measured = pair.talk(choice.test, &go_on)?;
            drop(go_on);
            bench.note(&tables::describe(&measured));
            streams.push(measured);
        }
        tables::tables(&choice.patience, &setups, &streams, bench.form)
            .into_iter()
            .try_for_each(|table| bench.table(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::test_parameters::parameters;

    fn read(text: &str) -> anyhow::Result<Choice> {
        Choice::read(&parameters(include_str!("scenario.toml"), text))
    }

    #[test]
    fn invalid_parameters_are_refused() {
        assert!(read("").is_ok());
        for refused in ["calls = 0", "patience = \"0s\"", "test = \"1s\"", "repeats = 0", "controllers = [\"gcc\"]"] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn call_is_set_up_over_real_sockets() {
        let mut pair = Pair::new(1, "2Mbit/s".parse().expect("a rate")).expect("sockets");
        let setup = pair.set_up(Duration::from_secs(15)).expect("sockets").expect("media of both ends");
        assert!(setup < Duration::from_secs(15));
        let streams = pair.talk(Duration::from_secs(1), &|| Ok(())).expect("sockets");
        for stream in streams {
            assert!(stream.delay.count() > 50 && stream.lost == 0, "{stream:?}");
        }
    }
}
