//! The roster of a channel: who is a member, and how every transport reads it, in cleartext and over TLS.

#![allow(clippy::unwrap_used, reason = "tests, though called by others")]

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use millrace_server::{auth::SigningKey, config::Secret};
use serde_json::{Value, json};

use crate::{
    client::{Http, Item, Message, ReadOptions, Reader, ReaderKind, Session},
    contract::promises,
    server::{Server, until, within},
};

promises! {
    every_transport_reads_the_roster_then_its_changes,
    a_reader_on_every_transport_is_a_member,
    connections_of_one_member_are_counted,
    members_are_read_page_by_page,
    a_roster_needs_presence_and_is_never_published_to,
    patterns_match_a_roster_only_by_its_name,
}

pub const SECRET: &str = "a secret of thirty-two bytes or more";

fn server() -> Server {
    server_with(|_| {})
}

fn server_with(change: impl FnOnce(&mut millrace_server::Config)) -> Server {
    Server::with(|config| {
        let namespace = config.namespaces.entry("chat".into()).or_default();
        (namespace.roster, namespace.roster_grace) = (Some(true), Some(Duration::from_millis(50)));
        change(config);
    })
}

/// Number of connections per member.
type Members = BTreeMap<String, u64>;

fn apply(members: &mut Members, message: Message) {
    let key = message.key.expect("an entry has a key");
    if message.deleted {
        members.remove(&key);
        return;
    }
    let entry: Value = serde_json::from_str(&message.data.into_text()).expect("an entry is JSON");
    let connections = entry["connections"].as_u64().unwrap();
    assert!(connections > 0 && entry["since_ms"].as_u64() > Some(0), "{entry}");
    members.insert(key, connections);
}

/// Applies what the reader receives until it has exactly these members. Panics at a gap.
async fn read_until(reader: &mut Reader, seen: &mut Members, expected: &Members) {
    while seen != expected {
        match reader.next_of_all().await {
            Item::Message(message) => apply(seen, message),
            Item::StateEnd { .. } | Item::At(_) | Item::Heartbeat => {}
            other => panic!("{:?}: {other:?}", reader.way),
        }
    }
}

async fn members(server: &Server, channel: &str) -> Members {
    let page = server.get(&format!("/v1/presence/{channel}?members&limit=1000")).await.json();
    let of = |member: &Value| Some((member["id"].as_str()?.to_owned(), member["connections"].as_u64()?));
    page["members"].as_array().unwrap_or_else(|| panic!("{page}")).iter().filter_map(of).collect()
}

async fn await_members(server: &Server, channel: &str, expected: &Members) {
    until(&format!("members of {channel} are {expected:?}"), async || members(server, channel).await == *expected)
        .await;
}

/// Opens a session that reads a channel. Returns it with its member id.
async fn member(server: &Server, channel: &str) -> (Session, String) {
    let mut session = Session::open(server).await;
    let id = session.connected["connection"].as_str().expect("the id of the connection").to_owned();
    session.command("subscribe", json!({ "channel": channel })).await.unwrap();
    (session, id)
}

async fn every_transport_reads_the_roster_then_its_changes() {
    let server = server();
    let (first, first_id) = member(&server, "chat/1").await;
    let (_second, second_id) = member(&server, "chat/1").await;
    let both: Members = [(first_id.clone(), 1), (second_id.clone(), 1)].into();
    await_members(&server, "chat/1", &both).await;
    let ask = ReadOptions::one("chat/1/:members").since("state");
    let mut readers = Vec::new();
    for kind in ReaderKind::all().filter(|kind| *kind != ReaderKind::Bare) {
        readers.push((Reader::open(kind, &server, &ask).await, Members::new()));
    }
    for (reader, seen) in &mut readers {
        read_until(reader, seen, &both).await;
    }
    drop(first);
    let (_third, third_id) = member(&server, "chat/1").await;
    let rest: Members = [(second_id, 1), (third_id, 1)].into();
    for (reader, seen) in &mut readers {
        read_until(reader, seen, &rest).await;
    }
    await_members(&server, "chat/1", &rest).await;
}

