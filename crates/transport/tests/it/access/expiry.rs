//! Open connections whose token expires, is revoked or is refreshed, and resume tickets of another token.

use std::time::Duration;

use futures_util::StreamExt as _;
use millrace_protocol::{
    Since,
    session::{Policy, Subscription, Target},
    ticket::TicketKey,
};
use millrace_server::config::Secret;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;

use super::{ALL, NDJSON, SSE, command, now_s, open, receive, session, start_with, token};
use crate::server::{Answer, Server, client, until, within};

/// Maximum time until an expiry or a revocation has closed the open connections: one second, plus a margin for a busy
/// machine.
const SOON: Duration = Duration::from_secs(10);

/// Opens one reader of each long-lived kind with this token. Returns their names and tasks; each task returns how its
/// connection ended.
async fn open_all(server: &Server, token: &str) -> Vec<(&'static str, JoinHandle<String>)> {
    let mut readers: Vec<(&'static str, JoinHandle<String>)> = Vec::new();
    for (name, http2, accept) in [
        ("SSE", false, SSE),
        ("NDJSON", false, NDJSON),
        ("SSE over HTTP/2", true, SSE),
        ("NDJSON over HTTP/2", true, NDJSON),
    ] {
        let request = client(http2).get(server.url("/v1/channels/live")).header("accept", accept);
        let response = within(request.bearer_auth(token).send()).await.expect("an answer");
        assert_eq!(response.status(), 200, "{name}");
        readers.push((name, tokio::spawn(async move { response.text().await.unwrap_or_default() })));
    }
    let poll = client(false).get(server.url("/v1/channels/live?wait=30")).bearer_auth(token);
    readers
        .push(("long poll", tokio::spawn(async move { poll.send().await.expect("an answer").status().to_string() })));
    let bare = ["millrace.bare".to_owned(), format!("bearer.{token}")];
    let own = ["millrace.v1+json".to_owned(), format!("bearer.{token}")];
    for (name, path, offers) in [("bare", "/v1/channels/live", bare), ("session", "/v1/connect", own)] {
        let mut socket = open(server, path, &offers, None).await.expect(name);
        readers.push((
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
    readers
}

async fn all_end(readers: Vec<(&'static str, JoinHandle<String>)>, code: u16, polls: &str) {
    for (name, ending) in readers {
        let last = tokio::time::timeout(SOON, ending).await.unwrap_or_else(|_| panic!("{name} goes on")).expect(name);
        let is_expected = match name {
            "bare" | "session" => last == format!("closed {code}"),
            "long poll" => last.starts_with(polls),
            _ => last.contains("denied") && last.contains("unauthorized"),
        };
        assert!(is_expected, "{name} ended with: {last}");
    }
}

#[tokio::test]
async fn open_connections_end_when_token_expires() {
    let server = start_with(|config| config.auth.leeway = Duration::ZERO);
    let token = token("ann", ALL, "#", 4);
    let readers = open_all(&server, &token).await;
    all_end(readers, 4001, "204").await;
    let again = server.get_with("/v1/channels/live", &[("authorization", &format!("Bearer {token}"))]).await;
    again.assert_problem(401, "unauthorized");
}

#[tokio::test]
async fn open_connections_end_when_token_is_revoked() {
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
    assert!(of_bob.iter().all(|(_, ending)| !ending.is_finished()), "connections of other subjects stay open");
    let bearer = format!("Bearer {ann}");
    server.get_with("/v1/channels/live", &[("authorization", &bearer)]).await.assert_problem(401, "unauthorized");
    of_bob.iter().for_each(|(_, ending)| ending.abort());
}

#[tokio::test]
async fn refresh_ends_subscriptions_without_permission() {
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
    assert_eq!(receive(&mut socket).await["channel"], "a/b", "it lives on, and hears no more of what it lost");
    let refused = command(&mut socket, json!({ "id": 13, "history": { "channel": "a/b" } })).await;
    assert_eq!(refused["error"]["code"], "forbidden", "what the new token lacks: {refused}");
}

#[tokio::test]
async fn replayed_ticket_grants_nothing_beyond_the_token() {
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
        let connected = receive(&mut socket).await;
        let first = receive(&mut socket).await;
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
