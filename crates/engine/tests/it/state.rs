//! The contract of keyed states. Each case runs on every engine that supports them.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use millrace_delivery::{Page, PageLimit, Part};
use millrace_engine::{Config, HistoryConfig, state_changes};
use millrace_protocol::{Code, Epoch, Error, Expected, NewPublication, Position, Publication, Since, session::Policy};

use crate::{
    servers::until,
    worlds::{LIMIT, World, channel, on_engines_that_bound_all, on_every_engine, text, wait},
};

/// State channels are `s/..`; their log holds three publications.
fn config() -> Config {
    let state = HistoryConfig { state: true, count_max: 3, ..HistoryConfig::default() };
    Config { namespaces: [("s".to_owned(), state)].into(), ..Config::default() }
}

pub fn keyed(key: &str, data: &str) -> NewPublication {
    NewPublication { key: Some(key.into()), ..text(data) }
}

pub fn deletion(key: &str) -> NewPublication {
    NewPublication::deletion(key.into())
}

pub fn page(world: &World, name: &str, since: Since, limit: PageLimit) -> Page {
    wait(world.engine.page(&channel(name), since, Policy::Every, limit)).unwrap()
}

fn two() -> PageLimit {
    PageLimit { count: 2, ..LIMIT }
}

pub fn refused(world: &World, name: &str, new: NewPublication) -> Error {
    wait(world.engine.append(&channel(name), new)).unwrap_err()
}

pub fn offsets(page: &Page) -> Vec<u64> {
    page.publications.iter().map(|publication| publication.offset).collect()
}

/// Key and payload of each entry, as a reader builds the state.
pub type Map = BTreeMap<String, String>;

fn apply(map: &mut Map, publication: &Publication) {
    let key = publication.key.as_deref().unwrap().to_owned();
    match publication.is_deletion {
        true => drop(map.remove(&key)),
        false => drop(map.insert(key, String::from_utf8(publication.data().to_vec()).unwrap())),
    }
}

/// Reads the whole state page by page.
pub fn state(world: &World, name: &str, limit: PageLimit) -> Map {
    let (mut map, mut since) = (Map::new(), Since::State);
    loop {
        let page = page(world, name, since, limit);
        assert_eq!(page.gap, None);
        assert!(offsets(&page).is_sorted());
        page.publications.iter().for_each(|publication| apply(&mut map, publication));
        if let Part::StateEnd { .. } = page.part {
            assert_eq!(page.end, page.top);
            return map;
        }
        assert!(page.has_more() && !page.publications.is_empty());
        since = page.next();
    }
}

#[test]
fn state_keeps_newest_publication_of_each_key() {
    on_every_engine(config(), |world| {
        let first = world.append("s/a", keyed("k0", "old"));
        for i in 1..10 {
            world.append("s/a", keyed(&format!("k{i}"), "x"));
        }
        world.append("s/a", keyed("k0", "new"));
        assert_eq!(world.read("s/a", Since::Earliest).1, [9, 10, 11], "the log is bounded");
        let whole = page(world, "s/a", Since::State, LIMIT);
        assert_eq!((offsets(&whole), whole.part), ((2..=11).collect(), Part::StateEnd { began: 11 }));
        assert_eq!((whole.gap, whole.end, whole.top), (None, Position { offset: 11, ..first }, whole.end));
        assert_eq!(whole.publications[9].data(), b"new");
        let half = page(world, "s/a", Since::State, two());
        assert_eq!((offsets(&half), half.part), (vec![2, 3], Part::State { began: 11 }));
        assert_eq!(half.next(), Since::StateAfter { epoch: first.epoch, offset: 3, began: 11 });
        assert_eq!(state(world, "s/a", two()).len(), 10);
        assert_eq!(state(world, "s/none", two()), Map::new());
        let none = PageLimit { count: 0, bytes: 0 };
        let nothing = page(world, "s/a", Since::State, none);
        assert_eq!((offsets(&nothing), nothing.end.offset, nothing.has_more()), (vec![], 0, true));
    });
}

