use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Event, Kind, Place, Sample, Severity};

/// Speed above which a car drives, m/s.
const DRIVES: f64 = 5.0 / 3.6;
/// Speed below which a car stands, m/s.
const STANDS: f64 = 0.5;
/// A drive ends when the car has stood for this time, or for [`OFF_MS`] with the engine off.
const STOOD_MS: u64 = 5 * 60 * 1000;
const OFF_MS: u64 = 60 * 1000;
/// A drive ends when its car is silent for this time.
pub const SILENT_MS: u64 = 5 * 60 * 1000;
/// Longest interval over which the speed gives the distance; over a longer one the positions do.
const INTEGRATE_S: f64 = 10.0;
/// A drive below this distance is not reported: a car that only moves in its yard.
const REPORTED_FROM_M: f64 = 200.0;
/// Distance in km below which a score counts as that of this distance, so that one event does not spoil a short drive.
const SCORED_FROM_KM: f64 = 10.0;
/// Distance in km over which the score of a car is computed.
const WINDOW_KM: f64 = 100.0;
const WINDOW_DRIVES_MAX: usize = 200;

/// A drive from start to stop, as it is published with the start as its key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drive {
    /// Times of the device in milliseconds since 1970.
    pub start: u64,
    pub end: u64,
    /// True while the drive is in progress.
    pub is_open: bool,
    pub distance_m: f64,
    /// Time with speed, in seconds.
    pub moving_s: f64,
    /// Time without speed and with a running engine, in seconds.
    pub idle_s: f64,
    /// Meters per second.
    pub max_speed: f64,
    /// Percent of a tank. Refueling is not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel_used: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Place>,
    /// Number of events of each kind.
    pub events: BTreeMap<Kind, u32>,
    /// Penalty points of the events.
    pub points: f64,
    /// Score of this drive, 0 to 100.
    pub score: u32,
    /// Penalty points per 100 km, and the score, over the last 100 km of this car.
    #[serde(rename = "per100Km")]
    pub per_100_km: Score,
}

/// Penalty points per 100 km, and the score that follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    pub points: f64,
    pub score: u32,
}

impl Score {
    /// Returns the score for these points over this distance: 100 minus the points per 100 km, at least 0.
    pub fn of(points: f64, distance_m: f64) -> Self {
        let km = (distance_m / 1000.0).max(SCORED_FROM_KM);
        let points = points * 100.0 / km;
        Self { points: (points * 10.0).round() / 10.0, score: (100.0 - points).clamp(0.0, 100.0).round() as u32 }
    }
}

/// Returns the penalty points of an event. What the driver cannot influence costs nothing.
pub fn points(event: &Event) -> f64 {
    let (warn, severe) = match event.kind {
        Kind::HarshBraking | Kind::HarshAcceleration | Kind::HarshCornering => (2.0, 4.0),
        Kind::HighRpm => (1.0, 2.0),
        Kind::Idling | Kind::GearTooHigh | Kind::GearTooLow => (0.5, 1.0),
        _ => return 0.0,
    };
    if event.severity == Severity::Severe { severe } else { warn }
}

/// Divides the records of a car into drives and adds up the figures of each.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Drives {
    open: Option<Drive>,
    last: Option<Last>,
    /// Time of the first record of the current stop, and whether its engine is off.
    stood_since_ms: Option<u64>,
    off_since_ms: Option<u64>,
    /// Number of successive records in motion.
    moving: u32,
    /// Meters and points of the latest drives.
    window: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Last {
    time_ms: u64,
    speed: Option<f64>,
    place: Option<Place>,
    fuel: Option<f64>,
}

