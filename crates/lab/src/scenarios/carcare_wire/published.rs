//! The figures of the theses beside ours: the printed one, the corrected one if the printed one does not follow from
//! its own parts (ERRATA), and Millrace's.

use crate::{
    wire::{
        measure::Batch,
        model::{MASK_BYTES, SECURED, frame_header},
    },
    wire_cost::{Bytes, DirectionalBytes, Published, Side, Unit, WireCostReport},
};

/// Ethernet header: destination, source and type. The captures of the theses show these fields but not the checksum.
pub const ETHERNET_BYTES: u64 = 14;
const IP_TCP_BYTES: f64 = 40.0;
const KIB: f64 = 1024.0;

/// Parameters of Somogyi's day and ten minutes: polls every 4 s, requests held for 30 s, 700 messages at intervals of
/// 5 s, a ping every 5 minutes.
const DAY_S: f64 = 86_400.0;
const POLL_S: f64 = 4.0;
const HOLD_S: f64 = 30.0;
const MESSAGES: f64 = 700.0;
const MESSAGE_S: f64 = 5.0;
const PING_S: f64 = 300.0;
/// Default heartbeat interval of Millrace in seconds.
const HEARTBEAT_S: f64 = 25.0;

/// Message sizes that Somogyi captured (section 4.1, tables 5, 6 and 14), with Ethernet, IP and TCP headers, without
/// pure ACKs.
const POLL_REQUEST: f64 = 285.0;
const HOLD_REQUEST: f64 = 263.0;
const ANSWER: f64 = 366.0;
const EMPTY: f64 = 206.0;
const UPGRADE: [f64; 2] = [234.0, 357.0];
const WS_MESSAGE: f64 = 192.0;
const WS_PING: f64 = 60.0;
const WS_CLOSE: f64 = 184.0;

/// Returns the rows of all theses. `handshake`: bytes of a TLS handshake, if one was measured.
pub fn all(wire_cost: &WireCostReport, batch: Batch, handshake: Option<f64>) -> Vec<Published> {
    let mut rows = sizes(wire_cost);
    rows.extend(ten_minutes(wire_cost));
    rows.extend(tls(wire_cost, handshake));
    rows.extend(day(wire_cost));
    rows.extend(thorsen(wire_cost));
    rows.extend(muller(batch, wire_cost.path.header_bytes));
    rows
}

struct Table(&'static str, &'static str);

impl Table {
    fn row(
        &self,
        item: &str,
        unit: &str,
        printed: Option<f64>,
        corrected: Option<f64>,
        ours: Option<f64>,
    ) -> Published {
        let (thesis, table) = (self.0.into(), self.1.into());
        let remark = String::new();
        Published { thesis, table, item: item.into(), unit: unit.into(), printed, corrected, ours, remark }
    }
}

impl Published {
    fn because(self, remark: &str) -> Published {
        Published { remark: remark.into(), ..self }
    }
}

/// Returns the measured bytes of one unit between server and reader.
pub fn unit<'a>(wire_cost: &'a WireCostReport, transport: &str, unit: Unit) -> Option<&'a DirectionalBytes> {
    wire_cost.line(transport, Side::Deliver, unit).map(|line| &line.measured)
}

/// Returns the bytes as Somogyi counted them: with Ethernet headers, without packets that carry no data.
pub fn captured(bytes: &Bytes, header_bytes: u64) -> f64 {
    let segments = bytes.headers / header_bytes.max(1) as f64;
    bytes.payload + bytes.framing + bytes.tls + bytes.headers + segments * ETHERNET_BYTES as f64
}

