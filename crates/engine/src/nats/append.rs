//! Appends publications. A stream numbers the messages of all its channels together. The order within one channel
//! comes from an expected sequence in each message: the message that it must follow. If another node appended first,
//! the server refuses the message, and this node reads the end of the log again.

use std::time::Duration;

use async_nats::HeaderMap;
use millrace_protocol::{ChannelName, Code, Error, NewPublication, Position};
use serde::Deserialize;

use super::{
    append_state::{Sent, Tail},
    connection::Nats,
    link::{RequestError, api_answer, code},
    read::{Log, Stored},
    subject,
    wire::{self, Batch},
};
use crate::remote::{BrokerError, Token};

/// Maximum attempts to append one message while other nodes append first. Then the caller decides about a retry.
const ATTEMPTS: u32 = 20;
/// Bytes reserved in a message for its headers.
const HEADERS_BYTES: usize = 2048;
/// Maximum payload, for servers that do not report one: the default of nats-server.
const MAX_PAYLOAD: usize = 1 << 20;

#[derive(Deserialize)]
struct Ack {
    seq: u64,
    #[serde(default)]
    duplicate: bool,
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
        let begun = self.appends.begin(channel, token.number, batch, server_max.saturating_sub(HEADERS_BYTES));
        let mut sent = begun.map_err(BrokerError::Refused)?;
        while sent.positions.len() < batch.len() {
            let part = sent.cuts.iter().take_while(|cut| **cut <= sent.positions.len()).count();
            let publications = &batch[sent.positions.len()..sent.cuts[part]];
            let token = wire::Token { node: token.node.into(), number: token.number, part: part as u16 };
            match self.write_message(channel, publications, token, may_create, &mut sent).await {
                Ok(positions) => sent.positions.extend(positions),
                Err(error) => {
                    if matches!(error, BrokerError::Refused(_)) {
                        self.appends.end(channel);
                    }
                    return Err(error);
                }
            }
            sent.after = None;
            self.appends.keep(channel, &sent);
        }
        self.appends.end(channel);
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
            self.appends.keep(channel, sent);
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
                    self.appends.forget_tail(channel);
                    return Ok(vec![log.position(first_offset(&log, seq).await?)]);
                }
                Ok(Ack { seq, .. }) => {
                    self.appends.set_tail(channel, Tail { epoch: log.epoch(), sequence: seq, end: batch.end() });
                    return Ok(positions(&log, &batch));
                }
                Err(trouble) if trouble.is_api(code::WRONG_LAST_SEQUENCE) => {
                    if doubt.is_some()
                        && let Some(ours) = log.next(after.sequence + 1).await?.filter(|next| next.batch.token == token)
                    {
                        return Ok(positions(&log, &ours.batch));
                    }
                    sent.after = None;
                    self.appends.keep(channel, sent);
                    self.appends.forget_tail(channel);
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
        let known = self.appends.tail(channel);
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

/// Waits for a random time, so that nodes that append to one channel at the same time do not collide again.
async fn back_off(attempt: u32) {
    if attempt > 0 {
        let longest_us = 250u64 << attempt.min(7);
        let chance = u64::from(getrandom::u32().unwrap_or_default());
        tokio::time::sleep(Duration::from_micros(chance % longest_us)).await;
    }
}
