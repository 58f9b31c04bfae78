//! Ranges of history: every way to read a range delivers each publication once, and then ends.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::{
    client::{Session, after, parts},
    server::{Answer, Server, client, until, within},
};

const HTTP: [&str; 3] = ["application/json", "application/xml", "session"];

/// Reads the range of `channel` page by page. Returns the data and the position of the last answer.
async fn pages(server: &Server, channel: &str, since: &str, end: &str, limit: usize) -> (Vec<u64>, String) {
    let (mut since, mut read) = (since.to_owned(), Vec::new());
    for _ in 0..1000 {
        let path = format!("/v1/channels/{channel}?since={since}&until={end}&limit={limit}");
        let answer = server.get(&path).await;
        since = answer.position().to_owned();
        if answer.status == 204 {
            return (read, since);
        }
        let answer = answer.json();
        assert!(answer.get("gap").is_none(), "{answer}");
        let messages = answer["messages"].as_array().expect("messages");
        assert!(messages.len() <= limit && (answer["more"] != true || !messages.is_empty()), "{answer}");
        read.extend(messages.iter().map(|message| message["data"].as_u64().expect("a number")));
        if answer["more"] != true {
            return (read, since);
        }
    }
    panic!("it does not end");
}

/// Reads a stream until it ends. Returns the answer, and one string per line or event.
async fn replay(server: &Server, path: &str, accept: &str, http2: bool) -> (Answer, Vec<String>) {
    let request = client(http2).get(server.url(path)).header("accept", accept);
    let answer = Answer::read(within(request.send()).await.expect("an answer")).await;
    let separator = if accept == "text/event-stream" { "\n\n" } else { "\n" };
    let said = answer.text().split_terminator(separator).map(str::to_owned).collect();
    (answer, said)
}

#[tokio::test]
async fn pages_cover_range_exactly_once() {
    let server = Server::start();
    let last = server.publish_all("r", (1..=50).map(Value::from)).await;
    let at = |offset: u64| format!("{}:{offset}", parts(&last).0);
    for limit in [1, 7, 33, 1000] {
        assert_eq!(pages(&server, "r", &at(10), &at(30), limit).await, ((11..=30).collect(), at(30)), "limit {limit}");
        assert_eq!(pages(&server, "r", "earliest", &at(30), limit).await, ((1..=30).collect(), at(30)));
        assert_eq!(pages(&server, "r", &at(45), "now", limit).await, ((46..=50).collect(), at(50)));
        assert_eq!(pages(&server, "r", &at(45), &at(99), limit).await, ((46..=50).collect(), at(50)));
    }
    assert_eq!(pages(&server, "r", &at(30), &at(30), 5).await, (vec![], at(30)));
    // Without an end, `more` reports that further publications exist now.
    let open = server.get(&format!("/v1/channels/r?since={}&limit=5", at(40))).await.json();
    assert_eq!((&open["more"], &open["position"]), (&json!(true), &json!(at(45))));
    assert!(server.get(&format!("/v1/channels/r?since={}", at(45))).await.json().get("more").is_none());
}

#[tokio::test]
async fn ranges_of_time_join() {
    let server = Server::start();
    for n in 0..6 {
        server.publish("t", n.to_string()).await;
        let published = SystemTime::now();
        until("the next millisecond", async || published.elapsed().is_ok_and(|past| past.as_millis() > 1)).await;
    }
    let all = server.get("/v1/channels/t?since=earliest").await.json();
    let times: Vec<u64> = all["messages"].as_array().unwrap().iter().map(|m| m["time"].as_u64().unwrap()).collect();
    let (from, middle, to) = (times[1], times[3], times[5]);
    let (first, end) = pages(&server, "t", &from.to_string(), &middle.to_string(), 2).await;
    let (second, _) = pages(&server, "t", &middle.to_string(), &to.to_string(), 1).await;
    assert_eq!((first, second), (vec![1, 2], vec![3, 4]));
    // A range of time and a range of positions give the same publications.
    assert_eq!(pages(&server, "t", &end, &to.to_string(), 10).await.0, [3, 4]);
    let future = (to + 1_000_000).to_string();
    assert_eq!(pages(&server, "t", &middle.to_string(), &future, 2).await.0, [3, 4, 5]);
    let spelled = |ms: u64| {
        let hour_later = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms + 3_600_000));
        hour_later.to_string().replace('Z', "%2B01:00")
    };
    assert_eq!(pages(&server, "t", &spelled(from), &spelled(middle), 10).await.0, [1, 2]);
}

