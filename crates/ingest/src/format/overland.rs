//! Overland (iOS and Android): a batch of GeoJSON features. The app repeats a batch until the answer is
//! `{"result":"ok"}`, so a feature that cannot be used is left out, not refused.
//!
//! Source: Overland, README, "API".

use serde::Deserialize;
use serde_json::Value;

use crate::{DecodeError, Reading, Report, text, time};

const NAME: &str = "overland";

#[derive(Deserialize)]
struct Batch {
    locations: Vec<Value>,
    /// The newest location, if the queue of the app is long.
    #[serde(default)]
    current: Option<Value>,
}

#[derive(Deserialize)]
struct Feature {
    geometry: Geometry,
    properties: Properties,
}

#[derive(Deserialize)]
struct Geometry {
    coordinates: Vec<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Properties {
    timestamp: Option<String>,
    altitude: Option<f64>,
    /// Meters per second; negative if unknown.
    speed: Option<f64>,
    course: Option<f64>,
    horizontal_accuracy: Option<f64>,
    motion: Option<Vec<String>>,
    battery_state: Option<String>,
    /// 0 to 1.
    battery_level: Option<f64>,
    device_id: Option<String>,
    unique_id: Option<String>,
}

/// Decodes a batch. Returns the reports, and the number of features that were left out: those without a time or a
/// point, such as the record of a trip.
///
/// Errors: a body without `locations`, or with more than `points_max` of them.
pub fn decode(body: &[u8], points_max: usize) -> Result<(Vec<Report>, usize), DecodeError> {
    let batch: Batch = serde_json::from_slice(body).map_err(|error| DecodeError::Json(error.to_string()))?;
    if batch.locations.len() > points_max {
        return Err(DecodeError::TooMany(points_max));
    }
    let features = batch.locations.len() + usize::from(batch.current.is_some());
    let reports: Vec<Report> = batch.locations.into_iter().chain(batch.current).filter_map(report).collect();
    let left_out = features - reports.len();
    Ok((reports, left_out))
}

fn report(feature: Value) -> Option<Report> {
    let Feature { geometry, properties } = Feature::deserialize(feature).ok()?;
    let [longitude, latitude, ..] = geometry.coordinates[..] else { return None };
    let time_ms = time::parse(properties.timestamp.as_deref()?)?;
    let mut reading = Reading::from(NAME);
    reading.set_position(latitude, longitude);
    (reading.speed, reading.heading) = (properties.speed, properties.course);
    (reading.elevation, reading.accuracy) = (properties.altitude, properties.horizontal_accuracy);
    reading.battery = properties.battery_level.map(|level| text::round(level * 100.0));
    reading.charging = match properties.battery_state.as_deref() {
        Some("charging" | "full") => Some(true),
        Some("unplugged") => Some(false),
        _ => None,
    };
    reading.activity = properties.motion.and_then(|list| list.into_iter().next()).filter(|text| text.len() <= 64);
    let device = [properties.device_id, properties.unique_id].into_iter().flatten().find(|id| !id.is_empty());
    Some(Report { device, time_ms: Some(time_ms), reading })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEATURE: &str = r#"{"type":"Feature","geometry":{"type":"Point","coordinates":[19.079723,47.53398]},
        "properties":{"timestamp":"2014-04-09T00:30:00-0700","altitude":110,"speed":13.9,"horizontal_accuracy":30,
        "vertical_accuracy":-1,"motion":["driving","stationary"],"pauses":false,"battery_state":"charging",
        "battery_level":0.89,"device_id":"my-phone","wifi":"home"}}"#;

    #[test]
    fn features_of_a_batch_are_decoded() {
        let body = format!(r#"{{"locations":[{FEATURE},{FEATURE}],"current":{FEATURE},"trip":{{"distance":5}}}}"#);
        let (reports, left_out) = decode(body.as_bytes(), 2).unwrap();
        assert_eq!((reports.len(), left_out), (3, 0));
        let Report { device, time_ms, reading } = &reports[0];
        assert_eq!((device.as_deref(), *time_ms), (Some("my-phone"), Some(1_397_028_600_000)));
        assert_eq!((reading.position(), reading.speed), (Some((47.53398, 19.079723)), Some(13.9)));
        assert_eq!((reading.battery, reading.charging), (Some(89.0), Some(true)));
        assert_eq!(reading.activity.as_deref(), Some("driving"));
        assert!(reading.attributes.is_empty(), "the name of the person's network is not published");
        assert_eq!(decode(body.as_bytes(), 1), Err(DecodeError::TooMany(1)));
    }

    #[test]
    fn features_that_cannot_be_used_do_not_block_the_queue() {
        let trip = r#"{"type":"Feature","geometry":null,"properties":{"type":"trip"}}"#;
        let line = r#"{"geometry":{"coordinates":[[1,2],[3,4]]},"properties":{"timestamp":"2014-04-09T07:30:00Z"}}"#;
        let timeless = r#"{"geometry":{"coordinates":[1,2]},"properties":{}}"#;
        let body = format!(r#"{{"locations":[{trip},{line},{timeless},5,{FEATURE}]}}"#);
        let (reports, left_out) = decode(body.as_bytes(), 100).unwrap();
        assert_eq!((reports.len(), left_out), (1, 4));
        let empty = r#"{"locations":[{"geometry":{"coordinates":[1,2]},"properties":{"timestamp":"1397028600","device_id":""}}]}"#;
        assert_eq!(decode(empty.as_bytes(), 1).unwrap().0[0].device, None);
        for bad in ["", "[]", "{}", "{\"locations\":1}"] {
            assert!(matches!(decode(bad.as_bytes(), 9), Err(DecodeError::Json(_))), "{bad}");
        }
    }
}
