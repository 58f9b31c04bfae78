use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Time, time::ns};

/// A period of time that may repeat, such as an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeated {
    /// Time of the first begin, since the start of the link.
    #[serde(default, with = "humantime_serde")]
    pub at: Duration,
    #[serde(rename = "for", with = "humantime_serde")]
    pub lasts: Duration,
    /// Time from one begin to the next. `None`: it does not repeat.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
}

impl Repeated {
    /// Returns true at the times of the period: from its begin, and before its end.
    pub fn contains(&self, time: Time) -> bool {
        let Some(since) = time.ns().checked_sub(ns(self.at)) else { return false };
        let within = match self.every.map(ns) {
            Some(every @ 1..) => since % every,
            _ => since,
        };
        within < ns(self.lasts)
    }

    pub(crate) fn is_valid(&self) -> bool {
        !self.lasts.is_zero() && self.every.is_none_or(|every| every >= self.lasts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn period_repeats_from_its_first_begin() {
        let s = Duration::from_secs;
        let outage = Repeated { at: s(10), lasts: s(2), every: Some(s(60)) };
        let inside: Vec<u64> = (0..140).filter(|t| outage.contains(Time::ZERO + s(*t))).collect();
        assert_eq!(inside, [10, 11, 70, 71, 130, 131]);
        let once = Repeated { every: None, ..outage };
        assert!(once.contains(Time::ZERO + s(11)) && !once.contains(Time::ZERO + s(70)));
    }
}
