//! Tests `millrace file` with a real server that is killed while a file is sent.

use std::{fs, path::PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Process, Server, free_port, millrace, run};

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("files").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the target directory is writable");
    folder
}

/// Returns bytes that do not repeat.
fn content(length: usize) -> Vec<u8> {
    let mut state = 1u32;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(length)
    .collect()
}

#[test]
fn file_survives_a_kill_of_the_server_while_it_is_sent() {
    let folder = folder("kill");
    let engine = format!("sqlite:{}", folder.join("data.db").display());
    let listen = format!("127.0.0.1:{}", free_port());
    let args = ["--listen", &listen, "--engine", &engine, "--set", "namespaces.files.bytes_max=33554432"];
    let start = || Server::start_from(millrace(&["serve"]).args(args));
    let server = start();
    let (sent, received) = (folder.join("drive.log"), folder.join("received.log"));
    fs::write(&sent, content(24_000_001)).expect("a file");
    let to = ["--to", &server.url];
    // The receiver starts first and reads over the restart; another one reads the history later.
    let out = ["--out", received.to_str().expect("UTF-8")];
    let receiver = Process::start(millrace(&["file", "receive", "files/car-7/logs"]).args(to).args(out));
    let path = sent.to_str().expect("UTF-8");
    let sender = Process::start(millrace(&["file", "send", "files/car-7/logs", path]).args(to));
    server.get_until("/v1/channels/files/car-7/logs", |answer| answer.body.contains("\"encoding\""));
    server.process.signal(Signal::KILL);
    server.process.finish();
    let server = start();
    let (sender, receiver) = (sender.finish(), receiver.finish());
    assert_eq!(sender.code, Some(0), "{}", sender.err);
    assert_eq!((receiver.code, receiver.out.trim()), (Some(0), out[1]), "{}", receiver.err);
    assert!(fs::read(&received).expect("a file") == content(24_000_001));
    assert!(!folder.join("received.log.part").exists());
    let later = folder.join("later.log");
    let late = run(&["file", "receive", "files/car-7/logs", "--to", &server.url, "--out", later.to_str().unwrap()]);
    assert_eq!(late.code, Some(0), "{}", late.err);
    assert!(fs::read(&later).expect("a file") == content(24_000_001));
}

#[test]
fn empty_file_is_sent_and_a_damaged_one_refused() {
    let folder = folder("damaged");
    let server = Server::start(&[]);
    let (path, out) = (folder.join("empty"), folder.join("out"));
    let (path, out) = (path.to_str().expect("UTF-8"), out.to_str().expect("UTF-8"));
    fs::write(path, "").expect("a file");
    let sent = run(&["file", "send", "files/a", path, "--to", &server.url]);
    assert_eq!(sent.out.trim(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "{}", sent.err);
    let received = run(&["file", "receive", "files/a", "--out", out, "--to", &server.url]);
    assert_eq!((received.code, fs::read(out).expect("a file").len()), (Some(0), 0), "{}", received.err);

    // Another client has changed a chunk.
    let manifest = json!({"file": {"name": "../x", "bytes": 3, "sha256": "aa", "chunk_bytes": 3}}).to_string();
    let put = |key: &str, kind: &str, body: &str| {
        let headers = [&format!("Millrace-Key: {key}")[..], &format!("Content-Type: {kind}")];
        let (status, body): (u16, Value) = {
            let answer = server.ask("POST", "/v1/channels/files/b", &headers, body);
            (answer.status, serde_json::from_str(&answer.body).expect("JSON"))
        };
        assert_eq!(status, 200, "{body}");
    };
    put("aa", "application/json", &manifest);
    put("aa/0", "application/octet-stream", "abc");
    let damaged = folder.join("damaged");
    let to = ["--to", &server.url, "--out", damaged.to_str().expect("UTF-8")];
    let refused = Process::start(millrace(&["file", "receive", "files/b"]).args(to)).finish();
    assert!(refused.code == Some(1) && refused.err.contains("SHA-256"), "{refused:?}");
    assert!(!damaged.exists() && !folder.join("damaged.part").exists());
    let named = run(&["file", "receive", "files/b", "--to", &server.url]);
    assert!(named.code == Some(1) && named.err.contains("no plain file name"), "{named:?}");
    let large = run(&["file", "receive", "files/b", "--bytes-max", "2", "--to", &server.url]);
    assert!(large.code == Some(1) && large.err.contains("more than 2"), "{large:?}");
}
