use millrace_protocol::{Error, NewPublication, Position};

use super::{
    state_index::StateIndex,
    wire::{Batch, LogEnd, Token},
};

/// A message on its way to the server.
#[derive(Debug)]
pub struct Sending {
    /// The log end that the message must follow. If the message is stored, it is stored directly after it.
    pub after: LogEnd,
    pub batch: Batch,
    /// Publications that are not in the message, because a keyed state refuses them or knows them already: their places
    /// among those that were to be sent, and their outcomes.
    pub settled: Vec<(usize, Result<Position, Error>)>,
}

impl Sending {
    pub fn new(token: Token, after: LogEnd, new: &[NewPublication], now_ms: u64) -> Self {
        Self { after, batch: Batch::new(token, after.end, new, now_ms), settled: Vec::new() }
    }

    /// Adds what a message of a keyed state has to carry.
    ///
    /// Errors: those of [`StateIndex::carry`].
    pub fn carrying(mut self, index: &StateIndex, message_max: usize, kept: usize) -> Result<Self, Error> {
        let batch = &mut self.batch;
        batch.carried = Some(index.carry(batch.payload_bytes(), batch.publications.len(), message_max, kept)?);
        Ok(self)
    }

    /// Returns the outcome of each publication that was to be sent, once the message is stored. `first` is the position
    /// of its first publication.
    pub fn outcomes(&self, first: Position) -> Vec<Result<Position, Error>> {
        let count = self.batch.publications.len() as u64;
        let mut outcomes: Vec<_> = (0..count).map(|i| Ok(Position { offset: first.offset + i, ..first })).collect();
        self.settled.iter().for_each(|(place, outcome)| outcomes.insert(*place, outcome.clone()));
        outcomes
    }
}
