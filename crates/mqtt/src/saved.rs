use std::collections::{BTreeSet, HashMap, VecDeque};

use millrace_protocol::{ChannelName, Position};

use crate::{
    Filter,
    packet::Options,
    window::{Origin, Sent, State},
};

/// Bytes that a saved session needs besides its lists.
const SAVED_BYTES: usize = 512;
/// Bytes that an entry of a list needs besides its text.
const ENTRY_BYTES: usize = 64;

/// Saved session, without a connection: positions, not publications.
#[derive(Debug, Default)]
pub struct Saved {
    pub publisher: u32,
    pub last_id: u16,
    pub subscriptions: Vec<SavedSubscription>,
    /// Position from which each channel continues.
    pub positions: HashMap<ChannelName, Position>,
    /// Publications after these positions that the client has received, or that keep their identifier.
    pub resumed: HashMap<ChannelName, VecDeque<Resumed>>,
    /// Identifiers whose PUBREL is repeated.
    pub released: Vec<u16>,
    /// Channels whose retained publication was not acknowledged.
    pub retained: Vec<ChannelName>,
    /// Identifiers of publications of quality of service 2 that the client has not released.
    pub unreleased: BTreeSet<u16>,
}

#[derive(Clone, Debug)]
pub struct SavedSubscription {
    pub filter: Filter,
    pub options: Options,
    pub identifier: u32,
    pub since_ms: u64,
}

/// Publication that an earlier connection has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    pub position: Position,
    /// Identifier of its retransmission; `None`: the client has it.
    pub id: Option<u16>,
}

impl Saved {
    /// Adds a publication that was sent.
    pub(crate) fn add(&mut self, sent: &Sent) {
        if sent.state == State::Released {
            self.released.push(sent.id);
        }
        match &sent.origin {
            Origin::Log(channel, position) => {
                let id = (sent.state == State::Sent).then_some(sent.id);
                self.resumed.entry(channel.clone()).or_default().push_back(Resumed { position: *position, id });
            }
            Origin::Retained(channel) if sent.state == State::Sent => self.retained.push(channel.clone()),
            Origin::Retained(_) | Origin::Earlier => {}
        }
    }

    /// Moves each channel back to before its first publication that is not acknowledged.
    pub(crate) fn rewind(&mut self) {
        self.resumed.retain(|channel, entries| {
            let Some(at) = self.positions.get(channel).copied() else { return false };
            entries.retain(|entry| entry.position.epoch == at.epoch);
            entries.make_contiguous().sort_unstable_by_key(|entry| entry.position.offset);
            while entries.front().is_some_and(|entry| entry.id.is_none()) {
                entries.pop_front();
            }
            let Some(first) = entries.front() else { return false };
            let before = Position { offset: first.position.offset - 1, ..first.position };
            if before.offset < at.offset {
                self.positions.insert(channel.clone(), before);
            }
            true
        });
    }

    /// Returns the approximate memory, in bytes.
    pub fn bytes(&self) -> usize {
        let filters: usize = self.subscriptions.iter().map(|own| own.filter.target.as_str().len() + ENTRY_BYTES).sum();
        let positions: usize = self.positions.keys().map(|channel| channel.as_str().len() + ENTRY_BYTES).sum();
        let resumed: usize =
            self.resumed.values().map(|entries| entries.len() * size_of::<Resumed>() + ENTRY_BYTES).sum();
        SAVED_BYTES + filters + positions + resumed + (self.unreleased.len() + self.retained.len()) * ENTRY_BYTES
    }
}
