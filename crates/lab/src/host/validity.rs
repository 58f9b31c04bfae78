//! Validity of a run. Each gate gives a finding with its value and its limit. A failed gate makes the run invalid.

use std::{fmt, io, thread, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    machine::{Busy, Others},
    proc::{self, Pressure},
    series::MachineUsage,
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub gate: Gate,
    /// Measured value. `None` if this machine does not report it. Such a finding passes, and the report shows the
    /// value as unknown.
    pub value: Option<f64>,
    /// Highest value that passes.
    pub limit: f64,
    pub passed: bool,
    /// Details, such as the busiest process.
    pub note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// Before the run: percentage of the last ten seconds in which at least one task waited for a CPU.
    PressureBefore,
    /// Before the run: CPU seconds per second of all other processes.
    OthersBefore,
    /// During the run: share of the time that the hypervisor gave to other guests.
    Steal,
    /// During the run: CPU seconds per second of all processes other than the target and the generator.
    Others,
    /// During the run: p99 of the generator's delay against the schedule, in seconds.
    Lateness,
    /// During the run: CPU of the busiest generator thread, as a share of its core.
    GeneratorCpu,
}

/// Limits of the gates. Steal, lateness and pressure are the usual limits for measurements on shared machines.
/// [`Limits::others_cores`] is our own choice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub pressure_avg10: f64,
    pub steal: f64,
    pub others_cores: f64,
    pub lateness_p99_s: f64,
    /// A higher lateness is allowed if it is at most this share of the measured p50 latency.
    pub lateness_of_p50: f64,
    pub generator_cpu: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            pressure_avg10: 5.0,
            steal: 0.01,
            others_cores: 0.1,
            lateness_p99_s: 0.001,
            lateness_of_p50: 0.1,
            generator_cpu: 0.8,
        }
    }
}

/// State of the machine before a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Before {
    pub pressure_avg10: Option<f64>,
    pub others_cores: f64,
    pub busiest_other: Option<Busy>,
}

/// Measurements of the generator about itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    pub lateness_p99_s: f64,
    /// p50 of the measured latency.
    pub latency_p50_s: f64,
    /// CPU of the busiest thread, as a share of one core.
    pub cpu: f64,
}

impl Before {
    /// Observes the CPU use of other processes for the time `watch`; one second is enough. `ours` are targets that
    /// already run.
    pub fn observe(watch: Duration, ours: &[u32]) -> io::Result<Before> {
        let is_ours = |pid: u32| pid == std::process::id() || ours.contains(&pid);
        let started = std::time::Instant::now();
        let mut others = Others::default();
        others.look(&proc::processes()?, 0.0, is_ours);
        thread::sleep(watch);
        let now_s = started.elapsed().as_secs_f64();
        let (used_s, busiest_other) = others.look(&proc::processes()?, now_s, is_ours);
        let pressure_avg10 = Pressure::read().map(|pressure| pressure.avg10);
        Ok(Before { pressure_avg10, others_cores: used_s / now_s, busiest_other })
    }
}

impl Limits {
    pub fn before(&self, seen: &Before) -> Vec<Finding> {
        vec![
            finding(Gate::PressureBefore, seen.pressure_avg10, self.pressure_avg10),
            self.others(Gate::OthersBefore, seen.others_cores, seen.busiest_other.as_ref()),
        ]
    }

    pub fn during(&self, machine: &MachineUsage, generator: &Generator) -> Vec<Finding> {
        let late = self.lateness_p99_s.max(self.lateness_of_p50 * generator.latency_p50_s);
        vec![
            finding(Gate::Steal, Some(machine.steal), self.steal),
            self.others(Gate::Others, machine.others_cores, machine.busiest_other.as_ref()),
            finding(Gate::Lateness, Some(generator.lateness_p99_s), late),
            finding(Gate::GeneratorCpu, Some(generator.cpu), self.generator_cpu),
        ]
    }

    fn others(&self, gate: Gate, cores: f64, busiest: Option<&Busy>) -> Finding {
        let note = busiest.map(|busy| format!("busiest was {} ({}) with {:.2}", busy.name, busy.pid, busy.cores));
        Finding { note, ..finding(gate, Some(cores), self.others_cores) }
    }
}

/// Returns whether no gate failed.
pub fn is_valid(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.passed)
}

