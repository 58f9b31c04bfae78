//! The buffer: stores messages in the journal of a disk, and returns them in batches until the server has accepted
//! them.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Read, Seek},
    sync::Arc,
};

use crate::{
    Check, Config, Message, Stats,
    queue::{Counters, Entry, Queue, Take, known_time_ms},
    record::{End, Header, Put, RECORD_BYTES_MAX, Record, decode, encode, recover},
};

/// Maximum number of messages in one record of messages that have left, so that the record stays small.
const DONE_SEQS_MAX: usize = 10_000;

/// Files of a buffer. The implementation decides where the bytes are.
pub trait Disk {
    /// The journal as a whole.
    type Journal<'a>: Read + Seek
    where
        Self: 'a;

    fn journal(&mut self) -> io::Result<Self::Journal<'_>>;

    /// Appends to the journal. After an error, the journal must have its previous length.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Returns once everything that was appended survives a power failure.
    fn sync(&mut self) -> io::Result<()>;

    /// Cuts the journal off.
    fn truncate(&mut self, length: u64) -> io::Result<()>;

    /// Replaces the journal by `head` and the given areas (place, length) of the old one, in one step that survives a
    /// power failure. After an error, the journal must be the old one.
    fn rewrite(&mut self, head: &[u8], areas: &mut dyn Iterator<Item = (u64, u32)>) -> io::Result<()>;

    /// Keeps a message that the server refuses, for a person.
    fn set_aside(&mut self, line: &str) -> io::Result<()>;
}

/// Reason why a buffer cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the journal cannot be read or written: {0}")]
    Disk(#[from] io::Error),
}

/// Reason why messages are not stored.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    #[error("the buffer is full of messages of urgent channels, or of messages in flight; try again later")]
    Full,
    #[error("the message has {0} bytes with its names; at most {RECORD_BYTES_MAX} are possible")]
    TooLarge(usize),
    #[error("the buffer cannot be written: {0}")]
    Disk(#[from] io::Error),
}

/// Confirms that a message survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub seq: u64,
    /// The message was stored before, with the same idempotency key.
    pub is_repeated: bool,
}

/// Messages for one request.
#[derive(Debug)]
pub struct Batch {
    pub seqs: Vec<u64>,
    /// One line per message.
    pub body: Vec<u8>,
}

/// The next request to the server.
#[derive(Debug)]
pub enum Step {
    /// Send these messages; then call [`Buffer::handle_outcome`].
    Send(Batch),
    /// Read the history of the channel; then call [`Buffer::handle_check`].
    Check(Check),
}

/// Answer of the server about one line of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineResult {
    /// The server returned the position.
    Accepted,
    /// The server refuses the message for now.
    Retry,
    /// The server refuses the message permanently.
    Refused,
}

/// Result of a request.
#[derive(Debug)]
pub enum Outcome {
    /// One result per line.
    Answered(Vec<LineResult>),
    /// No answer, or an error of the whole request. The server may have accepted any part.
    Failed { retry_after_ms: Option<u64> },
    /// The server was not reached, so it has not received any part.
    NotReached,
    /// The server takes no batch of this size. The next one is half as large. A single message is refused.
    TooLarge,
}

/// A bounded, durable queue of messages.
#[derive(Debug)]
pub struct Buffer<D> {
    disk: D,
    queue: Queue,
    id: u64,
    next_seq: u64,
    counters: Counters,
    /// Length of the journal.
    length: u64,
    /// Frames about messages that have left, not yet in the journal.
    unwritten: Vec<u8>,
    torn_bytes: u64,
}

