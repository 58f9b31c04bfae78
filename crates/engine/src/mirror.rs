//! Recent publications of every channel that this node watches: the newest part of each log, without gaps. Readers
//! that reconnect recover from here without a request to the backend, also while the backend does not answer.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_delivery::{Bounds, History, Page, PageLimit};
use millrace_protocol::{ChannelName, Epoch, Position, Publication, Since, session::Policy};

use crate::{Config, Deliver, Newest};

/// Maximum publications and bytes per channel. Older history is requested from the backend.
const COUNT_MAX: usize = 1000;
const BYTES_MAX: usize = 1 << 20;
/// Maximum number of publications per channel that wait for a missing earlier publication.
const AHEAD_MAX: usize = 64;

pub(crate) struct Mirror<D: Deliver> {
    deliver: Arc<D>,
    config: Config,
    channels: Mutex<Channels<D::Route>>,
}

struct Channels<R> {
    by_name: HashMap<ChannelName, MirroredChannel<R>>,
    /// Memory used by all histories, in bytes.
    bytes: usize,
    /// Channels with a missing publication, each with the position before the gap; see [`Mirror::holes`].
    holes: Vec<(ChannelName, Position)>,
}

struct MirroredChannel<R> {
    route: R,
    bounds: Bounds,
    /// `None` until a publication is received or the end of the log is known.
    history: Option<History>,
    /// Publications received ahead of a missing earlier one, by offset. They belong to the epoch of `history`.
    ahead: BTreeMap<u64, Publication>,
    /// True if no publication can have been missed since [`Mirror::join`].
    is_joined: bool,
}

impl<D: Deliver> Mirror<D> {
    pub fn new(config: Config, deliver: Arc<D>) -> Self {
        let channels = Channels { by_name: HashMap::new(), bytes: 0, holes: Vec::new() };
        Self { deliver, config, channels: Mutex::new(channels) }
    }

    /// Starts to keep a channel.
    pub fn open(&self, name: &ChannelName) {
        let bounds = self.config.bounds(name);
        let bounds =
            Bounds { count_max: bounds.count_max.min(COUNT_MAX), bytes_max: bounds.bytes_max.min(BYTES_MAX), ..bounds };
        let route = || self.deliver.route(name);
        let mirrored =
            || MirroredChannel { route: route(), bounds, history: None, ahead: BTreeMap::new(), is_joined: false };
        self.lock().by_name.entry(name.clone()).or_insert_with(mirrored);
    }

    /// Stops keeping a channel and frees its history.
    pub fn close(&self, name: &ChannelName) {
        let mut channels = self.lock();
        if let Some(MirroredChannel { history: Some(history), .. }) = channels.by_name.remove(name) {
            channels.bytes -= history.memory_bytes();
        }
    }

    /// Marks a channel as complete: this node receives all publications from a moment before the log ended at `top`.
    /// Reports the publications missed before to the readers.
    pub fn join(&self, name: &ChannelName, top: Position, now_ms: u64) {
        self.change(name, |deliver, mirrored| {
            mirrored.is_joined = true;
            let known = mirrored.history.as_ref().map(History::top);
            if known.is_some_and(|known| known.epoch == top.epoch && known.offset >= top.offset) {
                return;
            }
            if let Some(known) = known {
                deliver.moved(&mirrored.route, name, known, top);
            }
            mirrored.history = Some(History::after(top));
            let is_same = known.is_some_and(|known| known.epoch == top.epoch);
            mirrored.ahead.retain(|offset, _| is_same && *offset > top.offset);
            mirrored.close_ranks(deliver, name, now_ms);
        });
    }

    /// Marks all channels as incomplete: publications may be missed from now on. Each channel has to be joined again.
    pub fn part(&self) {
        self.lock().by_name.values_mut().for_each(|mirrored| mirrored.is_joined = false);
    }

    /// Marks one channel as incomplete: its publications may be missed from now on.
    pub fn part_one(&self, name: &ChannelName) {
        self.part_or_join(name, false);
    }

