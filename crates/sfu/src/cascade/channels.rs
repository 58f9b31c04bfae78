//! Channels to other nodes on one UDP port: which nodes are known, which channels are open, and their datagrams.
//!
//! ```text
//!   known ── open ──► handshake ── complete ──► open ── ClientHello: the other node begins again ─┐
//!     ▲                   │ failed: again after `RETRY`          ▲ the open channel stays in use  │
//!     │                   ▼                                      └──── complete ◄── handshake ◄───┘
//!     └───────────────── close, or the node has ended
//! ```
//!
//! The node with the lower name begins the handshake. Datagrams from other addresses than those of known nodes are not
//! looked at.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{
    channel::{Channel, ChannelError, Fingerprint},
    frame::{VERSION, is_frame},
    packet::NodeId,
};

/// Pause after a failed handshake.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum duration of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// First bytes of a record that begins a handshake: content type, and message type after the header of 13 bytes.
/// Source: RFC 6347, sections 4.1 and 4.3.2.
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const RECORD_HEAD_BYTES: usize = 13;
/// The random follows the header of the message, 12 bytes, and the version, 2 bytes.
const RANDOM_AT: usize = RECORD_HEAD_BYTES + 14;
const RANDOM_BYTES: usize = 32;

/// Announcement of a node to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub node: NodeId,
    pub address: SocketAddr,
    pub fingerprint: Fingerprint,
    /// Version of the format of frames: [`VERSION`].
    pub version: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// Frames can cross the channel. A new [`super::Link`] must begin, also if the channel was open before.
    Opened(NodeId),
    /// A handshake has failed; the next one follows soon.
    Failed(NodeId, ChannelError),
    /// The node has ended, or announces itself differently; its link must end.
    Closed(NodeId),
}

/// All channels of a node.
pub struct Channels {
    node: NodeId,
    peers: BTreeMap<NodeId, Peer>,
    by_address: HashMap<SocketAddr, NodeId>,
    outgoing: VecDeque<(SocketAddr, Vec<u8>)>,
    events: VecDeque<ChannelEvent>,
}

struct Peer {
    announcement: Announcement,
    is_wanted: bool,
    open: Option<Channel>,
    /// Handshake in progress, and its deadline.
    pending: Option<(Channel, Instant)>,
    retry_at: Instant,
    /// Random of the last ClientHello that has begun a handshake. A repetition of it begins none.
    hello: Option<[u8; RANDOM_BYTES]>,
}

impl Channels {
    pub fn new(node: NodeId) -> Self {
        let (peers, by_address, outgoing, events) = Default::default();
        Self { node, peers, by_address, outgoing, events }
    }

    /// Replaces the known nodes by those that are live. A node of another version is unknown.
    pub fn set_nodes(&mut self, nodes: &[Announcement], now: Instant) {
        let is_usable = |one: &&Announcement| one.node != self.node && one.version == VERSION;
        let mut new: BTreeMap<NodeId, &Announcement> =
            nodes.iter().filter(is_usable).map(|one| (one.node.clone(), one)).collect();
        let same = |peer: &Peer, new: &BTreeMap<NodeId, &Announcement>| {
            new.get(&peer.announcement.node).is_some_and(|one| **one == peer.announcement)
        };
        for peer in self.peers.values().filter(|peer| peer.open.is_some() && !same(peer, &new)) {
            self.events.push_back(ChannelEvent::Closed(peer.announcement.node.clone()));
        }
        self.peers.retain(|_, peer| same(peer, &new));
        new.retain(|node, _| !self.peers.contains_key(node));
        for (node, announcement) in new {
            let announcement = announcement.clone();
            let (is_wanted, open, pending, hello) = Default::default();
            self.peers.insert(node, Peer { announcement, is_wanted, open, pending, retry_at: now, hello });
        }
        self.by_address =
            self.peers.values().map(|peer| (peer.announcement.address, peer.announcement.node.clone())).collect();
    }

