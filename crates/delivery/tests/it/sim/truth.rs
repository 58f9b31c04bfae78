//! The true sequence of events, kept apart from the code under test, and the checks of what a client received.

use std::collections::HashMap;

use millrace_delivery::Bounds;
use millrace_protocol::{Epoch, Position, Publication, session::Policy};

/// Result of a check; the error says why a run failed.
pub type Check<T = ()> = Result<T, String>;

/// How far a client has read a channel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum At {
    /// The client has received everything up to this position.
    Known(Position),
    /// The client has received nothing yet, but everything after this position is promised to it (by a pattern, or by a
    /// poll without `since`).
    AtMost(Position),
}

/// All publications of one epoch of one channel.
struct Life {
    epoch: Epoch,
    publications: Vec<Publication>,
    /// `cost[i]`: total bytes of the first `i` publications.
    cost: Vec<usize>,
    newest: HashMap<Option<Box<str>>, u64>,
}

pub struct Truth {
    channels: Vec<Vec<Life>>,
    bounds: Bounds,
}

impl Truth {
    pub fn new(bounds: Bounds) -> Self {
        Self { channels: Vec::new(), bounds }
    }

    pub fn add_channel(&mut self, epoch: Epoch) {
        self.channels.push(Vec::new());
        self.begin(self.channels.len() - 1, epoch);
    }

    pub fn begin(&mut self, channel: usize, epoch: Epoch) {
        let life = Life { epoch, publications: Vec::new(), cost: vec![0], newest: HashMap::new() };
        self.channels[channel].push(life);
    }

    pub fn append(&mut self, channel: usize, publication: &Publication) {
        let life = self.channels[channel].last_mut().expect("a channel has an epoch");
        life.cost.push(life.cost[life.cost.len() - 1] + publication.cost_bytes());
        life.newest.insert(publication.key.clone(), publication.offset);
        life.publications.push(publication.clone());
    }

    pub fn top(&self, channel: usize) -> Position {
        let life = self.channels[channel].last().expect("a channel has an epoch");
        Position { epoch: life.epoch, offset: life.publications.len() as u64 }
    }

    pub fn publication(&self, channel: usize, at: Position) -> Check<&Publication> {
        let life = self.life(channel, at.epoch)?.1;
        let index = usize::try_from(at.offset).ok().and_then(|offset| offset.checked_sub(1));
        let found = index.and_then(|index| life.publications.get(index));
        found.ok_or_else(|| format!("{at} was never published"))
    }

    /// Returns true if `a` is before `b` or equal to it.
    pub fn is_up_to(&self, channel: usize, a: Position, b: Position) -> Check<bool> {
        let rank = |at: Position| Ok::<_, String>((self.life(channel, at.epoch)?.0, at.offset));
        Ok(rank(a)? <= rank(b)?)
    }

    /// Returns the state as of a position: the newest publication of each key that was not deleted.
    pub fn state(&self, channel: usize, at: Position) -> Check<HashMap<&str, &Publication>> {
        let (_, life) = self.life(channel, at.epoch)?;
        let mut state = HashMap::new();
        for publication in life.publications.iter().take(at.offset as usize) {
            let key = publication.key.as_deref().unwrap_or_default();
            match publication.is_deletion {
                true => state.remove(key),
                false => state.insert(key, publication),
            };
        }
        Ok(state)
    }

    /// Returns whether the log may no longer hold one of the publications after `after` that are counted.
    pub fn has_lost(
        &self,
        channel: usize,
        after: Position,
        counts: impl Fn(&Publication) -> bool,
        now_ms: u64,
    ) -> Check<bool> {
        let (_, life) = self.life(channel, after.epoch)?;
        let later = life.publications.iter().skip(after.offset as usize);
        Ok(later
            .filter(|publication| counts(publication))
            .any(|publication| self.may_be_gone(life, publication, now_ms)))
    }

