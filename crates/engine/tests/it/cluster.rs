//! Several nodes on one real engine, and faults between the nodes and Redis. `nats.rs` covers the faults with NATS.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use millrace_engine::{Answer, Config, NodeAnswers};
use millrace_protocol::{Code, Pattern, Position, Since, session::Target};

use crate::{
    servers::{Server, ask, free_port, has, nats, redis, redis_cluster, redis_on, start_cluster, until},
    worlds::{World, channel, fresh_prefix, text, wait},
};

pub const SOON: Duration = Duration::from_secs(10);

pub fn config() -> Config {
    Config { prefix: fresh_prefix(), ..Config::default() }
}

pub fn nodes<const N: usize>(url: &str, config: &Config) -> [World; N] {
    [(); N].map(|()| World::open(url, config.clone(), false))
}

fn own_redis() -> Option<(Server, String)> {
    let server = has("redis-server").then(|| redis_on(free_port(), ""))?;
    let url = format!("redis://127.0.0.1:{}", server.port);
    Some((server, url))
}

impl World {
    /// Returns the delivered offsets in order of delivery.
    pub fn offsets(&self, name: &str, count: usize) -> Vec<u64> {
        self.delivered(name, count).iter().map(|(_, offset)| *offset).collect()
    }

    /// Returns whether a reader from the beginning has received the offset or can fetch it: it was delivered, or the
    /// node was notified of it.
    pub fn has_heard_of(&self, name: &str, offset: u64) -> bool {
        let moved = self.delivered.moved.lock().unwrap();
        moved.iter().any(|(channel, _, top)| channel == name && top.offset >= offset)
            || self.delivered.of(name).last().is_some_and(|(_, last)| *last >= offset)
    }

    /// Like [`Self::has_heard_of`], but in the epoch of the position: after a restart, offsets are assigned a second
    /// time.
    fn has_heard_in_epoch(&self, name: &str, at: Position) -> bool {
        let is_reached = |epoch, offset| epoch == at.epoch && offset >= at.offset;
        let moved = self.delivered.moved.lock().unwrap();
        moved.iter().any(|(channel, _, top)| channel == name && is_reached(top.epoch, top.offset))
            || self.delivered.of(name).iter().any(|(epoch, offset)| is_reached(*epoch, *offset))
    }
}

#[test]
fn publications_reach_other_nodes_in_order() {
    for url in [redis(), redis_cluster(), nats()].into_iter().flatten() {
        let nodes: [World; 3] = nodes(&url, &config());
        nodes.iter().for_each(|node| node.watch("a"));
        nodes[2].engine.watch(&Target::Pattern(Pattern::parse("+").unwrap()), true);
        thread::scope(|scope| {
            for node in &nodes {
                scope.spawn(|| (0..200).for_each(|_| node.publish("a")));
            }
        });
        for (i, node) in nodes.iter().enumerate() {
            // A publication that is late because the machine stalled may count as lost. Then its readers are notified
            // or see a gap, and it is not delivered.
            let has_heard_all =
                || node.delivered.of("a").len() == 600 || node.counted("repairs") > 0 && node.has_heard_of("a", 600);
            assert!(until(SOON, has_heard_all), "{url}: node {i} has heard {:?}", node.delivered.of("a").len());
            let offsets: Vec<_> = node.delivered.of("a").iter().map(|(_, offset)| *offset).collect();
            assert!(offsets.is_sorted_by(|one, next| one < next), "in order, each once: {offsets:?}");
            let moved = node.delivered.moved.lock().unwrap().clone();
            assert!(moved.is_empty() || node.counted("repairs") > 0, "{moved:?}");
            assert_eq!(node.counted("losses"), 0);
            assert_eq!(node.read("a", Since::Earliest).1.len(), 600);
        }
    }
}

#[test]
fn only_reading_nodes_receive_a_channel() {
    for url in [redis(), nats()].into_iter().flatten() {
        let [reads, other]: [World; 2] = nodes(&url, &config());
        reads.watch("a");
        other.watch("b");
        other.publish("a");
        other.publish("b");
        assert_eq!((reads.offsets("a", 1), other.offsets("b", 1)), (vec![1], vec![1]));
        assert_eq!((reads.delivered.of("b").len(), other.delivered.of("a").len()), (0, 0));
    }
}

