//! Maximum delivery rate of shards that get a part of a CPU each, while the generator uses the rest of both CPUs, with
//! proof that the shards and not the generator were the limit.
//!
//! Generator and server share two CPUs here. So each shard is pinned (shard `n` to CPU `n mod 2`) and gets a quota that
//! is small enough for the generator never to use up the rest. The remaining CPU time goes to idlers: one thread per
//! CPU that counts when no other thread wants the CPU. So the remaining time is measured, and no CPU sleeps, which
//! gives all runs equal conditions. A run counts only if the busiest shard used up its quota, the idlers still ran, and
//! no other program used much CPU.

use std::{
    fs, io,
    net::TcpStream,
    path::PathBuf,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use millrace_lab::{
    host::scheduling::{SchedulingTime, pin},
    load::http::{exchange, get},
    targets::Server,
};

use crate::{
    figures::median,
    quota::{Capped, Used},
    reader::{ReaderOptions, Transport},
    reader_group::ReaderGroup,
    setup::{BYTES, start},
    upstream::Upstream,
};

const CPUS: [usize; 2] = [0, 1];
/// Warm-up until queues have filled and quotas are used up evenly.
const WARM_UP: Duration = Duration::from_millis(500);
/// Interval between two polls of the generator. If sends woke the generator, they would cost more the less the
/// generator has to do.
const NAP: Duration = Duration::from_millis(1);
/// Minimum share of its quota that the busiest shard must use to count as the limit.
const USED_MIN: f64 = 0.95;
/// Minimum idle CPU, in cores. Below it the generator may have been the limit, or may have slowed down the shards.
const IDLE_MIN: f64 = 0.25;
/// Maximum CPU of other programs, in cores. Above it a run is invalid.
const OTHERS_MAX: f64 = 0.15;
/// Bytes of a WebSocket frame around a message of [`BYTES`].
const FRAME_HEAD_BYTES: usize = 4;

/// Channels and their readers. Each channel has a generator thread with its own publisher, and readers on all shards.
#[derive(Clone, Copy)]
pub struct Work {
    pub name: &'static str,
    pub channels: usize,
    /// Readers of a channel on all shards together.
    pub readers_per_channel: usize,
    /// Number of publications that a channel sends at once. The next burst follows when all readers have received this
    /// one. So each write carries the same number of messages with one shard as with several, and while one channel
    /// waits for its readers, the other channels are active.
    pub burst: u64,
}

/// Results of a run.
pub struct CappedRun {
    pub per_s: f64,
    /// Messages per write.
    batch: f64,
    /// Per shard: share of its quota used, and share of the run's time during which it was throttled.
    used: Vec<f64>,
    throttled: Vec<f64>,
    /// Cores that the generator used, and the share of each CPU that the idlers used.
    generator: f64,
    idle: Vec<f64>,
    /// Cores that other programs, or other machines on the same host, used.
    others: f64,
}

/// Counters at one moment, from which a run's results are computed.
struct Moment {
    at: Instant,
    delivered: u64,
    shards: Vec<Used>,
    idlers: Vec<Used>,
    /// CPU time of the generator, including the idlers.
    generator_ns: u64,
}

/// Threads that use the remaining time of each CPU.
struct Idlers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    groups: Vec<Capped>,
}

/// One thread of the generator.
struct Lane {
    delivered: Arc<AtomicU64>,
    thread: JoinHandle<anyhow::Result<()>>,
}