#[test]
fn deletion_removes_a_key() {
    on_every_engine(config(), |world| {
        world.watch("s/a");
        world.append("s/a", keyed("a", "1"));
        let b = world.append("s/a", keyed("b", "1"));
        let gone = world.append("s/a", deletion("a"));
        assert_eq!((gone.offset, state(world, "s/a", LIMIT)), (3, Map::from([("b".into(), "1".into())])));
        let log = page(world, "s/a", Since::Position(b), LIMIT);
        let deleted = &log.publications[0];
        assert_eq!((deleted.key.as_deref(), deleted.is_deletion, deleted.data()), (Some("a"), true, b"".as_slice()));
        assert_eq!(world.delivered("s/a", 3).len(), 3, "a deletion is delivered");
        world.append("s/a", keyed("a", "2"));
        assert_eq!(state(world, "s/a", LIMIT).len(), 2);
        world.append("s/a", deletion("never there"));
        assert_eq!(state(world, "s/a", LIMIT).len(), 2);
    });
}

#[test]
fn changes_follow_the_last_read_of_a_state() {
    on_every_engine(config(), |world| {
        let read = |since| wait(state_changes(&*world.engine, &channel("s/a"), since)).unwrap();
        let (mut map, mut since) = (Map::new(), Since::State);
        let mut follow = |is_whole| {
            let changes = read(since);
            assert_eq!(changes.is_whole, is_whole, "{changes:?}");
            if is_whole {
                map.clear();
            }
            changes.publications.iter().for_each(|publication| apply(&mut map, publication));
            since = changes.next;
            (changes.publications.len(), map.clone())
        };
        world.append("s/a", keyed("a", "1"));
        assert_eq!(follow(true).0, 1);
        world.append("s/a", keyed("b", "1"));
        assert_eq!(follow(false).0, 1);
        assert_eq!(follow(false).0, 0);
        world.append("s/a", deletion("a"));
        assert_eq!(follow(false), (1, Map::from([("b".into(), "1".into())])));
        // The log, which holds three publications, no longer reaches back.
        world.append("s/a", deletion("b"));
        for i in 0..5 {
            world.append("s/a", keyed("c", &i.to_string()));
        }
        assert_eq!(follow(true), (1, Map::from([("c".into(), "4".into())])));
    });
}

#[test]
fn changes_during_a_read_of_the_state_are_not_missed() {
    let state = HistoryConfig { state: true, ..HistoryConfig::default() };
    on_every_engine(Config { history: state, ..Config::default() }, |world| {
        let mut truth = Map::new();
        let mut publish = |new: NewPublication| {
            let head = new.clone();
            let offset = world.append("a", new).offset;
            let (key, expires_ms, is_deletion) = (head.key, None, head.is_deletion);
            let head = millrace_protocol::PublicationHead {
                offset,
                time_ms: 0,
                key,
                expires_ms,
                is_traced: false,
                kind: head.kind,
                is_deletion,
            };
            let publication = Publication::new(head, b"");
            apply(&mut truth, &publication);
            truth.clone()
        };
        (0..20).for_each(|i| drop(publish(keyed(&format!("k{i}"), ""))));
        let (mut map, mut since, mut round) = (Map::new(), Since::State, 0);
        let truth = loop {
            let page = page(world, "a", since, two());
            page.publications.iter().for_each(|publication| apply(&mut map, publication));
            since = page.next();
            if let Since::Position(_) = since {
                break publish(keyed("last", ""));
            }
            // Each round changes a key behind the reader, deletes one behind and one ahead, and adds one.
            round += 1;
            if round > 8 {
                continue;
            }
            publish(keyed("k0", ""));
            publish(deletion(&format!("k{round}")));
            publish(deletion(&format!("k{}", 20 - round)));
            if round < 5 {
                publish(keyed(&format!("new{round}"), ""));
            }
        };
        let page = page(world, "a", since, LIMIT);
        assert!(page.gap.is_none() && page.part == Part::Log);
        page.publications.iter().for_each(|publication| apply(&mut map, publication));
        assert_eq!(map, truth);
    });
}

