//! Movements of the wearers, one wearer at a time, and who has felt each of them.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::{histogram::Histogram, load::payload::Stamp};

/// Maximum time from the last movement until all wearers have felt it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time after the last delivery in which a repeated delivery still counts: more than one round trip of the link.
const SETTLE: Duration = Duration::from_millis(200);

/// Connections of all wearers.
pub trait Connections {
    /// Sends a movement of this wearer to all others.
    ///
    /// Errors: a connection broke or takes no more messages.
    fn send(&mut self, wearer: usize, movement: &[u8]) -> anyhow::Result<()>;

    /// Handles received data until the given time, or a little less. Calls `take` with the receiving wearer, the time
    /// and the movement. A wearer may also receive its own movements.
    ///
    /// Errors: a connection broke, or `take` returns an error.
    fn serve(&mut self, until: Instant, take: &mut Take<'_>) -> anyhow::Result<()>;
}

pub type Take<'a> = dyn FnMut(usize, Instant, &[u8]) -> anyhow::Result<()> + 'a;

/// Times and size of the movements.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub wearers: usize,
    /// Movements per second of the wearer that moves.
    pub each_per_s: f64,
    pub bytes: usize,
    pub test: Duration,
    pub seed: u64,
}

impl Plan {
    fn movements(&self) -> u64 {
        (self.test.as_secs_f64() * self.each_per_s).ceil() as u64
    }

    /// Returns the due times of all movements, in order. Each one is at a random time within its period, so that the
    /// movements are not in phase with the window of a gateway.
    fn due_times(&self) -> Vec<Duration> {
        let mut random = Pcg64Mcg::seed_from_u64(self.seed);
        let at = |movement: u64| Duration::from_secs_f64((movement as f64 + random.random::<f64>()) / self.each_per_s);
        (0..self.movements()).map(at).collect()
    }

    /// Returns the wearer of a movement. Each wearer moves for an equal share of the time, one after the other.
    fn mover(&self, movement: u64) -> usize {
        (movement * self.wearers as u64 / self.movements()) as usize
    }
}

/// Deliveries of all movements. A wearer's own movement is no delivery.
#[derive(Debug, Default)]
pub struct Deliveries {
    pub moved: u64,
    pub expected: u64,
    /// Deliveries without repeated ones.
    pub felt: u64,
    pub duplicated: u64,
    /// Deliveries behind a later movement of the same wearer.
    pub reordered: u64,
    /// Time from the due time of a movement until another wearer has received it.
    pub delay: Histogram,
    /// Time from the due time of a movement until it was sent. The delay includes this time.
    pub late: Histogram,
}

impl Deliveries {
    pub fn lost(&self) -> u64 {
        self.expected - self.felt
    }

    pub fn is_complete(&self) -> bool {
        self.expected > 0 && self.lost() == 0 && self.duplicated == 0 && self.reordered == 0
    }

    pub fn add(&mut self, other: &Deliveries) {
        let Deliveries { moved, expected, felt, duplicated, reordered, delay, late } = other;
        self.moved += moved;
        self.expected += expected;
        self.felt += felt;
        self.duplicated += duplicated;
        self.reordered += reordered;
        self.delay.add(delay);
        self.late.add(late);
    }
}

