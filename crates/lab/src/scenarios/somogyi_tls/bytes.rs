//! Bytes of handshakes and messages over TLS 1.2 and 1.3, with an ECDSA and with an RSA certificate, beside the
//! figures of the thesis.

use std::sync::Arc;

use anyhow::{Context, ensure};
use rustls::ClientConfig;
use serde_json::{Value, json};

use super::table;
use crate::{
    load::{
        http::{Answer, get, post},
        websocket::{TEXT, WebSocket, frame_into},
    },
    recording::{Finding, Table},
    sweep::Bench,
    targets::{KeyKind, Options, Server, TlsOptions, TlsVersion, secured_client, start_secured},
    wire::handshake::{CountedTls, Exchange, Handshake, TlsBytes},
};

pub const HANDSHAKES: &str = "tls-handshake-bytes";
pub const TIMES: &str = "tls-handshake-time";
pub const MESSAGES: &str = "tls-message-bytes";

/// Number of handshakes of each kind.
const SAMPLES: usize = 50;
/// Headers of a segment as the thesis counted: Ethernet 14, IP 20, TCP 20 bytes.
const SEGMENT_HEADERS: u64 = 54;
/// Record of a car as in the thesis, 134 bytes.
const RECORD: &str = r#"{"carId":1,"timestamp":1399283212345,"gpsLatitude":47.53398,"gpsLongitude":19.079723,"speed":1.25,"rpm":1250,"coolantTemperature":101}"#;

/// Printed bytes of the abbreviated handshake, with segment headers: up, down and their sum (section 4.5.1).
const PUBLISHED_HANDSHAKE: (u64, u64, u64) = (301 + 129, 140 + 129, 699);
/// Table 10: transport, whether a record is in the answer, bytes without and with TLS.
const PUBLISHED_MESSAGES: [(&str, &str, u64, u64); 5] = [
    ("polling", "yes", 651, 998),
    ("polling", "no", 491, 790),
    ("long-polling", "yes", 629, 998),
    ("long-polling", "no", 469, 790),
    ("websocket", "yes", 192, 235),
];

/// Handshakes of one kind.
struct Handshakes {
    all: Vec<Handshake>,
    /// Bytes of the session tickets after one handshake.
    ticket_bytes: u64,
}

/// Measures and records the tables.
///
/// Errors: the server does not start, or does not behave as expected.
pub fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if [HANDSHAKES, TIMES, MESSAGES].iter().all(|table| bench.has_table(table)) {
        return Ok(());
    }
    let options = bench.options("millrace", &[]);
    let (mut rows, mut times) = (vec![published_handshake()], Vec::new());
    let (mut messages, mut findings) = (Vec::new(), Vec::new());
    for key in [KeyKind::EcdsaP256, KeyKind::Rsa2048] {
        bench.go_on()?;
        let server = match start_secured(key, &options) {
            Ok(server) => server,
            Err(error) if key == KeyKind::Rsa2048 => {
                findings.push(Finding {
                    code: "no_rsa".into(),
                    detail: format!("the RSA certificate is left out: {error:#}"),
                    invalidates: false,
                });
                continue;
            }
            Err(error) => return Err(error),
        };
        for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
            for resumes in [false, true] {
                let tls = TlsOptions { version, key, resumes };
                let made = handshakes(&server, tls, &options).with_context(|| format!("{tls:?}"))?;
                rows.push(bytes_row(tls, &made));
                times.push(time_row(tls, &made));
            }
            if key == KeyKind::EcdsaP256 {
                let client = secured_client(TlsOptions { version, key, resumes: false }, &options)?;
                messages.push(exchanges(&server, &client).with_context(|| format!("{version:?}"))?);
            }
        }
    }
    let mut table = handshake_table(rows);
    table.validity = findings;
    bench.table(table)?;
    bench.table(time_table(times))?;
    bench.table(message_table(&messages[0], &messages[1]))
}

fn handshakes(server: &Server, tls: TlsOptions, options: &Options) -> anyhow::Result<Handshakes> {
    let client = secured_client(tls, options)?;
    let mut request = Vec::new();
    get("/healthz", "", &mut request);
    // An exchange after the handshake reads the tickets, so that the next connection can be resumed.
    let open = || -> anyhow::Result<CountedTls> {
        let mut connection = CountedTls::open(server.address, client.clone())?;
        connection.exchange(&request, is_answer)?;
        Ok(connection)
    };
    if tls.resumes {
        open()?;
    }
    let (mut all, mut ticket_bytes) = (Vec::new(), 0);
    for _ in 0..SAMPLES {
        let connection = open()?;
        ensure!(connection.handshake.is_resumed == tls.resumes, "resumed: {}", connection.handshake.is_resumed);
        all.push(connection.handshake);
        ticket_bytes = connection.ticket_bytes;
    }
    Ok(Handshakes { all, ticket_bytes })
}

fn is_answer(received: &[u8]) -> bool {
    matches!(Answer::read(received), Ok(Some(_)))
}

