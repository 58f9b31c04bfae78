//! The state of keyed channels in the file. The table `publications` also holds the newest publication of each key
//! after the log has dropped it. The table `state_keys` names these publications.

use millrace_delivery::{check_expected, check_fits, no_room_for_keys, too_many_keys};
use millrace_protocol::{Error, NewPublication, Position, Publication};
use rusqlite::{Connection, OptionalExtension, params};

use super::file::Log;

/// Number of a deletion in the column `kind`.
pub(super) const DELETION: u8 = 4;

/// Tables of schema 2. A channel has a row in `states` if it is a keyed state.
pub(super) const TABLES: &str = "
    CREATE TABLE states (
        channel INTEGER PRIMARY KEY,
        keys INTEGER NOT NULL,
        old INTEGER NOT NULL,             -- publications that only the state holds, not the log
        old_bytes INTEGER NOT NULL,       -- their payloads and keys
        lost_deletions INTEGER NOT NULL   -- the log may have dropped deletions up to this offset
    );
    CREATE TABLE state_keys (
        channel INTEGER NOT NULL,
        key TEXT NOT NULL,
        offset INTEGER NOT NULL,
        expires_ms INTEGER,
        PRIMARY KEY (channel, key)
    ) WITHOUT ROWID;
    CREATE INDEX state_keys_by_expiry ON state_keys (expires_ms) WHERE expires_ms IS NOT NULL;";

/// Selects the oldest publications of a state's log: time, bytes, whether the state needs the publication, kind.
pub(super) const OLDEST: &str = "
    SELECT p.time_ms, length(p.data) + ifnull(octet_length(p.key), 0) + ifnull(length(p.trace), 0), s.key IS NOT NULL, p.kind
    FROM publications p LEFT JOIN state_keys s ON s.channel = p.channel AND s.key = p.key AND s.offset = p.offset
    WHERE p.channel = ?1 AND p.offset >= ?2 ORDER BY p.offset";

/// Deletes a part of a state's log, except what the state needs.
pub(super) const DELETE_OLDEST: &str = "
    DELETE FROM publications WHERE channel = ?1 AND offset >= ?2 AND offset < ?3 AND NOT EXISTS
    (SELECT 1 FROM state_keys s WHERE s.channel = ?1 AND s.key = publications.key AND s.offset = publications.offset)";

/// Numbers of the state of one channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StateCounts {
    pub keys: usize,
    /// Publications that only the state holds, not the log, and the bytes of their payloads and keys.
    pub old: usize,
    pub old_bytes: usize,
    /// Every deletion that the log no longer holds has this offset or a lower one.
    pub lost_deletions: u64,
}

/// The newest publication of a key.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    offset: u64,
    expires_ms: Option<u64>,
}

impl StateCounts {
    pub fn load(db: &Connection, channel: i64) -> rusqlite::Result<Option<Self>> {
        let sql = "SELECT keys, old, old_bytes, lost_deletions FROM states WHERE channel = ?1";
        let read = db.prepare_cached(sql)?.query_row([channel], |row| {
            Ok(Self { keys: row.get(0)?, old: row.get(1)?, old_bytes: row.get(2)?, lost_deletions: row.get(3)? })
        });
        read.optional()
    }

    pub fn store(&self, db: &Connection, channel: i64) -> rusqlite::Result<()> {
        let sql = "INSERT OR REPLACE INTO states (channel, keys, old, old_bytes, lost_deletions)
            VALUES (?1, ?2, ?3, ?4, ?5)";
        let Self { keys, old, old_bytes, lost_deletions } = self;
        db.prepare_cached(sql)?.execute(params![channel, keys, old, old_bytes, lost_deletions])?;
        Ok(())
    }
}

