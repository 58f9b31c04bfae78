//! Back ends that fail.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http::StatusCode;
use millrace_hooks::OnFailure;
use serde_json::{Value, json};

use super::back_end::{BackEnd, Reply, allow, hook};
use crate::server::{Server, until, within};

const ADMIN_TOKEN: &str = "a token of sixteen";

fn server(back_end: &BackEnd, on_failure: OnFailure) -> Server {
    Server::with(|config| {
        hook(config, back_end, &["publish", "subscribe"]);
        config.hooks.timeout = Duration::from_millis(500);
        config.hooks.on_failure = on_failure;
        config.hooks.failures_max = 1000;
    })
}

async fn result(server: &Server, hook: &str, result: &str) -> u64 {
    server.metric(&format!("millrace_hook_requests_total{{hook=\"{hook}\",result=\"{result}\"}}")).await
}

#[tokio::test]
async fn every_failure_refuses_or_allows_as_configured() {
    let elsewhere = Arc::new(BackEnd::start(|_| allow()).await);
    let to = elsewhere.url("/elsewhere");
    type Case = (&'static str, &'static str, Box<dyn Fn() -> Reply + Send + Sync>);
    let cases: Vec<Case> = vec![
        ("never", "timeout", Box::new(|| Reply::Never)),
        (
            "late",
            "timeout",
            Box::new(|| Reply::When(Arc::new(tokio::sync::Semaphore::new(0)), json!({ "allow": true }))),
        ),
        ("garbage", "error", Box::new(|| Reply::Text("<html>502 Bad Gateway</html>"))),
        ("no decision", "error", Box::new(|| Reply::Json(json!({ "allowed": true })))),
        ("10 MB", "error", Box::new(|| Reply::Large(10 << 20))),
        ("redirect", "error", Box::new(move || Reply::Redirect(to.clone()))),
        ("error status", "error", Box::new(|| Reply::Status(StatusCode::INTERNAL_SERVER_ERROR))),
        ("accepted status", "error", Box::new(|| Reply::Status(StatusCode::ACCEPTED))),
        ("cut in the middle", "error", Box::new(|| Reply::Cut)),
        ("hang up", "error", Box::new(|| Reply::Hangup)),
    ];
    for (name, label, reply) in cases {
        let back_end = BackEnd::start(move |_| reply()).await;
        let refusing = server(&back_end, OnFailure::Refuse);
        let refused = refusing.post("/v1/channels/a", &[], "1").await;
        let detail = refused.assert_problem(503, "unavailable");
        assert!(
            detail.contains("the application cannot be asked") && refused.json()["retry"] == true,
            "{name}: {detail}"
        );
        assert!(!detail.contains("127.0.0.1"), "{name}: {detail}");
        refusing.get("/v1/channels/a").await.assert_problem(503, "unavailable");
        assert_eq!(result(&refusing, "publish", label).await, 1, "{name}");
        let allowing = server(&back_end, OnFailure::Allow);
        allowing.publish("a", "1").await;
        assert_eq!(allowing.get("/v1/channels/a").await.json()["messages"][0]["data"], 1, "{name}");
    }
    assert_eq!(elsewhere.connections(), 0, "a redirect is not followed");
}

#[tokio::test]
async fn back_end_that_is_gone_refuses_or_allows_as_configured() {
    let back_end = BackEnd::start(|_| allow()).await;
    let [refusing, allowing] = [OnFailure::Refuse, OnFailure::Allow].map(|on_failure| server(&back_end, on_failure));
    refusing.publish("a", "1").await;
    back_end.stop().await;
    refusing.post("/v1/channels/a", &[], "1").await.assert_problem(503, "unavailable");
    allowing.publish("a", "1").await;
}

#[tokio::test]
async fn only_questions_without_effect_are_repeated() {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = count.clone();
    // The connection of each first question breaks before the answer.
    let back_end = BackEnd::start(move |_| match counting.fetch_add(1, SeqCst) {
        0 => Reply::Hangup,
        _ => allow(),
    })
    .await;
    let server = server(&back_end, OnFailure::Refuse);
    assert_eq!(server.get("/v1/channels/a").await.status, 204);
    let [first, second] = back_end.questions().try_into().expect("two questions");
    assert_eq!(first.json()["id"], second.json()["id"], "a repeated question keeps its id");
    count.store(0, SeqCst);
    server.post("/v1/channels/a", &[], "1").await.assert_problem(503, "unavailable");
    assert_eq!(back_end.asked("publish").len(), 1, "a publication is asked for once");
}

/// Returns the state of the only URL, as operators see it.
async fn breaker(server: &Server) -> (Value, u64) {
    let request = server.http.get(format!("http://{}/readyz", server.admin())).bearer_auth(ADMIN_TOKEN).send();
    let ready = crate::server::Answer::read(within(request).await.expect("an answer")).await.json();
    assert_eq!(ready["hooks"][0]["hook"], "publish", "{ready}");
    let url = ready["hooks"][0]["url"].as_str().expect("a URL").to_owned();
    (
        ready["hooks"][0]["breaker"].clone(),
        server.metric(&format!("millrace_hook_breaker{{hook=\"publish\",url=\"{url}\"}}")).await,
    )
}

#[tokio::test]
async fn circuit_breaker_opens_and_closes() {
    let back_end = BackEnd::start(|_| allow()).await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["publish"]);
        config.hooks.publish += "?key=s3cr3t";
        config.hooks.failures_max = 3;
        config.hooks.pause = Duration::from_secs(1);
        config.admin.listen = "127.0.0.1:0".into();
        config.admin.token = ADMIN_TOKEN.into();
    });
    server.publish("a", "1").await;
    assert_eq!(breaker(&server).await, (json!("closed"), 0));
    let address = back_end.stop().await;
    for _ in 0..3 {
        server.post("/v1/channels/a", &[], "1").await.assert_problem(503, "unavailable");
    }
    assert_eq!(breaker(&server).await, (json!("open"), 2));
    let refused = server.post("/v1/channels/a", &[], "1").await;
    refused.assert_problem(503, "unavailable");
    assert_eq!(refused.header("retry-after"), "1");
    assert!(result(&server, "publish", "breaker_open").await >= 1);
    let back_end = BackEnd::start_at(address, |_| allow()).await;
    until("a probe is answered", async || server.post("/v1/channels/a", &[], "1").await.status == 200).await;
    assert_eq!(breaker(&server).await, (json!("closed"), 0));
    assert_eq!(back_end.questions().len(), 1, "the probe is the publication that entered");
}
