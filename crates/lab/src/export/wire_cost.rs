//! Bytes on the wire: the tables of the theses, and everything that a wire cost report has.

use crate::{
    recording::Recording,
    scenarios::carcare_wire::published::{BATCH_BYTES, BATCH_MESSAGES, captured, unit},
    wire::model::{SECURED, frame_header},
    wire_cost::{Bytes, DirectionalBytes, EnergyLine, Side, Unit, WireCostReport},
};

use super::{
    sheet::{Cell, Row, Sheet, column_name},
    statistics::Statistics,
};

pub const ETHERNET_NOTE: &str =
    "Counted as in the thesis: with Ethernet, IP and TCP headers, without packets that carry no data.";

const KIB: f64 = 1024.0;
/// Size of Thorsen's example message.
const UPDATE_BYTES: u64 = 58;
/// Somogyi's day and ten minutes.
const MESSAGES: u64 = 700;
const POLLS: u64 = 21_600;
const EMPTY_HOLDS: u64 = 2763;
const PINGS: u64 = 288;
const POLLS_IN_TEN_MINUTES: u64 = 150;
const HOLDS_IN_TEN_MINUTES: u64 = 20;

/// Direction of a packet.
#[derive(Clone, Copy)]
enum To {
    Server,
    Client,
}

/// Bytes of a measured unit as Somogyi counted them.
struct Sizes<'a>(&'a WireCostReport);

impl Sizes<'_> {
    fn bytes(&self, transport: &str, of: Unit, to: To) -> Option<f64> {
        let DirectionalBytes { up, down } = unit(self.0, transport, of)?;
        let bytes = if matches!(to, To::Server) { up } else { down };
        Some(captured(bytes, self.0.path.header_bytes))
    }

    fn both(&self, transport: &str, of: Unit) -> Option<f64> {
        Some(self.bytes(transport, of, To::Server)? + self.bytes(transport, of, To::Client)?)
    }
}

