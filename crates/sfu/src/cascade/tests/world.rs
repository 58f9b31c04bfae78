//! Nodes, links that lose, delay, reorder and cut, and a simulated clock. Each frame on the wire is checked.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use rand_pcg::{Pcg64Mcg, rand_core::Rng};

use crate::{
    cascade::{
        Codec, Handle, LAYERS_MAX, Layers, Mesh, MeshEvent, NodeId, Packet, TrackInfo,
        frame::{Body, decode},
        mesh::{RemoteId, Roster},
    },
    congestion::Algorithm,
};

pub const ROOM: &str = "room";
const STEP: Duration = Duration::from_millis(5);
/// Maximum time that a packet waits in the queue of a narrow link. Packets that would wait longer are dropped.
const QUEUE_MAX: Duration = Duration::from_millis(300);
/// Pause after which a node connects again to a node that it has lost.
const RECONNECT: Duration = Duration::from_secs(1);
pub const RATES: [u64; LAYERS_MAX] = [100_000, 300_000, 900_000, 0];
/// Payload bytes of a video packet, and their interval: the sizes give the rates above.
const VIDEO_STEP_MS: u64 = 20;

/// Identifies one packet: member, generation, track, layer, number.
type PacketId = (String, u64, u8, u8, u64);

pub struct World {
    pub now: Instant,
    pub ms: u64,
    random: Pcg64Mcg,
    pub nodes: BTreeMap<NodeId, Node>,
    in_flight: Vec<(Instant, NodeId, NodeId, Vec<u8>)>,
    pub loss: f64,
    pub delay: Duration,
    pub jitter: Duration,
    /// Capacity of each direction of a link in bit/s, and when the direction is free again.
    pub capacity: Option<u64>,
    free: HashMap<(NodeId, NodeId), Instant>,
    pub cut: BTreeSet<(NodeId, NodeId)>,
    epoch: u32,
    rosters: Vec<(Instant, NodeId, Roster)>,
    reconnects: Vec<(Instant, NodeId, NodeId)>,
    on_wire: HashMap<(NodeId, NodeId, PacketId), (u32, u64)>,
    /// Bytes sent per direction, encryption excluded.
    pub sent_bytes: HashMap<(NodeId, NodeId), usize>,
}

pub struct Node {
    pub mesh: Mesh,
    /// Members with their generation, and their audio and video tracks.
    pub members: BTreeMap<String, (u64, [Handle; 2])>,
    /// Layers that members of this node want of each video.
    pub wants: Layers,
    /// All members that were ever here, with their generations.
    was_here: BTreeSet<(String, u64)>,
    pub received: HashMap<PacketId, u64>,
    pub keyframes: Vec<(Handle, u8)>,
    next: HashMap<(Handle, u8), u64>,
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    pub fn new(seed: u64) -> Self {
        Self {
            now: Instant::now(),
            ms: 0,
            random: Pcg64Mcg::new(u128::from(seed) << 64 | 0xcafe_f00d_d15e_a5e5),
            nodes: BTreeMap::new(),
            in_flight: Vec::new(),
            loss: 0.0,
            delay: Duration::from_millis(10),
            jitter: Duration::ZERO,
            capacity: None,
            free: HashMap::new(),
            cut: BTreeSet::new(),
            epoch: 0,
            rosters: Vec::new(),
            reconnects: Vec::new(),
            on_wire: HashMap::new(),
            sent_bytes: HashMap::new(),
        }
    }

    pub fn random(&mut self, below: u64) -> u64 {
        self.random.next_u64() % below
    }

    pub fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    pub fn add_node(&mut self, name: &str) {
        let node = Self::node(name);
        let others: Vec<NodeId> = self.nodes.keys().cloned().collect();
        let mesh = Mesh::new(node.clone(), Algorithm::Gcc);
        let state = Node {
            mesh,
            members: BTreeMap::new(),
            wants: Layers(0b111),
            was_here: BTreeSet::new(),
            received: HashMap::new(),
            keyframes: Vec::new(),
            next: HashMap::new(),
        };
        self.nodes.insert(node.clone(), state);
        for other in others {
            self.connect(&node, &other);
            self.connect(&other, &node);
        }
        self.announce();
    }

    pub fn connect(&mut self, from: &NodeId, to: &NodeId) {
        self.epoch += 1;
        let (epoch, now) = (self.epoch, self.now);
        if let Some(node) = self.nodes.get_mut(from) {
            node.mesh.add_link(to.clone(), epoch, now);
        }
    }

    /// Ends a node abruptly, as `kill -9` does.
    pub fn kill(&mut self, node: &NodeId) -> Vec<String> {
        let dead = self.nodes.remove(node).unwrap();
        self.announce();
        dead.members.into_keys().collect()
    }

