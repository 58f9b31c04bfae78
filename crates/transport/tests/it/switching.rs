//! A reader changes its transport while a publisher publishes continuously.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use crate::{
    client::{
        ReadOptions, Reader, ReaderKind,
        raw::{Raw, handshake},
        websocket::{self, Incoming},
    },
    server::{Server, within},
};

/// Messages read per connection: enough to pass from history to live publications, and few enough that the publisher is
/// not always ahead.
const STAY: usize = 5;

#[tokio::test]
async fn resume_between_all_transports_is_exact() {
    let server = Server::start();
    let before = server.publish("switch", "0").await;
    let stop = Arc::new(AtomicBool::new(false));
    let publisher = {
        let (stop, http, url) = (stop.clone(), server.http.clone(), server.url("/v1/channels/switch"));
        tokio::spawn(async move {
            let mut n = 0u64;
            while !stop.load(SeqCst) {
                n += 1;
                let answer = http.post(&url).body(n.to_string()).send().await.expect("an answer");
                assert_eq!(answer.status(), 200);
            }
            n
        })
    };
    let (mut position, mut next) = (before, 1u64);
    let pairs =
        ReaderKind::all().flat_map(|from| ReaderKind::all().filter(move |to| *to != from).map(move |to| [from, to]));
    for way in pairs.flatten() {
        let mut reader = Reader::open(way, &server, &ReadOptions::one("switch").since(&position)).await;
        for text in reader.texts(STAY).await {
            assert_eq!(text, next.to_string(), "{way:?} after {position}");
            next += 1;
        }
        position = reader.position().expect("a position").to_owned();
    }
    stop.store(true, SeqCst);
    let published = within(publisher).await.expect("a publisher without errors");
    for way in ReaderKind::all() {
        let mut reader = Reader::open(way, &server, &ReadOptions::one("switch").since(&position)).await;
        let rest: Vec<_> = (next..=published).map(|n| n.to_string()).collect();
        assert_eq!(reader.texts(rest.len()).await, rest, "{way:?}");
    }
}

/// Returns the next text message of a WebSocket.
async fn text(socket: &mut websocket::Socket) -> String {
    loop {
        match within(websocket::receive(socket)).await {
            Incoming::Text(text) => return text,
            Incoming::Ping => {}
            _ => panic!("no text"),
        }
    }
}

#[tokio::test]
async fn bare_websocket_resumes_at_the_count_of_its_messages() {
    const WITH_POSITION: Option<&str> = Some("millrace.bare+position");
    let server = Server::start();
    let before = server.publish("counted", "0").await;
    let mut socket = websocket::connect(&server, "/v1/channels/counted", WITH_POSITION).await;
    let first = text(&mut socket).await;
    assert_eq!(first, before, "the position of the subscription");
    let (epoch, offset) = first.split_once(':').expect("EPOCH:OFFSET");
    let mut offset: u64 = offset.parse().expect("an offset");
    for n in 1..=30 {
        server.publish("counted", n.to_string()).await;
        if n % 3 != 0 {
            continue;
        }
        // The third publication of each connection is on its way when the connection breaks.
        for expected in n - 2..n {
            assert_eq!(text(&mut socket).await, expected.to_string());
            offset += 1;
        }
        drop(socket);
        let since = format!("/v1/channels/counted?since={epoch}:{offset}");
        socket = websocket::connect(&server, &since, WITH_POSITION).await;
        assert_eq!(text(&mut socket).await, format!("{epoch}:{offset}"));
        assert_eq!(text(&mut socket).await, n.to_string());
        offset += 1;
    }
    let mut raw = Raw::connect(&server).await;
    raw.send(handshake("/v1/channels/counted?policy=latest", WITH_POSITION)).await;
    let (head, body) = raw.answer().await;
    assert!(head.starts_with("HTTP/1.1 400 ") && body.contains("policy=latest"), "{head}{body}");
}

#[tokio::test]
async fn reader_joining_under_load_gets_each_publication_once() {
    let server = Server::start();
    server.publish("load", "0").await;
    let stop = Arc::new(AtomicBool::new(false));
    let publisher = {
        let (stop, http, url) = (stop.clone(), server.http.clone(), server.url("/v1/channels/load"));
        tokio::spawn(async move {
            let mut n = 0u64;
            while !stop.load(SeqCst) {
                n += 1;
                http.post(&url).body(n.to_string()).send().await.expect("an answer");
            }
        })
    };
    for since in ["now", "earliest"] {
        for _ in 0..3 {
            for way in ReaderKind::all() {
                let mut reader = Reader::open(way, &server, &ReadOptions::one("load").since(since)).await;
                let texts = reader.texts(30).await;
                let first: u64 = texts[0].parse().expect("a number");
                let expected: Vec<_> = (first..first + 30).map(|n| n.to_string()).collect();
                assert_eq!(texts, expected, "{way:?} since {since}");
            }
        }
    }
    stop.store(true, SeqCst);
    within(publisher).await.expect("a publisher without errors");
}
