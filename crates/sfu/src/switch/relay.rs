use std::time::{Duration, Instant};

use millrace_room::Muted;
use str0m::{
    IceConnectionState,
    format::PayloadParams,
    media::{KeyframeRequestKind, MediaKind},
    rtp::RtpPacket,
};

use super::{
    allocate::{LayerSwitch, VideoDemand, allocate, reason},
    member::{Media, Slot},
    rewriter::Packet,
    source::{Role, Source},
    state::{Event, Send, Switch},
    track::{LAYERS_MAX, Layer, Track, describe, is_key},
};
use crate::{compositor, member_id::MemberId, mixer::Input};

/// Maximum time for a member that has lost its network path to restore it.
const RESTART_TIMEOUT: Duration = Duration::from_secs(15);
/// Bandwidth reserved for audio, in bit/s per received audio track.
const AUDIO_BITS_PER_S: u64 = 50_000;
/// Assumed bit rate of a video whose layers have not been measured yet, so that bandwidth is probed for it.
const UNMEASURED_VIDEO_BITS_PER_S: u64 = 1_500_000;

impl Switch {
    pub(super) fn handle_event(
        &mut self,
        id: MemberId,
        event: str0m::Event,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) {
        match event {
            str0m::Event::RtpPacket(packet) => self.forward(id, &packet, now, send),
            str0m::Event::MediaAdded(added) => self.add_line(id, added, now, send),
            str0m::Event::KeyframeRequest(request) => {
                let Some(member) = self.member(id) else { return };
                let slot = member.slots.iter().find(|slot| slot.mid == request.mid);
                let room = member.room;
                match slot.and_then(|slot| Some((slot.source?, slot.rewriter.layer()))) {
                    Some((Source::COMPOSITE, _)) => {
                        self.rooms[room as usize].send_to_compositor(compositor::Input::KeyframeWanted);
                    }
                    Some((source, layer)) => self.request_keyframe(source, layer, now, send),
                    None => {}
                }
            }
            str0m::Event::Connected => {
                let Some(member) = self.member(id) else { return };
                member.ends = None;
                if !std::mem::replace(&mut member.is_connected, true) {
                    let (room, name) = (member.room, member.name.clone());
                    let sources: Vec<_> = member.slots.iter().filter_map(|slot| slot.source).collect();
                    self.events.push_back(Event::Connected(id));
                    for source in sources {
                        self.request_keyframe(source, None, now, send);
                    }
                    self.release_soon(room, &name, now);
                    self.update_lines(id, now, send);
                }
            }
            str0m::Event::IceConnectionStateChange(state) => {
                let Some(member) = self.member(id) else { return };
                match state {
                    IceConnectionState::Disconnected => member.ends = Some(now + RESTART_TIMEOUT),
                    IceConnectionState::Connected | IceConnectionState::Completed => member.ends = None,
                    _ => {}
                }
            }
            str0m::Event::ChannelOpen(..)
            | str0m::Event::ChannelData(_)
            | str0m::Event::ChannelBufferedAmountLow(_)
            | str0m::Event::ChannelClose(_) => self.handle_data(id, event, now, send),
            str0m::Event::Closed => self.remove(id, false, now, send),
            _ => {}
        }
    }

