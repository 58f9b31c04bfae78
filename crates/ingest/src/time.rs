//! Times as senders write them.

use millrace_protocol::Since;

/// Numbers below this are seconds since 1970, others milliseconds. Source: Traccar, OsmAnd protocol, `timestamp`.
const SECONDS_BELOW: u64 = 1 << 31;

/// Parses seconds or milliseconds since 1970, or an ISO 8601 time: `2026-11-26T10:00:00Z`, with any offset (`+02:00` or
/// `-0700`), or without one in UTC; a space may stand for the `T`. Returns milliseconds since 1970.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return from_number(text.parse().ok()?);
    }
    iso(text)
}

/// Returns milliseconds since 1970 of a number of seconds or milliseconds.
pub fn from_number(number: u64) -> Option<u64> {
    if number < SECONDS_BELOW { Some(number * 1000) } else { Some(number).filter(|ms| *ms < 1 << 53) }
}

fn iso(text: &str) -> Option<u64> {
    if !text.is_ascii() || !(19..=40).contains(&text.len()) {
        return None;
    }
    let (day, rest) = text.split_at(10);
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let zone = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (clock, zone) = rest.split_at(zone);
    let zone = match (zone.len(), zone.as_bytes()) {
        (0, _) => "Z".to_owned(),
        (3, [b'+' | b'-', ..]) => format!("{zone}:00"),
        (5, [b'+' | b'-', ..]) => format!("{}:{}", &zone[..3], &zone[3..]),
        _ => zone.to_owned(),
    };
    // The protocol has a parser of RFC 3339 times already: that of the start of a reader.
    match format!("{day}T{clock}{zone}").parse() {
        Ok(Since::Time(ms)) => Some(ms),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_are_the_same_time() {
        let ms = 1_397_028_600_000;
        for text in [
            "1397028600",
            "1397028600000",
            "2014-04-09T07:30:00Z",
            "2014-04-09T07:30:00.000Z",
            "2014-04-09T09:30:00+02:00",
            "2014-04-09T00:30:00-0700",
            "2014-04-09T09:30:00+02",
            "2014-04-09 07:30:00",
        ] {
            assert_eq!(parse(text), Some(ms), "{text}");
        }
        assert_eq!(parse("2014-04-09T07:30:00.250Z"), Some(ms + 250));
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            "now",
            "earliest",
            "-1",
            "1e9",
            "2014-04-09",
            "2014-04-09T07:30",
            "2014-13-09T07:30:00Z",
            "2014-04-09T07:30:00+9",
            "5f0c12ab:57",
            "99999999999999999999",
            "99999999999999999",
            "éééééééééééééééééééé",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
