//! Appends publications. A stream numbers the messages of all its channels together. The order within one channel
//! comes from an expected sequence in each message: the message that it must follow. If another node appended first,
//! the server refuses the message, and this node reads the end of the log again.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::HeaderMap;
use millrace_protocol::{ChannelName, Code, Epoch, Error, NewPublication, Position};
use serde::Deserialize;

use super::{
    Nats,
    link::{RequestError, api_answer, code},
    read::{Log, Stored},
    subject,
    wire::{self, Batch, End, HEAD_BYTES, PUBLICATION_BYTES},
};
use crate::remote::{BrokerError, Token};

/// Maximum number of channels whose log end is cached. Beyond it the whole cache is cleared.
const TAILS_MAX: usize = 100_000;
/// Maximum attempts to append one message while other nodes append first. Then the caller decides about a retry.
const ATTEMPTS: u32 = 20;
/// Bytes reserved in a message for its headers.
const HEADERS_BYTES: usize = 2048;
/// Maximum payload, for servers that do not report one: the default of nats-server.
const MAX_PAYLOAD: usize = 1 << 20;

/// State of appends: the known ends of logs, and the batches in flight.
#[derive(Default)]
pub struct Writer {
    tails: Mutex<HashMap<ChannelName, Tail>>,
    sent: Mutex<HashMap<ChannelName, Sent>>,
}

/// End of a channel's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tail {
    epoch: Epoch,
    /// Sequence of the last message; 0 if there is none.
    sequence: u64,
    end: End,
}

/// A batch without a complete answer.
#[derive(Clone, Debug)]
struct Sent {
    number: u64,
    /// End index of each message that the batch is cut into. The last index is the end of the batch.
    cuts: Vec<usize>,
    /// Positions of the publications whose messages are answered.
    positions: Vec<Position>,
    /// The log end that the message in flight must follow. If the message is stored, it is stored directly after it.
    after: Option<Tail>,
}

#[derive(Deserialize)]
struct Ack {
    seq: u64,
    #[serde(default)]
    duplicate: bool,
}

impl Writer {
    /// Updates a cached log end after another node's append, so that the next append here is not refused.
    pub fn heard(&self, channel: &ChannelName, epoch: Epoch, sequence: u64, batch: &Batch) {
        if let Some(tail) = lock(&self.tails).get_mut(channel)
            && tail.epoch == epoch
            && tail.sequence < sequence
        {
            *tail = Tail { epoch, sequence, end: batch.end() };
        }
    }

