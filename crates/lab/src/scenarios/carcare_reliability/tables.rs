//! The tables of the scenario.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    idle_times::{Outcome, Scale},
    nat::LATE_MAX,
    row::Row,
};
use crate::{
    judged::{PASSED, PROMISED},
    recording::{Column, Finding, Table},
};

pub const RELIABILITY: &str = "reliability";
pub const NETWORKS: &str = "networks";

/// Builds the table of all checks with all transports.
pub fn reliability(rows: &[Row], repeats: u32, findings: Vec<Finding>, cost: Vec<String>) -> Table {
    let columns = [
        ("check", ""),
        ("passes if", ""),
        ("transport", ""),
        (PROMISED, ""),
        (PASSED, ""),
        ("one interval", "s"),
        ("client noticed", "s"),
        ("client, slowest", "s"),
        ("server noticed", "s"),
        ("server, slowest", "s"),
        ("stale", "answers"),
        ("lost", "messages"),
        ("again", "messages"),
    ];
    let cells = |row: &Row| -> Vec<Value> {
        let (client, server) = (row.times(|outcome| outcome.client_s), row.times(|outcome| outcome.server_s));
        vec![
            json!(row.check),
            json!(row.criterion),
            json!(row.transport.name()),
            json!(said(row.promised)),
            json!(said(row.passed())),
            json!(row.limit_s),
            json!(client.map(|(median, _)| median)),
            json!(client.map(|(_, slowest)| slowest)),
            json!(server.map(|(median, _)| median)),
            json!(server.map(|(_, slowest)| slowest)),
            json!(row.sum(|outcome| outcome.stale)),
            json!(row.sum(|outcome| outcome.lost)),
            json!(row.sum(|outcome| outcome.again)),
        ]
    };
    let notes = [
        times(repeats),
        "One interval: heartbeat plus grace of the server. It counts from the first packet that the NAT discards."
            .into(),
        format!(
            "Both ends must notice within one interval and {} s: the server looks once per second for lost pings.",
            LATE_MAX.as_secs()
        ),
        "Noticed: median of the repeats, and the slowest one. Empty: not noticed, or nothing to notice.".into(),
        "A client notices by silence, the server of a WebSocket by a ping, that of a stream by TCP (TCP_USER_TIMEOUT)."
            .into(),
        "Long polling: the server keeps no state of a client between polls, so it has nothing to notice.".into(),
        "The cache also stores 204 (RFC 9110, 15.1): an empty poll has the URL of the next one, unless it carries `_`."
            .into(),
        "The client of a bare WebSocket counts messages from the position that the server sends first.".into(),
    ];
    table(RELIABILITY, "Connections in difficult networks", &columns, rows.iter().map(cells), notes, findings, cost)
}

/// Builds the table of the networks of table 8.
pub fn networks(outcomes: &[Outcome], scale: Scale, repeats: u32, findings: Vec<Finding>, cost: Vec<String>) -> Table {
    let columns = [
        ("network", ""),
        ("thesis", ""),
        ("NAT here", "s"),
        ("survived", "s"),
        ("died", "s"),
        ("survived, scaled", "min"),
        ("died, scaled", "min"),
        ("heartbeat", "s"),
        ("heartbeat, scaled", "min"),
        ("lost with it", "messages"),
        (PROMISED, ""),
        (PASSED, ""),
    ];
    let s = |time: Option<Duration>| json!(time.map(|time| time.as_secs_f64()));
    let minutes = |time: Option<Duration>| json!(time.map(|time| scale.minutes(time)));
    let cells = |outcome: &Outcome| -> Vec<Value> {
        let case = outcome.case;
        vec![
            json!(case.title),
            json!(case.minutes.map_or("more than 180 min".to_owned(), |minutes| format!("{minutes} min"))),
            s(case.minutes.map(|minutes| scale.here(minutes))),
            s(outcome.survived()),
            s(outcome.died()),
            minutes(outcome.survived()),
            minutes(outcome.died()),
            s(outcome.suggested()),
            minutes(outcome.suggested()),
            json!(outcome.lost()),
            json!("yes"),
            json!(said(outcome.passed(scale))),
        ]
    };
    let probes: usize = outcomes.iter().flat_map(|outcome| &outcome.repeats).map(|repeat| repeat.found.probes).sum();
    let contradictions: usize =
        outcomes.iter().flat_map(|outcome| &outcome.repeats).map(|repeat| repeat.found.contradictions).sum();
    let notes = [
        times(repeats),
        format!(
            "Scaled time: 1 s here is {} min of the thesis. The finder knows only that it must look from 1 to 180 min.",
            scale.minutes_per_s
        ),
        "Survived: the longest silence after which a message arrived, in all repeats.".into(),
        "Died: the shortest silence after which no message arrived, in any repeat. The timeout is between both.".into(),
        "Silences count from the last message at the client until the publisher began (survived) or ended (died)."
            .into(),
        "Heartbeat: the suggested interval, 80 % of the longest survived silence, less a step of the search.".into(),
        "With it, a client sends pings for twice the silence that ends a connection; then a message must arrive."
            .into(),
        format!("{probes} connections were probed; {contradictions} survived a silence that another one did not."),
    ];
    table(NETWORKS, "Networks of table 8", &columns, outcomes.iter().map(cells), notes, findings, cost)
}

