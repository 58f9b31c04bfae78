//! The promises of keyed states, over every transport, in cleartext and over TLS.

#![allow(clippy::unwrap_used, reason = "tests, though called by others")]

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    client::{Item, Message, ReadOptions, Reader, ReaderKind, SUBPROTOCOL, Session, after, parts},
    contract::promises,
    server::{Answer, Server, within},
};

promises! {
    a_reader_of_a_state_receives_every_key_then_the_changes,
    a_reader_of_a_state_that_history_has_left_receives_it_again,
    a_state_is_read_page_by_page,
    a_condition_is_checked_on_every_path,
    several_states_are_read_at_once,
}

/// Key and payload of each entry.
type Map = BTreeMap<String, String>;

/// Starts a server whose channels `s/..` are states with a log of five publications.
fn server() -> Server {
    Server::with(|config| {
        let namespace = config.namespaces.entry("s".into()).or_default();
        (namespace.state, namespace.count_max) = (Some(true), Some(5));
    })
}

async fn put(server: &Server, channel: &str, key: &str, data: &str) -> String {
    server.publish_with(channel, &[("millrace-key", key), ("content-type", "text/plain")], data.to_owned()).await
}

async fn delete_with(server: &Server, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = server.http.request(Method::DELETE, server.url(path));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::read(within(request.send()).await.unwrap()).await
}

async fn delete(server: &Server, channel: &str, key: &str) -> String {
    let answer = delete_with(server, &format!("/v1/channels/{channel}?key={key}"), &[]).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let position = answer.json()["position"].as_str().unwrap().to_owned();
    assert_eq!(answer.position(), position);
    position
}

fn apply(map: &mut Map, message: Message) {
    let key = message.key.expect("a publication of a state has a key");
    match message.deleted {
        true => drop(map.remove(&key)),
        false => drop(map.insert(key, message.data.into_text())),
    }
}

/// Every kind of reader that can read a state.
fn kinds() -> impl Iterator<Item = ReaderKind> {
    ReaderKind::all().filter(|kind| *kind != ReaderKind::Bare)
}

fn is_poll(kind: ReaderKind) -> bool {
    matches!(kind, ReaderKind::Polling(_) | ReaderKind::LongPolling(_))
}

/// Reads the state of a channel up to its end. Panics at a gap.
async fn read_state(reader: &mut Reader) -> Map {
    let mut map = Map::new();
    loop {
        match reader.next_of_all().await {
            Item::Message(message) => apply(&mut map, message),
            Item::StateEnd { .. } => return map,
            // A poll has the whole state when its position no longer lies inside the state.
            Item::At(_) if is_poll(reader.way) && !reader.position().unwrap().starts_with("state") => return map,
            Item::At(_) | Item::Heartbeat => {}
            other => panic!("{:?}: {other:?} inside a state", reader.way),
        }
    }
}

