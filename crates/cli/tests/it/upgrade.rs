//! Tests that `millrace upgrade` replaces a running server without losing, doubling or refusing a message, and that a
//! new binary that fails leaves the old one as it was.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::{
        fd::OwnedFd,
        unix::{
            fs::PermissionsExt as _,
            net::{UnixDatagram, UnixStream},
        },
    },
    path::PathBuf,
    time::{Duration, Instant},
};

use millrace_client::data_channel::{Connection, ReceivedLine};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{BOUND, Ended, Process, Server, millrace, polls_often, run};

const TRANSPORTS: [&str; 5] = ["websocket", "stream", "sse", "long-polling", "polling"];
pub const CHANNEL: &str = "cars/7/telemetry";
/// Publications before, during and after the upgrade.
const COUNT: usize = 900;
const PER_S: u64 = 200;

pub fn upgrade(server: &Server, args: &[&str]) -> Process {
    let pid = server.process.id().to_string();
    Process::start(&mut millrace(&[&["upgrade", "--pid", &pid], args].concat()))
}

pub fn publish(server: &Server, n: usize) -> String {
    let answer = server.post(&format!("/v1/channels/{CHANNEL}"), &json!({ "n": n }).to_string());
    assert_eq!(answer.status, 200, "publication {n}: {answer:?}");
    let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
    answer["position"].as_str().expect("a position").to_owned()
}

pub fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the target directory is writable");
    folder
}

/// Writes a program that ignores its arguments.
pub fn script(name: &str, lines: &str) -> String {
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
    // An older binary refuses the protocol of this one in these words.
    let refusal = r#"{"failed":{"why":"the running server hands over by protocol 1, this binary (version 0.0.9) by protocol 0"}}"#;
    let length = format!("\\{:03o}\\0\\0\\0", refusal.len());
    let older = script("older", &format!("printf '{length}%s' '{refusal}' >&0"));
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
            (older.clone(), "this binary (version 0.0.9) by protocol 0"),
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

/// A binary that an older server starts says which protocols differ, and ends.
#[test]
fn older_protocol_is_refused() {
    let (mut old, new) = UnixStream::pair().expect("a pair of sockets");
    old.set_read_timeout(Some(BOUND)).expect("a time that is not 0");
    let mut command = millrace(&["serve", "--listen", "127.0.0.1:0"]);
    let process = Process::start_with_input(command.env("MILLRACE_UPGRADE", "1").stdin(OwnedFd::from(new)));
    drop(command);
    let seed = [0; 32];
    let hello = json!({
        "protocol": 0, "version": "0.0.9", "engine": "memory", "shards": 1, "sockets": [], "seed": seed, "node": "ab",
    });
    let hello = hello.to_string();
    old.write_all(&(hello.len() as u32).to_le_bytes()).expect("the process reads");
    old.write_all(hello.as_bytes()).expect("the process reads");
    let mut reply = String::new();
    let _ = old.read_exact(&mut [0; 4]).and_then(|()| old.read_to_string(&mut reply));
    assert!(reply.contains("(version 0.0.9) hands over by protocol 0") && reply.contains("restart"), "{reply}");
    let Ended { code, out, err, .. } = process.finish();
    assert_eq!((code, &out[..]), (Some(1), ""), "{err}");
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

/// A session over data channels keeps both directions on the old process until its time, although the new process
/// receives all datagrams of the port.
#[test]
fn data_channels_work_until_they_move() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut server = Server::start(&["--shards", "1", "--set", "drain.window_max=4s", "--set", "drain.per_s_max=1"]);
    let connect = format!("{}/v1/connect", server.url);
    let http = millrace_client::tls::http().build().expect("a client");
    publish(&server, 0);
    runtime.block_on(async {
        let mut old = within(Connection::open(http.post(&connect))).await.expect("data channels");
        old.send_line(&json!({ "id": 1, "subscribe": { "channel": CHANNEL, "since": "earliest" } }).to_string()).await;
        let mut offsets = vec![];
        until(&mut old, &mut offsets, |line| line["id"] == 1).await;
        until(&mut old, &mut offsets, |line| line["push"] == "message").await;
        let ended = upgrade(&server, &[]).finish();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let drain = until(&mut old, &mut offsets, |line| line["push"] == "drain").await;
        // Both directions, through the port that the new process reads.
        publish(&server, 1);
        until(&mut old, &mut offsets, |line| line["push"] == "message").await;
        old.send_line(&json!({ "id": 2, "publish": { "channel": CHANNEL, "data": 2 } }).to_string()).await;
        let reply = until(&mut old, &mut offsets, |line| line["id"] == 2).await;
        assert!(reply["ok"]["position"].as_str().is_some_and(|at| at.ends_with(":3")), "{reply}");
        // The reply may arrive before the message itself.
        if !offsets.contains(&3) {
            until(&mut old, &mut offsets, |line| line["push"] == "message").await;
        }

        let ticket = drain["resume"].as_str().expect("a ticket");
        // On a connection of its own: the process that answered on this one is the old process.
        let http = millrace_client::tls::http().build().expect("a client");
        let request = http.post(&connect).header("millrace-resume", ticket);
        let mut new = within(Connection::open(request)).await.expect("data channels");
        let mut resumed = vec![];
        let connected = until(&mut new, &mut resumed, |line| line["push"] == "connected").await;
        assert_eq!(connected["resumed"], json!([CHANNEL]), "{connected}");
        drop(old);
        publish(&server, 3);
        until(&mut new, &mut resumed, |line| line["push"] == "message" && line["data"]["n"] == 3).await;
        offsets.extend(resumed.into_iter().filter(|offset| *offset > 3));
        offsets.dedup();
        assert_eq!(offsets, [1, 2, 3, 4]);
    });
    server.process.err.wait_for("the old process has ended");
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, future).await.expect("in time")
}

/// Reads lines up to one that is `wanted`, and adds the offsets of the messages.
async fn until(connection: &mut Connection, offsets: &mut Vec<u64>, wanted: impl Fn(&Value) -> bool) -> Value {
    loop {
        let ReceivedLine { line, .. } = within(connection.next()).await.expect("an open connection");
        let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
        if line["push"] == "message" {
            let position = line["position"].as_str().expect("a position");
            offsets.push(position.rsplit(':').next().and_then(|offset| offset.parse().ok()).expect("an offset"));
        }
        if wanted(&line) {
            return line;
        }
    }
}

/// systemd follows the process that serves.
#[test]
fn service_manager_is_told_the_new_process() {
    let socket = folder("upgrade-notify").join("socket");
    let manager = UnixDatagram::bind(&socket).expect("a free path");
    manager.set_read_timeout(Some(BOUND)).expect("a time that is not 0");
    let told = || {
        let mut message = [0; 256];
        let length = manager.recv(&mut message).expect("a message in time");
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    let mut command = millrace(&["serve", "--listen", "127.0.0.1:0"]);
    let server = Server::start_from(command.env("NOTIFY_SOCKET", &socket));
    assert_eq!(told(), format!("MAINPID={}\nREADY=1\n", server.process.id()));
    let ended = upgrade(&server, &[]).finish();
    let new = told();
    let new = new.strip_prefix("MAINPID=").and_then(|rest| rest.strip_suffix("\nREADY=1\n")).expect("another process");
    assert!(ended.out.starts_with(&format!("process {new} serves")), "{ended:?}");
}

#[test]
fn command_explains_which_server() {
    let Ended { code, err, .. } = run(&["upgrade", "--pid", "1"]);
    assert!(code == Some(1) && err.contains("no server of process id 1 runs here"), "{err}");
}
