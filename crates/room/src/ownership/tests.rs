//! Nodes that share one entry, with a simulated clock, slow and lost answers, and nodes that pause or die.

use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng as _, SeedableRng as _},
};

use super::*;

const STEP: Duration = Duration::from_millis(10);

/// The engine: one entry that is changed by compare-and-set.
#[derive(Default)]
struct Engine {
    entry: Option<Lease>,
    offset: u64,
}

impl Engine {
    fn write(&mut self, node: &str, condition: Condition, write: Write) -> Written {
        let holds = match condition {
            Condition::Absent => self.entry.is_none(),
            Condition::At(offset) => self.entry.as_ref().is_some_and(|entry| entry.offset == offset),
        };
        if !holds {
            return Written::Conflict;
        }
        self.offset += 1;
        let lease = |epoch| Some(Lease { node: node.into(), epoch, offset: self.offset });
        self.entry = match write {
            Write::Claim => lease(self.offset),
            Write::Renew { epoch } => lease(epoch),
            Write::Release => None,
        };
        Written::At(self.offset)
    }
}

struct Node {
    ownership: Ownership,
    name: String,
    /// Until this time the node does nothing, as if it were suspended.
    paused_until: Instant,
    /// No request reaches the engine, and no change reaches the node.
    is_cut: bool,
    outputs: Vec<Output>,
}

enum Message {
    Write(u64, Condition, Write),
    Written(u64, Written),
    Lease(Option<Lease>),
}

struct World {
    engine: Engine,
    nodes: Vec<Node>,
    now: Instant,
    random: Pcg64Mcg,
    /// Messages between nodes and the engine, in order per node.
    messages: Vec<(Instant, usize, Message)>,
    delay_max_ms: u64,
    owners: Vec<u64>,
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn new(nodes: usize, seed: u64) -> Self {
        let (now, random) = (Instant::now(), Pcg64Mcg::seed_from_u64(seed));
        let mut world = Self {
            engine: Engine::default(),
            nodes: Vec::new(),
            now,
            random,
            messages: Vec::new(),
            delay_max_ms: 30,
            owners: Vec::new(),
        };
        (0..nodes).for_each(|at| world.add(&format!("n{at}")));
        world
    }

    fn add(&mut self, name: &str) {
        let mut ownership = Ownership::new(name, self.now);
        ownership.handle_lease(self.engine.entry.clone(), self.now);
        let (paused_until, outputs) = (self.now, Vec::new());
        self.nodes.push(Node { ownership, name: name.into(), paused_until, is_cut: false, outputs });
    }

    fn below(&mut self, max: u64) -> u64 {
        self.random.next_u64() % max
    }

    fn post(&mut self, node: usize, message: Message) {
        let delay = self.below(self.delay_max_ms);
        let last = self.messages.iter().filter(|(_, to, _)| *to == node).map(|(at, ..)| *at).max();
        let at = (self.now + Duration::from_millis(delay)).max(last.unwrap_or(self.now));
        self.messages.push((at, node, message));
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.now += STEP;
            let now = self.now;
            let (due, later) = std::mem::take(&mut self.messages).into_iter().partition(|(at, ..)| *at <= now);
            self.messages = later;
            let due: Vec<(Instant, usize, Message)> = due;
            for (_, at, message) in due {
                self.deliver(at, message);
            }
            for at in 0..self.nodes.len() {
                let Node { ownership, paused_until, .. } = &mut self.nodes[at];
                if *paused_until <= now && ownership.poll_timeout().is_some_and(|due| due <= now) {
                    ownership.handle_timeout(now);
                }
                self.take_outputs(at);
            }
            self.check();
        }
    }

    fn deliver(&mut self, at: usize, message: Message) {
        let now = self.now;
        let node = &mut self.nodes[at];
        match message {
            _ if node.is_cut => {}
            Message::Write(number, condition, write) => {
                let before = self.engine.offset;
                let name = node.name.clone();
                let written = self.engine.write(&name, condition, write);
                self.post(at, Message::Written(number, written));
                if self.engine.offset != before {
                    let entry = self.engine.entry.clone();
                    (0..self.nodes.len()).for_each(|to| self.post(to, Message::Lease(entry.clone())));
                }
            }
            _ if node.paused_until > now => {
                let resumed = node.paused_until;
                self.messages.push((resumed, at, message));
            }
            Message::Written(number, written) => node.ownership.handle_written(number, written, now),
            Message::Lease(lease) => node.ownership.handle_lease(lease, now),
        }
    }

    fn take_outputs(&mut self, at: usize) {
        while let Some(output) = self.nodes[at].ownership.poll_output() {
            if let Output::Write { number, condition, write } = output {
                self.post(at, Message::Write(number, condition, write));
            } else {
                self.nodes[at].outputs.push(output);
            }
        }
    }

    /// At most one node acts as owner, and epochs only grow.
    fn check(&mut self) {
        let now = self.now;
        let owners: Vec<u64> = self
            .nodes
            .iter()
            .filter_map(|node| match node.ownership.owner(now) {
                Owner::This { epoch } => Some(epoch),
                _ => None,
            })
            .collect();
        assert!(owners.len() <= 1, "two owners: {owners:?}");
        for epoch in owners {
            let last = self.owners.last().copied().unwrap_or(0);
            assert!(epoch >= last, "epoch {epoch} after {last}");
            if epoch > last {
                self.owners.push(epoch);
            }
        }
    }

    fn owner(&self) -> Option<usize> {
        let is_owner = |node: &Node| matches!(node.ownership.owner(self.now), Owner::This { .. });
        self.nodes.iter().position(is_owner)
    }

    fn want(&mut self, at: usize, is_wanted: bool) {
        let now = self.now;
        self.nodes[at].ownership.set_wanted(is_wanted, now);
        self.take_outputs(at);
    }
}

