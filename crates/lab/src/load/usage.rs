//! CPU time and memory used by the generator itself.

use std::fs;

use anyhow::Context;

use crate::recording::Usage;

/// Scheduling times of one thread since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadTime {
    pub cpu_ns: u64,
    /// Time in which the thread was runnable while other threads had the CPU.
    pub waited_ns: u64,
}

impl ThreadTime {
    pub fn read(thread: u32) -> anyhow::Result<Self> {
        let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"))?;
        let mut numbers = text.split_whitespace().map(str::parse);
        let mut next = || anyhow::Ok(numbers.next().context("no schedstat")??);
        Ok(Self { cpu_ns: next()?, waited_ns: next()? })
    }
}

/// Returns the usage of these threads together. The sum of CPU time is exact. Its division into user and system time
/// has only the resolution of the clock tick.
pub fn of_threads(threads: &[u32]) -> anyhow::Result<Usage> {
    let mut usage = Usage::default();
    for thread in threads {
        let cpu_s = ThreadTime::read(*thread)?.cpu_ns as f64 / 1e9;
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat"))?;
        let (_, fields) = stat.rsplit_once(") ").context("no stat")?;
        let ticks = |field: usize| fields.split(' ').nth(field).and_then(|text| text.parse::<f64>().ok());
        let (user, system) = ticks(11).zip(ticks(12)).context("no times in stat")?;
        let user_share = if user + system > 0.0 { user / (user + system) } else { 1.0 };
        usage.cpu_user_s += cpu_s * user_share;
        usage.cpu_system_s += cpu_s * (1.0 - user_share);
        let status = fs::read_to_string(format!("/proc/self/task/{thread}/status"))?;
        let switches = status.lines().filter(|line| line.contains("ctxt_switches"));
        usage.context_switches +=
            switches.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(usage)
}

/// Returns the usage of these threads, with the memory and descriptors of the whole process.
pub fn of_generator(threads: &[u32]) -> anyhow::Result<Usage> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup")?;
    let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
    let pss_kb: u64 = pss.trim().trim_end_matches(" kB").parse()?;
    let descriptors = fs::read_dir("/proc/self/fd")?.count() as u64;
    Ok(Usage { pss_bytes: pss_kb * 1024, descriptors, ..of_threads(threads)? })
}
