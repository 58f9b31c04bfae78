use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::device::DeviceId;

/// Maximum speed in m/s that a record may claim.
const SPEED_MAX: f64 = 400.0;

/// Values of one device at one time, with the names and units of the device record. A sender sets those that it has.
///
/// Source: docs/reference/device-record.md.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reading {
    /// Degrees, WGS 84.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gps_latitude: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gps_longitude: Option<f64>,
    /// Meters per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<f64>,
    /// Degrees clockwise from north, `[0, 360)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heading: Option<f64>,
    /// Meters above sea level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elevation: Option<f64>,
    /// Radius of the position's error, in meters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Horizontal dilution of precision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hdop: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "whole")]
    pub satellites: Option<f64>,
    /// Revolutions per minute.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "whole")]
    pub rpm: Option<f64>,
    /// Degrees Celsius, as all temperatures.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "whole")]
    pub coolant_temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oil_temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intake_temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ambient_temperature: Option<f64>,
    /// Kilopascals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oil_pressure: Option<f64>,
    /// Kilopascals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifold_pressure: Option<f64>,
    /// Grams per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub air_flow: Option<f64>,
    /// Percent of the tank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel: Option<f64>,
    /// Liters per hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel_rate: Option<f64>,
    /// Percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_load: Option<f64>,
    /// Percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle: Option<f64>,
    /// Grams of CO2 per kilometer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub co2: Option<f64>,
    /// Volts of the vehicle's battery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub battery_voltage: Option<f64>,
    /// Percent of the sending device's own battery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub battery: Option<f64>,
    /// True while the sending device is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charging: Option<bool>,
    /// Meters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub odometer: Option<f64>,
    /// Diagnostic trouble codes such as `P0133`; empty if the vehicle reports that it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble_codes: Option<Vec<String>>,
    /// True if the malfunction indicator lamp is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lamp: Option<bool>,
    /// Activity of the person, in the words of the sender, such as `in_vehicle`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<String>,
    /// Vehicle identification number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vin: Option<String>,
    /// Protocol by which the record came, such as `osmand`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub source: &'static str,
    /// Values for which the record has no field, with the sender's names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, Value>,
    /// True if the vehicle has measured `speed`, so that it stays valid without a position.
    #[serde(skip)]
    pub is_vehicle_speed: bool,
}

/// Reading of a device, before the filter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The sender's id for the device, if this part of the request has one.
    pub device: Option<String>,
    /// Time of the device in milliseconds since 1970; `None`: the time when the server received it.
    pub time_ms: Option<u64>,
    pub reading: Reading,
}

/// The record that readers of the channel receive.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    car_id: Value,
    timestamp: u64,
    #[serde(flatten)]
    reading: &'a Reading,
}

impl Reading {
    pub fn from(source: &'static str) -> Self {
        Self { source, ..Self::default() }
    }

    pub fn position(&self) -> Option<(f64, f64)> {
        self.gps_latitude.zip(self.gps_longitude)
    }

    pub fn set_position(&mut self, latitude: f64, longitude: f64) {
        (self.gps_latitude, self.gps_longitude) = (Some(latitude), Some(longitude));
    }

    /// Removes the position and everything that was measured with it.
    pub fn clear_position(&mut self) {
        (self.gps_latitude, self.gps_longitude) = (None, None);
        (self.heading, self.elevation, self.accuracy, self.hdop, self.satellites) = Default::default();
        if !self.is_vehicle_speed {
            self.speed = None;
        }
    }

