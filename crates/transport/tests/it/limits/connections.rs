//! Limits of connections, and of the requests on one connection.

use std::time::Duration;

use super::{ask, refused, status};
use crate::{
    client::raw::{Raw, handshake},
    server::{Server, client, until, within},
};

#[tokio::test]
async fn connections_are_limited_per_address() {
    const MAX: u64 = 8;
    let server = Server::with(|config| {
        config.limits.exempt = Vec::new();
        config.limits.connections_per_address_max = MAX as _;
    });
    let mut held = Vec::new();
    for _ in 1..MAX {
        held.push(Raw::upgrade(&server, "/v1/channels/a", None).await);
    }
    // One connection slot is left, and each request frees it again.
    for _ in 0..MAX {
        until("there is room", async || status(&ask(&server).await) == "204").await;
    }
    // The server may still hold the slot of the last request.
    until("a WebSocket takes the last slot", async || {
        let mut last = Raw::connect(&server).await;
        last.send(handshake("/v1/channels/a", None)).await;
        let is_open = last.head().await.starts_with("HTTP/1.1 101 ");
        if is_open {
            held.push(last);
        }
        is_open
    })
    .await;
    let answer = ask(&server).await;
    assert_eq!(status(&answer), "429", "{answer}");
    assert!(answer.contains("\"code\":\"too_many\"") && answer.contains("retry-after: 1"), "{answer}");
    held.pop();
    until("there is room again", async || status(&ask(&server).await) == "204").await;
    drop(held);
    until("the others have gone", async || server.get("/metrics").await.status == 200).await;
    assert!(refused(&server, "connections_per_address_max").await > 0);
    server.assert_well().await;
}

/// Opens an event stream with header lines that name the client's address. Returns the status and the
/// connection.
async fn stream(server: &Server, forwarded: &str) -> (String, Raw) {
    let mut raw = Raw::connect(server).await;
    raw.send(format!("GET /v1/channels/a HTTP/1.1\r\nHost: test\r\nAccept: text/event-stream\r\n{forwarded}\r\n\r\n"))
        .await;
    let head = raw.head().await.to_ascii_lowercase();
    (status(&head).to_owned(), raw)
}

#[tokio::test]
async fn trusted_proxy_clients_are_limited_separately() {
    let server = Server::with(|config| {
        config.server.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
        config.limits.exempt = Vec::new();
        config.limits.connections_per_address_max = 2;
        config.limits.publishes_per_s = 3;
    });
    let one = "X-Forwarded-For: 192.0.2.1";
    let mut held = vec![stream(&server, one).await, stream(&server, "x-forwarded-for: 198.51.100.7, 192.0.2.1").await];
    assert!(held.iter().all(|(status, _)| status == "200"), "{:?}", held[1].0);
    // Further streams of this address are refused, whatever address the client itself claims.
    for forwarded in [
        one,
        "X-Forwarded-For: 192.0.2.77, 192.0.2.1",
        "X-Forwarded-For: 192.0.2.77\r\nX-Forwarded-For: 192.0.2.1",
        "Forwarded: for=192.0.2.77\r\nX-Forwarded-For: 192.0.2.1",
    ] {
        assert_eq!(stream(&server, forwarded).await.0, "429", "{forwarded}");
    }
    for path in ["/v1/channels/a?wait=20", "/v1/stream?channel=a&wait=20", "/rest/longpolling/1/sensordata"] {
        let answer = server.get_with(path, &[("x-forwarded-for", "192.0.2.1")]).await;
        answer.assert_problem(429, "too_many");
    }
    // Plain polls still work. Other clients are served, on any number of connections of the proxy.
    assert_eq!(server.get_with("/v1/channels/a", &[("x-forwarded-for", "192.0.2.1")]).await.status, 204);
    for client in 2..8 {
        let (status, raw) = stream(&server, &format!("X-Forwarded-For: 192.0.2.{client}")).await;
        assert_eq!(status, "200");
        held.push((status, raw));
    }
    held.remove(0);
    until("there is room again", async || stream(&server, one).await.0 == "200").await;

    // One connection of the proxy carries publications of many clients.
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(server.post("/v1/channels/b", &[("x-forwarded-for", "192.0.2.8")], "1").await.status.as_u16());
    }
    assert_eq!(statuses[..3], [200; 3]);
    assert!(statuses[3..].contains(&429), "{statuses:?}");
    assert_eq!(server.post("/v1/channels/b", &[("x-forwarded-for", "192.0.2.9")], "1").await.status, 200);
}

