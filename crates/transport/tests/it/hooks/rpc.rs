//! Remote procedure calls.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::sync::Semaphore;

use super::{
    assert_refused,
    back_end::{BackEnd, Question, Reply, hook},
};
use crate::{
    client::{Received, Session},
    server::{Server, until, within},
};

fn decide(question: &Question) -> Reply {
    let question = question.json();
    match question["method"].as_str() {
        Some("sum") => {
            let sum: i64 = question["params"].as_array().expect("numbers").iter().filter_map(|n| n.as_i64()).sum();
            Reply::Json(json!({ "result": sum }))
        }
        Some("nothing") => Reply::Json(json!({ "result": null })),
        Some("fail") => Reply::Json(json!({ "error": { "code": "no_credit", "detail": "your credit is used up" } })),
        Some("garbage") => Reply::Text("garbage"),
        Some("hangup") => Reply::Hangup,
        _ => Reply::Never,
    }
}

fn server(back_end: &BackEnd) -> Server {
    Server::with(|config| hook(config, back_end, &["rpc"]))
}

#[tokio::test]
async fn call_is_answered_on_every_transport() {
    let back_end = BackEnd::start(decide).await;
    let server = server(&back_end);
    assert_eq!(server.post("/v1/rpc/sum", &[], "[1,2]").await.json(), json!({ "result": 3 }));
    assert_eq!(server.post("/v1/rpc/nothing", &[], "").await.json(), json!({ "result": null }));
    let failed = server.post("/v1/rpc/fail", &[], "").await;
    failed.assert_problem(403, "refused");
    assert_refused(&failed.json());
    for mut session in [Session::open(&server).await, Session::open_data_channel(&server, None).await] {
        let call = |method: &str| json!({ "method": method, "params": [1, 2] });
        assert_eq!(session.command("rpc", call("sum")).await, Ok(json!({ "result": 3 })));
        assert_refused(&session.command("rpc", call("fail")).await.expect_err("an error"));
    }
    let asked = back_end.asked("rpc");
    assert_eq!((&asked[0]["params"], &asked[0]["timeout_ms"]), (&json!([1, 2]), &json!(2000)));
    assert!(asked[1].get("params").is_none() && asked[0]["transport"] == "http", "{asked:?}");
    assert_eq!(asked[3]["transport"], "session");
    assert_eq!(asked[5]["transport"], "data-channel");
}

#[tokio::test]
async fn rust_client_calls() {
    use millrace_client::{rpc, server::Server as Address};
    let back_end = BackEnd::start(decide).await;
    let server = server(&back_end);
    let address = Address::parse(&server.url("")).expect("an address");
    let call = |method: &'static str, timeout| {
        let (http, address) = (server.http.clone(), address.clone());
        async move { within(rpc::call(&http, &address, method, &json!([1, 2]), timeout)).await }
    };
    assert_eq!(call("sum", None).await.expect("a result"), 3);
    let Err(rpc::RpcError::Refused(problem)) = call("fail", None).await else { panic!("it is refused") };
    assert_eq!((problem.code.as_str(), problem.reason.as_deref()), ("refused", Some("no_credit")));
    let late = call("slow", Some(Duration::from_millis(200))).await.expect_err("a deadline");
    assert!(!late.is_unsent(), "{late}");
    let gone = Address::parse("http://127.0.0.1:1").expect("an address");
    let unsent = rpc::call(&server.http, &gone, "sum", &json!([]), None).await.expect_err("nobody listens");
    assert!(unsent.is_unsent(), "{unsent}");
}

#[tokio::test]
async fn call_ends_at_its_deadline_and_is_never_repeated() {
    let back_end = BackEnd::start(decide).await;
    let server = server(&back_end);
    let late = server.post("/v1/rpc/slow", &[("millrace-timeout", "0.2")], "").await;
    late.assert_problem(504, "no_answer");
    assert_eq!(late.json()["retry"], false);
    until("the request is withdrawn", async || back_end.withdrawn() == 1).await;
    for method in ["garbage", "hangup"] {
        server.post(&format!("/v1/rpc/{method}"), &[], "").await.assert_problem(504, "no_answer");
    }
    let mut session = Session::open(&server).await;
    let error = session.command("rpc", json!({ "method": "slow", "timeout": 0.2 })).await.expect_err("a deadline");
    assert_eq!(error["code"], "no_answer");
    assert_eq!(back_end.questions().len(), 4, "no call is repeated");
    assert_eq!(back_end.asked("rpc")[0]["timeout_ms"], 200);
    back_end.stop().await;
    server.post("/v1/rpc/sum", &[], "[]").await.assert_problem(503, "unavailable");
}

