//! Checks the limits of this machine, and gives the command that changes each one.

use std::{env, fmt, path::Path};

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::{cgroup, proc, provenance};

/// Descriptors of a process that are not connections: files, timers, epoll, and a reserve.
const DESCRIPTORS_BESIDE: u64 = 1024;
/// Memory of a connection for both ends: in the kernel, the generator and a server that uses much memory.
const CONNECTION_BYTES: u64 = 64 << 10;
/// Maximum number of source addresses that the generator may take from 127.0.0.0/8.
const SOURCES_MAX: u64 = 250;
/// Maximum needed length of the accept queue: as many connections as a server accepts in one iteration of its event
/// loop.
const BACKLOG_MAX: u64 = 4096;

/// Result of all checks for a number of connections, with both ends on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    pub connections: u64,
    pub checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    pub what: String,
    pub now: String,
    pub needed: String,
    pub standing: CheckStatus,
    /// Explanation of the check.
    pub why: String,
    /// Shell command that fixes the problem.
    pub fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckStatus {
    Good,
    /// The value limits a run of this size.
    Short,
    /// Missing tool that only some targets or checks need.
    Absent,
    /// The machine does not report this value.
    Unknown,
}

/// Values that the machine reports. `None` if the machine does not report a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    pub descriptors_soft: Option<u64>,
    pub descriptors_hard: Option<u64>,
    pub nr_open: Option<u64>,
    pub file_max: Option<u64>,
    pub ports: Option<(u64, u64)>,
    pub somaxconn: Option<u64>,
    pub syn_backlog: Option<u64>,
    /// TCP memory limits in pages: low, pressure, maximum.
    pub tcp_mem: Option<[u64; 3]>,
    /// Also `None` if connections are not tracked.
    pub conntrack_max: Option<u64>,
    pub cores: Option<u64>,
    /// `None` if CPU is not limited.
    pub cpu_quota: Option<f64>,
    pub memory_available: Option<u64>,
    /// `None` if memory is not limited.
    pub memory_limit: Option<u64>,
    pub congestion: Option<String>,
    pub clock_source: Option<String>,
    pub governor: Option<String>,
    pub has_pressure: bool,
    /// Path of each tool in [`TOOLS`], in the same order. `None` if the tool was not found.
    pub tools: Vec<Option<String>>,
}

/// Tool that a target or a check needs.
pub struct Tool {
    pub name: &'static str,
    pub needed_for: &'static str,
    /// Names in `PATH`, or absolute paths.
    files: &'static [&'static str],
    fix: &'static str,
}

pub const TOOLS: &[Tool] = &[
    Tool {
        name: "node",
        needed_for: "ws, Socket.IO, Engine.IO, SocketCluster",
        files: &["node"],
        fix: "sudo apt-get install -y nodejs",
    },
    Tool {
        name: "npm",
        needed_for: "targets from npm, including Bun",
        files: &["npm"],
        fix: "sudo apt-get install -y npm",
    },
    Tool {
        name: "nginx",
        needed_for: "Nchan",
        files: &["nginx", "/usr/sbin/nginx"],
        fix: "sudo apt-get install -y nginx",
    },
    Tool {
        name: "nginx's nchan module",
        needed_for: "Nchan",
        files: &["/usr/lib/nginx/modules/ngx_nchan_module.so", "/usr/lib64/nginx/modules/ngx_nchan_module.so"],
        fix: "sudo apt-get install -y libnginx-mod-nchan",
    },
    Tool {
        name: "nats-server",
        needed_for: "NATS",
        files: &["nats-server"],
        fix: "sudo apt-get install -y nats-server",
    },
    Tool {
        name: "mosquitto",
        needed_for: "Mosquitto",
        files: &["mosquitto", "/usr/sbin/mosquitto"],
        fix: "sudo apt-get install -y mosquitto",
    },
    Tool { name: "pushpin", needed_for: "Pushpin", files: &["pushpin"], fix: "sudo apt-get install -y pushpin" },
    Tool {
        name: "redis-server",
        needed_for: "several nodes over Redis",
        files: &["redis-server"],
        fix: "sudo apt-get install -y redis-server",
    },
    Tool {
        name: "haproxy",
        needed_for: "several nodes behind a balancer",
        files: &["haproxy", "/usr/sbin/haproxy"],
        fix: "sudo apt-get install -y haproxy",
    },
    Tool {
        name: "chromium",
        needed_for: "viewing reports",
        files: &["chromium", "chromium-browser", "google-chrome"],
        fix: "sudo apt-get install -y chromium",
    },
    Tool {
        name: "wrk",
        needed_for: "checking the load generator (scripts/lab-check-generator.sh)",
        files: &["wrk"],
        fix: "sudo apt-get install -y wrk",
    },
    Tool {
        name: "tcpdump",
        needed_for: "checking byte counts with a capture",
        files: &["tcpdump", "/usr/sbin/tcpdump"],
        fix: "sudo apt-get install -y tcpdump",
    },
];

