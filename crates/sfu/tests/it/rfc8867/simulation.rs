//! Two directions, each with a bottleneck, and the flows that share them. The time advances in steps of 1 ms.

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::Rc,
    time::{Duration, Instant},
};

use millrace_link::{
    Counters, QueueLimit, Rate, Time,
    bottleneck::{Bottleneck, Service},
};
use millrace_sfu::congestion::{Algorithm, coupled::Coupled};

use super::{
    cases::{Case, Source},
    media::{Control, Media, RATE_MAX},
    outcome::Outcome,
    packet::Sent,
    tcp::Tcp,
};

pub const TICK: Duration = Duration::from_millis(1);
/// First rate of a video in bit/s.
const FIRST_RATE: f64 = 300_000.0;
const QUEUE: Duration = Duration::from_millis(300);

/// One direction: a bottleneck whose capacity changes, followed by the delay of each flow.
struct Direction {
    bottleneck: Bottleneck<Sent>,
    counters: Counters,
    /// Changes of the capacity that are to come: time, bit/s.
    changes: VecDeque<(Time, u64)>,
    /// Packets behind the bottleneck, per flow, with their arrival times.
    delayed: Vec<VecDeque<(Time, Sent)>>,
    delays: Vec<Duration>,
}

impl Direction {
    fn new(capacity: &[(u64, u64)], delays: &[Duration]) -> Self {
        let (service, limit) = service(capacity[0].1);
        Self {
            bottleneck: Bottleneck::new(service, limit, None),
            counters: Counters::default(),
            changes: capacity[1..].iter().map(|(s, rate)| (Time::ZERO + Duration::from_secs(*s), *rate)).collect(),
            delayed: delays.iter().map(|_| VecDeque::new()).collect(),
            delays: delays.to_vec(),
        }
    }

    fn send(&mut self, packet: Sent, now: Time) {
        self.bottleneck.handle_input(packet, now, &mut self.counters);
    }

    fn advance(&mut self, now: Time) {
        while let Some((end, packet)) = self.bottleneck.poll_output(now, &mut self.counters) {
            let flow = packet.flow;
            self.delayed[flow].push_back((end + self.delays[flow], packet));
        }
        if let Some((_, rate)) = pop_due(&mut self.changes, now) {
            let (service, limit) = service(rate);
            self.bottleneck.configure(service, limit, None, now);
        }
    }

    /// Returns the next packet of a flow that has arrived.
    fn receive(&mut self, flow: usize, now: Time) -> Option<(Time, Sent)> {
        pop_due(&mut self.delayed[flow], now)
    }
}

/// Returns the first entry of a queue if its time has come.
fn pop_due<T>(queue: &mut VecDeque<(Time, T)>, now: Time) -> Option<(Time, T)> {
    queue.front().is_some_and(|(at, _)| *at <= now).then(|| queue.pop_front())?
}

fn service(bits_per_s: u64) -> (Service, QueueLimit) {
    let rate = Rate::from_bits_per_s(bits_per_s).expect("a case has valid capacities");
    let bytes = bits_per_s as f64 / 8.0 * QUEUE.as_secs_f64();
    (Service::Rate(rate), QueueLimit::Bytes(bytes as u64))
}

/// A flow, by its protocol.
enum Endpoints {
    Media(Box<Media>),
    Tcp(Tcp),
}

/// Runs a case with one algorithm. `coupled`: all videos share one group of coupled control.
pub fn run(case: &Case, algorithm: Algorithm, coupled: Option<Rc<RefCell<Coupled>>>, born: Instant) -> Outcome {
    let delays: Vec<_> = case.flows.iter().map(|flow| Duration::from_millis(flow.delay_ms)).collect();
    let mut directions = [Direction::new(case.forward, &delays), Direction::new(case.backward, &delays)];
    let mut flows: Vec<_> = case
        .flows
        .iter()
        .enumerate()
        .map(|(number, flow)| match flow.source {
            Source::Video { pause_s } => Endpoints::Media(Box::new(Media::new(number, flow.start_s, pause_s, born))),
            Source::LongTcp => Endpoints::Tcp(Tcp::new(number, flow.start_s, false)),
            Source::ShortTcp => Endpoints::Tcp(Tcp::new(number, flow.start_s, true)),
        })
        .collect();
    let mut outcome = Outcome::new(case);
    let begin = |now| {
        let controller = algorithm.controller(FIRST_RATE, now);
        match &coupled {
            None => Control::Own(controller),
            Some(coupled) => Control::Coupled(coupled.clone(), coupled.borrow_mut().add(controller, 1.0, RATE_MAX)),
        }
    };
    let (mut now, end) = (Time::ZERO, Time::ZERO + Duration::from_secs(case.seconds));
    while now < end {
        directions.iter_mut().for_each(|direction| direction.advance(now));
        for (number, endpoints) in flows.iter_mut().enumerate() {
            let is_forward = case.flows[number].is_forward;
            let (data, feedback) = if is_forward { (0, 1) } else { (1, 0) };
            while let Some((at, packet)) = directions[data].receive(number, now) {
                let delay = at.since(packet.at).saturating_sub(delays[number]);
                outcome.count_arrival(number, at, packet.bytes, delay);
                let response = match endpoints {
                    Endpoints::Media(media) => media.handle_packet(&packet, at),
                    Endpoints::Tcp(_) => Tcp::acknowledge(&packet, now),
                };
                if let Some(response) = response {
                    directions[feedback].send(response, now);
                }
            }
            while let Some((_, packet)) = directions[feedback].receive(number, now) {
                match endpoints {
                    Endpoints::Media(media) => media.handle_report(&packet, now),
                    Endpoints::Tcp(tcp) => tcp.handle_acknowledgment(&packet, now),
                }
            }
            let send = |packet: Sent| {
                outcome.count_sent(number);
                directions[data].send(packet, now);
            };
            match endpoints {
                Endpoints::Media(media) => media.send(now, begin, send),
                Endpoints::Tcp(tcp) => tcp.send(now, send),
            }
        }
        now = now + TICK;
    }
    outcome
}
