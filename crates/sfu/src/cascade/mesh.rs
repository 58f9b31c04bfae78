//! All links of a node: which local tracks go to which nodes, and which copy of a participant's track is current.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Instant,
};

use super::{
    Counters, Event, Handle, LAYERS_MAX, Layers, Link, NodeId, Packet, Refused,
    frame::{SenderReport, TrackInfo, Want},
};
use crate::congestion::Algorithm;

/// Number of a track on another node.
pub type RemoteId = (NodeId, Handle);

/// A current track of another node.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteTrack {
    pub info: TrackInfo,
    /// Layers that cross the link.
    pub carried: Layers,
    pub rates_kbps: [u32; LAYERS_MAX],
    /// The link is silent: the track is expected back, or ends soon.
    pub is_silent: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum MeshEvent {
    Added(RemoteId),
    /// The description, the carried layers, the bit rates or the liveness of a track have changed.
    Changed(RemoteId),
    Removed(RemoteId),
    Media(RemoteId, Packet),
    Levels(NodeId, Vec<(Handle, u8)>),
    SenderReport(NodeId, SenderReport),
    /// A keyframe of a local layer is needed.
    KeyframeWanted(Handle, u8),
    /// The link to this node is dead or was refused; it was removed.
    Lost(NodeId, Option<Refused>),
    /// The link to this node is not used; it may be removed.
    Unused(NodeId),
}

/// Nodes and members of a room, as the room's owner announces them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    pub nodes: BTreeSet<NodeId>,
    /// Node of each participant. A track of a participant from another node is not current. A participant that is
    /// missing here has joined just now.
    pub members: BTreeMap<Box<str>, NodeId>,
}

/// Links of a node.
#[derive(Debug)]
pub struct Mesh {
    node: NodeId,
    algorithm: Algorithm,
    links: BTreeMap<NodeId, Link>,
    rooms: BTreeMap<Box<str>, Roster>,
    local: BTreeMap<Handle, TrackInfo>,
    next_handle: u32,
    current: BTreeMap<RemoteId, RemoteTrack>,
    wants: BTreeMap<RemoteId, (Layers, bool)>,
    events: VecDeque<MeshEvent>,
}

impl Mesh {
    pub fn new(node: NodeId, algorithm: Algorithm) -> Self {
        Self {
            node,
            algorithm,
            links: BTreeMap::new(),
            rooms: BTreeMap::new(),
            local: BTreeMap::new(),
            next_handle: 1,
            current: BTreeMap::new(),
            wants: BTreeMap::new(),
            events: VecDeque::new(),
        }
    }

    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Adds a link to another node, or replaces it. Source of `epoch`: see [`Link::new`].
    pub fn add_link(&mut self, remote: NodeId, epoch: u32, now: Instant) {
        if remote != self.node {
            let link = Link::new((self.node.clone(), remote.clone()), epoch, self.algorithm, now);
            self.links.insert(remote.clone(), link);
            self.share(&remote, now);
            self.update_current(now);
        }
    }

    pub fn remove_link(&mut self, remote: &NodeId, now: Instant) {
        if self.links.remove(remote).is_some() {
            self.update_current(now);
        }
    }

    pub fn has_link(&self, remote: &NodeId) -> bool {
        self.links.contains_key(remote)
    }

    pub fn links(&self) -> impl Iterator<Item = (&NodeId, &Link)> {
        self.links.iter()
    }

    /// Returns the sum of the counters of all links.
    pub fn counters(&self) -> Counters {
        self.links.values().map(Link::counters).fold(Counters::default(), |sum, link| Counters {
            sent_packets: sum.sent_packets + link.sent_packets,
            sent_bytes: sum.sent_bytes + link.sent_bytes,
            received_packets: sum.received_packets + link.received_packets,
            retransmitted: sum.retransmitted + link.retransmitted,
            duplicates: sum.duplicates + link.duplicates,
            unwanted: sum.unwanted + link.unwanted,
            stale: sum.stale + link.stale,
        })
    }

    /// Sets the nodes and members of a room. A room without other nodes crosses no link.
    pub fn set_room(&mut self, room: &str, roster: Roster, now: Instant) {
        if roster.nodes.iter().all(|node| *node == self.node) {
            self.rooms.remove(room);
        } else {
            self.rooms.insert(room.into(), roster);
        }
        self.share_all(now);
        self.update_current(now);
    }

