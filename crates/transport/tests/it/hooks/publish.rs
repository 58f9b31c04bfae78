//! The hook `publish`.

use std::time::Duration;

use futures_util::SinkExt;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message as Frame;

use super::back_end::{BackEnd, Question, Reply, SECRET, allow, hook, refuse};
use crate::{
    client::{Session, websocket},
    server::{Server, until, within},
};

async fn history(server: &Server, channel: &str) -> Vec<Value> {
    let answer = server.get(&format!("/v1/channels/{channel}?since=earliest&limit=1000")).await;
    let page = if answer.status == 204 { json!({}) } else { answer.json() };
    let messages = page["messages"].as_array().cloned().unwrap_or_default();
    messages.into_iter().map(|message| message["data"].clone()).collect()
}

#[tokio::test]
async fn question_has_the_documented_form() {
    let back_end = BackEnd::start(|_| allow()).await;
    let server = Server::with(|config| hook(config, &back_end, &["publish"]));
    let headers = [("millrace-key", "k"), ("idempotency-key", "i")];
    server.publish_with("orders/7", &headers, "{\"n\":1}").await;
    let mut session = Session::open(&server).await;
    let body = json!({ "channel": "orders/7", "data": "//4=", "encoding": "base64" });
    session.command("publish", body).await.expect("a position");
    let [first, second] = back_end.questions().try_into().expect("two questions");
    assert_eq!(
        (first.path.as_str(), &first.headers["content-type"]),
        ("/publish", &"application/json".parse().unwrap())
    );
    assert!(first.is_signed_with(SECRET) && !first.is_signed_with("another secret of 32 bytes......"));
    let mut json = first.json();
    assert_eq!(first.headers["millrace-event-id"].to_str().unwrap(), json["id"]);
    json.as_object_mut().unwrap().remove("id");
    let expected = json!({
        "hook": "publish", "transport": "http", "address": "127.0.0.1", "channel": "orders/7", "key": "k",
        "idempotency_key": "i", "data": { "n": 1 },
    });
    assert_eq!(json, expected);
    let json = second.json();
    assert_eq!(
        (&json["transport"], &json["data"], &json["encoding"]),
        (&json!("session"), &json!("//4="), &json!("base64"))
    );
    assert!(json["connection"].as_str().is_some_and(|id| id.split('-').count() == 3), "{json}");
}

#[tokio::test]
async fn every_secret_in_force_signs() {
    let back_end = BackEnd::start(|_| allow()).await;
    let old = "the old secret, until it is gone";
    let server = Server::with(|config| {
        hook(config, &back_end, &["publish"]);
        config.hooks.secrets.push(old.into());
    });
    server.publish("a", "1").await;
    let question: Question = back_end.questions().remove(0);
    assert!(question.is_signed_with(SECRET) && question.is_signed_with(old));
}

#[tokio::test]
async fn payload_may_be_replaced() {
    let back_end = BackEnd::start(|question| match question.json()["data"].as_str() {
        Some("json") => Reply::Json(json!({ "allow": true, "data": { "by": "the back end" } })),
        Some("large") => Reply::Json(json!({ "allow": true, "data": "x".repeat(101) })),
        _ => allow(),
    })
    .await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["publish"]);
        config.limits.message_bytes_max = 100;
    });
    server.publish("a", "json").await;
    server.publish("a", "kept").await;
    server.post("/v1/channels/a", &[], "large").await.assert_problem(413, "too_large");
    assert_eq!(history(&server, "a").await, [json!({ "by": "the back end" }), json!("kept")]);
}

