//! Record that a car sends: the CarCare record of `docs/reference/protocol.md` with a few more optional fields.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Number of the car, from 1.
    pub car_id: u32,
    /// Milliseconds since 1970.
    pub timestamp: u64,
    /// Degrees, with 6 decimals.
    pub gps_latitude: f64,
    pub gps_longitude: f64,
    /// Meters per second.
    pub speed: f64,
    pub rpm: u32,
    /// Degrees Celsius.
    pub coolant_temperature: i32,
    /// Degrees clockwise from north, `[0, 360)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heading: Option<f64>,
    /// 0 is neutral.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gear: Option<u8>,
    /// Sequence number per car: starts at 1 and increases by 1, so that a reader can verify that no record is
    /// missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Uncertainty of the position in meters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Position of the accelerator, and engine load, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_load: Option<f64>,
    /// Percent of a full tank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuel: Option<f64>,
    /// Kilopascals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oil_pressure: Option<f64>,
    /// Grams per kilometer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub co2: Option<f64>,
    /// Strongest acceleration since the previous record, in g.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acceleration: Option<f64>,
    /// Stored trouble codes; `None` if the device does not read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble_codes: Option<Vec<String>>,
    /// True while the malfunction indicator lamp is lit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lamp: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Event>,
    /// Trouble code of [`Event::TroubleCode`], for example `P0301`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// Event since the previous record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    HarshBraking,
    HarshAcceleration,
    HarshCornering,
    HighRpm,
    TroubleCode,
    Accident,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_matches_the_protocol() {
        let mut record = Record {
            car_id: 1,
            timestamp: 1_397_000_000_000,
            gps_latitude: 47.53398,
            gps_longitude: 19.079723,
            speed: 1.25,
            rpm: 1250,
            coolant_temperature: 101,
            ..Record::default()
        };
        let plain = r#"{"carId":1,"timestamp":1397000000000,"gpsLatitude":47.53398,"gpsLongitude":19.079723,"speed":1.25,"rpm":1250,"coolantTemperature":101}"#;
        assert_eq!(serde_json::to_string(&record).expect("JSON"), plain);
        assert_eq!(serde_json::from_str::<Record>(plain).expect("a record"), record);
        record.event = Some(Event::TroubleCode);
        record.code = Some("P0301".into());
        assert!(serde_json::to_string(&record).expect("JSON").ends_with(r#","event":"trouble_code","code":"P0301"}"#));
    }
}
