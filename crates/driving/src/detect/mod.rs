//! Detectors. Each reads records in order and returns at most one event per record.

mod accident;
mod diagnostics;
mod gear;
mod maneuver;
mod sustained;

use crate::Thresholds;

pub use accident::Accident;
pub use diagnostics::Diagnostics;
pub use gear::Gears;
pub use maneuver::{Limits, Maneuver};
pub use sustained::{Hold, Sustained};

/// Returns the limits of a maneuver that begins at `enter` m/s².
pub fn maneuver_limits(enter: f64, plausible_max: f64, thresholds: &Thresholds) -> Limits {
    let ms = |seconds: f64| (seconds * 1000.0) as u64;
    Limits {
        enter,
        plausible_max,
        hysteresis: thresholds.hysteresis,
        merge_ms: ms(thresholds.merge_s),
        cool_down_ms: ms(thresholds.cool_down_s),
    }
}
