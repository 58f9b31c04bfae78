//! The file: its schema, its lock against other servers, and the effect of an unclean shutdown on positions.

use std::{
    fs::{self, TryLockError},
    path::{Path, PathBuf},
    time::Duration,
};

use millrace_delivery::Bounds;
use millrace_protocol::{ChannelName, Epoch, Holder};
use rusqlite::{Connection, ErrorCode, OpenFlags, params};

use super::state::{self, StateCounts};
use crate::{Config, OpenError};

/// Application ID that marks a file as ours ("mlrc"). A newer schema has a higher number.
const APPLICATION: i64 = 0x6d6c_7263;
const SCHEMA: i64 = 3;

/// Maximum time that a statement waits for another program that reads or copies the file.
const BUSY: Duration = Duration::from_secs(5);
/// After a burst of writes, the write-ahead log is truncated to this size.
const WAL_BYTES_MAX: usize = 64 << 20;
/// Size of the write-ahead log, in pages of 4 KiB, at which a checkpoint copies it into the main file. SQLite's
/// default of 1,000 pages is reached after a few batches if many channels are written; then the same index pages are
/// copied repeatedly.
const CHECKPOINT_PAGES: usize = 4000;

/// The table stores the publications of all channels in order of arrival. So a batch fills few pages, however many
/// channels it has. The index finds publications by position. Measured against a table ordered by channel, with 1,000
/// channels: a sixth of the bytes written, three times as many publications per second.
const TABLES: &str = "
    CREATE TABLE store (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        epoch INTEGER NOT NULL,        -- of channels that are not written yet
        boot TEXT NOT NULL,            -- the system's boot in which the file was last opened
        is_clean INTEGER NOT NULL,     -- was it closed since?
        is_restored INTEGER NOT NULL   -- set by whoever puts back an older copy: all channels get another epoch
    );
    CREATE TABLE channels (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        epoch INTEGER NOT NULL,
        top INTEGER NOT NULL,
        top_time_ms INTEGER NOT NULL,
        first INTEGER NOT NULL,
        oldest_time_ms INTEGER NOT NULL,
        trimmed_before_ms INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        is_durable INTEGER NOT NULL
    );
    CREATE TABLE publications (
        id INTEGER PRIMARY KEY,
        channel INTEGER NOT NULL,
        offset INTEGER NOT NULL,
        time_ms INTEGER NOT NULL,
        key TEXT,
        expires_ms INTEGER,
        kind INTEGER NOT NULL,
        data BLOB NOT NULL,
        trace BLOB
    );
    CREATE UNIQUE INDEX publications_by_position ON publications (channel, offset);
    CREATE TABLE idempotency_keys (
        channel INTEGER NOT NULL,
        key TEXT NOT NULL,
        offset INTEGER NOT NULL,
        time_ms INTEGER NOT NULL,
        PRIMARY KEY (channel, key)
    ) WITHOUT ROWID;
    CREATE INDEX idempotency_keys_by_time ON idempotency_keys (time_ms);";

/// Adds to the tables of schema 2 what schema 3 has: the trailer of a publication, such as its trace context. A
/// publication without a trailer needs one byte for it.
const TRACE: &str = "ALTER TABLE publications ADD COLUMN trace BLOB;";

/// State of one channel in the file, and the limits of its history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    pub id: i64,
    pub epoch: Epoch,
    pub top: u64,
    pub top_time_ms: u64,
    /// The oldest offset in history. If history is empty, the offset after `top`.
    pub first: u64,
    /// Time of the oldest publication in history. 0 if history is empty.
    pub oldest_time_ms: u64,
    /// All trimmed publications are older than this time. 0 if none was trimmed.
    pub trimmed_before_ms: u64,
    /// Bytes of payloads and keys in history.
    pub bytes: usize,
    pub is_durable: bool,
    pub bounds: Bounds,
    /// `None` if the channel is no keyed state.
    pub state: Option<StateCounts>,
    /// The holder that created the channel. The file does not store it: channels that exist at start have none.
    pub holder: Holder,
}

