//! Links of the SFU of this shard to those of other nodes. Their datagrams share the port with WebRTC.

use std::{collections::BTreeSet, net::SocketAddr, time::Instant};

use millrace_sfu::{
    cascade::{Announcement, ChannelEvent, Channels, NodeId, frame::is_frame},
    switch::Switch,
};

use millrace_transport::access::unix_s;

use super::sfu::SendDatagram;

/// First bytes of DTLS records. Source: RFC 7983, section 7.
const DTLS: std::ops::RangeInclusive<u8> = 20..=63;

/// Encrypted channels to the SFUs of other nodes.
pub(super) struct Links {
    channels: Channels,
    /// Epoch of the newest link.
    epoch: u32,
}

impl Links {
    pub fn new(name: NodeId) -> Self {
        Self { channels: Channels::new(name), epoch: 0 }
    }

    /// Returns true if this address belongs to another node.
    pub fn knows(&self, address: &SocketAddr) -> bool {
        self.channels.knows(address)
    }

    /// Returns true if the datagram belongs to a link, and not to a WebRTC connection.
    pub fn claims(&self, from: &SocketAddr, datagram: &[u8]) -> bool {
        let is_of_link = is_frame(datagram) || datagram.first().is_some_and(|first| DTLS.contains(first));
        is_of_link && self.knows(from)
    }

    /// Handles a datagram of a link. Returns the frame that it contains, and the node that has sent it.
    pub fn handle_datagram(&mut self, from: SocketAddr, datagram: &[u8], now: Instant) -> Option<(NodeId, Vec<u8>)> {
        self.channels.handle_datagram(from, datagram, now)
    }

    /// Replaces the known nodes by those that are live.
    pub fn set_nodes(&mut self, nodes: &[Announcement], now: Instant) {
        self.channels.set_nodes(nodes, now);
    }

    /// Opens the channels to these nodes, and keeps them open.
    pub fn open(&mut self, nodes: &BTreeSet<NodeId>, now: Instant) {
        for node in nodes {
            if !self.channels.is_open(node) {
                self.channels.open(node, now);
            }
        }
    }

    pub fn close(&mut self, node: &NodeId) {
        self.channels.close(node);
    }

    pub fn timeout(&self) -> Option<Instant> {
        self.channels.timeout()
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.channels.handle_timeout(now);
    }

    /// Sends the frames of the SFU, and begins or ends its links as their channels open or close.
    pub fn pump(&mut self, switch: &mut Switch, send: &mut SendDatagram<'_>) {
        loop {
            while let Some((to, frame)) = switch.poll_link_frame() {
                self.channels.send(&to, frame);
            }
            while let Some((to, datagram)) = self.channels.poll_datagram() {
                send(to, datagram);
            }
            let Some(event) = self.channels.poll_event() else { return };
            let now = Instant::now();
            match event {
                ChannelEvent::Opened(node) => {
                    tracing::info!(node = node.as_str(), "link to another node opened");
                    self.epoch = seconds().max(self.epoch.saturating_add(1));
                    switch.add_link(node, self.epoch, now, send);
                }
                ChannelEvent::Closed(node) => {
                    tracing::info!(node = node.as_str(), "link to another node closed");
                    switch.remove_link(&node, now, send);
                }
                ChannelEvent::Failed(node, error) => {
                    tracing::debug!(node = node.as_str(), %error, "the handshake with another node failed");
                }
            }
        }
    }
}

/// Returns the time in seconds since 1970: the epochs of a link grow, also after a restart.
fn seconds() -> u32 {
    u32::try_from(unix_s()).unwrap_or(u32::MAX)
}