    /// Receives a publication and delivers it unless it is already known. A publication that is ahead of a missing one
    /// waits for it, see [`Mirror::give_up`]. If `is_matched` (a pattern that this node reads matches the channel),
    /// the channel is kept from its first publication on.
    ///
    /// Returns true if the publication is the first that waits in this channel.
    pub fn receive(
        &self,
        name: &ChannelName,
        epoch: Epoch,
        publication: Publication,
        now_ms: u64,
        is_matched: bool,
    ) -> bool {
        if is_matched && self.top(name).is_none() {
            self.open(name);
            self.part_or_join(name, true);
        }
        let hole = self.change(name, |deliver, mirrored| {
            let before = Position { epoch, offset: publication.offset - 1 };
            let known = mirrored.history.get_or_insert_with(|| History::after(before)).top();
            if known.epoch == epoch && known.offset > before.offset {
                return None;
            }
            if known.epoch == epoch && known != before {
                let is_new = mirrored.ahead.insert(publication.offset, publication.clone()).is_none();
                if !mirrored.is_joined || mirrored.ahead.len() > AHEAD_MAX {
                    mirrored.pass_hole(deliver, name, now_ms);
                }
                return (is_new && mirrored.ahead.len() == 1).then_some(known);
            }
            if known.epoch != epoch {
                mirrored.pass_hole(deliver, name, now_ms);
            }
            mirrored.pass(deliver, name, epoch, &publication, now_ms);
            mirrored.close_ranks(deliver, name, now_ms);
            None
        });
        match hole {
            None => self.deliver.deliver(&self.deliver.route(name), name, epoch, &publication),
            Some(None) => {}
            Some(Some(before)) => self.lock().holes.push((name.clone(), before)),
        }
        matches!(hole, Some(Some(_)))
    }

    /// Returns the channels in which a publication waits for a missing one, each with the position before the gap.
    /// Each gap is returned once.
    pub fn holes(&self) -> Vec<(ChannelName, Position)> {
        std::mem::take(&mut self.lock().holes)
    }

    /// Gives up the missing publication after `before`, if it is still missing. Delivers the waiting publications; the
    /// readers fetch the missing ones. If the channel now waits for a different publication, that gap is recorded as a
    /// new one.
    ///
    /// Returns true if a publication is lost.
    pub fn give_up(&self, name: &ChannelName, before: Position, now_ms: u64) -> bool {
        let top = self.change(name, |deliver, mirrored| {
            let top = mirrored.history.as_ref().map(History::top).filter(|_| !mirrored.ahead.is_empty())?;
            if top == before {
                mirrored.pass_hole(deliver, name, now_ms);
            }
            Some(top)
        });
        match top.flatten() {
            Some(top) if top != before => self.lock().holes.push((name.clone(), top)),
            _ => {}
        }
        top.flatten() == Some(before)
    }

    /// Returns a page if the mirror covers all of it.
    ///
    /// While a channel is not joined, its newest publications may be missing here. `is_down` allows the answer anyway,
    /// because the backend cannot supply them either.
    pub fn page(
        &self,
        name: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
        now_ms: u64,
        is_down: bool,
    ) -> Option<Page> {
        self.change(name, |_, mirrored| {
            let history = mirrored.history.as_mut().filter(|_| mirrored.is_joined || is_down)?;
            history.trim(now_ms, &mirrored.bounds);
            history.covers(since).then(|| history.page(since, policy, limit, now_ms, &mirrored.bounds))
        })?
    }

    /// Returns the newest publication if the mirror has it.
    pub fn newest(&self, name: &ChannelName, now_ms: u64, is_down: bool) -> Option<Newest> {
        self.change(name, |_, mirrored| {
            let history = mirrored.history.as_mut().filter(|_| mirrored.is_joined || is_down)?;
            history.trim(now_ms, &mirrored.bounds);
            let newest = history.newest().filter(|newest| !newest.is_expired(now_ms)).cloned();
            newest.map(|publication| Newest { top: history.top(), publication: Some(publication) })
        })?
    }

    /// Returns the last known position of the log. `None` if the channel is not kept, or its position is unknown.
    pub fn top(&self, name: &ChannelName) -> Option<Position> {
        self.lock().by_name.get(name)?.history.as_ref().map(History::top)
    }

    pub fn is_joined(&self, name: &ChannelName) -> bool {
        self.lock().by_name.get(name).is_some_and(|mirrored| mirrored.is_joined)
    }

    pub fn names(&self) -> Vec<ChannelName> {
        self.lock().by_name.keys().cloned().collect()
    }

