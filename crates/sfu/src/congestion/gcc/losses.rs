use std::time::{Duration, Instant};

use crate::congestion::RATE_MIN;

/// Limit of the rate by losses.
#[derive(Debug, Default)]
pub struct Losses {
    covered: usize,
    lost: usize,
    /// Maximum of the estimate in bit/s. `None`: losses do not limit the estimate.
    pub bound: Option<f64>,
    evaluated: Option<Instant>,
    /// Ratio of lost packets at the last evaluation.
    pub share: Option<f64>,
}

/// Minimum number of packets for a loss ratio. The ratio of fewer packets is chance.
pub const LOSS_PACKETS_MIN: usize = 20;
const LOSS_INTERVAL_MIN: Duration = Duration::from_millis(200);
/// Loss ratios: above `LOSS_HIGH` the bound falls, below `LOSS_LOW` it rises.
pub const LOSS_HIGH: f64 = 0.1;
pub const LOSS_LOW: f64 = 0.02;
const RECOVERY: f64 = 1.08;

impl Losses {
    /// Counts the packets of a report. `covered`: received and lost packets.
    pub fn update(&mut self, covered: usize, lost: usize, rate: f64, rtt: Duration, now: Instant) {
        let lost = lost.min(covered);
        (self.covered, self.lost) = (self.covered + covered, self.lost + lost);
        let since = now.saturating_duration_since(*self.evaluated.get_or_insert(now));
        if self.covered < LOSS_PACKETS_MIN || since < LOSS_INTERVAL_MIN + rtt {
            return;
        }
        let share = self.lost as f64 / self.covered as f64;
        let bound = self.bound.unwrap_or(rate).min(rate);
        if share > LOSS_HIGH {
            self.bound = Some((bound * (1.0 - 0.5 * share)).max(RATE_MIN));
        } else if share < LOSS_LOW && self.bound.is_some() {
            let grown = bound * RECOVERY.powf(since.as_secs_f64().min(1.0)) + 1000.0;
            self.bound = (grown < rate).then_some(grown);
        }
        (self.covered, self.lost, self.evaluated, self.share) = (0, 0, Some(now), Some(share));
    }
}
