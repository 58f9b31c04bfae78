//! Cost of trace contexts and of spans on this machine: CPU time of the server per publication and per delivery.
//! docs/explanation/performance.md has the figures of one machine.
//!
//! The server is pinned to CPU 0. Publishers, readers and the collector share CPU 1: the collector is a thread that
//! answers 200 without decoding the spans. Runs alternate between publications without a trace context, with one, and
//! with one whose spans the server sends to the collector. The last needs the Cargo feature `otlp`.

#[path = "common/publishers.rs"]
mod publishers;
#[path = "common/server.rs"]
mod server;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use clap::Parser;
use millrace_lab::host::scheduling::pin;
use publishers::{back_end, publish};

const CONTEXT: &str = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";

#[derive(Parser)]
struct Args {
    /// Publishers at full speed, without readers
    #[arg(long, default_value_t = 16)]
    publishers: usize,
    /// Readers of one channel (NDJSON)
    #[arg(long, default_value_t = 50)]
    readers: usize,
    /// Publications per second while there are readers
    #[arg(long, default_value_t = 500)]
    rate: u64,
    /// Seconds of each run
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Repetitions of all runs
    #[arg(long, default_value_t = 5)]
    passes: usize,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// CPU time of the server.
#[derive(Clone, Copy)]
struct Figures {
    publication_us: f64,
    with_readers_us: f64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    pin(&[1])?;
    let endpoint = format!("traces.endpoint=http://{}/v1/traces", back_end("")?);
    let spans = ["--set", &endpoint];
    let mut cases = vec![("no context", "", &[][..]), ("context", CONTEXT, &[][..])];
    if cfg!(feature = "otlp") {
        cases.push(("context and spans", CONTEXT, &spans[..]));
    } else {
        println!("skipped: spans need --features otlp");
    }
    let mut all = vec![Vec::new(); cases.len()];
    println!("case                CPU us per publication   CPU us per publication to {} readers", args.readers);
    for _ in 0..args.passes {
        for ((name, headers, settings), all) in cases.iter().zip(&mut all) {
            let figures = run(headers, settings, &args)?;
            println!("{name:<18} {:>23.2} {:>35.2}", figures.publication_us, figures.with_readers_us);
            all.push(figures);
        }
    }
    println!("Medians of {} runs:", args.passes);
    for ((name, ..), all) in cases.iter().zip(&all) {
        let of = |value: fn(&Figures) -> f64| median(all, value);
        println!("{name:<18} {:>23.2} {:>35.2}", of(|run| run.publication_us), of(|run| run.with_readers_us));
    }
    Ok(())
}

fn median(all: &[Figures], of: fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn run(headers: &'static str, settings: &[&str], args: &Args) -> anyhow::Result<Figures> {
    let server = server::start(1, &[0], settings)?;
    let time = Duration::from_secs_f64(args.seconds);
    let measure = |publishers: usize, rate: u64| -> anyhow::Result<f64> {
        let before = server.scheduling_time()?.cpu_ns;
        let count = publish(server.address, headers, publishers, rate, time)?.len() as f64;
        Ok((server.scheduling_time()?.cpu_ns - before) as f64 / 1e3 / count)
    };
    publish(server.address, headers, 1, 100, Duration::from_millis(500))?;
    let publication_us = measure(args.publishers, u64::MAX)?;
    let received = Arc::new(AtomicU64::new(0));
    for _ in 0..args.readers {
        let (stream, received) = (subscribe(server.address)?, received.clone());
        std::thread::spawn(move || read(stream, &received));
    }
    let with_readers_us = measure(1, args.rate)?;
    anyhow::ensure!(received.load(Relaxed) > 0, "the readers received nothing");
    Ok(Figures { publication_us, with_readers_us })
}

/// Opens an NDJSON stream of the first publisher's channel. Returns when the server has answered.
fn subscribe(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /v1/channels/bench/0 HTTP/1.1\r\nHost: bench\r\nAccept: application/x-ndjson\r\n\r\n")?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    anyhow::ensure!(head == *b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&head));
    Ok(stream)
}

/// Counts received bytes until the server ends.
fn read(mut stream: TcpStream, received: &AtomicU64) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        received.fetch_add(count as u64, Relaxed);
    }
}