/// The back end answers each question faster than the one before, so questions in progress at once would change the
/// order.
#[tokio::test]
async fn publications_of_a_connection_keep_their_order() {
    const COUNT: usize = 20;
    let back_end = BackEnd::start(|question| {
        let number = question.json()["data"].as_u64().expect("a number");
        Reply::After(Duration::from_millis(2 * (COUNT as u64 - number)), json!({ "allow": true }))
    })
    .await;
    let server = Server::with(|config| hook(config, &back_end, &["publish"]));
    let all: Vec<Value> = (0..COUNT).map(|n| json!(n)).collect();
    let mut socket = websocket::connect(&server, "/v1/channels/bare?subscribe=no", None).await;
    for n in 0..COUNT {
        socket.feed(Frame::text(n.to_string())).await.expect("an open socket");
    }
    socket.flush().await.expect("an open socket");
    // The close frame comes after the publications that wait.
    socket.close(None).await.expect("an open socket");
    until("all of the bare WebSocket", async || history(&server, "bare").await.len() == COUNT).await;
    assert_eq!(history(&server, "bare").await, all);
    for (channel, mut session) in
        [("session", Session::open(&server).await), ("lines", Session::open_data_channel(&server, None).await)]
    {
        for n in 0..COUNT {
            let command = json!({ "id": n + 1, "publish": { "channel": channel, "data": n } });
            session.send_text(&command.to_string()).await;
        }
        for n in 0..COUNT {
            session.reply(n as u64 + 1).await.expect("a position");
        }
        assert_eq!(history(&server, channel).await, all);
    }
    let lines: String = (0..COUNT).map(|n| json!({ "channel": "batch", "data": n }).to_string() + "\n").collect();
    server.post("/v1/publish", &[], lines).await;
    assert_eq!(history(&server, "batch").await, all);
}

#[tokio::test]
async fn back_end_is_not_asked_for_what_is_refused_before() {
    let back_end = BackEnd::start(|_| allow()).await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["publish"]);
        config.server.shards = 1;
        config.limits.message_bytes_max = 100;
        config.limits.exempt = Vec::new();
        config.limits.publishes_per_s = 1;
    });
    server.post("/v1/channels/rooms/a/state", &[], "1").await.assert_problem(403, "forbidden");
    server.post("/v1/channels/a", &[], "x".repeat(101)).await.assert_problem(413, "too_large");
    assert_eq!(back_end.questions().len(), 0);
    let mut accepted = 0;
    until("the quota is spent", async || {
        let answer = server.post("/v1/channels/a", &[], "1").await;
        accepted += usize::from(answer.status == 200);
        answer.status == 429
    })
    .await;
    assert_eq!(back_end.questions().len(), accepted);
}

#[tokio::test]
async fn namespace_has_its_own_back_end_or_none() {
    let [all, own] = [BackEnd::start(|_| refuse()).await, BackEnd::start(|_| allow()).await];
    let server = Server::with(|config| {
        hook(config, &all, &["publish"]);
        let chat = config.namespaces.entry("chat".into()).or_default();
        chat.hooks.publish = Some(own.url("/chat"));
        config.namespaces.entry("free".into()).or_default().hooks.publish = Some(String::new());
    });
    server.publish("chat/1", "1").await;
    server.publish("free/1", "1").await;
    super::assert_refused_answer(&server.post("/v1/channels/other", &[], "1").await);
    assert_eq!((all.questions().len(), own.questions().len()), (1, 1));
    assert_eq!(own.questions()[0].path, "/chat");
}

#[tokio::test]
async fn connections_are_reused() {
    let back_end = BackEnd::start(|_| allow()).await;
    let server = Server::with(|config| hook(config, &back_end, &["publish"]));
    for n in 0..50 {
        server.publish("a", n.to_string()).await;
    }
    assert_eq!((back_end.questions().len(), back_end.connections()), (50, 1));
}

#[tokio::test]
async fn http2_is_used_where_the_back_end_offers_it() {
    let back_end = BackEnd::start_http2(|_| allow()).await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["publish"]);
        config.hooks.ca.clone_from(&crate::server::certificates().ca);
    });
    server.publish("a", "first").await;
    let posts = (0..20).map(|n| server.publish("a", n.to_string()));
    within(futures_util::future::join_all(posts)).await;
    assert_eq!(back_end.questions().len(), 21);
    assert!(back_end.questions().iter().all(|question| question.version == http::Version::HTTP_2));
    assert_eq!(back_end.connections(), 1);
}

#[tokio::test]
async fn questions_in_progress_are_bounded() {
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let waiting = gate.clone();
    let back_end = BackEnd::start(move |_| Reply::When(waiting.clone(), json!({ "allow": true }))).await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["publish"]);
        config.hooks.concurrency = 3;
        config.hooks.timeout = Duration::from_secs(20);
    });
    let posts = futures_util::future::join_all((0..12).map(|n| server.publish("a", n.to_string())));
    let open = async {
        back_end.await_asked(3).await;
        gate.add_permits(12);
    };
    within(futures_util::future::join(posts, open)).await;
    assert_eq!((back_end.questions().len(), back_end.in_progress_max()), (12, 3));
}
