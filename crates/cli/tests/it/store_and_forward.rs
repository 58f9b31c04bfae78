//! Tests `millrace gateway --buffer` with a real server, and kills both.

use std::{fs, path::PathBuf};

use millrace_buffer::{Buffer, Message, Step};
use millrace_gateway::store_and_forward::{BufferConfig, Files};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Process, Server, free_port, millrace, run};

/// Empty directory for the files of a test.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("store-and-forward").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the target directory is writable");
    folder
}

struct Setup {
    folder: PathBuf,
    server: String,
    gateway: String,
}

impl Setup {
    fn new(name: &str) -> Self {
        let address = || format!("127.0.0.1:{}", free_port());
        Self { folder: folder(name), server: address(), gateway: address() }
    }

    fn server(&self) -> Server {
        let engine = format!("sqlite:{}", self.folder.join("data.db").display());
        let args = ["--listen", &self.server, "--engine", &engine, "--set", "namespaces.cars.durable=true"];
        Server::start_from(millrace(&["serve"]).args(args))
    }

    fn gateway(&self, more: &[&str]) -> Server {
        let (buffer, to) = (self.folder.join("buffer"), format!("http://{}", self.server));
        let buffer = buffer.to_str().expect("UTF-8");
        let args = ["gateway", "--listen", &self.gateway, "--buffer", buffer, "--to", &to];
        Server::start_from(millrace(&args).args(more))
    }
}

fn kill(server: Server) {
    server.process.signal(Signal::KILL);
    assert_eq!(server.process.finish().signal, Some(Signal::KILL.as_raw()));
}

fn publish(gateway: &Server, channel: &str, n: u64) {
    let answer = gateway.post(&format!("/v1/channels/{channel}"), &json!({ "n": n }).to_string());
    assert_eq!(answer.status, 202, "{answer:?}");
}

fn stats(gateway: &Server) -> Value {
    serde_json::from_str(&gateway.get("/v1/stats").body).expect("JSON")
}

/// Waits until nothing waits, and returns the statistics.
fn drained(gateway: &Server) -> Value {
    let answer = gateway.get_until("/v1/stats", |answer| answer.body.contains("\"waiting\":0,"));
    serde_json::from_str(&answer.body).expect("JSON")
}

fn numbers(server: &Server, channel: &str) -> Vec<u64> {
    let path = format!("/v1/channels/{channel}?since=earliest&limit=1000");
    let page: Value = serde_json::from_str(&server.get(&path).body).expect("JSON");
    let messages = page["messages"].as_array().expect("messages").iter();
    messages.map(|message| message["data"]["n"].as_u64().expect("a number")).collect()
}

#[test]
fn kills_lose_double_and_reorder_nothing() {
    let setup = Setup::new("kills");
    let channels = ["cars/1/telemetry", "cars/2/telemetry", "cars/3/telemetry"];
    let mut sent = 0;
    let burst = |gateway: &Server, sent: &mut u64| {
        for _ in 0..20 {
            channels.iter().for_each(|channel| publish(gateway, channel, *sent));
            *sent += 1;
        }
    };
    // The gateway starts without a server, and is killed while messages wait.
    let gateway = setup.gateway(&[]);
    burst(&gateway, &mut sent);
    assert_eq!(stats(&gateway)["waiting"], 60);
    kill(gateway);
    let gateway = setup.gateway(&[]);
    assert_eq!(stats(&gateway)["waiting"], 60);
    // Both are killed in turns, while messages arrive.
    let (mut server, mut gateway) = (setup.server(), gateway);
    for round in 0..6 {
        burst(&gateway, &mut sent);
        if round % 2 == 0 {
            kill(server);
            burst(&gateway, &mut sent);
            server = setup.server();
        } else {
            kill(gateway);
            gateway = setup.gateway(&[]);
        }
    }
    let stats = drained(&gateway);
    let expected: Vec<_> = (0..sent).collect();
    for channel in channels {
        assert_eq!(numbers(&server, channel), expected, "{channel}: {stats}");
    }
    assert_eq!((stats["dropped"].as_u64(), stats["expired"].as_u64()), (Some(0), Some(0)), "{stats}");
    assert_eq!(stats["stored"], 3 * sent, "{stats}");
}

#[test]
fn repeated_request_of_a_device_counts_once() {
    let setup = Setup::new("repeated");
    let gateway = setup.gateway(&[]);
    let send = |gateway: &Server, key: &str| {
        let key = format!("Idempotency-Key: {key}");
        gateway.ask("POST", "/v1/channels/cars/1/events", &[&key, "Content-Type: application/json"], "{\"n\":1}")
    };
    assert_eq!(send(&gateway, "a").body, "{\"queued\":0}");
    assert_eq!(send(&gateway, "a").body, "{\"queued\":0,\"repeated\":true}");
    let server = setup.server();
    drained(&gateway);
    // The buffer no longer has the message; the server recognizes the key.
    assert_eq!(send(&gateway, "a").status, 202);
    assert_eq!(send(&gateway, "b").status, 202);
    drained(&gateway);
    assert_eq!(numbers(&server, "cars/1/events"), [1, 1]);
}