    /// Removes values that cannot be right: a position outside of the world or at 0,0, where receivers without a fix
    /// are; negative speeds and accuracies, which stand for "unknown"; infinite numbers.
    pub fn remove_impossible_values(&mut self) {
        let is_place = |(latitude, longitude): (f64, f64)| {
            let is_origin = latitude.abs() < 1e-4 && longitude.abs() < 1e-4;
            (-90.0..=90.0).contains(&latitude) && (-180.0..=180.0).contains(&longitude) && !is_origin
        };
        if !self.position().is_some_and(is_place) {
            self.clear_position();
        }
        self.speed = self.speed.filter(|speed| (0.0..=SPEED_MAX).contains(speed));
        self.accuracy = self.accuracy.filter(|accuracy| (0.0..1e6).contains(accuracy));
        self.elevation = self.elevation.filter(|elevation| (-20_000.0..1e6).contains(elevation));
        let degrees = |heading: f64| match heading.rem_euclid(360.0) {
            // The remainder of a tiny negative number is rounded to 360.
            whole if whole >= 360.0 => 0.0,
            heading => heading,
        };
        self.heading = self.heading.filter(|heading| (0.0..=360.0).contains(heading)).map(degrees);
        self.battery = self.battery.filter(|percent| (0.0..=100.0).contains(percent));
        for value in [
            &mut self.hdop,
            &mut self.satellites,
            &mut self.rpm,
            &mut self.coolant_temperature,
            &mut self.oil_temperature,
            &mut self.intake_temperature,
            &mut self.ambient_temperature,
            &mut self.oil_pressure,
            &mut self.manifold_pressure,
            &mut self.air_flow,
            &mut self.fuel,
            &mut self.fuel_rate,
            &mut self.engine_load,
            &mut self.throttle,
            &mut self.co2,
            &mut self.battery_voltage,
            &mut self.odometer,
        ] {
            *value = value.filter(|value| value.abs() < 1e9);
        }
    }

    /// Returns true if the reading has no value that a reader could use.
    pub fn is_empty(&self) -> bool {
        *self == Self { source: self.source, is_vehicle_speed: self.is_vehicle_speed, ..Self::default() }
    }

    /// Encodes the record of a device as JSON.
    pub fn to_json(&self, device: &DeviceId, time_ms: u64) -> String {
        let record = Record { car_id: device.to_json(), timestamp: time_ms, reading: self };
        serde_json::to_string(&record).expect("numbers, texts and truth values")
    }
}

/// Writes a value that records have always had as a whole number.
fn whole<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(value.unwrap_or_default().round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_has_the_names_of_carcare() {
        let mut reading = Reading { speed: Some(1.25), rpm: Some(1250.0), ..Reading::from("osmand") };
        reading.set_position(47.53398, 19.079723);
        let json = reading.to_json(&DeviceId::parse("1").unwrap(), 1_397_000_000_000);
        let expected = r#"{"carId":1,"timestamp":1397000000000,"gpsLatitude":47.53398,"gpsLongitude":19.079723,"speed":1.25,"rpm":1250,"source":"osmand"}"#;
        assert_eq!(json, expected);
    }

    #[test]
    fn impossible_values_are_removed() {
        let at = |latitude, longitude| {
            let mut reading = Reading { speed: Some(3.0), heading: Some(10.0), ..Reading::from("t") };
            reading.set_position(latitude, longitude);
            reading.remove_impossible_values();
            (reading.position().is_some(), reading.speed.is_some())
        };
        assert_eq!(at(47.5, 19.0), (true, true));
        assert_eq!(at(0.0, 19.0), (true, true));
        for (latitude, longitude) in [(0.0, 0.0), (0.00001, -0.00001), (91.0, 0.0), (1.0, 181.0), (f64::NAN, 1.0)] {
            assert_eq!(at(latitude, longitude), (false, false), "{latitude} {longitude}");
        }
        let mut unknown =
            Reading { speed: Some(-1.0), heading: Some(-1.0), accuracy: Some(-1.0), ..Reading::from("t") };
        unknown.battery = Some(-100.0);
        unknown.remove_impossible_values();
        assert!(unknown.is_empty(), "{unknown:?}");
        let mut vehicle = Reading { speed: Some(10.0), is_vehicle_speed: true, ..Reading::from("t") };
        vehicle.remove_impossible_values();
        assert_eq!(vehicle.speed, Some(10.0), "the speed of the vehicle needs no position");
        let mut north = Reading { heading: Some(360.0), ..Reading::from("t") };
        north.set_position(1.0, 1.0);
        north.remove_impossible_values();
        assert_eq!(north.heading, Some(0.0));
    }
}