#[test]
fn lost_deletion_restarts_a_read_of_the_state() {
    on_every_engine(config(), |world| {
        let first = world.append("s/a", keyed("k0", "x"));
        for i in 1..6 {
            world.append("s/a", keyed(&format!("k{i}"), "x"));
        }
        let begun = page(world, "s/a", Since::State, two());
        assert_eq!((offsets(&begun), begun.part), (vec![1, 2], Part::State { began: 6 }));
        // Changes alone restart nothing, although the log has passed them.
        for _ in 0..5 {
            world.append("s/a", keyed("k5", "x"));
        }
        let next = page(world, "s/a", begun.next(), two());
        assert_eq!((next.gap, offsets(&next)), (None, vec![3, 4]));
        world.append("s/a", deletion("k0"));
        let next = page(world, "s/a", next.next(), two());
        assert_eq!((next.gap, offsets(&next)), (None, vec![5, 11]));
        assert_eq!(offsets(&page(world, "s/a", next.next(), two())), [12], "the log holds the deletion");
        for _ in 0..9 {
            world.append("s/a", keyed("k5", "x"));
        }
        let again = page(world, "s/a", next.next(), two());
        let gap = again.gap.map(|gap| (gap.from, gap.to));
        assert_eq!(gap, Some((Position { offset: 11, ..first }, Position { offset: 0, ..first })));
        assert_eq!((offsets(&again), again.part), (vec![2, 3], Part::State { began: 21 }));
    });
}

#[test]
fn forged_places_in_a_state_begin_anew() {
    on_every_engine(config(), |world| {
        let Position { epoch, .. } = world.append("s/a", keyed("a", "x"));
        world.append("s/a", keyed("b", "x"));
        let other = Epoch(epoch.0.wrapping_add(1));
        for (epoch, offset, began) in [
            (other, 1, 2),
            (epoch, 1, 3),
            (epoch, 3, 2),
            (epoch, u64::MAX, 2),
            (epoch, u64::MAX, u64::MAX),
            (epoch, 0, u64::MAX),
        ] {
            let page = page(world, "s/a", Since::StateAfter { epoch, offset, began }, LIMIT);
            let from = page.gap.map(|gap| (gap.from, gap.to.offset));
            assert_eq!(from, Some((Position { epoch, offset }, 0)), "{epoch:?} {offset} {began}");
            assert_eq!(offsets(&page), [1, 2]);
        }
        let unknown = page(world, "s/none", Since::StateAfter { epoch, offset: 5, began: 9 }, LIMIT);
        assert!(unknown.gap.is_some() && unknown.publications.is_empty());
    });
}

#[test]
fn condition_admits_only_the_expected_position() {
    on_every_engine(config(), |world| {
        let with = |expected, new: NewPublication| NewPublication { expected: Some(expected), ..new };
        let at = Expected::At;
        let fails = |expected, new, position: &str| {
            let error = refused(world, "s/a", with(expected, new));
            let ends = error.detail.ends_with(&format!("current position is {position}"));
            assert!(error.code == Code::PreconditionFailed && ends, "{error}");
        };
        let nowhere = Position { epoch: Epoch(1), offset: 1 };
        fails(at(nowhere), keyed("a", "1"), "0");
        let first = world.append("s/a", with(Expected::Absent, keyed("a", "1")));
        fails(Expected::Absent, keyed("a", "2"), &first.to_string());
        let second = world.append("s/a", with(at(first), keyed("a", "2")));
        fails(at(first), keyed("a", "3"), &second.to_string());
        fails(at(first), deletion("a"), &second.to_string());
        let other = Position { epoch: Epoch(second.epoch.0.wrapping_add(1)), ..second };
        fails(at(other), keyed("a", "3"), &second.to_string());
        let b = world.append("s/a", with(Expected::Absent, keyed("b", "1")));
        assert_eq!(b.offset, 3, "a refused publication takes no offset");
        let gone = world.append("s/a", with(at(second), deletion("a")));
        fails(at(gone), keyed("a", "4"), "0");
        world.append("s/a", with(Expected::Absent, deletion("a")));
        // A key that the log no longer holds has its position, too.
        for _ in 0..5 {
            world.append("s/a", keyed("c", "x"));
        }
        assert!(world.append("s/a", with(at(b), keyed("b", "2"))).offset > b.offset);
    });
}

