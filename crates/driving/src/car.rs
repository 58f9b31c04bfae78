use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Drive, Event, Geofence, Kind, Sample, Severity, Thresholds,
    detect::{Accident, Diagnostics, Gears, Hold, Maneuver, Sustained, maneuver_limits as of},
    drive::Drives,
    event::Kind::{HarshAcceleration, HarshBraking, HarshCornering},
    gate::Gate,
    geofence::Border,
    motion::{Motion, Mover},
};

/// Speed below which a car stands, m/s.
const STANDS: f64 = 0.5;
/// Larger accelerations are errors of the receiver, m/s².
const ACCELERATION_PLAUSIBLE: f64 = 9.0;
const CORNERING_PLAUSIBLE: f64 = 12.0;
/// Time in which an event of the device and one of these detectors are the same.
const SAME_MS: u64 = 8000;

/// Consequences of a record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// In the order of their detection.
    pub events: Vec<Event>,
    /// Drive that has ended.
    pub ended: Option<Drive>,
}

/// State of one car. It can be stored and read again between two records.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Car {
    gate: Gate,
    mover: Mover,
    braking: Maneuver,
    acceleration: Maneuver,
    cornering: Maneuver,
    gears: Gears,
    idling: Sustained,
    diagnostics: Diagnostics,
    accident: Accident,
    drives: Drives,
    /// Side of each geofence's border, by name.
    borders: BTreeMap<String, Border>,
    /// Time of the newest event of each kind that devices detect, too.
    latest: BTreeMap<Kind, u64>,
}

impl Car {
    /// Takes a record. `received_ms`: time at which the server received the record, for clocks that are ahead.
    /// `geofences`: those that count for this car.
    ///
    /// A record that is late, repeated or from the future changes nothing.
    pub fn observe(
        &mut self,
        sample: &Sample,
        received_ms: u64,
        limits: &Thresholds,
        geofences: &[&Geofence],
    ) -> Observed {
        let Some(sample) = self.gate.admit(sample, received_ms) else { return Observed::default() };
        let motion = self.mover.advance(&sample, limits);
        let mut events = Vec::new();
        let accident = self.accident.advance(&sample, motion.as_ref(), limits);
        events.extend(accident.filter(|event| self.is_new(event.kind, event.time)));
        if !events.is_empty() {
            // A crash is no harsh braking.
            let until_ms = sample.time_ms + 10_000;
            for maneuver in [&mut self.braking, &mut self.acceleration, &mut self.cornering] {
                maneuver.silence(until_ms);
            }
        }
        events.extend(self.maneuvers(&sample, motion.as_ref(), limits));
        events.extend(self.of_device(&sample));
        let gears = self.gears.advance(&sample, motion.as_ref(), limits);
        events.extend(
            gears.into_iter().filter(|event| event.kind != Kind::HighRpm || self.is_new(event.kind, event.time)),
        );
        events.extend(self.idle(&sample, limits));
        events.extend(self.diagnostics.advance(&sample, limits));
        events.extend(self.cross_borders(&sample, geofences));
        let ended = self.drives.advance(&sample, &events);
        Observed { events, ended }
    }

    /// Ends the drive of a car that has been silent until `now_ms`.
    pub fn end_if_silent(&mut self, now_ms: u64) -> Option<Drive> {
        self.drives.end_if_silent(now_ms)
    }

    /// Returns the drive in progress.
    pub fn current_drive(&self) -> Option<Drive> {
        self.drives.current()
    }

