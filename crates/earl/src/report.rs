//! Reports of a kit: the state of its lamps, and readings of its light sensor.

use serde::Serialize;

use crate::command::Blink;

/// Longest state in bytes. It is also the longest value of a Bluetooth characteristic (Bluetooth Core Specification,
/// Vol. 3, Part F, section 3.2.9).
pub const STATE_BYTES_MAX: usize = 512;
/// Longest text of an error in bytes.
const ERROR_BYTES_MAX: usize = 160;
/// Length to which the text of an error is cut if the state is too long.
const SHORT_ERROR_BYTES: usize = 24;
/// Highest reading of the 10-bit converter.
const LIGHT_MAX: u16 = 1023;
const NOTE: &str = "the driver has three brightness levels and 16 times; this is the nearest";

/// A message of the kit, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Commanded and lit lamps, and errors.
    State(String),
    /// A reading of the light sensor.
    Light(String),
}

/// State of a kit.
#[derive(Clone, Debug, Serialize)]
pub struct State {
    pub commanded: Commanded,
    /// `None` until the module has confirmed the command.
    pub given: Option<Given>,
    /// Measured light of the lamps. Only a simulated kit can measure it.
    pub lit: Option<Lit>,
    pub error: Option<String>,
    /// The id of the command that `error` is about. `None` for errors of the hardware.
    pub error_id: Option<String>,
    /// Commands that a newer one replaced before they were sent.
    pub superseded: u32,
    /// Restarts of the module.
    pub restarts: u32,
}

#[derive(Clone, Debug, Serialize)]
pub struct Commanded {
    pub id: Option<String>,
    pub a: [u8; 3],
    pub b: [u8; 3],
    pub blink: Option<Blink>,
}

/// Levels and times that the LED driver could give.
#[derive(Clone, Debug, Serialize)]
pub struct Given {
    pub a: [u8; 3],
    pub b: [u8; 3],
    pub blink: Option<Blink>,
    /// Says that the driver could not give all that was commanded.
    pub note: Option<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Lit {
    pub a: String,
    pub b: String,
}

impl Lit {
    /// Returns the light of both LEDs, each with 256 shades of red, green and blue.
    pub fn new([a, b]: [[u8; 3]; 2]) -> Self {
        let hex = |[red, green, blue]: [u8; 3]| format!("#{red:02x}{green:02x}{blue:02x}");
        Self { a: hex(a), b: hex(b) }
    }
}

impl Given {
    /// Returns what the driver gives, with a note unless it is all that was commanded.
    pub fn new(a: [u8; 3], b: [u8; 3], blink: Option<Blink>, commanded: &Commanded) -> Self {
        let is_exact = a == commanded.a && b == commanded.b && blink == commanded.blink;
        Self { a, b, blink, note: (!is_exact).then_some(NOTE) }
    }
}

impl State {
    /// Returns the state as JSON with at most [`STATE_BYTES_MAX`] bytes. If it is longer, the note is left out; if
    /// that is not enough, the error is cut.
    pub fn to_json(&self) -> String {
        let json = json(self);
        if json.len() <= STATE_BYTES_MAX {
            return json;
        }
        let mut shorter = self.clone();
        if let Some(given) = shorter.given.as_mut().filter(|given| given.note.is_some()) {
            given.note = None;
            return shorter.to_json();
        }
        let error = shorter.error.take().unwrap_or_default();
        shorter.error = Some(cut(&error, SHORT_ERROR_BYTES));
        self::json(&shorter)
    }
}

/// Returns the text of an error: control characters are replaced, and a long text is cut.
pub fn error_text(text: &str) -> String {
    cut(&text.replace(char::is_control, "?"), ERROR_BYTES_MAX)
}

fn cut(text: &str, bytes_max: usize) -> String {
    match text.len() <= bytes_max {
        true => text.to_owned(),
        false => {
            let end = (0..=bytes_max - 3).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
            format!("{}...", &text[..end])
        }
    }
}

/// Returns a reading of the light sensor as JSON.
pub fn light_json(raw: u16) -> String {
    let sensor = match raw {
        0 => "dark",
        LIGHT_MAX.. => "saturated",
        _ => "working",
    };
    let light = f64::from(raw) / f64::from(LIGHT_MAX);
    json(&Light { light: (light * 1000.0).round() / 1000.0, raw, sensor })
}

#[derive(Serialize)]
struct Light {
    light: f64,
    raw: u16,
    sensor: &'static str,
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("numbers and text")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the longest state that a kit can have.
    fn longest(error: &str) -> State {
        let blink =
            Blink { a: false, b: false, fade_in_ms: 65_535, on_ms: 65_535, fade_out_ms: 65_535, off_ms: 65_535 };
        let id = Some("x".repeat(36));
        let commanded = Commanded { id: id.clone(), a: [15; 3], b: [15; 3], blink: Some(blink) };
        let given = Given::new([15; 3], [14; 3], Some(blink), &commanded);
        let lit = Some(Lit::new([[255; 3]; 2]));
        let (given, error) = (Some(given), Some(error_text(error)));
        State { commanded, given, lit, error, error_id: id, superseded: u32::MAX, restarts: u32::MAX }
    }

    #[test]
    fn state_fits_into_a_bluetooth_value() {
        for error in ["", "short", &"long \u{1} text \"ö\" ".repeat(100)] {
            let json = longest(error).to_json();
            assert!(json.len() <= STATE_BYTES_MAX, "{}: {json}", json.len());
            let state: serde_json::Value = serde_json::from_str(&json).expect("JSON");
            let text = state["error"].as_str().expect("a text");
            assert!(text.starts_with(&error[..error.len().min(5)]), "{text}");
        }
    }

    #[test]
    fn note_stays_while_it_fits() {
        let mut state = longest("");
        state.commanded.blink = None;
        state.given = Some(Given::new([1; 3], [2; 3], None, &state.commanded));
        assert!(state.to_json().contains(NOTE));
    }

    #[test]
    fn end_of_the_range_is_named() {
        assert_eq!(light_json(0), r#"{"light":0.0,"raw":0,"sensor":"dark"}"#);
        assert_eq!(light_json(1023), r#"{"light":1.0,"raw":1023,"sensor":"saturated"}"#);
        assert!(light_json(512).contains("working"));
    }
}