#[test]
fn missed_publications_are_reported_after_reconnect() {
    let Some((server, url)) = own_redis() else { return };
    let [reads, writes]: [World; 2] = nodes(&url, &config());
    reads.watch("a");
    let pattern = Pattern::parse("p/#").unwrap();
    reads.engine.watch(&Target::Pattern(pattern.clone()), true);
    // A reader of a pattern misses nothing only from here on. A publication may arrive earlier.
    wait(reads.engine.joined(&pattern)).unwrap();
    writes.publish("p/x");
    assert!(until(SOON, || reads.has_heard_of("p/x", 1)));
    for round in 1..=5 {
        writes.publish("a");
        assert!(until(SOON, || reads.has_heard_of("a", 2 * round - 1)));
        let top = writes.append("p/x", text("x")).offset;
        assert!(until(SOON, || reads.has_heard_of("p/x", top)));
        ask(server.port, &["CLIENT", "KILL", "TYPE", "pubsub"]);
        // These may be published before or after the connection is restored. No publication may be missed in either
        // case.
        writes.publish("a");
        let top = writes.append("p/x", text("x")).offset;
        writes.publish(&format!("p/new/{round}"));
        assert!(until(SOON, || reads.has_heard_of("a", 2 * round)), "round {round}");
        assert!(until(SOON, || reads.has_heard_of("p/x", top)), "round {round}");
        assert!(until(SOON, || reads.has_heard_of(&format!("p/new/{round}"), 1)), "round {round}");
    }
    assert_eq!(reads.read("a", Since::Earliest).1, (1..=10).collect::<Vec<_>>());
}

#[test]
fn broker_pause_loses_nothing() {
    let Some((server, url)) = own_redis() else { return };
    stands_still(&server, &url, Duration::from_secs(2));
}

/// Checks the nodes while the server is stopped for `pause`.
pub fn stands_still(server: &Server, url: &str, pause: Duration) {
    let [reads, writes]: [World; 2] = nodes(url, &config());
    reads.watch("a");
    let first = writes.append("a", text("1"));
    assert_eq!(reads.offsets("a", 1), [1]);
    server.signal("STOP");
    let begin = Instant::now();
    let answers: Vec<_> = (0..50).map(|_| writes.engine.append(&channel("a"), text("x"))).collect();
    assert_eq!(reads.read("a", Since::Position(first)), (None, vec![]), "reads go on");
    thread::sleep(pause);
    server.signal("CONT");
    let positions: Vec<_> = answers.into_iter().map(|answer| wait(answer).unwrap().offset).collect();
    assert!(begin.elapsed() >= pause);
    assert_eq!(positions, (2..=51).collect::<Vec<_>>());
    assert!(until(SOON, || reads.has_heard_of("a", 51)));
    assert_eq!(writes.append("a", text("x")).offset, 52, "nothing was published twice");
}

