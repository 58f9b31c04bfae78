//! The only thread that writes. All publications queued during a commit form the next transaction, so batches form by
//! themselves. This thread decides the order. Publications are delivered, and publishers answered, after the commit.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, Release},
    },
    time::Duration,
};

use millrace_delivery::Bounds;
use millrace_protocol::{ChannelName, Code, Epoch, Error, NewPublication, Position, Publication, PublicationHead};
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use super::{
    Shared,
    file::{File, Log, describe},
    queue::Submitted,
    reader::number_of,
    state::{self, DELETION},
};
use crate::{Deliver, shares::Shares};

/// How long an idempotency key is remembered.
const IDEMPOTENCY_MS: u64 = 5 * 60 * 1000;
/// Approximate disk space of a publication besides its payload and key: its other columns and its index entry.
const ENTRY_BYTES: usize = 100;
/// A full history is trimmed by this fraction (one in 64) at once, instead of by one publication for each new one.
const SLACK: usize = 64;
/// Maximum publications that one transaction trims, plus twice the number of publications that it adds.
pub(super) const FORGET_MAX: usize = 4096;
/// Pause after a scan for channels to evict that found few.
pub(super) const SCAN_PAUSE_MS: u64 = 1000;
/// Maximum number of keys of states that one sweep expires.
const EXPIRE_MAX: usize = 10_000;
/// Pages returned to the file system per sweep, if more than a quarter of the file is free.
const VACUUM_PAGES: u64 = 256;
/// After a failure, interval between attempts to write to the file.
const PROBE: Duration = Duration::from_secs(1);

pub(super) struct Writer<D: Deliver> {
    pub(super) shared: Arc<Shared<D>>,
    pub(super) file: File,
    pub(super) logs: HashMap<ChannelName, Log>,
    /// Number of channels of each holder.
    pub(super) shares: Shares,
    /// Earliest time of the next scan, for each [`Evict`].
    pub(super) scan_again_ms: [u64; 2],
    /// Earliest time of the next plan, after one that could not free enough.
    plan_again_ms: u64,
    next_id: i64,
    /// Bytes of payloads and keys of all channels.
    pub(super) bytes: usize,
    /// `bytes` plus [`ENTRY_BYTES`] for each publication.
    pub(super) size: usize,
    /// Channels whose history exceeds its limits.
    over: BTreeSet<ChannelName>,
    /// Channels to trim because all histories together exceed the limit, each with its target size in bytes.
    plan: VecDeque<(ChannelName, usize)>,
    /// Channels trimmed by the plan, whose history in memory must be dropped, too.
    shrunk: Vec<ChannelName>,
    /// State of the changed channels before the current transaction.
    pub(super) before: HashMap<ChannelName, Option<Log>>,
    is_full_sync: bool,
}

/// Result of one publication within the current transaction.
enum Outcome {
    New(Epoch, Publication, Bounds),
    Known(Position),
    Refused(Error),
}

impl<D: Deliver> Writer<D> {
    pub fn new(shared: Arc<Shared<D>>, mut file: File) -> Self {
        let logs: HashMap<_, _> = std::mem::take(&mut file.logs).into_iter().collect();
        let next_id = logs.values().map(|log| log.id).max().unwrap_or(0) + 1;
        let (bytes, size) = (logs.values().map(Log::payload_bytes).sum(), logs.values().map(Log::size).sum());
        let shares = Shares::new(&shared.config, shared.config.channels_max);
        logs.iter().for_each(|(name, log)| shares.take(log.holder, shares.namespace(name)));
        let (over, plan, shrunk, before, scan_again_ms) = Default::default();
        // The file is opened with `synchronous = full`.
        let is_full_sync = true;
        let writer = Self {
            shared,
            file,
            logs,
            shares,
            scan_again_ms,
            plan_again_ms: 0,
            next_id,
            bytes,
            size,
            over,
            plan,
            shrunk,
            before,
            is_full_sync,
        };
        writer.tell_size();
        writer
    }