/// Measures `shards` shards with `cores` of a CPU each.
pub fn run(work: Work, shards: usize, cores: f64, seconds: f64) -> anyhow::Result<CappedRun> {
    let idlers = Idlers::start()?;
    let server = start(shards, &CPUS)?;
    pin(&CPUS)?;
    let capped = Arc::new(Barrier::new(work.channels + 1));
    let stop = Arc::new(AtomicBool::new(false));
    let mut lanes = Vec::with_capacity(work.channels);
    for channel in 0..work.channels {
        lanes.push(Lane::start(&server, work, channel, capped.clone(), stop.clone())?);
    }
    // All readers are connected: only now is the server slowed down.
    let caps = cap(&server, shards, cores)?;
    let written = writes(&server)?;
    capped.wait();
    std::thread::sleep(WARM_UP);
    let from = Moment::now(&lanes, &caps, &idlers.groups)?;
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let to = Moment::now(&lanes, &caps, &idlers.groups)?;
    let written = {
        let now = writes(&server)?;
        [now[0] - written[0], now[1] - written[1]]
    };
    stop.store(true, Relaxed);
    for lane in lanes {
        lane.thread.join().ok().context("a thread of the generator has panicked")??;
    }
    // The control groups can be removed only when no thread is in them.
    drop(server);
    drop(caps);
    let took = (to.at - from.at).as_secs_f64();
    let share = |from: &[Used], to: &[Used], pick: fn(&Used) -> Duration| -> Vec<f64> {
        to.iter().zip(from).map(|(to, from)| (pick(to) - pick(from)).as_secs_f64() / took).collect()
    };
    let used = share(&from.shards, &to.shards, |used| used.cpu);
    let idle = share(&from.idlers, &to.idlers, |used| used.cpu);
    let idle_all = idle.iter().sum::<f64>();
    let generator = (to.generator_ns - from.generator_ns) as f64 / took / 1e9 - idle_all;
    Ok(CappedRun {
        per_s: (to.delivered - from.delivered) as f64 / took,
        batch: written[1] as f64 / written[0].max(1) as f64 / (BYTES + FRAME_HEAD_BYTES) as f64,
        others: CPUS.len() as f64 - used.iter().sum::<f64>() - generator - idle_all,
        used: used.into_iter().map(|share| share / cores).collect(),
        throttled: share(&from.shards, &to.shards, |used| used.throttled),
        generator,
        idle,
    })
}

impl Idlers {
    fn start() -> anyhow::Result<Self> {
        let mut idlers = Self { stop: Arc::default(), threads: Vec::new(), groups: Vec::new() };
        for cpu in CPUS {
            let (tell, told) = mpsc::channel();
            let stop = idlers.stop.clone();
            idlers.threads.push(std::thread::spawn(move || {
                let _ = tell.send(rustix::thread::gettid().as_raw_nonzero());
                let mut count = 0u64;
                while !stop.load(Relaxed) {
                    // Not a pause instruction: in a virtual machine, many of them exit to the host.
                    (0..1000).for_each(|_| count = std::hint::black_box(count + 1));
                }
            }));
            let thread = PathBuf::from(format!("/proc/self/task/{}", told.recv()?));
            idlers.groups.push(Capped::last(thread, cpu)?);
        }
        Ok(idlers)
    }
}

