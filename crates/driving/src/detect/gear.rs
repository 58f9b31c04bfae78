use serde::{Deserialize, Serialize};

use crate::{Event, Kind, Sample, Severity, Thresholds, motion::Motion};

use super::sustained::{Hold, Sustained};

/// Two ratios of engine speed to speed belong to one gear if they differ by less than this fraction.
const SAME_GEAR: f64 = 0.07;
/// Number of records that make a ratio a gear of this car.
const SEEN_MIN: u32 = 5;
const RATIOS_MAX: usize = 12;
/// Below this speed the clutch may slip, so that the ratio means nothing, m/s.
const RATIO_FROM: f64 = 4.0;
/// Acceleration below which a car keeps its speed, m/s².
const CRUISE: f64 = 0.8;
/// Acceleration above which the driver must be asking for power, if the device reports no accelerator, m/s².
const ASKS: f64 = 0.3;
const THROTTLE_ASKS: f64 = 40.0;
const LOAD_FREE: f64 = 70.0;
const RUNNING_RPM: f64 = 400.0;

/// Detects wrong gears and high revolutions.
///
/// A device rarely knows its gear. The ratio of engine speed to speed is constant in each gear, so the ratios that
/// occur often are the gears of the car. A suggestion to shift up needs a higher gear that was seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Gears {
    /// Ratios in rpm per m/s, and the number of records with each.
    ratios: Vec<(f64, u32)>,
    too_high: Sustained,
    too_low: Sustained,
    high: Sustained,
    high_ended_ms: u64,
    /// Acceleration of the last motion and its time.
    along: Option<(u64, f64)>,
}

impl Gears {
    pub fn advance(&mut self, sample: &Sample, motion: Option<&Motion>, limits: &Thresholds) -> Vec<Event> {
        if let Some(motion) = motion {
            self.along = Some((sample.time_ms, motion.along));
        }
        let (Some(rpm), Some(speed)) = (sample.rpm, sample.speed) else { return Vec::new() };
        let now_ms = sample.time_ms;
        let along = self.along.filter(|(at_ms, _)| now_ms - at_ms <= 2000).map(|(_, along)| along);
        let ratio = (speed >= RATIO_FROM && rpm > RUNNING_RPM).then(|| rpm / speed);
        if let Some(ratio) = ratio.filter(|_| along.is_none_or(|along| along.abs() < CRUISE)) {
            self.learn(ratio);
        }
        let mut events = Vec::new();
        let mut add = |kind, severity, found: Option<(u64, f64)>| {
            events.extend(found.map(|(since_ms, value)| Event::new(kind, severity, since_ms, Some(value), sample)));
        };
        let seconds = |s: f64| (s * 1000.0) as u64;
        let hold = Hold { hold_ms: seconds(limits.high_rpm_s), cool_down_ms: seconds(limits.gear_cool_down_s) };
        let is_high = rpm > limits.high_rpm;
        let found = self.high.advance(is_high, rpm > limits.high_rpm * 0.95, rpm, now_ms, hold);
        let is_severe = found.is_some_and(|(_, peak)| peak > limits.high_rpm_severe);
        add(Kind::HighRpm, if is_severe { Severity::Severe } else { Severity::Warn }, found);
        if is_high {
            self.high_ended_ms = now_ms;
        }

        let hold = Hold { hold_ms: seconds(limits.gear_s), cool_down_ms: seconds(limits.gear_cool_down_s) };
        let is_after_high = now_ms.saturating_sub(self.high_ended_ms) < 5000;
        let cruises = along.map_or(sample.load.is_some_and(|load| load < LOAD_FREE), |along| along.abs() < CRUISE);
        let is_free = cruises && sample.load.is_none_or(|load| load < LOAD_FREE);
        let shifts_up = !is_after_high && is_free && ratio.is_some_and(|ratio| self.has_higher_gear(ratio));
        let enters = shifts_up && rpm > limits.upshift_rpm;
        let found = self.too_low.advance(enters, shifts_up && rpm > limits.upshift_rpm * 0.95, rpm, now_ms, hold);
        add(Kind::GearTooLow, Severity::Warn, found);

        let asks = match sample.throttle {
            Some(throttle) => throttle > THROTTLE_ASKS,
            None => along.is_some_and(|along| along > ASKS),
        };
        let is_slow = rpm > RUNNING_RPM && speed >= RATIO_FROM && asks;
        let enters = is_slow && rpm < limits.downshift_rpm;
        let found = self.too_high.advance(enters, is_slow && rpm < limits.downshift_rpm * 1.02, rpm, now_ms, hold);
        add(Kind::GearTooHigh, Severity::Warn, found);
        events
    }

    /// Adds a ratio to the gear that it belongs to.
    fn learn(&mut self, ratio: f64) {
        if let Some((mean, count)) = self.ratios.iter_mut().find(|(mean, _)| (ratio / *mean - 1.0).abs() < SAME_GEAR) {
            *count = (*count + 1).min(1000);
            *mean += (ratio - *mean) / f64::from((*count).min(50));
            return;
        }
        if self.ratios.len() == RATIOS_MAX {
            let rarest = (0..RATIOS_MAX).min_by_key(|&i| self.ratios[i].1).unwrap_or(0);
            self.ratios.swap_remove(rarest);
        }
        self.ratios.push((ratio, 1));
    }

    fn has_higher_gear(&self, ratio: f64) -> bool {
        self.ratios.iter().any(|(mean, count)| *count >= SEEN_MIN && *mean < ratio * (1.0 - 2.0 * SAME_GEAR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64, speed: f64, rpm: f64) -> Sample {
        Sample { time_ms: second * 1000, speed: Some(speed), rpm: Some(rpm), load: Some(20.0), ..Sample::default() }
    }

    fn run(samples: impl IntoIterator<Item = Sample>) -> Vec<Kind> {
        let (mut gears, limits) = (Gears::default(), Thresholds::default());
        samples.into_iter().flat_map(|sample| gears.advance(&sample, None, &limits)).map(|event| event.kind).collect()
    }

    #[test]
    fn fast_engine_in_the_only_known_gear_is_no_mistake() {
        assert_eq!(run((1..60).map(|s| at(s, 20.0, 2700.0))), []);
        let learned = (1..60).map(|s| at(s, 20.0, if s < 20 { 1800.0 } else { 2700.0 }));
        assert_eq!(run(learned), [Kind::GearTooLow], "a higher gear was seen before");
    }

    #[test]
    fn slow_engine_needs_the_accelerator() {
        let lugs = |throttle| (1..20).map(move |s| Sample { throttle: Some(throttle), ..at(s, 10.0, 1050.0) });
        assert_eq!(run(lugs(15.0)), []);
        assert_eq!(run(lugs(70.0)), [Kind::GearTooHigh]);
    }

    #[test]
    fn high_revolutions_are_not_also_a_low_gear() {
        let mut gears = (1..20).map(|s| at(s, 20.0, 1800.0)).collect::<Vec<_>>();
        gears.extend((20..30).map(|s| at(s, 20.0, 4000.0)));
        assert_eq!(run(gears), [Kind::HighRpm]);
    }

    #[test]
    fn stalled_or_electric_engine_gives_no_advice() {
        assert_eq!(run((1..60).map(|s| Sample { throttle: Some(90.0), ..at(s, 10.0, 0.0) })), []);
    }
}