impl Machine {
    pub fn read() -> Machine {
        let number = |name: &str| proc::sysctl(name)?.parse().ok();
        let numbers = |name: &str| -> Option<Vec<u64>> {
            proc::sysctl(name)?.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
        };
        let limits = getrlimit(Resource::Nofile);
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Machine {
            // For these limits, `None` means unlimited.
            descriptors_soft: Some(limits.current.unwrap_or(u64::MAX)),
            descriptors_hard: Some(limits.maximum.unwrap_or(u64::MAX)),
            nr_open: number("fs.nr_open"),
            file_max: number("fs.file-max"),
            ports: numbers("net.ipv4.ip_local_port_range").and_then(|ports| Some((*ports.first()?, *ports.get(1)?))),
            somaxconn: number("net.core.somaxconn"),
            syn_backlog: number("net.ipv4.tcp_max_syn_backlog"),
            tcp_mem: numbers("net.ipv4.tcp_mem").and_then(|pages| pages.try_into().ok()),
            conntrack_max: number("net.netfilter.nf_conntrack_max"),
            cores: std::thread::available_parallelism().ok().map(|cores| cores.get() as u64),
            cpu_quota: cgroup::cpu_quota(),
            memory_available: proc::number(&meminfo, "MemAvailable"),
            memory_limit: cgroup::memory_limit(),
            congestion: proc::sysctl("net.ipv4.tcp_congestion_control"),
            clock_source: provenance::clock_source(),
            governor: provenance::governor(),
            has_pressure: proc::Pressure::read().is_some(),
            tools: TOOLS.iter().map(|tool| tool.files.iter().find_map(|file| find(file))).collect(),
        }
    }

    /// Checks whether this machine is sufficient for a number of connections with both ends on it.
    pub fn examine(&self, connections: u64) -> Diagnosis {
        let mut checks = self.descriptors(connections);
        checks.extend(self.network(connections));
        checks.extend(self.resources(connections));
        checks.extend(self.measuring());
        checks.extend(self.tools());
        Diagnosis { connections, checks }
    }

    /// Checks the descriptor limits, in the order in which they must be changed: a hard limit cannot exceed
    /// `fs.nr_open`.
    fn descriptors(&self, connections: u64) -> Vec<Check> {
        let (process, both) = (connections + DESCRIPTORS_BESIDE, 2 * (connections + DESCRIPTORS_BESIDE));
        let soft = self.descriptors_soft.map_or(String::new(), |soft| format!("; the soft limit is {}", count(soft)));
        let mut hard = at_least("descriptors per process", self.descriptors_hard, process)
            .why(format!(
                "one per connection{soft}; the lab raises the soft limits of itself and its targets to the hard limit"
            ))
            .fix(format!("sudo prlimit --pid $$ --nofile={process}:{process}"));
        if self.descriptors_hard == Some(u64::MAX) {
            hard.now = "unlimited".to_owned();
        }
        vec![
            at_least("fs.nr_open", self.nr_open, process)
                .why("a hard limit cannot exceed this value")
                .sysctl("fs.nr_open", process),
            at_least("fs.file-max", self.file_max, both)
                .why("two per connection: both ends")
                .sysctl("fs.file-max", both),
            hard,
        ]
    }

    fn network(&self, connections: u64) -> Vec<Check> {
        let ports = self.ports.map(|(first, last)| last.saturating_sub(first) + 1);
        let sources = ports.map(|ports| connections.div_ceil(ports.max(1)));
        let backlog = connections.clamp(128, BACKLOG_MAX);
        let pages = 2 * connections;
        let mut checks = vec![
            at_least("local ports", ports, connections.div_ceil(SOURCES_MAX))
                .why(match sources {
                    Some(sources) => format!(
                        "connections per source address and server port; this run needs {sources} source address{} of 127.0.0.0/8",
                        if sources == 1 { "" } else { "es" }
                    ),
                    None => "connections per source address and server port".to_owned(),
                })
                .fix("sudo sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\""),
            at_least("net.core.somaxconn", self.somaxconn, backlog)
                .why("accept queue, if all connections arrive at once")
                .sysctl("net.core.somaxconn", backlog),
            at_least("net.ipv4.tcp_max_syn_backlog", self.syn_backlog, backlog)
                .why("half-open connections, if all connections arrive at once")
                .sysctl("net.ipv4.tcp_max_syn_backlog", backlog),
            at_least("net.ipv4.tcp_mem, pressure", self.tcp_mem.map(|pages| pages[1]), pages)
                .why("buffer pages of all sockets, above which the kernel shrinks buffers: one per end of a connection")
                .fix(format!("sudo sysctl -w net.ipv4.tcp_mem=\"{pages} {} {}\"", pages + pages / 2, 2 * pages)),
        ];
        if self.conntrack_max.is_some() {
            let check =
                at_least("net.netfilter.nf_conntrack_max", self.conntrack_max, connections + DESCRIPTORS_BESIDE);
            let fixed = check
                .why("tracked connections")
                .sysctl("net.netfilter.nf_conntrack_max", connections + DESCRIPTORS_BESIDE);
            checks.push(fixed);
        }
        checks
    }

