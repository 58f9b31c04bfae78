//! Promises of the file engine beyond the contract: recovery after a restart and a power failure, limits on disk. The
//! tests of `crash` end or block the process of an engine.

mod crash;
mod state;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use millrace_delivery::PageLimit;
use millrace_engine::{Config, Deliver, Engine, HistoryConfig, OpenError, SqliteEngine};
use millrace_protocol::{
    ChannelName, Epoch, Holder, Kind, NewPublication, Pattern, Position, Publication, Since, session::Policy,
};
use rusqlite::Connection;

use crate::worlds::{LIMIT, channel, text, wait};

/// Maximum time of any step, on any machine.
const BOUND: Duration = Duration::from_secs(30);

/// An engine on a file, and its deliveries.
struct Opened {
    engine: SqliteEngine<Readers>,
    clock_ms: Arc<AtomicU64>,
}

/// Passes deliveries to a callback.
struct Readers(Box<Hear>);

type Hear = dyn Fn(Position, &str) + Send + Sync;

impl Deliver for Readers {
    type Route = ();

    fn route(&self, _: &ChannelName) {}

    fn deliver(&self, (): &(), _: &ChannelName, epoch: Epoch, publication: &Publication) {
        let data = std::str::from_utf8(publication.data()).unwrap_or_default();
        (self.0)(Position { epoch, offset: publication.offset }, data);
    }

    fn moved(&self, (): &(), channel: &ChannelName, _: Position, _: Position) {
        panic!("{channel} has moved, though nothing is missed here");
    }

    fn readers(&self, _: &ChannelName) -> u32 {
        0
    }
}

fn try_open(path: &Path, config: Config) -> Result<Opened, OpenError> {
    let clock_ms = Arc::new(AtomicU64::new(1_000_000));
    let now = clock_ms.clone();
    let engine = SqliteEngine::open(path, config, Arc::new(Readers(Box::new(|_, _| {}))), move || now.load(SeqCst))?;
    Ok(Opened { engine, clock_ms })
}

fn open(path: &Path) -> Opened {
    try_open(path, Config::default()).unwrap()
}

fn durable() -> Config {
    let history = HistoryConfig { durable: true, ..HistoryConfig::default() };
    Config { namespaces: [("safe".to_owned(), history)].into(), ..Config::default() }
}

impl Opened {
    fn publish(&self, name: &str, data: &str) -> Position {
        wait(self.engine.append(&channel(name), text(data))).unwrap()
    }

    fn read(&self, name: &str, since: Since) -> (Option<(Position, Position)>, Vec<u64>) {
        self.read_by(name, since, Policy::Every, LIMIT)
    }

    fn read_by(
        &self,
        name: &str,
        since: Since,
        policy: Policy,
        limit: PageLimit,
    ) -> (Option<(Position, Position)>, Vec<u64>) {
        let page = wait(self.engine.page(&channel(name), since, policy, limit)).unwrap();
        (page.gap.map(|gap| (gap.from, gap.to)), page.publications.iter().map(|p| p.offset).collect())
    }

    /// Sweeps the engine until the condition holds.
    fn sweep_until(&self, is_done: impl Fn() -> bool) {
        let deadline = Instant::now() + BOUND;
        while !is_done() {
            self.engine.sweep();
            assert!(Instant::now() < deadline, "not in time");
            std::thread::yield_now();
        }
    }
}