    /// Returns the number of channels kept, and the bytes of their payloads and keys.
    pub fn size(&self) -> (usize, usize) {
        let channels = self.lock();
        let histories = channels.by_name.values().filter_map(|mirrored| mirrored.history.as_ref());
        (channels.by_name.len(), histories.map(History::bytes).sum())
    }

    /// Drops expired publications. Halves every history if all together exceed the limit.
    pub fn sweep(&self, now_ms: u64) {
        let mut channels = self.lock();
        let is_full = channels.bytes > self.config.history_bytes_max;
        let mut bytes = 0;
        for MirroredChannel { bounds, history, .. } in channels.by_name.values_mut() {
            let Some(history) = history else { continue };
            history.trim(now_ms, bounds);
            if is_full {
                history.shrink(history.memory_bytes() / 2);
            }
            bytes += history.memory_bytes();
        }
        channels.bytes = bytes;
    }

    fn part_or_join(&self, name: &ChannelName, is_joined: bool) {
        self.change(name, |_, mirrored| mirrored.is_joined = is_joined);
    }

    /// Runs `work` on a channel, if it is kept, and updates the sum of the memory of all histories.
    fn change<T>(&self, name: &ChannelName, work: impl FnOnce(&D, &mut MirroredChannel<D::Route>) -> T) -> Option<T> {
        let mut channels = self.lock();
        let mirrored = channels.by_name.get_mut(name)?;
        let bytes = |mirrored: &MirroredChannel<D::Route>| mirrored.history.as_ref().map_or(0, History::memory_bytes);
        let before = bytes(mirrored);
        let result = work(&self.deliver, mirrored);
        let after = bytes(mirrored);
        channels.bytes = channels.bytes + after - before;
        Some(result)
    }

    fn lock(&self) -> MutexGuard<'_, Channels<D::Route>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> MirroredChannel<R> {
    /// Delivers a publication and stores it.
    fn pass<D: Deliver<Route = R>>(
        &mut self,
        deliver: &D,
        name: &ChannelName,
        epoch: Epoch,
        publication: &Publication,
        now_ms: u64,
    ) {
        deliver.deliver(&self.route, name, epoch, publication);
        let before = Position { epoch, offset: publication.offset - 1 };
        let history = self.history.get_or_insert_with(|| History::after(before));
        if history.top() != before {
            // Publications are missing, or the epoch is new. The readers fetch the missing ones, and the history here
            // starts again.
            *history = History::after(before);
        }
        history.adopt(publication.clone(), now_ms, &self.bounds);
    }

    /// Delivers the waiting publications that directly follow the end of the history.
    fn close_ranks<D: Deliver<Route = R>>(&mut self, deliver: &D, name: &ChannelName, now_ms: u64) {
        while let (Some(top), Some(next)) = (self.history.as_ref().map(History::top), self.ahead.first_entry())
            && *next.key() == top.offset + 1
        {
            let publication = next.remove();
            self.pass(deliver, name, top.epoch, &publication, now_ms);
        }
    }

