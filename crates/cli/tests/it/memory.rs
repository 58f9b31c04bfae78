//! Tests a server with a low memory limit against clients that try to exhaust its memory.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::support::Server;

const BOUND_BYTES: usize = 64 << 20;
const FLOOD: Duration = Duration::from_secs(6);

/// Returns the anonymous resident memory in bytes.
///
/// Source: proc(5), `/proc/pid/status`.
fn used(pid: u32) -> usize {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let kib = text.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")).expect("a line");
    kib.parse::<usize>().expect("a number") * 1024
}

/// Publishes to new channels as fast as the server responds, on one connection after the other.
fn flood(address: &str, id: usize, end: &AtomicBool, refused: &AtomicUsize) {
    let body = "x".repeat(20_000);
    let mut i = 0;
    while !end.load(Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        for _ in 0..1000 {
            i += 1;
            let head =
                format!("POST /v1/channels/random/{id}/{i} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n", body.len());
            let mut answer = [0; 1024];
            if stream.write_all(format!("{head}\r\n{body}").as_bytes()).is_err() {
                break;
            }
            match stream.read(&mut answer) {
                Ok(n @ 1..) if !answer[..n].starts_with(b"HTTP/1.1 200") => refused.fetch_add(1, Relaxed),
                Ok(1..) => 0,
                _ => break,
            };
            if end.load(Relaxed) {
                return;
            }
        }
    }
}

/// Sends most of a request body on one connection after another, and keeps the connections open.
fn hoard(address: &str, end: &AtomicBool) {
    let part =
        [b"POST /v1/channels/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".as_slice(), &[b'x'; 900_000]];
    let mut held = Vec::new();
    while !end.load(Relaxed) {
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.set_write_timeout(Some(Duration::from_millis(200)));
            let _ = stream.write_all(&part.concat());
            held.push(stream);
        }
        if held.len() > 500 {
            held.clear();
        }
    }
}

struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn flood_keeps_memory_within_its_limit() {
    let bound = format!("limits.memory_bytes_max={BOUND_BYTES}");
    let server = Server::start(&["--shards", "2", "--set", &bound]);
    let pid = server.process.id();
    let mut reader = server.open("/v1/channels/honest", "text/event-stream");
    reader.wait_for("id: ");
    let (end, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut most, mut heard) = (0, 0);
    std::thread::scope(|scope| {
        // Stops the other threads also after a failure; otherwise they would run forever.
        let _end = EndOnDrop(&end);
        for id in 0..4 {
            let (address, end, refused) = (&server.address, &end, &refused);
            scope.spawn(move || flood(address, id, end, refused));
        }
        scope.spawn(|| hoard(&server.address, &end));
        let began = Instant::now();
        while began.elapsed() < FLOOD {
            // An honest publisher that retries when the server asks for it, and a reader that stays connected.
            let body = format!("\"{heard}\"");
            if server.try_post("/v1/channels/honest", &body).is_some_and(|status| status == 200) {
                reader.wait_for(&format!("data: {body}"));
                heard += 1;
            }
            most = most.max(used(pid));
        }
    });
    let metrics = server.get_until("/metrics", |answer| answer.status == 200).body;
    let line = |name: &str| metrics.lines().filter(|line| line.starts_with(name)).collect::<Vec<_>>().join("; ");
    eprintln!(
        "at most {} MiB; {heard} heard; {} refused; {}",
        most >> 20,
        refused.load(Relaxed),
        line("millrace_refused_total{limit=\"p") + &line("millrace_engine_channels ")
    );
    assert!(most <= BOUND_BYTES, "{} MiB", most >> 20);
    assert!(heard >= 10, "the honest were heard {heard} times");
    assert!(
        refused.load(Relaxed) > 0 || !line("millrace_refused_total{limit=\"pending_bytes_max\"}").is_empty(),
        "{metrics}"
    );
    server.get_until("/healthz", |answer| answer.status == 200);
}
