//! The Rust client with keyed states of a real server: the state, then its changes, on every transport, also after a
//! restart that lost all of it; conditions; and the command `sub --since state`.

use std::{ops::ControlFlow, sync::mpsc, time::Duration};

use millrace_client::{
    presence,
    server::Server as Address,
    state::{Change, ChangeError, Changed, KeyedState, Writer, follow},
    subscription::{Options, Transport},
};
use serde_json::{Value, json};

use crate::support::{BOUND, Process, Server, free_port, millrace, run};

const CHANNEL: &str = "s/cars";
const TRANSPORTS: [&str; 5] = ["websocket", "stream", "sse", "long-polling", "polling"];

fn writer(server: &Server) -> Writer {
    let address = Address::parse(&server.url).expect("an address");
    Writer::new(address, Duration::from_secs(20), |_| {}).expect("an HTTP client")
}

async fn set(writer: &mut Writer, key: &str, value: &Value) -> String {
    let change = Change { key, value: Some(value), ..Change::default() };
    writer.change(CHANNEL, change).await.expect("set")
}

/// Follows a state in a thread of its own. Reports each change: `KEY=` and what `show` returns, `no KEY`, `complete`.
fn follow_in_thread(
    server: &Server,
    channel: &str,
    transport: &str,
    show: impl Fn(&KeyedState, &str) -> String + Send + 'static,
) -> mpsc::Receiver<String> {
    let options = Options {
        server: Address::parse(&server.url).expect("an address"),
        channels: vec![channel.to_owned()],
        transport: transport.parse::<Transport>().expect("a transport"),
        since: None,
        policy: "every".into(),
        poll_interval: Duration::from_millis(20),
        retry_for: Some(BOUND),
    };
    let (changes, received) = mpsc::channel();
    std::thread::spawn(move || {
        let mut sink = |state: &KeyedState, changed: &Changed| {
            let shown = match changed {
                Changed::Set(key) => format!("{key}={}", show(state, key)),
                Changed::Deleted(key) => format!("no {key}"),
                Changed::Complete => "complete".into(),
            };
            if changes.send(shown).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(follow(&options, &mut KeyedState::default(), &mut sink)).expect("no error");
    });
    received
}

#[tokio::test]
async fn state_is_followed_over_a_restart_on_every_transport() {
    let listen = format!("127.0.0.1:{}", free_port());
    let args = ["--listen", &listen, "--set", "namespaces.s.state=true", "--set", "namespaces.s.count_max=3"];
    let start = || Server::start_from(millrace(&["serve"]).args(args));
    let server = start();
    let mut writer = writer(&server);
    for (key, value) in [("a", 1), ("b", 1), ("c", 1), ("a", 2)] {
        set(&mut writer, key, &json!(value)).await;
    }
    let follow_over = |name: &str| {
        follow_in_thread(&server, CHANNEL, name, |state, key| state.get(key).expect("an entry").data.to_string())
    };
    let followers = TRANSPORTS.map(|name| (name, follow_over(name)));
    let expect = |wanted: &[&str]| {
        for (name, changes) in &followers {
            let next = || changes.recv_timeout(BOUND).unwrap_or_else(|error| panic!("{name}: {error}"));
            let seen: Vec<String> = wanted.iter().map(|_| next()).collect();
            assert_eq!(seen, wanted, "{name}");
        }
    };
    expect(&["b=1", "c=1", "a=2", "complete"]);
    set(&mut writer, "b", &json!(3)).await;
    let delete = Change { key: "c", ..Change::default() };
    writer.change(CHANNEL, delete).await.expect("deleted");
    let expiring = Change { key: "d", value: Some(&json!(4)), ttl: Some(Duration::from_millis(300)), ..delete };
    writer.change(CHANNEL, expiring).await.expect("set");
    expect(&["b=3", "no c", "d=4", "no d"]);

    // The engine `memory` loses the state with the process.
    drop(server);
    let _server = start();
    set(&mut writer, "b", &json!(5)).await;
    // A follower that is back before the new entry receives an empty state first.
    for (name, changes) in &followers {
        let mut seen: Vec<String> = Vec::new();
        while ["b=5", "no a", "complete"].iter().any(|part| !seen.iter().any(|one| one == part)) {
            seen.push(changes.recv_timeout(BOUND).unwrap_or_else(|error| panic!("{name}: {error} after {seen:?}")));
        }
        assert_eq!(seen.iter().filter(|one| one.starts_with("no a")).count(), 1, "{name}: {seen:?}");
        assert!(seen.iter().all(|one| ["b=5", "no a", "no b", "complete"].contains(&one.as_str())), "{name}: {seen:?}");
    }
    set(&mut writer, "e", &json!(6)).await;
    expect(&["e=6"]);
}

#[tokio::test]
async fn exactly_one_change_with_a_condition_succeeds() {
    let server = Server::start(&["--set", "namespaces.s.state=true"]);
    let mut writer = writer(&server);
    let (one, two) = (json!(1), json!(2));
    let absent = Change { key: "a", value: Some(&one), if_match: Some("0"), ttl: None };
    let first = writer.change(CHANNEL, absent).await.expect("the key does not exist");
    let refused = writer.change(CHANNEL, Change { value: Some(&two), ..absent }).await.expect_err("it exists");
    assert!(matches!(&refused, ChangeError::PreconditionFailed { position } if *position == first), "{refused}");
    let replace = Change { value: Some(&two), if_match: Some(&first), ..absent };
    let second = writer.change(CHANNEL, replace).await.expect("unchanged");
    let refused = writer.change(CHANNEL, Change { value: None, ..replace }).await.expect_err("changed");
    assert!(matches!(&refused, ChangeError::PreconditionFailed { position } if *position == second), "{refused}");
    writer.change(CHANNEL, Change { value: None, if_match: Some(&second), ..replace }).await.expect("unchanged");
}

#[test]
fn sub_prints_a_state_and_its_deletions() {
    let server = Server::start(&["--set", "namespaces.s.state=true"]);
    for key in ["a", "b"] {
        server.ask("POST", "/v1/channels/s/cars", &[&format!("Millrace-Key: {key}")], "1");
    }
    server.ask("DELETE", "/v1/channels/s/cars?key=a", &[], "");
    server.ask("POST", "/v1/channels/s/cars", &["Millrace-Key: c"], "2");
    let args = ["sub", CHANNEL, "--since", "state", "--limit", "2", "--to", &server.url];
    assert_eq!(run(&args).out, "1\n2\n");
    let log = run(&["sub", CHANNEL, "--since", "earliest", "--limit", "4", "--json", "--to", &server.url]);
    let deletion = log.out.lines().find(|line| line.contains("\"deleted\":true")).expect("a deletion");
    assert!(deletion.contains("\"key\":\"a\""), "{deletion}");
}

#[test]
fn roster_is_followed_on_every_transport() {
    let server =
        Server::start(&["--set", "namespaces.chat.roster=true", "--set", "namespaces.chat.roster_grace=100ms"]);
    let client = millrace_client::tls::http().build().expect("an HTTP client");
    let address = Address::parse(&server.url).expect("an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let count = || runtime.block_on(presence::count(&client, &address, "chat/1", BOUND)).expect("a count");
    let connections = |roster: &KeyedState, id: &str| {
        let (_, member) = presence::members(roster).find(|(member, _)| *member == id).expect("a member");
        member.connections.to_string()
    };
    let channel = presence::roster_channel("chat/1");
    let followers = TRANSPORTS.map(|name| (name, follow_in_thread(&server, &channel, name, connections)));
    let next = |(name, changes): &(&str, mpsc::Receiver<String>)| {
        changes.recv_timeout(BOUND).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    followers.iter().for_each(|follower| assert_eq!(next(follower), "complete", "{}", follower.0));
    assert_eq!(count(), 0, "readers of the roster are no members");
    let reader = Process::start(&mut millrace(&["sub", "chat/1", "--to", &server.url]));
    let joined: Vec<String> = followers.iter().map(next).collect();
    let id = joined[0].strip_suffix("=1").expect("one connection");
    assert!(joined.iter().all(|one| *one == joined[0]), "{joined:?}");
    assert_eq!(count(), 1);
    drop(reader);
    followers.iter().for_each(|follower| assert_eq!(next(follower), format!("no {id}"), "{}", follower.0));
}
