use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize, de};

use crate::random::Random;

/// Probability from 0 to 1. As text: `1%` or `0.01`.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Probability(f64);

/// A number or a text is not a probability.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{0}` is not a probability: expected 0 to 1, or 0% to 100%, for example 1%")]
pub struct InvalidProbability(String);

impl Probability {
    pub const ZERO: Probability = Probability(0.0);
    pub const ONE: Probability = Probability(1.0);

    /// Errors: the value is not in 0..=1.
    pub fn new(value: f64) -> Result<Self, InvalidProbability> {
        match (0.0..=1.0).contains(&value) {
            true => Ok(Self(value)),
            false => Err(InvalidProbability(value.to_string())),
        }
    }

    pub fn get(self) -> f64 {
        self.0
    }

    /// Decides one event. Draws no number if the result is certain.
    pub(crate) fn happens(self, random: &mut Random) -> bool {
        self.0 > 0.0 && (self.0 >= 1.0 || random.unit() < self.0)
    }
}

impl FromStr for Probability {
    type Err = InvalidProbability;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidProbability(text.to_owned());
        let (number, divisor) = match text.trim().strip_suffix('%') {
            Some(percent) => (percent.trim_end(), 100.0),
            None => (text.trim(), 1.0),
        };
        Self::new(number.parse::<f64>().map_err(|_| invalid())? / divisor).map_err(|_| invalid())
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0 * 100.0)
    }
}

impl Serialize for Probability {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Probability {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Probability;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a probability such as \"1%\" or 0.01")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Probability, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Probability, E> {
                Probability::new(value).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Probability, E> {
                self.visit_f64(value as f64)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_and_fraction_are_probabilities_from_0_to_1() {
        for (text, value) in [("1%", 0.01), ("0.01", 0.01), ("100 %", 1.0), (" 0 ", 0.0), ("1", 1.0)] {
            assert_eq!(text.parse::<Probability>().expect(text).get(), value, "{text}");
        }
        for text in ["101%", "-0.1", "1.1", "NaN", "", "%", "one"] {
            let error = text.parse::<Probability>().expect_err(text);
            assert!(error.to_string().contains("for example 1%"), "{error}");
        }
    }
}
