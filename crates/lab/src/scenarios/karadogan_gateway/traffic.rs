//! Peers, message flows and schedule of each step, and the figures of the step.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use millrace_gateway::forward::{Bundle, parts};

use super::mode::Mode;
use crate::{
    histogram::Histogram,
    load::peers::{NativePeer, PeerGroup},
};

/// Maximum time for the handshakes of a step, and for outstanding messages.
const PATIENCE: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);
/// Length of `flow number due`, before a message is padded.
pub const BYTES_MIN: usize = 5 + 1 + 8 + 1 + 12;

/// Connects a peer. The text is the query of a request to a gateway: `name=NAME&to=NAME`.
pub type Joining = Arc<dyn Fn(Side, &str) -> anyhow::Result<NativePeer> + Send + Sync>;

/// Side of the gateway that a peer is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Near the gateway.
    Devices,
    /// Behind the mobile network.
    Servers,
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub mode: Mode,
    pub period: Duration,
    pub bytes: usize,
    pub window: Duration,
    pub fan_out: usize,
}

/// Result of one step.
#[derive(Default)]
pub struct Step {
    pub peers: usize,
    /// Start and end of the measurement, in seconds on the clock of the load.
    pub from_s: f64,
    pub to_s: f64,
    /// Time from the due time of a message to its arrival, for forwarded messages and for the parts of split bundles.
    pub delay: Histogram,
    /// The same for gathered messages, including their wait for the window.
    pub gathered: Histogram,
    /// Time from the due time of the first message of a bundle to the bundle's arrival, minus the window. This is the
    /// overhead of gathering.
    pub beyond: Histogram,
    /// Delay, or overhead of gathering, while the new peers of this step joined.
    pub joining: Histogram,
    /// Time from the due time of a message until it was sent.
    pub late: Histogram,
    pub sent: u64,
    pub came: u64,
    /// Bytes per second at IP level, in all datagrams from the sending peers to the gateway.
    pub received_bytes_per_s: f64,
    /// Bytes per second at IP level, in all datagrams from the gateway to the receiving peers.
    pub sent_bytes_per_s: f64,
    /// The same bytes in each whole second: from the sending peers, and to the receiving peers.
    pub bytes_by_second: Vec<[f64; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Sends,
    Receives,
    SendsAndReceives,
}

/// A stream of messages with its own sequence numbers.
struct Flow {
    next: u64,
    is_gathered: bool,
}

/// Source that sends once per period.
enum Source {
    /// Sends a message of this flow.
    One { peer: usize, flow: usize },
    /// Sends a bundle with one message of each of these flows, for these peers.
    Bundle { peer: usize, flows: Vec<(usize, String)> },
}

pub struct Traffic {
    plan: Plan,
    joining: Joining,
    group: PeerGroup,
    roles: Vec<Role>,
    began: Instant,
    sources: Vec<Source>,
    /// Next send time of each source.
    schedule: BinaryHeap<Reverse<(Instant, usize)>>,
    counters: StepCounters,
}

/// Counters and histograms of the current step.
struct StepCounters {
    flows: Vec<Flow>,
    began: Instant,
    window: Duration,
    /// Number of messages sent, by flow.
    sent: Vec<u64>,
    /// Start of the measurement. Messages due from here to `to` belong to the step; earlier ones belong to the
    /// joining.
    from: Instant,
    to: Instant,
    step: Step,
}

impl Traffic {
    /// `began`: zero of the clock.
    pub fn new(plan: Plan, joining: Joining, began: Instant) -> anyhow::Result<Traffic> {
        ensure!(plan.bytes >= BYTES_MIN, "bytes: {BYTES_MIN} at least");
        let counters = StepCounters {
            flows: Vec::new(),
            began,
            window: plan.window,
            sent: Vec::new(),
            from: began,
            to: began,
            step: Step::default(),
        };
        let (roles, sources, schedule) = Default::default();
        Ok(Traffic { plan, joining, group: PeerGroup::new()?, roles, began, sources, schedule, counters })
    }