    /// Forwards one packet to all receivers of its layer.
    fn forward(&mut self, id: MemberId, packet: &RtpPacket, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Some((track_at, layer)) = self.layer(id, packet, now) else { return };
        let Some(member) = self.member(id) else { return };
        if member.incoming.is_some() {
            self.measure_incoming(id, packet, now, send);
        }
        let Some(member) = self.member(id) else { return };
        let find = |params: &&PayloadParams| params.pt() == packet.header.payload_type;
        let Some(params) = member.connection.rtc.codec_config().params().iter().find(find).copied() else { return };
        let room = member.room;
        let track = &mut member.tracks[track_at];
        if track.is_muted {
            return;
        }
        let level = packet.header.ext_vals.audio_level.filter(|_| track.kind == MediaKind::Audio);
        if let Some(level) = level {
            track.loudness.update(level, now);
        }
        let loudness = level.map(|_| track.loudness.now(now));
        let (kind, exported) = (track.kind, track.exported);
        let vp8 = describe(params.spec().codec, &packet.payload);
        let incoming = Packet {
            layer,
            sequence: *packet.seq_no,
            time: packet.time.numer(),
            clock_hz: packet.time.denom(),
            is_key: kind == MediaKind::Audio || is_key(params.spec().codec, &packet.payload, vp8.as_ref()),
            vp8: vp8.as_ref(),
        };
        let source = Source { member: id, track: track_at };
        if let Some(loudness) = loudness {
            self.update_floor(room, source, loudness, now);
        }
        let opus = (params.spec().codec == str0m::format::Codec::Opus).then_some(&packet.payload);
        if kind == MediaKind::Audio && self.mix(source, room, incoming.sequence, opus) {
            return;
        }
        if kind == MediaKind::Video && self.compose(source, room, (layer, packet, &params)) {
            return;
        }
        self.fan_out(source, (packet.into(), &params, &incoming), now, send);
        if let Some(handle) = exported {
            self.send_to_nodes(handle, (layer, packet, &params), now);
        }
    }

    /// Updates the active speaker of a room after an audio packet of `source`.
    pub(super) fn update_floor(&mut self, room: u32, source: Source, loudness: f32, now: Instant) {
        let holder = self.holder(room).and_then(|holder| Some(self.track(holder)?.loudness.now(now)));
        self.rooms[room as usize].floor.update(source, loudness, holder.unwrap_or(0.0), now);
    }

    /// Sends one packet to all receivers of its layer.
    pub(super) fn fan_out(
        &mut self,
        source: Source,
        (media, params, incoming): (Media<'_>, &PayloadParams, &Packet<'_>),
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) {
        let Some(track) = self.track(source) else { return };
        let receivers = std::mem::take(&mut track.receivers);
        for (receiver, slot) in &receivers {
            let Some(member) = self.member(*receiver) else { continue };
            let can_leave = member.egress.is_some();
            let line = member.slots.get_mut(*slot).filter(|line| can_leave && line.source == Some(source));
            let Some(sent) = line.and_then(|line| line.rewriter.renumber(incoming, now)) else { continue };
            if let Some((to, datagram)) = member.write(*slot, (media, params, sent), now) {
                self.forwarded += 1;
                send(to, datagram);
            }
        }
        if let Some(track) = self.track(source) {
            // The receiver list was taken out of the track during the loop. Restore it, and keep receivers that were
            // added meanwhile.
            let added = std::mem::replace(&mut track.receivers, receivers);
            for (receiver, slot) in added {
                track.receivers.retain(|(known, _)| *known != receiver);
                track.receivers.push((receiver, slot));
            }
        }
    }

    /// Sets which media of a member are muted. Muted tracks are not forwarded. After unmuting, video resumes with its
    /// next keyframe; the sequence numbers continue without a gap.
    pub fn mute(&mut self, id: MemberId, muted: Muted, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Some(member) = self.member(id) else { return };
        member.muted = muted;
        let room = member.room;
        let wanted: Vec<bool> = member.tracks.iter().map(|track| member.is_muted(track.kind)).collect();
        for (at, is_muted) in wanted.into_iter().enumerate() {
            let source = Source { member: id, track: at };
            let Some(track) = self.track(source).filter(|track| track.is_muted != is_muted) else { continue };
            let (kind, is_camera) = (track.kind, track.is_camera());
            track.is_muted = is_muted;
            self.update_exported(source, now);
            if is_muted && kind == MediaKind::Audio {
                self.rooms[room as usize].send_to_mixer(Input::Muted(id));
            }
            if is_muted && is_camera {
                self.rooms[room as usize].send_to_compositor(compositor::Input::Muted(id));
            }
            let Some(track) = self.track(source) else { continue };
            for (receiver, slot) in track.receivers.clone() {
                if let Some(slot) = self.member(receiver).and_then(|member| member.slots.get_mut(slot)) {
                    slot.rewriter.detach();
                }
                self.choose_layers(receiver, now, send);
            }
        }
    }

