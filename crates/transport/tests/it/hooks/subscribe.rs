//! The hook `subscribe`: asked before a client reads, on every transport.

use millrace_protocol::{
    ChannelName, Since,
    session::{Policy, Subscription, Target},
    ticket::TicketKey,
};
use serde_json::json;

use super::{
    assert_refused, assert_refused_answer,
    back_end::{BackEnd, Question, Reply, allow, hook, refuse},
};
use crate::{
    client::{Received, SUBPROTOCOL, Session},
    server::{Server, within},
};

/// Refuses the channels below `closed`, and every pattern.
fn decide(question: &Question) -> Reply {
    let channel = question.json()["channel"].as_str().expect("a channel").to_owned();
    if channel.starts_with("closed") || channel.contains(['+', '#']) { refuse() } else { allow() }
}

#[tokio::test]
async fn refusal_is_the_same_on_every_transport() {
    let back_end = BackEnd::start(decide).await;
    let server = Server::with(|config| hook(config, &back_end, &["subscribe"]));
    let (json, sse, ndjson) = ("application/json", "text/event-stream", "application/x-ndjson");
    let requests = [
        ("/v1/channels/closed/a", json, "polling"),
        ("/v1/channels/closed/a?since=earliest", json, "polling"),
        ("/v1/channels/closed/a?wait=30", json, "long-polling"),
        ("/v1/channels/closed/a", "application/xml", "polling"),
        ("/v1/channels/closed/a", sse, "sse"),
        ("/v1/channels/closed/a", ndjson, "stream"),
        ("/v1/stream?channel=open&channel=closed/a", json, "polling"),
        ("/v1/stream?channel=closed/a", sse, "sse"),
        ("/v1/stream?channel=closed/a", ndjson, "stream"),
        // A range of history is a read, too.
        ("/v1/channels/closed/a?since=earliest&until=now", json, "polling"),
        ("/v1/channels/closed/a?since=earliest&until=now", ndjson, "stream"),
    ];
    for (path, accept, transport) in requests {
        assert_refused_answer(&server.get_with(path, &[("accept", accept)]).await);
        let asked = back_end.asked("subscribe");
        let asked = asked.iter().rfind(|question| question["channel"] == "closed/a").expect("a question");
        assert_eq!(asked["transport"], transport, "{path} {accept}");
    }
    for path in ["/rest/clientpolling/7/sensordata", "/rest/longpolling/7/sensordata"] {
        back_end.answer(|_| refuse());
        assert_refused_answer(&server.get_with(path, &[("accept", json)]).await);
        back_end.answer(decide);
    }
    for subprotocol in [None, Some(SUBPROTOCOL)] {
        let mut headers = vec![
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        headers.extend(subprotocol.map(|name| ("sec-websocket-protocol", name)));
        assert_refused_answer(&server.get_with("/v1/channels/closed/a", &headers).await);
    }
    for mut session in [Session::open(&server).await, Session::open_data_channel(&server, None).await] {
        for channel in ["closed/a", "open/+", "#"] {
            assert_refused(&session.command("subscribe", json!({ "channel": channel })).await.expect_err(channel));
        }
        let history = json!({ "channel": "closed/a", "since": "earliest" });
        assert_refused(&session.command("history", history).await.expect_err("a refusal"));
        session.command("subscribe", json!({ "channel": "open" })).await.expect("a subscription");
    }
}

#[tokio::test]
async fn pattern_over_all_namespaces_asks_every_back_end() {
    let [all, own] = [BackEnd::start(|_| allow()).await, BackEnd::start(|_| refuse()).await];
    let server = Server::with(|config| {
        hook(config, &all, &["subscribe"]);
        config.namespaces.entry("private".into()).or_default().hooks.subscribe = Some(own.url("/private"));
    });
    let mut session = Session::open(&server).await;
    for pattern in ["#", "+/a", "private/+"] {
        let error = session.command("subscribe", json!({ "channel": pattern })).await.expect_err(pattern);
        assert_refused(&error);
    }
    session.command("subscribe", json!({ "channel": "public/+" })).await.expect("a subscription");
    own.answer(|_| allow());
    session.command("subscribe", json!({ "channel": "#" })).await.expect("a subscription");
}

#[tokio::test]
async fn resume_ticket_grants_no_channel_that_the_back_end_refuses() {
    let cluster = "a secret of the cluster";
    let back_end = BackEnd::start(decide).await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["subscribe"]);
        config.server.secret = cluster.into();
    });
    let target = Target::Channel(ChannelName::parse("closed/a").expect("a name"));
    let subscription = Subscription { target, since: Since::Now, positions: Default::default(), policy: Policy::Every };
    let until_ms = 1000 * (millrace_transport::access::unix_s() + 60);
    let ticket = TicketKey::new(cluster.as_bytes()).sign(&[subscription], None, until_ms).expect("a ticket");
    let offers = format!("{SUBPROTOCOL}, resume.{ticket}");
    let mut session = Session::open_offering(&server, "/v1/connect", &offers).await;
    assert_refused(&session.reply(0).await.expect_err("a refusal"));
    assert_eq!(within(session.receive()).await, Received::Closed(Some(1013)));
    assert_eq!(server.presence("closed/a").await, 0);
}

#[tokio::test]
async fn subscription_starts_after_the_answer() {
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let waiting = gate.clone();
    let back_end = BackEnd::start(move |_| Reply::When(waiting.clone(), json!({ "allow": true }))).await;
    let server = Server::with(|config| hook(config, &back_end, &["subscribe"]));
    let mut session = Session::open(&server).await;
    session.send_text(r#"{"id":1,"subscribe":{"channel":"a"}}"#).await;
    back_end.await_asked(1).await;
    server.publish("a", "\"before\"").await;
    gate.add_permits(1);
    session.reply(1).await.expect("a subscription");
    server.publish("a", "\"after\"").await;
    assert_eq!(within(session.push()).await["data"], "after");
}
