//! Input of the peers: datagrams and timers.

use std::{cmp::Reverse, net::SocketAddr, time::Instant};

use millrace_rtc::ufrag;

use super::{PeerId, Peers};
use crate::datagram::Verdict;

/// Maximum number of addresses per peer. Only addresses that proved the ICE password are kept, the newest of them.
const ADDRESSES_MAX: usize = 4;

impl Peers {
    /// Returns true if a peer has proved its identity at this address.
    pub fn knows(&self, address: &SocketAddr) -> bool {
        self.by_address.contains_key(address)
    }

    /// Handles a datagram.
    pub fn handle_datagram(&mut self, now: Instant, source: SocketAddr, datagram: &[u8]) -> Verdict {
        let known = self.by_address.get(&source).copied();
        // A STUN request names its peer, which takes precedence: a new peer may use the address of an earlier one.
        let slot = match ufrag(datagram) {
            Some(name) => self.by_ufrag.get(name).copied(),
            None => known,
        };
        let Some(slot) = slot else { return Verdict::Unclaimed };
        let id = self.entries.get(slot as usize).map(|entry| entry.id);
        let (Some(id), Some(to)) = (id, self.candidates.local(source)) else { return Verdict::Invalid };
        let is_valid = self.run(id, now, |peer, out| peer.handle_datagram(now, source, to, datagram, out));
        if is_valid != Some(true) {
            return Verdict::Invalid;
        }
        if let Some(entry) = self.entry(id) {
            entry.heard = now;
        }
        if known != Some(slot) {
            self.learn(id, source);
        }
        Verdict::Valid
    }

    /// Adds an address at which the peer has proved its identity.
    fn learn(&mut self, id: PeerId, source: SocketAddr) {
        let Some(entry) = self.entries.get_mut(id.slot as usize).filter(|entry| entry.id == id) else { return };
        if entry.addresses.len() >= ADDRESSES_MAX {
            let oldest = entry.addresses.remove(0);
            self.by_address.remove(&oldest);
        }
        entry.addresses.push(source);
        self.by_address.insert(source, id.slot);
    }

    /// Returns the deadline of the next [`Peers::handle_timeouts`]; `None` if there is no timer.
    pub fn timeout(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    pub fn handle_timeouts(&mut self, now: Instant) {
        let mut due = Vec::new();
        while let Some(Reverse((at, id))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.timers.pop();
            if let Some(entry) = self.entry(id).filter(|entry| entry.queued == Some(at)) {
                entry.queued = None;
                due.push(id);
            }
        }
        for id in due {
            let Some(entry) = self.entry(id) else { continue };
            match entry.ends {
                Some(ends) if ends <= now && entry.is_ending => self.finish(id),
                Some(ends) if ends <= now => self.remove(id),
                _ if entry.is_silent(now) => self.remove(id),
                _ if entry.peer().is_some_and(|peer| peer.timeout() <= now) => {
                    self.run(id, now, |peer, out| peer.handle_timeout(now, out));
                }
                _ => self.settle(id, now),
            }
        }
    }
}
