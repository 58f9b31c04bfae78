use std::{fmt, str::FromStr, time::UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error};

/// Identifies one lifetime of a channel's log. A new epoch means that the previous log was lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Epoch(pub u32);

/// Position in a channel's log, written `epoch:offset` (`5f0c12ab:57`): the publication with that offset. Offset 0
/// is before the first publication.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Position {
    pub epoch: Epoch,
    pub offset: u64,
}

/// Publications that a reader misses: everything after `from`, up to and including `to`. The reader continues from
/// `to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Gap {
    pub from: Position,
    pub to: Position,
}

/// Start position that a reader requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Since {
    /// After the newest publication.
    Now,
    /// Before the oldest publication in history.
    Earliest,
    /// After the publication with this position.
    Position(Position),
    /// Before the first publication at or after this time, in milliseconds since 1970.
    Time(u64),
    /// The whole state of a keyed channel, then its changes.
    State,
    /// Inside the state: the part of the compacted log after `offset`. The log ended at `began` when the reader began
    /// with the state; deletions up to there concern no key that it has received. (The fields of a position stand here
    /// without their own type, so that they fit beside the tag of the enum: waiting polls hold many starts.)
    StateAfter { epoch: Epoch, offset: u64, began: u64 },
    /// The changes after this position of a keyed channel. If history no longer reaches back to it: the whole state.
    StateOr(Position),
}

const _: () = assert!(size_of::<Option<Since>>() == 24);

impl FromStr for Position {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = text.split_once(':').and_then(|(epoch, offset)| {
            let digits =
                |s: &str, max: usize| !s.is_empty() && s.len() <= max && s.bytes().all(|b| b.is_ascii_hexdigit());
            if !digits(epoch, 8) || !digits(offset, 20) {
                return None;
            }
            let epoch = Epoch(u32::from_str_radix(epoch, 16).ok()?);
            Some(Position { epoch, offset: offset.parse().ok()? })
        });
        parsed.ok_or_else(|| Error::new(Code::BadPosition, "a position looks like `5f0c12ab:57` (epoch:offset)"))
    }
}

impl FromStr for Since {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "now" => return Ok(Since::Now),
            "earliest" => return Ok(Since::Earliest),
            "state" => return Ok(Since::State),
            _ => {}
        }
        if let Some(place) = text.strip_prefix("state:") {
            return parse_place(place);
        }
        if let Ok(position) = text.parse() {
            return Ok(Since::Position(position));
        }
        if !text.is_empty()
            && text.bytes().all(|b| b.is_ascii_digit())
            && let Ok(ms) = text.parse()
        {
            return Ok(Since::Time(ms));
        }
        if let Some(ms) = parse_time(text) {
            return Ok(Since::Time(ms));
        }
        let detail = "a start position is `now`, `earliest`, `state`, a position such as `5f0c12ab:57`, or a time such as `2026-11-20T10:00:00Z`";
        Err(Error::new(Code::BadPosition, detail))
    }
}

