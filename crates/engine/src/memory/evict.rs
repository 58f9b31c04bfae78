//! Making room when all histories together have grown too large: first those of channels that nobody writes to, then the longest.

use std::sync::atomic::Ordering::Relaxed;

use millrace_delivery::History;

use super::{Channel, Deliver, MemoryEngine, channel_bytes, lock};
use crate::Engine;

/// A channel is idle if nothing came for so long.
pub(crate) const IDLE_MS: u64 = 60 * 1000;
/// After a look for channels to forget that found none.
const LOOK_MS: u64 = 1000;

impl<D: Deliver> MemoryEngine<D> {
    /// Brings all histories to 7/8 of what they may take, so that the next time comes only after many publications. Offsets stay: who
    /// wants what is gone is told a gap.
    ///
    /// Cost: O(channels), one stripe locked at a time. A second thread that finds this at work leaves it alone.
    pub(super) fn evict(&self) {
        self.evict_to(self.config.history_bytes_max - self.config.history_bytes_max / 8);
    }

    /// As [`MemoryEngine::evict`], to so many bytes.
    pub(super) fn evict_to(&self, goal: usize) {
        let Ok(_alone) = self.evicting.try_lock() else { return };
        let over = || self.bytes.load(Relaxed).saturating_sub(goal);
        let now_ms = self.now_ms();

        let is_idle = |history: &&History| now_ms.saturating_sub(history.top_time_ms()) >= IDLE_MS;
        let mut idle = self.sizes(|history| is_idle(&history));
        idle.sort_unstable();
        if let Some(until_ms) = up_to(&idle, over()) {
            self.for_each(|history| {
                if over() > 0 && is_idle(&&*history) && history.top_time_ms() <= until_ms {
                    history.shrink(0);
                }
            });
        }
        // Channels themselves, of which nothing is kept any more.
        if over() > 0 {
            self.forget_idle(usize::MAX);
        }
        if over() > 0 {
            let sizes = self.sizes(|_| true).into_iter().map(|(_, bytes)| bytes).collect();
            let level = level(sizes, over());
            self.for_each(|history| {
                if over() > 0 && history.memory_bytes() > level {
                    history.shrink(level);
                }
            });
        }
    }

    /// Makes room for new channels: an eighth of those that there may be, the longest idle first. False if there is none.
    pub(super) fn forget_channels(&self) -> bool {
        let Ok(_alone) = self.evicting.lock() else { return false };
        if self.channels.load(Relaxed) < self.channels_max {
            return true;
        }
        // Nobody shall be able to make this look at all channels all the time.
        let now_ms = self.now_ms();
        if now_ms < self.look_again_ms.load(Relaxed) {
            return false;
        }
        let found = self.forget_idle(self.channels_max / 8 + 1) > 0;
        self.look_again_ms.store(if found { 0 } else { now_ms + LOOK_MS }, Relaxed);
        found
    }

    /// Forgets so many of the channels that nobody reads and nobody writes to, as if they had never been, but for their offsets: no position
    /// is given out twice, and whoever comes back with one is told a gap. Gives how many. Cost: O(channels).
    fn forget_idle(&self, most: usize) -> usize {
        let now_ms = self.now_ms();
        let is_idle = |channel: &Channel<D::Route>| {
            now_ms.saturating_sub(channel.history.top_time_ms()) >= IDLE_MS && self.deliver.readers(&channel.name) == 0
        };
        let mut times = Vec::new();
        for stripe in &self.stripes {
            times.extend(
                lock(stripe).channels.iter().filter(|channel| is_idle(channel)).map(|c| c.history.top_time_ms()),
            );
        }
        if times.is_empty() {
            return 0;
        }
        let last = most.min(times.len()) - 1;
        let until_ms = *times.select_nth_unstable(last).1;
        let mut gone = 0;
        for stripe in &self.stripes {
            let mut stripe = lock(stripe);
            let leaves = |channel: &Channel<D::Route>| channel.history.top_time_ms() <= until_ms && is_idle(channel);
            let left = stripe.extract(leaves, &self.hasher);
            for Channel { name, route, history, .. } in left {
                let mut forgotten = lock(&self.forgotten);
                forgotten.0 = forgotten.0.max(history.top().offset);
                forgotten.1 = forgotten.1.max(history.top_time_ms());
                drop(forgotten);
                self.bytes.fetch_sub(history.memory_bytes() + channel_bytes(&name), Relaxed);
                self.channels.fetch_sub(1, Relaxed);
                self.deliver.forget(&name, route);
                gone += 1;
            }
        }
        gone
    }

    /// When the newest publication came and what the history takes, of those that take something.
    fn sizes(&self, wanted: impl Fn(&History) -> bool) -> Vec<(u64, usize)> {
        let mut sizes = Vec::new();
        self.for_each(|history| {
            if history.memory_bytes() > 0 && wanted(history) {
                sizes.push((history.top_time_ms(), history.memory_bytes()));
            }
        });
        sizes
    }

    fn for_each(&self, mut work: impl FnMut(&mut History)) {
        for stripe in &self.stripes {
            for Channel { history, .. } in &mut lock(stripe).channels {
                self.count(history, &mut work);
            }
        }
    }
}

