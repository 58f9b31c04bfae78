//! States that are repeated until the other node acknowledges them. A newer version replaces an older one at once, so a
//! lost frame never delays the newest state, and a state needs no history.

use std::time::{Duration, Instant};

use super::frame::{PART_BYTES_MAX, PARTS_MAX};

/// Set of the parts of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Parts([u64; PARTS_MAX / 64]);

impl Parts {
    fn insert(&mut self, part: u8) -> bool {
        let (word, bit) = (&mut self.0[usize::from(part) / 64], 1 << (part % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn contains(&self, part: usize) -> bool {
        self.0[part / 64] >> (part % 64) & 1 == 1
    }

    fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// Sending side of a table.
#[derive(Debug, Default)]
pub struct Repeated {
    version: u32,
    parts: Vec<Vec<u8>>,
    acknowledged: Parts,
    /// Time of the next repetition; `None`: everything is acknowledged.
    next: Option<Instant>,
}

impl Repeated {
    /// Replaces the state. `entries`: the encoded entries, each at most [`PART_BYTES_MAX`] bytes. Entries beyond
    /// [`PARTS_MAX`] parts are left out.
    pub fn set(&mut self, entries: impl Iterator<Item = Vec<u8>>, now: Instant) {
        let mut parts: Vec<Vec<u8>> = vec![Vec::new()];
        for entry in entries {
            let is_last = parts.len() == PARTS_MAX;
            match parts.last_mut() {
                Some(part) if part.len() + entry.len() <= PART_BYTES_MAX => part.extend_from_slice(&entry),
                _ if is_last => break,
                _ => parts.push(entry),
            }
        }
        if parts != self.parts {
            self.version += 1;
            self.parts = parts;
            (self.acknowledged, self.next) = (Parts::default(), Some(now));
        }
    }

    /// Sends the state again, to a node that has lost it.
    pub fn restart(&mut self, now: Instant) {
        self.acknowledged = Parts::default();
        self.next = (self.version > 0).then_some(now);
    }

    pub fn acknowledge(&mut self, version: u32, part: u8) {
        if version == self.version && usize::from(part) < self.parts.len() {
            self.acknowledged.insert(part);
            if self.acknowledged.len() == self.parts.len() {
                self.next = None;
            }
        }
    }

    /// Returns when [`Repeated::take_due`] has something to send.
    pub fn timeout(&self) -> Option<Instant> {
        self.next
    }

    /// Passes the parts that are due as `(version, part, last part, entries)`. They are due again after `interval`.
    pub fn take_due(&mut self, now: Instant, interval: Duration, mut emit: impl FnMut(u32, u8, u8, &[u8])) {
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        self.next = Some(now + interval);
        let last = self.parts.len() - 1;
        for (part, entries) in self.parts.iter().enumerate().filter(|(part, _)| !self.acknowledged.contains(*part)) {
            emit(self.version, part as u8, last as u8, entries);
        }
    }
}

/// Receiving side of a table.
#[derive(Debug, Default)]
pub struct Received {
    /// Version that is complete.
    complete: u32,
    incoming: Option<Incoming>,
}

#[derive(Debug)]
struct Incoming {
    version: u32,
    have: Parts,
    parts: Vec<Vec<u8>>,
}

impl Received {
    /// Takes one part. Returns the entries of the whole table once its last missing part has arrived. A part of an
    /// older version, or one that was received before, changes nothing.
    pub fn take(&mut self, version: u32, part: u8, last_part: u8, entries: &[u8]) -> Option<Vec<u8>> {
        if version <= self.complete || self.incoming.as_ref().is_some_and(|incoming| version < incoming.version) {
            return None;
        }
        let count = usize::from(last_part) + 1;
        let is_other = |incoming: &Incoming| incoming.version != version || incoming.parts.len() != count;
        if self.incoming.as_ref().is_none_or(is_other) {
            self.incoming = Some(Incoming { version, have: Parts::default(), parts: vec![Vec::new(); count] });
        }
        let incoming = self.incoming.as_mut()?;
        if incoming.have.insert(part) {
            incoming.parts.get_mut(usize::from(part))?.extend_from_slice(entries);
        }
        if incoming.have.len() < count {
            return None;
        }
        self.complete = version;
        self.incoming.take().map(|incoming| incoming.parts.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn lost_parts_are_repeated_until_acknowledged() {
        let (mut sender, mut receiver, mut now) = (Repeated::default(), Received::default(), Instant::now());
        let interval = Duration::from_millis(100);
        let entries = |first: u8| (0..5).map(move |entry| vec![first + entry; 1000]);
        sender.set(entries(0), now);
        sender.set(entries(0), now);
        let mut rounds = Vec::new();
        let mut complete = None;
        while sender.timeout().is_some() {
            let mut sent = Vec::new();
            sender.take_due(now, interval, |version, part, last, entries| {
                sent.push((version, part, last, entries.to_vec()))
            });
            rounds.push(sent.len());
            for (version, part, last, entries) in sent {
                // The first round loses part 3, and the second one the acknowledgement of it.
                if rounds.len() > 1 || part != 3 {
                    complete = receiver.take(version, part, last, &entries).or(complete);
                    if rounds.len() != 2 {
                        sender.acknowledge(version, part);
                    }
                }
            }
            now += interval;
        }
        assert_eq!(rounds, [5, 1, 1]);
        assert_eq!(complete, Some(entries(0).flatten().collect()));
        sender.acknowledge(9, 0);
        sender.set(entries(9), now);
        assert_eq!(sender.version, 2);
    }

    #[test]
    fn older_version_is_ignored() {
        let mut receiver = Received::default();
        assert_eq!(receiver.take(5, 0, 1, &[1]), None);
        assert_eq!(receiver.take(4, 0, 0, &[9]), None, "a newer version is on its way");
        assert_eq!(receiver.take(5, 0, 1, &[1]), None, "a repetition");
        assert_eq!(receiver.take(5, 1, 1, &[2]), Some(vec![1, 2]));
        assert_eq!(receiver.take(5, 1, 1, &[2]), None);
        assert_eq!(receiver.take(6, 0, 2, &[1]), None);
        assert_eq!(receiver.take(6, 0, 0, &[7]), Some(vec![7]), "the number of parts of a liar may change");
    }
}