    /// Returns the indexes of the track and the layer of a packet. The first packet of a layer creates the layer.
    fn layer(&mut self, id: MemberId, packet: &RtpPacket, now: Instant) -> Option<(usize, usize)> {
        let member = self.member(id)?;
        let ssrc = packet.header.ssrc;
        for (at, track) in member.tracks.iter_mut().enumerate() {
            if let Some(layer) = track.layers.iter().position(|layer| layer.ssrc == ssrc) {
                track.layers[layer].count(packet.payload.len(), now);
                return Some((at, layer));
            }
        }
        let mut api = member.connection.rtc.direct_api();
        let stream = api.stream_rx(&ssrc)?;
        let (mid, rid) = (stream.mid(), stream.rid());
        let at = member.tracks.iter().position(|track| track.mid == mid)?;
        let layers = &mut member.tracks[at].layers;
        // The layer exists with another SSRC: the publisher has restarted the stream.
        let layer = match layers.iter().position(|layer| layer.rid == rid) {
            Some(layer) => {
                layers[layer].ssrc = ssrc;
                layer
            }
            None if layers.len() < LAYERS_MAX => {
                layers.push(Layer::new(ssrc, rid));
                let layer = layers.len() - 1;
                self.update_exported(Source { member: id, track: at }, now);
                layer
            }
            None => return None,
        };
        Some((at, layer))
    }

    /// Requests a keyframe from the publisher of a track, for this layer. `None`: for all layers that receivers wait
    /// for.
    pub(super) fn request_keyframe(
        &mut self,
        source: Source,
        layer: Option<usize>,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) {
        let is_wanted = |track: &&mut Track| track.kind == MediaKind::Video && !track.is_muted;
        let Some(track) = self.track(source).filter(is_wanted) else { return };
        let (mid, receivers) = (track.mid, track.receivers.clone());
        let mut wanted: Vec<usize> = layer.into_iter().collect();
        if layer.is_none() {
            for (receiver, slot) in receivers {
                let slot = self.member(receiver).and_then(|member| member.slots.get(slot));
                wanted.extend(slot.filter(|slot| slot.rewriter.is_waiting()).map(|slot| slot.rewriter.wanted));
            }
            wanted.sort_unstable();
            wanted.dedup();
        }
        for layer in wanted {
            if source.member.is_remote() {
                self.request_remote_keyframe(source, layer, now);
                continue;
            }
            let Some(track) = self.track(source) else { return };
            let Some(layer) = track.layers.get_mut(layer) else { continue };
            if !layer.note_request(now) {
                continue;
            }
            let rid = layer.rid;
            self.work(source.member, now, send, |member, collected| {
                member.run(collected, |rtc| {
                    if let Some(stream) = rtc.direct_api().stream_rx_by_mid(mid, rid) {
                        stream.request_keyframe(KeyframeRequestKind::Pli);
                    }
                    Ok(())
                })
            });
        }
    }

