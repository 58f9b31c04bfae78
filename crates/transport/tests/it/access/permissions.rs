//! Each entry point without a token, with the wrong permission and with the right one.

use futures_util::SinkExt as _;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::{ALL, JSON, NDJSON, SSE, close_code, command, open, receive, session, start, start_with, token};
use crate::server::{Answer, Server, client, until, within};

/// An HTTP request and the permission that it requires.
struct EntryPoint {
    method: &'static str,
    path: &'static str,
    accept: &'static str,
    body: &'static str,
    permission: &'static str,
}

const fn get(path: &'static str, accept: &'static str, permission: &'static str) -> EntryPoint {
    EntryPoint { method: "GET", path, accept, body: "", permission }
}

const fn post(path: &'static str, body: &'static str) -> EntryPoint {
    EntryPoint { method: "POST", path, accept: "*/*", body, permission: "publish" }
}

const RECORD: &str = r#"{"carId": 7, "speed": 1}"#;

/// Every HTTP entry point.
const ENTRY_POINTS: &[EntryPoint] = &[
    get("/v1/channels/cars/7/telemetry", JSON, "subscribe"),
    get("/v1/channels/cars/7/telemetry", "application/xml", "subscribe"),
    get("/v1/channels/cars/7/telemetry?wait=0.05", JSON, "subscribe"),
    get("/v1/channels/cars/7/telemetry", SSE, "subscribe"),
    get("/v1/channels/cars/7/telemetry", NDJSON, "subscribe"),
    get("/v1/stream?channel=cars/7/telemetry", JSON, "subscribe"),
    get("/v1/stream?channel=cars/7/telemetry", SSE, "subscribe"),
    get("/v1/stream?channel=cars/7/telemetry", NDJSON, "subscribe"),
    get("/v1/channels/cars/7/telemetry?until=now", JSON, "history"),
    get("/v1/channels/cars/7/telemetry?until=now", NDJSON, "history"),
    get("/v1/stream?channel=cars/7/telemetry&until=now", SSE, "history"),
    get("/v1/presence/cars/7/telemetry", JSON, "presence"),
    get("/rest/clientpolling/7/sensordata", JSON, "subscribe"),
    post("/v1/channels/cars/7/telemetry", "1"),
    post("/rest/input", RECORD),
];

impl EntryPoint {
    async fn send(&self, server: &Server, token: Option<&str>) -> Answer {
        let fresh = client(false);
        let request = match self.method {
            "GET" => fresh.get(server.url(self.path)),
            _ => fresh.post(server.url(self.path)).body(self.body),
        };
        let request = request.header("accept", self.accept);
        let request = match token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        };
        let response = within(request.send()).await.expect("an answer");
        let is_stream = response.status().is_success() && [SSE, NDJSON].contains(&self.accept);
        match is_stream {
            // The body of a stream does not end.
            true => Answer { status: response.status(), headers: response.headers().clone(), body: Vec::new() },
            false => Answer::read(response).await,
        }
    }
}

fn all_but(permission: &str) -> Vec<&'static str> {
    ALL.iter().copied().filter(|other| *other != permission).collect()
}

#[tokio::test]
async fn every_request_requires_its_permission() {
    let server = start();
    let bad = token("ann", ALL, "#", 60).replace("eyJ", "eyK");
    for entry in ENTRY_POINTS {
        let name = format!("{} {} {}", entry.method, entry.path, entry.accept);
        let refused = entry.send(&server, None).await;
        assert_eq!(refused.status, 401, "{name}: {}", String::from_utf8_lossy(&refused.body));
        let detail = refused.assert_problem(401, "unauthorized");
        assert!(detail.contains("Authorization: Bearer"), "{name} says what to do: {detail}");
        assert_eq!(refused.header("www-authenticate"), "Bearer");
        let wrong = token("ann", &all_but(entry.permission), "cars/#", 60);
        let detail = entry.send(&server, Some(&wrong)).await.assert_problem(403, "forbidden");
        assert!(detail.contains(entry.permission), "{name}: {detail}");
        let elsewhere = token("ann", ALL, "cars/8/#", 60);
        entry.send(&server, Some(&elsewhere)).await.assert_problem(403, "forbidden");
        let refused = entry.send(&server, Some(&bad)).await;
        refused.assert_problem(401, "unauthorized");
        assert!(!refused.text().contains(&bad), "{name} shows the token");
        let permitted = token("ann", &[entry.permission], "cars/7/#", 60);
        let served = entry.send(&server, Some(&permitted)).await;
        assert!(served.status.is_success(), "{name}: {} {}", served.status, String::from_utf8_lossy(&served.body));
    }
    for public in ["/healthz", "/readyz", "/v1/info"] {
        assert_eq!(server.get(public).await.status, 200, "{public}");
    }
}

