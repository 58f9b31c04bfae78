//! Reader threads, each with its own connection to the file. A page reads one snapshot of the log and does not block
//! the writer.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

use millrace_delivery::{Bounds, Page, PageLimit, Part};
use millrace_protocol::{
    ChannelName, Code, Epoch, Error, Gap, Kind, Position, Publication, PublicationHead, Since, session::Policy,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use tokio::sync::oneshot;

use super::{
    file::{File, describe},
    state::{DELETION, StateCounts},
};
use crate::{Answer, LogRateLimit, Newest, OpenError, remote::Past};

const THREADS: usize = 2;
/// Maximum number of queued reads. Beyond it, reads are refused.
const WAITING_MAX: usize = 65_536;
/// Maximum number of publications, and their bytes, that one page scans. Superseded and expired publications make the
/// needed number unknown in advance.
const SCAN_COUNT_MAX: usize = 10_000;
const SCAN_BYTES_MAX: usize = 8 << 20;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

pub(super) struct Readers {
    jobs: Mutex<Option<SyncSender<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Readers {
    /// Starts the reader threads.
    ///
    /// Errors: the file cannot be opened again, or the system refuses a thread.
    pub fn start(path: &Path) -> Result<Self, OpenError> {
        let (jobs, waiting) = sync_channel(WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let mut db = File::reader(path)
                .map_err(|error| OpenError::File { path: path.display().to_string(), what: describe(&error) })?;
            let waiting = waiting.clone();
            let work = move || {
                while let Some(job) = next(&waiting) {
                    job(&mut db);
                }
            };
            let thread = std::thread::Builder::new().name("sqlite-reader".into()).spawn(work);
            threads.push(thread.map_err(OpenError::System)?);
        }
        Ok(Self { jobs: Mutex::new(Some(jobs)), threads: Mutex::new(threads) })
    }

    pub fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move |db: &mut Connection| drop(answer.send(work(db))));
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.as_ref().is_none_or(|jobs| jobs.try_send(job).is_err()) {
            let detail = "too many requests for history are queued; try again";
            return Answer::now(Err(Error::new(Code::Unavailable, detail)));
        }
        Answer::Later(Box::pin(async move {
            match answered.await {
                Ok(Ok(read)) => Ok(read),
                Ok(Err(error)) => {
                    static SAID: LogRateLimit = LogRateLimit::new();
                    if SAID.is_due() {
                        tracing::error!(%error, "cannot read history from the file");
                    }
                    Err(Error::new(Code::Unavailable, "history cannot be read from the disk"))
                }
                Err(_) => Err(Error::new(
                    Code::Unavailable,
                    "this server is shutting down; connect again to reach another server",
                )),
            }
        }))
    }

    /// Waits for all queued reads and ends the threads.
    pub fn close(&self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = thread.join();
        }
    }
}

fn next(waiting: &Mutex<Receiver<Job>>) -> Option<Job> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Snapshot of a channel's log.
struct LogSnapshot<'a> {
    db: &'a Connection,
    id: i64,
    top: Position,
    first: u64,
    trimmed_before_ms: u64,
}

/// Arguments of a page.
pub(super) struct Ask {
    pub name: ChannelName,
    pub since: Since,
    pub policy: Policy,
    pub limit: PageLimit,
    pub now_ms: u64,
    pub bounds: Bounds,
    /// Epoch to report if the channel does not exist.
    pub unborn: Epoch,
}