    /// Adds a local track. Returns its handle.
    pub fn publish(&mut self, track: TrackInfo, now: Instant) -> Handle {
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.local.insert(handle, TrackInfo { handle, ..track });
        self.share_all(now);
        self.update_current(now);
        handle
    }

    /// Changes a local track.
    pub fn update(&mut self, handle: Handle, layers: u8, is_muted: bool, now: Instant) {
        if let Some(track) = self.local.get_mut(&handle)
            && (track.layers, track.is_muted) != (layers, is_muted)
        {
            (track.layers, track.is_muted) = (layers, is_muted);
            self.share_all(now);
        }
    }

    pub fn unpublish(&mut self, handle: Handle, now: Instant) {
        if self.local.remove(&handle).is_some() {
            self.share_all(now);
            self.update_current(now);
        }
    }

    /// Sets the bit rates of a local track's layers, in bit/s.
    pub fn set_rates(&mut self, handle: Handle, rates: [u64; LAYERS_MAX]) {
        self.links.values_mut().for_each(|link| link.set_rates(handle, rates));
    }

    /// Sets which layers of a remote track this node's members want.
    pub fn want(&mut self, id: &RemoteId, layers: Layers, has_priority: bool, now: Instant) {
        let wanted = self.current.contains_key(id).then_some((layers, has_priority));
        let wanted = wanted.filter(|(layers, _)| !layers.is_empty());
        let before = match wanted {
            Some(want) => self.wants.insert(id.clone(), want),
            None => self.wants.remove(id),
        };
        if before != wanted {
            self.send_wants(&id.0, now);
        }
    }

    fn send_wants(&mut self, node: &NodeId, now: Instant) {
        let Self { links, wants, .. } = self;
        if let Some(link) = links.get_mut(node) {
            let wants = wants.iter().filter(|((of, _), _)| of == node);
            let want =
                |(id, want): (&RemoteId, &(Layers, bool))| Want { handle: id.1, layers: want.0, has_priority: want.1 };
            link.set_wants(wants.map(want), now);
        }
    }

    pub fn request_keyframe(&mut self, id: &RemoteId, layer: u8, now: Instant) {
        if let Some(link) = self.links.get_mut(&id.0).filter(|_| self.current.contains_key(id)) {
            link.request_keyframe(id.1, layer, now);
        }
    }

    /// Sends a packet of a local track to the nodes that it is carried to. Returns the number of them.
    pub fn forward(&mut self, handle: Handle, packet: &Packet, now: Instant) -> usize {
        self.links.values_mut().map(|link| usize::from(link.forward(handle, packet, now))).sum()
    }

    pub fn forward_sender_report(&mut self, report: SenderReport, now: Instant) {
        self.links.values_mut().for_each(|link| link.forward_sender_report(report, now));
    }

    /// Returns a current track of another node.
    pub fn remote_track(&self, id: &RemoteId) -> Option<&RemoteTrack> {
        self.current.get(id)
    }

    pub fn remote_tracks(&self) -> impl Iterator<Item = (&RemoteId, &RemoteTrack)> {
        self.current.iter()
    }

    pub fn poll_event(&mut self) -> Option<MeshEvent> {
        self.events.pop_front()
    }

    /// Returns the next frame to send, before encryption.
    pub fn poll_frame(&mut self) -> Option<(&NodeId, Vec<u8>)> {
        self.links.iter_mut().find_map(|(node, link)| Some((node, link.poll_frame()?)))
    }

    /// Handles a frame of another node, after decryption. A node that does not follow the protocol loses its link.
    pub fn handle_frame(&mut self, from: &NodeId, bytes: &[u8], now: Instant) {
        let Some(link) = self.links.get_mut(from) else { return };
        if let Err(refused) = link.handle_frame(bytes, now) {
            self.links.remove(from);
            self.events.push_back(MeshEvent::Lost(from.clone(), Some(refused)));
            self.update_current(now);
            return;
        }
        self.handle_events(from, now);
    }

    pub fn timeout(&self) -> Option<Instant> {
        self.links.values().map(Link::timeout).min()
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        let due = self.links.iter().filter(|(_, link)| link.timeout() <= now);
        for node in due.map(|(node, _)| node.clone()).collect::<Vec<_>>() {
            if let Some(link) = self.links.get_mut(&node) {
                link.handle_timeout(now);
            }
            self.handle_events(&node, now);
        }
    }

