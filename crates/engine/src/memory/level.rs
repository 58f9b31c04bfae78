//! Computes how much each of several histories must shrink, so that together they free enough.

/// Memory that one holder has to free.
pub(super) struct Due {
    pub bytes: usize,
    /// The current step evicts channels whose last publication is from this time or earlier.
    pub until_ms: Option<u64>,
}

impl Due {
    pub fn takes(&self, time_ms: u64) -> bool {
        self.bytes > 0 && self.until_ms.is_some_and(|until_ms| time_ms <= until_ms)
    }

    pub fn pay(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Returns the time up to which histories (sorted oldest first) must be evicted to free `over` bytes. If all together
/// free less, it returns the time of the newest.
pub(crate) fn up_to(oldest_first: &[(u64, usize)], over: usize) -> Option<u64> {
    let mut freed = 0;
    let enough = oldest_first.iter().find(|(_, bytes)| {
        freed += bytes;
        freed >= over
    });
    enough.or(oldest_first.last()).map(|(time_ms, _)| *time_ms)
}

/// Returns the size to which the longest histories must shrink so that at least `over` bytes are freed.
pub(crate) fn level(mut sizes: Vec<usize>, over: usize) -> usize {
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut longest = 0;
    for (i, size) in sizes.iter().enumerate() {
        longest += size;
        let next = sizes.get(i + 1).copied().unwrap_or(0);
        // Condition: all longer histories, cut to the size of the next one, free enough.
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
    fn oldest_publications_are_evicted_until_enough() {
        let idle = [(1, 10), (2, 10), (5, 10)];
        assert_eq!((up_to(&idle, 1), up_to(&idle, 10), up_to(&idle, 11)), (Some(1), Some(1), Some(2)));
        assert_eq!((up_to(&idle, 99), up_to(&[], 1)), (Some(5), None));
    }

    #[test]
    fn longest_histories_shrink_to_one_level() {
        assert_eq!(level(vec![10, 50, 100], 30), 70);
        assert_eq!(level(vec![10, 50, 100], 50), 50);
        assert_eq!(level(vec![10, 50, 100], 70), 40);
        assert_eq!(level(vec![10, 50, 100], 130), 10);
        assert_eq!(level(vec![10, 50, 100], 999), 0);
    }
}
