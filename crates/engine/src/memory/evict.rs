//! Evicts channels and histories, those of the largest holders first. Eviction makes room for new channels, and frees
//! memory when all histories together exceed their limit.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use millrace_delivery::History;
use millrace_protocol::Holder;

use super::{Channel, Deliver, MemoryEngine, channel_bytes, level, level::Due, lock, up_to};
use crate::{
    Engine,
    shares::{Namespace, victims},
};

/// A channel is idle if nothing was published for this time.
pub(crate) const IDLE_MS: u64 = 60 * 1000;
/// Pause after a scan that found few channels to evict.
const SCAN_PAUSE_MS: u64 = 1000;
/// A scan that frees at least one channel in this many is repeated without a pause.
const SCAN_YIELD: usize = 64;
/// Rounds of one eviction. A holder whose channels all have readers cannot free its part; the next round takes the
/// rest from the other holders.
const ROUNDS: usize = 3;

impl<D: Deliver> MemoryEngine<D> {
    /// Reduces all histories to 7/8 of the limit, so that the next eviction is needed only after many publications.
    /// Offsets continue: a reader that asks for evicted publications gets a gap.
    ///
    /// Cost: O(channels), with one stripe locked at a time. Returns at once if another thread is already evicting.
    pub(super) fn evict(&self) {
        let max = self.config.history_bytes_max;
        if self.evict_again_ms.load(Relaxed) > self.now_ms() {
            return;
        }
        let is_short = self.evict_to(max - max / 8, true);
        // The states of channels with readers stay. They must not cause a scan with every publication.
        if is_short && self.bytes.load(Relaxed) > max && self.has_states() {
            self.evict_again_ms.store(self.now_ms() + SCAN_PAUSE_MS, Relaxed);
        }
    }

    fn has_states(&self) -> bool {
        let has_keys = |channel: &Channel<D::Route>| channel.history.state_keys() > 0;
        self.stripes.iter().any(|stripe| lock(stripe).channels.iter().any(has_keys))
    }

    /// Evicts like [`MemoryEngine::evict`], down to `goal` bytes. The holders with most bytes are reduced to one
    /// common level. Each frees its idle histories first, then its idle channels, then the oldest publications of its
    /// longest histories. With `is_bound`, channels without a reader follow, even if they are not idle. Keyed states
    /// follow last: first idle ones without a reader, then with `is_bound` any without a reader.
    /// Returns true if some holder could not free its part.
    pub(super) fn evict_to(&self, goal: usize, is_bound: bool) -> bool {
        let Ok(_alone) = self.evicting.try_lock() else { return false };
        let mut spent = HashSet::new();
        for _ in 0..ROUNDS {
            let due = self.due(self.bytes.load(Relaxed).saturating_sub(goal), &spent);
            if due.is_empty() {
                break;
            }
            spent.extend(self.free(due, is_bound));
        }
        !spent.is_empty()
    }

    /// Frees the due bytes as far as possible. Returns the holders that could not free all of them.
    fn free(&self, mut due: HashMap<Holder, Due>, is_bound: bool) -> impl Iterator<Item = Holder> + use<D> {
        let now_ms = self.now_ms();
        let is_idle = |history: &History| now_ms.saturating_sub(history.top_time_ms()) >= IDLE_MS;
        let is_read = |channel: &Channel<D::Route>| self.deliver.readers(&channel.name) > 0;
        let whole = |channel: &Channel<D::Route>| channel.history.memory_bytes() + channel_bytes(&channel.name);

        let is_state = |channel: &Channel<D::Route>| channel.history.state_keys() > 0;
        self.set_until(&mut due, |channel| {
            let bytes = log_bytes(&channel.history);
            (bytes > 0 && is_idle(&channel.history)).then_some(bytes)
        });
        self.for_each(|holder, history| {
            if let Some(due) = due.get_mut(&holder)
                && due.takes(history.top_time_ms())
                && is_idle(history)
            {
                let before = history.memory_bytes();
                history.shrink(0);
                due.pay(before.saturating_sub(history.memory_bytes()));
            }
        });
        // The histories of idle channels are empty by now, but the channels themselves use memory, too.
        let is_unread = |channel: &Channel<D::Route>| is_idle(&channel.history) && !is_read(channel);
        let forget_all = |may_go: &dyn Fn(&Channel<D::Route>) -> bool, due: &mut HashMap<Holder, Due>| {
            self.set_until(due, |channel| may_go(channel).then(|| whole(channel)));
            self.forget_due(due, may_go);
        };
        forget_all(&|channel| is_unread(channel) && !is_state(channel), &mut due);
        self.cut_longest(&mut due);
        if is_bound {
            forget_all(&|channel| !is_read(channel) && !is_state(channel), &mut due);
        }
        forget_all(&|channel| is_unread(channel) && is_state(channel), &mut due);
        if is_bound {
            forget_all(&|channel| !is_read(channel) && is_state(channel), &mut due);
        }
        due.into_iter().filter(|(_, due)| due.bytes > 0).map(|(holder, _)| holder)
    }