fn times(repeats: u32) -> String {
    match repeats {
        1 => "Each check ran once.".into(),
        _ => format!("Each check ran {repeats} times, and passed if it did each time. Counts are sums."),
    }
}

fn said(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

fn table(
    name: &str,
    title: &str,
    columns: &[(&str, &str)],
    rows: impl Iterator<Item = Vec<Value>>,
    notes: impl IntoIterator<Item = String>,
    findings: Vec<Finding>,
    cost: Vec<String>,
) -> Table {
    let column = |(name, unit): &(&str, &str)| Column { name: (*name).into(), unit: (*unit).into() };
    Table {
        name: name.into(),
        title: title.into(),
        columns: columns.iter().map(column).collect(),
        rows: rows.collect(),
        notes: notes.into_iter().chain(cost).collect(),
        validity: findings,
    }
}

#[cfg(test)]
mod tests {
    use millrace_client::heartbeat::Found;

    use super::{
        super::{
            idle_times::{Case, Repeat},
            row,
        },
        *,
    };
    use crate::targets::Transport;

    #[test]
    fn unnoticed_failure_is_null_in_the_table() {
        let outcome = row::Outcome { client_s: Some(2.0), lost: 1, ..row::Outcome::default() };
        let (check, criterion) = ("x".into(), "both ends notice");
        let row = Row {
            check,
            criterion,
            transport: Transport::Sse,
            promised: true,
            limit_s: Some(8.0),
            outcomes: vec![outcome],
        };
        let finding = Finding { code: "no_link".into(), detail: "on loopback".into(), invalidates: true };
        let table = reliability(&[row], 1, vec![finding], vec!["3 links".into()]);
        assert_eq!(table.rows[0].len(), table.columns.len());
        assert_eq!(table.rows[0][3..9], [json!("yes"), json!("no"), json!(8.0), json!(2.0), json!(2.0), json!(null)]);
        assert!(table.notes.contains(&"3 links".to_owned()));
        assert!(!table.is_valid());
    }

    #[test]
    fn silences_stand_beside_minutes_of_the_thesis() {
        let s = |seconds| Some(Duration::from_secs(seconds));
        let found = Found { survived: s(39), died: s(41), suggested: s(31), probes: 20, contradictions: 0 };
        let case = Case { title: "LTE", minutes: Some(80.0) };
        let outcome = Outcome { case, repeats: vec![Repeat { found, lost: 0 }], round_trip: Duration::ZERO };
        let table = networks(&[outcome], Scale { minutes_per_s: 2.0 }, 1, Vec::new(), Vec::new());
        assert_eq!(table.rows[0].len(), table.columns.len());
        let cells = [json!("80 min"), json!(40.0), json!(39.0), json!(41.0), json!(78.0), json!(82.0), json!(31.0)];
        assert_eq!(table.rows[0][1..8], cells);
        assert_eq!(table.rows[0].last(), Some(&json!("yes")));
        assert!(table.is_valid());
    }
}
