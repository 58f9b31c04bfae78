//! The load generator: one thread, one epoll, many WebSockets. It checks what it receives: each message once and in order.
//!
//! It never sleeps. To wake who sleeps on the same machine costs the sender 3 to 18 us in a virtual machine, by luck and by how soon it
//! answers, and no server pays that for clients that are elsewhere.

use std::{
    fmt,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use anyhow::ensure;
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    net::RecvFlags,
};

use crate::{
    server::Server,
    target::Target,
    wire::{self, client_frame, frame, payload, read_payload},
};

/// Bytes of a message, as in the theses' ticker.
const BYTES: usize = 173;
/// Publications in flight when looking for the most that can be delivered.
const IN_FLIGHT: u64 = 32;
/// How long may be waited for what is still under way.
const PATIENCE: Duration = Duration::from_secs(20);

/// One kind of load.
pub enum Workload {
    /// One publisher, so many subscribers, a message each `interval`: open loop, latency from when it was due.
    Broadcast { subscribers: usize, interval: Duration, seconds: f64 },
    /// The same with 32 publications always in flight: how much can be delivered.
    Saturate { subscribers: usize, seconds: f64 },
    /// So many publishers with one subscriber each, `per_s` messages each: every message wakes somebody else.
    Pairs { pairs: usize, per_s: f64, seconds: f64 },
    /// One connection that sends and waits for its own message.
    Echo { seconds: f64 },
    /// Connections that do nothing: memory between `from` and `to` of them. Their CPU while no ping is due, or over a whole heartbeat.
    Idle { from: usize, to: usize, heartbeat_s: Option<u64> },
}

/// What a run shows; what a workload does not measure is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    cpu_us: Option<f64>,
    per_s: Option<f64>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    pss_kb: Option<f64>,
    bytes_per_connection: Option<f64>,
    idle_cpu_percent: Option<f64>,
}

impl Workload {
    pub fn all(seconds: f64, heartbeat_s: Option<u64>) -> Vec<Workload> {
        let interval = Duration::from_millis(5);
        vec![
            Workload::Broadcast { subscribers: 1000, interval, seconds },
            Workload::Saturate { subscribers: 100, seconds },
            Workload::Saturate { subscribers: 1000, seconds },
            Workload::Pairs { pairs: 4000, per_s: 4.0, seconds },
            Workload::Echo { seconds },
            Workload::Idle { from: 1000, to: 19_000, heartbeat_s },
        ]
    }

    pub fn names() -> Vec<String> {
        Workload::all(1.0, None).iter().map(Workload::name).collect()
    }

    pub fn name(&self) -> String {
        match self {
            Workload::Broadcast { subscribers, .. } => format!("broadcast-{subscribers}"),
            Workload::Saturate { subscribers, .. } => format!("saturate-{subscribers}"),
            Workload::Pairs { pairs, .. } => format!("pairs-{pairs}"),
            Workload::Echo { .. } => "echo".into(),
            Workload::Idle { .. } => "idle".into(),
        }
    }

    pub fn describe(&self) -> String {
        let what = match self {
            Workload::Broadcast { subscribers, interval, .. } => {
                format!("{subscribers} subscribers, one message of {BYTES} bytes each {interval:?}")
            }
            Workload::Saturate { subscribers, .. } => {
                format!("{subscribers} subscribers, {IN_FLIGHT} publications in flight")
            }
            Workload::Pairs { pairs, per_s, .. } => {
                format!("{pairs} publishers with one subscriber each, {per_s} messages/s each")
            }
            Workload::Echo { .. } => "one connection, one message at a time".into(),
            Workload::Idle { from, to, .. } => format!("memory of idle connections, from {from} to {to}"),
        };
        format!("{}: {what}", self.name())
    }

