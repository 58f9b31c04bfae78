//! Torque Pro: a GET request with the values of an OBD-II adapter as parameters `k` and the number of the sensor in
//! hexadecimal. Speeds are in km/h, times in milliseconds.
//!
//! Source: Torque, "Upload to web server"; the numbers below `ff0000` are the parameter ids of SAE J1979.

use super::{Parameters, get};
use crate::{DecodeError, Reading, Report, text, time};

const NAME: &str = "torque";

/// Decodes the parameters of one request. A request without sensor values, such as the one with the names of the
/// sensors that begins each session, gives no report.
///
/// Errors: `time` is not a number of milliseconds.
pub fn decode(parameters: &Parameters<'_>) -> Result<Option<Report>, DecodeError> {
    let expected = "must be milliseconds since 1970";
    let time_ms = get(parameters, "time")
        .map(|time| time::parse(time).ok_or(DecodeError::Field { field: "time", expected }))
        .transpose()?;
    let device = get(parameters, "id").map(str::to_owned);
    let mut reading = Reading::from(NAME);
    let (mut latitude, mut longitude, mut gps_speed) = (None, None, None);
    for (name, value) in parameters {
        let Some(sensor) = name.strip_prefix('k').and_then(|digits| u32::from_str_radix(digits, 16).ok()) else {
            continue;
        };
        // A sensor that has no value yet sends an empty or an infinite one.
        let Some(value) = text::number(value) else { continue };
        let field = match sensor {
            0x04 => &mut reading.engine_load,
            0x05 => &mut reading.coolant_temperature,
            0x0b => &mut reading.manifold_pressure,
            0x0c => &mut reading.rpm,
            0x0d => {
                (reading.speed, reading.is_vehicle_speed) = (Some(text::round(value / 3.6)), true);
                continue;
            }
            0x0f => &mut reading.intake_temperature,
            0x10 => &mut reading.air_flow,
            0x11 => &mut reading.throttle,
            0x2f => &mut reading.fuel,
            0x42 | 0xff1238 => &mut reading.battery_voltage,
            0x46 => &mut reading.ambient_temperature,
            0x5c => &mut reading.oil_temperature,
            0x5e => &mut reading.fuel_rate,
            0xff1001 => &mut gps_speed,
            0xff1005 => &mut longitude,
            0xff1006 => &mut latitude,
            0xff1007 => &mut reading.heading,
            0xff1010 => &mut reading.elevation,
            0xff1239 => &mut reading.accuracy,
            0xff1257 => &mut reading.co2,
            _ => {
                text::text_attribute(&mut reading, name, &value.to_string());
                continue;
            }
        };
        *field = Some(value);
    }
    if let (Some(latitude), Some(longitude)) = (latitude, longitude) {
        reading.set_position(latitude, longitude);
    }
    if reading.speed.is_none() {
        reading.speed = gps_speed.map(|speed| text::round(speed / 3.6));
    }
    Ok((!reading.is_empty()).then_some(Report { device, time_ms, reading }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::parameters;

    fn decode(query: &str) -> Result<Option<Report>, DecodeError> {
        super::decode(&parameters(query.as_bytes()))
    }

    #[test]
    fn values_of_the_adapter_and_of_the_phone_are_decoded() {
        let query = "eml=jane%40example.org&v=8&session=1397028000000&id=0f1e2d3c&time=1397028600000&kff1005=19.079723\
                     &kff1006=47.53398&kff1001=51.0&kff1007=122.5&kff1010=110.2&kd=50&kc=1250.5&k5=101&k2f=40.5&kff1257=131\
                     &kff1204=5.2";
        let report = decode(query).unwrap().unwrap();
        assert_eq!((report.device.as_deref(), report.time_ms), (Some("0f1e2d3c"), Some(1_397_028_600_000)));
        let reading = report.reading;
        assert_eq!(reading.position(), Some((47.53398, 19.079723)));
        assert_eq!((reading.speed, reading.is_vehicle_speed), (Some(13.889), true), "the vehicle's speed goes first");
        assert_eq!((reading.rpm, reading.coolant_temperature), (Some(1250.5), Some(101.0)));
        assert_eq!((reading.fuel, reading.co2, reading.heading), (Some(40.5), Some(131.0), Some(122.5)));
        assert_eq!(reading.attributes["kff1204"], 5.2);
        assert!(!format!("{reading:?}").contains("example.org"), "the address of the person is not published");
    }

    #[test]
    fn request_without_sensors_gives_no_report() {
        for query in [
            "eml=&v=8&session=1&id=a&time=1397028600000&profileName=Car&profileFuelType=0",
            "id=a&time=1397028600000&userShortName0d=Speed&defaultUnit0d=km%2Fh",
            "id=a&time=1397028600000&kd=&kc=Infinity&kz=1&k=1",
            "",
        ] {
            assert_eq!(decode(query), Ok(None), "{query}");
        }
        assert!(decode("id=a&time=noon&kd=1").is_err());
    }

    #[test]
    fn speed_of_the_phone_is_used_without_an_adapter() {
        let reading = decode("id=a&kff1001=36&kff1005=1&kff1006=2").unwrap().unwrap().reading;
        assert_eq!((reading.speed, reading.is_vehicle_speed), (Some(10.0), false));
    }
}