    /// Sends the roster to all nodes; each gets it after a time of its own.
    fn announce(&mut self) {
        let mut roster = Roster { nodes: self.nodes.keys().cloned().collect(), members: BTreeMap::new() };
        let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
        for (id, node) in &self.nodes {
            for (member, (generation, _)) in &node.members {
                let known = newest.entry(member).or_default();
                if *generation > *known {
                    *known = *generation;
                    roster.members.insert(member.as_str().into(), id.clone());
                }
            }
        }
        for node in self.nodes.keys().cloned().collect::<Vec<_>>() {
            let at = self.now + Duration::from_millis(self.random(300));
            self.rosters.retain(|(_, to, _)| *to != node);
            self.rosters.push((at, node, roster.clone()));
        }
    }

    /// Adds a member with an audio and a video track. `generation`: grows with each connection of a member.
    pub fn join(&mut self, node: &NodeId, member: &str, generation: u64) {
        let now = self.now;
        let state = self.nodes.get_mut(node).unwrap();
        let track = |index: u8| TrackInfo {
            handle: Handle(0),
            generation,
            room: ROOM.into(),
            member: member.into(),
            index,
            is_audio: index == 0,
            is_muted: false,
            is_participant: true,
            is_screen: false,
            layers: if index == 0 { 1 } else { 3 },
        };
        let handles = [0, 1].map(|index| state.mesh.publish(track(index), now));
        state.members.insert(member.into(), (generation, handles));
        state.was_here.insert((member.into(), generation));
        self.announce();
    }

    pub fn leave(&mut self, node: &NodeId, member: &str) {
        let now = self.now;
        let Some(state) = self.nodes.get_mut(node) else { return };
        if let Some((_, handles)) = state.members.remove(member) {
            handles.iter().for_each(|handle| state.mesh.unpublish(*handle, now));
        }
        self.announce();
    }

