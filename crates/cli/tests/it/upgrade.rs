//! Tests that `millrace upgrade` replaces a running server without losing, doubling or refusing a message, and that a
//! new binary that fails leaves the old one as it was.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Ended, Process, Server, millrace, polls_often, run};

const TRANSPORTS: [&str; 5] = ["websocket", "stream", "sse", "long-polling", "polling"];
const CHANNEL: &str = "cars/7/telemetry";
/// Publications before, during and after the upgrade.
const COUNT: usize = 900;
const PER_S: u64 = 200;

fn upgrade(server: &Server, args: &[&str]) -> Process {
    let pid = server.process.id().to_string();
    Process::start(&mut millrace(&[&["upgrade", "--pid", &pid], args].concat()))
}

fn publish(server: &Server, n: usize) -> String {
    let answer = server.post(&format!("/v1/channels/{CHANNEL}"), &json!({ "n": n }).to_string());
    assert_eq!(answer.status, 200, "publication {n}: {answer:?}");
    let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
    answer["position"].as_str().expect("a position").to_owned()
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the target directory is writable");
    folder
}

/// Writes a program that ignores its arguments.
fn script(name: &str, lines: &str) -> String {
    let path = folder("upgrade-scripts").with_file_name(name);
    fs::write(&path, format!("#!/bin/sh\n{lines}\n")).expect("the target directory is writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is our file");
    path.display().to_string()
}

fn upgrade_loses_nothing(engine: &str) {
    let server = Server::start(&["--engine", engine, "--set", "drain.window_max=2s"]);
    let limit = COUNT.to_string();
    let read = |transport: &str| {
        let args = ["sub", CHANNEL, "--json", "--since", "earliest", "--limit", &limit, "--transport", transport];
        Process::start(millrace(&args).args(polls_often(transport)).args(["--to", &server.url]))
    };
    let mut positions = vec![publish(&server, 0)];
    let mut readers = TRANSPORTS.map(|transport| (transport, read(transport)));
    for (transport, reader) in &mut readers {
        reader.out.next().unwrap_or_else(|| panic!("{transport} reads"));
    }
    let (began, mut upgrading) = (Instant::now(), None);
    for n in 1..COUNT {
        std::thread::sleep(
            (began + Duration::from_millis(n as u64 * 1000 / PER_S)).saturating_duration_since(Instant::now()),
        );
        if n == COUNT / 3 {
            upgrading = Some(upgrade(&server, &[]));
        }
        positions.push(publish(&server, n));
    }
    let Ended { code, out, err, .. } = upgrading.expect("it has begun").finish();
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains("serves after"), "{out}");
    for (transport, reader) in readers {
        let Ended { code, out, err, .. } = reader.finish();
        let received: Vec<String> = out
            .lines()
            .map(|line| {
                let message: Value = serde_json::from_str(line).expect("an envelope");
                message["position"].as_str().expect("a position").to_owned()
            })
            .collect();
        assert_eq!((code, received.len()), (Some(0), COUNT), "{engine} {transport}: {err}");
        assert_eq!(received, positions, "{engine} {transport}: {err}");
        assert!(!err.contains("gap"), "{engine} {transport}: {err}");
    }
    // The old process ends; the new one goes on, and can be upgraded itself.
    let mut server = server;
    server.process.err.wait_for("the old process has ended");
    publish(&server, COUNT);
}

#[test]
fn upgrade_loses_nothing_with_engine_memory() {
    upgrade_loses_nothing("memory");
}

#[test]
fn upgrade_loses_nothing_with_engine_sqlite() {
    upgrade_loses_nothing(&format!("sqlite:{}", folder("upgrade-sqlite").join("data.db").display()));
}

#[test]
fn failed_upgrade_leaves_the_server_as_it_was() {
    let missing = folder("upgrade-missing").join("no-such-file").display().to_string();
    for engine in ["memory".to_owned(), format!("sqlite:{}", folder("upgrade-failed").join("data.db").display())] {
        let server = Server::start(&["--engine", &engine]);
        let first = publish(&server, 1);
        for (binary, why) in [
            (script("crashes", "exit 3"), "exit status: 3"),
            (
                script("garbage", "printf 'hello, this is no message of ours' >&0; cat >/dev/null"),
                "connection to the new process failed",
            ),
            (missing.clone(), "No such file"),
        ] {
            let Ended { code, out, err, .. } = upgrade(&server, &["--binary", &binary]).finish();
            assert_eq!((code, &out[..]), (Some(1), ""), "{binary}: {err}");
            assert!(err.contains("serves as before") && err.contains(why), "{binary}: {err}");
        }
        let second = publish(&server, 2);
        assert_eq!(second, first.replace(":1", ":2"), "{engine}");
        let info = server.get("/readyz");
        assert_eq!(info.status, 200, "{info:?}");
    }
}

#[test]
fn only_one_upgrade_runs_at_a_time() {
    let server = Server::start(&[]);
    let slow = script("slow", "sleep 1; exit 4");
    let mut first = upgrade(&server, &["--binary", &slow]);
    first.err.wait_for("starts the new binary");
    let second = upgrade(&server, &[]).finish();
    assert!(second.code == Some(1) && second.err.contains("another upgrade is in progress"), "{second:?}");
    let first = first.finish();
    assert!(first.code == Some(1) && first.err.contains("exit status: 4"), "{first:?}");
}

#[test]
fn signal_upgrades_too() {
    let mut server = Server::start(&[]);
    let first = publish(&server, 1);
    server.process.signal(Signal::USR2);
    server.process.out.wait_for("listening on ");
    server.process.err.wait_for("the old process has ended");
    assert_eq!(publish(&server, 2), first.replace(":1", ":2"));
}

#[test]
fn command_explains_which_server() {
    let Ended { code, err, .. } = run(&["upgrade", "--pid", "1"]);
    assert!(code == Some(1) && err.contains("no server of process id 1 runs here"), "{err}");
}
