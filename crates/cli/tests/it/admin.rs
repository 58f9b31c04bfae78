//! `millrace admin` against a real server, on the client port and on the admin listener.

use serde_json::{Value, json};

use crate::support::{Ended, Process, Server, millrace, run};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const ADMIN: &str = "sixteen-bytes-or-more";

/// Starts a server with both doors. Returns the server and the URL of its admin listener.
fn start() -> (Server, String) {
    let args = ["serve", "--listen", "127.0.0.1:0", "--set", "admin.listen=127.0.0.1:0"];
    let mut command = millrace(&args);
    command.env("MILLRACE_AUTH__SECRET", SECRET).env("MILLRACE_ADMIN__TOKEN", ADMIN);
    let mut server = Server::start_from(&mut command);
    let admin = server.process.out.wait_for("admin on ").trim_start_matches("admin on ").to_owned();
    (server, admin)
}

fn token(flags: &[&str]) -> String {
    let mut command = millrace(&[&["token", "create", "--sub", "ann", "--id", "of-ann"], flags].concat());
    let created = Process::start(command.env("MILLRACE_AUTH__SECRET", SECRET)).finish();
    assert_eq!(created.code, Some(0), "{created:?}");
    created.out.trim().to_owned()
}

fn admin(url: &str, token: &str, args: &[&str]) -> Ended {
    let mut command = millrace(&[&["admin"], args, &["--to", url]].concat());
    Process::start(command.env("MILLRACE_TOKEN", token)).finish()
}

#[test]
fn admin_commands_list_and_change_a_running_server() {
    let (server, listener) = start();
    let (operator, ann) = (token(&["--admin"]), token(&["--subscribe", "#", "--publish", "#"]));
    for channel in ["cars/1", "cars/2"] {
        let mut publish = millrace(&["pub", channel, "0123456789", "--to", &server.url]);
        assert_eq!(Process::start(publish.env("MILLRACE_TOKEN", &ann)).finish().code, Some(0));
    }
    let mut reads = millrace(&["sub", "cars/1", "--to", &server.url]);
    let reader = Process::start(reads.env("MILLRACE_TOKEN", &ann));

    for (url, token) in [(&server.url, operator.as_str()), (&listener, ADMIN)] {
        let listed = admin(url, token, &["channels", "--namespace", "cars"]);
        assert_eq!(listed.code, Some(0), "{listed:?}");
        let lines: Vec<&str> = listed.out.lines().collect();
        assert!(lines[0].starts_with("CHANNEL  POSITION") && lines[1].starts_with("cars/1   "), "{}", listed.out);
        assert_eq!((lines.len(), listed.err.as_str()), (3, ""));
    }
    let first = admin(&server.url, &operator, &["channels", "--limit", "1", "--json"]);
    assert!(first.out.starts_with("{\"bytes_per_s\":1.0,\"channel\":\"cars/1\""), "{first:?}");
    assert!(first.err.contains("--after cars/1"), "{first:?}");
    let all = admin(&server.url, &operator, &["channels", "--limit", "1", "--all", "--json"]);
    assert_eq!((all.out.lines().count(), all.err.as_str()), (2, ""), "{all:?}");

    let none = admin(&server.url, &operator, &["slow"]);
    assert_eq!((none.code, none.out.as_str()), (Some(0), ""), "{none:?}");
    assert!(none.err.contains("no reader is behind"), "{none:?}");
    let none = admin(&server.url, &operator, &["rooms"]);
    assert!(none.code == Some(0) && none.err.contains("no rooms match"), "{none:?}");
    let absent = admin(&server.url, &operator, &["rooms", "--room", "kitchen"]);
    assert!(absent.code == Some(1) && absent.err.contains("no node has the room kitchen"), "{absent:?}");

    let connections = || admin(&server.url, &operator, &["connections", "--channel", "cars/1"]);
    let mut listed = connections();
    while !listed.out.contains("ann") {
        assert_eq!(listed.code, Some(0), "{listed:?}");
        listed = connections();
    }
    assert!(listed.out.contains("SUBSCRIPTIONS") && listed.out.trim_end().ends_with("cars/1"), "{}", listed.out);
    let shortened = admin(&server.url, &operator, &["refresh", "--subject", "ann", "--within", "5m"]);
    assert_eq!(shortened.out, "1 connection needs a new token\n", "{shortened:?}");
    let ended = admin(&server.url, &operator, &["unsubscribe", "cars/1", "--subject", "ann"]);
    assert_eq!(ended.out, "1 subscription ended\n", "{ended:?}");
    let closed = admin(&server.url, &operator, &["disconnect", "--subject", "ann", "--json"]);
    assert!(closed.out.starts_with("{\"disconnected\":"), "{closed:?}");
    assert_eq!(admin(&server.url, &operator, &["revoke", "--jti", "of-ann"]).out, "revoked\n");
    let revoked = admin(&server.url, &operator, &["channels"]);
    assert!(
        revoked.code == Some(1) && revoked.err.contains("revoked"),
        "the operator's token has this id: {revoked:?}"
    );
    drop(reader);
}

