//! The promises of every transport, run over every transport, in cleartext and over TLS.

#![allow(clippy::unwrap_used, reason = "tests, though called by others")]

use base64::prelude::{BASE64_STANDARD, Engine as _};
use millrace_transport::TRANSPORTS;
use serde_json::{Value, json};

use crate::{
    client::{Data, Http, Item, ReadOptions, Reader, ReaderKind, Session, after, parts},
    server::{Server, until},
};

/// Runs each promise in cleartext and over TLS.
macro_rules! promises {
    ($($name:ident,)*) => {
        mod clear {
            $(#[tokio::test] async fn $name() { crate::server::SECURED.scope(false, super::$name()).await })*
        }
        mod tls {
            $(#[tokio::test] async fn $name() { crate::server::SECURED.scope(true, super::$name()).await })*
        }
    };
}

pub(crate) use promises;

promises! {
    publications_arrive_in_order,
    any_position_resumes,
    what_history_has_lost_is_a_gap_and_reading_goes_on,
    a_position_of_another_life_is_a_gap,
    a_position_that_was_never_given_out_is_a_gap,
    since_speaks_every_language,
    latest_is_the_newest_per_key,
    payloads_arrive_as_they_were_published,
    the_largest_publication_arrives_and_one_byte_more_is_refused,
    open_readers_are_counted,
    what_has_expired_is_not_read,
    the_same_idempotency_key_publishes_once,
    a_stream_that_is_cut_before_its_first_message_resumes,
}

async fn open_all(server: &Server, ways: impl Iterator<Item = ReaderKind>, ask: &ReadOptions) -> Vec<Reader> {
    let mut readers = Vec::new();
    for way in ways {
        readers.push(Reader::open(way, server, ask).await);
    }
    readers
}

fn numbers(range: impl Iterator<Item = u64>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

async fn publications_arrive_in_order() {
    let server = Server::start();
    let first = server.publish("order", "0").await;
    let mut readers = open_all(&server, ReaderKind::all(), &ReadOptions::one("order")).await;
    for tens in 0..10 {
        server.publish_all("order", (1..=100).map(|n| json!(tens * 100 + n))).await;
    }
    for reader in &mut readers {
        for n in 1..=1000 {
            let message = reader.message().await;
            assert_eq!(message.data.into_text(), n.to_string(), "{:?}", reader.way);
            if reader.way != ReaderKind::Bare {
                assert_eq!(message.position, Some(after(&first, n)), "{:?}", reader.way);
            }
        }
    }
}

async fn any_position_resumes() {
    let server = Server::start();
    let last = server.publish_all("resume", (1..=20).map(Value::from)).await;
    let (epoch, _) = parts(&last);
    let mut readers = Vec::new();
    for offset in [0, 1, 7, 19, 20] {
        let ask = ReadOptions::one("resume").since(format!("{epoch}:{offset}"));
        for mut reader in open_all(&server, ReaderKind::all(), &ask).await {
            let expected = numbers(offset + 1..=20);
            assert_eq!(reader.texts(expected.len()).await, expected, "{:?} after {offset}", reader.way);
            readers.push(reader);
        }
    }
    let end = server.publish("resume", "end").await;
    for mut reader in readers {
        assert_eq!(reader.message().await.data.into_text(), "end", "{:?}: nothing comes twice", reader.way);
        assert_eq!(reader.position(), Some(end.as_str()), "{:?}", reader.way);
    }
}

async fn what_history_has_lost_is_a_gap_and_reading_goes_on() {
    let server = Server::with(|config| {
        config.namespaces.entry("small".into()).or_default().count_max = Some(10);
    });
    let last = server.publish_all("small/a", (1..=50).map(Value::from)).await;
    let (epoch, _) = parts(&last);
    let (from, to) = (format!("{epoch}:5"), format!("{epoch}:40"));
    for mut reader in open_all(&server, ReaderKind::all(), &ReadOptions::one("small/a").since(&from)).await {
        let gap = reader.gap().await;
        let named = if reader.way == ReaderKind::Bare { None } else { Some(from.clone()) };
        assert_eq!((gap.from, &gap.to), (named, &to), "{:?}", reader.way);
        assert_eq!(reader.texts(10).await, numbers(41..=50), "{:?}", reader.way);
        assert_eq!(reader.position(), Some(last.as_str()), "{:?}", reader.way);
    }
    // A reader whose connection is cut between the start and the gap must receive the gap on its next connection. So
    // the reported start is where the gap begins.
    for way in ReaderKind::streams() {
        let reader = Reader::open(way, &server, &ReadOptions::one("small/a").since(&from)).await;
        assert_eq!(reader.position(), Some(from.as_str()), "{way:?}");
    }
    let mut session = Session::open(&server).await;
    let ok = session.command("subscribe", json!({ "channel": "small/a", "since": from })).await.unwrap();
    assert_eq!((&ok["recovered"], &ok["position"]), (&json!(false), &json!(from)));
}

async fn a_position_of_another_life_is_a_gap() {
    let server = Server::start();
    let last = server.publish_all("lives", (1..=3).map(Value::from)).await;
    let (epoch, _) = parts(&last);
    let other = format!("{:08x}:77", u32::from_str_radix(epoch, 16).unwrap() ^ 1);
    let mut readers = open_all(&server, ReaderKind::all(), &ReadOptions::one("lives").since(&other)).await;
    for reader in &mut readers {
        let gap = reader.gap().await;
        assert_eq!(gap.to, format!("{epoch}:0"), "{:?}", reader.way);
        assert!(gap.from.is_none_or(|from| from == other), "{:?}", reader.way);
        assert_eq!(reader.texts(3).await, numbers(1..=3), "{:?}", reader.way);
    }
    server.publish("lives", "4").await;
    for reader in &mut readers {
        assert_eq!(reader.texts(1).await, ["4"], "{:?}", reader.way);
    }
}

async fn a_position_that_was_never_given_out_is_a_gap() {
    let server = Server::start();
    let last = server.publish("future", "1").await;
    let beyond = after(&last, 100);
    let mut readers = open_all(&server, ReaderKind::all(), &ReadOptions::one("future").since(&beyond)).await;
    for reader in &mut readers {
        assert_eq!(reader.gap().await.to, last, "{:?}", reader.way);
    }
    server.publish("future", "2").await;
    for reader in &mut readers {
        assert_eq!(reader.texts(1).await, ["2"], "{:?}", reader.way);
    }
}

async fn since_speaks_every_language() {
    let server = Server::start();
    server.publish("since", "a").await;
    let newest = async || server.get("/v1/channels/since").await.json()["messages"][0]["time"].as_u64().unwrap();
    let began_ms = newest().await;
    until("the clock has moved on", async || {
        server.publish("since", "between").await;
        newest().await > began_ms
    })
    .await;
    let later_ms = newest().await;
    let last = server.publish("since", "z").await;
    let count = parts(&last).1 as usize;
    let starts = [
        ("earliest".to_owned(), vec!["a"]),
        (began_ms.to_string(), vec!["a"]),
        ("1970-01-01T00:00:01Z".to_owned(), vec!["a"]),
        (later_ms.to_string(), vec!["between", "z"]),
        (after(&last, 0), vec![]),
        ("now".to_owned(), vec![]),
    ];
    let mut readers = Vec::new();
    for (since, expected) in &starts {
        for mut reader in open_all(&server, ReaderKind::all(), &ReadOptions::one("since").since(since)).await {
            assert_eq!(reader.texts(expected.len()).await, *expected, "{:?} since {since}", reader.way);
            let skip = if expected.len() == 1 { count - 1 } else { 0 };
            reader.texts(skip).await;
            readers.push((since, reader));
        }
    }
    server.publish("since", "end").await;
    for (since, mut reader) in readers {
        assert_eq!(reader.texts(1).await, ["end"], "{:?} since {since}", reader.way);
    }
}

async fn latest_is_the_newest_per_key() {
    let server = Server::start();
    for (i, key) in ["a", "b", "a", "c", "b"].iter().enumerate() {
        server.publish_with("latest", &[("millrace-key", key)], (i + 1).to_string()).await;
    }
    let ask = ReadOptions::one("latest").since("earliest").latest();
    for mut reader in open_all(&server, ReaderKind::all(), &ask).await {
        let mut got = Vec::new();
        for _ in 0..3 {
            let message = reader.message().await;
            got.push((message.key, message.data.into_text()));
        }
        let texts: Vec<_> = got.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["3", "4", "5"], "{:?}", reader.way);
        if !matches!(reader.way, ReaderKind::Bare | ReaderKind::Sse(_)) {
            let keys: Vec<_> = got.iter().map(|(key, _)| key.as_deref().unwrap()).collect();
            assert_eq!(keys, ["a", "c", "b"], "{:?}", reader.way);
        }
        server.publish_with("latest", &[("millrace-key", "b")], "5").await;
        assert_eq!(reader.texts(1).await, ["5"], "{:?}", reader.way);
    }
}

async fn payloads_arrive_as_they_were_published() {
    let server = Server::start();
    let binary = vec![0u8, 255, 10, 13, 254, b'x'];
    let published: [(&str, Data); 8] = [
        ("application/json", Data::Json(json!({ "a": [1, 2.5, null], "b": "\u{e9}\n" }))),
        ("text/plain", Data::Text("one line".into())),
        ("text/plain", Data::Text("{\"a\":1}".into())),
        ("text/plain", Data::Text("one\ntwo\n\nfour\n".into())),
        ("text/plain; charset=utf-8", Data::Text(": \u{1f697} id: 7".into())),
        ("text/plain", Data::Text(String::new())),
        ("application/octet-stream", Data::Binary(binary.clone())),
        ("application/octet-stream", Data::Binary(b"looks like text".to_vec())),
    ];
    let mut readers = open_all(&server, ReaderKind::all(), &ReadOptions::one("payloads")).await;
    for (content_type, data) in &published {
        let body = match data {
            // Line breaks between tokens, as an editor writes them.
            Data::Json(value) => serde_json::to_string_pretty(value).unwrap().replace('\n', "\r\n").into_bytes(),
            Data::Text(text) => text.clone().into_bytes(),
            Data::Binary(bytes) | Data::Raw(bytes) => bytes.clone(),
        };
        server.publish_with("payloads", &[("content-type", content_type)], body).await;
    }
    for reader in &mut readers {
        for (_, expected) in &published {
            let data = reader.message().await.data;
            let same = match (expected, &data) {
                (Data::Json(value), Data::Raw(bytes)) => serde_json::from_slice::<Value>(bytes).unwrap() == *value,
                (Data::Text(text), Data::Raw(bytes)) => text.as_bytes() == bytes,
                // An event stream is text, so binary payloads are sent as base64.
                (Data::Binary(sent), Data::Raw(bytes)) => BASE64_STANDARD.encode(sent).as_bytes() == bytes,
                (expected, data) => *expected == *data,
            };
            assert!(same, "{:?}: {expected:?} has become {data:?}", reader.way);
        }
    }
}

async fn the_largest_publication_arrives_and_one_byte_more_is_refused() {
    const MAX: usize = 1 << 20;
    let server = Server::start();
    let mut readers = open_all(&server, ReaderKind::all(), &ReadOptions::one("large")).await;
    let text = [("content-type", "text/plain")];
    server.publish_with("large", &text, "x".repeat(MAX)).await;
    let refused = server.post("/v1/channels/large", &text, "x".repeat(MAX + 1)).await;
    refused.assert_problem(413, "too_large");
    server.publish("large", "end").await;
    for reader in &mut readers {
        let large = reader.message().await.data.into_text();
        assert!(large.len() == MAX && large.bytes().all(|b| b == b'x'), "{:?}", reader.way);
        assert_eq!(reader.texts(1).await, ["end"], "{:?}", reader.way);
    }
}

async fn open_readers_are_counted() {
    let server = Server::start();
    for (i, way) in ReaderKind::all().enumerate() {
        let channel = format!("presence/{i}");
        let mut reader = Reader::open(way, &server, &ReadOptions::one(&channel)).await;
        let count = u64::from(!matches!(way, ReaderKind::Polling(_)));
        tokio::select! {
            item = reader.next() => panic!("{way:?}: nothing was published, yet there is {item:?}"),
            () = server.await_presence(&channel, count) => {}
        }
        drop(reader);
        server.await_presence(&channel, 0).await;
    }
    let mut readers = open_all(&server, ReaderKind::streams(), &ReadOptions::one("presence/all")).await;
    server.await_presence("presence/all", readers.len() as u64).await;
    let mut session = Session::open(&server).await;
    let ok = session.command("presence", json!({ "channel": "presence/all" })).await.unwrap();
    assert_eq!(ok["count"], readers.len());
    readers.truncate(1);
    server.await_presence("presence/all", 1).await;
    drop((readers, session));
    for transport in TRANSPORTS {
        let gauge = format!("millrace_connections{{transport=\"{}\"}}", transport.metric_label());
        until(&format!("{gauge} is 0"), async || server.metric(&gauge).await == 0).await;
    }
}

async fn what_has_expired_is_not_read() {
    let server = Server::start();
    server.publish("ttl", "stays").await;
    server.publish_with("ttl", &[("millrace-ttl", "0.2")], "goes").await;
    let end = server.publish("ttl", "end").await;
    let first = after(&end, 0).replace(":3", ":1");
    until("it has expired", async || {
        let answer = server.get(&format!("/v1/channels/ttl?since={first}")).await.json();
        answer["gap"]["to"].is_string()
    })
    .await;
    for mut reader in open_all(&server, ReaderKind::all(), &ReadOptions::one("ttl").since(&first)).await {
        // A reader that resumes by position receives a gap for the expired publication.
        assert_eq!(reader.gap().await.to, first.replace(":1", ":2"), "{:?}", reader.way);
        assert_eq!(reader.texts(1).await, ["end"], "{:?}", reader.way);
    }
    let refused = server.post("/v1/channels/ttl", &[("millrace-ttl", "-1")], "x").await;
    refused.assert_problem(400, "bad_request");
}

async fn the_same_idempotency_key_publishes_once() {
    let server = Server::start();
    let mut readers = open_all(&server, ReaderKind::all(), &ReadOptions::one("once")).await;
    let key = [("idempotency-key", "order-7")];
    let first = server.publish_with("once", &key, "a").await;
    assert_eq!(server.publish_with("once", &key, "a").await, first);
    let mut session = Session::open(&server).await;
    let again = json!({ "channel": "once", "data": "a", "idempotency_key": "order-7" });
    assert_eq!(session.command("publish", again.clone()).await.unwrap()["position"], first);
    let batch = server.post("/v1/publish", &[], again.to_string()).await.json();
    assert_eq!(batch["results"][0]["position"], first);
    let other = server.publish_with("elsewhere", &key, "a").await;
    assert_eq!(parts(&other).1, 1, "another channel has its own keys");
    server.publish("once", "b").await;
    for reader in &mut readers {
        assert_eq!(reader.texts(2).await, ["a", "b"], "{:?}", reader.way);
    }
}

async fn a_stream_that_is_cut_before_its_first_message_resumes() {
    let server = Server::start();
    let last = server.publish("cut", "before").await;
    for http in [Http::One, Http::Two] {
        let mut reader = Reader::open(ReaderKind::Sse(http), &server, &ReadOptions::one("cut")).await;
        let at = [("cut".to_owned(), last.clone())].into();
        assert_eq!(reader.next_of_all().await, Item::At(at), "the preamble's id");
    }
    let unread: Vec<_> =
        open_all(&server, ReaderKind::streams().filter(|way| *way != ReaderKind::Bare), &ReadOptions::one("cut")).await;
    for reader in unread {
        assert_eq!(reader.position(), Some(last.as_str()), "{:?}", reader.way);
    }
}
