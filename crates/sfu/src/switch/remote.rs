//! Rooms on several nodes: tracks of other nodes are sources, and local tracks are offered to other nodes.
//!
//! A remote member stands for a member of another node. It has tracks, but no connection; its packets come from a
//! [`Mesh`]. What the members of this node want of a track is merged into one want.

use std::{collections::HashMap, time::Instant};

use slab::Slab;
use str0m::{
    RtcConfig,
    format::{CodecConfig, PayloadParams},
    media::MediaKind,
    rtp::RtpPacket,
};

use super::{
    member::{Media, WantedTrack},
    rewriter::Packet,
    source::{Role, Source},
    state::{Event, Send, Switch},
    track::{Announced, Layer, Track, describe, is_key},
};
use crate::{
    cascade::{self, Codec, Handle, LAYERS_MAX, Layers, Mesh, MeshEvent, NodeId, RemoteId, Roster, TrackInfo},
    loudness::Loudness,
    member_id::MemberId,
};

/// Clock rates of RTP timestamps. Source: RFC 7587, section 4.1; RFC 7741 and RFC 6184 for video.
const AUDIO_HZ: u32 = 48_000;
const VIDEO_HZ: u32 = 90_000;

/// Links to other nodes, and the members behind them.
pub struct Remotes {
    pub mesh: Mesh,
    members: Slab<RemoteMember>,
    serial: u32,
    sources: HashMap<RemoteId, Source>,
    exported: HashMap<Handle, Source>,
    /// Generation of each member that has exported tracks.
    generations: HashMap<MemberId, u64>,
    /// Formats by the number of their codec on a link.
    formats: CodecConfig,
    born: Instant,
    born_ms: u64,
}

/// Member of a room that is connected to another node.
struct RemoteMember {
    id: MemberId,
    room: u32,
    name: Box<str>,
    node: NodeId,
    generation: u64,
    /// Tracks with their numbers on the other node; `None` after the end of a track.
    tracks: Vec<(Option<RemoteId>, Track)>,
}

impl Remotes {
    pub fn track(&mut self, source: Source) -> Option<&mut Track> {
        let member = self.member_mut(source.member)?;
        member.tracks.get_mut(source.track).filter(|(id, _)| id.is_some()).map(|(_, track)| track)
    }

    fn member_mut(&mut self, id: MemberId) -> Option<&mut RemoteMember> {
        self.members.get_mut(id.remote_slot()?).filter(|member| member.id == id)
    }

    fn remote_id(&self, source: Source) -> Option<&RemoteId> {
        let member = self.members.get(source.member.remote_slot()?).filter(|member| member.id == source.member)?;
        member.tracks.get(source.track)?.0.as_ref()
    }

    pub fn name(&self, id: MemberId) -> Option<&str> {
        self.members.get(id.remote_slot()?).filter(|member| member.id == id).map(|member| &*member.name)
    }

    /// Returns the room of a remote member.
    fn room(&self, id: MemberId) -> Option<u32> {
        self.members.get(id.remote_slot()?).filter(|member| member.id == id).map(|member| member.room)
    }

    /// Returns the remote tracks of a room.
    pub fn tracks_of(&self, room: u32) -> impl Iterator<Item = WantedTrack> {
        let members = self.members.iter().filter(move |(_, member)| member.room == room);
        members.flat_map(|(_, member)| {
            let tracks = member.tracks.iter().enumerate().filter(|(_, (id, _))| id.is_some());
            tracks.map(move |(at, (_, track))| WantedTrack {
                kind: track.kind,
                source: Source { member: member.id, track: at },
                name: track.stream_name(&member.name),
            })
        })
    }

    /// Removes a receiver from all remote tracks of a room.
    pub fn remove_receiver(&mut self, room: u32, receiver: MemberId) {
        for (_, member) in self.members.iter_mut().filter(|(_, member)| member.room == room) {
            for (_, track) in &mut member.tracks {
                track.receivers.retain(|(known, _)| *known != receiver);
            }
        }
    }

    /// Forgets the remote members of a room that has no local member any more.
    fn remove_room(&mut self, room: u32, now: Instant) {
        let gone: Vec<usize> = self.members.iter().filter(|(_, one)| one.room == room).map(|(at, _)| at).collect();
        for at in gone {
            for (id, _) in self.members.remove(at).tracks {
                let Some(id) = id else { continue };
                self.sources.remove(&id);
                self.mesh.want(&id, Layers::NONE, false, now);
            }
        }
    }