    fn maneuvers(&mut self, sample: &Sample, motion: Option<&Motion>, limits: &Thresholds) -> Vec<Event> {
        let braking = of(limits.braking_warn, limits.accident_stop, limits);
        let acceleration = of(limits.acceleration_warn, ACCELERATION_PLAUSIBLE, limits);
        let cornering = of(limits.cornering_warn, CORNERING_PLAUSIBLE, limits);
        let now_ms = sample.time_ms;
        let ended = match motion {
            None => {
                // A motion is also missing for records that come too fast; then the maneuver goes on.
                if self.mover.is_waiting(now_ms) {
                    return Vec::new();
                }
                [
                    self.braking.interrupt(now_ms, &braking),
                    self.acceleration.interrupt(now_ms, &acceleration),
                    self.cornering.interrupt(now_ms, &cornering),
                ]
            }
            Some(motion) => {
                let kmh = |mps: f64| mps * 3.6;
                let (from, to) = (kmh(motion.from), kmh(motion.to));
                let brakes = if from >= limits.harsh_from_kmh { -motion.along } else { (-motion.along).min(0.0) };
                let hastes = if to >= limits.harsh_from_kmh { motion.along } else { motion.along.min(0.0) };
                let turns = motion.across.filter(|_| from.min(to) >= limits.cornering_from_kmh).unwrap_or(0.0);
                [
                    self.braking.advance(brakes, motion.from_ms, now_ms, &braking),
                    self.acceleration.advance(hastes, motion.from_ms, now_ms, &acceleration),
                    self.cornering.advance_signed(turns, motion.from_ms, now_ms, &cornering),
                ]
            }
        };
        let kinds = [
            (HarshBraking, limits.braking_severe),
            (HarshAcceleration, limits.acceleration_severe),
            (HarshCornering, limits.cornering_severe),
        ];
        let mut events = Vec::new();
        for (ended, (kind, severe)) in ended.into_iter().zip(kinds) {
            let Some(ended) = ended else { continue };
            let severity = if ended.peak >= severe { Severity::Severe } else { Severity::Warn };
            if self.is_new(kind, ended.from_ms) {
                events.push(Event::new(kind, severity, ended.from_ms, Some(ended.peak), sample));
            }
        }
        events
    }

    /// Takes the event that the device itself has detected. It is the only source at 5 s between two records.
    fn of_device(&mut self, sample: &Sample) -> Option<Event> {
        let kind = Kind::of_device(sample.event.as_deref()?)?;
        let is_new = self.is_new(kind, sample.time_ms);
        let severity = if kind == Kind::Accident { Severity::Severe } else { Severity::Warn };
        is_new.then(|| Event::new(kind, severity, sample.time_ms, None, sample))
    }

    /// Returns false if an event of this kind was reported for this time already.
    fn is_new(&mut self, kind: Kind, time_ms: u64) -> bool {
        let before = self.latest.get(&kind).copied();
        if before.is_some_and(|before_ms| time_ms.abs_diff(before_ms) < SAME_MS) {
            return false;
        }
        self.latest.insert(kind, time_ms);
        true
    }

    fn idle(&mut self, sample: &Sample, limits: &Thresholds) -> Option<Event> {
        // A record without speed, such as one whose position jumps, neither begins nor ends idling.
        let (rpm, speed) = sample.rpm.zip(sample.speed)?;
        let hold = Hold { hold_ms: (limits.idle_s * 1000.0) as u64, cool_down_ms: 0 };
        let is_idle = rpm > 0.0 && speed < STANDS;
        let (since_ms, _) = self.idling.advance(is_idle, is_idle, 0.0, sample.time_ms, hold)?;
        let idle_s = (sample.time_ms - since_ms) as f64 / 1000.0;
        Some(Event::new(Kind::Idling, Severity::Warn, since_ms, Some(idle_s), sample))
    }

