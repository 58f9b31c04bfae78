//! Cost that an engine adds to a publication: the time from `append` until it is answered and delivered on another
//! node, one at a time; then with many in flight, and this process's CPU per publication; and the speed of reading a
//! long history, and a state of 100,000 keys, page by page.
//!
//! `cargo bench -p millrace-engine -- memory redis://127.0.0.1:6379` prints a row per URL. With `--durable`, each
//! publication is on disk before it is answered. The CPU of a server is not included.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread::Thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use millrace_engine::{Config, Deliver, Engine, HistoryConfig, open};
use millrace_protocol::{
    ChannelName, Epoch, Kind, NewPublication, Position, Publication, Since,
    session::{Policy, Target},
};
use nix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

const ONE_BY_ONE: u64 = 2000;
const AT_ONCE: u64 = 50_000;
const IN_FLIGHT: usize = 200;
const CHANNELS: usize = 20;
/// Number of publications in the replayed history.
const REPLAYED: usize = 50_000;

/// The newest delivered offset, and the thread that waits for it.
struct Heard(AtomicU64, Thread);

impl Deliver for Heard {
    type Route = ();

    fn route(&self, _: &ChannelName) {}

    fn deliver(&self, (): &(), _: &ChannelName, _: Epoch, publication: &Publication) {
        self.0.store(publication.offset, SeqCst);
        self.1.unpark();
    }

    fn moved(&self, (): &(), _: &ChannelName, _: Position, top: Position) {
        self.0.store(top.offset, SeqCst);
    }

    fn readers(&self, _: &ChannelName) -> u32 {
        0
    }
}

fn main() {
    let durable = std::env::args().any(|argument| argument == "--durable");
    let urls: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let urls = if urls.is_empty() { vec!["memory".to_owned()] } else { urls };
    println!(
        "| engine | answered p50 µs | p99 µs | delivered on another node p50 µs | p99 µs | publications/s | CPU µs each | replayed/s | state of 100,000 keys read in ms | state bytes per key |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for url in urls {
        measure(&runtime, &url, durable);
    }
}

fn measure(runtime: &Runtime, url: &str, durable: bool) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let history = HistoryConfig { count_max: 2 * AT_ONCE as usize, durable, ..HistoryConfig::default() };
    // The log of the state is short, so that most keys are only in the state.
    let state = HistoryConfig { state: true, count_max: 1000, durable, ..HistoryConfig::default() };
    let namespaces = if has_state(url) { [("state".to_owned(), state)].into() } else { Default::default() };
    let config = Config { prefix: format!("bench-{}", std::process::id()), history, namespaces, ..Config::default() };
    let heard = Arc::new(Heard(AtomicU64::new(0), std::thread::current()));
    let here = open(url, config.clone(), heard.clone(), now).expect("the engine opens");
    // The memory engine has no other node.
    let is_shared = url.starts_with("redis") || url.starts_with("nats");
    let there = if is_shared { open(url, config, heard.clone(), now).expect("it opens again") } else { here.clone() };
    let name = ChannelName::parse("bench").expect("a good name");
    there.watch(&Target::Channel(name.clone()), true);
    let limit = millrace_delivery::PageLimit { count: 1, bytes: 1 };
    runtime.block_on(there.page(&name, Since::Now, Policy::Every, limit)).expect("a page");

    let publication = || NewPublication::new(Kind::Text, [b'x'; 100]);
    let (mut answered, mut delivered) = (Vec::new(), Vec::new());
    for round in 0..ONE_BY_ONE + 200 {
        let begin = Instant::now();
        let position = runtime.block_on(here.append(&name, publication())).expect("it is accepted");
        let until_answer = begin.elapsed();
        while heard.0.load(SeqCst) < position.offset {
            assert!(begin.elapsed() < Duration::from_secs(10), "it was not delivered");
            std::thread::park_timeout(Duration::from_millis(10));
        }
        if round >= 200 {
            answered.push(until_answer);
            delivered.push(begin.elapsed());
        }
    }

    let cpu = || Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("a clock"));
    let names: Vec<_> = (0..CHANNELS).map(|i| ChannelName::parse(&format!("bench/{i}")).expect("good")).collect();
    let (begin, cpu_before) = (Instant::now(), cpu());
    runtime.block_on(async {
        let mut flying = futures_util::stream::FuturesUnordered::new();
        for i in 0..AT_ONCE as usize {
            flying.push(here.append(&names[i % CHANNELS], publication()));
            if flying.len() >= IN_FLIGHT {
                futures_util::StreamExt::next(&mut flying).await.expect("there are some").expect("it is accepted");
            }
        }
        while let Some(answer) = futures_util::StreamExt::next(&mut flying).await {
            answer.expect("it is accepted");
        }
    });
    let (took, cpu) = (begin.elapsed(), cpu() - cpu_before);
    let us = |times: &mut Vec<Duration>, per_cent: usize| {
        times.sort();
        times[(times.len() - 1) * per_cent / 100].as_nanos() as f64 / 1000.0
    };
    let (a50, a99) = (us(&mut answered, 50), us(&mut answered, 99));
    let (d50, d99) = (us(&mut delivered, 50), us(&mut delivered, 99));
    let (rate, cpu) = (AT_ONCE as f64 / took.as_secs_f64(), cpu.as_secs_f64() * 1e6 / AT_ONCE as f64);
    let shown = millrace_engine::shown_url(url);
    let replayed = replay(runtime, &*here, &name);
    let (read_ms, key_bytes) = read_state(runtime, &*here).map_or(("-".into(), "-".into()), |(took, bytes)| {
        (format!("{:.0}", took.as_secs_f64() * 1000.0), format!("{bytes:.0}"))
    });
    println!(
        "| {shown} | {a50:.1} | {a99:.1} | {d50:.1} | {d99:.1} | {rate:.0} | {cpu:.1} | {replayed:.0} | {read_ms} | {key_bytes} |"
    );
    here.close();
    there.close();
}

