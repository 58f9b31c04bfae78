use serde::{Deserialize, Serialize};

use crate::{Place, Sample};

/// A device clock may be ahead of the server by this time.
const AHEAD_MAX_MS: u64 = 5 * 60 * 1000;
/// Speed that no car reaches, m/s. A position that needs more is a jump.
const SPEED_MAX: f64 = 90.0;
/// Uncertainty that two positions may have without being a jump, in meters.
const SLACK_M: f64 = 60.0;
/// Number of successive positions that must agree on a new place before it replaces the old one.
const AGREE: u8 = 3;

/// Decides which records count. A record that is late, repeated or from the future never causes an event, and a
/// position that jumps is removed from its record until [`AGREE`] positions agree.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Gate {
    newest_ms: u64,
    last: Option<(u64, Place)>,
    /// Place to which the positions have jumped, its time, and the number of positions that agree.
    jumped: Option<(u64, Place, u8)>,
}

impl Gate {
    /// Returns the record as it counts; `None` if it does not count. `received_ms`: time of the server.
    pub fn admit(&mut self, sample: &Sample, received_ms: u64) -> Option<Sample> {
        if sample.time_ms <= self.newest_ms || sample.time_ms > received_ms.saturating_add(AHEAD_MAX_MS) {
            return None;
        }
        self.newest_ms = sample.time_ms;
        let mut sample = sample.clone();
        if let Some(place) = sample.place
            && !self.admit_place(sample.time_ms, place)
        {
            (sample.place, sample.speed, sample.heading) = (None, None, None);
        }
        Some(sample)
    }

    fn admit_place(&mut self, time_ms: u64, place: Place) -> bool {
        let reaches = |(from_ms, from): (u64, Place)| {
            let elapsed_s = time_ms.saturating_sub(from_ms) as f64 / 1000.0;
            from.distance_m(place) <= SLACK_M + SPEED_MAX * elapsed_s
        };
        if self.last.is_none_or(reaches) {
            (self.last, self.jumped) = (Some((time_ms, place)), None);
            return true;
        }
        let agreeing = match self.jumped {
            Some((at_ms, at, count)) if reaches((at_ms, at)) => count + 1,
            _ => 1,
        };
        self.jumped = Some((time_ms, place, agreeing));
        if agreeing >= AGREE {
            (self.last, self.jumped) = (Some((time_ms, place)), None);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64, lat: f64) -> Sample {
        Sample { time_ms: second * 1000, place: Some(Place { lat, lon: 19.0 }), speed: Some(5.0), ..Sample::default() }
    }

    #[test]
    fn late_repeated_and_future_records_do_not_count() {
        let mut gate = Gate::default();
        assert!(gate.admit(&at(1000, 47.0), 1_000_000).is_some());
        assert!(gate.admit(&at(1000, 47.0), 1_000_000).is_none(), "repeated");
        assert!(gate.admit(&at(999, 47.0), 1_000_000).is_none(), "late");
        assert!(gate.admit(&at(400_000_000, 47.0), 1_000_000).is_none(), "years ahead");
        assert!(gate.admit(&at(1001, 47.0), 1_001_000).is_some(), "a record from the future blocks no later one");
    }

    #[test]
    fn jump_counts_once_three_positions_agree() {
        let mut gate = Gate::default();
        let mut place = |second, lat| gate.admit(&at(second, lat), second * 1000).expect("a record").place.is_some();
        assert!(place(1, 47.0));
        assert!(!place(2, 48.0), "111 km in a second");
        assert!(place(3, 47.0), "back again");
        assert_eq!([place(4, 48.0), place(5, 49.0), place(6, 48.0)], [false; 3], "the positions do not agree");
        assert_eq!([place(7, 48.0), place(8, 48.0), place(9, 47.0)], [false, true, false]);
    }
}
