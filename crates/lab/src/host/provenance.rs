//! Provenance of the figures. Two runs can be compared only if they differ in nothing but the intended aspects.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{cgroup, proc};

/// Kernel settings that affect the figures of a server.
pub const SYSCTLS: &[&str] = &[
    "net.core.somaxconn",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.netdev_max_backlog",
    "net.core.default_qdisc",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_fastopen",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_notsent_lowat",
    "vm.overcommit_memory",
];

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    pub kernel: String,
    pub cpu_model: String,
    /// Number of cores that this process may use.
    pub cores: u64,
    /// CPU quota in cores, if a cgroup limits it.
    pub cpu_quota: Option<f64>,
    pub memory_bytes: u64,
    pub clock_source: String,
    /// CPU frequency governor. Empty if the machine does not report it, as on most virtual machines.
    pub governor: String,
    pub sysctls: BTreeMap<String, String>,
    pub lab_version: String,
    /// Value of `MILLRACE_REVISION` when the lab was compiled. Otherwise the revision currently checked out in its
    /// source tree.
    pub lab_revision: Option<String>,
    /// `release` or `debug`.
    pub lab_profile: String,
    /// Version of each target, by name.
    pub targets: BTreeMap<String, String>,
}

/// One difference between two runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Name of the value, such as `kernel`, `sysctl net.ipv4.tcp_mem`, `target ws`, `lab revision`.
    pub what: String,
    /// Value of A and of B. Empty if the side has no such value.
    pub a: String,
    pub b: String,
}

impl Provenance {
    /// Reads the provenance of this machine. A value that the machine does not report stays empty.
    pub fn read(targets: BTreeMap<String, String>) -> Provenance {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = text("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let sysctl = |name: &&str| Some((name.to_string(), proc::sysctl(name)?));
        Provenance {
            kernel: proc::sysctl("kernel.osrelease").unwrap_or_default(),
            cpu_model: model.map(|(_, model)| model.to_owned()).unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, |cores| cores.get() as u64),
            cpu_quota: cgroup::cpu_quota(),
            memory_bytes: proc::number(&text("/proc/meminfo"), "MemTotal").unwrap_or_default(),
            clock_source: clock_source().unwrap_or_default(),
            governor: governor().unwrap_or_default(),
            sysctls: SYSCTLS.iter().filter_map(sysctl).collect(),
            lab_version: env!("CARGO_PKG_VERSION").to_owned(),
            lab_revision: option_env!("MILLRACE_REVISION")
                .map(str::to_owned)
                .or_else(|| revision(env!("CARGO_MANIFEST_DIR"))),
            lab_profile: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            targets,
        }
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let plain = [
            ("kernel", self.kernel.clone()),
            ("CPU model", self.cpu_model.clone()),
            ("cores", self.cores.to_string()),
            ("CPU quota", self.cpu_quota.map(|cores| cores.to_string()).unwrap_or_default()),
            ("memory", self.memory_bytes.to_string()),
            ("clock source", self.clock_source.clone()),
            ("governor", self.governor.clone()),
            ("lab version", self.lab_version.clone()),
            ("lab revision", self.lab_revision.clone().unwrap_or_default()),
            ("lab profile", self.lab_profile.clone()),
        ];
        let named = |kind: &str, of: &BTreeMap<String, String>| -> Vec<(String, String)> {
            of.iter().map(|(name, value)| (format!("{kind} {name}"), value.clone())).collect()
        };
        let mut facts: BTreeMap<String, String> = plain.map(|(what, value)| (what.to_owned(), value)).into();
        facts.extend(named("sysctl", &self.sysctls));
        facts.extend(named("target", &self.targets));
        facts
    }
}

/// Returns all differences, sorted by name. A comparison must be refused unless each difference is intended.
pub fn differs(a: &Provenance, b: &Provenance) -> Vec<Difference> {
    let (a, mut b) = (a.facts(), b.facts());
    let mut pairs: Vec<Difference> =
        a.into_iter().map(|(what, a)| Difference { b: b.remove(&what).unwrap_or_default(), what, a }).collect();
    pairs.extend(b.into_iter().map(|(what, b)| Difference { what, a: String::new(), b }));
    pairs.retain(|pair| pair.a != pair.b);
    pairs.sort_by(|a, b| a.what.cmp(&b.what));
    pairs
}