    /// Opens the channel to a node, and keeps it open. Returns false if the node is not known.
    pub fn open(&mut self, node: &NodeId, now: Instant) -> bool {
        let Some(peer) = self.peers.get_mut(node) else { return false };
        peer.is_wanted = true;
        self.handle_timeout(now);
        true
    }

    /// Closes the channel to a node. The node remains known, and may open the channel again.
    pub fn close(&mut self, node: &NodeId) {
        if let Some(peer) = self.peers.get_mut(node) {
            (peer.is_wanted, peer.open, peer.pending) = (false, None, None);
        }
    }

    pub fn is_open(&self, node: &NodeId) -> bool {
        self.peers.get(node).is_some_and(|peer| peer.open.is_some())
    }

    /// Returns whether datagrams of this address belong to a known node.
    pub fn knows(&self, address: &SocketAddr) -> bool {
        self.by_address.contains_key(address)
    }

    /// Encrypts and sends a frame. A frame for a node without an open channel is dropped.
    pub fn send(&mut self, node: &NodeId, frame: Vec<u8>) {
        if let Some(peer) = self.peers.get_mut(node)
            && let Some(channel) = &mut peer.open
        {
            channel.send(frame);
            take_datagrams(channel, peer.announcement.address, &mut self.outgoing);
        }
    }

    /// Handles a datagram. Returns the frame that it contains, and the node that has sent it.
    pub fn handle_datagram(&mut self, from: SocketAddr, datagram: &[u8], now: Instant) -> Option<(NodeId, Vec<u8>)> {
        let node = self.by_address.get(&from)?.clone();
        let is_client = self.node < node;
        let peer = self.peers.get_mut(&node)?;
        if is_frame(datagram) {
            let frame = peer.open.as_mut()?.handle_datagram(datagram, now).ok()??;
            return Some((node, frame));
        }
        if let Some(random) = client_random(datagram).filter(|_| !is_client)
            && peer.hello != Some(random)
            && (peer.pending.is_none() || peer.retry_at <= now)
        {
            // The open channel stays in use until the new one has proved itself: anyone can send a ClientHello.
            peer.hello = Some(random);
            peer.begin(is_client, now);
        }
        let result = match (&mut peer.pending, &mut peer.open) {
            (Some((channel, _)), _) | (None, Some(channel)) => channel.handle_datagram(datagram, now).map(drop),
            (None, None) => return None,
        };
        self.settle(&node, result, now);
        None
    }

    /// Takes what the channels of a node have to send, and what has changed.
    fn settle(&mut self, node: &NodeId, result: Result<(), ChannelError>, now: Instant) {
        let Some(peer) = self.peers.get_mut(node) else { return };
        let address = peer.announcement.address;
        if let Err(error) = result {
            if peer.pending.take().is_none() {
                // An alert on the open channel: the other node has closed it.
                peer.open = None;
            }
            peer.retry_at = now + RETRY;
            self.events.push_back(ChannelEvent::Failed(node.clone(), error));
        }
        for channel in peer.pending.iter_mut().map(|(channel, _)| channel).chain(&mut peer.open) {
            take_datagrams(channel, address, &mut self.outgoing);
        }
        if peer.pending.as_ref().is_some_and(|(channel, _)| channel.is_open()) {
            peer.open = peer.pending.take().map(|(channel, _)| channel);
            self.events.push_back(ChannelEvent::Opened(node.clone()));
        }
    }

    pub fn poll_datagram(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.outgoing.pop_front()
    }

    pub fn poll_event(&mut self) -> Option<ChannelEvent> {
        self.events.pop_front()
    }

