//! Figures that one thread of the generator records.

use crate::{histogram::Histogram, recording::Counts};

use super::{
    ledger::PublicationTable,
    payload::Stamp,
    tally::{Arrival, Tally},
};

/// Stream number of the probe.
pub const PROBE: u32 = 99_999_999;

/// Streams that a connection receives, and the index of their first tally.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    pub first_stream: u32,
    pub streams: u32,
    pub tallies_at: usize,
}

/// Figures of one phase. The latencies are recorded per second first and then added.
#[derive(Default)]
pub struct PhaseStats {
    pub counts: Counts,
    pub latency: Histogram,
    pub service: Histogram,
    pub spread: Histogram,
    pub connect: Histogram,
    pub probe: Histogram,
    pub lateness: Histogram,
    pub lag: Histogram,
    /// Longest time between two messages at one receiver.
    pub silence_ns: u64,
}

impl PhaseStats {
    pub fn add(&mut self, other: &PhaseStats) {
        self.counts += other.counts;
        self.silence_ns = self.silence_ns.max(other.silence_ns);
        for (sum, one) in [
            (&mut self.latency, &other.latency),
            (&mut self.service, &other.service),
            (&mut self.spread, &other.spread),
            (&mut self.connect, &other.connect),
            (&mut self.probe, &other.probe),
            (&mut self.lateness, &other.lateness),
            (&mut self.lag, &other.lag),
        ] {
            sum.add(one);
        }
    }
}

pub struct ThreadStats<'a> {
    ledger: &'a PublicationTable,
    bytes: usize,
    pub tallies: Vec<Tally>,
    /// Time of the newest message of each receiver; 0 before its first message.
    newest_ns: Vec<u64>,
    /// Counts of the current second.
    pub counts: Counts,
    /// Latencies of the current second.
    pub latency: Histogram,
    /// Figures of the current phase.
    pub page: PhaseStats,
    /// Number of deliveries since the start, without duplicates.
    pub delivered: u64,
}

impl<'a> ThreadStats<'a> {
    /// `receivers`: number of receivers; they share the tallies evenly.
    pub fn new(ledger: &'a PublicationTable, bytes: usize, tallies: usize, receivers: usize) -> Self {
        Self {
            ledger,
            bytes,
            tallies: vec![Tally::default(); tallies],
            newest_ns: vec![0; receivers],
            counts: Counts::default(),
            latency: Histogram::default(),
            page: PhaseStats::default(),
            delivered: 0,
        }
    }

    /// Records a message that a receiver has read.
    #[inline]
    pub fn message(&mut self, receiver: Option<Receiver>, payload: &[u8], now_ns: u64) {
        let stamp = Stamp::read(payload, self.bytes);
        let (Some(receiver), Some(stamp)) = (receiver, stamp) else {
            self.counts.corrupt += 1;
            return;
        };
        let heard = stamp.stream.wrapping_sub(receiver.first_stream);
        if heard >= receiver.streams || stamp.sequence > u64::from(u32::MAX - 1) {
            self.counts.corrupt += 1;
            return;
        }
        if stamp.stream == PROBE {
            self.page.probe.record_ns(now_ns.saturating_sub(stamp.due_ns));
            return;
        }
        let sequence = stamp.sequence as u32;
        match self.tallies[receiver.tallies_at + heard as usize].arrived(sequence) {
            Arrival::Again => {
                self.counts.duplicated += 1;
                return;
            }
            Arrival::Late => self.counts.reordered += 1,
            Arrival::InOrder => {}
        }
        let newest_ns = &mut self.newest_ns[receiver.tallies_at / receiver.streams as usize];
        let before_ns = std::mem::replace(newest_ns, now_ns);
        if before_ns > 0 {
            self.page.silence_ns = self.page.silence_ns.max(now_ns.saturating_sub(before_ns));
        }
        self.counts.delivered += 1;
        self.delivered += 1;
        self.latency.record_ns(now_ns.saturating_sub(stamp.due_ns));
        if let Some(known) = self.ledger.arrived(stamp.stream, sequence, now_ns) {
            self.page.service.record_ns(now_ns.saturating_sub(known.sent_ns));
            if let Some(spread_ns) = known.spread_ns {
                self.page.spread.record_ns(spread_ns);
            }
        }
    }

    /// Ends the current second: adds its figures to the phase and returns them.
    pub fn turn_second(&mut self) -> (Counts, Histogram) {
        let counts = std::mem::take(&mut self.counts);
        let latency = std::mem::take(&mut self.latency);
        self.page.counts += counts;
        self.page.latency.add(&latency);
        (counts, latency)
    }
}
