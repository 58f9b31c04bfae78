//! CPU time and memory used by the generator itself.

use std::{fs, path::PathBuf};

use anyhow::Context;

use crate::{
    host::{process::read_pss, scheduling::SchedulingTime},
    recording::Usage,
};

/// Returns the usage of these threads together. The sum of CPU time is exact. Its division into user and system time
/// has only the resolution of the clock tick.
pub fn of_threads(threads: &[u32]) -> anyhow::Result<Usage> {
    let mut usage = Usage::default();
    for thread in threads {
        let folder = folder(*thread);
        let cpu_s = SchedulingTime::read(&folder)?.cpu_ns as f64 / 1e9;
        let stat = fs::read_to_string(folder.join("stat"))?;
        let (_, fields) = stat.rsplit_once(") ").context("no stat")?;
        let ticks = |field: usize| fields.split(' ').nth(field).and_then(|text| text.parse::<f64>().ok());
        let (user, system) = ticks(11).zip(ticks(12)).context("no times in stat")?;
        let user_share = if user + system > 0.0 { user / (user + system) } else { 1.0 };
        usage.cpu_user_s += cpu_s * user_share;
        usage.cpu_system_s += cpu_s * (1.0 - user_share);
        let status = fs::read_to_string(folder.join("status"))?;
        let switches = status.lines().filter(|line| line.contains("ctxt_switches"));
        usage.context_switches +=
            switches.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(usage)
}

/// Returns the usage of these threads, with the memory and descriptors of the whole process.
pub fn of_generator(threads: &[u32]) -> anyhow::Result<Usage> {
    let pss_bytes = read_pss(std::process::id()).context("no Pss")?;
    let descriptors = fs::read_dir("/proc/self/fd")?.count() as u64;
    Ok(Usage { pss_bytes, descriptors, ..of_threads(threads)? })
}

/// Returns the folder of a thread of this process.
pub fn folder(thread: u32) -> PathBuf {
    format!("/proc/self/task/{thread}").into()
}
