//! Measures how busy the thread of a shard is: its CPU time, and the delay of a timer.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use millrace_node::Metrics;
use rustix::time::{ClockId, clock_gettime};

use crate::ticks::Ticks;

/// Interval of the measurements. An idle shard takes about 0.3 % of a core with these wake-ups (debug build, busy
/// machine).
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// Measures until the task is dropped. `ticks` has the interval [`INTERVAL`], and its first tick is due at `due`.
pub(super) async fn run(metrics: Arc<Metrics>, ticks: Ticks, mut due: Instant) {
    // The kernel's timer does not drift, so the time of each tick follows from the first.
    while let Ok(merged) = ticks.next().await {
        metrics.loop_lag.add(due.elapsed(), 1);
        due += INTERVAL * u32::try_from(merged).unwrap_or(u32::MAX);
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        metrics.cpu_ns.store(cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64, Relaxed);
    }
}
