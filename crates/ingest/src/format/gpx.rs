//! GPX files: the points of tracks. Speeds are in m/s.
//!
//! A scanner of our own reads the few elements that a track has. It expands no entities and follows no references, so
//! a file cannot make it read anything else or grow.
//!
//! Source: GPX 1.0 and 1.1 schemas; Garmin TrackPointExtension v2 (`speed`, `course`).

use crate::{DecodeError, Reading, Report, text, time};

const NAME: &str = "gpx";

/// Part of an XML document.
#[derive(Debug, PartialEq)]
enum Part<'a> {
    /// Name without prefix, attributes, and whether the element is empty.
    Start(&'a str, &'a str, bool),
    End(&'a str),
    Text(&'a str),
}

/// Decodes a file. Points without a time are left out.
///
/// Errors: a file without any track point that has a time, with more than `points_max`, or that is not well-formed.
pub fn decode(file: &[u8], points_max: usize) -> Result<Vec<Report>, DecodeError> {
    let file = std::str::from_utf8(file).map_err(|_| DecodeError::Utf8)?;
    let (mut reports, mut parts) = (Vec::new(), Parts { file, at: 0 });
    let (mut point, mut element): (Option<Report>, &str) = (None, "");
    while let Some(part) = parts.next()? {
        match part {
            Part::Start("trkpt", attributes, is_empty) => {
                let number = |name| attribute(attributes, name).and_then(text::number);
                let what = "a `trkpt` must have the numbers `lat` and `lon`";
                let place = number("lat").zip(number("lon")).ok_or_else(|| parts.wrong(what))?;
                let mut report = Report { reading: Reading::from(NAME), ..Report::default() };
                report.reading.set_position(place.0, place.1);
                point = Some(report).filter(|_| !is_empty);
            }
            Part::Start(name, _, is_empty) => element = if is_empty { "" } else { name },
            Part::Text(content) => {
                if let Some(report) = &mut point {
                    set(report, element, content.trim());
                }
            }
            Part::End("trkpt") => {
                if reports.len() == points_max {
                    return Err(DecodeError::TooMany(points_max));
                }
                reports.extend(point.take().filter(|report| report.time_ms.is_some()));
            }
            Part::End(_) => element = "",
        }
    }
    if reports.is_empty() {
        return Err(DecodeError::Unsupported("the file has no track point (`trkpt`) with a `time`"));
    }
    Ok(reports)
}

fn set(report: &mut Report, element: &str, content: &str) {
    let reading = &mut report.reading;
    match element {
        "time" => report.time_ms = time::parse(content),
        "ele" => reading.elevation = text::number(content),
        "speed" => reading.speed = text::number(content),
        "course" => reading.heading = text::number(content),
        "hdop" => reading.hdop = text::number(content),
        "sat" => reading.satellites = text::number(content),
        _ => {}
    }
}

/// Scanner of an XML document.
struct Parts<'a> {
    file: &'a str,
    at: usize,
}

impl<'a> Parts<'a> {
    fn next(&mut self) -> Result<Option<Part<'a>>, DecodeError> {
        loop {
            let rest = &self.file[self.at..];
            if rest.is_empty() {
                return Ok(None);
            }
            let Some(tag) = rest.strip_prefix('<') else {
                let end = rest.find('<').unwrap_or(rest.len());
                self.at += end;
                return Ok(Some(Part::Text(&rest[..end])));
            };
            let skipped = [("!--", "-->"), ("![CDATA[", "]]>"), ("?", "?>"), ("!", ">")];
            if let Some((_, end)) = skipped.into_iter().find(|(start, _)| tag.starts_with(start)) {
                let length = tag.find(end).ok_or_else(|| self.wrong("a comment or declaration has no end"))?;
                self.at += 1 + length + end.len();
                continue;
            }
            let length = end_of_tag(tag).ok_or_else(|| self.wrong("a tag has no `>`"))?;
            self.at += length + 2;
            let tag = &tag[..length];
            if let Some(name) = tag.strip_prefix('/') {
                return Ok(Some(Part::End(local(name.trim()))));
            }
            let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
            let (name, attributes) = tag.split_once(|c: char| c.is_ascii_whitespace()).unwrap_or((tag, ""));
            return Ok(Some(Part::Start(local(name), attributes, is_empty)));
        }
    }

    /// Returns an error at the current line.
    fn wrong(&self, what: &str) -> DecodeError {
        let line = 1 + self.file.as_bytes()[..self.at].iter().filter(|byte| **byte == b'\n').count() as u64;
        DecodeError::Line { line, what: what.into() }
    }
}

