//! A switching unit in three kinds of nodes: participants, one uplink per participant, and one leg per stream and
//! receiver.
//!
//! With the policy `pass-through` the uplink forwards everything unchanged, and there are no legs: the sender gets the
//! feedback of all receivers.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use millrace_call::{
    Receiver, Sender, Source,
    packet::{Header, VIDEO},
    receiver::Statistics,
    sender::FRAME_BEGIN,
};
use millrace_sfu::{
    egress::is_report,
    rtcp::{self, Feedback},
};

use super::{
    layout::{is_sender_report, reported_ssrc, ssrc, stream_of},
    watch::Watch,
};
use crate::scenarios::lozano::network::{Node, NodeId, Outgoing};

/// Participant of a unit: sends one video, in one or several layers, and receives those of all others.
pub struct UnitPeer {
    pub layers: Vec<(Source, Sender)>,
    /// Node to which the video goes.
    pub uplink: NodeId,
    /// Receiver of each other participant's video, by its number, and the node that gets its reports.
    pub receivers: BTreeMap<usize, (Receiver, NodeId)>,
    pub watch: Watch,
}

impl UnitPeer {
    pub fn statistics(&self) -> impl Iterator<Item = Statistics> {
        self.receivers.values().map(|(receiver, _)| receiver.statistics())
    }

    fn film(&mut self, now: Instant) {
        for (source, sender) in &mut self.layers {
            source.set_target(sender.media_bits_per_s());
            if sender.take_keyframe_request() {
                source.request_keyframe();
            }
            while source.timeout() <= now {
                match source.poll_frame(now, sender.has_backlog()) {
                    Some(frame) => sender.push_frame(&frame, now),
                    None => sender.skip_frame(),
                }
            }
        }
    }
}

impl Node for UnitPeer {
    fn timeout(&self) -> Option<Instant> {
        let layers = self.layers.iter().flat_map(|(source, sender)| [source.timeout(), sender.timeout()]);
        layers.chain(self.receivers.values().map(|(receiver, _)| receiver.timeout())).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.layers.iter_mut().for_each(|(_, sender)| sender.handle_timeout(now));
        for (receiver, _) in self.receivers.values_mut().filter(|(receiver, _)| receiver.timeout() <= now) {
            receiver.handle_timeout(now);
        }
        self.film(now);
    }

    fn handle_datagram(&mut self, _from: NodeId, datagram: &[u8], now: Instant) {
        if !is_report(datagram) {
            self.watch.record(datagram, now);
            let peer = Header::read(datagram).map(|(header, _)| stream_of(header.ssrc).0);
            if let Some((receiver, _)) = peer.and_then(|peer| self.receivers.get_mut(&peer)) {
                receiver.handle_packet(datagram, now);
            }
            return;
        }
        let Some((peer, layer)) = reported_ssrc(datagram).map(stream_of) else { return };
        match self.receivers.get_mut(&peer) {
            Some((receiver, _)) => receiver.handle_report(datagram, now),
            None => {
                if let Some((_, sender)) = self.layers.get_mut(layer) {
                    sender.handle_report(datagram, now);
                }
                self.film(now);
            }
        }
    }

    fn poll_output(&mut self, _now: Instant) -> Option<(NodeId, Outgoing)> {
        let video = self.layers.iter_mut().find_map(|(_, sender)| sender.poll_output());
        if let Some(datagram) = video {
            return Some((self.uplink, Outgoing::of_call(datagram)));
        }
        self.receivers.values_mut().find_map(|(receiver, to)| Some((*to, Outgoing::of_call(receiver.poll_output()?))))
    }
}

/// The unit's end of one participant's video.
pub struct Uplink {
    /// Participant that sends the video.
    pub peer: NodeId,
    /// Receivers of its layers. Empty: everything is passed through.
    pub layers: Vec<Receiver>,
    /// Nodes that get the video: participants, or legs.
    pub to: Vec<NodeId>,
    /// With the policy `lowest`: rate of each leg in bit/s, and when the sender is notified next.
    pub lowest: Option<(BTreeMap<NodeId, u64>, Instant)>,
    pub out: VecDeque<(NodeId, Vec<u8>)>,
}

const LOWEST_INTERVAL: Duration = Duration::from_millis(500);

impl Node for Uplink {
    fn timeout(&self) -> Option<Instant> {
        self.layers.iter().map(Receiver::timeout).chain(self.lowest.as_ref().map(|(_, at)| *at)).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.layers.iter_mut().for_each(|receiver| receiver.handle_timeout(now));
        if let Some((rates, at)) = self.lowest.as_mut().filter(|(_, at)| *at <= now) {
            *at = now + LOWEST_INTERVAL;
            if let Some(lowest) = rates.values().min() {
                self.out.push_back((self.peer, rtcp::remb(1, ssrc(self.peer, 0), *lowest)));
            }
        }
    }

