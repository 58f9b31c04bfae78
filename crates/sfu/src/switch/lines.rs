use std::time::Instant;

use str0m::media::{Direction, MediaKind};

use super::{
    member::{Slot, WantedTrack},
    source::{Role, Source},
    state::{Event, Send, Switch},
    track::Track,
};
use crate::{compositor, loudness::Loudness, member_id::MemberId, mixer::Input};

/// Maximum number of tracks that one member sends, and of lines in a viewer's own offer. A member in role
/// [`Role::Member`] receives at most the square of it.
const TRACKS_MAX: usize = 8;

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
            self.export(Source { member: id, track }, now);
            for other in self.rooms[room as usize].members.clone() {
                if other != id {
                    self.update_lines(other, now, send);
                }
            }
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
        if wanted.is_empty() && !member.wants_offer && member.slots.iter().all(|slot| slot.source.is_some()) {
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
