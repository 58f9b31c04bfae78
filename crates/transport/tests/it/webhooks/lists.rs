//! Events about channels, members and connections.

use std::time::Duration;

use millrace_server::{Config, auth::SigningKey, config::Secret};
use millrace_webhooks::EventKind;
use reqwest::Response;
use serde_json::{Value, json};

use super::{SECRET, events, once};
use crate::{
    hooks::back_end::{BackEnd, Reply},
    server::{Server, until, within},
};

const TOKEN_SECRET: &str = "a secret of thirty-two bytes or more";
const GRACE: Duration = Duration::from_millis(300);

fn notified(config: &mut Config, back_end: &BackEnd, kinds: &[EventKind]) {
    config.webhooks.url = back_end.url("/webhooks");
    config.webhooks.secrets = vec![Secret::from(SECRET)];
    config.webhooks.events = kinds.to_vec();
    config.webhooks.batch_wait = Duration::from_millis(10);
    config.webhooks.grace = GRACE;
}

/// Opens a stream. It is open until the result is dropped.
async fn open(server: &Server, channel: &str, token: Option<&str>) -> Response {
    let request = server.http.get(server.url(&format!("/v1/channels/{channel}"))).header("accept", "text/event-stream");
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    let response = within(request.send()).await.expect("an answer");
    assert_eq!(response.status(), 200);
    response
}

/// Returns the events without repetitions, ids and times.
fn received(back_end: &BackEnd) -> Vec<Value> {
    let mut all = once(events(&back_end.questions()));
    for event in &mut all {
        let fields = event.as_object_mut().expect("an object");
        assert!(fields.remove("id").is_some() && fields.remove("time_ms").is_some());
    }
    all
}

fn token(subject: &str) -> String {
    let now_s = millrace_transport::access::unix_s();
    let claims = json!({ "sub": subject, "iat": now_s, "exp": now_s + 600, "millrace": { "subscribe": ["#"] } });
    SigningKey::parse(TOKEN_SECRET.as_bytes()).expect("a key").sign(&claims, None).expect("a token")
}

#[tokio::test]
async fn channel_is_occupied_and_vacated_once() {
    let back_end = BackEnd::start(|_| Reply::Text("")).await;
    let server = Server::with(|config| notified(config, &back_end, &[EventKind::Channel]));
    let first = open(&server, "a/b", None).await;
    let occupied = json!({ "type": "occupied", "channel": "a/b" });
    until("the channel is occupied", async || received(&back_end) == [occupied.clone()]).await;
    let second = open(&server, "a/b", None).await;
    drop(first);
    server.await_presence("a/b", 1).await;
    drop(second);
    server.await_presence("a/b", 0).await;
    // A reader that comes back within the grace time.
    let third = open(&server, "a/b", None).await;
    let _other = open(&server, "other", None).await;
    let other = json!({ "type": "occupied", "channel": "other" });
    until("the other channel is occupied", async || received(&back_end).len() == 2).await;
    assert_eq!(received(&back_end), [occupied, other]);
    drop(third);
    let vacated = json!({ "type": "vacated", "channel": "a/b" });
    until("the channel is vacated", async || received(&back_end).last() == Some(&vacated)).await;
    assert_eq!(received(&back_end).len(), 3);
    let again = open(&server, "a/b", None).await;
    until("the channel is occupied again", async || received(&back_end).len() == 4).await;
    drop(again);
}

#[tokio::test]
async fn member_joins_and_leaves_once() {
    let back_end = BackEnd::start(|question| match question.path.as_str() {
        "/connect" => Reply::Json(json!({ "allow": true, "info": { "name": "Ann" } })),
        _ => Reply::Text(""),
    })
    .await;
    let server = Server::with(|config| {
        crate::hooks::back_end::hook(config, &back_end, &["connect"]);
        notified(config, &back_end, &[EventKind::Member]);
        config.auth.secret = TOKEN_SECRET.into();
        config.history.roster = true;
        config.history.roster_grace = GRACE;
    });
    let ann = token("ann");
    let (one, two) = (open(&server, "chat/1", Some(&ann)).await, open(&server, "chat/1", Some(&ann)).await);
    let joined = json!({ "type": "joined", "channel": "chat/1", "member": "ann", "info": { "name": "Ann" } });
    until("ann joins", async || received(&back_end) == [joined.clone()]).await;
    let bob = open(&server, "chat/1", Some(&token("bob"))).await;
    until("bob joins", async || received(&back_end).len() == 2).await;
    drop(one);
    drop(bob);
    let left = |member: &str| json!({ "type": "left", "channel": "chat/1", "member": member });
    until("bob leaves", async || received(&back_end).last() == Some(&left("bob"))).await;
    assert_eq!(received(&back_end).len(), 3, "ann still has a connection");
    drop(two);
    until("ann leaves", async || received(&back_end).last() == Some(&left("ann"))).await;
    assert_eq!(received(&back_end).len(), 4);
}

#[tokio::test]
async fn connection_is_opened_and_closed() {
    let back_end = BackEnd::start(|_| Reply::Text("")).await;
    let server = Server::with(|config| {
        notified(config, &back_end, &[EventKind::Connection]);
        config.auth.secret = TOKEN_SECRET.into();
    });
    let stream = open(&server, "a", Some(&token("ann"))).await;
    until("it is opened", async || received(&back_end).len() == 1).await;
    let opened = received(&back_end).remove(0);
    let id = opened["connection"].as_str().expect("an id").to_owned();
    let expected = json!({ "type": "opened", "connection": id, "subject": "ann", "transport": "sse" });
    assert_eq!((&opened, id.split('-').count()), (&expected, 4));
    drop(stream);
    let closed = json!({ "type": "closed", "connection": id });
    until("it is closed", async || received(&back_end) == [expected.clone(), closed.clone()]).await;
}

#[tokio::test]
async fn namespace_without_events_is_not_recorded() {
    let back_end = BackEnd::start(|_| Reply::Text("")).await;
    let server = Server::with(|config| {
        notified(config, &back_end, &[EventKind::Channel]);
        config.namespaces.entry("quiet".into()).or_default().webhooks.events = Some(Vec::new());
    });
    let _quiet = open(&server, "quiet/1", None).await;
    let _loud = open(&server, "loud", None).await;
    until("the other channel is occupied", async || !received(&back_end).is_empty()).await;
    assert_eq!(received(&back_end), [json!({ "type": "occupied", "channel": "loud" })]);
}
