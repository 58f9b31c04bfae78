//! Sending side of a link: history of the frames that were sent, for arrival reports and retransmissions.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::frame::Report;
use crate::congestion::Arrival;

/// Limits of the history: number of frames, and age.
const HISTORY_MAX: usize = 8192;
const HISTORY_TIME: Duration = Duration::from_secs(2);
/// A frame is retransmitted while it is younger than two round-trip times, but at least `RETRANSMIT_AGE_MIN` and at
/// most `RETRANSMIT_AGE_MAX`: a later packet is of no use any more.
const RETRANSMIT_AGE_MIN: Duration = Duration::from_millis(60);
const RETRANSMIT_AGE_MAX: Duration = Duration::from_secs(1);
/// Limits of retransmission: its share of the bytes sent, and its maximum burst in bytes.
const RETRANSMIT_SHARE: f64 = 0.5;
const RETRANSMIT_BURST_BYTES_MAX: f64 = 64_000.0;
/// Round-trip time that is assumed until it is measured.
pub const FIRST_RTT: Duration = Duration::from_millis(50);
const RTT_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct SentFrames {
    /// Number of the next frame.
    pub next: u64,
    frames: VecDeque<Sent>,
    /// Number of the oldest frame whose bytes are kept.
    kept_from: u64,
    budget: f64,
    pub rtt: Duration,
    pub newest_reported: Option<u64>,
    /// Arrivals of the last report, in the order of sending.
    pub arrivals: Vec<Arrival>,
    pub lost: usize,
    pub covered: usize,
    pub retransmitted: u64,
}

#[derive(Debug)]
struct Sent {
    at: Instant,
    size: usize,
    is_settled: bool,
    /// Copy of a frame that may be retransmitted.
    bytes: Option<Vec<u8>>,
    resent: Option<Instant>,
}

impl SentFrames {
    pub fn new() -> Self {
        Self {
            next: 1,
            frames: VecDeque::new(),
            kept_from: 1,
            budget: RETRANSMIT_BURST_BYTES_MAX,
            rtt: FIRST_RTT,
            newest_reported: None,
            arrivals: Vec::new(),
            lost: 0,
            covered: 0,
            retransmitted: 0,
        }
    }

    /// Records the frame with the number `next`. `bytes`: the frame, if it is retransmitted on request.
    pub fn record(&mut self, size: usize, bytes: Option<Vec<u8>>, now: Instant) {
        let is_old = |sent: &Sent| now.saturating_duration_since(sent.at) > HISTORY_TIME;
        while self.frames.len() >= HISTORY_MAX || self.frames.front().is_some_and(is_old) {
            self.frames.pop_front();
        }
        self.budget = (self.budget + RETRANSMIT_SHARE * size as f64).min(RETRANSMIT_BURST_BYTES_MAX);
        self.frames.push_back(Sent { at: now, size, is_settled: false, bytes, resent: None });
        self.next += 1;
        self.release(now);
    }

    /// Drops the bytes of frames that are too old to be retransmitted.
    fn release(&mut self, now: Instant) {
        let (first, age_max) = (self.first(), self.age_max());
        self.kept_from = self.kept_from.max(first);
        while let Some(sent) = self.frames.get_mut((self.kept_from - first) as usize) {
            if now.saturating_duration_since(sent.at) <= age_max {
                break;
            }
            sent.bytes = None;
            self.kept_from += 1;
        }
    }

    fn first(&self) -> u64 {
        self.next - self.frames.len() as u64
    }

    fn age_max(&self) -> Duration {
        (2 * self.rtt).clamp(RETRANSMIT_AGE_MIN, RETRANSMIT_AGE_MAX)
    }

    fn sent(&mut self, number: u64) -> Option<&mut Sent> {
        let first = self.first();
        self.frames.get_mut(number.checked_sub(first)? as usize)
    }

