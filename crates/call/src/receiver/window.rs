use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::sequence::Extender;

/// The newest sequence numbers of a video, in the order of playing.
#[derive(Debug, Default)]
pub struct Window {
    extender: Extender,
    /// First number of the stream.
    first: Option<u64>,
    /// Number of the first slot. Earlier ones are played or lost.
    floor: u64,
    slots: VecDeque<Slot>,
    missing: usize,
    lost: u64,
    /// True if a packet of the current frame was lost.
    is_broken: bool,
    /// Time from a request to its retransmission.
    response: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    Missing { since: Instant, requested: Option<Instant>, requests: u32 },
    There { marker: bool },
}

/// Frames that left the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Played {
    pub frames: u64,
    pub broken_frames: u64,
}

/// A packet that is missing for this long is given up.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// A packet that is missing for less may only be reordered.
const REORDER: Duration = Duration::from_millis(10);
const REQUESTS_MAX: u32 = 10;
/// Time to the response of a request until it is measured, and its minimum.
const RESPONSE_FIRST: Duration = Duration::from_millis(100);
const RESPONSE_MIN: Duration = Duration::from_millis(20);
/// More missing packets than this at once are a new stream, or an attack.
const GAP_MAX: u64 = 5000;
/// Maximum distance of a restored packet from the highest one that has arrived.
const AHEAD_MAX: u64 = 16;
/// Maximum number of packets in one request.
const REQUESTED_MAX: usize = 200;

impl Window {
    /// Returns the number of packets from the first to the highest number.
    pub fn expected(&self) -> u64 {
        match (self.first, self.extender.highest()) {
            (Some(first), Some(highest)) => highest + 1 - first,
            _ => 0,
        }
    }

    /// Returns the highest number, with 32 bits.
    pub fn highest(&self) -> Option<u32> {
        self.extender.highest().map(|highest| highest as u32)
    }

    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub fn has_missing(&self) -> bool {
        self.missing > 0
    }

    /// Records a packet that arrived. Returns false if it is there already, or was given up.
    pub fn receive(&mut self, sequence: u16, marker: bool, now: Instant) -> bool {
        let number = self.extender.extend(sequence);
        if self.first.is_none() {
            (self.first, self.floor) = (Some(number), number);
        }
        let end = self.floor + self.slots.len() as u64;
        if number > end + GAP_MAX {
            // The gap counts as lost at once.
            self.lost += number - end + self.missing as u64;
            (self.floor, self.missing, self.is_broken) = (number, 0, true);
            self.slots.clear();
        }
        let end = self.floor + self.slots.len() as u64;
        for _ in end..number {
            self.slots.push_back(Slot::Missing { since: now, requested: None, requests: 0 });
            self.missing += 1;
        }
        if number >= end {
            self.slots.push_back(Slot::There { marker });
            return true;
        }
        self.fill(number, marker)
    }

    /// Records a packet that was repaired. Returns false if it is neither missing nor one of the next.
    pub fn repair(&mut self, sequence: u16, marker: bool, now: Instant) -> bool {
        let Some(number) = self.number(sequence) else { return false };
        if number >= self.floor + self.slots.len() as u64 {
            return self.is_wanted(sequence) && self.receive(sequence, marker, now);
        }
        if let Some(Slot::Missing { requested: Some(at), .. }) = self.slot(number) {
            let took = now.saturating_duration_since(*at);
            self.response = Some(self.response.map_or(took, |before| (7 * before + took) / 8));
        }
        self.fill(number, marker)
    }

    /// Returns whether a packet is missing, or one of the next: forward error correction may restore it before any
    /// later packet has arrived.
    pub fn is_wanted(&self, sequence: u16) -> bool {
        let Some(number) = self.number(sequence) else { return false };
        let end = self.floor + self.slots.len() as u64;
        (end..end + AHEAD_MAX).contains(&number) || matches!(self.slot(number), Some(Slot::Missing { .. }))
    }

    fn number(&self, sequence: u16) -> Option<u64> {
        self.extender.highest().map(|highest| crate::sequence::nearest(highest, sequence))
    }

    fn slot(&self, number: u64) -> Option<&Slot> {
        self.slots.get(usize::try_from(number.checked_sub(self.floor)?).ok()?)
    }

    fn fill(&mut self, number: u64, marker: bool) -> bool {
        let slot = number.checked_sub(self.floor).and_then(|index| self.slots.get_mut(index as usize));
        let Some(slot @ Slot::Missing { .. }) = slot else { return false };
        *slot = Slot::There { marker };
        self.missing -= 1;
        true
    }

