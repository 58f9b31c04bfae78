use std::time::{Duration, Instant};

use str0m::media::{Direction, MediaKind};

use super::{
    member::{Held, Slot, WantedTrack},
    source::{Role, Source},
    state::{Event, Send, Switch},
    track::Track,
};
use crate::{compositor, loudness::Loudness, member_id::MemberId, mixer::Input};

/// Maximum number of tracks that one member sends, and of lines in a viewer's own offer. A member in role
/// [`Role::Member`] receives at most the square of it.
const TRACKS_MAX: usize = 8;

/// Time for which the lines of a member that is connected again are kept for tracks that it has not added yet.
const RETURNED_MAX: Duration = Duration::from_secs(2);

/// Assignment of tracks to the media lines (`m=` sections) of each member's SDP.
impl Switch {
    /// Adds a line from the member's own offer.
    pub(super) fn add_line(
        &mut self,
        id: MemberId,
        added: str0m::media::MediaAdded,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) {
        let Some(member) = self.member(id) else { return };
        let (mid, kind) = (added.mid, added.kind);
        let is_known =
            member.slots.iter().any(|slot| slot.mid == mid) || member.tracks.iter().any(|track| track.mid == mid);
        if is_known {
            return;
        }
        let is_sent = matches!(added.direction, Direction::SendOnly | Direction::SendRecv);
        if is_sent && member.role == Role::Viewer && member.slots.len() < TRACKS_MAX {
            member.slots.push(Slot::new(mid, kind));
            self.assign_free_lines(id, now, send);
        }
        let is_received = matches!(added.direction, Direction::RecvOnly | Direction::SendRecv);
        let Some(member) = self.member(id) else { return };
        if is_received && member.role != Role::Viewer && member.tracks.len() < TRACKS_MAX {
            let is_muted = member.is_muted(kind);
            let is_screen = member.screens.iter().any(|screen| **screen == *mid.to_string());
            member.tracks.push(Track {
                mid,
                kind,
                layers: Vec::new(),
                receivers: Vec::new(),
                loudness: Loudness::default(),
                is_muted,
                exported: None,
                announced: None,
                is_screen,
                composed_layer: 0,
            });
            let (room, track) = (member.room, member.tracks.len() - 1);
            let source = Source { member: id, track };
            self.export(source, now);
            for other in self.rooms[room as usize].members.clone() {
                if other != id && !self.resume_line(other, source, now, send) {
                    self.update_lines(other, now, send);
                }
            }
        }
    }

    /// Assigns the track of a member that has connected again to its old line. Returns false if no line is kept for it.
    fn resume_line(&mut self, id: MemberId, source: Source, now: Instant, send: &mut (impl Send + ?Sized)) -> bool {
        let Some(owner) = self.members.get(source.member.slot as usize) else { return false };
        let (track, name) = (&owner.tracks[source.track], &owner.name);
        let is_its = |slot: &Slot| {
            slot.kind == track.kind
                && slot.held.as_ref().is_some_and(|held| held.name == *name && held.is_screen == track.is_screen)
        };
        let member = self.members.get(id.slot as usize).filter(|member| member.id == id);
        let Some(slot) = member.and_then(|member| member.slots.iter().position(is_its)) else { return false };
        self.attach(id, slot, source, now, send);
        true
    }

    /// Removes the lines that are kept for owners that satisfy `is_gone`.
    pub(super) fn release_lines(
        &mut self,
        room: u32,
        is_gone: impl Fn(&Held) -> bool,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) {
        for id in self.rooms.get(room as usize).map(|room| room.members.clone()).unwrap_or_default() {
            let Some(member) = self.member(id) else { continue };
            let mut is_changed = false;
            for slot in member.slots.iter_mut().filter(|slot| slot.held.as_ref().is_some_and(&is_gone)) {
                slot.held = None;
                is_changed = true;
            }
            if is_changed {
                member.wants_offer = true;
                self.update_lines(id, now, send);
            }
        }
    }

    /// Removes the lines that are kept for members with this name, which do not connect again.
    pub fn release(&mut self, room: &str, name: &str, now: Instant, send: &mut (impl Send + ?Sized)) {
        if let Some(room) = self.rooms_by_name.get(room).copied() {
            self.release_lines(room, |held| *held.name == *name, now, send);
        }
    }

    /// Keeps the lines of a member that is connected again only until its tracks are known: it may send fewer than
    /// before.
    pub(super) fn release_soon(&mut self, room: u32, name: &str, now: Instant) {
        for id in self.rooms[room as usize].members.clone() {
            let Some(member) = self.member(id) else { continue };
            let held = member.slots.iter_mut().filter_map(|slot| slot.held.as_mut());
            held.filter(|held| *held.name == *name).for_each(|held| held.until = held.until.min(now + RETURNED_MAX));
        }
    }

    /// Removes the lines that were kept long enough.
    pub(super) fn release_expired(&mut self, now: Instant, send: &mut (impl Send + ?Sized)) {
        let rooms: Vec<u32> = self.rooms_by_name.values().copied().collect();
        for room in rooms {
            self.release_lines(room, |held| held.until <= now, now, send);
        }
    }

