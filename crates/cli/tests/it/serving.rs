//! Tests the life of a server from "listening on" to its exit status.

use std::{
    io::Read,
    net::TcpStream,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use millrace_lab::{path::TunCable, wire::namespace};
use millrace_link::{Config as LinkConfig, Nat, OnIdle, Traces};
use millrace_server::auth::SigningKey;
use rustix::process::Signal;
use serde_json::json;
use tokio_tungstenite::tungstenite::{self, Message, client::IntoClientRequest, protocol::frame::coding::CloseCode};

use crate::support::{Answer, BOUND, Process, Server, ask, file, free_port, millrace, run};

#[test]
fn health_readiness_and_metrics_are_served() {
    let server = Server::start(&["--shards", "2"]);
    assert!(server.url.starts_with("http://127.0.0.1:") && !server.url.ends_with(":0"), "{}", server.url);
    assert_eq!((server.get("/healthz").status, server.get("/readyz").status), (200, 200));

    assert_eq!(server.post("/v1/channels/a", "1").status, 200);
    let metrics = server.get("/metrics");
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{}", metrics.head);
    for line in [
        "millrace_publications_total 1",
        "millrace_ready 1",
        "millrace_connections{transport=\"sse\"} 0",
        "millrace_memory_bytes{kind=\"history\"} 1",
    ] {
        assert!(metrics.body.lines().any(|found| found == line), "no {line:?} in {}", metrics.body);
    }
    let info: serde_json::Value = serde_json::from_str(&server.get("/v1/info").body).expect("JSON");
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&info["shards"], &info["engine"]), (&2.into(), &"memory".into()));
    assert_eq!(info["listen"][0], server.url);
}

#[test]
fn a_port_that_is_taken_is_an_error() {
    let server = Server::start(&["--shards", "2"]);
    for shards in ["1", "2"] {
        let second = run(&["serve", "--listen", &server.address, "--shards", shards]);
        assert_eq!(second.code, Some(1), "{second:?}");
        assert!(second.err.contains(&format!("cannot listen on {}", server.address)), "{second:?}");
        assert!(!second.out.contains("listening"), "{second:?}");
    }
}

#[test]
fn sigterm_ends_readiness_then_moves_readers_then_exits() {
    let server = Server::start(&["--shards", "2", "--set", "drain.announce=3s", "--set", "drain.window=200ms"]);
    let path = "/v1/channels/news";
    let mut sse = server.open(path, "text/event-stream");
    sse.wait_for("id: ");
    let mut ndjson = server.open(path, "application/x-ndjson");
    ndjson.wait_for("200 OK");
    let mut poll = server.open(&format!("{path}?wait=30"), "application/json");
    let mut websocket = connect(&server, path);
    server.get_until("/v1/presence/news", |answer| answer.body.contains("\"count\":4"));

    server.process.signal(Signal::TERM);
    server.get_until("/readyz", |answer| answer.status == 503);
    assert_eq!(server.get("/healthz").status, 200);
    // "Not ready" is information for balancers. Connected clients see no change yet.
    assert_eq!(server.post(path, "\"last words\"").status, 200);
    for stream in [&mut sse, &mut ndjson, &mut poll] {
        stream.wait_for("last words");
    }
    assert_eq!(websocket.read().expect("a message"), Message::text("\"last words\""));

    let event = sse.wait_for("event: ");
    assert_eq!(event, "event: drain");
    let drain: serde_json::Value = serde_json::from_str(&ndjson.wait_for("drain")).expect("JSON");
    assert!(drain["drain"]["after_ms"].as_u64().is_some_and(|after_ms| after_ms < 200), "{drain}");
    assert_eq!(close_code(&mut websocket), Some(CloseCode::Restart));
    for stream in [&mut sse, &mut ndjson] {
        stream.rest();
    }

    let ended = server.process.finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains("draining") && ended.err.contains("stopped"), "{ended:?}");
}

#[test]
fn a_second_sigterm_ends_at_once() {
    let server = Server::start(&["--set", "drain.announce=10m"]);
    server.process.signal(Signal::TERM);
    server.get_until("/readyz", |answer| answer.status == 503);
    server.process.signal(Signal::TERM);
    let ended = server.process.finish();
    assert_eq!((ended.code, ended.signal), (Some(0), None), "{ended:?}");
}

