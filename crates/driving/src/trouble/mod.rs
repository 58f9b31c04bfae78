//! Meaning of generic trouble codes, in our own words, and what to do about them.
//!
//! The structure of a code follows ISO 15031-6: a letter for the system, and a digit that separates generic codes from
//! those of a manufacturer. The texts are our own.

mod table;

use std::borrow::Cow;

use crate::Severity;

pub use table::CODES;

/// Advice to a driver whose car has stored a trouble code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stop and switch off.
    Stop,
    /// Drive gently to the next workshop.
    Gently,
    /// Have it repaired within days.
    Soon,
    /// Only exhaust gas or comfort suffers.
    AtService,
    /// A part that the driver can check.
    FuelCap,
    Oil,
    Coolant,
    Battery,
}

impl Action {
    /// Returns the advice in words.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Stop => "Stop safely, switch the engine off, and call for help. Driving on can destroy the engine.",
            Self::Gently => "Drive gently, without high revolutions, and go to a workshop today.",
            Self::Soon => "You can drive on. Have it repaired within a few days.",
            Self::AtService => "You can drive on. Have it checked at the next service.",
            Self::FuelCap => {
                "Close the fuel cap firmly. If the code returns after a few drives, have the tank ventilation checked."
            }
            Self::Oil => "Stop safely and check the oil level. Drive on only if the level and the pressure are right.",
            Self::Coolant => {
                "Let the engine cool, then check the coolant level. Drive on only if the temperature stays normal."
            }
            Self::Battery => "Check the battery and its terminals. Avoid short drives until the charging is repaired.",
        }
    }

    fn severity(self) -> Severity {
        match self {
            Self::Stop | Self::Oil | Self::Coolant | Self::Gently => Severity::Severe,
            Self::Soon | Self::Battery => Severity::Warn,
            Self::AtService | Self::FuelCap => Severity::Info,
        }
    }
}

/// A trouble code with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TroubleCode {
    pub meaning: Cow<'static, str>,
    pub advice: &'static str,
    pub severity: Severity,
}

/// Returns the meaning of a code. A code that is not in [`CODES`] gets the name of its system.
pub fn lookup(code: &str) -> TroubleCode {
    // Some readers append the type of the failure to the code.
    let generic = code.get(..5).unwrap_or(code);
    if let Ok(at) = CODES.binary_search_by_key(&generic, |(code, ..)| code) {
        let (_, meaning, action) = CODES[at];
        return TroubleCode { meaning: meaning.into(), advice: action.advice(), severity: action.severity() };
    }
    let system = match generic.bytes().next() {
        Some(b'P') => "engine or transmission",
        Some(b'C') => "chassis (brakes, steering or suspension)",
        Some(b'B') => "body (airbags, comfort or lighting)",
        Some(b'U') => "network between the control units",
        _ => "car",
    };
    let is_own =
        matches!(generic.as_bytes().get(1), Some(b'1')) || (generic.starts_with('P') && generic.get(1..2) == Some("3"));
    let meaning = match is_own {
        true => format!("Fault of the {system}, with a code of the manufacturer"),
        false => format!("Fault of the {system}"),
    };
    TroubleCode { meaning: meaning.into(), advice: Action::Soon.advice(), severity: Action::Soon.severity() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_sorted_and_complete() {
        assert!(CODES.windows(2).all(|pair| pair[0].0 < pair[1].0), "binary search needs the order");
        assert!(CODES.len() >= 120, "{}", CODES.len());
        for (code, meaning, _) in CODES {
            assert!(code.len() == 5 && code.bytes().skip(1).all(|b| b.is_ascii_hexdigit()), "{code}");
            assert!((8..=90).contains(&meaning.len()) && !meaning.ends_with('.'), "{code}: {meaning}");
        }
    }

    #[test]
    fn code_has_meaning_and_advice() {
        assert_eq!(lookup("P0301").meaning, "Cylinder 1 misfires");
        assert_eq!(lookup("P0301").severity, Severity::Severe);
        assert_eq!(lookup("P030104").meaning, "Cylinder 1 misfires", "the failure type is ignored");
        assert_eq!(lookup("P1234").meaning, "Fault of the engine or transmission, with a code of the manufacturer");
        assert_eq!(lookup("U0999").meaning, "Fault of the network between the control units");
        for odd in ["", "P", "\u{e9}\u{e9}\u{e9}", "XXXXXXXX"] {
            assert!(lookup(odd).meaning.starts_with("Fault of the "), "{odd}");
        }
    }
}
