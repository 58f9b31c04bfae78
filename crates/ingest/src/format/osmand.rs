//! OsmAnd online tracking, Traccar Client and other senders of the OsmAnd protocol: parameters in a query or a form, or
//! the JSON of Traccar Client 9 and later.
//!
//! The protocol's speed is in knots, as Traccar Client sends it. OsmAnd itself sends meters per second; so its URL has
//! the parameter `speed_unit=m/s`, which belongs to this server.
//!
//! Source: Traccar, "OsmAnd protocol"; OsmAnd, "Online tracking".

use serde::Deserialize;
use serde_json::Value;

use super::{KNOT, Parameters, get};
use crate::{DecodeError, Reading, Report, text, time};

const NAME: &str = "osmand";

/// Parameters that are no values of the device.
const OWN: [&str; 3] = ["token", "speed_unit", "_"];

/// Decodes the parameters of one point.
///
/// Errors: a value that is not what its name says.
pub fn decode_parameters(parameters: &Parameters<'_>) -> Result<Report, DecodeError> {
    let unit = match get(parameters, "speed_unit") {
        None | Some("kn") => KNOT,
        Some("m/s") => 1.0,
        Some("km/h") => 1.0 / 3.6,
        Some(_) => return Err(DecodeError::Field { field: "speed_unit", expected: "must be `kn`, `m/s` or `km/h`" }),
    };
    let mut report = Report { reading: Reading::from(NAME), ..Report::default() };
    let (reading, mut is_valid) = (&mut report.reading, true);
    let (mut latitude, mut longitude) = (None, None);
    for (name, value) in parameters.iter().filter(|(name, value)| !value.is_empty() && !OWN.contains(&&**name)) {
        let value = &**value;
        match &**name {
            "id" | "deviceid" => report.device = Some(value.to_owned()),
            "timestamp" => report.time_ms = Some(time_of(value)?),
            "lat" => latitude = Some(text::field("lat", value)?),
            "lon" => longitude = Some(text::field("lon", value)?),
            "location" => {
                let (lat, lon) = value.split_once(',').unwrap_or_default();
                (latitude, longitude) = (Some(text::field("location", lat)?), Some(text::field("location", lon)?));
            }
            "valid" => is_valid = text::truth(value).unwrap_or(true),
            "speed" => reading.speed = Some(text::round(text::field("speed", value)? * unit)),
            "bearing" | "heading" => reading.heading = Some(text::field("bearing", value)?),
            "altitude" => reading.elevation = Some(text::field("altitude", value)?),
            "accuracy" => reading.accuracy = Some(text::field("accuracy", value)?),
            "hdop" => reading.hdop = Some(text::field("hdop", value)?),
            "batt" => reading.battery = Some(text::field("batt", value)?),
            "charge" => reading.charging = text::truth(value),
            // Names that Traccar gives to values of a vehicle.
            "rpm" => reading.rpm = Some(text::field("rpm", value)?),
            "coolantTemp" => reading.coolant_temperature = Some(text::field("coolantTemp", value)?),
            "engineLoad" => reading.engine_load = Some(text::field("engineLoad", value)?),
            "throttle" => reading.throttle = Some(text::field("throttle", value)?),
            "fuel" => reading.fuel = Some(text::field("fuel", value)?),
            "power" => reading.battery_voltage = Some(text::field("power", value)?),
            "odometer" => reading.odometer = Some(text::field("odometer", value)?),
            other => text::text_attribute(reading, other, value),
        }
    }
    if let (Some(latitude), Some(longitude)) = (latitude, longitude) {
        reading.set_position(latitude, longitude);
    }
    if !is_valid {
        reading.clear_position();
    }
    Ok(report)
}

fn time_of(value: &str) -> Result<u64, DecodeError> {
    let expected = "must be seconds or milliseconds since 1970, or a time such as `2026-11-26T10:00:00Z`";
    time::parse(value).ok_or(DecodeError::Field { field: "timestamp", expected })
}

