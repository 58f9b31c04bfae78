//! Runs one attack, measures the server before, during and after it, and judges the result.

use std::{
    cell::Cell,
    io,
    net::{Ipv4Addr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use millrace_lab::host::limits;
use rustix::{
    process::setpriority_process,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use tokio::net::{TcpSocket, TcpStream};

use crate::{
    honest::{self, HonestOutcome},
    newcomers::{self, Opened},
    process::{print_line, turn},
    report::{PHASES, Row},
    server::Server,
};

/// Maximum p99 latency of honest clients in every phase.
const P99_MAX_MS: f64 = 100.0;
const BEFORE: Duration = Duration::from_secs(1);
/// Time to connect, at the start of a run.
const SETTLE: Duration = Duration::from_secs(1);
const MIB: f64 = 1024.0 * 1024.0;
/// Maximum time until memory is released. The allocator returns memory after ten seconds.
const BACK: Duration = Duration::from_secs(20);
/// Memory that may stay allocated: warmed buffers of the allocator and tables that have grown.
const STAYS_BYTES: u64 = 24 << 20;
const TRIES: usize = 3;
/// Connections from one source address of the attacker. The number is below the ephemeral ports that Linux gives to
/// one address.
const PER_SOURCE: usize = 2_000;
const LOOK: Duration = Duration::from_millis(50);

pub struct Trial {
    name: &'static str,
    arguments: Vec<String>,
    /// Maximum growth of the server's memory above its memory before the attack.
    memory_bytes: u64,
    at_least: u64,
    /// Honest clients open new channels and rooms during the attack, and the attacker must meet a limit.
    with_newcomers: bool,
}

/// Returns true for the full form: half a minute per attack, with more connections and names.
pub fn is_full() -> bool {
    std::env::var("MILLRACE_ABUSE").is_ok_and(|form| form == "full")
}

impl Trial {
    pub fn new(name: &'static str) -> Self {
        Self { name, arguments: Vec::new(), memory_bytes: 64 << 20, at_least: 1, with_newcomers: false }
    }

    pub fn set(mut self, settings: &[&str]) -> Self {
        self.arguments.extend(settings.iter().flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]));
        self
    }

    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    pub fn memory_mb(mut self, mb: u64) -> Self {
        self.memory_bytes = mb << 20;
        self
    }

    /// Sets how often the attack must have acted. Fewer times are no attack, and the trial fails.
    pub fn at_least(mut self, times: u64) -> Self {
        self.at_least = times;
        self
    }

    /// Honest clients open new channels and rooms during the attack, and the attacker must meet a limit.
    pub fn with_newcomers(mut self) -> Self {
        self.with_newcomers = true;
        self
    }

    /// Runs the attack until a run is valid, at most [`TRIES`] times, and asserts that the valid run found no
    /// failure.
    pub fn run(self, attack: impl AsyncFn(&AttackContext) + Clone + Send + 'static) {
        let _turn = turn();
        for _ in 0..TRIES {
            match self.run_once(attack.clone()) {
                Ok(wrong) => return assert!(wrong.is_empty(), "{}: {wrong:#?}", self.name),
                Err(why) => print_line(&format!("  {}: INVALID, {why}; again", self.name)),
            }
        }
        panic!("{}: {TRIES} runs and none was valid; this machine is too busy to judge a server on", self.name);
    }

    /// Runs the attack once and returns a line for each failure.
    ///
    /// Errors: the reason why the run is invalid.
    fn run_once(&self, attack: impl AsyncFn(&AttackContext) + Send + 'static) -> Result<Vec<String>, String> {
        let full = is_full();
        let (during, after) = match (full, self.with_newcomers) {
            (true, _) => (30, 5),
            // The attacker needs time to fill the server first.
            (false, true) => (6, 1),
            (false, false) => (2, 1),
        };
        let (during, after) = (Duration::from_secs(during), Duration::from_secs(after));
        let cpus = Cpus::choose();
        // The attacker and the server each need one descriptor per connection, plus a margin.
        let connections = if full { 10_000 } else { 3_200 };
        let descriptors = connections as u64 + 2_000;
        limits::raise_descriptors(descriptors).map_err(|error| format!("{descriptors} descriptors: {error:#}"))?;
        let mut server = Server::start(cpus.server, &self.arguments, descriptors);

        let (address, lasts) = (server.address, SETTLE + BEFORE + during + after);
        let began = Instant::now();
        let honest = thread::spawn(move || honest::listen(address, cpus.others, lasts));
        sleep_until(began + SETTLE);
        let mut watched = Watched::default();
        watched.until(&mut server, began + SETTLE + BEFORE);
        let memory_before = server.memory();

        let end = Instant::now() + during;
        let udp = server.udp;
        let attacker = thread::spawn(move || {
            be_an_attacker(cpus.others);
            let ground = AttackContext {
                server: address,
                udp,
                end,
                full,
                connections,
                done: Cell::new(0),
                refused: Cell::new(0),
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let _ = tokio::time::timeout_at(end.into(), attack(&ground)).await;
            });
            (ground.done.get(), ground.refused.get())
        });
        let newcomers = self.with_newcomers.then(|| {
            thread::spawn(move || {
                sleep_until(end - during / 2);
                newcomers::open(address, during / 2)
            })
        });
        watched.memory = 0;
        watched.until(&mut server, end);
        let told = server.memory_told();
        let (done, refused) = attacker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let opened = newcomers.map(|newcomers| newcomers.join().expect("they do not panic"));
        let lasted_s = during.as_secs_f64();
        let memory_during = watched.memory;
        watched.until(&mut server, end + after);
        let heard = honest.join().expect("the lab does not panic").map_err(|error| format!("{error:#}"))?;
        let memory_after = self.comes_back(&mut server, memory_before);

        let second = |at: Instant| (at - heard.started()).as_secs_f64().round() as usize;
        let marks = [began + SETTLE, end - during, end, end + after + SETTLE].map(second);
        let p99_ms = [0, 1, 2].map(|phase| p99_ms(&heard, marks[phase]..marks[phase + 1]));
        let row = Row {
            name: self.name,
            done,
            lasted_s,
            p99_ms,
            deliveries: heard.counts().delivered,
            memory_mb: [memory_before, memory_during, memory_after].map(|bytes| bytes as f64 / MIB),
            told_mb: told as f64 / MIB,
            bound_mb: (memory_before + self.memory_bytes) >> 20,
            health_ms: watched.health.as_secs_f64() * 1e3,
        };
        row.print();
        if let Some(opened) = &opened {
            let (clients, Opened { channels, rooms, .. }) = (newcomers::CLIENTS, opened);
            print_line(&format!(
                "    {clients} newcomers opened {channels} channels and {rooms} rooms, {} failed, p99 {:.1} ms; the attacker was refused \
                 {refused} times",
                opened.refused.len(),
                opened.p99_ms(),
            ));
        }
        if let Some(why) = heard.is_invalid() {
            return Err(why);
        }
        if p99_ms[0] >= P99_MAX_MS {
            return Err(format!("nobody attacked yet, and honest clients waited {:.0} ms (p99)", p99_ms[0]));
        }
        let mut wrong = heard.losses();
        wrong.extend(watched.unwell);
        for (phase, p99_ms) in PHASES.into_iter().zip(p99_ms) {
            if p99_ms >= P99_MAX_MS {
                wrong.push(format!("{phase} the attack honest clients waited {p99_ms:.0} ms (p99)"));
            }
        }
        if memory_during > memory_before + self.memory_bytes {
            wrong.push(format!("the server took {} MiB", memory_during >> 20));
        }
        if memory_after > memory_before + self.memory_bytes.min(STAYS_BYTES.max(self.memory_bytes / 2)) {
            wrong.push(format!("the server keeps {} MiB", memory_after >> 20));
        }
        if let Some(opened) = opened {
            wrong.extend(opened.refused.first().map(|first| format!("{} newcomers: {first}", opened.refused.len())));
            if opened.p99_ms() >= P99_MAX_MS {
                wrong.push(format!("newcomers waited {:.0} ms (p99)", opened.p99_ms()));
            }
            if refused == 0 {
                wrong.push("the attacker met no limit, which is no attack".into());
            }
        }
        if done < self.at_least {
            wrong.push(format!("it was done {done} times, which is no attack"));
        }
        Ok(wrong)
    }

    /// Waits until memory is close to `before`, at most [`BACK`], and returns the memory then.
    fn comes_back(&self, server: &mut Server, before: u64) -> u64 {
        let deadline = Instant::now() + BACK;
        loop {
            let memory = server.memory();
            if memory <= before + STAYS_BYTES || Instant::now() > deadline {
                return memory;
            }
            thread::sleep(LOOK);
        }
    }
}

