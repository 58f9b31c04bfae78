//! How members join and leave, and how their offers and answers are accepted.

use std::time::{Duration, Instant};

use millrace_rtc::BadOffer;

use super::{
    member::{Member, OfferedTrack},
    source::{Role, VideoCodecs},
    state::{Room, Send, Switch},
};
use crate::member_id::MemberId;

/// Interval at which layers are chosen. They are also chosen whenever an estimate changes.
pub const TICK: Duration = Duration::from_secs(1);

/// Reason why a request of a client or a member is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Offer(#[from] BadOffer),
    #[error("the room is full: it has its maximum number of members")]
    RoomFull,
    #[error("the SFU is full: it has its maximum number of members")]
    Full,
    #[error("there is no such member")]
    Gone,
}

impl Switch {
    /// Adds a member for this offer. Returns its identifier and the answer. `name`: the name that the other members
    /// see.
    ///
    /// Errors: [`Refused::Offer`] if the offer is invalid; [`Refused::Full`] and [`Refused::RoomFull`] at the limit of
    /// members.
    pub fn join(
        &mut self,
        room: &str,
        who: (&str, Role),
        offer: &str,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) -> Result<(MemberId, String), Refused> {
        self.join_with(room, who, (offer, VideoCodecs::All), now, send)
    }

    /// Adds a member as [`Switch::join`] does, with these video codecs only.
    pub fn join_with(
        &mut self,
        room: &str,
        (name, role): (&str, Role),
        offer: (&str, VideoCodecs),
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) -> Result<(MemberId, String), Refused> {
        if self.members.len() >= self.members_max {
            return Err(Refused::Full);
        }
        let known = self.rooms_by_name.get(room).copied();
        if known.is_some_and(|room| self.rooms[room as usize].members.len() >= self.room_members_max) {
            return Err(Refused::RoomFull);
        }
        let room_at = known.unwrap_or_else(|| self.rooms.vacant_key() as u32);
        self.serial = self.serial.wrapping_add(1);
        let id = MemberId { slot: self.members.vacant_key() as u32, serial: self.serial };
        let mut collected = std::mem::take(&mut self.collected);
        let who = (id, room_at, name, role);
        let made = Member::answer(who, offer, &self.candidates, now, &mut collected);
        self.collected = collected;
        let (member, answer) = match made {
            Ok(made) => made,
            Err(error) => {
                self.collected.events.clear();
                return Err(error.into());
            }
        };
        self.by_ufrag.insert(member.ufrag.clone(), id.slot);
        self.members.insert(Box::new(member));
        self.next_tick.get_or_insert(now + TICK);
        if known.is_none() {
            let (floor, members) = Default::default();
            self.rooms.insert(Room { name: room.into(), members, floor, mixer: None, compositor: None });
            self.rooms_by_name.insert(room.into(), room_at);
        }
        self.rooms[room_at as usize].members.push(id);
        self.add_cell(id);
        if known.is_none() {
            self.add_remotes(room, now, send);
        }
        self.flush_output(id, now, send);
        self.work(id, now, send, |member, collected| {
            member.connection.handle_timeout(now, |_, output| {
                collected.push(output);
                Ok(())
            })
        });
        Ok((id, answer))
    }

    /// Accepts another offer of a member, which changes its tracks or restarts ICE. Returns the answer.
    ///
    /// Errors: [`Refused::Offer`] if the offer is invalid; [`Refused::Gone`] if the member does not exist.
    pub fn accept_offer(
        &mut self,
        id: MemberId,
        offer: &str,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) -> Result<String, Refused> {
        let mut collected = std::mem::take(&mut self.collected);
        let Some(member) = self.member(id) else { return Err(Refused::Gone) };
        let before = member.ufrag.clone();
        let answer = member.accept_offer(offer, now, &mut collected);
        let after = member.ufrag.clone();
        self.collected = collected;
        self.by_ufrag.remove(&before);
        self.by_ufrag.insert(after, id.slot);
        self.flush_output(id, now, send);
        // The client's offer may have rolled back a pending offer of the server: make that offer again.
        self.offer(id, now, send);
        Ok(answer?)
    }

