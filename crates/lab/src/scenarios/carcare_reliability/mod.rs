//! The network faults that Somogyi observed, in scaled time: forgotten connections, caches that ignore headers, and a
//! change of network (row S-06).
//!
//! The result is one table. It shows each check by transport: whether all messages arrived at once, when each end
//! noticed the fault, and the number of stale, lost and duplicate messages.

mod checks;
mod client;

use std::{thread, time::Duration};

use anyhow::ensure;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    judged::{PASSED, PROMISED},
    recording::{Column, Table},
    sweep::{Bench, Experiment},
    targets::{Options, Server, Transport, check_over_tcp, find},
};

use checks::{Path, Row};

/// Entry in the list of scenarios.
pub struct CarcareReliability;

const TABLE: &str = "reliability";
/// Number of rounds of polls through a cache.
const ROUNDS: u64 = 6;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    /// Only Millrace is possible: the checks need to resume by position.
    targets: Vec<String>,
    transports: Vec<Transport>,
    #[serde(with = "humantime_serde")]
    nat_idle: Duration,
    messages: u64,
}

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<Choice> {
        let choice: Choice = parameters.clone().try_into()?;
        ensure!(choice.targets == ["millrace"], "targets: millrace alone, which resumes by positions");
        ensure!(!choice.transports.is_empty(), "transports: one at least");
        check_over_tcp(&choice.transports)?;
        ensure!((1..=1000).contains(&choice.messages), "messages: 1 to 1,000");
        // Millrace checks only once a second which connections need a heartbeat.
        let lasts = Duration::from_secs(4)..=Duration::from_secs(60);
        ensure!(lasts.contains(&choice.nat_idle), "nat_idle: 4s to 60s");
        Ok(choice)
    }
}

impl Experiment for CarcareReliability {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        Choice::read(parameters).map_or(0.0, |choice| 12.0 + 7.0 * choice.nat_idle.as_secs_f64())
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        if bench.has_table(TABLE) {
            return Ok(());
        }
        let choice = Choice::read(parameters)?;
        let options = bench.options("millrace", &[]);
        let (mut rows, idle) = (Vec::new(), choice.nat_idle);
        bench.go_on()?;
        // The checks mostly wait, so they run at the same time.
        thread::scope(|scope| -> anyhow::Result<()> {
            let nat = |heartbeat| with_server(&options, heartbeat, &choice, |path| checks::nat(path, idle, heartbeat));
            let heartbeats = [None, Some(idle / 2), Some(idle * 3 / 2)];
            let running = heartbeats.map(|heartbeat| scope.spawn(move || nat(heartbeat)));
            for one in running {
                rows.extend(one.join().expect("it does not panic")?);
            }
            Ok(())
        })?;
        bench.go_on()?;
        rows.extend(with_server(&options, None, &choice, |path| checks::change_of_network(path, choice.messages))?);
        rows.extend(with_server(&options, None, &choice, checks::buffer)?);
        bench.go_on()?;
        let server = start(&options, None)?;
        let path = Path { target: find("millrace")?, server: server.address, transport: Transport::Session };
        for wait in ["", "&wait=100ms"] {
            for busting in [false, true] {
                rows.push(checks::cache(path, wait, busting, ROUNDS)?);
            }
        }
        let pauses: Vec<Duration> = (1..=12).map(|tenths| idle * tenths / 8).collect();
        let longest = checks::longest_pause(path, idle, &pauses)?;
        let table = table(&rows, idle, longest);
        rows.iter().for_each(|row| bench.note(&describe(row)));
        bench.note(table.notes.first().map_or("", String::as_str));
        bench.table(table)
    }
}

/// Runs a check with all transports at the same time, on one new server.
fn with_server(
    options: &Options,
    heartbeat: Option<Duration>,
    choice: &Choice,
    check: impl Fn(Path) -> anyhow::Result<Row> + Sync,
) -> anyhow::Result<Vec<Row>> {
    let (server, target) = (start(options, heartbeat)?, find("millrace")?);
    thread::scope(|scope| {
        let address = server.address;
        let paths = choice.transports.iter().map(|transport| Path { target, server: address, transport: *transport });
        let check = &check;
        let running: Vec<_> = paths.map(|path| scope.spawn(move || check(path))).collect();
        running.into_iter().map(|one| one.join().expect("it does not panic")).collect()
    })
}