/// Observations of the server during a phase.
#[derive(Default)]
struct Watched {
    /// Maximum memory in bytes.
    memory: u64,
    health: Duration,
    unwell: Vec<String>,
}

impl Watched {
    fn until(&mut self, server: &mut Server, end: Instant) {
        while Instant::now() < end {
            self.memory = self.memory.max(server.memory());
            let asked = Instant::now();
            if let Err(why) = server.get("/healthz") {
                self.unwell.push(why);
            }
            self.health = self.health.max(asked.elapsed());
            sleep_until((Instant::now() + LOOK).min(end));
        }
    }
}

fn p99_ms(heard: &HonestOutcome, seconds: std::ops::Range<usize>) -> f64 {
    heard.latency(seconds).quantile_us(0.99).map_or(f64::INFINITY, |us| us as f64 / 1e3)
}

fn sleep_until(at: Instant) {
    thread::sleep(at.saturating_duration_since(Instant::now()));
}

/// CPU assignment. The server has its own CPU, so attackers can saturate it. Measuring clients have priority over
/// attackers on the other CPU.
struct Cpus {
    server: usize,
    others: usize,
}

impl Cpus {
    fn choose() -> Self {
        let allowed = sched_getaffinity(None).expect("our own");
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let server = cpus.next().expect("we run on one");
        Self { server, others: cpus.next().unwrap_or(server) }
    }
}

