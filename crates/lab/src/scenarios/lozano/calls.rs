//! Calls of two participants over a network in virtual time.

use std::time::{Duration, Instant};

use millrace_call::{
    Endpoint, Receiver, Sender, Source,
    receiver::{self, Reports},
    sender, source,
};
use millrace_link::{Config, Direction};
use millrace_sfu::congestion::{Algorithm, CongestionController};

use super::{
    choice::Common,
    figures::StreamFigures,
    network::{Network, Node, NodeId, Outgoing},
    tcp::{TcpReceiver, TcpSender},
};

/// Settings of all calls of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub algorithm: Algorithm,
    pub first_bits_per_s: f64,
    pub ceiling_bits_per_s: u64,
    pub test: Duration,
    pub seed: u64,
}

impl Settings {
    pub fn new(common: &Common, algorithm: Algorithm, seed: u64) -> Self {
        Self {
            algorithm,
            first_bits_per_s: common.first_rate.bits_per_s() as f64,
            ceiling_bits_per_s: common.ceiling.bits_per_s(),
            test: common.test,
            seed,
        }
    }
}

/// Links that the packets of one direction pass.
pub type Hops = Vec<(usize, Direction)>;

/// A network with calls and TCP flows.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    pub links: Vec<Config>,
    pub calls: Vec<CallPlan>,
    pub tcp: Vec<TcpPlan>,
}

/// A call of the participants A and B.
#[derive(Clone, Debug, Default)]
pub struct CallPlan {
    pub to_b: Hops,
    pub to_a: Hops,
    /// Start, since the start of the run.
    pub start: Duration,
}

impl CallPlan {
    /// Returns a call over link 0: B is behind its uplink, A behind its downlink.
    pub fn over_one_link(start: Duration) -> Self {
        Self { to_b: vec![(0, Direction::Up)], to_a: vec![(0, Direction::Down)], start }
    }
}

/// A long TCP flow.
#[derive(Clone, Debug, Default)]
pub struct TcpPlan {
    pub data: Hops,
    pub acknowledgments: Hops,
    pub start: Duration,
}

/// Figures of one call.
#[derive(Clone, Debug)]
pub struct CallFigures {
    /// Start, since the start of the run.
    pub start: Duration,
    /// The stream that A receives, and the one that B receives.
    pub received: [StreamFigures; 2],
}

/// Figures of a run.
#[derive(Clone, Debug, Default)]
pub struct RunFigures {
    pub calls: Vec<CallFigures>,
    /// Bytes of each TCP flow that arrived in order, per second.
    pub tcp: Vec<Vec<f64>>,
}

enum Participant {
    Call { endpoint: Box<Endpoint>, peer: NodeId },
    TcpSender { sender: Box<TcpSender>, peer: NodeId },
    TcpReceiver { receiver: Box<TcpReceiver>, peer: NodeId },
}

