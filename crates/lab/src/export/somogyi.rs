//! Somogyi's tables of latency.

use crate::{
    histogram::Histogram,
    recording::{PhaseName, Recording, Run},
    targets::Transport,
};

use super::{
    group::{Group, groups},
    sheet::Row,
    statistics::Statistics,
};

/// Part of the scenario somogyi-tls with the experiment of the thesis.
const LATENCY: &str = "latency";

/// Returns the lines of table 9: one per transport, and one for requests and pings where the thesis has them.
pub fn latency(recording: &Recording) -> Vec<Row> {
    let rows = |group: &Group| {
        let data = Statistics::ms(&group.pooled(PhaseName::Test, |test| &test.latency_us));
        let line = |name: &str, statistics: Statistics| measured("measurement", name, statistics, group);
        match group.first.transport.parse::<Transport>() {
            Ok(Transport::Polling) => {
                vec![line("client_polling_request", Statistics::default()), line("client_polling_data", data)]
            }
            Ok(Transport::WebSocket) => {
                vec![line("websocket_message", data), line("websocket_ping", Statistics::ms(&pings(group)))]
            }
            _ => vec![line(&thesis_name(&group.first.transport), data)],
        }
    };
    groups(recording).iter().flat_map(rows).collect()
}

/// Returns the lines of table 11. A secured transport has a name of its own, as in the thesis: `websocket_tls` is TLS
/// 1.3, `websocket_tls12` is TLS 1.2.
pub fn tls_latency(recording: &Recording) -> Vec<Row> {
    let row = |group: &Group| {
        let Run { target, transport, .. } = group.first;
        let secured = target.strip_prefix("millrace-").map(|tls| format!("_{tls}")).unwrap_or_default();
        let statistics = Statistics::ms(&group.pooled(PhaseName::Test, |test| &test.latency_us));
        measured("technology", &format!("{}{secured}", thesis_name(transport)), statistics, group)
    };
    groups(recording).iter().filter(|group| group.first.part == LATENCY).map(row).collect()
}

pub fn first_message(recording: &Recording) -> Vec<Row> {
    let rows = |group: &Group| {
        let mut first = Histogram::default();
        for run in &group.used {
            let second = run.seconds.iter().find(|second| second.counts.delivered > 0);
            second.iter().for_each(|second| first.add(&second.latency_us));
        }
        let statistics = Statistics::ms(&first);
        let connect = Statistics::ms(&group.pooled(PhaseName::Connect, |connect| &connect.connect_us)).mean;
        let all = Statistics::ms(&group.pooled(PhaseName::Test, |test| &test.latency_us)).mean;
        let line = |name: &str, first_ms: Option<f64>, mean_ms: Option<f64>, statistics: Statistics| {
            let mut row: Row = vec![
                ("technology".into(), name.into()),
                ("first_message_ms".into(), first_ms.into()),
                ("avg_in_text_ms".into(), mean_ms.into()),
            ];
            row.extend(statistics.row("ms"));
            row.push(("connect_mean_ms".into(), connect.into()));
            row.extend(group.row());
            row
        };
        let name = thesis_name(&group.first.transport);
        let with_connection = connect.zip(statistics.mean).map(|(connect, first)| connect + first);
        let mut lines = vec![line(&name, with_connection, all, statistics)];
        if group.first.transport == Transport::WebSocket.name() {
            lines.push(line("websocket_ping", None, Statistics::ms(&pings(group)).mean, Statistics::default()));
        }
        lines
    };
    groups(recording).iter().flat_map(rows).collect()
}

/// Returns the round-trip times of the probe during the test.
fn pings(group: &Group) -> Histogram {
    group.pooled(PhaseName::Test, |test| &test.probe_us)
}

fn measured(column: &'static str, name: &str, statistics: Statistics, group: &Group) -> Row {
    let mut row: Row = vec![
        (column.into(), name.into()),
        ("avg_ms".into(), statistics.mean.into()),
        ("stddev_ms".into(), statistics.sd.into()),
    ];
    row.extend(statistics.row("ms"));
    row.extend(group.row());
    row
}

/// Returns the name of a transport in the thesis: `client_polling`, `long_polling`.
fn thesis_name(transport: &str) -> String {
    match transport.parse() {
        Ok(Transport::Polling) => "client_polling".into(),
        _ => transport.replace('-', "_"),
    }
}