impl Drives {
    /// Takes a record with its events. Returns the drive that has ended, if it is worth a report.
    pub fn advance(&mut self, sample: &Sample, events: &[Event]) -> Option<Drive> {
        let now_ms = sample.time_ms;
        let last = self.last.unwrap_or_default();
        let elapsed_ms = now_ms.saturating_sub(last.time_ms);
        let ended = if self.last.is_some() && elapsed_ms > SILENT_MS { self.end() } else { None };
        let is_first = self.last.is_none() || elapsed_ms > SILENT_MS;
        let is_off = sample.rpm == Some(0.0);
        self.last = Some(Last {
            time_ms: now_ms,
            speed: sample.speed,
            place: sample.place.or(last.place),
            fuel: sample.fuel.or(last.fuel),
        });
        let speed = sample.speed.unwrap_or(0.0);
        self.moving = if speed > DRIVES { self.moving + 1 } else { 0 };
        if speed > STANDS {
            self.stood_since_ms = None;
        } else {
            self.stood_since_ms.get_or_insert(now_ms);
        }
        self.off_since_ms = if is_off && speed <= STANDS { Some(self.off_since_ms.unwrap_or(now_ms)) } else { None };
        if self.open.is_none() {
            if self.moving >= 2 {
                self.open = Some(begin(sample, if is_first { now_ms } else { last.time_ms }, last));
            }
            return ended;
        }
        if let Some(drive) = &mut self.open {
            add(drive, sample, last, elapsed_ms as f64 / 1000.0, is_off);
            for event in events {
                *drive.events.entry(event.kind).or_default() += 1;
                drive.points += points(event);
            }
        }
        let has_lasted = |since_ms: Option<u64>, ms| since_ms.is_some_and(|since_ms| now_ms - since_ms >= ms);
        let is_over = has_lasted(self.stood_since_ms, STOOD_MS) || has_lasted(self.off_since_ms, OFF_MS);
        if is_over { self.end() } else { ended }
    }

    /// Ends the drive of a car that has been silent until `now_ms` of its own clock.
    pub fn end_if_silent(&mut self, now_ms: u64) -> Option<Drive> {
        let is_silent = self.last.is_some_and(|last| now_ms.saturating_sub(last.time_ms) > SILENT_MS);
        if is_silent { self.end() } else { None }
    }

    /// Returns the drive in progress, with its score until now.
    pub fn current(&self) -> Option<Drive> {
        let mut drive = self.open.clone()?;
        self.score(&mut drive);
        Some(drive)
    }

    fn end(&mut self) -> Option<Drive> {
        self.moving = 0;
        let mut drive = self.open.take()?;
        // The stop that ends a drive is no part of it.
        if let Some(since_ms) = self.stood_since_ms.filter(|since_ms| *since_ms < drive.end) {
            drive.idle_s = (drive.idle_s - (drive.end - since_ms) as f64 / 1000.0).max(0.0);
            drive.end = since_ms;
        }
        drive.is_open = false;
        if drive.distance_m < REPORTED_FROM_M {
            return None;
        }
        self.score(&mut drive);
        self.window.push((drive.distance_m, drive.points));
        while self.window.len() > 1 && (self.beyond_window() || self.window.len() > WINDOW_DRIVES_MAX) {
            self.window.remove(0);
        }
        Some(drive)
    }

    /// Returns true if the window is full without its oldest drive.
    fn beyond_window(&self) -> bool {
        self.window.iter().skip(1).map(|(meters, _)| meters).sum::<f64>() >= WINDOW_KM * 1000.0
    }

    fn score(&self, drive: &mut Drive) {
        drive.score = Score::of(drive.points, drive.distance_m).score;
        let (mut meters, mut points) = (drive.distance_m, drive.points);
        for (more, of_these) in self.window.iter().rev() {
            if meters >= WINDOW_KM * 1000.0 {
                break;
            }
            meters += more;
            points += of_these;
        }
        drive.per_100_km = Score::of(points, meters);
    }
}

fn begin(sample: &Sample, start: u64, last: Last) -> Drive {
    Drive {
        start,
        end: sample.time_ms,
        is_open: true,
        distance_m: 0.0,
        moving_s: 0.0,
        idle_s: 0.0,
        max_speed: sample.speed.unwrap_or(0.0),
        fuel_used: sample.fuel.map(|_| 0.0),
        from: last.place.or(sample.place),
        to: sample.place,
        events: BTreeMap::new(),
        points: 0.0,
        score: 100,
        per_100_km: Score::default(),
    }
}