#[test]
fn admin_errors_say_what_to_do() {
    let (server, _listener) = start();
    let plain = token(&["--subscribe", "#"]);
    for (token, says) in [("", "admin"), (plain.as_str(), "does not permit `admin`")] {
        let refused = admin(&server.url, token, &["channels"]);
        assert!(refused.code == Some(1) && refused.err.contains(says), "{refused:?}");
    }
    let operator = token(&["--admin"]);
    for (args, says) in [
        (&["disconnect"][..], "--subject"),
        (&["refresh"], "--subject"),
        (&["connections", "--transport", "pigeon"], "websocket"),
        (&["unsubscribe", "a b"], "bad_channel"),
        (&["connections", "--after", "1-2-3"], "NODE-SHARD-SLOT-GENERATION"),
    ] {
        let refused = admin(&server.url, &operator, args);
        assert!(refused.code == Some(1) && refused.err.contains(says), "{args:?}: {refused:?}");
    }
    let both = run(&["admin", "revoke", "--jti", "a", "--sub", "b"]);
    assert!(both.code == Some(2) && both.err.contains("--sub"), "{both:?}");
    let unreachable = admin("http://127.0.0.1:1", &operator, &["channels"]);
    assert!(unreachable.code == Some(1) && unreachable.err.contains("http://127.0.0.1:1"), "{unreachable:?}");
    let none = admin(&server.url, &operator, &["channels", "--pattern", "nothing/+"]);
    assert_eq!((none.code, none.out.as_str()), (Some(0), ""), "{none:?}");
    assert!(none.err.contains("no channels match"), "{none:?}");
}

#[test]
fn webhook_commands_show_state_and_dead_letters() {
    let (without, _) = start();
    let operator = token(&["--admin"]);
    let none = admin(&without.url, &operator, &["webhooks", "list"]);
    assert!(none.code == Some(1) && none.err.contains("webhooks.url"), "{none:?}");

    // Nothing listens at this address.
    let settings =
        ["webhooks.url=http://127.0.0.1:1/hook?key=s3cr3t", "webhooks.events=publication", "webhooks.give_up=1s"];
    let flags: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let mut command = millrace(&[&["serve", "--listen", "127.0.0.1:0"][..], &flags].concat());
    command.env("MILLRACE_AUTH__SECRET", SECRET).env("MILLRACE_WEBHOOKS__SECRETS", SECRET);
    let server = Server::start_from(&mut command);
    let webhooks = |args: &[&str]| admin(&server.url, &operator, &[&["webhooks"], args].concat());
    let mut publish = millrace(&["pub", "chat/1", "hello", "--to", &server.url]);
    assert_eq!(Process::start(publish.env("MILLRACE_TOKEN", token(&["--publish", "#"]))).finish().code, Some(0));
    let mut dead = webhooks(&["dead"]);
    while !dead.out.contains("chat/1") {
        assert_eq!(dead.code, Some(0), "{dead:?}");
        dead = webhooks(&["dead"]);
    }
    let lines: Vec<&str> = dead.out.lines().collect();
    assert!(lines[0].starts_with("ID ") && lines[1].contains("  publication  chat/1  "), "{}", dead.out);
    assert!(lines[1].contains("no connection"), "{}", dead.out);
    let id = lines[1].split(' ').next().expect("an id");
    let state = webhooks(&["list"]);
    assert!(state.out.contains("http://127.0.0.1:1/hook") && !state.out.contains("s3cr3t"), "{state:?}");
    assert!(state.out.starts_with("NODE ") && state.out.contains("  failing  "), "{state:?}");
    let json = webhooks(&["dead", "--json"]);
    assert!(json.out.contains("\"data\":\"hello\""), "{json:?}");
    assert_eq!(webhooks(&["replay", id]).out, "1 dead letter will be sent again\n");
    let unnamed = webhooks(&["replay"]);
    assert!(unnamed.code == Some(2) && unnamed.err.contains("--all"), "{unnamed:?}");
}

/// Returns the answer of an operator request to the client port.
fn ask(server: &Server, method: &str, path: &str, body: &str) -> Value {
    let bearer = format!("Authorization: Bearer {}", token(&["--admin"]));
    let answer = server.ask(method, &format!("/v1/admin/{path}"), &[&bearer], body);
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    serde_json::from_str(&answer.body).expect("JSON")
}

#[test]
fn operator_drains_a_node_or_cancels_its_drain() {
    let start = |announce: &str| {
        let announce = format!("drain.announce={announce}");
        let mut command = millrace(&["serve", "--listen", "127.0.0.1:0", "--set", &announce]);
        Server::start_from(command.env("MILLRACE_AUTH__SECRET", SECRET))
    };
    let drain = |server: &Server, cancel: bool| {
        let node = ask(server, "GET", "nodes", "")["nodes"][0]["node"].clone();
        ask(server, "POST", "drain", &json!({ "node": node, "cancel": cancel }).to_string())["draining"].clone()
    };
    let server = start("1h");
    assert_eq!(drain(&server, false), true);
    server.get_until("/readyz", |answer| answer.status == 503);
    assert_eq!(ask(&server, "GET", "overview", "")["nodes"][0]["draining"], true);
    assert_eq!(drain(&server, false), true, "a node that drains already");
    assert_eq!(drain(&server, true), false);
    server.get_until("/readyz", |answer| answer.status == 200);
    let events = ask(&server, "GET", "events", "");
    let kinds: Vec<&Value> = events["events"].as_array().expect("events").iter().map(|event| &event["kind"]).collect();
    assert_eq!(kinds, ["drain_cancelled", "drain_began", "started"]);

    let server = start("0s");
    drain(&server, false);
    let ended = server.process.finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains("an operator"), "{ended:?}");
}
