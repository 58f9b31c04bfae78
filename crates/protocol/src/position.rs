use std::{fmt, str::FromStr, time::UNIX_EPOCH};

use crate::error::{Code, Error};

/// Names one life of a channel's log; a new one means that the log was lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Epoch(pub u32);

/// A place in a channel's log, written `epoch:offset` (`5f0c12ab:57`): the publication with that offset; offset 0 is before the first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Position {
    pub epoch: Epoch,
    pub offset: u64,
}

/// What a reader misses: everything after `from`, up to and including `to`. It goes on from `to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    pub from: Position,
    pub to: Position,
}

/// Where a reader wants to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// After everything there is.
    Now,
    /// Before everything that history holds.
    Earliest,
    /// After this publication.
    Position(Position),
    /// Before the first publication at or after this time, in milliseconds since 1970.
    Time(u64),
}

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
            _ => {}
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
        if let Some(since_1970) = humantime::parse_rfc3339(text).ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok())
        {
            return Ok(Since::Time(since_1970.as_millis() as u64));
        }
        let detail =
            "`since` is `now`, `earliest`, a position such as `5f0c12ab:57`, or a time such as `2026-11-20T10:00:00Z`";
        Err(Error::new(Code::BadPosition, detail))
    }
}

impl Position {
    /// Appends what [`fmt::Display`] writes, without the machinery of formatting: every message carries one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_reads_what_it_writes() {
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
    fn since_speaks_four_languages() {
        assert_eq!("now".parse::<Since>().unwrap(), Since::Now);
        assert_eq!("earliest".parse::<Since>().unwrap(), Since::Earliest);
        assert_eq!("1700000000123".parse::<Since>().unwrap(), Since::Time(1_700_000_000_123));
        assert_eq!("1970-01-01T00:00:01Z".parse::<Since>().unwrap(), Since::Time(1000));
        assert!("tomorrow".parse::<Since>().unwrap_err().detail.contains("5f0c12ab:57"));
    }
}