fn add(drive: &mut Drive, sample: &Sample, last: Last, elapsed_s: f64, is_off: bool) {
    drive.end = sample.time_ms;
    drive.to = sample.place.or(drive.to);
    let speed = sample.speed.unwrap_or(0.0);
    drive.max_speed = drive.max_speed.max(speed);
    let by_speed = last.speed.zip(sample.speed).filter(|_| elapsed_s <= INTEGRATE_S);
    let by_place = || last.place.zip(sample.place).map(|(from, to)| from.distance_m(to));
    drive.distance_m += by_speed.map(|(from, to)| (from + to) / 2.0 * elapsed_s).or_else(by_place).unwrap_or(0.0);
    if speed > STANDS {
        drive.moving_s += elapsed_s;
    } else if !is_off {
        drive.idle_s += elapsed_s;
    }
    if let Some((before, now)) = last.fuel.zip(sample.fuel) {
        *drive.fuel_used.get_or_insert(0.0) += (before - now).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64, speed: f64, rpm: f64) -> Sample {
        Sample { time_ms: second * 1000, speed: Some(speed), rpm: Some(rpm), ..Sample::default() }
    }

    fn run(samples: impl IntoIterator<Item = Sample>) -> (Vec<Drive>, Drives) {
        let mut drives = Drives::default();
        let ended = samples.into_iter().filter_map(|sample| drives.advance(&sample, &[])).collect();
        (ended, drives)
    }

    #[test]
    fn drive_ends_with_the_engine_or_a_long_stop() {
        let driving = (10..110).map(|s| at(s, 10.0, 1500.0));
        let (ended, _) = run(driving.clone().chain((110..300).map(|s| at(s, 0.0, 0.0))));
        assert_eq!(ended.len(), 1);
        assert_eq!((ended[0].start, ended[0].end, ended[0].is_open), (10_000, 110_000, false));
        assert!((ended[0].distance_m - 985.0).abs() < 10.0, "{}", ended[0].distance_m);
        assert_eq!(ended[0].score, 100);
        let (ended, drives) = run(driving.clone().chain((110..300).map(|s| at(s, 0.0, 800.0))));
        assert!(ended.is_empty() && drives.current().is_some_and(|drive| drive.idle_s > 180.0), "a traffic jam");
        let (ended, _) = run(driving.clone().chain((110..500).map(|s| at(s, 0.0, 800.0))));
        assert_eq!((ended.len(), ended[0].end, ended[0].idle_s), (1, 110_000, 1.0));
        let (ended, _) = run(driving.chain([at(900, 10.0, 1500.0)]));
        assert_eq!(ended.len(), 1, "the device was silent");
    }

    #[test]
    fn short_movement_is_no_drive() {
        let yard = (10..20).map(|s| at(s, 3.0, 900.0)).chain((20..100).map(|s| at(s, 0.0, 0.0)));
        assert!(run(yard).0.is_empty());
        assert!(run([at(1, 9.0, 0.0), at(2, 0.0, 0.0)]).1.current().is_none(), "one record in motion");
    }

    #[test]
    fn score_is_per_hundred_kilometers() {
        assert_eq!(Score::of(0.0, 500.0), Score { points: 0.0, score: 100 });
        assert_eq!(Score::of(10.0, 100_000.0), Score { points: 10.0, score: 90 });
        assert_eq!(Score::of(2.0, 1000.0), Score { points: 20.0, score: 80 }, "a short drive counts as 10 km");
        assert_eq!(Score::of(500.0, 100_000.0).score, 0);
    }

    #[test]
    fn silent_car_ends_its_drive() {
        let (_, mut drives) = run((10..110).map(|s| at(s, 10.0, 1500.0)));
        assert_eq!(drives.end_if_silent(300_000), None);
        assert!(drives.end_if_silent(500_000).is_some());
        assert_eq!(drives.end_if_silent(900_000), None, "once");
    }
}
