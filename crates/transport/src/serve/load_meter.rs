//! Measures how busy the thread of a shard is: its CPU time, and the delay of a timer.

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use millrace_node::Metrics;
use rustix::time::{ClockId, clock_gettime};

/// Interval of the measurements. They use the timer of the heartbeats: a timer of their own with ten ticks per second
/// took 0.3 % of a core on an idle shard.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// Measures at a tick that was due at `due` and stands for `merged` ticks. Returns the time of the next tick. The
/// kernel's timer does not drift, so this time follows from the last one.
pub(super) fn measure(metrics: &Metrics, due: Instant, merged: u64) -> Instant {
    metrics.loop_lag.add(due.elapsed(), 1);
    let cpu = clock_gettime(ClockId::ThreadCPUTime);
    metrics.cpu_ns.store(cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64, Relaxed);
    due + INTERVAL * u32::try_from(merged).unwrap_or(u32::MAX)
}