    fn resources(&self, connections: u64) -> Vec<Check> {
        let needed = connections * CONNECTION_BYTES;
        let memory = match (self.memory_available, self.memory_limit) {
            (Some(available), Some(limit)) => Some(available.min(limit)),
            (available, limit) => available.or(limit),
        };
        let mut memory_check =
            at_least("memory", memory, needed).why("64 KiB per connection with both ends, an estimate with a reserve");
        (memory_check.now, memory_check.needed) = (memory.map_or_else(unknown, mebibytes), mebibytes(needed));
        let quota_allows = self.cpu_quota.is_none_or(|quota| quota >= 2.0);
        vec![
            at_least("CPU cores", self.cores, 2)
                .why("one core each for the generator and the server; other processes need CPU, too"),
            Check {
                standing: if quota_allows { CheckStatus::Good } else { CheckStatus::Short },
                now: self.cpu_quota.map_or_else(|| "none".to_owned(), |cores| format!("{cores:.2} cores")),
                needed: "none, or 2 cores".to_owned(),
                ..at_least("CPU quota of the cgroup", None, 0)
                    .why("a used-up quota stops all processes of the cgroup until its period ends, which adds latency in steps")
            },
            memory_check,
        ]
    }

    /// Checks the settings that affect the meaning of figures rather than their size.
    fn measuring(&self) -> Vec<Check> {
        let one_of = |what: &str, now: &Option<String>, good: &[&str], needed: &str| Check {
            what: what.to_owned(),
            now: now.clone().unwrap_or_else(unknown),
            needed: needed.to_owned(),
            standing: match now {
                None => CheckStatus::Unknown,
                Some(now) if good.is_empty() || good.contains(&now.as_str()) => CheckStatus::Good,
                Some(_) => CheckStatus::Short,
            },
            why: String::new(),
            fix: None,
        };
        let pressure = self.has_pressure.then(|| "readable".to_owned());
        let mut checks = vec![
            one_of("congestion control", &self.congestion, &[], "the same in all runs")
                .why("compared runs must use the same algorithm")
                .fix("sudo sysctl -w net.ipv4.tcp_congestion_control=cubic"),
            one_of(
                "clock source",
                &self.clock_source,
                &["tsc", "kvm-clock", "arch_sys_counter"],
                "read without a system call",
            )
            .why("the generator reads the clock twice per message")
            .fix("echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource"),
            one_of("/proc/pressure/cpu", &pressure, &[], "readable")
                .why("shows load of other processes before a run; to enable it, boot with psi=1"),
        ];
        if self.governor.is_some() {
            let check = one_of("CPU frequency governor", &self.governor, &["performance"], "performance")
                .why("a core at low frequency responds late");
            checks.push(check.fix("echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"));
        }
        checks
    }

    fn tools(&self) -> Vec<Check> {
        let check = |(tool, found): (&Tool, &Option<String>)| Check {
            what: tool.name.to_owned(),
            now: found.clone().unwrap_or_else(|| "not found".to_owned()),
            needed: "for some".to_owned(),
            standing: if found.is_some() { CheckStatus::Good } else { CheckStatus::Absent },
            why: tool.needed_for.to_owned(),
            fix: Some(tool.fix.to_owned()),
        };
        TOOLS.iter().zip(&self.tools).map(check).collect()
    }
}

fn at_least(what: &str, now: Option<u64>, needed: u64) -> Check {
    Check {
        what: what.to_owned(),
        now: now.map_or_else(unknown, count),
        needed: count(needed),
        standing: match now {
            None => CheckStatus::Unknown,
            Some(now) if now >= needed => CheckStatus::Good,
            Some(_) => CheckStatus::Short,
        },
        why: String::new(),
        fix: None,
    }
}

