//! Series of samples from a [`Sampler`](super::Sampler), and the resource use between two moments.

use serde::{Deserialize, Serialize};

use super::{
    machine::{Busy, MachineSample},
    process::{Cpu, Switches, TreeSample},
};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Names of the trees, in the order of [`Sample::trees`].
    pub trees: Vec<String>,
    /// Samples, oldest first.
    pub samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Time by the clock that the sampler was given.
    pub at_s: f64,
    pub trees: Vec<TreeSample>,
    pub machine: MachineSample,
}

/// Resource use of all trees together in a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Time from the first to the last sample of the phase. It is at most two intervals shorter than the phase.
    pub seconds: f64,
    pub cpu: Cpu,
    /// CPU seconds per second: 0.5 is half a core.
    pub cores: f64,
    pub switches: Switches,
    pub rss_bytes_mean: f64,
    pub rss_bytes_max: u64,
    /// Last PSS reading of the phase.
    pub pss_bytes: Option<u64>,
    pub descriptors_max: u64,
    pub threads_max: u32,
}

/// Resource use of the machine in a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineUsage {
    /// Share of the time that each core was busy.
    pub busy: Vec<f64>,
    /// Share of the time of all cores that the hypervisor gave to other guests.
    pub steal: f64,
    /// Share of the time in which at least one task waited for a CPU.
    pub pressure: Option<f64>,
    pub tcp_memory_bytes_max: u64,
    /// CPU seconds per second of all processes that were not sampled.
    pub others_cores: f64,
    /// The busiest of these processes, in its busiest interval.
    pub busiest_other: Option<Busy>,
}

impl Series {
    /// Returns the use of all trees from `from_s` to `to_s`, both included. Returns `None` if fewer than two samples
    /// lie in that range.
    pub fn usage(&self, from_s: f64, to_s: f64) -> Option<Usage> {
        self.usage_of(from_s, to_s, |_| true)
    }

    /// Returns the same as [`Series::usage`] for the trees with this name.
    pub fn usage_by(&self, name: &str, from_s: f64, to_s: f64) -> Option<Usage> {
        self.usage_of(from_s, to_s, |tree| tree == name)
    }

    fn usage_of(&self, from_s: f64, to_s: f64, is_meant: impl Fn(&str) -> bool) -> Option<Usage> {
        let meant: Vec<usize> = (0..self.trees.len()).filter(|index| is_meant(&self.trees[*index])).collect();
        let sum = |sample: &Sample| {
            let mut all = TreeSample::default();
            for tree in meant.iter().filter_map(|index| sample.trees.get(*index)) {
                all.cpu += tree.cpu;
                all.switches += tree.switches;
                all.rss_bytes += tree.rss_bytes;
                all.pss_bytes = tree.pss_bytes.map(|bytes| bytes + all.pss_bytes.unwrap_or(0)).or(all.pss_bytes);
                all.descriptors += tree.descriptors;
                all.threads += tree.threads;
            }
            all
        };
        let samples = self.between(from_s, to_s)?;
        let sums: Vec<TreeSample> = samples.iter().map(sum).collect();
        let (first, last) = (sums.first()?, sums.last()?);
        let seconds = samples.last()?.at_s - samples.first()?.at_s;
        let cpu = last.cpu.since(&first.cpu);
        Some(Usage {
            seconds,
            cpu,
            cores: cpu.total_s() / seconds,
            switches: Switches {
                voluntary: last.switches.voluntary.saturating_sub(first.switches.voluntary),
                involuntary: last.switches.involuntary.saturating_sub(first.switches.involuntary),
            },
            rss_bytes_mean: sums.iter().map(|sum| sum.rss_bytes as f64).sum::<f64>() / sums.len() as f64,
            rss_bytes_max: sums.iter().map(|sum| sum.rss_bytes).max()?,
            pss_bytes: sums.iter().rev().find_map(|sum| sum.pss_bytes),
            descriptors_max: sums.iter().map(|sum| sum.descriptors).max()?,
            threads_max: sums.iter().map(|sum| sum.threads).max()?,
        })
    }