    /// Delivers all waiting publications, although earlier ones are missing.
    fn pass_hole<D: Deliver<Route = R>>(&mut self, deliver: &D, name: &ChannelName, now_ms: u64) {
        let ahead = std::mem::take(&mut self.ahead);
        if let Some(epoch) = self.history.as_ref().map(|history| history.top().epoch) {
            ahead.values().for_each(|publication| self.pass(deliver, name, epoch, publication, now_ms));
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{Kind, PublicationHead};

    use super::*;

    const LIMIT: PageLimit = PageLimit { count: 100, bytes: 1 << 20 };

    /// Recorded calls in order: `d` delivered, `m` moved, with epoch and offset.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<(char, u32, u64)>>);

    impl Deliver for Recorder {
        type Route = ();

        fn route(&self, _: &ChannelName) {}

        fn deliver(&self, (): &(), _: &ChannelName, epoch: Epoch, publication: &Publication) {
            self.0.lock().unwrap().push(('d', epoch.0, publication.offset));
        }

        fn moved(&self, (): &(), _: &ChannelName, _: Position, top: Position) {
            self.0.lock().unwrap().push(('m', top.epoch.0, top.offset));
        }

        fn readers(&self, _: &ChannelName) -> u32 {
            0
        }
    }

    fn mirror() -> (Mirror<Recorder>, Arc<Recorder>, ChannelName) {
        let recorder = Arc::new(Recorder::default());
        (Mirror::new(Config::default(), recorder.clone()), recorder, ChannelName::parse("a").unwrap())
    }

    fn at(epoch: u32, offset: u64) -> Position {
        Position { epoch: Epoch(epoch), offset }
    }

    fn receive(
        mirror: &Mirror<Recorder>,
        name: &ChannelName,
        Position { epoch, offset }: Position,
        is_matched: bool,
    ) -> bool {
        let head = PublicationHead {
            offset,
            time_ms: 5,
            key: None,
            expires_ms: None,
            is_traced: false,
            kind: Kind::Text,
            is_deletion: false,
        };
        mirror.receive(name, epoch, Publication::new(head, b"x"), 5, is_matched)
    }

    fn page(mirror: &Mirror<Recorder>, name: &ChannelName, since: Position, is_down: bool) -> Option<Vec<u64>> {
        let page = mirror.page(name, Since::Position(since), Policy::Every, LIMIT, 5, is_down)?;
        Some(page.publications.iter().map(|publication| publication.offset).collect())
    }

    fn take(recorder: &Recorder) -> Vec<(char, u32, u64)> {
        std::mem::take(&mut recorder.0.lock().unwrap())
    }

    #[test]
    fn joined_channel_serves_received_publications() {
        let (mirror, all, name) = mirror();
        mirror.open(&name);
        assert_eq!(page(&mirror, &name, at(1, 4), false), None, "nothing is known yet");
        receive(&mirror, &name, at(1, 5), false);
        assert_eq!(page(&mirror, &name, at(1, 4), false), None, "more may have come before it was joined");
        mirror.join(&name, at(1, 5), 5);
        receive(&mirror, &name, at(1, 6), false);
        receive(&mirror, &name, at(1, 6), false);
        assert_eq!(page(&mirror, &name, at(1, 4), false), Some(vec![5, 6]));
        assert_eq!(page(&mirror, &name, at(1, 3), false), None, "that is further back");
        assert_eq!(page(&mirror, &name, at(2, 6), false), None, "that is another epoch");
        assert_eq!(mirror.newest(&name, 5, false).unwrap().top, at(1, 6));
        assert_eq!(take(&all), [('d', 1, 5), ('d', 1, 6)]);
    }

    #[test]
    fn missed_publications_are_reported_at_join() {
        let (mirror, all, name) = mirror();
        mirror.open(&name);
        mirror.join(&name, at(1, 0), 5);
        receive(&mirror, &name, at(1, 1), false);
        mirror.part();
        assert_eq!(page(&mirror, &name, at(1, 0), false), None);
        assert_eq!(page(&mirror, &name, at(1, 0), true), Some(vec![1]), "nobody could tell more");
        mirror.join(&name, at(1, 1), 5);
        assert_eq!(take(&all), [('d', 1, 1)], "nothing was missed");
        mirror.part();
        mirror.join(&name, at(1, 3), 5);
        assert_eq!(take(&all), [('m', 1, 3)]);
        receive(&mirror, &name, at(1, 3), false);
        assert_eq!(take(&all), [], "it comes late, and is known");
        assert_eq!(page(&mirror, &name, at(1, 1), false), None, "there is a hole before");
        assert_eq!(page(&mirror, &name, at(1, 3), false), Some(vec![]));
        mirror.join(&name, at(9, 1), 5);
        receive(&mirror, &name, at(9, 2), false);
        assert_eq!(take(&all), [('m', 9, 1), ('d', 9, 2)], "another epoch");
    }

    #[test]
    fn early_publication_waits_for_missing_one() {
        let (mirror, all, name) = mirror();
        mirror.open(&name);
        mirror.join(&name, at(1, 0), 5);
        let first: Vec<_> =
            [1, 4, 3, 4, 6].into_iter().map(|offset| receive(&mirror, &name, at(1, offset), false)).collect();
        assert_eq!(first, [false, true, false, false, false]);
        assert_eq!(take(&all), [('d', 1, 1)]);
        assert_eq!(mirror.holes(), [(name.clone(), at(1, 1))]);
        receive(&mirror, &name, at(1, 2), false);
        assert_eq!(take(&all), [('d', 1, 2), ('d', 1, 3), ('d', 1, 4)]);
        assert!(!mirror.give_up(&name, at(1, 1), 5), "it has come; what is missing now is another one");
        assert_eq!(mirror.holes(), [(name.clone(), at(1, 4))]);
        receive(&mirror, &name, at(1, 5), false);
        assert_eq!(take(&all), [('d', 1, 5), ('d', 1, 6)]);
        assert_eq!(page(&mirror, &name, at(1, 0), false), Some(vec![1, 2, 3, 4, 5, 6]));
    }

    #[test]
    fn abandoned_gap_restarts_mirror() {
        let (mirror, all, name) = mirror();
        mirror.open(&name);
        mirror.join(&name, at(1, 0), 5);
        for offset in [1, 2, 5] {
            receive(&mirror, &name, at(1, offset), false);
        }
        assert!(mirror.give_up(&name, at(1, 2), 5));
        assert!(!mirror.give_up(&name, at(1, 2), 5));
        assert_eq!(take(&all), [('d', 1, 1), ('d', 1, 2), ('d', 1, 5)]);
        assert_eq!(page(&mirror, &name, at(1, 2), false), None);
        assert_eq!(page(&mirror, &name, at(1, 4), false), Some(vec![5]));
        // Publications wait only up to a limit, only in a joined channel, and not across epochs.
        for i in 0..=AHEAD_MAX as u64 {
            receive(&mirror, &name, at(1, 7 + i), false);
        }
        let (end, all_of_them) = (7 + AHEAD_MAX as u64, take(&all));
        assert!(all_of_them.iter().map(|(_, _, offset)| *offset).eq(7..=end), "{all_of_them:?}");
        mirror.part();
        receive(&mirror, &name, at(1, end + 2), false);
        assert_eq!(take(&all), [('d', 1, end + 2)]);
        mirror.join(&name, at(1, end + 2), 5);
        receive(&mirror, &name, at(1, end + 4), false);
        receive(&mirror, &name, at(2, 1), false);
        assert_eq!(take(&all), [('d', 1, end + 4), ('d', 2, 1)]);
    }

    #[test]
    fn waiting_publications_follow_reported_move() {
        let (mirror, all, name) = mirror();
        mirror.open(&name);
        mirror.join(&name, at(1, 0), 5);
        for offset in [3, 5, 6, 8] {
            receive(&mirror, &name, at(1, offset), false);
        }
        mirror.join(&name, at(1, 4), 5);
        assert_eq!(take(&all), [('m', 1, 4), ('d', 1, 5), ('d', 1, 6)]);
        mirror.join(&name, at(2, 6), 5);
        receive(&mirror, &name, at(2, 7), false);
        assert_eq!(take(&all), [('m', 2, 6), ('d', 2, 7)], "what waited was of the epoch before");
    }

    #[test]
    fn mirror_keeps_only_watched_channels() {
        let (mirror, all, name) = mirror();
        receive(&mirror, &name, at(1, 1), false);
        assert_eq!((take(&all), mirror.size()), (vec![('d', 1, 1)], (0, 0)));
        receive(&mirror, &name, at(1, 2), true);
        assert_eq!((take(&all), mirror.size()), (vec![('d', 1, 2)], (1, 1)));
        assert_eq!(page(&mirror, &name, at(1, 1), false), Some(vec![2]), "a pattern joins what it brings");
        mirror.close(&name);
        assert_eq!((mirror.size(), mirror.lock().bytes), ((0, 0), 0));
    }

    #[test]
    fn sweep_bounds_mirror_memory() {
        let recorder = Arc::new(Recorder::default());
        let config = Config { history_bytes_max: 1000, ..Config::default() };
        let (mirror, name) = (Mirror::new(config, recorder), ChannelName::parse("a").unwrap());
        mirror.open(&name);
        for offset in 1..=100 {
            receive(&mirror, &name, at(1, offset), false);
        }
        let before = mirror.lock().bytes;
        mirror.sweep(5);
        let after = mirror.lock().bytes;
        assert!(before > 1000 && after <= before / 2, "{before} {after}");
        assert_eq!(mirror.top(&name), Some(at(1, 100)));
    }
}
