//! Tests the TURN relay with coturn's client and echo peer.

use std::{
    io::Write,
    net::UdpSocket,
    process::{Command, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{
    ports::free_ports,
    support::{BOUND, Ended, Process, Server, millrace},
};

const SECRET: &str = "a secret that coturn may have, too";

/// Server with a relay, the relay's port, and credentials for the relay.
struct Relay {
    server: Server,
    port: String,
    username: String,
    password: String,
}

/// Echo peer on this machine.
struct Peer {
    _process: Process,
    port: String,
}

/// Returns true if coturn is installed; prints a message if not.
fn has_coturn() -> bool {
    let is_there =
        |program: &str| Command::new(program).arg("-?").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let found = ["turnutils_uclient", "turnutils_peer"].into_iter().all(is_there);
    if !found {
        eprintln!("skipped: turnutils_uclient and turnutils_peer are not here; scripts/setup.sh installs coturn");
    }
    found
}

impl Relay {
    fn start(args: &[&str]) -> Self {
        let secret = format!("turn.secret={SECRET}");
        Self::of(Server::start(&[&["--set", &secret], args].concat()))
    }

    fn of(server: Server) -> Self {
        let answer = server.post("/v1/turn", "");
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.head.contains("cache-control: no-store"), "{answer:?}");
        let told: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
        let first = &told["ice_servers"][0];
        let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
        let url = text(&first["urls"][0]);
        let port = url.trim_end_matches("?transport=udp").rsplit(':').next().expect("a port").to_owned();
        Self { server, port, username: text(&first["username"]), password: text(&first["credential"]) }
    }

    /// Sends twenty messages per client through the relay to the peer and back. The run takes five seconds.
    fn client(&self, peer_port: &str, flags: &[&str], username: &str, password: &str) -> Ended {
        let mut command = Command::new("turnutils_uclient");
        command.args(flags).args(["-n", "20", "-e", "127.0.0.1", "-r", peer_port, "-p", &self.port]);
        let (name, value) = if password.is_empty() { ("-W", SECRET) } else { ("-w", password) };
        Process::start(command.args(["-u", username, name, value, "127.0.0.1"])).finish()
    }

    /// Asserts that every message to the peer returns, with the relay's own credentials.
    #[track_caller]
    fn assert_reaches(&self, peer_port: &str, flags: &[&str]) {
        self.assert_all_came_back(&self.own_client(peer_port, flags), flags);
    }

    #[track_caller]
    fn assert_all_came_back(&self, ended: &Ended, flags: &[&str]) {
        let is_good = ended.code == Some(0) && ended.out.contains("Total lost packets 0 ");
        let metrics = if is_good { String::new() } else { self.server.get("/metrics").body };
        let counted: Vec<_> = metrics.lines().filter(|line| line.starts_with("millrace_turn_")).collect();
        assert!(is_good, "{flags:?}: {ended:#?}; the relay: {counted:#?}");
    }

    /// Runs the client once with the relay's own credentials. Returns the client's output if a message was lost.
    fn lossy(&self, peer_port: &str, flags: &[&str]) -> Option<Ended> {
        let ended = self.own_client(peer_port, flags);
        (ended.code != Some(0) || !ended.out.contains("Total lost packets 0 ")).then_some(ended)
    }

    fn own_client(&self, peer_port: &str, flags: &[&str]) -> Ended {
        self.client(peer_port, flags, &self.username, &self.password)
    }

    fn metric(&self, name: &str) -> u64 {
        let metrics = self.server.get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {metrics}"))
    }
}

/// Time to wait for an echo before the next try, while the peer starts.
const ECHO_TIMEOUT: Duration = Duration::from_millis(50);

impl Peer {
    fn start() -> Self {
        // coturn's client sends to a port and to the port above it.
        let port = free_ports(2);
        let text = port.to_string();
        let process = Process::start(Command::new("turnutils_peer").args(["-L", "127.0.0.1", "-p", &text]));
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_read_timeout(Some(ECHO_TIMEOUT)).expect("a timeout");
        for port in [port, port + 1] {
            let deadline = Instant::now() + BOUND;
            let is_echoed = |socket: &UdpSocket| {
                let sent = socket.send_to(b"are you there?", ("127.0.0.1", port));
                sent.is_ok() && socket.recv_from(&mut [0; 100]).is_ok_and(|(_, from)| from.port() == port)
            };
            while !is_echoed(&socket) {
                assert!(Instant::now() < deadline, "the peer does not answer at port {port}");
            }
        }
        Self { _process: process, port: text }
    }
}

#[test]
fn coturn_client_reaches_its_peer_over_udp_and_tcp() {
    if !has_coturn() {
        return;
    }
    let peer = Peer::start();
    let ways: [&[&str]; 8] = [
        // Channels and a pair of ports each; without the second port; indications instead of channels.
        &[],
        &["-c"],
        &["-c", "-s"],
        &["-c", "-t"],
        &["-c", "-t", "-s"],
        // Relay to relay, without the peer.
        &["-c", "-y"],
        &["-c", "-y", "-t"],
        &["-c", "-m", "10", "-l", "1200", "-G"],
    ];
    // Each client takes five seconds, mostly waiting. All clients run at once, each with its own relay and counters.
    std::thread::scope(|scope| {
        for flags in ways {
            let peer_port = &peer.port;
            scope.spawn(move || {
                let relay = Relay::start(&[]);
                relay.assert_reaches(peer_port, flags);
                let sent = relay.metric("millrace_turn_datagrams_total{to=\"peers\"}");
                assert!(sent >= 20, "{flags:?}: {sent}");
            });
        }
    });
    let relay = Relay::start(&[]);
    // As with `turnserver --use-auth-secret`: a client that knows the secret creates its own user names.
    relay.assert_all_came_back(&relay.client(&peer.port, &["-c"], "alice", ""), &["by the secret"]);
}

#[test]
fn coturn_client_reaches_its_peer_over_tls() {
    if !has_coturn() {
        return;
    }
    let home = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("turn-tls");
    let mut serve = millrace(&["serve", "--tls-dev", "--listen", "127.0.0.1:0", "--set", "turn.listen=127.0.0.1:0"]);
    let server = Server::start_from(serve.env("XDG_DATA_HOME", &home));
    // Credentials are requested by HTTPS. coturn's client then derives them from the secret.
    let told =
        Process::start(Command::new("curl").args(["-sk", "-X", "POST", &format!("{}/v1/turn", server.url)])).finish();
    let told: serde_json::Value = serde_json::from_str(&told.out).expect("JSON");
    let first = &told["ice_servers"][0];
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    let url = text(&first["urls"][2]);
    assert!(url.starts_with("turns:127.0.0.1:") && url.ends_with("?transport=tcp"), "{url}");
    let port = url.trim_end_matches("?transport=tcp").rsplit(':').next().expect("a port").to_owned();
    let relay = Relay { server, port, username: text(&first["username"]), password: text(&first["credential"]) };
    let peer = Peer::start();
    // coturn's client treats each TLS record as one message. A relay with a backlog may put several messages into one
    // record, so the client gets three tries.
    let tries: Vec<_> = (0..3).map_while(|_| relay.lossy(&peer.port, &["-c", "-t", "-S"])).collect();
    assert!(tries.len() < 3, "{tries:#?}");
    // The same port without TLS.
    relay.assert_reaches(&peer.port, &["-c", "-t"]);
}

#[test]
fn wrong_and_expired_credentials_get_no_relay() {
    if !has_coturn() {
        return;
    }
    let (relay, peer) = (Relay::start(&[]), Peer::start());
    let refused = |username: &str, password: &str| {
        let ended = relay.client(&peer.port, &["-c"], username, password);
        assert!(ended.code != Some(0) && ended.out.contains("Cannot complete Allocation"), "{username}: {ended:#?}");
    };
    refused(&relay.username, "wrong");
    refused("4102444800:mallory", &relay.password);
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs();
    let expired = format!("{}:alice", now_s - 1);
    refused(&expired, &password(&expired));
    assert_eq!(relay.metric("millrace_turn_allocated_total"), 0);
    // The same user name with a later expiry is valid, so only the expiry was wrong.
    let good = format!("{}:alice", now_s + 600);
    relay.assert_all_came_back(&relay.client(&peer.port, &["-c"], &good, &password(&good)), &["-c"]);
}

/// Returns the password for a user name, computed by openssl.
fn password(username: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("openssl dgst -sha1 -hmac '{SECRET}' -binary | base64")]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
    child.stdin.take().expect("it is piped").write_all(username.as_bytes()).expect("it reads");
    let out = child.wait_with_output().expect("it ends");
    String::from_utf8(out.stdout).expect("base64").trim().to_owned()
}

