//! Lines of the serial connection to the LED module: ASCII with a CRC.
//!
//! Source: `firmware/led-module/README.md`, "Protocol".

use std::fmt::Write as _;

/// Longest line in bytes, including its line feed.
pub const LINE_BYTES_MAX: usize = 48;

/// A line of the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Reply to the request with this sequence: its values, or the code of an error.
    Reply { sequence: u8, result: Result<String, String> },
    /// Error of a request whose sequence the module could not read.
    Unnumbered { code: String },
    /// Event: its name and values, such as `boot 04` or `l 1ff`.
    Event(String),
}

/// CRC-16/CCITT-FALSE: polynomial 0x1021, initial value 0xffff, no reflection.
pub fn crc(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0xffff, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 })
    })
}

/// Returns the line of a request.
pub fn encode(sequence: u8, command: &str) -> Vec<u8> {
    let mut line = format!("{sequence:02x} {command}");
    let crc = crc(line.as_bytes());
    let _ = writeln!(line, "*{crc:04x}");
    line.into_bytes()
}

/// Parses a line without its line feed. Returns `None` if it is torn or no line of the module.
pub fn parse(line: &[u8]) -> Option<Line> {
    let text = std::str::from_utf8(line).ok()?.trim_end_matches('\r');
    let (content, sum) = text.rsplit_once('*')?;
    if sum.len() != 4 || u16::from_str_radix(sum, 16).ok()? != crc(content.as_bytes()) {
        return None;
    }
    let (head, rest) = content.split_once(' ')?;
    match (head, rest.split_once(' ')) {
        ("ev", _) => Some(Line::Event(rest.to_owned())),
        ("--", Some(("err", code))) => Some(Line::Unnumbered { code: code.to_owned() }),
        (sequence, parts) => {
            let sequence = u8::from_str_radix(sequence, 16).ok().filter(|_| head.len() == 2)?;
            let result = match (rest, parts) {
                ("ok", _) => Ok(String::new()),
                (_, Some(("ok", values))) => Ok(values.to_owned()),
                (_, Some(("err", code))) => Err(code.to_owned()),
                _ => return None,
            };
            Some(Line::Reply { sequence, result })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(content: &str) -> Option<Line> {
        parse(format!("{content}*{:04x}", crc(content.as_bytes())).as_bytes())
    }

    #[test]
    fn crc_matches_the_check_value() {
        assert_eq!(crc(b"123456789"), 0x29b1);
    }

    #[test]
    fn request_ends_with_its_crc() {
        let bytes = encode(0x2a, "w 08 3f");
        let text = String::from_utf8(bytes).unwrap();
        let (content, sum) = text.trim_end().rsplit_once('*').unwrap();
        assert_eq!((content, u16::from_str_radix(sum, 16)), ("2a w 08 3f", Ok(crc(content.as_bytes()))));
        assert!(text.ends_with('\n') && text.len() <= LINE_BYTES_MAX);
    }

    #[test]
    fn replies_errors_and_events_are_told_apart() {
        let reply = |sequence, result: Result<&str, &str>| {
            Some(Line::Reply { sequence, result: result.map(str::to_owned).map_err(str::to_owned) })
        };
        assert_eq!(line("07 ok"), reply(7, Ok("")));
        assert_eq!(line("07 ok 08 3f"), reply(7, Ok("08 3f")));
        assert_eq!(line("ff err nack"), reply(255, Err("nack")));
        assert_eq!(line("-- err crc"), Some(Line::Unnumbered { code: "crc".into() }));
        assert_eq!(line("ev l 1ff"), Some(Line::Event("l 1ff".into())));
    }

    #[test]
    fn torn_lines_are_ignored() {
        assert_eq!(parse(b"07 ok*0000"), None);
        for torn in ["", "*", "07", "07 maybe", "7 ok", "xx ok", "-- ok"] {
            assert_eq!(line(torn), None, "{torn}");
        }
        assert_eq!(parse(&[0xff, 0x00, b'*']), None);
    }
}
