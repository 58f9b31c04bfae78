//! Index of the waiting messages: the order of sending, limits, retries and counters. The content of messages stays
//! on the disk.
//!
//! ```text
//!   insert ──► waiting ── take ──► in flight ── answered ──► gone (sent, refused)
//!                │  ▲                  │
//!                │  └── put back ──────┘  the request failed, or the server asks to retry
//!                └─► gone (dropped, expired)
//! ```
//!
//! Order: messages of a channel leave in the order in which they came. At most one batch is in flight, so a retry
//! cannot overtake. Among channels, urgent ones are first, then the oldest message.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{message::Urgent, record::End};

/// Wait before the second attempt of a failed request, and of a channel that the server refuses for now. It doubles
/// with each further failure.
const RETRY_MS: u64 = 500;
/// Time after which the server may have forgotten an idempotency key, less one minute for delays. Source:
/// docs/reference/protocol.md, "Writing".
const KEYS_MS: u64 = 4 * 60_000;
/// A clock before 2020 was never set. The age of a message that was stored with such a clock is unknown.
const CLOCK_UNSET_MS: u64 = 1_577_836_800_000;

/// Limits of a buffer.
#[derive(Clone, Debug)]
pub struct Config {
    /// Maximum number of waiting messages.
    pub count_max: usize,
    /// Maximum bytes of waiting messages on the disk. The journal takes up to twice as much, and three times as much
    /// while it is rewritten.
    pub bytes_max: u64,
    /// Maximum age of a waiting message.
    pub age_max_ms: u64,
    /// Maximum number of messages in a batch.
    pub batch_count_max: usize,
    /// Maximum bytes of a batch. A single larger message is sent alone.
    pub batch_bytes_max: usize,
    /// Maximum number of messages sent per second.
    pub rate_per_s: u32,
    /// Longest wait between two attempts.
    pub retry_max_ms: u64,
    /// Bytes of the journal about messages that have left, for which it is not rewritten.
    pub slack_bytes: u64,
    /// Channels that are sent first and dropped last.
    pub urgent: Urgent,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            count_max: 100_000,
            bytes_max: 64 << 20,
            age_max_ms: 7 * 24 * 3_600_000,
            batch_count_max: 100,
            batch_bytes_max: 256 * 1024,
            rate_per_s: 1000,
            retry_max_ms: 30_000,
            slack_bytes: 1 << 20,
            urgent: Urgent::default(),
        }
    }
}

/// Numbers since the buffer was created. They survive a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Messages that were stored.
    pub stored: u64,
    /// Messages that the server has accepted.
    pub sent: u64,
    /// Messages that were dropped because the buffer was full.
    pub dropped: u64,
    /// Messages that were too old.
    pub expired: u64,
    /// Messages that the server refused permanently.
    pub refused: u64,
    /// Records that could not be read.
    pub damaged: u64,
    /// Messages that were repeated although the server may have had them: its history does not reach back, or cannot
    /// be read.
    pub unverified: u64,
}

impl Counters {
    pub(crate) fn count(&mut self, end: End, messages: u64) {
        *match end {
            End::Sent => &mut self.sent,
            End::Dropped => &mut self.dropped,
            End::Expired => &mut self.expired,
            End::Refused => &mut self.refused,
            End::Damaged => &mut self.damaged,
        } += messages;
    }
}

/// State of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    pub waiting: usize,
    pub waiting_bytes: u64,
    /// Age of the oldest waiting message.
    pub oldest_ms: u64,
    #[serde(flatten)]
    pub counters: Counters,
}

/// A stored message.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Place and length of its frame in the journal.
    pub place: u64,
    pub bytes: u32,
    pub time_ms: u64,
    pub ttl_ms: Option<u64>,
    pub channel: Arc<str>,
    /// Hash of the channel and of the publisher's idempotency key.
    pub key_hash: Option<u64>,
}

