//! Receiving side of a link.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::{Event, Handle, LAYERS_MAX, Layers, Link, OfferedTrack, Packet, Refused, TRACKS_MAX};
use crate::cascade::{
    arrivals::Arrivals,
    extend,
    frame::{self, Body, Head, Report, Table, TrackInfo, Want},
    tables::Received,
};

/// Sequence numbers and timestamps that cross a link have 32 bits. The first one is extended by this, so that packets
/// from before it have numbers, too.
const FIRST_NUMBER: u64 = 1 << 32;

impl Link {
    /// Handles a frame of the other node, after decryption.
    ///
    /// Errors: the other node does not follow the protocol, or has another version; the link must be closed.
    pub fn handle_frame(&mut self, bytes: &[u8], now: Instant) -> Result<(), Refused> {
        let (head, body) = frame::decode(bytes)?;
        if let Body::Hello { node, known_epoch } = body {
            return self.handle_hello(head, &node, known_epoch, now);
        }
        if head.epoch != self.remote_epoch {
            self.counters.stale += 1;
            return Ok(());
        }
        let is_asking = !matches!(body, Body::Report(_) | Body::Nack(_) | Body::Ack { .. });
        if !self.arrivals.record(head.sequence, is_asking, now) {
            self.counters.duplicates += 1;
            return Ok(());
        }
        self.note_alive(now);
        // The other node sends such a frame only when it knows the epoch of this node.
        self.establish();
        match body {
            Body::Hello { .. } | Body::Padding => {}
            Body::Media { handle, packet } => self.handle_media(handle, packet),
            Body::Report(report) => self.handle_report(&report, now),
            Body::Nack(missing) => {
                for number in missing {
                    if let Some(frame) = self.sent.retransmit(number, now) {
                        self.counters.sent_bytes += (frame.len() + super::OVERHEAD_BYTES) as u64;
                        self.outgoing.push_back(frame);
                    }
                }
            }
            Body::Table { table, version, part, last_part, entries } => {
                let received = match table {
                    Table::Tracks => &mut self.remote_table,
                    Table::Wants => &mut self.wanted_by_remote,
                    Table::Carried => &mut self.remote_carried,
                };
                let whole = received.take(version, part, last_part, entries);
                self.send(false, now, |head| Some(frame::ack(head, table, version, part)));
                if let Some(entries) = whole {
                    match table {
                        Table::Tracks => self.handle_tracks(TrackInfo::decode_all(&entries)?, now)?,
                        Table::Wants => self.handle_wants(&Want::decode_all(&entries)?, now),
                        Table::Carried => self.handle_carried(&Want::decode_all(&entries)?),
                    }
                }
            }
            Body::Ack { table, version, part } => self.table(table).acknowledge(version, part),
            Body::Keyframe { handle, layer } => {
                if self.carried(handle).contains(layer.into()) {
                    self.events.push_back(Event::KeyframeWanted(handle, layer));
                }
            }
            Body::Rates(rates) => {
                for (handle, kbps) in rates {
                    if let Some(track) = self.remote_tracks.get_mut(&handle) {
                        track.rates_kbps = kbps;
                    }
                }
                self.events.push_back(Event::Rates);
            }
            Body::Levels(levels) => {
                let known = levels.into_iter().filter(|(handle, _)| self.remote_tracks.contains_key(handle)).collect();
                self.events.push_back(Event::Levels(known));
            }
            Body::SenderReport(report) => {
                if self.remote_tracks.contains_key(&report.handle) {
                    self.events.push_back(Event::SenderReport(report));
                }
            }
        }
        Ok(())
    }

    fn handle_hello(
        &mut self,
        head: Head,
        node: &crate::cascade::NodeId,
        known_epoch: u32,
        now: Instant,
    ) -> Result<(), Refused> {
        if *node != self.remote {
            let (expected, said) = (self.remote.as_str().into(), node.as_str().into());
            return Err(Refused::Node { expected, said });
        }
        if head.epoch < self.remote_epoch {
            self.counters.stale += 1;
            return Ok(());
        }
        if head.epoch > self.remote_epoch {
            self.restart(head.epoch, now);
        }
        if !self.arrivals.record(head.sequence, false, now) {
            self.counters.duplicates += 1;
            return Ok(());
        }
        self.note_alive(now);
        if known_epoch == self.epoch {
            self.establish();
        } else {
            self.send_hello(now);
        }
        Ok(())
    }