impl<D: Disk> Buffer<D> {
    /// Recovers the buffer from its journal, or begins a journal. `random` becomes a part of the idempotency keys of
    /// a new buffer.
    pub fn open(config: Config, mut disk: D, now_ms: u64, random: u64) -> Result<Self, OpenError> {
        let mut entries = std::collections::BTreeMap::new();
        let (mut header, mut next_seq, mut counters) = (None::<Header>, 0, Counters::default());
        let mut attempts = Vec::new();
        let recovered = recover(&mut disk.journal()?, |place, bytes, record| match record {
            Record::Header(found) => {
                next_seq = found.next_seq.max(next_seq);
                counters = found.counters;
                header = Some(found);
            }
            Record::Put(Put { seq, time_ms, message }) => {
                next_seq = next_seq.max(seq + 1);
                // The header of a rewritten journal has counted its messages.
                counters.stored += u64::from(header.is_none_or(|header| seq >= header.next_seq));
                let entry = Entry {
                    place,
                    bytes: bytes as u32,
                    time_ms: known_time_ms(time_ms, now_ms),
                    ttl_ms: message.ttl_ms,
                    channel: Arc::from(&*message.channel),
                    key_hash: message.idempotency_key.as_deref().map(|key| key_hash(&message.channel, key)),
                };
                entries.insert(seq, entry);
            }
            Record::Done(end, seqs) => {
                let removed = seqs.iter().filter(|seq| entries.remove(seq).is_some()).count();
                counters.count(end, removed as u64);
            }
            Record::Attempt(time_ms, seqs) => attempts.push((time_ms, seqs)),
        })?;
        counters.count(End::Damaged, recovered.damaged);
        disk.truncate(recovered.end)?;
        let mut queue = Queue::new(config);
        entries.into_iter().for_each(|(seq, entry)| queue.insert(seq, entry));
        for (time_ms, seqs) in attempts {
            seqs.iter().for_each(|seq| queue.restore_doubt(time_ms, *seq));
        }
        let is_new = header.is_none();
        // A journal without its header gets a new id: messages could otherwise repeat the keys of older ones.
        let id = header.map_or(random, |header| header.id);
        let torn_bytes = recovered.torn_bytes;
        let mut buffer =
            Self { disk, queue, id, next_seq, counters, length: recovered.end, unwritten: Vec::new(), torn_bytes };
        if is_new {
            buffer.rewrite()?;
        }
        buffer.disk.sync()?;
        Ok(buffer)
    }

    /// Bytes at the end of the journal that a crash had left incomplete.
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    pub fn stats(&self, now_ms: u64) -> Stats {
        Stats {
            waiting: self.queue.len(),
            waiting_bytes: self.queue.bytes(),
            oldest_ms: self.queue.oldest_ms(now_ms),
            counters: self.counters,
        }
    }

