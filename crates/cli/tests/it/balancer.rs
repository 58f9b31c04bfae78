//! Tests nodes behind a real HAProxy with the shipped configuration: every transport, and a node that shuts down.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Instant,
};

use rustix::process::Signal;
use tokio_tungstenite::tungstenite::Message;

use crate::{
    serving::connect,
    support::{BOUND, Process, Server, ask, file, free_port, millrace, polls_often, repository},
};

const SECRET: &str = "server.secret=what all nodes of the test share";

/// Returns the command of HAProxy. Prints a message and returns `None` without HAProxy.
fn haproxy() -> Option<Command> {
    let path = format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default());
    if !path.split(':').any(|folder| std::path::Path::new(folder).join("haproxy").exists()) {
        eprintln!("skipped: there is no haproxy here; scripts/setup.sh installs it");
        return None;
    }
    let mut command = Command::new("haproxy");
    command.env("PATH", path);
    Some(command)
}

/// Starts HAProxy in front of these nodes, each given with its agent port. Returns HAProxy and the address of its
/// statistics.
fn balance(nodes: &[(&Server, u16)]) -> Option<(Server, String)> {
    let mut command = haproxy()?;
    let (front, figures) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    command.args(["-db", "-f"]).arg(repository("deploy/haproxy.cfg"));
    command.env("MILLRACE_BIND", &front).env("MILLRACE_FIGURES", &figures);
    for i in 0..3 {
        // The configuration has three nodes, so a node of the test may appear more than once.
        let (node, agent) = nodes[i % nodes.len()];
        command
            .env(format!("MILLRACE_NODE{}", i + 1), &node.address)
            .env(format!("MILLRACE_AGENT{}", i + 1), agent.to_string());
    }
    let process = Process::start(&mut command);
    let deadline = Instant::now() + BOUND;
    while std::net::TcpStream::connect(&front).is_err() {
        assert!(Instant::now() < deadline, "HAProxy does not listen");
        std::thread::yield_now();
    }
    let front = Server { process, url: format!("http://{front}"), address: front };
    front.get_until("/readyz", |answer| answer.status == 200);
    Some((front, figures))
}

/// A client may request a heartbeat interval up to `limits.heartbeat_max`. A proxy must not close the connection
/// before the server's own timeout.
#[test]
fn proxy_timeouts_exceed_the_longest_heartbeat() {
    let limits = millrace_server::Config::default().limits;
    let silence = limits.heartbeat_max.max(limits.hold_max) + limits.grace;
    let text = std::fs::read_to_string(repository("deploy/haproxy.cfg")).expect("the file is there");
    for name in ["client", "server", "tunnel"] {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("timeout {name} ")));
        let time = humantime::parse_duration(line.expect("the time limit is there").trim()).expect("a duration");
        assert!(time > silence, "timeout {name} is {time:?}, and a stream may be silent for {silence:?}");
    }
    let values = std::fs::read_to_string(repository("deploy/helm/millrace/values.yaml")).expect("the file is there");
    for name in ["proxy-read-timeout", "proxy-send-timeout"] {
        let (_, rest) = values.split_once(&format!("{name}: \"")).expect("the annotation is there");
        let seconds: u64 = rest.split('"').next().and_then(|text| text.parse().ok()).expect("a number of seconds");
        assert!(seconds > silence.as_secs(), "{name} is {seconds} s");
    }
}

fn node(more: &[&str]) -> (Server, u16) {
    let port = free_port();
    let agent = format!("server.agent=127.0.0.1:{port}");
    (Server::start(&[&["--shards", "1", "--set", &agent, "--set", SECRET], more].concat()), port)
}