/// Moves the thread to `cpu` with the lowest priority, so the attacker runs after all other threads there.
fn be_an_attacker(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
    let _ = setpriority_process(None, 19);
}

/// Target, time and limits of an attacker, and its counters.
pub struct AttackContext {
    pub server: SocketAddr,
    pub udp: Option<SocketAddr>,
    end: Instant,
    pub full: bool,
    /// Maximum number of concurrent connections.
    pub connections: usize,
    done: Cell<u64>,
    refused: Cell<u64>,
}

impl AttackContext {
    pub fn done(&self, times: u64) {
        self.done.set(self.done.get() + times);
    }

    pub fn refused(&self, times: u64) {
        self.refused.set(self.refused.get() + times);
    }

    /// Opens a new connection. Groups of [`PER_SOURCE`] lanes use different source addresses of this machine.
    pub async fn connect(&self, lane: usize) -> io::Result<TcpStream> {
        self.connect_with(lane, |_| Ok(())).await
    }

    pub async fn connect_with(
        &self,
        lane: usize,
        options: impl FnOnce(&TcpSocket) -> io::Result<()>,
    ) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        let source = Ipv4Addr::new(127, 0, 66, 1 + (lane / PER_SOURCE) as u8);
        socket.bind(SocketAddr::from((source, 0)))?;
        // The connection closes with a reset, so its port does not stay in TIME_WAIT.
        socket.set_zero_linger()?;
        options(&socket)?;
        let stream = socket.connect(self.server).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Runs `act` on `lanes` concurrent lanes, repeatedly until the end. A failed `act` starts again after a pause.
    pub async fn again(&self, lanes: usize, act: impl AsyncFn(usize) -> io::Result<()>) {
        let act = &act;
        let lane = async |lane: usize| {
            while Instant::now() < self.end {
                if act(lane).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                tokio::task::yield_now().await;
            }
        };
        join_all((0..lanes).map(lane)).await;
    }
}
