use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::{Duration, Instant},
};

use millrace_call::{
    Endpoint, Receiver, Source,
    coupled::Group,
    receiver::{self, Statistics},
    source,
};
use millrace_link::{Config, Direction, PipeConfig, QueueLimit, Rate};
use serde::Deserialize;

use super::{
    layout::{LAYERS, ssrc},
    mesh::MeshPeer,
    unit::{Leg, UnitPeer, Uplink},
    watch::StreamWatch,
};
use crate::scenarios::lozano::{
    calls::{self, Settings},
    network::{Network, Node, NodeId, Outgoing},
};

/// Congestion control of a participant of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// One controller and one encoder per connection: as in the thesis.
    Independent,
    /// The controllers share the sum of their rates.
    Coupled,
    /// As `Coupled`, and one encoder for all connections.
    SharedEncoder,
}

/// Policy of a unit for the feedback of receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Forwards it to the sender unchanged: as in the thesis.
    PassThrough,
    /// The sender gets the rate of the slowest receiver.
    Lowest,
    /// Each receiver gets a layer that fits its path.
    PerReceiver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    Mesh(Control, usize),
    Unit(Policy, usize),
}

impl Case {
    pub fn peers(self) -> usize {
        match self {
            Case::Mesh(_, peers) | Case::Unit(_, peers) => peers,
        }
    }

    pub fn topology(self) -> &'static str {
        match self {
            Case::Mesh(..) => "mesh",
            Case::Unit(..) => "unit",
        }
    }

    pub fn variant(self) -> &'static str {
        match self {
            Case::Mesh(Control::Independent, _) => "independent",
            Case::Mesh(Control::Coupled, _) => "coupled",
            Case::Mesh(Control::SharedEncoder, _) => "shared encoder",
            Case::Unit(Policy::PassThrough, _) => "pass-through",
            Case::Unit(Policy::Lowest, _) => "lowest",
            Case::Unit(Policy::PerReceiver, _) => "per receiver",
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}, {}", self.topology(), self.peers(), self.variant())
    }
}

/// Links of the participants.
#[derive(Clone, Debug)]
pub struct Access {
    pub mesh: Rate,
    pub up: Rate,
    /// For each stream that is received.
    pub down: Rate,
    pub narrow: Rate,
    pub queue: Duration,
    pub delay: Duration,
}

/// One stream as one participant has received it.
#[derive(Clone, Debug)]
pub struct ReceivedStream {
    /// True if the receiver has the narrow downlink.
    pub is_narrow: bool,
    pub watch: StreamWatch,
    pub statistics: Statistics,
}

enum Participant {
    Mesh(Box<MeshPeer>),
    Peer(Box<UnitPeer>),
    Uplink(Box<Uplink>),
    Leg(Box<Leg>),
}

impl Participant {
    fn node(&self) -> &dyn Node {
        match self {
            Participant::Mesh(node) => &**node,
            Participant::Peer(node) => &**node,
            Participant::Uplink(node) => &**node,
            Participant::Leg(node) => &**node,
        }
    }

    fn node_mut(&mut self) -> &mut dyn Node {
        match self {
            Participant::Mesh(node) => &mut **node,
            Participant::Peer(node) => &mut **node,
            Participant::Uplink(node) => &mut **node,
            Participant::Leg(node) => &mut **node,
        }
    }
}

impl Node for Participant {
    fn timeout(&self) -> Option<Instant> {
        self.node().timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.node_mut().handle_timeout(now);
    }

    fn handle_datagram(&mut self, from: NodeId, datagram: &[u8], now: Instant) {
        self.node_mut().handle_datagram(from, datagram, now);
    }

    fn poll_output(&mut self, now: Instant) -> Option<(NodeId, Outgoing)> {
        self.node_mut().poll_output(now)
    }
}

