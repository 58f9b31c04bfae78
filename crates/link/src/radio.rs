use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Time;

/// Radio of a phone, which needs time to become active after a silent time (RRC promotion).
///
/// Source of the states: 3GPP TS 36.331 (LTE) and TS 25.331 (UMTS).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Radio {
    /// Time from the idle to the active state. Packets wait.
    #[serde(with = "humantime_serde")]
    pub promotion: Duration,
    /// Silent time after which the active state ends.
    #[serde(with = "humantime_serde")]
    pub active_for: Duration,
    /// State between active and idle, such as FACH of UMTS. `None`: the radio becomes idle at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub middle: Option<Middle>,
}

/// State in which a radio carries only small packets without a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Middle {
    /// Silent time after which the radio becomes idle.
    #[serde(with = "humantime_serde")]
    pub lasts: Duration,
    /// Time to the active state.
    #[serde(with = "humantime_serde")]
    pub promotion: Duration,
    /// Maximum size of a packet that is carried without a promotion.
    pub bytes_max: usize,
}

/// State of a radio, shared by both directions.
#[derive(Clone, Debug)]
pub(crate) struct RadioState {
    /// End of the last promotion. Packets do not pass before it.
    ready: Time,
    /// Last packet. `None`: the radio is idle since the start.
    last: Option<Time>,
    /// True if the last packet was carried by the middle state.
    is_middle: bool,
    pub promotions: u64,
}

impl RadioState {
    pub fn new() -> Self {
        Self { ready: Time::ZERO, last: None, is_middle: false, promotions: 0 }
    }

    /// Returns the time at which a packet that arrives at `now` may enter the link.
    pub fn enter(&mut self, radio: &Radio, bytes: usize, now: Time) -> Time {
        let silent = self.last.map(|last| now.since(last));
        let middle_from = if self.is_middle { Duration::ZERO } else { radio.active_for };
        let promotion = match (silent, radio.middle) {
            (Some(silent), _) if !self.is_middle && silent < radio.active_for => None,
            (Some(silent), Some(middle)) if silent < middle_from + middle.lasts => {
                (bytes > middle.bytes_max).then_some(middle.promotion)
            }
            _ => Some(radio.promotion),
        };
        let was_active = !self.is_middle && silent.is_some_and(|silent| silent < radio.active_for);
        if let Some(promotion) = promotion {
            self.promotions += 1;
            self.ready = now + promotion;
        }
        self.is_middle = promotion.is_none() && !was_active;
        let enter = now.max(self.ready);
        self.last = Some(enter);
        enter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(state: &mut RadioState, radio: &Radio, bytes: usize, ms: u64) -> u64 {
        state.enter(radio, bytes, Time::from_ns(ms * 1_000_000)).ns() / 1_000_000
    }

    fn radio(middle: Option<Middle>) -> Radio {
        Radio { promotion: Duration::from_secs(2), active_for: Duration::from_secs(4), middle }
    }

    #[test]
    fn first_packet_after_silence_waits_and_later_ones_wait_behind_it() {
        let (mut state, radio) = (RadioState::new(), radio(None));
        assert_eq!(enter(&mut state, &radio, 100, 1000), 3000);
        assert_eq!(enter(&mut state, &radio, 100, 1500), 3000);
        assert_eq!(enter(&mut state, &radio, 100, 6900), 6900, "active for 4 s");
        assert_eq!(enter(&mut state, &radio, 100, 11_000), 13_000, "idle again");
        assert_eq!(state.promotions, 2);
    }

    #[test]
    fn middle_state_carries_small_packets_at_once() {
        let middle = Middle { lasts: Duration::from_secs(10), promotion: Duration::from_millis(1500), bytes_max: 500 };
        let (mut state, radio) = (RadioState::new(), radio(Some(middle)));
        assert_eq!(enter(&mut state, &radio, 100, 0), 2000);
        assert_eq!(enter(&mut state, &radio, 100, 7000), 7000, "small, in the middle state");
        assert_eq!(enter(&mut state, &radio, 100, 16_000), 16_000, "its timer began again");
        assert_eq!(enter(&mut state, &radio, 1000, 17_000), 18_500, "a large packet needs the active state");
        assert_eq!(enter(&mut state, &radio, 1000, 19_000), 19_000);
        assert_eq!(enter(&mut state, &radio, 100, 33_100), 35_100, "idle after 4 s and 10 s");
        assert_eq!(state.promotions, 3);
    }
}
