//! State of each publication that all generator threads share: due time, send time, first arrival, and number of
//! receivers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Maximum number of publications in the ledger, 40 bytes each. A receiver that is further behind gets neither a
/// service time nor a spread.
const PUBLICATIONS_MAX: u64 = 1 << 20;

pub struct PublicationTable {
    entries: Vec<Entry>,
    streams: u64,
    copies: u32,
    /// True if there is only one generator thread. Counting then needs no locked instruction.
    is_alone: bool,
    complete: AtomicU64,
}

#[derive(Default)]
struct Entry {
    /// Number of the publication, plus one.
    key: AtomicU64,
    due_ns: AtomicU64,
    sent_ns: AtomicU64,
    first_ns: AtomicU64,
    arrived: AtomicU32,
}

/// Figures of a publication at the moment one more receiver has received it.
pub struct Known {
    pub sent_ns: u64,
    /// Time from the first arrival to this one. Only set for the last receiver.
    pub spread_ns: Option<u64>,
}

impl PublicationTable {
    pub fn new(publications: Option<u64>, streams: usize, copies: usize, threads: usize) -> Self {
        let streams = streams.max(1) as u64;
        let remembered =
            publications.unwrap_or(PUBLICATIONS_MAX).max(16 * streams).min(PUBLICATIONS_MAX).next_power_of_two();
        let entries = (0..remembered).map(|_| Entry::default()).collect();
        Self { entries, streams, copies: copies as u32, is_alone: threads == 1, complete: AtomicU64::new(0) }
    }

    /// Returns the maximum number of publications a publisher may be behind its schedule. Beyond it, publications are
    /// skipped.
    pub fn backlog_max(&self) -> u32 {
        (self.entries.len() as u64 / self.streams / 2).clamp(1, 65_536) as u32
    }

    /// Returns the number of publications that have reached all receivers.
    pub fn complete(&self) -> u64 {
        self.complete.load(Relaxed)
    }

    fn entry(&self, stream: u32, sequence: u32) -> (u64, &Entry) {
        let number = u64::from(sequence) * self.streams + u64::from(stream);
        (number + 1, &self.entries[(number & (self.entries.len() as u64 - 1)) as usize])
    }

    pub fn begin(&self, stream: u32, sequence: u32, due_ns: u64) {
        let (key, entry) = self.entry(stream, sequence);
        entry.due_ns.store(due_ns, Relaxed);
        entry.sent_ns.store(due_ns, Relaxed);
        entry.arrived.store(0, Relaxed);
        entry.key.store(key, Release);
    }

    pub fn due_ns(&self, stream: u32, sequence: u32) -> u64 {
        self.entry(stream, sequence).1.due_ns.load(Relaxed)
    }

    pub fn sent(&self, stream: u32, sequence: u32, now_ns: u64) {
        self.entry(stream, sequence).1.sent_ns.store(now_ns, Relaxed);
    }

    /// Counts one more receiver of a publication. Returns `None` if the ledger no longer holds that publication.
    #[inline]
    pub fn arrived(&self, stream: u32, sequence: u32, now_ns: u64) -> Option<Known> {
        let (key, entry) = self.entry(stream, sequence);
        if entry.key.load(Acquire) != key {
            return None;
        }
        let before = match self.is_alone {
            true => {
                let before = entry.arrived.load(Relaxed);
                entry.arrived.store(before + 1, Relaxed);
                before
            }
            false => entry.arrived.fetch_add(1, AcqRel),
        };
        if before == 0 {
            entry.first_ns.store(now_ns, Release);
        }
        let is_last = before + 1 == self.copies;
        if is_last {
            self.complete.fetch_add(1, Relaxed);
        }
        let spread_ns = is_last.then(|| now_ns.saturating_sub(entry.first_ns.load(Acquire).min(now_ns)));
        Some(Known { sent_ns: entry.sent_ns.load(Relaxed), spread_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_known_at_the_last_delivery() {
        for threads in [1, 2] {
            let ledger = PublicationTable::new(Some(10), 2, 3, threads);
            ledger.begin(1, 4, 100);
            ledger.sent(1, 4, 150);
            let arrive = |now_ns| ledger.arrived(1, 4, now_ns).map(|known| (known.sent_ns, known.spread_ns));
            assert_eq!(arrive(1000), Some((150, None)));
            assert_eq!(arrive(1500), Some((150, None)));
            assert_eq!((ledger.complete(), arrive(1800), ledger.complete()), (0, Some((150, Some(800))), 1));
            assert!(ledger.arrived(0, 4, 2000).is_none(), "of another publisher");
        }
    }

    #[test]
    fn old_publications_are_unknown() {
        let ledger = PublicationTable::new(Some(16), 1, 1, 1);
        ledger.begin(0, 0, 1);
        ledger.begin(0, 16, 2);
        assert!(ledger.arrived(0, 0, 3).is_none() && ledger.arrived(0, 16, 3).is_some());
    }
}
