use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use millrace_delivery::current_position;
use millrace_protocol::{ChannelName, Code, Error, NewPublication, Position, Since};

use crate::{
    Entry, Request, RequestId, Response,
    cleanup::{Cleanup, Ended, Step, Steps},
    list::{List, Next, Registration, Sent, Write},
    lists::{lists_channel, nodes_channel},
    nodes::{Claim, Nodes},
    request::Requests,
};

/// The current time. It never decreases.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Milliseconds of a steady clock.
    pub ms: u64,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
}

/// Counters and sizes, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Entries that contain this node: members of channels, channels and connections.
    pub entries: u64,
    /// Entries that a full list has refused.
    pub refused: u64,
    /// Writes of entries since the start, repeated ones included.
    pub writes: u64,
    /// Dead nodes that this node has removed from all lists.
    pub nodes_removed: u64,
}

/// Keeps the entries of this node in all lists, and removes dead nodes from them.
///
/// It has no clock and does no I/O. Call [`Writer::change`], [`Writer::handle_response`] and, at
/// [`Writer::timeout_ms`], [`Writer::tick`]; then drain [`Writer::poll_request`].
pub struct Writer {
    nodes: Nodes,
    lists: HashMap<ChannelName, List>,
    /// When each list has something to do. Nothing is done before this node has its key.
    timers: BTreeSet<(u64, ChannelName)>,
    timer_of: HashMap<ChannelName, u64>,
    requests: Requests<Purpose>,
    prepares: bool,
    leaving: Leaving,
    writes: u64,
    nodes_removed: u64,
    /// Number of removals of dead nodes that were begun.
    attempts: u64,
    entries: usize,
    refused: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    No,
    Lists,
    Key,
    Done,
}

/// Purpose of a request in flight. `name`: the name of this node when the request was sent.
enum Purpose {
    Write { list: ChannelName, key: Arc<str>, name: Arc<str>, sent: Sent },
    Read { list: ChannelName, key: Arc<str>, name: Arc<str>, at: Position },
    Register { list: ChannelName, name: Arc<str> },
    Prepare { list: ChannelName, name: Arc<str> },
    Unregister { list: ChannelName },
    Claim { name: Arc<str> },
    Unclaim,
    Nodes,
    LiveNodes,
    Cleanup { dead: String, attempt: u64, step: Step },
}

impl Writer {
    /// `node`: a name that no other node has, and that this node has never had before (`[0-9a-f]+`). `prepares`: ask
    /// [`Request::Prepare`] for each list.
    pub fn new(node: &str, prepares: bool, now: Now) -> Self {
        Self {
            nodes: Nodes::new(node, now.ms),
            lists: HashMap::new(),
            timers: BTreeSet::new(),
            timer_of: HashMap::new(),
            requests: Requests::default(),
            prepares,
            leaving: Leaving::No,
            writes: 0,
            nodes_removed: 0,
            attempts: 0,
            entries: 0,
            refused: 0,
        }
    }

    /// Returns the next request, oldest first.
    pub fn poll_request(&mut self) -> Option<(RequestId, Request)> {
        self.requests.poll()
    }

    /// Returns when [`Writer::tick`] has something to do, on the steady clock.
    pub fn timeout_ms(&self, now: Now) -> u64 {
        let nodes_ms = if self.nodes.check.is_none() { self.nodes.next_check_ms } else { now.ms + 1000 };
        let waits = self.nodes.cleanups.values().filter_map(|cleanup| cleanup.wait_until_ms);
        let lists = self.nodes.may_write(now.ms).then(|| self.timers.first().map(|(at_ms, _)| *at_ms)).flatten();
        waits.chain(lists).fold(nodes_ms, u64::min)
    }

    /// Returns true if no live node that writes lists has a lower name.
    pub fn is_first(&self) -> bool {
        self.nodes.is_first
    }

    pub fn stats(&self) -> Stats {
        let Self { writes, nodes_removed, .. } = *self;
        Stats { entries: self.entries as u64, refused: self.refused as u64, writes, nodes_removed }
    }