#[test]
fn refused_first_publication_creates_no_state() {
    on_every_engine(config(), |world| {
        let at = Expected::At(Position { epoch: Epoch(1), offset: 1 });
        let error = refused(world, "s/a", NewPublication { expected: Some(at), ..keyed("a", "1") });
        assert_eq!(error.code, Code::PreconditionFailed);
        assert_eq!(refused(world, "s/a", text("x")).code, Code::BadRequest);
        assert_eq!(world.append("s/a", keyed("a", "1")).offset, 1);
    });
}

#[test]
fn concurrent_conditions_admit_exactly_one() {
    const ROUNDS: u64 = 50;
    on_every_engine(config(), |world| {
        let admitted = AtomicU64::new(0);
        let newest = || page(world, "s/count", Since::State, LIMIT).publications.pop();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut counted = 0;
                    while counted < ROUNDS {
                        let known = newest();
                        let epoch = page(world, "s/count", Since::Now, LIMIT).top.epoch;
                        let (expected, count) = match &known {
                            None => (Expected::Absent, 0),
                            Some(known) => {
                                let count: u64 = std::str::from_utf8(known.data()).unwrap().parse().unwrap();
                                (Expected::At(Position { epoch, offset: known.offset }), count)
                            }
                        };
                        let new = NewPublication { expected: Some(expected), ..keyed("n", &(count + 1).to_string()) };
                        match wait(world.engine.append(&channel("s/count"), new)) {
                            Ok(_) => counted += 1,
                            Err(error) => assert_eq!(error.code, Code::PreconditionFailed, "{error}"),
                        }
                    }
                    admitted.fetch_add(counted, Ordering::Relaxed);
                });
            }
        });
        let last = newest().unwrap();
        assert_eq!(last.data(), (4 * ROUNDS).to_string().as_bytes());
        assert_eq!((admitted.load(Ordering::Relaxed), last.offset), (4 * ROUNDS, 4 * ROUNDS));
    });
}

#[test]
fn repeated_idempotency_key_precedes_the_condition() {
    on_every_engine(config(), |world| {
        let new = || NewPublication {
            expected: Some(Expected::Absent),
            idempotency_key: Some("once".into()),
            ..keyed("a", "1")
        };
        let first = world.append("s/a", new());
        assert_eq!(world.append("s/a", new()), first);
        let refused = refused(world, "s/a", NewPublication { idempotency_key: Some("other".into()), ..new() });
        assert_eq!(refused.code, Code::PreconditionFailed);
        world.append("s/a", deletion("a"));
        let later = world.append("s/a", NewPublication { idempotency_key: Some("other".into()), ..new() });
        assert_eq!(later.offset, 3, "a refused publication leaves its key unused");
    });
}

#[test]
fn key_with_ended_time_to_live_is_deleted_once() {
    on_every_engine(config(), |world| {
        world.watch("s/a");
        world.append("s/a", NewPublication { ttl_ms: Some(300), ..keyed("short", "x") });
        world.append("s/a", keyed("long", "x"));
        let extended = NewPublication { ttl_ms: Some(300), ..keyed("extended", "x") };
        world.append("s/a", extended);
        world.append("s/a", keyed("extended", "y"));
        world.engine.sweep();
        assert_eq!(state(world, "s/a", LIMIT).len(), 3);
        world.pass(Duration::from_millis(500));
        let kept = |world: &World| state(world, "s/a", LIMIT).into_keys().collect::<Vec<_>>();
        assert_eq!(kept(world), ["extended", "long"], "an expired key is not read, even before its deletion");
        let is_deleted = || {
            world.engine.sweep();
            world.delivered.of("s/a").len() == 5
        };
        assert!(until(Duration::from_secs(10), is_deleted), "{:?}", world.delivered.of("s/a"));
        let newest = wait(world.engine.newest(&channel("s/a"))).unwrap().publication.unwrap();
        assert_eq!((newest.key.as_deref(), newest.is_deletion, newest.offset), (Some("short"), true, 5));
        (0..3).for_each(|_| world.engine.sweep());
        world.append("s/a", keyed("end", "x"));
        assert_eq!(world.delivered("s/a", 6).len(), 6, "it was deleted once");
    });
}

