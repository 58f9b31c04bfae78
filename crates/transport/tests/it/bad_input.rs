//! Invalid input over HTTP or UDP gets an answer that names the error, and does not affect other clients.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{
    client::{
        Session,
        raw::{Raw, handshake},
    },
    server::{Server, client, until, within},
};

/// Returns the status line and the problem code of a raw HTTP answer.
fn problem(answer: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
    assert!(head.to_ascii_lowercase().contains("content-type: application/problem+json"), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("not JSON: {body}"));
    (head.lines().next().unwrap_or_default().to_owned(), body["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn bad_request_problem_names_reason() {
    let server = Server::start();
    let cases = [
        ("/v1/channels/a%20b", 400, "bad_channel", "A-Z"),
        ("/v1/channels/a//b", 400, "bad_channel", "empty level"),
        ("/v1/channels/", 400, "bad_channel", "1 to 255"),
        ("/v1/channels/a/+", 400, "bad_channel", "A-Z"),
        ("/v1/channels/%ff", 400, "bad_channel", "UTF-8"),
        ("/v1/presence/a%23", 400, "bad_channel", "A-Z"),
        ("/v1/channels/a?since=yesterday", 400, "bad_position", "5f0c12ab:57"),
        ("/v1/channels/a?since=5f0c12ab:", 400, "bad_position", "5f0c12ab:57"),
        ("/v1/channels/a?since=", 400, "bad_position", "5f0c12ab:57"),
        ("/v1/stream?channel=a@57", 400, "bad_position", "5f0c12ab:57"),
        ("/v1/channels/a?sinze=now", 400, "bad_request", "since"),
        ("/v1/channels/a?since=now&since=now", 400, "bad_request", "twice"),
        ("/v1/channels/a?limit=0", 400, "bad_request", "1 to 1000"),
        ("/v1/channels/a?limit=1001", 400, "bad_request", "1 to 1000"),
        ("/v1/channels/a?limit=ten", 400, "bad_request", "1 to 1000"),
        ("/v1/channels/a?wait=soon", 400, "bad_request", "30s"),
        ("/v1/channels/a?wait=-1", 400, "bad_request", "30s"),
        ("/v1/channels/a?wait=NaN", 400, "bad_request", "30s"),
        ("/v1/channels/a?policy=newest", 400, "bad_request", "latest"),
        ("/v1/channels/a?subscribe=maybe", 400, "bad_request", "yes"),
        ("/v1/connect", 400, "bad_request", "millrace.v1+json"),
        ("/v1/presence/a?x=1", 400, "bad_request", "unknown"),
        ("/v1/nothing", 404, "not_found", "docs/reference/protocol.md"),
        ("/rest/clientpolling/a%2Fb/sensordata", 400, "bad_channel", "id"),
        ("/rest/clientpolling/1/sensordata?since=x", 400, "bad_request", "milliseconds"),
        ("/websocket/1/sensordata", 400, "bad_request", "Upgrade"),
    ];
    for (path, status, code, word) in cases {
        let detail = server.get(path).await.assert_problem(status, code);
        assert!(detail.contains(word), "{path}: {detail}");
    }
    let long = server.get(&format!("/v1/channels/{}", "x".repeat(256))).await;
    assert!(long.assert_problem(400, "bad_channel").contains("256"));
    let sse = server.get_with("/v1/channels/a?wait=1", &[("accept", "text/event-stream")]).await;
    sse.assert_problem(400, "bad_request");
    let id = server.get_with("/v1/channels/a", &[("last-event-id", "57:")]).await;
    assert!(id.assert_problem(400, "bad_position").contains("5f0c12ab:57"));
    server.assert_well().await;
}

#[tokio::test]
async fn unsupported_format_is_not_acceptable() {
    let server = Server::start();
    for accept in ["text/html", "image/png, text/html;q=0.5", "application/json;q=0", "nonsense"] {
        let answer = server.get_with("/v1/channels/a", &[("accept", accept)]).await;
        assert!(answer.assert_problem(406, "not_acceptable").contains("text/event-stream"), "{accept}");
    }
}

#[tokio::test]
async fn wrong_method_gets_allow_header() {
    let server = Server::start();
    let cases = [
        ("PUT", "/v1/channels/a", "GET, POST, DELETE"),
        ("PATCH", "/v1/channels/a", "GET, POST, DELETE"),
        ("POST", "/v1/stream", "GET"),
        ("PUT", "/v1/connect", "GET, POST"),
        ("GET", "/v1/publish", "POST"),
        ("POST", "/v1/presence/a", "GET"),
        ("GET", "/rest/input", "POST"),
        ("POST", "/rest/longpolling/1/sensordata", "GET"),
        ("POST", "/metrics", "GET, HEAD"),
    ];
    for (method, path, allow) in cases {
        let request = server.http.request(method.parse().unwrap(), server.url(path));
        let answer = crate::server::Answer::read(within(request.send()).await.unwrap()).await;
        answer.assert_problem(405, "method_not_allowed");
        assert_eq!(answer.header("allow"), allow, "{method} {path}");
    }
}

#[tokio::test]
async fn oversized_body_is_refused() {
    let server = Server::with(|config| {
        (config.limits.message_bytes_max, config.limits.batch_bytes_max) = (100_000, 200_000);
    });
    for http2 in [false, true] {
        let http = client(http2);
        for (path, bytes) in [("/v1/channels/large", 100_001), ("/v1/publish", 200_001), ("/rest/input", 5_000_000)] {
            let body = vec![b'x'; bytes];
            let announced = within(http.post(server.url(path)).body(body.clone()).send()).await.unwrap();
            crate::server::Answer::read(announced).await.assert_problem(413, "too_large");
            let pieces = body.chunks(10_000).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect::<Vec<_>>();
            let chunked = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
            let answer = within(http.post(server.url(path)).body(chunked).send()).await.unwrap();
            crate::server::Answer::read(answer).await.assert_problem(413, "too_large");
        }
    }
    // The body is announced and never sent: the refusal does not wait for the body.
    let mut raw = Raw::connect(&server).await;
    let head = "POST /v1/channels/a HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 100001\r\n\r\n";
    raw.send(head).await;
    assert!(raw.head().await.starts_with("HTTP/1.1 413 "));
    let key = "k".repeat(256);
    server.post("/v1/channels/a", &[("millrace-key", &key)], "1").await.assert_problem(413, "too_large");
    server.post("/v1/channels/a", &[("idempotency-key", &key)], "1").await.assert_problem(413, "too_large");
    assert_eq!(server.get("/v1/channels/large").await.status, 204, "nothing of it was published");
    server.assert_well().await;
}

#[tokio::test]
async fn refusal_reaches_client_during_upload() {
    let server = Server::start();
    let body = vec![b'x'; 4 << 20];
    for path in ["/v1/channels/a%20b", "/v1/nothing", "/v1/stream", "/v1/channels/large"] {
        let answer = server.post(path, &[], body.clone()).await;
        assert!(answer.status.is_client_error(), "{path}: {answer:?}");
        assert_eq!(answer.header("content-type"), "application/problem+json");
    }
}

#[tokio::test]
async fn body_must_match_content_type() {
    let server = Server::start();
    let post = async |content_type: &str, body: Vec<u8>| {
        server.post("/v1/channels/a", &[("content-type", content_type)], body).await
    };
    post("application/json", b"{\"a\":".to_vec()).await.assert_problem(400, "bad_json");
    post("text/plain", vec![0xff, 0xfe]).await.assert_problem(400, "bad_request");
    let ttl = server.post("/v1/channels/a", &[("millrace-ttl", "soon")], "1").await;
    ttl.assert_problem(400, "bad_request");
    for record in ["", "[]", "{}", "{\"carId\":null}", "{\"carId\":1", "7"] {
        server.post("/rest/input", &[], record).await.assert_problem(400, "bad_json");
    }
    server.post("/rest/input", &[], "{\"carId\":\"a b\"}").await.assert_problem(400, "bad_channel");
    server.post("/v1/channels/a?since=now", &[], "1").await.assert_problem(400, "bad_request");
    assert_eq!(server.get("/v1/channels/a").await.status, 204);
}

#[tokio::test]
async fn slow_requests_are_disconnected() {
    let limit = Duration::from_millis(300);
    let server = Server::with(|config| (config.limits.header_timeout, config.limits.body_timeout) = (limit, limit));
    let started = Instant::now();
    for head in
        ["", "G", "GET /healthz HTTP/1.1\r\nHost:", "GET /healthz HTTP/1.1\r\nHost: test\r\n", "PRI * HTTP/2.0\r\n"]
    {
        let mut raw = Raw::connect(&server).await;
        raw.send(head).await;
        let answer = raw.read_to_end().await;
        let text = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || text.starts_with("HTTP/1.1 408 "), "{head:?}: {text}");
    }
    for path in ["/v1/channels/a", "/v1/publish", "/rest/input"] {
        let mut raw = Raw::connect(&server).await;
        raw.send(format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\nbegun")).await;
        let answer = raw.read_to_end().await;
        let (status, code) = problem(&answer);
        assert!(status.starts_with("HTTP/1.1 408 ") && code == "timeout", "{status}");
    }
    assert!(started.elapsed() < Duration::from_secs(8), "cut off after {:?}", started.elapsed());
    // An idle connection whose request was answered is closed after a timeout.
    let mut idle = Raw::connect(&server).await;
    idle.send("GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert!(idle.head().await.starts_with("HTTP/1.1 200 "));
    idle.read_to_end().await;
    server.assert_well().await;
}

#[tokio::test]
async fn vanished_peers_leave_no_state() {
    let server = Server::start();
    let beginnings = [
        "GET /v1/channels/gone?wait=60 HTTP/1.1\r\nHost: test\r\n\r\n".to_owned(),
        "GET /v1/channels/gone HTTP/1.1\r\nHost: test\r\nAccept: text/event-stream\r\n\r\n".to_owned(),
        "GET /v1/channels/gone HTTP/1.1\r\nHost: test\r\nAccept: application/x-ndjson\r\n\r\n".to_owned(),
        handshake("/v1/channels/gone", None),
        handshake("/v1/channels/gone", Some("millrace.v1+json")),
    ];
    for beginning in beginnings {
        let mut raw = Raw::connect(&server).await;
        raw.send(&beginning).await;
        server.await_presence("gone", 1).await;
        drop(raw);
        server.await_presence("gone", 0).await;
    }
    until("no channel is kept for them", async || server.metric("millrace_channels_open").await == 0).await;
    // A body that is cut off is not published.
    let mut raw = Raw::connect(&server).await;
    raw.send("POST /v1/channels/gone HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n1").await;
    raw.finish().await;
    raw.read_to_end().await;
    assert_eq!(server.get("/v1/channels/gone").await.status, 204);
    server.assert_well().await;
}

#[tokio::test]
async fn garbage_ends_the_connection() {
    let short = Duration::from_secs(1);
    let server = Server::with(|config| {
        (config.limits.header_timeout, config.limits.heartbeat, config.limits.grace) = (short, short, short);
    });
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let garbage: [Vec<u8>; 9] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"\0\0\0\0\0\0\0\0\r\n\r\n".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"GET /healthz HTTP/1.1\r\nHost: test\r\nContent-Length: -1\r\n\r\n".to_vec(),
        [b"GET /".as_slice(), &vec![b'a'; 100_000], b" HTTP/1.1\r\n\r\n"].concat(),
        [preface, b"garbage that is no frame at all, and long enough to be a header of one"].concat(),
        [preface, b"\0\0\0\x04\0\0\0\0\0", b"\xff\xff\xff\x01\x05\0\0\0\x01"].concat(),
        // Only the preface: the keep-alive ping stays unanswered.
        preface.to_vec(),
    ];
    for bytes in garbage {
        let mut raw = Raw::connect(&server).await;
        raw.send(&bytes).await;
        let answer = raw.read_to_end().await;
        let text = String::from_utf8_lossy(&answer);
        assert!(!text.starts_with("HTTP/1.1 2"), "{:?}: {text}", String::from_utf8_lossy(&bytes));
    }
    server.assert_well().await;
}

#[tokio::test]
async fn too_deep_json_is_refused() {
    let server = Server::start();
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let json = [("content-type", "application/json")];
    assert_eq!(server.post("/v1/channels/deep", &json, nested(100)).await.status, 200);
    for depth in [101, 100_000] {
        let refused = server.post("/v1/channels/deep", &json, nested(depth)).await;
        assert!(refused.assert_problem(400, "bad_json").contains("100 levels"), "{}", refused.text());
        let line = format!("{{\"channel\":\"deep\",\"data\":{}}}", nested(depth));
        let results = server.post("/v1/publish", &[], line).await.json();
        assert_eq!(results["results"][0]["error"]["code"], "bad_json", "{results}");
    }
    // Data that is too deeply nested to count as JSON is delivered as a text, which every client can parse.
    server.publish("deep", nested(100_000)).await;
    let read = server.get("/v1/channels/deep").await.json();
    assert_eq!(read["messages"][0]["data"].as_str().map(str::len), Some(200_000));
}

#[tokio::test]
async fn compressed_transfer_coding_is_refused() {
    let server = Server::start();
    for coding in
        ["gzip, chunked", "gzip,chunked", "chunked, chunked", "identity, chunked", "gzip\r\nTransfer-Encoding: chunked"]
    {
        let mut raw = Raw::connect(&server).await;
        let head = format!("POST /v1/channels/packed HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: {coding}\r\n");
        raw.send(format!("{head}Connection: close\r\n\r\n1\r\n7\r\n0\r\n\r\n")).await;
        let (status, code) = problem(&raw.read_to_end().await);
        assert!(status.starts_with("HTTP/1.1 501 ") && code == "not_implemented", "{coding:?}: {status}");
    }
    assert_eq!(server.get("/v1/channels/packed").await.status, 204, "nothing was published");
    let mut raw = Raw::connect(&server).await;
    let head = "POST /v1/channels/packed HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: Chunked\r\nConnection: close\r\n";
    raw.send(format!("{head}\r\n1\r\n7\r\n0\r\n\r\n")).await;
    assert!(raw.read_to_end().await.starts_with(b"HTTP/1.1 200 "));
}

#[tokio::test]
async fn invalid_handshakes_are_refused() {
    let server = Server::start();
    let good = handshake("/v1/channels/h", None);
    let spoiled = [
        good.replace("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Key: short"),
        good.replace("Version: 13", "Version: 12"),
        good.replace("Connection: Upgrade", "Connection: close"),
        handshake("/v1/channels/h", Some("mqtt")),
        handshake("/v1/channels/h?wait=1", None),
        handshake("/v1/connect", None),
        handshake("/v1/channels/h?since=x", None),
        handshake("/v1/channels/a%20b", None),
    ];
    for request in spoiled {
        let mut raw = Raw::connect(&server).await;
        raw.send(&request).await;
        let head = raw.head().await;
        assert!(head.starts_with("HTTP/1.1 400 ") && head.contains("application/problem+json"), "{request}: {head}");
    }
    // A request that is cut off halfway.
    let mut raw = Raw::connect(&server).await;
    raw.send(&good[..good.len() / 2]).await;
    raw.finish().await;
    raw.read_to_end().await;
    assert_eq!(server.presence("h").await, 0);
    server.assert_well().await;
}

#[tokio::test]
async fn bad_command_gets_error_and_session_continues() {
    let server = Server::with(|config| config.limits.subscriptions_max = 3);
    let mut session = Session::open(&server).await;
    let cases = [
        (json!({ "dance": {} }), "bad_json"),
        (json!({}), "bad_json"),
        (json!({ "ping": {}, "presence": { "channel": "a" } }), "bad_json"),
        (json!({ "subscribe": { "channel": "a b" } }), "bad_channel"),
        (json!({ "subscribe": { "channel": "a/#/b" } }), "bad_channel"),
        (json!({ "subscribe": { "channel": "a", "since": "x" } }), "bad_position"),
        (json!({ "subscribe": { "channel": "a", "policy": "x" } }), "bad_request"),
        (json!({ "subscribe": { "channel": "a", "positions": { "a": "1:1" } } }), "bad_request"),
        (json!({ "subscribe": { "channel": "a/+", "since": "1:1" } }), "bad_request"),
        (json!({ "subscribe": { "channel": "a/+", "positions": { "b": "1:1" } } }), "bad_request"),
        (json!({ "subscribe": { "chanel": "a" } }), "bad_json"),
        (json!({ "publish": { "channel": "a/+", "data": 1 } }), "bad_channel"),
        (json!({ "publish": { "channel": "a" } }), "bad_json"),
        (json!({ "publish": { "channel": "a", "data": "?", "encoding": "base64" } }), "bad_json"),
        (json!({ "publish": { "channel": "a", "data": 1, "ttl": 0 } }), "bad_request"),
        (json!({ "publish": { "channel": "a", "data": "x".repeat((1 << 20) + 1) } }), "too_large"),
        (json!({ "history": { "channel": "a", "limit": 0 } }), "bad_request"),
        (json!({ "presence": { "channel": "" } }), "bad_channel"),
    ];
    for (id, (mut command, code)) in (1..).zip(cases) {
        command["id"] = json!(id);
        session.send_text(&command.to_string()).await;
        let error = session.reply(id).await.expect_err("an error");
        assert_eq!(error["code"], code, "{error}");
        assert!(error["detail"].is_string() && error["retry"].is_boolean(), "{error}");
    }
    // Without a usable id the error is sent as a push.
    for text in ["", "{", "[]", "null", "{\"id\":\"x\"}", "{\"id\":-1,\"ping\":{}}", "{\"id\":0,\"ping\":{}}", "\u{0}"]
    {
        session.send_text(text).await;
        let push = session.push().await;
        assert_eq!((&push["push"], &push["code"]), (&json!("error"), &json!("bad_json")), "{text}");
    }
    let mut session = Session::open(&server).await;
    for channel in ["a", "b", "c/#"] {
        session.command("subscribe", json!({ "channel": channel })).await.unwrap();
    }
    for channel in ["d", "e/+"] {
        let error = session.command("subscribe", json!({ "channel": channel })).await.unwrap_err();
        assert_eq!((&error["code"], &error["retry"]), (&json!("too_many"), &json!(true)));
    }
    // A pattern that matches more channels than the session may subscribe to reports one error.
    for n in 0..3 {
        server.publish(&format!("c/{n}"), "0").await;
    }
    let push = session.push().await;
    assert_eq!((&push["push"], &push["code"]), (&json!("error"), &json!("too_many")), "{push}");
    server.publish("a", "1").await;
    assert_eq!(session.push().await["data"], 1, "the session lives");
    assert_eq!(server.presence("d").await, 0);
    server.assert_well().await;
}

#[tokio::test]
async fn malformed_datagrams_are_counted() {
    let server = Server::with(|config| config.server.udp = "127.0.0.1:0".into());
    let info = server.get("/v1/info").await.json();
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(info["udp"].as_str().unwrap()).await.unwrap();
    let long = json!({ "carId": 1, "padding": "x".repeat(1473) }).to_string();
    let garbage: [&[u8]; 8] = [
        b"",
        b"\xff\xfe\0",
        b"{",
        b"[]",
        b"{\"speed\":1}",
        b"{\"carId\":\"a/b\"}",
        b"{\"channel\":\"a b\",\"data\":1}",
        long.as_bytes(),
    ];
    for datagram in garbage {
        socket.send(datagram).await.unwrap();
    }
    socket.send(b"{\"carId\":5,\"speed\":1}").await.unwrap();
    socket.send(b"{\"channel\":\"udp/a\",\"data\":\"hello\"}").await.unwrap();
    until("all have been received", async || server.metric("millrace_udp_received_total").await == 10).await;
    assert_eq!(server.metric("millrace_udp_dropped_total").await, 8);
    let data = async |channel: &str| {
        server.get(&format!("/v1/channels/{channel}")).await.json()["messages"][0]["data"].clone()
    };
    assert_eq!(data("cars/5/telemetry").await, json!({ "carId": 5, "speed": 1 }));
    assert_eq!(data("udp/a").await, "hello");
}
