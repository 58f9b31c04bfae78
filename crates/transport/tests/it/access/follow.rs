//! Views of operator requests as keyed states: who may open and read them, what they publish, and when they end.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{ALL, SECRET, SigningKey, Socket, command, now_s, open, receive, session, start, start_with, token};
use crate::server::{Answer, Server, until, within};

const PROTOCOL: &str = "millrace.v1+json";

fn operator(seconds: u64) -> String {
    let claims = json!({ "sub": "operator", "exp": now_s() + seconds, "millrace": { "admin": true } });
    SigningKey::parse(SECRET.as_bytes()).expect("a key").sign(&claims, None).expect("a token")
}

/// Sends a request to follow, with the headers of its sender.
async fn follow_with(server: &Server, headers: &[(&str, &str)], request: &str) -> Answer {
    server.post("/v1/admin/follow", headers, json!({ "request": request }).to_string()).await
}

/// Opens a view as an operator, and returns its channel.
async fn follow(server: &Server, request: &str) -> String {
    let bearer = format!("Bearer {}", operator(60));
    let answer = follow_with(server, &[("authorization", &bearer)], request).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["every_ms"]), (200, &json!(1000)), "{request}: {answer:?}");
    answer.json()["channel"].as_str().expect("a channel").to_owned()
}

async fn subscribe(socket: &mut Socket, channel: &str) -> Value {
    command(socket, json!({ "id": 9, "subscribe": { "channel": channel, "since": "state" } })).await
}

/// A page that reads a view: its rows by key.
struct Page {
    socket: Socket,
    rows: BTreeMap<String, Value>,
}

impl Page {
    async fn open(server: &Server, channel: &str) -> Self {
        let mut socket = session(server, &operator(60)).await;
        let reply = subscribe(&mut socket, channel).await;
        assert_eq!(reply["ok"]["channel"], channel, "{reply}");
        Self { socket, rows: BTreeMap::new() }
    }

    /// Receives until the rows are as wanted.
    async fn until(&mut self, wanted: impl Fn(&BTreeMap<String, Value>) -> bool) -> &BTreeMap<String, Value> {
        while !wanted(&self.rows) {
            let push = receive(&mut self.socket).await;
            let Some(key) = push["key"].as_str() else { continue };
            match push["deleted"] == true {
                true => drop(self.rows.remove(key)),
                false => drop(self.rows.insert(key.to_owned(), push["data"].clone())),
            }
        }
        &self.rows
    }
}

#[tokio::test]
async fn view_publishes_rows_that_change() {
    let server = start();
    let ann = token("ann", ALL, "#", 60);
    let publish = async |channel: &str| {
        let bearer = format!("Bearer {ann}");
        server.publish_with(channel, &[("authorization", &bearer)], "1").await
    };
    publish("cars/1").await;
    publish("other/1").await;
    let channel = follow(&server, "channels?namespace=cars").await;
    assert!(channel.starts_with(":admin/follow/"), "{channel}");
    let mut page = Page::open(&server, &channel).await;
    let rows = page.until(|rows| rows.contains_key("_") && rows.contains_key("cars/1")).await;
    assert_eq!((rows.len(), &rows["_"]), (2, &json!({ "more": false })), "{rows:?}");
    let position = publish("cars/1").await;
    publish("cars/2").await;
    let rows = page.until(|rows| rows["cars/1"]["position"] == position && rows.contains_key("cars/2")).await;
    assert_eq!(rows["cars/2"]["channel"], "cars/2", "{rows:?}");
    // The row of a connection that closes is deleted.
    let channel = follow(&server, "connections?subject=ann").await;
    let mut page = Page::open(&server, &channel).await;
    let guest = session(&server, &ann).await;
    let id = page.until(|rows| rows.len() == 2).await.keys().find(|key| *key != "_").cloned().expect("a row");
    assert_eq!(page.rows[&id]["subject"], "ann");
    drop(guest);
    page.until(|rows| !rows.contains_key(&id)).await;
}