    /// The other node has begun again: it knows nothing of this node's state.
    fn restart(&mut self, epoch: u32, now: Instant) {
        (self.remote_epoch, self.is_established, self.hello_at) = (epoch, false, now);
        self.arrivals = Arrivals::new(now);
        for received in [&mut self.remote_table, &mut self.wanted_by_remote, &mut self.remote_carried] {
            *received = Received::default();
        }
        for track in self.tracks.values_mut() {
            (track.wanted, track.carried) = (Layers::NONE, Layers::NONE);
        }
        for table in [Table::Tracks, Table::Wants, Table::Carried] {
            self.table(table).restart(now);
        }
        if !std::mem::take(&mut self.remote_tracks).is_empty() {
            self.wants.clear();
            self.publish_wants(now);
            self.events.push_back(Event::Tracks);
        }
    }

    fn establish(&mut self) {
        if !std::mem::replace(&mut self.is_established, true) {
            self.events.push_back(Event::Established);
        }
    }

    fn note_alive(&mut self, now: Instant) {
        self.last_received = now;
        self.is_dead = false;
        if std::mem::take(&mut self.is_silent) {
            self.events.push_back(Event::Alive);
        }
    }

    fn handle_report(&mut self, report: &Report<'_>, now: Instant) {
        let Self { sent, bandwidth, .. } = self;
        sent.read_report(report, now, |number, arrival| bandwidth.arrived(number, arrival));
        if sent.covered > 0 {
            bandwidth.handle_report(sent, now);
            self.choose_if_changed(now);
        }
    }

    fn handle_tracks(&mut self, tracks: Vec<TrackInfo>, now: Instant) -> Result<(), Refused> {
        if tracks.len() > TRACKS_MAX {
            return Err(Refused::TooManyTracks(tracks.len()));
        }
        let mut old = std::mem::take(&mut self.remote_tracks);
        for info in tracks {
            let handle = info.handle;
            let track = match old.remove(&handle) {
                Some(known) => OfferedTrack { info, ..known },
                None => OfferedTrack {
                    info,
                    carried: Layers::NONE,
                    rates_kbps: [0; LAYERS_MAX],
                    newest: [None; LAYERS_MAX],
                    keyframe_requested: [None; LAYERS_MAX],
                },
            };
            if self.remote_tracks.insert(handle, track).is_some() {
                return Err(Refused::DuplicateTrack(handle.0));
            }
        }
        let Self { wants, remote_tracks, .. } = self;
        wants.retain(|handle, _| remote_tracks.contains_key(handle));
        self.publish_wants(now);
        self.events.push_back(Event::Tracks);
        Ok(())
    }

    fn handle_wants(&mut self, wants: &[Want], now: Instant) {
        let wants: BTreeMap<Handle, &Want> = wants.iter().map(|want| (want.handle, want)).collect();
        for (handle, track) in &mut self.tracks {
            let want = wants.get(handle);
            track.wanted = want.map_or(Layers::NONE, |want| want.layers);
            track.has_priority = want.is_some_and(|want| want.has_priority);
        }
        self.choose(now);
    }

    fn handle_carried(&mut self, carried: &[Want]) {
        let named: BTreeSet<Handle> = carried.iter().map(|want| want.handle).collect();
        let mut is_changed = false;
        let none = self.remote_tracks.keys().filter(|handle| !named.contains(handle));
        let none: Vec<_> = none.map(|handle| (*handle, Layers::NONE)).collect();
        for (handle, layers) in carried.iter().map(|want| (want.handle, want.layers)).chain(none) {
            if let Some(track) = self.remote_tracks.get_mut(&handle) {
                is_changed |= std::mem::replace(&mut track.carried, layers) != layers;
            }
        }
        if is_changed {
            self.events.push_back(Event::Tracks);
        }
    }

    fn handle_media(&mut self, handle: Handle, mut packet: Packet) {
        let layer = usize::from(packet.layer);
        let is_wanted = self.wants.get(&handle).is_some_and(|want| want.effective().contains(layer));
        let Some(track) = self.remote_tracks.get_mut(&handle).filter(|_| is_wanted) else {
            self.counters.unwanted += 1;
            return;
        };
        let (sequence, time) = (packet.sequence as u32, packet.time as u32);
        let first = (FIRST_NUMBER + u64::from(sequence), FIRST_NUMBER + u64::from(time));
        let near = track.newest[layer].unwrap_or(first);
        (packet.sequence, packet.time) = (extend(near.0, sequence), extend(near.1, time));
        if packet.sequence >= near.0 {
            track.newest[layer] = Some((packet.sequence, packet.time));
        }
        self.counters.received_packets += 1;
        self.events.push_back(Event::Media(handle, packet));
    }
}