    /// Returns the number of the format that is nearest to that of a packet.
    fn codec_of(&self, params: PayloadParams) -> Option<Codec> {
        let known = self.formats.match_params(params)?.pt();
        Codec::new(self.formats.params().iter().position(|format| format.pt() == known)? as u8)
    }
}

/// Returns the formats that cross a link, by their numbers. The order is part of the version of the link format.
fn formats() -> CodecConfig {
    let mut config = RtcConfig::new().clear_codecs().enable_opus(true, false).enable_vp8(true).enable_h264(true);
    config.codec_config().clone()
}

impl Switch {
    /// Makes this SFU part of a cascade. Call it before the first member joins. `unix_ms`: current time in milliseconds
    /// since 1970, which orders the connections of one participant to different nodes.
    pub fn set_cascade(&mut self, node: NodeId, unix_ms: u64, now: Instant) {
        self.remotes = Some(Box::new(Remotes {
            mesh: Mesh::new(node, self.congestion_control),
            members: Slab::new(),
            serial: 0,
            sources: HashMap::new(),
            exported: HashMap::new(),
            generations: HashMap::new(),
            formats: formats(),
            born: now,
            born_ms: unix_ms,
        }));
    }

    /// Returns the links to other nodes; `None` without [`Switch::set_cascade`].
    pub fn mesh(&self) -> Option<&Mesh> {
        self.remotes.as_ref().map(|remotes| &remotes.mesh)
    }

    /// Adds or replaces the link to another node. Source of `epoch`: [`cascade::Link::new`].
    pub fn add_link(&mut self, node: NodeId, epoch: u32, now: Instant, send: &mut (impl Send + ?Sized)) {
        self.with_mesh(now, send, |mesh| mesh.add_link(node, epoch, now));
    }

    pub fn remove_link(&mut self, node: &NodeId, now: Instant, send: &mut (impl Send + ?Sized)) {
        self.with_mesh(now, send, |mesh| mesh.remove_link(node, now));
    }

    /// Sets the nodes and members of a room, as its owner announces them.
    pub fn set_roster(&mut self, room: &str, roster: Roster, now: Instant, send: &mut (impl Send + ?Sized)) {
        self.with_mesh(now, send, |mesh| mesh.set_room(room, roster, now));
    }

    /// Handles a frame of another node, after decryption.
    pub fn handle_link_frame(&mut self, from: &NodeId, frame: &[u8], now: Instant, send: &mut (impl Send + ?Sized)) {
        self.with_mesh(now, send, |mesh| mesh.handle_frame(from, frame, now));
    }

    /// Returns the next frame for another node, before encryption. Poll after every call that takes the time.
    pub fn poll_link_frame(&mut self) -> Option<(NodeId, Vec<u8>)> {
        let (node, frame) = self.remotes.as_mut()?.mesh.poll_frame()?;
        Some((node.clone(), frame))
    }

    pub(super) fn handle_mesh_timeout(&mut self, now: Instant, send: &mut (impl Send + ?Sized)) {
        if self.remotes.as_ref().is_some_and(|remotes| remotes.mesh.timeout().is_some_and(|at| at <= now)) {
            self.with_mesh(now, send, |mesh| mesh.handle_timeout(now));
        }
    }

    fn with_mesh(&mut self, now: Instant, send: &mut (impl Send + ?Sized), work: impl FnOnce(&mut Mesh)) {
        let Some(remotes) = &mut self.remotes else { return };
        work(&mut remotes.mesh);
        while let Some(event) = self.remotes.as_mut().and_then(|remotes| remotes.mesh.poll_event()) {
            self.handle_mesh_event(event, now, send);
        }
    }

    fn handle_mesh_event(&mut self, event: MeshEvent, now: Instant, send: &mut (impl Send + ?Sized)) {
        match event {
            MeshEvent::Added(id) => self.add_remote(&id, now, send),
            MeshEvent::Changed(id) => self.change_remote(&id, now, send),
            MeshEvent::Removed(id) => self.remove_remote(&id, now, send),
            MeshEvent::Media(id, packet) => self.forward_remote(&id, &packet, now, send),
            MeshEvent::Levels(node, levels) => {
                for (handle, level) in levels {
                    let source = self.remotes.as_ref().and_then(|remotes| remotes.sources.get(&(node.clone(), handle)));
                    if let Some(source) = source.copied() {
                        self.update_remote_level(source, level, now);
                    }
                }
            }
            MeshEvent::KeyframeWanted(handle, layer) => {
                let source = self.remotes.as_ref().and_then(|remotes| remotes.exported.get(&handle)).copied();
                if let Some(source) = source {
                    self.request_keyframe(source, Some(layer.into()), now, send);
                }
            }
            // The reports to members contain times of this node, as for local tracks.
            MeshEvent::SenderReport(..) => {}
            MeshEvent::Lost(node, why) => self.events.push_back(Event::LinkLost(node, why)),
            MeshEvent::Unused(node) => self.events.push_back(Event::LinkUnused(node)),
        }
    }

