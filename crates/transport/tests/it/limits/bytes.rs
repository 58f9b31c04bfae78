//! Limits of memory: messages in fragments, compressed messages, incomplete input, and output that is not read.

use std::time::Duration;

use millrace_protocol::websocket::Deflate;
use tokio::net::TcpSocket;

use super::refused;
use crate::{
    client::raw::{Raw, masked},
    server::{Server, until, within},
};

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
