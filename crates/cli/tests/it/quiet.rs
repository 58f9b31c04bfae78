//! Checks that a remote peer alone cannot cause a WARN or ERROR log line. The test sends the fuzzers' corpus and
//! dictionaries to a server.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use millrace_rtc::{Event, Lane, Outputs, Peer};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{BOUND, Process, Server, ask, millrace, repository};

/// Time to wait for an optional response.
const GLANCE: Duration = Duration::from_millis(5);
/// Timeout of a peer whose datagrams are corrupted.
const PATIENCE: Duration = Duration::from_secs(1);
const THREADS: usize = 8;
/// More resets than a connection may send before the server closes it.
const RESETS: u32 = 300;

#[test]
fn peer_input_never_logs_a_warning() {
    let quiet =
        ["--set", "log.format=json", "--set", "drain.window=10ms", "--set", "turn.secret=a secret of tests only"];
    let home = format!("{}/quiet", env!("CARGO_TARGET_TMPDIR"));
    let plain = Server::start(&[&quiet[..], &["--shards", "2", "--udp", "127.0.0.1:0"]].concat());
    let secured = ["serve", "--tls-dev", "--listen", "127.0.0.1:0", "--shards", "1"];
    // A new certificate authority is announced on the terminal, not in the log.
    let made = Process::start(millrace(&["cert", "dev"]).env("XDG_DATA_HOME", &home)).finish();
    assert_eq!(made.code, Some(0), "{made:?}");
    let secured = Server::start_from(millrace(&[&secured[..], &quiet].concat()).env("XDG_DATA_HOME", &home));

    let connections = connections();
    let (address, tls) = (plain.address.as_str(), secured.address.as_str());
    spread(&connections, |bytes| {
        converse(address, bytes);
        converse(tls, bytes);
    });
    let ports = datagram_ports(&plain);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for datagram in corpus("udp").iter().chain(&corpus("websocket")).chain(&corpus("session")) {
        for port in &ports {
            let _ = socket.send_to(&datagram[..datagram.len().min(1400)], port);
        }
    }
    spread(&offers(), |offer| {
        for path in ["/v1/connect", "/v1/rooms/quiet/whip", "/v1/rooms/quiet/whep"] {
            let answer = ask(address, "POST", path, &["Content-Type: application/sdp"], offer);
            assert!(answer.status < 500 || answer.status == 503, "{path}: {answer:?}");
            assert!(!answer.body.contains("0x7f") && !answer.body.contains("Offset"), "{answer:?}");
        }
    });
    spread(&(0..48).collect::<Vec<u32>>(), |seed| peer(address, *seed));

    assert_eq!(plain.post("/v1/channels/well", "1").status, 200);
    let metrics = plain.get("/metrics").body;
    for library in ["h2", "str0m"] {
        let begins = format!("millrace_library_reports_total{{library=\"{library}\"");
        assert!(metrics.contains(&begins), "{library} had nothing to report: {metrics}");
    }
    for server in [plain, secured] {
        server.process.signal(Signal::TERM);
        let ended = server.process.finish();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        for line in ended.err.lines() {
            // A line without JSON is a panic or other output that bypassed the log.
            let event: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("past the log: {line}"));
            assert!(["INFO", "DEBUG"].contains(&event["level"].as_str().unwrap_or_default()), "{line}");
        }
    }
}

#[test]
fn log_level_of_a_named_library_applies() {
    let mut server = Server::start(&["--set", "log.level=info,h2=warn"]);
    http2(&[]).iter().for_each(|bytes| converse(&server.address, bytes));
    let line = server.process.err.wait_for("h2::");
    assert!(line.contains("WARN"), "{line}");
}

/// Runs `work` on all items, in [`THREADS`] threads.
fn spread<T: Sync>(all: &[T], work: impl Fn(&T) + Sync) {
    let share = all.len().div_ceil(THREADS).max(1);
    std::thread::scope(|scope| {
        for part in all.chunks(share) {
            scope.spawn(|| part.iter().for_each(&work));
        }
    });
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = fs::read_dir(repository("fuzz/corpus").join(target)).expect("the corpus");
    let read = folder.map(|entry| fs::read(entry.expect("an entry").path()).expect("a file"));
    let read: Vec<_> = read.collect();
    assert!(!read.is_empty(), "{target} has a corpus");
    read
}

