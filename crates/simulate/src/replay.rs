//! Replay of a recorded drive: CSV with the header `time,lat,lon,elevation,accuracy,bearing,speed` (RFC 3339 in
//! UTC, degrees, degrees, meters, meters, degrees, m/s). The file is read row by row and never held in memory as a
//! whole.

use std::io::{self, Read};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use crate::fleet::{Controls, Drivetrain};
use crate::record::Record;
use crate::town::geo::round_to;

/// Header with the columns in the order in which drives are written; columns may be read in any order.
pub const HEADER: &str = "time,lat,lon,elevation,accuracy,bearing,speed";
/// Maximum length of a line in bytes; a row of numbers is shorter than 100 bytes.
const LINE_MAX: usize = 4096;
/// Maximum speed in m/s; a higher value is an error in the file.
const SPEED_MAX: f64 = 150.0;
const AMBIENT_C: f64 = 15.0;

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("line 1: the column `{0}` is missing; the header is {HEADER}")]
    Header(&'static str),
    #[error("line {line}: {what}")]
    Line { line: u64, what: String },
    #[error("{0}")]
    Read(#[from] io::Error),
    #[error("no rows after the header")]
    Empty,
}

/// Iterator over the rows of one drive as records of one car.
pub struct Replay<R> {
    rows: csv::Reader<BoundedLines<R>>,
    row: csv::StringRecord,
    header: csv::StringRecord,
    car_id: u32,
    drivetrain: Drivetrain,
    before: Option<(u64, f64)>,
    seq: u64,
}

#[derive(Deserialize)]
struct Row<'a> {
    time: &'a str,
    lat: f64,
    lon: f64,
    bearing: Option<f64>,
    speed: f64,
}

impl<R: Read> Replay<R> {
    /// Opens a drive.
    ///
    /// Errors: [`ReplayError::Header`] if a required column is missing, or [`ReplayError::Read`] and
    /// [`ReplayError::Line`] if the header cannot be read.
    pub fn new(csv: R, car_id: u32) -> Result<Self, ReplayError> {
        let bounded = BoundedLines { inner: csv, line: 1, length: 0 };
        let mut rows = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(bounded);
        let header = rows.headers().map_err(failure)?.clone();
        for column in ["time", "lat", "lon", "speed"] {
            if !header.iter().any(|name| name == column) {
                return Err(ReplayError::Header(column));
            }
        }
        let drivetrain = Drivetrain::new(AMBIENT_C, AMBIENT_C, 0.6);
        Ok(Self { rows, row: csv::StringRecord::new(), header, car_id, drivetrain, before: None, seq: 0 })
    }

    fn record(&mut self) -> Result<Record, ReplayError> {
        let line = self.row.position().map_or(0, csv::Position::line);
        let wrong = |what: String| ReplayError::Line { line, what };
        let row: Row<'_> = self.row.deserialize(Some(&self.header)).map_err(failure)?;
        let time = humantime::parse_rfc3339_weak(row.time);
        let time = time.map_err(|_| wrong(format!("`{}` is no time like 2014-04-09T07:30:00Z", row.time)))?;
        let time_ms = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let within = |name: &str, value: f64, low: f64, high: f64| match (low..=high).contains(&value) {
            true => Ok(value),
            false => Err(wrong(format!("{name} {value} is not within {low} and {high}"))),
        };
        let (lat, lon) = (within("lat", row.lat, -90.0, 90.0)?, within("lon", row.lon, -180.0, 180.0)?);
        let speed = within("speed", row.speed, 0.0, SPEED_MAX)?;
        let heading = row.bearing.map(|bearing| within("bearing", bearing, 0.0, 360.0)).transpose()?;
        let (before_ms, before_speed) = self.before.unwrap_or((time_ms, speed));
        if time_ms < before_ms {
            return Err(wrong("the time is before that of the row above".into()));
        }
        self.before = Some((time_ms, speed));
        // The drivetrain is simulated between two rows with a speed that changes evenly. A pause of more than a
        // minute counts as a minute. The first row counts as two seconds, in which gear and engine settle.
        let between_s = if self.seq == 0 { 2.0 } else { ((time_ms - before_ms) as f64 / 1000.0).min(60.0) };
        let ticks = (between_s / 0.1).ceil();
        let acceleration = (speed - before_speed) / between_s.max(0.1);
        for tick in 1..=ticks as u32 {
            let now = before_speed + (speed - before_speed) * f64::from(tick) / ticks;
            self.drivetrain.advance(between_s / ticks, now, acceleration, Controls::default());
        }
        self.seq += 1;
        Ok(Record {
            car_id: self.car_id,
            timestamp: time_ms,
            gps_latitude: round_to(lat, 6),
            gps_longitude: round_to(lon, 6),
            speed: round_to(speed, 2),
            rpm: self.drivetrain.rpm().round() as u32,
            coolant_temperature: self.drivetrain.coolant_c().round() as i32,
            heading: heading.map(|degrees| round_to(degrees, 1) % 360.0),
            gear: Some(self.drivetrain.gear()),
            seq: Some(self.seq),
            ..Record::default()
        })
    }
}