    /// Restarts ICE for a publisher or viewer with the client's new ICE credentials, `(ufrag, password)`. Returns an
    /// SDP fragment with the server's new credentials and its candidates.
    ///
    /// Errors: [`Refused::Gone`] if the member does not exist or has the role [`Role::Member`]; [`Refused::Offer`] if
    /// the credentials are invalid.
    pub fn restart(
        &mut self,
        id: MemberId,
        (ufrag, password): (&str, &str),
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) -> Result<String, Refused> {
        let Some(offer) = self.member(id).and_then(|member| member.offer.clone()) else { return Err(Refused::Gone) };
        let renamed = offer.lines().map(|line| match line {
            _ if line.starts_with("a=ice-ufrag:") => format!("a=ice-ufrag:{ufrag}\r\n"),
            _ if line.starts_with("a=ice-pwd:") => format!("a=ice-pwd:{password}\r\n"),
            _ => format!("{line}\r\n"),
        });
        let answer = self.accept_offer(id, &renamed.collect::<String>(), now, send)?;
        // The lines are bundled, so one of them stands for all.
        let line = answer.split_inclusive("\r\n").skip_while(|line| !line.starts_with("m="));
        let line = line.enumerate().take_while(|(at, line)| *at == 0 || !line.starts_with("m="));
        let prefixes = ["m=", "a=mid:", "a=ice-ufrag:", "a=ice-pwd:", "a=candidate:", "a=end-of-candidates"];
        // Only UDP candidates: whip-whep, the client that browsers use, puts commas between several candidates.
        let is_kept = |line: &&str| prefixes.iter().any(|name| line.starts_with(name)) && !line.contains(" tcptype ");
        let line = line.map(|(_, line)| line).filter(is_kept);
        Ok(std::iter::once("a=ice-lite\r\n").chain(line).collect())
    }

    /// Accepts the answer to an [`super::Event::Offer`].
    ///
    /// Errors: [`Refused::Offer`] if the answer is invalid; [`Refused::Gone`] if the member does not exist.
    pub fn accept_answer(
        &mut self,
        id: MemberId,
        answer: &str,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) -> Result<(), Refused> {
        let mut collected = std::mem::take(&mut self.collected);
        let Some(member) = self.member(id) else { return Err(Refused::Gone) };
        let made = member.accept_answer(answer, &mut collected);
        self.collected = collected;
        self.flush_output(id, now, send);
        let lines = made?;
        let first = self.member(id).map_or(0, |member| member.slots.len() - lines.len());
        for (at, OfferedTrack { kind, source, .. }) in lines.into_iter().enumerate() {
            let is_there =
                source.member == MemberId::MIXER || self.track(source).is_some_and(|track| track.kind == kind);
            if is_there {
                self.attach(id, first + at, source, now, send);
            } else if let Some(member) = self.member(id) {
                // The track ended while the offer was unanswered.
                member.wants_offer = true;
            }
        }
        self.offer(id, now, send);
        Ok(())
    }

    /// Removes a member that does not return, and notifies the client.
    pub fn leave(&mut self, id: MemberId, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Some((room, name)) = self.member(id).map(|member| (member.room, member.name.clone())) else { return };
        self.disconnect(id, now, send);
        self.release_lines(room, |held| held.name == name, now, send);
    }

    /// Removes a member and notifies the client. The other members keep the lines of its tracks for a while: if a
    /// member with the same name joins, they receive its tracks without another offer.
    pub fn disconnect(&mut self, id: MemberId, now: Instant, send: &mut (impl Send + ?Sized)) {
        let mut collected = std::mem::take(&mut self.collected);
        if let Some(member) = self.member(id) {
            member.connection.close(|_, output| {
                collected.push(output);
                Ok(())
            });
            collected.events.clear();
        }
        self.collected = collected;
        self.flush_output(id, now, send);
        self.remove(id, false, now, send);
    }
}