    /// Returns the bytes of a frame for its retransmission. `None`: it is too old, it was just retransmitted, or
    /// retransmissions have used their share.
    pub fn retransmit(&mut self, number: u64, now: Instant) -> Option<Vec<u8>> {
        let (rtt, age_max, budget) = (self.rtt, self.age_max(), self.budget);
        let sent = self.sent(number)?;
        let is_recent = |at: Instant| now.saturating_duration_since(at) < rtt;
        if now.saturating_duration_since(sent.at) > age_max || sent.resent.is_some_and(is_recent) || budget < 0.0 {
            return None;
        }
        let bytes = sent.bytes.clone()?;
        // The arrival of a repeated frame does not show which of the two arrived.
        (sent.resent, sent.is_settled) = (Some(now), true);
        self.budget -= bytes.len() as f64;
        self.retransmitted += 1;
        Some(bytes)
    }

    /// Reads a report into `arrivals`, `lost` and `covered`, and measures the round-trip time. `settle` receives the
    /// number of each frame that has arrived.
    pub fn read_report(&mut self, report: &Report<'_>, now: Instant, mut settle: impl FnMut(u64, Arrival)) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        arrivals.clear();
        (self.lost, self.covered) = (0, 0);
        let mut newest = None;
        report.for_each(|number, arrived_us| {
            let Some(sent) = self.sent(number) else { return };
            let (at, bytes, was_settled) = (sent.at, sent.size, std::mem::replace(&mut sent.is_settled, true));
            if arrived_us.is_some() {
                newest = Some((number, at));
            }
            if was_settled {
                return;
            }
            self.covered += 1;
            match arrived_us {
                Some(arrived_us) => {
                    let arrival = Arrival { sent: at, arrived_us, bytes };
                    arrivals.push(arrival);
                    settle(number, arrival);
                }
                None => self.lost += 1,
            }
        });
        if let Some((number, at)) = newest {
            self.newest_reported = self.newest_reported.max(Some(number));
            if report.delay_us != u32::MAX {
                let delay = Duration::from_micros(report.delay_us.into());
                self.rtt = now.saturating_duration_since(at).saturating_sub(delay).min(RTT_MAX);
            }
        }
        self.arrivals = arrivals;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn sent(count: usize, bytes: usize) -> (SentFrames, Instant) {
        let (mut sent, now) = (SentFrames::new(), Instant::now());
        (0..count).for_each(|_| sent.record(bytes, Some(vec![0; bytes]), now));
        (sent, now)
    }

    #[test]
    fn old_frame_is_not_retransmitted() {
        let (mut sent, now) = sent(3, 100);
        let later = now + 2 * FIRST_RTT;
        assert!(sent.retransmit(1, later).is_some());
        assert!(sent.retransmit(1, later).is_none(), "it is on its way");
        assert!(sent.retransmit(2, later + Duration::from_millis(1)).is_none());
        assert!(sent.retransmit(0, now).is_none() && sent.retransmit(4, now).is_none());
    }

    #[test]
    fn retransmission_is_at_most_half_of_the_bytes() {
        let (mut sent, now) = sent(1000, 1000);
        let mut bytes = 0;
        for number in 0..2000 {
            bytes += sent.retransmit(number, now).map_or(0, |frame| frame.len());
        }
        assert!(bytes <= 65_000, "{bytes}: the burst, as no byte was sent meanwhile");
        for _ in 0..1000 {
            sent.record(1000, Some(vec![0; 1000]), now);
            bytes += sent.retransmit(sent.next - 1, now).map_or(0, |frame| frame.len());
        }
        assert!((500_000..=565_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn history_is_bounded() {
        let (mut sent, now) = sent(20_000, 10);
        assert_eq!(sent.frames.len(), HISTORY_MAX);
        sent.record(10, None, now + Duration::from_secs(3));
        assert_eq!((sent.frames.len(), sent.kept_from), (1, sent.next - 1));
    }
}
