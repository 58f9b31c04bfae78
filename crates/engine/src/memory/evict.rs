//! Making room when all histories together have grown too large: first those of channels that nobody writes to, then the longest.

use std::sync::atomic::Ordering::Relaxed;

use millrace_delivery::History;

use super::{Channel, Deliver, MemoryEngine, lock};
use crate::Engine;

/// A channel is idle if nothing came for so long.
pub(crate) const IDLE_MS: u64 = 60 * 1000;

impl<D: Deliver> MemoryEngine<D> {
    /// Brings all histories to 7/8 of what they may take, so that the next time comes only after many publications. Offsets stay: who
    /// wants what is gone is told a gap.
    ///
    /// Cost: O(channels), one stripe locked at a time. A second thread that finds this at work leaves it alone.
    pub(super) fn evict(&self) {
        let Ok(_alone) = self.evicting.try_lock() else { return };
        let goal = self.config.history_bytes_max - self.config.history_bytes_max / 8;
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
            for Channel { history, .. } in lock(stripe).iter_mut() {
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
}