    /// Changes the number of connections that a key of a list has on this node. `grace_ms`: time for which a smaller
    /// number is not written.
    pub fn change(
        &mut self,
        list: &ChannelName,
        key: &Arc<str>,
        change: i64,
        info: Option<Arc<str>>,
        grace_ms: u64,
        now: Now,
    ) {
        if self.leaving != Leaving::No {
            return;
        }
        if !self.lists.contains_key(list) {
            self.lists.insert(list.clone(), List::new(grace_ms, now.ms));
        }
        self.with_list(list, |list| list.change(key, change, info, now.ms));
        self.work(now);
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Now) {
        if self.nodes.check.is_none() && self.nodes.next_check_ms <= now.ms && self.leaving != Leaving::Done {
            if self.nodes.claim == Claim::None && self.leaving != Leaving::Key {
                let publication = self.nodes.claim(now.ms);
                let name = self.nodes.name.clone();
                self.append(Purpose::Claim { name }, nodes_channel(), publication);
            }
            self.nodes.begin_check(now.ms);
            self.read_nodes(Since::State);
        }
        let waiting: Vec<String> = self.nodes.cleanups.keys().cloned().collect();
        for dead in waiting {
            let steps = self.nodes.cleanups.get_mut(&dead).map(|cleanup| cleanup.tick(now.ms)).unwrap_or_default();
            self.send_steps(&dead, steps);
        }
        self.work(now);
    }

    /// Removes this node from all lists, without a grace time. Later changes are ignored.
    pub fn leave(&mut self, now: Now) {
        if self.leaving != Leaving::No {
            return;
        }
        self.leaving = Leaving::Lists;
        let names: Vec<ChannelName> = self.lists.keys().cloned().collect();
        for name in names {
            self.with_list(&name, |list| list.leave(now.ms));
        }
        self.work(now);
    }

    /// Returns true if this node has left all lists.
    pub fn has_left(&self) -> bool {
        self.leaving == Leaving::Done
    }

    /// Runs `work` on a list, and updates its timer and the sums.
    fn with_list<T>(&mut self, name: &ChannelName, work: impl FnOnce(&mut List) -> T) -> Option<T> {
        let list = self.lists.get_mut(name)?;
        let (written, refused) = (list.written, list.refused_count());
        let result = work(list);
        self.entries = self.entries + list.written - written;
        self.refused = self.refused + list.refused_count() - refused;
        let at_ms = list.timeout_ms();
        if let Some(before_ms) = self.timer_of.remove(name) {
            self.timers.remove(&(before_ms, name.clone()));
        }
        if let Some(at_ms) = at_ms {
            self.timer_of.insert(name.clone(), at_ms);
            self.timers.insert((at_ms, name.clone()));
        }
        Some(result)
    }

    fn append(&mut self, purpose: Purpose, channel: ChannelName, publication: NewPublication) {
        self.requests.send(purpose, Request::Append { channel, publication });
    }

    fn read_nodes(&mut self, since: Since) {
        self.requests.send(Purpose::Nodes, Request::ReadPage { channel: nodes_channel(), since });
    }

    fn send_steps(&mut self, dead: &str, steps: Steps) {
        let Some(attempt) = self.nodes.cleanups.get(dead).map(|cleanup| cleanup.attempt) else { return };
        for (step, request) in steps {
            self.requests.send(Purpose::Cleanup { dead: dead.to_owned(), attempt, step }, request);
        }
    }

    /// Does what is due in the lists, if this node may write.
    fn work(&mut self, now: Now) {
        if !self.nodes.may_write(now.ms) {
            return;
        }
        while let Some((_, name)) = self.timers.first().filter(|(at_ms, _)| *at_ms <= now.ms).cloned() {
            self.work_on(&name, now);
        }
        if self.leaving == Leaving::Lists && self.lists.is_empty() {
            self.leaving = Leaving::Key;
            let deletion = NewPublication::deletion((*self.nodes.name).into());
            self.append(Purpose::Unclaim, nodes_channel(), deletion);
        }
    }

    fn work_on(&mut self, name: &ChannelName, now: Now) {
        let Some(list) = self.lists.get(name) else { return };
        if list.is_idle(now.ms) {
            match list.registration {
                Registration::Done | Registration::Unknown => self.unregister(name),
                _ => self.forget(name),
            }
            return;
        }
        if list.wants_registration(now.ms) {
            return self.register(name);
        }
        let node = self.nodes.name.clone();
        let writes = self.with_list(name, |list| list.writes(&node, now.ms, now.unix_ms)).unwrap_or_default();
        for (key, write) in writes {
            self.write(name, key, write);
        }
    }

