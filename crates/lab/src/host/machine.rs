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
    /// CPU of all processes that are not sampled, since the first sample. Threads of the kernel are left out: much of their work is for the
    /// processes that are. What came and went between two samples is missed.
    pub others_s: f64,
    /// Of those processes, the one that has used most CPU since the sample before.
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
            others_s: 0.0,
            busiest_other: None,
        }
    }
}

/// Finds who else is at work, from look to look.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Start and ticks of all processes.
    was: HashMap<u32, (u64, u64)>,
    at_s: f64,
    sum: u64,
}

impl Others {
    /// What all that `is_ours` does not claim have used since the first look, in seconds, and the busiest of them since the last.
    /// `now_s` is of any steady clock.
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
            // Ticks say nothing about a few milliseconds.
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
    fn others_are_neither_ours_nor_the_kernel() {
        let mut others = Others::default();
        let is_ours = |pid: u32| pid == 1;
        let first = [(1, stat(0, false)), (2, stat(0, true)), (3, stat(50, false)), (4, stat(70, false))];
        assert_eq!(others.look(&first, 10.0, is_ours), (0.0, None), "nothing to compare with");
        // A second and a half later; 5 is new.
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
