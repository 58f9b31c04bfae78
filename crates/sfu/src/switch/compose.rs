//! Rooms with one composite video: the cameras go to the [`crate::compositor`], and each member receives one video of
//! all. Shared screens are forwarded as in other rooms, because text must stay legible.

use std::time::Instant;

use str0m::{
    format::{Codec, PayloadParams},
    media::MediaKind,
    rtp::RtpPacket,
};

use super::{
    member::{Media, Slot, WantedTrack},
    mix::MIX,
    rewriter::Packet,
    source::{Role, Source},
    state::{CompositorSender, Send, Switch},
    track::Track,
};
use crate::{
    compositor::{CLOCK_HZ, Composite, Input, VideoPacket},
    member_id::MemberId,
};

impl Switch {
    pub fn has_compositor(&self, room: &str) -> bool {
        self.rooms_by_name.get(room).is_some_and(|at| self.rooms[*at as usize].compositor.is_some())
    }

    /// Routes the cameras of an existing room to `compositor`, until the last member leaves.
    pub fn set_compositor(
        &mut self,
        room: &str,
        compositor: CompositorSender,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) {
        let Some(at) = self.rooms_by_name.get(room).copied() else { return };
        self.rooms[at as usize].compositor = Some(compositor);
        self.isolate(at, now);
        let members = self.rooms[at as usize].members.clone();
        for id in &members {
            self.add_cell(*id);
            let Some(member) = self.member(*id) else { continue };
            let cameras: Vec<usize> =
                (0..member.tracks.len()).filter(|track| member.tracks[*track].is_camera()).collect();
            cameras.iter().for_each(|track| member.tracks[*track].receivers.clear());
            for other in &members {
                let Some(other) = self.member(*other) else { continue };
                let is_composed = |slot: &Slot| {
                    slot.source.is_some_and(|source| source.member == *id && cameras.contains(&source.track))
                };
                for slot in other.slots.iter_mut().filter(|slot| is_composed(slot)) {
                    slot.attach(None);
                    other.wants_offer = true;
                }
            }
        }
        for id in members {
            self.update_lines(id, now, send);
        }
    }

    /// Gives a member that may send video a cell of the composite video.
    pub(super) fn add_cell(&mut self, id: MemberId) {
        let Some(member) = self.member(id).filter(|member| member.role != Role::Viewer) else { return };
        let room = member.room;
        self.rooms[room as usize].send_to_compositor(Input::Joined(id));
    }

    /// Sends a frame of the composite video to all members that receive it.
    pub fn send_composite(&mut self, room: &str, frame: &Composite, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Some(at) = self.rooms_by_name.get(room) else { return };
        let room = &self.rooms[*at as usize];
        if room.compositor.is_none() {
            return;
        }
        for id in room.members.clone() {
            let Some(member) = self.member(id).filter(|member| member.egress.is_some()) else { continue };
            let Some(slot) = member.slots.iter().position(Slot::is_composite) else { continue };
            let is_h264 = |params: &&PayloadParams| params.spec().codec == Codec::H264;
            let Some(params) = member.connection.rtc.codec_config().params().iter().find(is_h264).copied() else {
                continue;
            };
            for (at, payload) in frame.packets.iter().enumerate() {
                let incoming = Packet {
                    layer: 0,
                    sequence: frame.sequence + at as u64,
                    time: frame.time,
                    clock_hz: CLOCK_HZ,
                    is_key: frame.is_key && at == 0,
                    vp8: None,
                };
                let marker = at == frame.packets.len() - 1;
                let media = Media { payload, clock_hz: CLOCK_HZ, marker, audio_level: None, orientation: None };
                let Some(member) = self.member(id) else { break };
                let Some(sent) = member.slots[slot].rewriter.renumber(&incoming, now) else { continue };
                if let Some((to, datagram)) = member.write(slot, (media, &params, sent), now) {
                    self.forwarded += 1;
                    send(to, datagram);
                }
            }
        }
    }

    /// Returns the name of a member; `None` if the member has left.
    pub fn name_of(&self, id: MemberId) -> Option<&str> {
        self.members.get(id.slot as usize).filter(|member| member.id == id).map(|member| &*member.name)
    }

    /// Requests a keyframe of a member's camera for the compositor.
    pub fn request_composed_keyframe(
        &mut self,
        member: MemberId,
        track: usize,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) {
        let source = Source { member, track };
        let layer = self.track(source).map(|track| track.composed_layer);
        if layer.is_some() {
            self.request_keyframe(source, layer, now, send);
        }
    }

    /// Returns the composite video if the room has one and the member does not receive it yet.
    pub(super) fn wanted_composite(&self, id: MemberId) -> Option<WantedTrack> {
        let member = self.members.get(id.slot as usize).filter(|member| member.id == id)?;
        let is_composed = self.rooms[member.room as usize].compositor.is_some();
        let is_missing = is_composed && !member.slots.iter().any(Slot::is_composite);
        is_missing.then(|| WantedTrack { kind: MediaKind::Video, source: Source::COMPOSITE, name: MIX.into() })
    }

    /// Sends a camera packet to the compositor, which decodes H.264 only, and one layer of each track. Returns false if
    /// the room has no compositor, so that the packet must be forwarded.
    pub(super) fn compose(
        &mut self,
        source: Source,
        room: u32,
        (layer, packet, params): (usize, &RtpPacket, &PayloadParams),
    ) -> bool {
        if self.rooms[room as usize].compositor.is_none() {
            return false;
        }
        let Some(track) = self.track(source).filter(|track| track.is_camera()) else { return false };
        if track.composed_layer == layer && params.spec().codec == Codec::H264 {
            let packet = VideoPacket {
                sequence: *packet.seq_no,
                time: packet.time.numer(),
                marker: packet.header.marker,
                payload: packet.payload.clone(),
            };
            let input = Input::Video { from: source.member, track: source.track, layer, packet };
            self.rooms[room as usize].send_to_compositor(input);
        }
        true
    }

    /// Chooses the layer of each camera for the compositor: the one in the middle of those that are sent. A cell needs
    /// no more lines.
    pub(super) fn choose_composed_layers(&mut self, now: Instant) {
        let Self { rooms, members, .. } = self;
        for (_, room) in rooms.iter().filter(|(_, room)| room.compositor.is_some()) {
            for id in &room.members {
                let Some(member) = members.get_mut(id.slot as usize) else { continue };
                member.tracks.iter_mut().filter(|track| track.is_camera()).for_each(|track| choose_layer(track, now));
            }
        }
    }
}

fn choose_layer(track: &mut Track, now: Instant) {
    let rates = track.rates(now);
    let mut sent: Vec<usize> = (0..rates.len()).filter(|layer| rates[*layer] > 0).collect();
    sent.sort_by_key(|layer| rates[*layer]);
    track.composed_layer = sent.get(sent.len() / 2).copied().unwrap_or(track.composed_layer);
}
