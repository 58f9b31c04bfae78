use serde::Deserialize;
use serde_json::Value;

use crate::Place;

/// Maximum number of trouble codes of one record.
const CODES_MAX: usize = 16;
/// Maximum length of a trouble code: a letter and four digits, and two digits of a failure type.
const CODE_BYTES_MAX: usize = 8;

/// Reasons why a record is not read.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    #[error("the record is no JSON object: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the record has no `timestamp` in milliseconds since 1970")]
    NoTime,
}

/// One record of a device: what the detectors use of it. Every value except the time may be missing.
///
/// The names and units are those of `docs/reference/device-record.md`. A value that is outside of what is physically
/// possible counts as missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Time of the device in milliseconds since 1970.
    pub time_ms: u64,
    pub place: Option<Place>,
    /// Uncertainty of the position in meters.
    pub accuracy_m: Option<f64>,
    /// Meters per second.
    pub speed: Option<f64>,
    /// Degrees clockwise from north, `[0, 360)`.
    pub heading: Option<f64>,
    pub rpm: Option<f64>,
    /// 0 is neutral.
    pub gear: Option<u8>,
    /// Position of the accelerator in percent.
    pub throttle: Option<f64>,
    /// Engine load in percent.
    pub load: Option<f64>,
    /// Degrees Celsius.
    pub coolant_c: Option<f64>,
    /// Percent of a full tank.
    pub fuel: Option<f64>,
    pub oil_kpa: Option<f64>,
    /// Strongest acceleration since the previous record, in g.
    pub shock_g: Option<f64>,
    /// Stored trouble codes. `None`: the device has not read them.
    pub codes: Option<Vec<String>>,
    /// True while the malfunction indicator lamp is lit.
    pub lamp: Option<bool>,
    /// Event that the device has detected, such as `harsh_braking`, and its trouble code.
    pub event: Option<String>,
    pub code: Option<String>,
}

/// The fields of a record. Numbers stay [`Value`], so that one wrong field does not lose the others.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Fields {
    timestamp: Value,
    #[serde(alias = "lat", alias = "latitude")]
    gps_latitude: Value,
    #[serde(alias = "lon", alias = "longitude")]
    gps_longitude: Value,
    accuracy: Value,
    speed: Value,
    #[serde(alias = "bearing")]
    heading: Value,
    rpm: Value,
    gear: Value,
    throttle: Value,
    engine_load: Value,
    coolant_temperature: Value,
    fuel: Value,
    oil_pressure: Value,
    acceleration: Value,
    trouble_codes: Value,
    lamp: Value,
    event: Value,
    code: Value,
}

impl Sample {
    /// Reads a record.
    ///
    /// Errors: [`SampleError`]. A missing or impossible value is no error, except for the time.
    pub fn parse(json: &[u8]) -> Result<Self, SampleError> {
        let fields: Fields = serde_json::from_slice(json)?;
        let time_ms = fields.timestamp.as_u64().filter(|ms| *ms > 0).ok_or(SampleError::NoTime)?;
        let number = |value: &Value, low: f64, high: f64| value.as_f64().filter(|n| (low..=high).contains(n));
        let lat = number(&fields.gps_latitude, -90.0, 90.0);
        let lon = number(&fields.gps_longitude, -180.0, 180.0);
        let place = lat.zip(lon).map(|(lat, lon)| Place { lat, lon });
        // Receivers without a fix report 0, 0.
        let place = place.filter(|place| place.lat != 0.0 || place.lon != 0.0);
        let code = |value: &Value| {
            let code = value.as_str()?.trim();
            (!code.is_empty() && code.len() <= CODE_BYTES_MAX && code.bytes().all(|b| b.is_ascii_alphanumeric()))
                .then(|| code.to_ascii_uppercase())
        };
        let codes = fields.trouble_codes.as_array();
        Ok(Self {
            time_ms,
            place,
            accuracy_m: number(&fields.accuracy, 0.0, 1e7),
            speed: number(&fields.speed, 0.0, 150.0),
            heading: number(&fields.heading, 0.0, 360.0).map(|heading| heading % 360.0),
            rpm: number(&fields.rpm, 0.0, 20_000.0),
            gear: fields.gear.as_u64().and_then(|gear| u8::try_from(gear).ok()).filter(|gear| *gear <= 18),
            throttle: number(&fields.throttle, 0.0, 100.0),
            load: number(&fields.engine_load, 0.0, 100.0),
            coolant_c: number(&fields.coolant_temperature, -60.0, 215.0),
            fuel: number(&fields.fuel, 0.0, 100.0),
            oil_kpa: number(&fields.oil_pressure, 0.0, 2000.0),
            shock_g: number(&fields.acceleration, 0.0, 1000.0),
            codes: codes.map(|codes| codes.iter().filter_map(code).take(CODES_MAX).collect()),
            lamp: fields.lamp.as_bool(),
            event: fields.event.as_str().filter(|event| event.len() <= 32).map(str::to_owned),
            code: code(&fields.code),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_2014_is_read() {
        let sample = Sample::parse(
            br#"{"carId":1,"timestamp":1397000000000,"gpsLatitude":47.53398,"gpsLongitude":19.079723,"speed":1.25,
                "rpm":1250,"coolantTemperature":101}"#,
        )
        .expect("a record");
        assert_eq!((sample.time_ms, sample.speed, sample.rpm), (1_397_000_000_000, Some(1.25), Some(1250.0)));
        assert_eq!(sample.place, Some(Place { lat: 47.53398, lon: 19.079723 }));
        assert_eq!((sample.coolant_c, sample.codes, sample.gear), (Some(101.0), None, None));
    }

    #[test]
    fn impossible_values_count_as_missing() {
        let sample = Sample::parse(
            br#"{"timestamp":5,"gpsLatitude":0,"gpsLongitude":0,"speed":-3,"rpm":"fast","heading":720,"gear":99,
                "throttle":101,"troubleCodes":["p0301",7,"<script>","P0301P0301"],"event":{"a":1}}"#,
        )
        .expect("a record");
        let codes = Some(vec!["P0301".to_owned()]);
        assert_eq!(sample, Sample { time_ms: 5, codes, ..Sample::default() });
    }

    #[test]
    fn records_without_time_are_refused() {
        for text in ["", "7", "[]", "{}", r#"{"timestamp":-1}"#, r#"{"timestamp":1e400}"#, r#"{"timestamp":"now"}"#] {
            assert!(Sample::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
