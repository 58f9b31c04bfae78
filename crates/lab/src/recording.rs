//! The JSON file that a lab run writes. Reports and comparisons read only this file.
//!
//! Units are in the names: `_us`, `_s`, `_bytes`. Times of a run start at the scheduled time of its first connection.

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use crate::finding::Finding;
use crate::{histogram::Histogram, wire_cost::WireCostReport};

/// Format version, raised when a field changes its meaning. A reader refuses an unknown version.
pub const FORMAT: u32 = 1;

/// Result of one call of `millrace lab run`.
///
/// Two recordings can be compared if scenario, form, parameters and the machine part of the provenance are equal. The
/// parameters `targets` and `transports` may differ, because runs are paired by them. Builds, versions of targets and
/// the seed may differ: the comparison is about these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording<R = Run> {
    pub format: u32,
    pub scenario: String,
    pub form: Form,
    /// Parameters of the scenario, including defaults: for each part of the scenario, all parameters of that part.
    pub parameters: serde_json::Value,
    pub seed: u64,
    /// Start time in RFC 3339 format.
    pub started: String,
    /// Machine, build and versions: a [`Provenance`](crate::host::provenance::Provenance).
    pub provenance: serde_json::Value,
    /// Command line that started the run.
    #[serde(default)]
    pub command: String,
    /// Service level objective of each run, such as `p99<100ms`.
    #[serde(default)]
    pub slo: Option<String>,
    /// Number of planned runs. If `runs` has fewer, the recording was interrupted and can be resumed.
    #[serde(default)]
    pub planned: u32,
    /// Runs in execution order.
    pub runs: Vec<R>,
    /// Tables from scenarios that have their own code.
    #[serde(default)]
    pub tables: Vec<Table>,
    /// Bytes and energy, if the scenario measures them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "bill")]
    pub wire_cost: Option<WireCostReport>,
}

impl Recording {
    /// Returns a copy that has only the runs of `target`, with the target renamed to `called`. Two targets that were
    /// measured in turns are compared as one target in this way.
    pub fn of_target(&self, target: &str, called: &str) -> Recording {
        let mut part = self.clone();
        part.runs.retain(|run| run.target == target);
        part.runs.iter_mut().for_each(|run| run.target = called.to_owned());
        part
    }

    /// Returns the names of the targets that were run, in the order of their first runs.
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

/// One measurement of one server, one transport and one load. Runs with the same part, target, transport and factors
/// are repeats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Part of the scenario. Empty if the scenario has only one part.
    #[serde(default)]
    pub part: String,
    pub target: String,
    pub target_version: String,
    pub transport: String,
    /// The factor that is the x-axis of the charts of this part.
    pub load: Load,
    #[serde(default)]
    pub factors: Factors,
    /// Number of the repeat, from 0.
    pub repeat: u32,
    /// Position in the execution order of all runs of the recording, from 0.
    pub order: u32,
    #[serde(default)]
    pub placement: Placement,
    /// Phases of the run. Empty if the run failed before it started; `validity` gives the reason.
    pub phases: Vec<Phase>,
    pub seconds: Vec<Second>,
    /// Findings against this run. Empty if there are none.
    pub validity: Vec<Finding>,
    /// The emulated link between the clients and the server, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkRun>,
    /// Processes and network of a load that was spread over several server nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
}

/// Processes and network of a load that was spread over several server nodes, each with a generator process of its
/// own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    /// Number of server nodes, and of generator processes.
    pub nodes: u64,
    /// Number of network namespaces of the generators. 0: servers and generators used loopback.
    pub namespaces: u64,
    /// Bytes between generators and servers during the test, with Ethernet headers and ACKs. `None` on loopback, which
    /// other processes use as well.
    pub up_bytes: Option<u64>,
    pub down_bytes: Option<u64>,
}

/// Counters of an emulated link in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkRun {
    /// Name of the path, such as `3g`.
    pub path: String,
    /// From the clients to the server, and back.
    pub up: LinkCounts,
    pub down: LinkCounts,
    /// CPU time of the emulator per packet.
    pub cpu_us_per_packet: f64,
    /// Share of one core that the emulator used.
    pub cpu_cores: f64,
    /// How late the emulator released packets.
    pub late_p50_us: f64,
    pub late_p99_us: f64,
    /// Packets that the kernel dropped before or behind the link. They are not losses of the link.
    pub kernel_drops: u64,
    /// TCP congestion control of both ends. Empty if only UDP was measured, and in recordings that do not name it.
    pub congestion: String,
    /// Traffic of the readers during the test. `None` if it was not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readers: Option<ReaderTraffic>,
}