    /// Grows to `peers` peers and sends for the duration `test`. The peers of earlier steps continue to send in the
    /// meantime.
    ///
    /// Errors: a peer cannot join, loses its connection, or receives a message twice or in the wrong order; or
    /// `go_on` returns an error because the run was stopped.
    pub fn step(
        &mut self,
        peers: usize,
        test: Duration,
        go_on: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Step> {
        self.counters.step = Step { peers, ..Step::default() };
        let far = Instant::now() + Duration::from_secs(86_400);
        (self.counters.from, self.counters.to) = (far, far);
        self.grow(peers, go_on)?;
        let from = Instant::now() + self.plan.period;
        let to = from + test;
        (self.counters.from, self.counters.to) = (from, to);
        self.run(from, go_on)?;
        let before = self.bytes();
        let (mut at, mut last, mut bytes_by_second) = (from, before, Vec::new());
        while to - at >= SECOND {
            at += SECOND;
            self.run(at, go_on)?;
            let now = self.bytes();
            bytes_by_second.push([(now.0 - last.0) as f64, (now.1 - last.1) as f64]);
            last = now;
        }
        self.run(to, go_on)?;
        let after = self.bytes();
        // Wait for messages that are still in transit or in a gathering window.
        let late = Instant::now() + PATIENCE;
        while self.counters.step.came < self.counters.step.sent && Instant::now() < late {
            self.run(Instant::now() + Duration::from_millis(20), go_on)?;
        }
        let mut step = std::mem::take(&mut self.counters.step);
        let seconds = test.as_secs_f64();
        step.received_bytes_per_s = (after.0 - before.0) as f64 / seconds;
        step.sent_bytes_per_s = (after.1 - before.1) as f64 / seconds;
        step.bytes_by_second = bytes_by_second;
        let at_s = |at: Instant| (at - self.began).as_secs_f64();
        (step.from_s, step.to_s) = (at_s(from), at_s(to));
        Ok(step)
    }

    /// Returns the bytes from the sending peers to the gateway, and from the gateway to the receiving peers.
    fn bytes(&self) -> (u64, u64) {
        let sum = |wanted: Role, of: fn(&NativePeer) -> u64| {
            let all = self.group.peers.iter().zip(&self.roles);
            all.filter(|(_, role)| **role == wanted || **role == Role::SendsAndReceives).map(|(peer, _)| of(peer)).sum()
        };
        (sum(Role::Sends, |peer| peer.sent_bytes), sum(Role::Receives, |peer| peer.received_bytes))
    }

    /// Adds new peers one after the other. They start to send once all of them are connected.
    fn grow(&mut self, peers: usize, go_on: &dyn Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let (first, began) = (self.devices(), Instant::now());
        let (mut queries, mut sources) = (Vec::new(), Vec::new());
        let Plan { mode, fan_out, .. } = self.plan;
        let mut add = |side: Side, role: Role, query: String| {
            self.roles.push(role);
            queries.push((side, query));
            self.roles.len() - 1
        };
        if first == 0 {
            let hubs = match mode {
                Mode::Forward => Vec::new(),
                Mode::Multiplex => vec![(Side::Servers, Role::Receives, "name=up".to_owned())],
                Mode::Bidirectional => vec![(Side::Servers, Role::SendsAndReceives, "name=up".to_owned())],
                Mode::Demultiplex => {
                    (0..fan_out).map(|n| (Side::Devices, Role::Receives, format!("name=to-{n}"))).collect()
                }
            };
            for (side, role, query) in hubs {
                add(side, role, query);
            }
        }
        let counters = &mut self.counters;
        let mut flow = |is_gathered| {
            counters.flows.push(Flow { next: 0, is_gathered });
            counters.sent.push(0);
            counters.flows.len() - 1
        };
        let mut arms = Vec::new();
        for n in first..peers {
            match mode {
                Mode::Forward => {
                    add(Side::Servers, Role::Receives, format!("name=to-{n}"));
                    let peer = add(Side::Devices, Role::Sends, format!("name=from-{n}&to=to-{n}"));
                    sources.push(Source::One { peer, flow: flow(false) });
                }
                Mode::Multiplex => {
                    let peer = add(Side::Devices, Role::Sends, format!("name=from-{n}&to=up"));
                    sources.push(Source::One { peer, flow: flow(true) });
                }
                Mode::Demultiplex => {
                    let peer = add(Side::Servers, Role::Sends, format!("name=from-{n}"));
                    let flows = (0..fan_out).map(|k| (flow(false), format!("to-{k}"))).collect();
                    sources.push(Source::Bundle { peer, flows });
                }
                Mode::Bidirectional => {
                    let peer = add(Side::Devices, Role::SendsAndReceives, format!("name=arm-{n}&to=up"));
                    sources.push(Source::One { peer, flow: flow(true) });
                    arms.push((flow(false), format!("arm-{n}")));
                }
            }
        }
        // Downstream bundles, sent by the single uplink peer, which joined first.
        sources.extend(arms.chunks(fan_out).map(|flows| Source::Bundle { peer: 0, flows: flows.to_vec() }));
        let all = self.roles.len();
        self.join(queries, all, began, go_on)?;
        // Spread the sources over the period, like those of many devices.
        let (start, count) = (Instant::now(), sources.len() as u32);
        for (n, source) in sources.into_iter().enumerate() {
            self.schedule.push(Reverse((start + self.plan.period * n as u32 / count, self.sources.len())));
            self.sources.push(source);
        }
        Ok(())
    }

    /// Returns the number of devices. A device may have several peers.
    fn devices(&self) -> usize {
        self.sources
            .iter()
            .filter(|source| self.plan.mode != Mode::Bidirectional || matches!(source, Source::One { .. }))
            .count()
    }

    fn join(
        &mut self,
        queries: Vec<(Side, String)>,
        all: usize,
        began: Instant,
        go_on: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (sender, joined) = mpsc::channel();
        let joining = self.joining.clone();
        // Another thread waits for the gateway's responses, so that the connected peers continue in time.
        thread::scope(|scope| {
            scope.spawn(move || {
                for (side, query) in queries {
                    let native = joining(side, &query);
                    let is_good = native.is_ok();
                    if sender.send(native).is_err() || !is_good {
                        return;
                    }
                }
            });
            let joined = joined;
            while self.group.peers.iter().filter(|peer| peer.is_open).count() < all {
                while let Ok(native) = joined.try_recv() {
                    self.group.add(native?)?;
                }
                self.turn(Instant::now() + Duration::from_millis(5))?;
                go_on()?;
                ensure!(began.elapsed() < PATIENCE, "not all of {all} peers have opened within {PATIENCE:?}");
            }
            Ok(())
        })
    }

    fn run(&mut self, until: Instant, go_on: &dyn Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
        while Instant::now() < until {
            go_on()?;
            self.turn(until)?;
        }
        Ok(())
    }

    /// Sends the messages that are due, and handles received datagrams.
    fn turn(&mut self, until: Instant) -> anyhow::Result<()> {
        let mut next = until;
        while let Some(Reverse((due, index))) = self.schedule.peek().copied() {
            let now = Instant::now();
            if due > now {
                next = next.min(due);
                break;
            }
            self.schedule.pop();
            self.schedule.push(Reverse((due + self.plan.period, index)));
            self.send(index, due, now)?;
        }
        let Self { group, counters, .. } = self;
        group.serve(next, |_, now, _, message| counters.receive(now, message))
    }

    fn send(&mut self, index: usize, due: Instant, now: Instant) -> anyhow::Result<()> {
        let (counters, bytes) = (&mut self.counters, self.plan.bytes);
        if counters.is_of_step(due) {
            counters.step.late.record_us((now - due).as_micros() as u64);
        }
        match &self.sources[index] {
            Source::One { peer, flow } => {
                let message = counters.message(*flow, due, bytes);
                self.group.write(*peer, message.as_bytes())
            }
            Source::Bundle { peer, flows } => {
                let mut bundle = Bundle::default();
                for (flow, to) in flows {
                    bundle.push(to, counters.message(*flow, due, bytes).as_bytes());
                }
                self.group.write(*peer, &bundle.take())
            }
        }
    }
}

impl StepCounters {
    fn is_of_step(&self, due: Instant) -> bool {
        (self.from..self.to).contains(&due)
    }

