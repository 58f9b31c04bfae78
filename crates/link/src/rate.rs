use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize, de};

/// Units of a rate, the largest first.
const UNITS: [(&str, f64); 4] = [("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)];
const BITS_PER_S_MAX: f64 = 1e12;

/// Rate of a link in bits per second, 1 to 10^12. As text: `10Mbit/s`, `750 kbit/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

/// A text is not a rate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{0}` is not a rate: expected 1 bit/s to 1000 Gbit/s, for example 10Mbit/s")]
pub struct InvalidRate(String);

impl Rate {
    /// Errors: the rate is not in 1..=10^12.
    pub fn from_bits_per_s(bits_per_s: u64) -> Result<Self, InvalidRate> {
        match (1..=BITS_PER_S_MAX as u64).contains(&bits_per_s) {
            true => Ok(Self(bits_per_s)),
            false => Err(InvalidRate(format!("{bits_per_s} bit/s"))),
        }
    }

    pub fn bits_per_s(self) -> u64 {
        self.0
    }

    /// Returns the time that a number of bytes takes.
    pub fn time_of(self, bytes: u64) -> Duration {
        Duration::from_nanos((u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.0)) as u64)
    }
}

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rate = || {
            let (unit, factor) = UNITS.iter().find(|(unit, _)| text.trim_end().ends_with(unit))?;
            let number = text.trim().strip_suffix(unit)?.trim_end().parse::<f64>().ok()?;
            let bits_per_s = (number * factor).round();
            (1.0..=BITS_PER_S_MAX).contains(&bits_per_s).then_some(Self(bits_per_s as u64))
        };
        rate().ok_or_else(|| InvalidRate(text.to_owned()))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits_per_s = self.0 as f64;
        let (unit, factor) = UNITS.iter().find(|(_, factor)| bits_per_s >= *factor).unwrap_or(&UNITS[3]);
        write!(f, "{}{unit}", bits_per_s / factor)
    }
}

impl Serialize for Rate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_unit_and_are_written_as_they_are_read() {
        for (text, bits_per_s, shown) in [
            ("10Mbit/s", 10_000_000, "10Mbit/s"),
            ("1.10 Mbit/s", 1_100_000, "1.1Mbit/s"),
            ("750kbit/s", 750_000, "750kbit/s"),
            ("8bit/s", 8, "8bit/s"),
            ("1Gbit/s", 1_000_000_000, "1Gbit/s"),
        ] {
            let rate: Rate = text.parse().expect(text);
            assert_eq!((rate.bits_per_s(), rate.to_string()), (bits_per_s, shown.to_owned()));
        }
        for text in ["10", "10MB/s", "0bit/s", "-1Mbit/s", "2000Gbit/s", "NaNbit/s", "Mbit/s", ""] {
            let error = text.parse::<Rate>().expect_err(text);
            assert!(error.to_string().contains("for example 10Mbit/s"), "{error}");
        }
    }

    #[test]
    fn time_of_a_packet() {
        let rate: Rate = "1Mbit/s".parse().expect("a rate");
        assert_eq!(rate.time_of(1500), Duration::from_millis(12));
    }
}
