//! Trace contexts from the publisher to the readers, over every input and every transport.
//!
//! Source: docs/reference/protocol.md, "Trace contexts".

use std::net::UdpSocket;

use millrace_server::traces::Forward;
use serde_json::{Value, json};

use crate::{
    client::{ReadOptions, Reader, ReaderKind, Session},
    hooks::back_end::{BackEnd, Question, Reply, hook},
    server::Server,
};

/// Contexts of five publications, each with another span.
fn traces() -> [String; 5] {
    std::array::from_fn(|i| format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b{i}-01"))
}

/// Publishes once through each input, each publication with its own context. Returns the contexts.
async fn publish_by_every_input(server: &Server, channel: &str) -> [String; 5] {
    let contexts = traces();
    let [header, line, session, data_channel, datagram] = &contexts;
    server.publish_with(channel, &[("traceparent", header), ("tracestate", "vendor=1")], "0").await;
    let body = |data: u8, trace: &str| json!({ "channel": channel, "data": data, "trace": trace });
    let answer = server.post("/v1/publish", &[], body(1, line).to_string()).await;
    assert!(answer.json()["results"][0]["position"].is_string(), "{answer:?}");
    let mut websocket = Session::open(server).await;
    websocket.command("publish", body(2, session)).await.expect("a position");
    let mut peer = Session::open_data_channel(server, None).await;
    peer.command("publish", body(3, data_channel)).await.expect("a position");
    let udp: std::net::SocketAddr =
        server.get("/v1/info").await.json()["udp"].as_str().expect("an address").parse().expect("an address");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.send_to(body(4, datagram).to_string().as_bytes(), udp).expect("it is sent");
    contexts
}

fn start(change: impl FnOnce(&mut millrace_server::Config)) -> Server {
    Server::with(|config| {
        config.server.udp = "127.0.0.1:0".into();
        change(config);
    })
}

/// Returns the readers whose form has an envelope: a bare WebSocket and the SSE stream of one channel have none.
async fn readers(server: &Server, channel: &str) -> Vec<Reader> {
    let mut readers = Vec::new();
    for way in ReaderKind::all().filter(|way| !matches!(way, ReaderKind::Bare | ReaderKind::Sse(_))) {
        readers.push(Reader::open(way, server, &ReadOptions::one(channel)).await);
    }
    for way in ReaderKind::many() {
        readers.push(Reader::open(way, server, &ReadOptions::many([channel.to_owned()])).await);
    }
    readers
}

#[tokio::test]
async fn context_of_every_input_reaches_every_reader() {
    let server = start(|_| {});
    let mut readers = readers(&server, "traced").await;
    let contexts = publish_by_every_input(&server, "traced").await;
    for reader in &mut readers {
        for (i, context) in contexts.iter().enumerate() {
            let message = reader.message().await;
            assert_eq!(message.trace.as_ref(), Some(context), "{:?}", reader.way);
            assert_eq!(message.data.into_text(), i.to_string(), "{:?}", reader.way);
        }
    }
    // From history, and in XML.
    for accept in ["application/json", "application/xml"] {
        let page = server.get_with("/v1/channels/traced?since=earliest", &[("accept", accept)]).await.text();
        assert!(contexts.iter().all(|context| page.contains(context)), "{page}");
    }
}

#[tokio::test]
async fn server_that_does_not_forward_removes_contexts() {
    let server = start(|config| config.traces.forward = Forward::Off);
    let mut readers = readers(&server, "untraced").await;
    publish_by_every_input(&server, "untraced").await;
    for reader in &mut readers {
        for i in 0..5 {
            let message = reader.message().await;
            assert_eq!((message.trace, message.data.into_text()), (None, i.to_string()), "{:?}", reader.way);
        }
    }
}

#[tokio::test]
async fn malformed_context_is_ignored() {
    let server = start(|_| {});
    let mut reader = Reader::open(ReaderKind::Session, &server, &ReadOptions::one("bad")).await;
    let [good, ..] = traces();
    let unsampled = format!("{}00", &good[..53]);
    let bad = ["", "x", "00-0-0-01", &good[1..], &good.to_uppercase(), &unsampled, &"0-".repeat(10_000)];
    for context in bad {
        server.publish_with("bad", &[("traceparent", context)], "1").await;
        assert_eq!(reader.message().await.trace, None, "{context}");
    }
    let mut session = Session::open(&server).await;
    for context in bad.map(Value::from).into_iter().chain([Value::Null, json!(1), json!([[]]), json!({ "a": {} })]) {
        let body = json!({ "channel": "bad", "data": 1, "trace": context });
        session.command("publish", body).await.expect("a position");
        assert_eq!(reader.message().await.trace, None, "{context}");
    }
    // The first of two headers counts.
    server.publish_with("bad", &[("traceparent", &good), ("traceparent", "x")], "1").await;
    assert_eq!(reader.message().await.trace, Some(good));
}

#[tokio::test]
async fn deletion_has_a_context() {
    let server = Server::with(|config| {
        config.namespaces.entry("s".into()).or_default().state = Some(true);
    });
    let mut reader = Reader::open(ReaderKind::Session, &server, &ReadOptions::one("s/a")).await;
    let [context, ..] = traces();
    let deletion = server.http.delete(server.url("/v1/channels/s/a?key=k")).header("traceparent", &context);
    assert_eq!(deletion.send().await.expect("an answer").status(), 200);
    let message = reader.message().await;
    assert_eq!((message.deleted, message.trace), (true, Some(context)));
}

#[tokio::test]
async fn back_end_receives_context_of_a_publication() {
    let replaced = |_: &Question| Reply::Json(json!({ "allow": true, "data": "replaced" }));
    let back_end = BackEnd::start(replaced).await;
    let server = Server::with(|config| hook(config, &back_end, &["publish"]));
    let mut reader = Reader::open(ReaderKind::Session, &server, &ReadOptions::one("orders/7")).await;
    let [context, ..] = traces();
    server.publish_with("orders/7", &[("traceparent", &context)], "1").await;
    server.publish_with("orders/7", &[], "2").await;
    let header =
        |question: &Question| question.headers.get("traceparent").map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(back_end.questions().iter().map(header).collect::<Vec<_>>(), [Some(context.clone()), None]);
    let message = reader.message().await;
    assert_eq!((message.trace, message.data.into_text()), (Some(context), "replaced".into()));
    assert_eq!(reader.message().await.trace, None);
}
