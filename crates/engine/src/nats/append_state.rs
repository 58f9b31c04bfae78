//! State of appends that this node has to keep between requests: the known ends of logs, and the batches in flight.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::{ChannelName, Code, Epoch, Error, NewPublication, Position};

use super::wire::{Batch, End, HEAD_BYTES, PUBLICATION_BYTES};

/// Maximum number of channels whose log end is cached. Beyond it the whole cache is cleared.
const TAILS_MAX: usize = 100_000;

/// State of appends: the known ends of logs, and the batches in flight.
#[derive(Default)]
pub struct AppendState {
    tails: Mutex<HashMap<ChannelName, Tail>>,
    sent: Mutex<HashMap<ChannelName, Sent>>,
}

/// End of a channel's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    pub epoch: Epoch,
    /// Sequence of the last message; 0 if there is none.
    pub sequence: u64,
    pub end: End,
}

/// A batch without a complete answer.
#[derive(Clone, Debug)]
pub struct Sent {
    pub number: u64,
    /// End index of each message that the batch is cut into. The last index is the end of the batch.
    pub cuts: Vec<usize>,
    /// Positions of the publications whose messages are answered.
    pub positions: Vec<Position>,
    /// The log end that the message in flight must follow. If the message is stored, it is stored directly after it.
    pub after: Option<Tail>,
}

impl AppendState {
    /// Updates a cached log end after another node's append, so that the next append here is not refused.
    pub fn observe(&self, channel: &ChannelName, epoch: Epoch, sequence: u64, batch: &Batch) {
        if let Some(tail) = lock(&self.tails).get_mut(channel)
            && tail.epoch == epoch
            && tail.sequence < sequence
        {
            *tail = Tail { epoch, sequence, end: batch.end() };
        }
    }

    pub fn set_tail(&self, channel: &ChannelName, tail: Tail) {
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

    /// Returns the batch already sent under this token, or starts a new one.
    pub fn begin(
        &self,
        channel: &ChannelName,
        number: u64,
        batch: &[NewPublication],
        message_max: usize,
    ) -> Result<Sent, Error> {
        let mut sent = lock(&self.sent);
        if let Some(sent) = sent.get(channel).filter(|sent| sent.number == number) {
            return Ok(sent.clone());
        }
        let begun = Sent { number, cuts: cut(batch, message_max)?, positions: Vec::new(), after: None };
        sent.insert(channel.clone(), begun.clone());
        Ok(begun)
    }

    pub fn keep(&self, channel: &ChannelName, sent: &Sent) {
        lock(&self.sent).insert(channel.clone(), sent.clone());
    }

    pub fn end(&self, channel: &ChannelName) {
        lock(&self.sent).remove(channel);
    }

    pub fn tail(&self, channel: &ChannelName) -> Option<Tail> {
        lock(&self.tails).get(channel).copied()
    }

    pub fn forget_tail(&self, channel: &ChannelName) {
        lock(&self.tails).remove(channel);
    }
}

/// Returns the indexes at which a batch is cut into messages. Messages have a maximum size, and the server stores one
/// idempotency key per message.
fn cut(batch: &[NewPublication], message_max: usize) -> Result<Vec<usize>, Error> {
    let mut cuts = Vec::new();
    let (mut bytes, mut is_keyed) = (HEAD_BYTES, false);
    for (i, publication) in batch.iter().enumerate() {
        let more = PUBLICATION_BYTES + publication.cost_bytes();
        if HEAD_BYTES + more > message_max {
            let detail = format!(
                "a publication of {} bytes does not fit into a message of NATS: raise `max_payload` of nats-server",
                publication.cost_bytes()
            );
            return Err(Error::new(Code::TooLarge, detail));
        }
        let has_key = publication.idempotency_key.is_some();
        if i > 0 && (has_key || is_keyed || bytes + more > message_max) {
            cuts.push(i);
            bytes = HEAD_BYTES;
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
        let message_max = HEAD_BYTES + 3 * (PUBLICATION_BYTES + 10);
        let cuts = |batch: &[NewPublication]| cut(batch, message_max);
        assert_eq!(cuts(&vec![new(10, None); 7]), Ok(vec![3, 6, 7]));
        let batch = [new(10, None), new(10, Some("k")), new(10, None), new(10, None), new(10, Some("k"))];
        assert_eq!(cuts(&batch), Ok(vec![1, 2, 4, 5]));
        assert_eq!(cuts(&[new(10, Some("k"))]), Ok(vec![1]));
        assert_eq!(cuts(&[new(10, None), new(1000, None)]).unwrap_err().code, Code::TooLarge);
    }
}
