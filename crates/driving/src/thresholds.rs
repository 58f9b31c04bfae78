use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Class of a vehicle. It selects the default thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VehicleClass {
    /// Passenger car with a petrol engine.
    #[default]
    Car,
    /// Passenger car with a diesel engine.
    DieselCar,
    /// Light commercial vehicle with a diesel engine.
    Van,
    /// Heavy goods vehicle.
    Truck,
    /// Bus or coach, with standing passengers.
    Bus,
}

impl VehicleClass {
    pub const ALL: [Self; 5] = [Self::Car, Self::DieselCar, Self::Van, Self::Truck, Self::Bus];
}

/// Limits above which driving becomes an event.
///
/// Sources: docs/explanation/driving-feedback.md. Accelerations in m/s², times in seconds, speeds in km/h.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Thresholds {
    pub acceleration_warn: f64,
    pub acceleration_severe: f64,
    pub braking_warn: f64,
    pub braking_severe: f64,
    pub cornering_warn: f64,
    pub cornering_severe: f64,
    /// Below this speed, braking and acceleration are no event.
    pub harsh_from_kmh: f64,
    /// Below this speed, cornering is no event, because the heading of a receiver is too uncertain.
    pub cornering_from_kmh: f64,
    /// Fraction by which a value must fall below its threshold before the maneuver ends.
    pub hysteresis: f64,
    /// Two maneuvers of one kind within this time are one event.
    pub merge_s: f64,
    /// Minimum time after the end of a maneuver before the next event of the same kind.
    pub cool_down_s: f64,
    /// Maximum uncertainty of a position whose speed and heading are used, in meters.
    pub accuracy_max_m: f64,
    /// Engine speed in rpm above which a higher gear is better, without strong acceleration.
    pub upshift_rpm: f64,
    /// Engine speed in rpm below which a lower gear is better, while the driver accelerates.
    pub downshift_rpm: f64,
    /// Time that a wrong gear must last.
    pub gear_s: f64,
    /// Minimum time between two suggestions about gears.
    pub gear_cool_down_s: f64,
    pub high_rpm: f64,
    pub high_rpm_severe: f64,
    pub high_rpm_s: f64,
    pub idle_s: f64,
    /// Degrees Celsius.
    pub coolant_warn_c: f64,
    pub coolant_severe_c: f64,
    pub coolant_s: f64,
    /// Oil pressure in kPa below which a running engine is in danger.
    pub oil_kpa: f64,
    /// Percent of a tank.
    pub fuel_low: f64,
    /// Shock in g that counts as an accident.
    pub accident_g: f64,
    /// Deceleration in m/s² that no brake reaches. A stop with more is an accident.
    pub accident_stop: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self::of(VehicleClass::Car)
    }
}

impl Thresholds {
    /// Returns the default thresholds of a class.
    pub fn of(class: VehicleClass) -> Self {
        let car = Self {
            acceleration_warn: 3.0,
            acceleration_severe: 4.4,
            braking_warn: 3.5,
            braking_severe: 4.4,
            cornering_warn: 3.5,
            cornering_severe: 4.5,
            harsh_from_kmh: 10.0,
            cornering_from_kmh: 30.0,
            hysteresis: 0.17,
            merge_s: 3.0,
            cool_down_s: 5.0,
            accuracy_max_m: 20.0,
            upshift_rpm: 2500.0,
            downshift_rpm: 1200.0,
            gear_s: 2.0,
            gear_cool_down_s: 30.0,
            high_rpm: 3500.0,
            high_rpm_severe: 5000.0,
            high_rpm_s: 3.0,
            idle_s: 120.0,
            coolant_warn_c: 110.0,
            coolant_severe_c: 118.0,
            coolant_s: 5.0,
            oil_kpa: 100.0,
            fuel_low: 10.0,
            accident_g: 2.5,
            accident_stop: 10.8,
        };
        match class {
            VehicleClass::Car => car,
            VehicleClass::DieselCar => Self { upshift_rpm: 2000.0, high_rpm: 3200.0, high_rpm_severe: 4200.0, ..car },
            VehicleClass::Van => Self {
                acceleration_warn: 2.8,
                acceleration_severe: 4.2,
                braking_warn: 3.3,
                braking_severe: 4.2,
                cornering_warn: 3.2,
                cornering_severe: 4.2,
                upshift_rpm: 2000.0,
                high_rpm: 3200.0,
                high_rpm_severe: 4200.0,
                ..car
            },
            VehicleClass::Truck | VehicleClass::Bus => Self {
                acceleration_warn: 2.0,
                acceleration_severe: 3.0,
                braking_warn: 2.5,
                braking_severe: 3.5,
                cornering_warn: 2.5,
                cornering_severe: 3.0,
                upshift_rpm: 1600.0,
                downshift_rpm: 900.0,
                high_rpm: 2100.0,
                high_rpm_severe: 2500.0,
                ..car
            },
        }
    }