/// Reads a page.
///
/// Cost: O(items returned); for `latest` O(items after `since`). The scan per page is bounded, so the next page may
/// supersede some items of this one.
pub(super) fn page(db: &mut Connection, ask: Ask) -> rusqlite::Result<Page> {
    let moment = db.transaction()?;
    let Some(log) = LogSnapshot::find(&moment, &ask)? else {
        let past = Past { top: Position { epoch: ask.unborn, offset: 0 }, after: 0, publications: Vec::new() };
        return Ok(past.page_of(ask.bounds.keys_max, ask.since, ask.policy, ask.limit, ask.now_ms));
    };
    if let Since::State | Since::StateAfter { .. } = ask.since {
        return log.state_page(&ask);
    }
    let (top, before_first) = (log.top, log.first - 1);
    let (since, after) = match ask.since {
        Since::Now => (Since::Now, top.offset),
        Since::Earliest | Since::State | Since::StateAfter { .. } => (Since::Earliest, before_first),
        Since::Position(at) | Since::StateOr(at) if at.epoch != top.epoch => (ask.since, before_first),
        Since::Position(at) | Since::StateOr(at) => (ask.since, at.offset.clamp(before_first, top.offset)),
        Since::Time(ms) => {
            let after = log.find_time(ms)? - 1;
            let from = if log.trimmed_before_ms > ms { 0 } else { after };
            (Since::Position(Position { offset: from, ..top }), after)
        }
    };
    let publications = log.read(after, ask.policy, ask.limit, ask.now_ms)?;
    Ok(Past { top, after, publications }.page_of(ask.bounds.keys_max, since, ask.policy, ask.limit, ask.now_ms))
}

pub(super) fn newest(db: &mut Connection, ask: Ask) -> rusqlite::Result<Newest> {
    let moment = db.transaction()?;
    let Some(log) = LogSnapshot::find(&moment, &ask)? else {
        return Ok(Newest { top: Position { epoch: ask.unborn, offset: 0 }, publication: None });
    };
    let one = PageLimit { count: 1, bytes: 0 };
    let after = log.top.offset.saturating_sub(1).max(log.first - 1);
    let newest = log.read(after, Policy::Every, one, ask.now_ms)?.pop();
    Ok(Newest { top: log.top, publication: newest.filter(|newest| !newest.is_expired(ask.now_ms)) })
}

impl<'a> LogSnapshot<'a> {
    /// Finds a channel. Publications above the age limit count as trimmed, although they may still be in the file.
    fn find(db: &'a Connection, ask: &Ask) -> rusqlite::Result<Option<Self>> {
        let sql = "SELECT id, epoch, top, first, trimmed_before_ms, oldest_time_ms FROM channels WHERE name = ?1";
        let found = db.prepare_cached(sql)?.query_row([ask.name.as_str()], |row| {
            let top = Position { epoch: Epoch(row.get(1)?), offset: row.get(2)? };
            let log = Self { db, id: row.get(0)?, top, first: row.get(3)?, trimmed_before_ms: row.get(4)? };
            Ok((log, row.get::<_, u64>(5)?))
        });
        let Some((mut log, oldest_time_ms)) = found.optional()? else { return Ok(None) };
        let young_ms = (ask.now_ms + 1).saturating_sub(ask.bounds.age_max_ms);
        if log.first <= log.top.offset && oldest_time_ms < young_ms {
            log.first = log.find_time(young_ms)?;
            log.trimmed_before_ms = log.time(log.first - 1)? + 1;
        }
        Ok(Some(log))
    }

