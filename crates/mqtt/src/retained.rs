use std::{collections::BTreeMap, ops::Bound};

use millrace_protocol::{ChannelName, Position, Publication, session::Target};

/// Retained publications of a node: the newest of each channel that was published as retained. The engine keeps them in
/// a keyed state; this is a copy for lookups.
#[derive(Debug, Default)]
pub struct Retained {
    entries: BTreeMap<ChannelName, Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    publication: Publication,
    /// Position in the state of the engine.
    position: Position,
}

impl Retained {
    /// Applies a change of the state. A deletion removes the entry. Stale changes are ignored.
    pub fn apply(&mut self, channel: &ChannelName, publication: Publication, position: Position) {
        let known = self.entries.get(channel);
        if known.is_some_and(|known| known.position.epoch == position.epoch && known.position.offset >= position.offset)
        {
            return;
        }
        self.remove(channel);
        if !publication.is_deletion {
            self.bytes += publication.cost_bytes();
            self.entries.insert(channel.clone(), Entry { publication, position });
        }
    }

    fn remove(&mut self, channel: &ChannelName) {
        if let Some(entry) = self.entries.remove(channel) {
            self.bytes -= entry.publication.cost_bytes();
        }
    }

    /// Removes everything, because the state begins anew.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns true if the channel has a retained publication.
    pub fn contains(&self, channel: &ChannelName) -> bool {
        self.entries.contains_key(channel)
    }

    /// Returns the next retained publication of a target, in the order of names. Cost: O(log n) for a channel; for a
    /// pattern, O(channels that do not match and share its first levels).
    pub fn next(&self, target: &Target, after: Option<&ChannelName>) -> Option<(&ChannelName, &Publication)> {
        let pattern = match target {
            Target::Channel(name) => {
                let (name, entry) = self.entries.get_key_value(name).filter(|_| after.is_none())?;
                return Some((name, &entry.publication));
            }
            Target::Pattern(pattern) => pattern,
        };
        let text = pattern.as_str();
        let prefix = &text[..text.find(['+', '#']).unwrap_or(text.len())];
        // `a/#` also matches `a`.
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let range = match after {
            Some(after) => (Bound::Excluded(after.as_str()), Bound::Unbounded),
            None => (Bound::Included(prefix), Bound::Unbounded),
        };
        let mut following = self.entries.range::<str, _>(range);
        let of_prefix = following.by_ref().take_while(|(name, _)| name.as_str().starts_with(prefix));
        let mut matching = of_prefix.filter(|(name, _)| pattern.matches(name.as_str()));
        matching.next().map(|(name, entry)| (name, &entry.publication))
    }

    /// Returns the number of entries and their bytes.
    pub fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{Epoch, Kind, PublicationHead};

    use super::*;

    fn put(retained: &mut Retained, channel: &str, data: &str, offset: u64, is_deletion: bool) {
        let (time_ms, key, expires_ms, is_traced) = Default::default();
        let head = PublicationHead { offset, time_ms, key, expires_ms, kind: Kind::Text, is_traced, is_deletion };
        let position = Position { epoch: Epoch(1), offset };
        retained.apply(&ChannelName::parse(channel).unwrap(), Publication::new(head, data.as_bytes()), position);
    }

    fn all(retained: &Retained, target: &str) -> Vec<String> {
        let (target, mut after, mut found) = (Target::parse(target).unwrap(), None, Vec::new());
        while let Some((name, _)) = retained.next(&target, after.as_ref()) {
            found.push(name.to_string());
            after = Some(name.clone());
        }
        found
    }

    #[test]
    fn targets_select_retained_publications_in_order() {
        let mut retained = Retained::default();
        for (i, channel) in ["b", "a", "a/b", "a-b", "a/c/d", "c"].into_iter().enumerate() {
            put(&mut retained, channel, "x", i as u64 + 1, false);
        }
        assert_eq!(all(&retained, "a/#"), ["a", "a/b", "a/c/d"]);
        assert_eq!(all(&retained, "+"), ["a", "a-b", "b", "c"]);
        assert_eq!(all(&retained, "a/+"), ["a/b"]);
        assert_eq!(all(&retained, "a/c/d"), ["a/c/d"]);
        assert_eq!(all(&retained, "#").len(), 6);
        assert_eq!(all(&retained, "x/#").len(), 0);
    }

    #[test]
    fn deletions_and_stale_changes_are_applied_in_order() {
        let mut retained = Retained::default();
        put(&mut retained, "a", "new", 5, false);
        put(&mut retained, "a", "stale", 4, false);
        assert_eq!(retained.next(&Target::parse("a").unwrap(), None).unwrap().1.data(), b"new");
        put(&mut retained, "a", "", 6, true);
        assert_eq!(retained.size(), (0, 0));
    }
}
