//! Makes room in the file: evicts channels for new ones, and chooses the histories to shrink.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::Ordering::Release,
};

use millrace_protocol::{ChannelName, Holder};

use super::{
    file::{Log, another},
    queue::Submitted,
    writer::{FORGET_MAX, SCAN_PAUSE_MS, Writer},
};
use crate::{
    Deliver,
    memory::{IDLE_MS, level, up_to},
    shares::{Namespace, victims},
};

/// Maximum number of channels evicted at once to make room for others, and of their publications. One channel may
/// exceed the second maximum.
const CHANNELS_FORGET_MAX: usize = 1024;
const CHANNELS_FORGET_COUNT_MAX: usize = 4 * FORGET_MAX;

/// Channels that may be evicted to make room for new ones.
#[derive(Clone, Copy)]
enum Evict {
    /// Channels whose publications have all expired, of holders with at least as many channels.
    Empty,
    /// Channels that are not durable, even if they hold publications. They are taken from holders above an equal
    /// share, for a holder below it.
    Stored,
}

impl<D: Deliver> Writer<D> {
    pub(super) fn may_create(&self, holder: Holder, name: &ChannelName) -> bool {
        self.shares.may_create(holder, self.shares.namespace(name), self.logs.len())
    }

    /// Makes room for the new channels of a batch, as far as possible.
    pub(super) fn make_room(&mut self, batch: &[Submitted]) {
        if self.shares.has_plenty(self.logs.len() + batch.len()) {
            return;
        }
        for Submitted { channel, publication, .. } in batch {
            if self.logs.contains_key(channel) || self.may_create(publication.holder, channel) {
                continue;
            }
            let namespace = self.shares.namespace(channel);
            self.evict_channels(Evict::Empty, self.shares.as_large(publication.holder), 0, namespace);
            if !self.may_create(publication.holder, channel) {
                let (share, held) = self.shares.over_share(publication.holder);
                self.evict_channels(Evict::Stored, held, share, namespace);
            }
        }
    }

    /// Evicts channels of these holders that have no reader, but leaves each holder `floor` of them. Afterwards new
    /// channels have another epoch, so no position is assigned twice. Cost: O(channels).
    fn evict_channels(&mut self, kind: Evict, held: HashMap<Holder, usize>, floor: usize, namespace: Namespace) {
        let now_ms = (self.shared.clock)();
        if held.is_empty() || now_ms < self.scan_again_ms[kind as usize] {
            return;
        }
        let least = self.shares.in_namespace(namespace);
        let is_kind = |log: &Log| match kind {
            Evict::Empty if log.state.is_some_and(|state| state.keys > 0) => false,
            Evict::Empty => log.len() == 0 || now_ms.saturating_sub(log.top_time_ms) >= log.bounds.age_max_ms,
            Evict::Stored => !log.is_durable,
        };
        let may_go = |(name, log): &(&ChannelName, &Log)| {
            let other = self.shares.namespace(name);
            held.contains_key(&log.holder)
                && is_kind(log)
                && (other == namespace || self.shares.in_namespace(other) >= least)
                && self.shared.deliver.readers(name) == 0
        };
        let candidates: Vec<_> = self.logs.iter().filter(may_go).collect();
        let ages = candidates.iter().map(|(_, log)| (log.holder, log.top_time_ms)).collect();
        let mut victims = victims(ages, &held, floor, CHANNELS_FORGET_MAX);
        let mut budget = CHANNELS_FORGET_COUNT_MAX;
        let goes = |(_, log): &(&ChannelName, &Log)| match victims.get_mut(&log.holder) {
            Some((until_ms, count)) if *count > 0 && budget > 0 && log.top_time_ms <= *until_ms => {
                *count -= 1;
                budget = budget.saturating_sub(log.len());
                true
            }
            _ => false,
        };
        let gone: Vec<_> = candidates.into_iter().filter(goes).map(|(name, log)| (name.clone(), *log)).collect();
        self.scan_again_ms[kind as usize] =
            if gone.len() >= CHANNELS_FORGET_MAX / 8 { 0 } else { now_ms + SCAN_PAUSE_MS };
        let Ok(epoch) = another(Some(self.shared.unborn())) else { return };
        if gone.is_empty() {
            return;
        }
        let done = self.transact(false, |writer, _| {
            for (name, log) in &gone {
                log.delete(&writer.file.db)?;
                writer.logs.remove(name);
                writer.bytes -= log.payload_bytes();
                writer.size -= log.size();
                writer.before.insert(name.clone(), Some(*log));
            }
            writer.file.db.prepare_cached("UPDATE store SET epoch = ?1")?.execute([epoch.0])
        });
        if done.is_ok() {
            self.shared.epoch.store(epoch.0, Release);
            for (name, log) in &gone {
                self.shares.give_back(log.holder, self.shares.namespace(name));
                self.shared.tails.close(name);
            }
        }
        self.report_writability(done.err());
    }

    /// Returns the channels to shrink, with their target sizes. The holders with most bytes are reduced to one common
    /// level. Each loses the history of its longest idle channels first, then of its longest ones. Cost: O(channels),
    /// once per eighth of the maximum.
    pub(super) fn plan(&self, over: usize, now_ms: u64) -> VecDeque<(ChannelName, usize)> {
        let mut by_holder = HashMap::<Holder, (usize, Vec<(&ChannelName, &Log)>)>::new();
        for (name, log) in self.logs.iter().filter(|(_, log)| log.len() > 0) {
            let (size, logs) = by_holder.entry(log.holder).or_default();
            *size += log.trimmable();
            logs.push((name, log));
        }
        let level = level(by_holder.values().map(|(size, _)| *size).collect(), over);
        let over = by_holder.into_values().filter(|(size, _)| *size > level);
        over.flat_map(|(size, logs)| plan(&logs, size - level, now_ms)).collect()
    }
}

/// Plans like [`Writer::plan`], for the channels of one holder.
fn plan(logs: &[(&ChannelName, &Log)], over: usize, now_ms: u64) -> VecDeque<(ChannelName, usize)> {
    let is_idle = |log: &Log| now_ms.saturating_sub(log.top_time_ms) >= IDLE_MS;
    let mut idle: Vec<_> = logs.iter().filter(|(_, log)| is_idle(log)).collect();
    idle.sort_unstable_by_key(|(_, log)| log.top_time_ms);
    let sizes: Vec<_> = idle.iter().map(|(_, log)| (log.top_time_ms, log.trimmable())).collect();
    let until_ms = up_to(&sizes, over).unwrap_or(0);
    let silent = || idle.iter().filter(|(_, log)| log.top_time_ms <= until_ms);
    let rest = over.saturating_sub(silent().map(|(_, log)| log.trimmable()).sum());
    let mut plan: VecDeque<_> = silent().map(|(name, _)| ((*name).clone(), 0)).collect();
    if rest > 0 {
        let left = || logs.iter().filter(|(_, log)| !(is_idle(log) && log.top_time_ms <= until_ms));
        let size = level(left().map(|(_, log)| log.trimmable()).collect(), rest);
        let over = left().filter(|(_, log)| log.trimmable() > size);
        plan.extend(over.map(|(name, log)| ((*name).clone(), log.size() - log.trimmable() + size)));
    }
    plan
}