#[test]
fn lines_of_standard_input_are_sent_in_order_and_the_gateway_exits() {
    let setup = Setup::new("input");
    let server = setup.server();
    let (buffer, to) = (setup.folder.join("buffer"), format!("http://{}", setup.server));
    let args = ["gateway", "--stdin", "--listen", &setup.gateway, "--to", &to, "--buffer"];
    let lines = (0..500).map(|n| format!("{}\n", json!({"channel": "cars/1/telemetry", "data": {"n": n}})));
    let path = setup.folder.join("lines.ndjson");
    fs::write(&path, lines.collect::<String>() + "not JSON\n").expect("a file");
    let input = fs::File::open(&path).expect("a file");
    let gateway = Process::start_with_input(millrace(&args).arg(&buffer).stdin(input));
    let ended = gateway.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.err.contains("line 501 of the input is skipped"), "{}", ended.err);
    assert_eq!(numbers(&server, "cars/1/telemetry"), (0..500).collect::<Vec<_>>());
}

#[test]
fn torn_journal_and_second_gateway_are_reported() {
    let setup = Setup::new("torn");
    let gateway = setup.gateway(&[]);
    (0..3).for_each(|n| publish(&gateway, "cars/1/telemetry", n));
    let buffer = setup.folder.join("buffer");
    let second = run(&["gateway", "--listen", "127.0.0.1:0", "--buffer", buffer.to_str().expect("UTF-8")]);
    assert_eq!(second.code, Some(1));
    assert!(second.err.contains("another gateway uses this directory"), "{}", second.err);
    kill(gateway);
    let journal = buffer.join("journal");
    let mut bytes = fs::read(&journal).expect("a journal");
    bytes.extend(b"MRb1 and a write that the power failure has cut");
    fs::write(&journal, bytes).expect("a journal");
    let mut gateway = setup.gateway(&[]);
    gateway.process.err.wait_for("47 incomplete bytes in the journal");
    publish(&gateway, "cars/1/telemetry", 3);
    let server = setup.server();
    drained(&gateway);
    assert_eq!(numbers(&server, "cars/1/telemetry"), [0, 1, 2, 3]);
}

#[test]
fn refused_messages_are_set_aside_and_bad_requests_answered() {
    let setup = Setup::new("refused");
    let gateway = setup.gateway(&[]);
    let _server = setup.server();
    // The gateway does not know which namespaces need a key; the server refuses.
    let batch = "{\"channel\":\"fleet\",\"data\":1}\nnot JSON\n{\"channel\":\"cars/1/x\",\"data\":{\"n\":2}}\n";
    let answer = gateway.post("/v1/publish", batch);
    assert_eq!(answer.status, 202);
    let results: Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(results["results"][1]["error"]["code"], "bad_json", "{results}");
    let stats = drained(&gateway);
    assert_eq!((&stats["refused"], &stats["sent"]), (&json!(1), &json!(1)), "{stats}");
    let refused = fs::read_to_string(setup.folder.join("buffer/refused.ndjson")).expect("a file");
    assert!(refused.contains("\"channel\":\"fleet\"") && refused.lines().count() == 1, "{refused}");
    for (path, body, status) in [
        ("/v1/channels/cars//x", "1", 400),
        ("/v1/channels/a%00b", "1", 400),
        ("/v1/other", "1", 404),
        ("/v1/channels/a", &"x".repeat((1 << 20) + 1)[..], 413),
    ] {
        let answer = gateway.post(path, body);
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
}

#[test]
fn history_decides_after_the_server_forgot_the_keys() {
    let setup = Setup::new("history");
    let server = setup.server();
    let hour_ago = millrace_client::clock::now_ms() - 3_600_000;
    // An hour ago, a request was interrupted. The server has two of its three messages, under keys that it forgot.
    let numbers_of = |channel: &str, n: u32| {
        Message::new(channel, None, None, format!("\"data\":{{\"n\":{n}}}")).expect("good names")
    };
    let messages = [0, 1, 2].map(|n| numbers_of("cars/1/telemetry", n));
    let files = Files::open(&setup.folder.join("buffer")).expect("a directory");
    let mut buffer = Buffer::open(BufferConfig::default(), files, hour_ago, 7).expect("a journal");
    buffer.put(hour_ago, &messages).expect("the disk works");
    assert!(matches!(buffer.poll_step(hour_ago), Ok(Some(Step::Send(_)))));
    drop(buffer);
    for n in [7, 0, 1] {
        let answer = server.post("/v1/channels/cars/1/telemetry", &json!({ "n": n }).to_string());
        assert_eq!(answer.status, 200);
    }
    let stats = drained(&setup.gateway(&[]));
    assert_eq!((&stats["sent"], &stats["unverified"]), (&json!(3), &json!(0)), "{stats}");
    assert_eq!(numbers(&server, "cars/1/telemetry"), [7, 0, 1, 2]);
}