/// Traffic of all readers at an emulated link, from the start of the test until the last delivery. Connections that
/// only publish are not included. Sizes are at IP level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReaderTraffic {
    pub readers: u64,
    pub seconds: f64,
    /// Sent by the readers, including packets that the link lost.
    pub up_packets: u64,
    pub up_bytes: u64,
    /// Received by the readers.
    pub down_packets: u64,
    pub down_bytes: u64,
    /// Energy of the radios, if the network has a modeled radio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<ReaderEnergy>,
}

/// Energy of the radios of all readers. Each reader has a radio of its own, which carries the packets of the test as if
/// the test had no beginning and no end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReaderEnergy {
    /// Name of the radio's model, such as `lte`.
    pub radio: String,
    /// Duration for which the energy is computed: from the start to the end of publishing.
    pub seconds: f64,
    pub joules: f64,
    /// Number of promotions that take time.
    pub promotions: u64,
}

/// Packets in one direction of an emulated link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkCounts {
    pub received: u64,
    pub received_bytes: u64,
    pub delivered: u64,
    pub delivered_bytes: u64,
    /// Lost on the channel, by an outage or by a NAT.
    pub lost: u64,
    /// Dropped because the queue was full or, with CoDel, too slow.
    pub dropped: u64,
    pub queue_packets_max: u64,
    pub queue_delay_max_ms: f64,
}

impl Run {
    pub fn phase(&self, name: PhaseName) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// Returns whether conclusions may be drawn from this run.
    pub fn is_valid(&self) -> bool {
        !self.validity.iter().any(|finding| finding.invalidates)
    }

    /// Returns whether the counts of this run hold: nothing but noise of the machine makes it invalid.
    pub fn has_valid_counts(&self) -> bool {
        self.validity.iter().all(|finding| !finding.invalidates || finding.is_noise())
    }
}

/// Position of a run on the load axis.
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
    /// Publications per second of each publisher.
    EachPerSecond,
    /// Payload size.
    Bytes,
    /// CPUs that the server may use.
    ServerCpus,
}

/// All factors that a sweep can vary between runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Factors {
    /// Number of clients, pairs or idle connections; the shape of the load decides which.
    pub clients: u64,
    /// Publications per second of each publisher. The total rate is `publishers` times this rate. 0 in a closed loop.
    pub each_per_s: f64,
    pub publishers: u64,
    /// Payload size.
    pub bytes: u64,
    pub server_cpus: u64,
}

/// CPUs that the server and the generator are pinned to. An empty list means any CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Placement {
    pub server_cpus: Vec<usize>,
    pub generator_cpus: Vec<usize>,
    /// Server and generator share CPUs, so each takes CPU time from the other.
    pub is_shared: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PhaseName {
    /// Connections are opened.
    #[default]
    Connect,
    /// All clients are connected, and no messages are published.
    Idle,
    /// Messages are published. The phase includes the wait for the last delivery.
    Test,
    /// Publishing has ended.
    After,
}

/// Time from the start of [`PhaseName::Test`] until its first publication is due.
pub const TEST_LEAD: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    pub name: PhaseName,
    pub start_s: f64,
    /// End of the phase. For [`PhaseName::Test`]: end of publishing. Later deliveries still belong to the phase.
    pub end_s: f64,
    /// Time at which all deliveries had arrived, or at which waiting for them timed out.
    pub drained_s: f64,
    pub counts: Counts,
    /// Time from the scheduled publication to the moment when its receiver had read it.
    pub latency_us: Histogram,
    /// Time from handing a publication to the kernel to the moment when its receiver had read it.
    pub service_us: Histogram,
    /// Time between the first and the last receiver of a publication. Includes only publications that reached all
    /// receivers.
    pub spread_us: Histogram,
    /// Time from the scheduled connection until its subscription was active.
    pub connect_us: Histogram,
    /// Round-trip time on the same transport: every 50 ms a publisher receives its own publication.
    pub probe_us: Histogram,
    /// Delay of the generator: how late it published, compared with the schedule.
    pub lateness_us: Histogram,
    /// Upper bound of the time that received data waited in a socket while the generator handled other connections.
    pub lag_us: Histogram,
    /// Longest time between two messages at one receiver. 0: no receiver got two messages.
    #[serde(default)]
    pub silence_us: u64,
    pub server: Usage,
    pub generator: Usage,
    #[serde(default)]
    pub watched: Option<Watched>,
}

