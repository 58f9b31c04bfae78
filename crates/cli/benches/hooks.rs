//! Cost of the hook `publish` with a trivial back end on this machine: CPU time of the server per publication, and the
//! time that a publication takes longer. docs/explanation/performance.md has the figures of one machine.
//!
//! The server is pinned to CPU 0. The publishers and the back end share CPU 1: the back end is a thread that answers
//! `{"allow":true}` without looking at the question. Publishers send one `POST` after the other, at a fixed rate in
//! total (latency) or as fast as they can (CPU). Runs without and with the hook alternate.

#[path = "common/server.rs"]
mod server;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Parser;
use millrace_lab::{host::scheduling::pin, targets::Server};

const PAYLOAD: &str = r#"{"text":"a message of an ordinary length, as people write them in a chat, more or less"}"#;
const SECRET: &str = "hooks.secrets=a secret of 32 bytes for the test";

#[derive(Parser)]
struct Args {
    /// Publishers at full speed
    #[arg(long, default_value_t = 16)]
    publishers: usize,
    /// Publications per second for the latency
    #[arg(long, default_value_t = 500)]
    rate: u64,
    /// Seconds of each run
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Pairs of runs
    #[arg(long, default_value_t = 5)]
    passes: usize,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Figures of one run.
#[derive(Clone, Copy, Default)]
struct Figures {
    cpu_us: f64,
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    pin(&[1])?;
    let back_end = back_end()?;
    let url = format!("hooks.publish=http://{back_end}/");
    println!("hook     CPU us each   publications/s   p50 us   p99 us");
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..args.passes {
        for (name, settings, all) in
            [("off", &[][..], &mut without), ("on", &["--set", SECRET, "--set", &url][..], &mut with)]
        {
            let figures = run(settings, &args)?;
            let Figures { cpu_us, per_s, p50_us, p99_us } = figures;
            println!("{name:<8} {cpu_us:>11.1} {per_s:>16.0} {p50_us:>8.0} {p99_us:>8.0}");
            all.push(figures);
        }
    }
    let added = |of: fn(&Figures) -> f64| median(&with, of) - median(&without, of);
    println!(
        "A hook adds {:.1} us of CPU per publication, {:.0} us at p50 and {:.0} us at p99 (medians of {} runs).",
        added(|figures| figures.cpu_us),
        added(|figures| figures.p50_us),
        added(|figures| figures.p99_us),
        args.passes
    );
    Ok(())
}

fn median(all: &[Figures], of: fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn run(settings: &[&str], args: &Args) -> anyhow::Result<Figures> {
    let server = server::start(1, &[0], settings)?;
    let time = Duration::from_secs_f64(args.seconds);
    // The first publications open the connection to the back end.
    publish(&server, 1, 100, Duration::from_millis(500))?;
    let mut latencies = publish(&server, 1, args.rate, time)?;
    latencies.sort_unstable();
    let at = |part: f64| latencies.get((latencies.len() as f64 * part) as usize).map_or(0.0, |ns| *ns as f64 / 1e3);
    let (before, started) = (server.scheduling_time()?.cpu_ns, Instant::now());
    let count = publish(&server, args.publishers, u64::MAX, time)?.len() as f64;
    let used_ns = server.scheduling_time()?.cpu_ns - before;
    Ok(Figures {
        cpu_us: used_ns as f64 / 1e3 / count,
        per_s: count / started.elapsed().as_secs_f64(),
        p50_us: at(0.5),
        p99_us: at(0.99),
    })
}

/// Publishes from several connections for a time, each at most `rate` times per second. Returns the time that each
/// publication took, in nanoseconds.
fn publish(server: &Server, publishers: usize, rate: u64, time: Duration) -> anyhow::Result<Vec<u64>> {
    let address = server.address;
    let spawn = |n: usize| std::thread::spawn(move || publisher(address, n, rate, time));
    let threads: Vec<_> = (0..publishers).map(spawn).collect();
    let mut all = Vec::new();
    for thread in threads {
        all.extend(thread.join().map_err(|_| anyhow::anyhow!("a publisher has panicked"))??);
    }
    Ok(all)
}

fn publisher(address: SocketAddr, n: usize, rate: u64, time: Duration) -> anyhow::Result<Vec<u64>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let length = PAYLOAD.len();
    let head = format!("POST /v1/channels/bench/{n} HTTP/1.1\r\nHost: bench\r\nContent-Length: {length}\r\n\r\n");
    let request = head + PAYLOAD;
    let (started, mut latencies) = (Instant::now(), Vec::new());
    while started.elapsed() < time {
        if rate != u64::MAX {
            let due = started + Duration::from_nanos(latencies.len() as u64 * 1_000_000_000 / rate);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let sent = Instant::now();
        stream.write_all(request.as_bytes())?;
        let status = skip_message(&mut reader)?.context("the server has closed the connection")?;
        ensure!(status.starts_with("HTTP/1.1 200"), "{status}");
        latencies.push(sent.elapsed().as_nanos() as u64);
    }
    Ok(latencies)
}

/// Starts a back end that allows everything, in a thread per connection.
fn back_end() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while skip_message(&mut reader)?.is_some() {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"allow\":true}")?;
    }
    Ok(())
}

/// Reads a request or a response with its body. Returns its first line, or `None` at the end of the connection.
fn skip_message(reader: &mut BufReader<TcpStream>) -> anyhow::Result<Option<String>> {
    let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    loop {
        line.clear();
        ensure!(reader.read_line(&mut line)? > 0, "the connection ended in the middle of a head");
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.trim().parse()?,
            Some(_) => {}
            None => break,
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    Ok(Some(first))
}