/// Number of keys of the state.
const KEYS: usize = 100_000;

fn has_state(url: &str) -> bool {
    url == "memory" || url.starts_with("sqlite")
}

/// Returns the time to read a state of [`KEYS`] keys with payloads of 100 bytes page by page, and the resident memory of
/// the process that each key takes; `None` if the engine has no states.
fn read_state(runtime: &Runtime, engine: &dyn Engine) -> Option<(Duration, f64)> {
    let name = ChannelName::parse("state/all").expect("a good name");
    let before = resident_bytes();
    for thousand in 0..KEYS / 1000 {
        let put = |i: usize| {
            let key = format!("vehicle-{:06}", 1000 * thousand + i).into();
            engine.append(&name, NewPublication { key: Some(key), ..NewPublication::new(Kind::Text, [b'x'; 100]) })
        };
        runtime.block_on(futures_util::future::try_join_all((0..1000).map(put))).ok()?;
    }
    let bytes = resident_bytes().saturating_sub(before) as f64 / KEYS as f64;
    let limit = millrace_delivery::PageLimit { count: 1000, bytes: 64 * 1024 };
    let (begin, mut since, mut read) = (Instant::now(), Since::State, 0);
    loop {
        let page = runtime.block_on(engine.page(&name, since, Policy::Every, limit)).ok()?;
        read += page.publications.len();
        since = page.next();
        if let Since::Position(_) = since {
            assert_eq!(read, KEYS, "every key once");
            return Some((begin.elapsed(), bytes));
        }
    }
}

/// Returns the resident memory of this process.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

/// Returns the publications per second of reading a channel with at least [`REPLAYED`] publications from its beginning.
fn replay(runtime: &Runtime, engine: &dyn Engine, name: &ChannelName) -> f64 {
    let publication = || NewPublication::new(Kind::Text, [b'x'; 100]);
    let fill = async |count: usize| {
        let appends = (0..count).map(|_| engine.append(name, publication()));
        futures_util::future::try_join_all(appends).await.expect("they are accepted");
    };
    (0..REPLAYED / 1000).for_each(|_| runtime.block_on(fill(1000)));
    // The same limits that a server uses to read for one client.
    let limit = millrace_delivery::PageLimit { count: 1000, bytes: 64 * 1024 };
    let (begin, mut since, mut read) = (Instant::now(), Since::Earliest, 0);
    loop {
        let page = runtime.block_on(engine.page(name, since, Policy::Every, limit)).expect("a page");
        read += page.publications.len();
        since = Since::Position(page.end);
        if page.end == page.top {
            return read as f64 / begin.elapsed().as_secs_f64();
        }
    }
}
