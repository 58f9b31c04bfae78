use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize, de};

use crate::Rate;

/// Maximum size of a packet on the link, in bytes: the MTU of Ethernet. Equation 10 counts packets of this size.
pub const MTU_BYTES: u64 = 1500;

/// Limit of a queue, the packet that is being sent included. As text: `100 packets`, `64000 bytes`, or the time that a
/// full queue takes to empty, such as `1s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueLimit {
    Packets(u64),
    Bytes(u64),
    /// Converted to packets: see [`QueueLimit::packets_in`].
    Time(Duration),
}

/// A text is not the limit of a queue.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{0}` is not a queue limit: expected 1 or more, for example `100 packets`, `64000 bytes` or `1s`")]
pub struct InvalidQueueLimit(String);

impl QueueLimit {
    /// Returns the number of packets of 1,500 bytes that a link sends within a time: bandwidth / (8 x MTU) x time,
    /// rounded to the nearest, and at least 1.
    ///
    /// Example: 0.5 Mbit/s and 0.1 s are 4.17 packets, so 4; 1 Mbit/s and 1 s are 83.3, so 83.
    /// Source: Lozano 2013, equation 10.
    pub fn packets_in(rate: Rate, time: Duration) -> u64 {
        let packets = rate.bits_per_s() as f64 / (8.0 * MTU_BYTES as f64) * time.as_secs_f64();
        (packets.round() as u64).max(1)
    }

    /// Returns the limit in packets and in bytes.
    pub(crate) fn resolve(self, rate: Rate) -> (u64, u64) {
        match self {
            Self::Packets(packets) => (packets, u64::MAX),
            Self::Bytes(bytes) => (u64::MAX, bytes),
            Self::Time(time) => (Self::packets_in(rate, time), u64::MAX),
        }
    }
}

impl FromStr for QueueLimit {
    type Err = InvalidQueueLimit;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let number = |unit: &str| text.strip_suffix(unit).and_then(|number| number.trim_end().parse::<u64>().ok());
        let limit = number("packets")
            .or_else(|| number("packet"))
            .map(Self::Packets)
            .or_else(|| number("bytes").map(Self::Bytes))
            .or_else(|| humantime::parse_duration(text).ok().map(Self::Time));
        match limit {
            Some(Self::Packets(1..) | Self::Bytes(1..)) => limit,
            Some(Self::Time(time)) if !time.is_zero() => limit,
            _ => None,
        }
        .ok_or_else(|| InvalidQueueLimit(text.to_owned()))
    }
}

impl fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packets(packets) => write!(f, "{packets} packets"),
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Self::Time(time) => humantime::format_duration(*time).fmt(f),
        }
    }
}

impl Serialize for QueueLimit {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for QueueLimit {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_a_unit_and_are_never_zero() {
        for (text, limit) in [
            ("100 packets", QueueLimit::Packets(100)),
            ("1 packet", QueueLimit::Packets(1)),
            ("64000 bytes", QueueLimit::Bytes(64_000)),
            ("1s", QueueLimit::Time(Duration::from_secs(1))),
            ("100ms", QueueLimit::Time(Duration::from_millis(100))),
        ] {
            assert_eq!(text.parse(), Ok(limit));
            assert_eq!(limit.to_string().parse(), Ok(limit));
        }
        for text in ["0 packets", "0 bytes", "0s", "100", "-1 packets", ""] {
            let error = text.parse::<QueueLimit>().expect_err(text);
            assert!(error.to_string().contains("100 packets"), "{error}");
        }
    }

    #[test]
    fn equation_10_rounds_to_the_nearest_and_never_to_zero() {
        let packets =
            |rate: &str, time| QueueLimit::packets_in(rate.parse().expect("a rate"), Duration::from_millis(time));
        assert_eq!(packets("1Mbit/s", 1000), 83);
        assert_eq!(packets("0.5Mbit/s", 100), 4);
        assert_eq!(packets("5Mbit/s", 10_000), 4167);
        assert_eq!(packets("1kbit/s", 1), 1);
    }
}
