//! Publishers over HTTP/1.1 and a back end, both in threads.

#[path = "http_message.rs"]
mod http_message;

use std::{
    io::{BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use http_message::read_message;

const PAYLOAD: &str = r#"{"text":"a message of an ordinary length, as people write them in a chat, more or less"}"#;

/// Publishes from several connections for a time, each to its own channel `bench/N` and at most `rate` times per
/// second. `headers` are added to each request, and end with a line break. Returns the time that each publication took,
/// in nanoseconds.
pub fn publish(
    address: SocketAddr,
    headers: &'static str,
    publishers: usize,
    rate: u64,
    time: Duration,
) -> anyhow::Result<Vec<u64>> {
    let spawn = |n: usize| std::thread::spawn(move || publisher(address, headers, n, rate, time));
    let threads: Vec<_> = (0..publishers).map(spawn).collect();
    let mut all = Vec::new();
    for thread in threads {
        all.extend(thread.join().map_err(|_| anyhow::anyhow!("a publisher has panicked"))??);
    }
    Ok(all)
}

fn publisher(address: SocketAddr, headers: &str, n: usize, rate: u64, time: Duration) -> anyhow::Result<Vec<u64>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let length = PAYLOAD.len();
    let head =
        format!("POST /v1/channels/bench/{n} HTTP/1.1\r\nHost: bench\r\n{headers}Content-Length: {length}\r\n\r\n");
    let request = head + PAYLOAD;
    let (started, mut latencies) = (Instant::now(), Vec::new());
    while started.elapsed() < time {
        if rate != u64::MAX {
            let due = started + Duration::from_nanos(latencies.len() as u64 * 1_000_000_000 / rate);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let sent = Instant::now();
        stream.write_all(request.as_bytes())?;
        let (status, _) = read_message(&mut reader)?.context("the server has closed the connection")?;
        ensure!(status.starts_with("HTTP/1.1 200"), "{status}");
        latencies.push(sent.elapsed().as_nanos() as u64);
    }
    Ok(latencies)
}

/// Starts a back end that gives the same answer to every request, in a thread per connection.
pub fn back_end(body: &'static str) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream, body));
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream, body: &str) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while read_message(&mut reader)?.is_some() {
        let length = body.len();
        stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes())?;
    }
    Ok(())
}
