use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// Time since the start of an emulation, in nanoseconds. The range is 584 years; additions saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    pub const ZERO: Time = Time(0);
    pub const MAX: Time = Time(u64::MAX);

    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    pub const fn ns(self) -> u64 {
        self.0
    }

    /// Returns the time since an earlier point; zero if the point is not earlier.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub(crate) const fn add_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

/// Returns a duration in nanoseconds, at most 584 years.
pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, duration: Duration) -> Time {
        self.add_ns(ns(duration))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;

    fn sub(self, duration: Duration) -> Time {
        Time(self.0.saturating_sub(ns(duration)))
    }
}