    /// Returns the missing packets to request now.
    pub fn due(&mut self, now: Instant) -> Vec<u16> {
        if self.missing == 0 {
            return Vec::new();
        }
        let pause = self.response.map_or(RESPONSE_FIRST, |response| (response * 3 / 2).max(RESPONSE_MIN));
        let mut due = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Slot::Missing { since, requested, requests } = slot else { continue };
            let is_due = match requested {
                None => now.saturating_duration_since(*since) >= REORDER,
                Some(at) => now.saturating_duration_since(*at) >= pause,
            };
            if is_due && *requests < REQUESTS_MAX && due.len() < REQUESTED_MAX {
                (*requested, *requests) = (Some(now), *requests + 1);
                due.push((self.floor + index as u64) as u16);
            }
        }
        due
    }

    /// Plays what is complete, and gives up what is missing for too long.
    pub fn play(&mut self, now: Instant) -> Played {
        let mut played = Played::default();
        while let Some(slot) = self.slots.front() {
            match slot {
                Slot::There { marker: true } => match std::mem::take(&mut self.is_broken) {
                    true => played.broken_frames += 1,
                    false => played.frames += 1,
                },
                Slot::There { marker: false } => {}
                Slot::Missing { since, .. } if now.saturating_duration_since(*since) < PATIENCE => break,
                Slot::Missing { .. } => {
                    self.missing -= 1;
                    self.lost += 1;
                    self.is_broken = true;
                }
            }
            self.slots.pop_front();
            self.floor += 1;
        }
        played
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn missing_packets_are_requested_repaired_or_given_up() {
        let (mut window, start) = (Window::default(), start());
        let at = |ms| start + Duration::from_millis(ms);
        for sequence in [65_533, 65_535, 2] {
            assert!(window.receive(sequence, false, at(0)));
        }
        assert_eq!((window.expected(), window.has_missing()), (6, true));
        assert!(window.due(at(9)).is_empty(), "they may only be reordered");
        assert!(window.receive(0, false, at(9)), "one was");
        assert_eq!(window.due(at(10)), [65_534, 1]);
        assert!(window.due(at(50)).is_empty());
        assert!(window.repair(65_534, true, at(60)) && !window.repair(65_534, true, at(60)));
        assert!(!window.receive(65_534, true, at(61)), "it is repaired");
        assert_eq!(window.due(at(85)), [1], "the response took 50 ms");
        assert_eq!(window.play(at(999)), Played { frames: 1, broken_frames: 0 });
        assert!(window.is_wanted(1) && !window.is_wanted(0));
        assert_eq!((window.play(at(1000)), window.lost(), window.has_missing()), (Played::default(), 1, false));
        assert!(!window.repair(1, false, at(1001)), "it was given up");
        window.receive(3, true, at(1002));
        assert_eq!(window.play(at(1002)), Played { frames: 0, broken_frames: 1 });
    }

    #[test]
    fn huge_gap_is_lost_at_once() {
        let (mut window, start) = (Window::default(), start());
        for sequence in [0, 2, 20_000, 20_001] {
            assert!(window.receive(sequence, true, start));
        }
        assert_eq!((window.expected(), window.lost(), window.has_missing()), (20_002, 19_998, false));
        assert!(window.slots.len() < 3);
        assert!(window.due(start + PATIENCE).is_empty());
    }

    #[test]
    fn packets_before_the_first_are_useless() {
        let (mut window, start) = (Window::default(), start());
        assert!(window.receive(10, false, start) && !window.receive(9, false, start));
        assert_eq!((window.expected(), window.lost()), (1, 0));
        assert!(!Window::default().repair(1, false, start), "nothing has arrived");
    }

    #[test]
    fn next_packet_may_be_restored() {
        let (mut window, start) = (Window::default(), start());
        assert!(window.receive(65_535, false, start));
        assert!(window.is_wanted(1) && !window.is_wanted(16), "not too far ahead");
        assert!(window.repair(1, false, start) && !window.repair(100, false, start));
        assert_eq!((window.expected(), window.is_wanted(0)), (3, true));
    }

    #[test]
    fn unanswered_requests_end() {
        let (mut window, start) = (Window::default(), start());
        window.receive(0, false, start);
        window.receive(2, false, start);
        let requests = (0..990).filter(|ms| !window.due(start + Duration::from_millis(*ms)).is_empty()).count();
        assert_eq!(requests, REQUESTS_MAX as usize);
    }
}
