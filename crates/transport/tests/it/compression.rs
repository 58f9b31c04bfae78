//! permessage-deflate delivers the same publications in fewer bytes, and no compressed input harms the server. The
//! reference is a DEFLATE library that is called once per message, with frames built by hand.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use millrace_engine::HistoryConfig;
use serde_json::{Value, json};

use crate::{
    client::{
        ReadOptions, Reader, ReaderKind, SUBPROTOCOL, parts,
        raw::{Raw, masked},
    },
    server::{Server, within},
};

const OFFER: &str = "permessage-deflate; client_max_window_bits";
const ANSWER: &str = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";

fn server() -> Server {
    Server::with(|config| config.limits.compression = true)
}

async fn upgrade(server: &Server, path: &str, subprotocol: Option<&str>) -> Raw {
    let (raw, answer) = Raw::upgrade_offering(server, path, subprotocol, OFFER).await;
    assert_eq!(answer.as_deref(), Some(ANSWER));
    raw
}

/// Returns the next message: whether it was compressed, whether it is text, and its payload. Each message is compressed
/// independently. Source: RFC 7692, section 7.2.2.
async fn message(raw: &mut Raw) -> (bool, bool, Vec<u8>) {
    let frame = within(raw.frame()).await.expect("an open socket");
    assert!(matches!(frame.opcode, 1 | 2), "{frame:?}");
    if !frame.compressed {
        return (false, frame.opcode == 1, frame.payload);
    }
    let mut out = Vec::with_capacity(1 << 20);
    let input = [&frame.payload[..], &[0, 0, 0xff, 0xff]].concat();
    Decompress::new(false).decompress_vec(&input, &mut out, FlushDecompress::Sync).expect("DEFLATE");
    (true, frame.opcode == 1, out)
}

fn compressed(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 100);
    let mut compress = Compress::new(Compression::best(), false);
    compress.compress_vec(payload, &mut out, FlushCompress::Sync).expect("memory");
    assert_eq!(out.split_off(out.len() - 4), [0, 0, 0xff, 0xff]);
    out
}

fn payloads() -> Vec<(&'static str, Vec<u8>)> {
    let records: Vec<Value> = (0..2000).map(|n| json!({ "carId": n, "speed": n % 90, "rpm": 900 + n })).collect();
    let mut state = 7u32;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    vec![
        ("text/plain", b"short".to_vec()),
        ("text/plain", Vec::new()),
        ("application/json", json!(records).to_string().into_bytes()),
        ("text/plain", "wheel ".repeat(20).into_bytes()),
        ("application/octet-stream", vec![0xff; 300]),
        ("application/octet-stream", noise.take(5000).collect()),
    ]
}

#[tokio::test]
async fn compressed_readers_receive_same_messages() {
    let server = server();
    let path = "/v1/channels/small";
    let mut readers = vec![upgrade(&server, path, None).await, upgrade(&server, path, None).await];
    for bits in [8, 12, 15] {
        let offer = format!("{OFFER}; server_max_window_bits={bits}");
        let (raw, answer) = Raw::upgrade_offering(&server, path, None, &offer).await;
        assert_eq!(answer, Some(format!("{ANSWER}; server_max_window_bits={bits}")));
        readers.push(raw);
    }
    server.await_presence("small", 5).await;
    for (content_type, body) in payloads() {
        server.publish_with("small", &[("content-type", content_type)], body).await;
    }
    // A later reader receives the same publications from the history.
    readers.push(upgrade(&server, &format!("{path}?since=earliest"), None).await);
    for (number, raw) in readers.iter_mut().enumerate() {
        for (i, (content_type, body)) in payloads().into_iter().enumerate() {
            let (compressed, text, got) = message(raw).await;
            assert!(got == body, "reader {number}, message {i}");
            assert_eq!(text, content_type != "application/octet-stream", "reader {number}, message {i}");
            assert_eq!(compressed, matches!(i, 2..=4), "reader {number}, message {i}: only what becomes smaller");
        }
    }
}

