//! Each limit that is reached gives the answer that docs/reference/limits.md names, and is counted. The server stays
//! available.

use std::time::{Duration, Instant};

use millrace_protocol::websocket::Deflate;
use serde_json::json;
use tokio::net::TcpSocket;

use crate::{
    client::{
        Session,
        raw::{Raw, handshake, masked},
    },
    server::{Answer, Server, client, until, within},
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

/// Opens an event stream with the header lines `said`, which name the client's address. Returns the status and the
/// connection.
async fn stream(server: &Server, said: &str) -> (String, Raw) {
    let mut raw = Raw::connect(server).await;
    raw.send(format!("GET /v1/channels/a HTTP/1.1\r\nHost: test\r\nAccept: text/event-stream\r\n{said}\r\n\r\n")).await;
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
    for said in [
        one,
        "X-Forwarded-For: 192.0.2.77, 192.0.2.1",
        "X-Forwarded-For: 192.0.2.77\r\nX-Forwarded-For: 192.0.2.1",
        "Forwarded: for=192.0.2.77\r\nX-Forwarded-For: 192.0.2.1",
    ] {
        assert_eq!(stream(&server, said).await.0, "429", "{said}");
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
        let said = format!("X-Forwarded-For: 198.51.100.{client}\r\nForwarded: for=198.51.100.{client}");
        held.push(stream(&server, &said).await);
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
async fn too_many_fragments_close_with_1009() {
    let server = Server::with(|config| config.limits.fragments_max = 10);
    let fragments = |count: usize| {
        let all = [masked(0x01, b"x"), masked(0x00, b"").repeat(count - 2), masked(0x80, b"")];
        all.concat()
    };
    let mut raw = Raw::upgrade(&server, "/v1/channels/a", None).await;
    server.await_presence("a", 1).await;
    raw.send(fragments(10)).await;
    assert_eq!(raw.frame().await.expect("its echo").payload, b"x");
    raw.send(fragments(11)).await;
    assert_eq!(raw.close_code().await, Some(1009));
    assert_eq!(refused(&server, "fragments_max").await, 1);
    server.assert_well().await;
}

#[tokio::test]
async fn excessive_inflation_closes_with_1009() {
    let server = Server::with(|config| config.limits.compression = true);
    let mut bomb = Vec::new();
    Deflate::negotiate("permessage-deflate").unwrap().0.encode(&mut bomb, 1, &vec![b'x'; 900_000]);
    // The bomb is an unmasked frame: two bytes of header, two of length.
    let payload = &bomb[4..];
    let (mut raw, agreed) = Raw::upgrade_offering(&server, "/v1/channels/a", None, "permessage-deflate").await;
    assert!(agreed.is_some());
    raw.send(masked(0xc1, payload)).await;
    assert_eq!(raw.close_code().await, Some(1009));
    assert_eq!(refused(&server, "inflate_ratio_max").await, 1);
    server.assert_well().await;
}

#[tokio::test]
async fn partial_input_is_limited_in_total() {
    let server = Server::with(|config| config.limits.pending_bytes_max = 400_000);
    // Over HTTP: most of a body, and no more. The buffer into which the body is read counts, too.
    let head = "POST /v1/channels/a HTTP/1.1\r\nHost: test\r\nContent-Length: 150000\r\n\r\n";
    let mut first = Raw::connect(&server).await;
    first.send([head.as_bytes(), &[b'x'; 140_000]].concat()).await;
    until("it waits", async || server.metric("millrace_pending_bytes").await >= 140_000 + 64 * 1024).await;
    let mut second = Raw::connect(&server).await;
    second.send([head.as_bytes(), &[b'x'; 140_000]].concat()).await;
    assert!(second.head().await.starts_with("HTTP/1.1 503 "));
    drop((first, second));
    until("it has gone", async || server.metric("millrace_pending_bytes").await == 0).await;
    // Over WebSocket: most of a frame.
    let frame = &masked(0x82, &[b'x'; 250_000])[..240_000];
    let mut first = Raw::upgrade(&server, "/v1/channels/a", None).await;
    first.send(frame).await;
    until("it waits", async || server.metric("millrace_pending_bytes").await >= 240_000).await;
    let mut second = Raw::upgrade(&server, "/v1/channels/a", None).await;
    second.send(frame).await;
    assert_eq!(second.close_code().await, Some(1013));
    first.send(&masked(0x82, &[b'x'; 250_000])[240_000..]).await;
    until("it is whole", async || server.metric("millrace_pending_bytes").await == 0).await;
    assert_eq!(refused(&server, "pending_bytes_max").await, 2);
    server.assert_well().await;
}

/// Opens a connection whose client has a very small receive buffer.
async fn narrow(server: &Server) -> tokio::net::TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(2048).expect("an option");
    within(socket.connect(server.address)).await.expect("a connection")
}

#[tokio::test]
async fn unread_response_is_disconnected() {
    let server = Server::with(|config| config.limits.write_timeout = Duration::from_secs(1));
    for _ in 0..3 {
        server.publish("a", vec![b'x'; 1_000_000]).await;
    }
    // The publisher's connection is open and has a large buffer.
    let before = server.metric("millrace_pending_bytes").await;
    let mut stream = narrow(&server).await;
    let request = b"GET /v1/channels/a?since=earliest HTTP/1.1\r\nHost: test\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, request).await.unwrap();
    until("the answer waits", async || server.metric("millrace_pending_bytes").await > 2_000_000).await;
    until("it is given up", async || server.metric("millrace_pending_bytes").await <= before).await;
    assert_eq!(refused(&server, "write_timeout").await, 1);
    server.assert_well().await;
}

#[tokio::test]
async fn unread_replies_pause_the_session() {
    let server = Server::with(|config| config.server.shards = 1);
    server.publish("a", vec![b'x'; 100_000]).await;
    // The publisher's connection is open and has a large buffer.
    let before = server.metric("millrace_pending_bytes").await;
    let mut raw = Raw::upgrade(&server, "/v1/connect", Some("millrace.v1+json")).await;
    assert_eq!(raw.frame().await.expect("connected").opcode, 1);
    let ask = |id: usize| masked(0x81, format!("{{\"id\":{id},\"history\":{{\"channel\":\"a\"}}}}").as_bytes());
    raw.send((1..=500).flat_map(ask).collect::<Vec<u8>>()).await;
    // The client requests 50 MB of replies; the queued bytes stay few.
    until("a reply waits", async || server.metric("millrace_pending_bytes").await > before).await;
    server.assert_well().await;
    let waits = server.metric("millrace_pending_bytes").await;
    assert!(waits < 400_000, "{waits}");
    for id in 1..=500 {
        let reply = raw.frame().await.expect("a reply").payload;
        assert!(reply.starts_with(format!("{{\"id\":{id},").as_bytes()), "{id}");
    }
    until("nothing waits", async || server.metric("millrace_pending_bytes").await <= before).await;
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

#[tokio::test]
async fn history_rate_is_limited_per_connection() {
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

/// Returns one HTTP/2 frame. Source: RFC 9113, section 4.1.
fn http2(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Opens a connection and sends the HTTP/2 preface and settings.
async fn http2_connection(server: &Server) -> Raw {
    let mut raw = Raw::connect(server).await;
    raw.send([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &http2(4, 0, 0, &[])].concat()).await;
    raw
}

/// Returns the error code of the last GOAWAY among these frames.
fn goaway(mut bytes: &[u8]) -> Option<u32> {
    let mut found = None;
    while bytes.len() >= 9 {
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        if bytes[3] == 7 && bytes.len() >= 9 + 8 {
            found = Some(u32::from_be_bytes(bytes[13..17].try_into().expect("four bytes")));
        }
        bytes = bytes.get(9 + length..)?;
    }
    found
}

/// `GET`, `http`, `/` from the static table, and an authority. Source: RFC 7541, appendix A.
const REQUEST: &[u8] = &[0x82, 0x86, 0x84, 0x01, 4, b't', b'e', b's', b't'];
const ENHANCE_YOUR_CALM: u32 = 11;

#[tokio::test]
async fn rapid_reset_ends_the_connection() {
    let server = Server::start();
    let mut raw = http2_connection(&server).await;
    let pair = |i: u32| [http2(1, 5, 2 * i + 1, REQUEST), http2(3, 0, 2 * i + 1, &8u32.to_be_bytes())].concat();
    raw.send((0..3000).flat_map(pair).collect::<Vec<u8>>()).await;
    assert_eq!(goaway(&raw.read_to_end().await), Some(ENHANCE_YOUR_CALM));
    server.assert_well().await;
}

#[tokio::test]
async fn continuation_flood_ends_the_connection() {
    let server = Server::start();
    let mut raw = http2_connection(&server).await;
    let literal = [[0x00, 1, b'x', 0x7f, 0x81, 0x7d].as_slice(), &[b'y'; 16_000]].concat();
    raw.send(http2(1, 1, 1, REQUEST)).await;
    for _ in 0..200 {
        raw.send(http2(9, 0, 1, &literal)).await;
    }
    raw.read_to_end().await;
    server.assert_well().await;
}

#[tokio::test]
async fn ping_and_settings_floods_are_tolerated() {
    let server = Server::with(|config| config.limits.write_timeout = Duration::from_secs(1));
    for frame in [http2(6, 0, 0, &[0; 8]), http2(4, 0, 0, &[0, 3, 0, 0, 0, 1])] {
        let mut raw = http2_connection(&server).await;
        let flood = tokio::spawn(async move {
            // The client reads nothing. In the end the server stops reading, too, and then closes the connection.
            for _ in 0..1000 {
                raw.send(frame.repeat(1000)).await;
            }
        });
        for _ in 0..5 {
            let began = Instant::now();
            server.assert_well().await;
            assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        }
        flood.abort();
    }
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
