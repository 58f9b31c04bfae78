//! Several channels in one request or one session.

use std::collections::BTreeMap;

use serde_json::json;

use crate::{
    client::{Message, Positions, ReadOptions, Reader, ReaderKind, Session, after},
    server::{Answer, Server, within},
};

const CHANNELS: usize = 100;

fn names() -> impl Iterator<Item = String> {
    (0..CHANNELS).map(|i| format!("cars/{i}/telemetry"))
}

/// Publishes one publication in every channel.
async fn publish_round(server: &Server, round: usize) {
    let line = |name| json!({ "channel": name, "data": round }).to_string() + "\n";
    let answer = server.post("/v1/publish", &[], names().map(line).collect::<String>()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Received rounds of each channel.
type Got = BTreeMap<String, Vec<usize>>;

fn note(got: &mut Got, message: Message) {
    let round = message.data.into_text().parse().expect("a round");
    got.entry(message.channel).or_default().push(round);
}

fn rounds(range: std::ops::RangeInclusive<usize>) -> Got {
    names().map(|name| (name, range.clone().collect())).collect()
}

#[tokio::test]
async fn hundred_channels_resume_on_every_transport() {
    let server = Server::start();
    let ways: Vec<_> = ReaderKind::many().collect();
    let mut readers = Vec::new();
    for &way in &ways {
        readers.push(Reader::open(way, &server, &ReadOptions::many(names())).await);
    }
    publish_round(&server, 1).await;
    publish_round(&server, 2).await;
    for (i, mut reader) in readers.into_iter().enumerate() {
        let mut got = Got::new();
        // Cut the reader in the middle of the second round, and resume over another transport.
        for _ in 0..CHANNELS + CHANNELS / 2 {
            note(&mut got, reader.message().await);
        }
        let ask = ReadOptions::many(names()).at(reader.positions().clone());
        let (from, to) = (reader.way, ways[(i + 1) % ways.len()]);
        let mut reader = Reader::open(to, &server, &ask).await;
        for _ in 0..CHANNELS / 2 {
            note(&mut got, reader.message().await);
        }
        assert_eq!(got, rounds(1..=2), "{from:?}, then {to:?}");
    }
}

#[tokio::test]
async fn history_of_hundred_channels_precedes_live() {
    let server = Server::start();
    publish_round(&server, 1).await;
    publish_round(&server, 2).await;
    for way in ReaderKind::many() {
        let mut reader = Reader::open(way, &server, &ReadOptions::many(names()).since("earliest")).await;
        let mut got = Got::new();
        for _ in 0..2 * CHANNELS {
            note(&mut got, reader.message().await);
        }
        assert_eq!(got, rounds(1..=2), "{way:?}");
        assert_eq!(reader.positions().len(), CHANNELS, "{way:?}");
    }
}

#[tokio::test]
async fn event_id_lists_all_positions() {
    let server = Server::start();
    publish_round(&server, 1).await;
    publish_round(&server, 2).await;
    for way in ReaderKind::many().filter(|way| matches!(way, ReaderKind::Sse(_))) {
        let mut reader = Reader::open(way, &server, &ReadOptions::many(names()).since("earliest")).await;
        let mut stand: Positions = Positions::new();
        let start = reader.positions().clone();
        stand.extend(start);
        assert_eq!(stand.len(), CHANNELS, "{way:?}: the start names all");
        for _ in 0..2 * CHANNELS {
            let message = reader.message().await;
            let position = message.position.expect("a position");
            stand.insert(message.channel, position);
            let listed: Positions = message.id.expect("an id").split(',').map(entry).collect();
            assert_eq!(listed, stand, "{way:?}");
        }
    }
}

fn entry(text: &str) -> (String, String) {
    let (name, position) = text.split_once('@').expect("channel@position");
    (name.to_owned(), position.to_owned())
}

#[tokio::test]
async fn last_event_id_resumes_multi_channel_stream() {
    let server = Server::start();
    let a = server.publish_all("a", [json!(1), json!(2)]).await;
    let b = server.publish_all("b", [json!(1), json!(2)]).await;
    let list = format!("a@{a},b@{}", after(&b, 0).replace(":2", ":1"));
    let answer = server.get_with("/v1/stream?channel=a&channel=b&since=earliest", &[("last-event-id", &list)]).await;
    let body = answer.json();
    assert_eq!(body["messages"].as_array().unwrap().len(), 1, "{body}");
    assert_eq!((&body["messages"][0]["channel"], &body["messages"][0]["position"]), (&json!("b"), &json!(b)));
    assert_eq!((&body["positions"]["a"], &body["positions"]["b"]), (&json!(a), &json!(b)));
    assert_eq!(answer.position(), format!("a@{a},b@{b}"));
}

#[tokio::test]
async fn multi_channel_gap_names_channel() {
    let server = Server::start();
    let a = server.publish("a", "1").await;
    server.publish("b", "1").await;
    let lost = Positions::from([("a".to_owned(), "00000000:5".to_owned()), ("b".to_owned(), a.replace(":1", ":0"))]);
    for way in ReaderKind::many() {
        let mut reader =
            Reader::open(way, &server, &ReadOptions::many(["a".into(), "b".into()]).at(lost.clone())).await;
        let gap = reader.gap().await;
        assert_eq!((gap.channel.as_str(), gap.from.as_deref()), ("a", Some("00000000:5")), "{way:?}");
        assert_eq!(gap.to, a.replace(":1", ":0"), "{way:?}");
        let mut got = vec![reader.message().await.channel, reader.message().await.channel];
        got.sort();
        assert_eq!(got, ["a", "b"], "{way:?}");
    }
}

#[tokio::test]
async fn pattern_receives_all_matching_channels() {
    let server = Server::start();
    let mut session = Session::open(&server).await;
    for pattern in ["vans/+/telemetry", "town/#"] {
        let ok = session.command("subscribe", json!({ "channel": pattern })).await.unwrap();
        assert_eq!(ok["channel"], pattern);
    }
    let channels = [
        "vans/1/telemetry",
        "vans/1/doors",
        "vans/2/telemetry",
        "town",
        "town/a/b",
        "vans/x/y/telemetry",
        "vans/1/telemetry",
    ];
    for (i, channel) in channels.iter().enumerate() {
        server.publish(channel, i.to_string()).await;
    }
    server.publish("town/end", "end").await;
    let mut got = Got::new();
    for _ in 0..5 {
        let push = session.push().await;
        let name = push["channel"].as_str().unwrap().to_owned();
        got.entry(name).or_default().push(push["data"].as_u64().unwrap() as usize);
    }
    let expected =
        [("vans/1/telemetry", vec![0, 6]), ("vans/2/telemetry", vec![2]), ("town", vec![3]), ("town/a/b", vec![4])];
    assert_eq!(got, expected.map(|(name, rounds)| (name.to_owned(), rounds)).into());
    assert_eq!(session.push().await["channel"], "town/end");
    session.command("unsubscribe", json!({ "channel": "town/#" })).await.unwrap();
    server.publish("town/end", "unheard").await;
    server.publish("vans/9/telemetry", "\"heard\"").await;
    assert_eq!(session.push().await["data"], "heard");
}

#[tokio::test]
async fn pattern_resumes_from_positions_and_start_time() {
    let server = Server::start();
    let mut session = Session::open(&server).await;
    let began = session.command("subscribe", json!({ "channel": "w/#" })).await.unwrap()["time"].clone();
    let mut positions = Positions::new();
    server.publish("w/heard", "1").await;
    server.publish("w/also", "1").await;
    for _ in 0..2 {
        let push = session.push().await;
        positions.insert(push["channel"].as_str().unwrap().into(), push["position"].as_str().unwrap().into());
    }
    drop(session);
    server.publish("w/heard", "2").await;
    server.publish("w/new", "1").await;
    server.publish("w/heard", "3").await;
    let mut session = Session::open(&server).await;
    let body = json!({ "channel": "w/#", "since": began, "positions": positions });
    session.command("subscribe", body).await.unwrap();
    let mut got = Got::new();
    for _ in 0..3 {
        let push = session.push().await;
        let name = push["channel"].as_str().unwrap().to_owned();
        got.entry(name).or_default().push(push["data"].as_u64().unwrap() as usize);
    }
    assert_eq!(got, [("w/heard".to_owned(), vec![2, 3]), ("w/new".to_owned(), vec![1])].into());
    server.publish("w/also", "2").await;
    let push = session.push().await;
    assert_eq!((&push["channel"], &push["data"]), (&json!("w/also"), &json!(2)), "nothing comes twice");
}

#[tokio::test]
async fn overlapping_subscriptions_deliver_once() {
    let server = Server::start();
    let mut session = Session::open(&server).await;
    for channel in ["x/#", "x/+", "x/1"] {
        session.command("subscribe", json!({ "channel": channel })).await.unwrap();
    }
    server.publish("x/1", "1").await;
    server.publish("x/1", "2").await;
    let got = [session.push().await["data"].clone(), session.push().await["data"].clone()];
    assert_eq!(got, [json!(1), json!(2)]);
}

#[tokio::test]
async fn longest_names_fit_into_request_and_resume() {
    let server = Server::start();
    let name = |i: usize| format!("{i:03}/{}", "x".repeat(251));
    let query: String = (0..CHANNELS).map(|i| format!("channel={}&", name(i))).collect();
    let last = server.publish(&name(7), "1").await;
    let list: Vec<_> = (0..CHANNELS).map(|i| format!("{}@{}", name(i), last.replace(":1", ":0"))).collect();
    for http2 in [false, true] {
        let tls = crate::server::trusting(&[]);
        let builder =
            reqwest::Client::builder().no_proxy().tls_backend_preconfigured(tls).http2_max_header_list_size(1 << 20);
        let http = if http2 { builder.http2_prior_knowledge() } else { builder.http1_only() }.build().unwrap();
        let request = http.get(server.url(&format!("/v1/stream?{query}"))).header("last-event-id", list.join(","));
        let answer = Answer::read(within(request.send()).await.unwrap()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["messages"][0]["channel"], name(7));
        assert_eq!(answer.position().split(',').count(), CHANNELS);
    }
}

#[tokio::test]
async fn too_many_channels_are_refused() {
    let server = Server::start();
    let query: String = (0..=CHANNELS).map(|i| format!("channel=c/{i}&")).collect();
    within(server.get(&format!("/v1/stream?{query}"))).await.assert_problem(429, "too_many");
    server.get("/v1/stream").await.assert_problem(400, "bad_request");
    server.get("/v1/stream?channel=a&channel=a").await.assert_problem(400, "bad_request");
    server.get("/v1/stream?channel=a%23").await.assert_problem(400, "bad_channel");
    let xml = server.get_with("/v1/stream?channel=a", &[("accept", "application/xml")]).await;
    xml.assert_problem(406, "not_acceptable");
}
