//! Sending side of a link: media, tables, reports, rates and levels; choice of the layers that cross it.

use std::{collections::BTreeMap, time::Instant};

use super::{
    AUDIO_BITS_PER_S, ESTIMATE_STEP, Event, Handle, Head, KEEPALIVE, LAYERS_MAX, Layers, Link, OVERHEAD_BYTES, Packet,
    REPEAT_INTERVAL_MIN, Table, frame,
};
use crate::cascade::{
    KEYFRAME_INTERVAL_MIN, LOUDEST_MAX,
    carried::{self, Demand},
    frame::{LEVELS_MAX, RATES_MAX, SenderReport, Want},
    tables::Repeated,
};

/// Size of a frame that probes the bandwidth, and maximum number of them that are sent at once.
const PROBE_BYTES: usize = 1200;
const PROBE_BURST_MAX: usize = 32;
/// A track that is carried keeps its place among the loudest unless another is louder by this many decibels.
const LOUDNESS_MARGIN: f32 = 6.0;

impl Link {
    /// Sends one frame. `is_kept`: it is retransmitted on request.
    pub(super) fn send(&mut self, is_kept: bool, now: Instant, make: impl FnOnce(Head) -> Option<Vec<u8>>) -> bool {
        let head = Head { epoch: self.epoch, sequence: self.sent.next };
        let Some(frame) = make(head) else { return false };
        let size = frame.len() + OVERHEAD_BYTES;
        self.bandwidth.count(size, head.sequence);
        self.sent.record(size, is_kept.then(|| frame.clone()), now);
        self.counters.sent_bytes += size as u64;
        self.last_sent = now;
        self.outgoing.push_back(frame);
        true
    }

    pub(super) fn send_hello(&mut self, now: Instant) {
        self.hello_at = now + KEEPALIVE;
        let (node, known_epoch) = (self.local.clone(), self.remote_epoch);
        self.send(false, now, |head| Some(frame::hello(head, &node, known_epoch)));
    }

    /// Sends a packet of a local track if its layer crosses the link. Returns whether it was sent.
    pub fn forward(&mut self, handle: Handle, packet: &Packet, now: Instant) -> bool {
        let Some(track) = self.tracks.get_mut(&handle) else { return false };
        if let Some((level, _)) = packet.audio_level {
            track.level = Some(level);
            track.loudness.update(-(level.min(127) as i8), now);
        }
        if !track.carried.contains(packet.layer.into()) || !self.is_established {
            return false;
        }
        let is_sent = self.send(true, now, |head| frame::media(head, handle, packet));
        self.counters.sent_packets += u64::from(is_sent);
        is_sent
    }

    /// Sends the time of a publisher's sender report.
    pub fn forward_sender_report(&mut self, report: SenderReport, now: Instant) {
        if self.carried(report.handle).contains(report.layer.into()) {
            self.send(true, now, |head| Some(frame::sender_report(head, report)));
        }
    }

    /// Requests a keyframe of a remote layer. Requests of several members within [`KEYFRAME_INTERVAL_MIN`] are one.
    pub fn request_keyframe(&mut self, handle: Handle, layer: u8, now: Instant) {
        let Some(track) = self.remote_tracks.get_mut(&handle) else { return };
        let Some(requested) = track.keyframe_requested.get_mut(usize::from(layer)) else { return };
        if requested.is_none_or(|at| now.saturating_duration_since(at) >= KEYFRAME_INTERVAL_MIN) {
            *requested = Some(now);
            self.send(true, now, |head| Some(frame::keyframe(head, handle, layer)));
        }
    }

    pub(super) fn send_tables(&mut self, now: Instant) {
        let interval = (2 * self.sent.rtt).max(REPEAT_INTERVAL_MIN);
        for table in [Table::Tracks, Table::Wants, Table::Carried] {
            let mut due = Vec::new();
            self.table(table).take_due(now, interval, |version, part, last_part, entries| {
                due.push((version, part, last_part, entries.to_vec()));
            });
            for (version, part, last_part, entries) in due {
                self.send(false, now, |head| Some(frame::table(head, table, version, (part, last_part), &entries)));
            }
        }
    }

    pub(super) fn table(&mut self, table: Table) -> &mut Repeated {
        match table {
            Table::Tracks => &mut self.tracks_table,
            Table::Wants => &mut self.wants_table,
            Table::Carried => &mut self.carried_table,
        }
    }

    pub(super) fn send_reports(&mut self, now: Instant) {
        loop {
            let head = Head { epoch: self.epoch, sequence: self.sent.next };
            let Some(report) = self.arrivals.take_report(head, now) else { break };
            self.send(false, now, |_| Some(report));
        }
        let missing = self.arrivals.take_missing(self.sent.rtt, now);
        if !missing.is_empty() {
            self.send(false, now, |head| Some(frame::nack(head, &missing)));
        }
    }

