use serde::{Deserialize, Serialize};

use crate::{Event, Kind, Sample, Severity, Thresholds, motion::Motion};

/// Speed from which a stop can be an accident, m/s.
const STOP_FROM: f64 = 30.0 / 3.6;
/// Speed at which a car stands, m/s.
const STANDS: f64 = 1.5;
/// Time that the car must stand after the stop.
const STAYS_MS: u64 = 5000;
/// A car that was faster than this within [`WAS_MOVING_MS`] was driving when the shock came, m/s.
const DRIVES: f64 = 10.0 / 3.6;
const WAS_MOVING_MS: u64 = 10_000;
/// Minimum time between two accidents.
const COOL_DOWN_MS: u64 = 60_000;

/// Detects accidents: a shock that an accelerometer has measured, or a stop that needs more than brakes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Accident {
    moved_ms: Option<u64>,
    /// A stop that no brake explains: its begin, its deceleration, and the time of the stop.
    stopped: Option<(u64, f64, u64)>,
    silent_until_ms: u64,
}

impl Accident {
    pub fn advance(&mut self, sample: &Sample, motion: Option<&Motion>, limits: &Thresholds) -> Option<Event> {
        let now_ms = sample.time_ms;
        let was_moving = self.moved_ms.is_some_and(|moved_ms| now_ms - moved_ms <= WAS_MOVING_MS);
        if sample.speed.is_some_and(|speed| speed > DRIVES) {
            self.moved_ms = Some(now_ms);
        }
        if let Some(shock_g) = sample.shock_g.filter(|shock_g| *shock_g >= limits.accident_g) {
            // A phone that falls inside a parked car must not call for help.
            let severity = if was_moving { Severity::Severe } else { Severity::Warn };
            return self.report(severity, now_ms, shock_g, sample);
        }
        let impossible = motion.filter(|m| m.from >= STOP_FROM && m.to <= STANDS && m.along <= -limits.accident_stop);
        if let Some(motion) = impossible {
            self.stopped = Some((motion.from_ms, -motion.along, now_ms));
            return None;
        }
        let (from_ms, deceleration, stopped_ms) = self.stopped?;
        match sample.speed {
            Some(speed) if speed > STANDS => self.stopped = None,
            _ if now_ms - stopped_ms >= STAYS_MS => {
                self.stopped = None;
                return self.report(Severity::Severe, from_ms, deceleration, sample);
            }
            _ => {}
        }
        None
    }

    fn report(&mut self, severity: Severity, time_ms: u64, value: f64, at: &Sample) -> Option<Event> {
        if at.time_ms < self.silent_until_ms {
            return None;
        }
        self.silent_until_ms = at.time_ms + COOL_DOWN_MS;
        self.stopped = None;
        Some(Event::new(Kind::Accident, severity, time_ms, Some(value), at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::motion::Mover;

    fn run(speeds: &[f64]) -> usize {
        let (mut accident, mut mover, limits) = (Accident::default(), Mover::default(), Thresholds::default());
        let mut count = 0;
        for (i, &speed) in speeds.iter().enumerate() {
            let sample = Sample { time_ms: 1000 * (i as u64 + 1), speed: Some(speed), ..Sample::default() };
            let motion = mover.advance(&sample, &limits);
            count += usize::from(accident.advance(&sample, motion.as_ref(), &limits).is_some());
        }
        count
    }

    #[test]
    fn impossible_stop_that_lasts_is_an_accident() {
        assert_eq!(run(&[13.0, 13.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), 1);
        assert_eq!(run(&[13.0, 13.0, 0.0, 13.0, 13.0, 13.0, 13.0, 13.0]), 0, "a wrong speed");
        assert_eq!(run(&[13.0, 13.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), 0, "an emergency stop");
    }

    #[test]
    fn shock_counts_while_driving() {
        let (mut accident, limits) = (Accident::default(), Thresholds::default());
        let at = |ms, speed, shock_g| Sample {
            time_ms: ms,
            speed: Some(speed),
            shock_g: Some(shock_g),
            ..Sample::default()
        };
        assert!(accident.advance(&at(1000, 12.0, 2.4), None, &limits).is_none());
        let event = accident.advance(&at(2000, 0.0, 6.0), None, &limits).expect("an accident");
        assert_eq!((event.kind, event.severity, event.value), (Kind::Accident, Severity::Severe, Some(6.0)));
        assert!(accident.advance(&at(3000, 0.0, 6.0), None, &limits).is_none(), "one accident, one event");
        let parked = Accident::default().advance(&at(1000, 0.0, 3.0), None, &limits).expect("a shock");
        assert_eq!(parked.severity, Severity::Warn);
    }
}
