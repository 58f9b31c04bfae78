use serde::{Deserialize, Serialize};

/// Longest gap between two records within which a state is assumed to last, in milliseconds.
const GAP_MAX_MS: u64 = 30_000;

/// Limits of a state that must last.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// Time that the state must last.
    pub hold_ms: u64,
    /// Minimum time after an event before the next one.
    pub cool_down_ms: u64,
}

/// Detector of a state that lasts, such as high revolutions. It reports once per state, when the state has lasted long
/// enough.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sustained {
    since_ms: Option<u64>,
    last_ms: u64,
    peak: f64,
    is_reported: bool,
    silent_until_ms: u64,
}

impl Sustained {
    /// Takes a record. `enters`: the state begins; `stays`: a state that has begun lasts (the hysteresis). Returns the
    /// begin of the state, and the highest `value` in it.
    pub fn advance(&mut self, enters: bool, stays: bool, value: f64, now_ms: u64, hold: Hold) -> Option<(u64, f64)> {
        let is_continued = now_ms.saturating_sub(self.last_ms) <= GAP_MAX_MS;
        self.last_ms = now_ms;
        let lasts = self.since_ms.is_some() && stays && is_continued;
        if !lasts {
            (self.since_ms, self.peak, self.is_reported) = (enters.then_some(now_ms), value, false);
            if !enters {
                return None;
            }
        }
        self.peak = self.peak.max(value);
        let since_ms = self.since_ms?;
        if self.is_reported || now_ms - since_ms < hold.hold_ms {
            return None;
        }
        self.is_reported = true;
        if since_ms < self.silent_until_ms {
            return None;
        }
        self.silent_until_ms = now_ms + hold.cool_down_ms;
        Some((since_ms, self.peak))
    }

    /// Returns true while a state lasts that was reported, or would have been without the cool-down.
    pub fn is_on(&self) -> bool {
        self.since_ms.is_some() && self.is_reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Hold = Hold { hold_ms: 3000, cool_down_ms: 10_000 };

    fn run(values: &[f64], step_ms: u64) -> Vec<(u64, f64)> {
        let mut high = Sustained::default();
        let report = |(i, v): (usize, &f64)| high.advance(*v > 100.0, *v > 90.0, *v, (i as u64 + 100) * step_ms, HOLD);
        values.iter().enumerate().filter_map(report).map(|(since, peak)| (since - 100 * step_ms, peak)).collect()
    }

    #[test]
    fn state_is_reported_once_after_its_time() {
        assert_eq!(run(&[0.0, 101.0, 120.0, 95.0, 95.0, 95.0, 95.0], 1000), [(1000, 120.0)]);
        assert_eq!(run(&[0.0, 101.0, 120.0, 80.0, 101.0, 101.0], 1000), [], "too short");
        assert_eq!(run(&[101.0, 101.0, 101.0], 40_000), [], "nothing is known between the records");
    }

    #[test]
    fn cool_down_silences_the_next_state() {
        let twice = [101.0, 101.0, 101.0, 101.0, 0.0, 101.0, 101.0, 101.0, 101.0];
        assert_eq!(run(&twice, 1000).len(), 1);
        assert_eq!(run(&twice, 5000).len(), 2);
    }
}
