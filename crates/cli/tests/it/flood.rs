//! Floods the UDP ports with datagrams of no session. The server must drop them cheaply and without log lines, and
//! serve other clients meanwhile.

use std::{
    fs,
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    quiet::rtc_port,
    support::{Server, repository},
};

const DATAGRAMS: usize = 60_000;
const MESSAGES: usize = 50;
/// Maximum CPU time of the server per received datagram: measured with a test build, with a wide margin.
const CPU_PER_DATAGRAM_MAX: Duration = Duration::from_micros(200);
/// Maximum delivery latency during the flood.
const LATE: Duration = Duration::from_secs(2);

#[test]
fn floods_of_datagrams_are_dropped_cheaply_and_quietly() {
    let server = Server::start(&["--shards", "2", "--udp", "127.0.0.1:0", "--set", "drain.window=10ms"]);
    let info: serde_json::Value = serde_json::from_str(&server.get("/v1/info").body).expect("JSON");
    let devices: SocketAddr = info["udp"].as_str().expect("a port").parse().expect("an address");
    let rtc = rtc_port(&server);
    let mut reader = server.open("/v1/channels/honest", "text/event-stream");
    reader.wait_for("id: ");

    let (began_cpu, began) = (cpu(server.process.id()), Instant::now());
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(devices, rtc));
        let mut count = 0;
        while !flood.is_finished() || count < MESSAGES {
            let published = Instant::now();
            assert_eq!(server.post("/v1/channels/honest", &count.to_string()).status, 200);
            reader.wait_for(&format!("data: {count}"));
            assert!(published.elapsed() < LATE, "message {count} took {:?}", published.elapsed());
            count += 1;
        }
        flood.join().expect("it is sent");
    });
    let (cpu, wall) = (cpu(server.process.id()) - began_cpu, began.elapsed());
    let counts = || {
        let metrics = server.get("/metrics").body;
        let metric = |name: &str| -> u32 {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
        };
        let received = metric("millrace_udp_received_total") + metric("millrace_rtc_received_total");
        (received, metric("millrace_udp_dropped_total") + metric("millrace_rtc_dropped_total"))
    };
    // The last datagrams are counted as received before they are handled.
    let (mut received, mut dropped) = counts();
    while dropped < received && began.elapsed() < wall + LATE {
        (received, dropped) = counts();
    }
    println!("{received} of {DATAGRAMS} datagrams received in {wall:?}, {dropped} dropped, {cpu:?} of CPU time");
    assert!(received > 1000 && dropped == received, "{dropped} of {received} dropped");
    assert!(cpu <= CPU_PER_DATAGRAM_MAX * received, "{cpu:?} for {received}");
    server.process.signal(Signal::TERM);
    let ended = server.process.finish();
    assert!(!ended.err.contains("WARN") && !ended.err.contains("ERROR"), "{}", ended.err);
    assert!(ended.err.lines().count() < 20, "{}", ended.err);
}

/// Sends noise, STUN requests with no or an unknown user name, and the fuzzers' datagrams to both ports.
fn flood(devices: SocketAddr, rtc: SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let stun = [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..], &[7; 12]].concat();
    let named = [&[0, 1, 0, 12, 0x21, 0x12, 0xa4, 0x42][..], &[7; 12], &[0, 6, 0, 8], b"ours:the"].concat();
    let handshake = [&[22, 254, 253][..], &[1; 200]].concat();
    let known = fs::read(repository("fuzz/fuzz_targets/offers/data.sdp")).expect("an offer");
    let kinds = [stun, named, handshake, vec![0x80; 900], vec![0xff; 1400], known, vec![], b"{\"channel\":".to_vec()];
    for n in 0..DATAGRAMS {
        let to = if n % 2 == 0 { rtc } else { devices };
        let _ = socket.send_to(&kinds[n / 2 % kinds.len()], to);
    }
}

/// Returns the CPU time that a process has used.
///
/// Source: proc(5), `/proc/pid/stat`, in ticks of 10 ms.
fn cpu(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().filter_map(|at| fields[*at].parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}