/// Parses the rest of `state:EPOCH:OFFSET` or `state:EPOCH:OFFSET:BEGAN`.
fn parse_place(text: &str) -> Result<Since, Error> {
    let bad =
        || Error::new(Code::BadPosition, "a place in a state looks like `state:5f0c12ab:57` or `state:5f0c12ab:57:90`");
    let (position, began) = match text.match_indices(':').nth(1) {
        Some((at, _)) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let at: Position = position.parse().map_err(|_| bad())?;
    let Some(began) = began else { return Ok(Since::StateOr(at)) };
    let is_number = began.len() <= 20 && began.bytes().all(|byte| byte.is_ascii_digit());
    let began = began.parse().ok().filter(|_| is_number).ok_or_else(bad)?;
    Ok(Since::StateAfter { epoch: at.epoch, offset: at.offset, began })
}

impl Since {
    /// Returns true if the reader wants the state of a keyed channel. After a gap it gets the whole state again.
    pub fn is_state(self) -> bool {
        matches!(self, Since::State | Since::StateAfter { .. } | Since::StateOr(_))
    }

    /// Appends the same text as [`fmt::Display`], but faster for a position.
    pub fn write(self, out: &mut Vec<u8>) {
        match self {
            Since::Position(at) => at.write(out),
            place => out.extend_from_slice(place.to_string().as_bytes()),
        }
    }

    /// Checks that a range may begin here and end at `until`. An empty range is valid.
    ///
    /// Errors: [`Code::BadRequest`] for ranges that can only be a mistake. Positions of different kinds are not
    /// compared; the result is then an empty range.
    pub fn check_until(self, until: Since) -> Result<(), Error> {
        let bad = |detail: &str| Err(Error::new(Code::BadRequest, detail));
        match (self, until) {
            _ if self.is_state() || until.is_state() => {
                bad("a state has no end; omit `until`, or read a range of the channel's history without `state`")
            }
            (_, Since::Earliest) => bad("`until` must be a position, a time, or `now`; nothing precedes `earliest`"),
            (Since::Now, _) => bad(
                "`since=now` starts after all existing publications, so a range with `until` is empty; omit one of the two",
            ),
            (Since::Position(since), Since::Position(until))
                if since.epoch == until.epoch && until.offset < since.offset =>
            {
                bad("`until` lies before `since`")
            }
            (Since::Time(since), Since::Time(until)) if until < since => bad("`until` lies before `since`"),
            _ => Ok(()),
        }
    }
}

/// Parses an RFC 3339 time into milliseconds since 1970; finer digits are cut off. Returns `None` for times before
/// 1970.
///
/// The `+` of the time zone offset may arrive as a space: in a query string `+` means a space, and a valid time has
/// no other space there.
fn parse_time(text: &str) -> Option<u64> {
    let text = text.to_ascii_uppercase();
    let bytes = text.as_bytes();
    let (local, offset_min) = match bytes.len().checked_sub(6).map(|at| (at, bytes[at])) {
        Some((at, sign @ (b'+' | b'-' | b' '))) if bytes[at + 3] == b':' => {
            let number = |digits: &[u8], max: i64| -> Option<i64> {
                let number = std::str::from_utf8(digits).ok().filter(|_| digits.iter().all(u8::is_ascii_digit))?;
                number.parse().ok().filter(|number| *number <= max)
            };
            let minutes = number(&bytes[at + 1..at + 3], 23)? * 60 + number(&bytes[at + 4..], 59)?;
            (format!("{}Z", text.get(..at)?), if sign == b'-' { -minutes } else { minutes })
        }
        _ => (text, 0),
    };
    // The parser ignores text after the first `Z`, so reject it here.
    if local.find('Z')? + 1 != local.len() {
        return None;
    }
    let ms = humantime::parse_rfc3339(&local).ok()?.duration_since(UNIX_EPOCH).ok()?.as_millis() as u64;
    ms.checked_add_signed(-offset_min * 60_000)
}

impl Position {
    /// Appends the same text as [`fmt::Display`], but faster: every message carries a position.
    pub fn write(self, out: &mut Vec<u8>) {
        let digit = |i: usize| b"0123456789abcdef"[(self.epoch.0 >> (28 - 4 * i)) as usize & 0xf];
        out.extend_from_slice(&std::array::from_fn::<u8, 8, _>(digit));
        out.push(b':');
        out.extend_from_slice(itoa::Buffer::new().format(self.offset).as_bytes());
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}:{}", self.epoch.0, self.offset)
    }
}

