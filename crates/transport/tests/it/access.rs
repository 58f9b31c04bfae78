//! Permissions on every entry point over HTTP and WebSocket: without a token, with the wrong permission, with the right
//! permission; and what happens when the token expires, is revoked, or is refreshed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_protocol::{
    Since,
    session::{Policy, Subscription, Target},
    ticket::TicketKey,
};
use millrace_server::{auth::SigningKey, config::Secret};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message, client::IntoClientRequest as _};

use crate::client::raw::Raw;
use crate::server::{Answer, BOUND, Server, client, until, within};

const SECRET: &str = "a secret of thirty-two bytes or more";
/// Maximum time until an expiry or a revocation has closed the open connections: one second, plus a margin for a busy
/// machine.
const SOON: Duration = Duration::from_secs(10);

/// All permissions, as a test token grants them.
const ALL: &[&str] = &["subscribe", "publish", "presence", "history"];

fn start() -> Server {
    start_with(|_| {})
}

fn start_with(change: impl FnOnce(&mut millrace_server::Config)) -> Server {
    Server::with(|config| {
        config.auth.secret = Secret::from(SECRET);
        config.server.public_metrics = true;
        change(config);
    })
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs()
}

/// Returns a token of `subject` that grants `rights` on the channels that match `pattern`, valid for `seconds`.
fn token(subject: &str, rights: &[&str], pattern: &str, seconds: u64) -> String {
    let granted: serde_json::Map<String, Value> =
        rights.iter().map(|right| ((*right).to_owned(), json!([pattern]))).collect();
    let claims = json!({
        "sub": subject, "jti": format!("id-of-{subject}"), "iat": now_s(), "exp": now_s() + seconds, "millrace": granted,
    });
    SigningKey::parse(SECRET.as_bytes()).expect("a key").sign(&claims, None).expect("a token")
}

/// An HTTP request and the permission that it requires.
struct Way {
    method: &'static str,
    path: &'static str,
    accept: &'static str,
    body: &'static str,
    right: &'static str,
}

const fn get(path: &'static str, accept: &'static str, right: &'static str) -> Way {
    Way { method: "GET", path, accept, body: "", right }
}

const fn post(path: &'static str, body: &'static str) -> Way {
    Way { method: "POST", path, accept: "*/*", body, right: "publish" }
}

const JSON: &str = "application/json";
const SSE: &str = "text/event-stream";
const NDJSON: &str = "application/x-ndjson";
const RECORD: &str = r#"{"carId": 7, "speed": 1}"#;

/// Every HTTP entry point.
const WAYS: &[Way] = &[
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

impl Way {
    async fn ask(&self, server: &Server, token: Option<&str>) -> Answer {
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
        let goes_on = response.status().is_success() && [SSE, NDJSON].contains(&self.accept);
        match goes_on {
            // The body of a stream does not end.
            true => Answer { status: response.status(), headers: response.headers().clone(), body: Vec::new() },
            false => Answer::read(response).await,
        }
    }
}

fn others(right: &str) -> Vec<&'static str> {
    ALL.iter().copied().filter(|other| *other != right).collect()
}

#[tokio::test]
async fn every_request_needs_its_own_right() {
    let server = start();
    let bad = token("ann", ALL, "#", 60).replace("eyJ", "eyK");
    for way in WAYS {
        let name = format!("{} {} {}", way.method, way.path, way.accept);
        let refused = way.ask(&server, None).await;
        assert_eq!(refused.status, 401, "{name}: {}", String::from_utf8_lossy(&refused.body));
        let detail = refused.assert_problem(401, "unauthorized");
        assert!(detail.contains("Authorization: Bearer"), "{name} says what to do: {detail}");
        assert_eq!(refused.header("www-authenticate"), "Bearer");
        let wrong = token("ann", &others(way.right), "cars/#", 60);
        let detail = way.ask(&server, Some(&wrong)).await.assert_problem(403, "forbidden");
        assert!(detail.contains(way.right), "{name}: {detail}");
        let elsewhere = token("ann", ALL, "cars/8/#", 60);
        way.ask(&server, Some(&elsewhere)).await.assert_problem(403, "forbidden");
        let refused = way.ask(&server, Some(&bad)).await;
        refused.assert_problem(401, "unauthorized");
        assert!(!refused.text().contains(&bad), "{name} shows the token");
        let right = token("ann", &[way.right], "cars/7/#", 60);
        let served = way.ask(&server, Some(&right)).await;
        assert!(served.status.is_success(), "{name}: {} {}", served.status, String::from_utf8_lossy(&served.body));
    }
    for public in ["/healthz", "/readyz", "/v1/info"] {
        assert_eq!(server.get(public).await.status, 200, "{public}");
    }
}

