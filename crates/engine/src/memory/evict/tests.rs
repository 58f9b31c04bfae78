use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use millrace_protocol::{ChannelName, Code, Epoch, Holder, Kind, NewPublication, Position, Publication, Since};

use super::{IDLE_MS, SCAN_PAUSE_MS};
use crate::{
    Answer, ChannelSlot, Config, Deliver, Engine,
    memory::{Channel, MemoryEngine},
};

/// Receiver that ignores publications; only the channels in `read` have a reader.
#[derive(Default)]
struct Readers {
    read: Mutex<Vec<String>>,
    forgotten: AtomicUsize,
}

impl Deliver for Readers {
    type Route = ();

    fn route(&self, _: &ChannelName) {}

    fn deliver(&self, (): &(), _: &ChannelName, _: Epoch, _: &Publication) {}

    fn moved(&self, (): &(), _: &ChannelName, _: Position, _: Position) {}

    fn forget(&self, _: &ChannelName, (): ()) {
        self.forgotten.fetch_add(1, Relaxed);
    }

    fn readers(&self, channel: &ChannelName) -> u32 {
        u32::from(self.read.lock().unwrap().iter().any(|read| read == channel.as_str()))
    }
}

struct World {
    engine: MemoryEngine<Readers>,
    readers: Arc<Readers>,
    clock_ms: Arc<AtomicU64>,
}

impl World {
    fn new(config: Config) -> Self {
        let (readers, clock_ms) = (Arc::<Readers>::default(), Arc::new(AtomicU64::new(1_000_000)));
        let clock = clock_ms.clone();
        let engine = MemoryEngine::new(config, Epoch(1), readers.clone(), move || clock.load(Relaxed));
        Self { engine, readers, clock_ms }
    }

    fn append(&self, name: &str, bytes: usize) -> Result<u64, Code> {
        self.append_at(&mut ChannelSlot::default(), name, bytes)
    }

    fn append_by(&self, holder: u32, name: &str, bytes: usize) -> Result<u64, Code> {
        self.append_as(Holder::new(holder), &mut ChannelSlot::default(), name, bytes)
    }

    fn append_at(&self, slot: &mut ChannelSlot, name: &str, bytes: usize) -> Result<u64, Code> {
        self.append_as(Holder::NONE, slot, name, bytes)
    }

    fn append_as(&self, holder: Holder, slot: &mut ChannelSlot, name: &str, bytes: usize) -> Result<u64, Code> {
        let publication = NewPublication::new(Kind::Text, vec![b'x'; bytes]).held_by(holder);
        let position = now(self.engine.append_to_any(slot, &ChannelName::parse(name).unwrap(), publication));
        position.map(|position| position.offset).map_err(|error| error.code)
    }

    fn pass(&self, ms: u64) {
        self.clock_ms.fetch_add(ms, Relaxed);
    }

    fn channels(&self) -> usize {
        self.engine.size().0
    }
}

#[test]
fn longest_idle_channels_are_evicted_first() {
    let world = World::new(Config { channels_max: 16, ..Config::default() });
    for i in 0..16 {
        assert_eq!((0..=i).map(|_| world.append(&format!("old/{i}"), 10).unwrap()).last(), Some(i + 1));
        world.pass(1);
    }
    assert_eq!(world.append("new", 10), Err(Code::TooMany), "none of them is idle");
    world.readers.read.lock().unwrap().push("old/0".into());
    world.pass(IDLE_MS + SCAN_PAUSE_MS);
    // The first three channels without a reader are evicted: an eighth, plus one. Their offsets are not assigned
    // again.
    assert_eq!(world.append("new", 10), Ok(5));
    assert_eq!((world.channels(), world.readers.forgotten.load(Relaxed)), (14, 3));
    assert_eq!(
        (world.append("old/0", 10), world.append("old/4", 10), world.append("old/2", 10)),
        (Ok(2), Ok(6), Ok(5))
    );
    let page = |name: &str, offset| {
        let (bounds, name) = (world.engine.bounds[0], ChannelName::parse(name).unwrap());
        let since = Since::Position(Position { epoch: Epoch(1), offset });
        let limit = millrace_delivery::PageLimit { count: 10, bytes: 1000 };
        world.engine.read(&name, |history, _| history.page(since, Default::default(), limit, 0, &bounds)).unwrap()
    };
    let back = page("old/2", 3);
    let gap = back.gap.expect("what it had is gone");
    assert_eq!((gap.from.offset, gap.to.offset, back.publications[0].offset), (3, 4, 5));
    assert_eq!(page("old/1", 2).gap.map(|gap| (gap.from.offset, gap.to.offset)), Some((2, 4)));
}