    /// Stores messages, all or none. After success they survive a power failure.
    ///
    /// If the buffer is full, the oldest messages are dropped. Cost: one sync of the disk.
    pub fn put(&mut self, now_ms: u64, messages: &[Message<'_>]) -> Result<Vec<Receipt>, PutError> {
        let (mut receipts, mut stored) = (Vec::with_capacity(messages.len()), Vec::new());
        let mut bytes = std::mem::take(&mut self.unwritten);
        let before = bytes.len();
        let mut known = HashMap::new();
        let mut seq = self.next_seq;
        for message in messages {
            let key = message.idempotency_key.as_deref().map(|key| (&*message.channel, key));
            let repeated = key.and_then(|key| known.get(&key).copied().or_else(|| self.find(key.0, key.1)));
            if let Some(seq) = repeated {
                receipts.push(Receipt { seq, is_repeated: true });
                continue;
            }
            let frame = encode(&Record::Put(Put { seq, time_ms: now_ms, message: message.clone() }));
            if frame.len() > RECORD_BYTES_MAX {
                bytes.truncate(before);
                self.unwritten = bytes;
                return Err(PutError::TooLarge(frame.len()));
            }
            let entry = Entry {
                place: self.length + bytes.len() as u64,
                bytes: frame.len() as u32,
                time_ms: now_ms,
                ttl_ms: message.ttl_ms,
                channel: Arc::from(&*message.channel),
                key_hash: key.map(|(channel, key)| key_hash(channel, key)),
            };
            bytes.extend(frame);
            stored.push((seq, entry));
            known.extend(key.map(|key| (key, seq)));
            receipts.push(Receipt { seq, is_repeated: false });
            seq += 1;
        }
        if let Err(error) = self.disk.append(&bytes) {
            bytes.truncate(before);
            self.unwritten = bytes;
            return Err(error.into());
        }
        self.length += bytes.len() as u64;
        self.next_seq = seq;
        self.disk.sync()?;
        let last = stored.last().map(|(seq, _)| *seq);
        self.counters.stored += stored.len() as u64;
        stored.into_iter().for_each(|(seq, entry)| self.queue.insert(seq, entry));
        let mut dropped = Vec::new();
        while let Some(seq) = self.queue.excess() {
            self.queue.remove(seq);
            dropped.push(seq);
        }
        let is_refused = last.is_some_and(|last| dropped.contains(&last));
        self.end(End::Dropped, dropped);
        self.maintain();
        if is_refused { Err(PutError::Full) } else { Ok(receipts) }
    }

    /// Returns the waiting message with this key. The message in the journal decides, not its hash.
    fn find(&mut self, channel: &str, key: &str) -> Option<u64> {
        let (seq, entry) = self.queue.entry_by_key(key_hash(channel, key))?;
        let frame = read(&mut self.disk, entry.place, entry.bytes).ok()?;
        let Some(Record::Put(put)) = decode(&frame) else { return None };
        let is_same = put.message.channel == channel && put.message.idempotency_key.as_deref() == Some(key);
        is_same.then_some(seq)
    }

    /// Returns the next request, or `None` if there is nothing to send before [`Buffer::poll_timeout`].
    ///
    /// Errors: the journal cannot be read; the messages stay.
    pub fn poll_step(&mut self, now_ms: u64) -> io::Result<Option<Step>> {
        self.expire(now_ms);
        loop {
            let seqs = match self.queue.take(now_ms) {
                None => return Ok(None),
                Some(Take::Send(seqs)) => seqs,
                Some(Take::Check(channel, since_ms, seqs)) => {
                    let mut check = Check::new(&channel, since_ms);
                    for seq in seqs {
                        let Some(entry) = self.queue.entry(seq) else { continue };
                        let frame = read(&mut self.disk, entry.place, entry.bytes)?;
                        if let Some(Record::Put(put)) = decode(&frame) {
                            check.add(&put);
                        }
                    }
                    return Ok(Some(Step::Check(check)));
                }
            };
            let mut batch = Batch { seqs: Vec::new(), body: Vec::new() };
            let (mut expired, mut damaged, mut failure) = (Vec::new(), Vec::new(), None);
            for seq in seqs {
                let Some(entry) = self.queue.entry(seq) else { continue };
                let age_ms = now_ms.saturating_sub(entry.time_ms);
                let rest_ms = entry.ttl_ms.map(|ttl_ms| ttl_ms.saturating_sub(age_ms));
                if rest_ms == Some(0) {
                    expired.push(seq);
                    continue;
                }
                let frame = match read(&mut self.disk, entry.place, entry.bytes) {
                    Ok(frame) => frame,
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                };
                match decode(&frame) {
                    Some(Record::Put(put)) if put.seq == seq => {
                        let own = format!("{:016x}-{seq}", self.id);
                        let key = put.message.idempotency_key.as_deref().unwrap_or(&own);
                        batch.body.extend(put.message.line(key, rest_ms).into_bytes());
                        batch.seqs.push(seq);
                    }
                    _ => damaged.push(seq),
                }
            }
            self.remove(End::Expired, expired);
            self.remove(End::Damaged, damaged);
            match failure {
                Some(error) => {
                    self.queue.put_back(now_ms, &[], 0.0);
                    self.queue.failed(now_ms, None, 1.0);
                    return Err(error);
                }
                None if batch.seqs.is_empty() => self.queue.put_back(now_ms, &[], 0.0),
                None => {
                    let new = self.queue.doubt(now_ms, &batch.seqs);
                    if !new.is_empty() {
                        self.unwritten.extend(encode(&Record::Attempt(now_ms, new)));
                        self.maintain();
                    }
                    return Ok(Some(Step::Send(batch)));
                }
            }
        }
    }

    /// Handles the result of a check; `is_read`: the history was read to its end, or until the check was complete.
    ///
    /// Messages that the server has are deleted. The others are in the next batch.
    pub fn handle_check(&mut self, check: &Check, is_read: bool) {
        let found: Vec<u64> = check.found().collect();
        let unverified = if is_read { check.unverified() } else { (check.seqs.len() - found.len()) as u64 };
        self.counters.unverified += unverified;
        self.remove(End::Sent, found);
        self.queue.clear_doubt(&check.channel);
        self.maintain();
    }

    /// Handles a check that the server did not answer: it is repeated later.
    pub fn handle_failed_check(&mut self, now_ms: u64, jitter: f64) {
        self.queue.failed(now_ms, None, jitter);
    }

    /// Handles the result of a request. `jitter` is a random number in `[0, 1)`.
    ///
    /// Only messages with [`LineResult::Accepted`] are deleted. Refused messages are set aside.
    pub fn handle_outcome(&mut self, now_ms: u64, batch: &Batch, outcome: Outcome, jitter: f64) {
        let mut retries = Vec::new();
        match outcome {
            Outcome::NotReached => {
                self.queue.undo_doubt();
                self.queue.failed(now_ms, None, jitter);
            }
            Outcome::Failed { retry_after_ms } => self.queue.failed(now_ms, retry_after_ms, jitter),
            Outcome::TooLarge if batch.seqs.len() > 1 => self.queue.halve(batch.seqs.len()),
            Outcome::TooLarge => {
                let (mut refused, line) = (batch.seqs.clone(), String::from_utf8_lossy(&batch.body));
                if self.disk.set_aside(&line).is_err() {
                    retries.append(&mut refused);
                }
                self.remove(End::Refused, refused);
            }
            // Not an answer to this batch: nothing is known about any line.
            Outcome::Answered(results) if results.len() != batch.seqs.len() => {
                self.queue.failed(now_ms, None, jitter);
            }
            Outcome::Answered(results) => {
                self.queue.answered();
                let (mut sent, mut refused) = (Vec::new(), Vec::new());
                let lines = batch.body.split_inclusive(|byte| *byte == b'\n');
                for ((seq, result), line) in batch.seqs.iter().zip(results).zip(lines) {
                    match result {
                        LineResult::Accepted => {
                            if let Some(entry) = self.queue.entry(*seq) {
                                let channel = entry.channel.clone();
                                self.queue.accepted(&channel);
                            }
                            sent.push(*seq);
                        }
                        LineResult::Retry => retries.push(*seq),
                        // A message that cannot be set aside stays, and its channel waits.
                        LineResult::Refused => match self.disk.set_aside(&String::from_utf8_lossy(line)) {
                            Ok(()) => refused.push(*seq),
                            Err(_) => retries.push(*seq),
                        },
                    }
                }
                self.remove(End::Sent, sent);
                self.remove(End::Refused, refused);
            }
        }
        self.queue.put_back(now_ms, &retries, jitter);
        self.maintain();
    }

    /// Returns the time of the next attempt or expiry.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.queue.poll_timeout()
    }