    pub fn run(&self, target: &Target) -> anyhow::Result<Figures> {
        let server = target.start()?;
        match *self {
            Workload::Broadcast { subscribers, interval, seconds } => {
                let mut crowd = Crowd::new(&server, subscribers, |_| "/v1/channels/bench".into())?;
                let publisher = connect(server.address, "/v1/channels/bench?subscribe=no")?;
                let messages = (seconds / interval.as_secs_f64()) as u64;
                crowd.open_loop(&server, vec![publisher], messages, interval, subscribers as u64)
            }
            Workload::Saturate { subscribers, seconds } => {
                let mut crowd = Crowd::new(&server, subscribers, |_| "/v1/channels/bench".into())?;
                let publisher = connect(server.address, "/v1/channels/bench?subscribe=no")?;
                crowd.closed_loop(&server, publisher, seconds, IN_FLIGHT, subscribers as u64)
            }
            Workload::Pairs { pairs, per_s, seconds } => {
                let mut crowd = Crowd::new(&server, pairs, |i| format!("/v1/channels/pairs/{i}"))?;
                let connect = |i| connect(server.address, &format!("/v1/channels/pairs/{i}?subscribe=no"));
                let publishers = (0..pairs).map(connect).collect::<anyhow::Result<Vec<_>>>()?;
                let interval = Duration::from_secs_f64(1.0 / (per_s * pairs as f64));
                crowd.open_loop(&server, publishers, (seconds * per_s) as u64 * pairs as u64, interval, 1)
            }
            Workload::Echo { seconds } => {
                let mut crowd = Crowd::new(&server, 1, |_| "/v1/channels/echo".into())?;
                let publisher = crowd.readers[0].stream.try_clone()?;
                crowd.closed_loop(&server, publisher, seconds, 1, 1)
            }
            Workload::Idle { from, to, heartbeat_s } => idle(&server, from, to, heartbeat_s),
        }
    }
}

/// Subscribers, and what they have received.
struct Crowd {
    epoll: rustix::fd::OwnedFd,
    readers: Vec<Reader>,
    scratch: Vec<u8>,
    latencies_us: Vec<u32>,
}

struct Reader {
    stream: TcpStream,
    partial: Vec<u8>,
    next: u64,
}

impl Crowd {
    fn new(server: &Server, count: usize, path: impl Fn(usize) -> String) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut readers = Vec::with_capacity(count);
        for i in 0..count {
            let stream = connect(server.address, &path(i))?;
            epoll::add(&epoll, &stream, EventData::new_u64(i as u64), EventFlags::IN)?;
            readers.push(Reader { stream, partial: Vec::new(), next: 0 });
        }
        Ok(Self { epoll, readers, scratch: vec![0; 256 * 1024], latencies_us: Vec::new() })
    }

    /// Each publisher sends once per period of `interval x publishers`, at a moment of its own in it; each message is delivered `copies`
    /// times.
    fn open_loop(
        &mut self,
        server: &Server,
        mut publishers: Vec<TcpStream>,
        messages: u64,
        interval: Duration,
        copies: u64,
    ) -> anyhow::Result<Figures> {
        let cpu_before = server.cpu_ns()?;
        let started = Instant::now();
        let (mut sent, mut delivered) = (0, 0);
        let rounds = publishers.len() as u64;
        let period = interval * rounds as u32;
        let moments = moments(publishers.len(), period);
        let due = |k: u64| period * (k / rounds) as u32 + moments[(k % rounds) as usize];
        while delivered < messages * copies {
            ensure!(started.elapsed() < due(messages) + PATIENCE, "{delivered} of {} delivered", messages * copies);
            while sent < messages && started.elapsed() >= due(sent) {
                let at_us = due(sent).as_micros() as u64;
                publishers[(sent % rounds) as usize].write_all(&message(sent / rounds, at_us))?;
                sent += 1;
            }
            delivered += self.receive(started)?;
        }
        self.figures(server, cpu_before, delivered, started.elapsed())
    }

    /// Keeps `in_flight` publications under way for so many seconds.
    fn closed_loop(
        &mut self,
        server: &Server,
        mut publisher: TcpStream,
        seconds: f64,
        in_flight: u64,
        copies: u64,
    ) -> anyhow::Result<Figures> {
        let cpu_before = server.cpu_ns()?;
        let started = Instant::now();
        let end = Duration::from_secs_f64(seconds);
        let (mut sent, mut delivered) = (0, 0);
        let mut batch = Vec::new();
        while started.elapsed() < end || delivered < sent * copies {
            ensure!(started.elapsed() < end + PATIENCE, "{delivered} of {} delivered", sent * copies);
            batch.clear();
            while started.elapsed() < end && sent < delivered / copies + in_flight {
                batch.extend_from_slice(&message(sent, started.elapsed().as_micros() as u64));
                sent += 1;
            }
            publisher.write_all(&batch)?;
            delivered += self.receive(started)?;
        }
        self.figures(server, cpu_before, delivered, started.elapsed())
    }

    /// Reads what has come, and returns how many messages that were.
    fn receive(&mut self, started: Instant) -> anyhow::Result<u64> {
        let mut events = Vec::with_capacity(1024);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&Default::default())) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let before = self.latencies_us.len();
        for event in &events {
            self.readers[event.data.u64() as usize].read(&mut self.scratch, started, &mut self.latencies_us)?;
        }
        Ok((self.latencies_us.len() - before) as u64)
    }

    fn figures(&mut self, server: &Server, cpu_before: u64, delivered: u64, took: Duration) -> anyhow::Result<Figures> {
        let cpu_ns = server.cpu_ns()? - cpu_before;
        self.latencies_us.sort_unstable();
        let quantile =
            |q: f64| f64::from(self.latencies_us[((self.latencies_us.len() - 1) as f64 * q) as usize]) / 1000.0;
        Ok(Figures {
            cpu_us: Some(cpu_ns as f64 / 1000.0 / delivered as f64),
            per_s: Some(delivered as f64 / took.as_secs_f64()),
            p50_ms: Some(quantile(0.5)),
            p99_ms: Some(quantile(0.99)),
            pss_kb: Some(server.pss_kb()? as f64),
            ..Figures::default()
        })
    }
}

