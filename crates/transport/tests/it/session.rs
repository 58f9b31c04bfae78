//! The WebSocket session, command by command, and the bare WebSocket as a publisher.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::{connect_async, tungstenite::Message as Frame};

use crate::{
    client::{
        Data, ReadOptions, Reader, ReaderKind, Received, SUBPROTOCOL, Session, after,
        raw::{Raw, handshake, masked},
    },
    server::{Server, within},
};

#[tokio::test]
async fn connected_push_contains_limits() {
    let server = Server::start();
    let connected = Session::open(&server).await.connected;
    assert_eq!((&connected["ping_ms"], &connected["message_bytes_max"]), (&json!(25000), &json!(1 << 20)));
    assert!(connected["time"].as_u64().unwrap() > 1_600_000_000_000, "{connected}");
}

#[tokio::test]
async fn session_on_channel_url_reads_channel() {
    let server = Server::start();
    let last = server.publish_all("s/1", [json!(1), json!(2), json!(3)]).await;
    let first = last.replace(":3", ":1");
    let mut session = Session::open_at(&server, &format!("/v1/channels/s/1?since={first}")).await;
    let ok = within(session.reply(0)).await.unwrap();
    assert_eq!((&ok["channel"], &ok["position"], &ok["recovered"]), (&json!("s/1"), &json!(first), &json!(true)));
    assert_eq!([session.push().await["data"].clone(), session.push().await["data"].clone()], [json!(2), json!(3)]);
    // The session behaves like any other.
    session.command("unsubscribe", json!({ "channel": "s/1" })).await.unwrap();
    session.subscribe("s/2", "now", "every").await;
    server.publish("s/1", "4").await;
    server.publish("s/2", "5").await;
    assert_eq!(session.push().await["data"], 5);
}

#[tokio::test]
async fn every_command_gets_a_reply() {
    let server = Server::start();
    let mut session = Session::open(&server).await;
    let before = session.command("ping", json!({})).await.unwrap()["time"].as_u64().unwrap();
    assert_eq!(session.command("presence", json!({ "channel": "c" })).await.unwrap(), json!({ "count": 0 }));
    let start = session.subscribe("c", "now", "every").await;
    let ok = session.command("publish", json!({ "channel": "c", "data": { "a": 1 }, "key": "k" })).await.unwrap();
    assert_eq!(ok, json!({ "position": after(&start, 1) }));
    let push = session.push().await;
    assert!(push["time"].as_u64().unwrap() >= before);
    let expected = json!({ "push": "message", "channel": "c", "position": ok["position"], "time": push["time"], "key": "k", "data": { "a": 1 } });
    assert_eq!(push, expected);
    assert_eq!(session.command("presence", json!({ "channel": "c" })).await.unwrap()["count"], 1);
    let history = session.command("history", json!({ "channel": "c" })).await.unwrap();
    assert_eq!((&history["position"], &history["messages"][0]["data"]), (&ok["position"], &json!({ "a": 1 })));
    let lost = session.command("history", json!({ "channel": "c", "since": "1:7", "limit": 1 })).await.unwrap();
    assert_eq!(lost["gap"], json!({ "from": "00000001:7", "to": start }), "{lost}");
    assert_eq!(session.command("unsubscribe", json!({ "channel": "c" })).await.unwrap(), json!({}));
    assert_eq!(session.command("presence", json!({ "channel": "c" })).await.unwrap()["count"], 0);
}

#[tokio::test]
async fn replies_keep_command_order() {
    let server = Server::start();
    let mut session = Session::open(&server).await;
    for id in 1..=300 {
        let body = match id % 3 {
            0 => json!({ "id": id, "ping": {} }),
            1 => json!({ "id": id, "publish": { "channel": "many", "data": id } }),
            _ => json!({ "id": id, "history": { "channel": "many", "limit": 1 } }),
        };
        session.send_text(&body.to_string()).await;
    }
    for id in 1..=300 {
        session.reply(id).await.unwrap();
    }
}

#[tokio::test]
async fn duplicate_subscription_is_refused() {
    let server = Server::start();
    let mut session = Session::open(&server).await;
    session.subscribe("once", "now", "every").await;
    let code = |result: Result<Value, Value>| result.unwrap_err()["code"].as_str().unwrap().to_owned();
    assert_eq!(code(session.command("subscribe", json!({ "channel": "once" })).await), "already_subscribed");
    session.command("subscribe", json!({ "channel": "once/#" })).await.unwrap();
    assert_eq!(code(session.command("subscribe", json!({ "channel": "once/#" })).await), "already_subscribed");
    assert_eq!(code(session.command("unsubscribe", json!({ "channel": "never" })).await), "not_subscribed");
    assert_eq!(code(session.command("unsubscribe", json!({ "channel": "never/+" })).await), "not_subscribed");
    server.publish("once", "1").await;
    assert_eq!(session.push().await["data"], 1);
    session.command("ping", json!({})).await.unwrap();
    server.publish("once", "2").await;
    assert_eq!(session.push().await["data"], 2, "no publication came twice");
}