#[tokio::test]
async fn equal_requests_share_a_view_on_both_doors() {
    let server = start_with(|config| {
        config.admin.listen = "127.0.0.1:0".into();
        config.admin.token = "sixteen bytes or more".into();
    });
    let first = follow(&server, "overview").await;
    assert_eq!(follow(&server, "overview").await, first);
    assert_ne!(follow(&server, "channels").await, first);
    let url = format!("http://{}/admin/follow", server.admin());
    let sent = server.http.post(url).bearer_auth("sixteen bytes or more").body(r#"{"request":"overview"}"#).send();
    assert_eq!(Answer::read(within(sent).await.expect("an answer")).await.json()["channel"], first);
    let mut page = Page::open(&server, &first).await;
    let is_measured = |row: &Value| row["messages_in_per_s"].is_number() && row["shards"][1]["cpu"].is_number();
    let rows = page.until(|rows| rows.values().any(is_measured)).await;
    let row = rows.values().find(|row| is_measured(row)).expect("a row");
    assert_eq!(
        (&row["is_self"], &row["draining"], &row["connections"]["websocket"]),
        (&json!(true), &json!(false), &json!(1))
    );
    assert!(row["memory"]["rss_bytes"].as_u64() > Some(1 << 20) && row["cpu_cores"].is_number(), "{row}");
    assert!(row["delivery_by_transport"]["websocket"]["p99_ms"].is_number() || row["messages_out_total"] == 0, "{row}");
}

#[tokio::test]
async fn only_operators_open_and_read_views() {
    let server = start();
    let (ann, forged) = (token("ann", ALL, "#", 60), "mrk_forged".to_owned());
    let short = operator(1);
    let channel = follow(&server, "overview").await;
    until("the token has expired", async || {
        follow_with(&server, &[("authorization", &format!("Bearer {short}"))], "overview").await.status == 401
    })
    .await;
    let own = format!("http://{}", server.address);
    for (token, status, code) in [
        (None, 401, "unauthorized"),
        (Some(&ann), 403, "forbidden"),
        (Some(&forged), 401, "unauthorized"),
        (Some(&short), 401, "unauthorized"),
    ] {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let mut headers: Vec<(&str, &str)> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
        // Where tokens are required, a page of this server needs one, too.
        headers.push(("origin", &own));
        follow_with(&server, &headers, "overview").await.assert_problem(status, code);
        server.get_with(&format!("/v1/channels/{channel}?state"), &headers).await.assert_problem(status, code);
    }
    let mut user = session(&server, &ann).await;
    assert_eq!(subscribe(&mut user, &channel).await["error"]["code"], "forbidden");
    for request in [
        json!({ "id": 1, "history": { "channel": channel, "since": "state" } }),
        json!({ "id": 2, "presence": { "channel": channel } }),
        json!({ "id": 3, "publish": { "channel": channel, "data": 1, "key": "a" } }),
        json!({ "id": 4, "subscribe": { "channel": ":admin/#" } }),
        json!({ "id": 5, "subscribe": { "channel": ":admin/+/+" } }),
    ] {
        assert_eq!(command(&mut user, request.clone()).await["error"]["code"], "forbidden", "{request}");
    }
    // An operator reads, and publishes nothing.
    let mut page = session(&server, &operator(60)).await;
    assert_eq!(subscribe(&mut page, &channel).await["ok"]["channel"], channel);
    for request in [
        json!({ "id": 1, "publish": { "channel": channel, "data": 1, "key": "a" } }),
        json!({ "id": 2, "publish": { "channel": ":admin/new", "data": 1 } }),
        json!({ "id": 3, "subscribe": { "channel": ":admin/#" } }),
        json!({ "id": 4, "subscribe": { "channel": ":millrace/revocations" } }),
    ] {
        assert_eq!(command(&mut page, request.clone()).await["error"]["code"], "forbidden", "{request}");
    }
    let bearer = format!("Bearer {}", operator(60));
    let headers = [("authorization", bearer.as_str()), ("millrace-key", "a")];
    server.post(&format!("/v1/channels/{channel}"), &headers, "1").await.assert_problem(403, "forbidden");
    let state = server.get_with(&format!("/v1/channels/{channel}?state"), &headers[..1]).await;
    assert_eq!(state.status, 200, "{state:?}");
}

#[tokio::test]
async fn bad_requests_to_follow_are_refused() {
    let server = start();
    let bearer = format!("Bearer {}", operator(60));
    let headers = [("authorization", bearer.as_str())];
    for (request, status, code) in [
        ("nothing", 404, "not_found"),
        ("", 404, "not_found"),
        ("../channels/a", 404, "not_found"),
        ("/v1/admin/overview", 404, "not_found"),
        ("revoke", 400, "bad_request"),
        ("follow", 400, "bad_request"),
        ("connections?transport=pigeon", 400, "bad_request"),
        ("connections?limit=100000", 400, "bad_request"),
        ("channels?pattern=a//b", 400, "bad_channel"),
        ("overview?x=1", 400, "bad_request"),
    ] {
        follow_with(&server, &headers, request).await.assert_problem(status, code);
    }
    for (body, code) in
        [("", "bad_json"), ("{}", "bad_json"), (r#"{"request":"overview","x":1}"#, "bad_json"), ("[1]", "bad_json")]
    {
        server.post("/v1/admin/follow", &headers, body).await.assert_problem(400, code);
    }
    let long = json!({ "request": "x".repeat(5000) }).to_string();
    server.post("/v1/admin/follow", &headers, long).await.assert_problem(413, "too_large");
    let missing = server.get_with("/v1/channels/:admin/follow/0000000000000000?state", &headers).await;
    assert!(missing.assert_problem(404, "not_found").contains("/v1/admin/follow"));
    let mut page = session(&server, &operator(60)).await;
    assert_eq!(subscribe(&mut page, ":admin/follow/0000000000000000").await["error"]["code"], "not_found");
    // Each view has a limit, and so has their number.
    for limit in 1..=64 {
        follow(&server, &format!("channels?limit={limit}")).await;
    }
    let detail = follow_with(&server, &headers, "channels?limit=65").await.assert_problem(429, "too_many");
    assert!(detail.contains("64"), "{detail}");
    follow(&server, "channels?limit=64").await;
}

#[tokio::test]
async fn view_without_reader_ends() {
    let server = start();
    let channel = follow(&server, "config").await;
    let page = Page::open(&server, &channel).await;
    drop(page);
    let bearer = format!("Bearer {}", operator(60));
    let headers = [("authorization", bearer.as_str())];
    let path = format!("/v1/channels/{channel}?state");
    assert_eq!(server.get_with(&path, &headers).await.status, 200, "a page may come back");
    until("the view has ended", async || server.get_with(&path, &headers).await.status == 404).await;
    assert_ne!(follow(&server, "config").await, channel);
}

/// On an open server on loopback, the pages of this server are those of an operator. No other page is.
#[tokio::test]
async fn own_pages_of_open_loopback_server_are_operators() {
    let server = Server::start();
    let own = server.address.to_string();
    let origin = format!("http://{own}");
    let channel = {
        let answer = follow_with(&server, &[("origin", &origin)], "overview").await;
        answer.json()["channel"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
    };
    let port = server.address.port();
    let other_port = format!("http://127.0.0.1:{}", if port == 1 { 2 } else { port - 1 });
    let (localhost, rebound) = (format!("localhost:{port}"), format!("evil.example:{port}"));
    let of_localhost = format!("http://{localhost}");
    let read = "/v1/admin/overview";
    for (headers, status) in [
        (vec![("sec-fetch-site", "same-origin")], 200),
        (vec![("origin", origin.as_str())], 200),
        (vec![("origin", origin.as_str()), ("sec-fetch-site", "same-origin")], 200),
        (vec![("host", localhost.as_str()), ("origin", of_localhost.as_str())], 200),
        // Programs, other pages of this machine, pages that a user opened by a link, and pages behind a proxy.
        (vec![], 401),
        (vec![("sec-fetch-site", "none")], 401),
        (vec![("sec-fetch-site", "same-site")], 401),
        (vec![("sec-fetch-site", "cross-site")], 401),
        (vec![("origin", other_port.as_str())], 401),
        (vec![("origin", origin.as_str()), ("sec-fetch-site", "same-site")], 401),
        (vec![("host", localhost.as_str()), ("origin", origin.as_str())], 401),
        (vec![("origin", origin.as_str()), ("x-forwarded-for", "192.0.2.1")], 401),
        (vec![("sec-fetch-site", "same-origin"), ("via", "1.1 proxy")], 401),
        // A name without a dot is allowed, but it is no loopback name.
        (vec![("host", "mybox"), ("sec-fetch-site", "same-origin")], 401),
        (vec![("origin", "https://evil.example")], 403),
        // DNS rebinding: a foreign name that resolves to this machine.
        (vec![("host", rebound.as_str()), ("sec-fetch-site", "same-origin")], 403),
        (vec![("host", rebound.as_str()), ("origin", "http://evil.example")], 403),
    ] {
        let answer = server.get_with(read, &headers).await;
        assert_eq!(answer.status.as_u16(), status, "{headers:?}: {}", answer.text());
    }
    let offers = [PROTOCOL.to_owned()];
    for (origin, code) in
        [(Some(origin.as_str()), None), (None, Some("unauthorized")), (Some(other_port.as_str()), Some("unauthorized"))]
    {
        let mut socket = open(&server, "/v1/connect", &offers, origin).await.expect("a session");
        let reply = subscribe(&mut socket, &channel).await;
        assert_eq!(reply["error"]["code"].as_str(), code, "{origin:?}: {reply}");
    }
    // Only on loopback, and only without tokens.
    let waived = Server::with(|config| {
        config.server.listen = "0.0.0.0:0".parse().expect("an address");
        config.server.insecure_no_auth = true;
        config.server.insecure_no_tls = true;
    });
    let local = format!("127.0.0.1:{}", waived.address.port());
    let sent = waived.http.get(format!("http://{local}{read}")).header("origin", format!("http://{local}")).send();
    Answer::read(within(sent).await.expect("an answer")).await.assert_problem(401, "unauthorized");
    for server in [start(), Server::with(|config| config.server.behind_proxy = true)] {
        let own = format!("http://{}", server.address);
        let headers = [("origin", own.as_str()), ("sec-fetch-site", "same-origin")];
        server.get_with(read, &headers).await.assert_problem(401, "unauthorized");
    }
}

#[tokio::test]
async fn node_is_described_with_its_threads_and_events() {
    let server = start();
    let bearer = format!("Bearer {}", operator(60));
    let get = async |path: &str| {
        let answer = server.get_with(&format!("/v1/admin/{path}"), &[("authorization", &bearer)]).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    };
    let nodes = get("nodes").await;
    let node = &nodes["nodes"][0];
    assert_eq!((&node["is_self"], &node["draining"], &node["engine"]), (&json!(true), &json!(false), &json!("memory")));
    assert!(node["engine_up"] == true && node["engine_round_trip_ms"].is_number(), "{node}");
    assert_eq!(node["round_trip_ms"], Value::Null, "this node asks no other");
    let events = get("events").await;
    let started = &events["events"][0];
    assert_eq!((&started["kind"], &started["node"]), (&json!("started"), &node["node"]), "{events}");
    assert!(started["text"].as_str().is_some_and(|text| text.contains("2 shards, engine memory")), "{started}");
    for pings in 1..=3 {
        let mut socket = session(&server, &token("ann", ALL, "#", 60)).await;
        assert!(command(&mut socket, json!({ "id": pings, "ping": {} })).await["ok"].is_object());
    }
    let channel = follow(&server, "threads").await;
    let mut page = Page::open(&server, &channel).await;
    let name = |thread: &str| format!("{}/{thread}", node["node"].as_str().expect("a name"));
    let shards = ["shard-0", "shard-1"].map(name);
    // Servers of other tests have threads of the same names in this process, and may not have used any CPU time.
    page.until(|rows| {
        let pings =
            shards.iter().map(|shard| rows.get(shard).map_or(0, |row| row["pings_total"].as_u64().unwrap_or(0)));
        let mut admins = rows.iter().filter(|(key, _)| key.starts_with(&name("admin")));
        let is_used = admins.any(|(_, row)| row["cpu"].is_number() && row["cpu_s_total"].as_f64() > Some(0.0));
        let shard = rows.get(&shards[0]);
        let is_measured = shard.is_some_and(|row| row["cpu"].is_number() && row["loop_lag_ms"].is_number());
        pings.sum::<u64>() == 3 && is_used && is_measured
    })
    .await;
}

#[tokio::test]
async fn only_the_named_node_drains() {
    let server = start();
    let bearer = format!("Bearer {}", operator(60));
    let headers = [("authorization", bearer.as_str())];
    let drain = async |body: Value| server.post("/v1/admin/drain", &headers, body.to_string()).await;
    for (body, status, code) in [
        (json!({ "node": "0123456789abcdef" }), 404, "not_found"),
        (json!({ "node": "" }), 404, "not_found"),
        (json!({ "node": 5 }), 400, "bad_json"),
        (json!({}), 400, "bad_json"),
        (json!({ "node": "a", "at_once": true }), 400, "bad_json"),
    ] {
        drain(body).await.assert_problem(status, code);
    }
    let nodes = server.get_with("/v1/admin/nodes", &headers).await.json();
    let node = nodes["nodes"][0]["node"].clone();
    assert_eq!(drain(json!({ "node": node, "cancel": true })).await.json(), json!({ "draining": false }));
    assert_eq!(server.get("/readyz").await.status, 200);
}