/// Publishes 250 keys, more than a page of a poll, and deletes one of ten.
async fn fill(server: &Server, channel: &str) -> (Map, String) {
    let line = |i: u32| json!({ "channel": channel, "key": format!("k{i}"), "data": format!("{i}") }).to_string();
    let lines: Vec<_> = (0..250).map(line).collect();
    let answer = server.post("/v1/publish", &[], lines.join("\n")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let line = |i: u32| json!({ "channel": channel, "key": format!("k{}", 10 * i), "delete": true }).to_string();
    let lines: Vec<_> = (0..25).map(line).collect();
    let answer = server.post("/v1/publish", &[], lines.join("\n")).await.json();
    let last = answer["results"][24]["position"].as_str().unwrap().to_owned();
    let map = (0..250).filter(|i| i % 10 > 0).map(|i| (format!("k{i}"), i.to_string())).collect();
    (map, last)
}

async fn a_reader_of_a_state_receives_every_key_then_the_changes() {
    let server = server();
    let (map, _) = fill(&server, "s/a").await;
    let ask = ReadOptions::one("s/a").since("state");
    let mut readers = Vec::new();
    for kind in kinds() {
        let mut reader = Reader::open(kind, &server, &ask).await;
        assert_eq!(read_state(&mut reader).await, map, "{kind:?}");
        readers.push(reader);
    }
    let empty = ReadOptions::one("s/empty").since("state");
    let mut late = Vec::new();
    for kind in kinds() {
        let mut reader = Reader::open(kind, &server, &empty).await;
        if !is_poll(kind) {
            assert_eq!(read_state(&mut reader).await, Map::new(), "{kind:?}: an empty state has an end, too");
        }
        late.push(reader);
    }
    put(&server, "s/a", "k1", "new").await;
    let last = delete(&server, "s/a", "k2").await;
    put(&server, "s/empty", "first", "1").await;
    for reader in &mut readers {
        let changed = reader.message().await;
        assert_eq!(
            (changed.key.as_deref(), changed.data.into_text().as_str()),
            (Some("k1"), "new"),
            "{:?}",
            reader.way
        );
        let deleted = reader.message().await;
        assert_eq!((deleted.key.as_deref(), deleted.deleted), (Some("k2"), true), "{:?}", reader.way);
        assert_eq!(deleted.position.as_deref(), Some(last.as_str()), "{:?}", reader.way);
    }
    for reader in &mut late {
        assert_eq!(reader.message().await.key.as_deref(), Some("first"), "{:?}", reader.way);
    }
}

async fn a_reader_of_a_state_that_history_has_left_receives_it_again() {
    let server = server();
    let (map, last) = fill(&server, "s/a").await;
    let (epoch, _) = parts(&last);
    // Within reach of the log, a reader gets the changes only.
    let ask = ReadOptions::one("s/a").since(format!("state:{epoch}:273"));
    for kind in kinds() {
        let mut reader = Reader::open(kind, &server, &ask).await;
        let deleted = reader.message().await;
        assert_eq!((deleted.deleted, deleted.position), (true, Some(format!("{epoch}:274"))), "{kind:?}");
    }
    let other = format!("{:08x}", u32::from_str_radix(epoch, 16).unwrap() ^ 1);
    for from in [format!("{epoch}:3"), format!("{other}:3")] {
        for since in [format!("state:{from}"), format!("state:{from}:9")] {
            for kind in kinds() {
                let mut reader = Reader::open(kind, &server, &ReadOptions::one("s/a").since(&since)).await;
                let gap = reader.gap().await;
                assert_eq!((gap.from, gap.to), (Some(from.clone()), format!("{epoch}:0")), "{kind:?} since {since}");
                assert_eq!(read_state(&mut reader).await, map, "{kind:?} since {since}");
            }
        }
    }
    // An `EventSource` keeps its URL, and sends its last position as `Last-Event-ID`.
    let ask = ReadOptions::one("s/a").since("state").resume(format!("{epoch}:3"));
    for kind in kinds().filter(|kind| matches!(kind, ReaderKind::Sse(_))) {
        let mut reader = Reader::open(kind, &server, &ask).await;
        assert_eq!(reader.gap().await.to, format!("{epoch}:0"), "{kind:?}");
        assert_eq!(read_state(&mut reader).await, map, "{kind:?}");
    }
}

async fn a_state_is_read_page_by_page() {
    let server = server();
    let (map, last) = fill(&server, "s/a").await;
    let (mut read, mut path, mut pages) = (Map::new(), "/v1/channels/s/a?state&limit=100".to_owned(), 0);
    let end = loop {
        let page = server.get(&path).await;
        let body = page.json();
        assert_eq!((page.status.as_u16(), body["position"].as_str().unwrap()), (200, page.position()));
        let messages = body["messages"].as_array().unwrap();
        messages.iter().for_each(|message| apply(&mut read, Message::from_envelope(message, "s/a")));
        pages += 1;
        match body["next"].as_str() {
            Some(next) => path = format!("/v1/channels/s/a?state&limit=100&after={next}"),
            None => break page.position().to_owned(),
        }
    };
    assert_eq!((pages, &end, &read), (3, &last, &map));
    let change = put(&server, "s/a", "k1", "new").await;
    let changes = server.get(&format!("/v1/channels/s/a?since={end}")).await.json();
    assert_eq!((&changes["messages"][0]["position"], &changes["gap"]), (&json!(change), &Value::Null));
    let empty = server.get("/v1/channels/s/empty?state").await;
    assert_eq!((empty.status.as_u16(), &empty.json()["messages"]), (200, &json!([])));

    let first = server.get("/v1/channels/s/a?state&limit=2").await.json();
    let next = first["next"].as_str().unwrap();
    delete(&server, "s/a", "k3").await;
    for i in 0..5 {
        put(&server, "s/a", "k4", &i.to_string()).await;
    }
    let again = server.get(&format!("/v1/channels/s/a?state&limit=2&after={next}")).await.json();
    assert_eq!((&again["restart"], again["messages"].as_array().unwrap().len()), (&json!(true), 2), "{again}");

    let xml = server.get_with("/v1/channels/s/a?state&limit=2", &[("accept", "application/xml")]).await.text();
    assert!(
        xml.contains(" next=\"state:") && xml.contains("key=\"k2\"") && xml.ends_with("</message></answer>"),
        "{xml}"
    );
    delete(&server, "s/a", "k5").await;
    let log = server.get_with("/v1/channels/s/a", &[("accept", "application/xml")]).await.text();
    assert!(log.contains("key=\"k5\" deleted=\"true\"></message>"), "{log}");
}

/// The paths on which a client publishes with a condition. Each returns the position or the code and the detail.
async fn publish_on(path: usize, server: &Server, new: &Value) -> Result<String, (String, String)> {
    let of_error = |error: &Value| {
        assert_eq!(error["retry"], false, "{error}");
        (error["code"].as_str().unwrap().to_owned(), error["detail"].as_str().unwrap().to_owned())
    };
    let session = async |mut session: Session| match session.command("publish", new.clone()).await {
        Ok(ok) => Ok(ok["position"].as_str().unwrap().to_owned()),
        Err(error) => Err(of_error(&error)),
    };
    let answer = match path {
        0 => {
            let text = |name: &str| new[name].as_str().map(str::to_owned);
            let url = format!("/v1/channels/{}", text("channel").unwrap());
            let condition = text("if_match");
            let mut headers: Vec<(&str, &str)> =
                condition.iter().map(|position| ("if-match", position.as_str())).collect();
            let key = text("key").unwrap();
            match new["delete"].as_bool() {
                Some(true) => delete_with(server, &format!("{url}?key={key}"), &headers).await,
                _ => {
                    headers.push(("millrace-key", &key));
                    server.post(&url, &headers, new["data"].to_string()).await
                }
            }
        }
        1 => {
            let results = server.post("/v1/publish", &[], new.to_string()).await.json();
            let result = &results["results"][0];
            return match result["position"].as_str() {
                Some(position) => Ok(position.to_owned()),
                None => Err(of_error(&result["error"])),
            };
        }
        2 => return session(Session::open(server).await).await,
        _ => return session(Session::open_data_channel(server, None).await).await,
    };
    match answer.status.as_u16() {
        200 => Ok(answer.position().to_owned()),
        status => {
            let code = answer.json()["code"].as_str().unwrap().to_owned();
            let detail = answer.assert_problem(status, &code);
            assert_eq!(status == 412, code == "precondition_failed");
            Err((code, detail))
        }
    }
}

async fn a_condition_is_checked_on_every_path() {
    let server = server();
    for path in 0..4 {
        let channel = format!("s/{path}");
        let publish = async |more: Value| {
            let mut new = json!({ "channel": channel, "key": "k" });
            new.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            publish_on(path, &server, &new).await
        };
        let first = publish(json!({ "data": 1, "if_match": "0" })).await.unwrap();
        let (code, detail) = publish(json!({ "data": 2, "if_match": "0" })).await.unwrap_err();
        assert!(code == "precondition_failed" && detail.contains(&first), "{path}: {detail}");
        let second = publish(json!({ "data": 2, "if_match": format!("\"{first}\"") })).await.unwrap();
        let (code, detail) = publish(json!({ "delete": true, "if_match": first })).await.unwrap_err();
        assert!(code == "precondition_failed" && detail.contains(&second), "{path}: {detail}");
        let gone = publish(json!({ "delete": true, "if_match": second })).await.unwrap();
        assert_eq!(gone, after(&first, 2), "{path}");
        let (code, detail) = publish(json!({ "data": 3, "if_match": gone })).await.unwrap_err();
        assert!(code == "precondition_failed" && detail.ends_with("position is 0"), "{path}: {detail}");
        assert_eq!(publish(json!({ "data": 3, "if_match": "soon" })).await.unwrap_err().0, "bad_position", "{path}");
        let plain = json!({ "channel": "plain", "key": "k", "data": 1, "if_match": "0" });
        let (code, detail) = publish_on(path, &server, &plain).await.unwrap_err();
        assert!(code == "bad_request" && detail.contains("`state = true`"), "{path}: {detail}");
        let plain = json!({ "channel": "plain", "key": "k", "delete": true });
        assert_eq!(publish_on(path, &server, &plain).await.unwrap_err().0, "bad_request", "{path}");
    }
}

async fn several_states_are_read_at_once() {
    let server = server();
    let mut maps = BTreeMap::new();
    for channel in ["s/a", "s/b"] {
        maps.insert(channel.to_owned(), fill(&server, channel).await.0);
    }
    let channels = ["s/a", "s/b", "plain"].map(str::to_owned);
    for kind in kinds() {
        let last = server.publish("plain", "old").await;
        let ask = ReadOptions::many(channels.clone()).since("state").at([("plain".to_owned(), last)].into());
        let mut reader = Reader::open(kind, &server, &ask).await;
        let (mut read, mut ends) = (BTreeMap::<String, Map>::new(), 0);
        loop {
            match reader.next_of_all().await {
                Item::Message(message) => apply(read.entry(message.channel.clone()).or_default(), message),
                Item::StateEnd { .. } => ends += 1,
                // A poll has both states when none of its positions lies inside a state.
                Item::At(places) if is_poll(kind) && places.values().all(|place| !place.starts_with("state")) => break,
                Item::At(_) | Item::Heartbeat => {}
                other => panic!("{kind:?}: {other:?}"),
            }
            if ends == 2 {
                break;
            }
        }
        assert_eq!(read, maps, "{kind:?}");
        server.publish("plain", "new").await;
        assert_eq!(reader.message().await.data.into_text(), "new", "{kind:?}");
    }
}

#[tokio::test]
async fn bare_websocket_cannot_read_a_state() {
    let server = server();
    for subprotocol in ["", "sec-websocket-protocol: millrace.bare\r\n"] {
        for query in ["since=state", "since=state:1:2", "since=state:1:2:3", "state"] {
            let mut raw = crate::client::raw::Raw::connect(&server).await;
            raw.send(
                format!(
                    "GET /v1/channels/s/a?{query} HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{subprotocol}\r\n"
                )
                .as_bytes(),
            )
            .await;
            let (head, body) = raw.answer().await;
            assert!(head.starts_with("HTTP/1.1 400") && body.contains("bad_request"), "{query}: {head} {body}");
        }
    }
    let mut session = Session::open_offering(&server, "/v1/channels/s/a?since=state", SUBPROTOCOL).await;
    assert_eq!(session.reply(0).await.unwrap()["position"], "state");
    assert_eq!(session.push().await["push"], "state");
}

#[tokio::test]
async fn bad_requests_to_a_state_are_refused() {
    let server = server();
    put(&server, "s/a", "k", "1").await;
    server.publish("plain", "1").await;
    let status = |code: &str| if code == "not_acceptable" { 406 } else { 400 };
    for (path, accept, code) in [
        ("/v1/channels/plain?state", "*/*", "bad_request"),
        ("/v1/channels/plain?since=state", "*/*", "bad_request"),
        ("/v1/channels/plain?since=state", "text/event-stream", "bad_request"),
        ("/v1/channels/plain?since=state:1:2", "application/x-ndjson", "bad_request"),
        ("/v1/stream?channel=plain@state&channel=s/a", "*/*", "bad_request"),
        ("/v1/channels/s/a?state", "text/event-stream", "not_acceptable"),
        ("/v1/channels/s/a?state", "application/x-ndjson", "not_acceptable"),
        ("/v1/channels/s/a?state&after=5", "*/*", "bad_position"),
        ("/v1/channels/s/a?after=state:1:2:3", "*/*", "bad_request"),
        ("/v1/channels/s/a?since=state&until=now", "text/event-stream", "bad_request"),
        ("/v1/channels/s/a?since=state:1:2:3:4", "*/*", "bad_position"),
    ] {
        server.get_with(path, &[("accept", accept)]).await.assert_problem(status(code), code);
    }
    server.post("/v1/channels/s/a", &[], "no key").await.assert_problem(400, "bad_request");
    server
        .post("/v1/channels/s/a", &[("millrace-key", "k"), ("if-match", "*")], "x")
        .await
        .assert_problem(400, "bad_position");
    let twice = [("millrace-key", "k"), ("if-match", "0"), ("if-match", "1:2")];
    server.post("/v1/channels/s/a", &twice, "x").await.assert_problem(400, "bad_request");
    delete_with(&server, "/v1/channels/s/a", &[]).await.assert_problem(400, "bad_request");
    delete_with(&server, "/v1/channels/s/a?key=k&more=1", &[]).await.assert_problem(400, "bad_request");
    let long = format!("/v1/channels/s/a?key={}", "k".repeat(256));
    delete_with(&server, &long, &[]).await.assert_problem(413, "too_large");
    let put = server.http.put(server.url("/v1/channels/s/a")).send().await.unwrap();
    assert_eq!((put.status().as_u16(), &put.headers()["allow"]), (405, &"GET, POST, DELETE".parse().unwrap()));
    let mut session = Session::open(&server).await;
    for (command, body) in [
        ("subscribe", json!({ "channel": "s/+", "since": "state" })),
        ("subscribe", json!({ "channel": "plain", "since": "state" })),
        ("history", json!({ "channel": "plain", "since": "state" })),
        ("history", json!({ "channel": "s/a", "since": "state", "until": "now" })),
        ("publish", json!({ "channel": "s/a", "data": 1 })),
    ] {
        assert_eq!(
            session.command(command, body.clone()).await.unwrap_err()["code"],
            "bad_request",
            "{command} {body}"
        );
    }
    let history = session.command("history", json!({ "channel": "s/a", "since": "state" })).await.unwrap();
    assert_eq!((&history["messages"][0]["key"], &history["more"]), (&json!("k"), &Value::Null));
    server.assert_well().await;
}

#[tokio::test]
async fn ordered_batch_stops_a_channel_at_the_first_failure() {
    let server = Server::with(|config| {
        let namespace = config.namespaces.entry("s".into()).or_default();
        (namespace.state, namespace.keys_max) = (Some(true), Some(1));
    });
    let line = |channel: &str, key: &str, n: u32| json!({"channel": channel, "key": key, "data": n}).to_string();
    // The second line needs a second key: the server refuses it for now. The third line would be accepted.
    let lines = [line("s/1", "a", 1), line("s/1", "b", 2), line("s/1", "a", 3), line("s/2", "a", 4)].join("\n");
    let codes = async |path: &str| {
        let answer = server.post(path, &[], lines.clone()).await.json();
        let results = answer["results"].as_array().unwrap().clone();
        results.iter().map(|result| result["error"]["code"].as_str().unwrap_or("ok").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(codes("/v1/publish?ordered").await, ["ok", "too_many", "unavailable", "ok"]);
    assert_eq!(codes("/v1/publish").await, ["ok", "too_many", "ok", "ok"]);
    server.post("/v1/publish?other", &[], lines.clone()).await.assert_problem(400, "bad_request");
}