    fn write(&mut self, list: &ChannelName, key: Arc<str>, Write { publication, sent }: Write) {
        self.writes += 1;
        let (list, name) = (list.clone(), self.nodes.name.clone());
        self.append(Purpose::Write { list: list.clone(), key, name, sent }, list, publication);
    }

    fn forget(&mut self, name: &ChannelName) {
        self.with_list(name, |_| {});
        self.lists.remove(name);
        if let Some(at_ms) = self.timer_of.remove(name) {
            self.timers.remove(&(at_ms, name.clone()));
        }
    }

    fn register(&mut self, name: &ChannelName) {
        let node = self.nodes.name.clone();
        let Some(channel) = lists_channel(&node) else { return self.forget(name) };
        self.with_list(name, |list| list.registration = Registration::Beginning);
        let key = Some(name.as_str().into());
        let publication = NewPublication { key, ..NewPublication::new(millrace_protocol::Kind::Json, b"{}") };
        self.append(Purpose::Register { list: name.clone(), name: node }, channel, publication);
    }

    fn unregister(&mut self, name: &ChannelName) {
        let Some(channel) = lists_channel(&self.nodes.name) else { return self.forget(name) };
        self.with_list(name, |list| list.registration = Registration::Ending);
        let deletion = NewPublication::deletion(name.as_str().into());
        self.append(Purpose::Unregister { list: name.clone() }, channel, deletion);
    }

    /// Handles the answer to a request.
    pub fn handle_response(&mut self, id: RequestId, response: Response, now: Now) {
        let Some(purpose) = self.requests.take(id) else { return };
        match (purpose, response) {
            (Purpose::Write { list, key, name, sent }, Response::Appended(outcome)) => {
                self.written(&list, &key, &name, sent, outcome, now);
            }
            (Purpose::Read { list, key, name, at }, Response::Entry(entry)) => {
                self.entry_read(&list, &key, &name, at, entry, now);
            }
            (Purpose::Register { list, name }, Response::Appended(outcome)) => match outcome {
                Ok(_) if self.prepares && name == self.nodes.name => {
                    let request = Request::Prepare { list: list.clone() };
                    self.requests.send(Purpose::Prepare { list, name }, request);
                }
                outcome => self.registered(&list, &name, outcome.is_ok()),
            },
            (Purpose::Prepare { list, name }, Response::Prepared(outcome)) => {
                self.registered(&list, &name, outcome.is_ok());
            }
            (Purpose::Unregister { list }, Response::Appended(outcome)) => match outcome {
                Ok(_) if self.lists.get(&list).is_some_and(List::is_empty) => self.forget(&list),
                Ok(_) => drop(self.with_list(&list, |list| list.registration = Registration::None)),
                Err(_) => drop(self.with_list(&list, |list| {
                    list.registration = Registration::Unknown;
                    list.retry_later(now.ms);
                })),
            },
            (Purpose::Claim { name }, Response::Appended(outcome)) if name == self.nodes.name => match outcome {
                Ok(at) => self.nodes.claimed(at),
                Err(error) => match current_position(&error) {
                    // The answer to an earlier attempt was lost.
                    Some(millrace_protocol::Expected::At(at)) => self.nodes.claimed(at),
                    _ => self.nodes.claim = Claim::None,
                },
            },
            (Purpose::Unclaim, _) => self.leaving = Leaving::Done,
            (Purpose::Nodes, Response::Page(Ok(page))) => match self.nodes.add_page(&page) {
                Some(next) => self.read_nodes(next),
                None => self.requests.send(Purpose::LiveNodes, Request::LiveNodes),
            },
            (Purpose::LiveNodes, Response::LiveNodes(Ok(live))) => self.checked(live.as_deref(), now),
            (Purpose::Nodes | Purpose::LiveNodes, _) => self.nodes.check = None,
            (Purpose::Cleanup { dead, attempt, step }, response) => self.cleaned(&dead, attempt, step, response, now),
            _ => {}
        }
        self.work(now);
    }

    fn registered(&mut self, list: &ChannelName, name: &Arc<str>, is_done: bool) {
        // After a change of the name, the list is registered under the new name.
        let is_current = *name == self.nodes.name;
        let registration = match (is_current, is_done) {
            (false, _) => Registration::None,
            (true, false) => Registration::Unknown,
            (true, true) => Registration::Done,
        };
        self.with_list(list, |list| {
            if list.registration == Registration::Beginning {
                list.registration = registration;
            }
        });
    }