/// Yields one record per row, with the time of the row. An error ends the drive.
impl<R: Read> Iterator for Replay<R> {
    type Item = Result<Record, ReplayError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.rows.read_record(&mut self.row) {
            Ok(true) => Some(self.record()),
            Ok(false) if self.seq == 0 => {
                self.seq = 1;
                Some(Err(ReplayError::Empty))
            }
            Ok(false) => None,
            Err(error) => Some(Err(failure(error))),
        }
    }
}

/// Returns a drive as CSV, the counterpart of [`Replay`].
///
/// A record has no elevation and no accuracy, so fixed values are written: 104 m above sea level, accurate to 4 m.
pub fn to_csv(records: &[Record]) -> String {
    let row = |record: &Record| {
        let time = humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_millis(record.timestamp));
        let (lat, lon, speed) = (record.gps_latitude, record.gps_longitude, record.speed);
        format!("{time},{lat},{lon},104,4,{},{speed}\n", record.heading.unwrap_or_default())
    };
    format!("{HEADER}\n{}", records.iter().map(row).collect::<String>())
}

fn failure(error: csv::Error) -> ReplayError {
    let line = error.position().map_or(0, csv::Position::line);
    let what = error.to_string();
    match error.into_kind() {
        csv::ErrorKind::Io(error) => match error.downcast::<ReplayError>() {
            Ok(too_long) => too_long,
            Err(error) => ReplayError::Read(error),
        },
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            ReplayError::Line { line, what: format!("{len} columns instead of {expected_len}") }
        }
        csv::ErrorKind::Deserialize { err, .. } => ReplayError::Line { line, what: err.to_string() },
        _ => ReplayError::Line { line, what },
    }
}

/// Reader that fails on a line longer than [`LINE_MAX`], so that a file without line ends cannot fill the memory.
struct BoundedLines<R> {
    inner: R,
    line: u64,
    length: usize,
}

impl<R: Read> Read for BoundedLines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        for &byte in &buffer[..count] {
            self.length += 1;
            if byte == b'\n' {
                (self.line, self.length) = (self.line + 1, 0);
            } else if self.length > LINE_MAX {
                let what = format!("longer than {LINE_MAX} bytes");
                return Err(io::Error::other(ReplayError::Line { line: self.line, what }));
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(rows: &str) -> Result<Vec<Record>, String> {
        let text = format!("{HEADER}\n{rows}");
        let replay = Replay::new(text.as_bytes(), 3).map_err(|error| error.to_string())?;
        replay.map(|record| record.map_err(|error| error.to_string())).collect()
    }

    #[test]
    fn rows_become_records() {
        let rows = "2014-04-09T07:30:00Z,47.53398,19.079723,104,4,,0\n2014-04-09T07:30:05.500Z,47.5341,19.0798,104,4,12.34,8.333\n";
        let records = replay(rows).expect("two records");
        assert_eq!((records[0].timestamp, records[1].timestamp), (1_397_028_600_000, 1_397_028_605_500));
        assert_eq!((records[0].car_id, records[0].seq, records[1].seq), (3, Some(1), Some(2)));
        assert_eq!((records[0].heading, records[1].heading), (None, Some(12.3)));
        assert_eq!((records[1].speed, records[1].gear), (8.33, Some(2)));
        assert!(records[1].rpm > records[0].rpm);
    }

    #[test]
    fn errors_name_the_line_and_the_cause() {
        let good = "2014-04-09T07:30:00Z,47.5,19.0,104,4,0,1\n";
        for (row, part) in [
            ("yesterday,47.5,19.0,104,4,0,1\n", "line 3: `yesterday` is no time"),
            ("2014-04-09T07:30:00Z,99,19.0,104,4,0,1\n", "line 3: lat 99 is not within"),
            ("2014-04-09T07:30:00Z,47.5,19.0,104,4,0,NaN\n", "line 3: speed NaN"),
            ("2014-04-09T07:30:00Z,47.5,east,104,4,0,1\n", "line 3:"),
            ("2014-04-09T07:30:00Z,47.5\n", "line 3: 2 columns instead of 7"),
            ("2014-04-09T07:29:59Z,47.5,19.0,104,4,0,1\n", "line 3: the time is before"),
        ] {
            let error = replay(&format!("{good}{row}")).expect_err(row);
            assert!(error.starts_with(part), "{error}");
        }
        assert_eq!(replay("").expect_err("no rows"), "no rows after the header");
        let endless = replay(&"x".repeat(10_000)).expect_err("one endless line");
        assert_eq!(endless, "line 2: longer than 4096 bytes");
        let error = Replay::new("time,lat\n".as_bytes(), 1).err().expect("no header");
        assert!(error.to_string().contains("`lon` is missing"), "{error}");
    }
}
