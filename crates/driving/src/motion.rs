use serde::{Deserialize, Serialize};

use crate::{Sample, Thresholds};

/// Shortest and longest interval between two records from which an acceleration is computed, in seconds.
const INTERVAL_S: std::ops::RangeInclusive<f64> = 0.5..=2.05;

/// Change of speed and direction between two records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Motion {
    /// Time of the earlier record.
    pub from_ms: u64,
    /// Speed at the earlier and the later record, m/s.
    pub from: f64,
    pub to: f64,
    /// Acceleration along the direction of travel, m/s²; negative while braking.
    pub along: f64,
    /// Acceleration across it, m/s²; positive to the right. `None` without two headings.
    pub across: Option<f64>,
}

/// Computes the motion from record to record.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Mover {
    last: Option<Fix>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Fix {
    time_ms: u64,
    speed: f64,
    heading: Option<f64>,
}

impl Mover {
    /// Returns the motion since the previous usable record. `None` if the interval is too short or too long, or a
    /// value is missing or too uncertain. Records at more than 2 Hz are thinned out.
    pub fn advance(&mut self, sample: &Sample, thresholds: &Thresholds) -> Option<Motion> {
        let is_accurate = sample.accuracy_m.is_none_or(|accuracy_m| accuracy_m <= thresholds.accuracy_max_m);
        let (Some(speed), true) = (sample.speed, is_accurate) else {
            self.last = None;
            return None;
        };
        let fix = Fix { time_ms: sample.time_ms, speed, heading: sample.heading };
        let Some(last) = self.last else {
            self.last = Some(fix);
            return None;
        };
        let elapsed_s = fix.time_ms.saturating_sub(last.time_ms) as f64 / 1000.0;
        if elapsed_s < *INTERVAL_S.start() {
            return None;
        }
        self.last = Some(fix);
        if elapsed_s > *INTERVAL_S.end() {
            return None;
        }
        let turn = last.heading.zip(fix.heading).map(|(from, to)| turn(from, to).to_radians());
        let mean = (last.speed + fix.speed) / 2.0;
        Some(Motion {
            from_ms: last.time_ms,
            from: last.speed,
            to: fix.speed,
            along: (fix.speed - last.speed) / elapsed_s,
            across: turn.map(|turn| mean * turn / elapsed_s),
        })
    }

    /// Returns true if a record that was taken at `now_ms` came too soon after the previous one to give a motion.
    pub fn is_waiting(&self, now_ms: u64) -> bool {
        self.last.is_some_and(|last| last.time_ms < now_ms)
    }
}

/// Returns the smallest turn from one heading to another, in degrees in `[-180, 180)`.
fn turn(from: f64, to: f64) -> f64 {
    (to - from + 540.0).rem_euclid(360.0) - 180.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64, speed: f64, heading: f64) -> Sample {
        Sample { time_ms: ms, speed: Some(speed), heading: Some(heading), ..Sample::default() }
    }

    #[test]
    fn accelerations_follow_from_two_records() {
        let (mut mover, thresholds) = (Mover::default(), Thresholds::default());
        assert_eq!(mover.advance(&at(1000, 10.0, 355.0), &thresholds), None);
        let motion = mover.advance(&at(2000, 6.0, 5.0), &thresholds).expect("a motion");
        assert_eq!((motion.along, motion.from, motion.to), (-4.0, 10.0, 6.0));
        assert!((motion.across.expect("headings") - 8.0 * 10f64.to_radians()).abs() < 1e-9);
        assert_eq!(mover.advance(&at(7000, 9.0, 5.0), &thresholds), None, "5 s are too long");
        let vague = Sample { accuracy_m: Some(50.0), ..at(8000, 1.0, 5.0) };
        assert_eq!(mover.advance(&vague, &thresholds), None);
        assert_eq!(mover.advance(&at(9000, 9.0, 5.0), &thresholds), None, "the vague speed is not used");
    }

    #[test]
    fn ten_records_a_second_are_thinned_out() {
        let (mut mover, thresholds) = (Mover::default(), Thresholds::default());
        let motions = (0..100).filter_map(|i| mover.advance(&at(1000 + i * 100, i as f64 * 0.1, 0.0), &thresholds));
        let motions: Vec<Motion> = motions.collect();
        assert_eq!(motions.len(), 19);
        assert!(motions.iter().all(|motion| (motion.along - 1.0).abs() < 1e-9));
    }
}