    /// Runs the thread. Returns when the queue is closed and empty.
    pub fn run(mut self) {
        loop {
            let is_up = self.shared.is_up.load(Relaxed);
            let is_idle = is_up && self.over.is_empty() && self.plan.is_empty();
            let work = self.shared.queue.take(if is_idle {
                Duration::MAX
            } else if is_up {
                Duration::ZERO
            } else {
                PROBE
            });
            if work.is_over {
                break;
            }
            let (is_nothing, is_durable) = (work.batch.is_empty(), self.is_durable(&work.batch));
            if !is_nothing {
                self.write(work.batch, is_durable);
            }
            if work.sweep && is_up {
                self.sweep();
            }
            if is_nothing && !is_idle {
                self.go_on(is_up);
            }
        }
        self.close();
    }

    /// Continues to trim histories above their limits or, after a failure, tests whether the file is writable again.
    fn go_on(&mut self, is_up: bool) {
        let done = self.transact(false, |writer, _| match is_up {
            true => Ok(0),
            false => writer.file.db.execute("UPDATE store SET is_clean = 0", []),
        });
        self.forget_in_memory();
        self.report_writability(done.err());
    }

    fn is_durable(&self, batch: &[Submitted]) -> bool {
        let is_durable = |name: &ChannelName| self.shared.config.of(name).durable;
        batch.iter().any(|submitted| is_durable(&submitted.channel))
    }