impl Check {
    fn why(mut self, why: impl Into<String>) -> Check {
        self.why = why.into();
        self
    }

    fn fix(mut self, fix: impl Into<String>) -> Check {
        self.fix = Some(fix.into());
        self
    }

    fn sysctl(self, name: &str, value: u64) -> Check {
        self.fix(format!("sudo sysctl -w {name}={value}"))
    }
}

impl Diagnosis {
    /// Returns whether nothing limits a run of this size. Missing tools that only some targets need do not count.
    pub fn is_good(&self) -> bool {
        self.checks.iter().all(|check| check.standing != CheckStatus::Short)
    }
}

/// Prints one line per check. Below each check that is not good, prints the command that fixes it.
impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |of: fn(&Check) -> &String| self.checks.iter().map(|check| of(check).chars().count()).max().unwrap_or(0);
        let (what, now, needed) = (width(|check| &check.what), width(|check| &check.now), width(|check| &check.needed));
        writeln!(f, "For {} connections, both ends on this machine:\n", count(self.connections))?;
        writeln!(f, "        {:what$}  {:now$}  {:needed$}", "what", "now", "needed")?;
        for check in &self.checks {
            let standing = match check.standing {
                CheckStatus::Good => "ok",
                CheckStatus::Short => "SHORT",
                CheckStatus::Absent => "absent",
                CheckStatus::Unknown => "?",
            };
            writeln!(
                f,
                "{standing:6}  {:what$}  {:now$}  {:needed$}  {}",
                check.what, check.now, check.needed, check.why
            )?;
            let fix = check.fix.as_ref().filter(|_| check.standing != CheckStatus::Good);
            fix.iter().try_for_each(|fix| writeln!(f, "        $ {fix}"))?;
        }
        Ok(())
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", count(bytes >> 20))
}

/// Formats a number with commas between thousands.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits are ASCII")).collect();
    groups.join(",")
}

