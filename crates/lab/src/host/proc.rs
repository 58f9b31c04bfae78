//! Values of `/proc` that the lab needs. The crate `procfs` parses the formats of processes and of pressure.
//!
//! Source: `proc_pid_stat(5)` and related pages; kernel documentation, "filesystems/proc.rst", "accounting/psi.rst".

use std::{fs, io, path::Path};

use procfs::{Current, FromRead, process::StatFlags};

/// Fields of one line of `/proc/PID/stat`. Times are in clock ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct Stat {
    pub name: String,
    pub parent: u32,
    /// A zombie has ended, but its parent has not waited for it yet.
    pub is_zombie: bool,
    /// True for a kernel thread.
    pub is_kernel: bool,
    pub user: u64,
    pub system: u64,
    /// CPU time of ended children that were waited for, including their children.
    pub reaped_user: u64,
    pub reaped_system: u64,
    pub threads: u32,
    /// Start time after boot. Together with the process number, it identifies a process uniquely.
    pub started: u64,
    pub rss_pages: u64,
}

impl Stat {
    pub fn read(pid: u32) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the content of `/proc/PID/stat`. Returns `None` if it is cut off.
    pub fn parse(line: &str) -> Option<Stat> {
        let stat = procfs::process::Stat::from_read(line.as_bytes()).ok()?;
        let ticks = |ticks: i64| ticks.try_into().unwrap_or_default();
        Some(Stat {
            is_zombie: stat.state == 'Z',
            is_kernel: stat.flags & StatFlags::PF_KTHREAD.bits() != 0,
            name: stat.comm,
            parent: stat.ppid.try_into().ok()?,
            user: stat.utime,
            system: stat.stime,
            reaped_user: ticks(stat.cutime),
            reaped_system: ticks(stat.cstime),
            threads: stat.num_threads.try_into().ok()?,
            started: stat.starttime,
            rss_pages: stat.rss,
        })
    }
}

/// Returns all processes, except those that end during the call. Cost: about 20 us per process.
pub fn processes() -> io::Result<Vec<(u32, Stat)>> {
    let numbers = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(numbers.filter_map(|pid| Some((pid, Stat::read(pid)?))).collect())
}

/// Returns the value of `key` in lines of the form `key: value`, including a unit.
pub fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim()))
}

/// Returns the value of `key` as a whole number. A value in `kB` is converted to bytes.
pub fn number(text: &str, key: &str) -> Option<u64> {
    let mut words = field(text, key)?.split_ascii_whitespace();
    let value: u64 = words.next()?.parse().ok()?;
    Some(if words.next() == Some("kB") { value * 1024 } else { value })
}

/// CPU pressure: percentage of the last ten seconds in which processes waited for a CPU, and total waiting time in
/// microseconds since boot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    pub avg10: f64,
    pub total_us: u64,
}

impl Pressure {
    pub fn read() -> Option<Pressure> {
        let some = procfs::CpuPressure::current().ok()?.some;
        Some(Pressure { avg10: some.avg10.into(), total_us: some.total })
    }
}

/// CPU time of one core since boot, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Core {
    pub busy: u64,
    /// Time that the hypervisor gave to other guests while this core had work.
    pub steal: u64,
    pub all: u64,
}

/// Parses the lines `cpuN` of `/proc/stat`.
pub fn cores(text: &str) -> Vec<Core> {
    let line = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        // The line `cpu` without a number is the sum of all cores.
        line.as_bytes().get(3).filter(|byte| byte.is_ascii_digit())?;
        words.next();
        // Fields: user nice system idle iowait irq softirq steal. Guest time is already part of user.
        let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
        let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks.try_into().ok()?;
        let busy = user + nice + system + irq + softirq;
        Some(Core { busy, steal, all: busy + idle + iowait + steal })
    };
    text.lines().filter_map(line).collect()
}

/// Returns the value after `key` in the TCP line of `/proc/net/sockstat`.
pub fn tcp(text: &str, key: &str) -> Option<u64> {
    let mut words = field(text, "TCP")?.split(' ');
    words.find(|word| *word == key)?;
    words.next()?.parse().ok()
}

/// Reads a file with one line and trims it.
pub fn line(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Reads a file in `/proc/sys` by its `sysctl` name.
pub fn sysctl(name: &str) -> Option<String> {
    line(Path::new("/proc/sys").join(name.replace('.', "/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_may_contain_parentheses_and_spaces() {
        let line = "4242 (a) R (b c) S 17 4242 9193 0 -1 4194304 100 2 0 0 11 12 13 14 20 0 5 0 613251 3133440 387 18446744073709551615 1 1 0 0 0 0 0 4096 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.name.as_str(), stat.parent, stat.is_zombie), ("a) R (b c", 17, false));
        assert!(!stat.is_kernel && Stat::parse(&line.replace("4194304", "69238848")).unwrap().is_kernel);
        assert_eq!((stat.user, stat.system, stat.reaped_user, stat.reaped_system), (11, 12, 13, 14));
        assert_eq!((stat.threads, stat.started, stat.rss_pages), (5, 613_251, 387));
        assert_eq!(Stat::parse("4242 (cut off) S 17"), None);
    }

    #[test]
    fn cpu_times_are_parsed_per_core_without_the_total() {
        let text = "cpu  30 0 0 0 0 0 0 0 0 0\ncpu0 10 1 20 100 5 2 3 7 9 0\ncpu11 1 0 1 8 0 0 0 0 0 0\nintr 12 0\n";
        assert_eq!(cores(text), [Core { busy: 36, steal: 7, all: 148 }, Core { busy: 2, steal: 0, all: 10 }]);
    }

    #[test]
    fn socket_counts_are_parsed() {
        let text = "sockets: used 15\nTCP: inuse 1 orphan 0 tw 4 alloc 1 mem 139\nUDP: inuse 0 mem 0\n";
        assert_eq!((tcp(text, "mem"), tcp(text, "tw"), tcp(text, "none")), (Some(139), Some(4), None));
    }

    #[test]
    fn status_fields_are_read_and_converted_to_bytes() {
        let text = "Name:\tcat dog\nThreads:\t3\nPss:                 251 kB\nPss_Anon:   112 kB\n";
        assert_eq!(field(text, "Name"), Some("cat dog"));
        assert_eq!((number(text, "Threads"), number(text, "Pss"), number(text, "Ps")), (Some(3), Some(257_024), None));
    }

    #[test]
    fn own_process_is_listed() {
        let pid = std::process::id();
        let all = processes().unwrap();
        let own = &all.iter().find(|(number, _)| *number == pid).unwrap().1;
        assert!(all.iter().any(|(number, _)| *number == own.parent) || own.parent == 0);
        assert!(own.threads >= 2, "the test runs in a thread of its own");
    }
}