#[test]
fn lost_state_is_a_gap_for_its_reader() {
    let state = crate::HistoryConfig { state: true, ..Default::default() };
    let world = World::new(Config { history: state, ..Config::default() });
    let name = ChannelName::parse("a").unwrap();
    let new = NewPublication { key: Some("k".into()), ..NewPublication::new(Kind::Text, "x") };
    let Answer::Now(Some(Ok(top))) = world.engine.append(&name, new.clone()) else { panic!("memory answers at once") };
    assert_eq!(world.engine.forget(|_| true), 1);
    let page = |since| {
        let limit = millrace_delivery::PageLimit { count: 10, bytes: 1000 };
        let Answer::Now(Some(Ok(page))) = world.engine.page(&name, since, Default::default(), limit) else {
            panic!("memory answers at once")
        };
        page
    };
    assert!(page(Since::StateOr(top)).gap.is_some(), "the reader was at the top");
    let place = Since::StateAfter { epoch: top.epoch, offset: 1, began: 1 };
    assert!(page(place).gap.is_some() && page(Since::State).publications.is_empty());
    let Answer::Now(Some(Ok(next))) = world.engine.append(&name, new) else { panic!("memory answers at once") };
    assert_eq!(next.offset, 3, "the lost state has taken an offset");
}

#[test]
fn slot_resolves_to_its_channel_or_nothing() {
    let world = World::new(Config::default());
    let name = |i: u64| format!("c/{i}");
    let mut slots = vec![ChannelSlot::default(); 200];
    for (i, slot) in (0..).zip(&mut slots) {
        assert_eq!(world.append_at(slot, &name(i), 10), Ok(1));
        world.engine.expect(*slot);
    }
    assert!(slots.iter().all(|slot| slot.parts().is_some()));
    // A slot of another channel is ignored.
    assert_eq!(world.append_at(&mut slots[1].clone(), "c/0", 10), Ok(2));
    // Evicting every other channel moves the remaining ones, so all places are stale.
    world.pass(IDLE_MS);
    (0..200).step_by(2).for_each(|i| assert!(world.append(&name(i), 10).is_ok()));
    let unwritten = |channel: &Channel<()>| channel.history.top_time_ms() == 1_000_000;
    assert_eq!(world.engine.forget(unwritten), 100);
    for (i, slot) in (0..).zip(&mut slots) {
        world.engine.expect(*slot);
        let top = world.engine.newest(&ChannelName::parse(&name(i)).unwrap());
        let Answer::Now(Some(Ok(newest))) = top else { panic!("memory answers at once") };
        for more in 1..=2 {
            assert_eq!(world.append_at(slot, &name(i), 10), Ok(newest.top.offset + more), "{i}");
        }
    }
    assert_eq!(world.channels(), 200);
}

#[test]
fn repeated_publisher_shares_channel_name() {
    let world = World::new(Config::default());
    let mut names = ["a/b", "a/b", "a/c"].map(|name| ChannelName::parse(name).unwrap());
    for name in &mut names {
        let publication = NewPublication::new(Kind::Text, []);
        let Answer::Now(Some(Ok(_))) = world.engine.append_at(&mut ChannelSlot::default(), name, publication) else {
            panic!("memory answers at once");
        };
    }
    let [one, other, third] = names.each_ref().map(|name| name.as_str());
    assert_eq!((one, other, third), ("a/b", "a/b", "a/c"));
    assert!(std::ptr::eq(one, other), "equal names are one allocation");
}

#[test]
fn million_names_stay_within_channel_limit() {
    let config = Config { history_bytes_max: 4 << 20, ..Config::default() };
    let world = World::new(config);
    let refused = (0..1_000_000).filter(|i| {
        if i % 1000 == 0 {
            world.pass(1000);
        }
        world.append(&format!("random/{i}"), 10).is_err()
    });
    assert!(refused.count() > 0, "they come faster than channels become idle");
    let bytes = world.engine.bytes.load(Relaxed);
    assert!(bytes <= 4 << 20 && world.channels() <= 4096, "{bytes} bytes, {} channels", world.channels());
    world.pass(10 * IDLE_MS);
    assert!(world.append("honest", 10).is_ok());
}

#[test]
fn make_room_frees_requested_bytes() {
    let world = World::new(Config::default());
    for i in 0..100 {
        world.append(&format!("c/{i}"), 1000).unwrap();
    }
    let before = world.engine.bytes.load(Relaxed);
    world.engine.make_room(before / 2);
    assert!(world.engine.bytes.load(Relaxed) <= before / 2 + 1000 && world.channels() == 100);
    world.pass(IDLE_MS);
    world.engine.make_room(usize::MAX);
    assert_eq!((world.engine.bytes.load(Relaxed), world.channels()), (0, 0));
    assert_eq!(world.append("c/0", 1000), Ok(2));
}

/// Creates channels until this holder is refused. Returns the number of channels created.
fn flood(world: &World, holder: u32, prefix: &str) -> usize {
    let append = |i| {
        world.pass(1);
        world.append_by(holder, &format!("{prefix}/{i}"), 10)
    };
    (0..).take_while(|i| append(*i).is_ok()).count()
}

