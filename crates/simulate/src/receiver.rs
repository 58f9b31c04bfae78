//! Satellite receiver and radio link of a car: noise, jumps, and records that are lost, repeated or late.

use millrace_client::random::Random;

use crate::record::Record;
use crate::town::geo::{LatLon, Point, round_to};

/// Quality of a receiver. Standard deviations in meters and m/s; the others are probabilities per record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Error of the position that drifts within [`DRIFT_S`], and error that changes with each record.
    pub drift_m: f64,
    pub jitter_m: f64,
    /// Error of each component of the velocity, which receivers measure by the Doppler effect.
    pub velocity: f64,
    pub lost: f64,
    pub repeated: f64,
    pub jump: f64,
}

/// A receiver in a town.
pub const TOWN: Quality =
    Quality { drift_m: 3.0, jitter_m: 0.5, velocity: 0.15, lost: 0.01, repeated: 0.005, jump: 0.001 };

/// Time in which the drift changes, in seconds.
const DRIFT_S: f64 = 30.0;

/// Receiver of one car.
pub struct Receiver {
    quality: Quality,
    random: Random,
    drift: Point,
    before_ms: Option<u64>,
}

impl Receiver {
    pub fn new(quality: Quality, random: Random) -> Self {
        Self { quality, random, drift: Point::default(), before_ms: None }
    }

    /// Returns what arrives of a record: nothing, the noisy record, or the noisy record twice.
    pub fn receive(&mut self, record: &Record) -> Vec<Record> {
        let quality = self.quality;
        let elapsed_s = self.before_ms.map_or(DRIFT_S, |ms| record.timestamp.saturating_sub(ms) as f64 / 1000.0);
        self.before_ms = Some(record.timestamp);
        let keeps = (-elapsed_s / DRIFT_S).exp();
        self.drift = self.drift * keeps + self.noise(quality.drift_m * (1.0 - keeps * keeps).sqrt());
        let mut noisy = record.clone();
        let place = LatLon { lat: record.gps_latitude, lon: record.gps_longitude }.point();
        let mut at = place + self.drift + self.noise(quality.jitter_m);
        if self.random.happens(quality.jump) {
            at = at
                + Point::towards(self.random.between(0.0, std::f64::consts::TAU)) * self.random.between(200.0, 5000.0);
            // Some receivers notice it.
            noisy.accuracy = Some(if self.random.happens(0.5) { 80.0 } else { 4.0 });
        }
        let at = at.lat_lon().rounded();
        (noisy.gps_latitude, noisy.gps_longitude) = (at.lat, at.lon);
        let heading = (90.0 - record.heading.unwrap_or_default()).to_radians();
        let velocity = Point::towards(heading) * record.speed + self.noise(quality.velocity);
        // Receivers show a standing car as standing.
        noisy.speed = if record.speed == 0.0 { 0.0 } else { round_to(velocity.length(), 2) };
        if record.speed > 0.5 {
            let heading = (90.0 - velocity.angle().to_degrees()).rem_euclid(360.0);
            noisy.heading = noisy.heading.map(|_| round_to(heading, 1) % 360.0);
        }
        noisy.rpm = (f64::from(record.rpm) + self.normal() * if record.rpm > 0 { 12.0 } else { 0.0 }).max(0.0) as u32;
        match self.random.unit() {
            p if p < quality.lost => Vec::new(),
            p if p < quality.lost + quality.repeated => vec![noisy.clone(), noisy],
            _ => vec![noisy],
        }
    }

    fn noise(&mut self, deviation: f64) -> Point {
        Point::new(self.normal() * deviation, self.normal() * deviation)
    }

    /// Returns a standard normal number (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.random.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.random.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_stated_size() {
        let mut receiver = Receiver::new(Quality { jump: 0.0, ..TOWN }, Random::from_seed(3));
        let at = Point::new(10.0, 20.0).lat_lon();
        let record = |second: u64| Record {
            timestamp: second * 1000,
            gps_latitude: at.lat,
            gps_longitude: at.lon,
            speed: 10.0,
            heading: Some(90.0),
            ..Record::default()
        };
        let received: Vec<Record> = (1..=20_000).flat_map(|second| receiver.receive(&record(second))).collect();
        assert!((19_700..20_000).contains(&received.len()), "{} records", received.len());
        let spread = |of: &dyn Fn(&Record) -> f64| {
            (received.iter().map(|record| of(record).powi(2)).sum::<f64>() / received.len() as f64).sqrt()
        };
        assert!((0.13..0.17).contains(&spread(&|r| r.speed - 10.0)));
        assert!((0.7..1.0).contains(&spread(&|r| r.heading.expect("a heading") - 90.0)));
        let place = |r: &Record| LatLon { lat: r.gps_latitude, lon: r.gps_longitude }.point();
        let meters = spread(&|r| place(r).x - 10.0);
        assert!((2.2..4.0).contains(&meters), "{meters} m");
    }
}
