//! What a run of the lab leaves behind, as JSON. Reports and comparisons read this and nothing else.
//!
//! Units are in the names: `_us`, `_s`, `_bytes`. Times of a run count from when its first connection was due.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{histogram::Histogram, wire::Bill};

/// Raised when a field changes its meaning; a reader refuses what it does not know.
pub const FORMAT: u32 = 1;

/// One call of `millrace lab run`.
///
/// Two recordings can be compared if they are equal in scenario, form, parameters (targets and transports apart: runs are matched by
/// these), and in the machine's part of the provenance. Builds, versions of targets and the seed may differ: that is what is compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording<R = Run> {
    pub format: u32,
    pub scenario: String,
    pub form: Form,
    /// What the scenario was given, defaults included: by part of the scenario, all parameters of that part.
    pub parameters: serde_json::Value,
    pub seed: u64,
    /// RFC 3339.
    pub started: String,
    /// The machine, the build, the versions: a [`Provenance`](crate::host::provenance::Provenance).
    pub provenance: serde_json::Value,
    /// What was typed.
    #[serde(default)]
    pub command: String,
    /// What was asked of each run, such as `p99<100ms`.
    #[serde(default)]
    pub slo: Option<String>,
    /// How many runs there are to be. Fewer in `runs`: it was interrupted, and can be resumed.
    #[serde(default)]
    pub planned: u32,
    /// In the order in which they were run.
    pub runs: Vec<R>,
    /// What scenarios with code of their own have found.
    #[serde(default)]
    pub tables: Vec<Table>,
    /// Bytes and energy, of the scenario that counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bill: Option<Bill>,
}

impl Recording {
    /// The runs of one target, which is called so from now on: two targets that were measured in turns are compared as one.
    pub fn of_target(&self, target: &str, called: &str) -> Recording {
        let mut part = self.clone();
        part.runs.retain(|run| run.target == target);
        part.runs.iter_mut().for_each(|run| run.target = called.to_owned());
        part
    }

    /// Those that were run, in the order of their first runs.
    pub fn targets(&self) -> Vec<&str> {
        let mut targets = Vec::new();
        for run in &self.runs {
            if !targets.contains(&run.target.as_str()) {
                targets.push(run.target.as_str());
            }
        }
        targets
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    Quick,
    Full,
    Thesis,
}

impl Form {
    pub fn name(self) -> &'static str {
        match self {
            Form::Quick => "quick",
            Form::Full => "full",
            Form::Thesis => "thesis",
        }
    }
}

/// One server, one transport, one load, once. Runs with the same part, target, transport and factors are repeats of one another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Of the scenario; empty if it has only one.
    #[serde(default)]
    pub part: String,
    pub target: String,
    pub target_version: String,
    pub transport: String,
    /// That one of the factors along which its part is drawn.
    pub load: Load,
    #[serde(default)]
    pub factors: Factors,
    /// From 0.
    pub repeat: u32,
    /// From 0: when it was run among all runs of the recording.
    pub order: u32,
    #[serde(default)]
    pub placement: Placement,
    /// Empty if it failed before it began; `validity` says why.
    pub phases: Vec<Phase>,
    pub seconds: Vec<Second>,
    /// Empty: nothing speaks against this run.
    pub validity: Vec<Finding>,
}

impl Run {
    pub fn phase(&self, name: PhaseName) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// Whether conclusions may be drawn from it.
    pub fn is_valid(&self) -> bool {
        !self.validity.iter().any(|finding| finding.invalidates)
    }
}

/// Where on its axis a run lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    pub value: f64,
    pub counts: LoadUnit,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadUnit {
    #[default]
    Clients,
    Publishers,
    Connections,
    /// Publications of each publisher per second.
    EachPerSecond,
    /// Of a payload.
    Bytes,
    /// That the server may use.
    ServerCpus,
}

/// All that a sweep can vary from run to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Factors {
    /// Clients, pairs or idle connections, as the shape has it.
    pub clients: u64,
    /// Publications of each publisher per second; all publishers together say `publishers` times as many. 0 in a closed loop.
    pub each_per_s: f64,
    pub publishers: u64,
    /// Of a payload.
    pub bytes: u64,
    pub server_cpus: u64,
}

/// Who was given which CPUs. None: any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Placement {
    pub server_cpus: Vec<usize>,
    pub generator_cpus: Vec<usize>,
    /// They had to share: what one uses the other lacks.
    pub is_shared: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PhaseName {
    /// Connections are opened.
    #[default]
    Connect,
    /// All are connected, nothing is published.
    Idle,
    /// Publications, and the wait for the last of them.
    Test,
    /// Nothing is published any more.
    After,
}

