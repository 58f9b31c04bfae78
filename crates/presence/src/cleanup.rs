//! Removes a dead node from all lists.
//!
//! ```text
//!   mark ─► lists ─► entries of each list ─► wait ─► lists ─► entries of each list ─► delete keys
//!                       first pass                     second pass
//! ```
//!
//! Each step may be repeated by another node: a failure ends the work, and the next check of the live nodes begins it
//! anew.

use std::collections::BTreeSet;

use millrace_delivery::{Page, current_position};
use millrace_protocol::{ChannelName, Code, Error, Expected, Kind, NewPublication, Position, Since};

use crate::{
    Entry, Request, Response,
    list::NOWHERE,
    lists::{lists_channel, mark, nodes_channel},
};

/// Time from the mark to the second pass, in milliseconds: longer than a write of the dead node can be in flight.
const SECOND_PASS_MS: u64 = 10_000;

/// The removal of one dead node.
pub struct Cleanup {
    /// Number of this attempt, which the answers to its requests have.
    pub attempt: u64,
    name: String,
    /// Position of the node's key.
    at: Position,
    marked_ms: u64,
    is_second: bool,
    lists: BTreeSet<ChannelName>,
    /// Lists of this pass that follow.
    todo: Vec<ChannelName>,
    /// The page that follows when all edits of the current one are done.
    next: Option<(ChannelName, Since)>,
    /// Edits, or deletions of keys, without an answer.
    outstanding: usize,
    /// Time of the second pass, while it has not begun.
    pub wait_until_ms: Option<u64>,
}

/// Purpose of a request.
#[derive(Debug)]
pub enum Step {
    Mark,
    Lists,
    Entries { list: ChannelName },
    Edit { list: ChannelName, key: Box<str> },
    Read { list: ChannelName, key: Box<str>, at: Position },
    DeleteList,
    DeleteKey,
}

pub type Steps = Vec<(Step, Request)>;

/// End of the work.
#[derive(Debug, PartialEq)]
pub enum Ended {
    Done,
    Failed,
}

impl Cleanup {
    /// Begins with a dead node whose key has this position.
    pub fn begin(attempt: u64, name: &str, at: Position, is_marked: bool, now_ms: u64) -> (Self, Steps) {
        let (is_second, lists, todo, next, outstanding, wait_until_ms) = Default::default();
        let name = name.to_owned();
        let this =
            Self { attempt, name, at, marked_ms: now_ms, is_second, lists, todo, next, outstanding, wait_until_ms };
        let steps = match is_marked {
            true => this.read_lists(Since::State),
            false => vec![(Step::Mark, append(nodes_channel(), mark(&this.name, at)))],
        };
        (this, steps)
    }

    fn read_lists(&self, since: Since) -> Steps {
        let channel = lists_channel(&self.name);
        channel.map(|channel| (Step::Lists, Request::ReadPage { channel, since })).into_iter().collect()
    }

    /// Begins the second pass if its time has come.
    pub fn tick(&mut self, now_ms: u64) -> Steps {
        if self.wait_until_ms.is_none_or(|until_ms| now_ms < until_ms) {
            return Vec::new();
        }
        (self.wait_until_ms, self.is_second) = (None, true);
        self.read_lists(Since::State)
    }

    /// Handles an answer and returns the next steps. Errors: the work has ended.
    pub fn handle(&mut self, step: Step, response: Response, now_ms: u64) -> Result<Steps, Ended> {
        match (step, response) {
            (Step::Mark, Response::Appended(Ok(at))) => {
                (self.at, self.marked_ms) = (at, now_ms);
                Ok(self.read_lists(Since::State))
            }
            (Step::Lists, Response::Page(Ok(page))) => self.add_lists(&page),
            (Step::Entries { list }, Response::Page(Ok(page))) => self.edit_page(list, &page),
            (Step::Edit { list, key }, Response::Appended(outcome)) => self.edited(list, key, outcome),
            (Step::Read { list, key, at }, Response::Entry(Ok(entry))) => self.edit_entry(list, key, at, entry),
            (Step::DeleteList, Response::Appended(Ok(_))) => {
                self.outstanding -= 1;
                Ok(if self.outstanding == 0 { vec![self.delete_key()] } else { Vec::new() })
            }
            // If the condition failed, another node has deleted the key.
            (Step::DeleteKey, Response::Appended(outcome)) if is_decided(&outcome) => Err(Ended::Done),
            _ => Err(Ended::Failed),
        }
    }

