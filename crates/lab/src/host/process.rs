//! Resource use of a process tree: a program, its children and all further descendants.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    ops::AddAssign,
};

use nix::{time::clock_getcpuclockid, unistd::Pid};
use serde::{Deserialize, Serialize};

use super::{
    proc::{self, Stat},
    scheduling::SchedulingTime,
};

/// Maximum number of processes listed per tree, and of thread names listed per process. Others count only in the
/// sums.
pub const PARTS_MAX: usize = 64;

/// CPU time. The total is exact to the nanosecond. The split into user and system time has the resolution of the
/// kernel tick, 10 ms per process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    pub user_ns: u64,
    pub system_ns: u64,
}

impl Cpu {
    pub fn total_ns(&self) -> u64 {
        self.user_ns + self.system_ns
    }

    pub fn total_s(&self) -> f64 {
        self.total_ns() as f64 / 1e9
    }

    /// Returns the difference from an earlier reading of the same counter.
    pub fn since(&self, earlier: &Cpu) -> Cpu {
        Cpu {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
        }
    }

    /// Returns the next reading of a counter, with the given total. The user part is adjusted so that neither part
    /// decreases.
    fn advance(&self, total_ns: u64, user_ns: u64) -> Cpu {
        let total_ns = total_ns.max(self.total_ns());
        let user_ns = user_ns.clamp(self.user_ns, total_ns - self.system_ns);
        Cpu { user_ns, system_ns: total_ns - user_ns }
    }
}

impl AddAssign for Cpu {
    fn add_assign(&mut self, other: Cpu) {
        self.user_ns += other.user_ns;
        self.system_ns += other.system_ns;
    }
}

/// Context switches: voluntary if the thread waited for something, involuntary if the scheduler ran another thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switches {
    pub voluntary: u64,
    pub involuntary: u64,
}

/// State of a tree at one moment. CPU and switches are counters since the start of its processes and include ended
/// processes. All other values cover only the current processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TreeSample {
    pub cpu: Cpu,
    pub switches: Switches,
    /// Resident set size (RSS). Shared memory counts once for each process that shares it.
    pub rss_bytes: u64,
    /// Proportional set size (PSS): shared memory is divided among the processes that share it. Not in every sample,
    /// because it is costly to read.
    pub pss_bytes: Option<u64>,
    pub descriptors: u64,
    pub threads: u32,
    /// At most [`PARTS_MAX`] processes, oldest first. Empty after the tree has ended.
    pub processes: Vec<ProcessSample>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessSample {
    pub pid: u32,
    pub name: String,
    pub cpu: Cpu,
    pub rss_bytes: u64,
    /// CPU time in nanoseconds by thread name, including ended threads. At most [`PARTS_MAX`] names.
    pub threads: BTreeMap<String, u64>,
}

/// Follows a process tree from sample to sample.
///
/// A descendant stays in the tree even if its parent ends first. The kernel adds the CPU time of an ended process to
/// the parent that waits for it. If no parent in the tree waits for it, this type keeps the time. No counter ever
/// decreases.
#[derive(Debug)]
pub struct Tree {
    root: u32,
    /// True after the root process was found once. Later processes with the same number are not the root.
    root_seen: bool,
    members: HashMap<u32, Member>,
    /// CPU time of ended members that no parent in the tree waited for.
    orphaned: Cpu,
    gone: Switches,
    shown: Cpu,
}

#[derive(Clone, Debug, Default)]
struct Member {
    started: u64,
    own: Cpu,
    reaped: Cpu,
    threads: HashMap<u32, Thread>,
    /// Switches of ended threads.
    gone: Switches,
    by_name: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default)]
struct Thread {
    ran_ns: u64,
    switches: Switches,
}

impl Tree {
    pub fn new(root: u32) -> Tree {
        Tree {
            root,
            root_seen: false,
            members: HashMap::new(),
            orphaned: Cpu::default(),
            gone: Switches::default(),
            shown: Cpu::default(),
        }
    }

    pub fn contains(&self, pid: u32) -> bool {
        self.members.contains_key(&pid)
    }

