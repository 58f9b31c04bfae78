//! Ownership of a room that has participants on several nodes: one node runs the [`Room`](crate::Room), and the others
//! forward to it.
//!
//! The owner holds a lease: an entry in a state that all nodes read, and that only compare-and-set changes. A lease
//! needs no common clock. The owner writes the entry every [`RENEW_INTERVAL`], and stops to act [`OWNER_TIMEOUT`] after
//! it *sent* the last write that succeeded. Another node takes over [`LEASE_TIMEOUT`] after it *saw* that write, which
//! is later. So two nodes never act as owners at the same time, whatever their clocks say.
//!
//! The offset of the write that claimed the room is the epoch. It grows with each owner, so that a command of an
//! earlier owner is void.

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Interval at which the owner renews its lease.
pub const RENEW_INTERVAL: Duration = Duration::from_millis(500);
/// Time after the begin of the last successful write for which the owner acts as owner.
pub const OWNER_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time without a change of the entry after which another node takes over.
pub const LEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which a write without an answer is attempted again. Its answer is then ignored.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Entry of a room, as a node reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub node: Box<str>,
    /// Offset of the write that claimed the room.
    pub epoch: u64,
    /// Offset of this write.
    pub offset: u64,
}

/// Condition on the entry for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Absent,
    /// The newest write of the entry has this offset.
    At(u64),
}

/// Contents of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// This node claims the room. The offset of the write is the epoch.
    Claim,
    /// This node renews its lease.
    Renew { epoch: u64 },
    /// This node gives the room up.
    Release,
}

/// Answer to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    At(u64),
    /// The condition did not hold.
    Conflict,
    /// The write may or may not have happened.
    Failed,
}

/// Action for the caller, in the order in which they are polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write the entry. The answer goes to [`Ownership::handle_written`] with the same number.
    Write { number: u64, condition: Condition, write: Write },
    /// This node owns the room from now on. Its room is empty: the nodes announce their participants again.
    Gained { epoch: u64 },
    /// This node no longer owns the room, and must not act as its owner.
    Lost,
    /// Another node owns the room: announce the local participants to it.
    Follow { node: Box<str>, epoch: u64 },
}

/// Owner of a room, as a node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    This {
        epoch: u64,
    },
    Other {
        node: Box<str>,
        epoch: u64,
    },
    /// The room has no owner yet, or its owner is not known: hold requests back.
    Unknown,
}

/// Ownership of one room on one node.
///
/// ```text
///              entry absent or stale, and wanted: claim                  no write succeeds in time, or another entry
///   unknown ───────────────────────────────────────────► owner ─────────────────────────────────────────► unknown
///     │  ▲                                                  │ not wanted: release ──────────────────────────▲
///     ▼  │ stale or absent
///   follower
/// ```
#[derive(Debug)]
pub struct Ownership {
    node: Box<str>,
    is_wanted: bool,
    /// Newest entry, and the time since which it is unchanged. `None`: the entry was not read yet.
    seen: Option<(Option<Lease>, Instant)>,
    /// Epoch of this node's ownership, and the time until which it acts as owner.
    owned: Option<(u64, Instant)>,
    followed: Option<(Box<str>, u64)>,
    pending: Option<Pending>,
    next_number: u64,
    next_write: Instant,
    outputs: VecDeque<Output>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    number: u64,
    write: Write,
    sent: Instant,
}

impl Ownership {
    /// `node`: name of this node, which is new at every start.
    pub fn new(node: &str, now: Instant) -> Self {
        Self {
            node: node.into(),
            is_wanted: false,
            seen: None,
            owned: None,
            followed: None,
            pending: None,
            next_number: 0,
            next_write: now,
            outputs: VecDeque::new(),
        }
    }

    /// Returns the owner of the room. An owner that cannot renew its lease is none, even before [`Output::Lost`].
    pub fn owner(&self, now: Instant) -> Owner {
        if let Some((epoch, until)) = self.owned {
            return if now < until { Owner::This { epoch } } else { Owner::Unknown };
        }
        match &self.followed {
            Some((node, epoch)) => Owner::Other { node: node.clone(), epoch: *epoch },
            None => Owner::Unknown,
        }
    }

    /// Sets whether this node has participants of the room, or requests for it. Only such a node owns a room.
    pub fn set_wanted(&mut self, is_wanted: bool, now: Instant) {
        self.is_wanted = is_wanted;
        if !is_wanted && self.owned.is_some() {
            self.next_write = now;
        }
        self.handle_timeout(now);
    }

