//! Reads stored messages. The sequences of a stream count the messages of all its channels; the offsets of a channel
//! count its own publications. Both increase, so a binary search finds the sequence of an offset.

use std::time::{Duration, Instant};

use async_nats::StatusCode;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use millrace_delivery::{Bounds, Page, PageLimit};
use millrace_protocol::{ChannelName, Epoch, Position, Publication, Since, session::Policy};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    connection::Nats,
    link::{RequestError, code},
    streams::{Known, Stream},
    subject,
    wire::{Batch, End},
};
use crate::{
    Newest,
    remote::{BrokerError, Past},
};

/// Time after which a page ends, even if it has room for more publications. Each message is one request. Without this
/// limit, many readers that are far behind a slow server would all run out of time, and start again.
const READING_MAX: Duration = Duration::from_secs(1);

/// A stored message of a stream.
#[derive(Debug)]
pub struct Stored {
    pub sequence: u64,
    pub batch: Batch,
}

/// The messages of one channel.
pub struct Log<'a> {
    nats: &'a Nats,
    pub stream: &'a Stream,
    known: Known,
    pub subject: String,
}

#[derive(Deserialize)]
struct RawAnswer {
    message: RawMessage,
}

#[derive(Deserialize)]
struct RawMessage {
    seq: u64,
    #[serde(default)]
    data: String,
}

impl<'a> Log<'a> {
    pub async fn open(nats: &'a Nats, channel: &ChannelName) -> Result<Self, BrokerError> {
        let stream = nats.streams.of(channel);
        let known = nats.streams.known(&nats.link, stream).await?;
        let subject = nats.streams.subject(stream, known.epoch, &subject::of_channel(channel));
        Ok(Self { nats, stream, known, subject })
    }

    pub fn epoch(&self) -> Epoch {
        self.known.epoch
    }

    pub fn position(&self, offset: u64) -> Position {
        Position { epoch: self.known.epoch, offset }
    }

    /// Returns the number of messages that the server keeps per channel.
    pub fn kept(&self) -> usize {
        self.known.kept
    }

    pub async fn last(&self) -> Result<Option<Stored>, BrokerError> {
        self.get(json!({ "last_by_subj": self.subject })).await
    }

    /// Returns the first message at or after a sequence.
    pub async fn next(&self, sequence: u64) -> Result<Option<Stored>, BrokerError> {
        self.get(json!({ "seq": sequence, "next_by_subj": self.subject })).await
    }

    pub async fn at(&self, sequence: u64) -> Result<Option<Stored>, BrokerError> {
        self.get(json!({ "seq": sequence })).await
    }

    async fn get(&self, query: Value) -> Result<Option<Stored>, BrokerError> {
        let found = if self.known.is_replicated { self.ask_leader(query).await } else { self.ask_any(query).await };
        match found {
            Ok(None) => Ok(None),
            Ok(Some((sequence, data))) => match Batch::decode(data) {
                Some(batch) => Ok(Some(Stored { sequence, batch })),
                None => Err(BrokerError::Unavailable(format!(
                    "message {sequence} of the stream {} of NATS is not understood",
                    self.stream.name
                ))),
            },
            Err(trouble) => {
                // The stream may have been deleted and created again.
                self.stream.forget();
                Err(trouble.into())
            }
        }
    }

    async fn ask_any(&self, query: Value) -> Result<Option<(u64, Bytes)>, RequestError> {
        let subject = format!("$JS.API.DIRECT.GET.{}", self.stream.name);
        let message = self.nats.link.request(subject, None, query.to_string().into()).await?;
        match message.status {
            None => {}
            Some(StatusCode::NOT_FOUND) => return Ok(None),
            Some(_) => return Err(RequestError::Lost("NATS cannot read a stream")),
        }
        let sequence = message.headers.as_ref().and_then(|headers| headers.get("Nats-Sequence"));
        let sequence = sequence.and_then(|sequence| sequence.as_str().parse().ok());
        let sequence = sequence.ok_or(RequestError::Lost("an answer of NATS is not understood"))?;
        Ok(Some((sequence, message.payload)))
    }

