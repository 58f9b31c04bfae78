//! Which nodes write lists, and in which: the states `:millrace/nodes` and `:millrace/nodes/NODE`.
//!
//! A node is live while its key in `:millrace/nodes` is unmarked and it has a lease of the engine. Of the live nodes,
//! the one with the lowest name marks the key of a dead node, removes the dead node from all entries, and deletes its
//! keys. A node that finds its own key marked or missing, because it was paused, takes a new name and writes all its
//! entries again. So a name that is being removed is never written again, except by writes that were in flight: a
//! second pass removes these.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use millrace_delivery::Page;
use millrace_protocol::{Expected, Kind, NewPublication, Position, Since};

use crate::{
    cleanup::Cleanup,
    lists::{MARK, base_of},
};

/// Interval between two checks of the live nodes, in milliseconds.
pub const CHECK_MS: u64 = 1000;
/// Time after the last check that found this node's key for which the node writes, in milliseconds.
const VERIFIED_MS: u64 = 3000;

/// This node among the others.
pub struct Nodes {
    base: Arc<str>,
    generation: u64,
    pub name: Arc<str>,
    pub claim: Claim,
    /// Begin of the last check that found this node's key.
    verified_ms: Option<u64>,
    pub check: Option<Check>,
    pub next_check_ms: u64,
    pub cleanups: HashMap<String, Cleanup>,
    /// True if no live node has a lower name.
    pub is_first: bool,
}

/// The key of this node in `:millrace/nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    None,
    Sent { at_ms: u64 },
    At(Position),
}

/// A check in progress.
pub struct Check {
    began_ms: u64,
    /// The key of this node when the check began.
    claim: Claim,
    found: BTreeMap<String, (Position, bool)>,
}

/// Result of a check.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    /// This node's key is marked or missing.
    pub is_lost: bool,
    /// Dead nodes, with the positions of their keys, and whether these are marked.
    pub dead: Vec<(String, Position, bool)>,
}

impl Nodes {
    pub fn new(node: &str, now_ms: u64) -> Self {
        Self {
            base: node.into(),
            generation: 0,
            name: node.into(),
            claim: Claim::None,
            verified_ms: None,
            check: None,
            next_check_ms: now_ms,
            cleanups: HashMap::new(),
            is_first: false,
        }
    }

    /// Returns true if this node may write: no other node can have begun to remove it.
    pub fn may_write(&self, now_ms: u64) -> bool {
        matches!(self.claim, Claim::At(_)) && self.verified_ms.is_some_and(|at_ms| now_ms <= at_ms + VERIFIED_MS)
    }

    /// Takes the next name.
    pub fn rename(&mut self) {
        self.generation += 1;
        self.name = format!("{}.{}", self.base, self.generation).into();
        (self.claim, self.verified_ms, self.is_first) = (Claim::None, None, false);
    }

    /// Returns the publication that adds this node's key.
    pub fn claim(&mut self, now_ms: u64) -> NewPublication {
        self.claim = Claim::Sent { at_ms: now_ms };
        let (key, expected) = (Some((*self.name).into()), Some(Expected::Absent));
        NewPublication { key, expected, ..NewPublication::new(Kind::Json, b"{}") }
    }

    /// Handles the position of this node's key.
    pub fn claimed(&mut self, at: Position) {
        if let Claim::Sent { at_ms } = self.claim {
            (self.claim, self.verified_ms) = (Claim::At(at), Some(at_ms));
        }
    }

    /// Stops writing until the next check, which is due now.
    pub fn verify(&mut self, now_ms: u64) {
        self.verified_ms = None;
        self.next_check_ms = self.next_check_ms.min(now_ms);
    }

    pub fn begin_check(&mut self, now_ms: u64) {
        self.next_check_ms = now_ms + CHECK_MS;
        self.check = Some(Check { began_ms: now_ms, claim: self.claim, found: BTreeMap::new() });
    }

    /// Adds a page of the nodes. Returns where the next page begins, if there is one.
    pub fn add_page(&mut self, page: &Page) -> Option<Since> {
        let check = self.check.as_mut()?;
        if page.gap.is_some() {
            check.found.clear();
        }
        for publication in &page.publications {
            let Some(key) = publication.key.as_deref() else { continue };
            match publication.is_deletion {
                true => drop(check.found.remove(key)),
                false => {
                    let at = Position { epoch: page.top.epoch, offset: publication.offset };
                    check.found.insert(key.to_owned(), (at, publication.data() == MARK));
                }
            }
        }
        page.next().is_state().then(|| page.next())
    }

    /// Ends the check. `live`: names of the nodes with a lease, or `None` if no other node can share the engine.
    pub fn end_check(&mut self, live: Option<&[String]>) -> Found {
        let Some(check) = self.check.take() else { return Found::default() };
        let is_live = |name: &str| match live {
            Some(live) => live.iter().any(|live| live == base_of(name)),
            None => base_of(name) == &*self.base,
        };
        let is_same_claim = check.claim == self.claim;
        let is_own = |at: Position| check.found.get(&*self.name) == Some(&(at, false));
        let is_lost = matches!(self.claim, Claim::At(at) if is_same_claim && !is_own(at));
        if let Claim::At(_) = self.claim
            && is_same_claim
            && !is_lost
        {
            self.verified_ms = Some(check.began_ms);
        }
        let first = check.found.iter().find(|(name, (_, is_marked))| !is_marked && is_live(name));
        self.is_first = !is_lost && first.is_some_and(|(name, _)| **name == *self.name);
        let is_dead = |name: &str, is_marked: bool| (is_marked || !is_live(name)) && *name != *self.name;
        let dead = check.found.iter().filter(|(name, (_, is_marked))| is_dead(name, *is_marked));
        let dead = dead.map(|(name, (at, is_marked))| (name.clone(), *at, *is_marked)).collect();
        Found { is_lost, dead: if self.is_first { dead } else { Vec::new() } }
    }
}
