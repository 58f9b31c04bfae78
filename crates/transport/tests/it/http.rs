//! HTTP answers: headers, waiting, negotiation, batches.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    client::{after, raw::Raw},
    server::{Answer, Server, client, within},
};

fn assert_never_cached(answer: &Answer, what: &str) {
    assert_eq!(answer.header("cache-control"), "no-cache, no-store, must-revalidate", "{what}");
    assert_eq!((answer.header("pragma"), answer.header("expires")), ("no-cache", "0"), "{what}");
}

#[tokio::test]
async fn responses_are_uncacheable_and_carry_position() {
    let server = Server::start();
    let position = server.publish("h", "1").await;
    let reads = [
        ("/v1/channels/h", "*/*", 200),
        ("/v1/channels/h?_=4711", "application/json", 200),
        ("/v1/channels/h?since=earliest", "application/xml", 200),
        ("/v1/channels/h?since=now", "application/json", 204),
        ("/v1/channels/h?since=now&wait=10ms", "application/json", 204),
        ("/v1/channels/h?since=now&wait=10ms", "application/xml", 204),
    ];
    for http2 in [false, true] {
        let http = client(http2);
        for (path, accept, status) in reads {
            let request = http.get(server.url(path)).header("accept", accept);
            let answer = Answer::read(within(request.send()).await.unwrap()).await;
            assert_eq!(answer.status, status, "{path}");
            assert_never_cached(&answer, path);
            assert_eq!(answer.position(), position, "{path}");
            assert_eq!(answer.body.is_empty(), status == 204, "{path}");
        }
        for accept in ["text/event-stream", "application/x-ndjson"] {
            for (path, expected) in
                [("/v1/channels/h", position.clone()), ("/v1/stream?channel=h", format!("h@{position}"))]
            {
                let request = http.get(server.url(path)).header("accept", accept);
                let response = within(request.send()).await.unwrap();
                let (status, headers) = (response.status(), response.headers().clone());
                let head = Answer { status, headers, body: Vec::new() };
                assert_never_cached(&head, accept);
                assert_eq!((head.header("x-accel-buffering"), head.position()), ("no", expected.as_str()), "{accept}");
            }
        }
    }
    let posted = server.post("/v1/channels/h", &[], "2").await;
    assert_never_cached(&posted, "a publication");
    assert_eq!(posted.position(), posted.json()["position"]);
    for path in ["/v1/presence/h", "/v1/channels/a%20b", "/v1/channels/h?since=x", "/nowhere"] {
        assert_never_cached(&server.get(path).await, path);
    }
    for path in ["/v1/info", "/healthz", "/readyz", "/metrics"] {
        assert!(server.get(path).await.header("cache-control").contains("no-store"), "{path}");
    }
}

#[tokio::test]
async fn polling_returns_newest_or_all_after_position() {
    let server = Server::start();
    assert_eq!(server.get("/v1/channels/p").await.status, 204, "nothing there yet");
    let last = server.publish_all("p", (1..=250).map(Value::from)).await;
    let newest = server.get("/v1/channels/p").await.json();
    assert_eq!(newest["messages"].as_array().unwrap().len(), 1);
    assert_eq!((&newest["position"], &newest["messages"][0]["data"]), (&json!(last), &json!(250)));
    let (mut since, mut got) = ("earliest".to_owned(), Vec::new());
    for expected in [100, 100, 50] {
        let answer = server.get(&format!("/v1/channels/p?since={since}")).await;
        let messages = answer.json()["messages"].as_array().unwrap().clone();
        assert_eq!(messages.len(), expected);
        assert_eq!(messages.last().unwrap()["position"], answer.position());
        got.extend(messages.iter().map(|message| message["data"].as_u64().unwrap()));
        since = answer.position().to_owned();
    }
    assert_eq!(got, (1..=250).collect::<Vec<_>>());
    assert_eq!(server.get(&format!("/v1/channels/p?since={since}")).await.status, 204);
    let limited = server.get("/v1/channels/p?since=earliest&limit=7").await.json();
    assert_eq!(limited["messages"].as_array().unwrap().len(), 7);
}

