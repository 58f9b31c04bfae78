//! Tests `pub`, `sub` and `simulate` against a real server.

use std::{collections::BTreeSet, fs::File, process::Stdio};

use serde_json::Value;

use crate::support::{Ended, Process, Server, file, free_port, millrace, polls_often, repository, run};

const TRANSPORTS: [&str; 5] = ["websocket", "stream", "sse", "long-polling", "polling"];

#[test]
fn publication_is_read_on_every_transport() {
    let server = Server::start(&["--shards", "2"]);
    for transport in TRANSPORTS {
        let channel = format!("test/{transport}");
        publish(&server, &channel, "{\"n\":1}");
        publish(&server, &channel, "two");
        let args = ["sub", &channel, "--transport", transport, "--since", "earliest", "--limit", "3"];
        let mut sub = Process::start(millrace(&args).args(polls_often(transport)).args(["--to", &server.url]));
        assert_eq!([sub.out.next(), sub.out.next()], [Some("{\"n\":1}".into()), Some("two".into())], "{transport}");
        publish(&server, &channel, "and three");
        let ended = sub.finish();
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (Some(0), "{\"n\":1}\ntwo\nand three\n"),
            "{transport}: {ended:?}"
        );
    }
}

#[test]
fn reader_resumes_on_another_transport() {
    let server = Server::start(&[]);
    let positions = ["1", "2", "3", "4", "5", "6"].map(|n| publish(&server, "count", n));
    let mut since = "earliest".to_owned();
    let mut read = Vec::new();
    for transport in TRANSPORTS {
        let args = [
            "sub",
            "count",
            "--json",
            "--limit",
            "1",
            "--transport",
            transport,
            "--since",
            &since,
            "--to",
            &server.url,
        ];
        let line: Value = serde_json::from_str(&run(&args).out).expect("an envelope");
        since = line["position"].as_str().expect("a position").to_owned();
        assert_eq!(line["channel"], "count");
        read.push(since.clone());
    }
    assert_eq!(read, positions[..TRANSPORTS.len()]);
}

#[test]
fn latest_policy_on_a_pattern_prints_newest_per_key() {
    let server = Server::start(&[]);
    for (channel, data, key) in [("p/1/a", "1", "x"), ("p/2/a", "2", "x"), ("p/2/b", "3", "x"), ("p/1/a", "4", "x")] {
        assert_eq!(run(&["pub", channel, data, "--key", key, "--to", &server.url]).code, Some(0));
    }
    let latest = ["sub", "p/+/a", "--policy", "latest", "--since", "earliest", "--limit", "2", "--to", &server.url];
    let ended = run(&latest);
    let lines: BTreeSet<&str> = ended.out.lines().collect();
    assert_eq!(lines, BTreeSet::from(["2", "4"]), "{ended:?}");
}

#[test]
fn every_line_of_the_input_is_one_publication() {
    let server = Server::start(&[]);
    let input = File::open(file("lines.txt", "{\"n\":1}\nplain text\n3\n")).expect("it was just written");
    let mut command = millrace(&["pub", "lines", "--to", &server.url]);
    let ended = Process::start_with_input(command.stdin(Stdio::from(input))).finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let offsets: Vec<&str> = ended.out.lines().filter_map(|position| position.split(':').nth(1)).collect();
    assert_eq!(offsets, ["1", "2", "3"]);
    assert_eq!(data(&server, "lines"), [serde_json::json!({"n": 1}), "plain text".into(), 3.into()]);
}

#[test]
fn invalid_commands_print_their_error_code() {
    let server = Server::start(&[]);
    let bad = run(&["pub", "not//a/name", "1", "--to", &server.url]);
    assert!(bad.code == Some(1) && bad.err.contains("bad_channel"), "{bad:?}");
    let bad = run(&["pub", "a", "not json", "--json", "--to", &server.url]);
    assert!(bad.code == Some(1) && bad.err.contains("bad_json"), "{bad:?}");
    let bad = run(&["sub", "a", "--since", "yesterday", "--to", &server.url]);
    assert!(bad.code == Some(1) && bad.err.contains("bad_position"), "{bad:?}");
}