    fn write(&mut self, batch: Vec<Submitted>, is_durable: bool) {
        self.make_room(&batch);
        let now_ms = (self.shared.clock)();
        let written = self.transact(is_durable, |writer, budget| {
            *budget += 2 * batch.len();
            batch.iter().map(|submitted| writer.append(submitted, now_ms)).collect::<Result<Vec<_>, _>>()
        });
        let outcomes = match written {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.report_writability(Some(error));
                for Submitted { answer, .. } in batch {
                    let detail = "the publication cannot be written to the disk now; try again";
                    let _ = answer.send(Err(Error::new(Code::Unavailable, detail)));
                }
                return;
            }
        };
        self.report_writability(None);
        for (Submitted { channel, .. }, outcome) in batch.iter().zip(&outcomes) {
            if let Outcome::New(epoch, publication, bounds) = outcome {
                self.shared.tails.receive(channel, *epoch, publication, *bounds, now_ms);
            }
        }
        self.forget_in_memory();
        for (Submitted { answer, .. }, outcome) in batch.into_iter().zip(outcomes) {
            // The publisher may no longer wait for its answer.
            let _ = answer.send(match outcome {
                Outcome::New(epoch, publication, _) => Ok(Position { epoch, offset: publication.offset }),
                Outcome::Known(position) => Ok(position),
                Outcome::Refused(error) => Err(error),
            });
        }
    }

    /// Runs one transaction and trims histories above their limits. When it returns, the result survives the end of
    /// this process; with `is_durable` it also survives a power failure.
    ///
    /// Errors: the transaction was rolled back.
    pub(super) fn transact<T>(
        &mut self,
        is_durable: bool,
        work: impl FnOnce(&mut Self, &mut usize) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        if self.is_full_sync != is_durable {
            self.file.db.pragma_update(None, "synchronous", if is_durable { "full" } else { "normal" })?;
            self.is_full_sync = is_durable;
        }
        let (bytes, size, next_id) = (self.bytes, self.size, self.next_id);
        let run = || {
            self.file.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
            let mut budget = FORGET_MAX;
            let result = work(self, &mut budget)?;
            self.forget(&mut budget)?;
            for (name, was) in &self.before {
                let Some(log) = self.logs.get(name) else { continue };
                match was {
                    Some(was) if was.id == log.id => log.update(&self.file.db)?,
                    _ => log.insert(&self.file.db, name)?,
                }
            }
            self.file.db.prepare_cached("COMMIT")?.execute([])?;
            Ok(result)
        };
        let result = run();
        if result.is_err() {
            if !self.file.db.is_autocommit() {
                let _ = self.file.db.execute_batch("ROLLBACK");
            }
            (self.bytes, self.size, self.next_id) = (bytes, size, next_id);
            for (name, log) in self.before.drain() {
                if let Some(log) = log {
                    self.logs.insert(name, log);
                } else if let Some(log) = self.logs.remove(&name) {
                    self.shares.give_back(log.holder, self.shares.namespace(&name));
                }
            }
        }
        self.before.clear();
        self.tell_size();
        result
    }

    fn append(&mut self, submitted: &Submitted, now_ms: u64) -> rusqlite::Result<Outcome> {
        let Submitted { channel: name, publication: new, .. } = submitted;
        let mut log = match self.logs.get(name) {
            Some(log) => *log,
            None if !self.may_create(new.holder, name) => {
                return Ok(Outcome::Refused(self.shares.too_many(new.holder, self.logs.len())));
            }
            None => {
                let history = self.shared.config.of(name);
                self.next_id += 1;
                Log::new(self.next_id - 1, self.shared.unborn(), history.bounds(), history.durable, new.holder)
            }
        };
        if let Some(key) = &new.idempotency_key
            && let Some(offset) = self.find_key(&log, key, now_ms)?
        {
            return Ok(Outcome::Known(Position { epoch: log.epoch, offset }));
        }
        let has_room = self.size <= self.shared.config.history_bytes_max;
        let known = match state::check(&self.file.db, &log, new, now_ms, has_room)? {
            Ok(known) => known,
            Err(refused) => return Ok(Outcome::Refused(refused)),
        };
        if let Some(key) = &new.idempotency_key {
            self.insert_key(&log, key, now_ms)?;
        }
        let head = PublicationHead {
            offset: log.top + 1,
            time_ms: log.top_time_ms.max(now_ms),
            key: new.key.clone(),
            // SQLite's integers are signed.
            expires_ms: new.ttl_ms.map(|ttl| now_ms.saturating_add(ttl).min(i64::MAX as u64)),
            is_traced: false,
            kind: new.kind,
            is_deletion: new.is_deletion,
        };
        let publication = Publication::with_trailer(head, &new.data, new.trailer());
        let sql = "INSERT INTO publications (channel, offset, time_ms, key, expires_ms, kind, data, trace)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let PublicationHead { offset, time_ms, key, expires_ms, .. } = &*publication;
        let kind = number_of(&publication);
        self.file.db.prepare_cached(sql)?.execute(params![
            log.id,
            offset,
            time_ms,
            key,
            expires_ms,
            kind,
            publication.data(),
            Some(publication.trailer()).filter(|trailer| !trailer.is_empty())
        ])?;
        if log.len() == 0 {
            log.oldest_time_ms = *time_ms;
        }
        (log.top, log.top_time_ms) = (*offset, *time_ms);
        log.bytes += publication.cost_bytes();
        state::put(&self.file.db, &mut log, known, &publication)?;
        self.change(name, log);
        if log.is_over(&log.bounds, now_ms) {
            self.over.insert(name.clone());
        }
        Ok(Outcome::New(log.epoch, publication, log.bounds))
    }

    /// Returns the offset that this idempotency key was used for.
    fn find_key(&self, log: &Log, key: &str, now_ms: u64) -> rusqlite::Result<Option<u64>> {
        let db = &self.file.db;
        let sql = "SELECT offset FROM idempotency_keys WHERE channel = ?1 AND key = ?2 AND time_ms > ?3";
        let since_ms = now_ms as i64 - IDEMPOTENCY_MS as i64;
        db.prepare_cached(sql)?.query_row(params![log.id, key, since_ms], |row| row.get(0)).optional()
    }

    /// Assigns an idempotency key to the next offset.
    fn insert_key(&self, log: &Log, key: &str, now_ms: u64) -> rusqlite::Result<()> {
        let sql = "INSERT OR REPLACE INTO idempotency_keys (channel, key, offset, time_ms) VALUES (?1, ?2, ?3, ?4)";
        self.file.db.prepare_cached(sql)?.execute(params![log.id, key, log.top + 1, now_ms])?;
        Ok(())
    }

    /// Records the state of a channel before the transaction, and stores the new one.
    fn change(&mut self, name: &ChannelName, log: Log) {
        let was = self.logs.insert(name.clone(), log);
        if was.is_none() {
            self.shares.take(log.holder, self.shares.namespace(name));
        }
        self.bytes = self.bytes + log.payload_bytes() - was.map_or(0, |was| was.payload_bytes());
        self.size = self.size + log.size() - was.map_or(0, |was| was.size());
        if !self.before.contains_key(name) {
            self.before.insert(name.clone(), was);
        }
    }

    /// Trims the channels above their limits. Then, if all together exceed the limit, trims first the channels that
    /// are idle longest, then the longest ones.
    fn forget(&mut self, budget: &mut usize) -> rusqlite::Result<()> {
        let now_ms = (self.shared.clock)();
        for name in std::mem::take(&mut self.over) {
            let Some(Log { bounds, .. }) = self.logs.get(&name).copied() else { continue };
            let goal = Bounds {
                count_max: bounds.count_max - bounds.count_max / SLACK,
                bytes_max: bounds.bytes_max - bounds.bytes_max / SLACK,
                ..bounds
            };
            let is_over =
                |log: &Log, _| log.is_over(&bounds, now_ms) || log.len() > SLACK && log.is_over(&goal, now_ms);
            if *budget == 0 || !self.drop_oldest(&name, budget, is_over)? {
                self.over.insert(name);
            }
        }
        let max = self.shared.config.history_bytes_max;
        let goal = max - max / 8;
        let is_planned = self.size > max && self.plan.is_empty() && now_ms >= self.plan_again_ms;
        if is_planned {
            self.plan = self.plan(self.size - goal, now_ms);
        }
        while self.size > goal
            && *budget > 0
            && let Some((name, size)) = self.plan.front().cloned()
        {
            self.shrunk.push(name.clone());
            if self.drop_oldest(&name, budget, |log, all| all > goal && log.size() > size)? {
                self.plan.pop_front();
            }
        }
        if self.size <= goal {
            self.plan.clear();
        } else if self.plan.is_empty() && is_planned {
            // The rest is the state of keyed channels, which stays.
            self.plan_again_ms = now_ms + SCAN_PAUSE_MS;
        }
        Ok(())
    }

    /// Drops the oldest publications while `is_over` holds, within the budget. Returns true if no more need to be
    /// dropped.
    fn drop_oldest(
        &mut self,
        name: &ChannelName,
        budget: &mut usize,
        is_over: impl Fn(&Log, usize) -> bool,
    ) -> rusqlite::Result<bool> {
        let Some(mut log) = self.logs.get(name).copied() else { return Ok(true) };
        if log.len() == 0 || !is_over(&log, self.size) {
            return Ok(true);
        }
        let (from, others) = (log.first, self.size - log.size());
        {
            let sql = "SELECT time_ms, length(data) + ifnull(octet_length(key), 0) + ifnull(length(trace), 0), 0, kind
                FROM publications
                WHERE channel = ?1 AND offset >= ?2 ORDER BY offset";
            let mut statement = self.file.db.prepare_cached(if log.state.is_some() { state::OLDEST } else { sql })?;
            let mut rows = statement.query(params![log.id, from])?;
            let mut next = || -> rusqlite::Result<Option<(u64, usize, bool, u8)>> {
                rows.next()?.map(|row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))).transpose()
            };
            let mut oldest = next()?;
            while let Some((time_ms, bytes, is_current, kind)) = oldest
                && *budget > 0
                && is_over(&log, others + log.size())
            {
                if let Some(state) = &mut log.state {
                    state.old += usize::from(is_current);
                    state.old_bytes += if is_current { bytes } else { 0 };
                    state.lost_deletions = if kind == DELETION { log.first } else { state.lost_deletions };
                }
                log.first += 1;
                log.bytes -= bytes;
                log.trimmed_before_ms = time_ms + 1;
                *budget -= 1;
                oldest = next()?;
            }
            log.oldest_time_ms = oldest.map_or(0, |(time_ms, ..)| time_ms);
        }
        let sql = "DELETE FROM publications WHERE channel = ?1 AND offset >= ?2 AND offset < ?3";
        let sql = if log.state.is_some() { state::DELETE_OLDEST } else { sql };
        self.file.db.prepare_cached(sql)?.execute(params![log.id, from, log.first])?;
        self.change(name, log);
        Ok(log.len() == 0 || !is_over(&log, self.size))
    }

    /// Finds expired publications, deletes old idempotency keys, and returns free pages to the file system.
    fn sweep(&mut self) {
        let now_ms = (self.shared.clock)();
        let over = self.logs.iter().filter(|(_, log)| log.is_over(&log.bounds, now_ms));
        self.over.extend(over.map(|(name, _)| name.clone()));
        let forgotten = self.transact(false, |writer, _| {
            let sql = "DELETE FROM idempotency_keys WHERE (channel, key) IN
                (SELECT channel, key FROM idempotency_keys WHERE time_ms <= ?1 ORDER BY time_ms LIMIT ?2)";
            let until_ms = now_ms as i64 - IDEMPOTENCY_MS as i64;
            writer.file.db.prepare_cached(sql)?.execute(params![until_ms, FORGET_MAX])
        });
        self.forget_in_memory();
        let done = forgotten.and_then(|_| give_back(&self.file.db)).and_then(|()| self.expire(now_ms));
        self.report_writability(done.err());
    }

    /// Writes the deletions of keys whose time to live has ended.
    fn expire(&mut self, now_ms: u64) -> rusqlite::Result<()> {
        let expired = state::expired(&self.file.db, now_ms, EXPIRE_MAX)?;
        if expired.is_empty() {
            return Ok(());
        }
        let names: HashMap<i64, &ChannelName> = self.logs.iter().map(|(name, log)| (log.id, name)).collect();
        let submit = |(id, key)| {
            let channel = (*names.get(&id)?).clone();
            // No publisher waits for the answer.
            let answer = oneshot::channel().0;
            Some(Submitted { channel, publication: NewPublication::deletion(key), answer })
        };
        let batch: Vec<_> = expired.into_iter().filter_map(submit).collect();
        let is_durable = self.is_durable(&batch);
        self.write(batch, is_durable);
        Ok(())
    }

    fn forget_in_memory(&mut self) {
        for name in self.shrunk.drain(..) {
            self.shared.tails.forget(&name);
        }
        self.shared.tails.make_room();
    }

    /// Logs once when the file stops being writable, and once when it is writable again.
    pub(super) fn report_writability(&self, error: Option<rusqlite::Error>) {
        let was_up = self.shared.is_up.swap(error.is_none(), Release);
        let path = self.file.path.display();
        match error {
            Some(error) if was_up => tracing::error!(%path, "the file {}; publications are refused", describe(&error)),
            None if !was_up => tracing::info!(%path, "the file is writable again; publications are accepted"),
            _ => {}
        }
    }

    fn tell_size(&self) {
        self.shared.bytes.store(self.bytes, Relaxed);
    }

    /// Copies the write-ahead log into the main file and marks the file as cleanly closed.
    fn close(mut self) {
        let db = &self.file.db;
        let closed = db
            .pragma_update(None, "synchronous", "full")
            .and_then(|()| db.execute("UPDATE store SET is_clean = 1", []))
            .and_then(|_| db.pragma_update_and_check(None, "wal_checkpoint", "truncate", |_| Ok(())));
        self.report_writability(closed.err());
        self.logs.clear();
    }
}