/// Builds a finding. A NaN value does not pass.
fn finding(gate: Gate, value: Option<f64>, limit: f64) -> Finding {
    Finding { gate, value, limit, passed: value.is_none_or(|value| value <= limit), note: None }
}

/// Prints, for example, `FAILED  CPU of other processes: 0.43 cores, at most 0.10: busiest was cargo (4711) with
/// 0.98`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, factor, unit) = match self.gate {
            Gate::PressureBefore => ("waiting for a CPU before the run", 1.0, "%"),
            Gate::OthersBefore => ("CPU of other processes before the run", 1.0, "cores"),
            Gate::Steal => ("CPU taken by the hypervisor", 100.0, "%"),
            Gate::Others => ("CPU of other processes", 1.0, "cores"),
            Gate::Lateness => ("lateness of the generator (p99)", 1000.0, "ms"),
            Gate::GeneratorCpu => ("CPU of the generator's busiest thread", 100.0, "% of a core"),
        };
        match self.value {
            Some(value) => {
                let passed = if self.passed { "passed" } else { "FAILED" };
                write!(f, "{passed}  {what}: {:.2} {unit}, at most {:.2}", value * factor, self.limit * factor)?;
            }
            None => write!(f, "unknown {what}")?,
        }
        self.note.iter().try_for_each(|note| write!(f, ": {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(steal: f64, other: f64) -> MachineUsage {
        MachineUsage {
            busy: vec![0.5],
            steal,
            pressure: Some(0.2),
            tcp_memory_bytes_max: 0,
            others_cores: other,
            busiest_other: Some(Busy { pid: 4711, name: "cargo".into(), cores: 0.98 }),
        }
    }

    fn failed(machine: &MachineUsage, generator: &Generator) -> Vec<Gate> {
        let findings = Limits::default().during(machine, generator);
        assert_eq!(findings.len(), 4);
        findings.iter().filter(|finding| !finding.passed).map(|finding| finding.gate).collect()
    }

    const GOOD: Generator = Generator { lateness_p99_s: 0.0009, latency_p50_s: 0.002, cpu: 0.79 };

    #[test]
    fn each_gate_fails_by_itself() {
        assert_eq!(failed(&machine(0.009, 0.09), &GOOD), []);
        assert_eq!(failed(&machine(0.011, 0.09), &GOOD), [Gate::Steal]);
        assert_eq!(failed(&machine(0.009, 0.11), &GOOD), [Gate::Others]);
        assert_eq!(failed(&machine(0.0, 0.0), &Generator { lateness_p99_s: 0.0011, ..GOOD }), [Gate::Lateness]);
        assert_eq!(failed(&machine(0.0, 0.0), &Generator { cpu: 0.81, ..GOOD }), [Gate::GeneratorCpu]);
        assert_eq!(failed(&machine(f64::NAN, 0.0), &GOOD), [Gate::Steal]);
    }

    #[test]
    fn lateness_is_judged_by_what_was_measured() {
        let slow = Generator { lateness_p99_s: 0.009, latency_p50_s: 0.1, cpu: 0.1 };
        assert_eq!(failed(&machine(0.0, 0.0), &slow), []);
        assert_eq!(failed(&machine(0.0, 0.0), &Generator { latency_p50_s: 0.08, ..slow }), [Gate::Lateness]);
    }

    #[test]
    fn cpu_pressure_is_judged_before_a_run() {
        let before = |pressure_avg10| Before { pressure_avg10, others_cores: 0.05, busiest_other: None };
        let limits = Limits::default();
        assert!(is_valid(&limits.before(&before(Some(4.9)))));
        assert!(!is_valid(&limits.before(&before(Some(5.1)))));
        let unknown = limits.before(&before(None));
        assert!(is_valid(&unknown) && unknown[0].value.is_none());
        assert_eq!(unknown[0].to_string(), "unknown waiting for a CPU before the run");
    }

    #[test]
    fn finding_names_the_process() {
        let findings = Limits::default().during(&machine(0.02, 0.43), &GOOD);
        assert_eq!(findings[0].to_string(), "FAILED  CPU taken by the hypervisor: 2.00 %, at most 1.00");
        let others = "FAILED  CPU of other processes: 0.43 cores, at most 0.10: busiest was cargo (4711) with 0.98";
        assert_eq!(findings[1].to_string(), others);
        assert_eq!(findings[2].to_string(), "passed  lateness of the generator (p99): 0.90 ms, at most 1.00");
    }
}