#[test]
fn unreachable_server_is_named_in_the_error() {
    let url = format!("http://ann:s3cret@127.0.0.1:{}", free_port());
    let shown = url.replace("ann:s3cret@", "");
    for args in [
        &["pub", "a", "1"][..],
        &["sub", "a"],
        &["history", "a"],
        &["simulate", "fleet", "--cars", "1", "--interval", "10ms"],
    ] {
        let ended = run(&[args, &["--to", &url, "--retry-for", "700ms"]].concat());
        assert_eq!(ended.code, Some(1), "{args:?}: {ended:?}");
        let last = ended.err.lines().rfind(|line| line.starts_with("millrace: ")).expect("an error");
        assert!(last.contains(&format!("{shown}: Connection refused")), "{args:?}: {last}");
        assert!(last.contains("--retry-for") && !ended.err.contains("s3cret"), "{args:?}: {ended:?}");
    }
    let once = run(&["pub", "a", "1", "--to", &url, "--retry-for", "0s"]);
    assert!(once.code == Some(1) && once.err.lines().count() == 1, "it does not try again: {once:?}");
    // The server starts while the client retries.
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let mut early = Process::start(&mut millrace(&["pub", "a", "1", "--to", &url]));
    let line = early.err.wait_for("trying again in");
    assert!(line.starts_with(&format!("{url}: attempt 1 failed: Connection refused")), "{line}");
    let _server = Server::start_from(&mut millrace(&["serve", "--listen", &port.to_string()]));
    assert_eq!(early.finish().code, Some(0));
}

#[test]
fn https_to_a_plain_server_suggests_http() {
    let server = Server::start(&[]);
    let url = server.url.replace("http://", "https://");
    for args in [&["pub", "a", "1"][..], &["sub", "a"], &["sub", "a", "--transport", "sse"], &["history", "a"]] {
        let ended = run(&[args, &["--to", &url]].concat());
        assert_eq!(ended.code, Some(1), "{args:?}: {ended:?}");
        assert!(ended.err.contains(&format!("{url} does not speak TLS; use {}", server.url)), "{args:?}: {ended:?}");
    }
}

#[test]
fn since_accepts_an_age() {
    let server = Server::start(&[]);
    publish(&server, "lately", "1");
    for transport in TRANSPORTS {
        let args = ["sub", "lately", "--since", "10m", "--limit", "1", "--transport", transport, "--to", &server.url];
        let ended = run(&args);
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "1\n"), "{transport}: {ended:?}");
    }
    let range = run(&["history", "lately", "--since", "10m", "--until", "9m", "--to", &server.url]);
    assert_eq!((range.code, range.out.as_str()), (Some(0), ""), "{range:?}");
    assert!(range.err.contains("no history of lately"), "{range:?}");
    let range = run(&["history", "lately", "--since", "10m", "--to", &server.url]);
    assert!(range.out.contains("\"data\":1") && range.err.is_empty(), "{range:?}");
}

#[test]
fn channel_without_history_is_reported_as_success() {
    let server = Server::start(&[]);
    let none = run(&["history", "nosuchchannel", "--to", &server.url]);
    assert_eq!((none.code, none.out.as_str()), (Some(0), ""), "{none:?}");
    assert_eq!(none.err.trim(), "no history of nosuchchannel from earliest to now");
}

#[test]
fn gap_is_printed() {
    let server = Server::start(&["--set", "history.count_max=2"]);
    let first = ["1", "2", "3", "4"].map(|n| publish(&server, "short", n))[0].clone();
    for transport in TRANSPORTS {
        let args = ["sub", "short", "--transport", transport, "--since", &first, "--limit", "2", "--to", &server.url];
        let ended = run(&args);
        assert_eq!(ended.out, "3\n4\n", "{transport}: {ended:?}");
        let (_, to) = ended.err.split_once("gap in short: ").unwrap_or_else(|| panic!("{transport}: {ended:?}"));
        assert!(to.contains(&format!("after {first} ")) && to.contains(":2 is missing"), "{transport}: {ended:?}");
    }
}

#[test]
fn same_seed_simulates_the_same_drive() {
    let drive = |seed: &str| {
        let server = Server::start(&[]);
        let args = ["simulate", "fleet", "--cars", "3", "--seed", seed, "--count", "5", "--interval", "20ms"];
        let ended = run(&[&args[..], &["--speedup", "100", "--to", &server.url]].concat());
        assert!(ended.code == Some(0) && ended.err.contains("15 records sent"), "{ended:?}");
        let records: Vec<Value> =
            ["1", "2", "3"].iter().flat_map(|car| data(&server, &format!("cars/{car}/telemetry"))).collect();
        assert_eq!(records.len(), 15);
        records.into_iter().map(without_time).collect::<Vec<_>>()
    };
    let (first, again, other) = (drive("11"), drive("11"), drive("12"));
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert_ne!(first[0]["gpsLatitude"], first[4]["gpsLatitude"], "the car stands");
}

