//! What every engine must keep. Each case runs on every entry of [`ENGINES`].

use std::{
    collections::HashMap,
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use millrace_delivery::PageLimit;
use millrace_engine::{Config, Deliver, ENGINES, Engine, HistoryConfig};
use millrace_protocol::{
    ChannelName, Code, Epoch, Kind, NewPublication, Pattern, Position, Publication, Since, session::Policy,
};

const LIMIT: PageLimit = PageLimit { count: 1000, bytes: 1 << 20 };

/// Remembers what was delivered, per channel.
#[derive(Default)]
struct Delivered(Mutex<HashMap<String, Vec<(Epoch, u64)>>>);

impl Deliver for Delivered {
    type Route = ();

    fn route(&self, _: &ChannelName) {}

    fn deliver(&self, (): &(), channel: &ChannelName, epoch: Epoch, publication: &Arc<Publication>) {
        let mut seen = self.0.lock().unwrap();
        seen.entry(channel.to_string()).or_default().push((epoch, publication.offset));
    }

    fn moved(&self, (): &(), channel: &ChannelName, from: Position, top: Position) {
        panic!("{channel} has moved from {from} to {top}, though nothing was lost");
    }

    fn readers(&self, channel: &ChannelName) -> u32 {
        channel.as_str().len() as u32
    }
}

struct World {
    engine: Arc<dyn Engine>,
    delivered: Arc<Delivered>,
    clock_ms: Arc<AtomicU64>,
}

/// Runs the case once per engine, each with a fresh world.
fn on_every_engine(config: Config, case: impl Fn(&World)) {
    for name in ENGINES {
        let delivered = Arc::new(Delivered::default());
        let clock_ms = Arc::new(AtomicU64::new(1_000_000));
        let clock = clock_ms.clone();
        let url = match *name {
            "memory" => "memory",
            other => panic!("the contract does not know how to start engine {other}"),
        };
        let now = move || clock.load(Ordering::SeqCst);
        let engine = millrace_engine::open(url, config.clone(), delivered.clone(), now).unwrap();
        eprintln!("engine {name}");
        case(&World { engine, delivered, clock_ms });
    }
}

/// Waits for an answer without a runtime; an engine that needs one brings its own threads.
fn wait<T>(answer: impl Future<Output = T>) -> T {
    let mut answer = pin!(answer);
    for _ in 0..10_000_000 {
        if let Poll::Ready(value) = answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
        std::thread::yield_now();
    }
    panic!("no answer");
}

fn channel(name: &str) -> ChannelName {
    ChannelName::parse(name).unwrap()
}

fn text(data: &str) -> NewPublication {
    NewPublication::new(Kind::Text, Bytes::copy_from_slice(data.as_bytes()))
}

impl World {
    fn append(&self, name: &str, publication: NewPublication) -> Position {
        wait(self.engine.append(&channel(name), publication)).unwrap()
    }

    fn publish(&self, name: &str) {
        self.append(name, text("x"));
    }

    fn read(&self, name: &str, since: Since) -> (Option<(Position, Position)>, Vec<u64>) {
        let page = wait(self.engine.page(&channel(name), since, Policy::Every, LIMIT)).unwrap();
        (page.gap.map(|gap| (gap.from, gap.to)), page.publications.iter().map(|p| p.offset).collect())
    }
}

#[test]
fn positions_rise_by_one_and_are_delivered_in_order() {
    on_every_engine(Config::default(), |world| {
        let positions: Vec<_> = (0..5).map(|i| world.append("a/b", text(&i.to_string()))).collect();
        assert_eq!(positions.iter().map(|p| p.offset).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert!(positions.iter().all(|p| p.epoch == positions[0].epoch));
        assert_eq!(world.append("other", text("x")).offset, 1);
        let delivered = world.delivered.0.lock().unwrap();
        assert_eq!(delivered["a/b"], positions.iter().map(|p| (p.epoch, p.offset)).collect::<Vec<_>>());
    });
}

#[test]
fn many_threads_publish_and_order_holds() {
    on_every_engine(Config::default(), |world| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|_| world.publish("busy")));
            }
        });
        let delivered = world.delivered.0.lock().unwrap();
        assert_eq!(
            delivered["busy"].iter().map(|(_, offset)| *offset).collect::<Vec<_>>(),
            (1..=2000).collect::<Vec<_>>()
        );
    });
}

