//! Keyed states on several nodes, and after a restart of the server.

use std::time::Duration;

use millrace_delivery::{PageLimit, Part};
use millrace_engine::{Config, HistoryConfig};
use millrace_protocol::{Code, Expected, NewPublication, Pattern, Position, Since};

use crate::{
    cluster::{SOON, nodes},
    servers::{ask, free_port, has, nats, nats_on, redis, redis_cluster, redis_on, until},
    state::{Map, deletion, keyed, offsets, page, refused, state},
    worlds::{LIMIT, World, channel, fresh_prefix, wait},
};

/// Every channel is a state; its log holds three publications.
fn config() -> Config {
    let history = HistoryConfig { state: true, count_max: 3, ..HistoryConfig::default() };
    Config { prefix: fresh_prefix(), history, ..Config::default() }
}

fn urls() -> impl Iterator<Item = String> {
    [redis(), redis_cluster(), nats()].into_iter().flatten()
}

#[test]
fn two_nodes_writing_one_key_admit_one() {
    for url in urls() {
        let nodes: [World; 2] = nodes(&url, &config());
        for round in 0..20 {
            let new =
                |data: &str| NewPublication { expected: Some(Expected::Absent), ..keyed(&format!("k{round}"), data) };
            let answers = [0, 1].map(|i: usize| nodes[i].engine.append(&channel("a"), new(&i.to_string())));
            let outcomes = answers.map(wait);
            let winner = outcomes.iter().position(Result::is_ok).expect("one node wins");
            let loser = outcomes[1 - winner].as_ref().expect_err("only one node wins");
            assert_eq!(loser.code, Code::PreconditionFailed, "{loser}");
            let won = outcomes[winner].as_ref().unwrap();
            assert!(loser.detail.ends_with(&format!("current position is {won}")), "{loser}");
            for node in &nodes {
                assert_eq!(state(node, "a", LIMIT)[&format!("k{round}")], winner.to_string());
            }
        }
    }
}

#[test]
fn two_nodes_delete_an_expired_key_once() {
    const KEYS: usize = 150;
    for url in urls() {
        let nodes: [World; 2] = nodes(&url, &config());
        nodes.iter().for_each(|node| node.watch("a"));
        let new = |i| NewPublication { ttl_ms: Some(200), ..keyed(&format!("k{i}"), "x") };
        let answers: Vec<_> = (0..KEYS).map(|i| nodes[0].engine.append(&channel("a"), new(i))).collect();
        answers.into_iter().for_each(|answer| _ = wait(answer).unwrap());
        let are_deleted = || {
            nodes.iter().for_each(|node| node.engine.sweep());
            nodes.iter().all(|node| node.has_heard_of("a", 2 * KEYS as u64))
        };
        assert!(until(SOON, are_deleted));
        // Another sweep deletes nothing again, and the writers find an empty state.
        let end = std::time::Instant::now() + Duration::from_millis(1500);
        until(SOON, || {
            nodes.iter().for_each(|node| node.engine.sweep());
            std::time::Instant::now() > end
        });
        assert_eq!(nodes[1].append("a", keyed("end", "x")).offset, 2 * KEYS as u64 + 1);
        assert_eq!(state(&nodes[0], "a", LIMIT).len(), 1);
    }
}

#[test]
fn state_written_by_one_node_is_read_by_another() {
    for url in urls() {
        let config = config();
        let [writes, reads]: [World; 2] = nodes(&url, &config);
        reads.watch("a");
        let mut truth = Map::new();
        for i in 0..40 {
            let key = format!("k{}", i % 15);
            if i % 7 == 6 {
                writes.append("a", deletion(&key));
                truth.remove(&key);
            } else {
                writes.append("a", keyed(&key, &i.to_string()));
                truth.insert(key, i.to_string());
            }
            assert_eq!(state(&reads, "a", PageLimit { count: 4, ..LIMIT }), truth, "after {i}");
        }
        let [late]: [World; 1] = nodes(&url, &config);
        assert_eq!(state(&late, "a", LIMIT), truth);
    }
}

