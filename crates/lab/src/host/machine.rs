//! Resource use of the whole machine.

use std::{collections::HashMap, fs};

use serde::{Deserialize, Serialize};

use super::{
    proc::{self, Pressure, Stat},
    process::tick_ns,
};

/// State of the machine at one moment. Values that end in `_s` or `_us` are counters since boot, unless noted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineSample {
    pub cores: Vec<CoreSample>,
    /// Percentage of the last ten seconds in which at least one task waited for a CPU. `None` if the kernel does not
    /// report this.
    pub pressure_avg10: Option<f64>,
    pub pressure_total_us: Option<u64>,
    pub tcp_memory_bytes: u64,
    /// Sockets in use, and sockets in TIME-WAIT.
    pub tcp_in_use: u64,
    pub tcp_time_wait: u64,
    /// CPU time of all processes that are not sampled, since the first sample.
    ///
    /// Kernel threads are excluded, because much of their work is for the sampled processes. Processes that start and
    /// end between two samples are missed.
    pub others_s: f64,
    /// The process among these that used the most CPU since the previous sample.
    pub busiest_other: Option<Busy>,
}

/// Counters of one core. Resolution: one kernel tick, 10 ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreSample {
    pub busy_s: f64,
    /// Time given to other guests while this core had work.
    pub steal_s: f64,
    pub all_s: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    pub pid: u32,
    pub name: String,
    /// CPU use in cores: 0.5 is half a core.
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
            others_s: 0.0,
            busiest_other: None,
        }
    }
}

/// Measures the CPU use of all other processes between calls of [`Others::look`].
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Start time and CPU ticks of all processes at the previous call.
    was: HashMap<u32, (u64, u64)>,
    at_s: f64,
    sum: u64,
}

impl Others {
    /// Returns the CPU seconds of all processes not matched by `is_ours` since the first call, and the busiest of
    /// them since the last call.
    ///
    /// Units: `now_s` is in seconds of any steady clock.
    pub fn look(&mut self, all: &[(u32, Stat)], now_s: f64, is_ours: impl Fn(u32) -> bool) -> (f64, Option<Busy>) {
        let is_first = self.was.is_empty();
        let (tick_s, passed_s) = (tick_ns() as f64 / 1e9, now_s - self.at_s);
        let ticks_of = |stat: &Stat| stat.user + stat.system;
        let used = |pid: u32, stat: &Stat| {
            let before = self.was.get(&pid).filter(|(started, _)| *started == stat.started);
            ticks_of(stat).saturating_sub(before.map_or(0, |(_, ticks)| *ticks))
        };
        let mut busiest: Option<(u64, u32, &Stat)> = None;
        for (pid, stat) in all.iter().filter(|(pid, stat)| !is_first && !stat.is_kernel && !is_ours(*pid)) {
            let ticks = used(*pid, stat);
            self.sum += ticks;
            if busiest.is_none_or(|(most, ..)| ticks > most) {
                busiest = Some((ticks, *pid, stat));
            }
        }
        let busiest = busiest.filter(|_| passed_s > 0.0).map(|(ticks, pid, stat)| Busy {
            pid,
            name: stat.name.clone(),
            // Ticks are too coarse for a few milliseconds.
            cores: ticks as f64 * tick_s / passed_s.max(0.5),
        });
        self.was = all.iter().map(|(pid, stat)| (*pid, (stat.started, ticks_of(stat)))).collect();
        self.at_s = now_s;
        (self.sum as f64 * tick_s, busiest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(user: u64, is_kernel: bool) -> Stat {
        let mut stat = Stat::read(std::process::id()).unwrap();
        (stat.name, stat.user, stat.system, stat.is_kernel) = (format!("used {user}"), user, 0, is_kernel);
        stat
    }

    #[test]
    fn other_processes_exclude_ours_and_the_kernel() {
        let mut others = Others::default();
        let is_ours = |pid: u32| pid == 1;
        let first = [(1, stat(0, false)), (2, stat(0, true)), (3, stat(50, false)), (4, stat(70, false))];
        assert_eq!(others.look(&first, 10.0, is_ours), (0.0, None), "nothing to compare with");
        // 1.5 seconds later. Process 5 is new.
        let then = [
            (1, stat(999, false)),
            (2, stat(999, true)),
            (3, stat(80, false)),
            (4, stat(80, false)),
            (5, stat(15, false)),
        ];
        let (used_s, busiest) = others.look(&then, 11.5, is_ours);
        let tick_s = tick_ns() as f64 / 1e9;
        assert!((used_s - 55.0 * tick_s).abs() < 1e-9, "{used_s}");
        let busiest = busiest.unwrap();
        assert_eq!((busiest.pid, busiest.name.as_str()), (3, "used 80"));
        assert!((busiest.cores - 30.0 * tick_s / 1.5).abs() < 1e-9);
        assert!((others.look(&then, 12.0, is_ours).0 - used_s).abs() < 1e-9);
    }
}