#[tokio::test]
async fn long_poll_returns_next_publication() {
    let server = Server::start();
    for (i, http2) in [false, true].into_iter().enumerate() {
        let channel = format!("l/{i}");
        let first = server.publish(&channel, "0").await;
        let url = server.url(&format!("/v1/channels/{channel}?since={first}&wait=30"));
        let poll = tokio::spawn(client(http2).get(url).send());
        server.await_presence(&channel, 1).await;
        let position = server.publish(&channel, "1").await;
        let answer = Answer::read(within(poll).await.unwrap().unwrap()).await;
        assert_eq!(answer.status, 200);
        assert_eq!((answer.position(), &answer.json()["messages"][0]["data"]), (position.as_str(), &json!(1)));
        server.await_presence(&channel, 0).await;
        // A request for publications that already exist is answered immediately.
        let started = Instant::now();
        let again = server.get(&format!("/v1/channels/{channel}?since={first}&wait=30")).await;
        assert_eq!((again.status.as_u16(), started.elapsed() < Duration::from_secs(5)), (200, true));
    }
}

#[tokio::test]
async fn long_poll_times_out_with_204() {
    let server = Server::with(|config| config.limits.hold_max = Duration::from_millis(400));
    let top = server.publish("t", "0").await;
    // The last two exceed the server's limit.
    for (wait, ms) in [("0.2", 200), ("200ms", 200), ("0", 0), ("30", 400), ("1h", 400)] {
        let started = Instant::now();
        let answer = server.get(&format!("/v1/channels/t?wait={wait}")).await;
        assert_eq!((answer.status.as_u16(), answer.position()), (204, top.as_str()), "wait={wait}");
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(ms) && took < Duration::from_secs(5), "wait={wait} took {took:?}");
    }
}

#[tokio::test]
async fn last_event_id_overrides_since() {
    let server = Server::start();
    let last = server.publish_all("e", [json!(1), json!(2), json!(3)]).await;
    let second = last.replace(":3", ":2");
    let answer = server.get_with("/v1/channels/e?since=earliest", &[("last-event-id", &second)]).await.json();
    assert_eq!(answer["messages"].as_array().unwrap().len(), 1, "{answer}");
    let empty = server.get_with("/v1/channels/e?since=earliest", &[("last-event-id", "")]).await.json();
    assert_eq!(empty["messages"].as_array().unwrap().len(), 3, "an EventSource without an id sends none: {empty}");
}

#[tokio::test]
async fn xml_and_json_are_equivalent() {
    let server = Server::start();
    server.publish_with("x", &[("millrace-key", "a\"b")], r#"{"speed":1.5,"name":"<&>"}"#).await;
    server.publish_with("x", &[("content-type", "text/plain")], "one & two").await;
    let last = server.publish_with("x", &[("content-type", "application/octet-stream")], vec![0u8, 255]).await;
    let answer = server.get_with("/v1/channels/x?since=earliest", &[("accept", "application/xml")]).await;
    assert_eq!(answer.header("content-type"), "application/xml");
    let text = answer.text();
    assert!(text.starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\""), "{text}");
    for part in [
        format!("<answer position=\"{last}\">"),
        "key=\"a&quot;b\"".into(),
        "<speed>1.5</speed>".into(),
        "<name>&lt;&amp;&gt;</name>".into(),
        "<data>one &amp; two</data>".into(),
        "encoding=\"base64\"><data>AP8=</data>".into(),
    ] {
        assert!(text.contains(&part), "{part} in {text}");
    }
    let gap = server.get_with("/v1/channels/x?since=1:5", &[("accept", "application/xml")]).await.text();
    let to = last.replace(":3", ":0");
    assert!(gap.contains(&format!("<gap from=\"00000001:5\" to=\"{to}\"/><message")), "{gap}");
}

#[tokio::test]
async fn best_accepted_format_is_chosen() {
    let server = Server::start();
    server.publish("n", "1").await;
    for (accept, content_type) in [
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        ("text/html, application/xml;q=0.9, */*;q=0.1", "application/xml"),
        ("application/xml;q=0.1, application/json;q=0.2", "application/json"),
    ] {
        let answer = server.get_with("/v1/channels/n", &[("accept", accept)]).await;
        assert_eq!(answer.header("content-type"), content_type, "{accept}");
    }
}

