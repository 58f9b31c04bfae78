//! Commands to the lamps, as JSON.

use serde::{Deserialize, Serialize};

use crate::palette::{LEVEL_MAX, OUTPUTS};

/// Longest command in bytes. It is also the longest value of a Bluetooth characteristic.
pub const COMMAND_BYTES_MAX: usize = 512;
/// Longest `id`: a UUID.
const ID_BYTES_MAX: usize = 36;
/// Time codes of the driver in milliseconds (SCPS164, table 7).
const TIMES_MS: [u16; 16] = [0, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 5760, 8128, 16320];

/// Reason why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("the command has {0} bytes; the maximum is {COMMAND_BYTES_MAX}")]
    TooLong(usize),
    #[error("{0}; for example {{\"a\": \"#ff8000\", \"b\": [0, 0, 15]}}")]
    Syntax(String),
    #[error("{0}: a level is 0 to {LEVEL_MAX}")]
    Level(i64),
    #[error("{0}: a color is \"#rrggbb\" in hex, or three levels from 0 to {LEVEL_MAX}")]
    Color(String),
    #[error("the id is not allowed; an id has 1 to {ID_BYTES_MAX} characters of A-Z a-z 0-9 _ -")]
    Id,
}

/// Light that a command asks for. A lamp that the command does not name keeps its color.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Chosen by the sender; the state repeats it.
    pub id: Option<String>,
    pub a: Option<[u8; 3]>,
    pub b: Option<[u8; 3]>,
    pub blink: Option<Blink>,
}

/// Lamps that blink, and their times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blink {
    #[serde(default)]
    pub a: bool,
    #[serde(default)]
    pub b: bool,
    #[serde(default)]
    pub fade_in_ms: u16,
    pub on_ms: u16,
    #[serde(default)]
    pub fade_out_ms: u16,
    pub off_ms: u16,
}

impl Blink {
    /// Returns the times that the driver can give: the nearest of its time codes.
    pub fn given(self) -> Self {
        let given = |ms: u16| TIMES_MS[usize::from(code(ms))];
        Self {
            fade_in_ms: given(self.fade_in_ms),
            on_ms: given(self.on_ms),
            fade_out_ms: given(self.fade_out_ms),
            off_ms: given(self.off_ms),
            ..self
        }
    }

    /// Returns the time codes of the registers 0x03 to 0x07. Both dark times of the driver's double pulse are equal.
    pub fn codes(self) -> [u8; 5] {
        [self.fade_in_ms, self.on_ms, self.fade_out_ms, self.off_ms, self.off_ms].map(code)
    }

    /// Returns for each output whether it blinks.
    pub fn outputs(self) -> [bool; OUTPUTS] {
        std::array::from_fn(|output| if output < 3 { self.a } else { self.b })
    }
}