/// The waiting messages of one channel.
#[derive(Debug)]
struct Channel {
    /// In the order of sending; the first `taken` are in flight.
    seqs: VecDeque<u64>,
    taken: usize,
    is_urgent: bool,
    /// Consecutive answers that asked to retry.
    failures: u32,
    blocked_until_ms: u64,
    doubt: Option<Doubt>,
    /// Messages up to this one have an attempt in the journal.
    recorded_to: Option<u64>,
}

/// The server may have received these messages: their request was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Time of the first request.
    pub since_ms: u64,
    /// Last message in doubt; the first one is the first of the channel.
    pub to: u64,
}

/// Next action of the sender.
#[derive(Debug, PartialEq, Eq)]
pub enum Take {
    /// Send these messages.
    Send(Vec<u64>),
    /// Ask the server which of these messages of a channel it has.
    Check(Arc<str>, u64, Vec<u64>),
}

/// Order of sending: urgent channels first, then the oldest message.
type Rank = (bool, u64);

#[derive(Debug)]
pub struct Queue {
    config: Config,
    entries: BTreeMap<u64, Entry>,
    channels: HashMap<Arc<str>, Channel>,
    /// First message of each channel that can be sent.
    ready: BTreeSet<Rank>,
    /// Channels that the server refuses for now, by the end of their wait.
    blocked: BTreeSet<(u64, Arc<str>)>,
    /// Waiting messages that are not in flight: of other channels, and of urgent channels.
    waiting: [BTreeSet<u64>; 2],
    in_flight: Vec<u64>,
    /// Doubts of the channels in flight before this batch.
    doubts_before: Vec<(Arc<str>, Option<Doubt>)>,
    by_key: HashMap<u64, u64>,
    bytes: u64,
    /// Maximum number of messages in a batch, below the limit after the server has refused a larger one.
    batch_count_max: usize,
    failures: u32,
    not_before_ms: u64,
    /// Messages that the rate permits now, and the time of this value.
    tokens: f64,
    tokens_at_ms: u64,
}

impl Queue {
    pub fn new(config: Config) -> Self {
        Self {
            tokens: config.batch_count_max as f64,
            batch_count_max: config.batch_count_max,
            config,
            entries: BTreeMap::new(),
            channels: HashMap::new(),
            ready: BTreeSet::new(),
            blocked: BTreeSet::new(),
            waiting: Default::default(),
            in_flight: Vec::new(),
            doubts_before: Vec::new(),
            by_key: HashMap::new(),
            bytes: 0,
            failures: 0,
            not_before_ms: 0,
            tokens_at_ms: 0,
        }
    }