#[tokio::test]
async fn compressed_session_supports_all_commands() {
    let server = server();
    let mut raw = upgrade(&server, "/v1/channels/talk", Some(SUBPROTOCOL)).await;
    let mut json = async || -> Value { serde_json::from_slice(&message(&mut raw).await.2).expect("JSON") };
    assert_eq!(json().await["push"], "connected");
    assert_eq!(json().await["id"], 0);
    let long = "wheel ".repeat(1000);
    server.publish("talk", json!(long).to_string()).await;
    assert_eq!(json().await["data"], long);
    let publish = json!({ "id": 1, "publish": { "channel": "talk", "data": long } }).to_string();
    raw.send(masked(0xc1, &compressed(publish.as_bytes()))).await;
    let (mut pushed, mut replied) = (false, false);
    while !(pushed && replied) {
        let (compressed, _, text) = message(&mut raw).await;
        let json: Value = serde_json::from_slice(&text).expect("JSON");
        pushed |= compressed && json["data"] == long;
        replied |= json["id"] == 1 && json["ok"]["position"].is_string();
    }
}

#[tokio::test]
async fn gap_closes_compressed_bare_reader() {
    let server = Server::with(|config| {
        config.limits.compression = true;
        config.history = HistoryConfig { count_max: 3, ..HistoryConfig::default() };
    });
    let last = server.publish_all("gap", (1..=9).map(Value::from)).await;
    let (epoch, _) = parts(&last);
    let mut raw = upgrade(&server, &format!("/v1/channels/gap?since={epoch}:1"), None).await;
    let close = within(raw.frame()).await.expect("a close frame");
    assert_eq!((close.opcode, close.compressed), (8, false));
    assert_eq!(close.payload, [&4000u16.to_be_bytes()[..], format!("{epoch}:6").as_bytes()].concat());
}

#[tokio::test]
async fn only_valid_compressed_messages_are_published() {
    let server = server();
    let mut witness = Reader::open(ReaderKind::Bare, &server, &ReadOptions::one("in")).await;
    let path = "/v1/channels/in?subscribe=no";
    let text = "wheel of a mill ".repeat(30);
    let small = compressed(text.as_bytes());
    let mut raw = upgrade(&server, path, None).await;
    raw.send(masked(0xc1, &small)).await;
    let (one, two) = small.split_at(5);
    raw.send([masked(0x41, one), masked(0x89, b"ping"), masked(0x80, two)].concat()).await;
    raw.send(masked(0x81, b"as it is")).await;
    assert_eq!(witness.texts(3).await, [text.as_str(), &text, "as it is"]);

    let bomb = compressed(&vec![b' '; 64 << 20]);
    assert!(bomb.len() < 100_000);
    let cases = [
        (masked(0xc2, &bomb), 1009, "64 MiB in 64 KiB"),
        ([masked(0x42, &bomb[..9]), masked(0x80, &bomb[9..])].concat(), 1009, "in two parts"),
        (masked(0xc2, &[0xff; 20]), 1007, "not compressed"),
        (masked(0xc2, &small[..9]), 1007, "cut off"),
        (masked(0xc1, &compressed(&[0xc3; 100])), 1007, "not UTF-8"),
        ([masked(0x41, one), masked(0xc0, two)].concat(), 1002, "the bit on a continuation"),
        (masked(0xc9, b"ping"), 1002, "the bit on a ping"),
        (masked(0xa1, b"x"), 1002, "another bit"),
    ];
    for (bytes, code, what) in cases {
        let mut raw = upgrade(&server, path, None).await;
        raw.send(bytes).await;
        assert_eq!(raw.close_code().await, Some(code), "{what}");
    }
    server.publish("in", "\"end\"").await;
    assert_eq!(witness.texts(1).await, ["\"end\""], "nothing of all this was published");
    server.assert_well().await;
}

#[tokio::test]
async fn nothing_is_compressed_without_negotiation() {
    let (off, on) = (Server::start(), server());
    for (server, offer) in [(&off, OFFER), (&on, "permessage-deflate; unknown"), (&on, "x-nothing")] {
        let (mut raw, answer) = Raw::upgrade_offering(server, "/v1/channels/plain", None, offer).await;
        assert_eq!(answer, None, "{offer}");
        server.await_presence("plain", 1).await;
        server.publish("plain", format!("\"{}\"", "x".repeat(300))).await;
        assert!(!message(&mut raw).await.0);
        raw.send(masked(0xc1, &compressed(b"wheel wheel wheel"))).await;
        assert_eq!(raw.close_code().await, Some(1002));
        server.await_presence("plain", 0).await;
    }
}