#[tokio::test]
async fn reading_back_requires_history_and_resuming_does_not() {
    let server = start();
    let all = token("ann", ALL, "#", 60);
    let bearer = format!("Bearer {all}");
    let position = server.publish_with("back", &[("authorization", &bearer)], "1").await;
    let reader = format!("Bearer {}", token("ann", &["subscribe"], "#", 60));
    let headers = [("authorization", reader.as_str())];
    for back in ["since=earliest", "since=1970-01-01T00:00:00Z", "since=1&wait=1"] {
        let refused = server.get_with(&format!("/v1/channels/back?{back}"), &headers).await;
        assert!(refused.assert_problem(403, "forbidden").contains("history"), "{back}");
        let both = [("authorization", bearer.as_str())];
        assert_eq!(server.get_with(&format!("/v1/channels/back?{back}"), &both).await.status, 200, "{back}");
    }
    for on in [format!("since={position}"), "since=now".into()] {
        assert!(server.get_with(&format!("/v1/channels/back?{on}"), &headers).await.status.is_success(), "{on}");
    }
}

#[tokio::test]
async fn batch_permissions_are_checked_per_line() {
    let server = start();
    let lines = "{\"channel\":\"mine/a\",\"data\":1}\n{\"channel\":\"theirs\",\"data\":2}\n";
    server.post("/v1/publish", &[], lines).await.assert_problem(401, "unauthorized");
    let bearer = format!("Bearer {}", token("ann", &["publish"], "mine/#", 60));
    let answer = server.post("/v1/publish", &[("authorization", &bearer)], lines).await;
    let results = answer.json();
    assert!(results["results"][0]["position"].is_string(), "{results}");
    assert_eq!(results["results"][1]["error"]["code"], "forbidden", "{results}");
}

#[tokio::test]
async fn websocket_is_refused_before_upgrade() {
    let server = start();
    let bare = |token: &str| ["millrace.bare".to_owned(), format!("bearer.{token}")];
    for (path, permission) in [
        ("/v1/channels/cars/7/telemetry", "subscribe"),
        ("/v1/channels/cars/7/telemetry?subscribe=no", "publish"),
        ("/websocket/7/sensordata", "subscribe"),
    ] {
        assert_eq!(open(&server, path, &[], None).await.err(), Some(401), "{path}");
        let wrong = token("ann", &all_but(permission), "#", 60);
        assert_eq!(open(&server, path, &bare(&wrong), None).await.err(), Some(403), "{path}");
        assert!(open(&server, path, &bare(&token("ann", &[permission], "cars/7/#", 60)), None).await.is_ok(), "{path}");
    }
    let nobody = ["millrace.v1+json".to_owned()];
    assert_eq!(open(&server, "/v1/connect", &nobody, None).await.err(), Some(401));
    let back = bare(&token("ann", &["subscribe"], "#", 60));
    assert_eq!(open(&server, "/v1/channels/a?since=earliest", &back, None).await.err(), Some(403));
}

#[tokio::test]
async fn bare_reader_is_closed_when_it_publishes() {
    let server = start();
    let offers = ["millrace.bare".to_owned(), format!("bearer.{}", token("ann", &["subscribe"], "#", 60))];
    let mut socket = open(&server, "/v1/channels/quiet", &offers, None).await.expect("a reader");
    socket.send(Message::text("1")).await.expect("sent");
    assert_eq!(close_code(&mut socket).await, 1008);
    let all = format!("Bearer {}", token("ann", ALL, "#", 60));
    let read = server.get_with("/v1/channels/quiet", &[("authorization", &all)]).await;
    assert_eq!(read.status, 204, "nothing was published: {}", read.text());
}