    /// Returns the use of the machine from `from_s` to `to_s`. Returns `None` if fewer than two samples lie in that
    /// range.
    pub fn machine(&self, from_s: f64, to_s: f64) -> Option<MachineUsage> {
        let samples = self.between(from_s, to_s)?;
        let (first, last) = (&samples.first()?.machine, &samples.last()?.machine);
        let seconds = samples.last()?.at_s - samples.first()?.at_s;
        let share = |part: f64, all: f64| if all > 0.0 { (part / all).clamp(0.0, 1.0) } else { 0.0 };
        let cores = || first.cores.iter().zip(&last.cores);
        let all_s: f64 = cores().map(|(first, last)| last.all_s - first.all_s).sum();
        let waited_us =
            last.pressure_total_us.zip(first.pressure_total_us).map(|(last, first)| last.saturating_sub(first));
        // In the first sample, the busiest process covers the time before the range.
        let others = samples[1..].iter().filter_map(|sample| sample.machine.busiest_other.as_ref());
        Some(MachineUsage {
            busy: cores().map(|(first, last)| share(last.busy_s - first.busy_s, last.all_s - first.all_s)).collect(),
            steal: share(cores().map(|(first, last)| last.steal_s - first.steal_s).sum(), all_s),
            pressure: waited_us.map(|us| us as f64 / 1e6 / seconds),
            tcp_memory_bytes_max: samples.iter().map(|sample| sample.machine.tcp_memory_bytes).max()?,
            others_cores: (last.others_s - first.others_s) / seconds,
            busiest_other: others.max_by(|a, b| a.cores.total_cmp(&b.cores)).cloned(),
        })
    }

    fn between(&self, from_s: f64, to_s: f64) -> Option<&[Sample]> {
        let start = self.samples.partition_point(|sample| sample.at_s < from_s);
        let end = self.samples.partition_point(|sample| sample.at_s <= to_s);
        self.samples.get(start..end).filter(|samples| samples.len() >= 2)
    }

    /// Drops every second sample, but keeps the first one and the newest one. The next sample takes over the peak
    /// values of the dropped one.
    pub(super) fn thin(&mut self) {
        let mut kept: Vec<Sample> = Vec::with_capacity(self.samples.len());
        let mut dropped: Option<Sample> = None;
        for (index, mut sample) in std::mem::take(&mut self.samples).into_iter().enumerate() {
            if index % 2 == 1 {
                dropped = Some(sample);
                continue;
            }
            if let Some(dropped) = dropped.take() {
                sample.take_peaks(dropped);
            }
            kept.push(sample);
        }
        kept.extend(dropped);
        self.samples = kept;
    }
}