#[test]
fn appends_time_out_and_reads_continue_without_broker() {
    let Some((server, url)) = own_redis() else { return };
    let config = Config { wait: Duration::from_millis(500), ..config() };
    let [node]: [World; 1] = nodes(&url, &config);
    node.watch("a");
    let first = node.append("a", text("1"));
    node.publish("a");
    assert_eq!(node.offsets("a", 2), [1, 2]);
    assert!(until(SOON, || node.engine.is_up()));
    let port = server.end();
    assert!(until(SOON, || !node.engine.is_up()));
    let begin = Instant::now();
    let error = wait(node.engine.append(&channel("a"), text("x"))).unwrap_err();
    assert_eq!((error.code, error.code.may_retry()), (Code::Unavailable, true));
    assert!((400..2000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    assert_eq!(node.read("a", Since::Position(first)), (None, vec![2]), "reads go on");
    // The server restarts without its data: the epoch changes, and the readers are notified.
    let _server = redis_on(port, "");
    assert!(until(SOON, || node.engine.is_up()));
    let moved = || node.delivered.moved.lock().unwrap().iter().any(|(_, _, top)| top.epoch != first.epoch);
    assert!(until(SOON, moved), "{:?}", node.delivered.moved.lock().unwrap());
    let again = node.append("a", text("new"));
    assert_eq!(again.offset, 1);
    assert_ne!(again.epoch, first.epoch);
    assert_eq!(node.read("a", Since::Position(first)).0.unwrap().0, first, "a gap, and no silence");
}

#[test]
fn emptied_broker_starts_new_epoch() {
    let Some((server, url)) = own_redis() else { return };
    let [node]: [World; 1] = nodes(&url, &config());
    node.watch("a");
    let first = node.append("a", text("1"));
    ask(server.port, &["FLUSHALL"]);
    let again = node.append("a", text("2"));
    assert_eq!(again.offset, 1);
    assert_ne!(again.epoch, first.epoch);
    assert_eq!(node.delivered("a", 2), [(first.epoch, 1), (again.epoch, 1)]);
}

/// After a restart with an older snapshot, offsets are assigned again, but never in the same epoch. A reader that has
/// read no more than the snapshot holds resumes. A reader that has read more receives a gap, and no publication twice.
#[test]
fn broker_restart_with_old_data_changes_epoch() {
    if !has("redis-server") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let more = format!("--dir {}", dir.path().display());
    let server = redis_on(free_port(), &more);
    let url = format!("redis://127.0.0.1:{}", server.port);
    let [node]: [World; 1] = nodes(&url, &config());
    node.watch("a");
    let kept = node.append("a", text("kept"));
    ask(server.port, &["SAVE"]);
    let lost = node.append("a", text("lost"));
    let port = server.end();
    let server = redis_on(port, &more);
    let again = node.append("a", text("new"));
    assert_eq!((lost.offset, again.offset), (2, 2));
    assert_ne!(lost.epoch, again.epoch);
    assert!(until(SOON, || node.has_heard_in_epoch("a", again)));
    assert_eq!(node.read("a", Since::Position(kept)), (None, vec![2]));
    let left = Position { offset: 1, ..again };
    assert_eq!(node.read("a", Since::Position(lost)), (Some((lost, left)), vec![2]));
    // After another restart, even the oldest epoch is still known.
    ask(port, &["SAVE"]);
    let port = server.end();
    let _server = redis_on(port, &more);
    let newer = node.append("a", text("newer"));
    assert_eq!(newer.offset, 3);
    assert!(until(SOON, || node.has_heard_in_epoch("a", newer)));
    assert_eq!(node.read("a", Since::Position(kept)), (None, vec![2, 3]));
    assert_eq!(node.read("a", Since::Position(lost)), (Some((lost, Position { offset: 1, ..newer })), vec![2, 3]));
}

#[test]
fn redis_out_of_memory_is_reported() {
    let Some((server, url)) = own_redis() else { return };
    let [node] = nodes(&url, &config());
    node.publish("a");
    ask(server.port, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    ask(server.port, &["CONFIG", "SET", "maxmemory", "1"]);
    let error = wait(node.engine.append(&channel("b"), text("x"))).unwrap_err();
    assert_eq!((error.code, error.retry_s), (Code::Unavailable, Some(10)), "{error}");
    assert!(error.detail.contains("maxmemory"), "{error}");
    ask(server.port, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(node.append("b", text("x")).offset, 1);
}

#[test]
fn presence_counts_live_nodes() {
    for url in [redis(), redis_cluster(), nats()].into_iter().flatten() {
        let [one, two, three]: [World; 3] = nodes(&url, &config());
        let count = |node: &World| wait(node.engine.presence(&channel("seven/7"))).unwrap();
        assert!(until(SOON, || count(&one) == 21), "{}", count(&one));
        three.engine.close();
        assert_eq!(count(&two), 14);
        // The node disappears without notice. It does not answer, and others wait for it only until its lease expires.
        drop(one);
        let begin = Instant::now();
        assert_eq!(count(&two), 7);
        assert!(begin.elapsed() < Duration::from_secs(2));
        let is_quick = || {
            let begin = Instant::now();
            count(&two) == 7 && begin.elapsed() < Duration::from_millis(200)
        };
        assert!(until(SOON, is_quick));
    }
}

/// Sets an answerer that repeats the question, unless the question is `unknown`.
fn answers(node: &World, name: &'static str) {
    node.engine.set_answerer(Arc::new(move |question| {
        Answer::Later(Box::pin(async move {
            match question.as_str() {
                "{unknown}" => None,
                "{long}" => Some("x".repeat(1 << 20)),
                _ => Some(format!("{name} {question}")),
            }
        }))
    }));
}

#[test]
fn questions_reach_every_live_node_and_name_the_missing() {
    for url in [redis(), redis_cluster(), nats()].into_iter().flatten() {
        let [one, two, three]: [World; 3] = nodes(&url, &config());
        let names = [&one, &two, &three].map(|node| node.engine.node().expect("a name").to_owned());
        answers(&two, "two");
        answers(&three, "three");
        let ask =
            |question: &str, wait_ms| wait(one.engine.ask_nodes(question, Duration::from_millis(wait_ms))).unwrap();
        let question = format!("{{\"a\": \"{}\"}}", "x y".repeat(100_000));
        assert!(until(SOON, || ask("{x}", 1000).answers.len() == 2));
        let NodeAnswers { answers, missing } = ask(&question, 5000);
        let answers: Vec<(String, String)> = answers.into_iter().map(|answer| (answer.node, answer.text)).collect();
        let mut expected =
            [(names[1].clone(), format!("two {question}")), (names[2].clone(), format!("three {question}"))];
        expected.sort();
        assert!(answers == expected && missing.is_empty(), "{url}: {} answers, {missing:?}", answers.len());
        let begin = Instant::now();
        let mut both = names[1..].to_vec();
        both.sort();
        for unanswered in ["{unknown}", "{long}"] {
            assert_eq!(ask(unanswered, 200), NodeAnswers { answers: Vec::new(), missing: both.clone() });
        }
        assert!(begin.elapsed() < Duration::from_secs(3));
        let long = wait(one.engine.ask_nodes(&"x".repeat(1 << 20), Duration::from_secs(1)));
        assert_eq!(long.unwrap_err().code, Code::TooLarge);
        let ask_one = |node: &str, question: &str, wait_ms| {
            wait(one.engine.ask_node(node, question, Duration::from_millis(wait_ms))).unwrap()
        };
        assert_eq!(ask_one(&names[1], "{x}", 5000), Some("two {x}".into()));
        assert_eq!(ask_one(&names[2], &question, 5000), Some(format!("three {question}")));
        assert_eq!(ask_one(&names[2], "{unknown}", 200), None);
        assert_eq!(ask_one("ab", "{x}", 200), None, "there is no such node");
        three.engine.close();
        let NodeAnswers { answers, missing } = ask("{x}", 5000);
        assert_eq!((answers.len(), missing.len()), (1, 0), "a node that has ended is not asked");
    }
}

/// A proxy to a server. It cuts connections after a request has passed and before its answer passes, or delays
/// requests.
pub struct Cutter {
    pub port: u16,
    /// Number of coming answers to cut.
    pub cuts: Arc<AtomicUsize>,
    end: Arc<AtomicBool>,
}

impl Cutter {
    pub fn start(to: u16, word: &'static str) -> Self {
        Self::start_slow(to, word, Duration::ZERO)
    }

    /// Delays everything that is sent together with a request that contains `word`.
    pub fn start_slow(to: u16, word: &'static str, delay: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cuts, end) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let cutter = Self { port, cuts: cuts.clone(), end: end.clone() };
        thread::spawn(move || {
            for client in listener.incoming() {
                if end.load(SeqCst) {
                    return;
                }
                let (client, server) = (client.unwrap(), TcpStream::connect((Ipv4Addr::LOCALHOST, to)).unwrap());
                let is_cut = Arc::new(AtomicBool::new(false));
                let (from, into, cuts, cut) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap(), cuts.clone(), is_cut.clone());
                thread::spawn(move || {
                    copy(from, into, |bytes| {
                        let has_word = bytes.windows(word.len()).any(|part| part == word.as_bytes());
                        if has_word {
                            thread::sleep(delay);
                        }
                        if has_word && cuts.fetch_update(SeqCst, SeqCst, |cuts| cuts.checked_sub(1)).is_ok() {
                            cut.store(true, SeqCst);
                        }
                        true
                    });
                });
                thread::spawn(move || copy(server, client, |_| !is_cut.load(SeqCst)));
            }
        });
        cutter
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.end.store(true, SeqCst);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

fn copy(mut from: TcpStream, mut into: TcpStream, may_pass: impl Fn(&[u8]) -> bool) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !may_pass(&buffer[..count]) || into.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), into.shutdown(Shutdown::Both));
}

#[test]
fn lost_answer_causes_no_duplicate() {
    let Some((server, _)) = own_redis() else { return };
    let cutter = Cutter::start(server.port, "_append");
    let config = config();
    let [cut]: [World; 1] = nodes(&format!("redis://127.0.0.1:{}", cutter.port), &config);
    let [straight]: [World; 1] = nodes(&format!("redis://127.0.0.1:{}", server.port), &config);
    straight.watch("a");
    for round in 0..10 {
        cutter.cuts.store(round % 3, SeqCst);
        let answers: Vec<_> = (0..5).map(|_| cut.engine.append(&channel("a"), text("x"))).collect();
        let offsets: Vec<_> = answers.into_iter().map(|answer| wait(answer).unwrap().offset).collect();
        assert_eq!(offsets, (round as u64 * 5 + 1..=round as u64 * 5 + 5).collect::<Vec<_>>());
    }
    assert_eq!(straight.offsets("a", 50), (1..=50).collect::<Vec<_>>());
}

/// Redis closes connections that do not read the published messages.
#[test]
fn slow_node_is_disconnected_and_catches_up() {
    let Some((server, url)) = own_redis() else { return };
    ask(server.port, &["CONFIG", "SET", "client-output-buffer-limit", "pubsub 200kb 200kb 0"]);
    let [slow, quick]: [World; 2] = nodes(&url, &config());
    slow.watch("a");
    quick.watch("a");
    let ids = || -> Vec<String> {
        let list = ask(server.port, &["CLIENT", "LIST", "TYPE", "pubsub"]);
        list.split_whitespace().filter(|word| word.starts_with("id=")).map(str::to_owned).collect()
    };
    let before = ids();
    assert_eq!(before.len(), 2);
    slow.delivered.delay_ms.store(20, SeqCst);
    for _ in 0..3 {
        let large = || text(&"x".repeat(100_000));
        let answers: Vec<_> = (0..200).map(|_| quick.engine.append(&channel("a"), large())).collect();
        answers.into_iter().for_each(|answer| _ = wait(answer).unwrap());
    }
    let is_cut = || before.iter().any(|id| !ids().contains(id));
    assert!(until(SOON, is_cut), "it was not too slow");
    slow.delivered.delay_ms.store(0, SeqCst);
    assert!(until(SOON, || slow.has_heard_of("a", 600)));
    assert!(until(SOON, || quick.has_heard_of("a", 600)));
    quick.publish("a");
    assert!(until(SOON, || slow.has_heard_of("a", 601)));
}

#[test]
fn cluster_slot_migrates_under_load() {
    if !has("redis-server") {
        return;
    }
    let servers = start_cluster();
    let hosts: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    let [reads, writes]: [World; 2] = nodes(&format!("redis+cluster://{}", hosts.join(",")), &config());
    reads.watch("a");
    writes.publish("a");
    let meta = |server: &&Server| ask(server.port, &["KEYS", "*:m:a"]).contains(":m:a");
    let from = servers.iter().find(meta).unwrap();
    let to = servers.iter().find(|server| server.port != from.port).unwrap();
    let words = |answer: String| -> Vec<String> {
        answer.split("\r\n").filter(|line| !line.starts_with(['*', '$', '+'])).map(str::to_owned).collect()
    };
    let key = words(ask(from.port, &["KEYS", "*:m:a"])).remove(0);
    let slot = ask(from.port, &["CLUSTER", "KEYSLOT", &key]);
    let slot = slot.lines().next().unwrap().trim_start_matches(':').to_owned();
    let id = |server: &Server| words(ask(server.port, &["CLUSTER", "MYID"])).remove(0);
    let (from_id, to_id) = (id(from), id(to));
    let moved = AtomicBool::new(false);
    let written = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut count = 1;
            while !moved.load(SeqCst) {
                count += 1;
                assert_eq!(writes.append("a", text("x")).offset, count);
            }
            for _ in 0..20 {
                count += 1;
                assert_eq!(writes.append("a", text("x")).offset, count);
            }
            count
        });
        ask(to.port, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        ask(from.port, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
        let keys = words(ask(from.port, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]));
        let port = to.port.to_string();
        let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        migrate.extend(keys.iter().filter(|key| !key.is_empty()).map(String::as_str));
        ask(from.port, &migrate);
        for server in [to, from] {
            ask(server.port, &["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
        }
        moved.store(true, SeqCst);
        writer.join().unwrap()
    });
    assert!(until(SOON, || reads.has_heard_of("a", written)));
    let before = reads.delivered.of("a").len();
    writes.publish("a");
    assert!(until(SOON, || reads.has_heard_of("a", written + 1)), "{before} of {written}");
    assert_eq!(reads.read("a", Since::Earliest).1.len() as u64, (written + 1).min(1000));
}

#[test]
fn refusing_server_fails_at_once_without_password() {
    if !has("redis-server") {
        return;
    }
    let server = redis_on(free_port(), "--requirepass right");
    let open = |login: &str| {
        let url = format!("redis://{login}127.0.0.1:{}", server.port);
        millrace_engine::open(&url, config(), Arc::new(crate::worlds::Delivered::default()), || 0).map(drop)
    };
    for login in ["", ":wrong@"] {
        let error = open(login).unwrap_err().to_string();
        assert!(error.contains("password") && !error.contains("wrong"), "{error}");
    }
    open(":right@").unwrap();
    let Some(cluster) = redis_cluster() else { return };
    let (first, _) = cluster.split_once(',').unwrap();
    let url = first.replace("redis+cluster", "redis");
    let error = millrace_engine::open(&url, config(), Arc::new(crate::worlds::Delivered::default()), || 0);
    assert!(error.map(drop).unwrap_err().to_string().contains("redis+cluster://"));
}