/// An open file. Only this process writes to it until it is dropped.
pub(super) struct File {
    pub path: PathBuf,
    pub db: Connection,
    /// Epoch of channels that do not exist yet.
    pub epoch: Epoch,
    pub logs: Vec<(ChannelName, Log)>,
    /// Held while the database is open. Dropped last, after the connection to it.
    _lock: Lock,
}

impl File {
    /// Opens or creates the file and recovers from the previous run. Afterwards the whole content of the file is on
    /// disk.
    ///
    /// Errors: [`OpenError::File`], whose text says what to do; or no randomness.
    pub fn open(path: &Path, config: &Config) -> Result<Self, OpenError> {
        let wrong = |fault: FileFault| OpenError::File { path: path.display().to_string(), what: fault.to_string() };
        if path.is_dir() {
            return Err(wrong(FileFault::Folder));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(wrong(FileFault::NoFolder(folder.to_owned())));
        }
        let path = path.canonicalize().unwrap_or(path.to_owned());
        let lock = Lock::new(&path).map_err(wrong)?;
        let failed = |error: rusqlite::Error| wrong(error.into());
        let mut db =
            connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE).map_err(failed)?;
        prepare(&db).map_err(wrong)?;
        let (epoch, logs) = settle(&mut db, config).map_err(|error| match error {
            Unsettled::File(error) => failed(error),
            Unsettled::Random(error) => error.into(),
        })?;
        Ok(Self { path, db, epoch, logs, _lock: lock })
    }

    /// Opens a read-only connection.
    pub fn reader(path: &Path) -> rusqlite::Result<Connection> {
        connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
    }
}

/// Reasons why a file cannot be used. Each completes the sentence "the file PATH …" and says what to do.
#[derive(Debug, thiserror::Error)]
enum FileFault {
    #[error("is a folder: name a file in it, such as sqlite:data.db")]
    Folder,
    #[error("cannot be made: there is no folder {}; make it first", .0.display())]
    NoFolder(PathBuf),
    #[error("cannot be locked by {}: {error}", .lock.display())]
    Lock { lock: PathBuf, error: std::io::Error },
    #[error("is in use by another millrace: a file belongs to one server; give this one another")]
    InUse,
    #[error("is a database of another program: name another file")]
    Foreign,
    #[error("was written by a newer millrace (schema {0}, this one knows {SCHEMA}): use that one, or another file")]
    Newer(i64),
    #[error("{}", describe(.0))]
    Sqlite(#[from] rusqlite::Error),
}

/// A locked file beside the database. SQLite's own locks would let other processes write between two transactions.
struct Lock(fs::File);

impl Lock {
    fn new(database: &Path) -> Result<Self, FileFault> {
        let mut beside = database.as_os_str().to_owned();
        beside.push("-lock");
        let cannot = |error: std::io::Error| FileFault::Lock { lock: beside.clone().into(), error };
        let file = fs::File::options().create(true).truncate(false).write(true).open(&beside).map_err(cannot)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(FileFault::InUse),
            Err(TryLockError::Error(error)) => Err(cannot(error)),
        }
    }
}

