//! Back ends that fail.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use http::StatusCode;
use serde_json::{Value, json};

use super::{data, events, publications};
use crate::{
    hooks::back_end::{BackEnd, Reply},
    server::{Server, until},
};

type Failure = Box<dyn Fn() -> Reply + Send + Sync>;

async fn requests(server: &Server, result: &str) -> u64 {
    server.metric(&format!("millrace_webhook_requests_total{{result=\"{result}\"}}")).await
}

#[tokio::test]
async fn every_failure_is_repeated_until_the_back_end_acknowledges() {
    let elsewhere = Arc::new(BackEnd::start(|_| Reply::Text("")).await);
    let to = elsewhere.url("/elsewhere");
    let cases: Vec<(&str, Failure)> = vec![
        ("never", Box::new(|| Reply::Never)),
        ("hang up", Box::new(|| Reply::Hangup)),
        ("redirect", Box::new(move || Reply::Redirect(to.clone()))),
        ("500", Box::new(|| Reply::Status(StatusCode::INTERNAL_SERVER_ERROR))),
        ("503", Box::new(|| Reply::Status(StatusCode::SERVICE_UNAVAILABLE))),
        ("429", Box::new(|| Reply::Status(StatusCode::TOO_MANY_REQUESTS))),
        ("408", Box::new(|| Reply::Status(StatusCode::REQUEST_TIMEOUT))),
    ];
    for (name, failure) in cases {
        let is_well = Arc::new(AtomicBool::new(false));
        let well = is_well.clone();
        let back_end = BackEnd::start(move |_| if well.load(SeqCst) { Reply::Text("") } else { failure() }).await;
        let server = Server::with(|config| publications(config, &back_end));
        server.publish("a", "1").await;
        until(&format!("{name}: two attempts"), async || requests(&server, "failed").await >= 2).await;
        server.publish("a", "2").await;
        assert_eq!(server.metric("millrace_webhook_failing").await, 1, "{name}");
        is_well.store(true, SeqCst);
        until(&format!("{name}: acknowledged"), async || {
            server.metric("millrace_webhook_events_total{type=\"publication\",result=\"delivered\"}").await == 2
        })
        .await;
        assert_eq!(data(&back_end, "a"), [json!(1), json!(2)], "{name}");
        let all = events(&back_end.questions());
        let repeated: Vec<&Value> = all.iter().filter(|event| event["data"] == 1).collect();
        assert!(repeated.len() >= 3 && repeated.iter().all(|event| *event == repeated[0]), "{name}: {repeated:?}");
        assert_eq!(server.metric("millrace_webhook_failing").await, 0, "{name}");
        assert_eq!(server.metric("millrace_webhook_dead_letters").await, 0, "{name}");
    }
    assert_eq!(elsewhere.connections(), 0, "a redirect is not followed");
}

#[tokio::test]
async fn status_counts_whatever_the_body_is() {
    let cases: Vec<(&str, Failure)> = vec![
        ("garbage", Box::new(|| Reply::Text("<html>thanks"))),
        ("10 MB", Box::new(|| Reply::Large(10 << 20))),
        ("202", Box::new(|| Reply::Status(StatusCode::ACCEPTED))),
        ("cut in the middle", Box::new(|| Reply::Cut)),
    ];
    for (name, answer) in cases {
        let back_end = BackEnd::start(move |_| answer()).await;
        let server = Server::with(|config| publications(config, &back_end));
        server.publish("a", "1").await;
        until(&format!("{name}: acknowledged"), async || requests(&server, "acknowledged").await == 1).await;
        server.publish("a", "2").await;
        until(&format!("{name}: the next"), async || requests(&server, "acknowledged").await == 2).await;
        assert_eq!(requests(&server, "failed").await, 0, "{name}");
        assert_eq!(data(&back_end, "a"), [json!(1), json!(2)], "{name}");
    }
}

#[tokio::test]
async fn backlog_of_a_back_end_that_is_gone_is_bounded_and_counted() {
    const KEPT: usize = 50;
    let back_end = BackEnd::start(|_| Reply::Text("")).await;
    let server = Server::with(|config| {
        publications(config, &back_end);
        config.webhooks.batch_max = 10;
        config.history.count_max = KEPT;
    });
    server.publish("a", "0").await;
    until("the first arrives", async || data(&back_end, "a").len() == 1).await;
    let address = back_end.stop().await;
    server.publish("a", "1").await;
    until("the back end is missed", async || requests(&server, "failed").await >= 1).await;
    server.publish_all("a", (2..500).map(Value::from)).await;
    assert!(server.metric("millrace_webhook_failing").await == 1);
    let back_end = BackEnd::start_at(address, |_| Reply::Text("")).await;
    until("the newest arrives", async || data(&back_end, "a").last() == Some(&json!(499))).await;
    let received = data(&back_end, "a");
    let dropped = server.metric("millrace_webhook_dropped_total").await;
    assert_eq!(received.len() as u64 + dropped, 499, "each one is received or counted: {received:?}");
    assert!(received.len() <= KEPT + 10, "history and the batch in flight: {}", received.len());
    let numbers: Vec<u64> = received.iter().filter_map(Value::as_u64).collect();
    assert!(numbers.is_sorted() && numbers.contains(&450), "the newest stay, in order: {numbers:?}");
}

#[tokio::test]
async fn events_wait_for_each_other_only_as_long_as_configured() {
    let back_end = BackEnd::start(|_| Reply::Text("")).await;
    let server = Server::with(|config| {
        publications(config, &back_end);
        config.webhooks.batch_wait = Duration::from_millis(300);
    });
    server.publish("a", "0").await;
    until("the first arrives", async || data(&back_end, "a").len() == 1).await;
    for n in 1..10 {
        server.publish("a", n.to_string()).await;
    }
    until("all arrive", async || data(&back_end, "a").len() == 10).await;
    assert!(back_end.questions().len() <= 4, "batches: {}", back_end.questions().len());
}