/// The time from the start of [`PhaseName::Test`] until its first publication is due.
pub const TEST_LEAD: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    pub name: PhaseName,
    pub start_s: f64,
    /// Of [`PhaseName::Test`]: when the last publication was due. What came later belongs to the phase as well.
    pub end_s: f64,
    /// When all had arrived, or was given up.
    pub drained_s: f64,
    pub counts: Counts,
    /// From when a publication was due to when its receiver had read it.
    pub latency_us: Histogram,
    /// The same from when it was handed to the kernel.
    pub service_us: Histogram,
    /// From the first receiver of a publication to the last. Publications that reached everybody.
    pub spread_us: Histogram,
    /// From when a connection was due to when its subscription held.
    pub connect_us: Histogram,
    /// There and back on the same transport: a publication that its publisher hears, every 50 ms.
    pub probe_us: Histogram,
    /// How much too late the generator was to publish.
    pub lateness_us: Histogram,
    /// How long what had arrived could lie in a socket because the generator was busy with others.
    pub lag_us: Histogram,
    pub server: Usage,
    pub generator: Usage,
    #[serde(default)]
    pub watched: Option<Watched>,
}

/// What happened to publications. Deliveries are counted per receiver: a broadcast to 50 is 50 of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Publications that were due.
    pub scheduled: u64,
    /// Publications that the kernel took.
    pub sent: u64,
    /// Deliveries, each once.
    pub delivered: u64,
    /// Sent, and never delivered.
    pub lost: u64,
    /// Deliveries that had been there before; not in `delivered`.
    pub duplicated: u64,
    /// Deliveries behind one that was published later; in `delivered`, too.
    pub reordered: u64,
    /// Messages that nobody published like that.
    pub corrupt: u64,
    /// Times that the server told a receiver it lacks something.
    pub gaps: u64,
    /// Publications that the server refused.
    pub refused: u64,
    /// Connections that became ready.
    pub connected: u64,
    /// Connections that failed, or that the server closed.
    pub broken: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        let Counts { scheduled, sent, delivered, lost, duplicated, reordered, .. } = other;
        let Counts { corrupt, gaps, refused, connected, broken, .. } = other;
        for (sum, one) in [
            (&mut self.scheduled, scheduled),
            (&mut self.sent, sent),
            (&mut self.delivered, delivered),
            (&mut self.lost, lost),
            (&mut self.duplicated, duplicated),
            (&mut self.reordered, reordered),
            (&mut self.corrupt, corrupt),
            (&mut self.gaps, gaps),
            (&mut self.refused, refused),
            (&mut self.connected, connected),
            (&mut self.broken, broken),
        ] {
            *sum += one;
        }
    }
}

/// What a side used. CPU and context switches since the beginning of the phase, the rest at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub cpu_user_s: f64,
    pub cpu_system_s: f64,
    pub pss_bytes: u64,
    pub descriptors: u64,
    pub context_switches: u64,
}

impl Usage {
    pub fn cpu_s(&self) -> f64 {
        self.cpu_user_s + self.cpu_system_s
    }

    /// This reading, with what counts up counted from an earlier one.
    pub fn since(&self, earlier: &Usage) -> Usage {
        Usage {
            cpu_user_s: self.cpu_user_s - earlier.cpu_user_s,
            cpu_system_s: self.cpu_system_s - earlier.cpu_system_s,
            context_switches: self.context_switches.saturating_sub(earlier.context_switches),
            ..*self
        }
    }
}

/// One second of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// When it began.
    pub at_s: f64,
    pub counts: Counts,
    pub latency_us: Histogram,
    pub server_cpu_s: f64,
    pub server_pss_bytes: u64,
    pub generator_cpu_s: f64,
    /// CPU time that the machine below took from this one, all CPUs together.
    pub steal_s: f64,
    #[serde(default)]
    pub watched: Option<Watched>,
}

/// What the server and the machine did in a phase or a second, seen from outside the server. Of all its processes together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watched {
    /// Between the readings that this is the difference of: about as long as the phase or second.
    pub seconds: f64,
    pub cpu_user_s: f64,
    pub cpu_system_s: f64,
    /// Proportional memory when it was read last.
    pub pss_bytes: Option<u64>,
    pub rss_bytes: u64,
    pub descriptors: u64,
    pub threads: u32,
    pub switches_voluntary: u64,
    pub switches_involuntary: u64,
    /// Share of the time that each core of the machine was busy, with whatever.
    pub cores_busy: Vec<f64>,
    /// Share of the time of all cores that the hypervisor gave to others.
    pub steal: f64,
    /// Share of the time in which something waited for a CPU. None where the kernel does not tell.
    pub pressure: Option<f64>,
    /// CPU seconds per second of all processes that are neither server nor generator.
    pub others_cores: f64,
    pub tcp_memory_bytes: u64,
    /// What the server says of itself, where it does.
    pub metrics: Option<Metrics>,
}

