//! The lists on every engine, with real threads and, where an engine is shared, two nodes.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU32},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use millrace_delivery::PageLimit;
use millrace_engine::{Answer, Config, ENGINES, Engine, HistoryConfig};
use millrace_node::{Member, Observer};
use millrace_presence::{Consumer, Entry, Presence, Wanted, lists};
use millrace_protocol::{ChannelName, Error, Kind, NewPublication, Since, Transport, session::Policy};

use crate::{servers, world::Nowhere};

const SOON: Duration = Duration::from_secs(20);

/// Returns the URL of an engine and whether nodes can share it. `None`: the engine cannot run here, which has been
/// reported.
fn start(engine: &str, folder: &std::path::Path) -> Option<(String, bool)> {
    match engine {
        "memory" => Some(("memory".into(), false)),
        "sqlite" => Some((format!("sqlite:{}/data.db", folder.display()), false)),
        "redis" => Some((servers::redis()?, true)),
        "nats" => Some((servers::nats()?, true)),
        other => panic!("this test does not know how to start {other}"),
    }
}

fn config(keys_max: usize) -> Config {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let history = HistoryConfig { roster: true, keys_max, ..HistoryConfig::default() };
    let internal_states = Some(HistoryConfig { state: true, ..HistoryConfig::default() });
    let prefix = format!("presence-{}-{number}", std::process::id());
    Config { namespaces: [("chat".into(), history)].into(), internal_states, prefix, ..Config::default() }
}

fn name(text: &str) -> ChannelName {
    ChannelName::parse(text).expect("a channel name")
}

