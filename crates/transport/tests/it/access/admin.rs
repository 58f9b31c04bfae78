//! The admin listener.

use millrace_server::config::Secret;
use serde_json::{Value, json};

use super::{ALL, SECRET, close_code, command, open_at, receive, session, start_with, token};
use crate::server::{Answer, client, within};

#[tokio::test]
async fn admin_lists_and_closes_connections_without_secrets() {
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

/// A page of the admin listener has everything that it needs on that port.
#[tokio::test]
async fn admin_listener_serves_pages_and_sessions() {
    const ADMIN: &str = "sixteen-bytes-or-more";
    let server = start_with(|config| {
        config.admin.listen = "127.0.0.1:0".into();
        config.admin.token = Secret::from(ADMIN);
    });
    let get = async |path: &str, headers: &[(&str, &str)]| {
        let mut request = client(false).get(format!("http://{}{path}", server.admin()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::read(within(request.send()).await.expect("an answer")).await
    };
    let page = get("/rooms", &[]).await;
    assert!(page.status == 200 && page.header("content-type").starts_with("text/html"), "{page:?}");
    let bearer = format!("Bearer {ADMIN}");
    let authorized = ("authorization", bearer.as_str());
    get("/v1/channels/a", &[]).await.assert_problem(401, "unauthorized");
    get("/v1/channels/a", &[("authorization", "Bearer sixteen-bytes-or-morf")])
        .await
        .assert_problem(401, "unauthorized");
    let user = format!("Bearer {}", token("ann", ALL, "#", 60));
    get("/v1/channels/a", &[("authorization", &user)]).await.assert_problem(401, "unauthorized");
    get("/v1/channels/a", &[authorized, ("origin", "https://evil.example")]).await.assert_problem(403, "forbidden");
    // The thread of the admin API closes the connection of a browser, whose next request may be another shard's.
    let listed = get("/v1/admin/channels", &[authorized, ("sec-fetch-site", "same-origin")]).await;
    assert_eq!((listed.status.as_u16(), listed.header("connection")), (200, "close"));

    let offers = |token: &str| ["millrace.v1+json".to_owned(), format!("bearer.{token}")];
    for wrong in ["sixteen-bytes-or-morf", &token("ann", ALL, "#", 60)] {
        assert_eq!(open_at(server.admin(), "/v1/connect", &offers(wrong), None).await.err(), Some(401));
    }
    let mut socket = open_at(server.admin(), "/v1/connect", &offers(ADMIN), None).await.expect("a session");
    assert_eq!(receive(&mut socket).await["push"], "connected");
    let sent = client(false).post(format!("http://{}/v1/admin/follow", server.admin()));
    let sent = sent.bearer_auth(ADMIN).body(r#"{"request": "overview"}"#).send();
    let followed = Answer::read(within(sent).await.expect("an answer")).await.json();
    let subscribe = json!({ "id": 1, "subscribe": { "channel": followed["channel"], "since": "state" } });
    assert_eq!(command(&mut socket, subscribe).await["ok"]["channel"], followed["channel"]);
    let published = command(&mut socket, json!({ "id": 2, "publish": { "channel": "a", "data": 1 } })).await;
    assert!(published["ok"]["position"].is_string(), "{published}");
    let row: Value = loop {
        let push = receive(&mut socket).await;
        if push["key"] != "_" && push["data"]["messages_in_total"] == 1 {
            break push["data"].clone();
        }
    };
    assert_eq!(row["connections"]["websocket"], 1, "{row}");
    let read = get("/v1/channels/a?since=earliest", &[authorized]).await;
    assert_eq!(read.json()["messages"][0]["data"], 1, "{read:?}");
}
