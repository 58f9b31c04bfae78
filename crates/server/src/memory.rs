//! Memory limit of the whole process, and the actions taken when memory use approaches it.
//!
//! ```text
//!   used, of limits.memory_bytes_max
//!   ──────── 75 % ───────────── 85 % ───────────── 92 % ─────────────►
//!    normal   │ shrink           │ and refuse       │ and refuse
//!             │ histories, spare │ publications     │ connections
//! ```
//!
//! Each level ends 5 % below the mark at which it begins. Histories, logs and client queues can grow very fast, so each
//! has a limit of its own that it never exceeds. The levels are for all other memory, and for memory kept by the
//! allocator.

use std::{
    fs,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use millrace_engine::Engine;
use millrace_transport::{Limits, limits::Pressure};

use crate::{Config, config::MEMORY_BYTES_MIN};

/// Minimum and maximum interval between two checks. A check reads one small file, which takes 0.1 ms.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(100);
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Maximum growth of memory use caused by clients, in bytes per second. With more memory free, the next check may be
/// later.
const GROWTH_PER_S_MAX: f64 = (2u64 << 30) as f64;
/// Minimum interval between two shrinks. The allocator returns freed memory to the system with a delay; a sooner shrink
/// would free the same excess twice.
const SETTLE: Duration = Duration::from_secs(10);
/// Memory of the program itself, its threads and their buffers, in bytes.
const BASE_BYTES: usize = 24 << 20;
/// Mark at which each level begins, in percent of the limit. A level ends `ENDS_BELOW` percent below its mark.
const BEGINS: [(Pressure, usize); 3] =
    [(Pressure::Shrink, 75), (Pressure::RefusePublications, 85), (Pressure::RefuseConnections, 92)];
const ENDS_BELOW: usize = 5;
/// Target of shrinking, in percent of the limit.
const SHRINK_TARGET: usize = 70;

/// Sets the memory limit if it is 0, and caps the limits of histories, logs and client queues at a share of it.
pub fn apportion(config: &mut Config) {
    if config.limits.memory_bytes_max == 0 {
        config.limits.memory_bytes_max = (available() / 4 * 3).max(MEMORY_BYTES_MIN);
    }
    let shared = config.limits.memory_bytes_max.saturating_sub(BASE_BYTES);
    config.engine.history_bytes_max = config.engine.history_bytes_max.min(shared / 2);
    config.limits.logs_bytes_max = config.limits.logs_bytes_max.min(shared / 8);
    if config.limits.pending_bytes_max == 0 {
        config.limits.pending_bytes_max = shared / 8;
    }
}

/// Checks memory use until `stop` receives a message or its sender is dropped.
pub fn watch(bytes_max: usize, limits: &Limits, engine: &Arc<dyn Engine>, stop: &Receiver<()>) {
    let mut freed: Option<Instant> = None;
    let mut pause = CHECK_INTERVAL_MIN;
    while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(pause) {
        let Some(used) = used() else { return };
        pause = until_next_check(used, bytes_max);
        let was = limits.pressure();
        let pressure = next(was, used, bytes_max);
        if pressure != was {
            limits.set_pressure(pressure);
            tracing::info!(used, bytes_max, pressure = ?pressure, "memory pressure changed");
        }
        let settled = freed.is_none_or(|at| at.elapsed() > SETTLE);
        if pressure >= Pressure::Shrink && settled {
            engine.make_room(used - bytes_max / 100 * SHRINK_TARGET);
            freed = Some(Instant::now());
        }
    }
}

/// Returns the interval until the next check: at most the time in which the fastest growth reaches the first mark.
fn until_next_check(used: usize, bytes_max: usize) -> Duration {
    let (_, begins) = BEGINS[0];
    let left = (bytes_max / 100 * begins).saturating_sub(used);
    Duration::from_secs_f64(left as f64 / GROWTH_PER_S_MAX).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX)
}