    fn handle_datagram(&mut self, from: NodeId, datagram: &[u8], now: Instant) {
        if self.layers.is_empty() {
            let is_of_peer = !is_report(datagram) || is_sender_report(datagram);
            match is_of_peer {
                true => self.out.extend(self.to.iter().map(|to| (*to, datagram.to_vec()))),
                false => self.out.push_back((self.peer, datagram.to_vec())),
            }
            return;
        }
        if from != self.peer {
            self.handle_leg(from, datagram, now);
        } else if is_report(datagram) {
            self.layers.iter_mut().for_each(|receiver| receiver.handle_report(datagram, now));
        } else if let Some((header, _)) = Header::read(datagram) {
            let layer = stream_of(header.ssrc).1;
            let Some(receiver) = self.layers.get_mut(layer) else { return };
            receiver.handle_packet(datagram, now);
            while let Some(packet) = receiver.poll_packet() {
                let header = Header {
                    payload_type: VIDEO,
                    marker: packet.marker,
                    sequence: packet.sequence,
                    time: packet.time,
                    ssrc: ssrc(self.peer, layer),
                    number: None,
                };
                let bytes = header.write(&packet.payload);
                self.out.extend(self.to.iter().map(|to| (*to, bytes.clone())));
            }
        }
    }

    fn poll_output(&mut self, _now: Instant) -> Option<(NodeId, Outgoing)> {
        let peer = self.peer;
        let report = self.layers.iter_mut().find_map(|receiver| receiver.poll_output()).map(|report| (peer, report));
        let (to, bytes) = report.or_else(|| self.out.pop_front())?;
        Some((to, Outgoing::of_call(bytes)))
    }
}

impl Uplink {
    /// Handles the reports of a leg: its rate, or a keyframe that it needs.
    fn handle_leg(&mut self, leg: NodeId, datagram: &[u8], now: Instant) {
        let Self { layers, lowest, .. } = self;
        rtcp::read(datagram, |feedback| match feedback {
            Feedback::Remb { bits_per_s, .. } => {
                if let Some((rates, _)) = lowest {
                    rates.insert(leg, bits_per_s);
                }
            }
            Feedback::KeyframeRequest { ssrc } => {
                if let Some(receiver) = layers.get_mut(stream_of(ssrc).1) {
                    receiver.request_keyframe(now);
                }
            }
            _ => {}
        });
    }
}

/// The unit's end of one stream to one receiver, with a congestion controller of its own.
pub struct Leg {
    /// Number of the participant that sends the video, its uplink, and the receiver.
    pub from: usize,
    pub uplink: NodeId,
    pub to: NodeId,
    pub sender: Sender,
    /// Rates of the layers in bit/s, the lowest first.
    pub layers: Vec<u64>,
    pub layer: usize,
    pub wanted: usize,
    /// Number added to the sequence numbers of the current layer.
    pub offset: u16,
    pub last_sequence: Option<u16>,
    pub report_at: Instant,
    pub out: VecDeque<Vec<u8>>,
}

const REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// A higher layer needs this multiple of its rate; the current one stays above `STAY_FACTOR`.
const UP_FACTOR: f64 = 1.1;
const STAY_FACTOR: f64 = 0.9;

impl Leg {
    fn select(&mut self) {
        let rate = self.sender.media_bits_per_s() as f64;
        let fits = |layer: usize, factor: f64| self.layers[layer] as f64 * factor <= rate;
        let highest = (0..self.layers.len()).rev().find(|layer| fits(*layer, UP_FACTOR)).unwrap_or(0);
        self.wanted = if highest < self.layer && fits(self.layer, STAY_FACTOR) { self.layer } else { highest };
    }
}

impl Node for Leg {
    fn timeout(&self) -> Option<Instant> {
        Some(self.sender.timeout().min(self.report_at))
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.sender.handle_timeout(now);
        if self.report_at <= now {
            self.report_at = now + REPORT_INTERVAL;
            self.select();
            self.out.push_back(rtcp::remb(1, ssrc(self.from, 0), self.sender.media_bits_per_s()));
            if self.wanted != self.layer {
                self.out.push_back(rtcp::keyframe_request(1, ssrc(self.from, self.wanted)));
            }
        }
    }

    fn handle_datagram(&mut self, from: NodeId, datagram: &[u8], now: Instant) {
        if from == self.to {
            self.sender.handle_report(datagram, now);
            if self.sender.take_keyframe_request() {
                self.out.push_back(rtcp::keyframe_request(1, ssrc(self.from, self.layer)));
            }
            return;
        }
        let Some((header, payload)) = Header::read(datagram) else { return };
        let layer = stream_of(header.ssrc).1;
        let is_keyframe = matches!(payload, [FRAME_BEGIN, 0, ..]);
        if layer != self.layer && layer == self.wanted && is_keyframe {
            self.layer = layer;
            self.offset = self.last_sequence.map_or(0, |last| last.wrapping_add(1).wrapping_sub(header.sequence));
        }
        if layer == self.layer {
            let sequence = header.sequence.wrapping_add(self.offset);
            let is_newer = self.last_sequence.is_none_or(|last| sequence.wrapping_sub(last) < 1 << 15);
            if is_newer {
                self.last_sequence = Some(sequence);
            }
            self.sender.push_packet(sequence, header.time, header.marker, payload.to_vec(), now);
        }
    }

    fn poll_output(&mut self, _now: Instant) -> Option<(NodeId, Outgoing)> {
        if let Some(datagram) = self.sender.poll_output() {
            return Some((self.to, Outgoing::of_call(datagram)));
        }
        self.out.pop_front().map(|report| (self.uplink, Outgoing::of_call(report)))
    }
}