/// Counters of publications and deliveries. Deliveries count once per receiver: a broadcast to 50 receivers is 50
/// deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Publications that were due.
    pub scheduled: u64,
    /// Publications that the kernel accepted.
    pub sent: u64,
    /// Deliveries, without duplicates.
    pub delivered: u64,
    /// Deliveries that were expected from sent publications but never arrived.
    pub lost: u64,
    /// Repeated deliveries of the same publication. They are not in `delivered`.
    pub duplicated: u64,
    /// Deliveries that arrived after a delivery published later. They are also in `delivered`.
    pub reordered: u64,
    /// Received messages that do not match any publication.
    pub corrupt: u64,
    /// Number of times that the server reported a gap to a receiver.
    pub gaps: u64,
    /// Publications that the server refused.
    pub refused: u64,
    /// Connections that became ready.
    pub connected: u64,
    /// Connections that failed or that the server closed.
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

/// Resources that the server or the generator used. CPU time and context switches count from the start of the phase;
/// the other values are readings at its end.
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

    /// Returns this reading, with the counters reduced by those of the earlier reading.
    pub fn since(&self, earlier: &Usage) -> Usage {
        Usage {
            cpu_user_s: self.cpu_user_s - earlier.cpu_user_s,
            cpu_system_s: self.cpu_system_s - earlier.cpu_system_s,
            context_switches: self.context_switches.saturating_sub(earlier.context_switches),
            ..*self
        }
    }
}

/// Measurements of one second of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Start of the second.
    pub at_s: f64,
    pub counts: Counts,
    pub latency_us: Histogram,
    pub server_cpu_s: f64,
    pub server_pss_bytes: u64,
    pub generator_cpu_s: f64,
    /// CPU time that the hypervisor took from this machine, summed over all CPUs.
    pub steal_s: f64,
    #[serde(default)]
    pub watched: Option<Watched>,
}

/// Resource use of the server and the machine in a phase or a second, measured from outside the server. Values of the
/// server cover all its processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watched {
    /// Time between the two readings that are compared: about the length of the phase or the second.
    pub seconds: f64,
    pub cpu_user_s: f64,
    pub cpu_system_s: f64,
    /// Proportional set size (PSS) at the last reading that has one.
    pub pss_bytes: Option<u64>,
    pub rss_bytes: u64,
    pub descriptors: u64,
    pub threads: u32,
    pub switches_voluntary: u64,
    pub switches_involuntary: u64,
    /// Share of the time that each core of the machine was busy, including other processes.
    pub cores_busy: Vec<f64>,
    /// Share of the time of all cores that the hypervisor gave to other guests.
    pub steal: f64,
    /// Share of the time in which at least one task waited for a CPU. `None` if the kernel does not report this.
    pub pressure: Option<f64>,
    /// CPU seconds per second of all processes other than the server and the generator.
    pub others_cores: f64,
    pub tcp_memory_bytes: u64,
    /// Metrics that the server reports, if it has a metrics endpoint.
    pub metrics: Option<Metrics>,
}

/// Differences of the server's own counters over the same period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Publications that the engine processed ("engine commands"), including those of the probe.
    pub publications: u64,
    pub refused: u64,
    /// Iterations of the event loops.
    pub turns: u64,
    /// Write calls on sockets; `sent_bytes` counts their bytes.
    pub writes: u64,
    pub sent_bytes: u64,
    /// Longest response time of the metrics endpoint in the period. It shows the lag of the event loop from outside.
    pub answer_us: u64,
}

/// Table of figures that are not runs, such as bytes per message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Short, stable name, unique in its recording: `bytes-per-message`.
    pub name: String,
    pub title: String,
    pub columns: Vec<Column>,
    /// One cell per column: text, a number, or null for an unknown value.
    pub rows: Vec<Vec<serde_json::Value>>,
    /// Notes for the reader: assumptions and sources.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Findings against the figures of the table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub validity: Vec<Finding>,
}

impl Table {
    /// Returns whether conclusions may be drawn from this table.
    pub fn is_valid(&self) -> bool {
        !self.validity.iter().any(|finding| finding.invalidates)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Column {
    pub name: String,
    /// Unit, such as `bytes` or `mJ`. Empty for text.
    pub unit: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_round_trips() {
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
            silence_us: 1500,
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
            wire_cost: None,
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
    fn sum_includes_every_count() {
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
