//! Values of parameters and fields as text.

use serde_json::{Number, Value};

use crate::{DecodeError, Reading};

/// Maximum number of other values of a record.
const ATTRIBUTES_MAX: usize = 32;
/// Maximum length of the name of such a value, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Maximum length of its text, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Parses a finite number.
pub fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite())
}

/// Parses a finite number of a named field.
pub fn field(name: &'static str, text: &str) -> Result<f64, DecodeError> {
    number(text).ok_or(DecodeError::Field { field: name, expected: "must be a number, for example `47.5`" })
}

/// Parses `true`, `false`, `1` and `0`.
pub fn truth(text: &str) -> Option<bool> {
    match text {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

/// Rounds a converted value, so that a record shows no digits beyond those of the measurement.
pub fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Adds a value for which the record has no field. Values above the limits are left out.
pub fn attribute(reading: &mut Reading, name: &str, value: Value) {
    let fits = name.len() <= NAME_BYTES_MAX && !name.is_empty() && reading.attributes.len() < ATTRIBUTES_MAX;
    let is_small = match &value {
        Value::String(text) => text.len() <= TEXT_BYTES_MAX,
        Value::Bool(_) | Value::Number(_) => true,
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    };
    if fits && is_small {
        reading.attributes.insert(name.to_owned(), value);
    }
}

/// Adds a value that a sender gives as text: a number or a truth value if it looks like one. A text that a number would
/// change, such as the id `00123`, stays a text.
pub fn text_attribute(reading: &mut Reading, name: &str, text: &str) {
    let is_number = text.len() <= 15 && !(text.len() > 1 && text.starts_with('0') && !text.starts_with("0."));
    let number = || number(text).filter(|_| is_number).and_then(Number::from_f64).map(Value::Number);
    let truth = || matches!(text, "true" | "false").then(|| Value::Bool(text == "true"));
    let value = number().or_else(truth).unwrap_or_else(|| text.into());
    attribute(reading, name, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_is_a_number_if_nothing_is_lost() {
        let value = |text: &str| {
            let mut reading = Reading::default();
            text_attribute(&mut reading, "a", text);
            reading.attributes.remove("a")
        };
        assert_eq!(value("5.5"), Some(Value::from(5.5)));
        assert_eq!(value("0.5"), Some(Value::from(0.5)));
        assert_eq!(value("-3"), Some(Value::from(-3.0)));
        assert_eq!(value("true"), Some(Value::Bool(true)));
        for text in ["00123", "12345678901234567890", "NaN", "inf", "sos", ""] {
            assert_eq!(value(text), Some(text.into()), "{text}");
        }
    }

    #[test]
    fn attributes_have_limits() {
        let mut reading = Reading::default();
        attribute(&mut reading, &"n".repeat(65), 1.into());
        attribute(&mut reading, "", 1.into());
        attribute(&mut reading, "text", "x".repeat(257).into());
        attribute(&mut reading, "list", Value::Array(vec![]));
        assert!(reading.attributes.is_empty());
        for n in 0..100 {
            attribute(&mut reading, &n.to_string(), 1.into());
        }
        assert_eq!(reading.attributes.len(), ATTRIBUTES_MAX);
    }
}