#[test]
fn sighup_applies_valid_settings_and_reports_the_others() {
    let path = file("reload.toml", "[limits]\nbatch_lines_max = 1\n[drain]\nwindow = \"20s\"\n");
    let mut server = Server::start(&["--config", &path, "--set", "server.shards=2"]);
    let batch = "{\"channel\": \"a\", \"data\": 1}\n{\"channel\": \"a\", \"data\": 2}\n";
    assert_eq!(server.post("/v1/publish", batch).status, 429);

    file("reload.toml", "[limits]\nbatch_lines_max = many\n");
    server.process.signal(Signal::HUP);
    let line = server.process.err.wait_for("ERROR");
    assert!(line.contains("the old one stays") && line.contains("reload.toml"), "{line}");
    assert_eq!(server.post("/v1/publish", batch).status, 429);

    let good = "[limits]\nbatch_lines_max = 2\n[drain]\nwindow = \"10ms\"\n[log]\nlevel = \"debug\"\n\
        [server]\nsecret = \"not a word of this in any log\"\n[namespaces.cars]\ncount_max = 5\n";
    file("reload.toml", good);
    server.process.signal(Signal::HUP);
    for key in ["namespaces.cars", "server.secret"] {
        let line = server.process.err.wait_for(key);
        assert!(line.contains("WARN") && line.contains("restart"), "{line}");
    }
    server.process.err.wait_for("configuration reloaded");
    let answered = server.ask_until("POST", "/v1/publish", batch, |answer| answer.status == 200);
    assert!(answered.body.contains("position"), "{answered:?}");

    // The new drain window is active; with the old one the shutdown would take longer than the test's time limit.
    server.process.signal(Signal::TERM);
    let ended = server.process.finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains("DEBUG") || ended.err.contains("window_ms=10"), "{ended:?}");
    assert!(!ended.err.contains("not a word"), "{ended:?}");
}

#[test]
fn agent_check_answers_ready_then_drain() {
    let port = free_port();
    let agent = format!("127.0.0.1:{port}");
    let server = Server::start(&["--set", &format!("server.agent={agent}"), "--set", "drain.announce=10m"]);
    let ask = || {
        let mut line = String::new();
        let mut stream = TcpStream::connect(&agent).expect("the agent listens");
        stream.set_read_timeout(Some(BOUND)).expect("a time that is not 0");
        stream.read_to_string(&mut line).expect("a line");
        line
    };
    assert_eq!(ask(), "ready up 100%\n");
    server.process.signal(Signal::TERM);
    server.get_until("/readyz", |answer| answer.status == 503);
    assert_eq!(ask(), "drain\n");
}

#[test]
fn json_logs_are_lines_of_json_without_payloads() {
    let server = Server::start(&["--set", "log.format=json", "--set", "log.level=debug", "--set", "drain.window=10ms"]);
    assert_eq!(server.post("/v1/channels/secret", "\"a-payload\"").status, 200);
    server.process.signal(Signal::TERM);
    let ended = server.process.finish();
    assert!(!ended.err.contains("a-payload"), "{}", ended.err);
    let lines: Vec<serde_json::Value> = ended.err.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let said = |what: &str| lines.iter().any(|line| line["fields"]["message"] == what);
    assert!(said("serving") && said("draining") && said("stopped"), "{}", ended.err);
}

#[test]
fn heartbeats_keep_an_idle_stream_open() {
    let server = Server::start(&["--set", "limits.heartbeat=1s"]);
    let mut sse = server.open("/v1/channels/quiet", "text/event-stream");
    sse.wait_for("id: ");
    while sse.next().expect("the stream stays") != ":" {}
}

pub fn connect(server: &Server, path: &str) -> tungstenite::WebSocket<TcpStream> {
    let stream = TcpStream::connect(&server.address).expect("the server listens");
    stream.set_read_timeout(Some(BOUND)).expect("a time that is not 0");
    let request = format!("ws://{}{path}", server.address).into_client_request().expect("a good address");
    tungstenite::client(request, stream).expect("a handshake").0
}