/// Returns the words of all dictionaries.
fn words() -> Vec<Vec<u8>> {
    let folder = fs::read_dir(repository("fuzz/dictionaries")).expect("the dictionaries");
    let texts = folder.map(|entry| fs::read_to_string(entry.expect("an entry").path()).expect("a text"));
    texts.flat_map(|text| text.lines().filter_map(word).collect::<Vec<_>>()).collect()
}

/// Parses a dictionary line such as `"a\x0d\"b"` or `name="b"`.
///
/// Source: AFL's and libFuzzer's dictionaries.
fn word(line: &str) -> Option<Vec<u8>> {
    let text = line.trim().strip_suffix('"')?.split_once('"')?.1;
    let (mut word, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        word.push(match byte {
            b'\\' => match rest.next()? {
                b'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                escaped => escaped,
            },
            byte => byte,
        });
    }
    Some(word)
}

/// Returns the bytes to send, one entry per connection.
fn connections() -> Vec<Vec<u8>> {
    let upgrade = |path: &str, offers: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {offers}\r\n\r\n"
        )
        .into_bytes()
    };
    let post = |path: &str, body: &[u8]| {
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    };
    let mut all = corpus("http");
    for bytes in corpus("websocket") {
        // The first two bytes are parameters of the fuzz target.
        let frames = bytes.get(2..).unwrap_or_default();
        all.push([&upgrade("/v1/channels/quiet", "millrace.bare"), frames].concat());
        all.push([&upgrade("/v1/connect", "millrace.v1+json"), frames].concat());
    }
    for text in corpus("session").iter().chain(&corpus("command")).chain(&corpus("lines")) {
        let commands = text.split(|byte| *byte == b'\n').flat_map(frame).collect();
        all.push([upgrade("/v1/connect", "millrace.v1+json"), commands].concat());
        all.push(post("/v1/publish", text));
        all.push(post("/v1/rooms/quiet/join", text));
    }
    for text in corpus("form").iter().chain(&corpus("csv")).chain(&corpus("config")) {
        all.push(post("/v1/channels/quiet", text));
        all.push(post("/rest/input", text));
    }
    for text in
        corpus("names").iter().chain(&corpus("url")).chain(&corpus("token")).chain(&corpus("ticket")).chain(&words())
    {
        let escaped: String = text.iter().map(|byte| format!("%{byte:02x}")).collect();
        all.push(format!("GET /v1/channels/{escaped}?since={escaped} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes());
        all.push(format!("GET /v1/stream?channel={escaped}&wait={escaped} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes());
        for before in
            [&b"GET /v1/channels/quiet HTTP/1.1\r\nHost: a\r\n"[..], b"GET ", b"GET / HTTP/1.1\r\nHost: ", b""]
        {
            all.push([before, text, b"\r\n\r\n"].concat());
        }
        let line: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_control()).take(2000).collect();
        for header in ["Authorization: Bearer ", "Cookie: token=", "Accept: ", "Transfer-Encoding: ", "Last-Event-ID: "]
        {
            let head = format!("GET /v1/channels/quiet HTTP/1.1\r\nHost: a\r\n{header}");
            all.push([head.as_bytes(), &line, b"\r\n\r\n"].concat());
        }
        all.push(upgrade("/v1/connect", &format!("millrace.v1+json, resume.{}", String::from_utf8_lossy(&line))));
    }
    all.extend(http2(&words()));
    all
}

/// Sends `bytes`, reads briefly and closes the connection. Unread responses may cause a reset.
fn converse(address: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(GLANCE)).expect("a time that is not 0");
    let mut heard = [0; 4096];
    if stream.write_all(bytes).is_ok() {
        let _ = stream.read(&mut heard);
    }
}

/// Returns a WebSocket text frame of a client, masked with zeros.
fn frame(text: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x81];
    match text.len() {
        n @ 0..=125 => frame.push(0x80 | n as u8),
        n => {
            frame.push(0x80 | 126);
            frame.extend((n.min(65_535) as u16).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(text.iter().take(65_535));
    frame
}

/// Returns HTTP/2 connections that violate the protocol.
///
/// Source: RFC 9113; CVE-2023-44487, CVE-2024-27316.
fn http2(words: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let head = [&(payload.len() as u32).to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        [&head[..], payload].concat()
    };
    let begin = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat();
    // GET, http, `:authority: a`, `:path: /v1/channels/a?wait=9`.
    let head = [&[0x82, 0x86, 0x01, 1, b'a', 0x04, 23][..], b"/v1/channels/a?wait=009"].concat();
    let resets = |code: u32| {
        let pair = |i: u32| [frame(1, 5, 2 * i + 1, &head), frame(3, 0, 2 * i + 1, &code.to_be_bytes())].concat();
        (0..RESETS).flat_map(pair).collect::<Vec<u8>>()
    };
    let mut bad = vec![
        resets(8),
        resets(0xdead),
        // Streams that the server must reset: a header block without a path.
        (0..RESETS).flat_map(|i| frame(1, 5, 2 * i + 1, &head[..5])).collect(),
        // Window updates that overflow the window or have increment 0.
        [frame(1, 5, 1, &head), frame(8, 0, 1, &[0x7f, 0xff, 0xff, 0xff]).repeat(3)].concat(),
        frame(8, 0, 0, &[0; 4]),
        // Endless header blocks.
        [frame(1, 1, 1, &head), frame(9, 0, 1, &[0x82; 4000]).repeat(50)].concat(),
        // Data on an idle stream, a stream that depends on itself, an unrequested PING acknowledgment, a push by a
        // client.
        frame(0, 1, 1, b"data"),
        frame(2, 0, 1, &[0, 0, 0, 1, 0]),
        frame(6, 1, 0, b"unasked!"),
        frame(5, 4, 1, &[&[0, 0, 0, 2], &head[..]].concat()),
        frame(4, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff]),
        frame(4, 0, 0, &[0, 5, 0, 0, 0, 0]),
        frame(4, 1, 0, &[1; 6]),
        frame(6, 0, 0, b"12345678").repeat(500),
        frame(4, 0, 0, &[0, 1, 0, 0, 0, 0]).repeat(500),
        frame(7, 0, 0, &[0; 8]),
        frame(7, 0, 0, &[0; 3]),
    ];
    for (kind, word) in (0..=255).zip(words.iter().cycle()) {
        bad.push([frame(1, 5, 1, &head), frame(kind, kind, u32::from(kind) % 4, word)].concat());
        bad.push(frame(1, 5, 1, &[&head[..2], word].concat()));
    }
    bad.into_iter().map(|bytes| [&begin[..], &bytes].concat()).collect()
}

/// Returns the fuzzer's offers, each with one line cut, repeated, corrupted or exchanged.
fn offers() -> Vec<String> {
    let mut all = vec![String::new(), "v=0\r\n".into(), "\0".into()];
    for name in ["data.sdp", "sends.sdp", "views.sdp"] {
        let text = fs::read_to_string(repository("fuzz/fuzz_targets/offers").join(name)).expect("an offer");
        let lines: Vec<&str> = text.lines().collect();
        let join = |lines: &[&str]| lines.iter().flat_map(|line| [*line, "\r\n"]).collect::<String>();
        for at in 0..lines.len() {
            let mut changed = lines.clone();
            changed.remove(at);
            all.push(join(&changed));
            changed.insert(at, lines[at]);
            changed.insert(at, lines[at]);
            all.push(join(&changed));
            changed.remove(at);
            let (head, value) =
                lines[at].split_at(lines[at].len().min(lines[at].find(':').map_or(2, |colon| colon + 1)));
            for other in ["", "0", "-1", "99999999999999999999", "\u{fffd}", &value.repeat(3)] {
                let line = format!("{head}{other}");
                let mut changed = lines.clone();
                changed[at] = &line;
                all.push(join(&changed));
            }
            changed.swap(at, (at + 1) % lines.len());
            all.push(join(&changed));
        }
    }
    all
}

/// Returns the UDP addresses of the server: for devices, for data channels, and of the relay.
fn datagram_ports(server: &Server) -> Vec<SocketAddr> {
    let info: Value = serde_json::from_str(&server.get("/v1/info").body).expect("JSON");
    let devices = info["udp"].as_str().expect("a port for devices").parse().expect("an address");
    let relay: Value = serde_json::from_str(&server.post("/v1/turn", "").body).expect("JSON");
    let relay = relay["ice_servers"][0]["urls"][0].as_str().expect("a relay").to_owned();
    let relay = relay.split('?').next().and_then(|url| url.rsplit(':').next()).expect("a port").parse();
    let relay = SocketAddr::from(([127, 0, 0, 1], relay.expect("a port")));
    vec![devices, rtc_port(server), relay]
}

/// Returns the UDP address of the server for data channels.
pub fn rtc_port(server: &Server) -> SocketAddr {
    let offer = Peer::offer(SocketAddr::from(([127, 0, 0, 1], 1)), Instant::now()).sdp;
    let answer = server.ask("POST", "/v1/connect", &["Content-Type: application/sdp"], &offer);
    assert_eq!(answer.status, 201, "{answer:?}");
    let candidates = answer.body.lines().filter(|line| line.starts_with("a=candidate:"));
    let address = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        (words[2].eq_ignore_ascii_case("udp"))
            .then(|| SocketAddr::new(words[4].parse().ok()?, words[5].parse().ok()?).into())
    };
    candidates.filter_map(|line| address(line).flatten()).next().expect("a candidate")
}

/// Opens data channels over a path that corrupts some datagrams, as `seed` determines (0: none). Some peers close the
/// connection, others vanish.
fn peer(server: &str, seed: u32) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(GLANCE)).expect("a time that is not 0");
    let local = socket.local_addr().expect("an address");
    let offer = Peer::offer(local, Instant::now());
    let answer = ask(server, "POST", "/v1/connect", &["Content-Type: application/sdp"], &offer.sdp);
    assert_eq!(answer.status, 201, "{answer:?}");
    let mut peer = offer.accept(&answer.body).expect("a good answer");
    let (mut out, mut chance, mut is_open) = (Outputs::default(), seed, false);
    let patience = if seed == 0 { BOUND } else { PATIENCE };
    let deadline = Instant::now() + patience;
    let flush = |out: &mut Outputs, chance: &mut u32| {
        for (to, mut datagram) in out.datagrams.drain(..) {
            *chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (what, at) = (*chance >> 28, (*chance >> 8) as usize % datagram.len());
            match what {
                _ if seed == 0 => {}
                0 => datagram.truncate(at),
                1 => datagram[at] ^= *chance as u8,
                2 => drop(socket.send_to(&datagram, to)),
                3 => datagram.rotate_left(at),
                _ => {}
            }
            let _ = socket.send_to(&datagram, to);
        }
    };
    let mut received = [0; 2048];
    let mut written = 0;
    while Instant::now() < deadline && written < 20 {
        if peer.handle_timeout(Instant::now(), &mut out).is_err() {
            break;
        }
        flush(&mut out, &mut chance);
        if let Ok((length, from)) = socket.recv_from(&mut received)
            && peer.handle_datagram(Instant::now(), from, local, &received[..length], &mut out).is_err()
        {
            break;
        }
        is_open |= out.events.contains(&Event::Open(Lane::Session));
        if is_open {
            written += 1;
            let message: &[u8] = if seed.is_multiple_of(2) { b"{\"id\":1,\"ping\":{}}\n" } else { b"\xff nonsense\n" };
            let _ = peer.write(Instant::now(), Lane::Session, true, message, &mut out);
        }
    }
    assert!(is_open || seed != 0, "a peer that nobody spoils opens");
    // Normal close: the server is notified.
    if seed.is_multiple_of(3) {
        peer.close(&mut out);
    }
    flush(&mut out, &mut chance);
}