#[test]
fn flooding_holder_leaves_room_immediately() {
    let world = World::new(Config { channels_max: 9000, reserved: vec!["rooms".into()], ..Config::default() });
    assert_eq!(flood(&world, 1, "flood"), 8000);
    for holder in 2..102 {
        assert_eq!(world.append_by(holder, &format!("honest/{holder}"), 10), Ok(1));
        assert_eq!(world.append_by(holder, &format!("rooms/{holder}/chat"), 10), Ok(1));
        assert_eq!(world.append_by(1, &format!("flood/again/{holder}"), 10), Err(Code::TooMany));
    }
    // The holder can still publish into its channels. Once they are idle, its own oldest channels make room for
    // its new ones.
    assert_eq!(world.append_by(1, "flood/7", 10), Ok(2));
    world.pass(IDLE_MS + SCAN_PAUSE_MS);
    assert!(world.append_by(1, "flood/more", 10).is_ok());
    assert_eq!((2..102).filter(|i| world.append_by(*i, &format!("honest/{i}"), 10) != Ok(2)).count(), 0);
}

#[test]
fn holder_below_share_displaces_holder_above() {
    let world = World::new(Config { channels_max: 900, ..Config::default() });
    world.readers.read.lock().unwrap().extend((0..10).map(|i| format!("flood/{i}")));
    assert_eq!(flood(&world, 1, "flood"), 800);
    let before = world.append_by(1, "flood/20", 10);
    assert_eq!(before, Ok(2));
    // No channel is idle. The second holder gets up to half: the first holder loses the channels above that share
    // that have no reader.
    let second = flood(&world, 2, "second");
    assert!((400..=450).contains(&second), "{second}");
    assert!(world.channels() <= 900);
    assert!((0..10).all(|i| world.append_by(1, &format!("flood/{i}"), 10) == Ok(2)), "they are read");
    // Both holders have their share, and neither displaces the other.
    assert_eq!(world.append_by(1, "flood/once-more", 10), Err(Code::TooMany));
    // A reader of an evicted channel gets a gap, and no position is assigned to two publications.
    let gone = ChannelName::parse("flood/21").unwrap();
    let limit = millrace_delivery::PageLimit { count: 10, bytes: 1000 };
    let since = Since::Position(Position { epoch: Epoch(1), offset: 0 });
    let page = world.engine.read(&gone, |history, bounds| history.page(since, Default::default(), limit, 0, bounds));
    let page = page.unwrap();
    assert_eq!(page.gap.map(|gap| (gap.from.offset, gap.to.offset)), Some((0, 1)));
    assert_eq!(world.append_by(3, "flood/21", 10), Ok(2));
}

#[test]
fn namespace_flood_by_many_holders_leaves_room() {
    let world = World::new(Config { channels_max: 3300, reserved: vec!["rooms".into()], ..Config::default() });
    let refused = (1..4000).filter(|i| world.append_by(*i, &format!("x/{i}"), 10).is_err()).count();
    assert_eq!((world.channels(), refused), (3200, 799));
    assert!((1..20).all(|i| world.append_by(5000 + i, &format!("rooms/{i}/chat"), 10).is_ok()));
}

#[test]
fn largest_holder_loses_bytes_first() {
    let world = World::new(Config { history_bytes_max: 1 << 20, ..Config::default() });
    for i in 0..100 {
        assert_eq!(world.append_by(2, "honest/a", 100), Ok(i + 1));
    }
    world.pass(IDLE_MS);
    let append = |name: ChannelName, publication| {
        let appended = world.engine.append_and_evict(&mut ChannelSlot::default(), &name, publication);
        now(appended).map(|position| position.offset)
    };
    let bytes = || world.engine.bytes.load(Relaxed);
    let kept = |name: &str| {
        let limit = millrace_delivery::PageLimit { count: 1000, bytes: 1 << 20 };
        let count = world.engine.read(&ChannelName::parse(name).unwrap(), |history, bounds| {
            history.page(Since::Earliest, Default::default(), limit, 0, bounds).publications.len()
        });
        count.unwrap()
    };
    assert!((0..3000).all(|i| append(name("flood", i % 500), by(1, 2000)).is_ok()));
    assert!(bytes() <= 1 << 20);
    assert_eq!(kept("honest/a"), 100, "it is idle, and small");
    // Channels with long names use more memory than their histories. They are evicted, too, although none of them
    // is idle.
    let long = "n".repeat(200);
    let names = (0..).take_while(|i| append(name(&long, *i), by(1, 0)).is_ok()).count();
    assert!((0..150).all(|i| append(name("honest", 1), by(2, 2000)) == Ok(i + 1)));
    assert_eq!((kept("honest/a"), kept("honest/1")), (100, 150));
    assert!(bytes() <= 1 << 20 && names > 300, "{} bytes, {names} names", bytes());
}

/// Returns an answer of the memory engine, which is ready at once.
fn now<T>(answer: Answer<T>) -> T {
    match answer {
        Answer::Now(Some(value)) => value,
        _ => panic!("the answer is not ready"),
    }
}

fn name(prefix: &str, i: u64) -> ChannelName {
    ChannelName::parse(&format!("{prefix}/{i}")).unwrap()
}

fn by(holder: u32, bytes: usize) -> NewPublication {
    NewPublication::new(Kind::Text, vec![b'x'; bytes]).held_by(Holder::new(holder))
}