/// Makes one call of several, and returns all received streams.
///
/// Errors: a link is invalid.
pub fn measure(case: Case, access: &Access, settings: &Settings) -> anyhow::Result<Vec<ReceivedStream>> {
    let base = Instant::now();
    let mut network = Network::new(base);
    let pipe = |rate| PipeConfig {
        rate: Some(rate),
        queue: Some(QueueLimit::Time(access.queue)),
        delay: access.delay / 2,
        ..PipeConfig::default()
    };
    match case {
        Case::Mesh(control, peers) => {
            for _ in 0..peers {
                let link = Config { up: pipe(access.mesh), down: pipe(access.mesh), ..Config::default() };
                network.add_link(link, settings.seed)?;
            }
            mesh(&mut network, control, peers, settings, base);
        }
        Case::Unit(policy, peers) => {
            for peer in 0..peers {
                let per_stream = if peer + 1 == peers { access.narrow } else { access.down };
                let down = Rate::from_bits_per_s(per_stream.bits_per_s() * (peers as u64 - 1))?;
                network
                    .add_link(Config { up: pipe(access.up), down: pipe(down), ..Config::default() }, settings.seed)?;
            }
            unit(&mut network, policy, peers, settings, base);
        }
    }
    network.run(settings.test);
    let mut streams = Vec::new();
    for (to, node) in network.nodes.iter().enumerate().take(case.peers()) {
        let is_narrow = matches!(case, Case::Unit(_, peers) if to + 1 == peers);
        let (watch, statistics): (_, Vec<Statistics>) = match node {
            Participant::Mesh(peer) => (&peer.watch, peer.endpoints().map(|end| end.receiver.statistics()).collect()),
            Participant::Peer(peer) => (&peer.watch, peer.statistics().collect()),
            _ => unreachable!("the participants come first"),
        };
        // Both are in the order of the other participants.
        let others = (0..case.peers()).filter(|from| *from != to);
        streams.extend(others.zip(statistics).map(|(from, statistics)| {
            let mut watch = watch.streams.get(&from).cloned().unwrap_or_default();
            watch.rates.resize(settings.test.as_secs() as usize, 0.0);
            ReceivedStream { is_narrow, watch, statistics }
        }));
    }
    Ok(streams)
}

fn mesh(network: &mut Network<Participant>, control: Control, peers: usize, settings: &Settings, now: Instant) {
    for peer in 0..peers {
        let group = Group::default();
        let leg = |other: usize| {
            let controller = settings.algorithm.controller(settings.first_bits_per_s, now);
            let controller = match control {
                Control::Independent => controller,
                Control::Coupled | Control::SharedEncoder => {
                    group.add(controller, settings.ceiling_bits_per_s as f64 * DESIRED_FACTOR)
                }
            };
            let own = (control != Control::SharedEncoder)
                .then(|| calls::source(settings, (peer * peers + other) as u64, now));
            // Each connection has SSRCs of its own end alone, so the same ones serve all.
            let sender = calls::sender(settings, ssrc(peer, 0), controller, now);
            let receiver = calls::receiver(settings, ssrc(peer, 0), ssrc(other, 0), now);
            (other, Endpoint::new(own, sender, receiver, now))
        };
        let legs = (0..peers).filter(|other| *other != peer).map(leg).collect();
        let shared =
            (control == Control::SharedEncoder).then(|| calls::source(settings, (peer * peers + peer) as u64, now));
        network.add_node(Participant::Mesh(Box::new(MeshPeer::new(legs, shared, now))));
        for other in (0..peers).filter(|other| *other != peer) {
            network.set_route(peer, other, &[(peer, Direction::Up), (other, Direction::Down)]);
        }
    }
}

/// A flow cannot use more than this multiple of its ceiling: the rest is for headers and repair.
const DESIRED_FACTOR: f64 = 1.3;

