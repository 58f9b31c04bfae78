//! What a process may, raised as far as this user may raise it.

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getpriority_process, getrlimit, setpriority_process, setrlimit};

/// Above what else runs on a machine, as far below what the kernel needs.
const NICE: i32 = -10;

/// Allows this process, and those that it starts, at least so many descriptors. Root may go beyond the hard limit, up to `fs.nr_open`.
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

/// Lets this thread, and what it starts, go before what else runs here; or does nothing, if that is not allowed. Returns how it was.
pub fn raise_priority() -> Option<i32> {
    let before = getpriority_process(None).ok()?;
    setpriority_process(None, NICE.min(before)).ok().map(|()| before)
}

/// As it was before.
pub fn restore_priority(before: Option<i32>) {
    let _ = before.map(|before| setpriority_process(None, before));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_raised_to_what_is_wanted_and_no_further_than_the_system_allows() {
        let now = getrlimit(Resource::Nofile).current.expect("a limit");
        raise_descriptors(now).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, Some(now), "enough is left alone");
        let error = raise_descriptors(1 << 40).unwrap_err().to_string();
        assert!(error.contains("1099511627776 descriptors are needed"), "{error}");
    }

    #[test]
    fn a_priority_comes_back() {
        std::thread::spawn(|| {
            let before = getpriority_process(None).unwrap();
            restore_priority(raise_priority());
            assert_eq!(getpriority_process(None).unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
