//! HTTP/1.1 connections that leave hyper while a long poll waits, and return to hyper for any other request.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{
    client::raw::Raw,
    server::{Server, client, until, within},
};

/// Returns a GET request with further headers, each with its line end.
fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n")
}

async fn waiting(server: &Server, count: u64) {
    let name = "millrace_connections{transport=\"long_polling\"}";
    until(&format!("{count} long polls wait"), async || server.metric(name).await == count).await;
}

/// Opens a connection whose long poll waits on the event loop.
async fn polling(server: &Server, path: &str) -> Raw {
    let mut raw = Raw::connect(server).await;
    raw.send(get(path, "")).await;
    waiting(server, 1).await;
    raw
}

#[tokio::test]
async fn polls_and_other_requests_share_a_connection() {
    let server = Server::start();
    let mut at = server.publish("k", "0").await;
    let mut raw = Raw::connect(&server).await;
    for round in 1..=20 {
        raw.send(get(&format!("/v1/channels/k?since={at}&wait=30"), "")).await;
        waiting(&server, 1).await;
        let position = server.publish("k", round.to_string()).await;
        let (head, body) = raw.answer().await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nmillrace-position: {position}\r\n")), "{head}");
        assert!(body.contains(&format!("\"data\":{round}")), "{body}");
        // A publication between two polls, with its body in two parts, is handled by hyper.
        raw.send("POST /v1/channels/other HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n\"a").await;
        raw.send("b\"").await;
        let (head, body) = raw.answer().await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.contains("position"), "{head}{body}");
        at = position;
    }
    let answers = server.get("/v1/channels/other?since=earliest").await.json();
    assert_eq!(answers["messages"].as_array().unwrap().len(), 20);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = Server::start();
    let first = server.publish("p", "1").await;
    let mut raw = polling(&server, &format!("/v1/channels/p?since={first}&wait=30")).await;
    // More bytes than the server buffers for later requests: the rest stays in the socket.
    let path = format!("/v1/channels/p?since={first}");
    let later = 300;
    let pad = format!("X-Pad: {}\r\n", "x".repeat(1000));
    let requests: String = (0..later).map(|_| get(&path, &pad)).collect();
    raw.send(requests + "POST /v1/channels/p HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\n3").await;
    server.publish("p", "2").await;
    for _ in 0..=later {
        let (head, body) = raw.answer().await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.contains("\"data\":2"), "{head}{body}");
    }
    assert!(raw.answer().await.1.contains(":3\""), "the last one published");
}

#[tokio::test]
async fn requests_behind_a_poll_are_limited() {
    let server = Server::with(|config| config.server.shards = 1);
    let mut raw = polling(&server, "/v1/channels/b?wait=30").await;
    let megabytes = vec![b'x'; 64 << 20];
    let sent = tokio::time::timeout(Duration::from_millis(300), raw.send(&megabytes)).await;
    assert!(sent.is_err(), "the server does not read on");
    server.publish("b", "1").await;
    assert!(raw.answer().await.0.starts_with("HTTP/1.1 200 "));
    assert!(raw.head().await.starts_with("HTTP/1.1 4"), "hyper judges the rest");
    server.assert_well().await;
}