/// Checks a publication as [`Engine::append`](crate::Engine::append) says. Returns the newest publication of its key.
/// `has_room`: the histories of all channels are below their limit.
pub(super) fn check(
    db: &Connection,
    log: &Log,
    new: &NewPublication,
    now_ms: u64,
    has_room: bool,
) -> rusqlite::Result<Result<Option<Entry>, Error>> {
    let keys_max = log.bounds.keys_max;
    let (Ok(()), Some(key), Some(state)) = (check_fits(new, keys_max > 0), &new.key, &log.state) else {
        return Ok(check_fits(new, keys_max > 0).map(|()| None));
    };
    let sql = "SELECT offset, expires_ms FROM state_keys WHERE channel = ?1 AND key = ?2";
    let found = db
        .prepare_cached(sql)?
        .query_row(params![log.id, key], |row| Ok(Entry { offset: row.get(0)?, expires_ms: row.get(1)? }));
    let known = found.optional()?;
    let current = known.filter(|entry| entry.expires_ms.is_none_or(|at_ms| at_ms > now_ms));
    let current = current.map(|entry| Position { epoch: log.epoch, offset: entry.offset });
    let is_new_key = known.is_none() && !new.is_deletion;
    let has_place = || match is_new_key {
        true if state.keys >= keys_max => Err(too_many_keys(keys_max)),
        true if !has_room => Err(no_room_for_keys()),
        _ => Ok(()),
    };
    Ok(check_expected(new.expected, current).and_then(|()| has_place()).map(|()| known))
}

/// Puts a publication that was just added to the log into the state. `known` is what [`check`] returned.
pub(super) fn put(
    db: &Connection,
    log: &mut Log,
    known: Option<Entry>,
    publication: &Publication,
) -> rusqlite::Result<()> {
    let (Some(mut state), Some(key)) = (log.state, &publication.key) else { return Ok(()) };
    if publication.is_deletion {
        let sql = "DELETE FROM state_keys WHERE channel = ?1 AND key = ?2";
        state.keys -= db.prepare_cached(sql)?.execute(params![log.id, key])?;
    } else {
        let sql = "INSERT OR REPLACE INTO state_keys (channel, key, offset, expires_ms) VALUES (?1, ?2, ?3, ?4)";
        db.prepare_cached(sql)?.execute(params![log.id, key, publication.offset, publication.expires_ms])?;
        state.keys += usize::from(known.is_none());
    }
    if let Some(old) = known.filter(|entry| entry.offset < log.first) {
        let sql = "DELETE FROM publications WHERE channel = ?1 AND offset = ?2
            RETURNING length(data) + ifnull(octet_length(key), 0) + ifnull(length(trace), 0)";
        let bytes: usize = db.prepare_cached(sql)?.query_row(params![log.id, old.offset], |row| row.get(0))?;
        state.old -= 1;
        state.old_bytes -= bytes;
    }
    log.state = Some(state);
    Ok(())
}

/// Returns keys whose time to live has ended, with the ids of their channels.
pub(super) fn expired(db: &Connection, now_ms: u64, most: usize) -> rusqlite::Result<Vec<(i64, Box<str>)>> {
    let sql = "SELECT channel, key FROM state_keys WHERE expires_ms <= ?1 ORDER BY expires_ms LIMIT ?2";
    let mut statement = db.prepare_cached(sql)?;
    let found =
        statement.query_map(params![now_ms.min(i64::MAX as u64), most], |row| Ok((row.get(0)?, row.get(1)?)))?;
    found.collect()
}

/// Deletes the state of a channel, with the publications that only the state holds.
pub(super) fn delete(db: &Connection, log: &Log) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM state_keys WHERE channel = ?1")?.execute([log.id])?;
    db.prepare_cached("DELETE FROM states WHERE channel = ?1")?.execute([log.id])?;
    let sql = "DELETE FROM publications WHERE channel = ?1 AND offset < ?2";
    db.prepare_cached(sql)?.execute(params![log.id, log.first])?;
    Ok(())
}

/// Adapts a channel to the configured setting when the file is opened. A channel that becomes a state has the newest
/// publication of each key that its log still holds. A channel that is no state any more keeps its log only.
pub(super) fn adapt(db: &Connection, log: &mut Log) -> rusqlite::Result<()> {
    log.state = StateCounts::load(db, log.id)?;
    if log.state.is_none() && log.bounds.keys_max > 0 {
        let sql = format!(
            "INSERT INTO state_keys (channel, key, offset, expires_ms)
             SELECT ?1, key, offset, expires_ms FROM
             (SELECT key, max(offset) AS offset, expires_ms, kind FROM publications
              WHERE channel = ?1 AND offset >= ?2 AND key IS NOT NULL GROUP BY key) WHERE kind != {DELETION}"
        );
        let keys = db.prepare_cached(&sql)?.execute(params![log.id, log.first])?;
        let state = StateCounts { keys, lost_deletions: log.top, ..StateCounts::default() };
        state.store(db, log.id)?;
        log.state = Some(state);
    } else if log.state.is_some() && log.bounds.keys_max == 0 {
        delete(db, log)?;
        log.state = None;
    }
    Ok(())
}
