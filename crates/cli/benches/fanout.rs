//! Fan-out on one core: N WebSocket subscribers of one channel, one publisher. Prints what one delivery costs the server.
//!
//! The server is the real binary, pinned to CPU 0 with one shard; the generator runs on CPU 1. Open loop: message k is due at k x interval,
//! and latency counts from then. Run it with `make bench`, or `cargo bench -p millrace-cli --bench fanout -- --help`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Parser;
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    net::RecvFlags,
    thread::{CpuSet, sched_setaffinity},
};

#[derive(Parser)]
struct Args {
    /// Subscribers
    #[arg(long, default_value_t = 1000)]
    subscribers: usize,
    /// Bytes of a message
    #[arg(long, default_value_t = 173)]
    bytes: usize,
    /// Microseconds between two messages
    #[arg(long, default_value_t = 5000)]
    interval_us: u64,
    /// Messages of one run
    #[arg(long, default_value_t = 1000)]
    messages: u64,
    /// Runs, of which the median is reported
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

struct Run {
    delivered: u64,
    cpu_us: f64,
    p50_ms: f64,
    p99_ms: f64,
    rss_idle_kb: u64,
    rss_kb: u64,
    late_ms: f64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(args.bytes >= 32, "a message holds its number and time: at least 32 bytes");
    pin(1)?;
    let mut runs = Vec::new();
    for i in 0..args.runs {
        let run = measure(&args)?;
        println!(
            "run {}: {} delivered, {:.3} us CPU per delivery, p50 {:.2} ms, p99 {:.2} ms, RSS {} -> {} kB, generator late by {:.2} ms at most",
            i + 1,
            run.delivered,
            run.cpu_us,
            run.p50_ms,
            run.p99_ms,
            run.rss_idle_kb,
            run.rss_kb,
            run.late_ms,
        );
        runs.push(run);
    }
    let median = |pick: fn(&Run) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(pick).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!(
        "median of {}: {:.3} us CPU per delivery, p50 {:.2} ms, p99 {:.2} ms, RSS {} kB ({} subscribers, {} bytes, every {} us)",
        runs.len(),
        median(|r| r.cpu_us),
        median(|r| r.p50_ms),
        median(|r| r.p99_ms),
        median(|r| r.rss_kb as f64),
        args.subscribers,
        args.bytes,
        args.interval_us,
    );
    Ok(())
}

fn measure(args: &Args) -> anyhow::Result<Run> {
    let server = Server::start()?;
    let mut publisher = connect(server.address, "/v1/channels/bench?subscribe=no")?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut readers = Vec::with_capacity(args.subscribers);
    for i in 0..args.subscribers {
        let stream = connect(server.address, "/v1/channels/bench")?;
        stream.set_nonblocking(true)?;
        epoll::add(&epoll, &stream, EventData::new_u64(i as u64), EventFlags::IN)?;
        readers.push(Reader { stream, partial: Vec::new(), next: 0 });
    }
    let rss_idle_kb = server.rss_kb()?;
    let cpu_before = server.cpu_ns()?;
    let started = Instant::now();
    let mut latencies_us: Vec<u32> = Vec::with_capacity(args.subscribers * args.messages as usize);
    let (mut sent, mut late) = (0, Duration::ZERO);
    let mut scratch = vec![0; 256 * 1024];
    let mut events = Vec::with_capacity(1024);
    let wanted = args.subscribers as u64 * args.messages;
    let due = |k: u64| Duration::from_micros(k * args.interval_us);
    let deadline = due(args.messages) + Duration::from_secs(10);
    while (latencies_us.len() as u64) < wanted && started.elapsed() < deadline {
        while sent < args.messages && started.elapsed() >= due(sent) {
            late = late.max(started.elapsed() - due(sent));
            let mut payload = format!("{{\"n\":{sent},\"pad\":\"").into_bytes();
            payload.resize(args.bytes - 2, b'x');
            payload.extend_from_slice(b"\"}");
            publisher.write_all(&masked(&payload))?;
            sent += 1;
        }
        events.clear();
        let wait =
            if sent < args.messages { due(sent).saturating_sub(started.elapsed()) } else { Duration::from_millis(10) };
        let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos() as _ };
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait))?;
        for event in &events {
            readers[event.data.u64() as usize].read(&mut scratch, |n| {
                let age = started.elapsed().saturating_sub(due(n));
                latencies_us.push(age.as_micros() as u32);
            })?;
        }
    }
    let cpu_ns = server.cpu_ns()? - cpu_before;
    let delivered = latencies_us.len() as u64;
    ensure!(delivered == wanted, "{delivered} of {wanted} delivered");
    latencies_us.sort_unstable();
    let quantile = |q: f64| f64::from(latencies_us[((latencies_us.len() - 1) as f64 * q) as usize]) / 1000.0;
    Ok(Run {
        delivered,
        cpu_us: cpu_ns as f64 / 1000.0 / delivered as f64,
        p50_ms: quantile(0.5),
        p99_ms: quantile(0.99),
        rss_idle_kb,
        rss_kb: server.rss_kb()?,
        late_ms: late.as_secs_f64() * 1000.0,
    })
}

