//! Runs a simulated kit in real time.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use millrace_simulate::earl::{Kit, Report};
use tokio::time::{Interval, MissedTickBehavior};

/// Real time between two looks at the kit.
const TICK: Duration = Duration::from_millis(10);

/// Returns the times at which a simulation advances.
pub fn ticks() -> Interval {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Runs the kit, and calls `report` with each report, until an error occurs.
///
/// Errors: the firmware stopped, or `report` failed.
pub async fn operate(kit: &RefCell<Kit>, report: impl Fn(Report) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let (started, mut ticks) = (Instant::now(), ticks());
    loop {
        ticks.tick().await;
        let reports = kit.borrow_mut().advance(started.elapsed())?;
        reports.into_iter().try_for_each(&report)?;
    }
}