/// Shrinks the file a little if a large part of it is free after a burst.
fn give_back(db: &Connection) -> rusqlite::Result<()> {
    let pages = |pragma: &str| db.pragma_query_value(None, pragma, |row| row.get::<_, u64>(0));
    let (all, free) = (pages("page_count")?, pages("freelist_count")?);
    if free > VACUUM_PAGES && free > all / 4 {
        let mut statement = db.prepare(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})"))?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
    }
    Ok(())
}

impl Log {
    pub(super) fn len(&self) -> usize {
        (self.top + 1 - self.first) as usize
    }

    /// Returns the bytes of payloads and keys of the log and of the state.
    pub(super) fn payload_bytes(&self) -> usize {
        self.bytes + self.state.map_or(0, |state| state.old_bytes)
    }

    /// Returns the bytes that count toward the limit of all histories.
    pub(super) fn size(&self) -> usize {
        let entries = self.len() + self.state.map_or(0, |state| state.old + state.keys);
        self.payload_bytes() + entries * ENTRY_BYTES
    }

    /// Returns the bytes that trimming the whole log would free. A state keeps the newest publication of each key.
    pub(super) fn trimmable(&self) -> usize {
        let (len, state) = (self.len(), self.state.unwrap_or_default());
        let needed = state.keys.saturating_sub(state.old).min(len);
        let all = self.bytes + len * ENTRY_BYTES;
        all - all / len.max(1) * needed
    }

    fn is_over(&self, bounds: &Bounds, now_ms: u64) -> bool {
        let is_old = || now_ms.saturating_sub(self.oldest_time_ms) >= bounds.age_max_ms;
        self.len() > bounds.count_max || self.bytes > bounds.bytes_max || self.len() > 0 && is_old()
    }
}
