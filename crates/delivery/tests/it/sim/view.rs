//! A client's view of a state: the map that it builds, and the checks of everything that it receives.

use std::collections::BTreeMap;

use millrace_protocol::{Epoch, Position, Publication, Since, session::Policy};

use super::truth::{At, Check, Truth};

/// View of one channel; survives every cut.
#[derive(Debug)]
pub struct View {
    /// Offset of the newest publication of each key.
    map: BTreeMap<String, u64>,
    /// Position of the last item.
    at: Position,
    /// Place from which to resume inside the state, as the server has last reported it.
    place: Option<Since>,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    /// The client has received a part of the state. The log ended at this offset or later when the part began.
    Inside { began_min: u64 },
    /// The client follows the log after `at`.
    Following,
}

impl View {
    pub fn new() -> Self {
        let at = Position { epoch: Epoch(0), offset: 0 };
        Self { map: BTreeMap::new(), at, place: None, phase: Phase::Inside { began_min: 0 } }
    }

    /// Returns the starts from which the client may continue.
    pub fn starts(&self) -> Vec<Since> {
        let known = (self.at.offset > 0).then_some(Since::StateOr(self.at));
        std::iter::once(Since::State).chain(known).chain(self.place).collect()
    }

    /// Begins to read from this start. The log ends at `top` now.
    pub fn begin(&mut self, since: Since, top: Position) {
        match since {
            Since::State => {
                *self = Self { phase: Phase::Inside { began_min: top.offset }, ..Self::new() };
                self.at.epoch = top.epoch;
            }
            Since::StateOr(_) => (self.phase, self.place) = (Phase::Following, None),
            _ => {}
        }
    }

    /// Checks a message. `place` is the id of its event, if it has one.
    pub fn hear_message(
        &mut self,
        truth: &Truth,
        channel: usize,
        policy: Policy,
        publication: &Publication,
        (position, place): (Position, Option<Since>),
        now_ms: u64,
    ) -> Check {
        match self.phase {
            Phase::Following => {
                let at = truth.receive_message(channel, At::Known(self.at), policy, position, now_ms)?;
                if At::Known(position) != at {
                    return Err(format!("{at:?} after {position}"));
                }
            }
            Phase::Inside { .. } if self.at.offset > 0 && position.epoch != self.at.epoch => {
                return Err(format!("{position} came inside the state of another epoch, after {}", self.at));
            }
            Phase::Inside { .. } if self.at.offset >= position.offset => {
                return Err(format!("{position} came inside a state after {}", self.at));
            }
            Phase::Inside { .. } => {}
        }
        let key = publication.key.as_deref().ok_or("a publication of a state without a key")?.to_owned();
        match publication.is_deletion {
            true => drop(self.map.remove(&key)),
            false => drop(self.map.insert(key, position.offset)),
        }
        self.at = position;
        self.hear_place(place);
        Ok(())
    }

    fn hear_place(&mut self, place: Option<Since>) {
        self.place = place.filter(|place| matches!(place, Since::StateAfter { .. }));
    }

    /// Checks the end of the state: the map must be the state as of `at`.
    pub fn hear_end(&mut self, truth: &Truth, channel: usize, at: Position, now_ms: u64) -> Check {
        if self.phase == Phase::Following {
            return Err(format!("the end of a state at {at}, outside a state"));
        }
        self.check_map(truth, channel, at, now_ms)?;
        (self.at, self.phase, self.place) = (at, Phase::Following, None);
        Ok(())
    }

    /// Checks a place that a stream begins at, or at which an answer ends.
    pub fn hear_position(
        &mut self,
        truth: &Truth,
        channel: usize,
        policy: Policy,
        at: Since,
        is_answer: bool,
        now_ms: u64,
    ) -> Check {
        match (at, self.phase) {
            (Since::Position(at), Phase::Inside { .. }) if is_answer => self.hear_end(truth, channel, at, now_ms),
            (Since::Position(at), Phase::Following) => {
                truth.hear_position(channel, At::Known(self.at), policy, at, now_ms)?;
                self.at = at;
                Ok(())
            }
            (Since::Position(_), Phase::Inside { .. }) => Err(format!("{at} inside a state")),
            (place, _) => {
                self.hear_place(Some(place));
                Ok(())
            }
        }
    }

    /// Checks a gap: the server has a reason to send the whole state again.
    pub fn hear_gap(&mut self, truth: &Truth, channel: usize, (from, to): (Position, Position), now_ms: u64) -> Check {
        if to.offset != 0 {
            return Err(format!("a gap to {to} came to a reader of a state"));
        }
        let is_justified = match self.phase {
            _ if from.epoch != to.epoch => truth.top(channel).epoch != from.epoch,
            Phase::Following => truth.has_lost(channel, from, |_| true, now_ms)?,
            Phase::Inside { began_min } => {
                let began = Position { offset: began_min, ..from };
                truth.has_lost(channel, began, |publication| publication.is_deletion, now_ms)?
            }
        };
        if !is_justified {
            return Err(format!("the state begins anew after {from} without a reason"));
        }
        let began_min = if from.epoch == to.epoch { self.at.offset } else { 0 };
        *self = Self { at: to, phase: Phase::Inside { began_min }, ..Self::new() };
        Ok(())
    }

    /// Checks that the client follows the log at its end, with the right map.
    pub fn check_end(&self, truth: &Truth, channel: usize, now_ms: u64) -> Check {
        let top = truth.top(channel);
        if self.phase != Phase::Following || self.at != top {
            return Err(format!("stands at {} ({:?}), whose top is {top}", self.at, self.phase));
        }
        self.check_map(truth, channel, top, now_ms)
    }

    /// Compares the map with the true state. A key whose time to live has ended may be in both or in one of them.
    fn check_map(&self, truth: &Truth, channel: usize, at: Position, now_ms: u64) -> Check {
        let state = truth.state(channel, at)?;
        for (key, publication) in &state {
            let has = self.map.get(*key);
            if has != Some(&publication.offset) && !(has.is_none() && publication.is_expired(now_ms)) {
                return Err(format!("at {at} the key {key} has {has:?}, which should be {}", publication.offset));
            }
        }
        match self.map.keys().find(|key| !state.contains_key(key.as_str())) {
            Some(key) => Err(format!("at {at} the key {key} was deleted, and the client still has it")),
            None => Ok(()),
        }
    }
}