#[tokio::test]
async fn every_session_command_requires_its_permission() {
    let server = start();
    let commands = [
        ("subscribe", json!({ "subscribe": { "channel": "a/b" } })),
        ("subscribe", json!({ "subscribe": { "channel": "a/+" } })),
        ("history", json!({ "subscribe": { "channel": "a/c", "since": "earliest" } })),
        ("history", json!({ "subscribe": { "channel": "a/#", "since": "earliest" } })),
        ("publish", json!({ "publish": { "channel": "a/b", "data": 1 } })),
        ("presence", json!({ "presence": { "channel": "a/b" } })),
        ("history", json!({ "history": { "channel": "a/b" } })),
    ];
    let mut everything = session(&server, &token("ann", ALL, "a/#", 60)).await;
    for (id, (permission, command_)) in (1..).zip(commands) {
        let mut command_ = command_;
        command_["id"] = id.into();
        let mut without = session(&server, &token("ann", &all_but(permission), "a/#", 60)).await;
        let refused = command(&mut without, command_.clone()).await;
        assert_eq!(refused["error"]["code"], "forbidden", "{command_}: {refused}");
        let served = command(&mut everything, command_.clone()).await;
        assert!(served["ok"].is_object(), "{command_}: {served}");
    }
}

#[tokio::test]
async fn session_reads_pages_of_a_state_with_subscribe_alone() {
    let server = start_with(|config| config.namespaces.entry("s".into()).or_default().state = Some(true));
    let bearer = format!("Bearer {}", token("bob", &["publish"], "#", 60));
    let keyed = [("authorization", bearer.as_str()), ("millrace-key", "k")];
    let position = server.publish_with("s/a", &keyed, "1").await;
    let mut reader = session(&server, &token("ann", &["subscribe"], "#", 60)).await;
    let mut historian = session(&server, &token("ann", &all_but("subscribe"), "#", 60)).await;
    let places = ["state".to_owned(), format!("state:{position}"), "earliest".to_owned()];
    for (id, (since, is_state)) in (1..).zip(places.iter().zip([true, true, false])) {
        let asked = json!({ "id": id, "history": { "channel": "s/a", "since": since } });
        let read = command(&mut reader, asked.clone()).await;
        assert_eq!(read["ok"].is_object(), is_state, "{since}: {read}");
        let read = command(&mut historian, asked).await;
        assert_eq!(read["ok"].is_object(), !is_state, "{since}: {read}");
    }
}

#[tokio::test]
async fn pattern_delivers_only_granted_channels() {
    let server = start();
    let mut socket = session(&server, &token("ann", &["subscribe"], "cars/7/#", 60)).await;
    for (id, pattern) in (1..).zip(["#", "cars/#", "cars/+/telemetry", "+/7/telemetry", "cars/7/#"]) {
        let reply = command(&mut socket, json!({ "id": id, "subscribe": { "channel": pattern } })).await;
        assert_eq!(reply["ok"].is_object(), pattern == "cars/7/#", "{pattern}: {reply}");
    }
    let bearer = format!("Bearer {}", token("bob", &["publish"], "#", 60));
    for channel in ["cars/8/telemetry", "secret", "cars/7/telemetry"] {
        server.publish_with(channel, &[("authorization", &bearer)], "1").await;
    }
    assert_eq!(receive(&mut socket).await["channel"], "cars/7/telemetry", "and nothing before it");
}

#[tokio::test]
async fn anonymous_callers_get_permissions_of_the_namespace() {
    let server = start_with(|config| {
        config.server.udp = "127.0.0.1:0".into();
        let open = config.namespaces.entry("cars".into()).or_default();
        open.anonymous = vec![millrace_protocol::Permission::Subscribe, millrace_protocol::Permission::Publish];
    });
    assert_eq!(server.get("/v1/channels/cars/7/telemetry").await.status, 204);
    server.get("/v1/channels/other").await.assert_problem(401, "unauthorized");
    let udp = server.get("/v1/info").await.json()["udp"].as_str().expect("an address").to_owned();
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(b"{\"channel\":\"other\",\"data\":1}", &udp).await.unwrap();
    socket.send_to(b"{\"channel\":\"cars/7/telemetry\",\"data\":1}", &udp).await.unwrap();
    until("the one that is allowed", async || server.get("/v1/channels/cars/7/telemetry").await.status == 200).await;
    assert_eq!(server.metric("millrace_udp_dropped_total").await, 1);
}
