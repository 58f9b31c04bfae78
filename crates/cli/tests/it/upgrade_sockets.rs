//! Tests that an upgrade hands over the listening sockets of every kind: clients that connect during and after the
//! upgrade are never refused, and no datagram is lost.

use std::{
    io::{Read as _, Write as _},
    net::{TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    ports::free_ports,
    support::{BOUND, Server, ask, millrace},
    upgrade::upgrade,
};

const ADMIN: &str = "sixteen-bytes-or-more";
/// Time between two clients of one kind.
const PAUSE: Duration = Duration::from_millis(10);
/// Clients of each kind that must be served before the upgrade, and after the old process has ended.
const MORE: usize = 10;

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address} refuses: {error}"));
    stream.set_read_timeout(Some(BOUND)).expect("a time that is not 0");
    stream
}

/// Connects with MQTT 3.1.1. The old process answers a connection that it has accepted before its drain with return
/// code 3 (docs/reference/mqtt.md, 0x88), and the client connects again.
fn ask_mqtt(address: &str, n: usize) {
    const DRAINS: [u8; 4] = [0x20, 2, 0, 3];
    let answer = match connect_mqtt(address, n) {
        DRAINS => connect_mqtt(address, n),
        answer => answer,
    };
    assert_eq!(answer, [0x20, 2, 0, 0], "MQTT client {n}");
}

fn connect_mqtt(address: &str, n: usize) -> [u8; 4] {
    let mut stream = connect(address);
    let id = format!("c{n}");
    let body = [&b"\0\x04MQTT\x04\x02\0\x3c\0"[..], &[id.len() as u8], id.as_bytes()].concat();
    stream.write_all(&[&[0x10, body.len() as u8], &body[..]].concat()).expect("the server reads");
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap_or_else(|error| panic!("MQTT client {n}: {error}"));
    answer
}

fn ask_admin(address: &str) {
    let answer = ask(address, "GET", "/v1/admin/nodes", &[&format!("Authorization: Bearer {ADMIN}")], "");
    assert_eq!(answer.status, 200, "{answer:?}");
}

fn ask_agent(address: &str) {
    let mut line = String::new();
    connect(address).read_to_string(&mut line).expect("a line");
    assert!(line.starts_with("ready up "), "a balancer would move clients away: {line:?}");
}

/// Returns a STUN Binding request. Source: RFC 8489, section 5.
fn binding_request(n: usize) -> [u8; 20] {
    let mut request = [0; 20];
    request[1] = 1;
    request[4..8].copy_from_slice(&0x2112_a442_u32.to_be_bytes());
    request[12..].copy_from_slice(&(n as u64).to_be_bytes());
    request
}

fn assert_binding_response(request: &[u8; 20], response: &[u8]) {
    assert!(response.len() >= 20 && response[..2] == [1, 1] && response[4..20] == request[4..], "{response:?}");
}

fn ask_turn_over_udp(address: &str, n: usize) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(BOUND)).expect("a time that is not 0");
    let (request, mut response) = (binding_request(n), [0; 500]);
    socket.send_to(&request, address).expect("it is sent");
    let (length, _) = socket.recv_from(&mut response).unwrap_or_else(|error| panic!("no answer to {n}: {error}"));
    assert_binding_response(&request, &response[..length]);
}

fn ask_turn_over_tcp(address: &str, n: usize) {
    let mut stream = connect(address);
    let (request, mut head) = (binding_request(n), [0; 20]);
    stream.write_all(&request).expect("the server reads");
    stream.read_exact(&mut head).unwrap_or_else(|error| panic!("no answer to {n}: {error}"));
    assert_binding_response(&request, &head);
}

/// Clients of one kind, one after the other.
struct Clients<'a> {
    name: &'static str,
    served: AtomicUsize,
    ask: Box<dyn Fn(usize) + Sync + 'a>,
}

fn clients<'a>(name: &'static str, ask: impl Fn(usize) + Sync + 'a) -> Clients<'a> {
    Clients { name, served: AtomicUsize::new(0), ask: Box::new(ask) }
}

