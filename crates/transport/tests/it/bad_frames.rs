//! A broken WebSocket frame ends its own connection with the close code of RFC 6455, and affects no other connection.

use millrace_protocol::{
    session::decode_command,
    websocket::{CloseFrame, Decoder, DecoderLimits, Message},
};
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};

use crate::{
    client::{
        ReadOptions, Reader, ReaderKind,
        raw::{Raw, masked},
    },
    server::Server,
};

const MAX: usize = 1 << 20;
const ROUNDS: usize = 10_000;

/// Returns a data frame header that announces `length` bytes, without the payload.
fn announced(length: u64) -> Vec<u8> {
    let mut frame = vec![0x82, 0x80 | 127];
    frame.extend_from_slice(&length.to_be_bytes());
    frame
}

#[tokio::test]
async fn invalid_frames_have_close_codes() {
    let server = Server::start();
    let mut witness = Reader::open(ReaderKind::Bare, &server, &ReadOptions::one("frames")).await;
    let cases = [
        (vec![0x81, 2, b'h', b'i'], 1002, "not masked"),
        (masked(0xc1, b"reserved bit"), 1002, "reserved bit"),
        (masked(0x83, b"opcode"), 1002, "unknown opcode"),
        (masked(0x8b, b""), 1002, "unknown control opcode"),
        (masked(0x80, b"of nothing"), 1002, "a continuation of nothing"),
        ([masked(0x01, b"a"), masked(0x81, b"b")].concat(), 1002, "a message inside a message"),
        (masked(0x09, b"ping"), 1002, "a ping in parts"),
        (masked(0x89, &[b'x'; 126]), 1002, "a ping that is too long"),
        (masked(0x88, &[3]), 1002, "half a close code"),
        (masked(0x88, &1005u16.to_be_bytes()), 1002, "a close code that is never sent"),
        (masked(0x88, &[3, 0xe8, 0xff]), 1007, "a close reason that is not UTF-8"),
        (masked(0x81, &[0xc3, 0x28]), 1007, "not UTF-8"),
        ([masked(0x01, &[0xe2, 0x82]), masked(0x80, b"x")].concat(), 1007, "not UTF-8 over two fragments"),
        (announced(2 * MAX as u64 + 1), 1009, "larger than the limit, known from its head"),
        (announced(u64::MAX), 1002, "a length of 64 bits"),
        (masked(0x88, &4999u16.to_be_bytes()), 4999, "a close is echoed"),
    ];
    for (path, subprotocol) in [("/v1/channels/frames", None), ("/v1/connect", Some("millrace.v1+json"))] {
        for (bytes, code, what) in &cases {
            let mut raw = Raw::upgrade(&server, path, subprotocol).await;
            raw.send(bytes).await;
            assert_eq!(raw.close_code().await, Some(*code), "{path}: {what}");
        }
        // The result is the same when the frame arrives byte by byte.
        let mut raw = Raw::upgrade(&server, path, subprotocol).await;
        for byte in masked(0xc1, b"reserved bit") {
            raw.send([byte]).await;
        }
        assert_eq!(raw.close_code().await, Some(1002), "{path}");
    }
    // A close frame without a code is answered with code 1000.
    let mut raw = Raw::upgrade(&server, "/v1/channels/frames", None).await;
    raw.send(masked(0x88, b"")).await;
    assert_eq!(raw.close_code().await, Some(1000));
    server.await_presence("frames", 1).await;
    server.publish("frames", "1").await;
    assert_eq!(witness.texts(1).await, ["1"], "nothing of all this was published");
    server.assert_well().await;
}

#[tokio::test]
async fn message_size_limit_is_exact() {
    let server = Server::start();
    let mut witness = Reader::open(ReaderKind::Session, &server, &ReadOptions::one("limit")).await;
    let mut raw = Raw::upgrade(&server, "/v1/channels/limit?subscribe=no", None).await;
    raw.send(masked(0x82, &vec![7; MAX])).await;
    raw.send([masked(0x02, &vec![8; MAX]), masked(0x80, b"9")].concat()).await;
    assert_eq!(raw.close_code().await, Some(1009), "its fragments count together");
    let mut raw = Raw::upgrade(&server, "/v1/channels/limit?subscribe=no", None).await;
    raw.send(masked(0x82, &vec![7; MAX + 1])).await;
    assert_eq!(raw.close_code().await, Some(1009));
    server.publish("limit", "end").await;
    let large = witness.message().await.data;
    assert!(large == crate::client::Data::Binary(vec![7; MAX]), "the largest message came whole");
    assert_eq!(witness.texts(1).await, ["end"]);
}

#[tokio::test]
async fn incomplete_frames_are_freed_with_connection() {
    let server = Server::start();
    for bytes in [vec![0x81], masked(0x81, b"cut")[..5].to_vec(), masked(0x01, b"first of two")] {
        let mut raw = Raw::upgrade(&server, "/v1/channels/cut", None).await;
        server.await_presence("cut", 1).await;
        raw.send(&bytes).await;
        drop(raw);
        server.await_presence("cut", 0).await;
    }
    assert_eq!(server.get("/v1/channels/cut").await.status, 204);
    server.assert_well().await;
}