/// Starts Millrace. Without `heartbeat`, the server sends as few heartbeats as possible.
fn start(options: &Options, heartbeat: Option<Duration>) -> anyhow::Result<Server> {
    let ms = |name: &str, lasts: Duration| ["--set".to_owned(), format!("limits.{name}={}ms", lasts.as_millis())];
    let arguments = match heartbeat {
        Some(every) => [ms("heartbeat", every), ms("grace", every), ms("hold_max", every)].concat(),
        None => ms("heartbeat", Duration::from_secs(3600)).to_vec(),
    };
    find("millrace")?.start(&Options { arguments, ..options.clone() })
}

fn table(rows: &[Row], idle: Duration, longest: Option<Duration>) -> Table {
    let column = |(name, unit): (&str, &str)| Column { name: name.into(), unit: unit.into() };
    let columns = [
        ("check", ""),
        ("transport", ""),
        (PROMISED, ""),
        (PASSED, ""),
        ("client noticed", "s"),
        ("server noticed", "s"),
        ("stale", "answers"),
        ("lost", "messages"),
        ("again", "messages"),
    ];
    let finder = match longest {
        Some(pause) => format!("The longest pause that survived this NAT was {pause:?}; its timeout is {idle:?}."),
        None => format!("No pause survived; the timeout of the NAT is {idle:?}."),
    };
    let cells = |row: &Row| -> Vec<Value> {
        let Row { check, transport, promised, passed, client_s, server_s, stale, lost, again } = row;
        let said = |is_so: bool| if is_so { "yes" } else { "no" };
        vec![
            json!(check),
            json!(transport),
            json!(said(*promised)),
            json!(said(*passed)),
            json!(client_s),
            json!(server_s),
            json!(stale),
            json!(lost),
            json!(again),
        ]
    };
    Table {
        name: TABLE.into(),
        title: "Connections in difficult networks".into(),
        columns: columns.map(column).to_vec(),
        rows: rows.iter().map(cells).collect(),
        notes: vec![
            finder,
            "Noticed: time from the start of the silence; empty: not within five times the timeout of the NAT.".into(),
            "The NAT acknowledges the packets that it drops. Without these, TCP gives up after 15 minutes with Linux's defaults.".into(),
            "The cache also stores 204, as RFC 9110, 15.1, allows: an empty poll has the URL of the next poll unless it carries `_`, as the clients of Millrace do.".into(),
            "A bare WebSocket carries no positions: after a reconnect, its client receives only new publications.".into(),
        ],
    }
}

fn describe(row: &Row) -> String {
    let seconds = |at: Option<f64>| at.map_or("-".to_owned(), |at| format!("{at:.1} s"));
    format!(
        "{:<40} {:<13} {:<7} client {:>6}  server {:>6}  stale {} lost {} again {}",
        row.check,
        row.transport,
        match (row.passed, row.promised) {
            (true, _) => "passed",
            (false, true) => "FAILED",
            (false, false) => "failed",
        },
        seconds(row.client_s),
        seconds(row.server_s),
        row.stale,
        row.lost,
        row.again
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_parameters_are_refused() {
        let parameters = |text: &str| {
            let given: toml::Table = text.parse().expect("a table");
            let all: toml::Table = include_str!("scenario.toml").parse().expect("a table");
            let mut all = all["parameters"].as_table().expect("parameters").clone();
            all.extend(given);
            Choice::read(&all)
        };
        assert!(parameters("").is_ok());
        for refused in ["targets = [\"ws\"]", "transports = []", "nat_idle = \"1s\"", "messages = 0", "other = 1"] {
            assert!(parameters(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn unnoticed_failure_is_null_in_the_table() {
        let row = Row { check: "x".into(), transport: "sse".into(), client_s: Some(2.0), lost: 1, ..Row::default() };
        let table = table(&[row], Duration::from_secs(4), Some(Duration::from_millis(3500)));
        assert_eq!(table.rows[0].len(), table.columns.len());
        assert_eq!(table.rows[0][2..7], [json!("no"), json!("no"), json!(2.0), json!(null), json!(0)]);
        assert!(table.notes[0].contains("3.5s") && table.notes[0].contains("4s"));
    }
}