    /// Handles the newest entry of the room. Call it for each change, in the order of the offsets, and once after
    /// reading the state; `None`: there is no entry.
    pub fn handle_lease(&mut self, lease: Option<Lease>, now: Instant) {
        let newest = self.seen.as_ref().and_then(|(lease, _)| lease.as_ref()).map(|lease| lease.offset);
        let is_old = lease.as_ref().zip(newest).is_some_and(|(lease, newest)| lease.offset <= newest);
        if is_old || self.seen.as_ref().is_some_and(|(known, _)| *known == lease) {
            return;
        }
        let is_own = lease.as_ref().is_some_and(|lease| lease.node == self.node);
        if self.owned.is_some() && !is_own {
            // Another node has taken over, or an operator has deleted the entry.
            self.lose();
        }
        match &lease {
            Some(lease) if !is_own => self.follow(lease.node.clone(), lease.epoch),
            _ => self.followed = None,
        }
        self.seen = Some((lease, now));
        self.handle_timeout(now);
    }

    /// Handles the answer to the write with this number.
    pub fn handle_written(&mut self, number: u64, written: Written, now: Instant) {
        let Some(Pending { write, sent, .. }) = self.pending.filter(|pending| pending.number == number) else { return };
        self.pending = None;
        match (write, written) {
            (Write::Claim, Written::At(offset)) => self.hold(offset, offset, sent, now),
            (Write::Renew { epoch }, Written::At(offset)) if self.owned.is_some() => {
                self.hold(epoch, offset, sent, now);
            }
            (Write::Release, Written::At(_)) => self.seen = Some((None, now)),
            (Write::Renew { .. }, Written::Conflict) => self.lose(),
            // Another node was faster: its entry arrives soon. After a failure, the entry shows what happened.
            _ => {}
        }
        if written == Written::Conflict || written == Written::Failed {
            self.next_write = now + RENEW_INTERVAL;
        }
        self.handle_timeout(now);
    }

    /// Records a successful write of this node.
    fn hold(&mut self, epoch: u64, offset: u64, sent: Instant, now: Instant) {
        let until = sent + OWNER_TIMEOUT;
        self.seen = Some((Some(Lease { node: self.node.clone(), epoch, offset }), now));
        self.followed = None;
        self.next_write = sent + RENEW_INTERVAL;
        if now < until {
            let is_new = self.owned.is_none_or(|(known, _)| known != epoch);
            self.owned = Some((epoch, until));
            if is_new {
                self.outputs.push_back(Output::Gained { epoch });
            }
        }
    }

    fn lose(&mut self) {
        if self.owned.take().is_some() {
            self.outputs.push_back(Output::Lost);
        }
    }

    fn follow(&mut self, node: Box<str>, epoch: u64) {
        let followed = Some((node.clone(), epoch));
        if self.followed != followed {
            self.followed = followed;
            self.outputs.push_back(Output::Follow { node, epoch });
        }
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when [`Ownership::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let until = self.owned.map(|(_, until)| until);
        let pending = self.pending.map(|pending| pending.sent + WRITE_TIMEOUT);
        let next = self.next_change().filter(|_| self.pending.is_none());
        until.into_iter().chain(pending).chain(next).min()
    }

    /// Returns when the next write is due, or the entry of another node becomes stale.
    fn next_change(&self) -> Option<Instant> {
        if self.owned.is_some() {
            return Some(self.next_write);
        }
        let (lease, since) = self.seen.as_ref()?;
        let claim = match lease {
            Some(lease) if lease.node != self.node => *since + LEASE_TIMEOUT,
            _ => *since,
        };
        (self.is_wanted || self.followed.is_some()).then(|| claim.max(self.next_write))
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        if self.owned.is_some_and(|(_, until)| until <= now) {
            self.lose();
        }
        if self.pending.is_some_and(|pending| pending.sent + WRITE_TIMEOUT <= now) {
            self.pending = None;
            self.next_write = now;
        }
        if self.pending.is_some() || self.next_change().is_none_or(|at| at > now) {
            return;
        }
        let newest = self.seen.as_ref().and_then(|(lease, _)| lease.as_ref());
        let condition = newest.map_or(Condition::Absent, |lease| Condition::At(lease.offset));
        let write = match self.owned {
            Some(_) if !self.is_wanted => Write::Release,
            Some((epoch, _)) => Write::Renew { epoch },
            None => {
                // The owner is dead.
                self.followed = None;
                if !self.is_wanted {
                    return;
                }
                Write::Claim
            }
        };
        if write == Write::Release {
            self.lose();
        }
        self.next_number += 1;
        self.next_write = now + RENEW_INTERVAL;
        let number = self.next_number;
        self.pending = Some(Pending { number, write, sent: now });
        self.outputs.push_back(Output::Write { number, condition, write });
    }
}