/// Returns the path of a tool. `file` is an absolute path or a name in `PATH`.
fn find(file: &str) -> Option<String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|folder| folder.join(file));
    let found = if file.starts_with('/') {
        Some(Path::new(file).to_owned()).filter(|path| path.is_file())
    } else {
        places.find(|path| path.is_file())
    };
    Some(found?.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Machine {
        Machine {
            descriptors_soft: Some(1024),
            descriptors_hard: Some(20_000),
            nr_open: Some(1_048_576),
            file_max: Some(2_466_193),
            ports: Some((32_768, 60_999)),
            somaxconn: Some(4096),
            syn_backlog: Some(2048),
            tcp_mem: Some([287_901, 383_869, 575_802]),
            conntrack_max: None,
            cores: Some(2),
            cpu_quota: None,
            memory_available: Some(24 << 30),
            memory_limit: None,
            congestion: Some("bbr".into()),
            clock_source: Some("tsc".into()),
            governor: None,
            has_pressure: true,
            tools: TOOLS
                .iter()
                .map(|tool| (tool.name != "pushpin").then(|| format!("/usr/bin/{}", tool.name)))
                .collect(),
        }
    }

    fn short(machine: &Machine, connections: u64) -> Vec<String> {
        let checks = machine.examine(connections).checks;
        checks.into_iter().filter(|check| check.standing == CheckStatus::Short).map(|check| check.what).collect()
    }

    fn check(machine: &Machine, connections: u64, what: &str) -> Check {
        machine.examine(connections).checks.into_iter().find(|check| check.what == what).unwrap()
    }

    #[test]
    fn descriptors_suffice_for_thousand_not_fifty_thousand() {
        assert!(small().examine(1000).is_good(), "{}", small().examine(1000));
        assert_eq!(short(&small(), 50_000), ["descriptors per process", "net.ipv4.tcp_max_syn_backlog"]);
        assert_eq!(
            short(&small(), 1_000_000),
            ["descriptors per process", "net.ipv4.tcp_max_syn_backlog", "net.ipv4.tcp_mem, pressure", "memory"]
        );
    }

    #[test]
    fn fix_names_the_needed_limit() {
        let descriptors = check(&small(), 50_000, "descriptors per process");
        assert_eq!((descriptors.now.as_str(), descriptors.needed.as_str()), ("20,000", "51,024"));
        assert_eq!(descriptors.fix.unwrap(), "sudo prlimit --pid $$ --nofile=51024:51024");
        let backlog = check(&small(), 50_000, "net.ipv4.tcp_max_syn_backlog");
        assert_eq!(backlog.fix.unwrap(), "sudo sysctl -w net.ipv4.tcp_max_syn_backlog=4096");
    }

    /// A machine on which every fix was applied must be good.
    #[test]
    fn applied_fixes_pass_the_check() {
        for connections in [1, 100, 50_000, 1_000_000] {
            let mut machine = Machine {
                descriptors_hard: Some(1),
                nr_open: Some(1),
                file_max: Some(1),
                ports: Some((60_000, 60_000)),
                somaxconn: Some(1),
                syn_backlog: Some(1),
                tcp_mem: Some([0, 0, 0]),
                conntrack_max: Some(0),
                memory_available: Some(1 << 40),
                ..small()
            };
            for check in machine.examine(connections).checks {
                let Some(fix) = check.fix.filter(|_| check.standing == CheckStatus::Short) else { continue };
                let value = fix.rsplit('=').next().unwrap().trim_matches('"');
                let numbers: Vec<u64> = value.split([' ', ':']).map(|number| number.parse().unwrap()).collect();
                match check.what.as_str() {
                    "descriptors per process" => machine.descriptors_hard = Some(numbers[1]),
                    "fs.nr_open" => machine.nr_open = Some(numbers[0]),
                    "fs.file-max" => machine.file_max = Some(numbers[0]),
                    "local ports" => machine.ports = Some((numbers[0], numbers[1])),
                    "net.core.somaxconn" => machine.somaxconn = Some(numbers[0]),
                    "net.ipv4.tcp_max_syn_backlog" => machine.syn_backlog = Some(numbers[0]),
                    "net.ipv4.tcp_mem, pressure" => machine.tcp_mem = Some(numbers.try_into().unwrap()),
                    "net.netfilter.nf_conntrack_max" => machine.conntrack_max = Some(numbers[0]),
                    other => panic!("{other} is short"),
                }
            }
            assert!(machine.examine(connections).is_good(), "{}", machine.examine(connections));
        }
    }

    #[test]
    fn ports_are_reported_as_connections_per_address() {
        let ports = check(&small(), 50_000, "local ports");
        assert_eq!(ports.now, "28,232");
        assert!(ports.why.contains("2 source addresses"), "{}", ports.why);
        assert!(check(&small(), 28_232, "local ports").why.contains("1 source address of"));
    }

    #[test]
    fn cgroup_limits_are_checked() {
        let tight = Machine { cpu_quota: Some(0.5), memory_limit: Some(1 << 30), ..small() };
        assert_eq!(short(&tight, 18_000), ["net.ipv4.tcp_max_syn_backlog", "CPU quota of the cgroup", "memory"]);
    }

    #[test]
    fn missing_values_are_unknown_not_good() {
        let silent = Machine { tools: vec![None; TOOLS.len()], ..Machine::default() };
        let checks = silent.examine(10).checks;
        assert!(
            checks.iter().all(|check| check.standing != CheckStatus::Good || check.what == "CPU quota of the cgroup"),
            "{checks:?}"
        );
        assert!(checks.iter().any(|check| check.standing == CheckStatus::Unknown));
    }

    #[test]
    fn table_shows_only_needed_fixes() {
        let table = small().examine(50_000).to_string();
        assert!(table.contains("\nSHORT   descriptors per process"), "{table}");
        assert!(table.contains("\n        $ sudo prlimit --pid $$ --nofile=51024:51024\n"), "{table}");
        assert!(
            table.contains("\nabsent  pushpin") && table.contains("\n        $ sudo apt-get install -y pushpin\n"),
            "{table}"
        );
        assert!(!table.contains("fs.nr_open="), "{table}");
    }

    #[test]
    fn report_describes_this_machine() {
        let here = Machine::read();
        let soft = here.descriptors_soft.unwrap();
        assert!(soft > 0 && soft <= here.descriptors_hard.unwrap());
        assert!(here.cores.unwrap() >= 1 && here.memory_available.unwrap() > 1 << 20, "{here:?}");
        let (first, last) = here.ports.unwrap();
        assert!(first < last && last < 65_536);
        assert_eq!(here.tools.len(), TOOLS.len());
        let diagnosis = here.examine(1000);
        let back: Diagnosis = serde_json::from_str(&serde_json::to_string(&diagnosis).unwrap()).unwrap();
        assert_eq!(back, diagnosis);
    }

    #[test]
    fn tools_are_found_by_name_and_by_path() {
        assert!(find("sh").unwrap().ends_with("/sh"));
        assert_eq!(find("/bin/sh").as_deref(), Some("/bin/sh"));
        assert_eq!((find("no-such-tool"), find("/bin"), find("/no/such")), (None, None, None));
    }
}
