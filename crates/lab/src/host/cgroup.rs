//! Limits of the cgroup of this process. Cgroup versions 1 and 2 may both be mounted.

use std::{fs, path::Path};

/// Returns the CPU quota in cores, or `None` if CPU is not limited.
pub fn cpu_quota() -> Option<f64> {
    let of_1 = |folder: &Path| {
        let number = |file: &str| read(folder, file)?.parse::<f64>().ok();
        number("cpu.cfs_quota_us")
            .filter(|quota| *quota > 0.0)
            .zip(number("cpu.cfs_period_us"))
            .map(|(quota, period)| quota / period)
    };
    lowest("cpu", of_1, |folder| quota(&read(folder, "cpu.max")?))
}

/// Returns the memory limit in bytes, or `None` if memory is not limited.
pub fn memory_limit() -> Option<u64> {
    let bytes = |folder: &Path, file: &str| read(folder, file)?.parse::<u64>().ok();
    // Version 1 reports "no limit" as a number larger than any memory.
    let of_1 = |folder: &Path| {
        bytes(folder, "memory.limit_in_bytes").filter(|limit| *limit < 1 << 62).map(|limit| limit as f64)
    };
    lowest("memory", of_1, |folder| bytes(folder, "memory.max").map(|limit| limit as f64)).map(|limit| limit as u64)
}

fn read(folder: &Path, file: &str) -> Option<String> {
    super::proc::line(folder.join(file))
}

/// Parses `cpu.max` of version 2: quota and period in microseconds, or `max`.
fn quota(line: &str) -> Option<f64> {
    let (quota, period) = line.split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

/// Returns the lowest limit from the group of this process up to the root, in either version. All of these limits
/// apply.
fn lowest(controller: &str, of_1: impl Fn(&Path) -> Option<f64>, of_2: impl Fn(&Path) -> Option<f64>) -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        if controllers.is_empty() {
            for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
                limits.extend(upwards(root, group, &of_2));
            }
        } else if controllers.split(',').any(|name| name == controller) {
            limits.extend(upwards(&format!("/sys/fs/cgroup/{controllers}"), group, &of_1));
        }
    }
    limits.into_iter().min_by(f64::total_cmp)
}

fn upwards(root: &str, group: &str, limit: &impl Fn(&Path) -> Option<f64>) -> Vec<f64> {
    let folder = Path::new(root).join(group.trim_start_matches('/'));
    folder.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_quota_of_cgroup_v2_is_parsed() {
        assert_eq!(quota("50000 100000"), Some(0.5));
        assert_eq!(quota("max 100000"), None);
    }

    #[test]
    fn lowest_quota_of_all_parents_applies() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("outer/inner");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("cpu.max"), "max 100000\n").unwrap();
        fs::write(root.path().join("outer/cpu.max"), "150000 100000\n").unwrap();
        let of = |folder: &Path| quota(&read(folder, "cpu.max")?);
        assert_eq!(upwards(root.path().to_str().unwrap(), "/outer/inner", &of), [1.5]);
    }
}
