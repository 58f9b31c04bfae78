//! Publishers and viewers over HTTP: who may begin a session, and who owns it.

use std::time::Instant;

use millrace_server::config::Secret;
use millrace_sfu::{MediaClient, MediaKind};
use serde_json::json;

use crate::{
    rooms::{SECRET, ask, token},
    server::{Answer, Server},
};

const SDP: (&str, &str) = ("content-type", "application/sdp");

async fn begin(server: &Server, place: &str, token: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    let (sends, receives): (&[_], &[_]) =
        if place == "whip" { (&[MediaKind::Video], &[]) } else { (&[], &[MediaKind::Video]) };
    let (_, offer) = MediaClient::offer("127.0.0.1:9".parse().expect("an address"), sends, receives, Instant::now());
    let headers: &[(&str, &str)] = &[SDP, ("authorization", &bearer)];
    let headers = if token.is_empty() { &headers[..1] } else { headers };
    ask(server, "POST", &format!("/v1/rooms/r/{place}"), headers, offer).await
}

#[tokio::test]
async fn room_with_only_whip_publisher_is_shown() {
    let server = Server::start();
    assert_eq!(server.get("/v1/rooms/r").await.json()["topology"], json!(null));
    let session = begin(&server, "whip", "").await;
    assert_eq!(session.status, 201, "{}", session.text());
    let room = server.get("/v1/rooms/r").await.json();
    assert_eq!((&room["topology"], &room["participants"]), (&json!("switch"), &json!([])));
    assert_eq!(room["switch"].as_array().map(Vec::len), Some(1), "{room}");
    assert_eq!(ask(&server, "DELETE", session.header("location"), &[], String::new()).await.status, 200);
    assert_eq!(server.get("/v1/rooms/r").await.json()["topology"], json!(null));
}

#[tokio::test]
async fn media_session_belongs_to_subject_of_token() {
    let server = Server::with(|config| config.auth.secret = Secret::from(SECRET));
    begin(&server, "whip", "").await.assert_problem(401, "unauthorized");
    begin(&server, "whip", &token("ann", &["subscribe"])).await.assert_problem(403, "forbidden");
    begin(&server, "whep", &token("ann", &["publish"])).await.assert_problem(403, "forbidden");
    assert_eq!(begin(&server, "whep", &token("ann", &["subscribe"])).await.status, 201);
    let session = begin(&server, "whip", &token("ann", &["publish"])).await;
    assert_eq!(session.status, 201, "{}", session.text());
    assert!(session.text().contains("a=ice-lite") && !session.header("etag").is_empty());

    let location = session.header("location");
    let end = async |path: &str, subject: &str| {
        let bearer = format!("Bearer {}", token(subject, &["publish", "subscribe"]));
        ask(&server, "DELETE", path, &[("authorization", &bearer)], String::new()).await
    };
    end(location, "bob").await.assert_problem(404, "not_found");
    end(&location.replace("/r/", "/other/"), "ann").await.assert_problem(404, "not_found");
    ask(&server, "DELETE", location, &[], String::new()).await.assert_problem(404, "not_found");
    assert_eq!(end(location, "ann").await.status, 200);
    end(location, "ann").await.assert_problem(404, "not_found");
}