/// Returns the next pressure level. A level begins at once, but ends only some percent below its mark.
fn next(was: Pressure, used: usize, bytes_max: usize) -> Pressure {
    let percent = used / (bytes_max / 100).max(1);
    let holds = |(pressure, begins): &&(Pressure, usize)| {
        percent >= if was >= *pressure { begins - ENDS_BELOW } else { *begins }
    };
    BEGINS.iter().rev().find(holds).map_or(Pressure::None, |(pressure, _)| *pressure)
}

/// Returns the anonymous resident memory of this process, without mapped files. Source: proc(5), `/proc/pid/status`.
fn used() -> Option<usize> {
    fs::read_to_string("/proc/self/status").ok().and_then(|text| bytes(&text, "RssAnon:"))
}

/// Returns the resident memory of this process in bytes. Source: proc(5), `/proc/pid/status`.
pub fn resident() -> Option<usize> {
    fs::read_to_string("/proc/self/status").ok().and_then(|text| bytes(&text, "VmRSS:"))
}

/// Returns the memory available to this process: that of the machine, or the limit of its control group if that is
/// lower.
fn available() -> usize {
    let machine =
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| bytes(&text, "MemTotal:")).unwrap_or(1 << 30);
    let group = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<usize>().ok();
    // In a container the process's own group is the root that it sees. The paths are those of cgroup versions 2 and 1.
    let group = group("/sys/fs/cgroup/memory.max").or_else(|| group("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    group.map_or(machine, |group| group.min(machine))
}

/// Parses the bytes of a line such as `MemTotal:   2048 kB`.
fn bytes(text: &str, name: &str) -> Option<usize> {
    let kib = text.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?;
    Some(kib.parse::<usize>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_levels_begin_and_end_at_their_marks() {
        let steps = |percents: &[usize]| {
            let mut pressure = Pressure::None;
            let step = |percent: &usize| {
                pressure = next(pressure, percent * 1_000_000, 100_000_000);
                pressure as usize
            };
            percents.iter().map(step).collect::<Vec<_>>()
        };
        assert_eq!(steps(&[74, 75, 74, 70, 69, 74]), [0, 1, 1, 1, 0, 0]);
        assert_eq!(steps(&[85, 84, 80, 79, 92, 87, 86, 60]), [2, 2, 2, 1, 3, 3, 2, 0]);
        assert_eq!(steps(&[99, 0]), [3, 0]);
    }

    #[test]
    fn less_free_memory_means_earlier_check() {
        let pause = |used: usize, max: usize| until_next_check(used << 20, max << 20).as_millis();
        assert_eq!([pause(20, 64), pause(60, 64), pause(100, 16_000), pause(15_000, 16_000)], [100, 100, 1000, 100]);
        assert_eq!(pause(5_000, 8_000), 488, "a thousand megabytes below 75 %");
    }

    #[test]
    fn limits_are_capped_at_share_of_memory() {
        let mut config = Config::default();
        config.limits.memory_bytes_max = 64 << 20;
        apportion(&mut config);
        let parts = [config.engine.history_bytes_max, config.limits.logs_bytes_max, config.limits.pending_bytes_max];
        assert_eq!(parts, [20 << 20, 5 << 20, 5 << 20]);
        let mut config = Config::default();
        config.limits.memory_bytes_max = 64 << 30;
        let set = config.clone();
        apportion(&mut config);
        assert_eq!(config.engine, set.engine, "with enough memory, the settings apply");
        assert_eq!(config.limits.logs_bytes_max, set.limits.logs_bytes_max);
        let mut config = Config::default();
        apportion(&mut config);
        assert!(config.limits.memory_bytes_max >= MEMORY_BYTES_MIN);
    }

    #[test]
    fn memory_use_is_read_from_proc() {
        assert!((100_000..1 << 40).contains(&used().unwrap()));
        assert_eq!(bytes("MemFree: 1 kB\nMemTotal:       2048 kB\n", "MemTotal:"), Some(2 << 20));
    }
}
