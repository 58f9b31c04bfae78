//! MQTT as devices use it: packets byte by byte, and the clients of Mosquitto.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::support::{BOUND, Process, Server, millrace, run};

/// A server with MQTT on a free port, and the address of MQTT.
fn server(args: &[&str]) -> (Server, String) {
    let mut server = Server::start_from(
        millrace(&["serve", "--listen", "127.0.0.1:0", "--set", "mqtt.listen=127.0.0.1:0"]).args(args),
    );
    let line = server.process.err.wait_for("serving MQTT");
    let address = line.rsplit("address=").next().expect("the address is last").trim().to_owned();
    (server, address)
}

/// A connection that sends and expects whole packets.
struct Client(TcpStream);

impl Client {
    fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(BOUND)).expect("a valid time");
        Self(stream)
    }

    /// Connects with MQTT 5 and a session that lasts for a minute.
    fn connect(address: &str, id: &str, is_clean: bool, token: Option<&str>) -> (Self, Vec<u8>) {
        let mut client = Self::open(address);
        let mut body = b"\0\x04MQTT\x05".to_vec();
        body.push(if is_clean { 2 } else { 0 } | if token.is_some() { 0x40 } else { 0 });
        body.extend_from_slice(&[0, 60, 5, 0x11, 0, 0, 0, 60]);
        body.extend_from_slice(&text(id));
        body.extend(token.iter().flat_map(|token| text(token)));
        client.send(0x10, &body);
        let answer = client.receive();
        assert_eq!(answer[0], 0x20, "{answer:?}");
        (client, answer)
    }

    fn subscribe(&mut self, filter: &str, qos: u8) -> u8 {
        self.send(0x82, &[&[0, 1, 0][..], &text(filter), &[qos]].concat());
        let answer = self.receive_of(0x90);
        *answer.last().expect("a reason code")
    }

    /// Publishes with quality of service 1 and returns the reason code.
    fn publish(&mut self, topic: &str, payload: &[u8], retain: bool) -> u8 {
        let first = 0x32 | u8::from(retain);
        self.send(first, &[&text(topic)[..], &[0, 9, 0], payload].concat());
        let answer = self.receive_of(0x40);
        answer.get(4).copied().unwrap_or(0)
    }

    /// Publishes like [`Client::publish`], with properties of at most 127 bytes.
    fn publish_with(&mut self, topic: &str, properties: &[u8], payload: &[u8], retain: bool) -> u8 {
        let length = u8::try_from(properties.len()).ok().filter(|length| *length < 128).expect("short properties");
        let body = [&text(topic)[..], &[0, 9, length], properties, payload].concat();
        self.send(0x32 | u8::from(retain), &body);
        self.receive_of(0x40).get(4).copied().unwrap_or(0)
    }

    fn send(&mut self, first: u8, body: &[u8]) {
        let mut packet = vec![first];
        let mut rest = body.len();
        loop {
            packet.push((rest & 0x7f) as u8 | if rest > 0x7f { 0x80 } else { 0 });
            rest >>= 7;
            if rest == 0 {
                break;
            }
        }
        packet.extend_from_slice(body);
        self.0.write_all(&packet).expect("the server reads");
    }

    /// Returns the next packet; empty at the end of the connection.
    fn receive(&mut self) -> Vec<u8> {
        let mut packet = Vec::new();
        let mut byte = [0];
        loop {
            match self.0.read(&mut byte).expect("a packet in time") {
                0 => return Vec::new(),
                _ => packet.push(byte[0]),
            }
            if packet.len() > 1 && byte[0] & 0x80 == 0 {
                break;
            }
        }
        let length = packet[1..].iter().rev().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f));
        let head = packet.len();
        packet.resize(head + length, 0);
        self.0.read_exact(&mut packet[head..]).expect("the rest of the packet");
        packet
    }

    /// Returns the next packet of a kind, and skips others.
    fn receive_of(&mut self, kind: u8) -> Vec<u8> {
        loop {
            let packet = self.receive();
            assert!(!packet.is_empty(), "the connection has ended");
            if packet[0] & 0xf0 == kind {
                return packet;
            }
        }
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

fn user_property(name: &str, value: &str) -> Vec<u8> {
    [&[0x26][..], &text(name), &text(value)].concat()
}

fn contains(packet: &[u8], part: &[u8]) -> bool {
    packet.windows(part.len()).any(|window| window == part)
}

fn ends_with(packet: &[u8], payload: &str) -> bool {
    packet.ends_with(payload.as_bytes())
}

#[test]
fn unacknowledged_mqtt_publication_is_sent_again() {
    let (server, address) = server(&[]);
    let (mut client, _) = Client::connect(&address, "device", true, None);
    assert_eq!(client.subscribe("cars/+", 1), 1);
    for message in ["one", "two"] {
        assert_eq!(server.post("/v1/channels/cars/1", message).status, 200);
    }
    let (one, two) = (client.receive(), client.receive());
    assert!(ends_with(&one, "one") && ends_with(&two, "two"), "{one:?} {two:?}");
    // Only the second one is acknowledged.
    let id = |packet: &[u8]| [packet[10], packet[11]];
    client.send(0x40, &id(&two));
    // The answer to a ping follows the acknowledgement.
    client.send(0xc0, &[]);
    assert_eq!(client.receive(), [0xd0, 0]);
    drop(client);
    assert_eq!(server.post("/v1/channels/cars/1", "three").status, 200);
    let (mut client, answer) = Client::connect(&address, "device", false, None);
    assert_eq!(answer[2], 1, "the session is present");
    let (again, three) = (client.receive(), client.receive());
    assert_eq!((again[0], id(&again)), (0x3a, id(&one)), "the same identifier, with DUP");
    assert!(ends_with(&again, "one") && ends_with(&three, "three"), "{again:?} {three:?}");
}

#[test]
fn mqtt_client_takes_over_its_session() {
    let (_server, address) = server(&["--set", "server.shards=2"]);
    let (mut first, _) = Client::connect(&address, "device", true, None);
    assert_eq!(first.subscribe("a", 0), 0);
    for _ in 0..4 {
        let (second, answer) = Client::connect(&address, "device", false, None);
        assert_eq!(answer[2], 1, "the session is present");
        assert_eq!(first.receive(), [0xe0, 2, 0x8e, 0], "session taken over");
        assert!(first.receive().is_empty());
        first = second;
    }
}

#[test]
fn topics_that_are_no_channels_are_refused() {
    let (_server, address) = server(&[]);
    let (mut client, _) = Client::connect(&address, "", true, None);
    for topic in ["a b", "/a", "a/", "$SYS/x", "ä"] {
        assert_eq!(client.publish(topic, b"x", false), 0x90, "{topic}");
        assert_eq!(client.subscribe(topic, 1), 0x8f, "{topic}");
    }
    assert_eq!(client.publish("a", b"x", false), 0);
    client.send(0x30, &[&text("a/+")[..], &[0]].concat());
    assert_eq!(client.receive(), [0xe0, 2, 0x90, 0]);
}

const CONTEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Connects a client of MQTT 3.1.1 that reads `filter` with quality of service 0.
fn read_with_version_three(address: &str, filter: &str) -> Client {
    let mut client = Client::open(address);
    client.send(0x10, &[&b"\0\x04MQTT\x04\x02\0\x3c"[..], &text("old")].concat());
    assert_eq!(client.receive(), [0x20, 2, 0, 0]);
    client.send(0x82, &[&[0, 1][..], &text(filter), &[0]].concat());
    assert_eq!(client.receive(), [0x90, 3, 0, 1, 0]);
    client
}

/// Returns the trace contexts of the history of `a`; null for a publication without one.
fn contexts(server: &Server) -> Vec<serde_json::Value> {
    let history = server.get("/v1/channels/a?since=earliest").body;
    let page: serde_json::Value = serde_json::from_str(&history).expect("JSON");
    page["messages"].as_array().expect("messages").iter().map(|message| message["trace"].clone()).collect()
}

#[test]
fn trace_context_is_a_user_property_of_mqtt_five() {
    let (server, address) = server(&[]);
    let (mut reader, _) = Client::connect(&address, "reader", true, None);
    assert_eq!(reader.subscribe("a", 0), 0);
    let mut old = read_with_version_three(&address, "a");
    let context = user_property("traceparent", CONTEXT);
    // From HTTP to MQTT.
    let header = format!("traceparent: {CONTEXT}");
    assert_eq!(server.ask("POST", "/v1/channels/a", &[&header], "one").status, 200);
    let packet = reader.receive();
    assert!(contains(&packet, &context) && ends_with(&packet, "one"), "{packet:?}");
    assert_eq!(old.receive(), b"\x30\x06\0\x01aone", "MQTT 3.1.1 has no properties");
    // From MQTT to HTTP and MQTT, beside other properties. A second context is ignored.
    let (mut writer, _) = Client::connect(&address, "writer", true, None);
    let unit = user_property("unit", "km/h");
    assert_eq!(writer.publish_with("a", &[&context[..], &unit].concat(), b"two", false), 0);
    let packet = reader.receive();
    assert!(contains(&packet, &context) && contains(&packet, &unit) && ends_with(&packet, "two"), "{packet:?}");
    assert_eq!(old.receive(), b"\x30\x06\0\x01atwo");
    // A malformed context and one that is not sampled are removed, as on every transport.
    for bad in ["00-0-0-01", &CONTEXT.replace("-01", "-00")] {
        assert_eq!(writer.publish_with("a", &user_property("traceparent", bad), b"bad", false), 0);
        let packet = reader.receive();
        assert!(!contains(&packet, b"traceparent") && ends_with(&packet, "bad"), "{packet:?}");
    }
    let (some, none) = (serde_json::Value::from(CONTEXT), serde_json::Value::Null);
    assert_eq!(contexts(&server), [some.clone(), some, none.clone(), none]);
}

#[test]
fn retained_publication_and_will_keep_their_trace_context() {
    let (_server, address) = server(&[]);
    let context = user_property("traceparent", CONTEXT);
    let (mut writer, _) = Client::connect(&address, "writer", true, None);
    assert_eq!(writer.publish_with("a", &context, b"kept", true), 0);
    let (mut reader, _) = Client::connect(&address, "reader", true, None);
    assert_eq!(reader.subscribe("#", 0), 0);
    let packet = reader.receive();
    assert!(packet[0] == 0x31 && contains(&packet, &context) && ends_with(&packet, "kept"), "{packet:?}");
    let mut lost = Client::open(&address);
    let will = [&[context.len() as u8][..], &context, &text("b"), &text("lost")].concat();
    lost.send(0x10, &[&b"\0\x04MQTT\x05\x06\0\x3c\0"[..], &text("lost"), &will].concat());
    assert_eq!(lost.receive()[3], 0, "accepted");
    drop(lost);
    let packet = reader.receive();
    assert!(contains(&packet, &context) && ends_with(&packet, "lost"), "{packet:?}");
}

#[test]
fn server_that_does_not_forward_removes_contexts_of_mqtt() {
    let (server, address) = server(&["--set", "traces.forward=off"]);
    let context = user_property("traceparent", CONTEXT);
    let (mut live, _) = Client::connect(&address, "live", true, None);
    assert_eq!(live.subscribe("a", 0), 0);
    let (mut writer, _) = Client::connect(&address, "writer", true, None);
    assert_eq!(writer.publish_with("a", &context, b"kept", true), 0);
    let (mut late, _) = Client::connect(&address, "late", true, None);
    assert_eq!(late.subscribe("a", 0), 0);
    for packet in [live.receive_of(0x30), late.receive_of(0x30)] {
        assert!(!contains(&packet, b"traceparent") && ends_with(&packet, "kept"), "{packet:?}");
    }
    assert_eq!(contexts(&server), [serde_json::Value::Null]);
}

#[test]
fn mqtt_subscriptions_are_limited() {
    let (_server, address) = server(&["--set", "limits.subscriptions_max=3"]);
    let (mut client, _) = Client::connect(&address, "", true, None);
    let filters = ["#", "$share/a/x", "$share/b/x", "$share/c/x", "y", "#"];
    assert_eq!(filters.map(|filter| client.subscribe(filter, 0)), [0, 0, 0, 0x97, 0x97, 0]);
}

#[test]
fn token_decides_what_an_mqtt_client_may_do() {
    const SECRET: &str = "a-secret-of-at-least-thirty-two-bytes";
    let create = ["token", "create", "--sub", "car-7", "--publish", "cars/7/#", "--subscribe", "cars/7/cmd"];
    let token = Process::start(millrace(&create).env("MILLRACE_AUTH__SECRET", SECRET)).finish();
    let token = token.out.trim().to_owned();
    let (_server, address) = server(&["--set", &format!("auth.secret={SECRET}")]);
    for (password, reason) in [(None, 0x87), (Some("no-token"), 0x86)] {
        let (mut client, answer) = Client::connect(&address, "car-7", true, password);
        assert_eq!(answer[3], reason, "{password:?}");
        assert!(client.receive().is_empty());
    }
    let (mut client, answer) = Client::connect(&address, "car-7", true, Some(&token));
    assert_eq!(answer[3], 0);
    assert_eq!((client.publish("cars/7/telemetry", b"1", false), client.publish("cars/8/x", b"1", false)), (0, 0x87));
    assert_eq!((client.subscribe("cars/7/cmd", 2), client.subscribe("cars/#", 2)), (2, 0x87));
}

#[test]
fn retained_publication_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = format!("engine.url=sqlite:{}", folder.path().join("db").display());
    let (mut first, address) = server(&["--set", &engine]);
    let (mut client, _) = Client::connect(&address, "", true, None);
    assert_eq!([client.publish("a", b"kept", true), client.publish("b", b"gone", true)], [0, 0]);
    assert_eq!([client.publish("a", b"live", false), client.publish("b", b"", true)], [0, 0]);
    drop(client);
    first.process.signal(rustix::process::Signal::TERM);
    first.process.out.rest();
    let (_second, address) = server(&["--set", &engine]);
    let (mut client, _) = Client::connect(&address, "", true, None);
    assert_eq!(client.subscribe("#", 1), 1);
    let packet = client.receive_of(0x30);
    assert!(packet[0] & 1 == 1 && ends_with(&packet, "kept"), "{packet:?}");
    let (mut writer, _) = Client::connect(&address, "", true, None);
    assert_eq!(writer.publish("a", b"next", false), 0);
    let packet = client.receive_of(0x30);
    assert!(packet[0] & 1 == 0 && ends_with(&packet, "next"), "{packet:?}");
}

