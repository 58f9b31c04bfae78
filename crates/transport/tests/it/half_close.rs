//! A client shuts down its writing side: earlier requests are answered, and streams end. docs/reference/protocol.md,
//! "Half-closed connections".

use crate::{
    client::raw::{Raw, handshake},
    server::Server,
};

fn get(path: &str, accept: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\nAccept: {accept}\r\n\r\n")
}

#[tokio::test]
async fn request_is_answered_after_half_close() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("half.db");
    // One engine answers immediately, the other from its own thread.
    for engine in ["memory".to_owned(), format!("sqlite:{}", path.display())] {
        let server = Server::with(|config| config.engine.url = engine.clone());
        let post = "POST /v1/channels/half HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\n7";
        let many = format!("{post}{post}{}", get("/v1/channels/half", "application/json"));
        for (requests, answers) in [
            (post.to_owned(), 1),
            (get("/v1/channels/half", "application/json"), 1),
            (get("/v1/channels/half?since=earliest&until=now", "application/x-ndjson"), 1),
            (many, 3),
        ] {
            let mut raw = Raw::connect(&server).await;
            raw.send(&requests).await;
            raw.finish().await;
            let answer = String::from_utf8(raw.read_to_end().await).expect("text");
            assert_eq!(answer.matches("HTTP/1.1 200 ").count(), answers, "{engine}: {requests}: {answer}");
        }
        assert_eq!(server.get("/v1/channels/half").await.json()["messages"][0]["data"], 7);
    }
}

#[tokio::test]
async fn long_lived_responses_end_at_half_close() {
    let server = Server::start();
    let json = "application/json";
    for (what, request, begins) in [
        ("a long poll", get("/v1/channels/half?wait=60", json), None),
        ("server-sent events", get("/v1/channels/half", "text/event-stream"), Some("HTTP/1.1 200 ")),
        ("NDJSON", get("/v1/channels/half", "application/x-ndjson"), Some("HTTP/1.1 200 ")),
        ("a bare WebSocket", handshake("/v1/channels/half", None), Some("HTTP/1.1 101 ")),
        ("a session", handshake("/v1/channels/half", Some("millrace.v1+json")), Some("HTTP/1.1 101 ")),
    ] {
        let mut raw = Raw::connect(&server).await;
        raw.send(&request).await;
        server.await_presence("half", 1).await;
        raw.finish().await;
        let last = String::from_utf8_lossy(&raw.read_to_end().await).into_owned();
        assert!(begins.is_none_or(|begins| last.starts_with(begins)), "{what}: {last}");
        server.await_presence("half", 0).await;
    }
}