#[test]
fn history_reads_after_any_position() {
    on_every_engine(Config::default(), |world| {
        assert_eq!(world.read("a", Since::Earliest), (None, vec![]));
        let positions: Vec<_> = (0..4).map(|_| world.append("a", text("x"))).collect();
        assert_eq!(world.read("a", Since::Earliest), (None, vec![1, 2, 3, 4]));
        assert_eq!(world.read("a", Since::Position(positions[1])), (None, vec![3, 4]));
        assert_eq!(world.read("a", Since::Now), (None, vec![]));
        let newest = wait(world.engine.newest(&channel("a"))).unwrap();
        assert_eq!((newest.top, newest.publication.unwrap().offset), (positions[3], 4));
    });
}

#[test]
fn bounds_trim_and_the_gap_says_what() {
    let age_max = std::time::Duration::from_secs(5);
    let small = HistoryConfig { count_max: 3, bytes_max: 1000, age_max, ..HistoryConfig::default() };
    let config = Config { namespaces: [("small".to_owned(), small)].into(), ..Config::default() };
    on_every_engine(config, |world| {
        let first = world.append("small/x", text("1"));
        (0..4).for_each(|_| world.publish("small/x"));
        let at = |offset| Position { offset, ..first };
        assert_eq!(world.read("small/x", Since::Position(first)), (Some((first, at(2))), vec![3, 4, 5]));
        (0..5).for_each(|_| world.publish("large/x"));
        assert_eq!(world.read("large/x", Since::Earliest).1.len(), 5);
        world.append("small/x", text(&"x".repeat(990)));
        assert_eq!(world.read("small/x", Since::Earliest), (None, vec![4, 5, 6]));
        world.clock_ms.fetch_add(5000, Ordering::SeqCst);
        world.engine.sweep();
        assert_eq!(world.read("small/x", Since::Position(at(6))), (None, vec![]));
        assert_eq!(world.read("small/x", Since::Position(at(3))), (Some((at(3), at(6))), vec![]));
    });
}

/// The past of all channels together is bounded to what is here a few times 10,000 bytes.
#[test]
fn the_longest_silent_are_forgotten_first() {
    on_every_engine(Config { history_bytes_max: 50_000, ..Config::default() }, |world| {
        let large = || text(&"x".repeat(10_000));
        let first = world.append("old", large());
        world.clock_ms.fetch_add(1000, Ordering::SeqCst);
        world.append("silent", large());
        world.clock_ms.fetch_add(10 * 60 * 1000, Ordering::SeqCst);
        for _ in 0..3 {
            world.append("busy", large());
        }
        let at = |offset| Position { offset, ..first };
        assert_eq!(world.read("old", Since::Position(at(0))), (Some((at(0), at(1))), vec![]));
        assert_eq!(world.read("silent", Since::Earliest), (None, vec![1]), "one was enough");
        assert_eq!(world.read("busy", Since::Earliest), (None, vec![1, 2, 3]));
        assert_eq!(world.append("old", large()), at(2), "positions go on");
        assert_eq!(world.read("old", Since::Position(at(1))), (None, vec![2]));
        assert_eq!(world.read("silent", Since::Position(at(0))), (Some((at(0), at(1))), vec![]));
    });
}

