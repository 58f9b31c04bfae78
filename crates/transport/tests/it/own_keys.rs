//! Keys that belong to a subject: in a namespace with `own_keys`, no path publishes with the key of another client.

use millrace_server::config::Secret;
use serde_json::{Value, json};

use crate::{
    client::Session,
    roster::{SECRET, token},
    server::{Server, within},
};

/// Channel of a namespace whose default is `own_keys = true`, and one of a namespace without it.
const OWNED: &str = "chat/1";
const OTHER: &str = "news";

/// Result of a publication: `ok`, or the code of the error.
fn code(answer: &Value) -> String {
    answer["code"].as_str().unwrap_or("ok").to_owned()
}

/// Publishes with a key by a request, a batch and a session, and returns the results.
async fn publish(
    server: &Server,
    bearer: Option<&str>,
    session: &mut Session,
    channel: &str,
    key: &str,
) -> [String; 3] {
    let token: Vec<(&str, &str)> = bearer.map(|bearer| ("authorization", bearer)).into_iter().collect();
    let headers = [&token[..], &[("millrace-key", key)]].concat();
    let post = server.post(&format!("/v1/channels/{channel}"), &headers, "1").await.json();
    let publication = json!({ "channel": channel, "key": key, "data": 1 });
    let batch = server.post("/v1/publish", &token, publication.to_string()).await.json();
    let reply = session.command("publish", publication).await;
    [code(&post), code(&batch["results"][0]["error"]), reply.map_or_else(|error| code(&error), |_| "ok".into())]
}

#[tokio::test]
async fn key_of_a_subject_needs_this_subject() {
    let server = Server::with(|config| config.auth.secret = Secret::from(SECRET));
    let granted = [("publish", "#"), ("subscribe", "#")];
    for (subject, own, foreign) in [
        ("ann", "ann/1", ["bob/1", "ann/x/1", "an/1", "/1"]),
        ("a/b@c.d", "a/b@c.d/1", ["a/1", "a/b@c.d/x/1", "b@c.d/1", "a/b@c/1"]),
    ] {
        let token = token(subject, &granted);
        let bearer = format!("Bearer {token}");
        let mut session =
            Session::open_offering(&server, "/v1/connect", &format!("millrace.v1+json, bearer.{token}")).await;
        for key in [own, "1", "ann.1"] {
            assert_eq!(publish(&server, Some(&bearer), &mut session, OWNED, key).await, ["ok"; 3], "{subject}: {key}");
        }
        for key in foreign {
            assert_eq!(
                publish(&server, Some(&bearer), &mut session, OWNED, key).await,
                ["forbidden"; 3],
                "{subject}: {key}"
            );
            assert_eq!(publish(&server, Some(&bearer), &mut session, OTHER, key).await, ["ok"; 3], "{subject}: {key}");
        }
    }
}

#[tokio::test]
async fn deletion_of_a_key_needs_its_subject() {
    let server = Server::with(|config| config.auth.secret = Secret::from(SECRET));
    let delete = async |subject: &str| {
        let request = server.http.delete(server.url("/v1/channels/chat-lists/members/1?key=ann/1"));
        let response =
            within(request.bearer_auth(token(subject, &[("publish", "#")])).send()).await.expect("an answer");
        response.status().as_u16()
    };
    assert_eq!((delete("bob").await, delete("ann").await), (403, 200));
}

#[tokio::test]
async fn client_without_subject_owns_no_key() {
    let open = Server::start();
    let mut session = Session::open(&open).await;
    assert_eq!(publish(&open, None, &mut session, OWNED, "ann/1").await, ["forbidden"; 3]);
    assert_eq!(publish(&open, None, &mut session, OWNED, "ann.1").await, ["ok"; 3]);
    let free = Server::with(|config| config.namespaces.entry("chat".into()).or_default().own_keys = Some(false));
    let mut session = Session::open(&free).await;
    assert_eq!(publish(&free, None, &mut session, OWNED, "ann/1").await, ["ok"; 3]);
}