    /// Returns the bytes that each holder has to free so that `over` bytes are freed in total. Each holder frees what
    /// it has above one common level.
    fn due(&self, over: usize, spent: &HashSet<Holder>) -> HashMap<Holder, Due> {
        if over == 0 {
            return HashMap::new();
        }
        let mut held = HashMap::<Holder, usize>::new();
        for stripe in &self.stripes {
            for channel in lock(stripe).channels.iter().filter(|channel| !spent.contains(&channel.holder)) {
                *held.entry(channel.holder).or_default() +=
                    channel.history.memory_bytes() + channel_bytes(&channel.name);
            }
        }
        let level = level(held.values().copied().collect(), over);
        let due = held.into_iter().filter(|(_, bytes)| *bytes > level);
        due.map(|(holder, bytes)| (holder, Due { bytes: bytes - level, until_ms: None })).collect()
    }

    /// Sets `until_ms` of each holder. Evicting its channels with a cost up to that time, longest idle first, frees
    /// the due bytes.
    fn set_until(&self, due: &mut HashMap<Holder, Due>, cost: impl Fn(&Channel<D::Route>) -> Option<usize>) {
        due.retain(|_, due| due.bytes > 0);
        let mut costs = HashMap::<Holder, Vec<(u64, usize)>>::new();
        if !due.is_empty() {
            for stripe in &self.stripes {
                for channel in lock(stripe).channels.iter().filter(|channel| due.contains_key(&channel.holder)) {
                    if let Some(bytes) = cost(channel) {
                        costs.entry(channel.holder).or_default().push((channel.history.top_time_ms(), bytes));
                    }
                }
            }
        }
        for (holder, due) in due {
            let mut costs = costs.remove(holder).unwrap_or_default();
            costs.sort_unstable();
            due.until_ms = up_to(&costs, due.bytes);
        }
    }

    /// Evicts the channels of holders with due bytes, up to `until_ms`.
    fn forget_due(&self, due: &mut HashMap<Holder, Due>, may_go: impl Fn(&Channel<D::Route>) -> bool) {
        self.forget(|channel| match due.get_mut(&channel.holder) {
            Some(due) if due.takes(channel.history.top_time_ms()) && may_go(channel) => {
                due.pay(channel.history.memory_bytes() + channel_bytes(&channel.name));
                true
            }
            _ => false,
        });
    }

    /// Cuts the longest histories of each holder to one common size that frees the due bytes.
    fn cut_longest(&self, due: &mut HashMap<Holder, Due>) {
        due.retain(|_, due| due.bytes > 0);
        if due.is_empty() {
            return;
        }
        let mut sizes = HashMap::<Holder, Vec<usize>>::new();
        self.for_each(|holder, history| {
            if due.contains_key(&holder) && log_bytes(history) > 0 {
                sizes.entry(holder).or_default().push(log_bytes(history));
            }
        });
        let level = |(holder, sizes)| (holder, level(sizes, due.get(&holder).map_or(0, |due| due.bytes)));
        let levels: HashMap<Holder, usize> = sizes.into_iter().map(level).collect();
        self.for_each(|holder, history| {
            if let (Some(due), Some(level)) = (due.get_mut(&holder), levels.get(&holder))
                && due.bytes > 0
                && log_bytes(history) > *level
            {
                let before = history.memory_bytes();
                history.shrink(*level + history.state_bytes());
                due.pay(before.saturating_sub(history.memory_bytes()));
            }
        });
    }

    /// Makes room for a new channel of `holder`: evicts up to an eighth of the channels. First come idle channels
    /// without a reader, of holders with at least as many channels, the largest holder first. If that frees nothing
    /// and `holder` is below an equal share, channels of the holders above that share are evicted, idle or not.
    /// Returns false if the channel still may not be created.
    pub(super) fn forget_channels(&self, holder: Holder, namespace: Namespace) -> bool {
        let Ok(_alone) = self.evicting.lock() else { return false };
        // A flood of new names must not cause continuous scans of all channels.
        let now_ms = self.now_ms();
        let is_due = |again_ms: &AtomicU64| now_ms >= again_ms.load(Relaxed);
        let found = |again_ms: &AtomicU64, count: usize| {
            let pays = count * SCAN_YIELD >= self.channels_max;
            again_ms.store(if pays { 0 } else { now_ms + SCAN_PAUSE_MS }, Relaxed);
        };
        if !self.may_create(holder, namespace) && is_due(&self.look_again_ms) {
            let count = self.forget_of(self.shares.as_large(holder), 0, IDLE_MS, namespace);
            found(&self.look_again_ms, count);
        }
        if !self.may_create(holder, namespace) && is_due(&self.displace_again_ms) {
            let (share, held) = self.shares.over_share(holder);
            if !held.is_empty() {
                let count = self.forget_of(held, share, 0, namespace);
                found(&self.displace_again_ms, count);
            }
        }
        self.may_create(holder, namespace)
    }