    fn add_lists(&mut self, page: &Page) -> Result<Steps, Ended> {
        if page.gap.is_some() {
            self.lists.clear();
        }
        for publication in &page.publications {
            let name = publication.key.as_deref().and_then(|key| ChannelName::parse(key).ok());
            match (name, publication.is_deletion) {
                (Some(name), true) => drop(self.lists.remove(&name)),
                (Some(name), false) => drop(self.lists.insert(name)),
                (None, _) => {}
            }
        }
        if page.next().is_state() {
            return Ok(self.read_lists(page.next()));
        }
        self.todo = self.lists.iter().cloned().collect();
        Ok(self.proceed())
    }

    /// Returns the next page, or what follows after the last one.
    fn proceed(&mut self) -> Steps {
        let next = self.next.take().or_else(|| Some((self.todo.pop()?, Since::State)));
        if let Some((list, since)) = next {
            return vec![(Step::Entries { list: list.clone() }, Request::ReadPage { channel: list, since })];
        }
        if !self.is_second {
            self.wait_until_ms = Some(self.marked_ms + SECOND_PASS_MS);
            return Vec::new();
        }
        let channel = lists_channel(&self.name);
        let deletion = |list: &ChannelName| NewPublication::deletion(list.as_str().into());
        let deletions: Steps = channel
            .iter()
            .flat_map(|channel| self.lists.iter().map(|list| append(channel.clone(), deletion(list))))
            .map(|request| (Step::DeleteList, request))
            .collect();
        self.outstanding = deletions.len();
        if deletions.is_empty() { vec![self.delete_key()] } else { deletions }
    }

    fn delete_key(&self) -> (Step, Request) {
        let deletion = NewPublication::deletion(self.name.as_str().into());
        (Step::DeleteKey, append(nodes_channel(), deletion.only_if(Expected::At(self.at))))
    }

    fn edit_page(&mut self, list: ChannelName, page: &Page) -> Result<Steps, Ended> {
        let mut steps = Vec::new();
        for publication in page.publications.iter().filter(|publication| !publication.is_deletion) {
            let at = Position { epoch: page.top.epoch, offset: publication.offset };
            let key = publication.key.as_deref().unwrap_or_default();
            steps.extend(self.edit(&list, key, at, publication.data()));
        }
        self.next = page.next().is_state().then(|| (list, page.next()));
        self.outstanding = steps.len();
        Ok(if steps.is_empty() { self.proceed() } else { steps })
    }

    /// Returns the edit of an entry; `None` if the entry does not mention the node.
    fn edit(&self, list: &ChannelName, key: &str, at: Position, data: &[u8]) -> Option<(Step, Request)> {
        let mut entry = Entry::decode(data)?;
        entry.nodes.remove(self.name.as_str())?;
        let publication = match entry.nodes.is_empty() {
            true => NewPublication::deletion(key.into()),
            false => NewPublication { key: Some(key.into()), ..NewPublication::new(Kind::Json, entry.encode()) },
        };
        let step = Step::Edit { list: list.clone(), key: key.into() };
        Some((step, append(list.clone(), publication.only_if(Expected::At(at)))))
    }

    fn edited(&mut self, list: ChannelName, key: Box<str>, outcome: Result<Position, Error>) -> Result<Steps, Ended> {
        match outcome {
            Err(error) if error.code != Code::PreconditionFailed => Err(Ended::Failed),
            Err(error) => match current_position(&error) {
                Some(Expected::At(at)) => {
                    let read = Request::ReadEntry { list: list.clone(), key: key.clone(), at };
                    Ok(vec![(Step::Read { list, key, at }, read)])
                }
                _ => Ok(self.finish_edit()),
            },
            Ok(_) => Ok(self.finish_edit()),
        }
    }

    fn edit_entry(
        &mut self,
        list: ChannelName,
        key: Box<str>,
        at: Position,
        entry: Option<Vec<u8>>,
    ) -> Result<Steps, Ended> {
        let Some(data) = entry else {
            // The entry has changed again. This condition fails and returns its position.
            let probe = NewPublication::deletion(key.clone()).only_if(Expected::At(NOWHERE));
            return Ok(vec![(Step::Edit { list: list.clone(), key }, append(list, probe))]);
        };
        match self.edit(&list, &key, at, &data) {
            Some(edit) => Ok(vec![edit]),
            None => Ok(self.finish_edit()),
        }
    }

    fn finish_edit(&mut self) -> Steps {
        self.outstanding -= 1;
        if self.outstanding == 0 { self.proceed() } else { Vec::new() }
    }
}

fn append(channel: ChannelName, publication: NewPublication) -> Request {
    Request::Append { channel, publication }
}

fn is_decided(outcome: &Result<Position, Error>) -> bool {
    outcome.as_ref().err().is_none_or(|error| error.code == Code::PreconditionFailed)
}