#[tokio::test]
async fn reading_back_takes_history_and_going_on_does_not() {
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
async fn a_batch_is_checked_line_by_line() {
    let server = start();
    let lines = "{\"channel\":\"mine/a\",\"data\":1}\n{\"channel\":\"theirs\",\"data\":2}\n";
    server.post("/v1/publish", &[], lines).await.assert_problem(401, "unauthorized");
    let bearer = format!("Bearer {}", token("ann", &["publish"], "mine/#", 60));
    let answer = server.post("/v1/publish", &[("authorization", &bearer)], lines).await;
    let results = answer.json();
    assert!(results["results"][0]["position"].is_string(), "{results}");
    assert_eq!(results["results"][1]["error"]["code"], "forbidden", "{results}");
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

/// Opens a WebSocket, or returns the HTTP status that refused the upgrade. `offers` are the subprotocols to offer; the
/// token is one of them.
async fn open(server: &Server, path: &str, offers: &[String], origin: Option<&str>) -> Result<Socket, u16> {
    let mut request = format!("ws://{}{path}", server.address).into_client_request().expect("a request");
    if !offers.is_empty() {
        request.headers_mut().insert("sec-websocket-protocol", offers.join(", ").parse().expect("a header"));
    }
    if let Some(origin) = origin {
        request.headers_mut().insert("origin", origin.parse().expect("a header"));
    }
    match within(tokio_tungstenite::connect_async(request)).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{path}: {error}"),
    }
}

async fn session(server: &Server, token: &str) -> Socket {
    let offers = ["millrace.v1+json".to_owned(), format!("bearer.{token}")];
    let mut socket = open(server, "/v1/connect", &offers, None).await.expect("a session");
    assert_eq!(hear(&mut socket).await["push"], "connected");
    socket
}

async fn hear(socket: &mut Socket) -> Value {
    use futures_util::StreamExt as _;
    loop {
        match within(socket.next()).await.expect("more").expect("a message") {
            Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
            Message::Close(close) => panic!("closed: {close:?}"),
            _ => {}
        }
    }
}

async fn command(socket: &mut Socket, command: Value) -> Value {
    use futures_util::SinkExt as _;
    within(socket.send(Message::text(command.to_string()))).await.expect("sent");
    loop {
        let heard = hear(socket).await;
        if heard["id"] == command["id"] {
            return heard;
        }
    }
}

async fn close_code(socket: &mut Socket) -> u16 {
    use futures_util::StreamExt as _;
    let closed = async {
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Close(Some(close)) = message {
                return u16::from(close.code);
            }
        }
        0
    };
    tokio::time::timeout(BOUND, closed).await.expect("closed in time")
}

#[tokio::test]
async fn a_websocket_is_refused_before_the_upgrade() {
    let server = start();
    let bare = |token: &str| ["millrace.bare".to_owned(), format!("bearer.{token}")];
    for (path, right) in [
        ("/v1/channels/cars/7/telemetry", "subscribe"),
        ("/v1/channels/cars/7/telemetry?subscribe=no", "publish"),
        ("/websocket/7/sensordata", "subscribe"),
    ] {
        assert_eq!(open(&server, path, &[], None).await.err(), Some(401), "{path}");
        let wrong = token("ann", &others(right), "#", 60);
        assert_eq!(open(&server, path, &bare(&wrong), None).await.err(), Some(403), "{path}");
        assert!(open(&server, path, &bare(&token("ann", &[right], "cars/7/#", 60)), None).await.is_ok(), "{path}");
    }
    let nobody = ["millrace.v1+json".to_owned()];
    assert_eq!(open(&server, "/v1/connect", &nobody, None).await.err(), Some(401));
    let back = bare(&token("ann", &["subscribe"], "#", 60));
    assert_eq!(open(&server, "/v1/channels/a?since=earliest", &back, None).await.err(), Some(403));
}

