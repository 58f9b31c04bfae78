//! Draining a server: each reader leaves at its own moment, and a session gets a ticket that another server accepts.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use millrace_protocol::{
    ChannelName, Since,
    session::{Policy, Subscription, Target},
    ticket::TicketKey,
};
use millrace_server::{Config, config::Secret};
use serde_json::{Value, json};

use crate::{
    client::{Item, ReadOptions, Reader, ReaderKind, Received, SUBPROTOCOL, Session},
    server::{Answer, Server, client, until, within},
};

const SECRET: &str = "a secret of the cluster";

fn cluster(config: &mut Config) {
    config.server.secret = Secret::from(SECRET);
    config.drain.window = Duration::from_millis(100);
}

fn subscription(channel: &str, since: Since, positions: &[(&str, &str)]) -> Subscription {
    let position =
        |(name, at): &(&str, &str)| (ChannelName::parse(name).expect("a name"), at.parse().expect("a position"));
    let positions: HashMap<_, _> = positions.iter().map(position).collect();
    Subscription { target: Target::parse(channel).expect("a name"), since, positions, policy: Policy::Every }
}

async fn resume(server: &Server, ticket: &str) -> Session {
    Session::open_offering(server, "/v1/connect", &format!("{SUBPROTOCOL}, resume.{ticket}")).await
}

/// Returns the drain push; skips other pushes.
async fn drain_push(session: &mut Session) -> Value {
    loop {
        let push = session.push().await;
        if push["push"] == "drain" {
            return push;
        }
    }
}

#[tokio::test]
async fn ticket_resumes_on_another_server() {
    let (one, other) = (Server::with(cluster), Server::with(cluster));
    let mut session = Session::open(&one).await;
    let mut positions = HashMap::new();
    for channel in ["a", "b"] {
        session.subscribe(channel, "now", "latest").await;
    }
    session.command("subscribe", json!({ "channel": "cars/+", "since": "now" })).await.unwrap();
    for channel in ["a", "b", "cars/1"] {
        positions.insert(channel, one.publish(channel, "1").await);
        assert_eq!(session.push().await["position"], positions[channel]);
    }
    let drained = tokio::spawn(one.drain());
    let push = drain_push(&mut session).await;
    assert!(push["after_ms"].as_u64().is_some_and(|ms| ms < 100), "{push}");
    let ticket = push["resume"].as_str().expect("a ticket");

    other.publish("cars/1", "2").await;
    let mut session = resume(&other, ticket).await;
    assert_eq!(session.connected["resumed"], json!(["a", "b", "cars/+"]));
    // Each of these nodes has its own memory engine, so resuming from a position of another node reports a gap.
    for channel in ["a", "b"] {
        let ok = session.reply(0).await.unwrap();
        assert_eq!((&ok["channel"], &ok["recovered"]), (&json!(channel), &json!(false)));
        let gap = session.push().await;
        assert_eq!(
            (&gap["push"], &gap["channel"], &gap["from"]),
            (&json!("gap"), &json!(channel), &json!(positions[channel]))
        );
    }
    assert_eq!(session.reply(0).await.unwrap()["channel"], "cars/+");
    assert_eq!(session.push().await["from"], positions["cars/1"]);
    assert_eq!(session.push().await["data"], 2);
    // The resumed session behaves like any other: it is already subscribed to the resumed channels.
    let twice = session.command("subscribe", json!({ "channel": "a" })).await.unwrap_err();
    assert_eq!(twice["code"], "already_subscribed");
    other.publish("b", "3").await;
    assert_eq!(session.push().await["data"], 3);
    within(drained).await.unwrap();
}

