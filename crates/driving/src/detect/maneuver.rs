use serde::{Deserialize, Serialize};

/// Limits of one kind of maneuver.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Value at which the maneuver begins, and the fraction by which it must fall below this to end.
    pub enter: f64,
    pub hysteresis: f64,
    /// A larger value is an error of the receiver.
    pub plausible_max: f64,
    pub merge_ms: u64,
    pub cool_down_ms: u64,
}

/// Detector of one kind of maneuver: braking, acceleration or cornering.
///
/// ```text
///           value >= enter                    value < exit
///   Quiet ─────────────────► Active(peak) ─────────────────► event, then Quiet
///     ▲                         │                              during merge and cool-down: no event
///     └── one interval that the next one takes back: a spike ──┘
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Maneuver {
    active: Option<Active>,
    /// End of the last maneuver.
    ended_ms: Option<u64>,
    /// A maneuver that begins before this time is no event.
    silent_until_ms: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Active {
    from_ms: u64,
    peak: f64,
    intervals: u32,
    /// Direction of [`Maneuver::advance_signed`]; otherwise 1.
    sign: f64,
}

/// A maneuver that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ended {
    pub from_ms: u64,
    pub peak: f64,
}

impl Maneuver {
    /// Takes the value of the interval from `from_ms` to `to_ms`; a negative value is the opposite maneuver.
    pub fn advance(&mut self, value: f64, from_ms: u64, to_ms: u64, limits: &Limits) -> Option<Ended> {
        if value > limits.plausible_max {
            self.active = None;
            return None;
        }
        match self.active {
            None if value >= limits.enter => {
                self.active = Some(Active { from_ms, peak: value, intervals: 1, sign: 1.0 });
                None
            }
            None => None,
            Some(active) if value >= limits.enter * (1.0 - limits.hysteresis) => {
                self.active = Some(Active { peak: active.peak.max(value), intervals: active.intervals + 1, ..active });
                None
            }
            Some(active) => {
                self.active = None;
                // A single wrong speed or heading shows as one interval that the next one takes back.
                let is_spike = active.intervals == 1 && value <= -0.6 * active.peak;
                if is_spike {
                    return None;
                }
                self.end(active, to_ms, limits)
            }
        }
    }

    /// Takes a value whose sign is a direction, such as that of a bend. A change of direction within two intervals is a
    /// spike, too.
    pub fn advance_signed(&mut self, value: f64, from_ms: u64, to_ms: u64, limits: &Limits) -> Option<Ended> {
        let sign = if value < 0.0 { -1.0 } else { 1.0 };
        match &self.active {
            Some(active) if active.sign != sign => self.advance(-value.abs(), from_ms, to_ms, limits),
            _ => {
                let ended = self.advance(value.abs(), from_ms, to_ms, limits);
                if let Some(active) = &mut self.active {
                    active.sign = sign;
                }
                ended
            }
        }
    }

    /// Ends the maneuver because no value follows.
    pub fn interrupt(&mut self, at_ms: u64, limits: &Limits) -> Option<Ended> {
        let active = self.active.take()?;
        // Nothing confirms a single interval.
        if active.intervals > 1 { self.end(active, at_ms, limits) } else { None }
    }

    /// Suppresses events until this time.
    pub fn silence(&mut self, until_ms: u64) {
        self.active = None;
        self.silent_until_ms = self.silent_until_ms.max(until_ms);
    }

    fn end(&mut self, active: Active, at_ms: u64, limits: &Limits) -> Option<Ended> {
        let merges = self.ended_ms.is_some_and(|ended_ms| active.from_ms < ended_ms + limits.merge_ms);
        self.ended_ms = Some(at_ms);
        if merges || active.from_ms < self.silent_until_ms {
            return None;
        }
        self.silent_until_ms = at_ms + limits.cool_down_ms;
        Some(Ended { from_ms: active.from_ms, peak: active.peak })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { enter: 3.5, hysteresis: 0.17, plausible_max: 10.8, merge_ms: 3000, cool_down_ms: 5000 };

    fn run(values: &[f64]) -> Vec<(u64, f64)> {
        let mut maneuver = Maneuver::default();
        let step = |(i, value): (usize, &f64)| {
            maneuver.advance(*value, i as u64 * 1000, (i as u64 + 1) * 1000, &LIMITS).map(|e| (e.from_ms, e.peak))
        };
        values.iter().enumerate().filter_map(step).collect()
    }

    #[test]
    fn maneuver_ends_below_the_hysteresis() {
        assert_eq!(run(&[0.0, 3.6, 3.0, 4.2, 2.8, 0.0]), [(1000, 4.2)]);
        assert_eq!(run(&[3.4, 3.4, 3.4, 0.0]), []);
    }

    #[test]
    fn close_maneuvers_are_one_event() {
        assert_eq!(run(&[4.0, 0.0, 0.0, 4.0, 0.0]), [(0, 4.0)], "merged");
        assert_eq!(run(&[4.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0]), [(0, 4.0)], "cool-down");
        assert_eq!(run(&[4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.0]), [(0, 4.0), (7000, 5.0)]);
    }

    #[test]
    fn spike_and_impossible_value_are_no_maneuver() {
        assert_eq!(run(&[0.0, 6.0, -6.0, 0.0]), []);
        assert_eq!(run(&[0.0, 30.0, 0.0]), []);
        assert_eq!(run(&[0.0, 6.0, 5.0, -6.0, 0.0]).len(), 1, "two intervals are no spike");
    }

    #[test]
    fn interruption_confirms_only_two_intervals() {
        let mut maneuver = Maneuver::default();
        maneuver.advance(4.0, 0, 1000, &LIMITS);
        assert_eq!(maneuver.interrupt(2000, &LIMITS), None);
        maneuver.advance(4.0, 5000, 6000, &LIMITS);
        maneuver.advance(4.0, 6000, 7000, &LIMITS);
        assert_eq!(maneuver.interrupt(8000, &LIMITS), Some(Ended { from_ms: 5000, peak: 4.0 }));
    }
}