fn sizes(wire_cost: &WireCostReport) -> Vec<Published> {
    let table = Table("somogyi", "Message sizes, bytes with Ethernet (Somogyi, section 4.1)");
    let header = wire_cost.path.header_bytes;
    let up = |transport, of| Some(captured(&unit(wire_cost, transport, of)?.up, header));
    let down = |transport, of| Some(captured(&unit(wire_cost, transport, of)?.down, header));
    let (message, silence, open) = (Unit::Message, Unit::Silence, Unit::Connection);
    let row = |item: &str, printed: f64, ours| table.row(item, "B", Some(printed), None, ours);
    vec![
        row("polling: request", POLL_REQUEST, up("polling", silence))
            .because("ours sends the minimum; the thesis used Android's client"),
        row("polling: answer with a message", ANSWER, down("polling", message)),
        row("polling: answer without", EMPTY, down("polling", silence)),
        row("long polling: request", HOLD_REQUEST, up("long-polling", message))
            .because("ours names position and time to wait"),
        row("long polling: answer with a message", ANSWER, down("long-polling", message)),
        row("WebSocket: opening request", UPGRADE[0], up("websocket", open)),
        row("WebSocket: opening answer", UPGRADE[1], down("websocket", open)),
        row("WebSocket: message", WS_MESSAGE, down("websocket", message))
            .because("134 + 4 + 20 TCP + 20 IP + 14 (E-S17); ours has 12 of TCP timestamps"),
        row("WebSocket: ping", WS_PING, down("websocket", silence)),
        row("WebSocket: pong", WS_PING, up("websocket", silence)),
        row("WebSocket: close, from the client", 62.0, up("websocket", Unit::Close)),
        row("WebSocket: close, from the server", 60.0, down("websocket", Unit::Close)),
        table.row("session: message", "B", None, None, down("session", message)),
        table.row("server-sent events: message", "B", None, None, down("sse", message)),
        table.row("HTTP streaming: message", "B", None, None, down("stream", message)),
    ]
}

fn ten_minutes(wire_cost: &WireCostReport) -> Vec<Published> {
    let table = Table("somogyi", "Ten minutes without data (Somogyi, table 5)");
    let ours = |transport: &str, times: f64, is_up: bool| {
        let silence = unit(wire_cost, transport, Unit::Silence)?;
        let bytes = if is_up { &silence.up } else { &silence.down };
        Some(times * captured(bytes, wire_cost.path.header_bytes) / KIB)
    };
    let (polls, holds) = (600.0 / POLL_S, 600.0 / HOLD_S);
    let row = |item: &str, printed, ours| table.row(item, "KiB", Some(printed), None, ours);
    vec![
        row("polling every 4 s: 150 requests", 41.75, ours("polling", polls, true)),
        row("polling every 4 s: 150 answers", 30.18, ours("polling", polls, false)),
        row("long polling, 30 s: 20 requests", 5.14, ours("long-polling", holds, true)),
        row("long polling, 30 s: 20 answers", 4.02, ours("long-polling", holds, false)),
    ]
}

fn tls(wire_cost: &WireCostReport, handshake: Option<f64>) -> Vec<Published> {
    let table = Table("somogyi", "Growth by TLS (Somogyi, table 10)");
    let ours = |transport: &str| {
        let bytes = |transport: &str| {
            let DirectionalBytes { up, down } = unit(wire_cost, transport, Unit::Message)?;
            Some(captured(up, wire_cost.path.header_bytes) + captured(down, wire_cost.path.header_bytes))
        };
        Some((bytes(&format!("{transport}{SECURED}"))? / bytes(transport)? - 1.0) * 100.0)
    };
    let row = |item: &str, printed, plain: f64, secured: f64, ours| {
        table.row(item, "%", Some(printed), Some((secured / plain - 1.0) * 100.0), ours)
    };
    vec![
        row("polling with a message", 53.0, 651.0, 998.0, ours("polling"))
            .because("the thesis compared two different clients (E-S10)"),
        row("polling without", 61.0, 491.0, 790.0, None),
        row("long polling with a message", 59.0, 629.0, 998.0, ours("long-polling")),
        row("long polling without", 68.0, 469.0, 790.0, None),
        row("WebSocket message", 22.0, 192.0, 235.0, ours("websocket")).because(
            "TLS 1.3 adds 22 bytes to a record; the 43 of the thesis are those of AES-CBC with SHA-1: 5 + 16 + 20 + 2 of padding",
        ),
        table
            .row("TLS handshake", "B", Some(699.0), None, handshake)
            .because("the thesis: abbreviated, without a certificate (E-S11); ours: full, with the records of the upgrade"),
    ]
}

