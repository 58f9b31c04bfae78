//! Rooms with mixed audio: audio goes to the [`crate::mixer`], and each member receives one mixed stream. Video is
//! forwarded as in other rooms.

use std::time::Instant;

use str0m::{format::Codec, media::MediaKind};

use super::{
    member::{Media, Slot, WantedTrack},
    rewriter::Packet,
    source::Source,
    state::{MixerSender, Send, Switch},
};
use crate::{
    member_id::MemberId,
    mixer::{CLOCK_HZ, Input, Mixed},
};

/// Owner of the mixed audio, as receivers see it.
pub const MIX: &str = "mix";

impl Switch {
    pub fn is_mixed(&self, room: &str) -> bool {
        self.rooms_by_name.get(room).is_some_and(|at| self.rooms[*at as usize].mixer.is_some())
    }

    /// Routes the audio of an existing room to `mixer`, until the last member leaves.
    pub fn set_mixer(&mut self, room: &str, mixer: MixerSender, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Some(at) = self.rooms_by_name.get(room).copied() else { return };
        let room = &mut self.rooms[at as usize];
        room.mixer = Some(mixer);
        let members = room.members.clone();
        self.isolate(at, now);
        for id in &members {
            let Some(member) = self.member(*id) else { continue };
            let audio_slots = member.tracks.iter_mut().filter(|track| track.kind == MediaKind::Audio);
            audio_slots.for_each(|track| track.receivers.clear());
            for slot in member.slots.iter_mut().filter(|slot| slot.kind == MediaKind::Audio) {
                slot.attach(None);
                member.wants_offer = true;
            }
        }
        for id in members {
            self.update_lines(id, now, send);
        }
    }

    /// Sends mixed audio to the members that it is for.
    pub fn send_mixed(&mut self, room: &str, mixed: &Mixed, now: Instant, send: &mut (impl Send + ?Sized)) {
        let incoming = Packet {
            layer: 0,
            sequence: mixed.sequence,
            time: mixed.time,
            clock_hz: CLOCK_HZ,
            is_key: true,
            vp8: None,
        };
        if !self.is_mixed(room) {
            return;
        }
        for (id, payload) in &mixed.to {
            let Some(member) = self.member(*id).filter(|member| member.egress.is_some()) else { continue };
            let Some(at) = member.slots.iter().position(Slot::is_mix) else { continue };
            let is_opus = |params: &&str0m::format::PayloadParams| params.spec().codec == Codec::Opus;
            let params = member.connection.rtc.codec_config().params().iter().find(is_opus).copied();
            let sent = member.slots[at].rewriter.renumber(&incoming, now);
            let (Some(params), Some(sent)) = (params, sent) else { continue };
            let media =
                Media { payload, clock_hz: CLOCK_HZ, marker: mixed.begins, audio_level: None, orientation: None };
            if let Some((to, datagram)) = member.write(at, (media, &params, sent), now) {
                self.forwarded += 1;
                send(to, datagram);
            }
        }
    }

    /// Returns the mixed audio track if the room is mixed and the member does not receive it yet.
    pub(super) fn wanted_mix(&self, id: MemberId) -> Option<WantedTrack> {
        let member = self.members.get(id.slot as usize).filter(|member| member.id == id)?;
        let is_missing = self.rooms[member.room as usize].mixer.is_some() && !member.slots.iter().any(Slot::is_mix);
        is_missing.then(|| WantedTrack { kind: MediaKind::Audio, source: Source::MIX, name: MIX.into() })
    }

    /// Sends an audio packet to the mixer, which decodes Opus only: `None` for another codec. Returns false if the
    /// room is not mixed, so that the packet must be forwarded.
    pub(super) fn mix(
        &mut self,
        source: Source,
        room: u32,
        sequence: u64,
        payload: Option<&std::sync::Arc<[u8]>>,
    ) -> bool {
        let Some(mixer) = self.rooms.get_mut(room as usize).and_then(|room| room.mixer.as_mut()) else { return false };
        if let Some(payload) = payload {
            mixer(Input::Audio { from: source.member, track: source.track, sequence, payload: payload.clone() });
        }
        true
    }
}
