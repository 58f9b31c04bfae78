//! Cost of webhooks with a trivial back end on this machine: CPU time of the server per event, and events per second.
//! docs/explanation/performance.md has the figures of one machine.
//!
//! The server is pinned to CPU 0; the back end runs on CPU 1. Each run first publishes all events into the history of a
//! few channels while the back end holds its first answer. Then the back end answers each request at once, and the run
//! measures how long the server takes to send the backlog. So only the webhooks are measured, not the publications.

#[path = "common/http_message.rs"]
mod http_message;
#[path = "common/server.rs"]
mod server;

use std::{
    io::{BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use clap::Parser;
use http_message::read_message;
use millrace_lab::{host::scheduling::pin, targets::Server};

const PAYLOAD: &str = r#"{"text":"a message of an ordinary length, as people write them in a chat, more or less"}"#;
/// Longest wait for all events of a run.
const PATIENCE: Duration = Duration::from_secs(120);
/// Lines of one request.
const LINES: usize = 1000;
const EVENT: &[u8] = b"\"type\":\"publication\"";

#[derive(Parser)]
struct Args {
    /// Events of each run
    #[arg(long, default_value_t = 100_000)]
    events: usize,
    /// Channels that the events are spread over
    #[arg(long, default_value_t = 10)]
    channels: usize,
    /// Maximum number of events of a request
    #[arg(long, default_value_t = 1000)]
    batch_max: usize,
    /// Number of runs
    #[arg(long, default_value_t = 5)]
    passes: usize,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// A back end that counts events. It answers once its gate is open.
#[derive(Default)]
struct BackEnd {
    is_open: Mutex<bool>,
    opened: Condvar,
    events: AtomicU64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    pin(&[1])?;
    println!("events/s   CPU us each   events/s and core");
    let mut all: Vec<(f64, f64)> = Vec::new();
    for _ in 0..args.passes {
        let (per_s, cpu_us) = run(&args)?;
        println!("{per_s:>8.0} {cpu_us:>13.2} {:>19.0}", 1e6 / cpu_us);
        all.push((per_s, cpu_us));
    }
    let median = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = all.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    let cpu_us = median(|run| run.1);
    println!(
        "The server sends {:.0} events per second and core; an event takes {cpu_us:.2} us of CPU (medians of {} runs).",
        1e6 / cpu_us,
        args.passes
    );
    Ok(())
}

/// Returns events per second, and the CPU time of the server per event in microseconds.
fn run(args: &Args) -> anyhow::Result<(f64, f64)> {
    let back_end = Arc::new(BackEnd::default());
    let settings = [
        format!("webhooks.url=http://{}/", listen(&back_end)?),
        "webhooks.secrets=a secret of 32 bytes for the test".into(),
        "webhooks.events=publication".into(),
        "webhooks.timeout=2m".into(),
        format!("webhooks.batch_max={}", args.batch_max),
        "history.count_max=10000000".into(),
        "history.bytes_max=1000000000".into(),
    ];
    let flags: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting.as_str()]).collect();
    let server = server::start(1, &[0], &flags)?;
    let count = publish(&server, args)?;
    let (before, started) = (server.scheduling_time()?.cpu_ns, Instant::now());
    *back_end.is_open.lock().expect("no panic") = true;
    back_end.opened.notify_all();
    while back_end.events.load(SeqCst) < count {
        let (got, waited) = (back_end.events.load(SeqCst), started.elapsed());
        ensure!(waited < PATIENCE, "{got} of {count} events after {waited:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    let (spent, used_ns) = (started.elapsed(), server.scheduling_time()?.cpu_ns - before);
    Ok((count as f64 / spent.as_secs_f64(), used_ns as f64 / 1e3 / count as f64))
}

/// Publishes all events. Returns their number.
fn publish(server: &Server, args: &Args) -> anyhow::Result<u64> {
    let mut stream = TcpStream::connect(server.address)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut count = 0;
    while count < args.events {
        let line = |n: usize| format!("{{\"channel\":\"bench/{}\",\"data\":{PAYLOAD}}}\n", n % args.channels);
        let lines: String = (count..(count + LINES).min(args.events)).map(line).collect();
        let length = lines.len();
        let head = format!("POST /v1/publish HTTP/1.1\r\nHost: bench\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + &lines).as_bytes())?;
        let Some((status, _)) = read_message(&mut reader)? else {
            anyhow::bail!("the server has closed the connection")
        };
        ensure!(status.starts_with("HTTP/1.1 200"), "{status}");
        count += LINES;
    }
    Ok(args.events as u64)
}

/// Starts a back end with a thread per connection.
fn listen(back_end: &Arc<BackEnd>) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let back_end = back_end.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let back_end = back_end.clone();
            std::thread::spawn(move || answer(stream, &back_end));
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream, back_end: &BackEnd) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some((_, body)) = read_message(&mut reader)? {
        let open = back_end.is_open.lock().expect("no panic");
        drop(back_end.opened.wait_while(open, |is_open| !*is_open).expect("no panic"));
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
        let events = body.windows(EVENT.len()).filter(|window| *window == EVENT).count();
        back_end.events.fetch_add(events as u64, SeqCst);
    }
    Ok(())
}
