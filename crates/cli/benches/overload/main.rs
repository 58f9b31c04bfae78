//! Behavior of Millrace under overload: load beyond capacity, a stall of all readers, readers that never read, the two
//! scenarios of Thorsen's thesis on every transport, and the scaling with more shards.
//!
//! `cargo bench -p millrace-cli --bench overload` runs all scenarios; `-- --seconds 60` is the full form,
//! `-- --scenarios levels,stall` runs a part.
//!
//! The server is pinned to CPU 0, this generator to CPU 1. `shards` and `scaling` give both a part of both CPUs
//! (`capped.rs`), which requires root and control groups. The age of a message is the time from its due time until its
//! reader has read it. The generator checks order and completeness per reader and ends with an error at the first
//! silent loss.
//!
//! The generator prints CPU shares, the share of time spent waiting for a CPU that others used, and its own lateness.
//! It marks a row `generator-bound` when the generator, not the server, was the limit.

mod capped;
mod crowd;
mod dead_weight;
mod figures;
mod levels;
mod probe;
mod quota;
mod reader;
mod scaling;
#[path = "../common/server.rs"]
mod server;
mod shards;
mod stall;
mod thorsen;
mod upstream;

use std::net::TcpStream;

use anyhow::Context;
use clap::Parser;
use millrace_lab::{
    host::scheduling::pin,
    load::{
        http::{exchange, post},
        payload::Stamp,
    },
    targets::Server,
};

use reader::{Transport, Wish};
use upstream::Upstream;

/// Bytes of a message, as in the theses' ticker.
const BYTES: usize = 173;
const CHANNEL: &str = "bench";
/// Number of publications before a run, so that the history is full and does not count as growth.
const PAST: u64 = 10_000;

#[derive(Parser)]
struct Args {
    /// Scenarios to run; all if none is given
    #[arg(long, value_delimiter = ',')]
    scenarios: Vec<Scenario>,
    /// Transports of `levels`, `stall` and `thorsen`; each scenario uses all that it supports if none is given
    #[arg(long, value_delimiter = ',', value_parser = reader::transport())]
    transports: Vec<Transport>,
    /// Seconds of each run
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Readers of `levels` and `stall`
    #[arg(long, default_value_t = 100)]
    readers: usize,
    /// Clients of `thorsen`
    #[arg(long, default_value_t = 500)]
    clients: usize,
    /// Passes of `dead-weight`, `shards` and `scaling`; medians are reported
    #[arg(long, default_value_t = 5)]
    passes: usize,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Scenario {
    /// 50 %, 120 % and 200 % of the capacity
    Levels,
    /// All readers stop reading for 300 ms
    Stall,
    /// 100 readers that never read among 1,000 that do
    DeadWeight,
    /// A ticker and a chat on every transport
    Thorsen,
    /// One shard and two, each with a part of a CPU
    Shards,
    /// One to six shards, and larger and smaller parts of a CPU
    Scaling,
}

impl Args {
    fn transports(&self, all: &[Transport]) -> Vec<Transport> {
        all.iter().copied().filter(|one| self.transports.is_empty() || self.transports.contains(one)).collect()
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    pin(&[1])?;
    let wanted = |scenario| args.scenarios.is_empty() || args.scenarios.contains(&scenario);
    if wanted(Scenario::Levels) {
        levels::run(&args)?;
    }
    if wanted(Scenario::Stall) {
        stall::run(&args)?;
    }
    if wanted(Scenario::DeadWeight) {
        dead_weight::run(&args)?;
    }
    if wanted(Scenario::Thorsen) {
        thorsen::run(&args)?;
    }
    if wanted(Scenario::Shards) {
        shards::run(&args)?;
    }
    if wanted(Scenario::Scaling) {
        scaling::run(&args)?;
    }
    Ok(())
}

fn start(shards: usize, cpus: &[usize]) -> anyhow::Result<Server> {
    server::start(shards, cpus, &[])
}

/// Fills the channel's history and returns the wish of a reader that reads everything after it.
fn prime(server: &Server, transport: Transport) -> anyhow::Result<Wish> {
    let mut since = String::new();
    for first in (0..PAST).step_by(1000) {
        let mut lines = Vec::new();
        for n in first..first + 1000 {
            lines.extend_from_slice(
                format!(r#"{{"channel":"{CHANNEL}","key":"k{}","data":"#, n % levels::KEYS).as_bytes(),
            );
            lines.extend_from_slice(&payload(n, 0, BYTES));
            lines.extend_from_slice(b"}\n");
        }
        let mut request = Vec::new();
        post("/v1/publish", "Content-Type: application/x-ndjson\r\n", &lines, &mut request);
        let mut stream = TcpStream::connect(server.address)?;
        let answer = exchange(&mut stream, &request, |answer| Ok(String::from_utf8(answer.body.to_vec())?))?;
        let last = answer.rsplit('"').nth(1).context("no result")?;
        anyhow::ensure!(reader::offset(last)? == first + 1000, "a publication was refused: {last}");
        since = last.to_owned();
    }
    let channel = CHANNEL.to_owned();
    Ok(Wish { transport, channel, latest: false, since, first: PAST, sources: 1, bytes: BYTES })
}

/// Returns message `n`, which is due at `at_us`, in the form of the lab.
fn payload(n: u64, at_us: u64, bytes: usize) -> Vec<u8> {
    let mut payload = Vec::with_capacity(bytes);
    Stamp { stream: 0, sequence: n, due_ns: at_us * 1000 }.write(bytes, &mut payload);
    payload
}

/// Returns a publisher: a bare WebSocket, or a session that publishes with keys.
fn publisher(server: &Server, latest: bool) -> anyhow::Result<Upstream> {
    match latest {
        true => Upstream::session(server.address, CHANNEL, levels::KEYS),
        false => Upstream::bare(server.address, CHANNEL),
    }
}

/// Returns the median of an odd number of values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