/// Requests and messages of each row of table 10, in its order.
fn exchanges(server: &Server, client: &Arc<ClientConfig>) -> anyhow::Result<[Exchange; 5]> {
    let open = || CountedTls::open(server.address, client.clone());
    let of = |path: &str| {
        let mut request = Vec::new();
        get(path, "Accept: application/json\r\n", &mut request);
        request
    };
    let (mut phone, mut car) = (open()?, open()?);
    let mut input = Vec::new();
    post("/rest/input", "Content-Type: application/json\r\n", RECORD.as_bytes(), &mut input);
    car.exchange(&input, is_answer)?;
    let polling = "/rest/clientpolling/1/sensordata?since=";
    let (answer, with_record) = phone.exchange(&of(&format!("{polling}1399283208345")), is_answer)?;
    ensure!(answer.ends_with(b"}"), "not a record: {}", String::from_utf8_lossy(&answer));
    let (answer, empty) = phone.exchange(&of(&format!("{polling}1399283212345")), is_answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 204"), "not 204: {}", String::from_utf8_lossy(&answer));

    // The request of a long poll waits for a record. Without one, its answer is that of a poll.
    let long = of("/rest/longpolling/1/sensordata");
    let mut waiting = open()?;
    let long_with_record = std::thread::scope(|scope| -> anyhow::Result<_> {
        let poll = scope.spawn(|| waiting.exchange(&long, is_answer));
        // Records are published until one of them comes after the poll.
        for later in (217_345..999_999).step_by(5) {
            if poll.is_finished() {
                break;
            }
            let (record, mut input) = (RECORD.replace("212345", &later.to_string()), Vec::new());
            post("/rest/input", "Content-Type: application/json\r\n", record.as_bytes(), &mut input);
            car.exchange(&input, is_answer)?;
        }
        Ok(poll.join().map_err(|_| anyhow::anyhow!("the long poll died"))??.1)
    })?;
    let long_empty = Exchange {
        plain: TlsBytes { up: long_with_record.plain.up, down: empty.plain.down },
        secured: TlsBytes { up: long_with_record.secured.up, down: empty.secured.down },
    };

    let (mut socket, mut upgrade) = (open()?, Vec::new());
    WebSocket::new("/v1/channels/tls-bytes", None).open(&mut upgrade);
    socket.exchange(&upgrade, |received| received.ends_with(b"\r\n\r\n"))?;
    let mut frame = Vec::new();
    frame_into(TEXT, RECORD.as_bytes(), &mut frame);
    let (_, message) = socket.exchange(&frame, |received| received.ends_with(RECORD.as_bytes()))?;
    let down = |bytes: TlsBytes| TlsBytes { up: 0, down: bytes.down };
    let message = Exchange { plain: down(message.plain), secured: down(message.secured) };
    Ok([with_record, empty, long_with_record, long_empty, message])
}

fn version_name(version: TlsVersion) -> &'static str {
    match version {
        TlsVersion::Tls12 => "TLS 1.2",
        TlsVersion::Tls13 => "TLS 1.3",
    }
}

fn published_handshake() -> Vec<Value> {
    let (up, down, sum) = PUBLISHED_HANDSHAKE;
    let (up, down) = (up - 2 * SEGMENT_HEADERS, down - 2 * SEGMENT_HEADERS);
    vec![
        json!("thesis: TLS 1.2"),
        json!("RSA, self-signed"),
        json!("resumed (E-S11)"),
        Value::Null,
        json!(up),
        json!(down),
        Value::Null,
        json!(sum),
    ]
}

/// Returns a quantile of the handshakes; `share` is 0.5 for the median.
fn quantile(made: &Handshakes, share: f64, of: impl Fn(&Handshake) -> u64) -> u64 {
    let mut all: Vec<u64> = made.all.iter().map(of).collect();
    all.sort_unstable();
    all[((all.len() as f64 * share) as usize).min(all.len() - 1)]
}

/// Protocol, certificate and kind of a handshake.
fn names(tls: TlsOptions) -> [Value; 3] {
    let key = match tls.key {
        KeyKind::EcdsaP256 => "ECDSA P-256",
        KeyKind::Rsa2048 => "RSA-2048",
    };
    let kind = if tls.resumes { "resumed" } else { "full" };
    [version_name(tls.version), key, kind].map(|name| json!(name))
}

fn bytes_row(tls: TlsOptions, made: &Handshakes) -> Vec<Value> {
    let median = |of: fn(&Handshake) -> u64| quantile(made, 0.5, of);
    let (up, down) = (median(|one| one.bytes.up), median(|one| one.bytes.down));
    let wire = up + down + median(|one| one.segments) * SEGMENT_HEADERS;
    let figures = [median(|one| one.round_trips.into()), up, down, made.ticket_bytes, wire];
    names(tls).into_iter().chain(figures.map(|figure| json!(figure))).collect()
}

fn time_row(tls: TlsOptions, made: &Handshakes) -> Vec<Value> {
    let time = |share| json!(quantile(made, share, |one| one.time.as_micros() as u64));
    let round_trips = json!(quantile(made, 0.5, |one| one.round_trips.into()));
    names(tls).into_iter().chain([round_trips, time(0.5), time(0.95)]).collect()
}