fn member(id: &str) -> Member {
    Member { id: id.into(), info: Some(r#"{"of":"tests"}"#.into()) }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

struct Node {
    engine: Arc<dyn Engine>,
    presence: Presence,
}

impl Node {
    fn open(url: &str, config: &Config, number: u64, consumer: Option<Arc<dyn Consumer>>) -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
        let engine = millrace_engine::open(url, config.clone(), Arc::new(Nowhere), now).expect("an engine");
        let node = engine.node().map_or_else(|| format!("{number:016x}"), str::to_owned);
        let wanted = Wanted {
            roster_grace_ms: Box::new(|channel| (channel.namespace() == "chat").then_some(100)),
            is_channel_listed: Box::new(|channel| channel.namespace() == "chat"),
            connections: true,
            channels_grace_ms: 100,
        };
        let presence = Presence::start(&node, engine.clone(), wanted, consumer).expect("a thread");
        Self { engine, presence }
    }

    fn observer(&self) -> Arc<dyn Observer> {
        self.presence.observer()
    }

    /// Returns the entries of a list with the numbers of their connections.
    fn entries(&self, list: &ChannelName) -> BTreeMap<String, u64> {
        let (mut entries, mut since) = (BTreeMap::new(), Since::State);
        while since.is_state() {
            let limit = PageLimit { count: 2, bytes: 1 << 20 };
            let page = block_on(self.engine.page(list, since, Policy::Every, limit)).expect("a page");
            for publication in &page.publications {
                let key = publication.key.as_deref().expect("a key").to_owned();
                match publication.is_deletion {
                    true => drop(entries.remove(&key)),
                    false => {
                        let entry = Entry::decode(publication.data()).expect("an entry");
                        entries.insert(key, entry.connections());
                    }
                }
            }
            since = page.next();
        }
        entries
    }

    #[track_caller]
    fn expect(&self, list: &ChannelName, expected: &[(&str, u64)]) {
        let expected: BTreeMap<String, u64> = expected.iter().map(|(id, count)| ((*id).to_owned(), *count)).collect();
        let is_so = || self.entries(list) == expected;
        assert!(servers::until(SOON, is_so), "{list}: {:?}, expected {expected:?}", self.entries(list));
    }

    fn put(&self, channel: &ChannelName, key: &str, data: &[u8]) {
        let publication = NewPublication { key: Some(key.into()), ..NewPublication::new(Kind::Json, data) };
        block_on(self.engine.append(channel, publication)).expect("a position");
    }
}

/// Runs a case with one or two nodes on every engine.
fn on_every_engine(keys_max: usize, case: impl Fn(&[Node])) {
    for engine in ENGINES {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let Some((url, is_shared)) = start(engine, folder.path()) else { continue };
        eprintln!("engine {url}");
        let config = config(keys_max);
        let count = if is_shared { 2 } else { 1 };
        let nodes: Vec<Node> = (0..count).map(|number| Node::open(&url, &config, number, None)).collect();
        case(&nodes);
        for node in nodes {
            node.presence.stop();
            node.engine.close();
        }
    }
}

#[test]
fn lists_are_right_on_every_engine() {
    on_every_engine(100, |nodes| {
        let (first, last) = (&nodes[0], &nodes[nodes.len() - 1]);
        let (chat, roster) = (name("chat/1"), name("chat/1/:members"));
        first.observer().joined(&chat, &member("ann"));
        last.observer().joined(&chat, &member("ann"));
        last.observer().joined(&chat, &member("bob"));
        first.expect(&roster, &[("ann", 2), ("bob", 1)]);
        first.observer().left(&chat, &member("ann"));
        last.expect(&roster, &[("ann", 1), ("bob", 1)]);
        last.observer().left(&chat, &member("bob"));
        last.observer().left(&chat, &member("ann"));
        first.observer().joined(&chat, &member("cid"));
        last.expect(&roster, &[("cid", 1)]);
        // Channels and connections.
        first.observer().readers_changed(&chat, 2);
        last.observer().readers_changed(&chat, 1);
        first.observer().readers_changed(&roster, 1);
        first.observer().readers_changed(&name("news"), 1);
        last.observer().opened("n-0-1-1", Some(&"ann".into()), Transport::Session);
        first.expect(&lists::channels(), &[("chat/1", 3)]);
        first.expect(&lists::connections(), &[("n-0-1-1", 1)]);
        last.observer().closed("n-0-1-1");
        first.observer().readers_changed(&chat, -2);
        last.observer().readers_changed(&chat, -1);
        first.expect(&lists::connections(), &[]);
        first.expect(&lists::channels(), &[]);
        // A node that stops leaves all lists.
        first.presence.stop();
        last.expect(&roster, &[]);
    });
}

#[test]
fn dead_node_is_removed_on_every_engine() {
    on_every_engine(100, |nodes| {
        let (first, roster) = (&nodes[0], name("chat/1/:members"));
        first.observer().joined(&name("chat/1"), &member("ann"));
        first.expect(&roster, &[("ann", 1)]);
        // These are the keys and entries of a node that was killed. Its name is lower than any other.
        first.put(&name(":millrace/nodes"), "0", b"{}");
        first.put(&name(":millrace/nodes/0"), roster.as_str(), b"{}");
        let entry = |own: &str| format!(r#"{{"connections":2,"since_ms":7,"nodes":{{"0":2{own}}}}}"#);
        first.put(&roster, "dead", entry("").as_bytes());
        first.put(&roster, "both", entry(r#","1.5":1"#).as_bytes());
        first.expect(&roster, &[("ann", 1), ("both", 1)]);
        // The node with the entry `both` never had a key, so its entry stays.
        let nodes_left = || nodes.iter().map(|node| node.presence.stats().nodes_removed).sum::<u64>() == 1;
        assert!(servers::until(SOON, nodes_left), "the second pass removes the key of the node");
    });
}

#[test]
fn full_roster_lists_others_when_members_leave() {
    on_every_engine(2, |nodes| {
        let (first, chat, roster) = (&nodes[0], name("chat/1"), name("chat/1/:members"));
        for id in ["ann", "bob"] {
            first.observer().joined(&chat, &member(id));
        }
        first.expect(&roster, &[("ann", 1), ("bob", 1)]);
        first.observer().joined(&chat, &member("cid"));
        let is_refused = || first.presence.stats().refused == 1;
        assert!(servers::until(SOON, is_refused), "{:?}", first.presence.stats());
        first.observer().left(&chat, &member("ann"));
        first.expect(&roster, &[("bob", 1), ("cid", 1)]);
        assert_eq!(first.presence.stats().refused, 0);
    });
}

#[test]
fn consumer_is_asked_before_the_first_entry() {
    struct Recorder(std::sync::Mutex<Vec<String>>);
    impl Consumer for Recorder {
        fn prepare(&self, list: &ChannelName) -> Answer<Result<(), Error>> {
            self.0.lock().expect("no panic").push(format!("prepare {list}"));
            Answer::now(Ok(()))
        }
        fn written(&self, list: &ChannelName) {
            self.0.lock().expect("no panic").push(format!("written {list}"));
        }
    }
    let recorder = Arc::new(Recorder(std::sync::Mutex::default()));
    let node = Node::open("memory", &config(100), 1, Some(recorder.clone()));
    node.observer().joined(&name("chat/1"), &member("ann"));
    node.expect(&name("chat/1/:members"), &[("ann", 1)]);
    let is_written = || recorder.0.lock().expect("no panic").len() == 2;
    assert!(servers::until(SOON, is_written));
    assert_eq!(*recorder.0.lock().expect("no panic"), ["prepare chat/1/:members", "written chat/1/:members"]);
    let is_first = || node.presence.is_first();
    assert!(servers::until(SOON, is_first), "the only node is the first one");
}
