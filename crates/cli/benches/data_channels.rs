//! Cost of data channels on one core: joins, memory, and a delivery, with native peers on the other core. Figures of
//! different machines cannot be compared; docs/explanation/performance.md has the figures of one machine.
//!
//! The server is pinned to CPU 0. All peers run in one thread on CPU 1, each with its own socket. They are peers of the
//! lab.

#[path = "common/server.rs"]
mod server;

use std::{
    io::Write,
    net::TcpStream,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Parser;
use millrace_lab::{
    host::scheduling::pin,
    load::{
        payload::{Stamp, payloads},
        peers::{NativePeer, PeerGroup},
        websocket::{TEXT, connect, frame_into},
    },
    targets::Server,
};
use millrace_rtc::Lane;

/// Maximum time for all handshakes, and for late messages.
const PATIENCE: Duration = Duration::from_secs(30);
const PAYLOAD_BYTES: usize = 100;

#[derive(Parser)]
struct Args {
    /// Peers x publications per second, such as 100x600
    #[arg(long, value_delimiter = ',', default_value = "100x600,500x180")]
    loads: Vec<String>,
    /// Seconds of each load
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Policies: every, or latest on its lossy channel
    #[arg(long, value_delimiter = ',', default_value = "every,latest")]
    policies: Vec<String>,
    /// Percentage of the datagrams to the peers that is lost
    #[arg(long, default_value_t = 0)]
    loss: u32,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    println!(
        "peers x msg/s  policy  join: SDP, all  open p50/max   PSS     deliveries/s  us each  came     p50/p99 ms"
    );
    for load in &args.loads {
        let (peers, rate) = load.split_once('x').context("a load is PEERSxRATE, such as 100x600")?;
        for policy in &args.policies {
            run(peers.parse()?, rate.parse()?, policy, &args)?;
        }
    }
    Ok(())
}

fn run(peers: usize, rate: u64, policy: &str, args: &Args) -> anyhow::Result<()> {
    pin(&[1])?;
    let server = server::start(1, &[0], &["--set", "limits.connects_per_s=0"])?;
    let cpu_ns = || anyhow::Ok(server.scheduling_time()?.cpu_ns);
    let idle_bytes = server.pss_bytes()?;

    let before = cpu_ns()?;
    let joined = join(&server, peers)?;
    let sdp_ns = cpu_ns()? - before;
    let mut readers = Readers::new(args.loss)?;
    let opened_ms = readers.open(joined)?;
    let join_ns = cpu_ns()? - before;
    let peer_kb = server.pss_bytes()?.saturating_sub(idle_bytes) as f64 / 1024.0 / peers as f64;

    let command = format!("{{\"id\":1,\"subscribe\":{{\"channel\":\"bench\",\"policy\":\"{policy}\"}}}}\n");
    (0..peers).try_for_each(|peer| readers.group.write(peer, command.as_bytes()))?;
    readers.serve(Instant::now() + Duration::from_millis(500), |_| false)?;
    let mut publisher = connect(server.address, "/v1/channels/bench?subscribe=no", None)?;
    readers.delays_us.clear();
    let (before, start) = (cpu_ns()?, Instant::now());
    let count = (rate as f64 * args.seconds) as u64;
    let (mut payload, mut frame) = (Vec::new(), Vec::new());
    for n in 0..count {
        let at = start + Duration::from_nanos(n * 1_000_000_000 / rate);
        readers.serve(at, |_| false)?;
        payload.clear();
        frame.clear();
        let due_ns = readers.began.elapsed().as_nanos() as u64;
        Stamp { stream: 0, sequence: n, due_ns }.write(PAYLOAD_BYTES, &mut payload);
        frame_into(TEXT, &payload, &mut frame);
        publisher.write_all(&frame)?;
    }
    let sending = start.elapsed();
    let expected = count as usize * peers;
    let late = if policy == "every" { PATIENCE } else { Duration::from_millis(500) };
    readers.serve(Instant::now() + late, |readers| readers.delays_us.len() >= expected)?;
    let used_ns = cpu_ns()? - before;
    let came = readers.delays_us.len();
    readers.delays_us.sort_unstable();
    let at = |part: f64| readers.delays_us.get((came as f64 * part) as usize).map_or(0.0, |us| *us as f64 / 1000.0);
    println!(
        "{:>13}  {policy:<6}  {:.3}, {:.3} ms   {:>3.0} / {:>3.0} ms  {:>3.0} kB  {:>10.0}    {:>5.2}  {:>6.2} %  {:.1} / {:.1} (max {:.0})",
        format!("{peers} x {rate}"),
        sdp_ns as f64 / 1e6 / peers as f64,
        join_ns as f64 / 1e6 / peers as f64,
        opened_ms[peers / 2],
        opened_ms[peers - 1],
        peer_kb,
        came as f64 / sending.as_secs_f64(),
        used_ns as f64 / 1000.0 / came.max(1) as f64,
        100.0 * came as f64 / expected as f64,
        at(0.5),
        at(0.99),
        at(0.999_999),
    );
    Ok(())
}

/// Exchanges the offers and answers of all peers, one after the other. Sends nothing over UDP yet.
fn join(server: &Server, peers: usize) -> anyhow::Result<Vec<NativePeer>> {
    let mut http = TcpStream::connect(server.address)?;
    http.set_nodelay(true)?;
    (0..peers).map(|_| NativePeer::join_over(&mut http, "/v1/connect")).collect()
}

/// Peers that read the channel, and the delays of the messages that they received.
struct Readers {
    group: PeerGroup,
    began: Instant,
    /// Incomplete line of each peer.
    partial: Vec<Vec<u8>>,
    delays_us: Vec<u64>,
}

impl Readers {
    fn new(loss_percent: u32) -> anyhow::Result<Self> {
        let (partial, delays_us) = Default::default();
        Ok(Self { group: PeerGroup::with_loss(loss_percent)?, began: Instant::now(), partial, delays_us })
    }

    /// Opens all peers at once. Returns the time until each peer was open in milliseconds, in increasing order.
    fn open(&mut self, joined: Vec<NativePeer>) -> anyhow::Result<Vec<f64>> {
        let (start, all) = (Instant::now(), joined.len());
        self.partial.resize(all, Vec::new());
        joined.into_iter().try_for_each(|peer| self.group.add(peer))?;
        let mut opened = Vec::with_capacity(all);
        while opened.len() < all {
            let before = self.count_open();
            self.serve(Instant::now() + Duration::from_millis(20), |readers| readers.count_open() > before)?;
            let open = self.count_open();
            opened.resize(open, start.elapsed().as_secs_f64() * 1000.0);
            ensure!(start.elapsed() < PATIENCE, "{open} of {all} have opened");
        }
        Ok(opened)
    }

    fn count_open(&self) -> usize {
        self.group.peers.iter().filter(|peer| peer.is_open).count()
    }

    /// Handles datagrams and timers until `until`, or until `enough` returns true.
    fn serve(&mut self, until: Instant, enough: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        while !enough(self) {
            let Self { group, began, partial, delays_us } = self;
            group.serve(until, |peer, now, lane, message| {
                let now_us = now.saturating_duration_since(*began).as_micros() as u64;
                if lane == Lane::Latest {
                    return count(message, now_us, delays_us);
                }
                let partial = &mut partial[peer];
                partial.extend_from_slice(message);
                let end = partial.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                count(&partial[..end], now_us, delays_us)?;
                partial.drain(..end);
                Ok(())
            })?;
            if Instant::now() >= until {
                break;
            }
        }
        Ok(())
    }
}

fn count(lines: &[u8], now_us: u64, delays_us: &mut Vec<u64>) -> anyhow::Result<()> {
    for line in lines.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{\"push\":\"message\"")) {
        let mut stamp = None;
        payloads(line, |payload| stamp = Stamp::read(payload, PAYLOAD_BYTES));
        let stamp = stamp.context("not a message of this generator")?;
        delays_us.push(now_us.saturating_sub(stamp.due_ns / 1000));
    }
    Ok(())
}
