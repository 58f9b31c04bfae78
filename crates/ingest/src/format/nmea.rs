//! NMEA 0183 sentences in datagrams: RMC and GGA of any talker. The first line names the device, as `$PGID,ID*CS`
//! or as the id alone.
//!
//! Source: NMEA 0183, RMC and GGA; Traccar, "Traccar Client protocol" (`$PGID`).

use super::KNOT;
use crate::{DecodeError, Reading, Report, text, time};

const NAME: &str = "nmea";
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Maximum length of a sentence; the standard has 82.
const SENTENCE_BYTES_MAX: usize = 120;

/// A point while its sentences are collected: RMC has the date, GGA the elevation.
#[derive(Default)]
struct Fix {
    /// Milliseconds since midnight, UTC.
    time_of_day_ms: u64,
    time_ms: Option<u64>,
    reading: Reading,
}

/// Decodes a datagram. `now_ms` gives the date of GGA sentences, which have none. Sentences with a wrong checksum and
/// other sentences are left out.
///
/// Errors: no line with the device, or no position in any sentence.
pub fn decode(datagram: &[u8], now_ms: u64) -> Result<Vec<Report>, DecodeError> {
    let datagram = std::str::from_utf8(datagram).map_err(|_| DecodeError::Utf8)?;
    let mut lines = datagram.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    let missing = DecodeError::NoDevice("the first line must be `$PGID,ID*CS`, or the id alone");
    let first = lines.peek().copied().ok_or(missing)?;
    let device = match sentence(first) {
        Some(fields) => match fields[..] {
            ["PGID", id, ..] => id.to_owned(),
            _ => return Err(DecodeError::NoDevice("the first line must be `$PGID,ID*CS`, or the id alone")),
        },
        None if first.starts_with(['$', '!']) => {
            return Err(DecodeError::Line { line: 1, what: "the checksum of the sentence is wrong".into() });
        }
        None => first.to_owned(),
    };
    let mut fixes: Vec<Fix> = Vec::new();
    for fields in lines.skip(1).filter_map(sentence) {
        let kind = fields[0].get(2..).unwrap_or_default();
        let Some(fix) = (match kind {
            "RMC" => rmc(&fields),
            "GGA" => gga(&fields, now_ms),
            _ => None,
        }) else {
            continue;
        };
        match fixes.iter_mut().find(|known| known.time_of_day_ms == fix.time_of_day_ms) {
            Some(known) => known.merge(fix, kind == "RMC"),
            None => fixes.push(fix),
        }
    }
    if fixes.is_empty() {
        let what = "no RMC or GGA sentence with a valid checksum and a time follows the line with the device";
        return Err(DecodeError::Line { line: 1, what: what.into() });
    }
    let report = |fix: Fix| Report { device: Some(device.clone()), time_ms: fix.time_ms, reading: fix.reading };
    Ok(fixes.into_iter().map(report).collect())
}

impl Fix {
    /// Adds the values of another sentence of the same time.
    fn merge(&mut self, other: Fix, has_date: bool) {
        if has_date {
            self.time_ms = other.time_ms;
        }
        let (own, new) = (&mut self.reading, other.reading);
        if own.position().is_none()
            && let Some((latitude, longitude)) = new.position()
        {
            own.set_position(latitude, longitude);
        }
        own.speed = own.speed.or(new.speed);
        own.heading = own.heading.or(new.heading);
        own.elevation = own.elevation.or(new.elevation);
        own.hdop = own.hdop.or(new.hdop);
        own.satellites = own.satellites.or(new.satellites);
    }
}

/// Returns the fields of a sentence with a valid checksum. The first field is the name of the sentence.
fn sentence(line: &str) -> Option<Vec<&str>> {
    let (body, checksum) = line.strip_prefix('$')?.split_once('*')?;
    if line.len() > SENTENCE_BYTES_MAX || checksum.len() != 2 {
        return None;
    }
    let expected = u8::from_str_radix(checksum, 16).ok()?;
    let actual = body.bytes().fold(0, |sum, byte| sum ^ byte);
    (actual == expected).then(|| body.split(',').collect())
}

