use std::time::{Duration, Instant};

/// Bandwidth estimates that a client has made itself (REMB). Some clients report one estimate for all streams, others
/// one for each track: the estimates of disjoint sets of streams add up.
#[derive(Debug, Default)]
pub struct ClientEstimates(Vec<ClientEstimate>);

#[derive(Debug)]
struct ClientEstimate {
    /// One bit for each covered stream.
    streams: u64,
    bits_per_s: u64,
    at: Instant,
}

/// An estimate that was not renewed within this time is stale: its track has probably ended. Clients renew estimates
/// once per second at least.
const LIFETIME: Duration = Duration::from_secs(5);

impl ClientEstimates {
    /// Records an estimate, which replaces those that cover one of its streams. Returns the sum in bit/s.
    pub fn update(&mut self, streams: u64, bits_per_s: u64, now: Instant) -> u64 {
        let is_kept =
            |known: &ClientEstimate| known.streams & streams == 0 && now.saturating_duration_since(known.at) < LIFETIME;
        self.0.retain(is_kept);
        self.0.push(ClientEstimate { streams, bits_per_s, at: now });
        self.0.iter().fold(0, |sum, known| sum.saturating_add(known.bits_per_s))
    }

    /// Forgets all estimates, because the bits of the streams have changed.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn estimates_of_disjoint_streams_add_up_while_fresh() {
        let (mut estimates, now) = (ClientEstimates::default(), Instant::now());
        assert_eq!(estimates.update(0b01, 300, now), 300);
        assert_eq!(estimates.update(0b10, 500, now), 800);
        assert_eq!(estimates.update(0b01, 100, now), 600, "a newer one replaces the older one");
        assert_eq!(estimates.update(0b10, u64::MAX, now), u64::MAX, "the sum saturates");
        assert_eq!(estimates.update(0b11, 700, now), 700, "it covers both");
        assert_eq!(estimates.update(0b100, 40, now + LIFETIME - Duration::from_secs(1)), 740);
        assert_eq!(estimates.update(0b100, 40, now + LIFETIME), 40, "the older one is stale");
        estimates.clear();
        assert_eq!(estimates.update(0b1000, 0, now), 0);
    }
}