impl Drop for Lock {
    /// Unlocks explicitly. Closing the file would not unlock it while a copy of its descriptor is open, which a child
    /// process has between fork and exec.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

fn connect(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let db = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(BUSY)?;
    db.set_prepared_statement_cache_capacity(32);
    db.pragma_update(None, "temp_store", "memory")?;
    Ok(db)
}

/// Creates the tables of a new file, or checks that the file is one of ours.
///
/// Errors: the file is not one of ours, or cannot be used.
fn prepare(db: &Connection) -> Result<(), FileFault> {
    let number = |pragma: &str| db.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (application, schema) = (number("application_id")?, number("user_version")?);
    let is_new = schema == 0 && db.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))?;
    if !is_new && application != APPLICATION {
        return Err(FileFault::Foreign);
    }
    if schema > SCHEMA {
        return Err(FileFault::Newer(schema));
    }
    if is_new {
        // Possible only before the first table exists. It lets freed pages be returned in small steps.
        db.pragma_update(None, "auto_vacuum", "incremental")?;
    }
    db.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    db.pragma_update_and_check(None, "journal_size_limit", WAL_BYTES_MAX, |_| Ok(()))?;
    db.pragma_update_and_check(None, "wal_autocheckpoint", CHECKPOINT_PAGES, |_| Ok(()))?;
    db.pragma_update(None, "cache_size", -16_000)?;
    db.pragma_update(None, "synchronous", "full")?;
    if is_new {
        let marks = format!("PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA};");
        let state = state::TABLES;
        db.execute_batch(&format!("BEGIN IMMEDIATE; {TABLES} {state} {marks} COMMIT"))?;
    } else if schema < SCHEMA {
        let state = if schema < 2 { state::TABLES } else { "" };
        db.execute_batch(&format!("BEGIN IMMEDIATE; {state} {TRACE} PRAGMA user_version = {SCHEMA}; COMMIT"))?;
    }
    Ok(())
}

enum Unsettled {
    File(rusqlite::Error),
    Random(getrandom::Error),
}

impl From<rusqlite::Error> for Unsettled {
    fn from(error: rusqlite::Error) -> Self {
        Self::File(error)
    }
}

/// Reads the channels and marks the file as open.
///
/// If the system crashed, the newest commits may be missing. Only commits of durable channels waited for the disk. So
/// all other channels, and channels that do not exist yet, get a new epoch: no position is assigned twice.
fn settle(db: &mut Connection, config: &Config) -> Result<(Epoch, Vec<(ChannelName, Log)>), Unsettled> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let before = db.transaction()?;
    let found = before.query_row("SELECT epoch, boot, is_clean, is_restored FROM store", [], |row| {
        Ok((Epoch(row.get(0)?), row.get::<_, String>(1)?, row.get::<_, bool>(2)?, row.get::<_, bool>(3)?))
    });
    let (old, is_restored, has_lost) = match found {
        Ok((epoch, last_boot, is_clean, is_restored)) => {
            (Some(epoch), is_restored, !is_clean && (boot.is_empty() || boot != last_boot))
        }
        Err(rusqlite::Error::QueryReturnedNoRows) => (None, false, true),
        Err(error) => return Err(error.into()),
    };
    let epoch = match old {
        Some(epoch) if !is_restored && !has_lost => epoch,
        _ => another(old).map_err(Unsettled::Random)?,
    };
    if Some(epoch) != old {
        before.execute("UPDATE channels SET epoch = ?1 WHERE ?2 OR NOT is_durable", params![epoch.0, is_restored])?;
    }
    before.execute(
        "INSERT OR REPLACE INTO store (id, epoch, boot, is_clean, is_restored) VALUES (1, ?1, ?2, 0, 0)",
        params![epoch.0, boot],
    )?;
    let mut logs = read_logs(&before, config)?;
    logs.iter_mut().try_for_each(|(_, log)| state::adapt(&before, log))?;
    // From here on the configured durability holds: this commit also puts all earlier commits on disk.
    for (_, log) in &logs {
        let sql = "UPDATE channels SET is_durable = ?2 WHERE id = ?1 AND is_durable != ?2";
        before.prepare_cached(sql)?.execute(params![log.id, log.is_durable])?;
    }
    before.commit()?;
    Ok((epoch, logs))
}

/// Returns a random epoch that differs from the old one.
pub(super) fn another(old: Option<Epoch>) -> Result<Epoch, getrandom::Error> {
    loop {
        let epoch = Epoch(getrandom::u32()?);
        if Some(epoch) != old {
            return Ok(epoch);
        }
    }
}