#[test]
fn first_node_owns_room_and_others_follow() {
    let mut world = World::new(3, 1);
    world.run(Duration::from_secs(2));
    assert_eq!(world.owner(), None, "no node has participants");
    (0..3).for_each(|at| world.want(at, true));
    world.run(Duration::from_secs(20));
    let owner = world.owner().expect("an owner");
    assert_eq!(world.nodes[owner].outputs, [Output::Gained { epoch: 1 }], "it stays the owner");
    let follow = Output::Follow { node: world.nodes[owner].name.as_str().into(), epoch: 1 };
    for (_, node) in world.nodes.iter().enumerate().filter(|(at, _)| *at != owner) {
        assert_eq!(node.outputs, std::slice::from_ref(&follow));
        let name = world.nodes[owner].name.as_str().into();
        assert_eq!(node.ownership.owner(world.now), Owner::Other { node: name, epoch: 1 });
    }
}

#[test]
fn dead_owner_is_replaced_after_its_lease() {
    let mut world = World::new(2, 2);
    world.want(0, true);
    world.run(Duration::from_secs(3));
    world.want(1, true);
    world.run(Duration::from_secs(1));
    assert_eq!(world.owner(), Some(0));
    world.nodes[0].is_cut = true;
    world.run(OWNER_TIMEOUT - RENEW_INTERVAL - 2 * STEP);
    let cut_at = world.now;
    assert_eq!(world.owner(), Some(0), "it does not know yet");
    world.run(Duration::from_secs(3));
    assert_eq!(world.owner(), Some(1), "after {:?}", world.now - cut_at);
    assert!(world.nodes[0].outputs.ends_with(&[Output::Lost]));
    // The old owner returns, and follows.
    world.nodes[0].is_cut = false;
    let entry = world.engine.entry.clone();
    world.post(0, Message::Lease(entry));
    world.run(Duration::from_secs(10));
    assert_eq!(world.owner(), Some(1));
    assert!(matches!(world.nodes[0].outputs.last(), Some(Output::Follow { .. })));
}

#[test]
fn owner_without_participants_releases_room_at_once() {
    let mut world = World::new(2, 3);
    world.want(0, true);
    world.run(Duration::from_secs(2));
    world.want(1, true);
    world.run(Duration::from_millis(500));
    world.want(0, false);
    world.run(Duration::from_millis(2500));
    assert_eq!(world.owner(), Some(1));
    world.want(1, false);
    world.run(Duration::from_secs(3));
    assert_eq!((world.owner(), world.engine.entry.clone()), (None, None));
}

#[test]
fn paused_owner_does_not_act() {
    let mut world = World::new(2, 4);
    world.want(0, true);
    world.run(Duration::from_secs(2));
    world.want(1, true);
    world.nodes[0].paused_until = world.now + Duration::from_secs(20);
    world.run(Duration::from_secs(10));
    assert_eq!(world.owner(), Some(1));
    world.run(Duration::from_secs(20));
    assert_eq!(world.owner(), Some(1));
    assert!(world.nodes[0].outputs.contains(&Output::Lost));
}

/// The check in [`World::run`] is the test: never two owners, and epochs grow.
#[test]
fn random_faults_never_make_two_owners() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut world = World::new(3, seed);
        (0..3).for_each(|at| world.want(at, true));
        for _ in 0..40 {
            let at = world.below(3) as usize;
            match world.below(6) {
                0 => world.nodes[at].is_cut = true,
                1 => {
                    world.nodes[at].is_cut = false;
                    let entry = world.engine.entry.clone();
                    world.post(at, Message::Lease(entry));
                }
                2 => {
                    let pause = world.below(8000);
                    world.nodes[at].paused_until = world.now + Duration::from_millis(pause);
                }
                3 => world.delay_max_ms = [5, 30, 1000, 3000][world.below(4) as usize],
                4 => {
                    let is_wanted = world.below(3) > 0;
                    world.want(at, is_wanted);
                }
                _ => {}
            }
            let span = world.below(4000);
            world.run(Duration::from_millis(span));
        }
        world.delay_max_ms = 30;
        for at in 0..3 {
            world.nodes[at].is_cut = false;
            world.want(at, true);
        }
        world.run(Duration::from_secs(4));
        for at in 0..3 {
            let entry = world.engine.entry.clone();
            world.post(at, Message::Lease(entry));
        }
        world.run(Duration::from_secs(20));
        assert!(world.owner().is_some(), "seed {seed}");
    }
}
