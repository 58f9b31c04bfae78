//! Publications as events.

use std::time::Duration;

use millrace_webhooks::EventKind;
use serde_json::{Value, json};

use super::{SECRET, data, events, publications};
use crate::{
    hooks::back_end::{BackEnd, Reply, hook},
    server::{Server, until},
};

fn accept() -> Reply {
    Reply::Text("")
}

#[tokio::test]
async fn event_has_the_documented_form() {
    let back_end = BackEnd::start(|_| accept()).await;
    let server = Server::with(|config| publications(config, &back_end));
    let headers = [("millrace-key", "k"), ("content-type", "application/json")];
    let position = server.publish_with("chat/7", &headers, r#"{"text":"hello"}"#).await;
    back_end.await_asked(1).await;
    let request = &back_end.questions()[0];
    assert!(request.is_signed_with(SECRET) && !request.is_signed_with("another secret of 32 bytes"));
    assert_eq!(request.headers["content-type"], "application/json");
    assert_eq!(request.headers["millrace-event-id"].len(), 32);
    let event = &events(std::slice::from_ref(request))[0];
    let expected = json!({
        "id": event["id"], "type": "publication", "time_ms": event["time_ms"], "channel": "chat/7",
        "position": position, "key": "k", "data": { "text": "hello" },
    });
    assert_eq!(*event, expected);
    assert_eq!(event["id"].as_str().map(str::len), Some(32));
    assert!(event["time_ms"].as_u64().is_some_and(|ms| ms > 1_700_000_000_000), "{event}");
}

#[tokio::test]
async fn every_channel_keeps_its_order() {
    let back_end = BackEnd::start(|_| accept()).await;
    let server = Server::with(|config| {
        publications(config, &back_end);
        config.webhooks.batch_max = 7;
    });
    let numbers: Vec<Value> = (0..50).map(Value::from).collect();
    for channel in ["a", "b/c"] {
        server.publish_all(channel, numbers.clone()).await;
    }
    for channel in ["a", "b/c"] {
        until(&format!("all of {channel}"), async || data(&back_end, channel).len() == 50).await;
        assert_eq!(data(&back_end, channel), numbers, "{channel}");
    }
    let largest = back_end.questions().iter().map(|request| request.json()["events"].as_array().unwrap().len()).max();
    assert_eq!(largest, Some(7), "batch_max");
    assert_eq!(back_end.in_progress_max(), 1, "one batch is in flight");
    until("all are counted", async || {
        server.metric("millrace_webhook_events_total{type=\"publication\",result=\"delivered\"}").await == 100
    })
    .await;
    assert_eq!(server.metric("millrace_webhook_dropped_total").await, 0);
}

#[tokio::test]
async fn only_wanted_namespaces_are_sent() {
    let back_end = BackEnd::start(|_| accept()).await;
    let server = Server::with(|config| {
        publications(config, &back_end);
        config.webhooks.events = vec![EventKind::Channel];
        config.namespaces.entry("chat".into()).or_default().webhooks.events = Some(vec![EventKind::Publication]);
    });
    server.publish("news", "1").await;
    server.publish("chat/1", "2").await;
    until("the publication is sent", async || data(&back_end, "chat/1") == [json!(2)]).await;
    assert!(events(&back_end.questions()).iter().all(|event| event["channel"] != "news"));
}

#[tokio::test]
async fn refused_publication_is_no_event_and_replaced_payload_is_sent() {
    let back_end = BackEnd::start(|question| match question.path.as_str() {
        "/publish" if question.json()["data"] == "bad" => Reply::Json(json!({ "allow": false })),
        "/publish" => Reply::Json(json!({ "allow": true, "data": "replaced" })),
        _ => accept(),
    })
    .await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["publish"]);
        publications(config, &back_end);
    });
    server.post("/v1/channels/a", &[], "\"bad\"").await.assert_problem(403, "refused");
    server.publish("a", "\"good\"").await;
    until("the event arrives", async || data(&back_end, "a") == ["replaced"]).await;
}

#[tokio::test]
async fn events_survive_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("data.db").display());
    let back_end = BackEnd::start(|_| accept()).await;
    let start = || {
        Server::with(|config| {
            publications(config, &back_end);
            config.engine.url = url.clone();
        })
    };
    let server = start();
    server.publish("a", "1").await;
    until("the first is acknowledged", async || {
        server.metric("millrace_webhook_events_total{type=\"publication\",result=\"delivered\"}").await == 1
    })
    .await;
    let first = events(&back_end.questions());
    // Until the restart, the back end answers nothing.
    back_end.answer(|_| Reply::Never);
    server.publish_all("a", [json!(2), json!(3)]).await;
    until("an attempt", async || back_end.questions().len() >= 2).await;
    drop(server);
    back_end.answer(|_| accept());
    let server = start();
    until("the rest arrives", async || data(&back_end, "a") == [json!(1), json!(2), json!(3)]).await;
    server.publish("a", "4").await;
    until("a new one arrives", async || data(&back_end, "a").len() == 4).await;
    let all = events(&back_end.questions());
    let of = |value: u64| all.iter().filter(|event| event["data"] == value).collect::<Vec<_>>();
    let repeated = of(2);
    assert!(repeated.len() >= 2 && repeated.iter().all(|event| *event == repeated[0]), "the same ids: {repeated:?}");
    assert_eq!(of(1), first.iter().collect::<Vec<_>>(), "acknowledged events are not sent again");
}

#[tokio::test]
async fn state_and_settings_show_no_secret() {
    let back_end = BackEnd::start(|_| accept()).await;
    let server = Server::with(|config| {
        publications(config, &back_end);
        config.webhooks.url += "?key=s3cr3t";
        config.admin.listen = "127.0.0.1:0".into();
        config.admin.token = "a token of sixteen".into();
    });
    server.publish("a", "1").await;
    back_end.await_asked(1).await;
    let url = format!("http://{}/v1/admin/webhooks", server.admin());
    let state = server.http.get(url).bearer_auth("a token of sixteen").send().await.expect("an answer");
    let state: Value = state.json().await.expect("JSON");
    let node = &state["nodes"][0];
    assert_eq!(node["url"], back_end.url("/webhooks"), "without the query: {state}");
    assert_eq!((&node["dispatching"], &node["failing"]), (&json!(true), &json!(false)), "{state}");
    let url = format!("http://{}/v1/admin/config", server.admin());
    let shown = server.http.get(url).bearer_auth("a token of sixteen").send().await.expect("an answer");
    let shown = shown.text().await.expect("text");
    assert!(!shown.contains(SECRET) && !shown.contains("s3cr3t"), "{shown}");
}

#[tokio::test]
async fn slow_back_end_delays_no_publication() {
    let back_end = BackEnd::start(|_| Reply::After(Duration::from_millis(300), json!({}))).await;
    let server = Server::with(|config| publications(config, &back_end));
    for n in 0..20 {
        server.publish("a", n.to_string()).await;
    }
    until("all arrive", async || data(&back_end, "a").len() == 20).await;
    assert_eq!(data(&back_end, "a"), (0..20).map(Value::from).collect::<Vec<_>>());
}