fn unit(network: &mut Network<Participant>, policy: Policy, peers: usize, settings: &Settings, now: Instant) {
    let shares: &[f64] = if policy == Policy::PerReceiver { &LAYERS } else { &[1.0] };
    let rates: Vec<u64> = shares.iter().map(|share| (share * settings.ceiling_bits_per_s as f64) as u64).collect();
    let uplink = |peer: usize| peers + peer;
    // Legs follow the uplinks: of each sender, those to all participants, its own one left out.
    let leg = |from: usize, to: usize| 2 * peers + from * (peers - 1) + if to > from { to - 1 } else { to };
    for peer in 0..peers {
        let group = Group::default();
        let layer = |(layer, rate): (usize, &u64)| {
            let controller = settings.algorithm.controller(settings.first_bits_per_s, now);
            let controller = match rates.len() {
                1 => controller,
                _ => group.add(controller, *rate as f64 * DESIRED_FACTOR),
            };
            let config = source::Config {
                ceiling_bits_per_s: *rate,
                seed: settings.seed.wrapping_mul(1000).wrapping_add(peer as u64),
                ..source::Config::default()
            };
            let own = Settings { ceiling_bits_per_s: *rate, ..settings.clone() };
            (Source::new(config, now), calls::sender(&own, ssrc(peer, layer), controller, now))
        };
        let receivers = (0..peers).filter(|from| *from != peer).map(|from| {
            let to = if policy == Policy::PassThrough { uplink(from) } else { leg(from, peer) };
            (from, (calls::receiver(settings, ssrc(peer, 0), ssrc(from, 0), now), to))
        });
        let peer = UnitPeer {
            layers: rates.iter().enumerate().map(layer).collect(),
            uplink: uplink(peer),
            receivers: receivers.collect(),
            watch: super::watch::Watch::new(now),
        };
        network.add_node(Participant::Peer(Box::new(peer)));
    }
    for peer in 0..peers {
        let others = (0..peers).filter(|other| *other != peer);
        let layer = |layer: usize| forwarding_receiver(settings, ssrc(peer, layer), now);
        let is_passed = policy == Policy::PassThrough;
        let node = Uplink {
            peer,
            layers: if is_passed { Vec::new() } else { (0..rates.len()).map(layer).collect() },
            to: others.clone().map(|to| if is_passed { to } else { leg(peer, to) }).collect(),
            lowest: (policy == Policy::Lowest).then(|| (BTreeMap::new(), now)),
            out: VecDeque::new(),
        };
        network.add_node(Participant::Uplink(Box::new(node)));
        network.set_route(peer, uplink(peer), &[(peer, Direction::Up)]);
        network.set_route(uplink(peer), peer, &[(peer, Direction::Down)]);
        for other in others.filter(|_| is_passed) {
            network.set_route(uplink(peer), other, &[(other, Direction::Down)]);
            network.set_route(other, uplink(peer), &[(other, Direction::Up)]);
        }
    }
    if policy == Policy::PassThrough {
        return;
    }
    // Each leg probes for more bandwidth by itself: a low layer alone would never show that a higher one fits.
    let probed = Settings { ceiling_bits_per_s: settings.ceiling_bits_per_s * 5 / 4, ..settings.clone() };
    for from in 0..peers {
        for to in (0..peers).filter(|to| *to != from) {
            let controller = settings.algorithm.controller(settings.first_bits_per_s, now);
            let node = Leg {
                from,
                uplink: uplink(from),
                to,
                sender: calls::sender(&probed, ssrc(from, 0), controller, now),
                layers: rates.clone(),
                layer: 0,
                wanted: 0,
                offset: 0,
                last_sequence: None,
                report_at: now,
                out: VecDeque::new(),
            };
            let id = network.add_node(Participant::Leg(Box::new(node)));
            debug_assert_eq!(id, leg(from, to));
            network.set_route(id, to, &[(to, Direction::Down)]);
            network.set_route(to, id, &[(to, Direction::Up)]);
        }
    }
}

fn forwarding_receiver(settings: &Settings, of: u32, now: Instant) -> Receiver {
    let config = receiver::Config { forwards: true, ..calls::receiver_config(settings, 1, of) };
    Receiver::new(config, now)
}