/// Returns the numbers that the devices have published, oldest first.
fn published(server: &Server) -> Vec<u64> {
    let (mut numbers, mut since) = (Vec::new(), "earliest".to_owned());
    loop {
        let page = server.get(&format!("/v1/channels/devices?since={since}&limit=1000")).body;
        let page: Value = serde_json::from_str(&page).expect("JSON");
        let messages = page["messages"].as_array().expect("messages").iter();
        numbers.extend(messages.map(|message| message["data"].as_u64().expect("a number")));
        if page["more"] != true {
            return numbers;
        }
        since = page["position"].as_str().expect("a position").to_owned();
    }
}

#[test]
fn sockets_of_every_kind_are_handed_over() {
    let port = free_ports(5);
    let at = |i: u16| format!("127.0.0.1:{}", port + i);
    let [mqtt, admin, agent, turn, udp] = [0, 1, 2, 3, 4].map(at);
    let mut command = millrace(&["serve", "--listen", "127.0.0.1:0", "--shards", "2"]);
    for (key, value) in [
        ("mqtt.listen", &mqtt),
        ("admin.listen", &admin),
        ("server.agent", &agent),
        ("turn.listen", &turn),
        ("server.udp", &udp),
        ("history.count_max", &"100000".to_owned()),
    ] {
        command.args(["--set", &format!("{key}={value}")]);
    }
    let mut server = Server::start_from(command.env("MILLRACE_ADMIN__TOKEN", ADMIN));
    let address = server.address.clone();
    let device = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let send = |n: usize| {
        let datagram = json!({ "channel": "devices", "data": n }).to_string();
        device.send_to(datagram.as_bytes(), &udp).expect("it is sent");
    };
    let kinds = [
        clients("http", |_| assert_eq!(ask(&address, "GET", "/healthz", &[], "").status, 200)),
        clients("mqtt", |n| ask_mqtt(&mqtt, n)),
        clients("admin", |_| ask_admin(&admin)),
        clients("agent", |_| ask_agent(&agent)),
        clients("turn over UDP", |n| ask_turn_over_udp(&turn, n)),
        clients("turn over TCP", |n| ask_turn_over_tcp(&turn, n)),
        clients("udp", send),
    ];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for kind in &kinds {
            let is_over = &is_over;
            thread::Builder::new()
                .name(kind.name.into())
                .spawn_scoped(scope, move || {
                    while !is_over.load(Relaxed) {
                        (kind.ask)(kind.served.load(Relaxed));
                        kind.served.fetch_add(1, Relaxed);
                        thread::sleep(PAUSE);
                    }
                })
                .expect("a thread");
        }
        // The clients end with this scope, also if this thread panics.
        let _end = End(&is_over);
        wait_for_more(&kinds);
        let ended = upgrade(&server, &[]).finish();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        server.process.err.wait_for("the old process has ended");
        wait_for_more(&kinds);
    });
    // Every datagram was published, and none twice.
    let sent = kinds[6].served.load(Relaxed);
    let deadline = Instant::now() + BOUND;
    let mut numbers = published(&server);
    while numbers.len() < sent && Instant::now() < deadline {
        numbers = published(&server);
    }
    let lost: Vec<u64> = (0..sent as u64).filter(|n| !numbers.contains(n)).collect();
    assert_eq!((lost, numbers.len()), (vec![], sent), "lost, and all that were published");
}

/// Ends the clients when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Waits until [`MORE`] further clients of each kind were served.
fn wait_for_more(kinds: &[Clients<'_>]) {
    let deadline = Instant::now() + BOUND;
    let wanted: Vec<usize> = kinds.iter().map(|kind| kind.served.load(Relaxed) + MORE).collect();
    for (kind, wanted) in kinds.iter().zip(wanted) {
        while kind.served.load(Relaxed) < wanted {
            assert!(Instant::now() < deadline, "{}: only {} of {wanted} clients", kind.name, kind.served.load(Relaxed));
            thread::sleep(PAUSE);
        }
    }
}