/// Number of requests, of responses with a message, and of empty responses per day.
struct Polls {
    requests: f64,
    answers: f64,
    empty: f64,
}

impl Polls {
    fn kib(&self, request: f64, answer: f64, empty: f64) -> f64 {
        (self.requests * request + self.answers * answer + self.empty * empty) / KIB
    }
}

fn day(wire_cost: &WireCostReport) -> Vec<Published> {
    let table = Table("somogyi", "24 hours, 700 messages (Somogyi, tables 12 to 14)");
    let header = wire_cost.path.header_bytes;
    // Millrace's figures: counted like Somogyi's, and with all IP packets.
    let as_he = |both: &DirectionalBytes| captured(&both.sum(), header);
    let sum = |transport: &str, count: &dyn Fn(&DirectionalBytes) -> f64, silences: f64, opens: bool| {
        let of = |kind| unit(wire_cost, transport, kind).map(count);
        let opening = if opens { of(Unit::Connection)? + of(Unit::Close).unwrap_or(0.0) } else { 0.0 };
        Some((opening + MESSAGES * of(Unit::Message)? + silences * of(Unit::Silence)?) / KIB)
    };
    let polls = DAY_S / POLL_S;
    let held = ((DAY_S - MESSAGE_S * MESSAGES) / HOLD_S).floor();
    let polling = Polls { requests: polls, answers: MESSAGES, empty: polls - MESSAGES };
    let printed_hold = Polls { requests: MESSAGES + 46.0, answers: MESSAGES, empty: 46.0 };
    let hold = Polls { requests: MESSAGES + held, answers: MESSAGES, empty: held };
    let pings = DAY_S / PING_S;
    let websocket = (UPGRADE[0] + UPGRADE[1] + WS_CLOSE + MESSAGES * WS_MESSAGE + pings * 2.0 * WS_PING) / KIB;
    // Our transports send heartbeats at other times; streams send them only when no message was sent.
    let quiet = |heartbeat_s: f64| ((DAY_S - MESSAGE_S * MESSAGES) / heartbeat_s).floor();
    let row = |item: &str, printed, corrected, ours| table.row(item, "KiB", printed, corrected, ours);
    let right = |value: f64| Some(value);
    let mut rows = vec![
        row(
            "polling every 4 s",
            Some(10_002.34),
            right(polling.kib(POLL_REQUEST, ANSWER, EMPTY)),
            sum("polling", &as_he, polling.empty, false),
        )
        .because("the thesis swapped the request sizes of the two (E-S1)"),
        row(
            "long polling, held 30 s",
            Some(467.06),
            right(hold.kib(HOLD_REQUEST, ANSWER, EMPTY)),
            sum("long-polling", &as_he, held, false),
        )
        .because("swapped (E-S1), and 46 empty answers instead of 2763 (E-S2)"),
        row("long polling, only the sizes corrected", None, right(printed_hold.kib(HOLD_REQUEST, ANSWER, EMPTY)), None),
        row("WebSocket, ping every 5 min", Some(165.75), right(websocket), sum("websocket", &as_he, pings, true))
            .because("rounded down (E-S3)"),
        table
            .row(
                "long polling : WebSocket",
                "times",
                Some(467.06 / 165.75),
                right(hold.kib(HOLD_REQUEST, ANSWER, EMPTY) / websocket),
                sum("long-polling", &as_he, held, false).zip(sum("websocket", &as_he, pings, true)).map(|(a, b)| a / b),
            )
            .because("the text of the thesis says 2.5 and almost 3 (E-S4)"),
        row("session, ping every 5 min", None, None, sum("session", &as_he, pings, true)),
        row("server-sent events, heartbeat 5 min", None, None, sum("sse", &as_he, quiet(PING_S), true)),
        row("HTTP streaming, heartbeat 5 min", None, None, sum("stream", &as_he, quiet(PING_S), true)),
    ];
    let all: &dyn Fn(&DirectionalBytes) -> f64 = &|both| both.total();
    let ip = Table("somogyi", "24 hours, 700 messages: all IP packets, ACKs too, our own heartbeat of 25 s");
    for (transport, silences, opens) in [
        ("polling", polling.empty, false),
        ("long-polling", held, false),
        ("websocket", DAY_S / HEARTBEAT_S, true),
        ("session", DAY_S / HEARTBEAT_S, true),
        ("sse", quiet(HEARTBEAT_S), true),
        ("stream", quiet(HEARTBEAT_S), true),
    ] {
        rows.push(ip.row(transport, "KiB", None, None, sum(transport, all, silences, opens)));
    }
    rows
}

