//! Keyed states in the file: they survive restarts, upgrades of the file and changes of the setting.

use std::path::Path;

use millrace_delivery::Part;
use millrace_engine::{Config, Engine, HistoryConfig};
use millrace_protocol::{Code, Expected, NewPublication, Position, Since, session::Policy};
use rusqlite::Connection;

use super::{Opened, folder, sql, try_open};
use crate::worlds::{LIMIT, channel, text, wait};

/// The channels `s/..` are states with a log of three publications.
fn states() -> Config {
    let state = HistoryConfig { state: true, count_max: 3, ..HistoryConfig::default() };
    Config { namespaces: [("s".to_owned(), state)].into(), ..Config::default() }
}

fn open(path: &Path) -> Opened {
    try_open(path, states()).unwrap()
}

fn keyed(key: &str, data: &str) -> NewPublication {
    NewPublication { key: Some(key.into()), ..text(data) }
}

impl Opened {
    fn put(&self, key: &str, data: &str) -> Position {
        wait(self.engine.append(&channel("s/a"), keyed(key, data))).unwrap()
    }

    fn delete(&self, key: &str) -> Position {
        wait(self.engine.append(&channel("s/a"), NewPublication::deletion(key.into()))).unwrap()
    }

    /// Returns offset and key of each entry of the state.
    fn state(&self) -> Vec<(u64, String)> {
        let page = wait(self.engine.page(&channel("s/a"), Since::State, Policy::Every, LIMIT)).unwrap();
        assert!(matches!(page.part, Part::StateEnd { .. }), "{:?}", page.part);
        page.publications.iter().map(|entry| (entry.offset, entry.key.as_deref().unwrap().to_owned())).collect()
    }
}

fn entries(list: &[(u64, &str)]) -> Vec<(u64, String)> {
    list.iter().map(|(offset, key)| (*offset, (*key).to_owned())).collect()
}

#[test]
fn restart_keeps_the_state() {
    let folder = folder();
    let path = folder.path().join("data.db");
    let (before, first) = {
        let opened = open(&path);
        let first = opened.put("k0", "0");
        (1..10).for_each(|i| assert!(opened.put(&format!("k{i}"), "x").offset > 0));
        opened.delete("k1");
        opened.put("k2", "new");
        (opened.state(), first)
    };
    let opened = open(&path);
    assert_eq!(opened.state(), before);
    assert_eq!(before.len(), 9);
    let with = |expected| NewPublication { expected: Some(expected), ..keyed("k0", "1") };
    let refused = wait(opened.engine.append(&channel("s/a"), with(Expected::Absent))).unwrap_err();
    assert_eq!(refused.code, Code::PreconditionFailed);
    assert_eq!(wait(opened.engine.append(&channel("s/a"), with(Expected::At(first)))).unwrap().offset, 13);
    // The numbers of keys and of entries outside the log are right, too: all rows go when all keys are deleted.
    for i in 0..10 {
        opened.delete(&format!("k{i}"));
    }
    (0..3).for_each(|_| assert!(opened.delete("k0").offset > 0));
    assert_eq!(opened.state(), []);
    drop(opened);
    assert_eq!(sql::<i64>(&path, "SELECT keys + old + old_bytes FROM states"), 0);
    assert_eq!(sql::<i64>(&path, "SELECT count(*) FROM state_keys"), 0);
    assert!(sql::<i64>(&path, "SELECT count(*) FROM publications") <= 4, "only the log is left");
}

#[test]
fn lost_deletions_are_remembered_over_a_restart() {
    let folder = folder();
    let path = folder.path().join("data.db");
    let place = {
        let opened = open(&path);
        (0..4).for_each(|i| assert!(opened.put(&format!("k{i}"), "x").offset > 0));
        let one = millrace_delivery::PageLimit { count: 1, ..LIMIT };
        let page = wait(opened.engine.page(&channel("s/a"), Since::State, Policy::Every, one)).unwrap();
        opened.delete("k0");
        (0..5).for_each(|_| assert!(opened.put("k1", "x").offset > 0));
        page.next()
    };
    let opened = open(&path);
    let page = wait(opened.engine.page(&channel("s/a"), place, Policy::Every, LIMIT)).unwrap();
    assert_eq!(page.gap.map(|gap| (gap.from.offset, gap.to.offset)), Some((1, 0)));
}