    fn cross_borders(&mut self, sample: &Sample, geofences: &[&Geofence]) -> Vec<Event> {
        self.borders.retain(|name, _| geofences.iter().any(|geofence| geofence.name == *name));
        let Some(place) = sample.place else { return Vec::new() };
        let mut events = Vec::new();
        for geofence in geofences {
            let border = self.borders.entry(geofence.name.clone()).or_default();
            let Some(has_entered) = border.advance(geofence.distance_m(place), sample.accuracy_m) else { continue };
            let kind = if has_entered { Kind::GeofenceEnter } else { Kind::GeofenceExit };
            let mut event = Event::new(kind, Severity::Info, sample.time_ms, None, sample);
            event.geofence = Some(geofence.name.clone());
            events.push(event);
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Area, Place};

    fn at(second: u64, speed: f64) -> Sample {
        let place = Some(Place { lat: 47.0 + second as f64 * 1e-4, lon: 19.0 });
        Sample { time_ms: second * 1000, speed: Some(speed), place, accuracy_m: Some(4.0), ..Sample::default() }
    }

    fn run(car: &mut Car, samples: impl IntoIterator<Item = Sample>) -> Vec<Event> {
        let limits = Thresholds::default();
        let observe = |sample: Sample| car.observe(&sample, sample.time_ms, &limits, &[]).events;
        samples.into_iter().flat_map(observe).collect()
    }

    fn braking() -> Vec<Sample> {
        let speeds = [14.0, 14.0, 9.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0];
        speeds.into_iter().zip(1..).map(|(speed, second)| at(second, speed)).collect()
    }

    #[test]
    fn stored_state_continues_without_a_second_event() {
        let mut car = Car::default();
        let all = run(&mut car, braking());
        assert_eq!(all.iter().map(|event| (event.kind, event.time)).collect::<Vec<_>>(), [(HarshBraking, 2000)]);
        for cut in 1..braking().len() {
            let mut first = Car::default();
            let mut events = run(&mut first, braking().into_iter().take(cut));
            let json = serde_json::to_string(&first).expect("JSON");
            let mut second: Car = serde_json::from_str(&json).expect("a state");
            // Records before the cut are repeated after a restart.
            events.extend(run(&mut second, braking()));
            assert_eq!(events, all, "cut after {cut} records");
        }
    }

    #[test]
    fn late_records_cause_no_event() {
        let mut car = Car::default();
        run(&mut car, (100..110).map(|second| at(second, 10.0)));
        assert_eq!(run(&mut car, braking()), []);
    }

    #[test]
    fn event_of_the_device_is_not_doubled() {
        let mut car = Car::default();
        let mut samples = braking();
        samples[3].event = Some("harsh_braking".into());
        assert_eq!(run(&mut car, samples).len(), 1);
        let mut slow: Vec<Sample> = (0..4).map(|i| at(i * 5 + 1, 10.0)).collect();
        slow[2].event = Some("harsh_braking".into());
        assert_eq!(run(&mut Car::default(), slow).len(), 1, "records of 5 s need the device");
    }

    #[test]
    fn crossing_a_geofence_is_one_event_each_way() {
        let area = Area::Circle { center: Place { lat: 47.005, lon: 19.0 }, radius_m: 200.0 };
        let fence = Geofence { name: "Depot".into(), area, groups: Vec::new() };
        let mut car = Car::default();
        let events: Vec<Event> = (1..100)
            .flat_map(|s| car.observe(&at(s, 11.0), s * 1000, &Thresholds::default(), &[&fence]).events)
            .collect();
        let kinds: Vec<_> = events.iter().map(|event| (event.kind, event.geofence.as_deref())).collect();
        assert_eq!(kinds, [(Kind::GeofenceEnter, Some("Depot")), (Kind::GeofenceExit, Some("Depot"))]);
    }

    #[test]
    fn idling_is_reported_after_two_minutes() {
        let idle = |rpm| (1..400).map(move |s| Sample { rpm: Some(rpm), ..at(s, 0.0) });
        let events = run(&mut Car::default(), idle(800.0));
        assert_eq!(
            events.iter().map(|event| (event.kind, event.value)).collect::<Vec<_>>(),
            [(Kind::Idling, Some(120.0))]
        );
        assert_eq!(run(&mut Car::default(), idle(0.0)), [], "the engine is off");
    }
}
