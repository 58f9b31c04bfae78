use std::time::Instant;

use millrace_call::{Endpoint, Source};
use millrace_sfu::egress::is_media;

use super::watch::Watch;
use crate::scenarios::lozano::network::{Node, NodeId, Outgoing};

/// Participant of a mesh: one connection with each other participant.
pub struct MeshPeer {
    legs: Vec<(NodeId, Endpoint)>,
    /// One encoder for all connections. `None`: each connection has its own.
    shared: Option<Source>,
    pub watch: Watch,
}

impl MeshPeer {
    pub fn new(legs: Vec<(NodeId, Endpoint)>, shared: Option<Source>, now: Instant) -> Self {
        Self { legs, shared, watch: Watch::new(now) }
    }

    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.legs.iter().map(|(_, endpoint)| endpoint)
    }

    /// One encoder has one rate: that of the slowest connection.
    fn film(&mut self, now: Instant) {
        let Some(source) = &mut self.shared else { return };
        let senders = || self.legs.iter().map(|(_, endpoint)| &endpoint.sender);
        source.set_target(senders().map(|sender| sender.media_bits_per_s()).min().unwrap_or_default());
        let is_skipped = senders().any(|sender| sender.has_backlog());
        if self.legs.iter_mut().fold(false, |any, (_, endpoint)| endpoint.sender.take_keyframe_request() || any) {
            source.request_keyframe();
        }
        while source.timeout() <= now {
            if let Some(frame) = source.poll_frame(now, is_skipped) {
                self.legs.iter_mut().for_each(|(_, endpoint)| endpoint.sender.push_frame(&frame, now));
            }
        }
    }
}

impl Node for MeshPeer {
    fn timeout(&self) -> Option<Instant> {
        self.endpoints().map(Endpoint::timeout).chain(self.shared.as_ref().map(Source::timeout)).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.legs.iter_mut().for_each(|(_, endpoint)| endpoint.handle_timeout(now));
        self.film(now);
    }

    fn handle_datagram(&mut self, from: NodeId, datagram: &[u8], now: Instant) {
        if is_media(datagram) {
            self.watch.record(datagram, now);
        }
        if let Some((_, endpoint)) = self.legs.iter_mut().find(|(peer, _)| *peer == from) {
            endpoint.handle_datagram(datagram, now);
        }
    }

    fn poll_output(&mut self, now: Instant) -> Option<(NodeId, Outgoing)> {
        self.legs.iter_mut().find_map(|(peer, endpoint)| Some((*peer, Outgoing::of_call(endpoint.poll_output(now)?))))
    }
}