async fn a_reader_on_every_transport_is_a_member() {
    let server = server();
    let streams =
        || ReaderKind::all().filter(|kind| !matches!(kind, ReaderKind::Polling(_) | ReaderKind::LongPolling(_)));
    let mut readers = Vec::new();
    for kind in streams() {
        readers.push(Reader::open(kind, &server, &ReadOptions::one("chat/all")).await);
    }
    // A poll without a subject cannot be connected with the next one, so it is no member.
    readers.push(Reader::open(ReaderKind::LongPolling(Http::One), &server, &ReadOptions::one("chat/all")).await);
    let count = streams().count();
    until("all are members", async || members(&server, "chat/all").await.len() == count).await;
    assert!(members(&server, "chat/all").await.values().all(|connections| *connections == 1));
    drop(readers);
    await_members(&server, "chat/all", &Members::new()).await;
}

pub fn token(subject: &str, permissions: &[(&str, &str)]) -> String {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let granted: serde_json::Map<String, Value> =
        permissions.iter().map(|(permission, pattern)| ((*permission).to_owned(), json!([pattern]))).collect();
    let claims = json!({ "sub": subject, "exp": now_s + 60, "millrace": granted, "millrace_info": { "name": "Ann" } });
    SigningKey::parse(SECRET.as_bytes()).unwrap().sign(&claims, None).unwrap()
}

async fn connections_of_one_member_are_counted() {
    let server = server_with(|config| config.auth.secret = Secret::from(SECRET));
    let ann = token("ann", &[("subscribe", "chat/#"), ("presence", "chat/#")]);
    let offer = format!("millrace.v1+json, bearer.{ann}");
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let mut session = Session::open_offering(&server, "/v1/connect", &offer).await;
        session.command("subscribe", json!({ "channel": "chat/2" })).await.unwrap();
        sessions.push(session);
    }
    let bearer = format!("Bearer {ann}");
    let headers = [("authorization", bearer.as_str())];
    let page = async || server.get_with("/v1/presence/chat/2?members", &headers).await.json();
    let connections = async || page().await["members"][0]["connections"].as_u64();
    until("two connections", async || connections().await == Some(2)).await;
    let found = page().await;
    let ann = &found["members"][0];
    assert_eq!((&ann["id"], &ann["info"]), (&json!("ann"), &json!({ "name": "Ann" })), "{found}");
    assert_eq!(found["members"].as_array().map(Vec::len), Some(1), "{found}");
    // A waiting poll of the subject is a connection, too.
    let poll = server.http.get(server.url("/v1/channels/chat/2?since=now&wait=30")).bearer_auth(&headers[0].1[7..]);
    let poll = tokio::spawn(poll.send());
    until("three connections", async || connections().await == Some(3)).await;
    poll.abort();
    sessions.clear();
    until("no member", async || page().await["members"] == json!([])).await;
}

async fn members_are_read_page_by_page() {
    let server = server();
    let mut sessions = Vec::new();
    for _ in 0..7 {
        sessions.push(member(&server, "chat/pages").await);
    }
    let all: Members = sessions.iter().map(|(_, id)| (id.clone(), 1)).collect();
    await_members(&server, "chat/pages", &all).await;
    let (mut found, mut path) = (Members::new(), "/v1/presence/chat/pages?members&limit=3".to_owned());
    let position = loop {
        let answer = server.get(&path).await;
        let page = answer.json();
        assert_eq!((&page["channel"], &page["count"]), (&json!("chat/pages"), &json!(7)), "{page}");
        let members = page["members"].as_array().unwrap();
        assert!(members.len() <= 3, "{page}");
        found.extend(
            members
                .iter()
                .map(|member| (member["id"].as_str().unwrap().to_owned(), member["connections"].as_u64().unwrap())),
        );
        assert_eq!(answer.position(), page["position"]);
        let Some(next) = page["next"].as_str() else { break page["position"].as_str().unwrap().to_owned() };
        path = format!("/v1/presence/chat/pages?members&limit=3&after={next}");
    };
    assert_eq!(found, all);
    // The changes begin at the position of the last page.
    let mut reader =
        Reader::open(ReaderKind::Session, &server, &ReadOptions::one("chat/pages/:members").since(&position)).await;
    let (left, left_id) = sessions.pop().unwrap();
    drop(left);
    let message = reader.message().await;
    assert_eq!((message.key, message.deleted), (Some(left_id), true));
    // A session reads the same pages.
    let mut session = Session::open(&server).await;
    let ask = json!({ "channel": "chat/pages", "members": true, "limit": 4 });
    let page = session.command("presence", ask).await.unwrap();
    assert_eq!((page["members"].as_array().map(Vec::len), page.get("channel")), (Some(4), None), "{page}");
    let next = page["next"].as_str().unwrap();
    let ask = json!({ "channel": "chat/pages", "members": true, "after": next });
    let rest = session.command("presence", ask).await.unwrap();
    assert_eq!((rest["members"].as_array().map(Vec::len), rest.get("next")), (Some(2), None), "{rest}");
    for (ask, code) in [
        (json!({ "channel": "chat/pages", "members": true, "after": "state:1" }), "bad_position"),
        (json!({ "channel": "chat/pages", "members": true, "limit": 0 }), "bad_request"),
        (json!({ "channel": "chat/pages", "limit": 5 }), "bad_request"),
        (json!({ "channel": "news", "members": true }), "bad_request"),
    ] {
        assert_eq!(session.command("presence", ask.clone()).await.unwrap_err()["code"], code, "{ask}");
    }
    for (query, status, code) in [
        ("members&after=x", 400, "bad_position"),
        ("members&after=5f0c12ab:1", 400, "bad_position"),
        ("members&after=state:5f0c12ab:1", 400, "bad_position"),
        ("members&limit=0", 400, "bad_request"),
        ("members&limit=1001", 400, "bad_request"),
        ("members&limit=x", 400, "bad_request"),
        ("members=yes", 400, "bad_request"),
        ("limit=5", 400, "bad_request"),
        ("after=state:1:2:3", 400, "bad_request"),
    ] {
        server.get(&format!("/v1/presence/chat/pages?{query}")).await.assert_problem(status, code);
    }
    let detail = server.get("/v1/presence/news?members").await.assert_problem(400, "bad_request");
    assert!(detail.contains("roster = true"), "{detail}");
    // A token that was made up begins the roster anew.
    let page = server.get("/v1/presence/chat/pages?members&after=state:ffffffff:9:9").await.json();
    assert_eq!((&page["restart"], page["members"].as_array().map(Vec::len)), (&json!(true), Some(6)), "{page}");
}