#[tokio::test]
async fn short_deadlines_of_a_client_open_no_circuit_breaker() {
    let back_end = BackEnd::start(decide).await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["rpc"]);
        config.hooks.failures_max = 2;
        config.hooks.pause = Duration::from_secs(60);
    });
    for _ in 0..5 {
        let late = server.post("/v1/rpc/slow", &[("millrace-timeout", "0.05")], "").await;
        late.assert_problem(504, "no_answer");
    }
    assert_eq!(server.post("/v1/rpc/sum", &[], "[1]").await.json(), json!({ "result": 1 }));
}

#[tokio::test]
async fn invalid_call_is_refused_without_a_question() {
    let back_end = BackEnd::start(decide).await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["rpc"]);
        config.namespaces.entry("none".into()).or_default().hooks.rpc = Some(String::new());
        config.limits.message_bytes_max = 100;
    });
    server.post("/v1/rpc/none/a", &[], "").await.assert_problem(404, "not_found");
    server.post("/v1/rpc/a%20b", &[], "").await.assert_problem(400, "bad_request");
    server.post("/v1/rpc/sum", &[], "{").await.assert_problem(400, "bad_json");
    server.post("/v1/rpc/sum", &[("millrace-timeout", "soon")], "1").await.assert_problem(400, "bad_request");
    server.post("/v1/rpc/sum", &[], "x".repeat(101)).await.assert_problem(413, "too_large");
    server.get("/v1/rpc/sum").await.assert_problem(405, "method_not_allowed");
    let mut session = Session::open(&server).await;
    let large = json!({ "method": "sum", "params": "x".repeat(101) });
    assert_eq!(session.command("rpc", large).await.expect_err("too large")["code"], "too_large");
    assert_eq!(back_end.questions().len(), 0);
    let without = Server::start();
    without.post("/v1/rpc/sum", &[], "").await.assert_problem(404, "not_found");
}

#[tokio::test]
async fn waiting_call_delays_no_other_command() {
    let gate = Arc::new(Semaphore::new(0));
    let waiting = gate.clone();
    let back_end = BackEnd::start(move |_| Reply::When(waiting.clone(), json!({ "result": "late" }))).await;
    let server = server(&back_end);
    let mut session = Session::open(&server).await;
    session.send_text(r#"{"id":1,"rpc":{"method":"slow"}}"#).await;
    back_end.await_asked(1).await;
    session.send_text(r#"{"id":2,"ping":{}}"#).await;
    session.reply(2).await.expect("a pong");
    gate.add_permits(1);
    assert_eq!(session.reply(1).await, Ok(json!({ "result": "late" })));
}

#[tokio::test]
async fn calls_of_a_connection_are_bounded() {
    let back_end = BackEnd::start(decide).await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["rpc"]);
        config.hooks.timeout = Duration::from_secs(60);
        config.hooks.concurrency = 100;
    });
    let mut session = Session::open(&server).await;
    for id in 1..=65 {
        session.send_text(&json!({ "id": id, "rpc": { "method": "slow" } }).to_string()).await;
    }
    assert_eq!(session.reply(65).await.expect_err("too many")["code"], "too_many");
    back_end.await_asked(64).await;
}

#[tokio::test]
async fn call_is_withdrawn_when_its_client_is_gone() {
    let back_end = BackEnd::start(decide).await;
    let server = Server::with(|config| {
        hook(config, &back_end, &["rpc"]);
        config.hooks.timeout = Duration::from_secs(60);
    });
    let mut session = Session::open(&server).await;
    session.send_text(r#"{"id":1,"rpc":{"method":"slow"}}"#).await;
    back_end.await_asked(1).await;
    drop(session);
    until("the request is withdrawn", async || back_end.withdrawn() == 1).await;
    // Over HTTP/2, a client withdraws a single request.
    let http2 = crate::server::client(true);
    let call = tokio::spawn(http2.post(server.url("/v1/rpc/slow")).send());
    back_end.await_asked(2).await;
    call.abort();
    until("the request is withdrawn", async || back_end.withdrawn() == 2).await;
    let mut session = Session::open(&server).await;
    session.send_text(r#"{"id":1,"ping":{}}"#).await;
    assert!(matches!(within(session.receive()).await, Received::Reply(_)));
}
