//! Answers that may be reused (`ttl_s`).

use std::time::Duration;

use serde_json::json;

use super::{
    assert_refused_answer,
    back_end::{BackEnd, Reply, hook},
};
use crate::server::{Server, until};

fn kept(seconds: f64) -> Reply {
    Reply::Json(json!({ "allow": true, "ttl_s": seconds }))
}

#[tokio::test]
async fn poll_asks_once_per_lifetime_of_the_answer() {
    let back_end = BackEnd::start(|question| match question.hook().as_str() {
        "subscribe" => kept(60.0),
        _ => {
            let grants = ["subscribe", "history"].map(|right| json!({ "permission": right, "pattern": "#" }));
            Reply::Json(json!({ "allow": true, "ttl_s": 60, "grants": grants }))
        }
    })
    .await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["connect", "subscribe"]);
        config.server.public_metrics = true;
    });
    for _ in 0..10 {
        assert_eq!(server.get("/v1/channels/a").await.status, 204);
        assert_eq!(server.get("/v1/channels/b?since=earliest").await.status, 204);
    }
    assert_eq!((back_end.asked("connect").len(), back_end.asked("subscribe").len()), (1, 2));
    assert_eq!(server.metric("millrace_hook_cached_total{hook=\"subscribe\"}").await, 18);
}

#[tokio::test]
async fn answer_without_lifetime_counts_once() {
    let back_end = BackEnd::start(|_| Reply::Json(json!({ "allow": true }))).await;
    let server = Server::with(|config| hook(config, &back_end, &["subscribe", "publish"]));
    for _ in 0..3 {
        server.get("/v1/channels/a").await;
        server.publish("a", "1").await;
    }
    assert_eq!((back_end.asked("subscribe").len(), back_end.asked("publish").len()), (3, 3));
}

#[tokio::test]
async fn answer_expires() {
    let back_end = BackEnd::start(|_| kept(0.2)).await;
    let server = Server::with(|config| hook(config, &back_end, &["subscribe"]));
    server.get("/v1/channels/a").await;
    until("asked again", async || {
        server.get("/v1/channels/a").await;
        back_end.questions().len() >= 2
    })
    .await;
}

#[tokio::test]
async fn refusal_and_permission_to_publish_are_reused() {
    let back_end = BackEnd::start(|question| match question.json()["channel"].as_str() {
        Some("closed") => {
            let (code, detail) = ("no_credit", "your credit is used up");
            Reply::Json(json!({ "allow": false, "ttl_s": 60, "code": code, "detail": detail }))
        }
        Some("altered") => Reply::Json(json!({ "allow": true, "ttl_s": 60, "data": "altered" })),
        _ => kept(60.0),
    })
    .await;
    let server = Server::with(|config| hook(config, &back_end, &["publish"]));
    for _ in 0..3 {
        assert_refused_answer(&server.post("/v1/channels/closed", &[], "1").await);
        server.publish("open", "1").await;
    }
    assert_eq!(back_end.questions().len(), 2);
    for _ in 0..3 {
        server.publish("altered", "1").await;
    }
    assert_eq!(back_end.questions().len(), 5, "an answer with a payload is not reused");
}

#[tokio::test]
async fn failure_is_not_kept() {
    let back_end = BackEnd::start(|_| Reply::Text("garbage")).await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["subscribe"]);
        config.hooks.timeout = Duration::from_secs(5);
    });
    server.get("/v1/channels/a").await.assert_problem(503, "unavailable");
    back_end.answer(|_| kept(60.0));
    assert_eq!(server.get("/v1/channels/a").await.status, 204);
}