#[test]
fn every_transport_works_behind_a_balancer() {
    let (node, agent) = node(&[]);
    let Some((front, _)) = balance(&[(&node, agent)]) else { return };
    for transport in ["websocket", "stream", "sse", "long-polling", "polling"] {
        let channel = format!("through/{transport}");
        let args = ["sub", &channel, "--transport", transport, "--since", "earliest", "--limit", "2"];
        assert_eq!(front.post(&format!("/v1/channels/{channel}"), "\"one\"").status, 200);
        let mut sub = Process::start(millrace(&args).args(polls_often(transport)).args(["--to", &front.url]));
        assert_eq!(sub.out.next().as_deref(), Some("one"), "{transport}");
        assert_eq!(front.post(&format!("/v1/channels/{channel}"), "\"two\"").status, 200);
        let ended = sub.finish();
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "one\ntwo\n"), "{transport}: {ended:?}");
    }
    let mut bare = connect(&front, "/v1/channels/bare");
    front.get_until("/v1/presence/bare", |answer| answer.body.contains("\"count\":1"));
    bare.send(Message::text("\"said\"")).expect("it is sent");
    assert_eq!(bare.read().expect("an echo"), Message::text("\"said\""));
    assert_eq!(front.get("/metrics").status, 403, "the proxy does not publish metrics");
}

#[test]
fn every_http_transport_works_over_http2_at_the_balancer() {
    let (node, agent) = node(&[]);
    let Some((front, _)) = balance(&[(&node, agent)]) else { return };
    assert_eq!(front.post("/v1/channels/h2", "\"one\"").status, 200);
    let curl = |accept: &str, query: &str| {
        let mut command = Command::new("curl");
        command.args(["-sNi", "--http2-prior-knowledge", "--max-time", "20", "-H", &format!("Accept: {accept}")]);
        Process::start(command.arg(format!("{}/v1/channels/h2?{query}", front.url)))
    };
    for (accept, query, part) in [
        ("application/json", "since=earliest", "\"data\":\"one\""),
        ("text/event-stream", "since=earliest", "data: \"one\""),
        ("application/x-ndjson", "since=earliest", "\"data\":\"one\""),
    ] {
        let mut answer = curl(accept, query);
        assert!(answer.out.wait_for("HTTP/").starts_with("HTTP/2 200"), "{accept}");
        answer.out.wait_for(part);
    }
    let mut held = curl("application/json", "wait=15");
    front.get_until("/v1/presence/h2", |answer| answer.body.contains("\"count\":1"));
    assert_eq!(front.post("/v1/channels/h2", "\"two\"").status, 200);
    assert!(held.out.wait_for("HTTP/").starts_with("HTTP/2 200"));
    held.out.wait_for("\"data\":\"two\"");
}

/// The server trusts `X-Forwarded-For` from the balancer only. Limits per address apply to each client.
#[test]
fn balancer_passes_client_addresses_on() {
    let trusted = r#"server.trusted_proxies=["127.0.0.1"]"#;
    let limits = ["--set", "limits.exempt=[]", "--set", "limits.connections_per_address_max=2"];
    let admin = format!("127.0.0.1:{}", free_port());
    let asking = ["--set", &format!("admin.listen={admin}"), "--set", "admin.token=a token of sixteen"];
    let (node, agent) = node(&[&["--behind-proxy", "--set", trusted][..], &limits, &asking].concat());
    let Some((front, _)) = balance(&[(&node, agent)]) else { return };
    // Every address of 127/8 belongs to this machine.
    let read = |from: &str, to: &Server, said: &str| {
        let mut command = Command::new("curl");
        command.args(["-sNi", "--max-time", "20", "--interface", from, "-H", "Accept: text/event-stream", "-H", said]);
        let mut process = Process::start(command.arg(format!("{}/v1/channels/news", to.url)));
        let status = process.out.wait_for("HTTP/").split(' ').nth(1).expect("a status").to_owned();
        (status, process)
    };
    let nothing = "X-Nothing: said";
    let held = [read("127.0.0.2", &front, nothing), read("127.0.0.2", &front, "X-Forwarded-For: 192.0.2.1")];
    assert!(held.iter().all(|(status, _)| status == "200"));
    for said in [nothing, "X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1"] {
        assert_eq!(read("127.0.0.2", &front, said).0, "429", "{said}");
    }
    let other = read("127.0.0.3", &front, nothing);
    assert_eq!(other.0, "200");
    // `X-Forwarded-For` from a direct client is ignored.
    let direct = [
        read("127.0.0.4", &node, "X-Forwarded-For: 192.0.2.1"),
        read("127.0.0.4", &node, "X-Forwarded-For: 192.0.2.2"),
    ];
    assert!(direct.iter().all(|(status, _)| status == "200"));
    assert_eq!(read("127.0.0.4", &node, "X-Forwarded-For: 192.0.2.3").0, "429");
    let token = ["Authorization: Bearer a token of sixteen"];
    let shown = ask(&admin, "GET", "/admin/connections?address=127.0.0.2", &token, "").body;
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let connections = shown["connections"].as_array().expect("a list");
    assert!(connections.len() == 2 && connections.iter().all(|one| one["for"] == "127.0.0.2"), "{shown}");
}

