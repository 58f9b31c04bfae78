//! Appends publications. A stream numbers the messages of all its channels together. The order within one channel
//! comes from an expected sequence in each message: the message that it must follow. If another node appended first,
//! the server refuses the message, and this node reads the end of the log again.

use std::{sync::Arc, time::Duration};

use async_nats::HeaderMap;
use bytes::Bytes;
use millrace_delivery::Bounds;
use millrace_protocol::{ChannelName, Code, Error, NewPublication, Position};
use serde::Deserialize;

use super::{
    append_state::Sent,
    connection::Nats,
    link::{RequestError, api_answer, code},
    read::{Log, Stored},
    sending::Sending,
    state_index::StateIndex,
    subject,
    wire::{self, Batch, HEAD_BYTES, LogEnd},
};
use crate::remote::{BrokerError, Token};

/// Maximum attempts to append one message while other nodes append first. Then the caller decides about a retry.
const ATTEMPTS: u32 = 20;
/// Headers of a message: the sequence of the message that it must follow in its channel, and its idempotency key.
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
const MESSAGE_ID: &str = "Nats-Msg-Id";
/// Bytes reserved in a message for its headers.
const HEADERS_BYTES: usize = 2048;
/// Maximum payload, for servers that do not report one: the default of nats-server.
const MAX_PAYLOAD: usize = 1 << 20;

#[derive(Deserialize)]
pub struct Ack {
    pub seq: u64,
    #[serde(default)]
    duplicate: bool,
}

impl Nats {
    /// Returns the maximum bytes of a message without its headers.
    pub(super) fn message_max(&self) -> usize {
        let server_max = self.link.server().map_or(MAX_PAYLOAD, |server| server.max_payload);
        server_max.saturating_sub(HEADERS_BYTES + HEAD_BYTES)
    }

    pub(super) async fn write(
        &self,
        channel: &ChannelName,
        batch: &[NewPublication],
        bounds: &Bounds,
        token: Token<'_>,
        may_create: bool,
    ) -> Result<Vec<Result<Position, Error>>, BrokerError> {
        let message_max = self.message_max();
        // A message of a keyed state needs room for what it carries.
        let batch_max = if bounds.keys_max > 0 { message_max / 2 } else { message_max };
        let begun = self.appends.begin(channel, token.number, batch, batch_max, message_max);
        let mut sent = begun.map_err(BrokerError::Refused)?;
        while sent.outcomes.len() < batch.len() {
            let part = sent.cuts.iter().take_while(|cut| **cut <= sent.outcomes.len()).count();
            let publications = &batch[sent.outcomes.len()..sent.cuts[part]];
            let token = wire::Token { node: token.node.into(), number: token.number, part: part as u16 };
            match self.write_message(channel, publications, bounds, token, may_create, &mut sent).await {
                Ok(outcomes) => sent.outcomes.extend(outcomes),
                Err(error) => {
                    if matches!(error, BrokerError::Refused(_)) {
                        self.appends.end(channel);
                    }
                    return Err(error);
                }
            }
            sent.sending = None;
            self.appends.keep(channel, &sent);
        }
        self.appends.end(channel);
        Ok(sent.outcomes)
    }