#[test]
fn expired_key_counts_as_absent() {
    on_every_engine(config(), |world| {
        let first = world.append("s/a", NewPublication { ttl_ms: Some(200), ..keyed("a", "1") });
        world.pass(Duration::from_millis(400));
        let expected = |expected| NewPublication { expected: Some(expected), ..keyed("a", "2") };
        assert_eq!(refused(world, "s/a", expected(Expected::At(first))).code, Code::PreconditionFailed);
        world.append("s/a", expected(Expected::Absent));
        assert_eq!(state(world, "s/a", LIMIT), Map::from([("a".into(), "2".into())]));
        // An expired publication of the log is no gap: its deletion or its successor follows.
        assert_eq!(world.read("s/a", Since::Position(Position { offset: 0, ..first })).0, None);
    });
}

#[test]
fn number_of_keys_is_limited() {
    let state = HistoryConfig { state: true, keys_max: 2, ..HistoryConfig::default() };
    on_every_engine(Config { history: state, ..Config::default() }, |world| {
        world.append("a", keyed("1", "x"));
        world.append("a", keyed("2", "x"));
        let error = refused(world, "a", keyed("3", "x"));
        assert!(error.code == Code::TooMany && error.detail.contains("`keys_max`"), "{error}");
        world.append("a", keyed("2", "y"));
        world.append("a", deletion("1"));
        world.append("a", keyed("3", "x"));
        assert_eq!(world.append("other", keyed("1", "x")).offset, 1, "each state has its own limit");
    });
}

/// A reader gets a state of a million keys, its maximum, in pages of a thousand, while keys change.
#[test]
fn million_keys_are_read_in_bounded_pages() {
    const KEYS: u64 = 1_000_000;
    let history = HistoryConfig { state: true, count_max: 1000, keys_max: KEYS as usize, ..HistoryConfig::default() };
    let world = World::open("memory", Config { history, ..Config::default() }, true);
    let key = |i: u64| format!("key {i}");
    for i in 0..KEYS {
        world.append("a", keyed(&key(i), "old"));
    }
    assert_eq!(refused(&world, "a", keyed("one more", "x")).code, Code::TooMany);
    let limit = PageLimit { count: 1000, ..LIMIT };
    let (mut since, mut pages, mut entries, mut seen) = (Since::State, 0, 0, vec![false; KEYS as usize]);
    loop {
        let page = page(&world, "a", since, limit);
        assert!(page.gap.is_none() && page.publications.len() <= limit.count);
        pages += 1;
        for publication in &page.publications {
            let i: usize = publication.key.as_deref().unwrap().strip_prefix("key ").unwrap().parse().unwrap();
            seen[i] = true;
            entries += 1;
        }
        if let Part::StateEnd { .. } = page.part {
            break;
        }
        // A key that was read already changes, and one that was not.
        world.append("a", keyed(&key(pages * 7), "new"));
        world.append("a", keyed(&key(KEYS - 1 - pages * 7), "new"));
        since = page.next();
    }
    assert!(seen.iter().all(|seen| *seen), "every key was read");
    assert!((KEYS..=KEYS + 2 * pages).contains(&entries), "{entries} entries on {pages} pages");
    let (channels, bytes) = world.engine.size();
    assert!(channels == 1 && bytes < 20 * KEYS as usize, "{channels} channels with {bytes} bytes of keys and payloads");
    world.engine.close();
}

