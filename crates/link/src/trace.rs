use std::sync::Arc;

use crate::{Rate, Time};

/// Bytes that one delivery opportunity carries. Source: mahimahi, mm-link(1).
pub const OPPORTUNITY_BYTES: u64 = 1500;
const OPPORTUNITIES_MAX: usize = 10_000_000;

/// Recorded delivery opportunities of a link. At each, up to 1,500 bytes leave. The trace repeats after its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Times of the opportunities in nanoseconds, in order.
    times_ns: Arc<[u64]>,
    /// Time after which the trace repeats.
    period_ns: u64,
}

/// A text is not a trace. Lines are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    #[error("line {0}: `{1}` is not a time in whole milliseconds")]
    NotATime(usize, String),
    #[error("line {0}: `{1}` is not `seconds,Mbit/s`")]
    NotARate(usize, String),
    #[error("line {0}: the time runs backwards")]
    Backwards(usize),
    #[error("the trace has no delivery opportunity, or only at time 0")]
    Empty,
    #[error("the trace has more than {OPPORTUNITIES_MAX} delivery opportunities")]
    TooLong,
}

impl Trace {
    /// Reads a trace of mahimahi: one line per opportunity, with its time in milliseconds. Times may repeat. The trace
    /// repeats after the last time.
    ///
    /// Errors: see [`TraceError`].
    pub fn from_mahimahi(text: &str) -> Result<Self, TraceError> {
        let mut times_ns = Vec::new();
        for (number, line) in lines(text) {
            let ms: u32 = line.parse().map_err(|_| TraceError::NotATime(number, line.to_owned()))?;
            let time = u64::from(ms) * 1_000_000;
            if times_ns.last().is_some_and(|last| *last > time) {
                return Err(TraceError::Backwards(number));
            }
            if times_ns.len() == OPPORTUNITIES_MAX {
                return Err(TraceError::TooLong);
            }
            times_ns.push(time);
        }
        let period_ns = times_ns.last().copied().unwrap_or_default();
        Self::new(times_ns, period_ns)
    }

    /// Reads lines `seconds,Mbit/s`: each rate applies from its time to the next one; the last line ends the trace. A
    /// first line without numbers is a heading.
    ///
    /// Errors: see [`TraceError`].
    pub fn from_csv(text: &str) -> Result<Self, TraceError> {
        let mut steps: Vec<(f64, f64)> = Vec::new();
        for (index, (number, line)) in lines(text).enumerate() {
            let step = || {
                let (time, rate) = line.split_once(',')?;
                let (time, rate): (f64, f64) = (time.trim().parse().ok()?, rate.trim().parse().ok()?);
                ((0.0..=1e6).contains(&time) && (0.0..=1e6).contains(&rate)).then_some((time, rate))
            };
            match step() {
                Some((time, _)) if steps.last().is_some_and(|(last, _)| *last > time) => {
                    return Err(TraceError::Backwards(number));
                }
                Some(step) => steps.push(step),
                None if index == 0 => {}
                None => return Err(TraceError::NotARate(number, line.to_owned())),
            }
        }
        let (mut times_ns, mut bits) = (Vec::new(), 0.0);
        let bits_per_opportunity = OPPORTUNITY_BYTES as f64 * 8.0;
        for pair in steps.windows(2) {
            let ((start, rate), (end, _)) = (pair[0], pair[1]);
            let bits_per_s = rate * 1e6;
            let first = bits;
            bits += bits_per_s * (end - start);
            let (from, to) =
                ((first / bits_per_opportunity).floor() as u64, (bits / bits_per_opportunity).floor() as u64);
            if times_ns.len() as u64 + (to - from) > OPPORTUNITIES_MAX as u64 {
                return Err(TraceError::TooLong);
            }
            times_ns.extend((from + 1..=to).map(|count| {
                let time_s = start + (count as f64 * bits_per_opportunity - first) / bits_per_s;
                (time_s * 1e9) as u64
            }));
        }
        let period_ns = steps.last().map_or(0, |(time, _)| (time * 1e9) as u64);
        Self::new(times_ns, period_ns)
    }