#[test]
fn will_is_published_when_a_client_is_lost() {
    let (_server, address) = server(&[]);
    let (mut reader, _) = Client::connect(&address, "reader", true, None);
    assert_eq!(reader.subscribe("status/+", 0), 0);
    for (is_clean_end, topic) in [(true, "status/a"), (false, "status/b")] {
        let mut client = Client::open(&address);
        let body = [&b"\0\x04MQTT\x04\x06\0\x3c\0\x01c"[..], &text(topic), &text("lost")].concat();
        client.send(0x10, &body);
        assert_eq!(client.receive(), [0x20, 2, 0, 0]);
        if is_clean_end {
            client.send(0xe0, &[]);
            assert!(client.receive().is_empty());
        }
    }
    let packet = reader.receive();
    assert!(ends_with(&packet, "lost") && packet.windows(8).any(|part| part == b"status/b"), "{packet:?}");
}

#[test]
fn shared_subscription_sends_each_publication_once() {
    let (server, address) = server(&["--set", "server.shards=2"]);
    let mut members: Vec<Client> =
        ["a", "b", "c"].map(|id| Client::connect(&address, id, true, None).0).into_iter().collect();
    for member in &mut members {
        assert_eq!(member.subscribe("$share/workers/jobs", 0), 0);
    }
    for i in 0..30 {
        assert_eq!(server.post("/v1/channels/jobs", &format!("job {i:02}")).status, 200);
    }
    // A member's shard takes publications from the channel's shard, so the answer to a ping may come before the last
    // one.
    // One more round after the last publication would show a second copy.
    let mut seen = Vec::new();
    let end = Instant::now() + BOUND;
    let mut is_complete = false;
    while !is_complete && Instant::now() < end {
        is_complete = seen.len() >= 30;
        for member in &mut members {
            member.send(0xc0, &[]);
            loop {
                let packet = member.receive();
                match packet[0] & 0xf0 {
                    0x30 => seen.push(String::from_utf8_lossy(&packet[packet.len() - 6..]).into_owned()),
                    _ => break,
                }
            }
        }
    }
    seen.sort();
    assert_eq!(seen, (0..30).map(|i| format!("job {i:02}")).collect::<Vec<_>>());
}