#[test]
fn valid_datagrams_are_published_and_others_counted() {
    let server = Server::start(&["--udp", "127.0.0.1:0"]);
    let info: Value = serde_json::from_str(&server.get("/v1/info").body).expect("JSON");
    let udp = info["udp"].as_str().expect("an address");
    let csv = repository("crates/simulate/fixtures/drive.csv").display().to_string();
    let args = ["simulate", "car", "--csv", &csv, "--car", "9", "--count", "3", "--interval", "10ms"];
    let ended = run(&[&args[..], &["--to", &format!("udp://{udp}")]].concat());
    assert!(ended.code == Some(0) && ended.err.contains("3 records sent by UDP"), "{ended:?}");

    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let too_large = format!("{{\"channel\":\"devices/1\",\"data\":\"{}\"}}", "x".repeat(1472));
    let good: &[u8] = b"{\"channel\":\"devices/1\",\"data\":{\"on\":true}}";
    for datagram in
        [b"".as_slice(), b"\xff\x00rubbish", b"{\"channel\":\"no//name\",\"data\":1}", too_large.as_bytes(), good]
    {
        socket.send_to(datagram, udp).expect("it leaves");
    }
    // Datagrams of one socket arrive in order here: once the last one is processed, all were.
    server.get_until("/v1/channels/devices/1", |answer| answer.status == 200);
    let metrics = server.get("/metrics").body;
    for line in ["millrace_udp_received_total 8", "millrace_udp_dropped_total 4"] {
        assert!(metrics.lines().any(|found| found == line), "no {line:?} in {metrics}");
    }
    let records = data(&server, "cars/9/telemetry");
    assert_eq!(records.iter().map(|record| &record["seq"]).collect::<Vec<_>>(), [1, 2, 3]);
}

/// Publishes a message and returns its position.
fn publish(server: &Server, channel: &str, data: &str) -> String {
    let ended: Ended = run(&["pub", channel, data, "--to", &server.url]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.out.trim().to_owned()
}

/// Returns all payloads of a channel, oldest first.
fn data(server: &Server, channel: &str) -> Vec<Value> {
    let answer = server.get(&format!("/v1/channels/{channel}?since=earliest"));
    let answer: Value = serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
    let messages = answer["messages"].as_array().expect("messages");
    messages.iter().map(|message| message["data"].clone()).collect()
}

fn without_time(mut record: Value) -> Value {
    assert!(record["timestamp"].is_u64(), "{record}");
    record.as_object_mut().map(|record| record.remove("timestamp"));
    record
}

#[test]
fn history_prints_a_range() {
    let server = Server::start(&["--set", "history.count_max=2500"]);
    let lines: String = (1..=2600).map(|n| format!("{{\"channel\":\"past\",\"data\":{n},\"key\":\"k\"}}\n")).collect();
    for batch in lines.lines().collect::<Vec<_>>().chunks(1000) {
        assert_eq!(server.post("/v1/publish", &batch.join("\n")).status, 200);
    }
    let history = |args: &[&str]| {
        let ended = run(&[&["history", "past", "--to", &server.url], args].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let lines = ended.out.lines().map(|line| serde_json::from_str(line).expect("an envelope"));
        (lines.collect::<Vec<Value>>(), ended.err)
    };
    let numbers =
        |lines: &[Value]| lines.iter().map(|line| line["data"].as_u64().expect("a number")).collect::<Vec<_>>();
    let (all, _) = history(&[]);
    assert_eq!(numbers(&all), (101..=2600).collect::<Vec<_>>());
    assert_eq!((&all[0]["channel"], &all[0]["key"]), (&"past".into(), &"k".into()));
    let at = |n: usize| all[n - 101]["position"].as_str().expect("a position");
    let (part, _) = history(&["--since", at(200), "--until", at(210)]);
    assert_eq!(numbers(&part), (201..=210).collect::<Vec<_>>());
    assert_eq!(numbers(&history(&["--since", at(200), "--limit", "1500"]).0), (201..=1700).collect::<Vec<_>>());
    let (none, _) = history(&["--until", "2020-01-01T00:00:00Z"]);
    assert!(none.is_empty(), "{none:?}");
    let lost = at(101).replace(":101", ":90");
    let (_, err) = history(&["--since", &lost, "--until", at(101)]);
    assert!(err.contains(&format!("gap in past: what came after {lost} up to and including")), "{err}");
    let bad = run(&["history", "past", "--until", "earliest", "--to", &server.url]);
    assert!(bad.code == Some(1) && bad.err.contains("bad_request"), "{bad:?}");
}