#[tokio::test]
async fn bare_websocket_publishes_messages() {
    let server = Server::start();
    let mut readers = Vec::new();
    for way in [ReaderKind::Session, ReaderKind::Bare] {
        readers.push(Reader::open(way, &server, &ReadOptions::one("bare")).await);
    }
    let url = format!("ws://{}/v1/channels/bare?subscribe=no", server.address);
    let (mut socket, _) = within(connect_async(url.as_str())).await.unwrap();
    server.await_presence("bare", 2).await;
    for frame in [Frame::text("{\"a\": 1}"), Frame::text("hello"), Frame::binary(vec![0u8, 255])] {
        within(socket.send(frame)).await.unwrap();
    }
    let sent = [Data::Json(json!({ "a": 1 })), Data::Text("hello".into()), Data::Binary(vec![0, 255])];
    for data in &sent {
        assert_eq!(readers[0].message().await.data, *data);
    }
    let raw = [Data::Raw(b"{\"a\": 1}".to_vec()), Data::Raw(b"hello".to_vec()), Data::Binary(vec![0, 255])];
    for data in &raw {
        assert_eq!(readers[1].message().await.data, *data);
    }
    within(socket.send(Frame::Ping(b"are you there".as_slice().into()))).await.unwrap();
    let answer = within(socket.next()).await.unwrap().unwrap();
    assert_eq!(answer, Frame::Pong(b"are you there".as_slice().into()), "it reads nothing but pongs");
}

#[tokio::test]
async fn message_right_after_handshake_is_kept() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    let publish = json!({ "id": 1, "publish": { "channel": "early", "data": 7 } }).to_string();
    let mut all = handshake("/v1/connect", Some(SUBPROTOCOL)).into_bytes();
    let (whole, cut) = (masked(0x81, publish.as_bytes()), masked(0x81, b"{\"id\":2,\"ping\":{}}"));
    all.extend([whole.as_slice(), &cut[..9]].concat());
    raw.send(all).await;
    assert!(raw.head().await.starts_with("HTTP/1.1 101 "));
    let connected = raw.frame().await.unwrap();
    assert!(connected.payload.starts_with(b"{") && connected.opcode == 1);
    let reply: Value = serde_json::from_slice(&raw.frame().await.unwrap().payload).unwrap();
    assert_eq!((&reply["id"], reply["ok"]["position"].is_string()), (&json!(1), true), "{reply}");
    raw.send(&cut[9..]).await;
    let reply: Value = serde_json::from_slice(&raw.frame().await.unwrap().payload).unwrap();
    assert_eq!((&reply["id"], reply["ok"]["time"].is_u64()), (&json!(2), true), "{reply}");
    assert_eq!(server.get("/v1/channels/early").await.json()["messages"][0]["data"], 7);
}

#[tokio::test]
async fn largest_binary_publication_fits_into_command() {
    let server = Server::start();
    let mut reader = Reader::open(ReaderKind::Bare, &server, &ReadOptions::one("large")).await;
    let mut session = Session::open(&server).await;
    let data = BASE64_STANDARD.encode(vec![0xfe; 1 << 20]);
    session.command("publish", json!({ "channel": "large", "data": data, "encoding": "base64" })).await.unwrap();
    assert!(reader.message().await.data == Data::Binary(vec![0xfe; 1 << 20]));
}

#[tokio::test]
async fn close_frame_is_answered() {
    let server = Server::start();
    for (path, subprotocol) in [("/v1/channels/close", None), ("/v1/connect", Some(SUBPROTOCOL))] {
        let mut raw = Raw::upgrade(&server, path, subprotocol).await;
        raw.send(masked(0x88, &1000u16.to_be_bytes())).await;
        assert_eq!(raw.close_code().await, Some(1000), "{path}");
    }
    server.await_presence("close", 0).await;
    let mut session = Session::open(&server).await;
    session.say_binary(vec![1, 2, 3]).await;
    assert_eq!(within(session.receive()).await, Received::Closed(Some(1003)), "a session speaks text");
}
