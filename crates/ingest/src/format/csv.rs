//! Recorded drives as CSV, with the header `time,lat,lon,elevation,accuracy,bearing,speed` (UTC, degrees, degrees,
//! meters, meters, degrees, m/s). Columns may be in any order; other columns with numbers become values of the record
//! if it has a field of that name, and attributes otherwise.
//!
//! Source: the device simulator of the CarCare thesis.

use csv::{ReaderBuilder, StringRecord, Trim};

use crate::{DecodeError, Reading, Report, text, time};

const NAME: &str = "csv";
/// Maximum number of columns.
const COLUMNS_MAX: usize = 64;

/// Decodes a file.
///
/// Errors: a missing column, a value that is not what its column says, more than `points_max` rows, or none.
pub fn decode(file: &[u8], points_max: usize) -> Result<Vec<Report>, DecodeError> {
    let mut rows = ReaderBuilder::new().trim(Trim::All).from_reader(file);
    let header = rows.headers().map_err(failure)?.clone();
    if header.len() > COLUMNS_MAX {
        return Err(DecodeError::Line { line: 1, what: format!("a file has at most {COLUMNS_MAX} columns") });
    }
    for column in ["time", "lat", "lon"] {
        if !header.iter().any(|name| name == column) {
            let what = format!(
                "the column `{column}` is missing; the header is time,lat,lon,elevation,accuracy,bearing,speed"
            );
            return Err(DecodeError::Line { line: 1, what });
        }
    }
    let (mut reports, mut row) = (Vec::new(), StringRecord::new());
    while rows.read_record(&mut row).map_err(failure)? {
        if reports.len() == points_max {
            return Err(DecodeError::TooMany(points_max));
        }
        reports.push(report(&header, &row)?);
    }
    match reports.is_empty() {
        true => Err(DecodeError::Unsupported("no rows follow the header")),
        false => Ok(reports),
    }
}

fn report(header: &StringRecord, row: &StringRecord) -> Result<Report, DecodeError> {
    let line = row.position().map_or(0, csv::Position::line);
    let mut report = Report { reading: Reading::from(NAME), ..Report::default() };
    let (reading, mut latitude, mut longitude) = (&mut report.reading, None, None);
    for (name, value) in header.iter().zip(row).filter(|(_, value)| !value.is_empty()) {
        if name == "time" {
            let what = || format!("`{}` is no time like 2014-04-09T07:30:00Z", shown(value));
            report.time_ms = Some(time::parse(value).ok_or_else(|| DecodeError::Line { line, what: what() })?);
            continue;
        }
        let field = match name {
            "lat" => &mut latitude,
            "lon" => &mut longitude,
            "elevation" => &mut reading.elevation,
            "accuracy" => &mut reading.accuracy,
            "bearing" => &mut reading.heading,
            "speed" => &mut reading.speed,
            "rpm" => &mut reading.rpm,
            "coolantTemperature" => &mut reading.coolant_temperature,
            "oilTemperature" => &mut reading.oil_temperature,
            "oilPressure" => &mut reading.oil_pressure,
            "fuel" => &mut reading.fuel,
            "fuelRate" => &mut reading.fuel_rate,
            "engineLoad" => &mut reading.engine_load,
            "throttle" => &mut reading.throttle,
            "co2" => &mut reading.co2,
            "batteryVoltage" => &mut reading.battery_voltage,
            _ => {
                text::text_attribute(reading, name, value);
                continue;
            }
        };
        let what = || format!("the column `{}` must have numbers, not `{}`", shown(name), shown(value));
        *field = Some(text::number(value).ok_or_else(|| DecodeError::Line { line, what: what() })?);
    }
    match (report.time_ms, latitude, longitude) {
        (Some(_), Some(latitude), Some(longitude)) => report.reading.set_position(latitude, longitude),
        _ => return Err(DecodeError::Line { line, what: "`time`, `lat` and `lon` must have values".into() }),
    }
    Ok(report)
}

/// Returns the start of a text, for a message.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

fn failure(error: csv::Error) -> DecodeError {
    let line = error.position().map_or(0, csv::Position::line);
    let what = match error.kind() {
        csv::ErrorKind::Utf8 { .. } => "the text is not UTF-8".to_owned(),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("the row has {len} values, and the header {expected_len}")
        }
        _ => "the row cannot be read".to_owned(),
    };
    DecodeError::Line { line, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "time,lat,lon,elevation,accuracy,bearing,speed";

    #[test]
    fn rows_of_the_thesis_are_decoded() {
        let file = format!(
            "{HEADER},rpm,gear\n2014-04-09T07:30:00Z,47.53398,19.079723,110.2,5,122.5,13.9,1250,3\n\
                            2014-04-09T07:30:05Z,47.534,19.08,,,,,,\n"
        );
        let reports = decode(file.as_bytes(), 2).unwrap();
        let Report { time_ms, reading, .. } = &reports[0];
        assert_eq!((*time_ms, reading.position()), (Some(1_397_028_600_000), Some((47.53398, 19.079723))));
        assert_eq!((reading.speed, reading.heading, reading.rpm), (Some(13.9), Some(122.5), Some(1250.0)));
        assert_eq!(reading.attributes["gear"], 3.0);
        assert_eq!((reports[1].reading.speed, reports[1].reading.elevation), (None, None));
        assert_eq!(decode(file.as_bytes(), 1), Err(DecodeError::TooMany(1)));
    }

    #[test]
    fn errors_name_their_line() {
        for (file, line) in [
            ("lat,lon\n1,2\n".to_owned(), 1),
            (format!("{HEADER}\nnoon,1,2,3,4,5,6\n"), 2),
            (format!("{HEADER}\n2014-04-09T07:30:00Z,1,2,3,4,5,6\n2014-04-09T07:30:00Z,north,2,3,4,5,6\n"), 3),
            (format!("{HEADER}\n2014-04-09T07:30:00Z,1\n"), 2),
            (format!("{HEADER}\n2014-04-09T07:30:00Z,,2,3,4,5,6\n"), 2),
            (format!("{HEADER}{}\n", ",x".repeat(64)), 1),
        ] {
            let error = decode(file.as_bytes(), 9).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line {line}: ")), "{file}: {error}");
        }
        assert!(decode(HEADER.as_bytes(), 9).is_err() && decode(b"", 9).is_err() && decode(b"\xff\n", 9).is_err());
    }
}
