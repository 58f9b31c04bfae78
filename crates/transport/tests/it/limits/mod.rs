//! Each limit that is reached gives the answer that docs/reference/limits.md names, and is counted. The server stays
//! available.
//!
//! This file has the limits of single requests, and of channels and rooms; the others are in files of their own.

mod bytes;
mod connections;
mod http2;
mod rates;

use serde_json::json;

use crate::{
    client::{
        Session,
        raw::{Raw, masked},
    },
    server::Server,
};

async fn refused(server: &Server, limit: &str) -> u64 {
    server.metric(&format!("millrace_refused_total{{limit=\"{limit}\"}}")).await
}

/// Sends one request on a new connection and returns the whole answer in lower case.
async fn ask(server: &Server) -> String {
    let mut raw = Raw::connect(server).await;
    raw.send("GET /v1/channels/a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").await;
    String::from_utf8(raw.read_to_end().await).expect("text").to_ascii_lowercase()
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[tokio::test]
async fn request_heads_are_limited() {
    let server = Server::start();
    let long = "x".repeat(70_000);
    let many = "X: y\r\n".repeat(101);
    for (request, status) in [
        (format!("GET /v1/channels/a HTTP/1.1\r\nHost: test\r\nX: {long}\r\n\r\n"), "431"),
        (format!("GET /v1/channels/a HTTP/1.1\r\nHost: test\r\n{many}\r\n"), "431"),
        (format!("GET /{long} HTTP/1.1\r\nHost: test\r\n\r\n"), "4"),
    ] {
        let mut raw = Raw::connect(&server).await;
        raw.send(request).await;
        let head = raw.head().await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
    }
    server.assert_well().await;
}

#[tokio::test]
async fn batch_lines_are_limited() {
    let server = Server::with(|config| config.limits.batch_lines_max = 2);
    let lines = |count| "{\"channel\":\"a\",\"data\":1}\n".repeat(count);
    assert_eq!(server.post("/v1/publish", &[], lines(2)).await.status, 200);
    server.post("/v1/publish", &[], lines(3)).await.assert_problem(429, "too_many");
    assert_eq!(refused(&server, "too_many").await, 1);
}

#[tokio::test]
async fn patterns_are_limited_per_node() {
    let server = Server::with(|config| config.limits.patterns_max = 2);
    let mut session = Session::open(&server).await;
    for pattern in ["a/#", "b/+"] {
        session.command("subscribe", json!({ "channel": pattern })).await.expect("room");
    }
    let error = session.command("subscribe", json!({ "channel": "c/+" })).await.expect_err("no room");
    assert_eq!(error["code"], "too_many");
    // A subscription to a pattern that another session already reads needs no further slot.
    let mut other = Session::open(&server).await;
    other.command("subscribe", json!({ "channel": "a/#" })).await.expect("it is there");
    session.command("unsubscribe", json!({ "channel": "b/+" })).await.expect("gone");
    other.command("subscribe", json!({ "channel": "c/+" })).await.expect("room again");
    assert!(refused(&server, "too_many").await >= 1);
}

/// HTTP, sessions and bare WebSockets of one address share one quota.
#[tokio::test]
async fn new_channels_are_charged_on_every_transport() {
    let server = Server::with(|config| config.engine.channels_max = 45);
    let mut session = Session::open(&server).await;
    let mut refused = None;
    for i in 0..45 {
        let publish = json!({ "channel": format!("session/{i}"), "data": i });
        if let Err(error) = session.command("publish", publish).await {
            refused = Some((i, error));
            break;
        }
    }
    let (count, error) = refused.expect("there is an end");
    assert_eq!((count, error["code"].as_str()), (40, Some("too_many")), "{error}");
    // These requests come from the same address.
    server.post("/v1/channels/http", &[], "1").await.assert_problem(429, "too_many");
    let mut raw = Raw::upgrade(&server, "/v1/channels/bare", None).await;
    raw.send(masked(0x81, b"x")).await;
    assert_eq!(raw.close_code().await, Some(1013));
}

/// The trusted proxy names the address of each client.
#[tokio::test]
async fn flooding_client_leaves_channels_and_rooms() {
    let server = Server::with(|config| {
        config.server.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
        config.engine.channels_max = 180;
        config.rooms.rooms_max = 18;
        config.rooms.participants_max = 9;
        config.rooms.mesh_max = 9;
    });
    let from =
        async |address: &str, path: &str, body: String| server.post(path, &[("x-forwarded-for", address)], body).await;
    let (neighbour, join) = ("192.0.2.1", |room: &str| format!("/v1/rooms/{room}/participants"));
    // One ninth of the rooms, and of the places in a room, stays available to other clients.
    let mut rooms = Vec::new();
    for i in 0..18 {
        rooms.push(from(neighbour, &join(&format!("taken-{i}")), "{}".into()).await);
    }
    assert_eq!(rooms.iter().filter(|answer| answer.status == 201).count(), 16);
    rooms[17].assert_problem(429, "too_many");
    assert!(rooms[17].text().contains("this client has opened 16 of at most 18 rooms"), "{}", rooms[17].text());
    for _ in 1..8 {
        assert_eq!(from(neighbour, &join("taken-0"), "{}".into()).await.status, 201);
    }
    let crowd = from(neighbour, &join("taken-0"), "{}".into()).await;
    assert!(crowd.status == 429 && crowd.text().contains("this client has 8 of the 9 places"), "{}", crowd.text());
    assert_eq!(from("192.0.2.2", &join("taken-0"), "{}".into()).await.status, 201);

    let lines: String = (0..200).map(|i| format!("{{\"channel\":\"flood/{i}\",\"data\":0}}\n")).collect();
    let flooded = from(neighbour, "/v1/publish", lines).await.json();
    let refused = flooded["results"].as_array().unwrap().iter().filter(|result| result["error"].is_object()).count();
    assert!(refused > 60, "{refused} of 200");
    let more = from(neighbour, "/v1/channels/flood/more", "0".into()).await;
    more.assert_problem(429, "too_many");
    assert!(
        more.text().contains("of at most 180 channels") && more.text().contains("kept for other clients"),
        "{more:?}"
    );

    for i in 0..5 {
        let honest = format!("192.0.2.{}", 100 + i);
        assert_eq!(from(&honest, &format!("/v1/channels/honest/{i}"), "1".into()).await.status, 200);
    }
    assert_eq!(from("192.0.2.100", &join("honest"), "{}".into()).await.status, 201);
    assert_eq!(from(neighbour, "/v1/channels/flood/0", "1".into()).await.status, 200, "what exists goes on");
    assert_eq!(from(neighbour, "/v1/channels/flood/other", "1".into()).await.status, 429);
}
