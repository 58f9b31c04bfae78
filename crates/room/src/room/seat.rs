//! Seats that survive a reload of the page.
//!
//! ```text
//!              away                         resume, with the ticket
//!   present ──────────► away ──────────────────────────────────────► present, with another secret and ticket
//!      │                 │
//!      │ silence         │ `away_timeout`
//!      ▼                 ▼
//!   removed           removed
//! ```
//!
//! A ticket also resumes a seat that is not away: the request of the new page may overtake the farewell of the old one.
//! The farewell then has an old secret, and is refused.

use std::time::Instant;

use super::{Config, Joined, Output, Participant, ParticipantId, RateLimiter, Refused, Room, Topology};

/// Request to resume a seat.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Resume {
    pub id: String,
    pub ticket: String,
    /// Subject of the token, if there is one.
    pub subject: Option<String>,
    /// Random bytes that must never be reused: the next secret, and the next ticket.
    pub random: [[u8; 16]; 2],
}

impl Room {
    /// Records that the page of a participant reloads. Its seat is held for [`Config::away_timeout`].
    ///
    /// Errors: [`Refused::NotFound`], [`Refused::WrongSecret`].
    pub fn set_away(&mut self, now: Instant, id: &str, secret: &str) -> Result<(), Refused> {
        self.check_secret(id, secret)?;
        let participant = self.participant_mut(id)?;
        if participant.away_since.is_none() {
            participant.away_since = Some(now);
            self.changed();
        }
        Ok(())
    }

    /// Returns a seat to a page that was reloaded: with the same id, and with everything that others know about the
    /// participant. The old secret and the ticket become invalid.
    ///
    /// Errors: [`Refused::TicketUsed`] unless this is the ticket of the participant, from the same subject.
    pub fn resume(&mut self, now: Instant, resume: &Resume) -> Result<Joined, Refused> {
        let participant = self.participant_mut(&resume.id).map_err(|_| Refused::TicketUsed)?;
        if !is_equal(&participant.ticket, &resume.ticket) || participant.subject != resume.subject {
            return Err(Refused::TicketUsed);
        }
        let (secret, ticket) = (hex(&resume.random[0]), hex(&resume.random[1]));
        participant.secret.clone_from(&secret);
        participant.ticket.clone_from(&ticket);
        participant.away_since = None;
        participant.resumed += 1;
        participant.last_seen = now;
        participant.rate_limiter = RateLimiter::new(now);
        let id = ParticipantId(resume.id.clone());
        self.outputs.push_back(Output::Resumed(id.clone()));
        if self.topology == Topology::Tree && self.tree.record_activity(&id) {
            self.update_tree();
        }
        self.changed();
        Ok(Joined { id, secret, ticket })
    }
}

impl Participant {
    /// Returns when the participant is removed, unless it gives a sign of life before.
    pub(super) fn deadline(&self, config: &Config) -> Instant {
        match self.away_since {
            Some(since) => since + config.away_timeout,
            None => self.last_seen + config.silent_timeout,
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares in constant time, whichever bytes are correct.
pub(super) fn is_equal(own: &str, other: &str) -> bool {
    let differs = own.bytes().zip(other.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    own.len() == other.len() && differs == 0
}
