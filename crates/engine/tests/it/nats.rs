//! Several nodes on one real NATS server, and faults between them.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use millrace_engine::{Config, HistoryConfig};
use millrace_protocol::{Code, Epoch, NewPublication, Position, Since};

use crate::{
    cluster::{Cutter, SOON, config, nodes, stands_still},
    servers::{Server, free_port, has, nats_on, until},
    worlds::{Delivered, World, channel, text, wait},
};

/// Starts NATS with a folder that outlives the server.
fn own_nats() -> Option<(Server, String, tempfile::TempDir)> {
    let dir = has("nats-server").then(|| tempfile::tempdir().unwrap())?;
    let server = nats_on(free_port(), &dir.path().display().to_string());
    let url = format!("nats://127.0.0.1:{}", server.port);
    Some((server, url, dir))
}

/// Sends a request to NATS and waits for its answer.
fn publish_raw(port: u16, subject: &str, body: &str) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let length = body.len();
    let request =
        format!("CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB {subject} answer {length}\r\n{body}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains("MSG answer") {
        let mut more = [0; 4096];
        let count = stream.read(&mut more).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&more[..count]);
    }
}

#[test]
fn broker_pause_loses_nothing() {
    let Some((server, url, _dir)) = own_nats() else { return };
    stands_still(&server, &url, Duration::from_secs(3));
}