    async fn write_message(
        &self,
        channel: &ChannelName,
        publications: &[NewPublication],
        bounds: &Bounds,
        token: wire::Token,
        may_create: bool,
        sent: &mut Sent,
    ) -> Result<Vec<Result<Position, Error>>, BrokerError> {
        let key = publications.first().and_then(|first| first.idempotency_key.as_deref());
        let slot = (bounds.keys_max > 0).then(|| self.states.of(channel));
        let mut index = match &slot {
            Some(slot) => Some(slot.lock().await),
            None => None,
        };
        for attempt in 0..ATTEMPTS {
            let log = Log::open(self, channel).await?;
            // In another epoch, everything sent before is lost with its stream.
            let doubt = sent.sending.clone().filter(|sending| sending.after.epoch == log.epoch());
            let sending = match (&doubt, &mut index) {
                (Some(sending), _) => sending.clone(),
                (None, None) => {
                    let after = self.tail(channel, &log).await?;
                    Arc::new(Sending::new(token.clone(), after, publications, self.clock.now_ms()))
                }
                (None, Some(index)) => {
                    Arc::new(self.check(channel, &log, publications, bounds, token.clone(), index).await?)
                }
            };
            if sending.batch.publications.is_empty() {
                return Ok(sending.outcomes(log.position(0)));
            }
            if sending.after.sequence == 0 && !may_create {
                return Err(BrokerError::Refused(Error::new(Code::TooMany, "there are too many channels")));
            }
            sent.sending = Some(sending.clone());
            self.appends.keep(channel, sent);
            let position = |batch: &Batch| log.position(batch.before.offset + 1);
            match self.append_message(channel, &log, &sending, key).await {
                Ok(Ack { seq, duplicate: true }) => {
                    // The idempotency key is known: from an earlier publication, or from this one if its answer was
                    // lost. A publication with a key is alone in its message.
                    self.appends.forget_tail(channel);
                    return Ok(vec![Ok(log.position(first_offset(&log, seq).await?))]);
                }
                Ok(Ack { seq, .. }) => {
                    if let Some(index) = index.as_mut().and_then(|index| index.as_mut()) {
                        index.read(seq, &sending.batch, log.kept());
                    }
                    return Ok(sending.outcomes(position(&sending.batch)));
                }
                Err(trouble) if trouble.is_api(code::WRONG_LAST_SEQUENCE) => {
                    if doubt.is_some()
                        && let Some(ours) =
                            log.next(sending.after.sequence + 1).await?.filter(|next| next.batch.token == token)
                    {
                        return Ok(sending.outcomes(position(&ours.batch)));
                    }
                    sent.sending = None;
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

    /// Sends a message. When it is stored, it is the new end of the log.
    pub(super) async fn append_message(
        &self,
        channel: &ChannelName,
        log: &Log<'_>,
        sending: &Sending,
        key: Option<&str>,
    ) -> Result<Ack, RequestError> {
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED, sending.after.sequence.to_string());
        if let Some(key) = key {
            headers.insert(MESSAGE_ID, subject::message_id(log.epoch(), channel, key));
        }
        let answer = self.link.request(log.subject.clone(), Some(headers), sending.batch.encode()).await?;
        let ack = api_answer::<Ack>(&answer.payload)?;
        if !ack.duplicate {
            let tail = LogEnd { epoch: log.epoch(), sequence: ack.seq, end: sending.batch.end() };
            self.appends.set_tail(channel, tail);
        }
        Ok(ack)
    }

    /// Checks publications against the state and returns the message of those that may enter.
    async fn check(
        &self,
        channel: &ChannelName,
        log: &Log<'_>,
        new: &[NewPublication],
        bounds: &Bounds,
        token: wire::Token,
        index: &mut Option<StateIndex>,
    ) -> Result<Sending, BrokerError> {
        let now_ms = self.clock.now_ms();
        let tail = self.appends.tail(channel);
        let is_recent = |index: &&mut StateIndex| index.tail().epoch == log.epoch() && Some(index.tail()) == tail;
        let mut checks = None;
        // If the index is older than it seems, the server refuses the message. A refusal here must be sure.
        if let Some(index) = index.as_mut().filter(is_recent) {
            checks = Some(index.check(new, now_ms, bounds)).filter(|checks| checks.iter().all(Result::is_ok));
        }
        let index = match (&checks, index) {
            (Some(_), Some(index)) => index,
            (_, index) => log.catch_up(index).await?,
        };
        let checks = checks.unwrap_or_else(|| index.check(new, now_ms, bounds));
        let (mut accepted, mut settled) = (Vec::with_capacity(new.len()), Vec::new());
        for (place, (new, check)) in new.iter().zip(checks).enumerate() {
            match check {
                Ok(()) => accepted.push(new.clone()),
                Err(error) => {
                    let known = match &new.idempotency_key {
                        Some(key) => self.known_position(channel, log, key).await?,
                        None => None,
                    };
                    settled.push((place, known.ok_or(error)));
                }
            }
        }
        let sending = Sending { settled, ..Sending::new(token, index.tail(), &accepted, now_ms) };
        if accepted.is_empty() {
            return Ok(sending);
        }
        sending.carrying(index, self.message_max(), log.kept()).map_err(BrokerError::Refused)
    }

    /// Returns the position of the publication with this idempotency key, if the server knows the key. The server looks
    /// for the key first, and refuses a message with another key because of its impossible expected sequence.
    async fn known_position(
        &self,
        channel: &ChannelName,
        log: &Log<'_>,
        key: &str,
    ) -> Result<Option<Position>, BrokerError> {
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED, i64::MAX.to_string());
        headers.insert(MESSAGE_ID, subject::message_id(log.epoch(), channel, key));
        let answer = self.link.request(log.subject.clone(), Some(headers), Bytes::new()).await;
        match answer.and_then(|answer| api_answer::<Ack>(&answer.payload)) {
            Ok(Ack { seq, .. }) => Ok(Some(log.position(first_offset(log, seq).await?))),
            Err(trouble) if trouble.is_api(code::WRONG_LAST_SEQUENCE) => Ok(None),
            Err(trouble) => Err(trouble.into()),
        }
    }

    async fn tail(&self, channel: &ChannelName, log: &Log<'_>) -> Result<LogEnd, BrokerError> {
        let known = self.appends.tail(channel);
        if let Some(tail) = known.filter(|tail| tail.epoch == log.epoch()) {
            return Ok(tail);
        }
        let (sequence, end) = match log.last().await? {
            Some(Stored { sequence, batch }) => (sequence, batch.end()),
            None => Default::default(),
        };
        Ok(LogEnd { epoch: log.epoch(), sequence, end })
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

/// Waits for a random time, so that nodes that append to one channel at the same time do not collide again.
async fn back_off(attempt: u32) {
    if attempt > 0 {
        let longest_us = 250u64 << attempt.min(7);
        let chance = u64::from(getrandom::u32().unwrap_or_default());
        tokio::time::sleep(Duration::from_micros(chance % longest_us)).await;
    }
}