/// Returns the code of the nearest time.
fn code(ms: u16) -> u8 {
    let nearest = (0..16_u8).min_by_key(|code| TIMES_MS[usize::from(*code)].abs_diff(ms));
    nearest.unwrap_or_default()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    id: Option<String>,
    a: Option<Color>,
    b: Option<Color>,
    blink: Option<Blink>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Color {
    Hex(String),
    Levels([i64; 3]),
    Other(serde_json::Value),
}

impl Command {
    /// Parses a command.
    ///
    /// Errors: see [`CommandError`]. The text of an error names the value, and contains no other part of the command.
    pub fn parse(json: &[u8]) -> Result<Self, CommandError> {
        if json.len() > COMMAND_BYTES_MAX {
            return Err(CommandError::TooLong(json.len()));
        }
        let fields: Fields = serde_json::from_slice(json).map_err(|error| CommandError::Syntax(error.to_string()))?;
        if fields.id.as_ref().is_some_and(|id| !is_id(id)) {
            return Err(CommandError::Id);
        }
        let [a, b] = [fields.a, fields.b].map(|color| color.map(levels).transpose());
        Ok(Self { id: fields.id, a: a?, b: b?, blink: fields.blink })
    }
}

/// Returns the id of a command that may be wrong in other parts.
pub fn id_of(json: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Loose {
        id: String,
    }
    let is_short = json.len() <= COMMAND_BYTES_MAX;
    let loose: Loose = is_short.then(|| serde_json::from_slice(json).ok()).flatten()?;
    is_id(&loose.id).then_some(loose.id)
}

fn is_id(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(is_allowed)
}

fn levels(color: Color) -> Result<[u8; 3], CommandError> {
    match color {
        Color::Hex(text) => {
            let hex = text.strip_prefix('#').filter(|hex| hex.len() == 6 && hex.is_ascii());
            let part = |at: usize| u8::from_str_radix(hex?.get(at..at + 2)?, 16).ok();
            match (part(0), part(2), part(4)) {
                (Some(red), Some(green), Some(blue)) => Ok([red, green, blue].map(level_of)),
                _ => Err(CommandError::Color(format!("{text:?}"))),
            }
        }
        Color::Levels(levels) => {
            let wrong = levels.into_iter().find(|level| !(0..=i64::from(LEVEL_MAX)).contains(level));
            wrong.map_or(Ok(levels.map(|level| level as u8)), |level| Err(CommandError::Level(level)))
        }
        Color::Other(value) => Err(CommandError::Color(value.to_string())),
    }
}

/// Returns the level nearest to one of 256 shades. A shade above 0 is never dark.
fn level_of(shade: u8) -> u8 {
    match shade {
        0 => 0,
        shade => ((u16::from(shade) + 8) / 17).max(1) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Command, CommandError> {
        Command::parse(json.as_bytes())
    }

    #[test]
    fn colors_become_levels() {
        let command = parse(r##"{"id": "x", "a": "#ff8001", "b": [0, 7, 15]}"##).unwrap();
        assert_eq!((command.a, command.b), (Some([15, 8, 1]), Some([0, 7, 15])));
        assert_eq!(parse("{}").unwrap(), Command { id: None, a: None, b: None, blink: None });
    }

    #[test]
    fn wrong_commands_say_what_is_wrong() {
        for (json, says) in [
            (r#"{"a": [0, 0, 16]}"#, "16: a level is 0 to 15"),
            (r#"{"a": [0, -1, 5]}"#, "-1: a level is 0 to 15"),
            (r#"{"a": "red"}"#, "\"red\": a color is"),
            (r##"{"a": "#ff80é"}"##, "a color is"),
            (r#"{"a": [1, 2]}"#, "[1,2]: a color is"),
            (r#"{"c": [1, 2, 3]}"#, "unknown field `c`"),
            (r#"{"blink": {"a": true, "on_ms": -1, "off_ms": 5}}"#, "invalid value"),
            ("led on", "expected value"),
            ("", "EOF"),
        ] {
            let error = parse(json).unwrap_err().to_string();
            assert!(error.contains(says), "{json}: {error}");
        }
        assert_eq!(parse(&" ".repeat(513)), Err(CommandError::TooLong(513)));
        for id in ["", "a b", "ö", &"x".repeat(37)] {
            assert_eq!(parse(&format!(r#"{{"id": "{id}"}}"#)), Err(CommandError::Id), "{id}");
        }
    }

    #[test]
    fn wrong_command_still_has_its_id() {
        let id = |json: &str| id_of(json.as_bytes());
        assert_eq!(id(r#"{"id": "x-1", "a": [99, 0, 0], "c": 1}"#), Some("x-1".into()));
        for none in [r#"{"a": [1, 2, 3]}"#, r#"{"id": "a b"}"#, r#"{"id": 5}"#, "on", ""] {
            assert_eq!(id(none), None, "{none}");
        }
    }

    #[test]
    fn blink_gets_the_nearest_times() {
        let blink = Blink { a: true, b: false, fade_in_ms: 100, on_ms: 500, fade_out_ms: 0, off_ms: 60_000 };
        let given = blink.given();
        assert_eq!((given.fade_in_ms, given.on_ms, given.fade_out_ms, given.off_ms), (128, 512, 0, 16_320));
        assert_eq!(blink.codes(), [2, 6, 0, 15, 15]);
        assert_eq!(blink.outputs(), [true, true, true, false, false, false]);
    }
}
