//! Several nodes over one engine: requests are delayed, executed in any order, and sometimes not answered. Nodes are
//! paused, killed and started.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use millrace_delivery::PageLimit;
use millrace_engine::{Config, Deliver, Engine, HistoryConfig, MemoryEngine};
use millrace_presence::{Entry, Now, Request, RequestId, Response, Writer, execute};
use millrace_protocol::{ChannelName, Code, Epoch, Error, Position, Publication, Since, session::Policy};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::reader::Reader;

/// Duration of a lease, as in `crates/engine/src/remote/lease.rs`.
const LEASE_MS: u64 = 5000;
pub const GRACE_MS: u64 = 2000;

pub struct Nowhere;

impl Deliver for Nowhere {
    type Route = ();
    fn route(&self, _: &ChannelName) {}
    fn deliver(&self, (): &(), _: &ChannelName, _: Epoch, _: &Publication) {}
    fn moved(&self, (): &(), _: &ChannelName, _: Position, _: Position) {}
    fn readers(&self, _: &ChannelName) -> u32 {
        0
    }
}

/// A defect that is built in, to see that the simulation finds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Breakage {
    None,
    /// Writes have no condition.
    NoCondition,
    /// No dead node is removed.
    NoCleanup,
    /// A write without an answer counts as executed.
    NoRetry,
}

struct Node {
    name: String,
    writer: Writer,
    /// Members with their numbers of connections, by channel.
    connections: BTreeMap<(ChannelName, Arc<str>), u32>,
    paused_until_ms: u64,
    lease_until_ms: u64,
    /// Answers that arrive at a time.
    answers: BTreeMap<(u64, RequestId), Response>,
    leaves: bool,
}

/// A request on its way to the engine.
struct Flying {
    node: String,
    id: RequestId,
    request: Request,
    is_answered: bool,
}

pub struct World {
    pub dice: Pcg64Mcg,
    pub ms: u64,
    clock: Arc<AtomicU64>,
    engine: MemoryEngine<Nowhere>,
    nodes: Vec<Node>,
    started: usize,
    flying: BTreeMap<(u64, usize), Flying>,
    sent: usize,
    channels: Vec<ChannelName>,
    pub readers: Vec<Reader>,
    pub is_quiet: bool,
    breakage: Breakage,
}

pub fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("the engine `memory` answers at once"),
    }
}

impl World {
    pub fn new(seed: u64, breakage: Breakage) -> Self {
        let clock = Arc::new(AtomicU64::new(1));
        let read = clock.clone();
        let history = HistoryConfig { count_max: 20, roster: true, ..HistoryConfig::default() };
        let internal_states = Some(HistoryConfig { state: true, count_max: 20, ..HistoryConfig::default() });
        let config = Config { namespaces: [("chat".into(), history)].into(), internal_states, ..Config::default() };
        let engine = MemoryEngine::new(config, Epoch(7), Arc::new(Nowhere), move || read.load(Relaxed));
        let channels: Vec<ChannelName> = ["chat/a/:members", "chat/b/:members", "chat/c/:members"]
            .iter()
            .map(|name| ChannelName::parse(name).expect("a name"))
            .collect();
        let mut world = Self {
            dice: Pcg64Mcg::seed_from_u64(seed),
            ms: 1000,
            clock,
            engine,
            nodes: Vec::new(),
            started: 0,
            flying: BTreeMap::new(),
            sent: 0,
            channels,
            readers: Vec::new(),
            is_quiet: false,
            breakage,
        };
        (0..3).for_each(|_| world.start());
        world
    }

    fn now(&self) -> Now {
        Now { ms: self.ms, unix_ms: 1_000_000 + self.ms }
    }

    pub fn percent(&mut self, percent: f64) -> bool {
        self.dice.random_range(0.0..100.0) < percent
    }

    fn start(&mut self) {
        self.started += 1;
        // The names are in no order, as random names are not.
        let name = format!("{:x}{:02}", self.dice.random_range(0..16), self.started);
        self.nodes.push(Node {
            writer: Writer::new(&name, false, self.now()),
            name,
            connections: BTreeMap::new(),
            paused_until_ms: 0,
            lease_until_ms: self.ms + LEASE_MS,
            answers: BTreeMap::new(),
            leaves: false,
        });
    }