/// The time up to which histories (oldest first) must go to free so many bytes, or all of them.
pub(crate) fn up_to(oldest_first: &[(u64, usize)], over: usize) -> Option<u64> {
    let mut freed = 0;
    let enough = oldest_first.iter().find(|(_, bytes)| {
        freed += bytes;
        freed >= over
    });
    enough.or(oldest_first.last()).map(|(time_ms, _)| *time_ms)
}

/// The size to which the longest must shrink so that `over` bytes are freed, or a little more.
pub(crate) fn level(mut sizes: Vec<usize>, over: usize) -> usize {
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut longest = 0;
    for (i, size) in sizes.iter().enumerate() {
        longest += size;
        let next = sizes.get(i + 1).copied().unwrap_or(0);
        // All longer ones cut to the next one's size.
        if longest - next * (i + 1) >= over {
            return (longest - over) / (i + 1);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_shrink_to_one_level() {
        assert_eq!(level(vec![10, 50, 100], 30), 70);
        assert_eq!(level(vec![10, 50, 100], 50), 50);
        assert_eq!(level(vec![10, 50, 100], 70), 40);
        assert_eq!(level(vec![10, 50, 100], 130), 10);
        assert_eq!(level(vec![10, 50, 100], 999), 0);
    }

    #[test]
    fn the_oldest_go_until_it_is_enough() {
        let idle = [(1, 10), (2, 10), (5, 10)];
        assert_eq!((up_to(&idle, 1), up_to(&idle, 10), up_to(&idle, 11)), (Some(1), Some(1), Some(2)));
        assert_eq!((up_to(&idle, 99), up_to(&[], 1)), (Some(5), None));
    }

    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize},
    };

    use millrace_protocol::{ChannelName, Code, Epoch, Kind, NewPublication, Position, Publication, Since};

    use crate::{Answer, Config, Engine, Place};

    /// Nobody is told; some channels are read.
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
            self.append_at(&mut Place::default(), name, bytes)
        }

        fn append_at(&self, place: &mut Place, name: &str, bytes: usize) -> Result<u64, Code> {
            let publication = NewPublication::new(Kind::Text, vec![b'x'; bytes]);
            let position = self.engine.append_to_any(place, &ChannelName::parse(name).unwrap(), publication);
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
    fn the_longest_idle_channels_make_room_for_new_ones() {
        let world = World::new(Config { channels_max: 16, ..Config::default() });
        for i in 0..16 {
            assert_eq!((0..=i).map(|_| world.append(&format!("old/{i}"), 10).unwrap()).last(), Some(i + 1));
            world.pass(1);
        }
        assert_eq!(world.append("new", 10), Err(Code::TooMany), "none of them is idle");
        world.readers.read.lock().unwrap().push("old/0".into());
        world.pass(IDLE_MS + LOOK_MS);
        // The first three that nobody reads: an eighth, and one more. No offset of theirs is given out again.
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
            world.engine.read(&name, |history, _| history.page(since, Default::default(), limit, 0, &bounds))
        };
        let back = page("old/2", 3);
        let gap = back.gap.expect("what it had is gone");
        assert_eq!((gap.from.offset, gap.to.offset, back.publications[0].offset), (3, 4, 5));
        assert_eq!(page("old/1", 2).gap.map(|gap| (gap.from.offset, gap.to.offset)), Some((2, 4)));
    }

    #[test]
    fn a_place_leads_to_its_channel_or_nowhere() {
        let world = World::new(Config::default());
        let name = |i: u64| format!("c/{i}");
        let mut places = vec![Place::default(); 200];
        for (i, place) in (0..).zip(&mut places) {
            assert_eq!(world.append_at(place, &name(i), 10), Ok(1));
            world.engine.expect(*place);
        }
        assert!(places.iter().all(|place| place.parts().is_some()));
        // Somebody else's place is of no use, and does no harm.
        assert_eq!(world.append_at(&mut places[1].clone(), "c/0", 10), Ok(2));
        // Every other channel is forgotten: the others come closer together, and the places of all are out of date.
        world.pass(IDLE_MS);
        (0..200).step_by(2).for_each(|i| assert!(world.append(&name(i), 10).is_ok()));
        assert_eq!(world.engine.forget_idle(usize::MAX), 100);
        for (i, place) in (0..).zip(&mut places) {
            world.engine.expect(*place);
            let top = world.engine.newest(&ChannelName::parse(&name(i)).unwrap());
            let Answer::Now(Some(Ok(newest))) = top else { panic!("memory answers at once") };
            for more in 1..=2 {
                assert_eq!(world.append_at(place, &name(i), 10), Ok(newest.top.offset + more), "{i}");
            }
        }
        assert_eq!(world.channels(), 200);
    }

    #[test]
    fn whoever_publishes_again_and_again_shares_the_name() {
        let world = World::new(Config::default());
        let mut names = ["a/b", "a/b", "a/c"].map(|name| ChannelName::parse(name).unwrap());
        for name in &mut names {
            let publication = NewPublication::new(Kind::Text, []);
            let Answer::Now(Some(Ok(_))) = world.engine.append_at(&mut Place::default(), name, publication) else {
                panic!("memory answers at once");
            };
        }
        let [one, other, third] = names.each_ref().map(|name| name.as_str());
        assert_eq!((one, other, third), ("a/b", "a/b", "a/c"));
        assert!(std::ptr::eq(one, other), "nobody has to look at the text to know");
    }

    #[test]
    fn a_million_names_take_no_more_than_all_may() {
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
    fn room_is_made_when_it_is_asked_for() {
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
}
