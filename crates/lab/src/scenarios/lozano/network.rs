//! A network in virtual time: nodes that exchange datagrams over emulated links.
//!
//! An hour passes in seconds, and the load of this machine has no influence: queues, losses and delays are those of the
//! links alone.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_call::{IP_UDP_BYTES, SRTCP_TAG_BYTES, SRTP_TAG_BYTES};
use millrace_link::{Config, ConfigError, Direction, Flow, Link, Packet, Time, Traces};
use millrace_sfu::egress::is_report;

/// Number of a node: its place in [`Network::nodes`].
pub type NodeId = usize;

/// Something with an address: a participant, a forwarding unit, or one end of a TCP connection.
pub trait Node {
    /// Returns when [`Node::handle_timeout`] must be called.
    fn timeout(&self) -> Option<Instant>;

    fn handle_timeout(&mut self, now: Instant);

    fn handle_datagram(&mut self, from: NodeId, datagram: &[u8], now: Instant);

    /// Returns the next datagram to send, and its receiver.
    fn poll_output(&mut self, now: Instant) -> Option<(NodeId, Outgoing)>;
}

/// A datagram to send.
pub struct Outgoing {
    pub bytes: Vec<u8>,
    /// Size on a link in bytes.
    pub size: usize,
}

impl Outgoing {
    /// Returns a media packet or a report, with the headers of IP and UDP and the tag of SRTP.
    pub fn of_call(bytes: Vec<u8>) -> Self {
        let tag = if is_report(&bytes) { SRTCP_TAG_BYTES } else { SRTP_TAG_BYTES };
        Self { size: bytes.len() + IP_UDP_BYTES + tag, bytes }
    }
}

/// Links that a datagram passes, in this order.
pub type Route = Arc<[(usize, Direction)]>;

#[derive(Clone)]
struct Transit {
    bytes: Arc<[u8]>,
    size: usize,
    from: NodeId,
    to: NodeId,
    route: Route,
    hop: usize,
}

impl Packet for Transit {
    fn bytes(&self) -> usize {
        self.size
    }

    fn flow(&self) -> Option<Flow> {
        Some(Flow(((self.from as u128) << 64) | self.to as u128))
    }

    fn is_opening(&self) -> bool {
        true
    }

    /// An inverted bit fails the checksum: the receiver ignores the packet.
    fn corrupt(&mut self, _bit: usize) {
        self.bytes = Arc::from([]);
    }