    /// Returns when [`Channels::handle_timeout`] must be called.
    pub fn timeout(&self) -> Option<Instant> {
        self.peers.values().filter_map(|peer| peer.timeout(self.node < peer.announcement.node)).min()
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        let due = self.peers.iter().filter(|(node, peer)| peer.timeout(self.node < **node).is_some_and(|at| at <= now));
        for node in due.map(|(node, _)| node.clone()).collect::<Vec<_>>() {
            let is_client = self.node < node;
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            if peer.needs_handshake(is_client) && peer.retry_at <= now {
                peer.begin(is_client, now);
            }
            let mut result = Ok(());
            if let Some((channel, deadline)) = &mut peer.pending {
                result = if *deadline <= now { Err(ChannelError::Failed) } else { channel.handle_timeout(now) };
            } else if let Some(channel) = &mut peer.open {
                result = channel.handle_timeout(now);
            }
            self.settle(&node, result, now);
        }
    }
}

impl Peer {
    /// Only the client begins; the server waits for it.
    fn needs_handshake(&self, is_client: bool) -> bool {
        is_client && self.is_wanted && self.open.is_none() && self.pending.is_none()
    }

    fn begin(&mut self, is_client: bool, now: Instant) {
        let channel = Channel::new(is_client, self.announcement.fingerprint, now).ok();
        self.pending = channel.map(|channel| (channel, now + HANDSHAKE_TIMEOUT));
        self.retry_at = now + RETRY;
    }

    fn timeout(&self, is_client: bool) -> Option<Instant> {
        let retry = self.needs_handshake(is_client).then_some(self.retry_at);
        let pending =
            self.pending.iter().flat_map(|(channel, deadline)| channel.timeout().into_iter().chain([*deadline]));
        let open = self.open.as_ref().filter(|_| self.pending.is_none()).and_then(Channel::timeout);
        retry.into_iter().chain(pending).chain(open).min()
    }
}

fn take_datagrams(channel: &mut Channel, to: SocketAddr, outgoing: &mut VecDeque<(SocketAddr, Vec<u8>)>) {
    outgoing.extend(std::iter::from_fn(|| channel.poll_datagram()).map(|datagram| (to, datagram)));
}

