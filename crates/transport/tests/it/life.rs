//! Connections over time: heartbeats, dead peers, slow readers, the end of the server.

use std::time::{Duration, Instant};

use millrace_engine::HistoryConfig;
use serde_json::{Value, json};

use crate::{
    client::{
        Item, ReadOptions, Reader, ReaderKind, parts,
        raw::{Frame, Raw, handshake},
    },
    server::{Answer, Server, client, until, within},
};

#[tokio::test]
async fn idle_stream_gets_heartbeats() {
    let server = Server::with(|config| config.limits.heartbeat = Duration::from_secs(1));
    let mut readers = Vec::new();
    for way in ReaderKind::streams() {
        readers.push(Reader::open(way, &server, &ReadOptions::one("quiet")).await);
    }
    for reader in &mut readers {
        let mut item = reader.next_of_all().await;
        while matches!(item, Item::At(_)) {
            item = reader.next_of_all().await;
        }
        assert_eq!(item, Item::Heartbeat, "{:?}", reader.way);
    }
}

#[tokio::test]
async fn client_chooses_heartbeat_interval() {
    let server = Server::with(|config| {
        let limits = &mut config.limits;
        (limits.heartbeat, limits.heartbeat_max) = (Duration::from_secs(1), Duration::from_secs(3));
    });
    let began = Instant::now();
    let mut bare = Raw::connect(&server).await;
    bare.send(handshake("/v1/channels/quiet?heartbeat=1h", None)).await;
    let mut sse = Raw::connect(&server).await;
    sse.send("GET /v1/channels/quiet?heartbeat=3 HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n").await;
    for stream in [&mut bare, &mut sse] {
        let head = stream.head().await;
        assert!(head.contains("\r\nmillrace-heartbeat: 3\r\n"), "no longer than the server allows: {head}");
    }
    let mut session = Raw::upgrade(&server, "/v1/connect?heartbeat=0", Some("millrace.v1+json")).await;
    let connected: Value = serde_json::from_slice(&session.frame().await.unwrap().payload).unwrap();
    assert_eq!(connected["ping_ms"], 1000, "no shorter than the server's own, where that is short");
    assert_eq!(session.frame().await.unwrap().opcode, 9);
    assert!(began.elapsed() < Duration::from_millis(2900), "{:?}", began.elapsed());
    assert_eq!(bare.frame().await.unwrap().opcode, 9);
    assert!(began.elapsed() > Duration::from_millis(2900), "{:?}", began.elapsed());

    for (path, detail) in [
        ("/v1/channels/quiet?heartbeat=30s", "applies only to streams and WebSockets"),
        ("/v1/stream?channel=quiet&heartbeat=30s&wait=1", "applies only to streams and WebSockets"),
        ("/v1/channels/quiet?heartbeat=often", "`heartbeat` must be a number of seconds"),
    ] {
        let why = server.get(path).await.assert_problem(400, "bad_request");
        assert!(why.contains(detail), "{path}: {why}");
    }
}

#[tokio::test]
async fn websocket_without_pong_is_closed() {
    let server = Server::with(|config| {
        (config.limits.heartbeat, config.limits.grace) = (Duration::from_secs(1), Duration::from_secs(1));
    });
    let mut dead = Raw::upgrade(&server, "/v1/channels/pulse", None).await;
    let mut alive = Reader::open(ReaderKind::Session, &server, &ReadOptions::one("pulse")).await;
    server.await_presence("pulse", 2).await;
    let (beat, mut beats) = tokio::sync::mpsc::unbounded_channel();
    let answers = async {
        let mut item = alive.next_of_all().await;
        while item == Item::Heartbeat {
            beat.send(()).unwrap();
            item = alive.next_of_all().await;
        }
        item
    };
    let is_silent = async {
        let ping = Frame { opcode: 9, compressed: false, payload: Vec::new() };
        assert_eq!(dead.frame().await, Some(ping));
        dead.read_to_end().await;
        server.await_presence("pulse", 1).await;
        for _ in 0..3 {
            beats.recv().await.expect("the other one answers, and stays");
        }
        server.publish("pulse", "1").await;
    };
    // The client that answers pings stays connected during the whole wait.
    let (item, ()) = within(async { tokio::join!(answers, is_silent) }).await;
    assert!(matches!(&item, Item::Message(message) if message.data.clone().into_text() == "1"), "{item:?}");
}

/// Publications of the slow-reader tests: together much more than sockets and windows hold.
const COUNT: usize = 3000;
const BATCH: usize = 500;
const BYTES: usize = 2000;

/// Opens readers of every streaming transport that read nothing while everything is published, and one reader that
/// keeps up. Returns the slow readers.
async fn stall(server: &Server, ask: &ReadOptions) -> Vec<Reader> {
    let mut slow = Vec::new();
    for way in ReaderKind::streams() {
        slow.push(Reader::open(way, server, ask).await);
    }
    let mut quick = Reader::open(ReaderKind::Session, server, &ReadOptions { policy: "every", ..ask.clone() }).await;
    let filling = "x".repeat(BYTES);
    for start in (1..=COUNT).step_by(BATCH) {
        let line = |n: usize| {
            let key = format!("k{}", n % 5);
            json!({ "channel": ask.channels[0], "data": format!("{n} {filling}"), "key": key }).to_string() + "\n"
        };
        let lines: String = (start..start + BATCH).map(line).collect();
        assert_eq!(server.post("/v1/publish", &[], lines).await.status, 200);
        for n in start..start + BATCH {
            assert_eq!(number(&quick.message().await.data.into_text()), n, "others are not held up");
        }
    }
    slow
}