    /// Builds the next message of a flow, padded to `bytes`.
    fn message(&mut self, flow: usize, due: Instant, bytes: usize) -> String {
        let number = self.sent[flow];
        self.sent[flow] += 1;
        self.step.sent += u64::from(self.is_of_step(due));
        let at_us = (due - self.began).as_micros();
        format!("{:x<bytes$}", format!("{flow:05} {number:08} {at_us:012}"))
    }

    /// Handles a received message, or a bundle of messages.
    fn receive(&mut self, now: Instant, message: &[u8]) -> anyhow::Result<()> {
        if message.first() != Some(&b'[') {
            return self.count(now, message).map(drop);
        }
        let parts = parts(message).context("what came is no bundle")?;
        let mut first = None;
        for part in &parts {
            let due = self.count(now, &part.message)?;
            first = first.or(Some(due));
        }
        let first = first.context("an empty bundle came")?;
        let beyond_us = now.saturating_duration_since(first).saturating_sub(self.window).as_micros() as u64;
        if self.is_of_step(first) {
            self.step.beyond.record_us(beyond_us);
        } else if first < self.from {
            self.step.joining.record_us(beyond_us);
        }
        Ok(())
    }

    /// Counts a message and returns its due time.
    fn count(&mut self, now: Instant, message: &[u8]) -> anyhow::Result<Instant> {
        let head =
            message.get(..BYTES_MIN).and_then(|head| std::str::from_utf8(head).ok()).context("half a message")?;
        let mut words = head.split(' ');
        let mut next = || words.next().and_then(|word| word.parse::<u64>().ok()).context("not a message of ours");
        let (flow, number, at_us) = (next()? as usize, next()?, next()?);
        let known = self.flows.get_mut(flow).context("a message of nobody")?;
        ensure!(number >= known.next, "message {number} of {flow} came again, or behind a newer one");
        known.next = number + 1;
        let due = self.began + Duration::from_micros(at_us);
        let delay_us = now.saturating_duration_since(due).as_micros() as u64;
        let is_gathered = known.is_gathered;
        if self.is_of_step(due) {
            self.step.came += 1;
            let histogram = if is_gathered { &mut self.step.gathered } else { &mut self.step.delay };
            histogram.record_us(delay_us);
        } else if due < self.from && !is_gathered {
            self.step.joining.record_us(delay_us);
        }
        Ok(due)
    }
}
