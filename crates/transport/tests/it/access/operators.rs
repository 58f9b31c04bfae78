//! Operator requests on both doors: who may send them, what they list and change, and bad input.

use std::time::Duration;

use millrace_server::{
    auth::{self, ApiKey, Rights, SigningKey},
    config::Secret,
};
use serde_json::{Value, json};

use super::{ALL, JSON, NDJSON, SECRET, SSE, close_code, command, now_s, open, receive, session, start_with, token};
use crate::server::{Answer, Server, client, until, within};

const ADMIN: &str = "sixteen bytes or more";

/// Returns a server with both doors, whose tokens expire without leeway.
fn start() -> Server {
    start_with(|config| {
        config.admin.listen = "127.0.0.1:0".into();
        config.admin.token = Secret::from(ADMIN);
        config.auth.leeway = Duration::ZERO;
    })
}

fn operator(seconds: u64) -> String {
    let claims = json!({ "sub": "operator", "exp": now_s() + seconds, "millrace": { "admin": true } });
    SigningKey::parse(SECRET.as_bytes()).expect("a key").sign(&claims, None).expect("a token")
}

/// Sends an operator request to the client port: GET without a body, otherwise POST.
async fn ask(server: &Server, token: &str, path: &str, body: Option<&str>) -> Answer {
    let url = server.url(&format!("/v1/admin/{path}"));
    let request = match body {
        None => client(false).get(url),
        Some(body) => client(false).post(url).body(body.to_owned()),
    };
    let request = if token.is_empty() { request } else { request.bearer_auth(token) };
    Answer::read(within(request.send()).await.expect("an answer")).await
}