#[test]
fn drained_node_causes_no_client_error() {
    let drain = ["--set", "drain.announce=3s", "--set", "drain.window=1s"];
    let (one, one_agent) = node(&drain);
    let (two, two_agent) = node(&drain);
    let Some((front, figures)) = balance(&[(&one, one_agent), (&two, two_agent)]) else { return };
    let state = |name: &str| {
        let csv = ask(&figures, "GET", "/;csv", &[], "").body;
        let row = csv.lines().find(|line| line.starts_with(&format!("millrace,{name},"))).expect("a row").to_owned();
        row.split(',').nth(17).expect("a status").to_owned()
    };
    assert_eq!((state("node1").as_str(), state("node2").as_str()), ("UP", "UP"));

    // No long polling: each node has its own log, so a client that alternates between nodes receives a gap at every
    // request.
    let transports = ["websocket", "stream", "sse", "websocket", "stream", "sse"];
    let mut readers: Vec<Process> = transports
        .iter()
        .map(|transport| Process::start(&mut millrace(&["sub", "moves", "--transport", transport, "--to", &front.url])))
        .collect();
    let count = |node: &Server| {
        let body = node.get("/v1/presence/moves").body;
        serde_json::from_str::<serde_json::Value>(&body).expect("JSON")["count"].as_u64().expect("a count")
    };
    let deadline = Instant::now() + BOUND;
    while count(&one) + count(&two) < transports.len() as u64 {
        assert!(Instant::now() < deadline, "not all readers are there");
    }
    assert!(count(&one) > 0, "or nobody would have to move");

    let (done, address) = (AtomicBool::new(false), front.address.as_str());
    std::thread::scope(|scope| {
        // This client polls continuously; either node may respond.
        let polling = scope.spawn(|| {
            let mut statuses = Vec::new();
            while !done.load(SeqCst) {
                statuses.push(ask(address, "GET", "/v1/channels/nothing", &[], "").status);
            }
            statuses
        });
        one.process.signal(Signal::TERM);
        let deadline = Instant::now() + BOUND;
        while state("node1") == "UP" {
            assert!(Instant::now() < deadline, "HAProxy has not noticed");
        }
        assert_eq!(one.get("/healthz").status, 200, "it was noticed before anything closed");
        let ended = one.process.finish();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        done.store(true, SeqCst);
        let statuses = polling.join().expect("it polls");
        assert!(statuses.len() > 20 && statuses.iter().all(|status| *status == 204), "{statuses:?}");
    });
    assert_eq!(state("node2"), "UP");
    let deadline = Instant::now() + BOUND;
    while count(&two) < transports.len() as u64 {
        assert!(Instant::now() < deadline, "not all clients have moved: {}", count(&two));
    }
    assert_eq!(front.post("/v1/channels/moves", "\"after the move\"").status, 200);
    for (reader, transport) in readers.iter_mut().zip(transports) {
        assert_eq!(reader.out.next().as_deref(), Some("after the move"), "{transport}");
    }
}

/// HAProxy accepts the three examples in `deploy/README.md` that separate WebSockets from requests.
#[test]
fn documented_websocket_routes_are_valid_haproxy_config() {
    let text = std::fs::read_to_string(repository("deploy/README.md")).expect("it is there");
    let snippet = text.split("```haproxy\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a snippet");
    let shipped = std::fs::read_to_string(repository("deploy/haproxy.cfg")).expect("it is there");
    let routed = shipped.replace("    default_backend millrace\n", &format!("{snippet}    default_backend millrace\n"));
    assert_ne!(routed, shipped);
    let routed = format!("{routed}\nbackend websockets\n    server one 127.0.0.1:1\n");
    let path = file("haproxy-routes.cfg", &routed);
    let Some(mut command) = haproxy() else { return };
    let ended = Process::start(command.args(["-c", "-f", &path])).finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
