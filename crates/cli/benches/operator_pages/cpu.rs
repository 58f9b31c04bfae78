//! CPU time of a server by thread.

use std::{collections::HashMap, fs, path::PathBuf};

use millrace_lab::{host::scheduling::SchedulingTime, targets::Server};

/// Prefix of the names of the threads of shards.
const SHARD: &str = "shard-";

/// CPU time of each thread since its start.
pub struct CpuTimes(HashMap<PathBuf, Thread>);

struct Thread {
    is_shard: bool,
    ns: u64,
}

/// CPU time of a period.
#[derive(Clone, Copy, Default)]
pub struct Used {
    pub shards_ns: u64,
    /// The thread of operator requests, and all others.
    pub others_ns: u64,
}

impl CpuTimes {
    /// Errors: the server has ended.
    pub fn read(server: &Server) -> anyhow::Result<Self> {
        let read = |path: PathBuf| {
            // The thread may have ended since it was listed.
            let name = fs::read_to_string(path.join("comm")).ok()?;
            let ns = SchedulingTime::read(&path).ok()?.cpu_ns;
            Some((path, Thread { is_shard: name.starts_with(SHARD), ns }))
        };
        Ok(Self(server.threads()?.into_iter().filter_map(read).collect()))
    }

    /// Returns the time since an earlier reading. A thread that has ended since then does not count.
    pub fn since(&self, earlier: &Self) -> Used {
        let mut used = Used::default();
        for (path, Thread { is_shard, ns }) in &self.0 {
            let ns = ns.saturating_sub(earlier.0.get(path).map_or(0, |thread| thread.ns));
            match is_shard {
                true => used.shards_ns += ns,
                false => used.others_ns += ns,
            }
        }
        used
    }
}
