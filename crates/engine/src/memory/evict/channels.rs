//! Makes room for new channels when their number reaches its limit.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use millrace_protocol::Holder;

use super::{IDLE_MS, SCAN_PAUSE_MS};
use crate::{
    Deliver, Engine,
    memory::{Channel, MemoryEngine, lock},
    shares::{Namespace, victims},
};

/// A scan that frees at least one channel in this many is repeated without a pause.
const SCAN_YIELD: usize = 64;

impl<D: Deliver> MemoryEngine<D> {
    /// Makes room for a new channel of `holder`: evicts up to an eighth of the channels. First come idle channels
    /// without a reader, of holders with at least as many channels, the largest holder first. If that frees nothing
    /// and `holder` is below an equal share, channels of the holders above that share are evicted, idle or not.
    /// Returns false if the channel still may not be created.
    pub(in crate::memory) fn forget_channels(&self, holder: Holder, namespace: Namespace) -> bool {
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
}