/// What a server's own metrics have counted meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Publications that its engine was given ("engine commands"), those of the probe included.
    pub publications: u64,
    pub refused: u64,
    /// Turns of its event loops.
    pub turns: u64,
    /// Writes to sockets, and their bytes.
    pub writes: u64,
    pub sent_bytes: u64,
    /// How long it took to answer the question for its metrics: the lag of its event loop, seen from outside. The longest of the time.
    pub answer_us: u64,
}

/// Figures that are no runs, such as bytes per message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Short, stable and unique in its recording: `bytes-per-message`.
    pub name: String,
    pub title: String,
    pub columns: Vec<Column>,
    /// As many cells as columns: text, a number, or null for what is not known.
    pub rows: Vec<Vec<serde_json::Value>>,
    /// What a reader must know: assumptions, sources.
    #[serde(default)]
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Column {
    pub name: String,
    /// Such as `bytes`, `mJ`; empty for text.
    pub unit: String,
}

/// Something that speaks against a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Short and stable: `generator_bound`.
    pub code: String,
    /// For people, with the figures.
    pub detail: String,
    /// True: no conclusion may be drawn from the run. False: worth knowing.
    pub invalidates: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_comes_back_as_it_was() {
        let mut latency_us = Histogram::default();
        [3, 700, 80_000].into_iter().for_each(|us| latency_us.record_us(us));
        let empty = Histogram::default;
        let counts = Counts { scheduled: 3, sent: 3, delivered: 3, ..Counts::default() };
        let usage = Usage { cpu_user_s: 0.25, pss_bytes: 4096, ..Usage::default() };
        let phase = Phase {
            name: PhaseName::Test,
            start_s: 0.5,
            end_s: 2.5,
            drained_s: 2.75,
            counts,
            latency_us: latency_us.clone(),
            service_us: latency_us.clone(),
            spread_us: empty(),
            connect_us: empty(),
            probe_us: empty(),
            lateness_us: empty(),
            lag_us: empty(),
            server: usage,
            generator: Usage::default(),
            watched: Some(Watched { seconds: 2.0, cores_busy: vec![0.5, 1.0], ..Watched::default() }),
        };
        let second = Second {
            at_s: 1.0,
            counts,
            latency_us,
            server_cpu_s: 0.25,
            server_pss_bytes: 4096,
            generator_cpu_s: 0.125,
            steal_s: 0.0,
            watched: None,
        };
        let recording = Recording {
            format: FORMAT,
            scenario: "thorsen-broadcast".into(),
            form: Form::Quick,
            parameters: serde_json::json!({"clients": [1, 50]}),
            seed: 7,
            started: "2026-11-21T20:00:00Z".into(),
            provenance: serde_json::Value::Null,
            command: "millrace lab run thorsen-broadcast --quick".into(),
            slo: Some("p99<100ms".into()),
            planned: 1,
            bill: None,
            tables: vec![Table {
                name: "bytes".into(),
                columns: vec![Column { name: "measured".into(), unit: "bytes".into() }],
                rows: vec![vec![serde_json::json!(7.5)]],
                ..Table::default()
            }],
            runs: vec![Run {
                target: "millrace".into(),
                target_version: "0.1.0".into(),
                transport: "sse".into(),
                load: Load { value: 50.0, counts: LoadUnit::Clients },
                repeat: 0,
                order: 3,
                factors: Factors { clients: 50, each_per_s: 200.0, publishers: 1, bytes: 173, server_cpus: 1 },
                placement: Placement { server_cpus: vec![0], generator_cpus: vec![1], is_shared: false },
                phases: vec![phase],
                seconds: vec![second],
                validity: vec![Finding { code: "lost".into(), detail: "3".into(), invalidates: true }],
                ..Run::default()
            }],
        };
        let text = serde_json::to_string(&recording).unwrap();
        assert_eq!(serde_json::from_str::<Recording>(&text).unwrap(), recording);
    }

    #[test]
    fn a_sum_of_counts_forgets_none() {
        let ones: Counts = serde_json::from_value(
            serde_json::to_value(Counts::default())
                .unwrap()
                .as_object()
                .unwrap()
                .keys()
                .map(|name| (name.clone(), serde_json::json!(1)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        )
        .unwrap();
        let mut sum = ones;
        sum += ones;
        let text = serde_json::to_string(&sum).unwrap();
        assert!(!text.contains(":1") && !text.contains(":0"), "{text}");
    }
}