#[tokio::test]
async fn untrusted_proxy_header_is_ignored() {
    let server = Server::with(|config| {
        config.server.trusted_proxies = vec!["192.0.2.0/24".parse().unwrap()];
        config.limits.exempt = Vec::new();
        config.limits.connections_per_address_max = 2;
    });
    let mut held = Vec::new();
    for client in 1..4 {
        let forwarded = format!("X-Forwarded-For: 198.51.100.{client}\r\nForwarded: for=198.51.100.{client}");
        held.push(stream(&server, &forwarded).await);
    }
    let statuses: Vec<&str> = held.iter().map(|(status, _)| status.as_str()).collect();
    assert_eq!(statuses, ["200", "200", "429"]);
}

#[tokio::test]
async fn connections_are_limited_per_server() {
    let server = Server::with(|config| config.limits.connections_max = 4);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(Raw::upgrade(&server, "/v1/connect", Some("millrace.v1+json")).await);
    }
    let answer = ask(&server).await;
    assert_eq!(status(&answer), "503", "{answer}");
    assert!(answer.contains("\"code\":\"unavailable\"") && answer.contains("retry-after: 1"), "{answer}");
    held.clear();
    until("they have gone", async || status(&ask(&server).await) == "204").await;
    server.assert_well().await;
    assert!(refused(&server, "connections_max").await > 0);
}

#[tokio::test]
async fn connect_rate_is_limited_per_address() {
    let server = Server::with(|config| {
        config.limits.exempt = Vec::new();
        config.limits.connects_per_address_per_s = 1;
    });
    let mut statuses = Vec::new();
    for _ in 0..13 {
        statuses.push(status(&ask(&server).await).to_owned());
    }
    assert!(statuses[..10].iter().all(|status| status == "204"), "{statuses:?}");
    assert!(statuses[10..].iter().any(|status| status == "429"), "{statuses:?}");
    until("a second has passed", async || status(&ask(&server).await) == "204").await;
    until("it is counted", async || {
        // The request for the metrics also needs a connection.
        let Ok(answer) = server.http.get(server.url("/metrics")).send().await else { return false };
        let text = answer.text().await.unwrap_or_default();
        text.contains("limit=\"connects_per_address_per_s\"} ")
            && !text.contains("limit=\"connects_per_address_per_s\"} 0")
    })
    .await;
}

#[tokio::test]
async fn requests_are_limited_per_connection() {
    let server = Server::with(|config| config.limits.requests_per_connection_max = 3);
    let mut raw = Raw::connect(&server).await;
    for i in 1..=3 {
        raw.send("GET /v1/channels/a HTTP/1.1\r\nHost: test\r\n\r\n").await;
        let head = raw.head().await.to_ascii_lowercase();
        assert_eq!(head.contains("connection: close"), i == 3, "{head}");
    }
    assert!(raw.read_to_end().await.is_empty());
    let http2 = client(true);
    for _ in 0..10 {
        let answer = within(http2.get(server.url("/v1/channels/a")).send()).await.expect("an answer");
        assert_eq!(answer.status(), 204);
    }
    assert!(refused(&server, "requests_per_connection_max").await >= 4);
}

#[tokio::test]
async fn slow_requests_are_counted() {
    let server = Server::with(|config| {
        config.limits.header_timeout = Duration::from_millis(300);
        config.limits.body_timeout = Duration::from_millis(300);
    });
    let mut silent = Raw::connect(&server).await;
    let mut slow = Raw::connect(&server).await;
    slow.send("GET /v1/channels/a HTTP/1.1\r\nHost:").await;
    let mut body = Raw::connect(&server).await;
    body.send("POST /v1/channels/a HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nx").await;
    assert!(body.head().await.starts_with("HTTP/1.1 408 "));
    silent.read_to_end().await;
    slow.read_to_end().await;
    until("all are counted", async || {
        refused(&server, "header_timeout").await == 2 && refused(&server, "body_timeout").await == 1
    })
    .await;
}