#[test]
fn killed_server_keeps_positions_unless_data_is_lost() {
    let Some((server, url, dir)) = own_nats() else { return };
    let config = Config { wait: Duration::from_millis(500), ..config() };
    let [node]: [World; 1] = nodes(&url, &config);
    node.watch("a");
    let first = node.append("a", text("1"));
    node.publish("a");
    assert_eq!(node.offsets("a", 2), [1, 2]);
    server.signal("KILL");
    assert!(until(SOON, || !node.engine.is_up()));
    let begin = Instant::now();
    let error = wait(node.engine.append(&channel("a"), text("x"))).unwrap_err();
    assert_eq!((error.code, error.code.may_retry()), (Code::Unavailable, true));
    assert!((400..2000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    assert_eq!(node.read("a", Since::Position(first)), (None, vec![2]), "reads go on");
    let path = dir.path().display().to_string();
    let server = nats_on(server.end(), &path);
    assert!(until(SOON, || node.engine.is_up()));
    assert_eq!(node.append("a", text("3")), Position { offset: 3, ..first });
    assert!(until(SOON, || node.has_heard_of("a", 3)));
    assert_eq!(node.read("a", Since::Earliest), (None, vec![1, 2, 3]));

    let port = server.end();
    assert!(until(SOON, || !node.engine.is_up()));
    std::fs::remove_dir_all(dir.path()).unwrap();
    let _server = nats_on(port, &path);
    assert!(until(SOON, || node.engine.is_up()));
    let moved = || node.delivered.moved.lock().unwrap().iter().any(|(_, _, top)| top.epoch != first.epoch);
    assert!(until(SOON, moved), "{:?}", node.delivered.moved.lock().unwrap());
    let again = node.append("a", text("new"));
    assert_eq!(again.offset, 1);
    assert_ne!(again.epoch, first.epoch);
    assert_eq!(node.read("a", Since::Position(first)).0.unwrap().0, first, "a gap, and no silence");
}

#[test]
fn deleted_stream_starts_new_epoch() {
    let Some((server, url, _dir)) = own_nats() else { return };
    let config = config();
    let [node]: [World; 1] = nodes(&url, &config);
    node.watch("a");
    let first = node.append("a", text("1"));
    publish_raw(server.port, &format!("$JS.API.STREAM.DELETE.{}", config.prefix), "");
    let again = node.append("a", text("2"));
    assert_eq!(again.offset, 1);
    assert_ne!(again.epoch, first.epoch);
    assert_eq!(node.delivered("a", 2), [(first.epoch, 1), (again.epoch, 1)]);
}

#[test]
fn lost_answer_causes_no_duplicate() {
    let Some((server, url, _dir)) = own_nats() else { return };
    let cutter = Cutter::start(server.port, "Nats-Expected-Last-Subject");
    let config = config();
    let [cut]: [World; 1] = nodes(&format!("nats://127.0.0.1:{}", cutter.port), &config);
    let [straight]: [World; 1] = nodes(&url, &config);
    straight.watch("a");
    let keyed = |round: usize, i: usize| {
        let key = (i == 2).then(|| format!("{round} \r\n").into());
        NewPublication { idempotency_key: key, ..text("x") }
    };
    for round in 0..10 {
        cutter.cuts.store(round % 3, SeqCst);
        let answers: Vec<_> = (0..5).map(|i| cut.engine.append(&channel("a"), keyed(round, i))).collect();
        let offsets: Vec<_> = answers.into_iter().map(|answer| wait(answer).unwrap().offset).collect();
        let expected = round as u64 * 5 + 1..=round as u64 * 5 + 5;
        assert_eq!(offsets, expected.collect::<Vec<_>>(), "round {round}");
        assert_eq!(straight.append("a", keyed(round, 2)).offset, round as u64 * 5 + 3, "known on any node");
    }
    assert_eq!(straight.offsets("a", 50), (1..=50).collect::<Vec<_>>());
}

/// A server so slow that the whole history cannot be read within the time of one request.
#[test]
fn slow_server_answers_a_part_of_the_history() {
    let Some((server, url, _dir)) = own_nats() else { return };
    let config = Config { wait: Duration::from_secs(3), ..config() };
    let [quick]: [World; 1] = nodes(&url, &config);
    let first = quick.append("a", text("1"));
    (1..200).for_each(|_| quick.publish("a"));
    let slow = Cutter::start_slow(server.port, "DIRECT.GET", Duration::from_millis(25));
    let [node]: [World; 1] = nodes(&format!("nats://127.0.0.1:{}", slow.port), &config);
    let (mut at, mut pages) = (first.offset, 0);
    while at < 200 {
        let (gap, offsets) = node.read("a", Since::Position(Position { offset: at, ..first }));
        assert_eq!((gap, offsets.first()), (None, Some(&(at + 1))));
        (at, pages) = (*offsets.last().unwrap(), pages + 1);
    }
    assert!(pages > 1, "the server was quick");
}

/// The history is longer than the nodes' memory, and publications of other channels lie in between.
#[test]
fn positions_and_times_are_found_among_other_channels() {
    let Some((_server, url, _dir)) = own_nats() else { return };
    let small = HistoryConfig { count_max: 30, ..HistoryConfig::default() };
    let config = Config { namespaces: [("small".to_owned(), small)].into(), ..config() };
    let [writes, reads]: [World; 2] = nodes(&url, &config);
    let first = writes.append("a", text("0"));
    for i in 1..60 {
        (0..i % 4).for_each(|_| writes.publish("b"));
        // Also in batches of several.
        let answers: Vec<_> = (0..i % 3).map(|_| writes.engine.append(&channel("a"), text("x"))).collect();
        answers.into_iter().for_each(|answer| _ = wait(answer).unwrap());
        writes.publish("small/x");
    }
    let (gap, all) = reads.read("a", Since::Earliest);
    assert_eq!((gap, all.clone()), (None, (1..=all.len() as u64).collect()));
    for offset in 0..=all.len() as u64 {
        let at = Position { offset, ..first };
        assert_eq!(reads.read("a", Since::Position(at)), (None, all[offset as usize..].to_vec()));
    }
    let page = wait(reads.engine.page(
        &channel("a"),
        Since::Earliest,
        millrace_protocol::session::Policy::Every,
        crate::worlds::LIMIT,
    ));
    for publication in page.unwrap().publications {
        let (gap, later) = reads.read("a", Since::Time(publication.time_ms));
        assert!(gap.is_none() && later.contains(&publication.offset), "{later:?}");
    }
    let (_, kept) = reads.read("small/x", Since::Earliest);
    assert_eq!(kept, (30..=59).collect::<Vec<_>>());
    let old = Position { offset: 3, ..writes.append("small/x", text("60")) };
    let edge = Position { offset: 30, ..old };
    assert_eq!(reads.read("small/x", Since::Position(old)), (Some((old, edge)), (31..=60).collect()));
    let other = Position { epoch: Epoch(old.epoch.0 ^ 1), ..old };
    assert_eq!(reads.read("small/x", Since::Position(other)), (Some((other, edge)), (31..=60).collect()));
}

#[test]
fn missing_jetstream_error_names_remedy() {
    if !has("nats-server") {
        return;
    }
    let port = free_port();
    let _server = Server::start(port, &format!("nats-server -a 127.0.0.1 -p {port}"));
    let open = |config: Config| {
        let url = format!("nats://secret@127.0.0.1:{port}");
        millrace_engine::open(&url, config, Arc::new(Delivered::default()), || 0).map(drop).unwrap_err().to_string()
    };
    let error = open(config());
    assert!(error.contains("-js") && !error.contains("secret"), "{error}");
    assert!(open(Config { prefix: "a.b".into(), ..config() }).contains("engine.prefix"));
    let history = HistoryConfig { durable: true, ..HistoryConfig::default() };
    let error = open(Config { history, ..config() });
    assert!(error.contains("sync_interval") || error.contains("-js"), "{error}");
}