/// Size of the update in Thorsen's comparison of bytes above TCP.
const UPDATE: f64 = 58.0;

fn thorsen(wire_cost: &WireCostReport) -> Vec<Published> {
    let table = Table("thorsen", "An update of 58 bytes, above TCP (Thorsen, section 2.7.3)");
    let ours = |transport: &str| Some(unit(wire_cost, transport, Unit::Message)?.sum().framing + UPDATE);
    let frame = (frame_header(UPDATE as u64) + UPDATE as u64) as f64;
    // The measured message is longer, so its frame header may be longer too.
    let websocket = ours("websocket")
        .map(|bytes| bytes - (frame_header(wire_cost.payload_bytes) - frame_header(UPDATE as u64)) as f64);
    let row = |item: &str, printed, corrected, ours| table.row(item, "B", Some(printed), Some(corrected), ours);
    vec![
        row("long polling", 542.0, 263.0 + 221.0 + UPDATE, ours("long-polling")).because("request, head and body"),
        row("server-sent events", 74.0, 14.0 + UPDATE, ours("sse"))
            .because("two bytes too many (E-T6); ours names the position"),
        row("WebSocket", 61.0, frame, websocket)
            .because("an unmasked header up to 125 bytes has 2 bytes, not 3 (E-T5)"),
    ]
}

/// Number and size of the messages in Muller's example.
pub const BATCH_MESSAGES: u64 = 8;
pub const BATCH_BYTES: usize = 13;

