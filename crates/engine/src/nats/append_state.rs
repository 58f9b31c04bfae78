//! State of appends that this node has to keep between requests: the known ends of logs, and the batches in flight.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::{ChannelName, Code, Epoch, Error, NewPublication, Position};

use super::{
    sending::Sending,
    wire::{Batch, LogEnd, PUBLICATION_BYTES},
};

/// Maximum number of channels whose log end is cached. Beyond it the whole cache is cleared.
const TAILS_MAX: usize = 100_000;

/// State of appends: the known ends of logs, and the batches in flight.
#[derive(Default)]
pub struct AppendState {
    tails: Mutex<HashMap<ChannelName, LogEnd>>,
    sent: Mutex<HashMap<ChannelName, Sent>>,
}

/// A batch without a complete answer.
#[derive(Clone, Debug)]
pub struct Sent {
    pub number: u64,
    /// End index of each message that the batch is cut into. The last index is the end of the batch.
    pub cuts: Vec<usize>,
    /// Outcomes of the publications whose messages are answered.
    pub outcomes: Vec<Result<Position, Error>>,
    /// The message in flight.
    pub sending: Option<Arc<Sending>>,
}

impl AppendState {
    /// Updates a cached log end after another node's append, so that the next append here is not refused.
    pub fn observe(&self, channel: &ChannelName, epoch: Epoch, sequence: u64, batch: &Batch) {
        if let Some(tail) = lock(&self.tails).get_mut(channel)
            && tail.epoch == epoch
            && tail.sequence < sequence
        {
            *tail = LogEnd { epoch, sequence, end: batch.end() };
        }
    }

    pub fn set_tail(&self, channel: &ChannelName, tail: LogEnd) {
        let mut tails = lock(&self.tails);
        match tails.get_mut(channel) {
            Some(known) if known.epoch == tail.epoch && known.sequence > tail.sequence => {}
            Some(known) => *known = tail,
            None => {
                if tails.len() >= TAILS_MAX {
                    tails.clear();
                }
                tails.insert(channel.clone(), tail);
            }
        }
    }

    /// Returns the batch already sent under this token, or starts a new one. Each of its messages has at most
    /// `batch_max` bytes of publications, or a single publication of at most `message_max` bytes.
    pub fn begin(
        &self,
        channel: &ChannelName,
        number: u64,
        batch: &[NewPublication],
        batch_max: usize,
        message_max: usize,
    ) -> Result<Sent, Error> {
        let mut sent = lock(&self.sent);
        if let Some(sent) = sent.get(channel).filter(|sent| sent.number == number) {
            return Ok(sent.clone());
        }
        let begun = Sent { number, cuts: cut(batch, batch_max, message_max)?, outcomes: Vec::new(), sending: None };
        sent.insert(channel.clone(), begun.clone());
        Ok(begun)
    }

    pub fn keep(&self, channel: &ChannelName, sent: &Sent) {
        lock(&self.sent).insert(channel.clone(), sent.clone());
    }

    pub fn end(&self, channel: &ChannelName) {
        lock(&self.sent).remove(channel);
    }

    pub fn tail(&self, channel: &ChannelName) -> Option<LogEnd> {
        lock(&self.tails).get(channel).copied()
    }

    pub fn forget_tail(&self, channel: &ChannelName) {
        lock(&self.tails).remove(channel);
    }
}

/// Returns the indexes at which a batch is cut into messages. Messages have a maximum size, and the server stores one
/// idempotency key per message.
fn cut(batch: &[NewPublication], batch_max: usize, message_max: usize) -> Result<Vec<usize>, Error> {
    let mut cuts = Vec::new();
    let (mut bytes, mut is_keyed) = (0, false);
    for (i, publication) in batch.iter().enumerate() {
        let more = PUBLICATION_BYTES + publication.cost_bytes();
        if more > message_max {
            let detail = format!(
                "a publication of {} bytes does not fit into a message of NATS: raise `max_payload` of nats-server",
                publication.cost_bytes()
            );
            return Err(Error::new(Code::TooLarge, detail));
        }
        let has_key = publication.idempotency_key.is_some();
        if i > 0 && (has_key || is_keyed || bytes + more > batch_max) {
            cuts.push(i);
            bytes = 0;
        }
        bytes += more;
        is_keyed = has_key;
    }
    cuts.push(batch.len());
    Ok(cuts)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use millrace_protocol::Kind;

    use super::*;

    fn new(bytes: usize, key: Option<&str>) -> NewPublication {
        let data = vec![b'x'; bytes];
        NewPublication { idempotency_key: key.map(Into::into), ..NewPublication::new(Kind::Text, data) }
    }

    #[test]
    fn batches_are_cut_at_keys_and_message_size() {
        let batch_max = 3 * (PUBLICATION_BYTES + 10);
        let cuts = |batch: &[NewPublication]| cut(batch, batch_max, 4 * (PUBLICATION_BYTES + 10));
        assert_eq!(cuts(&vec![new(10, None); 7]), Ok(vec![3, 6, 7]));
        let batch = [new(10, None), new(10, Some("k")), new(10, None), new(10, None), new(10, Some("k"))];
        assert_eq!(cuts(&batch), Ok(vec![1, 2, 4, 5]));
        assert_eq!(cuts(&[new(10, Some("k"))]), Ok(vec![1]));
        assert_eq!(cuts(&[new(10, None), new(3 * PUBLICATION_BYTES + 40, None)]), Ok(vec![1, 2]));
        assert_eq!(cuts(&[new(10, None), new(1000, None)]).unwrap_err().code, Code::TooLarge);
    }
}