    /// Evicts channels of these holders, but leaves each holder at least `floor` channels. It takes channels without a
    /// reader that are idle for `idle_ms`, in `namespace` or in a namespace with at least as many channels. It takes
    /// keyed states only if `idle_ms` is 0. Returns the number of evicted channels, at most about an eighth of the
    /// maximum. Cost: O(channels).
    fn forget_of(&self, held: HashMap<Holder, usize>, floor: usize, idle_ms: u64, namespace: Namespace) -> usize {
        let now_ms = self.now_ms();
        let least = self.shares.in_namespace(namespace);
        let may_go = |channel: &Channel<D::Route>| {
            held.contains_key(&channel.holder)
                && now_ms.saturating_sub(channel.history.top_time_ms()) >= idle_ms
                && (idle_ms == 0 || channel.history.state_keys() == 0)
                && (channel.namespace == namespace || self.shares.in_namespace(channel.namespace) >= least)
                && self.deliver.readers(&channel.name) == 0
        };
        let mut candidates = Vec::new();
        for stripe in &self.stripes {
            let stripe = lock(stripe);
            let going = stripe.channels.iter().filter(|channel| may_go(channel));
            candidates.extend(going.map(|channel| (channel.holder, channel.history.top_time_ms())));
        }
        let mut victims = victims(candidates, &held, floor, self.channels_max / 8 + 1);
        if victims.is_empty() {
            return 0;
        }
        self.forget(|channel| match victims.get_mut(&channel.holder) {
            Some((until_ms, count)) if *count > 0 && channel.history.top_time_ms() <= *until_ms && may_go(channel) => {
                *count -= 1;
                true
            }
            _ => false,
        })
    }

    /// Evicts channels and remembers only the highest offset among them. So no position is assigned twice, and a
    /// reader that returns with a position of an evicted channel gets a gap. Returns the number of evicted channels.
    /// Cost: O(channels).
    pub(super) fn forget(&self, mut leaves: impl FnMut(&Channel<D::Route>) -> bool) -> usize {
        let mut gone = 0;
        for stripe in &self.stripes {
            let mut stripe = lock(stripe);
            let left = stripe.extract(&mut leaves, &self.hasher);
            for Channel { name, route, history, holder, namespace } in left {
                let mut forgotten = lock(&self.forgotten);
                // A lost state takes an offset. So a reader that was at the top gets a gap, and reads the state again.
                let lost = u64::from(history.state_keys() > 0);
                forgotten.0 = forgotten.0.max(history.top().offset + lost);
                forgotten.1 = forgotten.1.max(history.top_time_ms());
                drop(forgotten);
                self.bytes.fetch_sub(history.memory_bytes() + channel_bytes(&name), Relaxed);
                self.channels.fetch_sub(1, Relaxed);
                self.shares.give_back(holder, namespace);
                self.deliver.forget(&name, route);
                gone += 1;
            }
        }
        gone
    }

    fn for_each(&self, mut work: impl FnMut(Holder, &mut History)) {
        for stripe in &self.stripes {
            for Channel { history, holder, .. } in &mut lock(stripe).channels {
                self.count(history, |history| work(*holder, history));
            }
        }
    }
}

/// Returns the memory of a history without its state.
fn log_bytes(history: &History) -> usize {
    history.memory_bytes() - history.state_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_publications_are_evicted_until_enough() {
        let idle = [(1, 10), (2, 10), (5, 10)];
        assert_eq!((up_to(&idle, 1), up_to(&idle, 10), up_to(&idle, 11)), (Some(1), Some(1), Some(2)));
        assert_eq!((up_to(&idle, 99), up_to(&[], 1)), (Some(5), None));
    }

    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize},
    };

    use millrace_protocol::{ChannelName, Code, Epoch, Holder, Kind, NewPublication, Position, Publication, Since};

    use crate::{Answer, ChannelSlot, Config, Engine};

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
        let Answer::Now(Some(Ok(top))) = world.engine.append(&name, new.clone()) else {
            panic!("memory answers at once")
        };
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
            let Answer::Now(Some(Ok(_))) = world.engine.append_at(&mut ChannelSlot::default(), name, publication)
            else {
                panic!("memory answers at once");
            };
        }
        let [one, other, third] = names.each_ref().map(|name| name.as_str());
        assert_eq!((one, other, third), ("a/b", "a/b", "a/c"));
        assert!(std::ptr::eq(one, other), "nobody has to look at the text to know");
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
        let page =
            world.engine.read(&gone, |history, bounds| history.page(since, Default::default(), limit, 0, bounds));
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
}
