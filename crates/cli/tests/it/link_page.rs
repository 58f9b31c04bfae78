//! Tests `millrace lab link run --live` end to end: the messages of its page, and the commands that change the link.

use std::time::{Duration, Instant};

use millrace_lab::{path::TunCable, wire::namespace};
use serde_json::{Value, json};

use crate::support::{BOUND, Process, Server, ask, millrace, run};

const STATE: &str = "/v1/channels/lab/link";
const COMMANDS: &str = "/v1/channels/lab/link/commands";
/// Sends a datagram every 10 ms.
const TRAFFIC: [&str; 4] = ["--", "bash", "-c", "while sleep 0.01; do echo > /dev/udp/$LINK_HOST/9; done"];

/// Moves the test into a network namespace of its own: a browser aborts its requests when a device appears beside it.
fn is_possible() -> bool {
    match TunCable::check().and_then(|()| namespace::enter()) {
        Ok(()) => true,
        Err(error) => {
            eprintln!("SKIPPED: no link between namespaces here: {error:#}");
            false
        }
    }
}

/// Returns the newest state that is as wanted.
fn state_of(address: &str, headers: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + BOUND;
    loop {
        let answer = ask(address, "GET", STATE, headers, "");
        let page: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        let newest = page["messages"].as_array().and_then(|all| all.last()).map(|last| &last["data"]);
        if let Some(state) = newest.filter(|state| wanted(state)) {
            return state.clone();
        }
        assert!(Instant::now() < deadline, "no such state in time: {answer:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a command until it is answered.
fn send(address: &str, headers: &[&str], id: &str, command: Value) -> Value {
    let run = state_of(address, headers, |state| state["run"].is_string())["run"].clone();
    let deadline = Instant::now() + BOUND;
    let mut body = command;
    (body["run"], body["id"]) = (run, id.into());
    loop {
        assert_eq!(ask(address, "POST", COMMANDS, headers, &body.to_string()).status, 200);
        let second = Instant::now() + Duration::from_secs(1);
        while Instant::now() < second {
            let page: Value =
                serde_json::from_str(&ask(address, "GET", &format!("{STATE}?since=earliest"), headers, "").body)
                    .expect("JSON");
            let all = page["messages"].as_array().cloned().unwrap_or_default();
            if let Some(found) = all.iter().map(|one| &one["data"]).find(|state| state["answer"]["id"] == id) {
                return found.clone();
            }
        }
        assert!(Instant::now() < deadline, "no answer in time");
    }
}

#[test]
fn page_commands_change_the_link_of_a_program() {
    if !is_possible() {
        return;
    }
    let server = Server::start(&[]);
    let live = format!("--live={}", server.url);
    let mut process =
        Process::start(&mut millrace(&[&["lab", "link", "run", "--path", "3g", &live][..], &TRAFFIC].concat()));
    assert_eq!(process.err.wait_for("live: "), format!("live: {}/link", server.url));
    let state = state_of(&server.address, &[], |state| state["up"]["delivered"].as_u64() > Some(10));
    assert_eq!((&state["path"], &state["commands_error"]), (&json!("3g"), &Value::Null));
    assert!(
        state["command"].as_str().is_some_and(|line| line.starts_with("millrace lab link run --path 3g -- bash -c"))
    );

    let wrong = send(&server.address, &[], "c1", json!({ "set": ["up.delay=1ms", "up.loss=2"] }));
    assert!(
        wrong["answer"]["error"].as_str().is_some_and(|error| error.contains("`2` is not a probability")),
        "{wrong}"
    );
    assert_eq!(wrong["settings"]["up"]["delay"], "75ms");

    let all = ["up.loss_burst=none", "up.loss=100%"];
    let changed = send(&server.address, &[], "c2", json!({ "set": all }));
    assert_eq!(changed["answer"], json!({ "id": "c2", "error": null }));
    assert_eq!((&changed["settings"]["up"]["loss"], &changed["path"]), (&json!("100%"), &json!("3g, changed")));
    let lost = |state: &Value| state["up"]["dropped"]["channel"].as_u64().unwrap_or_default();
    let later = state_of(&server.address, &[], |state| lost(state) > lost(&changed) + 20);
    assert!(later["up"]["received"].as_u64() > changed["up"]["received"].as_u64(), "counters go on: {later}");

    let out = send(&server.address, &[], "c3", json!({ "set": ["path=lte"], "outage": true }));
    assert_eq!((&out["path"], &out["is_out"]), (&json!("lte"), &json!(true)));
    state_of(&server.address, &[], |state| state["up"]["dropped"]["outage"].as_u64() > Some(20));

    process.signal(rustix::process::Signal::TERM);
    let ended = process.finish();
    assert_eq!(ended.code, Some(128 + 15), "{ended:?}");
    let last = state_of(&server.address, &[], |state| state["ended"].is_object());
    assert_eq!(last["ended"], json!({ "code": 128 + 15 }));
}

#[test]
fn program_ends_with_its_killed_link() {
    if !is_possible() {
        return;
    }
    let program = ["lab", "link", "run", "--", "bash", "-c", "echo started $$; exec sleep 60"];
    let mut process = Process::start(&mut millrace(&program));
    let started = process.out.wait_for("started");
    let id = started.trim().strip_prefix("started ").expect("an id").to_owned();
    let is_there =
        || std::fs::read_to_string(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.starts_with("sleep"));
    let deadline = Instant::now() + BOUND;
    while !is_there() {
        assert!(Instant::now() < deadline, "the program runs");
    }
    process.signal(rustix::process::Signal::KILL);
    while is_there() {
        assert!(Instant::now() < deadline, "the program has outlived its link");
    }
}

#[test]
fn page_has_a_server_of_its_own() {
    if !is_possible() {
        return;
    }
    let ended = run(&["lab", "link", "run", "--live", "--", "echo", "ran"]);
    assert!(ended.code == Some(0) && ended.out.contains("ran"), "{ended:?}");
    let line = ended.err.lines().find(|line| line.starts_with("live: http://127.0.0.1:")).expect("the page");
    assert!(line.ends_with("/link"), "{line}");
}

#[test]
fn token_without_a_permission_is_reported() {
    if !is_possible() {
        return;
    }
    let millrace = |args: &[&str]| {
        let mut command = millrace(args);
        command.env("MILLRACE_AUTH__SECRET", "0123456789abcdef0123456789abcdef");
        command
    };
    let server = Server::start_from(&mut millrace(&["serve", "--listen", "127.0.0.1:0"]));
    let token = |permissions: &[&str]| {
        let create = [&["token", "create", "--sub", "link"][..], permissions].concat();
        let created = Process::start(&mut millrace(&create)).finish();
        assert_eq!(created.code, Some(0), "{created:?}");
        created.out.trim().to_owned()
    };
    let live = format!("--live={}", server.url);
    let start = |token: &str, program: &[&str]| {
        let mut command = millrace(&[&["lab", "link", "run", &live][..], program].concat());
        Process::start(command.env("MILLRACE_TOKEN", token))
    };
    let refused = start(&token(&["--publish", "other"]), &["--", "true"]).finish();
    assert!(refused.code == Some(3) && refused.err.contains("does not take the state of this link"), "{refused:?}");
    assert!(refused.err.contains("lab/link"), "{refused:?}");

    let mut without = start(&token(&["--publish", "lab/link"]), &TRAFFIC);
    let note = without.err.wait_for("commands of the page do not arrive");
    assert!(note.contains("lab/link/commands needs the permission subscribe"), "{note}");
    let page = format!("Authorization: Bearer {}", token(&["--subscribe", "lab/link", "--history", "lab/link"]));
    state_of(&server.address, &[&page], |state| {
        state["commands_error"].as_str().is_some_and(|why| why.contains("subscribe"))
    });
    drop(without);

    let both = token(&["--publish", "lab/link", "--subscribe", "lab/link/commands"]);
    let _heard = start(&both, &TRAFFIC);
    let page = token(&["--subscribe", "lab/link", "--history", "lab/link", "--publish", "lab/link/commands"]);
    let page = format!("Authorization: Bearer {page}");
    state_of(&server.address, &[&page], |state| state["commands_error"].is_null());
    let changed = send(&server.address, &[&page], "c1", json!({ "set": ["up.delay=5ms"] }));
    assert_eq!(changed["settings"]["up"]["delay"], "5ms");
}