/// Writes the text that [`Since::from_str`] parses.
impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Since::Now => f.write_str("now"),
            Since::Earliest => f.write_str("earliest"),
            Since::Position(at) => at.fmt(f),
            Since::Time(ms) => ms.fmt(f),
            Since::State => f.write_str("state"),
            Since::StateAfter { epoch, offset, began } => write!(f, "state:{}:{began}", Position { epoch, offset }),
            Since::StateOr(at) => write!(f, "state:{at}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_round_trips() {
        let position = Position { epoch: Epoch(0x0f0c_12ab), offset: u64::MAX };
        assert_eq!(position.to_string(), "0f0c12ab:18446744073709551615");
        assert_eq!(position.to_string().parse::<Position>().unwrap(), position);
        for bad in
            ["", ":", "1", "1:", ":1", "x:1", "1:x", "1:-1", "123456789:1", "1:184467440737095516160", "1:2:3", "1:a"]
        {
            assert_eq!(bad.parse::<Position>().unwrap_err().code, Code::BadPosition, "{bad}");
        }
    }

    #[test]
    fn since_accepts_four_syntaxes() {
        assert_eq!("now".parse::<Since>().unwrap(), Since::Now);
        assert_eq!("earliest".parse::<Since>().unwrap(), Since::Earliest);
        assert_eq!("1700000000123".parse::<Since>().unwrap(), Since::Time(1_700_000_000_123));
        assert_eq!("1970-01-01T00:00:01Z".parse::<Since>().unwrap(), Since::Time(1000));
        assert!("tomorrow".parse::<Since>().unwrap_err().detail.contains("5f0c12ab:57"));
    }

    #[test]
    fn places_in_a_state_round_trip() {
        for text in ["state", "state:0f0c12ab:57", "state:0f0c12ab:57:90", "state:00000001:0:18446744073709551615"] {
            assert_eq!(text.parse::<Since>().unwrap().to_string(), text);
            assert!(text.parse::<Since>().unwrap().is_state());
        }
        for bad in
            ["state:", "state:1", "state:1:", "state:1:2:", "state:1:2:x", "state:1:2:+3", "state:1:2:3:4", "State"]
        {
            assert_eq!(bad.parse::<Since>().unwrap_err().code, Code::BadPosition, "{bad}");
        }
    }

    #[test]
    fn time_accepts_offsets_and_fractions() {
        for (text, ms) in [
            ("2026-11-20T10:00:00Z", 1_795_168_800_000),
            ("2026-11-20t10:00:00.5z", 1_795_168_800_500),
            ("2026-11-20T10:00:00.123456789Z", 1_795_168_800_123),
            ("2026-11-20T11:00:00+01:00", 1_795_168_800_000),
            ("2026-11-20T11:00:00 01:00", 1_795_168_800_000),
            ("2026-11-20T04:30:00.25-05:30", 1_795_168_800_250),
            ("1970-01-01T00:00:00-00:01", 60_000),
        ] {
            assert_eq!(text.parse::<Since>().unwrap(), Since::Time(ms), "{text}");
        }
        for bad in [
            "2026-11-20T10:00:00",
            "2026-11-20",
            "2026-13-20T10:00:00Z",
            "2026-11-20T10:00:00+1:00",
            "2026-11-20T10:00:00+24:00",
            "2026-11-20T10:00:00+01:60",
            "2026-11-20T10:00:00+0a:00",
            "2026-11-20T10:00:00Z+01:00",
            "2026-11-20T10:00:00ZxZ",
            "1970-01-01T00:00:00+01:00",
            "1969-12-31T23:59:59Z",
            "ä+01:00",
            "ä01:00",
            "+01:00",
        ] {
            assert_eq!(bad.parse::<Since>().unwrap_err().code, Code::BadPosition, "{bad}");
        }
    }

    #[test]
    fn impossible_range_is_refused() {
        let at = |epoch, offset| Since::Position(Position { epoch: Epoch(epoch), offset });
        for (since, until) in [
            (Since::Earliest, Since::Now),
            (at(1, 5), at(1, 5)),
            (at(2, 5), at(1, 1)),
            (Since::Time(5), Since::Time(5)),
            (Since::Time(5), at(1, 1)),
        ] {
            assert!(since.check_until(until).is_ok(), "{since:?} {until:?}");
        }
        for (since, until) in [
            (at(1, 5), at(1, 4)),
            (Since::Time(5), Since::Time(4)),
            (Since::Now, Since::Time(4)),
            (Since::Earliest, Since::Earliest),
            (Since::State, Since::Now),
            (Since::Earliest, Since::StateOr(Position { epoch: Epoch(1), offset: 5 })),
        ] {
            assert_eq!(since.check_until(until).unwrap_err().code, Code::BadRequest, "{since:?} {until:?}");
        }
    }
}