/// Returns the place of the `>` that ends a tag. Values in quotes may contain one.
fn end_of_tag(tag: &str) -> Option<usize> {
    let mut quote = None;
    for (at, byte) in tag.bytes().enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(at),
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), byte) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

/// Returns a name without the prefix of its namespace.
fn local(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

/// Returns the value of an attribute.
fn attribute<'a>(attributes: &'a str, wanted: &str) -> Option<&'a str> {
    let mut rest = attributes;
    loop {
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let quote = after.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
        let (value, after) = after[1..].split_once(quote)?;
        if name.trim() == wanted {
            return Some(value);
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE gpx [<!ENTITY x "y">
]>
<gpx version="1.1" creator="a > b" xmlns="http://www.topografix.com/GPX/1/1" xmlns:gpxtpx="http://www.garmin.com/x">
  <!-- <trkpt lat="1" lon="1"><time>2014-04-09T07:30:00Z</time></trkpt> -->
  <metadata><time>2014-04-09T07:00:00Z</time></metadata>
  <wpt lat="1" lon="1"><time>2014-04-09T07:30:00Z</time></wpt>
  <trk><name>Home &amp; back</name><trkseg>
    <trkpt lat="47.53398" lon='19.079723'>
      <ele>110.2</ele><time>2014-04-09T07:30:00Z</time><hdop>0.9</hdop><sat>8</sat>
      <extensions><gpxtpx:TrackPointExtension><gpxtpx:speed>13.9</gpxtpx:speed><gpxtpx:course>122.5</gpxtpx:course>
      </gpxtpx:TrackPointExtension></extensions>
    </trkpt>
    <trkpt lon="19.08" lat="47.54"><time>2014-04-09T07:30:01Z</time></trkpt>
    <trkpt lat="47.55" lon="19.09"/>
    <trkpt lat="47.56" lon="19.09"></trkpt>
  </trkseg></trk>
</gpx>"#;

    #[test]
    fn track_points_with_a_time_are_decoded() {
        let reports = decode(FILE.as_bytes(), 100).unwrap();
        assert_eq!(reports.len(), 2);
        let Report { device, time_ms, reading } = &reports[0];
        assert_eq!((device, *time_ms), (&None, Some(1_397_028_600_000)));
        assert_eq!((reading.position(), reading.speed), (Some((47.53398, 19.079723)), Some(13.9)));
        assert_eq!((reading.elevation, reading.heading, reading.hdop), (Some(110.2), Some(122.5), Some(0.9)));
        assert_eq!((reports[1].reading.position(), reports[1].reading.speed), (Some((47.54, 19.08)), None));
        assert_eq!(decode(FILE.as_bytes(), 1), Err(DecodeError::TooMany(1)));
    }

    #[test]
    fn other_files_are_refused_with_the_line() {
        for bad in ["", "<gpx></gpx>", "<gpx><wpt lat=\"1\" lon=\"2\"/></gpx>", "text"] {
            assert!(matches!(decode(bad.as_bytes(), 9), Err(DecodeError::Unsupported(_))), "{bad}");
        }
        for bad in ["<gpx>\n<trkpt lat=\"north\" lon=\"2\">", "\n<trkpt", "\n<!-- x", "\n<trkpt lat=\"1>", "<\n<?"] {
            let error = decode(bad.as_bytes(), 9).unwrap_err().to_string();
            assert!(error.starts_with("line "), "{bad}: {error}");
        }
        assert_eq!(decode(b"\xff", 9), Err(DecodeError::Utf8));
    }
}