#[tokio::test]
async fn every_response_format_returns_same_range() {
    let server = Server::start();
    let last = server.publish_all("same", (1..=9).map(Value::from)).await;
    let at = |offset: u64| format!("{}:{offset}", parts(&last).0);
    for encoding in HTTP {
        let path = format!("/v1/channels/same?since={}&until={}&limit=3", at(2), at(7));
        match encoding {
            "session" => {
                let mut session = Session::open(&server).await;
                let words = json!({ "channel": "same", "since": at(2), "until": at(7), "limit": 3 });
                let ok = session.command("history", words).await.unwrap();
                assert_eq!((&ok["more"], &ok["position"]), (&json!(true), &json!(at(5))), "{ok}");
                let words = json!({ "channel": "same", "since": ok["position"], "until": at(7), "limit": 3 });
                let ok = session.command("history", words).await.unwrap();
                assert_eq!((ok.get("more"), &ok["position"]), (None, &json!(at(7))), "{ok}");
                let words = json!({ "channel": "same", "since": at(7), "until": at(2) });
                assert_eq!(session.command("history", words).await.unwrap_err()["code"], "bad_request");
                let words = json!({ "channel": "same", "until": 1 });
                assert_eq!(session.command("history", words).await.unwrap()["messages"], json!([]));
            }
            accept => {
                let answer = server.get_with(&path, &[("accept", accept)]).await;
                assert_eq!(answer.position(), at(5), "{answer:?}");
                let text = answer.text();
                let more = if accept == "application/xml" { " more=\"true\"" } else { "\"more\":true" };
                assert!(text.contains(more) && text.contains(&at(5)) && !text.contains(&at(6)), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn range_stream_ends() {
    let server = Server::start();
    let mut last = String::new();
    for thousand in 0..3 {
        last = server.publish_all("s", (thousand * 1000 + 1..=thousand * 1000 + 1000).map(Value::from)).await;
    }
    let at = |offset: u64| format!("{}:{offset}", parts(&last).0);
    for http2 in [false, true] {
        let path = format!("/v1/channels/s?since={}&until={}", at(100), at(2400));
        let (answer, lines) = replay(&server, &path, "application/x-ndjson", http2).await;
        assert_eq!((answer.status.as_u16(), answer.position()), (200, at(100).as_str()));
        let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let read: Vec<_> = lines.iter().filter_map(|line| line["data"].as_u64()).collect();
        assert_eq!(read, (101..=2400).collect::<Vec<_>>());
        assert_eq!(lines.last().unwrap(), &json!({ "end": { "position": at(2400) } }));

        let path = format!("/v1/channels/s?since={}&until=now&limit=3", at(2000));
        let (_, events) = replay(&server, &path, "text/event-stream", http2).await;
        let expected = [
            format!("retry: 2000\nid: {}", at(2000)),
            format!("id: {}\ndata: 2001", at(2001)),
            format!("id: {}\ndata: 2002", at(2002)),
            format!("id: {}\ndata: 2003", at(2003)),
            format!("event: end\nid: {at}\ndata: {{\"more\":true,\"position\":\"{at}\"}}", at = at(2003)),
        ];
        assert_eq!(events, expected);
    }
    // An `EventSource` that reconnects after the end is answered with 204, the only answer that stops its reconnects.
    let headers = [("accept", "text/event-stream"), ("last-event-id", &at(2400))];
    let over = server.get_with(&format!("/v1/channels/s?until={}", at(2400)), &headers).await;
    assert_eq!((over.status.as_u16(), over.position()), (204, at(2400).as_str()));
    until("no stream is open", async || {
        server.metric("millrace_connections{transport=\"stream\"}").await == 0
            && server.metric("millrace_connections{transport=\"sse\"}").await == 0
    })
    .await;
}

#[tokio::test]
async fn each_channel_ends_at_its_own_position() {
    let server = Server::start();
    let a = server.publish_all("m/a", [json!(1), json!(2)]).await;
    let b = server.publish_all("m/b", [json!(3)]).await;
    let path = "/v1/stream?channel=m/a&channel=m/b&channel=m/none&until=now";
    let (_, lines) = replay(&server, path, "application/x-ndjson", false).await;
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let none = a.replace(":2", ":0");
    let positions = json!({ "m/a": a, "m/b": b, "m/none": none });
    assert_eq!(lines[0]["positions"], json!({ "m/a": none, "m/b": none, "m/none": none }));
    assert_eq!(lines[1..4].iter().map(|line| &line["data"]).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(lines[4], json!({ "end": { "positions": positions } }));
    let (_, events) = replay(&server, path, "text/event-stream", false).await;
    assert!(events[3].starts_with(&format!("id: m/a@{a},m/b@{b},m/none@{none}\ndata: ")), "{events:?}");
    assert!(events[4].starts_with(&format!("event: end\nid: m/a@{a},m/b@{b},m/none@{none}\n")), "{events:?}");
    let answer = server.get(&format!("{path}&limit=2")).await.json();
    assert_eq!((&answer["more"], answer["messages"].as_array().unwrap().len()), (&json!(true), 2), "{answer}");
    assert_eq!(answer["positions"], json!({ "m/a": a, "m/b": none, "m/none": none }));
}

#[tokio::test]
async fn range_reports_lost_publications_once() {
    let server = Server::with(|config| config.history.count_max = 5);
    let last = server.publish_all("g", (1..=20).map(Value::from)).await;
    let at = |offset: u64| format!("{}:{offset}", parts(&last).0);
    let get = async |since: &str, until: &str| {
        server.get(&format!("/v1/channels/g?since={since}&until={until}")).await.json()
    };
    let answer = get(&at(3), &at(17)).await;
    assert_eq!(answer["gap"], json!({ "from": at(3), "to": at(15) }));
    assert_eq!(answer["messages"].as_array().unwrap().len(), 2);
    let answer = get(&at(3), &at(9)).await;
    assert_eq!((&answer["gap"], &answer["messages"]), (&json!({ "from": at(3), "to": at(9) }), &json!([])));
    assert_eq!((&answer["position"], answer.get("more")), (&json!(at(9)), None));
    // A range of another epoch is reported as one gap: exactly the requested range, and no more.
    let answer = get("00000001:4", "00000001:9").await;
    assert_eq!(answer["gap"], json!({ "from": "00000001:4", "to": "00000001:9" }));
    assert_eq!(answer["position"], "00000001:9");
    let path = format!("/v1/channels/g?since={}&until={}", at(3), at(17));
    let (_, lines) = replay(&server, &path, "application/x-ndjson", false).await;
    assert_eq!(lines[0], format!("{{\"gap\":{{\"from\":\"{}\",\"to\":\"{}\"}}}}", at(3), at(15)));
    assert_eq!(lines.len(), 4, "{lines:?}");
}

#[tokio::test]
async fn pages_join_during_publishing() {
    let server = Server::start();
    let first = server.publish("live", "1").await;
    let epoch = parts(&first).0.to_owned();
    let publish = async {
        for n in 2..=400u64 {
            assert_eq!(server.publish("live", n.to_string()).await, after(&first, n - 1));
        }
    };
    let read = async {
        for n in 0..40u64 {
            let (since, until) = (format!("{epoch}:{}", n * 10), format!("{epoch}:{}", n * 10 + 10));
            let (mut read, mut end) = (Vec::new(), since);
            while end != until {
                let (more, position) = pages(&server, "live", &end, &until, 4).await;
                read.extend(more);
                end = position;
            }
            assert_eq!(read, (n * 10 + 1..=n * 10 + 10).collect::<Vec<_>>());
            let (all, end) = pages(&server, "live", "earliest", "now", 1000).await;
            assert_eq!(all, (1..=parts(&end).1).collect::<Vec<_>>());
        }
    };
    tokio::join!(publish, read);
}

#[tokio::test]
async fn contradictory_parameters_are_refused() {
    let server = Server::start();
    for (query, code, hint) in [
        ("since=5f0c12ab:9&until=5f0c12ab:8", "bad_request", "before"),
        ("since=2026-11-20T10:00:00Z&until=2026-11-20T09:59:59Z", "bad_request", "before"),
        ("since=2026-11-20T10:00:00Z&until=soon", "bad_position", "2026-11-20T10:00:00Z"),
        ("until=earliest", "bad_request", "earliest"),
        ("since=now&until=now", "bad_request", "omit one of the two"),
        ("until=now&wait=10", "bad_request", "wait"),
        ("until=now&policy=latest", "bad_request", "policy"),
        ("until=now&limit=0", "bad_request", "1 to 1000"),
        ("until=now&until=now", "bad_request", "twice"),
    ] {
        for accept in ["application/json", "text/event-stream", "application/x-ndjson"] {
            let answer = server.get_with(&format!("/v1/channels/a?{query}"), &[("accept", accept)]).await;
            let detail = answer.assert_problem(400, code);
            assert!(detail.contains(hint), "{query}: {detail}");
        }
    }
    let answer = server.get("/v1/stream?channel=a&until=5f0c12ab:8").await;
    assert!(answer.assert_problem(400, "bad_request").contains("several channels"));
}
