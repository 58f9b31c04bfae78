use std::time::Duration;

use millrace_link::{Config, Direction, Flow, Link, Packet, PipeConfig, Time, Traces};

/// A packet with a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    pub number: u64,
    pub bytes: usize,
    pub is_opening: bool,
    pub is_reset: bool,
    /// Bit that was inverted.
    pub inverted: Option<usize>,
}

impl Numbered {
    pub fn new(number: u64, bytes: usize) -> Self {
        Self { number, bytes, is_opening: false, is_reset: false, inverted: None }
    }

    pub fn opening(number: u64, bytes: usize) -> Self {
        Self { is_opening: true, ..Self::new(number, bytes) }
    }
}

impl Packet for Numbered {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn flow(&self) -> Option<Flow> {
        Some(Flow(1))
    }

    fn is_opening(&self) -> bool {
        self.is_opening
    }

    fn corrupt(&mut self, bit: usize) {
        self.inverted = Some(bit);
    }

    fn reset(&self) -> Option<Self> {
        Some(Self { is_reset: true, bytes: 40, ..Self::new(self.number, 40) })
    }
}

pub fn at_ms(ms: f64) -> Time {
    Time::from_ns((ms * 1e6) as u64)
}

pub fn ms(time: Time) -> f64 {
    time.ns() as f64 / 1e6
}

pub fn link(config: Config) -> Link<Numbered> {
    Link::new(config, &Traces::default(), 1).expect("a link")
}

/// Returns a link whose direction up has these settings.
pub fn link_up(up: PipeConfig) -> Link<Numbered> {
    link(Config { up, ..Config::default() })
}

/// Sends `count` packets of `bytes` up, one per `interval`, and returns what arrives with its time.
pub fn send_up(link: &mut Link<Numbered>, count: u64, bytes: usize, interval: Duration) -> Vec<(Time, Numbered)> {
    let mut arrived = Vec::new();
    for number in 0..count {
        let now = Time::ZERO + interval * number as u32;
        arrived.extend(poll(link, now));
        link.handle_input(Direction::Up, Numbered::new(number, bytes), now);
    }
    arrived.extend(drain(link));
    arrived
}

/// Returns the packets that leave until `now`.
pub fn poll(link: &mut Link<Numbered>, now: Time) -> Vec<(Time, Numbered)> {
    std::iter::from_fn(|| link.poll_output(now)).map(|(_, time, packet)| (time, packet)).collect()
}

/// Lets the time pass from one timeout to the next, until the link is empty.
pub fn drain(link: &mut Link<Numbered>) -> Vec<(Time, Numbered)> {
    let mut arrived = Vec::new();
    while let Some(time) = link.poll_timeout() {
        let before = link.poll_timeout();
        arrived.extend(poll(link, time));
        assert_ne!(link.poll_timeout(), before, "the next timeout is later");
    }
    arrived
}
