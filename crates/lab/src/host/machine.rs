//! What the whole machine does.

use std::{collections::HashMap, fs};

use serde::{Deserialize, Serialize};

use super::{
    proc::{self, Pressure, Stat},
    process::tick_ns,
};

/// The machine at one moment. What ends in `_s`, `_us` counts up from boot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineSample {
    pub cores: Vec<CoreSample>,
    /// Percent of the last ten seconds in which something waited for a CPU. None where the kernel does not tell.
    pub pressure_avg10: Option<f64>,
    pub pressure_total_us: Option<u64>,
    pub tcp_memory_bytes: u64,
    /// Sockets in use and in TIME-WAIT.
    pub tcp_in_use: u64,
    pub tcp_time_wait: u64,
    /// Of the processes that are not sampled, the one that has used most CPU since the sample before.
    pub busiest_other: Option<Busy>,
}

/// Exact to the tick of the kernel, 10 ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreSample {
    pub busy_s: f64,
    /// Given to other guests while this core had work.
    pub steal_s: f64,
    pub all_s: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    pub pid: u32,
    pub name: String,
    /// Of one core: 0.5 is half of it.
    pub cores: f64,
}

impl MachineSample {
    pub(super) fn read() -> MachineSample {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let tick_s = tick_ns() as f64 / 1e9;
        let core = |core: &proc::Core| CoreSample {
            busy_s: core.busy as f64 * tick_s,
            steal_s: core.steal as f64 * tick_s,
            all_s: core.all as f64 * tick_s,
        };
        let sockets = read("/proc/net/sockstat");
        let tcp = |key: &str| proc::tcp(&sockets, key).unwrap_or_default();
        let pressure = Pressure::read();
        MachineSample {
            cores: proc::cores(&read("/proc/stat")).iter().map(core).collect(),
            pressure_avg10: pressure.map(|pressure| pressure.avg10),
            pressure_total_us: pressure.map(|pressure| pressure.total_us),
            tcp_memory_bytes: tcp("mem") * rustix::param::page_size() as u64,
            tcp_in_use: tcp("inuse"),
            tcp_time_wait: tcp("tw"),
            busiest_other: None,
        }
    }
}

/// Finds who else is at work, from sample to sample.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Start and ticks of all processes.
    was: HashMap<u32, (u64, u64)>,
    at_s: f64,
}

impl Others {
    /// The busiest since the last call of those that `is_ours` does not claim; none at the first call. `now_s` is of any steady clock.
    pub fn busiest(&mut self, all: &[(u32, Stat)], now_s: f64, is_ours: impl Fn(u32) -> bool) -> Option<Busy> {
        let passed_s = now_s - self.at_s;
        let ticks_of = |stat: &Stat| stat.user + stat.system;
        let used = |(pid, stat): &(u32, Stat)| {
            let (started, ticks) = self.was.get(pid).copied().unwrap_or((stat.started, 0));
            ticks_of(stat).saturating_sub(if started == stat.started { ticks } else { 0 })
        };
        let busiest = all.iter().filter(|(pid, _)| !is_ours(*pid)).max_by_key(|process| used(process));
        let busiest = busiest.filter(|_| !self.was.is_empty() && passed_s > 0.0).map(|process| Busy {
            pid: process.0,
            name: process.1.name.clone(),
            cores: used(process) as f64 * tick_ns() as f64 / 1e9 / passed_s,
        });
        self.was = all.iter().map(|(pid, stat)| (*pid, (stat.started, ticks_of(stat)))).collect();
        self.at_s = now_s;
        busiest
    }
}