    fn handle_events(&mut self, node: &NodeId, now: Instant) {
        let mut is_changed = false;
        while let Some(event) = self.links.get_mut(node).and_then(Link::poll_event) {
            match event {
                Event::Media(handle, packet) => {
                    let id = (node.clone(), handle);
                    if self.current.contains_key(&id) {
                        self.events.push_back(MeshEvent::Media(id, packet));
                    }
                }
                Event::KeyframeWanted(handle, layer) => {
                    self.events.push_back(MeshEvent::KeyframeWanted(handle, layer));
                }
                Event::Levels(levels) => self.events.push_back(MeshEvent::Levels(node.clone(), levels)),
                Event::SenderReport(report) => {
                    self.events.push_back(MeshEvent::SenderReport(node.clone(), report));
                }
                Event::Established | Event::Tracks | Event::Rates | Event::Silent | Event::Alive => is_changed = true,
                Event::Unused => self.events.push_back(MeshEvent::Unused(node.clone())),
                Event::Dead => {
                    self.links.remove(node);
                    self.events.push_back(MeshEvent::Lost(node.clone(), None));
                    is_changed = true;
                }
            }
        }
        if is_changed {
            self.update_current(now);
        }
    }

    fn share_all(&mut self, now: Instant) {
        let nodes: Vec<NodeId> = self.links.keys().cloned().collect();
        nodes.iter().for_each(|node| self.share(node, now));
    }

    /// Offers a node the local tracks of the rooms that it takes part in.
    fn share(&mut self, node: &NodeId, now: Instant) {
        let Self { links, rooms, local, .. } = self;
        if let Some(link) = links.get_mut(node) {
            let is_shared =
                |track: &&TrackInfo| rooms.get(&track.room).is_some_and(|roster| roster.nodes.contains(node));
            link.set_tracks(local.values().filter(is_shared).cloned(), now);
        }
    }

    /// Finds the current tracks of the other nodes, and reports what has changed.
    fn update_current(&mut self, now: Instant) {
        // Of two tracks with one generation, every node takes that of the node with the higher name.
        let mut newest: BTreeMap<(&str, &str), (u64, &NodeId)> = BTreeMap::new();
        let (links, rooms, local, node) = (&self.links, &self.rooms, &self.local, &self.node);
        for track in local.values().filter(|track| track.is_participant) {
            let this = (track.generation, node);
            let newest = newest.entry((&*track.room, &*track.member)).or_insert(this);
            *newest = (*newest).max(this);
        }
        let is_true = move |node: &NodeId, info: &TrackInfo| {
            let Some(roster) = rooms.get(&info.room) else { return false };
            let owner = roster.members.get(&info.member).filter(|_| info.is_participant);
            roster.nodes.contains(node) && owner.is_none_or(|owner| owner == node)
        };
        let offered = move || {
            let all = links.iter().flat_map(|(node, link)| link.remote_tracks().map(move |track| (node, link, track)));
            all.filter(move |(node, _, track)| is_true(node, &track.info))
        };
        for (node, _, track) in offered().filter(|(_, _, track)| track.info.is_participant) {
            let this = (track.info.generation, node);
            let newest = newest.entry((&*track.info.room, &*track.info.member)).or_insert(this);
            *newest = (*newest).max(this);
        }
        let mut current = BTreeMap::new();
        for (node, link, track) in offered() {
            let key = (&*track.info.room, &*track.info.member);
            if !track.info.is_participant || newest.get(&key) == Some(&(track.info.generation, node)) {
                let remote = RemoteTrack {
                    info: track.info.clone(),
                    carried: track.carried,
                    rates_kbps: track.rates_kbps,
                    is_silent: link.is_silent(),
                };
                current.insert((node.clone(), track.info.handle), remote);
            }
        }
        let before = std::mem::replace(&mut self.current, current);
        let mut lost_wants = BTreeSet::new();
        for id in before.keys().filter(|id| !self.current.contains_key(id)) {
            self.events.push_back(MeshEvent::Removed(id.clone()));
            if self.wants.remove(id).is_some() {
                lost_wants.insert(id.0.clone());
            }
        }
        for (id, track) in &self.current {
            match before.get(id) {
                None => self.events.push_back(MeshEvent::Added(id.clone())),
                Some(known) if known != track => self.events.push_back(MeshEvent::Changed(id.clone())),
                Some(_) => {}
            }
        }
        lost_wants.iter().for_each(|node| self.send_wants(node, now));
    }
}
