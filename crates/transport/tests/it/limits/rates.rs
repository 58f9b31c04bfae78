//! Limits of messages and datagrams per second.

use std::time::{Duration, Instant};

use serde_json::json;

use super::refused;
use crate::{
    client::{
        Session,
        raw::{Raw, masked},
    },
    server::{Answer, Server, client, until, within},
};

#[tokio::test]
async fn publish_rate_is_limited_per_connection() {
    let server = Server::with(|config| config.limits.publishes_per_s = 5);
    let mut answers = Vec::new();
    for i in 0..8 {
        answers.push(server.post("/v1/channels/a", &[], format!("{i}")).await);
    }
    assert!(answers[..5].iter().all(|answer| answer.status == 200));
    let late: Vec<_> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert!(!late.is_empty());
    for answer in late {
        assert!(answer.assert_problem(429, "rate_limited").contains("try again in"));
        assert_eq!(answer.header("retry-after"), "1");
    }
    // A batch on a new connection has one result per line: the first five are accepted.
    let other = client(false);
    let lines = "{\"channel\":\"a\",\"data\":1}\n".repeat(9);
    let batch = within(other.post(server.url("/v1/publish")).body(lines).send()).await.unwrap();
    let results = Answer::read(batch).await.json()["results"].as_array().unwrap().clone();
    let codes: Vec<_> = results.iter().map(|result| result["error"]["code"].as_str().unwrap_or("good")).collect();
    assert_eq!(codes[..5], ["good"; 5]);
    assert_eq!(codes[6..], ["rate_limited"; 3]);
    let mut session = Session::open(&server).await;
    let mut refusals = Vec::new();
    for i in 0..9 {
        refusals.extend(session.command("publish", json!({ "channel": "a", "data": i })).await.err());
    }
    assert!(refusals.len() >= 3, "{refusals:?}");
    assert!(refusals.iter().all(|error| error["code"] == "rate_limited" && error["retry"] == true), "{refusals:?}");
    assert!(refusals.iter().all(|error| error["retry_s"] == 1), "{refusals:?}");
    assert!(refused(&server, "publishes_per_s").await >= 6);
}

#[tokio::test]
async fn fast_bare_publisher_is_delayed_without_loss() {
    let server = Server::with(|config| config.limits.publishes_per_s = 20);
    let mut publisher = Raw::upgrade(&server, "/v1/channels/a?subscribe=no", None).await;
    let mut reader = Raw::upgrade(&server, "/v1/channels/a", None).await;
    server.await_presence("a", 1).await;
    publisher.send((0..50).flat_map(|i| masked(0x81, format!("{i}").as_bytes())).collect::<Vec<u8>>()).await;
    for i in 0..50 {
        assert_eq!(reader.frame().await.expect("a message").payload, format!("{i}").as_bytes());
    }
    // The publisher sent 30 messages above the limit, so the server pauses reading for 1.5 s.
    let began = Instant::now();
    publisher.send(masked(0x81, b"late")).await;
    assert_eq!(reader.frame().await.expect("a message").payload, b"late");
    assert!(began.elapsed() > Duration::from_millis(700), "{:?}", began.elapsed());
    assert!(refused(&server, "publishes_per_s").await > 0);
}

#[tokio::test]
async fn message_rate_is_limited_for_all_kinds() {
    let server = Server::with(|config| config.limits.messages_per_s = 20);
    let mut raw = Raw::upgrade(&server, "/v1/connect", Some("millrace.v1+json")).await;
    assert_eq!(raw.frame().await.expect("connected").opcode, 1);
    raw.send(masked(0x89, b"p").repeat(50)).await;
    for _ in 0..50 {
        assert_eq!(raw.frame().await.expect("a pong").opcode, 10);
    }
    let began = Instant::now();
    raw.send(masked(0x89, b"late")).await;
    assert_eq!(raw.frame().await.expect("a pong").payload, b"late");
    assert!(began.elapsed() > Duration::from_millis(700), "{:?}", began.elapsed());
    assert!(refused(&server, "messages_per_s").await > 0);
}

#[tokio::test]
async fn pongs_are_merged_into_few_writes() {
    let server = Server::with(|config| config.server.shards = 1);
    let mut raw = Raw::upgrade(&server, "/v1/channels/a", None).await;
    let before = server.metric("millrace_writes_total").await;
    let pings: Vec<u8> = (0..5000u16).flat_map(|i| masked(0x89, &i.to_be_bytes())).collect();
    raw.send(pings).await;
    for i in 0..5000u16 {
        let pong = raw.frame().await.expect("a pong");
        assert_eq!((pong.opcode, pong.payload.as_slice()), (10, i.to_be_bytes().as_slice()));
    }
    let writes = server.metric("millrace_writes_total").await - before;
    assert!(writes < 500, "{writes}");
}

#[tokio::test]
async fn datagram_rate_is_limited_per_address() {
    let server = Server::with(|config| {
        config.server.udp = "127.0.0.1:0".into();
        config.limits.exempt = Vec::new();
        config.limits.datagrams_per_s = 10;
    });
    let to = server.get("/v1/info").await.json()["udp"].as_str().expect("an address").to_owned();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..30 {
        socket.send_to(b"{\"channel\":\"a\",\"data\":1}", &to).unwrap();
    }
    until("all have come", async || server.metric("millrace_udp_received_total").await == 30).await;
    let dropped = refused(&server, "datagrams_per_s").await;
    assert!((15..=20).contains(&dropped), "{dropped}");
    assert_eq!(server.metric("millrace_publications_total").await, 30 - dropped);
}