async fn list(server: &Server, path: &str) -> Value {
    let answer = ask(server, &operator(60), path, None).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

async fn change(server: &Server, path: &str, body: Value) -> Value {
    let answer = ask(server, &operator(60), path, Some(&body.to_string())).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

async fn publish(server: &Server, channel: &str) {
    let bearer = format!("Bearer {}", token("writer", ALL, "#", 60));
    server.publish_with(channel, &[("authorization", &bearer)], "0123456789").await;
}

fn names(list: &Value) -> Vec<&str> {
    list["channels"].as_array().expect("channels").iter().map(|row| row["channel"].as_str().expect("a name")).collect()
}

#[tokio::test]
async fn only_admin_tokens_send_operator_requests() {
    let key = auth::generate_api_key().expect("randomness");
    let server = start_with(|config| {
        config.auth.leeway = Duration::ZERO;
        let grants = Rights { admin: true, ..Rights::default() };
        let sha256 = auth::encode_hash(&auth::hash_api_key(&key));
        config.auth.api_keys.insert("back-end".into(), ApiKey { sha256, grants });
    });
    for (path, body) in [("channels", None), ("connections", None), ("config", None), ("nothing", None)]
        .into_iter()
        .chain(["disconnect", "unsubscribe", "revoke", "refresh"].map(|path| (path, Some("{\"sub\":\"ann\"}"))))
    {
        ask(&server, "", path, body).await.assert_problem(401, "unauthorized");
        let all = token("ann", ALL, "#", 60);
        let detail = ask(&server, &all, path, body).await.assert_problem(403, "forbidden");
        assert!(detail.contains("admin"), "{detail}");
        ask(&server, "mrk_forged", path, body).await.assert_problem(401, "unauthorized");
    }
    let short = operator(1);
    until("the token has expired", async || ask(&server, &short, "config", None).await.status == 401).await;
    ask(&server, &short, "channels", None).await.assert_problem(401, "unauthorized");
    for token in [operator(60), key] {
        let config = ask(&server, &token, "config", None).await;
        assert_eq!(config.json()["auth"]["secret"], "(hidden)");
        assert_eq!(config.header("cache-control"), "no-store");
        let bearer = format!("Bearer {token}");
        let read = server.get_with("/v1/channels/a", &[("authorization", &bearer)]).await;
        assert!(read.assert_problem(403, "forbidden").contains("subscribe"), "`admin` permits nothing on channels");
    }
}

/// An operator needs the server most while the app's back end does not answer.
#[tokio::test]
async fn operators_do_not_depend_on_the_back_end() {
    let server = start_with(|config| {
        config.hooks.secrets = vec![Secret::from("a secret of hooks")];
        config.hooks.connect = "http://127.0.0.1:1/hooks".into();
    });
    let bearer = format!("Bearer {}", token("ann", ALL, "#", 60));
    let read = server.get_with("/v1/channels/a", &[("authorization", &bearer)]).await;
    read.assert_problem(503, "unavailable");
    assert_eq!(names(&list(&server, "channels").await), Vec::<&str>::new());
}

/// On an open server every client may read and publish everything, but none may send operator requests to its port.
#[tokio::test]
async fn open_server_takes_operator_requests_only_on_its_listener() {
    let server = Server::with(|config| {
        config.admin.listen = "127.0.0.1:0".into();
        config.admin.token = Secret::from(ADMIN);
    });
    server.publish("a", "x").await;
    ask(&server, "", "channels", None).await.assert_problem(401, "unauthorized");
    ask(&server, ADMIN, "channels", None).await.assert_problem(401, "unauthorized");
    for folder in ["admin", "v1/admin"] {
        let url = format!("http://{}/{folder}/channels", server.admin());
        let answer = Answer::read(within(client(false).get(url).bearer_auth(ADMIN).send()).await.unwrap()).await;
        assert_eq!(names(&answer.json()), ["a"], "{folder}");
    }
    let url = format!("http://{}/admin/channels", server.admin());
    let posted = Answer::read(within(client(false).post(url).bearer_auth(ADMIN).send()).await.unwrap()).await;
    posted.assert_problem(405, "method_not_allowed");
    assert_eq!(posted.header("allow"), "GET");
}

#[tokio::test]
async fn channels_are_paged_and_filtered_with_readers_and_rates() {
    let server = start();
    for channel in ["cars/2", "cars/1", "cars", "news/x", "a.b:c"] {
        publish(&server, channel).await;
    }
    publish(&server, "cars/1").await;
    let mut reader = session(&server, &token("ann", ALL, "#", 60)).await;
    for (id, channel) in (1..).zip(["cars/1", "cars/+"]) {
        assert!(command(&mut reader, json!({ "id": id, "subscribe": { "channel": channel } })).await["ok"].is_object());
    }
    let all = list(&server, "channels").await;
    assert_eq!((names(&all), &all["more"]), (vec!["a.b:c", "cars", "cars/1", "cars/2", "news/x"], &json!(false)));
    assert!(all.get("missing").is_none());
    let car = &all["channels"][2];
    assert_eq!(car["readers"], 1, "{car}");
    assert!(car["position"].as_str().is_some_and(|position| position.ends_with(":2")), "{car}");
    assert_eq!((&car["publications_per_s"], &car["bytes_per_s"]), (&json!(0.2), &json!(2.0)), "in ten seconds: {car}");
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = list(&server, &format!("channels?limit=2{after}")).await;
        seen.extend(names(&page).into_iter().map(str::to_owned));
        if page["more"] == false {
            break;
        }
        after = format!("&after={}", seen.last().expect("a page with more is not empty"));
    }
    assert_eq!(seen, names(&all));
    for (filter, found) in [
        ("namespace=cars", vec!["cars", "cars/1", "cars/2"]),
        ("pattern=cars/%2B", vec!["cars/1", "cars/2"]),
        ("pattern=cars/1", vec!["cars/1"]),
        ("namespace=nothing", vec![]),
        ("pattern=:millrace/%23", vec![]),
        ("after=cars/1x", vec!["cars/2", "news/x"]),
        ("after=zzz", vec![]),
    ] {
        assert_eq!(names(&list(&server, &format!("channels?{filter}")).await), found, "{filter}");
    }
}

#[tokio::test]
async fn connections_are_filtered_and_show_subscriptions() {
    let server = start();
    let (ann, bob) = (token("ann", ALL, "#", 60), token("bob", ALL, "#", 60));
    let mut socket = session(&server, &ann).await;
    for (id, channel) in (1..).zip(["live", "cars/+"]) {
        assert!(command(&mut socket, json!({ "id": id, "subscribe": { "channel": channel } })).await["ok"].is_object());
    }
    let mut streams = Vec::new();
    for (http2, accept) in [(false, SSE), (true, NDJSON)] {
        let request = client(http2).get(server.url("/v1/channels/live")).header("accept", accept);
        streams.push(within(request.bearer_auth(&bob).send()).await.expect("a stream"));
    }
    let all = list(&server, "connections").await;
    assert_eq!(all["connections"].as_array().map(Vec::len), Some(3), "{all}");
    let found = async |filter: &str| -> Vec<String> {
        let list = list(&server, &format!("connections?{filter}")).await;
        let rows = list["connections"].as_array().expect("connections").iter();
        let mut found: Vec<String> = rows
            .map(|row| format!("{}/{}", row["subject"].as_str().unwrap(), row["transport"].as_str().unwrap()))
            .collect();
        found.sort();
        found
    };
    let every = ["ann/websocket", "bob/sse", "bob/stream"];
    for (filter, expected) in [
        ("channel=live", &every[..]),
        ("channel=cars/7", &every[..1]),
        ("channel=cars/%2B", &every[..1]),
        ("channel=cars/%23", &[]),
        ("transport=stream", &every[2..]),
        ("transport=data-channel", &[]),
        ("subject=bob&transport=sse", &every[1..2]),
        ("subject=", &[]),
        ("address=127.0.0.1&transport=websocket", &every[..1]),
        ("address=::1", &[]),
    ] {
        assert_eq!(found(filter).await, expected, "{filter}");
    }
    let own = &list(&server, "connections?subject=ann").await["connections"][0];
    let mut subscriptions: Vec<&str> =
        own["subscriptions"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
    subscriptions.sort_unstable();
    assert_eq!((subscriptions, &own["subscriptions_total"]), (vec!["cars/+", "live"], &json!(2)));
    assert_eq!(found(&format!("id={}", own["id"].as_str().unwrap())).await, &every[..1]);
    assert_eq!(found("id=0123456789abcdef-0-0-1").await, Vec::<String>::new(), "another node");
    let mut paged = Vec::new();
    let mut after = String::new();
    for expects_more in [true, true, false] {
        let page = list(&server, &format!("connections?limit=1{after}")).await;
        assert_eq!(page["more"], expects_more);
        paged.push(page["connections"][0].clone());
        after = format!("&after={}", page["connections"][0]["id"].as_str().unwrap());
    }
    assert_eq!(Value::from(paged), all["connections"]);
}

#[tokio::test]
async fn unsubscribed_session_goes_on_and_streams_end() {
    let server = start();
    let (ann, bob) = (token("ann", ALL, "#", 60), token("bob", ALL, "#", 60));
    let mut socket = session(&server, &ann).await;
    for (id, channel) in (1..).zip(["live", "other", "cars/+"]) {
        assert!(command(&mut socket, json!({ "id": id, "subscribe": { "channel": channel } })).await["ok"].is_object());
    }
    let stream = |channels: &str| {
        let request = client(false).get(server.url(&format!("/v1/stream?{channels}"))).header("accept", SSE);
        request.bearer_auth(&bob).send()
    };
    let (ends, stays) =
        (within(stream("channel=live&channel=x")).await.unwrap(), within(stream("channel=x")).await.unwrap());
    let offers = ["millrace.bare".to_owned(), format!("bearer.{bob}")];
    let mut bare = open(&server, "/v1/channels/live", &offers, None).await.expect("a WebSocket");

    assert_eq!(change(&server, "unsubscribe", json!({ "channel": "live", "subject": "eve" })).await["unsubscribed"], 0);
    assert_eq!(
        change(&server, "unsubscribe", json!({ "channel": "cars/7" })).await["unsubscribed"],
        0,
        "not by its name"
    );
    assert_eq!(change(&server, "unsubscribe", json!({ "channel": "live" })).await["unsubscribed"], 3);
    let push = receive(&mut socket).await;
    let expected = json!({
        "push": "unsubscribed", "channel": "live", "code": "forbidden", "retry": false,
        "detail": "an operator has ended this subscription",
    });
    assert_eq!(push, expected);
    let last = within(ends.text()).await.expect("the stream ends");
    assert!(last.contains("event: denied") && last.contains("forbidden"), "{last}");
    assert_eq!(close_code(&mut bare).await, 4003);

    assert_eq!(
        change(&server, "unsubscribe", json!({ "channel": "cars/+", "transport": "websocket" })).await["unsubscribed"],
        1
    );
    assert_eq!(receive(&mut socket).await["channel"], "cars/+");
    for channel in ["live", "cars/7", "other"] {
        publish(&server, channel).await;
    }
    assert_eq!(receive(&mut socket).await["channel"], "other", "the session reads what is left");
    assert!(command(&mut socket, json!({ "id": 9, "subscribe": { "channel": "live" } })).await["ok"].is_object());
    let connections = list(&server, "connections?subject=bob").await;
    assert_eq!(connections["connections"][0]["subscriptions"], json!(["x"]));
    drop(stays);
}

#[tokio::test]
async fn refresh_shortens_lifetime_until_new_token() {
    let server = start();
    let (mut renews, mut stays) =
        (session(&server, &token("ann", ALL, "#", 600)).await, session(&server, &token("ann", ALL, "#", 600)).await);
    let request = client(false).get(server.url("/v1/channels/live")).header("accept", NDJSON);
    let stream = within(request.bearer_auth(token("ann", ALL, "#", 600)).send()).await.expect("a stream");
    assert_eq!(change(&server, "refresh", json!({ "subject": "eve" })).await["refreshed"], 0);
    assert_eq!(change(&server, "refresh", json!({ "subject": "ann", "within_s": 2 })).await["refreshed"], 3);
    for socket in [&mut renews, &mut stays] {
        let push = receive(socket).await;
        assert_eq!(push["push"], "refresh");
        assert!(push["expires_ms"].as_u64().is_some_and(|ms| ms <= 2000), "{push}");
    }
    let fresh = json!({ "id": 1, "refresh": { "token": token("ann", ALL, "#", 600) } });
    assert!(command(&mut renews, fresh).await["ok"]["expires_ms"].as_u64().is_some_and(|ms| ms > 500_000));
    assert_eq!(close_code(&mut stays).await, 4001);
    let last = within(stream.text()).await.expect("the stream ends");
    assert!(last.contains("denied") && last.contains("unauthorized"), "{last}");
    let left = list(&server, "connections?subject=ann").await;
    assert_eq!(left["connections"].as_array().map(Vec::len), Some(1), "{left}");
    assert_eq!(change(&server, "disconnect", json!({ "channel": "live" })).await["disconnected"], 0);
    assert_eq!(change(&server, "disconnect", json!({ "transport": "websocket" })).await["disconnected"], 1);
    assert_eq!(close_code(&mut renews).await, 4003);
}

#[tokio::test]
async fn revocation_survives_restart_with_engine_on_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}/data.db", folder.path().display());
    let start = || start_with(|config| config.engine.url.clone_from(&url));
    let (ann, bob) = (token("ann", ALL, "#", 60), token("bob", ALL, "#", 60));
    let read = async |server: &Server, token: &str| {
        server.get_with("/v1/channels/a", &[("authorization", &format!("Bearer {token}"))]).await.status
    };
    {
        let server = start();
        assert_eq!(change(&server, "revoke", json!({ "sub": "ann" })).await, json!({ "revoked": true }));
        assert_eq!((read(&server, &ann).await.as_u16(), read(&server, &bob).await.as_u16()), (401, 204));
    }
    let server = start();
    assert_eq!((read(&server, &ann).await.as_u16(), read(&server, &bob).await.as_u16()), (401, 204));
    assert_eq!(names(&list(&server, "channels").await), Vec::<&str>::new(), "the server's own channel is not listed");
}

