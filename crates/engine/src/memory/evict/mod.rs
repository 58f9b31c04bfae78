//! Evicts channels and histories, those of the largest holders first.
//!
//! - [`bytes`]: frees memory when all histories together exceed their limit
//! - [`channels`]: makes room for new channels

mod bytes;
mod channels;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::Relaxed;

use super::{Channel, MemoryEngine, channel_bytes, lock};
use crate::Deliver;

/// A channel is idle if nothing was published for this time.
pub(crate) const IDLE_MS: u64 = 60 * 1000;
/// Pause after a scan that found few channels to evict.
const SCAN_PAUSE_MS: u64 = 1000;

impl<D: Deliver> MemoryEngine<D> {
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
}