    /// Returns the first offset in history whose time is at least `ms`, or the offset after the top. Times never
    /// decrease along the log.
    fn find_time(&self, ms: u64) -> rusqlite::Result<u64> {
        let (mut low, mut high) = (self.first, self.top.offset + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.time(middle)? < ms {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    fn time(&self, offset: u64) -> rusqlite::Result<u64> {
        let sql = "SELECT time_ms FROM publications WHERE channel = ?1 AND offset = ?2";
        self.db.prepare_cached(sql)?.query_row(params![self.id, offset], |row| row.get(0))
    }

    /// Reads the publications after an offset, as many as a page needs.
    fn read(&self, after: u64, policy: Policy, limit: PageLimit, now_ms: u64) -> rusqlite::Result<Vec<Publication>> {
        let sql = "SELECT offset, time_ms, key, expires_ms, kind, data, trace FROM publications
            WHERE channel = ?1 AND offset > ?2 ORDER BY offset";
        let mut statement = self.db.prepare_cached(sql)?;
        let mut rows = statement.query(params![self.id, after])?;
        let (mut publications, mut wanted, mut wanted_bytes, mut bytes) = (Vec::new(), 0, 0, 0);
        while let Some(row) = rows.next()? {
            let publication = publication(row)?;
            bytes += publication.cost_bytes();
            if !publication.is_expired(now_ms) {
                wanted += 1;
                wanted_bytes += publication.cost_bytes();
            }
            publications.push(publication);
            let is_page =
                policy == Policy::Every && wanted > 0 && (wanted >= limit.count || wanted_bytes > limit.bytes);
            if is_page || publications.len() >= SCAN_COUNT_MAX || bytes > SCAN_BYTES_MAX {
                break;
            }
        }
        Ok(publications)
    }

    /// Returns a part of the state, like [`History::page`](millrace_delivery::History::page).
    ///
    /// Cost: O(items returned + publications of the log).
    fn state_page(&self, ask: &Ask) -> rusqlite::Result<Page> {
        let top = self.top;
        let lost = StateCounts::load(self.db, self.id)?.map_or(top.offset, |state| state.lost_deletions);
        let (after, began, gap) = match ask.since {
            Since::StateAfter { epoch, offset, began }
                if epoch == top.epoch && offset <= top.offset && (lost..=top.offset).contains(&began) =>
            {
                (offset, began, None)
            }
            Since::StateAfter { epoch, offset, .. } => {
                (0, top.offset, Some(Gap { from: Position { epoch, offset }, to: Position { offset: 0, ..top } }))
            }
            _ => (0, top.offset, None),
        };
        let sql = format!(
            "SELECT p.offset, p.time_ms, p.key, p.expires_ms, p.kind, p.data, p.trace FROM publications p
             WHERE p.channel = ?1 AND p.offset > ?2 AND (p.kind = {DELETION} AND p.offset > ?3 OR EXISTS
             (SELECT 1 FROM state_keys s WHERE s.channel = ?1 AND s.key = p.key AND s.offset = p.offset))
             ORDER BY p.offset"
        );
        let mut statement = self.db.prepare_cached(&sql)?;
        let mut rows = statement.query(params![self.id, after, began])?;
        let (mut publications, mut bytes, mut is_end) = (Vec::new(), 0, true);
        while let Some(row) = rows.next()? {
            let publication = publication(row)?;
            // The reader may hold an older value of a later entry, so it gets the entry and its deletion next.
            if publication.offset <= began && publication.is_expired(ask.now_ms) {
                continue;
            }
            bytes += publication.cost_bytes();
            if publications.len() >= ask.limit.count || bytes > ask.limit.bytes && !publications.is_empty() {
                is_end = false;
                break;
            }
            publications.push(publication);
        }
        let last = publications.last().map_or(after, |last| last.offset);
        let end = Position { offset: if is_end { top.offset } else { last }, ..top };
        let part = if is_end { Part::StateEnd { began } } else { Part::State { began } };
        Ok(Page { gap, publications, end, top, part })
    }
}

fn publication(row: &Row<'_>) -> rusqlite::Result<Publication> {
    let kind: u8 = row.get(4)?;
    let head = PublicationHead {
        offset: row.get(0)?,
        time_ms: row.get(1)?,
        key: row.get_ref(2)?.as_str_or_null()?.map(Into::into),
        expires_ms: row.get(3)?,
        is_traced: false,
        kind: kind_of(kind),
        is_deletion: kind == DELETION,
    };
    let trailer = row.get_ref(6)?.as_blob_or_null()?.unwrap_or_default();
    Ok(Publication::with_trailer(head, row.get_ref(5)?.as_blob()?, trailer))
}

/// Returns the number of the kind of a publication in the file.
pub(super) fn number_of(head: &PublicationHead) -> u8 {
    match head.kind {
        _ if head.is_deletion => DELETION,
        Kind::Json => 0,
        Kind::Text => 1,
        Kind::Binary => 2,
        Kind::Utf8 => 3,
    }
}

fn kind_of(number: u8) -> Kind {
    match number {
        0 => Kind::Json,
        1 | DELETION => Kind::Text,
        3 => Kind::Utf8,
        _ => Kind::Binary,
    }
}