#[test]
fn file_of_schema_1_is_upgraded() {
    let folder = folder();
    let path = folder.path().join("data.db");
    let plain = try_open(&path, Config::default()).unwrap();
    for i in 0..4 {
        wait(plain.engine.append(&channel("s/a"), keyed(&format!("k{}", i % 3), "x"))).unwrap();
    }
    wait(plain.engine.append(&channel("s/a"), text("without a key"))).unwrap();
    drop(plain);
    let schema_1 = "DROP TABLE states; DROP INDEX state_keys_by_expiry; DROP TABLE state_keys;
        ALTER TABLE publications DROP COLUMN trace; PRAGMA user_version = 1";
    Connection::open(&path).unwrap().execute_batch(schema_1).unwrap();
    let opened = open(&path);
    assert_eq!(sql::<i64>(&path, "PRAGMA user_version"), 3);
    assert_eq!(opened.state(), entries(&[(2, "k1"), (3, "k2"), (4, "k0")]), "the newest of each key of the log");
    assert_eq!(opened.put("k1", "new").offset, 6);
    assert_eq!(opened.state(), entries(&[(3, "k2"), (4, "k0"), (6, "k1")]));
}

#[test]
fn setting_may_change_between_two_runs() {
    let folder = folder();
    let path = folder.path().join("data.db");
    {
        let opened = open(&path);
        (0..6).for_each(|i| assert!(opened.put(&format!("k{i}"), "x").offset > 0));
        opened.delete("k5");
    }
    {
        let log = HistoryConfig { count_max: 3, ..HistoryConfig::default() };
        let plain = try_open(&path, Config { history: log, ..Config::default() }).unwrap();
        let error = wait(plain.engine.page(&channel("s/a"), Since::State, Policy::Every, LIMIT)).unwrap_err();
        assert_eq!(error.code, Code::BadRequest);
        assert_eq!(plain.read("s/a", Since::Earliest), (None, vec![5, 6, 7]));
        assert_eq!(sql::<i64>(&path, "SELECT count(*) FROM publications"), 3, "the state is gone");
        assert_eq!(plain.publish("s/a", "x").offset, 8);
    }
    let opened = open(&path);
    assert_eq!(opened.state(), [], "of the keys in the log, one is deleted");
    assert_eq!(opened.put("k5", "x").offset, 9);
    assert_eq!(opened.state(), entries(&[(9, "k5")]));
}

#[test]
fn failed_transaction_leaves_the_state_unchanged() {
    let folder = folder();
    let path = folder.path().join("data.db");
    let opened = open(&path);
    (0..4).for_each(|i| assert!(opened.put(&format!("k{i}"), "x").offset > 0));
    let before = opened.state();
    // A second publication of the same transaction cannot be written, so the first is rolled back, too.
    let trigger =
        "CREATE TRIGGER refuse BEFORE INSERT ON publications WHEN new.key = 'bad' BEGIN SELECT raise(ABORT, 'no'); END";
    Connection::open(&path).unwrap().execute_batch(trigger).unwrap();
    let failed = wait(opened.engine.append(&channel("s/a"), keyed("bad", "x"))).unwrap_err();
    assert_eq!(failed.code, Code::Unavailable);
    assert_eq!(opened.state(), before);
    Connection::open(&path).unwrap().execute_batch("DROP TRIGGER refuse").unwrap();
    assert_eq!(opened.put("k0", "new").offset, 5);
    assert_eq!(opened.state().len(), 4);
}