fn folder() -> tempfile::TempDir {
    // The folder must be on a disk: the system's temporary folder may be in memory.
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn sql<T: rusqlite::types::FromSql>(path: &Path, sql: &str) -> T {
    Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn restart_keeps_all_state() {
    let folder = folder();
    let path = folder.path().join("data.db");
    let keyed = || NewPublication { idempotency_key: Some("once".into()), ..text("keyed") };
    let whole =
        NewPublication { key: Some("k".into()), ttl_ms: Some(u64::MAX), ..NewPublication::new(Kind::Binary, [0, 255]) };
    let (first, third, before) = {
        let opened = open(&path);
        let unborn = wait(opened.engine.newest(&channel("later"))).unwrap().top;
        let first = opened.publish("a", "1");
        wait(opened.engine.append(&channel("a"), whole.clone())).unwrap();
        let third = wait(opened.engine.append(&channel("a"), keyed())).unwrap();
        assert_eq!(unborn.epoch, first.epoch, "whoever reads an empty channel sees no gap at its first publication");
        let page = wait(opened.engine.page(&channel("a"), Since::Earliest, Policy::Every, LIMIT)).unwrap();
        (first, third, page)
    };
    let opened = open(&path);
    assert_eq!(wait(opened.engine.append(&channel("a"), keyed())).unwrap(), third, "keys are remembered");
    let after = wait(opened.engine.page(&channel("a"), Since::Earliest, Policy::Every, LIMIT)).unwrap();
    assert_eq!(after, before, "every field as it was");
    assert_eq!((after.publications[1].kind, after.publications[1].data()), (Kind::Binary, &[0, 255][..]));
    assert_eq!(opened.publish("a", "4"), Position { offset: 4, ..first });
    assert_eq!(opened.read("a", Since::Position(first)), (None, vec![2, 3, 4]));
    assert_eq!(opened.read("a", Since::Position(third)), (None, vec![4]));
    assert_eq!(opened.read("later", Since::Position(Position { offset: 0, ..first })), (None, vec![]));
    let all = Pattern::parse("#").unwrap();
    assert_eq!(wait(opened.engine.channels(&all, None, 10)).unwrap(), [channel("a")]);
    assert_eq!(opened.engine.size(), (1, 1 + 3 + 5 + 1));
    opened.clock_ms.fetch_add(5 * 60 * 1000, SeqCst);
    assert_eq!(wait(opened.engine.append(&channel("a"), keyed())).unwrap().offset, 5, "for five minutes");
    let rows = || sql::<i64>(&path, "SELECT count(*) FROM idempotency_keys");
    opened.clock_ms.fetch_add(5 * 60 * 1000, SeqCst);
    opened.sweep_until(|| rows() == 0);
}

/// The file and the memory give the same answers to the same requests: before a restart (from memory) and after it
/// (from the file).
#[test]
fn file_pages_equal_memory_pages() {
    let folder = folder();
    let path = folder.path().join("data.db");
    let first = {
        let opened = open(&path);
        let first = opened.publish("a", "0");
        for i in 1..40u64 {
            opened.clock_ms.fetch_add(10, SeqCst);
            let key = (i % 3 != 0).then(|| format!("k{}", i % 5).into());
            let ttl_ms = (i % 7 == 0 || (10..14).contains(&i)).then_some(1000);
            wait(opened.engine.append(&channel("a"), NewPublication { key, ttl_ms, ..text("x") })).unwrap();
        }
        first
    };
    let memory_clock = Arc::new(AtomicU64::new(1_000_000));
    let now = memory_clock.clone();
    let readers = Arc::new(Readers(Box::new(|_, _| {})));
    let memory = millrace_engine::MemoryEngine::new(Config::default(), first.epoch, readers, move || now.load(SeqCst));
    wait(memory.append(&channel("a"), text("0"))).unwrap();
    for i in 1..40u64 {
        memory_clock.fetch_add(10, SeqCst);
        let key = (i % 3 != 0).then(|| format!("k{}", i % 5).into());
        let ttl_ms = (i % 7 == 0 || (10..14).contains(&i)).then_some(1000);
        wait(memory.append(&channel("a"), NewPublication { key, ttl_ms, ..text("x") })).unwrap();
    }
    let opened = open(&path);
    let hour = 60 * 60 * 1000;
    let at = |offset| Since::Position(Position { offset, ..first });
    let elsewhere = Since::Position(Position { epoch: Epoch(first.epoch.0 ^ 1), offset: 7 });
    let mut asked = 0;
    // With nothing expired; with some expired; with some too old; with all too old.
    for now_ms in [1_000_390, 1_002_000, 1_000_000 + hour + 55, 1_000_000 + 2 * hour] {
        opened.clock_ms.store(now_ms, SeqCst);
        memory_clock.store(now_ms, SeqCst);
        let times = [0, 999_999, 1_000_000, 1_000_101, 1_000_390, 1_000_391].map(Since::Time);
        let places = [Since::Now, Since::Earliest, elsewhere, at(0), at(1), at(9), at(13), at(39), at(40), at(41)];
        for since in times.into_iter().chain(places) {
            for policy in [Policy::Every, Policy::Latest] {
                for limit in [LIMIT, PageLimit { count: 3, bytes: 1 << 20 }, PageLimit { count: 100, bytes: 5 }] {
                    let from_file = wait(opened.engine.page(&channel("a"), since, policy, limit)).unwrap();
                    let from_memory = wait(memory.page(&channel("a"), since, policy, limit)).unwrap();
                    assert_eq!(from_file, from_memory, "{now_ms} {since:?} {policy:?} {limit:?}");
                    asked += 1;
                }
            }
        }
        assert_eq!(wait(opened.engine.newest(&channel("a"))), wait(memory.newest(&channel("a"))));
    }
    assert_eq!(asked, 4 * 16 * 6);
}

#[test]
fn disk_history_and_file_size_are_bounded() {
    let folder = folder();
    let path = folder.path().join("data.db");
    let small = HistoryConfig { count_max: 200, bytes_max: 100_000, ..HistoryConfig::default() };
    let opened = try_open(&path, Config { history: small, ..Config::default() }).unwrap();
    let size = || {
        std::fs::metadata(&path).unwrap().len() + std::fs::metadata(folder.path().join("data.db-wal")).unwrap().len()
    };
    let mut sizes = Vec::new();
    for _ in 0..12 {
        for i in 0..1000 {
            let answers =
                (0..10).map(|c| opened.engine.append(&channel(&format!("c/{c}")), text(&"x".repeat(i % 900))));
            answers.collect::<Vec<_>>().into_iter().for_each(|answer| assert!(wait(answer).is_ok()));
        }
        opened.engine.sweep();
        sizes.push(size());
        let rows: i64 =
            sql(&path, "SELECT max(held) FROM (SELECT count(*) AS held FROM publications GROUP BY channel)");
        assert!(rows <= 200, "{rows}");
    }
    // Ten channels with at most 100,000 bytes each, and the write-ahead log that is not in the main file yet: 4,000
    // pages and a batch.
    assert!(sizes[11] <= sizes[3] + sizes[3] / 10, "{sizes:?}");
    assert!(sizes[11] < 25_000_000, "{sizes:?}");
    assert_eq!(opened.read("c/1", Since::Earliest).1.last(), Some(&12_000));

    // All publications become too old, and the file shrinks again.
    opened.clock_ms.fetch_add(60 * 60 * 1000, SeqCst);
    assert_eq!(opened.read("c/1", Since::Earliest), (None, vec![]));
    opened.sweep_until(|| sql::<i64>(&path, "SELECT count(*) FROM publications") == 0);
    opened.sweep_until(|| sql::<i64>(&path, "PRAGMA page_count") < 600);
    opened.sweep_until(|| opened.engine.size() == (10, 0));
    assert_eq!(opened.publish("c/1", "x").offset, 12_001, "positions go on");
}

/// The limit is smaller than at the last start. The excess is removed in small steps, while publishing continues.
#[test]
fn evicted_channels_never_reuse_positions() {
    let folder = folder();
    let path = folder.path().join("data.db");
    let config = Config { channels_max: 900, ..Config::default() };
    let opened = try_open(&path, config.clone()).unwrap();
    let append = |opened: &Opened, holder: u32, name: &str| {
        wait(opened.engine.append(&channel(name), text("x").held_by(Holder::new(holder))))
    };
    let first = append(&opened, 1, "flood/0").unwrap();
    assert_eq!((1..900).filter(|i| append(&opened, 1, &format!("flood/{i}")).is_ok()).count(), 799);
    // The first holder's channels are young: only a holder below an equal share evicts them.
    let second = (0..900).take_while(|i| append(&opened, 2, &format!("second/{i}")).is_ok()).count();
    assert!((380..=450).contains(&second), "{second} channels");
    let channels = || sql::<usize>(&path, "SELECT count(*) FROM channels");
    assert!(channels() <= 900, "{}", channels());
    assert_eq!(opened.engine.size().0, channels());
    // An evicted channel begins again in another epoch.
    let gone = (0..900).map(|i| format!("flood/{i}")).find(|name| opened.read(name, Since::Earliest).1.is_empty());
    let gone = gone.expect("some had to go");
    let (gap, left) = opened.read(&gone, Since::Position(Position { offset: 1, ..first }));
    assert!(gap.is_some() && left.is_empty(), "{gap:?}");
    let again = append(&opened, 3, &gone).unwrap();
    assert_ne!(again.epoch, first.epoch);
    drop(opened);
    // After a restart the channels have no holder. Once they are empty, they are evicted for any new channel.
    let opened = try_open(&path, config).unwrap();
    assert_eq!(opened.read(&gone, Since::Position(Position { offset: 0, ..again })), (None, vec![1]));
    let held = channels();
    opened.clock_ms.fetch_add(2 * 60 * 60 * 1000, SeqCst);
    assert!((0..200).all(|i| append(&opened, 4, &format!("later/{i}")).is_ok()), "{held} were there");
    assert!(channels() <= 900, "{}", channels());
}

#[test]
fn lowered_bound_is_applied() {
    let folder = folder();
    let path = folder.path().join("data.db");
    let (first, count) = {
        let opened = open(&path);
        let answers: Vec<_> = (0..9000).map(|_| opened.engine.append(&channel("a"), text("x"))).collect();
        let positions: Vec<_> = answers.into_iter().map(|answer| wait(answer).unwrap()).collect();
        (positions[0], positions.len() as u64)
    };
    let history = HistoryConfig { count_max: 10, ..HistoryConfig::default() };
    let opened = try_open(&path, Config { history, ..Config::default() }).unwrap();
    opened.sweep_until(|| sql::<i64>(&path, "SELECT count(*) FROM publications") == 10);
    let to = Position { offset: count - 10, ..first };
    assert_eq!(opened.read("a", Since::Position(first)), (Some((first, to)), (count - 9..=count).collect()));
}

#[test]
fn power_failure_changes_epoch_of_non_durable_channels() {
    let folder = folder();
    let path = folder.path().join("data.db");
    let (safe, other) = {
        let opened = try_open(&path, durable()).unwrap();
        (opened.publish("safe/a", "1"), opened.publish("other", "1"))
    };
    let end = |boot: &str, is_clean: bool| {
        let db = Connection::open(&path).unwrap();
        db.execute("UPDATE store SET boot = ?1, is_clean = ?2", (boot, is_clean)).unwrap();
    };
    let boot: String = sql(&path, "SELECT boot FROM store");
    end(&boot, false);
    {
        let opened = try_open(&path, durable()).unwrap();
        assert_eq!(
            opened.publish("other", "2"),
            Position { offset: 2, ..other },
            "the process ended, the system did not"
        );
    }
    end("another boot", true);
    {
        let opened = try_open(&path, durable()).unwrap();
        assert_eq!(opened.publish("other", "3"), Position { offset: 3, ..other }, "it was closed before");
    }
    end("another boot", false);
    let opened = try_open(&path, durable()).unwrap();
    assert_eq!(opened.publish("safe/a", "2"), Position { offset: 2, ..safe });
    let next = opened.publish("other", "4");
    assert!(next.epoch != other.epoch && next.offset == 4, "{next}");
    let beginning = Position { offset: 0, ..next };
    assert_eq!(opened.read("other", Since::Position(other)), (Some((other, beginning)), vec![1, 2, 3, 4]));
    assert_ne!(opened.publish("born/later", "1").epoch, other.epoch);
    drop(opened);

    Connection::open(&path).unwrap().execute("UPDATE store SET is_restored = 1", []).unwrap();
    let restored = try_open(&path, durable()).unwrap().publish("safe/a", "3");
    assert!(restored.epoch != safe.epoch, "an older copy that was put back begins anew everywhere");
    let opened = try_open(&path, durable()).unwrap();
    assert_eq!(opened.publish("safe/a", "4"), Position { offset: 4, ..restored }, "once");
}

/// The durability setting changes between two starts. Publications that were written without waiting never count as
/// durable.
#[test]
fn durability_applies_from_activation() {
    let folder = folder();
    let path = folder.path().join("data.db");
    let first = try_open(&path, durable()).unwrap().publish("safe/a", "1");
    open(&path).publish("safe/a", "2");
    Connection::open(&path).unwrap().execute("UPDATE store SET boot = 'another', is_clean = 0", []).unwrap();
    assert_ne!(try_open(&path, durable()).unwrap().publish("safe/a", "3").epoch, first.epoch);
}

#[test]
fn unusable_file_error_has_reason() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let refused = |path: PathBuf| try_open(&path, Config::default()).err().expect("it is refused").to_string();
    let says = |path: PathBuf, what: &str| {
        let said = refused(path);
        assert!(said.contains(what), "{said:?} does not say {what:?}");
    };
    says(path("missing/data.db"), "there is no folder");
    says(folder.path().to_owned(), "is a folder");

    let _first = open(&path("used.db"));
    says(path("used.db"), "in use by another millrace");

    std::fs::write(path("text.db"), "not a database at all, but long enough to be looked at".repeat(100)).unwrap();
    says(path("text.db"), "file is not a database; move it away");
    drop(open(&path("damaged.db")));
    let mut bytes = std::fs::read(path("damaged.db")).unwrap();
    bytes[4096..].fill(0x55);
    std::fs::write(path("damaged.db"), bytes).unwrap();
    says(path("damaged.db"), "move it away");

    Connection::open(path("other.db")).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    says(path("other.db"), "of another program");
    drop(open(&path("newer.db")));
    Connection::open(path("newer.db")).unwrap().execute_batch("PRAGMA user_version = 4").unwrap();
    says(path("newer.db"), "newer millrace");
}