/// Body of Traccar Client 9: one location.
#[derive(Deserialize)]
struct Body {
    location: Location,
    #[serde(default)]
    device_id: Option<Value>,
}

#[derive(Deserialize)]
struct Location {
    #[serde(default)]
    timestamp: Option<String>,
    #[serde(default)]
    coords: Option<Coords>,
    #[serde(default)]
    is_moving: Option<bool>,
    #[serde(default)]
    odometer: Option<f64>,
    #[serde(default)]
    event: Option<String>,
    #[serde(default)]
    battery: Option<Battery>,
    #[serde(default)]
    activity: Option<Activity>,
    #[serde(default)]
    extras: Option<Value>,
}

#[derive(Deserialize)]
struct Coords {
    latitude: f64,
    longitude: f64,
    #[serde(default)]
    accuracy: Option<f64>,
    #[serde(default)]
    speed: Option<f64>,
    #[serde(default)]
    heading: Option<f64>,
    #[serde(default)]
    altitude: Option<f64>,
}

#[derive(Deserialize)]
struct Battery {
    #[serde(default)]
    level: Option<f64>,
    #[serde(default)]
    is_charging: Option<bool>,
}

#[derive(Deserialize)]
struct Activity {
    #[serde(default, rename = "type")]
    kind: Option<String>,
}

/// Decodes the JSON of Traccar Client: one object, or an array of at most `points_max`.
///
/// Errors: anything else.
pub fn decode_json(body: &[u8], points_max: usize) -> Result<Vec<Report>, DecodeError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Bodies {
        Many(Vec<Body>),
        One(Box<Body>),
    }
    let bodies = match serde_json::from_slice(body) {
        Ok(Bodies::One(body)) => vec![*body],
        Ok(Bodies::Many(bodies)) => bodies,
        Err(_) => {
            let expected =
                "expected {\"location\": {\"timestamp\", \"coords\": {\"latitude\", \"longitude\"}}, \"device_id\"}";
            return Err(DecodeError::Json(expected.into()));
        }
    };
    if bodies.len() > points_max {
        return Err(DecodeError::TooMany(points_max));
    }
    bodies.into_iter().map(report).collect()
}