#[tokio::test]
async fn a_bare_websocket_that_may_only_read_is_closed_when_it_publishes() {
    use futures_util::SinkExt as _;
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
async fn every_command_of_a_session_needs_its_right() {
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
    for (id, (right, command_)) in (1..).zip(commands) {
        let mut command_ = command_;
        command_["id"] = id.into();
        let mut without = session(&server, &token("ann", &others(right), "a/#", 60)).await;
        let refused = command(&mut without, command_.clone()).await;
        assert_eq!(refused["error"]["code"], "forbidden", "{command_}: {refused}");
        let served = command(&mut everything, command_.clone()).await;
        assert!(served["ok"].is_object(), "{command_}: {served}");
    }
}

#[tokio::test]
async fn a_pattern_brings_nothing_that_the_grant_does_not_cover() {
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
    assert_eq!(hear(&mut socket).await["channel"], "cars/7/telemetry", "and nothing before it");
}

/// Opens one reader of each long-lived kind with this token. Returns their names and tasks; each task returns how its
/// connection ended.
async fn open_all(server: &Server, token: &str) -> Vec<(&'static str, tokio::task::JoinHandle<String>)> {
    use futures_util::StreamExt as _;
    let mut open_ones: Vec<(&'static str, tokio::task::JoinHandle<String>)> = Vec::new();
    for (name, http2, accept) in [
        ("SSE", false, SSE),
        ("NDJSON", false, NDJSON),
        ("SSE over HTTP/2", true, SSE),
        ("NDJSON over HTTP/2", true, NDJSON),
    ] {
        let request = client(http2).get(server.url("/v1/channels/live")).header("accept", accept);
        let response = within(request.bearer_auth(token).send()).await.expect("an answer");
        assert_eq!(response.status(), 200, "{name}");
        open_ones.push((name, tokio::spawn(async move { response.text().await.unwrap_or_default() })));
    }
    let poll = client(false).get(server.url("/v1/channels/live?wait=30")).bearer_auth(token);
    open_ones
        .push(("long poll", tokio::spawn(async move { poll.send().await.expect("an answer").status().to_string() })));
    let bare = ["millrace.bare".to_owned(), format!("bearer.{token}")];
    let own = ["millrace.v1+json".to_owned(), format!("bearer.{token}")];
    for (name, path, offers) in [("bare", "/v1/channels/live", bare), ("session", "/v1/connect", own)] {
        let mut socket = open(server, path, &offers, None).await.expect(name);
        open_ones.push((
            name,
            tokio::spawn(async move {
                while let Some(Ok(message)) = socket.next().await {
                    if let Message::Close(Some(close)) = message {
                        return format!("closed {}", u16::from(close.code));
                    }
                }
                "ended".into()
            }),
        ));
    }
    open_ones
}

async fn all_end(open_ones: Vec<(&'static str, tokio::task::JoinHandle<String>)>, code: u16, polls: &str) {
    for (name, ending) in open_ones {
        let last = tokio::time::timeout(SOON, ending).await.unwrap_or_else(|_| panic!("{name} goes on")).expect(name);
        let said = match name {
            "bare" | "session" => last == format!("closed {code}"),
            "long poll" => last.starts_with(polls),
            _ => last.contains("denied") && last.contains("unauthorized"),
        };
        assert!(said, "{name} ended with: {last}");
    }
}

#[tokio::test]
async fn what_is_open_ends_with_its_token() {
    let server = start_with(|config| config.auth.leeway = Duration::ZERO);
    let token = token("ann", ALL, "#", 4);
    let open_ones = open_all(&server, &token).await;
    all_end(open_ones, 4001, "204").await;
    let again = server.get_with("/v1/channels/live", &[("authorization", &format!("Bearer {token}"))]).await;
    again.assert_problem(401, "unauthorized");
}

#[tokio::test]
async fn what_is_open_ends_when_its_token_is_revoked() {
    let server = start_with(|config| {
        config.admin.listen = "127.0.0.1:0".into();
        config.admin.token = Secret::from("sixteen bytes or more");
    });
    let (ann, bob) = (token("ann", ALL, "#", 60), token("bob", ALL, "#", 60));
    let (of_ann, of_bob) = (open_all(&server, &ann).await, open_all(&server, &bob).await);
    until("the long polls wait", async || server.metric("millrace_connections{transport=\"long_polling\"}").await == 2)
        .await;
    let admin = format!("http://{}/admin/revoke", server.admin());
    let request = client(false).post(&admin).body("{\"jti\": \"id-of-ann\"}");
    let answer = Answer::read(within(request.try_clone().unwrap().send()).await.unwrap()).await;
    answer.assert_problem(401, "unauthorized");
    let answer = Answer::read(within(request.bearer_auth("sixteen bytes or more").send()).await.unwrap()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    all_end(of_ann, 4003, "401").await;
    assert!(of_bob.iter().all(|(_, ending)| !ending.is_finished()), "nobody else is touched");
    let bearer = format!("Bearer {ann}");
    server.get_with("/v1/channels/live", &[("authorization", &bearer)]).await.assert_problem(401, "unauthorized");
    of_bob.iter().for_each(|(_, ending)| ending.abort());
}

#[tokio::test]
async fn a_session_is_refreshed_and_loses_what_the_new_token_does_not_cover() {
    let server = start_with(|config| config.auth.leeway = Duration::ZERO);
    let mut socket = session(&server, &token("ann", ALL, "#", 6)).await;
    for (id, channel) in (1..).zip(["a/b", "c", "a/+"]) {
        assert!(command(&mut socket, json!({ "id": id, "subscribe": { "channel": channel } })).await["ok"].is_object());
    }
    let other = json!({ "id": 10, "refresh": { "token": token("bob", ALL, "#", 60) } });
    assert_eq!(command(&mut socket, other).await["error"]["code"], "forbidden", "somebody else");
    let none = json!({ "id": 11, "refresh": { "token": "x.y.z" } });
    assert_eq!(command(&mut socket, none).await["error"]["code"], "unauthorized");
    let fresh = token("ann", &["subscribe", "publish"], "a/#", 60);
    let reply = command(&mut socket, json!({ "id": 12, "refresh": { "token": fresh } })).await;
    assert_eq!(reply["ok"]["unsubscribed"], json!(["c"]), "{reply}");
    assert!(reply["ok"]["expires_ms"].as_u64().is_some_and(|ms| ms > 50_000), "{reply}");
    let bearer = format!("Bearer {}", token("bob", &["publish"], "#", 60));
    tokio::time::timeout(SOON, async {
        // Publish until the old token has expired, and a moment longer.
        let until_s = now_s() + 7;
        while now_s() < until_s {
            server.publish_with("c", &[("authorization", &bearer)], "1").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("the publications");
    server.publish_with("a/b", &[("authorization", &bearer)], "2").await;
    assert_eq!(hear(&mut socket).await["channel"], "a/b", "it lives on, and hears no more of what it lost");
    let refused = command(&mut socket, json!({ "id": 13, "history": { "channel": "a/b" } })).await;
    assert_eq!(refused["error"]["code"], "forbidden", "what the new token lacks: {refused}");
}

#[tokio::test]
async fn a_foreign_page_gets_nowhere_by_websocket_cookie_or_post() {
    let server = start_with(|config| {
        config.limits.allowed_origins = vec!["https://app.example".into()];
        config.auth.cookie = "token".into();
    });
    let good = token("ann", ALL, "#", 60);
    let own = format!("http://{}", server.address);
    let offers = ["millrace.v1+json".to_owned(), format!("bearer.{good}")];
    for (origin, status) in [(Some("https://evil.example"), Some(403)), (Some("null"), Some(403))] {
        assert_eq!(open(&server, "/v1/connect", &offers, origin).await.err(), status, "{origin:?}");
    }
    for origin in [None, Some("https://app.example"), Some(own.as_str())] {
        assert!(open(&server, "/v1/connect", &offers, origin).await.is_ok(), "{origin:?}");
    }
    let cookie = format!("theme=dark; token={good}");
    let ask = async |headers: &[(&str, &str)]| {
        let headers: Vec<_> = headers.iter().copied().chain([("cookie", cookie.as_str())]).collect();
        server.get_with("/v1/channels/a", &headers).await.status.as_u16()
    };
    assert_eq!(ask(&[]).await, 401, "a cookie alone says nothing of the page");
    assert_eq!(ask(&[("origin", "https://evil.example")]).await, 403);
    assert_eq!(ask(&[("origin", "https://app.example")]).await, 204);
    assert_eq!(ask(&[("origin", &own)]).await, 204);
    assert_eq!(ask(&[("sec-fetch-site", "same-origin")]).await, 204);
    assert_eq!(ask(&[("sec-fetch-site", "cross-site")]).await, 401);
    let bearer = format!("Bearer {good}");
    let posted = [("authorization", bearer.as_str()), ("origin", "https://evil.example")];
    server.post("/v1/channels/a", &posted, "1").await.assert_problem(403, "forbidden");
    let listed = server.get_with("/v1/channels/a", &[("origin", "https://app.example"), ("cookie", &cookie)]).await;
    assert_eq!(listed.header("access-control-allow-credentials"), "true");
}

#[tokio::test]
async fn a_replayed_ticket_opens_nothing_beyond_its_token() {
    const SHARED: &str = "a secret of the cluster";
    let server = start_with(|config| config.server.secret = Secret::from(SHARED));
    let bearer = format!("Bearer {}", token("eve", ALL, "#", 60));
    let position = server.publish_with("mine/a", &[("authorization", &bearer)], "1").await;
    let read = ["mine/a", "mine/b"].map(|name| Subscription {
        target: Target::parse(name).expect("a name"),
        since: Since::Position(position.parse().expect("a position")),
        positions: Default::default(),
        policy: Policy::Every,
    });
    let ticket = TicketKey::new(SHARED.as_bytes()).sign(&read, Some("ann"), 4_000_000_000_000).expect("a ticket");
    let resume = async |token: &str| {
        let offers = ["millrace.v1+json".to_owned(), format!("bearer.{token}"), format!("resume.{ticket}")];
        let mut socket = open(&server, "/v1/connect", &offers, None).await.expect("a session");
        let connected = hear(&mut socket).await;
        let first = hear(&mut socket).await;
        (socket, connected["resumed"].clone(), first)
    };
    let count = async |channel: &str| {
        let headers = [("authorization", bearer.as_str())];
        server.get_with(&format!("/v1/presence/{channel}"), &headers).await.json()["count"].clone()
    };
    for (token, code, why) in [
        (token("bob", ALL, "#", 60), "bad_ticket", "another subject, who may read the same"),
        (token("ann", &["subscribe"], "mine/b", 60), "forbidden", "the same subject, who may read half of it now"),
        (token("ann", &["publish"], "#", 60), "forbidden", "the same subject, who may read nothing now"),
    ] {
        let (mut socket, resumed, refused) = resume(&token).await;
        assert_eq!(
            (&resumed, &refused["id"], &refused["error"]["code"]),
            (&json!([]), &json!(0), &json!(code)),
            "{why}"
        );
        assert_eq!((count("mine/a").await, count("mine/b").await), (json!(0), json!(0)), "{why}");
        assert!(
            command(&mut socket, json!({ "id": 1, "ping": {} })).await["ok"].is_object(),
            "the session lives: {why}"
        );
    }
    // The subject of the ticket may use the ticket any number of times. Each new session resumes from the ticket's
    // positions.
    let ann = token("ann", ALL, "mine/#", 60);
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let (socket, resumed, first) = resume(&ann).await;
        assert_eq!((&resumed, &first["ok"]["channel"]), (&json!(["mine/a", "mine/b"]), &json!("mine/a")), "{first}");
        sessions.push(socket);
    }
    until("both read", async || count("mine/b").await == 2).await;
}

#[tokio::test]
async fn a_page_of_http_is_foreign_to_a_server_of_https() {
    let start = |behind_proxy: bool| {
        start_with(|config| {
            crate::server::secure(config);
            config.auth.cookie = "token".into();
            config.server.behind_proxy = behind_proxy;
        })
    };
    let cookie = format!("token={}", token("ann", ALL, "#", 60));
    let direct = start(false);
    let proxied = start(true);
    for (server, scheme, status) in
        [(&direct, "https", 204), (&direct, "http", 403), (&proxied, "https", 204), (&proxied, "http", 204)]
    {
        let origin = format!("{scheme}://{}", server.address);
        let headers = [("cookie", cookie.as_str()), ("origin", origin.as_str())];
        let read = server.get_with("/v1/channels/a", &headers).await;
        assert_eq!(read.status.as_u16(), status, "{origin}: {}", read.text());
        let posted = server.post("/v1/channels/b", &headers, "1").await;
        assert_eq!(posted.status == 403, status == 403, "{origin}: {}", posted.text());
    }
}

#[tokio::test]
async fn a_request_names_exactly_one_host() {
    let server = Server::start();
    for host in [
        "",
        "Host: \r\n",
        "Host: a%\r\n",
        "Host: a b\r\n",
        "Host: user@localhost\r\n",
        "Host: localhost\r\nHost: localhost\r\n",
        "Host: localhost\r\nHost: evil.example\r\n",
    ] {
        let mut raw = Raw::connect(&server).await;
        raw.send(format!("GET /v1/channels/a HTTP/1.1\r\n{host}Connection: close\r\n\r\n")).await;
        let answer = String::from_utf8(raw.read_to_end().await).expect("text");
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("ost"), "{host:?}: {answer}");
    }
    // HTTP/1.0 had no `Host` header, and the health check of a load balancer may omit it.
    for request in ["GET /v1/channels/a HTTP/1.0\r\n\r\n", "GET /readyz HTTP/1.1\r\nConnection: close\r\n\r\n"] {
        let mut raw = Raw::connect(&server).await;
        raw.send(request).await;
        let answer = String::from_utf8(raw.read_to_end().await).expect("text");
        assert!(answer.split(' ').nth(1).is_some_and(|status| status.starts_with('2')), "{request}: {answer}");
    }
    let two = client(true).get(server.url("/v1/channels/a")).header("host", "evil.example");
    let refused = Answer::read(within(two.send()).await.expect("an answer")).await;
    assert!(refused.assert_problem(400, "bad_request").contains(":authority"), "{}", refused.text());
}

#[tokio::test]
async fn a_star_lets_no_cookie_in() {
    let server = start_with(|config| {
        config.limits.allowed_origins = vec!["*".into()];
        config.auth.cookie = "token".into();
    });
    let cookie = format!("token={}", token("ann", ALL, "#", 60));
    let headers = [("cookie", cookie.as_str()), ("origin", "https://any.example")];
    let refused = server.get_with("/v1/channels/a", &headers).await;
    refused.assert_problem(403, "forbidden");
    assert!(refused.headers.get("access-control-allow-credentials").is_none());
}

#[tokio::test]
async fn another_page_of_loopback_lets_no_cookie_in() {
    let server = start_with(|config| config.auth.cookie = "token".into());
    let good = token("ann", ALL, "#", 60);
    let (cookie, bearer) = (format!("token={good}"), format!("Bearer {good}"));
    let origin = ("origin", "http://127.0.0.1:5173");
    for (shown, status) in [(("cookie", cookie.as_str()), 403), (("authorization", bearer.as_str()), 204)] {
        let answer = server.get_with("/v1/channels/a", &[origin, shown]).await;
        assert_eq!(answer.status.as_u16(), status, "{shown:?}: {}", answer.text());
        assert!(answer.headers.get("access-control-allow-credentials").is_none(), "{answer:?}");
    }
}

#[tokio::test]
async fn an_open_server_on_loopback_answers_to_its_own_names_only() {
    let server = Server::with(|config| config.server.hosts = vec!["millrace.test".into()]);
    for host in
        ["127.0.0.1", "localhost:8080", "lane1.localhost", "[::1]:8080", "millrace.test", "127.8.9.1:1", "mybox:8080"]
    {
        assert_eq!(server.get_with("/v1/channels/a", &[("host", host)]).await.status, 204, "{host}");
    }
    for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "192.168.1.1", "[::2]:8080"] {
        let refused = server.get_with("/v1/channels/a", &[("host", host)]).await;
        assert!(refused.assert_problem(403, "forbidden").contains("server.hosts"), "{host}");
    }
    let behind = Server::with(|config| config.server.behind_proxy = true);
    assert_eq!(behind.get_with("/v1/channels/a", &[("host", "shop.example")]).await.status, 204);
}

#[tokio::test]
async fn a_token_in_the_url_counts_only_where_it_is_switched_on() {
    let good = token("ann", ALL, "#", 60);
    let path = format!("/v1/channels/a?token={good}");
    let refused = start().get(&path).await;
    refused.assert_problem(400, "bad_request");
    assert!(!refused.text().contains(&good));
    assert_eq!(start_with(|config| config.auth.query = true).get(&path).await.status, 204);
}

#[tokio::test]
async fn anonymous_may_what_its_namespace_says_and_datagrams_are_anonymous() {
    let server = start_with(|config| {
        config.server.udp = "127.0.0.1:0".into();
        let open = config.namespaces.entry("cars".into()).or_default();
        open.anonymous = vec![millrace_protocol::Right::Subscribe, millrace_protocol::Right::Publish];
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

#[tokio::test]
async fn the_admin_listener_lists_and_closes_connections_and_shows_no_secret() {
    const ADMIN: &str = "sixteen bytes or more";
    let server = start_with(|config| {
        config.admin.listen = "127.0.0.1:0".into();
        config.admin.token = Secret::from(ADMIN);
        config.server.public_metrics = false;
    });
    server.get("/metrics").await.assert_problem(404, "not_found");
    let url = |path: &str| format!("http://{}{path}", server.admin());
    let get = async |path: &str| {
        let sent = within(client(false).get(url(path)).bearer_auth(ADMIN).send()).await;
        Answer::read(sent.expect("an answer")).await
    };
    for path in ["/metrics", "/readyz", "/admin/config", "/admin/connections"] {
        let sent = within(client(false).get(url(path)).bearer_auth("sixteen bytes or mora").send()).await;
        Answer::read(sent.unwrap()).await.assert_problem(401, "unauthorized");
        assert_eq!(get(path).await.status, 200, "{path}");
    }
    assert!(get("/metrics").await.text().contains("millrace_connections"));
    let config = get("/admin/config").await;
    assert!(!config.text().contains(ADMIN) && !config.text().contains(SECRET), "{}", config.text());
    assert_eq!(config.json()["auth"]["secret"], "(hidden)");
    let mut ann = session(&server, &token("ann", ALL, "#", 60)).await;
    let _bob = session(&server, &token("bob", ALL, "#", 60)).await;
    let list = get("/admin/connections").await.json();
    assert_eq!(list["connections"].as_array().map(Vec::len), Some(2), "{list}");
    let first = get("/admin/connections?limit=1").await.json();
    assert_eq!(first["more"], true, "{first}");
    let after = first["connections"][0]["id"].as_str().unwrap();
    let second = get(&format!("/admin/connections?limit=1&after={after}")).await.json();
    assert_eq!((&second["more"], second["connections"].as_array().map(Vec::len)), (&json!(false), Some(1)), "{second}");
    assert_ne!(second["connections"][0]["id"], first["connections"][0]["id"]);
    let of_ann = get("/admin/connections?subject=ann").await.json();
    assert_eq!(of_ann["connections"][0]["subject"], "ann");
    assert!(of_ann["connections"][0]["address"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")));
    let post = client(false).post(url("/admin/disconnect")).bearer_auth(ADMIN).body("{\"subject\": \"ann\"}");
    let answer = Answer::read(within(post.send()).await.unwrap()).await;
    assert_eq!(answer.json()["disconnected"], 1);
    assert_eq!(close_code(&mut ann).await, 4003);
}