    /// Reads the current resource use of the tree. `all` is the list of all processes of the machine. PSS is read
    /// only if `pss`.
    ///
    /// Cost: about 50 us per process and 30 us per thread. PSS walks all pages, about 10 ms per GiB.
    pub fn sample(&mut self, all: &[(u32, Stat)], pss: bool) -> TreeSample {
        let stats: HashMap<u32, &Stat> = all.iter().map(|(pid, stat)| (*pid, stat)).collect();
        let was = std::mem::take(&mut self.members);
        let (mut reaped_now, mut reaped_before) = (0, 0);
        for pid in self.alive(&was, all) {
            let stat = stats[&pid];
            let mut member = was.get(&pid).filter(|member| member.started == stat.started).cloned().unwrap_or_default();
            reaped_before += member.reaped.total_ns();
            member.read(pid, stat);
            reaped_now += member.reaped.total_ns();
            self.members.insert(pid, member);
        }
        self.root_seen |= self.members.contains_key(&self.root);
        let is_gone =
            |(pid, member): &(&u32, &Member)| self.members.get(pid).is_none_or(|now| now.started != member.started);
        let mut left = Cpu::default();
        for (_, member) in was.iter().filter(is_gone) {
            left += member.own;
            left += member.reaped;
            self.gone += member.switches();
        }
        // The time of ended members should now be in the reaped time of their parents.
        let lost = left.total_ns().saturating_sub(reaped_now - reaped_before);
        let user = left.user_ns.min(lost);
        self.orphaned += Cpu { user_ns: user, system_ns: lost - user };
        self.show(&stats, pss)
    }

    /// Returns the members that are still alive, and all descendants of them and of the root.
    fn alive(&self, was: &HashMap<u32, Member>, all: &[(u32, Stat)]) -> Vec<u32> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (pid, stat) in all {
            children.entry(stat.parent).or_default().push(*pid);
        }
        let is_member = |pid: u32, stat: &Stat| match was.get(&pid) {
            Some(member) => member.started == stat.started,
            None => pid == self.root && !self.root_seen,
        };
        let mut found: Vec<u32> = all.iter().filter(|(pid, stat)| is_member(*pid, stat)).map(|(pid, _)| *pid).collect();
        let mut known: HashSet<u32> = found.iter().copied().collect();
        let mut index = 0;
        while let Some(pid) = found.get(index).copied() {
            found.extend(children.remove(&pid).into_iter().flatten().filter(|child| known.insert(*child)));
            index += 1;
        }
        found
    }

    fn show(&mut self, stats: &HashMap<u32, &Stat>, pss: bool) -> TreeSample {
        let (page, mut sum) = (rustix::param::page_size() as u64, self.orphaned);
        let mut seen = TreeSample { switches: self.gone, pss_bytes: None, ..TreeSample::default() };
        let mut order: Vec<(u64, u32)> = self.members.iter().map(|(pid, member)| (member.started, *pid)).collect();
        order.sort_unstable();
        for (_, pid) in order {
            let (member, stat) = (&self.members[&pid], stats[&pid]);
            sum += member.own;
            sum += member.reaped;
            seen.switches += member.switches();
            if stat.is_zombie {
                continue;
            }
            seen.rss_bytes += stat.rss_pages * page;
            if pss && let Some(bytes) = read_pss(pid) {
                *seen.pss_bytes.get_or_insert(0) += bytes;
            }
            seen.descriptors += count_descriptors(pid);
            seen.threads += stat.threads;
            if seen.processes.len() < PARTS_MAX {
                seen.processes.push(ProcessSample {
                    pid,
                    name: stat.name.clone(),
                    cpu: member.own,
                    rss_bytes: stat.rss_pages * page,
                    threads: member.by_name.clone(),
                });
            }
        }
        self.shown = self.shown.advance(sum.total_ns(), sum.user_ns);
        seen.cpu = self.shown;
        seen
    }
}

impl Member {
    fn read(&mut self, pid: u32, stat: &Stat) {
        let tick = tick_ns();
        self.started = stat.started;
        self.reaped = Cpu { user_ns: stat.reaped_user * tick, system_ns: stat.reaped_system * tick };
        let ticks = stat.user + stat.system;
        let total = clock_ns(pid).unwrap_or(ticks * tick);
        let user =
            if ticks == 0 { total } else { (u128::from(total) * u128::from(stat.user) / u128::from(ticks)) as u64 };
        self.own = self.own.advance(total, user);
        if !stat.is_zombie {
            self.read_threads(pid);
        }
    }

    /// Reads the threads of a process. Thread counters disappear when a thread ends, unlike the CPU time of the
    /// process, so the last values are kept.
    fn read_threads(&mut self, pid: u32) {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
        let mut was = std::mem::take(&mut self.threads);
        for task in tasks.flatten() {
            let Some(tid) = task.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
            let ran_ns = SchedulingTime::read(&task.path()).unwrap_or_default().cpu_ns;
            let before = was.remove(&tid).unwrap_or_default();
            let name = proc::field(&status, "Name").unwrap_or_default();
            if self.by_name.contains_key(name) || self.by_name.len() < PARTS_MAX {
                *self.by_name.entry(name.to_owned()).or_default() += u64::saturating_sub(ran_ns, before.ran_ns);
            }
            let switches = Switches {
                voluntary: proc::number(&status, "voluntary_ctxt_switches").unwrap_or_default(),
                involuntary: proc::number(&status, "nonvoluntary_ctxt_switches").unwrap_or_default(),
            };
            self.threads.insert(tid, Thread { ran_ns, switches });
        }
        was.values().for_each(|thread| self.gone += thread.switches);
    }