    pub fn slack_bytes(&self) -> u64 {
        self.config.slack_bytes
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn oldest_ms(&self, now_ms: u64) -> u64 {
        self.entries.first_key_value().map_or(0, |(_, entry)| now_ms.saturating_sub(entry.time_ms))
    }

    pub fn entry(&self, seq: u64) -> Option<&Entry> {
        self.entries.get(&seq)
    }

    pub fn entry_by_key(&self, hash: u64) -> Option<(u64, &Entry)> {
        let seq = *self.by_key.get(&hash)?;
        self.entries.get(&seq).map(|entry| (seq, entry))
    }

    /// Calls `relocate` with each entry, oldest first.
    pub fn relocate(&mut self, relocate: impl FnMut(&mut Entry)) {
        self.entries.values_mut().for_each(relocate);
    }

    /// Adds a message; `seq` must be above all others.
    pub fn insert(&mut self, seq: u64, entry: Entry) {
        let is_urgent = self.config.urgent.contains(&entry.channel);
        let channel = self.channels.entry(entry.channel.clone()).or_insert_with(|| Channel {
            seqs: VecDeque::new(),
            taken: 0,
            is_urgent,
            failures: 0,
            blocked_until_ms: 0,
            doubt: None,
            recorded_to: None,
        });
        if channel.seqs.len() == channel.taken && channel.blocked_until_ms == 0 {
            self.ready.insert((!is_urgent, seq));
        }
        channel.seqs.push_back(seq);
        self.waiting[usize::from(is_urgent)].insert(seq);
        self.bytes += u64::from(entry.bytes);
        if let Some(hash) = entry.key_hash {
            self.by_key.insert(hash, seq);
        }
        self.entries.insert(seq, entry);
    }

    /// Returns the message to drop if the buffer exceeds its limits: the oldest that is not urgent, or else the oldest.
    /// Messages in flight are never dropped.
    pub fn excess(&self) -> Option<u64> {
        let is_full = self.entries.len() > self.config.count_max || self.bytes > self.config.bytes_max;
        let oldest = || self.waiting.iter().find_map(|waiting| waiting.first().copied());
        is_full.then(oldest).flatten()
    }

    /// Returns a message that is too old.
    pub fn expired(&self, now_ms: u64) -> Option<u64> {
        let is_old = |seq: &&u64| {
            let entry = &self.entries[seq];
            now_ms.saturating_sub(entry.time_ms) > self.config.age_max_ms
        };
        self.waiting.iter().find_map(|waiting| waiting.first().filter(is_old).copied())
    }

    /// Removes a message, also one in flight.
    pub fn remove(&mut self, seq: u64) {
        let Some(entry) = self.entries.remove(&seq) else { return };
        self.bytes -= u64::from(entry.bytes);
        if let Some(hash) = entry.key_hash.filter(|hash| self.by_key.get(hash) == Some(&seq)) {
            self.by_key.remove(&hash);
        }
        self.waiting.iter_mut().for_each(|waiting| {
            waiting.remove(&seq);
        });
        let channel = self.channels.get_mut(&entry.channel).expect("each entry has a channel");
        self.ready.remove(&(!channel.is_urgent, seq));
        if let Some(index) = channel.seqs.iter().position(|other| *other == seq) {
            channel.seqs.remove(index);
            channel.taken -= usize::from(index < channel.taken);
        }
        if channel.doubt.is_some_and(|doubt| channel.seqs.front().is_none_or(|first| *first > doubt.to)) {
            channel.doubt = None;
        }
        self.offer(&entry.channel);
    }

    /// Puts the next message of a channel into the right list, or forgets an empty channel.
    fn offer(&mut self, name: &Arc<str>) {
        let Some(channel) = self.channels.get(name) else { return };
        match channel.seqs.get(channel.taken) {
            Some(next) if channel.blocked_until_ms == 0 => {
                self.ready.insert((!channel.is_urgent, *next));
            }
            None if channel.seqs.is_empty() => {
                self.blocked.remove(&(channel.blocked_until_ms, name.clone()));
                self.channels.remove(name);
            }
            _ => {}
        }
    }

    /// Takes the messages of the next batch. The caller must put them back, or remove them.
    ///
    /// `None`: there is nothing to send now; [`Queue::poll_timeout`] returns the time of the next attempt.
    pub fn take(&mut self, now_ms: u64) -> Option<Take> {
        if !self.in_flight.is_empty() || now_ms < self.not_before_ms {
            return None;
        }
        while let Some((until, name)) = self.blocked.first().cloned().filter(|(until, _)| *until <= now_ms) {
            self.blocked.remove(&(until, name.clone()));
            self.channels.get_mut(&name).into_iter().for_each(|channel| channel.blocked_until_ms = 0);
            self.offer(&name);
        }
        let rate = f64::from(self.config.rate_per_s);
        let passed_s = now_ms.saturating_sub(self.tokens_at_ms) as f64 / 1000.0;
        self.tokens = (self.tokens + passed_s * rate).min(self.config.batch_count_max as f64);
        self.tokens_at_ms = now_ms;
        let count_max = (self.tokens as usize).min(self.batch_count_max);
        let mut bytes = 0;
        while self.in_flight.len() < count_max {
            let Some(&(order, seq)) = self.ready.first() else { break };
            let entry = &self.entries[&seq];
            if let Some(doubt) = self.channels[&entry.channel].doubt.filter(|doubt| doubt.is_old(now_ms)) {
                // A check is a request of its own, after this batch.
                if !self.in_flight.is_empty() {
                    break;
                }
                let seqs = &self.channels[&entry.channel].seqs;
                let seqs = seqs.iter().copied().take_while(|seq| *seq <= doubt.to).collect();
                return Some(Take::Check(entry.channel.clone(), doubt.since_ms, seqs));
            }
            bytes += entry.bytes as usize;
            if bytes > self.config.batch_bytes_max && !self.in_flight.is_empty() {
                break;
            }
            let name = entry.channel.clone();
            self.ready.remove(&(order, seq));
            self.waiting.iter_mut().for_each(|waiting| {
                waiting.remove(&seq);
            });
            self.in_flight.push(seq);
            self.channels.get_mut(&name).into_iter().for_each(|channel| channel.taken += 1);
            self.offer(&name);
        }
        self.tokens -= self.in_flight.len() as f64;
        (!self.in_flight.is_empty()).then(|| Take::Send(self.in_flight.clone()))
    }

    /// Marks messages of a batch as in doubt. Returns those whose attempt is not in the journal.
    pub fn doubt(&mut self, now_ms: u64, seqs: &[u64]) -> Vec<u64> {
        let mut new = Vec::new();
        self.doubts_before.clear();
        for seq in seqs {
            let Some(entry) = self.entries.get(seq) else { continue };
            let channel = self.channels.get_mut(&entry.channel).expect("each entry has a channel");
            if channel.seqs.front() == Some(seq) {
                self.doubts_before.push((entry.channel.clone(), channel.doubt));
            }
            let doubt = channel.doubt.get_or_insert(Doubt { since_ms: now_ms, to: *seq });
            doubt.to = doubt.to.max(*seq);
            if channel.recorded_to.is_none_or(|to| to < *seq) {
                channel.recorded_to = Some(*seq);
                new.push(*seq);
            }
        }
        new
    }

    /// The server has not received the batch: its messages are in doubt only if they were before.
    pub fn undo_doubt(&mut self) {
        for (name, before) in std::mem::take(&mut self.doubts_before) {
            self.channels.get_mut(&name).into_iter().for_each(|channel| channel.doubt = before);
        }
    }

    /// The messages of this channel that are still waiting were not received by the server.
    pub fn clear_doubt(&mut self, name: &str) {
        self.channels.get_mut(name).into_iter().for_each(|channel| channel.doubt = None);
    }

    /// Adds a doubt that the journal has recorded.
    pub fn restore_doubt(&mut self, since_ms: u64, seq: u64) {
        let Some(entry) = self.entries.get(&seq) else { return };
        let channel = self.channels.get_mut(&entry.channel).expect("each entry has a channel");
        let doubt = channel.doubt.get_or_insert(Doubt { since_ms, to: seq });
        *doubt = Doubt { since_ms: doubt.since_ms.min(since_ms), to: doubt.to.max(seq) };
        channel.recorded_to = Some(doubt.to);
    }

    /// Forgets which attempts are in the journal, except those of doubts: it was rewritten.
    pub fn forget_attempts(&mut self) {
        self.channels.values_mut().for_each(|channel| channel.recorded_to = channel.doubt.map(|doubt| doubt.to));
    }

    /// Returns the time and the messages of each doubt.
    pub fn doubts(&self) -> impl Iterator<Item = (u64, Vec<u64>)> {
        self.channels.values().filter_map(|channel| {
            let doubt = channel.doubt?;
            Some((doubt.since_ms, channel.seqs.iter().copied().take_while(|seq| *seq <= doubt.to).collect()))
        })
    }

    /// Puts the rest of the batch back, after the answered messages were removed. `retries` are messages that the
    /// server refuses for now: their channels wait.
    pub fn put_back(&mut self, now_ms: u64, retries: &[u64], jitter: f64) {
        for seq in std::mem::take(&mut self.in_flight) {
            let Some(entry) = self.entries.get(&seq) else { continue };
            let name = entry.channel.clone();
            let channel = self.channels.get_mut(&name).expect("each entry has a channel");
            self.waiting[usize::from(channel.is_urgent)].insert(seq);
            if channel.taken > 0 {
                // The message after those in flight was ready; now the first one in flight comes before it.
                if let Some(next) = channel.seqs.get(channel.taken) {
                    self.ready.remove(&(!channel.is_urgent, *next));
                }
                channel.taken = 0;
                let first = channel.seqs.front().copied();
                if first.is_some_and(|first| retries.contains(&first)) {
                    channel.failures += 1;
                    channel.blocked_until_ms =
                        now_ms + backoff(channel.failures, self.config.retry_max_ms, jitter).max(1);
                    self.blocked.insert((channel.blocked_until_ms, name.clone()));
                }
                self.offer(&name);
            }
        }
    }

    /// Records that the server has accepted a message of this channel.
    pub fn accepted(&mut self, name: &str) {
        self.channels.get_mut(name).into_iter().for_each(|channel| channel.failures = 0);
    }

    /// Records a request without an answer: the next one waits.
    pub fn failed(&mut self, now_ms: u64, retry_after_ms: Option<u64>, jitter: f64) {
        self.failures += 1;
        let wait = backoff(self.failures, self.config.retry_max_ms, jitter);
        let asked = retry_after_ms.unwrap_or(0).min(self.config.retry_max_ms);
        self.not_before_ms = now_ms + wait.max(asked);
    }

    /// Records that a batch of this size was too large.
    pub fn halve(&mut self, count: usize) {
        self.batch_count_max = (count / 2).max(1);
    }

    /// Records an answered request. Batches grow again.
    pub fn answered(&mut self) {
        self.failures = 0;
        self.batch_count_max = (self.batch_count_max + 1).min(self.config.batch_count_max);
    }

    /// Returns the time of the next attempt or expiry, or `None` if there is nothing to wait for.
    pub fn poll_timeout(&self) -> Option<u64> {
        let is_idle = self.in_flight.is_empty();
        let rate = f64::from(self.config.rate_per_s);
        let missing_ms = ((1.0 - self.tokens).max(0.0) / rate * 1000.0).ceil() as u64;
        let ready = self.ready.first().filter(|_| is_idle);
        let ready = ready.map(|_| self.not_before_ms.max(self.tokens_at_ms + missing_ms));
        let blocked = self.blocked.first().filter(|_| is_idle).map(|(until, _)| *until);
        let oldest = self.waiting.iter().filter_map(|waiting| waiting.first());
        let expiry = oldest.map(|seq| self.entries[seq].time_ms.saturating_add(self.config.age_max_ms + 1)).min();
        [ready, blocked, expiry].into_iter().flatten().min()
    }
}

impl Doubt {
    /// Returns true if the server may have forgotten the keys. A time in the future is no known time.
    fn is_old(&self, now_ms: u64) -> bool {
        self.since_ms > now_ms || now_ms - self.since_ms > KEYS_MS
    }
}

/// Returns the time from which the age of a recovered message counts.
pub fn known_time_ms(time_ms: u64, now_ms: u64) -> u64 {
    if time_ms < CLOCK_UNSET_MS || time_ms > now_ms { now_ms } else { time_ms }
}

/// Half of the wait is random, so that many gateways do not return at the same time.
fn backoff(failures: u32, max_ms: u64, jitter: f64) -> u64 {
    let ceiling = RETRY_MS.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(max_ms);
    ceiling / 2 + (ceiling as f64 / 2.0 * jitter) as u64
}