/// `--RMC,hhmmss.ss,A,ddmm.mm,N,dddmm.mm,E,knots,course,ddmmyy,..`
fn rmc(fields: &[&str]) -> Option<Fix> {
    let [_, clock, status, latitude, north, longitude, east, knots, course, date, ..] = *fields else { return None };
    let mut fix = Fix { time_of_day_ms: time_of_day(clock)?, ..Fix::default() };
    let two = |at: usize| date.get(at..at + 2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let (day, month, year) = (two(0)?, two(2)?, two(4)?);
    fix.time_ms = Some(time::parse(&format!("20{year}-{month}-{day}T00:00:00Z"))? + fix.time_of_day_ms);
    fix.reading = Reading::from(NAME);
    if status == "A" {
        fix.reading.set_position(degrees(latitude, north, 2)?, degrees(longitude, east, 3)?);
        fix.reading.speed = text::number(knots).map(|knots| text::round(knots * KNOT));
        fix.reading.heading = text::number(course);
    }
    Some(fix)
}

/// `--GGA,hhmmss.ss,ddmm.mm,N,dddmm.mm,E,quality,satellites,hdop,altitude,M,..`
fn gga(fields: &[&str], now_ms: u64) -> Option<Fix> {
    let [_, clock, latitude, north, longitude, east, quality, satellites, hdop, altitude, ..] = *fields else {
        return None;
    };
    let mut fix = Fix { time_of_day_ms: time_of_day(clock)?, ..Fix::default() };
    // The day on which this time is nearest to the server's.
    let today = now_ms - now_ms % DAY_MS + fix.time_of_day_ms;
    let days = [today.saturating_sub(DAY_MS), today, today.saturating_add(DAY_MS)];
    fix.time_ms = days.into_iter().min_by_key(|time_ms| time_ms.abs_diff(now_ms));
    fix.reading = Reading::from(NAME);
    if quality != "0" && !quality.is_empty() {
        fix.reading.set_position(degrees(latitude, north, 2)?, degrees(longitude, east, 3)?);
        (fix.reading.satellites, fix.reading.hdop) = (text::number(satellites), text::number(hdop));
        fix.reading.elevation = text::number(altitude);
    }
    Some(fix)
}

/// Parses `hhmmss` or `hhmmss.sss`.
fn time_of_day(text: &str) -> Option<u64> {
    let two = |at: usize, below: u64| -> Option<u64> {
        let digits = text.get(at..at + 2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse().ok().filter(|number| *number < below)
    };
    let (hours, minutes, seconds) = (two(0, 24)?, two(2, 60)?, two(4, 61)?);
    let fraction = match text.get(6..)? {
        "" => 0.0,
        rest => text::number(&format!("0{}", rest.strip_prefix('.').map(|digits| format!(".{digits}"))?))?,
    };
    (0.0..1.0).contains(&fraction).then(|| ((hours * 60 + minutes) * 60 + seconds) * 1000 + (fraction * 1000.0) as u64)
}

/// Parses `ddmm.mmmm` with `digits` digits of degrees.
fn degrees(text: &str, side: &str, digits: usize) -> Option<f64> {
    let degrees = text.get(..digits).filter(|degrees| degrees.bytes().all(|byte| byte.is_ascii_digit()))?;
    let minutes = text::number(text.get(digits..)?).filter(|minutes| (0.0..60.0).contains(minutes))?;
    let value = degrees.parse::<f64>().ok()? + minutes / 60.0;
    let value = (value * 1e7).round() / 1e7;
    match side {
        "N" | "E" => Some(value),
        "S" | "W" => Some(-value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RMC: &str = "$GPRMC,123519,A,4807.038,N,01131.000,E,022.4,084.4,230394,003.1,W*6A";
    const GGA: &str = "$GPGGA,123519,4807.038,N,01131.000,E,1,08,0.9,545.4,M,46.9,M,,*47";
    /// 2014-04-09T12:00:00Z
    const NOW: u64 = 1_397_044_800_000;

    /// Returns a sentence with its checksum.
    fn summed(body: &str) -> String {
        format!("${body}*{:02X}", body.bytes().fold(0, |sum, byte| sum ^ byte))
    }

    fn decode(lines: &[&str]) -> Result<Vec<Report>, DecodeError> {
        super::decode(lines.join("\r\n").as_bytes(), NOW)
    }

    #[test]
    fn sentences_of_one_time_are_one_report() {
        let pgid = summed("PGID,tracker-1");
        assert_eq!(decode(&["tracker-1", RMC, GGA]), decode(&[&pgid, GGA, RMC]));
        let reports = decode(&["tracker-1", RMC, GGA]).unwrap();
        let [Report { device, time_ms, reading }] = &reports[..] else { panic!("{reports:?}") };
        // 94 is 2094 here: receivers with dates of the last century are not live in any case.
        assert_eq!((device.as_deref(), *time_ms), (Some("tracker-1"), time::parse("2094-03-23T12:35:19Z")));
        assert_eq!(reading.position(), Some((48.1173, 11.5166667)));
        assert_eq!((reading.speed, reading.heading), (Some(11.524), Some(84.4)));
        assert_eq!((reading.elevation, reading.satellites, reading.hdop), (Some(545.4), Some(8.0), Some(0.9)));
    }

    #[test]
    fn elevation_sentence_alone_is_of_the_nearest_day() {
        let at = |clock: &str, now: &str| {
            let sentence = summed(&format!("GNGGA,{clock},4807.038,S,01131.000,W,1,08,0.9,545.4,M,46.9,M,,"));
            let reports = super::decode(format!("a\n{sentence}").as_bytes(), time::parse(now).unwrap()).unwrap();
            assert_eq!(reports[0].reading.position(), Some((-48.1173, -11.5166667)));
            reports[0].time_ms
        };
        assert_eq!(at("120001.50", "2014-04-09T12:00:00Z"), Some(NOW + 1_500));
        assert_eq!(at("235959", "2014-04-09T00:00:01Z"), time::parse("2014-04-08T23:59:59Z"));
        assert_eq!(at("000001", "2014-04-08T23:59:59Z"), time::parse("2014-04-09T00:00:01Z"));
    }

    #[test]
    fn sentence_without_fix_has_no_position() {
        let void = summed("GPRMC,120000,V,,,,,,,090414,,");
        let reports = decode(&["a", &void]).unwrap();
        assert_eq!((reports[0].reading.position(), reports[0].time_ms), (None, Some(NOW)));
    }

    #[test]
    fn wrong_checksums_and_other_lines_are_left_out() {
        let wrong = RMC.replace("*6A", "*6B");
        let gsv = summed("GPGSV,1,1,00");
        assert_eq!(decode(&["a", &wrong, "", &gsv, "noise", GGA]).unwrap().len(), 1);
        for bad in [&["a", &wrong][..], &["a"], &[], &[RMC], &["$PGID,a*00", RMC], &["a", "$GPRMC*4B"], &["a", "$"]] {
            assert!(decode(bad).is_err(), "{bad:?}");
        }
        assert_eq!(super::decode(b"\xff", 0), Err(DecodeError::Utf8));
    }

    #[test]
    fn values_out_of_range_are_no_position() {
        for (clock, latitude) in [
            ("250000", "4807.038"),
            ("126000", "4807.038"),
            ("12", "4807.038"),
            ("120000", "48é7.0"),
            ("120000", "4860.000"),
            ("120000", "48"),
            ("120000", ""),
            ("120000.x", "4807.0"),
            ("120000é", "4807.0"),
        ] {
            let sentence = summed(&format!("GPRMC,{clock},A,{latitude},N,01131.000,E,1,2,090414,,"));
            assert!(decode(&["a", &sentence]).is_err(), "{sentence}");
        }
    }
}