#[test]
fn without_idle_channels_the_longest_lose_their_oldest() {
    on_every_engine(Config { history_bytes_max: 50_000, ..Config::default() }, |world| {
        let first = world.append("short", text(&"x".repeat(1000)));
        for _ in 0..100 {
            world.append("long", text(&"x".repeat(1000)));
        }
        assert_eq!(world.read("short", Since::Position(first)), (None, vec![]));
        assert_eq!(world.read("short", Since::Earliest), (None, vec![1]));
        let (gap, left) = world.read("long", Since::Position(first));
        let (from, to) = gap.expect("the oldest are gone, and that is said");
        assert_eq!((from, to.offset + 1, *left.last().unwrap()), (first, left[0], 100));
        assert!((30..=50).contains(&left.len()), "{left:?}");
        assert!(world.engine.size().1 <= 50_000);
    });
}

#[test]
fn many_threads_stay_within_the_bound_of_all_channels() {
    on_every_engine(Config { history_bytes_max: 100_000, ..Config::default() }, |world| {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for i in 0..500 {
                        world.append(&format!("c/{thread}/{}", i % 50), text(&"x".repeat(500)));
                    }
                });
            }
        });
        world.publish("last");
        assert!(world.engine.size().1 <= 100_000, "{:?}", world.engine.size());
        assert_eq!(world.append("c/0/0", text("x")).offset, 11);
    });
}

#[test]
fn presence_is_what_the_nodes_say() {
    on_every_engine(Config::default(), |world| {
        assert_eq!(wait(world.engine.presence(&channel("seven/7"))), Ok(7));
    });
}

#[test]
fn another_epoch_is_a_gap_and_never_silence() {
    on_every_engine(Config::default(), |world| {
        let here = world.append("a", text("x"));
        let elsewhere = Position { epoch: Epoch(here.epoch.0 ^ 1), offset: 7 };
        let before = Position { offset: 0, ..here };
        assert_eq!(world.read("a", Since::Position(elsewhere)), (Some((elsewhere, before)), vec![1]));
    });
}

#[test]
fn idempotency_keys_publish_once() {
    on_every_engine(Config::default(), |world| {
        let keyed = || NewPublication { idempotency_key: Some("once".into()), ..text("x") };
        let first = world.append("a", keyed());
        assert_eq!(world.append("a", keyed()), first);
        assert_eq!(world.append("b", keyed()).offset, 1, "keys belong to their channel");
        assert_eq!(world.delivered.0.lock().unwrap()["a"].len(), 1);
    });
}

#[test]
fn time_never_falls_and_finds_its_place() {
    on_every_engine(Config::default(), |world| {
        world.append("a", text("1"));
        world.clock_ms.fetch_sub(500, Ordering::SeqCst);
        world.append("a", text("2"));
        world.clock_ms.fetch_add(1000, Ordering::SeqCst);
        world.append("a", text("3"));
        let page = wait(world.engine.page(&channel("a"), Since::Earliest, Policy::Every, LIMIT)).unwrap();
        let times: Vec<_> = page.publications.iter().map(|p| p.time_ms).collect();
        assert_eq!(times, [1_000_000, 1_000_000, 1_000_500]);
        assert_eq!(world.read("a", Since::Time(1_000_001)), (None, vec![3]));
    });
}

#[test]
fn channels_are_found_and_bounded() {
    on_every_engine(Config { channels_max: 4, ..Config::default() }, |world| {
        for name in ["cars/1/telemetry", "cars/2/telemetry", "cars/1/alarm", "x"] {
            world.append(name, text("x"));
        }
        let pattern = Pattern::parse("cars/+/telemetry").unwrap();
        let mut found = wait(world.engine.channels(&pattern, 10)).unwrap();
        found.sort();
        assert_eq!(found, [channel("cars/1/telemetry"), channel("cars/2/telemetry")]);
        assert_eq!(wait(world.engine.channels(&pattern, 1)).unwrap().len(), 1);
        let refused = wait(world.engine.append(&channel("one-more"), text("x"))).unwrap_err();
        assert_eq!(refused.code, Code::TooMany);
    });
}