fn muller(ours: Batch, header_bytes: u64) -> Vec<Published> {
    let frames = Table("muller", "Frame header, bytes (Muller, figure 1.5)");
    let mut rows = Vec::new();
    for (size, payload, printed) in
        [("< 126", 125, [6.0, 2.0]), ("< 64 kB", 65_535, [8.0, 4.0]), ("above", 1 << 20, [12.0, 8.0])]
    {
        let right = [frame_header(payload) + MASK_BYTES, frame_header(payload)].map(|bytes| bytes as f64);
        for (side, (printed, right)) in
            ["to the server", "to the client"].into_iter().zip(printed.into_iter().zip(right))
        {
            let row = frames.row(&format!("{size}, {side}"), "B", Some(printed), Some(right), Some(right));
            rows.push(if printed == right { row } else { row.because("RFC 6455, 5.2 (E-M1)") });
        }
    }
    let table = Table("muller", "Eight messages of 13 bytes, with Ethernet (Muller, figures 1.6 and 1.7)");
    let packet = ETHERNET_BYTES as f64 + IP_TCP_BYTES;
    // Overhead of a TLS 1.2 record with AES-GCM: header, nonce, tag.
    let record = 5.0 + 8.0 + 16.0;
    let (times, payload) = (BATCH_MESSAGES as f64, BATCH_BYTES as u64);
    let each = |mask: u64| (payload + frame_header(payload) + mask) as f64;
    let single = Some(captured(&ours.single, header_bytes));
    let together = Some(captured(&ours.together, header_bytes));
    for (item, printed, right, ours) in [
        ("one by one, masked, TCP", 584.0, times * (each(MASK_BYTES) + packet), single),
        ("in one segment, TCP", 174.0, times * each(0) + packet, together),
        ("one by one, masked, TLS", 816.0, times * (each(MASK_BYTES) + record + packet), None),
        ("in one segment, TLS", 406.0, times * (each(0) + record) + packet, None),
    ] {
        let row = table.row(item, "B", Some(printed), Some(right), ours);
        rows.push(if ours.is_some() { row.because("ours has 12 of TCP timestamps in each segment") } else { row });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(rows: &'a [Published], table: &str, item: &str) -> &'a Published {
        rows.iter()
            .find(|row| row.table.contains(table) && row.item == item)
            .unwrap_or_else(|| panic!("{table}: {item}"))
    }

    fn corrected(rows: &[Published], table: &str, item: &str) -> f64 {
        find(rows, table, item).corrected.unwrap()
    }

    #[test]
    fn somogyis_daily_total_is_the_sum_of_his_parts() {
        let rows = day(&WireCostReport::default());
        for (item, by_hand) in [
            ("polling every 4 s", 10_466.41),
            ("long polling, held 30 s", 1_695.46),
            ("long polling, only the sizes corrected", 451.05),
            ("WebSocket, ping every 5 min", 165.76),
            ("long polling : WebSocket", 10.23),
        ] {
            let found = corrected(&rows, "tables 12 to 14", item);
            assert!((found - by_hand).abs() < 0.006, "{item}: {found}");
        }
        // The mistakes reproduce the printed figures.
        let polling = Polls { requests: 21_600.0, answers: 700.0, empty: 20_900.0 };
        assert!((polling.kib(HOLD_REQUEST, ANSWER, EMPTY) - 10_002.34).abs() < 0.02);
        let hold = Polls { requests: 746.0, answers: 700.0, empty: 46.0 };
        assert!((hold.kib(POLL_REQUEST, ANSWER, EMPTY) - 467.06).abs() < 0.02);
        for (times, bytes, kib) in
            [(150.0, POLL_REQUEST, 41.75), (150.0, EMPTY, 30.18), (20.0, HOLD_REQUEST, 5.14), (20.0, EMPTY, 4.02)]
        {
            assert!((times * bytes / KIB - kib).abs() < 0.005, "{kib}");
        }
    }

    #[test]
    fn printed_tls_growth_follows_from_published_sizes() {
        for row in tls(&WireCostReport::default(), None).iter().filter(|row| row.unit == "%") {
            assert!((row.printed.unwrap() - row.corrected.unwrap()).abs() < 0.5, "{row:?}");
        }
    }

    #[test]
    fn thorsens_update_takes_542_72_and_60_bytes() {
        let rows = thorsen(&WireCostReport::default());
        let all = ["long polling", "server-sent events", "WebSocket"].map(|item| corrected(&rows, "58 bytes", item));
        assert_eq!(all, [542.0, 72.0, 60.0]);
    }

    #[test]
    fn mullers_eight_messages_match_his_capture() {
        let nothing = Batch { single: Bytes::default(), together: Bytes::default() };
        let rows = muller(nothing, 52);
        for row in rows.iter().filter(|row| row.table.contains("Eight")) {
            assert_eq!(row.printed, row.corrected, "{row:?}");
        }
        assert_eq!(corrected(&rows, "figure 1.5", "above, to the server"), 14.0);
        assert_eq!(corrected(&rows, "figure 1.5", "above, to the client"), 10.0);
        assert_eq!(rows.iter().filter(|row| row.printed != row.corrected).count(), 2);
    }
}