impl Drop for Idlers {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Lane {
    fn start(
        server: &Server,
        work: Work,
        channel: usize,
        capped: Arc<Barrier>,
        stop: Arc<AtomicBool>,
    ) -> anyhow::Result<Self> {
        let options = ReaderOptions {
            transport: Transport::WebSocket,
            channel: format!("bench/{channel}"),
            latest: false,
            since: "earliest".into(),
            first: 0,
            sources: 1,
            bytes: BYTES,
        };
        let mut upstream = Upstream::bare(server.address, &options.channel)?;
        let mut group = ReaderGroup::new(server, work.readers_per_channel, &options)?;
        let delivered = Arc::new(AtomicU64::new(0));
        let count = delivered.clone();
        let thread = std::thread::spawn(move || {
            // The CPU of a shard has the same number of readers with one shard as with several, which is cheaper for
            // both.
            pin(&[CPUS[channel % CPUS.len()]])?;
            capped.wait();
            group.bursts(&mut upstream, work.burst, NAP, |delivered| {
                count.store(delivered, Relaxed);
                !stop.load(Relaxed)
            })?;
            ensure!(group.tally.gaps == 0, "{} readers fell too far behind", group.tally.gaps);
            group.tally.check()
        });
        Ok(Self { delivered, thread })
    }
}

fn cap(server: &Server, shards: usize, cores: f64) -> anyhow::Result<Vec<Capped>> {
    let mut caps = Vec::with_capacity(shards);
    for thread in server.threads()? {
        let name = fs::read_to_string(thread.join("comm"))?;
        let Some(shard) = name.trim().strip_prefix("shard-") else { continue };
        let shard: usize = shard.parse()?;
        caps.push(Capped::new(thread, CPUS[shard % CPUS.len()], cores)?);
    }
    ensure!(caps.len() == shards, "{} threads are shards, not {shards}", caps.len());
    Ok(caps)
}

impl Moment {
    fn now(lanes: &[Lane], caps: &[Capped], idlers: &[Capped]) -> anyhow::Result<Self> {
        let own: Vec<PathBuf> =
            fs::read_dir("/proc/self/task")?.map(|task| Ok(task?.path())).collect::<io::Result<_>>()?;
        let generator_ns = SchedulingTime::of_threads(&own).cpu_ns;
        Ok(Self {
            at: Instant::now(),
            delivered: lanes.iter().map(|lane| lane.delivered.load(Relaxed)).sum(),
            shards: caps.iter().map(Capped::used).collect::<Result<_, _>>()?,
            idlers: idlers.iter().map(Capped::used).collect::<Result<_, _>>()?,
            generator_ns,
        })
    }
}

/// Returns the number of writes to readers so far, and their bytes.
fn writes(server: &Server) -> anyhow::Result<[u64; 2]> {
    let mut request = Vec::new();
    get("/metrics", "", &mut request);
    let mut stream = TcpStream::connect(server.address)?;
    let page = exchange(&mut stream, &request, |answer| Ok(String::from_utf8(answer.body.to_vec())?))?;
    let figure = |name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
        anyhow::Ok(line.trim().parse()?)
    };
    Ok([figure("millrace_writes_total ")?, figure("millrace_sent_bytes_total ")?])
}

impl CappedRun {
    /// Returns true if the shards, and nothing else, limited the run.
    pub fn is_by_shards(&self) -> bool {
        self.busiest() >= USED_MIN && self.idle.iter().sum::<f64>() >= IDLE_MIN && self.others <= OTHERS_MAX
    }

    /// Summarizes several runs by their medians.
    pub fn middle(runs: &[CappedRun]) -> String {
        let middle = |pick: fn(&CappedRun) -> f64| median(runs.iter().map(pick).collect());
        format!(
            "{:.1} messages per write, quota used {:.0} to {:.0} %, generator {:.2} cores, idle {:.0} + {:.0} % of the CPUs, \
             others {:.2} cores",
            middle(|run| run.batch),
            middle(|run| run.used.iter().copied().fold(f64::MAX, f64::min)) * 100.0,
            middle(CappedRun::busiest) * 100.0,
            middle(|run| run.generator),
            middle(|run| run.idle[0]) * 100.0,
            middle(|run| run.idle[1]) * 100.0,
            middle(|run| run.others)
        )
    }

    /// Returns the median, minimum and maximum of `these` over `those`, pass by pass.
    pub fn ratio(these: &[f64], those: &[f64]) -> String {
        let ratios: Vec<f64> = these.iter().zip(those).map(|(this, that)| this / that).collect();
        let least = ratios.iter().copied().fold(f64::MAX, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        format!("{:.2} times ({least:.2} to {most:.2}) the load", median(ratios))
    }

    fn busiest(&self) -> f64 {
        self.used.iter().copied().fold(0.0, f64::max)
    }

    pub fn show(&self) -> String {
        let percent = |shares: &[f64]| {
            let shares: Vec<_> = shares.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
            shares.join("+")
        };
        format!(
            "{:.0} k/s, {:.1} messages per write, shards used {} % of their quotas (throttled {} % of the time), generator {:.2} cores, \
             idle {} % of the CPUs, others {:.2} cores{}",
            self.per_s / 1000.0,
            self.batch,
            percent(&self.used),
            percent(&self.throttled),
            self.generator,
            percent(&self.idle),
            self.others,
            if self.is_by_shards() { "" } else { ", NOT LIMITED BY THE SHARDS" }
        )
    }
}
