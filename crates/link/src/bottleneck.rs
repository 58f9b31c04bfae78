//! The slowest part of a link: a rate or a trace, with a queue in front of it.

use std::{collections::VecDeque, time::Duration};

use crate::{
    Cause, Counters, Packet, QueueLimit, Rate, Time, Trace,
    codel::{Codel, CodelConfig},
    trace::OPPORTUNITY_BYTES,
};

/// When packets may leave.
#[derive(Clone, Debug, PartialEq)]
pub enum Service {
    Rate(Rate),
    Trace(Trace),
}

impl Service {
    fn mean_rate(&self) -> Rate {
        match self {
            Self::Rate(rate) => *rate,
            Self::Trace(trace) => trace.mean_rate(),
        }
    }
}

struct Queued<P> {
    packet: P,
    bytes: u64,
    arrival: Time,
}

/// A queue and the server behind it. A packet that is being sent still counts as queued.
pub struct Bottleneck<P> {
    service: Service,
    packets_max: u64,
    bytes_max: u64,
    codel: Option<(CodelConfig, Codel)>,
    queue: VecDeque<Queued<P>>,
    queued_bytes: u64,
    /// Size of the packet that is being sent, until `free_at`.
    sending_bytes: u64,
    free_at: Time,
    /// Rest of the division of the last transmission time, in bits x 10^9, so that the mean rate is exact.
    remainder: u64,
    /// Next delivery opportunity of the trace, and the bytes that it has left.
    opportunity: u64,
    opportunity_bytes: u64,
}

impl<P: Packet> Bottleneck<P> {
    pub fn new(service: Service, limit: QueueLimit, codel: Option<CodelConfig>) -> Self {
        let (packets_max, bytes_max) = limit.resolve(service.mean_rate());
        Self {
            service,
            packets_max,
            bytes_max,
            codel: codel.map(|config| (config, Codel::default())),
            queue: VecDeque::new(),
            queued_bytes: 0,
            sending_bytes: 0,
            free_at: Time::ZERO,
            remainder: 0,
            opportunity: 0,
            opportunity_bytes: OPPORTUNITY_BYTES,
        }
    }

    /// Changes the settings. Packets in the queue stay, also if there are more than the new limit allows.
    pub fn configure(&mut self, service: Service, limit: QueueLimit, codel: Option<CodelConfig>, now: Time) {
        (self.packets_max, self.bytes_max) = limit.resolve(service.mean_rate());
        if let (Service::Trace(trace), true) = (&service, self.service != service) {
            (self.opportunity, self.opportunity_bytes) = (trace.first_from(now.max(self.free_at)), OPPORTUNITY_BYTES);
        }
        self.service = service;
        self.codel = codel.map(|config| (config, self.codel.take().map_or_else(Codel::default, |(_, codel)| codel)));
    }

    /// Adds a packet to the queue, or drops it if the queue is full. Call [`Bottleneck::poll_output`] until `now`
    /// first.
    pub fn handle_input(&mut self, packet: P, now: Time, counters: &mut Counters) {
        let bytes = packet.bytes() as u64;
        let (packets, queued) = self.depth(now);
        if packets + 1 > self.packets_max || queued + bytes > self.bytes_max {
            return counters.drop(Cause::QueueFull);
        }
        self.queued_bytes += bytes;
        self.queue.push_back(Queued { packet, bytes, arrival: now });
        counters.queue_packets_max = counters.queue_packets_max.max(packets + 1);
        counters.queue_bytes_max = counters.queue_bytes_max.max(queued + bytes);
    }

    /// Returns the next packet whose transmission begins until `now`, and the time at which it ends.
    pub fn poll_output(&mut self, now: Time, counters: &mut Counters) -> Option<(Time, P)> {
        let start = self.next_start().filter(|start| *start <= now)?;
        let Self { queue, queued_bytes, .. } = self;
        let mut pop = || {
            let head = queue.pop_front()?;
            *queued_bytes -= head.bytes;
            Some((head.arrival, *queued_bytes, head))
        };
        let head = match &mut self.codel {
            None => pop().map(|(.., head)| head),
            Some((config, codel)) => codel.dequeue(*config, start, pop, |_| counters.drop(Cause::QueueDelay)),
        }?;
        self.free_at = self.send(head.bytes, start);
        self.sending_bytes = head.bytes;
        counters.queue_delay_max = counters.queue_delay_max.max(start.since(head.arrival));
        Some((self.free_at, head.packet))
    }

    /// Returns the time at which the next transmission begins, if a packet waits.
    pub fn next_start(&self) -> Option<Time> {
        let head = self.queue.front()?;
        let ready = head.arrival.max(self.free_at);
        Some(match &self.service {
            Service::Rate(_) => ready,
            Service::Trace(trace) => trace.time_of(self.usable_from(trace, ready).0),
        })
    }

    /// Returns the first opportunity that a packet can use which is ready at a time, and the bytes that it has left.
    fn usable_from(&self, trace: &Trace, ready: Time) -> (u64, u64) {
        match self.opportunity_bytes > 0 && trace.time_of(self.opportunity) >= ready {
            true => (self.opportunity, self.opportunity_bytes),
            false => (trace.first_from(ready).max(self.opportunity + 1), OPPORTUNITY_BYTES),
        }
    }

    /// Packets in the queue at a time, the one that is being sent included, and their bytes.
    pub fn depth(&self, now: Time) -> (u64, u64) {
        let sending = if self.free_at > now { (1, self.sending_bytes) } else { (0, 0) };
        (self.queue.len() as u64 + sending.0, self.queued_bytes + sending.1)
    }

    /// Returns how long a packet that arrives now stays in the queue. With a trace, its mean rate counts.
    pub fn delay(&self, now: Time) -> Duration {
        self.free_at.since(now) + self.service.mean_rate().time_of(self.queued_bytes)
    }

    /// Returns the packets of the queue, in order.
    pub fn into_packets(self) -> impl Iterator<Item = P> {
        self.queue.into_iter().map(|queued| queued.packet)
    }

    /// Returns the end of the transmission of a packet that begins at `start`.
    fn send(&mut self, bytes: u64, start: Time) -> Time {
        match &self.service {
            Service::Rate(rate) => {
                let total = bytes * 8 * 1_000_000_000 + self.remainder;
                self.remainder = total % rate.bits_per_s();
                start.add_ns(total / rate.bits_per_s())
            }
            Service::Trace(trace) => {
                let (mut opportunity, mut free_bytes) = self.usable_from(trace, start);
                let mut bytes = bytes;
                // A large packet, and the rest of one that did not fit, uses several opportunities.
                while bytes > free_bytes {
                    bytes -= free_bytes;
                    (opportunity, free_bytes) = (opportunity + 1, OPPORTUNITY_BYTES);
                }
                (self.opportunity, self.opportunity_bytes) = (opportunity, free_bytes - bytes);
                trace.time_of(self.opportunity)
            }
        }
    }
}