/// Revocations name subjects and tokens, so no client may read or forge them.
#[tokio::test]
async fn no_client_may_use_internal_channels() {
    let server = start();
    let token = token("ann", ALL, "#", 60);
    let bearer = format!("Bearer {token}");
    let mut socket = session(&server, &token).await;
    assert!(command(&mut socket, json!({ "id": 1, "subscribe": { "channel": "#" } })).await["ok"].is_object());
    change(&server, "revoke", json!({ "jti": "secret-id" })).await;
    publish(&server, "a").await;
    assert_eq!(receive(&mut socket).await["channel"], "a", "a pattern does not deliver them");
    for path in [
        "/v1/channels/:millrace/revocations",
        "/v1/channels/:millrace/revocations?since=earliest&until=now",
        "/v1/presence/:millrace/revocations",
        "/v1/stream?channel=:millrace/revocations",
    ] {
        server.get_with(path, &[("authorization", &bearer)]).await.assert_problem(403, "forbidden");
    }
    let forged = server.post("/v1/channels/:millrace/revocations", &[("authorization", &bearer)], "{}").await;
    forged.assert_problem(403, "forbidden");
    for (id, channel) in (2..).zip([":millrace/revocations", ":millrace/#"]) {
        let reply = command(&mut socket, json!({ "id": id, "subscribe": { "channel": channel } })).await;
        assert_eq!(reply["error"]["code"], "forbidden", "{channel}");
    }
}

