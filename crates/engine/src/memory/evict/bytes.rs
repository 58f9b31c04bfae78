//! Frees memory when all histories together exceed their limit.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::Ordering::Relaxed,
};

use millrace_delivery::History;
use millrace_protocol::Holder;

use super::{IDLE_MS, SCAN_PAUSE_MS};
use crate::{
    Deliver, Engine,
    memory::{Channel, MemoryEngine, channel_bytes, level, level::Due, lock, up_to},
};

/// Rounds of one eviction. A holder whose channels all have readers cannot free its part; the next round takes the
/// rest from the other holders.
const ROUNDS: usize = 3;

impl<D: Deliver> MemoryEngine<D> {
    /// Reduces all histories to 7/8 of the limit, so that the next eviction is needed only after many publications.
    /// Offsets continue: a reader that asks for evicted publications gets a gap.
    ///
    /// Cost: O(channels), with one stripe locked at a time. Returns at once if another thread is already evicting.
    pub(in crate::memory) fn evict(&self) {
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
    pub(in crate::memory) fn evict_to(&self, goal: usize, is_bound: bool) -> bool {
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