    fn written(
        &mut self,
        list: &ChannelName,
        key: &Arc<str>,
        name: &Arc<str>,
        sent: Sent,
        outcome: Result<Position, Error>,
        now: Now,
    ) {
        let is_current = *name == self.nodes.name;
        let next = self.with_list(list, |list| match outcome {
            Ok(at) => list.written(key, sent, at, is_current, now.ms),
            Err(error) => match error.code {
                Code::PreconditionFailed => list.failed(key, current_position(&error), is_current),
                Code::TooMany => list.refuse(key, now.ms),
                _ => list.unanswered(key, now.ms),
            },
        });
        self.follow(list, key, next.unwrap_or(Next::Nothing), now);
    }

    fn entry_read(
        &mut self,
        list: &ChannelName,
        key: &Arc<str>,
        name: &Arc<str>,
        at: Position,
        entry: Result<Option<Vec<u8>>, Error>,
        now: Now,
    ) {
        let is_current = *name == self.nodes.name;
        let node = self.nodes.name.clone();
        let next = self.with_list(list, |list| match entry {
            Ok(data) => {
                let entry = data.map(|data| (at, Entry::decode(&data).unwrap_or_default()));
                list.read(key, entry, &node, is_current)
            }
            Err(_) => list.unanswered(key, now.ms),
        });
        self.follow(list, key, next.unwrap_or(Next::Nothing), now);
    }

    fn follow(&mut self, list: &ChannelName, key: &Arc<str>, next: Next, now: Now) {
        let node = self.nodes.name.clone();
        match next {
            Next::Nothing => return,
            Next::Read(at) => {
                let request = Request::ReadEntry { list: list.clone(), key: (**key).into(), at };
                let purpose = Purpose::Read { list: list.clone(), key: key.clone(), name: node, at };
                return self.requests.send(purpose, request);
            }
            Next::Lost => {
                tracing::info!(%list, "the engine has lost entries of this node in a list; writing them again");
                self.nodes.verify(now.ms);
                self.with_list(list, |list| list.rewrite(now.ms));
            }
            Next::WriteAgain => {}
        }
        // A write of a node that may be dead waits until the next check.
        let may_write = self.nodes.may_write(now.ms);
        let write = self.with_list(list, |list| match may_write {
            true => list.write_again(key, &node, now.ms, now.unix_ms),
            false => {
                list.postpone(key, now.ms);
                None
            }
        });
        if let Some(write) = write.flatten() {
            self.write(list, key.clone(), write);
        }
    }

    fn checked(&mut self, live: Option<&[String]>, now: Now) {
        let found = self.nodes.end_check(live);
        if found.is_lost && self.leaving != Leaving::No {
            // The other nodes remove the rest.
            self.leaving = Leaving::Done;
        } else if found.is_lost {
            let was = self.nodes.name.clone();
            self.nodes.rename();
            tracing::info!(%was, name = %self.nodes.name, "other nodes have removed this node from the lists; writing its entries again");
            self.nodes.next_check_ms = now.ms;
            let names: Vec<ChannelName> = self.lists.keys().cloned().collect();
            for name in names {
                self.with_list(&name, |list| {
                    list.registration = Registration::None;
                    list.rewrite(now.ms);
                });
            }
        }
        for (dead, at, is_marked) in found.dead {
            if !self.nodes.cleanups.contains_key(&dead) {
                self.attempts += 1;
                let (cleanup, steps) = Cleanup::begin(self.attempts, &dead, at, is_marked, now.ms);
                self.nodes.cleanups.insert(dead.clone(), cleanup);
                self.send_steps(&dead, steps);
            }
        }
    }

    fn cleaned(&mut self, dead: &str, attempt: u64, step: Step, response: Response, now: Now) {
        let cleanup = self.nodes.cleanups.get_mut(dead).filter(|cleanup| cleanup.attempt == attempt);
        let Some(cleanup) = cleanup else { return };
        match cleanup.handle(step, response, now.ms) {
            Ok(steps) => self.send_steps(dead, steps),
            Err(ended) => {
                self.nodes.cleanups.remove(dead);
                if ended == Ended::Done {
                    self.nodes_removed += 1;
                    tracing::info!(node = dead, "removed a dead node from all lists");
                }
            }
        }
    }
}