    /// Offers a local track to other nodes. The tracks of a mixed room stay on their node.
    pub(super) fn export(&mut self, source: Source, now: Instant) {
        let Self { remotes: Some(remotes), members, rooms, .. } = self else { return };
        let Some(member) = members.get_mut(source.member.slot as usize) else { return };
        let (Some(track), room) = (member.tracks.get_mut(source.track), &rooms[member.room as usize]) else { return };
        if room.mixer.is_some() || track.exported.is_some() {
            return;
        }
        let elapsed = now.saturating_duration_since(remotes.born).as_millis() as u64;
        let generation = *remotes.generations.entry(member.id).or_insert(remotes.born_ms + elapsed);
        let info = TrackInfo {
            handle: Handle(0),
            generation,
            room: room.name.clone(),
            member: member.name.clone(),
            index: source.track as u8,
            is_audio: track.kind == MediaKind::Audio,
            is_muted: track.is_muted,
            is_participant: member.role == Role::Member,
            is_screen: track.is_screen,
            layers: track.layers.len() as u8,
        };
        let handle = remotes.mesh.publish(info, now);
        track.exported = Some(handle);
        remotes.exported.insert(handle, source);
    }

    /// Announces the layers of a local track, and whether it is muted.
    pub(super) fn update_exported(&mut self, source: Source, now: Instant) {
        let Self { remotes: Some(remotes), members, .. } = self else { return };
        let member = members.get(source.member.slot as usize).filter(|member| member.id == source.member);
        let Some(track) = member.and_then(|member| member.tracks.get(source.track)) else { return };
        if let Some(handle) = track.exported {
            remotes.mesh.update(handle, track.layers.len() as u8, track.is_muted, now);
        }
    }

    /// Withdraws the tracks of a member that has left.
    pub(super) fn withdraw(&mut self, id: MemberId, tracks: &[Track], now: Instant) {
        let Some(remotes) = &mut self.remotes else { return };
        remotes.generations.remove(&id);
        for handle in tracks.iter().filter_map(|track| track.exported) {
            remotes.exported.remove(&handle);
            remotes.mesh.unpublish(handle, now);
        }
    }

    /// Withdraws the tracks of a room whose audio is mixed from now on, and ends the tracks of other nodes in it.
    pub(super) fn isolate(&mut self, room: u32, now: Instant) {
        let Self { remotes: Some(remotes), members, rooms, .. } = self else { return };
        for id in &rooms[room as usize].members {
            let Some(member) = members.get_mut(id.slot as usize) else { continue };
            for handle in member.tracks.iter_mut().filter_map(|track| track.exported.take()) {
                remotes.exported.remove(&handle);
                remotes.mesh.unpublish(handle, now);
            }
            for slot in member.slots.iter_mut().filter(|slot| slot.source.is_some_and(|one| one.member.is_remote())) {
                slot.attach(None);
                member.wants_offer = true;
            }
        }
        remotes.remove_room(room, now);
    }

    /// Sends a packet of a local track to the nodes that want it.
    pub(super) fn send_to_nodes(
        &mut self,
        handle: Handle,
        (layer, packet, params): (usize, &RtpPacket, &PayloadParams),
        now: Instant,
    ) {
        let Some(remotes) = &mut self.remotes else { return };
        let Some(codec) = remotes.codec_of(*params) else { return };
        let media = Media::from(packet);
        let packet = cascade::Packet {
            layer: layer as u8,
            codec,
            sequence: *packet.seq_no,
            time: packet.time.numer(),
            marker: media.marker,
            audio_level: media.audio_level,
            orientation: media.orientation,
            payload: packet.payload.clone(),
        };
        self.forwarded += remotes.mesh.forward(handle, &packet, now) as u64;
    }

    /// Measures the local tracks for other nodes. Runs once a second.
    pub(super) fn announce_rates(&mut self, now: Instant) {
        let Self { remotes: Some(remotes), members, .. } = self else { return };
        for (handle, source) in &remotes.exported {
            let member = members.get(source.member.slot as usize).filter(|member| member.id == source.member);
            let Some(track) = member.and_then(|member| member.tracks.get(source.track)) else { continue };
            let mut rates = [0; LAYERS_MAX];
            rates.iter_mut().zip(&track.layers).for_each(|(rate, layer)| *rate = layer.bits_per_s(now));
            remotes.mesh.set_rates(*handle, rates);
        }
    }