    pub fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.now += STEP;
            self.ms += STEP.as_millis() as u64;
            self.update_rosters();
            self.publish();
            let now = self.now;
            let due = self.in_flight.iter().filter(|(at, ..)| *at <= now).count();
            self.in_flight.sort_by_key(|(at, ..)| *at);
            for (_, from, to, frame) in self.in_flight.drain(..due).collect::<Vec<_>>() {
                if let Some(node) = self.nodes.get_mut(&to) {
                    node.mesh.handle_frame(&from, &frame, now);
                }
            }
            for id in self.nodes.keys().cloned().collect::<Vec<_>>() {
                self.nodes.get_mut(&id).unwrap().mesh.handle_timeout(now);
                self.handle_events(&id);
                self.send(&id);
            }
        }
    }

    fn update_rosters(&mut self) {
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.rosters).into_iter().partition(|one| one.0 <= now);
        self.rosters = later;
        for (_, node, roster) in due {
            if let Some(node) = self.nodes.get_mut(&node) {
                node.mesh.set_room(ROOM, roster, now);
            }
        }
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.reconnects).into_iter().partition(|one| one.0 <= now);
        self.reconnects = later;
        for (_, from, to) in due.into_iter().filter(|(_, _, to)| self.nodes.contains_key(to)).collect::<Vec<_>>() {
            self.connect(&from, &to);
        }
    }

    /// Every member sends an audio packet and one packet of each layer.
    fn publish(&mut self) {
        if !self.ms.is_multiple_of(VIDEO_STEP_MS) {
            return;
        }
        let now = self.now;
        let is_second = self.ms.is_multiple_of(1000);
        for node in self.nodes.values_mut() {
            let Node { mesh, members, next, .. } = node;
            for (member, (generation, handles)) in members {
                for (track, layer) in [(0_u8, 0), (1, 0), (1, 1), (1, 2)] {
                    let handle = handles[usize::from(track)];
                    let number = next.entry((handle, layer)).or_insert(5);
                    *number += 1;
                    let rate = if track == 0 { 32_000 } else { RATES[usize::from(layer)] };
                    let mut payload = format!("{member} {generation} {track} {layer} {number} ").into_bytes();
                    let bytes = (rate * VIDEO_STEP_MS / 8000) as usize;
                    payload.resize(payload.len().max(bytes), b'.');
                    // A payload is limited; the highest layer needs two packets.
                    for part in 0..payload.len().div_ceil(1200) {
                        let mut payload = payload.clone();
                        payload.truncate(payload.len() / payload.len().div_ceil(1200));
                        if part > 0 {
                            *number += 1;
                            payload = format!("{member} {generation} {track} {layer} {number} ").into_bytes();
                            payload.resize(bytes / 2, b'.');
                        }
                        let packet = Packet {
                            layer,
                            codec: Codec::new(1).unwrap(),
                            sequence: *number,
                            time: self.ms * 90,
                            marker: true,
                            audio_level: (track == 0).then_some((30, true)),
                            orientation: None,
                            payload: payload.into(),
                        };
                        mesh.forward(handle, &packet, now);
                    }
                }
                if is_second {
                    mesh.set_rates(handles[1], RATES);
                }
            }
        }
    }

    fn handle_events(&mut self, id: &NodeId) {
        let now = self.now;
        let node = self.nodes.get_mut(id).unwrap();
        let wants = node.wants;
        let mut lost = Vec::new();
        while let Some(event) = node.mesh.poll_event() {
            match event {
                MeshEvent::Added(remote) => {
                    let is_audio = node.mesh.remote_track(&remote).is_some_and(|track| track.info.is_audio);
                    node.mesh.want(&remote, if is_audio { Layers(1) } else { wants }, false, now);
                }
                MeshEvent::Media(_, packet) => {
                    let packet = packet_id(&packet.payload);
                    assert!(
                        !node.members.contains_key(&packet.0) || node.members[&packet.0].0 < packet.1,
                        "it returned"
                    );
                    *node.received.entry(packet).or_default() += 1;
                }
                MeshEvent::KeyframeWanted(handle, layer) => node.keyframes.push((handle, layer)),
                MeshEvent::Lost(other, refused) => {
                    assert_eq!(refused, None);
                    lost.push(other);
                }
                _ => {}
            }
        }
        for other in lost {
            self.reconnects.push((now + RECONNECT, id.clone(), other));
        }
    }

    fn send(&mut self, id: &NodeId) {
        let mut frames = Vec::new();
        while let Some((to, frame)) = self.nodes.get_mut(id).unwrap().mesh.poll_frame() {
            frames.push((to.clone(), frame));
        }
        for (to, frame) in frames {
            self.check(id, &to, &frame);
            *self.sent_bytes.entry((id.clone(), to.clone())).or_default() += frame.len();
            let is_cut = self.cut.contains(&(id.clone(), to.clone())) || self.cut.contains(&(to.clone(), id.clone()));
            if is_cut || (self.random(10_000) as f64) < self.loss * 10_000.0 {
                continue;
            }
            let mut at = self.now;
            if let Some(capacity) = self.capacity {
                let free = self.free.entry((id.clone(), to.clone())).or_insert(self.now);
                at = (*free).max(self.now);
                if at > self.now + QUEUE_MAX {
                    continue;
                }
                at += Duration::from_secs_f64(frame.len() as f64 * 8.0 / capacity as f64);
                *free = at;
            }
            at += self.delay;
            if !self.jitter.is_zero() {
                at += Duration::from_micros(self.random(self.jitter.as_micros() as u64));
            }
            self.in_flight.push((at, id.clone(), to, frame));
        }
    }

    /// Checks that a packet crosses a link once, except for retransmissions of the same frame, and that only the node
    /// of its sender sends it.
    fn check(&mut self, from: &NodeId, to: &NodeId, frame: &[u8]) {
        let (head, body) = decode(frame).unwrap();
        if let Body::Media { packet, .. } = body {
            let id = packet_id(&packet.payload);
            assert!(self.nodes[from].was_here.contains(&(id.0.clone(), id.1)), "{id:?} takes a second hop");
            let key = (from.clone(), to.clone(), id);
            let number = (head.epoch, head.sequence);
            let first = *self.on_wire.entry(key).or_insert(number);
            assert_eq!(first, number, "a packet crosses the link twice");
        }
    }

    /// Returns what a node sees: member and track of each current remote track.
    pub fn seen(&self, node: &NodeId) -> BTreeSet<(String, u8, u64)> {
        let tracks = self.nodes[node].mesh.remote_tracks();
        tracks.map(|(_, track)| (track.info.member.to_string(), track.info.index, track.info.generation)).collect()
    }

    /// Returns what a node must see.
    pub fn expected(&self, node: &NodeId) -> BTreeSet<(String, u8, u64)> {
        let others = self.nodes.iter().filter(|(other, _)| *other != node);
        let members = others.flat_map(|(_, state)| &state.members);
        members.flat_map(|(member, (generation, _))| [0, 1].map(|track| (member.clone(), track, *generation))).collect()
    }

    pub fn remote_id(&self, node: &NodeId, member: &str, index: u8) -> Option<RemoteId> {
        let mut tracks = self.nodes[node].mesh.remote_tracks();
        let is_it = |track: &TrackInfo| &*track.member == member && track.index == index;
        tracks.find(|(_, track)| is_it(&track.info)).map(|(id, _)| id.clone())
    }

    /// Returns the number of packets that a node has received of a layer, and clears the count.
    pub fn take_received(&mut self, node: &NodeId) -> BTreeMap<(String, u8, u8), usize> {
        let received = std::mem::take(&mut self.nodes.get_mut(node).unwrap().received);
        let mut counts = BTreeMap::new();
        for ((member, _, track, layer, _), count) in received {
            assert_eq!(count, 1, "a packet arrives once");
            *counts.entry((member, track, layer)).or_default() += 1;
        }
        counts
    }
}

fn packet_id(payload: &[u8]) -> PacketId {
    let text = std::str::from_utf8(payload).unwrap();
    let mut words = text.split(' ');
    let member = words.next().unwrap().to_owned();
    let mut number = || words.next().unwrap().parse::<u64>().unwrap();
    (member, number(), number() as u8, number() as u8, number())
}