fn read_logs(db: &Connection, config: &Config) -> rusqlite::Result<Vec<(ChannelName, Log)>> {
    let sql = "SELECT id, epoch, top, top_time_ms, first, oldest_time_ms, trimmed_before_ms, bytes, name FROM channels";
    let mut statement = db.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut logs = Vec::new();
    while let Some(row) = rows.next()? {
        let name = row.get_ref(8)?.as_str()?;
        let Ok(name) = ChannelName::parse(name) else { continue };
        let history = config.of(&name);
        let log = Log {
            id: row.get(0)?,
            epoch: Epoch(row.get(1)?),
            top: row.get(2)?,
            top_time_ms: row.get(3)?,
            first: row.get(4)?,
            oldest_time_ms: row.get(5)?,
            trimmed_before_ms: row.get(6)?,
            bytes: row.get(7)?,
            is_durable: history.durable,
            bounds: history.bounds(),
            state: None,
            holder: Holder::NONE,
        };
        logs.push((name, log));
    }
    Ok(logs)
}

impl Log {
    /// Returns the log of a new channel.
    pub fn new(id: i64, epoch: Epoch, bounds: Bounds, is_durable: bool, holder: Holder) -> Self {
        let (top, top_time_ms, oldest_time_ms, trimmed_before_ms, bytes) = Default::default();
        let first = 1;
        let state = (bounds.keys_max > 0).then(StateCounts::default);
        Self {
            id,
            epoch,
            top,
            top_time_ms,
            first,
            oldest_time_ms,
            trimmed_before_ms,
            bytes,
            is_durable,
            bounds,
            state,
            holder,
        }
    }

    /// Deletes the channel with its publications, idempotency keys and state.
    pub fn delete(&self, db: &Connection) -> rusqlite::Result<()> {
        for sql in [
            "DELETE FROM publications WHERE channel = ?1",
            "DELETE FROM idempotency_keys WHERE channel = ?1",
            "DELETE FROM state_keys WHERE channel = ?1",
            "DELETE FROM states WHERE channel = ?1",
            "DELETE FROM channels WHERE id = ?1",
        ] {
            db.prepare_cached(sql)?.execute([self.id])?;
        }
        Ok(())
    }

    /// Inserts the row of a new channel.
    pub fn insert(&self, db: &Connection, name: &ChannelName) -> rusqlite::Result<()> {
        let sql = "INSERT INTO channels
            (top, top_time_ms, first, oldest_time_ms, trimmed_before_ms, bytes, id, name, epoch, is_durable)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        db.prepare_cached(sql)?.execute(params![
            self.top,
            self.top_time_ms,
            self.first,
            self.oldest_time_ms,
            self.trimmed_before_ms,
            self.bytes,
            self.id,
            name.as_str(),
            self.epoch.0,
            self.is_durable,
        ])?;
        self.state.map_or(Ok(()), |state| state.store(db, self.id))
    }

    /// Updates the row of a channel.
    pub fn update(&self, db: &Connection) -> rusqlite::Result<()> {
        let sql = "UPDATE channels SET top = ?1, top_time_ms = ?2, first = ?3, oldest_time_ms = ?4, trimmed_before_ms = ?5, bytes = ?6
            WHERE id = ?7";
        db.prepare_cached(sql)?.execute(params![
            self.top,
            self.top_time_ms,
            self.first,
            self.oldest_time_ms,
            self.trimmed_before_ms,
            self.bytes,
            self.id,
        ])?;
        self.state.map_or(Ok(()), |state| state.store(db, self.id))
    }
}

/// Returns the text of an SQLite error, with advice for the operator.
pub(super) fn describe(error: &rusqlite::Error) -> String {
    let advice = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            "; move it away to begin anew, or put back a copy (docs/reference/engines.md, \"Copies\")"
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            "; the server must be allowed to write the file and its folder"
        }
        Some(ErrorCode::DiskFull) => "; free some space",
        _ => "",
    };
    format!("cannot be used: {error}{advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_ends_although_its_descriptor_was_copied() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("data.db");
        let lock = Lock::new(&database).unwrap();
        let _copy = lock.0.try_clone().unwrap();
        assert!(matches!(Lock::new(&database), Err(FileFault::InUse)));
        drop(lock);
        assert!(Lock::new(&database).is_ok());
    }
}
