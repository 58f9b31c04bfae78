//! Tests that data in a file survives the process: positions, history and readers continue after `kill -9`.

use std::{fs, path::PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Process, Server, free_port, millrace, polls_often};

const TRANSPORTS: [&str; 5] = ["websocket", "stream", "sse", "long-polling", "polling"];
const CAR: &str = "cars/7/telemetry";

#[test]
fn readers_resume_after_a_kill_on_every_transport() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("restart");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the target directory is writable");
    let engine = format!("sqlite:{}", folder.join("data.db").display());
    let listen = format!("127.0.0.1:{}", free_port());
    let args = ["--listen", &listen, "--engine", &engine, "--set", "namespaces.cars.durable=true"];
    let start = || Server::start_from(millrace(&["serve"]).args(args));

    let server = start();
    let before: Vec<_> = (1..=3).map(|n| publish(&server, n)).collect();
    let read = |transport: &str| {
        let args = ["sub", CAR, "--json", "--since", "earliest", "--limit", "6", "--transport", transport];
        Process::start(millrace(&args).args(polls_often(transport)).args(["--to", &server.url]))
    };
    let mut readers = TRANSPORTS.map(|transport| (transport, read(transport)));
    for (transport, reader) in &mut readers {
        let seen: Vec<_> = (0..3).map(|_| position(&reader.out.next().expect("a message"))).collect();
        assert_eq!(seen, before, "{transport}");
    }

    server.process.signal(Signal::KILL);
    assert_eq!(server.process.finish().signal, Some(Signal::KILL.as_raw()));
    let server = start();
    let info: Value = serde_json::from_str(&server.get("/v1/info").body).expect("JSON");
    assert!(info["engine"].as_str().is_some_and(|engine| engine.starts_with("sqlite")), "{info}");
    let history: Value = serde_json::from_str(&server.get(&format!("/v1/channels/{CAR}?since=earliest")).body).unwrap();
    let kept: Vec<_> =
        history["messages"].as_array().expect("messages").iter().map(|m| m["position"].clone()).collect();
    assert_eq!(kept, before, "what was acknowledged is there");

    let after: Vec<_> = (4..=6).map(|n| publish(&server, n)).collect();
    let epoch = |position: &Value| position.as_str().expect("text").split_once(':').expect("EPOCH:OFFSET").0.to_owned();
    assert_eq!((epoch(&after[0]), after[2].as_str().unwrap().ends_with(":6")), (epoch(&before[0]), true), "{after:?}");
    for (transport, reader) in readers {
        let ended = reader.finish();
        let lines: Vec<_> = ended.out.lines().map(position).collect();
        assert_eq!((ended.code, &lines[..]), (Some(0), &[before.clone(), after.clone()].concat()[..]), "{transport}");
        assert!(!ended.err.contains("gap"), "{transport}: {}", ended.err);
    }
}

fn publish(server: &Server, n: u32) -> Value {
    let answer = server.post(&format!("/v1/channels/{CAR}"), &json!({ "speed": n }).to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_str::<Value>(&answer.body).expect("JSON")["position"].clone()
}

fn position(line: &str) -> Value {
    serde_json::from_str::<Value>(line).expect("an envelope")["position"].clone()
}