    pub(super) fn send_rates(&mut self, now: Instant) {
        let kbps = |rate: u64| (rate / 1000).max(u64::from(rate > 0)).min(u32::MAX.into()) as u32;
        let videos = self.tracks.iter().filter(|(_, track)| !track.info.is_audio);
        let rates: Vec<_> = videos.map(|(handle, track)| (*handle, track.rates.map(kbps))).collect();
        for some in rates.chunks(RATES_MAX) {
            self.send(false, now, |head| Some(frame::rates(head, some)));
        }
    }

    pub(super) fn send_levels(&mut self, now: Instant) {
        let quiet = self.tracks.iter().filter(|(_, track)| !track.wanted.is_empty() && track.carried.is_empty());
        let levels: Vec<_> = quiet.filter_map(|(handle, track)| Some((*handle, track.level?))).collect();
        for some in levels.chunks(LEVELS_MAX) {
            self.send(false, now, |head| Some(frame::levels(head, some)));
        }
    }

    pub(super) fn send_probes(&mut self, now: Instant) {
        self.bandwidth.handle_timeout(self.sent.newest_reported, now);
        for _ in 0..PROBE_BURST_MAX {
            if !self.bandwidth.needs_padding(now) {
                return;
            }
            self.send(false, now, |head| Some(frame::padding(head, PROBE_BYTES)));
        }
    }

    /// Chooses the layers again if the estimate has changed.
    pub(super) fn choose_if_changed(&mut self, now: Instant) {
        let estimate = self.bandwidth.bits_per_s();
        if estimate.abs_diff(self.chosen_at_bits_per_s) * ESTIMATE_STEP > self.chosen_at_bits_per_s {
            self.choose(now);
        }
    }

    /// Chooses the layers that cross the link, and announces them to the other node.
    pub(super) fn choose(&mut self, now: Instant) {
        let audio = self.loudest(now);
        let estimate = self.bandwidth.bits_per_s();
        self.chosen_at_bits_per_s = estimate;
        let videos: Vec<Handle> =
            self.tracks.iter().filter(|(_, track)| !track.info.is_audio).map(|(handle, _)| *handle).collect();
        let demand = |handle: &Handle| {
            let track = &self.tracks[handle];
            let rates = if track.info.is_muted { [0; LAYERS_MAX] } else { track.rates };
            Demand { rates, wanted: track.wanted, carried: track.carried, has_priority: track.has_priority }
        };
        let demands: Vec<Demand> = videos.iter().map(demand).collect();
        let sound = audio.len() as u64 * AUDIO_BITS_PER_S;
        let chosen = carried::choose(&demands, estimate.saturating_sub(sound));
        let rate = |demand: &Demand| demand.wanted.iter().map(|layer| demand.rates[layer]).sum::<u64>();
        let desired = sound + demands.iter().map(rate).sum::<u64>();
        // Another layer requires a reserve, so probe for a little more than is wanted.
        self.bandwidth.set_desired(desired + desired / 4);
        for (handle, layers) in videos.into_iter().zip(chosen) {
            let Some(track) = self.tracks.get_mut(&handle) else { continue };
            let added = layers.without(std::mem::replace(&mut track.carried, layers));
            added.iter().for_each(|layer| self.events.push_back(Event::KeyframeWanted(handle, layer as u8)));
        }
        for (handle, track) in self.tracks.iter_mut().filter(|(_, track)| track.info.is_audio) {
            track.carried = if audio.contains(handle) { Layers(1) } else { Layers::NONE };
        }
        let wanted = self.tracks.iter().filter(|(_, track)| !track.wanted.is_empty());
        let entries = wanted.map(|(handle, track)| {
            let mut entry = Vec::new();
            Want { handle: *handle, layers: track.carried, has_priority: false }.encode(&mut entry);
            entry
        });
        self.carried_table.set(entries, now);
    }

    /// Returns the wanted audio tracks that cross the link: the loudest of each room.
    fn loudest(&self, now: Instant) -> Vec<Handle> {
        let mut rooms: BTreeMap<&str, Vec<(f32, Handle)>> = BTreeMap::new();
        let audio = self.tracks.iter().filter(|(_, track)| track.info.is_audio && !track.wanted.is_empty());
        for (handle, track) in audio.filter(|(_, track)| !track.info.is_muted) {
            let margin = if track.carried.is_empty() { 0.0 } else { LOUDNESS_MARGIN };
            rooms.entry(&track.info.room).or_default().push((track.loudness.now(now) + margin, *handle));
        }
        let mut loudest = Vec::new();
        for tracks in rooms.values_mut() {
            tracks.sort_by(|one, other| other.0.total_cmp(&one.0));
            loudest.extend(tracks.iter().take(LOUDEST_MAX).map(|(_, handle)| *handle));
        }
        loudest
    }
}
