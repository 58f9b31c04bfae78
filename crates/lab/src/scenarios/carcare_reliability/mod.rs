//! The network faults that Somogyi observed, in scaled time: forgotten connections, caches that ignore headers, and a
//! change of network (row S-06).
//!
//! One table shows each check by transport: whether all messages arrived at once, when each end noticed the fault, and
//! the number of stale, lost and duplicate messages. The other table has the networks of table 8, found by measuring.
//!
//! - this file: parameters, order of the checks
//! - [`network`]: an emulated link with a NAT, or a middlebox where links are not possible
//! - [`nat`]: the checks of a NAT
//! - [`checks`]: the checks of a change of network, a cache and a proxy
//! - [`idle_times`]: the networks of table 8
//! - [`client`], [`row`], [`tables`]: client, results, their tables

mod checks;
mod client;
mod idle_times;
mod nat;
mod network;
mod row;
mod tables;

use std::{net::SocketAddr, thread, time::Duration};

use anyhow::ensure;
use millrace_link::Config;
use serde::Deserialize;

use crate::{
    path::PathSettings,
    recording::{Finding, LinkRun},
    sweep::{Bench, Experiment},
    targets::{Options, Server, Transport, check_over_tcp, find},
};

use idle_times::Scale;
use nat::Heartbeat;
use network::Networks;
use row::Row;

/// Entry in the list of scenarios.
pub struct CarcareReliability;

/// Number of rounds of polls through a cache.
const ROUNDS: u64 = 6;
/// Estimated time of the checks without a NAT, per repeat.
const OTHER_CHECKS_S: f64 = 6.0;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    /// Only Millrace is possible: the checks need to resume by position.
    targets: Vec<String>,
    transports: Vec<Transport>,
    #[serde(with = "humantime_serde")]
    nat_idle: Duration,
    networks: Vec<String>,
    minutes_per_s: f64,
    messages: u64,
    repeats: u32,
    path: PathSettings,
}

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<Choice> {
        let choice: Choice = parameters.clone().try_into()?;
        ensure!(choice.targets == ["millrace"], "targets: millrace alone, which resumes by positions");
        ensure!(!choice.transports.is_empty(), "transports: one at least");
        check_over_tcp(&choice.transports)?;
        ensure!((1..=1000).contains(&choice.messages), "messages: 1 to 1,000");
        ensure!((1..=20).contains(&choice.repeats), "repeats: 1 to 20");
        // Millrace checks only once a second which connections need a heartbeat.
        let lasts = Duration::from_secs(4)..=Duration::from_secs(60);
        ensure!(lasts.contains(&choice.nat_idle), "nat_idle: 4s to 60s");
        // With a larger scale, delays of the machine are minutes of the thesis.
        ensure!((0.1..=30.0).contains(&choice.minutes_per_s), "minutes_per_s: 0.1 to 30");
        idle_times::cases(&choice.networks)?;
        choice.link()?;
        Ok(choice)
    }

    /// Returns the link to which NATs are added.
    fn link(&self) -> anyhow::Result<Config> {
        let link = self.path.config()?.unwrap_or_default();
        ensure!(link.nat.is_none(), "path.nat: the scenario has NATs of its own: set nat_idle");
        ensure!(link.address_changes.is_empty(), "path.address_changes: the scenario changes addresses itself");
        ensure!(link.up.trace.is_none() && link.down.trace.is_none(), "path: a trace needs `millrace lab link run`");
        Ok(link)
    }

    fn scale(&self) -> Scale {
        Scale { minutes_per_s: self.minutes_per_s }
    }
}