/// Lets the wearers move, and waits until all movements are felt, or until the time for it is over.
///
/// Errors: those of `connections`; a received message is no movement; `go_on` returns an error because the run was
/// stopped.
pub fn run(
    connections: &mut dyn Connections,
    plan: &Plan,
    go_on: &dyn Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Deliveries> {
    let (began, mut ledger, mut message) = (Instant::now(), Ledger::new(plan), Vec::new());
    for (movement, at) in plan.due_times().into_iter().enumerate() {
        let due = began + at;
        while Instant::now() < due {
            go_on()?;
            connections.serve(due, &mut |wearer, now, payload| ledger.receive(wearer, now - began, payload))?;
        }
        let mover = plan.mover(movement as u64);
        message.clear();
        ledger.next(mover, at).write(plan.bytes, &mut message);
        ledger.deliveries.late.record_ns(due.elapsed().as_nanos() as u64);
        connections.send(mover, &message)?;
    }
    let mut until = Instant::now() + PATIENCE;
    let mut is_settling = false;
    while Instant::now() < until {
        go_on()?;
        if ledger.deliveries.lost() == 0 && !is_settling {
            is_settling = true;
            until = Instant::now() + SETTLE;
        }
        connections.serve(until, &mut |wearer, now, payload| ledger.receive(wearer, now - began, payload))?;
    }
    Ok(ledger.deliveries)
}

struct Ledger {
    bytes: usize,
    /// Number of the next movement of each wearer.
    next: Vec<u64>,
    /// Highest number that arrived plus one, by the wearer that moved and the wearer that feels it.
    newest: Vec<Vec<u64>>,
    /// Movements that arrived: number, wearer that moved, wearer that feels it.
    seen: HashSet<(u64, usize, usize)>,
    deliveries: Deliveries,
}

impl Ledger {
    fn new(plan: &Plan) -> Self {
        let wearers = plan.wearers;
        let (seen, deliveries) = Default::default();
        Self { bytes: plan.bytes, next: vec![0; wearers], newest: vec![vec![0; wearers]; wearers], seen, deliveries }
    }

    /// Counts a movement, and returns its message.
    fn next(&mut self, mover: usize, due: Duration) -> Stamp {
        let sequence = self.next[mover];
        self.next[mover] += 1;
        self.deliveries.moved += 1;
        self.deliveries.expected += self.next.len() as u64 - 1;
        Stamp { stream: mover as u32, sequence, due_ns: due.as_nanos() as u64 }
    }

    /// Counts a delivery to the wearer `by`.
    ///
    /// Errors: the payload is not exactly one of the movements so far.
    fn receive(&mut self, by: usize, now: Duration, payload: &[u8]) -> anyhow::Result<()> {
        let Stamp { stream, sequence, due_ns } = Stamp::read(payload, self.bytes).with_context(|| {
            format!("wearer {by} received no movement: {}", String::from_utf8_lossy(&payload[..payload.len().min(200)]))
        })?;
        let mover = stream as usize;
        let made = self.next.get(mover).copied().unwrap_or_default();
        ensure!(sequence < made, "wearer {by} received movement {sequence} of wearer {mover}, which was never made");
        if mover == by {
            return Ok(());
        }
        let deliveries = &mut self.deliveries;
        if !self.seen.insert((sequence, mover, by)) {
            deliveries.duplicated += 1;
            return Ok(());
        }
        let newest = &mut self.newest[mover][by];
        deliveries.reordered += u64::from(sequence < *newest);
        *newest = (*newest).max(sequence + 1);
        deliveries.felt += 1;
        deliveries.delay.record_ns((now.as_nanos() as u64).saturating_sub(due_ns));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(wearers: usize, each_per_s: f64, test_s: u64) -> Plan {
        Plan { wearers, each_per_s, bytes: 100, test: Duration::from_secs(test_s), seed: 1 }
    }

    #[test]
    fn each_wearer_moves_for_an_equal_share_of_the_time() {
        let plan = plan(3, 4.0, 3);
        let movers: Vec<usize> = (0..plan.movements()).map(|movement| plan.mover(movement)).collect();
        assert_eq!(movers, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
    }

    #[test]
    fn each_movement_is_due_within_its_own_period() {
        let times = plan(3, 4.0, 300).due_times();
        let periods = times.iter().map(|time| (time.as_secs_f64() * 4.0) as usize);
        assert!(periods.eq(0..1200));
        let in_first_half = times.iter().filter(|time| (time.as_secs_f64() * 4.0).fract() < 0.5).count();
        assert!((500..700).contains(&in_first_half), "{in_first_half} of 1200");
    }

    #[test]
    fn lost_repeated_and_reordered_movements_are_counted() {
        let mut ledger = Ledger::new(&plan(3, 4.0, 1));
        let ms = Duration::from_millis;
        let message = |stamp: Stamp| {
            let mut message = Vec::new();
            stamp.write(100, &mut message);
            message
        };
        let [first, second] = [(); 2].map(|()| message(ledger.next(0, ms(1000))));
        let mut receive = |by, payload: &[u8]| ledger.receive(by, ms(1070), payload);
        for (by, payload) in [(1, &second), (1, &first), (1, &first), (2, &first), (0, &first)] {
            receive(by, payload).expect("a movement");
        }
        assert!(receive(2, b"not a movement").is_err());
        for never_made in [Stamp { stream: 1, sequence: 0, due_ns: 0 }, Stamp { stream: 3, sequence: 0, due_ns: 0 }] {
            assert!(receive(2, &message(never_made)).is_err(), "{never_made:?}");
        }
        let Deliveries { moved, expected, felt, duplicated, reordered, ref delay, .. } = ledger.deliveries;
        assert_eq!((moved, expected, felt, duplicated, reordered), (2, 4, 3, 1, 1));
        assert_eq!((ledger.deliveries.lost(), delay.count()), (1, 3));
        assert!(!ledger.deliveries.is_complete() && delay.max_us().is_some_and(|us| us.abs_diff(70_000) < 100));
    }
}