/// Calls a function with the wire cost report. Returns no rows if the recording has none.
fn with(recording: &Recording, rows: impl Fn(&WireCostReport, Sizes<'_>) -> Vec<Row>) -> Vec<Row> {
    recording.wire_cost.as_ref().map_or_else(Vec::new, |wire_cost| rows(wire_cost, Sizes(wire_cost)))
}

pub fn message_sizes(recording: &Recording) -> Vec<Row> {
    with(recording, |wire_cost, sizes| {
        let secured = |transport: &str| format!("{transport}{SECURED}");
        let lines = [
            ("client polling request", "polling".to_owned(), Unit::Silence, To::Server),
            ("client polling or long polling 200 response", "polling".into(), Unit::Message, To::Client),
            ("204 response", "polling".into(), Unit::Silence, To::Client),
            ("long polling request", "long-polling".into(), Unit::Message, To::Server),
            ("websocket opening request", "websocket".into(), Unit::Connection, To::Server),
            ("websocket opening response", "websocket".into(), Unit::Connection, To::Client),
            ("websocket text message with 134-byte json", "websocket".into(), Unit::Message, To::Client),
            ("websocket ping", "websocket".into(), Unit::Silence, To::Client),
            ("websocket pong", "websocket".into(), Unit::Silence, To::Server),
            ("websocket close, client to server", "websocket".into(), Unit::Close, To::Server),
            ("websocket close, server to client", "websocket".into(), Unit::Close, To::Client),
            ("tls request, polling", secured("polling"), Unit::Message, To::Server),
            ("tls 200 response", secured("polling"), Unit::Message, To::Client),
            ("tls websocket message", secured("websocket"), Unit::Message, To::Client),
            ("session message", "session".into(), Unit::Message, To::Client),
            ("server-sent event", "sse".into(), Unit::Message, To::Client),
            ("line of a stream", "stream".into(), Unit::Message, To::Client),
        ];
        let row = |message: &str, bytes: Option<f64>, n: Option<u64>| {
            let mut row: Row = vec![("message".into(), message.into()), ("bytes".into(), bytes.into())];
            row.extend(Statistics { mean: bytes, n, ..Statistics::default() }.row("bytes"));
            row
        };
        let mut rows = vec![row("json payload", Some(wire_cost.payload_bytes as f64), None)];
        rows.extend(lines.map(|(message, transport, of, to)| {
            let count = wire_cost.line(&transport, Side::Deliver, of).map(|line| line.count);
            row(message, sizes.bytes(&transport, of, to), count)
        }));
        rows.push(row("tls handshake total", published(wire_cost, "TLS handshake"), None));
        rows
    })
}

/// Returns our value of an item of the report.
fn published(wire_cost: &WireCostReport, item: &str) -> Option<f64> {
    wire_cost.published.iter().find(|row| row.item == item)?.ours
}

pub fn ten_minutes(recording: &Recording) -> Vec<Row> {
    with(recording, |_, sizes| {
        let lines = [
            ("client_polling", "polling", POLLS_IN_TEN_MINUTES),
            ("long_polling", "long-polling", HOLDS_IN_TEN_MINUTES),
        ];
        let row = |(name, transport, requests): (&str, &str, u64)| -> Row {
            let [request, response] = [To::Server, To::Client].map(|to| sizes.bytes(transport, Unit::Silence, to));
            let [request_kib, response_kib] =
                [request, response].map(|bytes| Cell::from(bytes.map(|bytes| bytes * requests as f64 / KIB)));
            vec![
                ("technology".into(), name.into()),
                ("requests".into(), requests.into()),
                ("request_bytes".into(), request.into()),
                ("request_total_kib".into(), request_kib.clone()),
                ("response_bytes".into(), response.into()),
                ("response_total_kib".into(), response_kib.clone()),
                ("recomputed_request_kib".into(), request_kib),
                ("recomputed_response_kib".into(), response_kib),
            ]
        };
        lines.map(row).to_vec()
    })
}

pub fn tls_sizes(recording: &Recording) -> Vec<Row> {
    with(recording, |_, sizes| {
        let lines = [
            ("client_polling", "yes", "polling", Unit::Message),
            ("client_polling", "no", "polling", Unit::Silence),
            ("long_polling", "yes", "long-polling", Unit::Message),
            ("long_polling", "no", "long-polling", Unit::Silence),
            ("websocket", "yes", "websocket", Unit::Message),
        ];
        let row = |(name, with_json, transport, of): (&str, &str, &str, Unit)| -> Row {
            // For polling, the sizes of request and response; for a WebSocket, that of the message.
            let size = |transport: &str| match transport.starts_with("websocket") {
                true => sizes.bytes(transport, of, To::Client),
                false => sizes.both(transport, of),
            };
            let (plain, secured) = (size(transport), size(&format!("{transport}{SECURED}")));
            let percent = plain.zip(secured).map(|(plain, secured)| (secured / plain - 1.0) * 100.0);
            vec![
                ("technology".into(), name.into()),
                ("with_json".into(), with_json.into()),
                ("plain_bytes".into(), plain.into()),
                ("secured_bytes".into(), secured.into()),
                ("published_increase_percent".into(), percent.into()),
                ("recomputed_increase_percent".into(), percent.into()),
            ]
        };
        lines.map(row).to_vec()
    })
}

/// Part of a day: name, number, bytes of each.
type Part = (&'static str, u64, Option<f64>);

pub fn polling_day(recording: &Recording) -> Vec<Row> {
    with(recording, |_, sizes| {
        let parts = [
            ("request", POLLS, sizes.bytes("polling", Unit::Silence, To::Server)),
            ("response_with_json", MESSAGES, sizes.bytes("polling", Unit::Message, To::Client)),
            ("response_no_content", POLLS - MESSAGES, sizes.bytes("polling", Unit::Silence, To::Client)),
        ];
        day(&parts, &["count"])
    })
}

pub fn long_polling_day(recording: &Recording) -> Vec<Row> {
    with(recording, |_, sizes| {
        let parts = [
            ("request", MESSAGES + EMPTY_HOLDS, sizes.bytes("long-polling", Unit::Message, To::Server)),
            ("response_with_json", MESSAGES, sizes.bytes("long-polling", Unit::Message, To::Client)),
            ("response_no_content", EMPTY_HOLDS, sizes.bytes("long-polling", Unit::Silence, To::Client)),
        ];
        day(&parts, &["printed_count", "corrected_count"])
    })
}

/// Returns a line for each part of a day, and the total. The columns `printed` and `corrected` are equal here.
fn day(parts: &[Part], counts: &[&'static str]) -> Vec<Row> {
    let kib = |(_, count, bytes): &Part| bytes.map(|bytes| bytes * *count as f64 / KIB);
    let both = |printed: &'static str, corrected: &'static str, value: Option<f64>| {
        [(printed.into(), value.into()), (corrected.into(), value.into())]
    };
    let mut rows: Vec<Row> = Vec::new();
    for part in parts {
        let mut row: Row = vec![("item".into(), part.0.into())];
        row.extend(counts.iter().map(|name| ((*name).into(), part.1.into())));
        row.extend(both("printed_bytes", "corrected_bytes", part.2));
        row.extend(both("printed_kib", "corrected_kib", kib(part)));
        rows.push(row);
    }
    let total: Option<f64> = parts.iter().map(kib).sum();
    let mut row: Row = vec![("item".into(), "total".into())];
    row.extend(both("printed_kib", "corrected_kib", total));
    rows.push(row);
    rows
}

pub fn websocket_day(recording: &Recording) -> Vec<Row> {
    with(recording, |_, sizes| {
        let parts = [
            ("opening_handshake", 1, sizes.both("websocket", Unit::Connection)),
            ("closing_handshake", 1, sizes.both("websocket", Unit::Close)),
            ("messages", MESSAGES, sizes.bytes("websocket", Unit::Message, To::Client)),
            ("ping_pong", PINGS, sizes.both("websocket", Unit::Silence)),
        ];
        let row = |item: &str, count: Option<u64>, each: Option<f64>, kib: Option<f64>| -> Row {
            vec![
                ("item".into(), item.into()),
                ("count".into(), count.into()),
                ("bytes_each".into(), each.into()),
                ("published".into(), kib.map(|kib| format!("{kib:.2} KiB")).into()),
                ("recomputed_kib".into(), kib.into()),
            ]
        };
        let kib = |(_, count, each): &Part| each.map(|each| each * *count as f64 / KIB);
        let mut rows: Vec<Row> = parts.iter().map(|part| row(part.0, Some(part.1), part.2, kib(part))).collect();
        let each: Option<f64> = parts.iter().map(|(_, _, each)| *each).sum();
        rows.push(row("sum_one_of_each", None, each, each.map(|bytes| bytes / KIB)));
        rows.push(row("sum_24h", None, None, parts.iter().map(kib).sum()));
        rows
    })
}

pub fn update_sizes(recording: &Recording) -> Vec<Row> {
    with(recording, |wire_cost, _| {
        let row = |transport: &str| -> Row {
            let measured = unit(wire_cost, transport, Unit::Message);
            // The measured message is longer, so its frame header may be longer, too.
            let longer = match transport {
                "websocket" => frame_header(wire_cost.payload_bytes) - frame_header(UPDATE_BYTES),
                _ => 0,
            };
            let request = measured.map(|both| both.up.framing);
            let response = measured.map(|both| both.down.framing - longer as f64);
            let framing = request.zip(response).map(|(request, response)| request + response);
            let total = framing.map(|bytes| bytes + UPDATE_BYTES as f64);
            vec![
                ("transport".into(), transport.replace('-', "_").into()),
                ("request_bytes".into(), request.into()),
                ("response_header_bytes".into(), response.into()),
                ("payload_bytes".into(), UPDATE_BYTES.into()),
                ("framing_bytes".into(), framing.into()),
                ("total_bytes".into(), total.into()),
                ("recomputed_total_bytes".into(), total.into()),
            ]
        };
        ["long-polling", "sse", "websocket", "session", "stream", "polling"].map(row).to_vec()
    })
}

pub fn eight_messages(recording: &Recording) -> Vec<Row> {
    with(recording, |wire_cost, _| {
        let row = |(client, item): (&str, &str)| -> Row {
            vec![
                ("client".into(), client.into()),
                ("bytes_on_wire".into(), published(wire_cost, item).into()),
                ("payload_bytes".into(), (BATCH_MESSAGES * BATCH_BYTES as u64).into()),
            ]
        };
        let lines = [("one_by_one", "one by one, masked, TCP"), ("in_one_segment", "in one segment, TCP")];
        lines.map(row).to_vec()
    })
}

/// Returns everything that a wire cost report has: bytes by part, the figures of the theses beside ours, energy,
/// batteries.
pub fn sheets(wire_cost: &WireCostReport) -> Vec<Sheet> {
    let parts = |prefix: &str, bytes: &Bytes| -> Row {
        let parts = bytes.parts().into_iter();
        parts.map(|(name, value)| (column_name(&format!("{prefix} {name}"), "B").into(), value.into())).collect()
    };
    let lines = wire_cost.lines.iter().map(|line| {
        let mut row: Row = vec![
            ("transport".into(), line.transport.as_str().into()),
            ("side".into(), name(&line.side)),
            ("unit".into(), name(&line.unit)),
            ("count".into(), line.count.into()),
            ("measured_bytes".into(), line.measured.total().into()),
            ("model_bytes".into(), line.model.total().into()),
            ("difference_percent".into(), line.difference_percent.into()),
            ("retransmitted_bytes".into(), line.retransmitted_bytes.into()),
        ];
        for (prefix, bytes) in [
            ("up", &line.measured.up),
            ("down", &line.measured.down),
            ("model up", &line.model.up),
            ("model down", &line.model.down),
        ] {
            row.extend(parts(prefix, bytes));
        }
        row
    });
    let published = wire_cost.published.iter().map(|row| -> Row {
        vec![
            ("thesis".into(), row.thesis.as_str().into()),
            ("table".into(), row.table.as_str().into()),
            ("item".into(), row.item.as_str().into()),
            ("unit".into(), row.unit.as_str().into()),
            ("printed".into(), row.printed.into()),
            ("corrected".into(), row.corrected.into()),
            ("ours".into(), row.ours.into()),
            ("remark".into(), row.remark.as_str().into()),
        ]
    });
    let batteries = wire_cost.batteries.iter().map(|row| -> Row {
        vec![
            ("what".into(), row.what.as_str().into()),
            ("capacity_wh".into(), row.capacity_wh.into()),
            ("power_w".into(), row.power_w.into()),
            ("hours".into(), row.hours.into()),
            ("published_hours".into(), row.published_hours.into()),
            ("remark".into(), row.remark.as_str().into()),
        ]
    });
    let sheet = |name: &str, rows: Vec<Row>, note: &str| Sheet::of_rows(name, &rows, note);
    let all = [
        sheet("wire-bytes", lines.collect(), "Mean bytes of IP packets per unit, without Ethernet, by purpose."),
        sheet("wire-published", published.collect(), "Printed figures of the theses, corrected, and ours."),
        sheet(
            "wire-energy",
            wire_cost.energy.iter().map(energy).collect(),
            "Energy of a radio on one day, by a model.",
        ),
        sheet("wire-batteries", batteries.collect(), "Battery life, by a model."),
    ];
    all.into_iter().filter(|sheet| !sheet.rows.is_empty()).collect()
}

fn energy(line: &EnergyLine) -> Row {
    vec![
        ("radio".into(), line.radio.as_str().into()),
        ("transport".into(), line.transport.as_str().into()),
        ("day".into(), line.day.as_str().into()),
        ("heartbeat_s".into(), line.heartbeat_s.into()),
        ("bytes_per_day".into(), line.bytes_per_day.into()),
        ("joules_per_day".into(), line.joules_per_day.into()),
        ("promotions".into(), line.promotions.into()),
        ("battery_percent_per_day".into(), line.battery_percent_per_day.into()),
    ]
}

/// Returns the JSON name of a value.
fn name(value: &impl serde::Serialize) -> Cell {
    serde_json::to_value(value).as_ref().map_or(Cell::Empty, Cell::from)
}
