//! Propagation delay, jitter and hand-overs.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{Repeated, Time, random::Random, time::ns};

/// Distribution of the jitter. Its size is the setting `jitter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Uniform from -jitter to +jitter.
    #[default]
    Uniform,
    /// Normal with the standard deviation `jitter`, cut at three deviations.
    Normal,
    /// Only later: exponential with the mean `jitter`.
    Exponential,
    /// Only later, with a heavy tail: Pareto with shape 2.5 and the mean `jitter`.
    Pareto,
}

/// Delay of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub delay: Duration,
    pub jitter: Duration,
    pub distribution: Distribution,
    /// True if jitter may change the order of packets.
    pub reorder: bool,
    /// Additional delay during a hand-over. It never changes the order.
    pub handover: Option<(Repeated, Duration)>,
}

/// Holds packets until their delay is over.
pub struct Delay<P> {
    settings: Settings,
    random: Random,
    /// Packets in order, if the order cannot change.
    fifo: VecDeque<Held<P>>,
    /// Packets by time, if jitter may change the order.
    heap: BinaryHeap<Reverse<Held<P>>>,
    last: Time,
    count: u64,
}

struct Held<P> {
    release: Time,
    /// Packets of one time leave in the order in which they came.
    count: u64,
    packet: P,
}

impl<P> Delay<P> {
    pub fn new(settings: Settings, seed: u64, cell: &str) -> Self {
        let random = Random::new(seed, cell);
        Self { settings, random, fifo: VecDeque::new(), heap: BinaryHeap::new(), last: Time::ZERO, count: 0 }
    }

    /// Changes the delay of later packets.
    pub fn configure(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Holds a packet that left the bottleneck at `time`.
    pub fn handle_input(&mut self, packet: P, time: Time) {
        let Settings { delay, reorder, handover, .. } = self.settings;
        let jitter_ns = self.jitter_ns();
        let mut release = time + delay;
        release = match jitter_ns < 0.0 {
            true => release - Duration::from_nanos((-jitter_ns) as u64),
            false => release.add_ns(jitter_ns as u64),
        };
        release = release.max(time);
        if let Some((period, extra)) = handover
            && period.contains(time)
        {
            release = release + extra;
        }
        let may_overtake = reorder && jitter_ns != 0.0;
        if !may_overtake {
            release = release.max(self.last);
            self.last = release;
        }
        let held = Held { release, count: self.count, packet };
        self.count += 1;
        match may_overtake {
            true => self.heap.push(Reverse(held)),
            false => self.fifo.push_back(held),
        }
    }

    /// Returns the next packet whose delay is over, and the time at which it leaves.
    pub fn poll_output(&mut self, now: Time) -> Option<(Time, P)> {
        self.poll_timeout().filter(|release| *release <= now)?;
        let fifo = self.fifo.front().map(Held::key);
        let heap = self.heap.peek().map(|Reverse(held)| held.key());
        let is_from_heap = heap.is_some_and(|heap| fifo.is_none_or(|fifo| heap < fifo));
        let held = if is_from_heap { self.heap.pop().map(|Reverse(held)| held) } else { self.fifo.pop_front() }?;
        Some((held.release, held.packet))
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let fifo = self.fifo.front().map(|held| held.release);
        let heap = self.heap.peek().map(|Reverse(held)| held.release);
        fifo.into_iter().chain(heap).min()
    }

    /// Shortest time that a packet can stay here.
    pub fn min(&self) -> Duration {
        let Settings { delay, jitter, distribution, .. } = self.settings;
        match distribution {
            Distribution::Uniform => delay.saturating_sub(jitter),
            Distribution::Normal => delay.saturating_sub(3 * jitter),
            Distribution::Exponential | Distribution::Pareto => delay,
        }
    }

    fn jitter_ns(&mut self) -> f64 {
        let size = ns(self.settings.jitter) as f64;
        if size == 0.0 {
            return 0.0;
        }
        let random = &mut self.random;
        size * match self.settings.distribution {
            Distribution::Uniform => 2.0 * random.unit() - 1.0,
            Distribution::Normal => normal(random).clamp(-3.0, 3.0),
            Distribution::Exponential => -random.positive().ln(),
            Distribution::Pareto => pareto(random),
        }
    }
}

/// Source: Box and Muller 1958.
fn normal(random: &mut Random) -> f64 {
    (-2.0 * random.positive().ln()).sqrt() * (std::f64::consts::TAU * random.unit()).cos()
}

/// Lomax distribution (Pareto, shifted to 0) with shape 2.5 and mean 1.
fn pareto(random: &mut Random) -> f64 {
    const SHAPE: f64 = 2.5;
    (SHAPE - 1.0) * (random.positive().powf(-1.0 / SHAPE) - 1.0)
}

impl<P> Held<P> {
    fn key(&self) -> (Time, u64) {
        (self.release, self.count)
    }
}

impl<P> PartialEq for Held<P> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<P> Eq for Held<P> {}

impl<P> PartialOrd for Held<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Held<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns (index, delay in ms) of packets that enter every millisecond.
    fn delays(settings: Settings, count: u64) -> Vec<(u64, f64)> {
        let mut delay = Delay::new(settings, 11, "delay");
        for index in 0..count {
            delay.handle_input(index, Time::from_ns(index * MS));
        }
        let mut out = Vec::new();
        while let Some((release, index)) = delay.poll_output(Time::MAX) {
            out.push((index, (release.ns() - index * MS) as f64 / MS as f64));
        }
        out
    }

    fn settings(distribution: Distribution, reorder: bool) -> Settings {
        let (delay, jitter) = (Duration::from_millis(100), Duration::from_millis(10));
        Settings { delay, jitter, distribution, reorder, handover: None }
    }

    #[test]
    fn jitter_has_its_mean_and_size_in_every_distribution() {
        for (distribution, mean, low, high) in [
            (Distribution::Uniform, 100.0, 90.0, 110.0),
            (Distribution::Normal, 100.0, 70.0, 130.0),
            (Distribution::Exponential, 110.0, 100.0, 300.0),
            (Distribution::Pareto, 110.0, 100.0, 5000.0),
        ] {
            let delays = delays(settings(distribution, true), 100_000);
            let found = delays.iter().map(|(_, ms)| ms).sum::<f64>() / delays.len() as f64;
            assert!((found - mean).abs() < 0.3, "{distribution:?}: {found}");
            assert!(delays.iter().all(|(_, ms)| (low..=high).contains(ms)), "{distribution:?}");
            assert!(delays.windows(2).any(|pair| pair[0].0 > pair[1].0), "{distribution:?} changes the order");
        }
    }

    #[test]
    fn without_reordering_a_late_packet_holds_back_later_ones() {
        let delays = delays(settings(Distribution::Uniform, false), 10_000);
        assert!(delays.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(delays.iter().map(|(_, ms)| ms).sum::<f64>() / 10_000.0 > 102.0);
    }

    #[test]
    fn hand_over_delays_its_packets_and_keeps_the_order() {
        let period = Repeated {
            at: Duration::from_millis(50),
            lasts: Duration::from_millis(10),
            every: Some(Duration::from_millis(100)),
        };
        let delay = Duration::from_millis(20);
        let handover = Some((period, Duration::from_millis(80)));
        let delays = delays(Settings { delay, handover, ..Settings::default() }, 200);
        assert!(delays.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!((delays[49].1, delays[50].1, delays[59].1), (20.0, 100.0, 100.0));
        // Later packets wait for those of the hand-over, until the queue is empty.
        assert_eq!((delays[60].1, delays[139].1), (99.0, 20.0));
        assert_eq!(delays[150].1, 100.0);
    }
}
