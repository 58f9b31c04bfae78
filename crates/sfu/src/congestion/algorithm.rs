use std::{fmt, str::FromStr, time::Instant};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{CongestionController, gcc::Gcc, nada::Nada, rrtcc};

/// Congestion control algorithm, chosen by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Algorithm {
    /// Google Congestion Control, as browsers use it.
    #[default]
    Gcc,
    /// Congestion control of browsers in 2013.
    Rrtcc(rrtcc::Config),
    /// Network-assisted dynamic adaptation, RFC 8698.
    Nada,
}

/// No algorithm has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a congestion control algorithm: expected `gcc`, `rrtcc`, `rrtcc-strict` or `nada`")]
pub struct UnknownAlgorithm(String);

impl Algorithm {
    /// Each algorithm that has a name.
    pub const ALL: [Self; 4] =
        [Self::Gcc, Self::Rrtcc(rrtcc::Config::DEFAULT), Self::Rrtcc(rrtcc::Config::STRICT), Self::Nada];

    pub fn name(self) -> &'static str {
        match self {
            Self::Gcc => "gcc",
            Self::Rrtcc(config) if config.is_strict => "rrtcc-strict",
            Self::Rrtcc(_) => "rrtcc",
            Self::Nada => "nada",
        }
    }

    /// Creates a controller with an initial target rate.
    pub fn controller(&self, first_bits_per_s: f64, now: Instant) -> Box<dyn CongestionController> {
        match *self {
            Self::Gcc => Box::new(Gcc::new(first_bits_per_s, now)),
            Self::Rrtcc(config) => Box::new(rrtcc::Controller::new(config, first_bits_per_s, now)),
            Self::Nada => Box::new(Nada::new(first_bits_per_s, now)),
        }
    }
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        known.ok_or_else(|| UnknownAlgorithm(name.chars().take(NAME_CHARS_MAX).collect()))
    }
}

/// Maximum number of characters of a name in an error.
const NAME_CHARS_MAX: usize = 40;

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Algorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Algorithm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn name_selects_its_controller() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
            let controller = algorithm.controller(1e6, Instant::now());
            assert_eq!((controller.name(), controller.bits_per_s()), (algorithm.name(), 1_000_000));
        }
        let error = "cubic".parse::<Algorithm>().expect_err("unknown");
        assert!(error.to_string().contains("`cubic`") && error.to_string().contains("`gcc`"), "{error}");
        let error = "x".repeat(1_000_000).parse::<Algorithm>().expect_err("unknown");
        assert!(error.to_string().len() < 200, "the error stays short");
    }
}
