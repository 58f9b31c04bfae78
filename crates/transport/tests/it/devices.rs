//! The routes of the 2014 CarCare service. Source: docs/reference/protocol.md, "CarCare aliases".

use serde_json::{Value, json};
use tokio_tungstenite::{connect_async, tungstenite::Message as Frame};

use crate::{
    client::{ReadOptions, Reader, ReaderKind, after},
    server::{Answer, Server, client, within},
};

fn record(car: u64, timestamp: u64) -> Value {
    json!({
        "carId": car, "timestamp": timestamp, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
        "speed": 1.25, "rpm": 1250, "coolantTemperature": 101,
    })
}

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
const XML: [(&str, &str); 1] = [("accept", "application/xml")];

async fn input(server: &Server, record: &Value) -> String {
    let answer = server.post("/rest/input", &JSON, record.to_string()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let position = answer.json()["position"].as_str().expect("a position").to_owned();
    assert_eq!(answer.position(), position);
    position
}

#[tokio::test]
async fn record_is_published_to_car_and_fleet() {
    let server = Server::start();
    let mut car = Reader::open(ReaderKind::Session, &server, &ReadOptions::one("cars/7/telemetry")).await;
    let mut fleet = Reader::open(ReaderKind::Session, &server, &ReadOptions::one("fleet")).await;
    let position = input(&server, &record(7, 1000)).await;
    let message = car.message().await;
    assert_eq!(message.position, Some(position));
    assert_eq!(serde_json::from_str::<Value>(&message.data.into_text()).unwrap(), record(7, 1000));
    let message = fleet.message().await;
    assert_eq!(message.key.as_deref(), Some("7"), "one newest record per car");
}

#[tokio::test]
async fn repeated_record_is_published_once() {
    let server = Server::start();
    let headers = [("content-type", "application/json"), ("idempotency-key", "trip-1/17")];
    let first = server.post("/rest/input", &headers, record(1, 5).to_string()).await;
    let again = server.post("/rest/input", &headers, record(1, 5).to_string()).await;
    assert_eq!(first.json(), again.json());
    assert_eq!(input(&server, &record(1, 6)).await, after(first.position(), 1));
    let fleet = server.get("/v1/channels/fleet?since=earliest").await.json();
    assert_eq!(fleet["messages"].as_array().unwrap().len(), 2, "{fleet}");
}

#[tokio::test]
async fn fleet_is_a_state_with_the_newest_record_of_each_car() {
    let shown = |state: Value| -> Vec<(String, u64)> {
        let entry =
            |entry: &Value| (entry["key"].as_str().unwrap().into(), entry["data"]["timestamp"].as_u64().unwrap());
        state["messages"].as_array().unwrap().iter().map(entry).collect()
    };
    // The list survives a log that is much shorter.
    let server = Server::with(|config| config.history.count_max = 2);
    for (car, timestamp) in [(1, 1), (2, 2), (3, 3), (1, 4), (1, 5), (1, 6)] {
        input(&server, &record(car, timestamp)).await;
    }
    let fleet = shown(server.get("/v1/channels/fleet?state").await.json());
    assert_eq!(fleet, [("2".into(), 2), ("3".into(), 3), ("1".into(), 6)]);
    let log = Server::with(|config| config.namespaces.entry("fleet".into()).or_default().state = Some(false));
    input(&log, &record(1, 1)).await;
    log.get("/v1/channels/fleet?state").await.assert_problem(400, "bad_request");
}

#[tokio::test]
async fn batch_of_records_is_accepted() {
    let server = Server::start();
    let lines = format!("{}\n\n{}\n{{\"speed\":1}}\n{}\n", record(1, 1), record(2, 2), record(1, 3));
    let headers = [("content-type", "application/x-ndjson"), ("idempotency-key", "batch-1")];
    let first = server.post("/rest/input", &headers, lines.clone()).await.json();
    let results = first["results"].as_array().unwrap();
    let codes: Vec<_> = results.iter().map(|result| result["error"]["code"].as_str().unwrap_or("ok")).collect();
    assert_eq!(codes, ["ok", "ok", "bad_json", "ok"]);
    let again = server.post("/rest/input", &headers, lines).await.json();
    assert_eq!(first, again, "sent again after a cut, nothing is doubled");
    let car = server.get("/v1/channels/cars/1/telemetry?since=earliest").await.json();
    let stamps: Vec<_> = car["messages"].as_array().unwrap().iter().map(|m| m["data"]["timestamp"].clone()).collect();
    assert_eq!(stamps, [1, 3]);
}

#[tokio::test]
async fn client_polling_returns_only_newer_record() {
    let server = Server::start();
    let poll = async |since: &str, headers: &[(&str, &str)]| {
        server.get_with(&format!("/rest/clientpolling/3/sensordata{since}"), headers).await
    };
    assert_eq!(poll("", &[]).await.status, 204, "nothing yet");
    input(&server, &record(3, 1000)).await;
    let position = input(&server, &record(3, 2000)).await;
    let answer = poll("?since=1999", &[]).await;
    assert_eq!((answer.header("content-type"), answer.json()), ("application/json", record(3, 2000)));
    assert_eq!(answer.position(), position);
    assert_eq!(poll("", &[]).await.json(), record(3, 2000));
    let none = poll("?since=2000", &[]).await;
    assert_eq!((none.status.as_u16(), none.position()), (204, position.as_str()));
    let xml = poll("?since=0&_=17", &XML).await;
    assert_eq!(xml.header("content-type"), "application/xml");
    let text = xml.text();
    assert!(text.starts_with("<?xml") && text.contains("<sensordata>") && text.ends_with("</sensordata>"), "{text}");
    for field in
        ["<carId>3</carId>", "<timestamp>2000</timestamp>", "<gpsLatitude>47.53398</gpsLatitude>", "<rpm>1250</rpm>"]
    {
        assert!(text.contains(field), "{field} in {text}");
    }
    poll("", &[("accept", "text/event-stream")]).await.assert_problem(406, "not_acceptable");
}

#[tokio::test]
async fn long_polling_resumes_without_loss() {
    let server = Server::start();
    let before = input(&server, &record(4, 1)).await;
    let url = server.url("/rest/longpolling/4/sensordata");
    // The request is held until the next record.
    let held = tokio::spawn(client(false).get(&url).send());
    server.await_presence("cars/4/telemetry", 1).await;
    for stamp in 2..=4 {
        input(&server, &record(4, stamp)).await;
    }
    let answer = Answer::read(within(held).await.unwrap().unwrap()).await;
    assert_eq!(answer.json(), record(4, 2));
    // Records that were published between two requests are delivered.
    let mut position = answer.position().to_owned();
    assert_eq!(position, after(&before, 1));
    for stamp in 3..=4 {
        let answer = server.get_with(&format!("/rest/longpolling/4/sensordata?since={position}"), &XML).await;
        assert!(answer.text().contains(&format!("<timestamp>{stamp}</timestamp>")), "{}", answer.text());
        position = answer.position().to_owned();
    }
    let bad = server.get("/rest/longpolling/4/sensordata?since=57:").await;
    assert!(bad.assert_problem(400, "bad_position").contains("5f0c12ab:57"));
}

#[tokio::test]
async fn empty_long_poll_is_204_with_position() {
    let server = Server::with(|config| config.limits.hold_max = std::time::Duration::from_millis(200));
    let last = input(&server, &record(5, 1)).await;
    let answer = server.get("/rest/longpolling/5/sensordata").await;
    assert_eq!((answer.status.as_u16(), answer.position()), (204, last.as_str()));
}

#[tokio::test]
async fn websocket_sends_records_as_text() {
    use futures_util::StreamExt;
    let server = Server::start();
    let url = format!("ws://{}/websocket/6/sensordata", server.address);
    let (mut socket, _) = within(connect_async(url.as_str())).await.unwrap();
    server.await_presence("cars/6/telemetry", 1).await;
    for stamp in 1..=3 {
        input(&server, &record(6, stamp)).await;
    }
    input(&server, &record(7, 9)).await;
    for stamp in 1..=3 {
        let frame = within(socket.next()).await.unwrap().unwrap();
        let Frame::Text(text) = frame else { panic!("not text: {frame:?}") };
        assert_eq!(serde_json::from_str::<Value>(text.as_str()).unwrap(), record(6, stamp));
    }
    let post = server.post("/websocket/6/sensordata", &[], "1").await;
    post.assert_problem(405, "method_not_allowed");
}