#[tokio::test]
async fn ticket_resumes_without_duplicates() {
    let server = Server::with(cluster);
    let last = server.publish_all("a", (1..=5).map(|n| json!(n))).await;
    server.publish("cars/1", "6").await;
    let fifth = server.publish("cars/2", "7").await;
    let (third, now_ms) = (last.replace(":5", ":3"), 4_000_000_000_000);
    let read = [
        subscription("a", Since::Position(third.parse().unwrap()), &[]),
        subscription("cars/+", Since::Time(0), &[("cars/2", &fifth)]),
    ];
    let ticket = TicketKey::new(SECRET.as_bytes()).sign(&read, None, now_ms).unwrap();
    let mut session = resume(&server, &ticket).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let data = loop {
            match within(session.receive()).await {
                Received::Push(push) => break push["data"].clone(),
                Received::Reply(reply) => assert_eq!(reply["id"], 0, "{reply}"),
                other => panic!("{other:?}"),
            }
        };
        seen.push(data);
    }
    assert_eq!(seen, [4, 5, 6]);
    server.publish("cars/2", "8").await;
    assert_eq!(session.push().await["data"], 8);
}

#[tokio::test]
async fn bad_ticket_is_reported_and_session_continues() {
    let server = Server::with(cluster);
    let position = server.publish("a", "1").await;
    let read = [subscription("a", Since::Position(position.parse().unwrap()), &[])];
    let sign = |secret: &str, until_ms| TicketKey::new(secret.as_bytes()).sign(&read, None, until_ms).unwrap();
    let later = 4_000_000_000_000;
    for (ticket, why) in [
        (sign(SECRET, 1000), "expired"),
        (sign("of another cluster", later), "another secret"),
        ("garbage".into(), "no resume ticket"),
        (String::new(), "no resume ticket"),
    ] {
        let mut session = resume(&server, &ticket).await;
        assert_eq!(session.connected["resumed"], json!([]), "{why}");
        let error = session.reply(0).await.unwrap_err();
        assert_eq!((&error["code"], &error["retry"]), (&json!("bad_ticket"), &json!(false)));
        assert!(error["detail"].as_str().is_some_and(|detail| detail.contains(why)), "{error}");
        assert_eq!(session.subscribe("a", &position, "every").await, position);
    }
    assert!(!Session::open(&server).await.connected.as_object().unwrap().contains_key("resumed"));
}

#[tokio::test]
async fn drain_times_are_spread_over_window() {
    let window = Duration::from_millis(2000);
    let server = Server::with(|config| (config.drain.window, config.server.shards) = (window, 1));
    let mut readers = Vec::new();
    for _ in 0..20 {
        readers.push(Session::open(&server).await);
    }
    let (mut bare, mut held) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        bare.push(Reader::open(ReaderKind::Bare, &server, &ReadOptions::one("bare")).await);
        held.push(tokio::spawn(client(false).get(server.url("/v1/channels/held?wait=60")).send()));
    }
    server.await_presence("bare", 10).await;
    server.await_presence("held", 10).await;
    let ready = server.url("/readyz");
    let http = client(false);
    let started = Instant::now();
    let drained = tokio::spawn(server.drain());
    let mut told = Vec::new();
    for session in &mut readers {
        told.push(drain_push(session).await["after_ms"].as_u64().unwrap());
    }
    told.sort_unstable();
    // The window has 40 slots of 50 ms. Each of the 20 sessions gets a slot of its own.
    assert!(told.windows(2).all(|two| two[0] / 50 < two[1] / 50), "{told:?}");
    assert!(told[19] < 2000, "{told:?}");
    let closed = join_all(bare.iter_mut().map(async |reader| {
        assert_eq!(reader.next().await, Item::End(Some(1012)));
        started.elapsed()
    }));
    let answered = join_all(held.into_iter().map(async |answer| {
        let answer = Answer::read(within(answer).await.unwrap().unwrap()).await;
        assert_eq!(answer.status, 204, "{answer:?}");
        started.elapsed()
    }));
    let (closed, answered) = tokio::join!(closed, answered);
    for mut at in [closed, answered] {
        at.sort_unstable();
        assert!(at[9] - at[0] > window / 8, "not all at once: {at:?}");
    }
    within(drained).await.unwrap();
    until("nobody listens any more", async || http.get(&ready).send().await.is_err()).await;
}
