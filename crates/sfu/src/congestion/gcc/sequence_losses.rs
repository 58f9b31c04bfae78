use std::time::{Duration, Instant};

use super::losses::{LOSS_HIGH, LOSS_LOW, LOSS_PACKETS_MIN};

/// Losses on a path, found by the sequence numbers of packets. A packet that arrives after a later one counts as lost,
/// also a retransmission.
#[derive(Debug, Default)]
pub struct SequenceLosses {
    streams: Vec<Stream>,
    /// Number of packets of all streams.
    packets: u64,
    expected: usize,
    arrived: usize,
    evaluated: Option<Instant>,
    /// Whether most retransmissions would be lost like the other packets, and only keep the queue of the path full.
    pub is_collapsed: bool,
    /// Packets of the last intervals that lost few.
    clean: usize,
}

#[derive(Debug)]
struct Stream {
    ssrc: u32,
    /// Highest sequence number.
    highest: u16,
    /// Value of [`SequenceLosses::packets`] at the newest packet.
    used: u64,
}

/// Maximum number of streams of one sender that are counted. A new one takes the place of an idle one.
const STREAMS_MAX: usize = 16;
/// A stream is idle if the sender has sent this number of packets in other streams since its last packet.
const IDLE_PACKETS: u64 = 1000;
const INTERVAL: Duration = Duration::from_secs(1);
/// Loss ratio above which a path has collapsed.
const COLLAPSED: f64 = 0.3;
/// Maximum number of packets among which str0m requests the lost ones. When it may do so again, these should be packets
/// after the collapse: it requests all of them at once.
const REQUESTED_MAX: usize = 100;
/// A larger step of the sequence number is a new start, and not a loss.
const STEP_MAX: u16 = 3000;

impl SequenceLosses {
    /// Counts the sequence number of a packet.
    pub fn count(&mut self, ssrc: u32, sequence: u16) {
        self.packets += 1;
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.ssrc == ssrc) else {
            self.add(Stream { ssrc, highest: sequence, used: self.packets });
            return;
        };
        stream.used = self.packets;
        let step = sequence.wrapping_sub(stream.highest);
        if step == 0 || step >= 1 << 15 {
            return;
        }
        stream.highest = sequence;
        if step <= STEP_MAX {
            (self.expected, self.arrived) = (self.expected + usize::from(step), self.arrived + 1);
        }
    }

    fn add(&mut self, stream: Stream) {
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used)
            && self.packets - oldest.used > IDLE_PACKETS
        {
            *oldest = stream;
        }
    }

    /// Returns whether an interval has ended with more losses than the sender may cause.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(*self.evaluated.get_or_insert(now));
        if since < INTERVAL || self.expected < LOSS_PACKETS_MIN {
            return false;
        }
        let expected = self.expected;
        let share = (expected - self.arrived) as f64 / expected as f64;
        (self.expected, self.arrived, self.evaluated) = (0, 0, Some(now));
        self.clean = if share < LOSS_LOW { self.clean + expected } else { 0 };
        self.is_collapsed = share > COLLAPSED || self.is_collapsed && self.clean < REQUESTED_MAX;
        share > LOSS_HIGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn missing_sequence_numbers_are_losses() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut losses = SequenceLosses::default();
        let first = u16::MAX - 20;
        assert!(!losses.is_over(start));
        // Every fifth one is missing, and arrives late.
        for n in 0..50_u16 {
            let sequence = first.wrapping_add(n);
            if n % 5 == 3 {
                continue;
            }
            losses.count(1, sequence);
            if n % 5 == 4 {
                losses.count(1, sequence.wrapping_sub(1));
            }
        }
        assert_eq!((losses.expected, losses.arrived), (49, 39));
        assert!(!losses.is_over(start), "the interval has not ended");
        assert!(losses.is_over(at(1)));
        assert!(!losses.is_over(at(2)), "without packets");
        (0..100_u16).for_each(|n| losses.count(2, n.wrapping_mul(30_000)));
        (0..50).for_each(|n| losses.count(3, n));
        assert_eq!((losses.expected, losses.arrived), (49, 49), "leaps are new starts");
        assert!(!losses.is_over(at(3)));
        (4..100).for_each(|ssrc| losses.count(ssrc, 0));
        assert_eq!(losses.streams.len(), STREAMS_MAX);
    }

    /// A sender that ends and begins its video many times uses a new stream each time.
    #[test]
    fn new_stream_takes_the_place_of_an_idle_one() {
        let mut losses = SequenceLosses::default();
        for ssrc in 0..40 {
            losses.expected = 0;
            (0..2000).for_each(|sequence| losses.count(ssrc, sequence));
            assert_eq!(losses.expected, 1999, "stream {ssrc}");
        }
        assert_eq!(losses.streams.len(), STREAMS_MAX);
    }
}