    /// Updates a member after a track was added to or removed from its room: sends an offer, or fills a viewer's free
    /// lines.
    pub(super) fn update_lines(&mut self, id: MemberId, now: Instant, send: &mut (impl Send + ?Sized)) {
        match self.member(id).map(|member| member.role) {
            Some(Role::Member) => self.offer(id, now, send),
            Some(Role::Viewer) => self.assign_free_lines(id, now, send),
            Some(Role::Publisher) | None => {}
        }
    }

    /// Returns the tracks of a room that a member neither sends nor receives yet.
    fn wanted_tracks(&self, id: MemberId) -> Vec<WantedTrack> {
        let Some(member) = self.members.get(id.slot as usize).filter(|member| member.id == id) else {
            return Vec::new();
        };
        let room = &self.rooms[member.room as usize];
        let (is_mixed, is_composed) = (room.mixer.is_some(), room.compositor.is_some());
        let others = room.members.iter().filter(|other| **other != id);
        let all = others.filter_map(|other| self.members.get(other.slot as usize)).flat_map(|other| {
            let track = |(at, track): (usize, &Track)| WantedTrack {
                kind: track.kind,
                source: Source { member: other.id, track: at },
                name: track.stream_name(&other.name),
            };
            let is_forwarded = move |(_, track): &(usize, &Track)| !(is_composed && track.is_camera());
            other.tracks.iter().enumerate().filter(is_forwarded).map(track)
        });
        let remote = self.remotes.iter().flat_map(|remotes| remotes.tracks_of(member.room));
        all.chain(remote)
            .filter(|track| !is_mixed || track.kind == MediaKind::Video)
            .filter(|track| !member.slots.iter().any(|slot| slot.source == Some(track.source)))
            .chain(self.wanted_mix(id))
            .chain(self.wanted_composite(id))
            .collect()
    }

    /// Offers a member the tracks that it does not receive yet, and removes the lines of tracks that have ended.
    pub(super) fn offer(&mut self, id: MemberId, now: Instant, send: &mut (impl Send + ?Sized)) {
        let wanted_tracks = self.wanted_tracks(id);
        let Some(member) = self.member(id) else { return };
        if member.role != Role::Member {
            return;
        }
        let room = TRACKS_MAX.pow(2).saturating_sub(member.slots.len());
        let wanted = &wanted_tracks[..wanted_tracks.len().min(room)];
        if wanted.is_empty() && !member.wants_offer && !member.slots.iter().any(Slot::is_unused) {
            return;
        }
        member.wants_offer = true;
        // Until the member is connected, its own offer may still be unanswered.
        if member.pending.is_some() || !member.is_connected {
            return;
        }
        let made = self.work(id, now, send, |member, collected| member.make_offer(wanted, collected));
        if let Some(Some(sdp)) = made {
            // The removal of slots has changed the indexes of the remaining slots.
            self.update_receivers(id);
            self.events.push_back(Event::Offer(id, sdp));
        }
    }

    /// Assigns the available tracks to a viewer's free lines.
    pub(super) fn assign_free_lines(&mut self, id: MemberId, now: Instant, send: &mut (impl Send + ?Sized)) {
        for WantedTrack { kind, source, .. } in self.wanted_tracks(id) {
            let Some(member) = self.member(id) else { return };
            let free = member.slots.iter().position(|slot| slot.source.is_none() && slot.kind == kind);
            if let Some(slot) = free {
                self.attach(id, slot, source, now, send);
            }
        }
    }

    /// Assigns a track to a slot.
    pub(super) fn attach(
        &mut self,
        id: MemberId,
        slot: usize,
        source: Source,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) {
        let Some(member) = self.member(id) else { return };
        member.slots[slot].attach(Some(source));
        let room = member.room;
        if source == Source::MIX {
            self.rooms[room as usize].send_to_mixer(Input::ListenerAdded(id));
        } else if source == Source::COMPOSITE {
            self.rooms[room as usize].send_to_compositor(compositor::Input::ViewerAdded(id));
        } else if let Some(track) = self.track(source) {
            track.receivers.push((id, slot));
        }
        self.choose_layers(id, now, send);
        self.update_want(source, now);
    }

    /// Updates the slot indexes of a member in the receiver lists of all tracks that it receives.
    pub(super) fn update_receivers(&mut self, id: MemberId) {
        let Some(member) = self.member(id) else { return };
        let slots: Vec<_> = member.slots.iter().enumerate().filter_map(|(at, slot)| Some((slot.source?, at))).collect();
        let room = member.room;
        for other in self.rooms[room as usize].members.clone() {
            if let Some(other) = self.member(other) {
                other.tracks.iter_mut().for_each(|track| track.receivers.retain(|(receiver, _)| *receiver != id));
            }
        }
        if let Some(remotes) = &mut self.remotes {
            remotes.remove_receiver(room, id);
        }
        for (source, at) in slots {
            if let Some(track) = self.track(source) {
                track.receivers.push((id, at));
            }
        }
    }
}