async fn a_roster_needs_presence_and_is_never_published_to() {
    let server = server_with(|config| config.auth.secret = Secret::from(SECRET));
    let reads = token("ann", &[("subscribe", "#"), ("history", "#"), ("publish", "#")]);
    let present = token("bob", &[("presence", "chat/#"), ("publish", "#")]);
    let path = "/v1/channels/chat/3/:members";
    let get = async |token: &str, path: &str| {
        let bearer = format!("Bearer {token}");
        server.get_with(path, &[("authorization", &bearer)]).await
    };
    for path in [path.to_owned(), format!("{path}?since=state"), "/v1/presence/chat/3?members".into()] {
        get(&reads, &path).await.assert_problem(403, "forbidden");
        let status = get(&present, &path).await.status;
        assert!(status == 200 || status == 204, "{path}: {status}");
    }
    for token in [&reads, &present] {
        let bearer = format!("Bearer {token}");
        let answer = server.post(path, &[("authorization", &bearer), ("millrace-key", "eve")], "{}").await;
        answer.assert_problem(403, "forbidden");
    }
    let offer = format!("millrace.v1+json, bearer.{reads}");
    let mut session = Session::open_offering(&server, "/v1/connect", &offer).await;
    for channel in ["chat/3/:members", "chat/+/:members"] {
        let refused = session.command("subscribe", json!({ "channel": channel })).await.unwrap_err();
        assert_eq!(refused["code"], "forbidden", "{channel}");
    }
}

async fn patterns_match_a_roster_only_by_its_name() {
    let server = server();
    let mut everything = Session::open(&server).await;
    everything.command("subscribe", json!({ "channel": "#" })).await.unwrap();
    let mut rosters = Session::open(&server).await;
    rosters.command("subscribe", json!({ "channel": "chat/+/:members" })).await.unwrap();
    let (left, id) = member(&server, "chat/4").await;
    let joined = rosters.push().await;
    assert_eq!((&joined["channel"], &joined["key"]), (&json!("chat/4/:members"), &json!(id)), "{joined}");
    server.publish("chat/4", "\"after\"").await;
    let first = within(everything.receive()).await;
    assert!(format!("{first:?}").contains("after"), "the pattern `#` does not match rosters: {first:?}");
    drop(left);
    // The publication has made the reader of `#` a member, too.
    let mut change = rosters.push().await;
    while change["key"] != id {
        assert_eq!(change["channel"], "chat/4/:members", "nothing else matches: {change}");
        change = rosters.push().await;
    }
    assert_eq!(change["deleted"], true, "{change}");
}