#[test]
fn redis_restart_keeps_the_state() {
    if !has("redis-server") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let more = format!("--dir {}", dir.path().display());
    let server = redis_on(free_port(), &more);
    let config = Config { prefix: "p".into(), ..config() };
    let [node]: [World; 1] = nodes(&format!("redis://127.0.0.1:{}", server.port), &config);
    let kept: Vec<_> = (0..10).map(|i| node.append("a", keyed(&format!("k{i}"), "kept"))).collect();
    node.append("a", deletion("k9"));
    let truth = state(&node, "a", LIMIT);
    let begun = page(&node, "a", Since::State, PageLimit { count: 2, ..LIMIT });
    ask(server.port, &["SAVE"]);
    let lost = node.append("a", keyed("k1", "lost"));
    let port = server.end();
    let _server = redis_on(port, &more);
    let at = |at, new| NewPublication { expected: Some(Expected::At(at)), ..new };
    assert_eq!(refused(&node, "a", at(lost, keyed("k1", "y"))).code, Code::PreconditionFailed);
    assert_eq!(state(&node, "a", LIMIT), truth, "the lost change is undone");
    let whole = page(&node, "a", Since::State, LIMIT);
    assert!(whole.top.epoch != lost.epoch && whole.top.offset == 11, "{:?}", whole.top);
    let again = page(&node, "a", begun.next(), LIMIT);
    let gap = again.gap.map(|gap| (gap.from, gap.to));
    assert_eq!(gap, Some((kept[1], Position { offset: 0, ..again.top })), "the reader begins anew");
    assert_eq!((offsets(&again), again.part), (offsets(&whole), Part::StateEnd { began: 11 }));
    // The position of a publication that survived still names it.
    assert_eq!(node.append("a", at(kept[1], keyed("k1", "new"))).offset, 12);
}

#[test]
fn state_in_redis_outlives_its_log() {
    if !has("redis-server") {
        return;
    }
    let server = redis_on(free_port(), "");
    let mut config = Config { prefix: "p".into(), ..config() };
    config.history.age_max = Duration::from_millis(100);
    let [node]: [World; 1] = nodes(&format!("redis://127.0.0.1:{}", server.port), &config);
    let first = node.append("a", keyed("a", "1"));
    node.append("a", keyed("b", "1"));
    let keys = |pattern: &str| ask(server.port, &["KEYS", pattern]);
    assert!(until(SOON, || !keys("p:*:s:a").contains(":s:a")), "the log expires");
    let name = |what: &str| keys(&format!("p:*:{what}:a")).split("\r\n").nth(2).unwrap().to_owned();
    let ttl = |what: &str| ask(server.port, &["PTTL", &name(what)]).lines().next().unwrap().to_owned();
    assert_eq!(["m", "k", "o"].map(ttl), [":-1", ":-1", ":-1"], "nothing else does");
    assert_eq!(state(&node, "a", LIMIT).len(), 2);
    let all = Pattern::parse("#").unwrap();
    assert_eq!(wait(node.engine.channels(&all, None, 10)).unwrap(), [channel("a")]);
    let gone = node.append("a", deletion("a"));
    assert_eq!(gone, Position { offset: 3, ..first }, "the epoch and the offsets continue");
    assert_eq!(ttl("m"), ":-1");
    node.append("a", deletion("b"));
    assert_ne!(ttl("m"), ":-1", "an empty state expires like any channel");
    assert_ne!(ttl("d"), ":-1");
    assert!(!keys("p:*:k:a").contains(":k:a"));
    node.append("a", keyed("a", "2"));
    assert_eq!(["m", "k", "o", "d"].map(ttl), [":-1"; 4]);
}

/// The stream keeps 256 messages per state here: everything that changes rarely has to be carried.
#[test]
fn state_in_nats_outlives_its_messages_and_a_crash() {
    if !has("nats-server") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let start = |port| nats_on(port, &dir.path().display().to_string());
    let server = start(free_port());
    let mut config = config();
    config.history.keys_max = 100;
    let url = format!("nats://127.0.0.1:{}", server.port);
    let [one, two]: [World; 2] = nodes(&url, &config);
    let first: Vec<_> = (0..50).map(|i| one.append("a", keyed(&format!("rare{i}"), "x"))).collect();
    one.append("a", deletion("rare7"));
    for i in 0..700 {
        [&one, &two][i % 2].append("a", keyed(&format!("often{}", i % 3), &i.to_string()));
    }
    let truth = state(&one, "a", LIMIT);
    assert_eq!((truth.len(), truth["often1"].as_str()), (52, "697"));
    assert_eq!(state(&two, "a", PageLimit { count: 7, ..LIMIT }), truth);
    let [late]: [World; 1] = nodes(&url, &config);
    assert_eq!(state(&late, "a", LIMIT), truth);
    server.signal("KILL");
    assert!(until(SOON, || !late.engine.is_up()));
    let _server = start(server.end());
    assert!(until(SOON, || late.engine.is_up()));
    assert_eq!(state(&late, "a", LIMIT), truth);
    let at = NewPublication { expected: Some(Expected::At(first[3])), ..keyed("rare3", "y") };
    assert_eq!(late.append("a", at).offset, 752);
    assert_eq!(state(&one, "a", LIMIT)["rare3"], "y");
}