#[tokio::test]
async fn bad_operator_requests_are_refused() {
    let server = start();
    let operator = operator(60);
    let long = "x".repeat(256);
    for (path, body, status, code) in [
        ("channels?limit=0", None, 400, "bad_request"),
        ("channels?limit=1001", None, 400, "bad_request"),
        ("channels?limit=99999999999999999999999", None, 400, "bad_request"),
        ("channels?limit=-1", None, 400, "bad_request"),
        ("channels?limit=", None, 400, "bad_request"),
        ("channels?limit=1&limit=2", None, 400, "bad_request"),
        ("channels?patern=a", None, 400, "bad_request"),
        ("channels?pattern=a&namespace=a", None, 400, "bad_request"),
        ("channels?namespace=a/b", None, 400, "bad_request"),
        ("channels?namespace=", None, 400, "bad_channel"),
        ("channels?pattern=%3Cscript%3E", None, 400, "bad_channel"),
        ("channels?pattern=a/%23/b", None, 400, "bad_channel"),
        ("channels?after=%3Cb%3E", None, 400, "bad_channel"),
        ("channels?after=a/%2B", None, 400, "bad_channel"),
        (&format!("channels?after={long}"), None, 400, "bad_channel"),
        ("connections?limit=0", None, 400, "bad_request"),
        ("connections?limit=1001", None, 400, "bad_request"),
        ("connections?after=1-2-3", None, 400, "bad_request"),
        ("connections?after=ab-1-2-99999999999", None, 400, "bad_request"),
        ("connections?after=%3Cscript%3E", None, 400, "bad_request"),
        ("connections?id=../../etc", None, 400, "bad_request"),
        ("connections?address=127.0.0.1:80", None, 400, "bad_request"),
        ("connections?transport=pigeon", None, 400, "bad_request"),
        ("connections?channel=a%20b", None, 400, "bad_channel"),
        ("connections?channel=a&channel=b", None, 400, "bad_request"),
        ("connections?colour=red", None, 400, "bad_request"),
        ("config?x=1", None, 400, "bad_request"),
        ("config/", None, 404, "not_found"),
        ("", None, 404, "not_found"),
        ("disconnect", None, 405, "method_not_allowed"),
        ("channels", Some("{}"), 405, "method_not_allowed"),
        ("disconnect", Some(""), 400, "bad_json"),
        ("disconnect", Some("[]"), 400, "bad_json"),
        ("disconnect", Some("{\"subject\": 1}"), 400, "bad_json"),
        ("disconnect", Some("{\"subjekt\": \"ann\"}"), 400, "bad_json"),
        ("disconnect", Some("{\"subject\": \"ann\", \"within_s\": 5}"), 400, "bad_json"),
        ("disconnect", Some("{}"), 400, "bad_request"),
        ("disconnect", Some("{\"id\": \"1-2-3\"}"), 400, "bad_request"),
        ("disconnect?all=yes", Some("{\"subject\": \"ann\"}"), 400, "bad_request"),
        ("unsubscribe", Some("{\"subject\": \"ann\"}"), 400, "bad_request"),
        ("unsubscribe", Some("{\"channel\": \"<img src=x>\"}"), 400, "bad_channel"),
        ("refresh", Some("{\"within_s\": 5}"), 400, "bad_request"),
        ("refresh", Some("{\"subject\": \"ann\", \"within_s\": -5}"), 400, "bad_request"),
        ("revoke", Some("{}"), 400, "bad_request"),
        ("revoke", Some("{\"jti\": \"a\", \"sub\": \"b\"}"), 400, "bad_request"),
        ("revoke", Some("{\"jti\": null}"), 400, "bad_request"),
        ("revoke", Some("{\"id\": \"a\"}"), 400, "bad_json"),
    ] {
        let answer = ask(&server, &operator, path, body).await;
        assert_eq!(answer.status, status, "{path} {body:?}: {}", answer.text());
        let detail = answer.assert_problem(status, code);
        assert!(!detail.contains('<'), "{path}: input is not repeated: {detail}");
    }
    let large = format!("{{\"subject\": \"{}\"}}", "x".repeat(5000));
    ask(&server, &operator, "disconnect", Some(&large)).await.assert_problem(413, "too_large");
    let other = client(false).delete(server.url("/v1/admin/channels")).bearer_auth(&operator).send();
    let other = Answer::read(within(other).await.unwrap()).await;
    other.assert_problem(405, "method_not_allowed");
    assert_eq!(other.header("allow"), "GET");
    let json = server.post("/v1/channels/a", &[("content-type", JSON)], "1").await;
    json.assert_problem(401, "unauthorized");
}