    /// Adds the tracks of other nodes to a room that has its first local member.
    pub(super) fn add_remotes(&mut self, room: &str, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Some(remotes) = &self.remotes else { return };
        let tracks = remotes.mesh.remote_tracks().filter(|(_, track)| &*track.info.room == room);
        for id in tracks.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.add_remote(&id, now, send);
        }
    }

    pub(super) fn remove_remotes(&mut self, room: u32, now: Instant) {
        if let Some(remotes) = &mut self.remotes {
            remotes.remove_room(room, now);
        }
    }

    fn add_remote(&mut self, id: &RemoteId, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Self { remotes: Some(remotes), rooms, rooms_by_name, .. } = self else { return };
        let Some(remote) = remotes.mesh.remote_track(id) else { return };
        let Some(room_at) = rooms_by_name.get(&remote.info.room).copied() else { return };
        let room = &rooms[room_at as usize];
        if room.mixer.is_some() || remotes.sources.contains_key(id) {
            return;
        }
        let announced = Announced { kbps: remote.rates_kbps, carried: remote.carried };
        let kind = if remote.info.is_audio { MediaKind::Audio } else { MediaKind::Video };
        let track = Track {
            mid: "".into(),
            kind,
            layers: (0..remote.info.layers).map(|_| Layer::new(0.into(), None)).collect(),
            receivers: Vec::new(),
            loudness: Loudness::default(),
            is_muted: remote.info.is_muted,
            is_screen: remote.info.is_screen,
            composed_layer: 0,
            exported: None,
            announced: Some(announced),
        };
        let key = (room_at, &id.0, &remote.info.member, remote.info.generation);
        let is_it = |member: &RemoteMember| (member.room, &member.node, &member.name, member.generation) == key;
        let known = remotes.members.iter().find(|(_, member)| is_it(member)).map(|(at, _)| at);
        let at = known.unwrap_or_else(|| {
            remotes.serial = remotes.serial.wrapping_add(1);
            let slot = remotes.members.vacant_key();
            remotes.members.insert(RemoteMember {
                id: MemberId::remote(slot, remotes.serial),
                room: room_at,
                name: remote.info.member.clone(),
                node: id.0.clone(),
                generation: remote.info.generation,
                tracks: Vec::new(),
            })
        });
        let member = &mut remotes.members[at];
        let source = Source { member: member.id, track: member.tracks.len() };
        member.tracks.push((Some(id.clone()), track));
        remotes.sources.insert(id.clone(), source);
        for other in room.members.clone() {
            self.update_lines(other, now, send);
        }
    }

    fn change_remote(&mut self, id: &RemoteId, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Some(remotes) = &mut self.remotes else { return };
        let (Some(source), Some(remote)) = (remotes.sources.get(id).copied(), remotes.mesh.remote_track(id)) else {
            return;
        };
        let announced = Announced { kbps: remote.rates_kbps, carried: remote.carried };
        let (layers, is_muted) = (usize::from(remote.info.layers), remote.info.is_muted);
        let Some(track) = remotes.track(source) else { return };
        while track.layers.len() < layers {
            track.layers.push(Layer::new(0.into(), None));
        }
        let before = track.announced.replace(announced);
        let is_other = before.is_none_or(|before| before.carried != announced.carried) || track.is_muted != is_muted;
        if !is_other {
            return;
        }
        let is_muted_now = !std::mem::replace(&mut track.is_muted, is_muted) && is_muted;
        for (receiver, slot) in track.receivers.clone() {
            if is_muted_now && let Some(slot) = self.member(receiver).and_then(|member| member.slots.get_mut(slot)) {
                slot.rewriter.detach();
            }
            self.choose_layers(receiver, now, send);
        }
    }

    fn remove_remote(&mut self, id: &RemoteId, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Self { remotes: Some(remotes), rooms, .. } = self else { return };
        let Some(source) = remotes.sources.remove(id) else { return };
        let Some(member) = remotes.member_mut(source.member) else { return };
        let room = member.room;
        member.tracks[source.track].0 = None;
        if member.tracks.iter().all(|(id, _)| id.is_none()) {
            remotes.members.remove(source.member.remote_slot().unwrap_or(usize::MAX));
        }
        for other in rooms[room as usize].members.clone() {
            let Some(member) = self.member(other) else { continue };
            let Some(slot) = member.slots.iter_mut().find(|slot| slot.source == Some(source)) else { continue };
            slot.attach(None);
            member.wants_offer = true;
            self.update_lines(other, now, send);
        }
    }

    fn forward_remote(
        &mut self,
        id: &RemoteId,
        packet: &cascade::Packet,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) {
        let Some(remotes) = &mut self.remotes else { return };
        let Some(source) = remotes.sources.get(id).copied() else { return };
        let Some(params) = remotes.formats.params().get(usize::from(packet.codec.number())).copied() else { return };
        let Some(track) = remotes.track(source).filter(|track| !track.is_muted) else { return };
        let kind = track.kind;
        if params.spec().codec.is_audio() != (kind == MediaKind::Audio) {
            return;
        }
        if let Some((level, _)) = packet.audio_level {
            self.update_remote_level(source, level, now);
        }
        let codec = params.spec().codec;
        let vp8 = describe(codec, &packet.payload);
        let clock_hz = if kind == MediaKind::Audio { AUDIO_HZ } else { VIDEO_HZ };
        let incoming = Packet {
            layer: packet.layer.into(),
            sequence: packet.sequence,
            time: packet.time,
            clock_hz,
            is_key: kind == MediaKind::Audio || is_key(codec, &packet.payload, vp8.as_ref()),
            vp8: vp8.as_ref(),
        };
        let media = Media {
            payload: &packet.payload,
            clock_hz,
            marker: packet.marker,
            audio_level: packet.audio_level,
            orientation: packet.orientation,
        };
        self.fan_out(source, (media, &params, &incoming), now, send);
    }

    fn update_remote_level(&mut self, source: Source, level: u8, now: Instant) {
        let Some(room) = self.remotes.as_ref().and_then(|remotes| remotes.room(source.member)) else { return };
        let Some(track) = self.track(source).filter(|track| !track.is_muted) else { return };
        track.loudness.update(-(level.min(127) as i8), now);
        let loudness = track.loudness.now(now);
        self.update_floor(room, source, loudness, now);
    }

    /// Requests a keyframe of a remote layer from its node.
    pub(super) fn request_remote_keyframe(&mut self, source: Source, layer: usize, now: Instant) {
        let Some(remotes) = &mut self.remotes else { return };
        if let Some(id) = remotes.remote_id(source).cloned() {
            remotes.mesh.request_keyframe(&id, layer as u8, now);
        }
    }

    /// Merges what the members of this node want of a remote track: the layers that they receive, those that they would
    /// receive if they crossed the link, and the least.
    pub(super) fn update_want(&mut self, source: Source, now: Instant) {
        let Self { remotes: Some(remotes), members, rooms, .. } = self else { return };
        let (Some(id), Some(room)) = (remotes.remote_id(source).cloned(), remotes.room(source.member)) else { return };
        let Some(track) = remotes.track(source) else { return };
        let mut layers = Layers::NONE;
        for (receiver, slot) in &track.receivers {
            let member = members.get(receiver.slot as usize).filter(|member| member.id == *receiver);
            let Some(slot) = member.and_then(|member| member.slots.get(*slot)) else { continue };
            layers.insert(slot.desired);
            slot.rewriter.layer().into_iter().for_each(|layer| layers.insert(layer));
        }
        let least = track.announced.and_then(|announced| announced.least());
        least.filter(|_| !layers.is_empty()).into_iter().for_each(|least| layers.insert(least));
        if track.kind == MediaKind::Audio && !layers.is_empty() {
            layers = Layers(1);
        }
        let speaker = rooms[room as usize].floor.holder().map(|holder| holder.member);
        remotes.mesh.want(&id, layers, speaker == Some(source.member), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of this list needs another version of the link format.
    #[test]
    fn codec_numbers_belong_to_the_link_version() {
        let names: Vec<String> = formats()
            .params()
            .iter()
            .map(|params| {
                let spec = params.spec();
                let profile = spec.format.profile_level_id.map(|id| format!(" {id:06x}")).unwrap_or_default();
                let mode = spec.format.packetization_mode.map(|mode| format!(" {mode}")).unwrap_or_default();
                format!("{:?}{profile}{mode}", spec.codec)
            })
            .collect();
        assert_eq!(cascade::frame::VERSION, 1);
        let h264 = ["42001f 1", "42001f 0", "42e01f 1", "42e01f 0", "4d001f 1", "4d001f 0", "64001f 1"];
        let expected = ["Opus", "Vp8"].map(str::to_owned).into_iter().chain(h264.map(|name| format!("H264 {name}")));
        assert_eq!(names, expected.collect::<Vec<_>>());
    }
}