fn close_code(websocket: &mut tungstenite::WebSocket<TcpStream>) -> Option<CloseCode> {
    loop {
        match websocket.read() {
            Ok(Message::Close(frame)) => return frame.map(|frame| frame.code),
            Ok(_) => {}
            Err(error) => panic!("no close frame: {error}"),
        }
    }
}

#[test]
fn public_address_requires_tls_and_auth_or_their_waivers() {
    let everywhere = ["serve", "--listen", "0.0.0.0:0", "--shards", "1"];
    let (no_tls, no_auth) = ("--insecure-no-tls", "--insecure-no-auth");
    let start = |flags: &[&str]| run(&[&everywhere, flags].concat());
    for (flags, named, unnamed) in [
        (&[][..], &[no_tls, no_auth, "--behind-proxy", "127.0.0.1"][..], &[][..]),
        (&[no_tls], &[no_auth], &[no_tls]),
        (&[no_auth], &[no_tls, "--behind-proxy"], &[no_auth]),
        (&["--behind-proxy"], &[no_auth], &[no_tls]),
    ] {
        let refused = start(flags);
        assert_eq!(refused.code, Some(1), "{flags:?}: {refused:?}");
        assert!(refused.err.contains("refusing to start"), "{flags:?}: {refused:?}");
        assert!(named.iter().all(|word| refused.err.contains(word)), "{flags:?}: {refused:?}");
        assert!(!unnamed.iter().any(|word| refused.err.contains(word)), "{flags:?}: {refused:?}");
    }
    let waived = Server::start_from(&mut millrace(&[&everywhere[..], &[no_tls, no_auth]].concat()));
    let address = waived.address.replace("0.0.0.0", "127.0.0.1");
    assert_eq!(ask(&address, "GET", "/healthz", &[], "").status, 200);
    let kept = ask(&address, "GET", "/metrics", &[], "");
    assert_eq!(kept.status, 404, "figures are for the admin listener: {kept:?}");
}

#[test]
fn unreachable_engine_is_logged_and_publishes_get_503() {
    let engine = format!("redis://ann:s3cret@127.0.0.1:{}", free_port());
    let mut server = Server::start(&["--engine", &engine, "--set", "engine.wait=200ms"]);
    let line = server.process.err.wait_for("the engine does not respond");
    let shown = engine.replace("ann:s3cret@", "");
    for part in ["WARN", &format!("engine={shown}"), "attempt=", "why=", "refused with 503 after 200ms"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!line.contains("s3cret"), "{line}");
    assert_eq!(server.post("/v1/channels/a", "1").status, 503);
}

#[test]
fn token_is_sent_to_the_server_and_never_printed() {
    const SECRET: &str = "a secret of thirty-two bytes or more";
    let secret = format!("auth.secret={SECRET}");
    let server = Server::start(&["--shards", "1", "--set", &secret]);
    let publish = |token: Option<&str>| {
        let mut command = millrace(&["pub", "chat", "1", "--to", &server.url]);
        if let Some(token) = token {
            command.env("MILLRACE_TOKEN", token);
        }
        Process::start(&mut command).finish()
    };
    let refused = publish(None);
    assert!(refused.code == Some(1) && refused.err.contains("unauthorized"), "{refused:?}");
    let bad = publish(Some("not.a.token"));
    assert!(bad.code == Some(1) && !bad.err.contains("not.a.token"), "{bad:?}");
    let until_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() + 60;
    let claims = json!({ "sub": "ann", "exp": until_s, "millrace": { "publish": ["chat"], "subscribe": ["chat"] } });
    let token = SigningKey::parse(SECRET.as_bytes()).expect("a secret").sign(&claims, None).expect("a token");
    let published = publish(Some(&token));
    assert!(published.code == Some(0) && !published.out.is_empty(), "{published:?}");
    for transport in ["websocket", "stream", "sse", "long-polling"] {
        let position = published.out.trim().replace(":1", ":0");
        let read = ["sub", "chat", "--to", &server.url, "--limit", "1", "--since", &position, "--transport", transport];
        let read = Process::start(millrace(&read).env("MILLRACE_TOKEN", &token)).finish();
        assert_eq!((read.code, read.out.trim()), (Some(0), "1"), "{transport}: {read:?}");
    }
    server.process.signal(Signal::TERM);
    let shown = server.process.finish();
    assert!(!shown.err.contains(&token), "the token is in the log");
}