/// A list never blocks a shard: it is made on a thread of its own, and its pages are bounded.
#[tokio::test]
async fn many_channels_are_listed_in_bounded_pages() {
    const CHANNELS: usize = 5000;
    let server = start();
    let bearer = format!("Bearer {}", token("writer", ALL, "#", 60));
    for batch in 0..CHANNELS / 1000 {
        let line =
            |i: usize| json!({ "channel": format!("many/{:05}", batch * 1000 + i), "data": i }).to_string() + "\n";
        let lines: String = (0..1000).map(line).collect();
        let answer = server.post("/v1/publish", &[("authorization", &bearer)], lines).await;
        assert!(!answer.text().contains("error"), "{}", answer.text());
    }
    let (mut seen, mut after) = (0, String::new());
    loop {
        let page = list(&server, &format!("channels?limit=1000{after}")).await;
        for name in names(&page) {
            assert_eq!(name, format!("many/{seen:05}"));
            seen += 1;
        }
        if page["more"] == false {
            break;
        }
        after = format!("&after=many/{:05}", seen - 1);
    }
    assert_eq!(seen, CHANNELS);
}

#[tokio::test]
async fn disconnected_stream_ends() {
    let server = start();
    let request = client(false).get(server.url("/v1/channels/live")).header("accept", NDJSON);
    let response = within(request.bearer_auth(token("ann", ALL, "#", 60)).send()).await.expect("a stream");
    assert_eq!(change(&server, "disconnect", json!({ "subject": "ann" })).await["disconnected"], 1);
    let last = within(response.text()).await.expect("the stream ends");
    assert!(last.contains("denied") && last.contains("unauthorized"), "{last}");
}