#[tokio::test]
async fn batch_returns_one_result_per_line() {
    let server = Server::start();
    let lines = [
        json!({ "channel": "b/1", "data": { "a": 1 }, "key": "k" }).to_string(),
        "{".into(),
        json!({ "channel": "b c", "data": 1 }).to_string(),
        String::new(),
        json!({ "channel": "b/1", "data": "AP8=", "encoding": "base64" }).to_string(),
        json!({ "channel": "b/1", "data": 1, "colour": 1 }).to_string(),
        json!({ "channel": "b/1", "data": "x".repeat(1 << 20) + "y" }).to_string(),
    ];
    let answer = server.post("/v1/publish", &[], lines.join("\n")).await;
    let results = answer.json()["results"].as_array().unwrap().clone();
    let codes: Vec<_> = results.iter().map(|result| result["error"]["code"].as_str().unwrap_or("ok")).collect();
    assert_eq!(codes, ["ok", "bad_json", "bad_channel", "ok", "bad_json", "too_large"], "{results:?}");
    let error = &results[1]["error"];
    assert!(error["detail"].is_string() && error["retry"] == false, "{error}");
    let first = results[0]["position"].as_str().unwrap();
    assert_eq!(results[3]["position"], after(first, 1));
    let read = server.get("/v1/channels/b/1?since=earliest").await.json();
    assert_eq!(read["messages"][0]["key"], "k");
    assert_eq!((&read["messages"][1]["data"], &read["messages"][1]["encoding"]), (&json!("AP8="), &json!("base64")));
    let line = json!({ "channel": "b/2", "data": 1 }).to_string() + "\n";
    server.post("/v1/publish", &[], line.repeat(1001)).await.assert_problem(429, "too_many");
    assert_eq!(server.get("/v1/channels/b/2").await.status, 204, "nothing of a refused batch is published");
}

#[tokio::test]
async fn only_allowed_origins_may_read() {
    let server = Server::with(|config| config.limits.allowed_origins = vec!["https://app.example".into()]);
    let good = server.get_with("/v1/channels/o", &[("origin", "https://app.example")]).await;
    assert_eq!(good.header("access-control-allow-origin"), "https://app.example");
    assert!(good.header("access-control-expose-headers").contains("millrace-position"));
    server.publish("o", "\"hidden\"").await;
    let other = server.get_with("/v1/channels/o", &[("origin", "https://evil.example")]).await;
    let detail = other.assert_problem(403, "forbidden").to_owned();
    assert!(detail.contains("https://evil.example") && detail.contains("limits.allowed_origins"), "{detail}");
    assert_eq!(other.header("access-control-allow-origin"), "*", "a script may read why");
    assert!(other.headers.get("access-control-allow-credentials").is_none(), "{other:?}");
    let health = server.get_with("/healthz", &[("origin", "https://evil.example")]).await;
    assert!(health.headers.get("access-control-allow-origin").is_none(), "only the refusal is shown: {health:?}");
    let preflight = server.http.request("OPTIONS".parse().unwrap(), server.url("/v1/channels/o"));
    let preflight = preflight.header("origin", "https://app.example").header("access-control-request-method", "POST");
    let preflight = Answer::read(within(preflight.send()).await.unwrap()).await;
    assert_eq!(preflight.status, 204);
    assert!(preflight.header("access-control-allow-methods").contains("POST"));
    assert_eq!(preflight.header("access-control-allow-origin"), "https://app.example");
}

