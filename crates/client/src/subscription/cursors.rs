//! Positions of a reader in its channels.

use std::collections::BTreeMap;

/// Last position of every channel known so far.
#[derive(Debug, Default)]
pub struct Cursors {
    positions: BTreeMap<String, String>,
    /// Start time of each pattern, in milliseconds since 1970: channels without a known position are read from this
    /// time on.
    pattern_since: BTreeMap<String, u64>,
}

impl Cursors {
    pub fn position(&self, channel: &str) -> Option<&str> {
        self.positions.get(channel).map(String::as_str)
    }

    pub fn positions(&self) -> &BTreeMap<String, String> {
        &self.positions
    }

    /// Advances to a publication. Returns false if it is not after the last one, so the reader has already seen it.
    pub fn advance(&mut self, channel: &str, position: &str) -> bool {
        if let Some(last) = self.positions.get(channel)
            && let (Some((epoch, offset)), Some((last_epoch, last_offset))) = (split(position), split(last))
            && epoch == last_epoch
            && offset <= last_offset
        {
            return false;
        }
        self.set(channel, position);
        true
    }

    pub fn set(&mut self, channel: &str, position: &str) {
        match self.positions.get_mut(channel) {
            Some(last) => {
                last.clear();
                last.push_str(position);
            }
            None => drop(self.positions.insert(channel.to_owned(), position.to_owned())),
        }
    }

    /// Sets the start position of a channel, unless the channel has a position already.
    pub fn start(&mut self, channel: &str, position: &str) {
        if !self.positions.contains_key(channel) {
            self.set(channel, position);
        }
    }

    /// Sets the positions of a list such as `a@e:1,b@e:2`.
    pub fn set_list(&mut self, list: &str) {
        for (channel, position) in list.split(',').filter_map(|entry| entry.rsplit_once('@')) {
            self.set(channel, position);
        }
    }

    pub fn start_list(&mut self, list: &str) {
        for (channel, position) in list.split(',').filter_map(|entry| entry.rsplit_once('@')) {
            self.start(channel, position);
        }
    }

    pub fn pattern_since(&self, pattern: &str) -> Option<u64> {
        self.pattern_since.get(pattern).copied()
    }

    /// Sets the start time of a pattern. The first time is kept, because a disconnect may occur before older
    /// publications were read.
    pub fn start_pattern(&mut self, pattern: &str, time_ms: u64) {
        self.pattern_since.entry(pattern.to_owned()).or_insert(time_ms);
    }
}

/// Splits a position `epoch:offset`.
fn split(position: &str) -> Option<(&str, u64)> {
    let (epoch, offset) = position.rsplit_once(':')?;
    Some((epoch, offset.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_advances_only_within_an_epoch() {
        let mut cursors = Cursors::default();
        assert!(cursors.advance("a", "e1:9"));
        assert!(!cursors.advance("a", "e1:9"));
        assert!(!cursors.advance("a", "e1:8"));
        assert!(cursors.advance("a", "e1:10"), "offsets are numbers, not text");
        assert!(cursors.advance("b", "e1:1"), "channels do not share cursors");
        assert!(cursors.advance("a", "e2:1"), "a new epoch starts anew");
        assert_eq!(cursors.position("a"), Some("e2:1"));
    }

    #[test]
    fn start_position_never_moves_a_cursor_that_read() {
        let mut cursors = Cursors::default();
        cursors.set_list("cars/1/telemetry@e:58,b@e:7");
        assert_eq!((cursors.position("cars/1/telemetry"), cursors.position("b")), (Some("e:58"), Some("e:7")));
        cursors.start_list("b@e:9,c@e:1");
        assert_eq!((cursors.position("b"), cursors.position("c")), (Some("e:7"), Some("e:1")));
        cursors.start_pattern("cars/#", 5);
        cursors.start_pattern("cars/#", 6);
        assert_eq!(cursors.pattern_since("cars/#"), Some(5));
    }
}