    /// Checks a message that a client at `at` received, and returns the client's new position.
    pub fn receive_message(&self, channel: usize, at: At, policy: Policy, heard: Position, now_ms: u64) -> Check<At> {
        self.publication(channel, heard)?;
        let before = Position { epoch: heard.epoch, offset: heard.offset - 1 };
        let from = self.start(channel, at, before)?;
        if from.epoch != heard.epoch {
            return Err(format!("{heard} came to a client at {from} without a gap between the epochs"));
        }
        if heard.offset <= from.offset {
            return Err(format!("{heard} came to a client that was at {from} already"));
        }
        self.may_miss(channel, from, before, policy, false, now_ms)?;
        Ok(At::Known(heard))
    }

    /// Checks a gap that a client at `at` received, and returns its new position. A bare WebSocket receives only the
    /// end of a gap.
    pub fn hear_gap(
        &self,
        channel: usize,
        at: At,
        policy: Policy,
        from: Option<Position>,
        to: Position,
        now_ms: u64,
    ) -> Check<At> {
        let start = self.start(channel, at, from.unwrap_or(to))?;
        if let Some(from) = from {
            if policy == Policy::Every && from != start {
                return Err(format!("a gap from {from} came to a client at {start}"));
            }
            self.may_miss(channel, start, from, policy, false, now_ms)?;
        }
        if start == to || from == Some(to) {
            return Err(format!("an empty gap, from {start} to {to}"));
        }
        self.may_miss(channel, from.unwrap_or(start), to, policy, true, now_ms)?;
        Ok(At::Known(to))
    }

    /// Checks a new position `to` that a client at `at` received without a gap, and returns the client's new position.
    pub fn hear_position(&self, channel: usize, at: At, policy: Policy, to: Position, now_ms: u64) -> Check<At> {
        let from = self.start(channel, at, to)?;
        if from != to && policy == Policy::Every {
            return Err(format!("a client at {from} was told to stand at {to}"));
        }
        self.may_miss(channel, from, to, policy, false, now_ms)?;
        Ok(At::Known(to))
    }

    /// Returns the position of a client before it received an item that begins after `heard_from`.
    fn start(&self, channel: usize, at: At, heard_from: Position) -> Check<Position> {
        Ok(match at {
            At::Known(at) => at,
            At::AtMost(at) if self.is_up_to(channel, heard_from, at)? => heard_from,
            At::AtMost(at) if heard_from.epoch == at.epoch => at,
            // The client never knew the lost epoch.
            At::AtMost(_) => Position { epoch: heard_from.epoch, offset: 0 },
        })
    }

    /// Checks that a client may miss everything after `from` up to and including `to`.
    fn may_miss(
        &self,
        channel: usize,
        from: Position,
        to: Position,
        policy: Policy,
        named: bool,
        now_ms: u64,
    ) -> Check {
        if from == to {
            return Ok(());
        }
        if !self.is_up_to(channel, from, to)? {
            return Err(format!("from {from} back to {to}"));
        }
        if from.epoch != to.epoch && !named {
            return Err(format!("from {from} to {to} without a gap"));
        }
        let (rank, life) = self.life(channel, to.epoch)?;
        if named && rank + 1 < self.channels[channel].len() {
            return Ok(());
        }
        let first = if from.epoch == to.epoch { from.offset + 1 } else { 1 };
        for offset in first..=to.offset {
            let publication = &life.publications[offset as usize - 1];
            let superseded =
                policy == Policy::Latest && (life.newest[&publication.key] > offset || publication.is_expired(now_ms));
            if !superseded && !named {
                return Err(format!("offset {offset} is missing between {from} and {to}, without a gap"));
            }
            if !superseded && !self.may_be_gone(life, publication, now_ms) {
                return Err(format!("the gap from {from} to {to} names offset {offset}, which history still holds"));
            }
        }
        Ok(())
    }

    fn may_be_gone(&self, life: &Life, publication: &Publication, now_ms: u64) -> bool {
        let before = publication.offset as usize - 1;
        publication.is_expired(now_ms)
            || life.publications.len() - before > self.bounds.count_max
            || life.cost[life.publications.len()] - life.cost[before] > self.bounds.bytes_max
            || now_ms - publication.time_ms >= self.bounds.age_max_ms
    }

    fn life(&self, channel: usize, epoch: Epoch) -> Check<(usize, &Life)> {
        let mut lives = self.channels[channel].iter().enumerate();
        lives.find(|(_, life)| life.epoch == epoch).ok_or_else(|| format!("epoch {:08x} never was", epoch.0))
    }
}
