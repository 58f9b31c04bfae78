//! The hook `connect`: who the client is, and what it may do.

use serde_json::{Value, json};

use super::{
    assert_refused_answer,
    back_end::{BackEnd, Reply, hook, refuse},
};
use crate::{
    client::{Received, Session},
    server::{Server, within},
};

fn grant(permission: &str, pattern: &str) -> Value {
    json!({ "permission": permission, "pattern": pattern })
}

fn server(back_end: &BackEnd, change: impl FnOnce(&mut millrace_server::Config)) -> Server {
    Server::with(|config| {
        hook(config, back_end, &["connect"]);
        config.server.public_metrics = true;
        change(config);
    })
}

/// Grants what the app's own session cookie or token names.
fn decide(question: &super::back_end::Question) -> Reply {
    let question = question.json();
    let cookie = question["headers"]["cookie"].as_str().unwrap_or_default();
    let name = question["token"].as_str().or(cookie.strip_prefix("session="));
    match name {
        Some("nobody") => refuse(),
        Some(name) => Reply::Json(json!({
            "allow": true, "subject": name, "info": { "name": name },
            "grants": [grant("publish", &format!("rooms-of/{name}/#")), grant("subscribe", "news/#")],
        })),
        None => Reply::Json(json!({ "allow": true })),
    }
}

#[tokio::test]
async fn back_end_authenticates_and_grants() {
    let back_end = BackEnd::start(decide).await;
    let server = server(&back_end, |config| {
        config.hooks.headers = vec!["cookie".into()];
        config.hooks.opaque_tokens = true;
    });
    for header in [("authorization", "Bearer ann"), ("cookie", "session=ann")] {
        assert_eq!(server.post("/v1/channels/rooms-of/ann/1", &[header], "1").await.status, 200, "{header:?}");
        server.post("/v1/channels/rooms-of/bob/1", &[header], "1").await.assert_problem(403, "forbidden");
        assert_eq!(server.get_with("/v1/channels/news/today", &[header]).await.status, 204, "{header:?}");
    }
    assert_refused_answer(&server.get_with("/v1/channels/news", &[("authorization", "Bearer nobody")]).await);
    // With this hook, a client has only what it was granted.
    server.get("/v1/channels/news").await.assert_problem(401, "unauthorized");
    server.post("/v1/channels/a", &[], "1").await.assert_problem(401, "unauthorized");
}

#[tokio::test]
async fn question_hides_verified_tokens() {
    let back_end = BackEnd::start(|_| Reply::Json(json!({ "allow": true }))).await;
    let secret = "a secret of thirty-two bytes or more";
    let server = server(&back_end, |config| config.auth.secret = secret.into());
    let now_s = millrace_transport::access::unix_s();
    let claims = json!({ "sub": "ann", "exp": now_s + 60, "millrace": { "subscribe": ["a"] } });
    let token = millrace_server::auth::SigningKey::parse(secret.as_bytes()).unwrap().sign(&claims, None).unwrap();
    let bearer = format!("Bearer {token}");
    assert_eq!(server.get_with("/v1/channels/a", &[("authorization", &bearer)]).await.status, 204);
    let question = back_end.asked("connect").remove(0);
    assert_eq!((&question["subject"], &question["transport"]), (&json!("ann"), &json!("polling")));
    assert!(question.get("token").is_none() && !question.to_string().contains(&token), "{question}");
    // A token that is not valid is refused before the back end is asked.
    let forged = format!("Bearer {token}x");
    server.get_with("/v1/channels/a", &[("authorization", &forged)]).await.assert_problem(401, "unauthorized");
    assert_eq!(back_end.questions().len(), 1);
}

#[tokio::test]
async fn opaque_token_is_never_allowed_without_an_answer() {
    let back_end = BackEnd::start(|_| Reply::Text("garbage")).await;
    let server = server(&back_end, |config| {
        config.hooks.opaque_tokens = true;
        config.hooks.on_failure = millrace_hooks::OnFailure::Allow;
        let news = config.namespaces.entry("news".into()).or_default();
        news.anonymous = vec![millrace_protocol::Permission::Subscribe];
    });
    assert_eq!(server.get("/v1/channels/news/a").await.status, 204, "without a token, the namespace decides");
    let with_token = server.get_with("/v1/channels/news/a", &[("authorization", "Bearer ann")]).await;
    with_token.assert_problem(503, "unavailable");
}

#[tokio::test]
async fn session_reads_channels_from_its_start() {
    let back_end = BackEnd::start(|_| {
        let grants = [grant("publish", "#"), grant("history", "#")];
        Reply::Json(json!({ "allow": true, "subject": "ann", "subscribe": ["inbox/ann", "news"], "grants": grants }))
    })
    .await;
    let server = server(&back_end, |_| {});
    for mut session in [Session::open(&server).await, Session::open_data_channel(&server, None).await] {
        for channel in ["inbox/ann", "news"] {
            let Received::Reply(reply) = within(session.receive()).await else { panic!("a reply of the server") };
            assert_eq!((&reply["id"], &reply["ok"]["channel"]), (&json!(0), &json!(channel)));
        }
        server.publish("inbox/ann", "\"hello\"").await;
        let push = within(session.push()).await;
        assert_eq!((&push["channel"], &push["data"]), (&json!("inbox/ann"), &json!("hello")));
        // The client continues from a position of its own.
        let before = push["position"].as_str().expect("a position").rsplit_once(':').expect("an offset").0.to_owned();
        session.subscribe("inbox/ann", &format!("{before}:0"), "every").await;
        assert_eq!(within(session.push()).await["channel"], "inbox/ann");
    }
}

#[tokio::test]
async fn expiry_of_the_answer_ends_the_connection() {
    let expires_s = millrace_transport::access::unix_s() + 2;
    let back_end = BackEnd::start(move |_| {
        Reply::Json(json!({ "allow": true, "expires_s": expires_s, "grants": [grant("subscribe", "a")] }))
    })
    .await;
    let server = server(&back_end, |_| {});
    let mut session = Session::open(&server).await;
    assert!(session.connected["expires_ms"].as_u64().is_some_and(|ms| ms <= 2000), "{}", session.connected);
    loop {
        match within(session.receive()).await {
            Received::Closed(code) => break assert_eq!(code, Some(4001)),
            Received::Push(_) | Received::Reply(_) | Received::Ping => {}
        }
    }
    back_end.answer(|_| Reply::Json(json!({ "allow": true, "expires_s": 1 })));
    server.get("/v1/channels/a").await.assert_problem(401, "unauthorized");
}

#[tokio::test]
async fn refresh_asks_again() {
    let back_end = BackEnd::start(|question| {
        let token = question.json()["token"].as_str().unwrap_or_default().to_owned();
        let pattern = if token == "first" { "#" } else { "kept" };
        Reply::Json(json!({ "allow": true, "subject": "ann", "grants": [grant("subscribe", pattern)] }))
    })
    .await;
    let server = server(&back_end, |config| config.hooks.opaque_tokens = true);
    let mut session = Session::open_offering(&server, "/v1/connect", "millrace.v1+json, bearer.first").await;
    for channel in ["kept", "lost"] {
        session.command("subscribe", json!({ "channel": channel })).await.expect("a subscription");
    }
    let refreshed = session.command("refresh", json!({ "token": "second" })).await.expect("a reply");
    assert_eq!(refreshed["unsubscribed"], json!(["lost"]));
    let asked = back_end.asked("connect");
    assert!(asked[1]["connection"].is_string() && asked[1]["transport"] == "session", "{asked:?}");
}
