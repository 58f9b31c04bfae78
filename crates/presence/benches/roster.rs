//! Cost of a roster on this machine: CPU time per join with readers of the roster, and memory per member. Joins arrive
//! at a fixed rate. docs/explanation/performance.md has the figures of one machine.
//!
//! Everything runs in this process: the engine `memory`, the router, one hub with the readers, and the thread of the
//! lists. The readers are sessions whose sockets take all bytes, so the time of the kernel is not included.
//! `cargo bench -p millrace-presence`

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use millrace_delivery::{Config as HubConfig, ConnId, FirstPage, Hub, Output, PageLimit, Wire};
use millrace_engine::{Answer, Config, Engine, HistoryConfig, MemoryEngine};
use millrace_node::{ChannelEvent, Delivery, Member, Router};
use millrace_presence::{Presence, Wanted};
use millrace_protocol::{ChannelName, Encoding, Epoch, Since, session::Policy};

const MEMBERS: usize = 100_000;
const JOINS: usize = 2000;
const JOINS_PER_S: u64 = 400;
const PAGE: PageLimit = PageLimit { count: 1000, bytes: 1 << 20 };

/// Sockets that take all bytes.
struct Sink(u64);

impl Wire for Sink {
    fn write(&mut self, _: ConnId, bytes: &[u8]) -> usize {
        self.0 += bytes.len() as u64;
        bytes.len()
    }
}

struct World {
    router: Arc<Router>,
    engine: Arc<dyn Engine>,
    presence: Presence,
    hub: Hub,
    sink: Sink,
    channel: ChannelName,
    roster: ChannelName,
    joined: usize,
}

impl World {
    fn new() -> Self {
        let router = Arc::new(Router::new(1));
        let history = HistoryConfig { roster: true, keys_max: 1_000_000, ..HistoryConfig::default() };
        let internal_states = Some(HistoryConfig { state: true, ..HistoryConfig::default() });
        let config = Config { namespaces: [("chat".into(), history)].into(), internal_states, ..Config::default() };
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new(config, Epoch(1), router.clone(), now));
        let wanted = Wanted {
            roster_grace_ms: Box::new(|_| Some(2000)),
            is_channel_listed: Box::new(|_| false),
            connections: false,
            channels_grace_ms: 0,
        };
        let presence = Presence::start("1", engine.clone(), wanted, None).expect("a thread");
        let channel = ChannelName::parse("chat/1").expect("a name");
        let roster = channel.members().expect("a roster");
        Self {
            router,
            engine,
            presence,
            hub: Hub::new(HubConfig::default()),
            sink: Sink(0),
            channel,
            roster,
            joined: 0,
        }
    }

    fn read(&mut self, readers: usize) {
        for _ in 0..readers {
            let conn = self.hub.connect(Encoding::Session);
            self.hub.watch(&self.roster);
            let page = match self.engine.page(&self.roster, Since::Now, Policy::Every, PAGE) {
                Answer::Now(Some(Ok(page))) => page,
                _ => unreachable!("the engine `memory` answers at once"),
            };
            let first = FirstPage { channel: self.roster.clone(), since: Since::Now, page };
            self.hub.attach(conn, Policy::Every, &[first], &mut self.sink).expect("room for a reader");
        }
        self.drain_outputs();
    }

    fn drain_outputs(&mut self) {
        while let Some(output) = self.hub.poll_output() {
            if let Output::Interest { channel, key, readers } = output {
                self.router.set_readers(0, &channel, key, readers, |_| {});
            }
        }
    }

    /// One turn of the shard.
    fn turn(&mut self) -> usize {
        let (entries, _) = self.router.mailbox(0).take(Vec::new());
        let count = entries.len();
        for Delivery { route, key, event } in entries {
            if let ChannelEvent::Published(epoch, publication) = event {
                self.hub.deliver(&route.name, key, epoch, &publication);
            }
        }
        self.hub.flush(&mut self.sink);
        self.drain_outputs();
        count
    }

    fn join(&mut self) {
        self.joined += 1;
        let id = format!("0123456789abcdef-0-{}-{}", self.joined, self.joined).into();
        self.presence.observer().joined(&self.channel, &Member { id, info: Some(r#"{"name":"Ann Example"}"#.into()) });
    }

    /// Joins at the fixed rate, and returns when the readers have received all joins.
    fn join_all(&mut self, joins: usize) {
        let (began, mut joined, mut received) = (Instant::now(), 0, 0);
        while received < joins {
            while joined < joins && began.elapsed() >= Duration::from_micros(joined as u64 * 1_000_000 / JOINS_PER_S) {
                self.join();
                joined += 1;
            }
            received += self.turn();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the CPU time of all threads of this process, those that have ended excluded.
fn cpu_us() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let of = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0)
    };
    threads.map(of).sum::<f64>() / 1e3
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn main() {
    println!("readers   CPU us per join   bytes per join and reader");
    for readers in [1, 10, 1000, 100_000] {
        let mut world = World::new();
        world.read(readers);
        world.join_all(100);
        let (before_us, bytes) = (cpu_us(), world.sink.0);
        world.join_all(JOINS);
        let each_us = (cpu_us() - before_us) / JOINS as f64;
        let bytes = (world.sink.0 - bytes) as f64 / JOINS as f64 / readers as f64;
        println!("{readers:>7} {each_us:>17.1} {bytes:>27.0}");
    }
    let mut world = World::new();
    (0..100).for_each(|_| world.join());
    wait(&world, 100);
    let before = resident_bytes();
    (0..MEMBERS).for_each(|_| world.join());
    wait(&world, 100 + MEMBERS as u64);
    let each = (resident_bytes() - before) / MEMBERS as u64;
    println!(
        "{each} bytes per member ({MEMBERS} members of one channel: entry, key and position in the engine and in the list)"
    );
}

fn wait(world: &World, entries: u64) {
    while world.presence.stats().entries < entries {
        std::thread::sleep(Duration::from_millis(5));
    }
}
