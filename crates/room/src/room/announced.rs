//! Participants of an earlier owner of a room, which a new owner takes over.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::{Output, Room};
use crate::{
    error::Refused,
    participant::{Muted, NAME_BYTES_MAX, Participant, ParticipantId, Role},
    rate_limiter::RateLimiter,
};

/// A participant that was in the room of another owner, as its node announces it to the new owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announced {
    pub id: ParticipantId,
    pub secret: String,
    /// One-use ticket that resumes the seat after a reload of the page.
    pub ticket: String,
    /// Subject of the token with which the participant has joined.
    pub subject: Option<String>,
    pub name: String,
    pub role: Role,
    pub since_ms: u64,
    pub client_id: u32,
    pub muted: bool,
    pub muted_by_host: Muted,
    pub screen: bool,
    pub hand: Option<u64>,
    pub resumed: u32,
}

impl Room {
    /// Adds a participant of an earlier owner of this room, with its id and secret. Does nothing if the participant is
    /// in the room. The quota of a client does not apply: the participant has its place already.
    ///
    /// Errors: [`Refused::BadName`], [`Refused::Full`].
    pub fn restore(&mut self, now: Instant, announced: Announced) -> Result<(), Refused> {
        let Announced { id, name, .. } = &announced;
        if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(Refused::BadName);
        }
        if self.participants.contains_key(id) {
            return Ok(());
        }
        let max = self.participants_max();
        if self.participants.len() >= max {
            return Err(Refused::Full(self.topology, max));
        }
        self.next = self.next.max(id.number());
        self.hands = self.hands.max(announced.hand.unwrap_or(0));
        let id = id.clone();
        let participant = Participant {
            name: announced.name,
            role: announced.role,
            client_id: announced.client_id,
            since_ms: announced.since_ms,
            muted: announced.muted,
            muted_by_host: announced.muted_by_host,
            screen: announced.screen,
            hand: announced.hand,
            secret: announced.secret,
            ticket: announced.ticket,
            subject: announced.subject,
            away_since: None,
            resumed: announced.resumed,
            last_seen: now,
            rate_limiter: RateLimiter::new(now),
            report: Map::new(),
        };
        self.participants.insert(id.clone(), participant);
        self.outputs.push_back(Output::Joined(id));
        self.update_topology(now);
        Ok(())
    }

    /// Returns the topology with which the room was created, which may be [`super::Topology::Auto`].
    pub fn created_topology(&self) -> super::Topology {
        self.topology
    }

    pub fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Continues the versions of the room's state after those of an earlier owner. `version`: a number above them, such
    /// as the time in milliseconds since 1970.
    pub fn continue_versions(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    /// Returns a participant as its node announces it to a new owner.
    ///
    /// Errors: [`Refused::NotFound`].
    pub fn announce(&self, id: &str) -> Result<Announced, Refused> {
        let one = self.participant(id)?;
        Ok(Announced {
            id: ParticipantId(id.to_owned()),
            secret: one.secret.clone(),
            name: one.name.clone(),
            role: one.role,
            since_ms: one.since_ms,
            client_id: one.client_id,
            muted: one.muted,
            muted_by_host: one.muted_by_host,
            ticket: one.ticket.clone(),
            subject: one.subject.clone(),
            screen: one.screen,
            hand: one.hand,
            resumed: one.resumed,
        })
    }
}
