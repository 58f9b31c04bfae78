//! A session that pings during the load, to measure the latency of control traffic.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use millrace_lab::{
    histogram::Histogram,
    load::websocket::{RawFrame, TEXT, connect, frame_into},
};

/// Subprotocol of sessions (docs/reference/protocol.md, "Session").
pub const SESSION: &str = "millrace.v1+json";
const EVERY: Duration = Duration::from_millis(10);

/// Sends pings until it is stopped.
pub struct Probe {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Histogram>>,
}

impl Probe {
    pub fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        Self { stop, thread: std::thread::spawn(move || ping(address, &stopped)) }
    }

    /// Stops the probe and returns its round-trip times.
    pub fn finish(self) -> anyhow::Result<Histogram> {
        self.stop.store(true, Relaxed);
        self.thread.join().ok().context("the probe has panicked")?
    }
}

fn ping(address: SocketAddr, stop: &AtomicBool) -> anyhow::Result<Histogram> {
    // Run before the generator on their common CPU, where permitted. Otherwise the probe's own wait would count as the
    // server's.
    let _ = rustix::process::nice(-15);
    let mut stream = connect(address, "/v1/connect", Some(SESSION))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut seen = Histogram::default();
    let (mut bytes, mut buffer, mut command) = (Vec::new(), [0; 4096], Vec::new());
    let mut due = Instant::now();
    for id in 1u64.. {
        if stop.load(Relaxed) {
            break;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        command.clear();
        frame_into(TEXT, format!("{{\"id\":{id},\"ping\":{{}}}}").as_bytes(), &mut command);
        let sent = Instant::now();
        stream.write_all(&command)?;
        let reply = format!("{{\"id\":{id},");
        'reply: loop {
            let length = stream.read(&mut buffer).context("a ping was not answered within 20 s")?;
            ensure!(length > 0, "the server has closed the probe");
            bytes.extend_from_slice(&buffer[..length]);
            let mut at = 0;
            while let Some(frame) = RawFrame::read(&bytes, at)? {
                at = frame.end;
                if bytes[frame.start..frame.end].starts_with(reply.as_bytes()) {
                    bytes.drain(..at);
                    break 'reply;
                }
            }
            bytes.drain(..at);
        }
        seen.record_us(sent.elapsed().as_micros() as u64);
        due = (due + EVERY).max(Instant::now());
    }
    Ok(seen)
}
