//! What a run of the lab leaves behind, as JSON. Reports and comparisons read this and nothing else.
//!
//! Units are in the names: `_us`, `_s`, `_bytes`. Times of a run count from when its first connection was due.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// Raised when a field changes its meaning; a reader refuses what it does not know.
pub const FORMAT: u32 = 1;

/// One call of `millrace lab run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    pub format: u32,
    pub scenario: String,
    pub form: Form,
    /// What the scenario was given, defaults included.
    pub parameters: serde_json::Value,
    pub seed: u64,
    /// RFC 3339.
    pub started: String,
    /// The machine, the build, the versions.
    pub provenance: serde_json::Value,
    pub runs: Vec<Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    Quick,
    Full,
    Thesis,
}

/// One server, one transport, one load, once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub target: String,
    pub target_version: String,
    pub transport: String,
    pub load: Load,
    /// From 0; runs that differ only here are repeats of one another.
    pub repeat: u32,
    /// From 0: when it was run among all runs of the recording.
    pub order: u32,
    pub phases: Vec<Phase>,
    pub seconds: Vec<Second>,
    /// Empty: nothing speaks against this run.
    pub validity: Vec<Finding>,
}

/// Where on its axis a run lies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    pub value: f64,
    pub counts: LoadUnit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadUnit {
    Clients,
    Publishers,
    Connections,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PhaseName {
    /// Connections are opened.
    Connect,
    /// All are connected, nothing is published.
    Idle,
    /// Publications, and the wait for the last of them.
    Test,
    /// Nothing is published any more.
    After,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
        };
        let second = Second {
            at_s: 1.0,
            counts,
            latency_us,
            server_cpu_s: 0.25,
            server_pss_bytes: 4096,
            generator_cpu_s: 0.125,
            steal_s: 0.0,
        };
        let recording = Recording {
            format: FORMAT,
            scenario: "thorsen-broadcast".into(),
            form: Form::Quick,
            parameters: serde_json::json!({"clients": [1, 50]}),
            seed: 7,
            started: "2026-11-21T20:00:00Z".into(),
            provenance: serde_json::Value::Null,
            runs: vec![Run {
                target: "millrace".into(),
                target_version: "0.1.0".into(),
                transport: "sse".into(),
                load: Load { value: 50.0, counts: LoadUnit::Clients },
                repeat: 0,
                order: 3,
                phases: vec![phase],
                seconds: vec![second],
                validity: vec![Finding { code: "lost".into(), detail: "3".into(), invalidates: true }],
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