fn report(Body { location, device_id }: Body) -> Result<Report, DecodeError> {
    let device = match device_id {
        Some(Value::String(id)) if !id.is_empty() => Some(id),
        Some(Value::Number(id)) => Some(id.to_string()),
        _ => None,
    };
    let mut report = Report { device, reading: Reading::from(NAME), ..Report::default() };
    report.time_ms = location.timestamp.as_deref().map(time_of).transpose()?;
    let reading = &mut report.reading;
    if let Some(coords) = location.coords {
        reading.set_position(coords.latitude, coords.longitude);
        (reading.accuracy, reading.speed) = (coords.accuracy, coords.speed);
        (reading.heading, reading.elevation) = (coords.heading, coords.altitude);
    }
    reading.odometer = location.odometer;
    if let Some(battery) = location.battery {
        reading.battery = battery.level.map(|level| text::round(level * 100.0));
        reading.charging = battery.is_charging;
    }
    reading.activity = location.activity.and_then(|activity| activity.kind).filter(|kind| kind.len() <= 64);
    if let Some(is_moving) = location.is_moving {
        text::attribute(reading, "is_moving", is_moving.into());
    }
    if let Some(event) = location.event {
        text::attribute(reading, "event", event.into());
    }
    if let Some(Value::Object(extras)) = location.extras {
        extras.into_iter().for_each(|(name, value)| text::attribute(reading, &name, value));
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::parameters;

    fn decode(query: &str) -> Result<Report, DecodeError> {
        decode_parameters(&parameters(query.as_bytes()))
    }

    #[test]
    fn query_of_traccar_client_is_decoded() {
        let query = "id=123456&timestamp=1397028600&lat=47.53398&lon=19.079723&speed=26.998&bearing=122.5&altitude=110.2\
                     &accuracy=12.5&batt=77.5&charge=true&driverUniqueId=jane&alarm=sos";
        let report = decode(query).unwrap();
        assert_eq!((report.device.as_deref(), report.time_ms), (Some("123456"), Some(1_397_028_600_000)));
        let reading = report.reading;
        assert_eq!(reading.position(), Some((47.53398, 19.079723)));
        assert_eq!(reading.speed, Some(13.889), "26.998 knots are 13.889 m/s");
        assert_eq!((reading.heading, reading.elevation, reading.accuracy), (Some(122.5), Some(110.2), Some(12.5)));
        assert_eq!((reading.battery, reading.charging), (Some(77.5), Some(true)));
        assert_eq!(reading.attributes["driverUniqueId"], "jane");
        assert_eq!(reading.attributes["alarm"], "sos");
    }

    #[test]
    fn unit_of_the_speed_is_a_parameter() {
        let speed = |query: &str| decode(query).map(|report| report.reading.speed);
        assert_eq!(speed("speed=10"), Ok(Some(5.144)));
        assert_eq!(speed("speed=10&speed_unit=m/s"), Ok(Some(10.0)));
        assert_eq!(speed("speed_unit=km/h&speed=36"), Ok(Some(10.0)));
        assert!(speed("speed=10&speed_unit=mph").is_err());
    }

    #[test]
    fn times_and_places_have_several_forms() {
        let time = |text: &str| decode(&format!("id=a&timestamp={text}")).map(|report| report.time_ms);
        for text in ["1397028600", "1397028600000", "2014-04-09T07:30:00Z", "2014-04-09%2007:30:00"] {
            assert_eq!(time(text), Ok(Some(1_397_028_600_000)), "{text}");
        }
        assert!(time("yesterday").is_err());
        assert_eq!(decode("deviceid=a&location=47.5,19.0").unwrap().reading.position(), Some((47.5, 19.0)));
        assert_eq!(decode("id=a&lat=47.5&lon=19&valid=false").unwrap().reading.position(), None);
        for bad in ["lat=north", "lat=NaN&lon=1", "location=47.5", "lat=inf", "speed=fast"] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn token_is_no_attribute() {
        let reading = decode("id=a&token=secret&speed_unit=kn&fuel=40").unwrap().reading;
        assert!(reading.attributes.is_empty() && reading.fuel == Some(40.0), "{reading:?}");
    }

    #[test]
    fn json_of_traccar_client_is_decoded() {
        let body = br#"{"location":{"timestamp":"2014-04-09T07:30:00.000Z","coords":{"latitude":47.53398,
            "longitude":19.079723,"accuracy":5,"speed":13.9,"heading":122.5,"altitude":110.2},"is_moving":true,
            "odometer":1500.5,"event":"motionchange","battery":{"level":0.77,"is_charging":false},
            "activity":{"type":"in_vehicle"},"extras":{"note":"x","deep":{"a":1}}},"device_id":"my-phone"}"#;
        let [report] = &decode_json(body, 10).unwrap()[..] else { panic!("one report") };
        assert_eq!((report.device.as_deref(), report.time_ms), (Some("my-phone"), Some(1_397_028_600_000)));
        let reading = &report.reading;
        assert_eq!((reading.speed, reading.battery, reading.charging), (Some(13.9), Some(77.0), Some(false)));
        assert_eq!((reading.activity.as_deref(), reading.odometer), (Some("in_vehicle"), Some(1500.5)));
        assert_eq!(reading.attributes.keys().collect::<Vec<_>>(), ["event", "is_moving", "note"]);
        let many = [&b"["[..], body, b",", body, b"]"].concat();
        assert_eq!(decode_json(&many, 2).map(|reports| reports.len()), Ok(2));
        assert_eq!(decode_json(&many, 1), Err(DecodeError::TooMany(1)));
        for bad in [&b"{}"[..], b"[1]", b"null", b"{\"location\":1}", b"", b"\xff"] {
            assert!(matches!(decode_json(bad, 1), Err(DecodeError::Json(_))), "{bad:?}");
        }
    }
}