impl Sample {
    fn take_peaks(&mut self, dropped: Sample) {
        for (tree, dropped) in self.trees.iter_mut().zip(dropped.trees) {
            tree.rss_bytes = tree.rss_bytes.max(dropped.rss_bytes);
            tree.pss_bytes = tree.pss_bytes.max(dropped.pss_bytes);
            tree.descriptors = tree.descriptors.max(dropped.descriptors);
            tree.threads = tree.threads.max(dropped.threads);
        }
        let (machine, dropped) = (&mut self.machine, dropped.machine);
        machine.tcp_memory_bytes = machine.tcp_memory_bytes.max(dropped.tcp_memory_bytes);
        let cores = |busy: &Option<Busy>| busy.as_ref().map_or(0.0, |busy| busy.cores);
        if cores(&dropped.busiest_other) > cores(&machine.busiest_other) {
            machine.busiest_other = dropped.busiest_other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::machine::CoreSample;

    /// Builds one sample per second of two trees. The first uses a quarter of a core, the second half a core. A tenth
    /// of each core is stolen.
    fn series(count: usize) -> Series {
        let tree = |share: f64, second: usize, rss_bytes: u64| TreeSample {
            cpu: Cpu { user_ns: (share * 1e9) as u64 * second as u64, system_ns: 0 },
            switches: Switches { voluntary: 10 * second as u64, involuntary: 0 },
            rss_bytes,
            pss_bytes: second.is_multiple_of(5).then_some(rss_bytes / 2),
            descriptors: 7,
            threads: 2,
            processes: Vec::new(),
        };
        let core = |busy: f64, second: f64| CoreSample { busy_s: busy * second, steal_s: 0.1 * second, all_s: second };
        let sample = |second: usize| Sample {
            at_s: 100.0 + second as f64,
            trees: vec![tree(0.25, second, 1000 + second as u64), tree(0.5, second, 500)],
            machine: MachineSample {
                cores: vec![core(0.4, second as f64), core(0.8, second as f64)],
                pressure_total_us: Some(50_000 * second as u64),
                others_s: 0.3 * second as f64,
                tcp_memory_bytes: if second == 7 { 9000 } else { 1000 },
                busiest_other: Some(Busy { pid: 1, name: "cron".into(), cores: if second == 3 { 0.9 } else { 0.01 } }),
                ..MachineSample::default()
            },
        };
        Series { trees: vec!["server".into(), "broker".into()], samples: (0..count).map(sample).collect() }
    }

    #[test]
    fn phase_usage_is_the_difference_of_its_samples() {
        let used = series(20).usage(104.5, 110.0).unwrap();
        assert_eq!(used.seconds, 5.0);
        assert!((used.cpu.total_s() - 3.75).abs() < 1e-9 && (used.cores - 0.75).abs() < 1e-9, "{used:?}");
        assert_eq!((used.switches.voluntary, used.descriptors_max, used.threads_max), (100, 14, 4));
        assert_eq!((used.rss_bytes_max, used.pss_bytes), (1510, Some(505 + 250)));
        assert_eq!(used.rss_bytes_mean, 1507.5);
        let broker = series(20).usage_by("broker", 104.5, 110.0).unwrap();
        assert!((broker.cores - 0.5).abs() < 1e-9);
    }

    #[test]
    fn machine_usage_of_a_phase_is_computed() {
        let seen = series(20).machine(103.0, 110.0).unwrap();
        assert!(
            (seen.busy[0] - 0.4).abs() < 1e-9 && (seen.busy[1] - 0.8).abs() < 1e-9 && (seen.steal - 0.1).abs() < 1e-9
        );
        assert!((seen.pressure.unwrap() - 0.05).abs() < 1e-9);
        assert_eq!(seen.tcp_memory_bytes_max, 9000);
        assert!((seen.others_cores - 0.3).abs() < 1e-9);
        assert_eq!(seen.busiest_other.unwrap().cores, 0.01, "what was before the phase does not count");
    }

    #[test]
    fn phase_with_one_sample_has_no_usage() {
        assert_eq!(series(20).usage(104.5, 105.5), None);
        assert_eq!(series(20).machine(200.0, 300.0), None);
    }

    #[test]
    fn thinning_keeps_ends_sums_and_peaks() {
        for count in [10, 11] {
            let (whole, mut thin) = (series(count), series(count));
            thin.thin();
            assert_eq!(thin.samples.len(), count / 2 + 1);
            let times = |series: &Series| (series.samples[0].at_s, series.samples.last().unwrap().at_s);
            assert_eq!(times(&whole), times(&thin));
            let (whole, thin) = (whole.usage(100.0, 200.0).unwrap(), thin.usage(100.0, 200.0).unwrap());
            assert_eq!(
                (whole.cpu, whole.rss_bytes_max, whole.pss_bytes),
                (thin.cpu, thin.rss_bytes_max, thin.pss_bytes)
            );
        }
        let mut thin = series(11);
        thin.thin();
        let seen = thin.machine(100.0, 200.0).unwrap();
        assert_eq!((seen.tcp_memory_bytes_max, seen.busiest_other.unwrap().cores), (9000, 0.9));
    }
}
