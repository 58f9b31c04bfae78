//! OwnTracks: JSON objects with a `_type`, over HTTP or MQTT. A backlog may come as an array of objects, or one object
//! per line. Speed is in km/h, time in seconds.
//!
//! Source: OwnTracks Booklet, "JSON" and "HTTP".

use serde::Deserialize;
use serde_json::Value;

use crate::{DecodeError, Reading, Report, text};

const NAME: &str = "owntracks";

/// A message with the fields that this server uses.
#[derive(Deserialize)]
struct Message {
    #[serde(rename = "_type")]
    kind: String,
    lat: Option<f64>,
    lon: Option<f64>,
    /// Seconds since 1970.
    tst: Option<f64>,
    acc: Option<f64>,
    alt: Option<f64>,
    /// km/h.
    vel: Option<f64>,
    cog: Option<f64>,
    batt: Option<f64>,
    /// Battery status: 0 unknown, 1 unplugged, 2 charging, 3 full.
    bs: Option<u64>,
    topic: Option<String>,
    /// Tracker id of two characters.
    tid: Option<String>,
    /// Trigger of the report, such as `p` or `u`.
    t: Option<String>,
    /// Connection: `w`, `m` or `o`.
    conn: Option<String>,
    /// Regions that the device is in.
    inregions: Option<Vec<String>>,
    motionactivities: Option<Vec<String>>,
    /// `enter` or `leave` of a transition.
    event: Option<String>,
    /// Name of the region of a transition.
    desc: Option<String>,
}

/// Decodes the payload of a message. Messages without a position (`waypoint`, `lwt`, `cmd`, `card`, `status` and
/// unknown ones) give no report. An empty payload is valid: the app sends it when a friend is removed.
///
/// Errors: anything that is not JSON; a position that is not a number; an encrypted payload, because the server has no
/// key for it.
pub fn decode(payload: &[u8], points_max: usize) -> Result<Vec<Report>, DecodeError> {
    let payload = payload.trim_ascii();
    let mut reports = Vec::new();
    let mut add = |value: Value| {
        if reports.len() == points_max {
            return Err(DecodeError::TooMany(points_max));
        }
        reports.extend(report(value)?);
        Ok(())
    };
    for value in serde_json::Deserializer::from_slice(payload).into_iter::<Value>() {
        match value.map_err(|error| DecodeError::Json(error.to_string()))? {
            Value::Array(values) => values.into_iter().try_for_each(&mut add)?,
            value => add(value)?,
        }
    }
    Ok(reports)
}

fn report(value: Value) -> Result<Option<Report>, DecodeError> {
    let expected = || DecodeError::Json("expected an object with `_type`, as the OwnTracks app sends it".into());
    let kind = value.get("_type").and_then(Value::as_str).ok_or_else(expected)?;
    match kind {
        "location" | "transition" => {}
        "encrypted" => {
            return Err(DecodeError::Unsupported(
                "the payload is encrypted and this server has no key for it: remove the encryption key in the app, and \
                 use https",
            ));
        }
        _ => return Ok(None),
    }
    let message = Message::deserialize(value).map_err(|error| DecodeError::Json(error.to_string()))?;
    let mut reading = Reading::from(NAME);
    if let (Some(latitude), Some(longitude)) = (message.lat, message.lon) {
        reading.set_position(latitude, longitude);
    }
    (reading.accuracy, reading.elevation) = (message.acc, message.alt);
    (reading.heading, reading.battery) = (message.cog, message.batt);
    reading.speed = message.vel.map(|vel| text::round(vel / 3.6));
    reading.charging = message.bs.filter(|status| (1..=3).contains(status)).map(|status| status != 1);
    reading.activity =
        message.motionactivities.and_then(|list| list.into_iter().next()).filter(|text| text.len() <= 64);
    if message.kind == "transition" {
        text_attribute(&mut reading, "transition", message.event);
        text_attribute(&mut reading, "region", message.desc);
    }
    text_attribute(&mut reading, "tid", message.tid);
    text_attribute(&mut reading, "trigger", message.t);
    text_attribute(&mut reading, "connection", message.conn);
    text_attribute(&mut reading, "regions", message.inregions.map(|regions| regions.join(", ")));
    let time_ms = message.tst.filter(|tst| (0.0..1e11).contains(tst)).map(|tst| (tst * 1000.0) as u64);
    let device = message.topic.as_deref().and_then(device_of_topic);
    Ok(Some(Report { device, time_ms, reading }))
}