impl Experiment for CarcareReliability {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |choice: Choice| {
            let repeat_s = nat::estimate_s(choice.nat_idle) + OTHER_CHECKS_S;
            let cases = idle_times::cases(&choice.networks).unwrap_or_default();
            f64::from(choice.repeats) * repeat_s + choice.scale().estimate_s(&cases)
        };
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let choice = Choice::read(parameters)?;
        let networks = Networks::new(choice.link()?, choice.path.name(), bench.seed);
        if let Some(finding) = networks.finding(bench.form) {
            bench.note(&finding.detail);
        }
        if !bench.has_table(tables::RELIABILITY) {
            reliability(&choice, &networks, bench)?;
        }
        if !bench.has_table(tables::NETWORKS) && !choice.networks.is_empty() {
            idle_times(&choice, &networks, bench)?;
        }
        Ok(())
    }
}

/// Runs all checks and records their table.
fn reliability(choice: &Choice, networks: &Networks, bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let options = bench.options("millrace", &[]);
    let (mut rows, mut links) = (Vec::new(), Vec::new());
    for _ in 0..choice.repeats {
        bench.go_on()?;
        for (made, link) in nats(choice, networks, &options)? {
            Row::merge(&mut rows, made);
            links.extend(link);
        }
        bench.go_on()?;
        let change = |server, transport| checks::change_of_network(server, transport, choice.messages);
        Row::merge(&mut rows, with_server(&options, choice, change)?);
        Row::merge(&mut rows, with_server(&options, choice, checks::buffer)?);
        bench.go_on()?;
        let server = start(&options, None)?;
        for wait in ["", "&wait=100ms"] {
            for busting in [false, true] {
                Row::merge(&mut rows, vec![checks::cache(server.address, wait, busting, ROUNDS)?]);
            }
        }
    }
    rows.iter().for_each(|row| bench.note(&describe(row)));
    let findings = findings(networks, &links, bench);
    bench.table(tables::reliability(&rows, choice.repeats, findings, network::cost(&links)))
}

/// Runs the checks of all NATs at the same time: they mostly wait.
fn nats(choice: &Choice, networks: &Networks, options: &Options) -> anyhow::Result<Vec<(Vec<Row>, Option<LinkRun>)>> {
    thread::scope(|scope| {
        let run = |check: nat::Check| check.run(networks, &choice.transports, |heartbeat| start(options, heartbeat));
        let checks = nat::checks(choice.nat_idle, networks.are_emulated());
        let running: Vec<_> = checks.into_iter().map(|check| scope.spawn(move || run(check))).collect();
        running.into_iter().map(|one| one.join().expect("it does not panic")).collect()
    })
}

/// Searches in all networks of table 8 at the same time, and records their table.
fn idle_times(choice: &Choice, networks: &Networks, bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let options = bench.options("millrace", &[]);
    let (scale, cases) = (choice.scale(), idle_times::cases(&choice.networks)?);
    let go_on = bench.go_on_elsewhere();
    let results = thread::scope(|scope| -> anyhow::Result<Vec<_>> {
        let (go_on, options) = (&go_on, &options);
        let run = |case| idle_times::run(case, networks, scale, choice.repeats, || start(options, None), go_on);
        let running: Vec<_> = cases.into_iter().map(|case| scope.spawn(move || run(case))).collect();
        running.into_iter().map(|one| one.join().expect("it does not panic")).collect()
    })?;
    drop(go_on);
    let (outcomes, links): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    let links: Vec<LinkRun> = links.into_iter().flatten().collect();
    outcomes.iter().for_each(|outcome| bench.note(&describe_network(outcome, scale)));
    let findings = findings(networks, &links, bench);
    bench.table(tables::networks(&outcomes, scale, choice.repeats, findings, network::cost(&links)))
}

fn findings(networks: &Networks, links: &[LinkRun], bench: &Bench<'_>) -> Vec<Finding> {
    networks.finding(bench.form).into_iter().chain(network::findings(links)).collect()
}

/// Runs a check with all transports at the same time, on one new server.
fn with_server(
    options: &Options,
    choice: &Choice,
    check: impl Fn(SocketAddr, Transport) -> anyhow::Result<Row> + Sync,
) -> anyhow::Result<Vec<Row>> {
    let server = start(options, None)?;
    thread::scope(|scope| {
        let (check, address) = (&check, server.address);
        let spawn = |transport: &Transport| {
            let transport = *transport;
            scope.spawn(move || check(address, transport))
        };
        let running: Vec<_> = choice.transports.iter().map(spawn).collect();
        running.into_iter().map(|one| one.join().expect("it does not panic")).collect()
    })
}