impl Reader {
    fn read(&mut self, scratch: &mut [u8], started: Instant, latencies_us: &mut Vec<u32>) -> anyhow::Result<()> {
        let length = match rustix::net::recv(self.stream.as_fd(), &mut *scratch, RecvFlags::DONTWAIT) {
            Ok((_, length)) => length,
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        ensure!(length > 0, "the server has closed a subscriber");
        let now_us = started.elapsed().as_micros() as u64;
        if self.partial.is_empty() {
            let used = self.take(&scratch[..length], now_us, latencies_us)?;
            self.partial.extend_from_slice(&scratch[used..length]);
        } else {
            let mut bytes = std::mem::take(&mut self.partial);
            bytes.extend_from_slice(&scratch[..length]);
            let used = self.take(&bytes, now_us, latencies_us)?;
            bytes.drain(..used);
            self.partial = bytes;
        }
        Ok(())
    }

    /// Checks every whole message and returns how many bytes they took.
    fn take(&mut self, bytes: &[u8], now_us: u64, latencies_us: &mut Vec<u32>) -> anyhow::Result<usize> {
        let mut at = 0;
        while let Some((opcode, payload, end)) = frame(bytes, at) {
            at = end;
            if opcode != 1 {
                continue;
            }
            ensure!(end - payload == BYTES, "a message of {} bytes", end - payload);
            let (n, sent_us) = read_payload(&bytes[payload..end])?;
            ensure!(n == self.next, "message {n} where {} was expected", self.next);
            self.next += 1;
            latencies_us.push(now_us.saturating_sub(sent_us) as u32);
        }
        Ok(at)
    }
}

/// The moments within a period at which so many publishers send, who know nothing of each other: by chance, the same in each run, in order.
fn moments(publishers: usize, period: Duration) -> Vec<Duration> {
    let mut chance = 0_u64;
    let mut moment = || {
        // SplitMix64.
        chance = chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (chance ^ (chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        period.mul_f64(((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64)
    };
    let mut moments: Vec<Duration> = (0..publishers).map(|_| moment()).collect();
    moments.sort_unstable();
    moments
}

/// A message of [`BYTES`] bytes as a client's frame: its number, and when it was due.
fn message(n: u64, at_us: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(BYTES + 8);
    client_frame(&mut out, 1, &payload(n, at_us, BYTES));
    out
}

fn idle(server: &Server, from: usize, to: usize, heartbeat_s: Option<u64>) -> anyhow::Result<Figures> {
    let mut open = Vec::with_capacity(to);
    let path = heartbeat_s.map(|every_s| format!("/v1/channels/idle?heartbeat={every_s}"));
    let path = path.as_deref().unwrap_or("/v1/channels/idle");
    let mut fill = |count: usize| -> anyhow::Result<f64> {
        while open.len() < count {
            open.push(connect(server.address, path)?);
        }
        Ok(server.pss_kb()? as f64)
    };
    // A fit over several points: one figure would be at the mercy of the allocator.
    let points = (0..=6).map(|i| from + (to - from) * i / 6);
    let points = points.map(|count| Ok((count as f64, fill(count)? * 1024.0))).collect::<anyhow::Result<Vec<_>>>()?;
    let mean = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).sum::<f64>() / points.len() as f64;
    let (mean_x, mean_y) = (mean(|p| p.0), mean(|p| p.1));
    let slope = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>()
        / points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum::<f64>();
    let (cpu_before, started) = (server.cpu_ns()?, Instant::now());
    let pings = answer_pings(&open, heartbeat_s.map_or(Duration::from_secs(5), |s| Duration::from_secs(s + 10)))?;
    ensure!(pings > 0 || heartbeat_s.is_none(), "not one ping within a whole heartbeat");
    let idle_cpu_percent = (server.cpu_ns()? - cpu_before) as f64 / started.elapsed().as_nanos() as f64 * 100.0;
    let pss_kb = Some(server.pss_kb()? as f64);
    let (bytes_per_connection, idle_cpu_percent) = (Some(slope), Some(idle_cpu_percent));
    Ok(Figures { pss_kb, bytes_per_connection, idle_cpu_percent, ..Figures::default() })
}

/// Gives how many there were.
fn answer_pings(open: &[TcpStream], time: Duration) -> anyhow::Result<usize> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (stream, i) in open.iter().zip(0..) {
        epoll::add(&epoll, stream, EventData::new_u64(i), EventFlags::IN)?;
    }
    let (mut events, mut scratch, mut pings) = (Vec::with_capacity(1024), [0; 4096], 0);
    let mut pong = Vec::new();
    client_frame(&mut pong, 10, b"");
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&left.try_into()?))?;
        for event in &events {
            let mut stream = &open[event.data.u64() as usize];
            let length = stream.read(&mut scratch)?;
            ensure!(length > 0 && scratch[0] & 15 == 9, "an idle connection has heard something else than a ping");
            stream.write_all(&pong)?;
            pings += 1;
        }
    }
    Ok(pings)
}