fn handshake_table(rows: Vec<Vec<Value>>) -> Table {
    table(
        HANDSHAKES,
        "Handshakes of TLS: round trips and bytes",
        &[
            ("protocol", ""),
            ("certificate", ""),
            ("handshake", ""),
            ("round trips", ""),
            ("up", "bytes"),
            ("down", "bytes"),
            ("tickets afterwards", "bytes"),
            ("on the wire", "bytes"),
        ],
        rows,
        [
            "Up and down: what TLS hands to TCP. On the wire: with 54 bytes of Ethernet, IP and TCP for each segment, without ACKs and tickets, as the thesis counted.",
            "The thesis prints 301 + 140 + 129 + 129 = 699 bytes. Without a certificate this is an abbreviated handshake, not a full one (E-S11): compare it with the resumed rows.",
            "Medians. An ECDSA signature has 70 to 72 bytes, so these handshakes differ by two bytes; with RSA all are equal. The server sends one certificate, as the thesis' server with its self-signed one.",
            "TLS 1.2 sends its ticket within the handshake, TLS 1.3 after it.",
        ],
    )
}

fn time_table(rows: Vec<Vec<Value>>) -> Table {
    table(
        TIMES,
        "Handshakes of TLS: time until the client can send data",
        &[("protocol", ""), ("certificate", ""), ("handshake", ""), ("round trips", ""), ("p50", "us"), ("p95", "us")],
        rows,
        [
            "On loopback, one connection at a time, without the connection of TCP. Over a network, each round trip takes its time in addition. The thesis does not report the time of its handshake.",
        ],
    )
}

fn message_table(tls12: &[Exchange; 5], tls13: &[Exchange; 5]) -> Table {
    let row = |(i, (transport, record, plain, secured)): (usize, &(&str, &str, u64, u64))| {
        let segments = if *transport == "websocket" { 1 } else { 2 };
        let all = |bytes: TlsBytes| bytes.up + bytes.down + segments * SEGMENT_HEADERS;
        let more = |plain: u64, secured: u64| json!((secured as f64 / plain as f64 - 1.0) * 100.0);
        let (ours, with12, with13) = (all(tls12[i].plain), all(tls12[i].secured), all(tls13[i].secured));
        vec![
            json!(transport),
            json!(record),
            json!(plain),
            json!(secured),
            more(*plain, *secured),
            json!(ours),
            json!(with12),
            more(ours, with12),
            json!(with13),
            more(ours, with13),
        ]
    };
    table(
        MESSAGES,
        "Table 10: bytes of one request with its answer, or of one message",
        &[
            ("transport", ""),
            ("with a record", ""),
            ("thesis, plain", "bytes"),
            ("thesis, TLS", "bytes"),
            ("thesis, increase", "%"),
            ("ours, plain", "bytes"),
            ("ours, TLS 1.2", "bytes"),
            ("increase, TLS 1.2", "%"),
            ("ours, TLS 1.3", "bytes"),
            ("increase, TLS 1.3", "%"),
        ],
        PUBLISHED_MESSAGES.iter().enumerate().map(row).collect(),
        [
            "All with 54 bytes of Ethernet, IP and TCP for each segment. The paths and the record are those of the thesis.",
            "The thesis' polling rows compare a native client in the clear with a browser over TLS, whose request has 587 bytes (E-S10); most of their increase is the browser's headers. Ours have one client for both.",
            "Its WebSocket message: 235 = 54 + 5 + 16 + 160 bytes, which is a record of TLS 1.2 with AES-CBC and HMAC-SHA-1 around 138 bytes. With AES-GCM, TLS 1.2 adds 29 bytes and TLS 1.3 adds 22.",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_that_of_the_thesis() {
        assert_eq!(RECORD.len(), 134);
        let (up, down, sum) = PUBLISHED_HANDSHAKE;
        assert_eq!(up + down, sum);
    }

    #[test]
    fn published_increase_is_that_of_table_10() {
        let none = [Exchange::default(); 5];
        let table = message_table(&none, &none);
        let increase: Vec<f64> = table.rows.iter().map(|row| row[4].as_f64().unwrap().round()).collect();
        assert_eq!(increase, [53.0, 61.0, 59.0, 68.0, 22.0]);
    }

    #[test]
    fn segments_count_in_the_wire_bytes() {
        let bytes = TlsBytes { up: 300, down: 900 };
        let one = Handshake {
            bytes,
            segments: 4,
            round_trips: 2,
            time: std::time::Duration::from_micros(700),
            is_resumed: false,
        };
        let tls = TlsOptions { version: TlsVersion::Tls12, key: KeyKind::Rsa2048, resumes: false };
        let made = Handshakes { all: vec![one], ticket_bytes: 0 };
        let (bytes, time) = (bytes_row(tls, &made), time_row(tls, &made));
        assert_eq!((&bytes[0], &bytes[7]), (&json!("TLS 1.2"), &json!(1200 + 4 * 54)));
        assert_eq!((&time[3], &time[4]), (&json!(2), &json!(700)));
    }
}