impl Node for Participant {
    fn timeout(&self) -> Option<Instant> {
        match self {
            Participant::Call { endpoint, .. } => Some(endpoint.timeout()),
            Participant::TcpSender { sender, .. } => sender.timeout(),
            Participant::TcpReceiver { receiver, .. } => receiver.timeout(),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        match self {
            Participant::Call { endpoint, .. } => endpoint.handle_timeout(now),
            Participant::TcpSender { sender, .. } => sender.handle_timeout(now),
            Participant::TcpReceiver { receiver, .. } => receiver.handle_timeout(now),
        }
    }

    fn handle_datagram(&mut self, _from: NodeId, datagram: &[u8], now: Instant) {
        match self {
            Participant::Call { endpoint, .. } => endpoint.handle_datagram(datagram, now),
            Participant::TcpSender { sender, .. } => sender.handle_acknowledgment(datagram, now),
            Participant::TcpReceiver { receiver, .. } => receiver.handle_segment(datagram, now),
        }
    }

    fn poll_output(&mut self, now: Instant) -> Option<(NodeId, Outgoing)> {
        match self {
            Participant::Call { endpoint, peer } => Some((*peer, Outgoing::of_call(endpoint.poll_output(now)?))),
            Participant::TcpSender { sender, peer } => Some((*peer, sender.poll_output(now)?)),
            Participant::TcpReceiver { receiver, peer } => Some((*peer, receiver.poll_output()?)),
        }
    }
}

/// SSRC of the first stream. Each stream has this distance from the next one.
const SSRC_FIRST: u32 = 1000;
const SSRC_STEP: u32 = 10;

/// Returns the SSRC of a stream by its number.
pub fn ssrc(stream: usize) -> u32 {
    SSRC_FIRST + SSRC_STEP * stream as u32
}

/// Returns the sender of a stream.
pub fn sender(settings: &Settings, ssrc: u32, controller: Box<dyn CongestionController>, now: Instant) -> Sender {
    let config = sender::Config {
        ssrc,
        is_numbered: !matches!(settings.algorithm, Algorithm::Rrtcc(_)),
        retransmits: true,
        protects: true,
        ceiling_bits_per_s: settings.ceiling_bits_per_s,
    };
    Sender::new(config, controller, now)
}

/// Returns the receiver of a stream.
pub fn receiver(settings: &Settings, ssrc: u32, of: u32, now: Instant) -> Receiver {
    Receiver::new(receiver_config(settings, ssrc, of), now)
}

/// Returns the settings of a receiver. RRTCC gets what it had: an estimate of the receiver each second.
pub fn receiver_config(settings: &Settings, ssrc: u32, of: u32) -> receiver::Config {
    let reports = match settings.algorithm {
        Algorithm::Rrtcc(config) => Reports::Remb(config.increase),
        Algorithm::Gcc | Algorithm::Nada => Reports::Arrivals,
    };
    receiver::Config { ssrc, of, reports, requests: true, forwards: false }
}

pub fn source(settings: &Settings, stream: u64, now: Instant) -> Source {
    let seed = settings.seed.wrapping_mul(1000).wrapping_add(stream);
    let ceiling_bits_per_s = settings.ceiling_bits_per_s;
    Source::new(source::Config { ceiling_bits_per_s, seed, ..source::Config::default() }, now)
}

/// Makes all calls and flows of a network at once.
///
/// Errors: a link is invalid.
pub fn measure(setup: &Setup, settings: &Settings) -> anyhow::Result<RunFigures> {
    let base = Instant::now();
    let mut network = Network::new(base);
    for link in &setup.links {
        network.add_link(link.clone(), settings.seed)?;
    }
    for (n, call) in setup.calls.iter().enumerate() {
        let start = base + call.start;
        let streams = [ssrc(2 * n), ssrc(2 * n + 1)];
        for end in 0..2 {
            let controller = settings.algorithm.controller(settings.first_bits_per_s, start);
            let (own, other) = (streams[end], streams[1 - end]);
            let endpoint = Endpoint::new(
                Some(source(settings, (2 * n + end) as u64, start)),
                sender(settings, own, controller, start),
                receiver(settings, own, other, start),
                start,
            );
            network.add_node(Participant::Call { endpoint: Box::new(endpoint), peer: 2 * n + 1 - end });
        }
        network.set_route(2 * n, 2 * n + 1, &call.to_b);
        network.set_route(2 * n + 1, 2 * n, &call.to_a);
    }
    let first_tcp = network.nodes.len();
    for flow in &setup.tcp {
        let start = base + flow.start;
        let from = network.nodes.len();
        network.add_node(Participant::TcpSender { sender: Box::new(TcpSender::new(start)), peer: from + 1 });
        network.add_node(Participant::TcpReceiver { receiver: Box::new(TcpReceiver::new(base)), peer: from });
        network.set_route(from, from + 1, &flow.data);
        network.set_route(from + 1, from, &flow.acknowledgments);
    }
    network.run(settings.test);
    let end = |node: usize| match &network.nodes[node] {
        Participant::Call { endpoint, .. } => endpoint,
        _ => unreachable!("the calls come first"),
    };
    let figures = |(n, call): (usize, &CallPlan)| {
        let length = settings.test.saturating_sub(call.start);
        let received = [0, 1].map(|receiver| {
            let (to, from) = (2 * n + receiver, 2 * n + 1 - receiver);
            StreamFigures::of(end(from), end(to), ssrc(from), length)
        });
        CallFigures { start: call.start, received }
    };
    let calls = setup.calls.iter().enumerate().map(figures).collect();
    let tcp = network.nodes[first_tcp..].iter().filter_map(|node| match node {
        Participant::TcpReceiver { receiver, .. } => Some(receiver.kbit_per_s(settings.test)),
        _ => None,
    });
    Ok(RunFigures { calls, tcp: tcp.collect() })
}