#[tokio::test]
async fn random_bytes_affect_only_their_connection() {
    let server = Server::start();
    let mut chance = Pcg64Mcg::seed_from_u64(1);
    for round in 0..40 {
        let subprotocol = (round % 2 == 0).then_some("millrace.v1+json");
        let mut raw = Raw::upgrade(&server, "/v1/channels/random?subscribe=no", subprotocol).await;
        raw.send(bytes(&mut chance, 300)).await;
        raw.finish().await;
        raw.read_to_end().await;
    }
    server.assert_well().await;
}

/// Returns up to `most` random bytes.
fn bytes(chance: &mut Pcg64Mcg, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; below(chance, most + 1)];
    chance.fill_bytes(&mut bytes);
    bytes
}

fn below(chance: &mut Pcg64Mcg, bound: usize) -> usize {
    (chance.next_u64() % bound as u64) as usize
}

/// Returns valid frames with some bytes corrupted, so that random input gets past the first byte.
fn nearly_frames(chance: &mut Pcg64Mcg) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..=below(chance, 4) {
        let first = [0x01, 0x02, 0x80, 0x81, 0x82, 0x89, 0x8a, 0x88, 0x00, 0xc1, 0xc2, 0x42][below(chance, 12)];
        let payload = match below(chance, 3) {
            0 => b"text".to_vec(),
            // "Hello", compressed. Source: RFC 7692, section 7.2.3.1.
            1 => vec![0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00],
            _ => bytes(chance, 200),
        };
        stream.extend(masked(first, &payload));
    }
    for _ in 0..below(chance, 3) {
        let at = below(chance, stream.len());
        stream[at] ^= 1 << below(chance, 8);
    }
    stream.truncate(below(chance, stream.len()) + 1);
    stream
}

/// Decodes `stream` in pieces of `piece` bytes and returns the messages and the error, if any.
fn decode(stream: &[u8], piece: usize) -> (Vec<String>, Option<CloseFrame>) {
    let limits = DecoderLimits::new(150, true);
    let (mut decoder, mut messages, mut closed) = (Decoder::default(), Vec::new(), false);
    for piece in stream.to_vec().chunks_mut(piece) {
        let result = decoder.decode(piece, limits, |message| {
            messages.push(format!("{message:?}"));
            closed = matches!(message, Message::Close(_));
            !closed
        });
        if let Err(close) = result {
            return (messages, Some(close));
        }
        if closed {
            break;
        }
    }
    (messages, None)
}

#[test]
fn random_frames_decode_independently_of_splits() {
    for seed in 0..ROUNDS as u64 {
        let mut chance = Pcg64Mcg::seed_from_u64(seed);
        let stream = if seed % 4 == 0 { bytes(&mut chance, 64) } else { nearly_frames(&mut chance) };
        let whole = decode(&stream, stream.len().max(1));
        for piece in [1, 1 + below(&mut chance, 20)] {
            assert_eq!(decode(&stream, piece), whole, "seed {seed}, pieces of {piece}: {stream:?}");
        }
    }
}

#[test]
fn random_commands_never_panic() {
    const GOOD: [&str; 4] = [
        r#"{"id":3,"subscribe":{"channel":"a/+","since":1700,"policy":"latest","positions":{"a/b":"1:2"}}}"#,
        r#"{"id":4,"publish":{"channel":"a/b","data":{"x":[1,"\u00e9"]},"key":"k","ttl":1.5,"idempotency_key":"i"}}"#,
        r#"{"id":5,"publish":{"channel":"a","data":"AP8=","encoding":"base64"}}"#,
        r#"{"id":6,"history":{"channel":"a","since":"5f0c12ab:57","limit":10}}"#,
    ];
    let (mut good, mut bad) = (0, 0);
    for seed in 0..ROUNDS as u64 {
        let mut chance = Pcg64Mcg::seed_from_u64(seed);
        let mut text = GOOD[below(&mut chance, GOOD.len())].as_bytes().to_vec();
        if seed % 4 == 0 {
            text = bytes(&mut chance, 100);
        }
        for _ in 0..below(&mut chance, 4) {
            if let Some(at) = (!text.is_empty()).then(|| below(&mut chance, text.len())) {
                text[at] = chance.next_u64() as u8;
            }
        }
        let text = String::from_utf8_lossy(&text);
        let (id, command) = decode_command(&text);
        match command {
            Ok(_) => good += 1,
            Err(_) => bad += 1,
        }
        let json: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        let named = json.as_ref().and_then(|json| json.as_object()?.get("id")?.as_u64());
        assert_eq!(id, named, "seed {seed}: a reply finds its asker: {text}");
    }
    assert!(good > ROUNDS / 20 && bad > ROUNDS / 20, "both kinds were there: {good} good, {bad} bad");
}
