//! Raises the limits of this process as far as the user is allowed to.

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getpriority_process, getrlimit, setpriority_process, setrlimit};

use super::proc;

/// Nice value of servers and generators: a higher priority than normal processes, but a lower one than the kernel
/// needs.
const NICE: i32 = -10;
/// Nice value of an emulated link. The link needs little CPU, and is late if a generator on the same CPU goes first.
const NICE_OF_LINKS: i32 = -15;

/// Raises the limit of open descriptors to at least `wanted`, for this process and its children. Root may exceed the
/// hard limit, up to `fs.nr_open`.
///
/// Errors: the system allows fewer.
pub fn raise_descriptors(wanted: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    if enough(limit.current) {
        return Ok(());
    }
    let maximum = if enough(limit.maximum) { limit.maximum } else { Some(wanted) };
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).with_context(|| {
        format!(
            "{wanted} descriptors are needed, {} are allowed; `ulimit -Hn {wanted}` as root raises that",
            limit.maximum.unwrap_or_default()
        )
    })
}

/// Returns the memory of this machine.
///
/// Errors: `/proc/meminfo` cannot be read.
pub fn memory_bytes() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    proc::number(&text, "MemTotal").context("no MemTotal in /proc/meminfo")
}

/// Raises the priority of this thread and its children, and returns the previous nice value. Returns `None`, without
/// a change, if this is not allowed.
pub fn raise_priority() -> Option<i32> {
    let before = getpriority_process(None).ok()?;
    setpriority_process(None, NICE.min(before)).ok().map(|()| before)
}

/// Raises the priority of this thread above that of servers and generators, if this is allowed.
pub fn raise_priority_of_link() {
    let _ = setpriority_process(None, NICE_OF_LINKS);
}

/// Restores the nice value that [`raise_priority`] returned.
pub fn restore_priority(before: Option<i32>) {
    let _ = before.map(|before| setpriority_process(None, before));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_limit_is_raised_within_the_system_limit() {
        let now = getrlimit(Resource::Nofile).current.expect("a limit");
        raise_descriptors(now).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, Some(now), "enough is left alone");
        let error = raise_descriptors(1 << 40).unwrap_err().to_string();
        assert!(error.contains("1099511627776 descriptors are needed"), "{error}");
    }

    #[test]
    fn priority_is_restored() {
        std::thread::spawn(|| {
            let before = getpriority_process(None).unwrap();
            restore_priority(raise_priority());
            assert_eq!(getpriority_process(None).unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
