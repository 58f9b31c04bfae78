use crate::reading::Reading;

/// Maximum speed in m/s between two positions: faster than any car or train.
const SPEED_MAX: f64 = 100.0;
/// Distance in meters that a position may be wrong without any statement of its accuracy.
const SLACK_M: f64 = 50.0;
/// Maximum allowance for stated accuracies, in meters. A sender must not turn the filter off by a large number.
const ACCURACY_MAX: f64 = 1_000.0;
const EARTH_RADIUS_M: f64 = 6_371_000.0;

/// A position at a time of the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub latitude: f64,
    pub longitude: f64,
    pub accuracy: f64,
    pub time_ms: u64,
}

impl Place {
    pub fn of(reading: &Reading, time_ms: u64) -> Option<Self> {
        let (latitude, longitude) = reading.position()?;
        Some(Self { latitude, longitude, accuracy: reading.accuracy.unwrap_or(0.0), time_ms })
    }

    /// Returns true if a car can be at both places at their times.
    pub fn may_reach(&self, other: &Place) -> bool {
        let seconds = self.time_ms.abs_diff(other.time_ms) as f64 / 1000.0;
        let allowance = (self.accuracy + other.accuracy).min(ACCURACY_MAX) + SLACK_M;
        self.distance_m(other) <= seconds * SPEED_MAX + allowance
    }

    /// Returns the length of the great circle between two places in meters (haversine formula).
    fn distance_m(&self, other: &Place) -> f64 {
        let (a, b) = (self.latitude.to_radians(), other.latitude.to_radians());
        let (north, east) = (b - a, (other.longitude - self.longitude).to_radians());
        let chord = (north / 2.0).sin().powi(2) + a.cos() * b.cos() * (east / 2.0).sin().powi(2);
        2.0 * EARTH_RADIUS_M * chord.min(1.0).sqrt().asin()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(latitude: f64, longitude: f64, time_ms: u64) -> Place {
        Place { latitude, longitude, accuracy: 0.0, time_ms }
    }

    #[test]
    fn distance_is_that_of_the_sphere() {
        // One degree of latitude is 111.2 km; the date line is no border.
        let degree = place(47.0, 19.0, 0).distance_m(&place(48.0, 19.0, 0));
        assert!((degree - 111_195.0).abs() < 10.0, "{degree}");
        let across = place(0.0, 179.9, 0).distance_m(&place(0.0, -179.9, 0));
        assert!((across - 22_239.0).abs() < 10.0, "{across}");
        assert!(place(90.0, 0.0, 0).distance_m(&place(-90.0, 0.0, 0)).is_finite());
    }

    #[test]
    fn stated_accuracy_has_a_limit() {
        let vague = Place { accuracy: 1e9, ..place(47.0, 19.0, 0) };
        assert!(vague.may_reach(&place(47.009, 19.0, 0)), "1,001 m");
        assert!(!vague.may_reach(&place(47.02, 19.0, 0)), "2,224 m");
    }
}
