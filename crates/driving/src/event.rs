use serde::{Deserialize, Serialize};

use crate::{Place, Sample, advice};

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    HarshBraking,
    HarshAcceleration,
    HarshCornering,
    /// The engine is slow and strained: a lower gear is better.
    GearTooHigh,
    /// The engine is fast without need: a higher gear is better.
    GearTooLow,
    HighRpm,
    Idling,
    Overheating,
    OilPressure,
    LowFuel,
    TroubleCode,
    /// The malfunction indicator lamp is lit.
    Lamp,
    Accident,
    GeofenceEnter,
    GeofenceExit,
}

impl Kind {
    pub const ALL: [Self; 15] = [
        Self::HarshBraking,
        Self::HarshAcceleration,
        Self::HarshCornering,
        Self::GearTooHigh,
        Self::GearTooLow,
        Self::HighRpm,
        Self::Idling,
        Self::Overheating,
        Self::OilPressure,
        Self::LowFuel,
        Self::TroubleCode,
        Self::Lamp,
        Self::Accident,
        Self::GeofenceEnter,
        Self::GeofenceExit,
    ];

    /// Returns the kind of an event that a device has detected, such as `harsh_braking`. Trouble codes have a way of
    /// their own.
    pub(crate) fn of_device(name: &str) -> Option<Self> {
        Some(match name {
            "harsh_braking" => Self::HarshBraking,
            "harsh_acceleration" => Self::HarshAcceleration,
            "harsh_cornering" => Self::HarshCornering,
            "high_rpm" => Self::HighRpm,
            "accident" => Self::Accident,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    Info,
    Warn,
    Severe,
}

/// Event of a car, as it is published on `cars/{id}/events`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    #[serde(rename = "type")]
    pub kind: Kind,
    pub severity: Severity,
    /// Begin, in milliseconds of the device's clock since 1970.
    pub time: u64,
    /// Strongest value: m/s², rpm, seconds, °C, kPa, percent or g.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gps_latitude: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gps_longitude: Option<f64>,
    /// Meters per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<f64>,
    /// Trouble code of [`Kind::TroubleCode`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Meaning of the trouble code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meaning: Option<String>,
    /// Name of the geofence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub geofence: Option<String>,
    /// Suggestion to the driver, in English.
    pub advice: String,
}

impl Event {
    /// Creates an event at the place of a record, with the advice of its kind.
    pub(crate) fn new(kind: Kind, severity: Severity, time: u64, value: Option<f64>, at: &Sample) -> Self {
        let place = at.place;
        Self {
            kind,
            severity,
            time,
            value: value.map(|value| (value * 100.0).round() / 100.0),
            gps_latitude: place.map(|Place { lat, .. }| lat),
            gps_longitude: place.map(|Place { lon, .. }| lon),
            speed: at.speed,
            code: None,
            meaning: None,
            geofence: None,
            advice: advice::of(kind).to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_has_the_documented_form() {
        let at = Sample { place: Some(Place { lat: 47.5, lon: 19.0 }), speed: Some(8.0), ..Sample::default() };
        let event = Event::new(Kind::HarshBraking, Severity::Severe, 7, Some(5.128), &at);
        let json = serde_json::to_string(&event).expect("JSON");
        let begin = r#"{"type":"harsh-braking","severity":"severe","time":7,"value":5.13,"gpsLatitude":47.5,"gpsLongitude":19.0,"speed":8.0,"advice":""#;
        assert!(json.starts_with(begin), "{json}");
        assert_eq!(serde_json::from_str::<Event>(&json).expect("an event"), event);
    }
}