/// Returns the random of a ClientHello; `None` for any other datagram.
fn client_random(datagram: &[u8]) -> Option<[u8; RANDOM_BYTES]> {
    let is_hello = datagram.first() == Some(&HANDSHAKE) && datagram.get(RECORD_HEAD_BYTES) == Some(&CLIENT_HELLO);
    datagram.get(RANDOM_AT..).filter(|_| is_hello)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cascade::{
        channel::fingerprint,
        frame::{Head, padding},
    };

    struct Net {
        ends: [Channels; 2],
        frames: [Vec<Vec<u8>>; 2],
        events: [Vec<ChannelEvent>; 2],
        now: Instant,
        lose: usize,
        sent: usize,
    }

    fn node(at: usize) -> NodeId {
        NodeId::new(["a", "b"][at]).unwrap()
    }

    fn address(at: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1000 + at as u16))
    }

    fn announcement(at: usize) -> Announcement {
        Announcement { node: node(at), address: address(at), fingerprint: fingerprint(), version: VERSION }
    }

    fn frame(sequence: u64) -> Vec<u8> {
        padding(Head { epoch: 1, sequence }, 100)
    }

    impl Net {
        #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
        fn new() -> Self {
            let ends = [0, 1].map(|at| Channels::new(node(at)));
            let (frames, events) = Default::default();
            let mut net = Self { ends, frames, events, now: Instant::now(), lose: 0, sent: 0 };
            net.announce(&[announcement(0), announcement(1)]);
            net
        }

        fn announce(&mut self, nodes: &[Announcement]) {
            self.ends.iter_mut().for_each(|end| end.set_nodes(nodes, self.now));
        }

        fn open(&mut self) {
            let [one, other] = &mut self.ends;
            assert!(one.open(&node(1), self.now) && other.open(&node(0), self.now));
        }

        fn run(&mut self, span: Duration) {
            let end = self.now + span;
            while self.now < end {
                for at in [0, 1] {
                    while let Some((to, datagram)) = self.ends[at].poll_datagram() {
                        assert_eq!(to, address(1 - at));
                        self.sent += 1;
                        if self.lose == 0 || !self.sent.is_multiple_of(self.lose) {
                            let received = self.ends[1 - at].handle_datagram(address(at), &datagram, self.now);
                            self.frames[1 - at].extend(received.map(|(_, frame)| frame));
                        }
                    }
                    self.events[at].extend(std::iter::from_fn(|| self.ends[at].poll_event()));
                }
                self.now += Duration::from_millis(10);
                for end in &mut self.ends {
                    if end.timeout().is_some_and(|at| at <= self.now) {
                        end.handle_timeout(self.now);
                    }
                }
            }
        }
    }

    #[test]
    fn wanted_channel_opens_despite_losses() {
        let mut net = Net::new();
        net.run(Duration::from_secs(2));
        assert_eq!(net.sent, 0, "no room needs it");
        net.lose = 3;
        net.open();
        net.run(Duration::from_secs(20));
        assert_eq!(net.events, [vec![ChannelEvent::Opened(node(1))], vec![ChannelEvent::Opened(node(0))]]);
        net.lose = 0;
        net.ends[1].send(&node(0), frame(1));
        net.run(Duration::from_millis(50));
        assert_eq!(net.frames[0], [frame(1)]);
        assert_eq!(net.ends[0].handle_datagram("127.0.0.1:9".parse().unwrap(), &frame(2), net.now), None);
    }

    #[test]
    fn channel_opens_again_after_one_end_closed_it() {
        let mut net = Net::new();
        net.open();
        net.run(Duration::from_secs(2));
        net.events = Default::default();
        // Only the client has lost the link; the server learns of it by the handshake.
        net.ends[0].close(&node(1));
        net.ends[0].open(&node(1), net.now);
        net.run(Duration::from_secs(3));
        assert_eq!(net.events, [vec![ChannelEvent::Opened(node(1))], vec![ChannelEvent::Opened(node(0))]]);
        net.ends[0].send(&node(1), frame(1));
        net.run(Duration::from_millis(50));
        assert_eq!(net.frames[1], [frame(1)]);
    }

    #[test]
    fn forged_hello_does_not_close_an_open_channel() {
        let mut net = Net::new();
        net.open();
        net.run(Duration::from_secs(2));
        net.events = Default::default();
        let mut hello = vec![0; 100];
        (hello[0], hello[1], hello[2], hello[13]) = (HANDSHAKE, 254, 253, CLIENT_HELLO);
        assert!(client_random(&hello).is_some());
        assert_eq!(net.ends[1].handle_datagram(address(0), &hello, net.now), None);
        net.ends[0].send(&node(1), frame(1));
        net.run(Duration::from_millis(50));
        assert_eq!(net.frames[1], [frame(1)]);
        net.run(HANDSHAKE_TIMEOUT + Duration::from_secs(1));
        assert!(net.ends[1].is_open(&node(0)) && !net.events[1].contains(&ChannelEvent::Opened(node(0))));
    }

    #[test]
    fn node_that_is_gone_or_has_another_version_is_unknown() {
        let mut net = Net::new();
        net.open();
        net.run(Duration::from_secs(2));
        net.events = Default::default();
        let other = Announcement { version: VERSION + 1, ..announcement(1) };
        net.announce(&[announcement(0), other]);
        net.run(Duration::from_secs(1));
        assert_eq!(net.events[0], [ChannelEvent::Closed(node(1))]);
        assert!(!net.ends[0].knows(&address(1)) && !net.ends[0].open(&node(1), net.now));
        assert!(net.ends[1].is_open(&node(0)), "its own announcement does not matter to it");
    }

    #[test]
    fn wrong_fingerprint_is_reported_and_retried() {
        let mut net = Net::new();
        let wrong = Announcement { fingerprint: [7; 32], ..announcement(1) };
        net.announce(&[announcement(0), wrong]);
        net.open();
        net.run(Duration::from_secs(5));
        let failed = ChannelEvent::Failed(node(1), ChannelError::WrongCertificate);
        assert!(net.events[0].len() >= 2 && net.events[0].iter().all(|event| *event == failed), "{:?}", net.events[0]);
        assert!(!net.ends[0].is_open(&node(1)));
    }
}
