//! Scheduling of threads: the CPU time that they used, the time for which they waited for a CPU, and the CPUs on which
//! they may run.

use std::{
    fs,
    ops::AddAssign,
    path::{Path, PathBuf},
};

use anyhow::Context;
use rustix::thread::{CpuSet, Pid, sched_setaffinity};

/// Scheduling times since the start of a thread, or their sum over several threads.
///
/// Source: kernel documentation, "scheduler/sched-stats.rst", `/proc/PID/schedstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulingTime {
    pub cpu_ns: u64,
    /// Time in which a thread was runnable while other threads had the CPU.
    pub waited_ns: u64,
}

impl SchedulingTime {
    /// Reads the times of one thread from its folder, `/proc/PID/task/TID`.
    pub fn read(thread: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(thread.join("schedstat"))?;
        let mut numbers = text.split_whitespace().map(str::parse);
        let mut next = || anyhow::Ok(numbers.next().context("no schedstat")??);
        Ok(Self { cpu_ns: next()?, waited_ns: next()? })
    }

    /// Reads the times of the calling thread.
    pub fn of_this_thread() -> anyhow::Result<Self> {
        Self::read(Path::new("/proc/thread-self"))
    }

    /// Returns the sum over these threads. A thread that has ended since it was listed does not count.
    pub fn of_threads(threads: &[PathBuf]) -> Self {
        let mut sum = Self::default();
        threads.iter().filter_map(|thread| Self::read(thread).ok()).for_each(|time| sum += time);
        sum
    }

    /// Returns the difference from an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            waited_ns: self.waited_ns.saturating_sub(earlier.waited_ns),
        }
    }
}

impl AddAssign for SchedulingTime {
    fn add_assign(&mut self, other: Self) {
        self.cpu_ns += other.cpu_ns;
        self.waited_ns += other.waited_ns;
    }
}

/// Returns the folder of each thread of these processes and of their descendants: `/proc/PID/task/TID`.
///
/// Errors: one of the given processes has ended.
pub fn threads(roots: &[u32]) -> anyhow::Result<Vec<PathBuf>> {
    let mut threads = Vec::new();
    for pid in with_descendants(roots) {
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            threads.push(thread?.path());
        }
    }
    Ok(threads)
}

/// Returns these processes and all their descendants.
pub fn with_descendants(roots: &[u32]) -> Vec<u32> {
    let mut pids = roots.to_vec();
    let mut at = 0;
    while let Some(pid) = pids.get(at) {
        // The file lists only the children that this thread has started.
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        let children: String = children.collect();
        pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        at += 1;
    }
    pids
}

/// Pins the calling thread to these CPUs. Threads and processes that it starts later inherit them.
///
/// Errors: a CPU does not exist.
pub fn pin(cpus: &[usize]) -> anyhow::Result<()> {
    sched_setaffinity(None, &set_of(cpus)).with_context(|| format!("no such CPUs: {cpus:?}"))
}

/// Pins the thread with this id to these CPUs.
///
/// Errors: the thread has ended, or a CPU does not exist.
pub fn pin_thread(thread: i32, cpus: &[usize]) -> anyhow::Result<()> {
    let thread = Pid::from_raw(thread).context("0 is no thread")?;
    sched_setaffinity(Some(thread), &set_of(cpus)).with_context(|| format!("cannot pin a thread to {cpus:?}"))
}

fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_thread_uses_cpu_time() {
        let before = SchedulingTime::of_this_thread().unwrap();
        let began = std::time::Instant::now();
        while SchedulingTime::of_this_thread().unwrap().since(&before).cpu_ns < 1_000_000 {
            assert!(began.elapsed().as_secs() < 20, "no CPU time is counted");
        }
    }

    #[test]
    fn threads_and_children_are_found() {
        let own = std::process::id();
        let this = format!("/proc/{own}/task/{}", rustix::thread::gettid().as_raw_nonzero());
        let found = threads(&[own]).unwrap();
        assert!(found.contains(&PathBuf::from(&this)), "{this} is not among {found:?}");
        assert!(SchedulingTime::of_threads(&found).cpu_ns > 0);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = with_descendants(&[own]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&child.id()), "{} is not among {found:?}", child.id());
    }

    #[test]
    fn thread_is_pinned() {
        std::thread::spawn(|| {
            let allowed = rustix::thread::sched_getaffinity(None).unwrap();
            let cpu = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
            pin(&[cpu]).unwrap();
            assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), 1);
            assert!(pin(&[CpuSet::MAX_CPU - 1]).is_err(), "there are fewer CPUs");
        })
        .join()
        .unwrap();
    }
}