pub(super) fn clock_source() -> Option<String> {
    proc::line("/sys/devices/system/clocksource/clocksource0/current_clocksource")
}

pub(super) fn governor() -> Option<String> {
    proc::line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
}

/// Returns the commit that is checked out in the repository around `folder`. Does not need git.
///
/// Source: `gitrepository-layout(5)`: `HEAD`, `refs`, `packed-refs`, and `commondir` of linked work trees.
fn revision(folder: impl AsRef<Path>) -> Option<String> {
    let found = folder.as_ref().ancestors().map(|folder| folder.join(".git")).find(|git| git.exists())?;
    let git = match proc::line(&found) {
        // In a linked work tree, `.git` is a file that names the directory.
        Some(line) => found.parent()?.join(line.strip_prefix("gitdir: ")?),
        None => found,
    };
    let head = proc::line(git.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ") else { return Some(head) };
    let common: PathBuf = proc::line(git.join("commondir")).map_or_else(|| git.clone(), |common| git.join(common));
    let packed = || {
        let text = fs::read_to_string(common.join("packed-refs")).ok()?;
        text.lines().find_map(|line| line.strip_suffix(name)?.strip_suffix(' ').map(str::to_owned))
    };
    proc::line(git.join(name)).or_else(|| proc::line(common.join(name))).or_else(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Provenance {
        Provenance {
            kernel: "6.18.44".into(),
            cores: 2,
            sysctls: [("net.core.somaxconn".to_owned(), "4096".to_owned())].into(),
            targets: [("ws".to_owned(), "8.23.0".to_owned())].into(),
            ..Provenance::default()
        }
    }

    #[test]
    fn equal_machines_have_no_differences() {
        let here = || Provenance::read([("ws".to_owned(), "8.23.0".to_owned())].into());
        assert_eq!(differs(&here(), &here()), []);
        let here = here();
        assert!(!here.kernel.is_empty() && here.cores >= 1 && here.memory_bytes > 1 << 26, "{here:?}");
        assert_eq!(here.lab_profile, if cfg!(debug_assertions) { "debug" } else { "release" });
        let back: Provenance = serde_json::from_str(&serde_json::to_string(&here).unwrap()).unwrap();
        assert_eq!(differs(&here, &back), []);
    }

    #[test]
    fn every_difference_is_named() {
        let mut other = sample();
        other.kernel = "6.1.0".into();
        other.cpu_quota = Some(0.5);
        other.sysctls.insert("net.core.somaxconn".into(), "128".into());
        other.targets = [("bun".to_owned(), "1.4.5".to_owned())].into();
        let pair = |what: &str, a: &str, b: &str| Difference { what: what.into(), a: a.into(), b: b.into() };
        assert_eq!(
            differs(&sample(), &other),
            [
                pair("CPU quota", "", "0.5"),
                pair("kernel", "6.18.44", "6.1.0"),
                pair("sysctl net.core.somaxconn", "4096", "128"),
                pair("target bun", "", "1.4.5"),
                pair("target ws", "8.23.0", ""),
            ]
        );
    }

    #[test]
    fn revisions_are_found_wherever_git_keeps_them() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        fs::create_dir_all(root.path().join("crates/lab")).unwrap();
        let found = || revision(root.path().join("crates/lab"));
        write(".git/HEAD", "1111111\n");
        assert_eq!(found().as_deref(), Some("1111111"));
        write(".git/HEAD", "ref: refs/heads/main\n");
        write(".git/packed-refs", "# pack-refs\n3333333 refs/heads/other-main\n2222222 refs/heads/main\n");
        assert_eq!(found().as_deref(), Some("2222222"));
        write(".git/refs/heads/main", "4444444\n");
        assert_eq!(found().as_deref(), Some("4444444"));
        // A linked work tree of the same repository.
        write("beside/.git", "gitdir: ../.git/worktrees/beside\n");
        write(".git/worktrees/beside/HEAD", "ref: refs/heads/main\n");
        write(".git/worktrees/beside/commondir", "../..\n");
        assert_eq!(revision(root.path().join("beside")).as_deref(), Some("4444444"));
    }
}
