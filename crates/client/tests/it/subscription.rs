use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use millrace_client::server::Server;
use millrace_client::subscription::{Options, Range, Transport, Update, read, read_range};

use crate::script::{Step, header, serve};

/// Reads until `limit` messages have arrived. Returns the messages and gaps as text, and the requests that the server
/// received.
async fn read_all(transport: Transport, limit: usize, steps: Vec<Step>) -> (Vec<String>, Vec<String>) {
    let (url, server) = serve(steps).await;
    let options = Options {
        server: Server::parse(&url).expect("an address"),
        channels: vec!["a".into(), "b".into()],
        transport,
        since: None,
        policy: "every".into(),
        poll_interval: Duration::from_millis(1),
        retry_for: None,
    };
    let (mut seen, mut left) = (Vec::new(), limit);
    let mut sink = |update: Update| {
        match update {
            Update::Message(message) => {
                seen.push(format!("{} {} {}", message.channel, message.position, message.line()));
                left -= 1;
            }
            Update::Gap(gap) => seen.push(format!("gap {} {} {}", gap.channel, gap.from, gap.to)),
            Update::StateComplete(channel) => seen.push(format!("complete {channel}")),
            Update::Lost(_) => {}
        }
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let reading = read(&options, &mut sink);
    tokio::time::timeout(Duration::from_secs(30), reading).await.expect("in time").expect("no error");
    (seen, server.await.expect("every step was taken"))
}

fn target(request: &str) -> &str {
    request.split(' ').nth(1).unwrap_or_default()
}

#[tokio::test]
async fn stream_resumes_after_a_cut_without_duplicates() {
    let first = concat!(
        "{\"positions\":{\"a\":\"e:1\",\"b\":\"e:7\"}}\n\n",
        "{\"channel\":\"a\",\"position\":\"e:2\",\"time\":1,\"data\":\"two\"}\n",
        "{\"channel\":\"a\",\"position\":\"e:3\",\"time\":1,\"da",
    );
    let second = concat!(
        "{\"positions\":{\"a\":\"e:2\",\"b\":\"e:7\"}}\n",
        "{\"channel\":\"a\",\"position\":\"e:2\",\"time\":1,\"data\":\"two\"}\n",
        "{\"channel\":\"a\",\"position\":\"e:3\",\"time\":1,\"data\":\"three\"}\n",
        "{\"gap\":{\"channel\":\"b\",\"from\":\"e:7\",\"to\":\"e:9\"}}\n",
        "{\"drain\":{\"after_ms\":0}}\n",
    );
    let third = "{\"channel\":\"b\",\"position\":\"e:10\",\"time\":1,\"data\":{\"ten\":10}}\n";
    let steps = [first, second, third].map(|body| Step::stream("application/x-ndjson", body));
    let (seen, requests) = read_all(Transport::Stream, 3, steps.into()).await;
    assert_eq!(seen, ["a e:2 two", "a e:3 three", "gap b e:7 e:9", "b e:10 {\"ten\":10}"]);
    assert_eq!(target(&requests[0]), "/v1/stream?channel=a&channel=b&policy=every");
    assert_eq!(target(&requests[1]), "/v1/stream?channel=a@e:2&channel=b@e:7&policy=every");
    assert_eq!(target(&requests[2]), "/v1/stream?channel=a@e:3&channel=b@e:9&policy=every");
    assert_eq!(header(&requests[0], "accept"), "application/x-ndjson");
}

#[tokio::test]
async fn event_stream_resumes_after_an_early_cut() {
    let first = "retry: 2000\nid: a@e:1,b@e:7\n\n";
    let second = concat!(
        ":\n\nid: a@e:2,b@e:7\ndata: {\"channel\":\"a\",\"position\":\"e:2\",\"time\":1,\"data\":\"two\"}\n\n",
        "event: gap\ndata: {\"channel\":\"b\",\"from\":\"e:7\",\"to\":\"e:9\"}\n\n",
        "id: a@e:3,b@e:9\ndata: {\"channel\":\"a\",\"position\":\"e:3\",\"time\":1,\"data\":\"three\"}\n\n",
    );
    let steps = [first, second].map(|body| Step::stream("text/event-stream", body));
    let (seen, requests) = read_all(Transport::Sse, 2, steps.into()).await;
    assert_eq!(seen, ["a e:2 two", "gap b e:7 e:9", "a e:3 three"]);
    assert_eq!(target(&requests[1]), "/v1/stream?channel=a@e:1&channel=b@e:7&policy=every");
}

#[tokio::test]
async fn polls_continue_at_positions_of_last_answer() {
    let none = "204 No Content\r\nMillrace-Position: a@e:1,b@e:7\r\nConnection: close\r\n\r\n";
    let some = r#"{"positions":{"a":"e:2","b":"e:7"},"gaps":[],"messages":[{"channel":"a","position":"e:2","time":1,"data":"two"}]}"#;
    let last = r#"{"positions":{"a":"e:2","b":"e:9"},"gaps":[{"channel":"b","from":"e:7","to":"e:8"}],"messages":[{"channel":"b","position":"e:9","time":1,"data":9}]}"#;
    for (transport, hold, start) in [(Transport::LongPolling, "&wait=30", "&since=now"), (Transport::Polling, "", "")] {
        let steps = vec![
            Step::Answer(none.into()),
            Step::json("200 OK", some),
            Step::Cut,
            Step::json("503 Service Unavailable", ""),
            Step::json("200 OK", last),
        ];
        let (seen, requests) = read_all(transport, 2, steps).await;
        assert_eq!(seen, ["a e:2 two", "gap b e:7 e:8", "b e:9 9"]);
        assert_eq!(
            target(&requests[0]),
            format!("/v1/stream?channel=a&channel=b{start}&policy=every&limit=1000"),
            "the first poll asks where the channels are"
        );
        let at = |a: &str| format!("/v1/stream?channel=a@{a}&channel=b@e:7{start}&policy=every&limit=1000{hold}");
        assert_eq!(target(&requests[1]), at("e:1"));
        assert!(requests[2..].iter().all(|request| target(request) == at("e:2")), "{requests:?}");
    }
}

/// A proxy that answers held polls immediately, and a server that drains every connection, do not cause a busy loop.
#[tokio::test]
async fn reader_pauses_between_requests() {
    let none = "204 No Content\r\nMillrace-Position: a@e:1,b@e:7\r\nConnection: close\r\n\r\n";
    let message = r#"{"channel":"a","position":"e:2","time":1,"data":2}"#;
    let some = format!(r#"{{"positions":{{"a":"e:2","b":"e:7"}},"messages":[{message}]}}"#);
    let away = "{\"positions\":{\"a\":\"e:1\",\"b\":\"e:7\"}}\n{\"drain\":{\"after_ms\":0}}\n";
    let stream = |body: &str| Step::Hold(format!("200 OK\r\nContent-Length: 999\r\n\r\n{body}"));
    let held = vec![
        Step::Answer(none.into()),
        Step::Answer(none.into()),
        Step::Answer(none.into()),
        Step::json("200 OK", &some),
    ];
    let sent_away = vec![stream(away), stream(away), Step::stream("application/x-ndjson", &format!("{message}\n"))];
    for (transport, steps) in [(Transport::LongPolling, held), (Transport::Stream, sent_away)] {
        let began = Instant::now();
        let (seen, _) = read_all(transport, 1, steps).await;
        assert_eq!(seen, ["a e:2 2"]);
        assert!(began.elapsed() >= Duration::from_millis(2 * 490), "{transport:?}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn reader_never_requests_in_a_busy_loop() {
    let started = Instant::now();
    let away = "{\"positions\":{\"a\":\"e:1\",\"b\":\"e:7\"}}\n{\"drain\":{\"after_ms\":0}}\n";
    let last = "{\"channel\":\"b\",\"position\":\"e:10\",\"time\":1,\"data\":1}\n";
    let mut steps: Vec<Step> = (0..5).map(|_| Step::stream("application/x-ndjson", away)).collect();
    steps.push(Step::stream("application/x-ndjson", last));
    read_all(Transport::Stream, 1, steps).await;
    assert!(started.elapsed() >= Duration::from_millis(5 * 20), "sent away five times in {:?}", started.elapsed());

    let started = Instant::now();
    let none = "204 No Content\r\nMillrace-Position: a@e:1,b@e:7\r\nConnection: close\r\n\r\n";
    let some = r#"{"positions":{"a":"e:2","b":"e:7"},"gaps":[],"messages":[{"channel":"a","position":"e:2","time":1,"data":2}]}"#;
    let mut steps: Vec<Step> = (0..4).map(|_| Step::Answer(none.into())).collect();
    steps.push(Step::json("200 OK", some));
    read_all(Transport::LongPolling, 1, steps).await;
    assert!(started.elapsed() >= Duration::from_millis(3 * 100), "four empty polls in {:?}", started.elapsed());
}

#[tokio::test]
async fn endless_range_is_an_error() {
    let now = "204 No Content\r\nMillrace-Position: e:9\r\nConnection: close\r\n\r\n";
    let page = r#"{"position":"e:1","more":true,"messages":[]}"#;
    let (url, _server) =
        serve(vec![Step::Answer(now.into()), Step::json("200 OK", page), Step::json("200 OK", page)]).await;
    let range = Range {
        server: Server::parse(&url).expect("an address"),
        channel: "a".into(),
        since: "e:1".into(),
        until: "now".into(),
        limit: None,
        retry_for: Duration::from_secs(1),
    };
    let error = read_range(&range, &mut |_| ControlFlow::Continue(())).await.expect_err("it ends");
    assert!(error.to_string().contains("e:1 is not the end"), "{error}");
}

#[tokio::test]
async fn refusal_ends_the_subscription_with_its_reason() {
    let wrong = r#"{"type":"","title":"","status":400,"detail":"not a position","code":"bad_position","retry":false}"#;
    let (url, _server) = serve(vec![Step::json("400 Bad Request", wrong)]).await;
    let options = Options {
        server: Server::parse(&url).expect("an address"),
        channels: vec!["a".into()],
        transport: Transport::Stream,
        since: Some("soon".into()),
        policy: "every".into(),
        poll_interval: Duration::from_secs(1),
        retry_for: None,
    };
    let error = read(&options, &mut |_| ControlFlow::Continue(())).await.expect_err("refused");
    assert_eq!(error.to_string(), "the server refuses: bad_position: not a position");
    let pattern = Options { channels: vec!["a/#".into()], ..options };
    let error = read(&pattern, &mut |_| ControlFlow::Continue(())).await.expect_err("no pattern over HTTP");
    assert!(error.to_string().contains("--transport websocket"));
}