struct Reader {
    stream: TcpStream,
    partial: Vec<u8>,
    next: u64,
}

impl Reader {
    /// Reads what is there and checks that messages come in order, each once.
    fn read(&mut self, scratch: &mut [u8], mut on: impl FnMut(u64)) -> anyhow::Result<()> {
        let length = match rustix::net::recv(self.stream.as_fd(), &mut *scratch, RecvFlags::DONTWAIT) {
            Ok((_, length)) => length,
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        ensure!(length > 0, "the server has closed a subscriber");
        self.partial.extend_from_slice(&scratch[..length]);
        let mut at = 0;
        while let Some((payload, end)) = frame(&self.partial, at) {
            let text = std::str::from_utf8(&self.partial[payload..end])?;
            let digits = text.trim_start_matches("{\"n\":");
            let n: u64 = digits[..digits.find(',').context("not a message of ours")?].parse()?;
            ensure!(n == self.next, "message {n} where {} was expected", self.next);
            self.next += 1;
            on(n);
            at = end;
        }
        self.partial.drain(..at);
        Ok(())
    }
}

/// Where the payload of the frame at `at` begins and ends, if it is whole. The server masks nothing and splits nothing.
fn frame(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let head = bytes.get(at..at + 2)?;
    let (start, length) = match head[1] {
        126 => (at + 4, u16::from_be_bytes(bytes.get(at + 2..at + 4)?.try_into().ok()?) as usize),
        127 => (at + 10, u64::from_be_bytes(bytes.get(at + 2..at + 10)?.try_into().ok()?) as usize),
        length => (at + 2, length as usize),
    };
    (bytes.len() >= start + length).then_some((start, start + length))
}

/// A text frame as a client sends it, with a mask of zeros.
fn masked(payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x81, 0x80 | 126];
    out.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
    out
}

fn connect(address: SocketAddr, path: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    ensure!(head.starts_with(b"HTTP/1.1 101"), "no WebSocket: {}", String::from_utf8_lossy(&head));
    Ok(stream)
}

struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start() -> anyhow::Result<Self> {
        pin(0)?;
        let started = Command::new(env!("CARGO_BIN_EXE_millrace"))
            .args(["serve", "--listen", "127.0.0.1:0", "--shards", "1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        pin(1)?;
        let mut process = started?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("no output")?).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on http://").context("the server did not start")?.parse()?;
        Ok(Self { process, address })
    }

    /// CPU time of all its threads, in nanoseconds.
    fn cpu_ns(&self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let stat = std::fs::read_to_string(task?.path().join("schedstat"))?;
            sum += stat.split(' ').next().context("no schedstat")?.parse::<u64>()?;
        }
        Ok(sum)
    }

    fn rss_kb(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs this thread, and what it starts, on one CPU. Errors: there is no such CPU.
fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