    fn set_tail(&self, channel: &ChannelName, tail: Tail) {
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
    fn begin(
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

    fn keep(&self, channel: &ChannelName, sent: &Sent) {
        lock(&self.sent).insert(channel.clone(), sent.clone());
    }

    fn end(&self, channel: &ChannelName) {
        lock(&self.sent).remove(channel);
    }
}

impl Nats {
    pub(super) async fn write(
        &self,
        channel: &ChannelName,
        batch: &[NewPublication],
        token: Token<'_>,
        may_create: bool,
    ) -> Result<Vec<Position>, BrokerError> {
        let server_max = self.link.server().map_or(MAX_PAYLOAD, |server| server.max_payload);
        let begun = self.writer.begin(channel, token.number, batch, server_max.saturating_sub(HEADERS_BYTES));
        let mut sent = begun.map_err(BrokerError::Refused)?;
        while sent.positions.len() < batch.len() {
            let part = sent.cuts.iter().take_while(|cut| **cut <= sent.positions.len()).count();
            let publications = &batch[sent.positions.len()..sent.cuts[part]];
            let token = wire::Token { node: token.node.into(), number: token.number, part: part as u16 };
            match self.write_message(channel, publications, token, may_create, &mut sent).await {
                Ok(positions) => sent.positions.extend(positions),
                Err(error) => {
                    if matches!(error, BrokerError::Refused(_)) {
                        self.writer.end(channel);
                    }
                    return Err(error);
                }
            }
            sent.after = None;
            self.writer.keep(channel, &sent);
        }
        self.writer.end(channel);
        Ok(sent.positions)
    }

    async fn write_message(
        &self,
        channel: &ChannelName,
        publications: &[NewPublication],
        token: wire::Token,
        may_create: bool,
        sent: &mut Sent,
    ) -> Result<Vec<Position>, BrokerError> {
        let key = publications.first().and_then(|first| first.idempotency_key.as_deref());
        for attempt in 0..ATTEMPTS {
            let log = Log::open(self, channel).await?;
            // In another epoch, everything sent before is lost with its stream.
            let doubt = sent.after.filter(|after| after.epoch == log.epoch());
            let after = match doubt {
                Some(after) => after,
                None => self.tail(channel, &log).await?,
            };
            if after.sequence == 0 && !may_create {
                return Err(BrokerError::Refused(Error::new(Code::TooMany, "there are too many channels")));
            }
            let batch = Batch::new(token.clone(), after.end, publications, self.clock.now_ms());
            sent.after = Some(after);
            self.writer.keep(channel, sent);
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Expected-Last-Subject-Sequence", after.sequence.to_string());
            if let Some(key) = key {
                headers.insert("Nats-Msg-Id", subject::message_id(log.epoch(), channel, key));
            }
            let answer = self.link.request(log.subject.clone(), Some(headers), batch.encode()).await;
            match answer.and_then(|answer| api_answer::<Ack>(&answer.payload)) {
                Ok(Ack { seq, duplicate: true }) => {
                    // The idempotency key is known: from an earlier publication, or from this one if its answer was
                    // lost. A publication with a key is alone in its message.
                    lock(&self.writer.tails).remove(channel);
                    return Ok(vec![log.position(first_offset(&log, seq).await?)]);
                }
                Ok(Ack { seq, .. }) => {
                    self.writer.set_tail(channel, Tail { epoch: log.epoch(), sequence: seq, end: batch.end() });
                    return Ok(positions(&log, &batch));
                }
                Err(trouble) if trouble.is_api(code::WRONG_LAST_SEQUENCE) => {
                    if doubt.is_some()
                        && let Some(ours) = log.next(after.sequence + 1).await?.filter(|next| next.batch.token == token)
                    {
                        return Ok(positions(&log, &ours.batch));
                    }
                    sent.after = None;
                    self.writer.keep(channel, sent);
                    lock(&self.writer.tails).remove(channel);
                    back_off(attempt).await;
                }
                Err(trouble) => {
                    if matches!(trouble, RequestError::NoResponders) {
                        log.stream.forget();
                    }
                    return Err(trouble.into());
                }
            }
        }
        Err(BrokerError::Unavailable("other nodes write to this channel all the time".into()))
    }

    async fn tail(&self, channel: &ChannelName, log: &Log<'_>) -> Result<Tail, BrokerError> {
        let known = lock(&self.writer.tails).get(channel).copied();
        if let Some(tail) = known.filter(|tail| tail.epoch == log.epoch()) {
            return Ok(tail);
        }
        let (sequence, end) = match log.last().await? {
            Some(Stored { sequence, batch }) => (sequence, batch.end()),
            None => Default::default(),
        };
        Ok(Tail { epoch: log.epoch(), sequence, end })
    }
}

/// Returns the first offset in a message. If history has trimmed the message, returns the offset before the oldest one
/// left.
async fn first_offset(log: &Log<'_>, sequence: u64) -> Result<u64, BrokerError> {
    Ok(match log.at(sequence).await? {
        Some(stored) => stored.batch.before.offset + 1,
        None => log.next(sequence + 1).await?.map_or(0, |next| next.batch.before.offset),
    })
}

fn positions(log: &Log<'_>, batch: &Batch) -> Vec<Position> {
    batch.publications.iter().map(|publication| log.position(publication.offset)).collect()
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

/// Waits for a random time, so that nodes that append to one channel at the same time do not collide again.
async fn back_off(attempt: u32) {
    if attempt > 0 {
        let longest_us = 250u64 << attempt.min(7);
        let chance = u64::from(getrandom::u32().unwrap_or_default());
        tokio::time::sleep(Duration::from_micros(chance % longest_us)).await;
    }
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
    fn batches_are_cut_at_keys_and_at_what_a_message_holds() {
        let message_max = HEAD_BYTES + 3 * (PUBLICATION_BYTES + 10);
        let cuts = |batch: &[NewPublication]| cut(batch, message_max);
        assert_eq!(cuts(&vec![new(10, None); 7]), Ok(vec![3, 6, 7]));
        let batch = [new(10, None), new(10, Some("k")), new(10, None), new(10, None), new(10, Some("k"))];
        assert_eq!(cuts(&batch), Ok(vec![1, 2, 4, 5]));
        assert_eq!(cuts(&[new(10, Some("k"))]), Ok(vec![1]));
        assert_eq!(cuts(&[new(10, None), new(1000, None)]).unwrap_err().code, Code::TooLarge);
    }
}