fn number(text: &str) -> usize {
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("not a number: {text:.20}"))
}

#[tokio::test]
async fn slow_reader_gets_all_of_history() {
    let server = Server::with(|config| config.limits.log_bytes_max = 1 << 20);
    for mut reader in stall(&server, &ReadOptions::one("slow")).await {
        for n in 1..=COUNT {
            assert_eq!(number(&reader.message().await.data.into_text()), n, "{:?}", reader.way);
        }
    }
}

#[tokio::test]
async fn slow_reader_gets_gap_report() {
    let server = Server::with(|config| {
        config.limits.log_bytes_max = 3 << 19;
        config.history = HistoryConfig { count_max: 50, ..HistoryConfig::default() };
    });
    for mut reader in stall(&server, &ReadOptions::one("slow")).await {
        let (mut next, mut gaps) = (1, 0);
        while next <= COUNT {
            match reader.next().await {
                Item::Message(message) => {
                    assert_eq!(number(&message.data.into_text()), next, "{:?}", reader.way);
                    next += 1;
                }
                Item::Gap(gap) => {
                    let before = gap.from.map(|from| parts(&from).1 as usize);
                    assert!(before.is_none_or(|before| before == next - 1), "{:?}: the gap begins here", reader.way);
                    next = parts(&gap.to).1 as usize + 1;
                    gaps += 1;
                }
                other => panic!("{:?}: {other:?}", reader.way),
            }
        }
        assert!(gaps > 0, "{:?}: it cannot have got everything", reader.way);
    }
}

#[tokio::test]
async fn slow_latest_reader_skips_to_newest() {
    let server = Server::with(|config| config.limits.log_bytes_max = 1 << 20);
    for mut reader in stall(&server, &ReadOptions::one("slow").latest()).await {
        let mut got = vec![0];
        while got[got.len() - 1] < COUNT {
            let n = number(&reader.message().await.data.into_text());
            assert!(n > got[got.len() - 1], "{:?}: {n} after {got:?}", reader.way);
            got.push(n);
        }
        let newest: Vec<_> = (COUNT - 4..=COUNT).collect();
        assert!(got.ends_with(&newest), "{:?}: the newest of each key comes, whatever is skipped", reader.way);
        assert!(got.len() < COUNT, "{:?}: nothing was skipped", reader.way);
    }
}

#[tokio::test]
async fn unread_stream_does_not_block_http2_connection() {
    let server = Server::start();
    server.publish_all("stuck", (0..8).map(|_| json!("x".repeat(900_000)))).await;
    let http = client(true);
    let stuck = http.get(server.url("/v1/channels/stuck?since=earliest")).header("accept", "application/x-ndjson");
    let mut stuck = within(stuck.send()).await.unwrap();
    for n in 1..=20 {
        let held = tokio::spawn(http.get(server.url("/v1/channels/moves?wait=30")).send());
        server.await_presence("moves", 1).await;
        server.publish("moves", n.to_string()).await;
        let answer = Answer::read(within(held).await.unwrap().unwrap()).await;
        assert_eq!(answer.json()["messages"][0]["data"], n);
        server.await_presence("moves", 0).await;
    }
    let mut left: usize = 8 * 900_000;
    while left > 0 {
        let chunk = within(stuck.chunk()).await.unwrap().expect("an open stream");
        left = left.saturating_sub(chunk.len());
    }
}

#[tokio::test]
async fn drain_notifies_all_clients_and_ends_in_time() {
    let (announce, window) = (Duration::from_millis(500), Duration::from_millis(500));
    let server = Server::with(|config| (config.drain.announce, config.drain.window) = (announce, window));
    let (ready, address) = (server.url("/readyz"), server.address);
    let mut readers = Vec::new();
    for way in ReaderKind::streams() {
        readers.push(Reader::open(way, &server, &ReadOptions::one("drain")).await);
    }
    // A client that reads nothing does not delay the drain.
    server.publish_all("stuck", (0..8).map(|_| json!("x".repeat(900_000)))).await;
    let mut stuck = Raw::connect(&server).await;
    stuck
        .send("GET /v1/channels/stuck?since=earliest HTTP/1.1\r\nHost: test\r\nAccept: text/event-stream\r\n\r\n")
        .await;
    server.await_presence("stuck", 1).await;
    let mut polls = Vec::new();
    for http2 in [false, true] {
        polls.push(tokio::spawn(client(http2).get(server.url("/v1/channels/held?wait=60")).send()));
    }
    server.await_presence("drain", readers.len() as u64).await;
    server.await_presence("held", 2).await;

    let (http, started) = (client(false), Instant::now());
    let drained = tokio::spawn(server.drain());
    until("it says that it is not ready", async || http.get(&ready).send().await.unwrap().status() == 503).await;
    for poll in polls {
        let answer = Answer::read(within(poll).await.unwrap().unwrap()).await;
        assert_eq!(answer.status, 204, "a held poll is answered: {answer:?}");
        assert!(answer.position().ends_with(":0"));
    }
    for reader in &mut readers {
        if reader.way != ReaderKind::Bare {
            assert_eq!(reader.next().await, Item::Drain, "{:?}", reader.way);
        }
        let code =
            matches!(reader.way, ReaderKind::Bare | ReaderKind::Session | ReaderKind::DataChannel).then_some(1012);
        assert_eq!(reader.next().await, Item::End(code), "{:?}", reader.way);
    }
    within(drained).await.unwrap();
    assert!(started.elapsed() < announce + window + Duration::from_secs(3), "it took {:?}", started.elapsed());
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
}
