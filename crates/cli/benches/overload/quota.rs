//! A part of a CPU for one thread: a control group with its own quota.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use millrace_lab::host::scheduling::{SchedulingTime, pin_thread};

/// Path of the cpu controller of control groups, version 1. Only version 1 allows the threads of one process in
/// different groups.
const CONTROLLER: &str = "/sys/fs/cgroup/cpu";
/// A short period, so that a thread without quota stalls for milliseconds and not for a tenth of a second.
const PERIOD: Duration = Duration::from_millis(10);
/// CPU weight of a capped thread. It has priority over the generator on its CPU, so that only its quota limits it. The
/// default is 1024.
const SHARES: u32 = 20 * 1024;

/// A thread in its own control group, on one CPU. Lasts until the thread has ended.
pub struct Capped {
    thread: PathBuf,
    group: PathBuf,
}

/// CPU time and throttling of a capped thread so far.
#[derive(Clone, Copy)]
pub struct Used {
    pub cpu: Duration,
    /// Time during which the thread had work but no quota left.
    pub throttled: Duration,
}

/// Returns the reason why threads cannot be capped here, or `None`.
pub fn unavailable() -> Option<String> {
    let group = Path::new(CONTROLLER).join(format!("millrace-bench-{}", std::process::id()));
    let tried = fs::create_dir(&group)
        .and_then(|()| fs::metadata(group.join("cpu.cfs_quota_us")))
        .and_then(|_| fs::metadata(group.join("cpu.idle")))
        .and_then(|_| fs::metadata(group.join("tasks")));
    let _ = fs::remove_dir(&group);
    let error = tried.err()?;
    Some(format!(
        "{}: {error} (needs the cpu controller of cgroup version 1 on Linux 5.15 or later, and to be root)",
        group.display()
    ))
}

impl Capped {
    /// Limits the thread of `/proc/PID/task/TID` to `cores` of this CPU.
    pub fn new(thread: PathBuf, cpu: usize, cores: f64) -> anyhow::Result<Self> {
        let period_us = PERIOD.as_micros() as f64;
        let quota_us = (period_us * cores).round();
        let rules =
            [("cpu.cfs_period_us", period_us), ("cpu.cfs_quota_us", quota_us), ("cpu.shares", f64::from(SHARES))];
        Self::with(thread, cpu, &rules)
    }

    /// Gives the thread only the CPU time that no other thread wants.
    pub fn last(thread: PathBuf, cpu: usize) -> anyhow::Result<Self> {
        Self::with(thread, cpu, &[("cpu.idle", 1.0)])
    }

    fn with(thread: PathBuf, cpu: usize, rules: &[(&str, f64)]) -> anyhow::Result<Self> {
        let id = thread.file_name().and_then(|id| id.to_str()?.parse().ok()).context("not a thread")?;
        pin_thread(id, &[cpu])?;
        let group = Path::new(CONTROLLER).join(format!("millrace-bench-{}-{id}", std::process::id()));
        fs::create_dir(&group)?;
        let capped = Self { thread, group };
        for (file, value) in rules.iter().chain(&[("tasks", f64::from(id))]) {
            let written = fs::write(capped.group.join(file), value.to_string());
            written.with_context(|| format!("cannot set {file} to {value}"))?;
        }
        Ok(capped)
    }

    pub fn used(&self) -> anyhow::Result<Used> {
        let cpu_ns = SchedulingTime::read(&self.thread)?.cpu_ns;
        let stat = fs::read_to_string(self.group.join("cpu.stat"))?;
        let throttled = stat.lines().find_map(|line| line.strip_prefix("throttled_time "));
        let throttled_ns = throttled.context("no throttled_time")?.parse()?;
        Ok(Used { cpu: Duration::from_nanos(cpu_ns), throttled: Duration::from_nanos(throttled_ns) })
    }
}

impl Drop for Capped {
    fn drop(&mut self) {
        // An empty group that remains because the run was killed does no harm.
        let _ = fs::remove_dir(&self.group);
    }
}