fn connect(address: SocketAddr, path: &str) -> anyhow::Result<TcpStream> {
    wire::connect(address, &wire::upgrade(path, ""))
}

impl Figures {
    /// The median of each figure on its own.
    pub fn median(runs: &[Figures]) -> Figures {
        let median = |pick: fn(&Figures) -> Option<f64>| {
            let mut values: Vec<f64> = runs.iter().filter_map(pick).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        Figures {
            cpu_us: median(|f| f.cpu_us),
            per_s: median(|f| f.per_s),
            p50_ms: median(|f| f.p50_ms),
            p99_ms: median(|f| f.p99_ms),
            pss_kb: median(|f| f.pss_kb),
            bytes_per_connection: median(|f| f.bytes_per_connection),
            idle_cpu_percent: median(|f| f.idle_cpu_percent),
        }
    }

    /// This over the other, for the figures that are compared.
    pub fn ratio(&self, other: &Figures) -> String {
        let mut out = Vec::new();
        for (name, this, other) in [
            ("CPU", self.cpu_us, other.cpu_us),
            ("deliveries", self.per_s, other.per_s),
            ("p99", self.p99_ms, other.p99_ms),
            ("bytes", self.bytes_per_connection, other.bytes_per_connection),
        ] {
            if let (Some(this), Some(other)) = (this, other) {
                out.push(format!("{name} x{:.2}", this / other));
            }
        }
        format!("[{}]", out.join(", "))
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut add = |value: Option<f64>, show: fn(f64) -> String| parts.extend(value.map(show));
        add(self.cpu_us, |v| format!("{v:6.3} us CPU per delivery"));
        add(self.per_s, |v| format!("{:8.1} k/s", v / 1000.0));
        add(self.p50_ms, |v| format!("p50 {v:.2} ms"));
        add(self.p99_ms, |v| format!("p99 {v:.2} ms"));
        add(self.bytes_per_connection, |v| format!("{v:6.0} bytes per connection"));
        add(self.idle_cpu_percent, |v| format!("{v:.2} % CPU while idle"));
        add(self.pss_kb, |v| format!("{:.1} MB", v / 1024.0));
        write!(f, "{}", parts.join(", "))
    }
}