    fn new(times_ns: Vec<u64>, period_ns: u64) -> Result<Self, TraceError> {
        match times_ns.is_empty() || period_ns == 0 {
            true => Err(TraceError::Empty),
            false => Ok(Self { times_ns: times_ns.into(), period_ns }),
        }
    }

    /// Returns the mean rate of the trace.
    pub fn mean_rate(&self) -> Rate {
        let bits = self.times_ns.len() as u128 * u128::from(OPPORTUNITY_BYTES) * 8;
        let bits_per_s = bits * 1_000_000_000 / u128::from(self.period_ns);
        Rate::from_bits_per_s((bits_per_s as u64).clamp(1, 1_000_000_000_000)).expect("within the range of a rate")
    }

    /// Returns the time of an opportunity, counted from 0 over all repetitions.
    pub(crate) fn time_of(&self, opportunity: u64) -> Time {
        let count = self.times_ns.len() as u64;
        let at = self.times_ns[(opportunity % count) as usize];
        Time::from_ns((opportunity / count).saturating_mul(self.period_ns).saturating_add(at))
    }

    /// Returns the first opportunity at or after a time.
    pub(crate) fn first_from(&self, time: Time) -> u64 {
        let (period, within) = (time.ns() / self.period_ns, time.ns() % self.period_ns);
        let in_period = self.times_ns.partition_point(|at| *at < within) as u64;
        let mut first = period * self.times_ns.len() as u64 + in_period;
        // The last opportunities of a period may be at the time at which the next one begins.
        while first > 0 && self.time_of(first - 1) >= time {
            first -= 1;
        }
        first
    }
}

/// Returns the lines with their numbers, without empty lines and comments.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mahimahi_traces_are_read_and_repeat() {
        let trace = Trace::from_mahimahi("1\n1\n5\n# a comment\n10\n").expect("a trace");
        let times: Vec<u64> = (0..6).map(|index| trace.time_of(index).ns() / 1_000_000).collect();
        assert_eq!(times, [1, 1, 5, 10, 11, 11]);
        // Four packets in 10 ms.
        assert_eq!(trace.mean_rate().bits_per_s(), 4_800_000);
        let first = |ms: u64| trace.first_from(Time::from_ns(ms * 1_000_000));
        assert_eq!([first(0), first(1), first(2), first(10), first(11), first(12)], [0, 0, 2, 3, 4, 6]);
    }

    #[test]
    fn rates_over_time_become_opportunities() {
        // 12 Mbit/s are one packet of 1,500 bytes per millisecond.
        let trace = Trace::from_csv("seconds,Mbit/s\n0,12\n0.010,0\n0.020,6\n0.040,0\n").expect("a trace");
        let times: Vec<u64> = (0..21).map(|index| trace.time_of(index).ns() / 1000).collect();
        assert_eq!(times[..11], [1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10_000, 22_000]);
        assert_eq!(times[19..], [40_000, 41_000], "the trace repeats after 40 ms");
    }

    #[test]
    fn bad_traces_name_their_line() {
        let mahimahi = |text| Trace::from_mahimahi(text).expect_err(text);
        assert_eq!(mahimahi("1\n5\n4\n"), TraceError::Backwards(3));
        assert_eq!(mahimahi("1\n-5\n"), TraceError::NotATime(2, "-5".into()));
        assert_eq!(mahimahi(""), TraceError::Empty);
        assert_eq!(mahimahi("0\n"), TraceError::Empty);
        let csv = |text| Trace::from_csv(text).expect_err(text);
        assert_eq!(csv("0,1\n1,2\n0.5,3\n"), TraceError::Backwards(3));
        assert_eq!(csv("0,1\n1\n"), TraceError::NotARate(2, "1".into()));
        assert_eq!(csv("0,1\n1,NaN\n"), TraceError::NotARate(2, "1,NaN".into()));
        assert_eq!(csv("0,1000000\n1000000,0\n"), TraceError::TooLong);
        assert_eq!(csv("time,rate\n"), TraceError::Empty);
    }
}