    fn switches(&self) -> Switches {
        let mut sum = self.gone;
        self.threads.values().for_each(|thread| sum += thread.switches);
        sum
    }
}

impl AddAssign for Switches {
    fn add_assign(&mut self, other: Switches) {
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
    }
}

pub(super) fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second()
}

/// Returns the CPU time of a process, including ended threads. `schedstat` also has nanoseconds, but only for the
/// first thread.
fn clock_ns(pid: u32) -> Option<u64> {
    let time = clock_getcpuclockid(Pid::from_raw(pid.try_into().ok()?)).ok()?.now().ok()?;
    Some(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Returns the proportional set size of one process in bytes, or `None` if the process has ended.
pub fn read_pss(pid: u32) -> Option<u64> {
    proc::number(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss")
}

fn count_descriptors(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/fd");
    // Since Linux 6.2 the size of this directory is the number of descriptors, so a walk over 50,000 entries is not
    // needed.
    match fs::metadata(&path).map(|folder| folder.len()) {
        Ok(0) => fs::read_dir(path).map_or(0, |folder| folder.count() as u64),
        Ok(count) => count,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_never_decrease() {
        let mut cpu = Cpu::default();
        // The estimated user part changes up and down, as it does with ticks.
        for (total, user) in [(10, 10), (20, 5), (21, 21), (30, 12), (29, 0)] {
            let next = cpu.advance(total, user);
            assert!(next.user_ns >= cpu.user_ns && next.system_ns >= cpu.system_ns, "{cpu:?} {next:?}");
            assert_eq!(next.total_ns(), total.max(cpu.total_ns()));
            cpu = next;
        }
    }

    fn stat(parent: u32, started: u64) -> Stat {
        Stat {
            name: "x".into(),
            parent,
            is_zombie: false,
            is_kernel: false,
            user: 0,
            system: 0,
            reaped_user: 0,
            reaped_system: 0,
            threads: 1,
            started,
            rss_pages: 1,
        }
    }

    /// Process numbers from here on do not exist, so all values come from the given lists and not from `/proc`.
    const NONE: u32 = 4_000_000_000;

    fn pids(tree: &TreeSample) -> Vec<u32> {
        tree.processes.iter().map(|process| process.pid - NONE).collect()
    }

    #[test]
    fn orphans_stay_and_reused_pids_do_not_count() {
        let mut tree = Tree::new(NONE + 1);
        let at = |pid: u32, parent: u32, started: u64| (NONE + pid, stat(NONE + parent, started));
        let first = [at(1, 0, 5), at(2, 1, 6), at(3, 2, 7), at(4, 0, 5)];
        assert_eq!(pids(&tree.sample(&first, false)), [1, 2, 3]);
        // Process 2 has ended, and the parent of its child is now 0. The number 2 belongs to a new process.
        let then = [at(1, 0, 5), at(2, 0, 9), at(3, 0, 7), at(4, 0, 5)];
        assert_eq!(pids(&tree.sample(&then, false)), [1, 3]);
        // The root has ended, and its number is used again.
        let last = [at(1, 0, 20), at(3, 0, 7)];
        assert_eq!(pids(&tree.sample(&last, false)), [3]);
        assert_eq!(pids(&tree.sample(&last, false)), [3], "nor is it the root later");
    }

    #[test]
    fn ended_process_is_counted_once() {
        let mut tree = Tree::new(NONE + 1);
        let with = |parent: u32, started: u64, user: u64, reaped_user: u64| Stat {
            user,
            reaped_user,
            ..stat(parent, started)
        };
        let ticks = |sample: TreeSample| sample.cpu.total_ns() / tick_ns();
        let (root, child) = (NONE + 1, NONE + 2);
        assert_eq!(ticks(tree.sample(&[(root, with(1, 5, 3, 0)), (child, with(root, 6, 40, 0))], false)), 43);
        // The parent has waited for it: 2 ticks more than in the last sample.
        assert_eq!(ticks(tree.sample(&[(root, with(1, 5, 4, 42))], false)), 46);
        // Another child, for which no process in the tree waits.
        assert_eq!(ticks(tree.sample(&[(root, with(1, 5, 4, 42)), (child, with(root, 9, 10, 0))], false)), 56);
        assert_eq!(ticks(tree.sample(&[(root, with(1, 5, 5, 42))], false)), 57);
        assert_eq!(ticks(tree.sample(&[], false)), 57, "all have left");
    }
}