/// A NAT forgets a silent stream after two seconds and swallows the heartbeats of the server, which come every three.
#[test]
fn stream_whose_client_acknowledges_nothing_is_closed() {
    let nat = Nat { idle: Duration::from_secs(2), on_idle: OnIdle::Swallow };
    let cable = TunCable::new(LinkConfig { nat: Some(nat), ..LinkConfig::default() }, Traces::default(), 1, None);
    if let Err(error) = TunCable::check() {
        eprintln!("SKIPPED: no link between namespaces here: {error:#}");
        return;
    }
    let settings = ["limits.heartbeat=3s", "limits.grace=1s", "server.hosts=[\"10.213.0.2\"]"];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", *setting]).collect();
    let took = namespace::across(
        &cable,
        || Ok(Server::start(&arguments)),
        |mut server| {
            let port = server.address.rsplit(':').next().unwrap_or_default().to_owned();
            server.address = format!("{}:{port}", namespace::FAR);
            let _reader = server.open("/v1/channels/silent", "text/event-stream");
            let is_open = |answer: &Answer| answer.body.contains("millrace_connections{transport=\"sse\"} 1");
            server.get_until("/metrics", is_open);
            let since = Instant::now();
            server.get_until("/metrics", |answer| answer.status == 200 && !is_open(answer));
            Ok(since.elapsed())
        },
    );
    let took = took.expect("the stream ended");
    assert!((3..20).contains(&took.as_secs()), "{took:?}: two heartbeats and the grace are 7 s");
}

/// A NAT swallows after seven and a half seconds of silence. The finder starts at the shortest interval that a server
/// grants, which is five seconds.
#[test]
fn heartbeat_finder_brackets_timeout_of_a_nat() {
    let nat = Nat { idle: Duration::from_millis(7500), on_idle: OnIdle::Swallow };
    let cable = TunCable::new(LinkConfig { nat: Some(nat), ..LinkConfig::default() }, Traces::default(), 1, None);
    if let Err(error) = TunCable::check() {
        eprintln!("SKIPPED: no link between namespaces here: {error:#}");
        return;
    }
    let start = || Ok(Server::start(&["--set", "server.hosts=[\"10.213.0.2\"]"]));
    let found = namespace::across(&cable, start, |server| {
        let port = server.address.rsplit(':').next().unwrap_or_default();
        let url = format!("http://{}:{port}", namespace::FAR);
        Ok(Process::start(&mut millrace(&["lab", "heartbeat", "--to", &url, "--max", "15s", "--json"])).finish())
    });
    let found = found.expect("the link works");
    assert_eq!(found.code, Some(0), "{found:?}");
    let found: serde_json::Value = serde_json::from_str(&found.out).expect("JSON");
    let s = |key: &str| found[key].as_f64().unwrap_or_default();
    assert!(5.0 < s("survived_s") && s("survived_s") < 7.7, "{found}");
    assert!(7.5 < s("died_s") && s("died_s") <= 10.0, "{found}");
    assert!(found["complete"] == true && (1.0..6.0).contains(&s("suggested_s")), "{found}");
}

#[test]
fn heartbeat_finder_refuses_wrong_limits_and_servers() {
    for (args, says) in [
        (&["--max", "5s"][..], "10s to 12h"),
        (&["--parallel", "1"], "from 2 to 32"),
        (&["--to", "127.0.0.1:1"], "is not the address of a server"),
        // Nothing listens there.
        (&["--to", "http://127.0.0.1:9"], "a connection failed"),
    ] {
        let refused = run(&[&["lab", "heartbeat"], args].concat());
        assert!(refused.code == Some(3) && refused.err.contains(says), "{args:?}: {refused:?}");
    }
}
