//! A serial line as levels over time, and the receiver that samples it.

use std::collections::VecDeque;

use crate::Time;

/// Number of bits of a frame: start bit, eight data bits, stop bit (8N1).
pub const FRAME_BITS: usize = 10;

/// One direction of a serial connection. The idle level is high.
#[derive(Clone, Debug, Default)]
pub struct SerialLine {
    /// Changes of the level, oldest first.
    edges: VecDeque<(Time, bool)>,
    /// Level before the first edge is low.
    was_low: bool,
    /// End of the last frame.
    free: Time,
}

impl SerialLine {
    /// Returns the time at which the last frame ends.
    pub fn free(&self) -> Time {
        self.free
    }

    /// Sends a byte as a frame, not before the last frame ends. Returns the end of the frame.
    ///
    /// Units: `bits` holds the length of each bit in picoseconds, start bit first.
    pub fn send(&mut self, now: Time, byte: u8, bits: &[u64; FRAME_BITS]) -> Time {
        // The start bit is 0, the stop bit is 1, and the least significant bit comes first.
        self.send_levels(now, 1 << 9 | u16::from(byte) << 1, bits)
    }

    /// Sends the low bits of `levels`, one per length in `bits`, then returns to the idle level.
    pub fn send_levels(&mut self, now: Time, levels: u16, bits: &[u64]) -> Time {
        let mut time = self.free.max(now);
        for (at, bit) in bits.iter().enumerate() {
            self.set(time, levels >> at & 1 != 0);
            time += Time::from_ps(*bit);
        }
        self.set(time, true);
        self.free = time;
        time
    }

    /// Ends the present frame and drops those after it: the sender was reset.
    pub fn cut(&mut self, now: Time) {
        while self.edges.back().is_some_and(|(at, _)| *at > now) {
            self.edges.pop_back();
        }
        self.set(now, true);
        self.free = self.free.min(now);
    }

    /// Returns the level at a time.
    pub fn level(&self, time: Time) -> bool {
        let later = self.edges.partition_point(|(at, _)| *at <= time);
        later.checked_sub(1).map_or(!self.was_low, |last| self.edges[last].1)
    }

    /// Returns the first falling edge at or after a time.
    pub fn falling_edge(&self, after: Time) -> Option<Time> {
        let first = self.edges.partition_point(|(at, _)| *at < after);
        self.edges.iter().skip(first).find(|(_, level)| !level).map(|(at, _)| *at)
    }

    /// Drops the edges before a time that no receiver needs any more.
    pub fn forget(&mut self, before: Time) {
        while self.edges.get(1).is_some_and(|(at, _)| *at <= before) {
            if let Some((_, level)) = self.edges.pop_front() {
                self.was_low = !level;
            }
        }
    }

    fn set(&mut self, time: Time, level: bool) {
        let last = self.edges.back().map_or(!self.was_low, |(_, level)| *level);
        if level != last {
            self.edges.push_back((time, level));
        }
    }
}

/// A received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub byte: u8,
    /// The stop bit was low: a framing error, or a break if the byte is 0.
    pub framing_error: bool,
    /// Time of the sample of the stop bit.
    pub end: Time,
}

/// Samples frames from a line: one sample in the middle of each bit.
///
/// The hardware takes the majority of three samples around the middle; the result is the same without noise.
#[derive(Clone, Copy, Debug, Default)]
pub struct SerialReceiver {
    /// The receiver waits for a falling edge from this time on.
    from: Time,
}

impl SerialReceiver {
    /// Ignores everything on the line before `now`.
    pub fn restart(&mut self, now: Time) {
        self.from = self.from.max(now);
    }

    /// Returns the time at which the next frame on the line is complete.
    pub fn poll_timeout(&self, line: &SerialLine, bits: &[u64; FRAME_BITS]) -> Option<Time> {
        line.falling_edge(self.from).map(|start| start + sample(bits, FRAME_BITS - 1))
    }