#[test]
fn malformed_mqtt_ends_its_connection_only() {
    let (mut server, address) = server(&[]);
    let (mut bystander, _) = Client::connect(&address, "bystander", true, None);
    assert_eq!(bystander.subscribe("a", 0), 0);
    let connect = b"\x10\x0e\0\x04MQTT\x04\x02\0\x3c\0\x02id";
    let after: [&[u8]; 8] = [
        b"\x30\xff\xff\xff\xff",
        b"\x30\x02\0\x05",
        b"\x36\x05\0\x01a\0\x01",
        b"\x80\x02\0\x01",
        b"\x82\x05\0\x01\0\x01a",
        b"\x62\x01\0",
        b"\xf0\0",
        b"\0\0",
    ];
    for bytes in after {
        let mut client = Client::open(&address);
        client.0.write_all(connect).expect("the server reads");
        assert_eq!(client.receive(), [0x20, 2, 0, 0]);
        client.0.write_all(bytes).expect("the server reads");
        assert!(client.receive().is_empty(), "{bytes:?}");
    }
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x10\x04\0\x04MQ", b"\x10\xff\xff\xff\x7f", b"\0\0", b"\x10\0"] {
        let mut client = Client::open(&address);
        client.0.write_all(bytes).expect("the server reads");
        assert!(client.receive().is_empty(), "{bytes:?}");
    }
    assert_eq!(server.post("/v1/channels/a", "still there").status, 200);
    assert!(ends_with(&bystander.receive(), "still there"));
    server.process.signal(rustix::process::Signal::TERM);
    let log = server.process.err.rest();
    assert!(!log.contains("WARN") && !log.contains("ERROR") && !log.contains("panicked"), "{log}");
}