    /// One random action of the clients or of the operator.
    pub fn act(&mut self) {
        let node = self.dice.random_range(0..self.nodes.len());
        match self.dice.random_range(0..1000) {
            0..500 => self.connect(node),
            500..800 => drop(self.disconnect(node)),
            // A client moves to another node.
            800..970 => {
                if let Some((channel, member)) = self.disconnect(node) {
                    let to = self.dice.random_range(0..self.nodes.len());
                    self.change(to, &channel, &member, 1);
                }
            }
            970..985 => self.nodes[node].paused_until_ms = self.ms + self.dice.random_range(100..15_000),
            985..993 if self.nodes.len() > 1 => drop(self.nodes.remove(node)),
            993..996 if self.nodes.len() > 1 => {
                self.nodes[node].leaves = true;
                let now = self.now();
                self.nodes[node].writer.leave(now);
                self.nodes[node].connections.clear();
            }
            _ if self.nodes.len() < 4 => self.start(),
            _ => {}
        };
    }

    fn connect(&mut self, node: usize) {
        let channel = self.channels[self.dice.random_range(0..self.channels.len())].clone();
        let member: Arc<str> = format!("m{}", self.dice.random_range(0..6)).into();
        self.change(node, &channel, &member, 1);
    }

    fn disconnect(&mut self, node: usize) -> Option<(ChannelName, Arc<str>)> {
        let count = self.nodes[node].connections.len();
        if count == 0 {
            return None;
        }
        let which = self.dice.random_range(0..count);
        let (channel, member) = self.nodes[node].connections.keys().nth(which).cloned()?;
        self.change(node, &channel, &member, -1);
        Some((channel, member))
    }