    async fn ask_leader(&self, query: Value) -> Result<Option<(u64, Bytes)>, RequestError> {
        let subject = format!("$JS.API.STREAM.MSG.GET.{}", self.stream.name);
        match self.nats.link.api::<RawAnswer>(subject, &query).await {
            Ok(RawAnswer { message: RawMessage { seq, data } }) => match BASE64_STANDARD.decode(data) {
                Ok(data) => Ok(Some((seq, data.into()))),
                Err(_) => Err(RequestError::Lost("an answer of NATS is not understood")),
            },
            Err(trouble) if trouble.is_api(code::MESSAGE_NOT_FOUND) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// Returns the first message whose last publication is wanted. `last` is a message with this property. All
    /// publications from some position on are wanted. Cost: O(log of the stream's length) requests, none if the
    /// publication before `last` is not wanted.
    async fn seek(&self, last: Stored, is_wanted: impl Fn(End, &Publication) -> bool) -> Result<Stored, BrokerError> {
        let mut first = last;
        // Invariant: messages at or below `low` contain nothing wanted, and no message lies from `high` up to `first`.
        let (mut low, mut high, mut low_offset) = (0, first.sequence, 0);
        let mut probe = 1;
        while first.batch.before.offset > low_offset && low + 1 < high {
            let Some(found) = self.next(probe).await? else { break };
            let is_below = found.sequence < first.sequence && {
                let last = found.batch.steps().last();
                !last.is_some_and(|(before, publication)| is_wanted(before, publication))
            };
            if is_below {
                (low, low_offset) = (found.sequence, found.batch.end().offset);
            } else {
                high = probe;
                if found.sequence < first.sequence {
                    first = found;
                }
            }
            probe = low + (high - low) / 2;
            if probe <= low {
                break;
            }
        }
        Ok(first)
    }
}

impl Nats {
    pub(super) async fn read_page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
        bounds: &Bounds,
    ) -> Result<Page, BrokerError> {
        if let Since::State | Since::StateAfter { .. } = since {
            return self.read_state(channel, since, limit, bounds).await;
        }
        let began = Instant::now();
        let log = Log::open(self, channel).await?;
        let now_ms = self.clock.now_ms();
        let Some(last) = log.last().await? else {
            let past = Past { top: log.position(0), after: 0, publications: Vec::new() };
            return Ok(past.page_of(bounds.keys_max, since, policy, limit, now_ms));
        };
        let (top, last_sequence) = (last.batch.end(), last.sequence);
        let is_kept = |before: End, publication: &Publication| top.holds(before, publication.time_ms, now_ms, bounds);
        let is_wanted = |before: End, publication: &Publication| {
            is_kept(before, publication)
                && match since {
                    Since::Now => false,
                    Since::Earliest | Since::State | Since::StateAfter { .. } => true,
                    Since::Position(at) | Since::StateOr(at) => {
                        at.epoch != log.epoch() || publication.offset > at.offset
                    }
                    Since::Time(ms) => publication.time_ms >= ms,
                }
        };
        let newest = last.batch.steps().last().expect("a batch is never empty");
        let mut past = Past { top: log.position(top.offset), after: top.offset, publications: Vec::new() };
        let mut lost = match since {
            Since::Time(ms) if !is_wanted(newest.0, newest.1) => top.time_ms >= ms,
            _ => false,
        };
        if is_wanted(newest.0, newest.1) {
            let mut stored = log.seek(last, is_wanted).await?;
            let skipped =
                stored.batch.steps().take_while(|(before, publication)| !is_wanted(*before, publication)).last();
            let before = skipped.map_or(stored.batch.before, |(_, skipped)| End {
                offset: skipped.offset,
                bytes: 0,
                time_ms: skipped.time_ms,
            });
            past.after = before.offset;
            lost = matches!(since, Since::Time(ms) if before.offset > 0 && before.time_ms >= ms);
            let mut bytes = 0;
            loop {
                if stored.batch.before.offset > past.after + past.publications.len() as u64 {
                    // The log was trimmed during the read: the publications read so far are trimmed, too.
                    past.publications.clear();
                    past.after = stored.batch.before.offset;
                    bytes = 0;
                }
                for publication in &stored.batch.publications {
                    if publication.offset > past.after + past.publications.len() as u64 {
                        bytes += publication.cost_bytes();
                        past.publications.push(publication.clone());
                    }
                }
                // `latest` needs all publications to know which are superseded.
                let is_full = past.publications.len() >= limit.count
                    || bytes >= limit.bytes
                    || (!past.publications.is_empty() && began.elapsed() >= READING_MAX);
                if stored.sequence >= last_sequence || (policy == Policy::Every && is_full) {
                    break;
                }
                match log.next(stored.sequence + 1).await? {
                    Some(next) => stored = next,
                    None => break,
                }
            }
        }
        let since = match since {
            Since::Time(_) => Since::Position(log.position(if lost { 0 } else { past.after })),
            since => since,
        };
        Ok(past.page_of(bounds.keys_max, since, policy, limit, now_ms))
    }

    pub(super) async fn read_newest(&self, channel: &ChannelName, bounds: &Bounds) -> Result<Newest, BrokerError> {
        let log = Log::open(self, channel).await?;
        let Some(last) = log.last().await? else {
            return Ok(Newest { top: log.position(0), publication: None });
        };
        let (top, now_ms) = (last.batch.end(), self.clock.now_ms());
        let newest = last.batch.steps().last().filter(|(before, publication)| {
            top.holds(*before, publication.time_ms, now_ms, bounds) && !publication.is_expired(now_ms)
        });
        Ok(Newest { top: log.position(top.offset), publication: newest.map(|(_, newest)| newest.clone()) })
    }

    pub(super) async fn read_top(&self, channel: &ChannelName) -> Result<Position, BrokerError> {
        let log = Log::open(self, channel).await?;
        Ok(log.position(log.last().await?.map_or(0, |last| last.batch.end().offset)))
    }
}
