use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use millrace_sfu::{congestion::Arrival, rtcp::Arrivals};

use crate::sequence::nearest;

/// Packets that were sent.
#[derive(Debug, Default)]
pub struct History {
    /// Sent packets by transport-wide number, up to the newest.
    sent: VecDeque<Sent>,
    next: u64,
    newest_reported: Option<u64>,
    /// Video packets for retransmissions, in the order of sending.
    kept: VecDeque<Kept>,
}

#[derive(Debug)]
struct Sent {
    at: Instant,
    bytes: usize,
    is_settled: bool,
}

#[derive(Debug)]
struct Kept {
    sequence: u16,
    time: u32,
    marker: bool,
    payload: Vec<u8>,
    at: Instant,
    retransmitted: Option<Instant>,
}

const SENT_MAX: usize = 8192;
const KEPT_MAX: usize = 1024;
const KEPT_TIME: Duration = Duration::from_secs(3);
/// Number of newest packets that are padding of probes.
const PADDING_PACKETS: usize = 16;

impl History {
    /// Returns the transport-wide number of the next packet.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Records a packet, and returns its number.
    pub fn sent(&mut self, bytes: usize, now: Instant) -> u64 {
        if self.sent.len() >= SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back(Sent { at: now, bytes, is_settled: false });
        self.next += 1;
        self.next - 1
    }

    pub fn has_report(&self) -> bool {
        self.newest_reported.is_some()
    }

    pub fn newest_reported(&self) -> Option<u64> {
        self.newest_reported
    }

    /// Returns the packets that a report calls received, in the order of sending, and the number of lost ones. Each
    /// packet is reported once.
    pub fn settle(&mut self, report: &Arrivals<'_>, mut each: impl FnMut(u64, Arrival)) -> (Vec<Arrival>, usize) {
        let Self { sent, next, newest_reported, .. } = self;
        let (first, mut arrivals, mut lost) = (*next - sent.len() as u64, Vec::new(), 0);
        report.for_each(|number, arrived_us| {
            let number = nearest(next.saturating_sub(1), number);
            let Some(index) = number.checked_sub(first) else { return };
            let Some(sent) = sent.get_mut(index as usize).filter(|sent| !sent.is_settled) else { return };
            sent.is_settled = true;
            *newest_reported = (*newest_reported).max(Some(number));
            match arrived_us {
                Some(arrived_us) => {
                    let arrival = Arrival { sent: sent.at, arrived_us, bytes: sent.bytes };
                    arrivals.push(arrival);
                    each(number, arrival);
                }
                None => lost += 1,
            }
        });
        (arrivals, lost)
    }

    /// Keeps a video packet for retransmissions.
    pub fn keep(&mut self, sequence: u16, time: u32, marker: bool, payload: Vec<u8>, now: Instant) {
        let is_old = |kept: &Kept| now.saturating_duration_since(kept.at) > KEPT_TIME;
        while self.kept.len() >= KEPT_MAX || self.kept.front().is_some_and(is_old) {
            self.kept.pop_front();
        }
        self.kept.push_back(Kept { sequence, time, marker, payload, at: now, retransmitted: None });
    }

    /// Returns whether a packet may be retransmitted: it is kept, and was not retransmitted within `pause`. Then counts
    /// it as retransmitted.
    pub fn may_retransmit(&mut self, sequence: u16, pause: Duration, now: Instant) -> bool {
        let Some(kept) = self.kept.iter_mut().rev().find(|kept| kept.sequence == sequence) else { return false };
        let is_duplicate = kept.retransmitted.is_some_and(|at| now.saturating_duration_since(at) < pause);
        if !is_duplicate {
            kept.retransmitted = Some(now);
        }
        !is_duplicate
    }

    pub fn retransmit(&mut self, sequence: u16, now: Instant) -> Option<(u32, bool, &[u8])> {
        let kept = self.kept.iter_mut().rev().find(|kept| kept.sequence == sequence)?;
        kept.retransmitted = Some(now);
        Some((kept.time, kept.marker, &kept.payload))
    }

    /// Returns the sequence number of one of the newest packets. Another `turn` selects another one.
    pub fn newest(&self, turn: usize) -> Option<u16> {
        let count = self.kept.len().min(PADDING_PACKETS);
        let at = self.kept.len() - 1 - turn.checked_rem(count)?;
        self.kept.get(at).map(|kept| kept.sequence)
    }
}
