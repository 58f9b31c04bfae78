use std::{
    fmt,
    ops::{Add, AddAssign, Sub},
};

/// Virtual time since power-on, or a span of it.
///
/// Units: picoseconds, so that a cycle of every DCO frequency is a whole number with an error below 0.001 %. At 1 MHz,
/// one cycle is exactly one microsecond. The range is 213 days; additions saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    pub const ZERO: Self = Self(0);
    /// A time that the simulation never reaches.
    pub const NEVER: Self = Self(u64::MAX);

    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    pub const fn from_us(us: u64) -> Self {
        Self(us.saturating_mul(1_000_000))
    }

    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000_000))
    }

    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// Returns whole microseconds: the cycles of a clock of 1 MHz.
    pub const fn as_us(self) -> u64 {
        self.0 / 1_000_000
    }

    pub const fn as_ms(self) -> u64 {
        self.0 / 1_000_000_000
    }

    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e12
    }

    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Time {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Time {
    type Output = Self;

    /// Returns the span between two times; zero if `other` is later.
    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} ms", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000)
    }
}

/// Counts whole ticks of a clock that can stop and change its period.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ticks {
    /// Time of the last counted tick.
    base: Time,
    /// Time between two ticks in picoseconds; `None` while the clock is stopped.
    period: Option<u64>,
}

impl Ticks {
    /// Returns the ticks since the last call, and keeps the fraction of the next one.
    pub fn take(&mut self, now: Time) -> u64 {
        match self.period {
            None => {
                self.base = self.base.max(now);
                0
            }
            Some(period) => {
                let ticks = (now - self.base).0 / period;
                self.base += Time(ticks * period);
                ticks
            }
        }
    }

    /// Changes the period. Count the ticks until `now` with [`Ticks::take`] first.
    pub fn set_period(&mut self, now: Time, period: Option<u64>) {
        if self.period != period {
            self.period = period.map(|period| period.max(1));
            self.base = now;
        }
    }

    /// Starts a full period at `now`.
    pub fn restart(&mut self, now: Time) {
        self.base = now;
    }

    /// Returns the time of the tick that is `ticks` after the last counted one. `None` while the clock is stopped.
    pub fn time_of(&self, ticks: u64) -> Option<Time> {
        self.period.map(|period| self.base + Time(ticks.saturating_mul(period)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_keep_the_fraction() {
        let mut ticks = Ticks::default();
        ticks.set_period(Time::ZERO, Some(10));
        assert_eq!((ticks.take(Time(25)), ticks.take(Time(29)), ticks.take(Time(30))), (2, 0, 1));
        assert_eq!(ticks.time_of(2), Some(Time(50)));
    }

    #[test]
    fn stopped_clock_counts_nothing() {
        let mut ticks = Ticks::default();
        assert_eq!(ticks.take(Time(1000)), 0);
        ticks.set_period(Time(1000), Some(10));
        assert_eq!(ticks.take(Time(1020)), 2);
        assert_eq!(Ticks::default().time_of(1), None);
    }
}
