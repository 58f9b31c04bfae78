//! Sessions on connections of another protocol of the port: the data channels share a connection with other data, such
//! as the media of a participant.

use std::{rc::Rc, time::Instant};

use millrace_rtc::{Event, Lane, Peer};

use super::{AdmittedSession, Entry, PeerEvent, PeerId, Peers};

/// Connection that carries the data channels of a session. Dropped when the session ends.
pub trait SessionCarrier {
    /// Sends one text message. Returns false if the send buffer is full, or if the channel does not exist.
    fn write(&self, now: Instant, lane: Lane, message: &[u8]) -> bool;

    /// Returns the number of bytes written but not yet acknowledged.
    fn buffered(&self, lane: Lane) -> usize;

    /// Closes the data channels. The connection itself stays open.
    fn close(&self, now: Instant);
}

/// All connections of another protocol that carry sessions.
pub trait SessionCarriers {
    /// Returns the next event of a session's data channels.
    fn poll_event(&self) -> Option<(PeerId, Event)>;
}

/// Connection of a session.
#[expect(clippy::large_enum_variant, reason = "an entry is in a box, and nearly all of them are peers")]
pub enum Carrier {
    Peer(Peer),
    /// The other protocol handles the network path and the timeouts.
    Shared(Rc<dyn SessionCarrier>),
}

impl Peers {
    /// Allows the client of this connection to open a session over data channels. Returns `None` if the shard has no
    /// room for another peer.
    pub fn carry(&mut self, connection: Rc<dyn SessionCarrier>, admitted: AdmittedSession) -> Option<PeerId> {
        (!self.is_full()).then(|| self.add(Carrier::Shared(connection), admitted, None, Instant::now()))
    }

    /// Collects the events of carried sessions. Checks blocked sessions again, since received datagrams may have made
    /// room.
    pub(super) fn take_carried(&mut self) {
        let Some(carriers) = self.carriers.clone() else { return };
        while let Some((id, event)) = carriers.poll_event() {
            self.events.push_back((id, PeerEvent::Event(event)));
        }
        if !self.blocked.is_empty() {
            let now = Instant::now();
            for id in std::mem::take(&mut self.blocked) {
                self.settle(id, now);
                if self.is_blocked(id) {
                    self.blocked.push(id);
                }
            }
        }
    }

    /// Remembers a carried session that accepted fewer bytes than were written.
    pub(super) fn watch_blocked(&mut self, id: PeerId) {
        if self.is_blocked(id) && !self.blocked.contains(&id) {
            self.blocked.push(id);
        }
    }

    fn is_blocked(&mut self, id: PeerId) -> bool {
        self.entry(id).is_some_and(|entry| entry.peer().is_none() && entry.lanes.iter().any(|out| out.is_blocked))
    }
}

impl Entry {
    /// Returns true if a peer exceeds the silent peer timeout. The other protocol checks its connections itself.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.peer().is_some() && self.heard + super::SILENCE_MAX <= now
    }

    pub(super) fn peer(&self) -> Option<&Peer> {
        match &self.carrier {
            Carrier::Peer(peer) => Some(peer),
            Carrier::Shared(_) => None,
        }
    }
}
