//! Receiving side of a link: which frames have arrived, when, and which are missing.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{
    REPORT_INTERVAL,
    frame::{self, Head, NACK_MAX, REPORT_MAX},
};

/// Maximum distance of a frame behind the newest one; an older frame counts as a duplicate.
const WINDOW: usize = 4096;
/// Maximum number of missing frames that are kept; the oldest is given up first.
const MISSING_MAX: usize = 1024;
/// A frame is missing only once this number of later frames has arrived, or after `REORDER_TIME`: links reorder.
const REORDER_FRAMES: u64 = 3;
const REORDER_TIME: Duration = Duration::from_millis(5);
/// Maximum number of requests for one frame.
const NACKS_MAX: u8 = 3;
/// Minimum interval between two requests for one frame.
const NACK_INTERVAL_MIN: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct Arrivals {
    born: Instant,
    /// Number after the newest one.
    next: u64,
    /// One bit for each of the last `WINDOW` numbers, at the index number modulo `WINDOW`.
    seen: Box<[u64; WINDOW / 64]>,
    missing: VecDeque<Missing>,
    /// First number that no report has covered yet, and the arrival times from it on in microseconds.
    unreported: u64,
    times: VecDeque<Option<i64>>,
    newest_at: Option<Instant>,
    report_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Missing {
    number: u64,
    since: Instant,
    requested: Option<Instant>,
    requests: u8,
}

impl Arrivals {
    pub fn new(now: Instant) -> Self {
        Self {
            born: now,
            next: 0,
            seen: Box::new([0; WINDOW / 64]),
            missing: VecDeque::new(),
            unreported: 0,
            times: VecDeque::new(),
            newest_at: None,
            report_at: None,
        }
    }

    /// Records a frame. Returns false if it has arrived before, or is too old to know. `asks`: the sender needs a
    /// report of this frame.
    pub fn record(&mut self, number: u64, asks: bool, now: Instant) -> bool {
        if number.saturating_add(WINDOW as u64) <= self.next || number == u64::MAX {
            return false;
        }
        if number >= self.next {
            self.advance(number, now);
        } else if self.contains(number) {
            return false;
        }
        self.seen[number as usize % WINDOW / 64] |= 1 << (number % 64);
        self.missing.retain(|missing| missing.number != number);
        let at_us = now.saturating_duration_since(self.born).as_micros() as i64;
        if let Some(time) = number.checked_sub(self.unreported).and_then(|at| self.times.get_mut(at as usize)) {
            *time = Some(at_us);
        }
        if asks && self.report_at.is_none() {
            self.report_at = Some(now + REPORT_INTERVAL);
        }
        true
    }

    fn contains(&self, number: u64) -> bool {
        self.seen[number as usize % WINDOW / 64] >> (number % 64) & 1 == 1
    }

    /// Makes `number` the newest one.
    fn advance(&mut self, number: u64, now: Instant) {
        let skipped = number - self.next;
        self.newest_at = Some(now);
        if skipped >= WINDOW as u64 {
            // The other node has skipped too many numbers to request or report them.
            self.missing.clear();
            self.times.clear();
            self.seen.fill(0);
            self.unreported = number;
        } else {
            // The bits still belong to numbers that are outside the window now.
            for old in self.next..=number {
                self.seen[old as usize % WINDOW / 64] &= !(1 << (old % 64));
            }
            // Nothing is missing before the first frame.
            if self.next > 0 {
                let missing = |number| Missing { number, since: now, requested: None, requests: 0 };
                self.missing.extend((self.next..number).map(missing));
                self.missing.drain(..self.missing.len().saturating_sub(MISSING_MAX));
            }
            self.times.extend((self.next..number).map(|_| None));
        }
        self.times.push_back(None);
        self.next = number + 1;
        while self.times.len() > WINDOW {
            self.times.pop_front();
            self.unreported += 1;
        }
    }

    /// Returns when [`Arrivals::take_report`] or [`Arrivals::take_missing`] has something to send.
    pub fn timeout(&self, rtt: Duration) -> Option<Instant> {
        let missing = self.missing.iter().map(|missing| self.due(missing, rtt)).min();
        super::earlier(self.report_at, missing)
    }

    /// Returns the time at which a missing frame is requested.
    fn due(&self, missing: &Missing, rtt: Duration) -> Instant {
        match missing.requested {
            None if missing.number + REORDER_FRAMES < self.next => missing.since,
            None => missing.since + REORDER_TIME,
            Some(at) => at + rtt.max(NACK_INTERVAL_MIN),
        }
    }

    /// Returns a report of the frames that no report has covered. `None`: no report is due.
    pub fn take_report(&mut self, head: Head, now: Instant) -> Option<Vec<u8>> {
        if self.report_at.is_none_or(|at| at > now) {
            return None;
        }
        let delay = self.newest_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let count = self.times.len().min(REPORT_MAX);
        // The delay belongs to the newest frame of the whole range, which the last report of a series covers.
        let delay_us = if count == self.times.len() { delay.as_micros() as u32 } else { u32::MAX };
        let report = frame::report(head, self.unreported, delay_us, self.times.iter().copied().take(count));
        self.times.drain(..count);
        self.unreported += count as u64;
        self.report_at = if self.times.is_empty() { None } else { Some(now) };
        Some(report)
    }

    /// Returns the missing frames that must be requested now, at most [`NACK_MAX`]. Frames that were requested often
    /// enough are given up.
    pub fn take_missing(&mut self, rtt: Duration, now: Instant) -> Vec<u64> {
        let mut wanted = Vec::new();
        let mut missing = std::mem::take(&mut self.missing);
        missing.retain_mut(|one| {
            if wanted.len() >= NACK_MAX || self.due(one, rtt) > now {
                return true;
            }
            if one.requests >= NACKS_MAX {
                return false;
            }
            (one.requested, one.requests) = (Some(now), one.requests + 1);
            wanted.push(one.number);
            true
        });
        self.missing = missing;
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cascade::frame::{Body, decode};

    const HEAD: Head = Head { epoch: 1, sequence: 0 };
    const RTT: Duration = Duration::from_millis(10);

    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn arrivals() -> (Arrivals, Instant) {
        let now = Instant::now();
        (Arrivals::new(now), now)
    }

    #[test]
    fn duplicate_and_old_frames_are_refused() {
        let (mut arrivals, now) = arrivals();
        for (number, is_new) in
            [(5, true), (5, false), (4, true), (9, true), (4, false), (9 + 5000, true), (9, false), (u64::MAX, false)]
        {
            assert_eq!(arrivals.record(number, true, now), is_new, "{number}");
        }
    }

    #[test]
    fn missing_frames_are_requested_three_times() {
        let (mut arrivals, mut now) = arrivals();
        for number in [0, 1, 3] {
            arrivals.record(number, true, now);
        }
        assert_eq!(arrivals.take_missing(RTT, now), [0; 0], "it may only be late");
        let mut requests = 0;
        for _ in 0..200 {
            now += Duration::from_millis(1);
            requests += arrivals.take_missing(RTT, now).len();
        }
        assert_eq!((requests, arrivals.missing.len()), (3, 0));
        for number in [5, 6, 7, 8] {
            arrivals.record(number, true, now);
        }
        assert_eq!(arrivals.take_missing(RTT, now), [4], "later frames show that it is lost");
        arrivals.record(4, true, now);
        assert!(arrivals.missing.is_empty());
    }

    #[test]
    fn reports_cover_each_number_once() {
        let (mut arrivals, mut now) = arrivals();
        let mut covered = Vec::new();
        for number in (0..1200_u64).filter(|number| number % 10 != 7) {
            arrivals.record(number, true, now);
            now += Duration::from_micros(100);
        }
        assert!(arrivals.take_report(HEAD, now - Duration::from_secs(1)).is_none());
        now += REPORT_INTERVAL;
        while let Some(bytes) = arrivals.take_report(HEAD, now) {
            let Ok((_, Body::Report(report))) = decode(&bytes) else { panic!() };
            report.for_each(|number, time| covered.push((number, time.is_some())));
        }
        let expected: Vec<_> = (0..1200).map(|number| (number, number % 10 != 7)).collect();
        assert_eq!(covered, expected);
        assert_eq!(arrivals.timeout(RTT), Some(arrivals.missing[0].since));
    }

    #[test]
    fn jump_of_a_lying_node_costs_nothing() {
        let (mut arrivals, now) = arrivals();
        arrivals.record(1, true, now);
        arrivals.record(1 << 60, true, now);
        assert!(arrivals.missing.is_empty() && arrivals.times.len() == 1);
        for step in 1..20 {
            arrivals.record((1 << 60) + step * 4000, true, now);
        }
        assert!(arrivals.missing.len() <= MISSING_MAX && arrivals.times.len() <= WINDOW);
    }
}