    /// Drops messages that are too old.
    pub fn expire(&mut self, now_ms: u64) {
        let mut expired = Vec::new();
        while let Some(seq) = self.queue.expired(now_ms) {
            self.queue.remove(seq);
            expired.push(seq);
        }
        self.end(End::Expired, expired);
    }

    fn remove(&mut self, end: End, seqs: Vec<u64>) {
        seqs.iter().for_each(|seq| self.queue.remove(*seq));
        self.end(end, seqs);
    }

    /// Records that messages have left.
    fn end(&mut self, end: End, seqs: Vec<u64>) {
        self.counters.count(end, seqs.len() as u64);
        seqs.chunks(DONE_SEQS_MAX).for_each(|seqs| self.unwritten.extend(encode(&Record::Done(end, seqs.to_vec()))));
    }

    /// Writes what is not yet in the journal, and rewrites the journal if most of it is about messages that have left.
    ///
    /// A failure is no problem: the records wait, and after a crash the server detects the repeated messages by their
    /// idempotency keys.
    fn maintain(&mut self) {
        if !self.unwritten.is_empty() && self.disk.append(&self.unwritten).is_ok() {
            self.length += self.unwritten.len() as u64;
            self.unwritten.clear();
            let _ = self.disk.sync();
        }
        if self.length > 2 * self.queue.bytes() + self.queue.slack_bytes() {
            let _ = self.rewrite();
        }
    }

    /// Rewrites the journal with the waiting messages only.
    fn rewrite(&mut self) -> io::Result<()> {
        let header = Header { id: self.id, next_seq: self.next_seq, counters: self.counters };
        let mut head = encode(&Record::Header(header));
        self.queue.doubts().for_each(|(time_ms, seqs)| head.extend(encode(&Record::Attempt(time_ms, seqs))));
        let mut areas = Vec::with_capacity(self.queue.len());
        self.queue.relocate(|entry| areas.push((entry.place, entry.bytes)));
        self.disk.rewrite(&head, &mut areas.into_iter())?;
        self.length = head.len() as u64;
        let length = &mut self.length;
        self.queue.relocate(|entry| {
            entry.place = *length;
            *length += u64::from(entry.bytes);
        });
        self.unwritten.clear();
        self.queue.forget_attempts();
        Ok(())
    }

    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    /// Ends the buffer without writing anything, as a crash does.
    pub fn into_disk(self) -> D {
        self.disk
    }
}

fn read<D: Disk>(disk: &mut D, place: u64, bytes: u32) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; bytes as usize];
    let mut journal = disk.journal()?;
    journal.seek(io::SeekFrom::Start(place))?;
    journal.read_exact(&mut frame)?;
    Ok(frame)
}

fn key_hash(channel: &str, key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (channel, key).hash(&mut hasher);
    hasher.finish()
}