#[tokio::test]
async fn poll_honors_connection_close() {
    let server = Server::start();
    for http in ["Connection: close\r\n", "connection: Keep-Alive, Close\r\n"] {
        // The first poll of a connection, and one after it.
        let mut raw = Raw::connect(&server).await;
        raw.send(get("/v1/channels/c?wait=0.05", "")).await;
        assert!(!raw.head().await.contains("connection: close"));
        raw.send(get("/v1/channels/c?wait=0.05", http)).await;
        let answer = String::from_utf8(raw.read_to_end().await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 204 ") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
        let mut raw = Raw::connect(&server).await;
        raw.send(get("/v1/channels/c?wait=0.05", http)).await;
        let answer = String::from_utf8(raw.read_to_end().await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 204 ") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn http_1_0_poll_waits() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    raw.send("GET /v1/channels/o?wait=30 HTTP/1.0\r\nHost: test\r\n\r\n").await;
    waiting(&server, 1).await;
    server.publish("o", "1").await;
    let answer = String::from_utf8(raw.read_to_end().await).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n") && answer.contains("\"data\":1"), "{answer}");
}

#[tokio::test]
async fn get_body_is_not_parsed_as_request() {
    let server = Server::start();
    let smuggled = "POST /v1/channels/s HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\n1";
    let mut raw = Raw::connect(&server).await;
    let length = format!("Content-Length: {}\r\n", smuggled.len());
    for _ in 0..2 {
        raw.send(get("/v1/channels/s?wait=0.1", &length) + smuggled).await;
        assert!(raw.head().await.starts_with("HTTP/1.1 204 "));
    }
    assert_eq!(server.get("/v1/channels/s").await.status, 204, "nothing was published");
}

#[tokio::test]
async fn idle_connection_times_out() {
    let server = Server::with(|config| config.limits.header_timeout = Duration::from_millis(400));
    let mut raw = Raw::connect(&server).await;
    raw.send(get("/v1/channels/i?wait=0.1", "")).await;
    assert!(raw.head().await.starts_with("HTTP/1.1 204 "));
    let answered = Instant::now();
    assert!(raw.read_to_end().await.is_empty());
    assert!(answered.elapsed() >= Duration::from_millis(350), "{:?}", answered.elapsed());
}

#[tokio::test]
async fn disconnected_poll_is_no_reader() {
    let server = Server::start();
    for half in [false, true] {
        let mut raw = polling(&server, "/v1/channels/g?wait=30").await;
        server.await_presence("g", 1).await;
        if half {
            raw.finish().await;
        } else {
            drop(raw);
        }
        server.await_presence("g", 0).await;
        waiting(&server, 0).await;
    }
}

#[tokio::test]
async fn stream_follows_poll_on_connection() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    raw.send(get("/v1/channels/f?wait=0.05", "")).await;
    assert!(raw.head().await.starts_with("HTTP/1.1 204 "));
    raw.send(get("/v1/channels/f", "Accept: text/event-stream\r\n")).await;
    assert!(raw.head().await.contains("text/event-stream"));
    server.publish("f", "7").await;
    raw.until_received("data: 7\n").await;
}

#[tokio::test]
async fn poll_responses_have_cors_headers() {
    let server = Server::with(|config| config.limits.allowed_origins = vec!["https://page.example".into()]);
    let mut raw = Raw::connect(&server).await;
    for _ in 0..2 {
        raw.send(get("/v1/channels/x?wait=0.05", "Origin: https://page.example\r\n")).await;
        let head = raw.head().await;
        assert_eq!(head.matches("access-control-allow-origin: https://page.example\r\n").count(), 1, "{head}");
        assert_eq!(head.matches("vary: origin\r\n").count(), 1, "{head}");
        raw.send(get("/v1/channels/x?wait=0.05", "")).await;
        assert!(!raw.head().await.contains("access-control"));
    }
}

#[tokio::test]
async fn polling_connection_closes_after_response_in_drain() {
    let server = Server::with(|config| config.drain.window = Duration::from_millis(200));
    let mut waits = polling(&server, "/v1/channels/d?wait=30").await;
    let mut idle = Raw::connect(&server).await;
    idle.send(get("/v1/channels/d?wait=0.05", "")).await;
    assert!(idle.head().await.starts_with("HTTP/1.1 204 "));
    let drained = tokio::spawn(server.drain());
    let answer = String::from_utf8(waits.read_to_end().await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 204 ") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    assert!(idle.read_to_end().await.is_empty());
    within(drained).await.unwrap();
}

#[tokio::test]
async fn polls_on_slow_engine_miss_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("history.db");
    let server = Server::with(|config| config.engine.url = format!("sqlite:{}", file.display()));
    let mut at = server.publish("q", "0").await;
    let (publisher, url) = (client(false), server.url("/v1/channels/q"));
    let publishing = tokio::spawn(async move {
        for number in 1..=200 {
            publisher.post(&url).json(&number).send().await.expect("an answer");
        }
    });
    let (mut raw, mut got) = (Raw::connect(&server).await, Vec::new());
    while got.last() != Some(&200) {
        raw.send(get(&format!("/v1/channels/q?since={at}&wait=10"), "")).await;
        let (head, body) = raw.answer().await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
        got.extend(answer["messages"].as_array().unwrap().iter().map(|message| message["data"].as_u64().unwrap()));
        at = answer["position"].as_str().unwrap().to_owned();
    }
    within(publishing).await.unwrap();
    assert_eq!(json!(got), json!((1..=200).collect::<Vec<u64>>()));
}