    /// Chooses the layer of each video that a member receives, and sets the bit rate for which its path is probed.
    pub(super) fn choose_layers(&mut self, id: MemberId, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Some(member) = self.member(id).filter(|member| member.role != Role::Publisher) else { return };
        member.estimate = member.egress.as_ref().and_then(|egress| egress.bits_per_s());
        let (estimate, room) = (member.estimate, member.room);
        let audio_slots =
            member.slots.iter().filter(|slot| slot.kind == MediaKind::Audio && slot.source.is_some()).count();
        let is_video = |(_, slot): &(usize, &Slot)| slot.kind == MediaKind::Video;
        let video = |(at, slot): (usize, &Slot)| {
            let source = slot.source?;
            Some((at, source, if source.member.is_remote() { slot.desired } else { slot.rewriter.wanted }))
        };
        let videos: Vec<_> = member.slots.iter().enumerate().filter(is_video).filter_map(video).collect();
        let speaker = self.holder(room).map(|holder| holder.member);
        let mut demand = |(_, source, current): &(usize, Source, usize)| {
            if *source == Source::COMPOSITE {
                return VideoDemand { rates: vec![compositor::BITS_PER_S.into()], current: 0, has_priority: true };
            }
            let track = self.track(*source).filter(|track| !track.is_muted);
            let rates = track.map_or_else(Vec::new, |track| track.rates(now));
            VideoDemand { rates, current: *current, has_priority: speaker == Some(source.member) }
        };
        let mut demands: Vec<VideoDemand> = videos.iter().map(&mut demand).collect();
        let sound = audio_slots as u64 * AUDIO_BITS_PER_S;
        let best = |demand: &VideoDemand| {
            demand.rates.iter().copied().max().filter(|rate| *rate > 0).unwrap_or(UNMEASURED_VIDEO_BITS_PER_S)
        };
        let desired = sound + demands.iter().map(best).sum::<u64>();
        let carries = estimate.map_or(u64::MAX / 4, |estimate| estimate.saturating_sub(sound));
        let mut chosen = allocate(&demands, carries);
        if videos.iter().any(|(_, source, _)| source.member.is_remote()) {
            self.desire(id, &videos, &chosen, now);
            self.limit_to_arriving(id, &videos, &mut demands, now);
            chosen = allocate(&demands, carries);
        }
        let Some(member) = self.member(id) else { return };
        for (video, ((at, ..), layer)) in videos.iter().zip(&chosen).enumerate() {
            let slot = &mut member.slots[*at];
            let from = std::mem::replace(&mut slot.rewriter.wanted, *layer);
            if from != *layer && slot.rewriter.layer().is_some() {
                let why = reason(&demands, carries, video, *layer);
                slot.switched = Some((LayerSwitch { from, to: *layer, why, ago_ms: 0 }, now));
            }
        }
        if let Some(egress) = &mut member.egress {
            // Probe for a little more than the best layers need, because a better layer requires a reserve.
            egress.set_desired(desired + desired / 4, now);
            self.queue(id);
        }
        for (at, source, _) in videos {
            if source != Source::COMPOSITE {
                self.request_keyframe(source, None, now, send);
                continue;
            }
            let is_waiting = self.member(id).is_some_and(|member| member.slots[at].rewriter.is_waiting());
            if is_waiting {
                self.rooms[room as usize].send_to_compositor(compositor::Input::KeyframeWanted);
            }
        }
    }

    /// Records the layers that a member would receive if all layers of its sources arrived at this node, and updates
    /// what this node wants of other nodes.
    fn desire(&mut self, id: MemberId, videos: &[(usize, Source, usize)], chosen: &[usize], now: Instant) {
        for ((at, source, _), layer) in
            videos.iter().zip(chosen).filter(|((_, source, _), _)| source.member.is_remote())
        {
            let Some(slot) = self.member(id).and_then(|member| member.slots.get_mut(*at)) else { continue };
            slot.desired = *layer;
            self.update_want(*source, now);
        }
    }

    /// Takes the layers out of the demands that do not arrive at this node.
    fn limit_to_arriving(
        &mut self,
        id: MemberId,
        videos: &[(usize, Source, usize)],
        demands: &mut [VideoDemand],
        now: Instant,
    ) {
        for ((at, source, _), demand) in videos.iter().zip(demands) {
            if let Some(track) = self.track(*source).filter(|track| !track.is_muted) {
                demand.rates = track.arriving_rates(now);
            }
            if let Some(slot) = self.member(id).and_then(|member| member.slots.get(*at)) {
                demand.current = slot.rewriter.wanted;
            }
        }
    }

    /// Runs once a second. The bit rates of the layers may have changed, and a keyframe request may have been lost.
    pub(super) fn tick(&mut self, now: Instant, send: &mut (impl Send + ?Sized)) {
        self.announce_rates(now);
        self.choose_composed_layers(now);
        self.release_expired(now, send);
        let all: Vec<MemberId> = self.members.iter().map(|(_, member)| member.id).collect();
        for id in all {
            self.choose_layers(id, now, send);
            self.report_incoming(id, now, send);
        }
    }
}