fn has_mosquitto() -> bool {
    let found = Command::new("mosquitto_sub").arg("--help").stdout(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("skipped: the clients of Mosquitto are not installed (Debian: apt-get install mosquitto-clients)");
    }
    found
}

fn mosquitto(program: &str, address: &str, args: &[&str]) -> Command {
    let (host, port) = address.split_once(':').expect("HOST:PORT");
    // The program writes lines to a pipe only when its buffer is full.
    let mut command = Command::new("stdbuf");
    command.args(["-oL", program]).args(["-h", host, "-p", port]).args(args);
    command
}

#[test]
fn mosquitto_clients_exchange_publications_with_http() {
    if !has_mosquitto() {
        return;
    }
    let (server, address) = server(&[]);
    for version in ["mqttv311", "mqttv5"] {
        let args = ["-V", version, "-t", "cars/#", "-q", "2", "-v", "-C", "4", "-d"];
        let mut reader = Process::start(&mut mosquitto("mosquitto_sub", &address, &args));
        reader.out.wait_for("received SUBACK");
        for qos in ["0", "1", "2"] {
            let args = ["-V", version, "-t", "cars/1/telemetry", "-q", qos, "-m", &format!("quality {qos}")];
            assert!(mosquitto("mosquitto_pub", &address, &args).status().expect("it starts").success());
        }
        assert_eq!(server.post("/v1/channels/cars/2/telemetry", "over http").status, 200);
        let out = reader.finish().out;
        for line in ["cars/1/telemetry quality 0", "cars/1/telemetry quality 1", "cars/1/telemetry quality 2"] {
            assert_eq!(out.matches(line).count(), 1, "{version}: {out}");
        }
        assert!(out.contains("cars/2/telemetry over http"), "{out}");
    }
    let history = server.get("/v1/channels/cars/1/telemetry?since=earliest").body;
    assert_eq!(history.matches("quality 2").count(), 2, "{history}");
}

