//! The admin listener.

use millrace_server::config::Secret;
use serde_json::json;

use super::{ALL, SECRET, close_code, session, start_with, token};
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