    fn change(&mut self, node: usize, channel: &ChannelName, member: &Arc<str>, change: i64) {
        let now = self.now();
        let node = &mut self.nodes[node];
        if node.leaves || now.ms < node.paused_until_ms {
            return;
        }
        let place = (channel.clone(), member.clone());
        let count = node.connections.entry(place.clone()).or_default();
        *count = count.checked_add_signed(change as i32).expect("no negative number");
        if *count == 0 {
            node.connections.remove(&place);
        }
        let info = (change > 0).then(|| Arc::from(r#"{"a":1}"#));
        node.writer.change(channel, member, change, info, GRACE_MS, now);
    }

    /// Runs until `until_ms`, step by step.
    pub fn step(&mut self, step_ms: u64) {
        self.ms += step_ms;
        self.clock.store(1_000_000 + self.ms, Relaxed);
        self.execute_due();
        let now = self.now();
        let mut requests = Vec::new();
        for node in &mut self.nodes {
            if now.ms < node.paused_until_ms {
                continue;
            }
            node.lease_until_ms = now.ms + LEASE_MS;
            while let Some(entry) = node.answers.first_entry().filter(|entry| entry.key().0 <= now.ms) {
                let ((_, id), response) = entry.remove_entry();
                node.writer.handle_response(id, response, now);
            }
            if node.writer.timeout_ms(now) <= now.ms {
                node.writer.tick(now);
            }
            while let Some((id, request)) = node.writer.poll_request() {
                requests.push((node.name.clone(), id, request));
            }
        }
        for (node, id, request) in requests {
            self.send(node, id, request);
        }
        self.nodes.retain(|node| !node.leaves || !node.writer.has_left());
        if self.nodes.is_empty() {
            self.start();
        }
        let (engine, is_quiet) = (&self.engine, self.is_quiet);
        for reader in &mut self.readers {
            reader.step(engine, &mut self.dice, is_quiet);
        }
    }

    fn send(&mut self, node: String, id: RequestId, mut request: Request) {
        if let (Breakage::NoCondition, Request::Append { publication, .. }) = (self.breakage, &mut request) {
            publication.expected = None;
        }
        let slow = !self.is_quiet && self.percent(2.0);
        let delay_ms = if slow { self.dice.random_range(0..5000) } else { self.dice.random_range(0..60) };
        // A request without an answer was executed or not.
        let is_answered = self.is_quiet || !self.percent(2.0);
        self.sent += 1;
        self.flying.insert((self.ms + delay_ms, self.sent), Flying { node, id, request, is_answered });
    }

    fn execute_due(&mut self) {
        while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= self.ms) {
            let Flying { node, id, request, is_answered } = entry.remove();
            let is_executed = is_answered || self.percent(50.0);
            let response = match &request {
                Request::LiveNodes if self.breakage == Breakage::NoCleanup => {
                    Response::LiveNodes(Ok(Some((0..self.started + 1).map(|i| i.to_string()).collect())))
                }
                Request::LiveNodes => {
                    let live = self.nodes.iter().filter(|node| node.lease_until_ms >= self.ms);
                    Response::LiveNodes(Ok(Some(live.map(|node| node.name.clone()).collect())))
                }
                _ if !is_executed => Response::Appended(Err(no_answer())),
                _ => ready(execute(&self.engine, request.clone())),
            };
            let response = match (is_answered, &request) {
                (true, _) => response,
                (false, Request::Append { .. }) if self.breakage == Breakage::NoRetry => {
                    Response::Appended(Ok(Position { epoch: Epoch(7), offset: 1 }))
                }
                (false, Request::Append { .. }) => Response::Appended(Err(no_answer())),
                (false, Request::ReadEntry { .. }) => Response::Entry(Err(no_answer())),
                (false, Request::ReadPage { .. }) => Response::Page(Err(no_answer())),
                (false, Request::LiveNodes) => Response::LiveNodes(Err(no_answer())),
                (false, Request::Prepare { .. }) => Response::Prepared(Err(no_answer())),
            };
            let at_ms = self.ms + self.dice.random_range(0..60);
            if let Some(node) = self.nodes.iter_mut().find(|other| other.name == node) {
                node.answers.insert((at_ms, id), response);
            }
        }
    }

    /// Returns the entries of a list, as its readers see them.
    pub fn entries(&self, channel: &ChannelName) -> BTreeMap<String, Vec<u8>> {
        let mut entries = BTreeMap::new();
        let mut since = Since::State;
        loop {
            let limit = PageLimit { count: 1000, bytes: 1 << 20 };
            let page = ready(self.engine.page(channel, since, Policy::Every, limit)).expect("a page");
            for publication in &page.publications {
                let key = publication.key.as_deref().unwrap_or_default().to_owned();
                match publication.is_deletion {
                    true => drop(entries.remove(&key)),
                    false => drop(entries.insert(key, publication.data().to_vec())),
                }
            }
            since = page.next();
            if !since.is_state() {
                return entries;
            }
        }
    }

    /// Checks each list against the connections of the live nodes, and each reader against the list.
    pub fn check(&self) -> Result<(), String> {
        for channel in &self.channels {
            let mut expected = BTreeMap::<String, BTreeMap<String, u32>>::new();
            for node in &self.nodes {
                for ((of, member), count) in &node.connections {
                    if of == channel {
                        expected.entry(member.to_string()).or_default().insert(node.name.clone(), *count);
                    }
                }
            }
            let entries = self.entries(channel);
            let mut found = BTreeMap::<String, BTreeMap<String, u32>>::new();
            for (key, data) in &entries {
                let entry = Entry::decode(data).ok_or_else(|| format!("{channel} {key}: no entry"))?;
                let json: serde_json::Value = serde_json::from_slice(data).map_err(|error| error.to_string())?;
                if json["connections"] != entry.connections() || entry.nodes.is_empty() || entry.info.is_none() {
                    return Err(format!("{channel} {key}: {json}"));
                }
                let nodes = entry.nodes.iter();
                let nodes = nodes.map(|(name, count)| (name.split('.').next().unwrap_or_default().to_owned(), *count));
                found.insert(key.clone(), nodes.collect());
            }
            if found != expected {
                return Err(format!("{channel}: found {found:?}, expected {expected:?}"));
            }
            for reader in self.readers.iter().filter(|reader| reader.channel == *channel) {
                if reader.entries != entries {
                    return Err(format!("{channel}: a reader has {:?}, not {entries:?}", reader.entries));
                }
            }
        }
        let nodes = ChannelName::parse(":millrace/nodes").expect("a name");
        let names: Vec<String> = self.entries(&nodes).into_keys().collect();
        let mut live: Vec<String> =
            names.iter().map(|name| name.split('.').next().unwrap_or_default().into()).collect();
        live.sort();
        let mut expected: Vec<String> = self.nodes.iter().map(|node| node.name.clone()).collect();
        expected.sort();
        if live != expected { Err(format!("nodes: {names:?}, expected {expected:?}")) } else { Ok(()) }
    }

    pub fn add_reader(&mut self) {
        let channel = self.channels[self.dice.random_range(0..self.channels.len())].clone();
        self.readers.push(Reader::new(channel));
    }
}

fn no_answer() -> Error {
    Error::new(Code::Unavailable, "no answer")
}