#[test]
fn mosquitto_clients_use_tls() {
    if !has_mosquitto() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let made = run(&["cert", "dev", "--dir", &path("")]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let set = |key: &str, file: &str| format!("tls.{key}={}", path(file));
    let (_server, address) = server(&["--set", &set("cert", "cert.pem"), "--set", &set("key", "key.pem")]);
    let ca = path("ca.pem");
    for (version, tls) in [("mqttv311", "tlsv1.2"), ("mqttv5", "tlsv1.3")] {
        let common = ["-V", version, "--cafile", &ca, "--tls-version", tls, "-t", "cars/1/telemetry", "-q", "2"];
        let mut reader = mosquitto("mosquitto_sub", &address, &common);
        let mut reader = Process::start(reader.args(["-C", "2", "-d"]));
        reader.out.wait_for("received SUBACK");
        // The second payload does not fit into one TLS record.
        let large = "x".repeat(40_000);
        for payload in ["small", &large] {
            let mut publisher = mosquitto("mosquitto_pub", &address, &common);
            assert!(publisher.args(["-m", payload]).status().expect("it starts").success(), "{version}");
        }
        let out = reader.finish().out;
        assert!(out.contains("small") && out.contains(&large), "{version}: {} bytes", out.len());
    }
    let publish = |more: &[&str]| {
        let mut publisher = mosquitto("mosquitto_pub", &address, &["-t", "a", "-q", "1", "-m", "x"]);
        Process::start(publisher.args(more)).finish()
    };
    assert_eq!(publish(&["--cafile", &ca]).code, Some(0));
    assert_ne!(publish(&[]).code, Some(0), "a client without TLS");
    let strange = run(&["cert", "dev", "--dir", &path("other")]);
    assert_eq!(strange.code, Some(0), "{strange:?}");
    let refused = publish(&["--cafile", &path("other/ca.pem")]);
    assert_ne!(refused.code, Some(0), "a client that trusts another authority: {refused:?}");
}

#[test]
fn silent_mqtt_client_is_disconnected() {
    let (_server, address) = server(&["--set", "mqtt.keep_alive_max=1s", "--set", "limits.header_timeout=1s"]);
    let (mut client, _) = Client::connect(&address, "quiet", true, None);
    client.0.set_read_timeout(Some(Duration::from_secs(20))).expect("a valid time");
    assert_eq!(client.receive(), [0xe0, 2, 0x8d, 0], "keep alive timeout");
    let mut other = Client::open(&address);
    assert!(other.receive().is_empty(), "a client that sends no CONNECT");
}

/// A message as the OwnTracks app publishes it, with the retain flag and quality of service 1.
const OWNTRACKS: &str = include_str!("../../../ingest/tests/fixtures/owntracks-mqtt.json");

#[test]
fn owntracks_over_mqtt_is_a_device() {
    if !has_mosquitto() {
        return;
    }
    let (server, address) = server(&[]);
    let publish = |topic: &str, payload: &str| {
        let args = ["-t", topic, "-q", "1", "-r", "-m", payload];
        assert!(mosquitto("mosquitto_pub", &address, &args).status().expect("it starts").success(), "{topic}");
    };
    publish("owntracks/jane/phone", OWNTRACKS);
    let history = server.get("/v1/channels/cars/jane-phone/telemetry?since=earliest").body;
    let page: serde_json::Value = serde_json::from_str(&history).expect("JSON");
    let record = &page["messages"][0]["data"];
    assert_eq!((&record["carId"], &record["gpsLatitude"]), (&"jane-phone".into(), &47.53398.into()), "{history}");
    assert_eq!((&record["timestamp"], &record["speed"]), (&1_397_028_600_000_u64.into(), &13.889.into()), "{history}");
    // The other apps of the user read the message itself, and the list of cars has the device.
    let raw = server.get("/v1/channels/owntracks/jane/phone?since=earliest").body;
    assert!(raw.contains("\"_type\":\"location\""), "{raw}");
    assert!(server.get("/v1/channels/fleet?state").body.contains("jane-phone"));
    // The topic names the device, not the payload. Repeated and other messages give no record; all are accepted.
    publish("owntracks/jane/watch", OWNTRACKS);
    for payload in
        [OWNTRACKS, "{\"_type\":\"lwt\",\"tst\":1}", "{\"_type\":\"encrypted\",\"data\":\"x\"}", "nonsense", ""]
    {
        publish("owntracks/jane/phone", payload);
    }
    let count = |device: &str| {
        let history = server.get(&format!("/v1/channels/cars/{device}/telemetry?since=earliest")).body;
        history.matches("\"carId\"").count()
    };
    assert_eq!((count("jane-phone"), count("jane-watch")), (1, 1));
}

#[test]
fn owntracks_needs_the_permission_for_the_device() {
    if !has_mosquitto() {
        return;
    }
    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    let mut server = Server::start_from(
        millrace(&[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--set",
            "mqtt.listen=127.0.0.1:0",
            "--set",
            "ingest.enabled=on",
        ])
        .env("MILLRACE_AUTH__SECRET", SECRET),
    );
    let line = server.process.err.wait_for("serving MQTT");
    let address = line.rsplit("address=").next().expect("the address is last").trim().to_owned();
    let token = |args: &[&str]| {
        let created = Process::start(
            millrace(&["token", "create", "--sub", "x"]).args(args).env("MILLRACE_AUTH__SECRET", SECRET),
        );
        created.finish().out.trim().to_owned()
    };
    let history = |device: &str| {
        let reader = format!("Authorization: Bearer {}", token(&["--subscribe", "#", "--history", "#"]));
        server.ask("GET", &format!("/v1/channels/cars/{device}/telemetry?since=earliest"), &[&reader], "").body
    };
    let publish = |token: &str, topic: &str| {
        let args = ["-u", "x", "-P", token, "-t", topic, "-q", "1", "-m", OWNTRACKS];
        mosquitto("mosquitto_pub", &address, &args).status().expect("it starts").success()
    };
    assert!(publish(&token(&["--publish", "owntracks/jane/+"]), "owntracks/jane/phone"));
    assert_eq!(history("jane-phone").matches("\"carId\"").count(), 0);
    assert!(publish(
        &token(&["--publish", "owntracks/jane/phone", "--publish", "cars/jane-phone/#"]),
        "owntracks/jane/phone"
    ));
    assert_eq!(history("jane-phone").matches("\"carId\"").count(), 1);
}