#[test]
fn relay_reaches_only_allowed_private_networks() {
    if !has_coturn() {
        return;
    }
    let peer = Peer::start();
    let cases = [("[\"public\"]", false), ("[\"10.0.0.0/8\"]", false), ("[\"public\", \"127.0.0.0/8\"]", true)];
    std::thread::scope(|scope| {
        for (allowed, is_reached) in cases {
            let peer_port = &peer.port;
            scope.spawn(move || {
                let relay = Relay::start(&["--set", &format!("turn.peers_allowed={allowed}")]);
                for flags in [&["-c"][..], &["-c", "-s"]] {
                    let ended = relay.own_client(peer_port, flags);
                    assert_eq!(ended.code == Some(0), is_reached, "{allowed}: {ended:#?}");
                }
                assert_eq!(relay.metric("millrace_turn_forbidden_total") > 0, !is_reached);
                assert_eq!(relay.metric("millrace_turn_datagrams_total{to=\"peers\"}") > 0, is_reached);
            });
        }
    });
}

#[test]
fn relays_and_bytes_per_user_are_limited() {
    if !has_coturn() {
        return;
    }
    let peer = Peer::start();
    let relay = Relay::start(&["--set", "turn.allocations_per_user_max=2"]);
    let ended = relay.own_client(&peer.port, &["-c", "-m", "3"]);
    assert!(ended.code != Some(0) && ended.out.contains("486"), "{ended:#?}");
    assert_eq!(relay.metric("millrace_turn_allocated_total"), 2);
    let relay = Relay::start(&["--set", "turn.allocations_max=1"]);
    let ended = relay.own_client(&peer.port, &["-c", "-m", "2"]);
    assert!(ended.code != Some(0) && ended.out.contains("508"), "{ended:#?}");
    let relay = Relay::start(&["--set", "turn.bytes_per_s_max=1000"]);
    let ended = relay.own_client(&peer.port, &["-c", "-l", "1000"]);
    assert!(!ended.out.contains("Total lost packets 0 "), "{ended:#?}");
    assert!(relay.metric("millrace_turn_over_quota_total") > 0);
}

#[test]
fn turn_credentials_need_a_permission() {
    let auth = ["--set", "auth.secret=01234567890123456789012345678901"];
    let server = Server::start(&auth);
    let answer = server.post("/v1/turn", "");
    assert!(answer.status == 401 && !answer.body.contains("credential"), "{answer:?}");
    assert_eq!(server.get("/v1/turn").status, 405);
    let off = Server::start(&["--set", "turn.listen=off"]).post("/v1/turn", "");
    assert!(off.status == 404 && off.body.contains("turn.listen"), "{off:?}");
    // An external relay with the same secret.
    let urls = "turn.urls=[\"turns:turn.example:443?transport=tcp\"]";
    let others = Relay::of(Server::start(&["--set", "turn.listen=off", "--set", urls]));
    assert!(others.server.post("/v1/turn", "").body.contains("turns:turn.example:443"));
}
