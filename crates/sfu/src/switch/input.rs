//! Input of the SFU: datagrams and the time.

use std::{cmp::Reverse, net::SocketAddr, time::Instant};

use millrace_rtc::ufrag;

use super::{
    member::{CollectedOutput, Member},
    membership::TICK,
    state::{SILENT_TIMEOUT, Send, Switch},
};
use crate::cascade::Mesh;

/// Maximum number of authenticated addresses kept per member; the oldest is evicted.
const ADDRESSES_MAX: usize = 4;

impl Switch {
    /// Handles a datagram. Returns true if it belongs to a member.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        datagram: &[u8],
        send: &mut (impl Send + ?Sized),
    ) -> bool {
        let known = self.by_address.get(&from).copied();
        let slot = match ufrag(datagram) {
            Some(name) => self.by_ufrag.get(name).copied(),
            None => known,
        };
        let Some(id) = slot.and_then(|slot| self.members.get(slot as usize)).map(|member| member.id) else {
            return false;
        };
        let Some(to) = self.candidates.local(from) else { return false };
        let work = |member: &mut Member, collected: &mut CollectedOutput| {
            member.handle_datagram(now, (from, to), datagram, collected)
        };
        let is_good = self.work(id, now, send, work);
        if is_good != Some(true) {
            return false;
        }
        if let Some(member) = self.member(id) {
            member.last_received = now;
            if known != Some(id.slot) {
                if member.addresses.len() >= ADDRESSES_MAX {
                    let oldest = member.addresses.remove(0);
                    self.by_address.remove(&oldest);
                }
                if let Some(member) = self.member(id) {
                    member.addresses.push(from);
                }
                self.by_address.insert(from, id.slot);
            }
        }
        if self.member(id).is_some_and(|member| member.has_estimate_changed()) {
            self.choose_layers(id, now, send);
        }
        true
    }

    /// Returns when [`Switch::handle_timeouts`] must be called.
    pub fn timeout(&self) -> Option<Instant> {
        let first = self.timers.peek().map(|Reverse((at, _))| *at);
        let mesh = self.mesh().and_then(Mesh::timeout);
        first.into_iter().chain(self.next_tick).chain(mesh).min()
    }

    pub fn handle_timeouts(&mut self, now: Instant, send: &mut (impl Send + ?Sized)) {
        let mut due = Vec::new();
        while let Some(Reverse((at, id))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.timers.pop();
            if let Some(member) = self.member(id).filter(|member| member.queued == Some(at)) {
                member.queued = None;
                due.push(id);
            }
        }
        if self.next_tick.is_some_and(|at| at <= now) {
            self.next_tick = (!self.members.is_empty()).then_some(now + TICK);
            self.tick(now, send);
        }
        self.handle_mesh_timeout(now, send);
        for id in due {
            let Some(member) = self.member(id) else { continue };
            if member.deadline(SILENT_TIMEOUT) <= now {
                self.leave(id, now, send);
            } else if member.timeout() <= now {
                self.work(id, now, send, |member, collected| member.handle_timeout(now, collected));
            } else {
                self.queue(id);
            }
        }
    }
}