fn text_attribute(reading: &mut Reading, name: &str, value: Option<String>) {
    if let Some(value) = value {
        text::attribute(reading, name, value.into());
    }
}

/// Returns the device id of a topic `owntracks/USER/DEVICE`, or of one below it: `USER-DEVICE`.
pub fn device_of_topic(topic: &str) -> Option<String> {
    let mut levels = topic.split('/').skip_while(|level| level.is_empty());
    let ("owntracks", user, device) = (levels.next()?, levels.next()?, levels.next()?) else { return None };
    Some(device_of(user, device))
}

/// Returns the device id of a user and a device. Two users may both have a device `phone`.
pub fn device_of(user: &str, device: &str) -> String {
    match user {
        "" => device.to_owned(),
        user => format!("{user}-{device}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCATION: &str = r#"{"_type":"location","BSSID":"00:11","SSID":"home","acc":13,"alt":110,"batt":77,"bs":2,
        "conn":"w","created_at":1397028601,"lat":47.53398,"lon":19.079723,"m":1,"t":"u","tid":"jp",
        "topic":"owntracks/jane/phone","tst":1397028600,"vac":3,"vel":50,"cog":122,"inregions":["Home"]}"#;

    #[test]
    fn location_is_decoded() {
        let [report] = &decode(LOCATION.as_bytes(), 10).unwrap()[..] else { panic!("one report") };
        assert_eq!((report.device.as_deref(), report.time_ms), (Some("jane-phone"), Some(1_397_028_600_000)));
        let reading = &report.reading;
        assert_eq!((reading.position(), reading.speed), (Some((47.53398, 19.079723)), Some(13.889)));
        assert_eq!((reading.accuracy, reading.elevation, reading.heading), (Some(13.0), Some(110.0), Some(122.0)));
        assert_eq!((reading.battery, reading.charging), (Some(77.0), Some(true)));
        assert_eq!(reading.attributes["regions"], "Home");
        assert!(!reading.attributes.contains_key("SSID"), "the name of the person's network is not published");
    }

    #[test]
    fn backlog_is_an_array_or_lines() {
        for backlog in [format!("[{LOCATION},{LOCATION}]"), format!("{LOCATION}\n{LOCATION}\n")] {
            assert_eq!(decode(backlog.as_bytes(), 2).map(|reports| reports.len()), Ok(2));
            assert_eq!(decode(backlog.as_bytes(), 1), Err(DecodeError::TooMany(1)));
        }
    }

    #[test]
    fn other_messages_give_no_report() {
        for kind in ["waypoint", "waypoints", "lwt", "cmd", "card", "status", "beacon", "new"] {
            let payload = format!(r#"{{"_type":"{kind}","lat":"x","tst":[]}}"#);
            assert_eq!(decode(payload.as_bytes(), 1), Ok(vec![]), "{kind}");
        }
        assert_eq!(decode(b"", 1), Ok(vec![]));
        assert_eq!(decode(b"[]", 1), Ok(vec![]));
    }

    #[test]
    fn transition_is_a_position_with_the_region() {
        let payload = br#"{"_type":"transition","event":"enter","desc":"Work","lat":47.5,"lon":19.0,"tst":1397028600,"acc":20,"t":"c"}"#;
        let reports = decode(payload, 1).unwrap();
        assert_eq!(reports[0].reading.attributes["transition"], "enter");
        assert_eq!(reports[0].reading.attributes["region"], "Work");
    }

    #[test]
    fn other_payloads_are_refused() {
        for bad in ["1", "{}", "[1]", "{\"_type\":1}", "{", "nonsense", "{\"_type\":\"location\",\"lat\":\"47\"}"] {
            assert!(matches!(decode(bad.as_bytes(), 9), Err(DecodeError::Json(_))), "{bad}");
        }
        assert!(matches!(decode(br#"{"_type":"encrypted","data":"x"}"#, 9), Err(DecodeError::Unsupported(_))));
    }

    #[test]
    fn topic_names_the_device() {
        assert_eq!(device_of_topic("owntracks/jane/phone").as_deref(), Some("jane-phone"));
        assert_eq!(device_of_topic("/owntracks/jane/phone/event").as_deref(), Some("jane-phone"));
        for other in ["", "owntracks", "owntracks/jane", "cars/jane/phone"] {
            assert_eq!(device_of_topic(other), None, "{other}");
        }
    }
}
