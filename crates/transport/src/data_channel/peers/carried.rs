//! Sessions whose data channels share the connection of a switch participant with its media.

use std::time::Instant;

use millrace_rtc::{Lane, Peer};
use millrace_sfu::switch::MemberId;

use super::{Entry, Guests, PeerEvent, PeerId, Peers};

/// Connection that carries a session.
#[expect(clippy::large_enum_variant, reason = "an entry is in a box, and nearly all of them are peers")]
pub enum Carrier {
    Peer(Peer),
    /// Participant of the switch. The switch handles its network path and timeouts.
    Member(MemberId),
}

impl Peers {
    /// Allows this participant to open a session over data channels. Does nothing if the shard has no room for another
    /// peer.
    pub fn carry(&mut self, member: MemberId, guests: Guests) {
        if !self.is_full() {
            let id = self.add(Carrier::Member(member), guests, None, Instant::now());
            self.carried.insert(member, id);
        }
    }

    /// Removes the session of a participant that has left.
    pub fn uncarry(&mut self, member: MemberId) {
        if let Some(id) = self.carried.get(&member).copied() {
            self.remove(id);
        }
    }

    /// Collects the events of sessions carried by participants. Checks blocked sessions again, since received datagrams
    /// may have made room.
    pub(super) fn take_carried(&mut self) {
        while let Some((member, event)) = self.switch.poll_data() {
            if let Some(id) = self.carried.get(&member) {
                self.events.push_back((*id, PeerEvent::Event(event)));
            }
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

    /// Remembers a participant's session that accepted fewer bytes than were written.
    pub(super) fn watch_blocked(&mut self, id: PeerId) {
        if self.is_blocked(id) && !self.blocked.contains(&id) {
            self.blocked.push(id);
        }
    }

    fn is_blocked(&mut self, id: PeerId) -> bool {
        self.entry(id).is_some_and(|entry| entry.peer().is_none() && entry.lanes.iter().any(|out| out.is_blocked))
    }

    pub(super) fn write_carried(&mut self, member: MemberId, lane: Lane, message: &[u8], now: Instant) -> bool {
        self.turn_switch(|switch, send| switch.write_data(member, (lane, true, message), now, send))
    }
}

impl Entry {
    /// Returns true if a peer exceeds the silent peer timeout. The switch checks the participants itself.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        matches!(self.carrier, Carrier::Peer(_)) && self.heard + super::SILENCE_MAX <= now
    }

    pub(super) fn peer(&self) -> Option<&Peer> {
        match &self.carrier {
            Carrier::Peer(peer) => Some(peer),
            Carrier::Member(_) => None,
        }
    }
}