#[tokio::test]
async fn loopback_page_may_use_loopback_server() {
    let preflight = async |server: &Server, origin: &str| {
        let request = server.http.request("OPTIONS".parse().expect("a method"), server.url("/v1/channels/o"));
        let request = request.header("origin", origin).header("access-control-request-method", "POST");
        Answer::read(within(request.send()).await.expect("an answer")).await
    };
    let status = async |server: &Server, origin: &str, host: &str| {
        let posted = server.post("/v1/channels/o", &[("origin", origin), ("host", host)], "1").await;
        let shown = posted.headers.get("access-control-allow-origin").map_or("", |shown| shown.to_str().unwrap());
        // The page of every origin may read the refusal.
        assert_eq!(shown, if posted.status == 403 { "*" } else { origin }, "{origin} to {host}");
        assert!(posted.headers.get("access-control-allow-credentials").is_none(), "{origin} to {host}");
        posted.status.as_u16()
    };
    let server = Server::start();
    let own = server.address.to_string();
    let local = ["http://localhost:5173", "https://localhost:5173", "http://127.0.0.1:3000", "http://[::1]:3000"];
    for origin in local {
        assert_eq!(preflight(&server, origin).await.header("access-control-allow-origin"), origin);
        for host in [own.as_str(), "localhost:8080", "[::1]:8080"] {
            assert_eq!(status(&server, origin, host).await, 200, "{origin} to {host}");
        }
        assert_eq!(status(&server, origin, "mybox:8080").await, 403, "{origin}");
    }
    for origin in
        ["null", "https://evil.example", "http://localhost.evil.example", "http://192.168.1.1", "file://localhost"]
    {
        assert_eq!(preflight(&server, origin).await.header("access-control-allow-origin"), "*");
        assert_eq!(status(&server, origin, &own).await, 403, "{origin}");
    }
    // DNS rebinding: a foreign name that resolves to loopback is refused.
    let headers = [("origin", "http://localhost:5173"), ("host", "evil.example")];
    server.get_with("/v1/channels/o", &headers).await.assert_problem(403, "forbidden");
    // A configured list replaces the default. Behind a proxy there is no default.
    let listed = Server::with(|config| config.limits.allowed_origins = vec!["http://localhost:3000".into()]);
    assert_eq!(status(&listed, "http://localhost:5173", &own).await, 403);
    let behind = Server::with(|config| config.server.behind_proxy = true);
    assert_eq!(status(&behind, "http://localhost:5173", "127.0.0.1:8080").await, 403);
}

#[tokio::test]
async fn stream_follows_earlier_responses_of_connection() {
    let server = Server::start();
    server.publish("a", "1").await;
    let mut raw = Raw::connect(&server).await;
    let get = |accept: &str| format!("GET /v1/channels/a HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n");
    raw.send(get("application/json") + &get("text/event-stream")).await;
    let poll = raw.head().await;
    assert!(poll.starts_with("HTTP/1.1 200 ") && poll.contains("content-type: application/json"), "{poll}");
    // The body of the first answer precedes the head of the second.
    let head = raw.head().await;
    let head = head.split_once("HTTP/1.1").expect("a second answer").1;
    assert!(head.starts_with(" 200 OK\r\n"), "{head}");
    for header in ["content-type: text/event-stream", "connection: close", "cache-control: no-cache", "date: "] {
        assert!(head.contains(header), "{header} is missing: {head}");
    }
    let position = head.lines().find_map(|line| line.strip_prefix("millrace-position: ")).expect("a position");
    server.publish("a", "2").await;
    raw.finish().await;
    let body = String::from_utf8(raw.read_to_end().await).unwrap();
    assert!(body.starts_with(&format!("retry: 2000\nid: {position}\n\n")), "{body}");
}

#[tokio::test]
async fn refused_stream_is_readable_by_its_page() {
    let server = Server::with(|config| {
        config.limits.subscriptions_max = 1;
        config.limits.allowed_origins = vec!["https://app.example".into()];
    });
    let headers = [("origin", "https://app.example"), ("accept", "text/event-stream")];
    let refused = server.get_with("/v1/stream?channel=a&channel=b", &headers).await;
    refused.assert_problem(429, "too_many");
    assert_eq!(refused.header("access-control-allow-origin"), "https://app.example");
    assert!(server.get("/metrics").await.text().contains("millrace_http_errors_total 1\n"));
}

#[tokio::test]
async fn presence_and_info_are_reported() {
    let server = Server::start();
    assert_eq!(server.get("/v1/presence/q").await.json(), json!({ "channel": "q", "count": 0 }));
    let info = server.get("/v1/info").await.json();
    assert_eq!((&info["shards"], &info["engine"]), (&json!(2), &json!("memory")), "{info}");
    assert_eq!(info["listen"], json!([server.url("")]));
    // The clock that gives publications their time.
    let time = |info: &serde_json::Value| info["time"].as_u64().expect("a time");
    server.publish("clock", "1").await;
    let page = server.get("/v1/channels/clock?since=earliest").await.json();
    let published = page["messages"][0]["time"].as_u64().expect("a time");
    let later = server.get("/v1/info").await.json();
    assert!((time(&info)..=time(&later)).contains(&published), "{info} {page} {later}");
    assert_eq!((server.get("/healthz").await.status.as_u16(), server.get("/readyz").await.status.as_u16()), (200, 200));
}