    /// Returns the thresholds of a class with own values.
    ///
    /// Errors: the name of a threshold that does not exist or whose value makes no sense, and what is wrong.
    pub fn overridden(class: VehicleClass, own: &BTreeMap<String, f64>) -> Result<Self, (String, &'static str)> {
        let mut all = serde_json::to_value(Self::of(class)).unwrap_or_default();
        for (name, value) in own {
            match all.get_mut(name) {
                Some(threshold) => *threshold = (*value).into(),
                None => return Err((name.clone(), "is no threshold; see docs/how-to/driving-feedback.md")),
            }
        }
        let first = own.keys().next().cloned().unwrap_or_default();
        let all: Self = serde_json::from_value(all).map_err(|_| (first, "must be a number"))?;
        all.fault().map_or(Ok(all.clone()), |(name, what)| Err((name.to_owned(), what)))
    }

    /// Returns the name of the first value that makes no sense, and why.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        let pairs = [
            ("acceleration_severe", self.acceleration_warn, self.acceleration_severe),
            ("braking_severe", self.braking_warn, self.braking_severe),
            ("cornering_severe", self.cornering_warn, self.cornering_severe),
            ("high_rpm_severe", self.high_rpm, self.high_rpm_severe),
            ("coolant_severe_c", self.coolant_warn_c, self.coolant_severe_c),
        ];
        let low = pairs.iter().find(|(_, warn, severe)| severe < warn || !severe.is_finite());
        if let Some((name, ..)) = low {
            return Some((name, "must not be below the warning threshold"));
        }
        let positive = [
            ("acceleration_warn", self.acceleration_warn),
            ("braking_warn", self.braking_warn),
            ("cornering_warn", self.cornering_warn),
            ("upshift_rpm", self.upshift_rpm),
            ("downshift_rpm", self.downshift_rpm),
            ("high_rpm", self.high_rpm),
            ("idle_s", self.idle_s),
            ("accident_g", self.accident_g),
            ("accident_stop", self.accident_stop),
            ("accuracy_max_m", self.accuracy_max_m),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| !value.is_finite() || *value <= 0.0) {
            return Some((name, "must be above 0"));
        }
        (!(0.0..=0.9).contains(&self.hysteresis)).then_some(("hysteresis", "must be from 0 to 0.9"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_override_single_values() {
        for class in VehicleClass::ALL {
            assert_eq!(Thresholds::of(class).fault(), None, "{class:?}");
        }
        let own: Thresholds = serde_json::from_str(r#"{"braking_warn":4.0}"#).expect("one value");
        assert_eq!((own.braking_warn, own.braking_severe), (4.0, 4.4));
        let wrong: Thresholds = serde_json::from_str(r#"{"braking_warn":5.0}"#).expect("one value");
        assert_eq!(wrong.fault().map(|fault| fault.0), Some("braking_severe"));
        assert!(serde_json::from_str::<Thresholds>(r#"{"braking":4.0}"#).is_err());
    }
}