    fn reset(&self) -> Option<Self> {
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Waker {
    Link(usize),
    Node(NodeId),
}

/// Nodes and links.
pub struct Network<N> {
    pub nodes: Vec<N>,
    links: Vec<Link<Transit>>,
    routes: HashMap<(NodeId, NodeId), Route>,
    /// Instant at time zero.
    base: Instant,
    now: Time,
    timers: BinaryHeap<Reverse<(Time, Waker)>>,
    /// Next timer of each link and each node. Other timers in the heap are ignored.
    link_timers: Vec<Option<Time>>,
    node_timers: Vec<Option<Time>>,
    /// Nodes with something to send.
    active: VecDeque<NodeId>,
}

impl<N: Node> Network<N> {
    /// `base`: instant at time zero, from which all instants of the nodes follow.
    pub fn new(base: Instant) -> Self {
        Self {
            nodes: Vec::new(),
            links: Vec::new(),
            routes: HashMap::new(),
            base,
            now: Time::ZERO,
            timers: BinaryHeap::new(),
            link_timers: Vec::new(),
            node_timers: Vec::new(),
            active: VecDeque::new(),
        }
    }

    /// Adds a link, and returns its number. Errors: see [`ConfigError`].
    pub fn add_link(&mut self, config: Config, seed: u64) -> Result<usize, ConfigError> {
        let number = self.links.len();
        // Links of one seed must not lose the same packets.
        let seed = seed.wrapping_add((number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.links.push(Link::new(config, &Traces::default(), seed)?);
        self.link_timers.push(None);
        Ok(number)
    }

    pub fn add_node(&mut self, node: N) -> NodeId {
        let id = self.nodes.len();
        self.nodes.push(node);
        self.node_timers.push(None);
        self.schedule_node(id);
        id
    }

    /// Sets the links from one node to another. Without a route, datagrams arrive at once.
    pub fn set_route(&mut self, from: NodeId, to: NodeId, links: &[(usize, Direction)]) {
        self.routes.insert((from, to), Arc::from(links));
    }

    fn instant(&self, time: Time) -> Instant {
        self.base + time.since(Time::ZERO)
    }

    /// Runs until this time since the start.
    pub fn run(&mut self, until: Duration) {
        let until = Time::ZERO + until;
        while let Some(Reverse((time, waker))) = self.timers.peek().copied().filter(|Reverse((time, _))| *time <= until)
        {
            self.timers.pop();
            match waker {
                Waker::Link(link) if self.link_timers[link] == Some(time) => {
                    self.now = self.now.max(time);
                    self.link_timers[link] = None;
                    self.drain(link);
                    self.schedule_link(link);
                }
                Waker::Node(node) if self.node_timers[node] == Some(time) => {
                    self.now = self.now.max(time);
                    self.node_timers[node] = None;
                    let now = self.instant(self.now);
                    self.nodes[node].handle_timeout(now);
                    self.active.push_back(node);
                }
                _ => continue,
            }
            self.send();
        }
        self.now = self.now.max(until);
    }

    fn drain(&mut self, link: usize) {
        while let Some((_, _, mut transit)) = self.links[link].poll_output(self.now) {
            transit.hop += 1;
            self.forward(transit);
        }
    }

    /// Sends what the active nodes have to send.
    fn send(&mut self) {
        while let Some(node) = self.active.pop_front() {
            let now = self.instant(self.now);
            while let Some((to, Outgoing { bytes, size })) = self.nodes[node].poll_output(now) {
                let route = self.routes.get(&(node, to)).cloned().unwrap_or_else(|| Arc::from([]));
                self.forward(Transit { bytes: bytes.into(), size, from: node, to, route, hop: 0 });
            }
            self.schedule_node(node);
        }
    }

    fn forward(&mut self, transit: Transit) {
        match transit.route.get(transit.hop).copied() {
            Some((link, direction)) => {
                self.links[link].handle_input(direction, transit, self.now);
                self.schedule_link(link);
            }
            None => {
                let now = self.instant(self.now);
                self.nodes[transit.to].handle_datagram(transit.from, &transit.bytes, now);
                self.active.push_back(transit.to);
            }
        }
    }

    fn schedule_link(&mut self, link: usize) {
        let next = self.links[link].poll_timeout().map(|time| time.max(self.now));
        if next != self.link_timers[link] {
            self.link_timers[link] = next;
            self.timers.extend(next.map(|time| Reverse((time, Waker::Link(link)))));
        }
    }

    fn schedule_node(&mut self, node: NodeId) {
        let time = |at: Instant| (Time::ZERO + at.saturating_duration_since(self.base)).max(self.now);
        let next = self.nodes[node].timeout().map(time);
        if next != self.node_timers[node] {
            self.node_timers[node] = next;
            self.timers.extend(next.map(|time| Reverse((time, Waker::Node(node)))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends one datagram each 100 ms to the next node, and records arrivals in milliseconds.
    struct Clock {
        to: NodeId,
        base: Instant,
        next: Instant,
        due: usize,
        arrived: Vec<u128>,
    }

    impl Node for Clock {
        fn timeout(&self) -> Option<Instant> {
            Some(self.next)
        }

        fn handle_timeout(&mut self, now: Instant) {
            while self.next <= now {
                self.next += Duration::from_millis(100);
                self.due += 1;
            }
        }

        fn handle_datagram(&mut self, _from: NodeId, _datagram: &[u8], now: Instant) {
            self.arrived.push((now - self.base).as_millis());
        }

        fn poll_output(&mut self, _now: Instant) -> Option<(NodeId, Outgoing)> {
            self.due = self.due.checked_sub(1)?;
            Some((self.to, Outgoing { bytes: vec![0], size: 1000 }))
        }
    }

    #[test]
    fn datagrams_pass_their_links_in_order() {
        let base = Instant::now();
        let mut network = Network::new(base);
        let link = |text: &str| toml::from_str::<Config>(text).expect("a link");
        let slow =
            network.add_link(link("up = { delay = \"30ms\" }\ndown = { rate = \"80kbit/s\" }"), 1).expect("valid");
        let far = network.add_link(link("up = { delay = \"7ms\" }"), 1).expect("valid");
        for to in [1, 0] {
            network.add_node(Clock { to, base, next: base, due: 0, arrived: Vec::new() });
        }
        network.set_route(0, 1, &[(slow, Direction::Up), (far, Direction::Up)]);
        network.set_route(1, 0, &[(slow, Direction::Down)]);
        network.run(Duration::from_millis(450));
        assert_eq!(network.nodes[1].arrived, [37, 137, 237, 337, 437]);
        // 1,000 bytes need 100 ms at 80 kbit/s.
        assert_eq!(network.nodes[0].arrived, [100, 200, 300, 400]);
        assert_eq!(network.links[far].pipe(Direction::Up).counters().delivered, 5);
    }
}
