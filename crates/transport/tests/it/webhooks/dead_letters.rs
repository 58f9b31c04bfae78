//! Events that the back end rejects, and their replay.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use http::StatusCode;
use millrace_server::Config;
use serde_json::{Value, json};

use super::{data, events, publications};
use crate::{
    hooks::back_end::{BackEnd, Reply},
    server::{Answer, Server, until, within},
};

const ADMIN_TOKEN: &str = "a token of sixteen";

fn operated(config: &mut Config, back_end: &BackEnd) {
    publications(config, back_end);
    config.admin.listen = "127.0.0.1:0".into();
    config.admin.token = ADMIN_TOKEN.into();
}

/// Sends an operator request.
async fn ask(server: &Server, path: &str, body: Option<Value>) -> Answer {
    let url = format!("http://{}/v1/admin/{path}", server.admin());
    let request = match body {
        None => server.http.get(url),
        Some(body) => server.http.post(url).body(body.to_string()),
    };
    Answer::read(within(request.bearer_auth(ADMIN_TOKEN).send()).await.expect("an answer")).await
}

async fn letters(server: &Server, query: &str) -> Value {
    let answer = ask(server, &format!("webhooks/dead{query}"), None).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn letter_count(server: &Server) -> u64 {
    server.metric("millrace_webhook_dead_letters").await
}

#[tokio::test]
async fn rejected_events_are_kept_and_sent_again() {
    let is_well = Arc::new(AtomicBool::new(false));
    let well = is_well.clone();
    // The back end rejects odd numbers until it is well.
    let back_end = BackEnd::start(move |request| {
        let has_odd = request.json()["events"].as_array().unwrap().iter().any(|event| event["data"] == 1);
        if has_odd && !well.load(SeqCst) { Reply::Status(StatusCode::BAD_REQUEST) } else { Reply::Text("") }
    })
    .await;
    let server = Server::with(|config| {
        operated(config, &back_end);
        config.webhooks.batch_max = 1;
    });
    server.publish_all("a", [json!(0), json!(1), json!(2)]).await;
    until("the last arrives", async || data(&back_end, "a").contains(&json!(2))).await;
    until("one is dead", async || letter_count(&server).await == 1).await;
    let list = letters(&server, "").await;
    let letter = &list["letters"][0];
    assert_eq!((list["letters"].as_array().map(Vec::len), &list["more"]), (Some(1), &json!(false)), "{list}");
    assert_eq!(letter["reason"], "the back end has answered with status 400");
    assert_eq!((&letter["event"]["data"], &letter["replaying"]), (&json!(1), &json!(false)));
    assert_eq!(letter["id"], letter["event"]["id"]);
    assert_eq!(server.metric("millrace_webhook_events_total{type=\"publication\",result=\"dead\"}").await, 1);

    // A replay that is rejected again stays dead.
    let ids = json!({ "ids": [letter["id"], "unknown"] });
    let sent = back_end.questions().len();
    assert_eq!(ask(&server, "webhooks/replay", Some(ids.clone())).await.json(), json!({ "replayed": 1 }));
    back_end.await_asked(sent + 1).await;
    until("it is dead again", async || letters(&server, "").await["letters"][0]["replaying"] == false).await;
    assert_eq!(letter_count(&server).await, 1);

    is_well.store(true, SeqCst);
    assert_eq!(ask(&server, "webhooks/replay", Some(json!({ "all": true }))).await.json(), json!({ "replayed": 1 }));
    until("no letter is left", async || letters(&server, "").await["letters"] == json!([])).await;
    let all = events(&back_end.questions());
    let repeated: Vec<&Value> = all.iter().filter(|event| event["data"] == 1).collect();
    assert!(repeated.len() >= 3 && repeated.iter().all(|event| *event == repeated[0]), "{repeated:?}");
    until("none is counted", async || letter_count(&server).await == 0).await;
}

#[tokio::test]
async fn events_that_are_not_acknowledged_for_too_long_become_dead_letters() {
    let back_end = BackEnd::start(|_| Reply::Status(StatusCode::SERVICE_UNAVAILABLE)).await;
    let server = Server::with(|config| {
        operated(config, &back_end);
        config.webhooks.give_up = Duration::from_secs(1);
    });
    server.publish("a", "1").await;
    until("it is dead", async || letter_count(&server).await == 1).await;
    assert!(back_end.questions().len() >= 3, "several attempts");
    back_end.answer(|_| Reply::Text(""));
    server.publish("a", "2").await;
    until("the next arrives", async || data(&back_end, "a").contains(&json!(2))).await;
}

#[tokio::test]
async fn oldest_dead_letters_are_dropped_above_the_maximum() {
    let back_end = BackEnd::start(|_| Reply::Status(StatusCode::BAD_REQUEST)).await;
    let server = Server::with(|config| {
        operated(config, &back_end);
        config.webhooks.dead_max = 3;
        config.webhooks.batch_max = 1;
    });
    server.publish_all("a", (0..5).map(Value::from)).await;
    until("two are dropped", async || server.metric("millrace_webhook_dead_letters_dropped_total").await == 2).await;
    let first = letters(&server, "?limit=2").await;
    let numbers = |list: &Value| -> Vec<u64> {
        let letters = list["letters"].as_array().expect("letters").iter();
        letters.map(|letter| letter["event"]["data"].as_u64().expect("a number")).collect()
    };
    assert_eq!((numbers(&first), &first["more"]), (vec![2, 3], &json!(true)));
    let after = first["letters"][1]["id"].as_str().expect("an id");
    let second = letters(&server, &format!("?after={after}")).await;
    assert_eq!((numbers(&second), &second["more"]), (vec![4], &json!(false)));
    ask(&server, "webhooks/dead?after=forged", None).await.assert_problem(404, "not_found");
}

#[tokio::test]
async fn operator_requests_are_checked() {
    let back_end = BackEnd::start(|_| Reply::Text("")).await;
    let server = Server::with(|config| operated(config, &back_end));
    for body in [json!({}), json!({ "all": false }), json!({ "ids": ["a"], "all": true })] {
        ask(&server, "webhooks/replay", Some(body)).await.assert_problem(400, "bad_request");
    }
    let many: Vec<String> = (0..101).map(|n| n.to_string()).collect();
    ask(&server, "webhooks/replay", Some(json!({ "ids": many }))).await.assert_problem(400, "bad_request");
    ask(&server, "webhooks/replay", Some(json!({ "every": true }))).await.assert_problem(400, "bad_json");
    ask(&server, "webhooks/dead?limit=0", None).await.assert_problem(400, "bad_request");
    let without = Server::with(|config| {
        config.admin.listen = "127.0.0.1:0".into();
        config.admin.token = ADMIN_TOKEN.into();
    });
    for path in ["webhooks", "webhooks/dead"] {
        let detail = ask(&without, path, None).await.assert_problem(404, "not_found");
        assert!(detail.contains("webhooks.url"), "{path}: {detail}");
    }
}