    /// Returns the next frame that is complete at `now`. A start bit that is high in its middle is ignored as noise.
    pub fn poll(&mut self, now: Time, line: &SerialLine, bits: &[u64; FRAME_BITS]) -> Option<Frame> {
        loop {
            let start = line.falling_edge(self.from)?;
            let level = |bit: usize| line.level(start + sample(bits, bit));
            let end = start + sample(bits, FRAME_BITS - 1);
            if end > now {
                return None;
            }
            if level(0) {
                self.from = start + sample(bits, 0);
                continue;
            }
            self.from = end;
            let byte = (0..8).fold(0, |byte, bit| byte | u8::from(level(bit + 1)) << bit);
            return Some(Frame { byte, framing_error: !level(FRAME_BITS - 1), end });
        }
    }
}

/// Returns the time from the start of a frame to the middle of a bit.
fn sample(bits: &[u64; FRAME_BITS], bit: usize) -> Time {
    Time::from_ps(bits[..bit].iter().sum::<u64>() + bits[bit] / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BITS: [u64; FRAME_BITS] = [100; FRAME_BITS];

    fn received(line: &SerialLine, bits: u64) -> Vec<(u8, bool)> {
        let mut receiver = SerialReceiver::default();
        let frames = std::iter::from_fn(|| receiver.poll(Time::NEVER, line, &[bits; FRAME_BITS]));
        frames.map(|frame| (frame.byte, frame.framing_error)).collect()
    }

    #[test]
    fn bytes_arrive_back_to_back() {
        let mut line = SerialLine::default();
        for byte in [0x00, 0xff, 0x55, 0x0a] {
            line.send(Time::from_ps(7), byte, &BITS);
        }
        assert_eq!(line.free(), Time::from_ps(4007));
        assert_eq!(received(&line, 100), [(0x00, false), (0xff, false), (0x55, false), (0x0a, false)]);
        assert_eq!(received(&line, 103), [(0x00, false), (0xff, false), (0x55, false), (0x0a, false)]);
    }

    #[test]
    fn wrong_rate_garbles_frames() {
        let mut line = SerialLine::default();
        line.send(Time::ZERO, 0x55, &BITS);
        assert_ne!(received(&line, 120), [(0x55, false)]);
    }

    #[test]
    fn break_is_a_framing_error() {
        let mut line = SerialLine::default();
        line.send_levels(Time::ZERO, 0, &[100; 12]);
        line.send(Time::ZERO, 0x42, &BITS);
        assert_eq!(received(&line, 100), [(0, true), (0x42, false)]);
    }

    #[test]
    fn glitch_is_no_frame() {
        let mut line = SerialLine::default();
        line.send_levels(Time::ZERO, 0, &[30]);
        line.send(Time::from_ps(500), 0x42, &BITS);
        assert_eq!(received(&line, 100), [(0x42, false)]);
    }

    #[test]
    fn cut_line_is_idle() {
        let mut line = SerialLine::default();
        line.send(Time::ZERO, 0x00, &BITS);
        line.send(Time::ZERO, 0x11, &BITS);
        line.cut(Time::from_ps(350));
        assert_eq!(line.free(), Time::from_ps(350));
        line.send(Time::from_ps(2000), 0x42, &BITS);
        assert_eq!(received(&line, 100), [(0xfc, false), (0x42, false)]);
    }

    #[test]
    fn forgotten_edges_keep_the_level() {
        let mut line = SerialLine::default();
        line.send_levels(Time::ZERO, 0, &[1000]);
        line.send(Time::ZERO, 0x42, &BITS);
        line.forget(Time::from_ps(500));
        assert!(!line.level(Time::from_ps(500)));
        line.forget(Time::from_ps(1500));
        line.forget(Time::from_ps(9999));
        assert!(line.level(Time::from_ps(9999)));
        assert_eq!(line.edges.len(), 1);
    }
}