#[test]
fn state_needs_its_setting_and_keys() {
    on_every_engine(config(), |world| {
        let is_refused = |name: &str, new: NewPublication| {
            let error = refused(world, name, new);
            let names_setting = error.detail.contains("`state`") || error.detail.contains("`state = true`");
            assert!(error.code == Code::BadRequest && names_setting, "{error}");
        };
        world.append("s/a", keyed("a", "x"));
        is_refused("s/a", text("no key"));
        world.append("plain", keyed("a", "x"));
        is_refused("plain", deletion("a"));
        is_refused("plain", NewPublication { expected: Some(Expected::Absent), ..keyed("a", "x") });
        let at = Position { epoch: Epoch(1), offset: 1 };
        let inside = Since::StateAfter { epoch: Epoch(1), offset: 1, began: 1 };
        for since in [Since::State, Since::StateOr(at), inside] {
            let error = wait(world.engine.page(&channel("plain"), since, Policy::Every, LIMIT)).unwrap_err();
            assert_eq!(error.code, Code::BadRequest, "{since}");
        }
    });
}

#[test]
fn state_reader_resumes_from_the_log() {
    on_every_engine(config(), |world| {
        let positions: Vec<_> = (0..5).map(|i| world.append("s/a", keyed(&i.to_string(), "x"))).collect();
        let page = |since| page(world, "s/a", since, LIMIT);
        let resumed = page(Since::StateOr(positions[2]));
        assert_eq!((resumed.gap, offsets(&resumed), resumed.part), (None, vec![4, 5], Part::Log));
        assert!(page(Since::StateOr(positions[0])).gap.is_some());
    });
}

/// The limit for all channels together: recent changes and idle channels are dropped first, states last.
#[test]
fn states_are_evicted_last() {
    let state = HistoryConfig { state: true, ..HistoryConfig::default() };
    let namespaces = [("s".to_owned(), state)].into();
    on_engines_that_bound_all(Config { history_bytes_max: 200_000, namespaces, ..Config::default() }, |world| {
        for i in 0..20 {
            world.append("s/a", keyed(&format!("k{i}"), &"x".repeat(1000)));
        }
        world.pass(Duration::from_secs(10 * 60));
        for _ in 0..400 {
            world.append("busy", text(&"x".repeat(1000)));
        }
        assert_eq!(state_of(world, "s/a").len(), 20, "the state stays, although its channel is idle");
        assert!(world.engine.size().1 <= 200_000, "{:?}", world.engine.size());
        assert!(!world.read("busy", Since::Earliest).1.is_empty());
    });
}

fn state_of(world: &World, name: &str) -> Map {
    state(world, name, LIMIT)
}

#[test]
fn full_memory_refuses_new_keys() {
    let state = HistoryConfig { state: true, ..HistoryConfig::default() };
    let config = Config { history_bytes_max: 100_000, history: state, ..Config::default() };
    on_engines_that_bound_all(config, |world| {
        // A reader protects the channel: its state cannot be evicted.
        let put = |i: usize| wait(world.engine.append(&channel("a"), keyed(&format!("k{i}"), &"x".repeat(1000))));
        let admitted = (0..1000).take_while(|i| put(*i).is_ok()).count();
        assert!((50..150).contains(&admitted), "{admitted} keys");
        let error = put(admitted).unwrap_err();
        assert!(error.code == Code::TooMany && error.detail.contains("`engine.history_bytes_max`"), "{error}");
        put(0).unwrap();
        assert_eq!(state_of(world, "a").len(), admitted);
        for i in 0..admitted / 2 {
            world.append("a", deletion(&format!("k{i}")));
        }
        // The old values leave the log and the file with the next changes.
        world.engine.sweep();
        world.pass(Duration::from_secs(2));
        assert!(until(Duration::from_secs(10), || put(admitted).is_ok()), "deletions make room");
    });
}
