//! Starts every engine in a world of its own, so that each case runs on all engines.

use std::{
    collections::HashMap,
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    thread::Thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use millrace_delivery::PageLimit;
use millrace_engine::{Config, Deliver, ENGINES, Engine};
use millrace_protocol::{
    ChannelName, Epoch, Kind, NewPublication, Position, Publication, Since,
    session::{Policy, Target},
};

use crate::servers;

pub const LIMIT: PageLimit = PageLimit { count: 1000, bytes: 1 << 20 };

/// How a case starts an engine. To add an engine, add a line to [`STARTS`].
struct Start {
    /// Name of the engine, one of [`ENGINES`].
    engine: &'static str,
    /// Returns the URL; `{folder}` stands for an empty folder on a disk. `None` if the engine cannot run here, which
    /// has been reported then.
    url: fn() -> Option<String>,
    /// Clock that the engine uses: the clock of the case, or its own.
    clock: Clock,
    /// True if the limit for all channels together evicts publications; otherwise it limits the mirror.
    bounds_all: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Clock {
    Given,
    Own,
}

const STARTS: &[Start] = &[
    Start { engine: "memory", url: || Some("memory".into()), clock: Clock::Given, bounds_all: true },
    Start { engine: "sqlite", url: || Some("sqlite:{folder}/data.db".into()), clock: Clock::Given, bounds_all: true },
    Start { engine: "redis", url: servers::redis, clock: Clock::Own, bounds_all: false },
    Start { engine: "redis", url: servers::redis_cluster, clock: Clock::Own, bounds_all: false },
    Start { engine: "nats", url: servers::nats, clock: Clock::Own, bounds_all: false },
];

/// Records the deliveries of each channel.
#[derive(Default)]
pub struct Delivered {
    pub seen: Mutex<HashMap<String, Vec<(Epoch, u64)>>>,
    /// Jumps that the engine reported after it missed publications.
    pub moved: Mutex<Vec<(String, Position, Position)>>,
    /// Time of each delivery in milliseconds, to simulate a slow node.
    pub delay_ms: AtomicU64,
}

impl Deliver for Delivered {
    type Route = ();

    fn route(&self, _: &ChannelName) {}

    fn deliver(&self, (): &(), channel: &ChannelName, epoch: Epoch, publication: &Publication) {
        let delay_ms = self.delay_ms.load(Ordering::SeqCst);
        if delay_ms > 0 {
            std::thread::sleep(Duration::from_millis(delay_ms));
        }
        let mut seen = self.seen.lock().unwrap();
        seen.entry(channel.to_string()).or_default().push((epoch, publication.offset));
    }

    fn moved(&self, (): &(), channel: &ChannelName, from: Position, top: Position) {
        self.moved.lock().unwrap().push((channel.to_string(), from, top));
    }

    fn readers(&self, channel: &ChannelName) -> u32 {
        channel.as_str().len() as u32
    }
}

impl Delivered {
    /// Returns the deliveries of a channel.
    pub fn of(&self, channel: &str) -> Vec<(Epoch, u64)> {
        self.seen.lock().unwrap().get(channel).cloned().unwrap_or_default()
    }
}

pub struct World {
    pub engine: Arc<dyn Engine>,
    pub delivered: Arc<Delivered>,
    /// Clock of the case; `None` if the engine uses its own clock.
    pub clock_ms: Option<Arc<AtomicU64>>,
}

/// Runs the case once per engine, each with a fresh world.
pub fn on_every_engine(config: Config, case: impl Fn(&World)) {
    for name in ENGINES {
        assert!(STARTS.iter().any(|start| start.engine == *name), "the contract does not know how to start {name}");
    }
    run(STARTS.iter(), &config, case);
}

/// Like [`on_every_engine`], for engines whose clock the case controls. Other engines take the time from a server,
/// which no test can set.
pub fn on_engines_with_a_given_clock(config: Config, case: impl Fn(&World)) {
    run(STARTS.iter().filter(|start| start.clock == Clock::Given), &config, case);
}

/// Like [`on_every_engine`], for engines that hold the history of all channels in this process. A server has its own
/// limit.
pub fn on_engines_that_bound_all(config: Config, case: impl Fn(&World)) {
    run(STARTS.iter().filter(|start| start.bounds_all), &config, case);
}

fn run<'a>(starts: impl Iterator<Item = &'a Start>, config: &Config, case: impl Fn(&World)) {
    for start in starts {
        let Some(url) = (start.url)() else { continue };
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let url = url.replace("{folder}", folder.path().to_str().unwrap());
        eprintln!("engine {url}");
        let world = World::open(&url, Config { prefix: fresh_prefix(), ..config.clone() }, start.clock == Clock::Given);
        case(&world);
        assert_eq!(*world.delivered.moved.lock().unwrap(), [], "nothing was lost");
        world.engine.close();
    }
}

/// Returns a new prefix, so that worlds on a shared server do not collide.
pub fn fresh_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

impl World {
    pub fn open(url: &str, config: Config, has_given_clock: bool) -> Self {
        let delivered = Arc::new(Delivered::default());
        let clock_ms = Arc::new(AtomicU64::new(1_000_000));
        let now = {
            let clock_ms = clock_ms.clone();
            move || match has_given_clock {
                true => clock_ms.load(Ordering::SeqCst),
                false => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64,
            }
        };
        let engine = millrace_engine::open(url, config, delivered.clone(), now).unwrap();
        Self { engine, delivered, clock_ms: has_given_clock.then_some(clock_ms) }
    }

    /// Returns the value of one of the engine's counters.
    pub fn counted(&self, name: &str) -> u64 {
        self.engine.counters().iter().find(|(known, ..)| *known == name).map_or(0, |(.., count)| *count)
    }

    pub fn append(&self, name: &str, publication: NewPublication) -> Position {
        wait(self.engine.append(&channel(name), publication)).unwrap()
    }

    pub fn publish(&self, name: &str) {
        self.append(name, text("x"));
    }

    pub fn read(&self, name: &str, since: Since) -> (Option<(Position, Position)>, Vec<u64>) {
        let page = wait(self.engine.page(&channel(name), since, Policy::Every, LIMIT)).unwrap();
        (page.gap.map(|gap| (gap.from, gap.to)), page.publications.iter().map(|p| p.offset).collect())
    }

    /// Starts to read a channel. Publications from now on are delivered.
    pub fn watch(&self, name: &str) {
        self.engine.watch(&Target::Channel(channel(name)), true);
        self.read(name, Since::Now);
    }

    /// Waits until `count` publications were delivered, and returns their positions.
    pub fn delivered(&self, name: &str, count: usize) -> Vec<(Epoch, u64)> {
        servers::until(Duration::from_secs(10), || self.delivered.of(name).len() >= count);
        self.delivered.of(name)
    }

    /// Advances the engine's clock, or sleeps if the engine uses its own clock.
    pub fn pass(&self, time: Duration) {
        match &self.clock_ms {
            Some(clock_ms) => drop(clock_ms.fetch_add(time.as_millis() as u64, Ordering::SeqCst)),
            None => std::thread::sleep(time),
        }
    }
}

/// Waits for a future without a runtime. An engine that needs a runtime has its own threads.
pub fn wait<T>(answer: impl Future<Output = T>) -> T {
    let mut answer = pin!(answer);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while std::time::Instant::now() < end {
        if let Poll::Ready(value) = answer.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park_timeout(Duration::from_secs(1));
    }
    panic!("no answer");
}

struct Unpark(Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub fn channel(name: &str) -> ChannelName {
    ChannelName::parse(name).unwrap()
}

pub fn text(data: &str) -> NewPublication {
    NewPublication::new(Kind::Text, data.as_bytes())
}
