use std::{collections::VecDeque, time::Duration};

use crate::{
    Cause, Config, ConfigError, Counters, Packet, PipeConfig, Probability, Time, Trace, bottleneck::Bottleneck,
    delay::Delay, loss::Loss, random::Random,
};

/// The cells of one direction: loss, duplication, corruption, a bottleneck, delay.
pub struct Pipe<P> {
    name: &'static str,
    loss: Loss,
    duplicate: (Probability, Random),
    corrupt: (Probability, Random),
    /// Packets that wait for the radio, with the time at which they enter.
    waiting: VecDeque<(Time, P)>,
    bottleneck: Option<Bottleneck<P>>,
    delay: Delay<P>,
    counters: Counters,
}

impl<P: Packet> Pipe<P> {
    pub(crate) fn new(
        name: &'static str,
        config: &Config,
        pipe: &PipeConfig,
        trace: Option<&Trace>,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        let random = |cell: &str| Random::new(seed, &format!("{name}.{cell}"));
        let service = pipe.service(name, trace)?;
        Ok(Self {
            name,
            loss: Loss::new(pipe.loss(), seed, &format!("{name}.loss")),
            duplicate: (pipe.duplicate, random("duplicate")),
            corrupt: (pipe.corrupt, random("corrupt")),
            waiting: VecDeque::new(),
            bottleneck: service.map(|(service, limit, codel)| Bottleneck::new(service, limit, codel)),
            delay: Delay::new(config.delay(pipe), seed, &format!("{name}.jitter")),
            counters: Counters::default(),
        })
    }

    /// Changes the settings while packets are on the link. They keep their place in the queue and their delay.
    pub(crate) fn configure(
        &mut self,
        config: &Config,
        pipe: &PipeConfig,
        trace: Option<&Trace>,
        now: Time,
    ) -> Result<(), ConfigError> {
        let service = pipe.service(self.name, trace)?;
        self.advance(now);
        self.loss.set_model(pipe.loss());
        (self.duplicate.0, self.corrupt.0) = (pipe.duplicate, pipe.corrupt);
        self.delay.configure(config.delay(pipe));
        match (&mut self.bottleneck, service) {
            (Some(bottleneck), Some((service, limit, codel))) => bottleneck.configure(service, limit, codel, now),
            (empty @ None, Some((service, limit, codel))) => *empty = Some(Bottleneck::new(service, limit, codel)),
            // Without a bottleneck, its packets leave at once.
            (old, None) => {
                for packet in old.take().into_iter().flat_map(Bottleneck::into_packets) {
                    self.delay.handle_input(packet, now);
                }
            }
        }
        Ok(())
    }

    /// Accepts a packet at `now` that enters at `enter`, which is later if the radio is not active yet.
    pub(crate) fn handle_input(&mut self, packet: P, enter: Time, now: Time) {
        self.advance(now);
        match enter > now || !self.waiting.is_empty() {
            true => self.waiting.push_back((enter, packet)),
            false => self.accept(packet, now),
        }
    }

    /// Counts a packet that is handed to the link.
    pub(crate) fn count(&mut self, bytes: usize, dropped: Option<Cause>) {
        self.counters.received += 1;
        self.counters.received_bytes += bytes as u64;
        if let Some(cause) = dropped {
            self.counters.drop(cause);
        }
    }

    /// Returns the next packet that leaves until `now`, and the time at which it leaves.
    pub(crate) fn poll_output(&mut self, now: Time) -> Option<(Time, P)> {
        self.advance(now);
        let (time, packet) = self.delay.poll_output(now)?;
        self.counters.delivered += 1;
        self.counters.delivered_bytes += packet.bytes() as u64;
        Some((time, packet))
    }

    /// Returns a time at which to call [`Pipe::poll_output`] again: not later than that of the next packet.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let start = self.bottleneck.as_ref().and_then(Bottleneck::next_start);
        let entry = self.waiting.front().map(|(enter, _)| *enter);
        let before_delay = start.into_iter().chain(entry).min().map(|time| time + self.delay.min());
        before_delay.into_iter().chain(self.delay.poll_timeout()).min()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the packets in the queue at a time, the one that is being sent included, and their bytes.
    pub fn queue(&self, now: Time) -> (u64, u64) {
        self.bottleneck.as_ref().map_or((0, 0), |bottleneck| bottleneck.depth(now))
    }

    /// Returns how long a packet that arrives now stays in the queue.
    pub fn queue_delay(&self, now: Time) -> Duration {
        self.bottleneck.as_ref().map_or(Duration::ZERO, |bottleneck| bottleneck.delay(now))
    }

    /// Moves packets to the delay cell: those whose transmission has begun by `now`.
    fn advance(&mut self, now: Time) {
        while self.waiting.front().is_some_and(|(enter, _)| *enter <= now) {
            if let Some((enter, packet)) = self.waiting.pop_front() {
                self.accept(packet, enter);
            }
        }
        self.serve(now);
    }

    fn serve(&mut self, now: Time) {
        let Some(bottleneck) = &mut self.bottleneck else { return };
        while let Some((end, packet)) = bottleneck.poll_output(now, &mut self.counters) {
            self.delay.handle_input(packet, end);
        }
    }

    fn accept(&mut self, mut packet: P, now: Time) {
        if self.loss.loses(now) {
            return self.counters.drop(Cause::Channel);
        }
        let copy = self.duplicate.0.happens(&mut self.duplicate.1).then(|| packet.clone());
        if self.corrupt.0.happens(&mut self.corrupt.1) && packet.bytes() > 0 {
            packet.corrupt(self.corrupt.1.index(packet.bytes() * 8));
            self.counters.corrupted += 1;
        }
        self.counters.duplicated += u64::from(copy.is_some());
        for packet in std::iter::once(packet).chain(copy) {
            self.serve(now);
            match &mut self.bottleneck {
                Some(bottleneck) => bottleneck.handle_input(packet, now, &mut self.counters),
                None => self.delay.handle_input(packet, now),
            }
        }
    }
}