/// Starts Millrace. Without `heartbeat`, the server sends as few heartbeats as possible.
fn start(options: &Options, heartbeat: Option<Heartbeat>) -> anyhow::Result<Server> {
    let ms = |name: &str, lasts: Duration| ["--set".to_owned(), format!("limits.{name}={}ms", lasts.as_millis())];
    let arguments = match heartbeat {
        Some(Heartbeat { every, grace }) => {
            [ms("heartbeat", every), ms("grace", grace), ms("hold_max", every)].concat()
        }
        None => ms("heartbeat", Duration::from_secs(3600)).to_vec(),
    };
    find("millrace")?.start(&Options { arguments, ..options.clone() })
}

fn describe(row: &Row) -> String {
    let seconds = |at: Option<(f64, f64)>| at.map_or("-".to_owned(), |(median, _)| format!("{median:.1} s"));
    format!(
        "{:<40} {:<13} {:<7} client {:>6}  server {:>6}  stale {} lost {} again {}",
        row.check,
        row.transport,
        match (row.passed(), row.promised) {
            (true, _) => "passed",
            (false, true) => "FAILED",
            (false, false) => "failed",
        },
        seconds(row.times(|outcome| outcome.client_s)),
        seconds(row.times(|outcome| outcome.server_s)),
        row.sum(|outcome| outcome.stale),
        row.sum(|outcome| outcome.lost),
        row.sum(|outcome| outcome.again)
    )
}

fn describe_network(outcome: &idle_times::Outcome, scale: Scale) -> String {
    let minutes = |time: Option<Duration>| time.map_or("-".to_owned(), |time| format!("{:.1}", scale.minutes(time)));
    format!(
        "{:<28} {:>6} min  survived {:>6}  died {:>6}  heartbeat {:>6}  lost {}  {}",
        outcome.case.title,
        outcome.case.minutes.map_or("180+".to_owned(), |minutes| minutes.to_string()),
        minutes(outcome.survived()),
        minutes(outcome.died()),
        minutes(outcome.suggested()),
        outcome.lost(),
        if outcome.passed(scale) { "passed" } else { "FAILED" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::test_parameters::parameters;

    #[test]
    fn invalid_parameters_are_refused() {
        let read = |text: &str| Choice::read(&parameters(include_str!("scenario.toml"), text));
        assert!(read("").is_ok());
        for refused in [
            "targets = [\"ws\"]",
            "transports = []",
            "nat_idle = \"1s\"",
            "messages = 0",
            "repeats = 0",
            "minutes_per_s = 0.0",
            "minutes_per_s = 60.0",
            "networks = [\"lan\"]",
            "path = \"9g\"",
            "path = { nat = { idle = \"4s\" } }",
            "path = { up = { trace = \"a\" } }",
            "path = { address_changes = [\"4s\"] }",
            "other = 1",
        ] {
            assert!(read(refused).is_err(), "{refused}");
        }
        assert!(read("path = \"3g\"").unwrap().link().unwrap().down.rate.is_some());
    }

    #[test]
    fn forms_take_as_long_as_promised() {
        let file: toml::Table = include_str!("scenario.toml").parse().expect("a table");
        let of = |form: &str| {
            let mut all = file["parameters"].as_table().expect("parameters").clone();
            all.extend(file.get(form).and_then(toml::Value::as_table).cloned().unwrap_or_default());
            CarcareReliability.estimate_s(&all)
        };
        let (quick, full, thesis) = (of("quick"), of("full"), of("thesis"));
        assert!(20.0 < quick && quick <= 55.0, "{quick}");
        assert!(quick < full && full <= 360.0, "{full}");
        assert!(full < thesis && thesis <= 1800.0, "{thesis}");
    }
}
