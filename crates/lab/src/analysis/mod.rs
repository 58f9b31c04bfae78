//! Computes everything that a report or a terminal shows from recordings.
//!
//! The unit of analysis is the run: every figure is the median of one value per valid run, with a bootstrap interval
//! (see [`crate::stats`]). Invalid runs are listed and counted. They are used in a figure only if a point has no
//! valid run. Units are in the names. Numbers are rounded to four digits if they are used only to draw a curve.

mod build;
pub mod compare;
mod curve;
mod gates;
mod metric;
mod point;
mod series;
pub mod table;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    judged::Judged,
    recording::{Factors, Form, LinkCounts, Load, PhaseName, Table},
    stats::{bootstrap::Interval, compare::Comparison, knee::Knee, little::Little},
    wire_cost::WireCostReport,
};

pub use {
    build::analyse,
    metric::{Metric, MetricInfo, lasted_s},
};

/// Format version, raised when a field changes its meaning. A reader refuses an unknown version.
pub const FORMAT: u32 = 1;

/// Data of one report: `DIR/analysis.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    pub format: u32,
    pub head: Head,
    /// Metrics that occur in `points`, in display order.
    pub metrics: Vec<MetricInfo>,
    /// Points, sorted by target, transport and load. Targets and transports keep the order of their first run.
    pub points: Vec<Point>,
    /// One curve per part, target and transport, over its loads.
    pub curves: Vec<Curve>,
    /// Comparisons of the first target with each other target, at equal transport and load.
    pub rivals: Vec<Rival>,
    /// Tables from scenarios that have their own code, as recorded.
    pub tables: Vec<Table>,
    /// Bytes and energy, from the first recording that has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "bill")]
    pub wire_cost: Option<WireCostReport>,
    pub runs: Vec<RunNote>,
    /// Lower ends of the buckets of [`Series::heat`], in microseconds. Each bucket ends where the next one begins,
    /// the last one at 60 s.
    pub heat_edges_us: Vec<f64>,
}

/// Head of the report: scenario, machine, and the validity of the runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub scenario: String,
    pub title: String,
    /// Rows of docs/theses.md, such as `T-03`.
    pub thesis_rows: Vec<String>,
    pub form: Form,
    pub seed: u64,
    /// Start time of the first recording, in RFC 3339 format.
    pub started: String,
    /// Command line that repeats the run.
    pub command: String,
    /// Parameters of the scenario, including defaults.
    pub parameters: serde_json::Value,
    /// Version of each target.
    pub target_versions: BTreeMap<String, String>,
    pub machine: Machine,
    /// Each gate once, with the value of its worst run.
    pub gates: Vec<Gate>,
    /// True if all runs and tables are valid.
    pub is_valid: bool,
    /// Number of planned runs. It is larger than `runs_total` if the run was interrupted.
    pub runs_planned: u32,
    pub runs_total: u32,
    pub runs_valid: u32,
    /// Verdict on the service level objective. `None` if the recording has no objective.
    pub slo: Option<SloVerdict>,
    /// Pass or fail checks that are not about runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judged: Vec<Judged>,
}

/// Machine of the run. Values that the machine does not report are empty or `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub kernel: String,
    pub cpu_model: String,
    pub cores: u64,
    pub cpu_quota_cores: Option<f64>,
    pub memory_bytes: u64,
    /// CPUs that server and generator ran on, such as `server 0, generator 1`.
    pub cpu_pinning: String,
    /// Version, revision and build profile of the lab: `0.1.0 (3f2a91c, release)`.
    pub lab: String,
}

/// Validity check, shown as a badge: a condition that must hold for the figures to be valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// Short, stable code: `steal`, `generator_lateness`. For other findings, the code of the finding.
    pub code: String,
    /// Readable text: `CPU taken by the hypervisor`.
    pub label: String,
    /// Value of the worst run. `None` if the gate has no numeric value.
    pub value: Option<f64>,
    /// Highest value that passes.
    pub limit: Option<f64>,
    /// Unit of `value` and `limit`: `%`, `ms`, `cores`, or empty.
    pub unit: String,
    /// False: at least one run or table is invalid because of this gate. A value above the limit can still pass if the
    /// form allows it; `note` then explains that.
    pub passed: bool,
    /// Number of runs that failed this gate, out of [`Head::runs_total`].
    pub runs_failed: u32,
    /// Finding in the first run, or in the table, that failed this gate.
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SloVerdict {
    /// The objective, such as `p99<100ms`.
    pub slo: String,
    pub passed: bool,
    /// Number of points that were checked.
    pub points: u32,
    /// One sentence for each point that missed the objective: `millrace sse at 500 clients: p99 1200.0 ms`.
    pub missed: Vec<String>,
}

/// All repeats of one combination of part, target, transport and load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Part of the scenario. Empty if the scenario has only one part.
    pub part: String,
    pub target: String,
    pub transport: String,
    pub load: Load,
    pub factors: Factors,
    /// Indexes into [`Analysis::runs`], in the order of the repeats.
    pub runs: Vec<u32>,
    pub runs_valid: u32,
    /// True if no run is valid. The figures then come from invalid runs.
    pub is_invalid: bool,
    /// Metrics that at least one run has.
    pub metrics: BTreeMap<Metric, Figure>,
    /// Phases in time order: connect, idle, test, after.
    pub phases: Vec<PhaseFigures>,
    /// Latency curve over the axis `1 / (1 - p)`: medians over the runs.
    pub percentiles: Vec<Percentile>,
    /// Check with Little's law. `None` if the check is not possible: too few messages were in flight, or deliveries
    /// were lost.
    pub little: Option<LittlePanel>,
    pub meets_slo: Option<bool>,
    /// Emulated link, and what the emulator itself needed. `None` without a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkFigures>,
    /// Time series of the median run. `None` if the run has no seconds.
    pub series: Option<Series>,
}

/// Emulated link of all runs of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkFigures {
    pub path: String,
    /// TCP congestion control of both ends. Empty in old recordings.
    pub congestion: String,
    /// Sums over the runs; the longest queue of any run.
    pub up: LinkCounts,
    pub down: LinkCounts,
    /// Medians of the runs.
    pub cpu_us_per_packet: f64,
    pub added_delay_p50_us: f64,
    /// Value of the worst run.
    pub added_delay_p99_us: f64,
    pub cpu_cores: f64,
    /// Packets that the kernel dropped, in all runs.
    pub kernel_drops: u64,
}

/// One value per run, and their median.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub median: f64,
    /// 95 % confidence interval of the median. `None` with a single run.
    pub ci95: Option<(f64, f64)>,
    /// Values of the runs, in the order of [`Point::runs`], without invalid runs.
    pub runs: Vec<f64>,
    /// For a percentile: the smallest number of samples above it in any run.
    pub samples_beyond: Option<u64>,
    /// True for a percentile with fewer than [`BEYOND_MIN`] samples above it. The report shows it in grey.
    pub is_thin: bool,
}

/// Minimum number of samples above a percentile for a reliable value.
pub const BEYOND_MIN: u64 = 10;

/// Check of the measurement itself with Little's law, in the median run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LittlePanel {
    pub little: Little,
    /// The number in flight neither grew nor shrank. The law requires this.
    pub is_steady: bool,
    /// The run is steady, and the error is still more than 5 %. A clock or a counter of the lab is then wrong, and
    /// the figures are not valid.
    pub is_broken: bool,
}

/// Resources used in one phase. CPU is in cores: 0.5 is half a core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseFigures {
    pub name: PhaseName,
    pub duration_s: Figure,
    pub server_cpu_cores: Figure,
    /// The part of `server_cpu_cores` that was spent in the kernel.
    pub server_cpu_system_cores: Figure,
    pub generator_cpu_cores: Figure,
    /// Proportional set size (PSS) of the server at the end of the phase.
    pub server_memory_bytes: Figure,
    pub server_descriptors: Figure,
    /// Round-trip time of the probe: Thorsen's response time. `None` without probes.
    pub probe_p50_us: Option<Figure>,
    pub probe_p99_us: Option<Figure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    /// Share of the distribution: 0.99 for the 99th percentile.
    pub share: f64,
    /// `1 / (1 - share)`: one delivery in this many takes longer.
    pub one_in: f64,
    pub latency_us: f64,
    /// Smallest number of samples above the percentile in any run.
    pub samples_beyond: u64,
}

/// Time series of one run. A step is one second, or several seconds if the run was long. All lists are as long as
/// `at_s`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Index into [`Analysis::runs`].
    pub run: u32,
    pub phases: Vec<Span>,
    /// Length of a step in seconds.
    pub step_s: f64,
    /// Start of each step, counted from the scheduled time of the first connection.
    pub at_s: Vec<f64>,
    /// Rates over the part of a step in which messages were published or delivered. `null` if that part is too short
    /// for a rate.
    pub published_per_s: Vec<Option<f64>>,
    pub deliveries_per_s: Vec<Option<f64>>,
    /// `null` if the step has no deliveries.
    pub latency_p50_us: Vec<Option<f64>>,
    pub latency_p99_us: Vec<Option<f64>>,
    /// `null` in the step in which the run ends.
    pub server_cpu_cores: Vec<Option<f64>>,
    pub generator_cpu_cores: Vec<Option<f64>>,
    pub steal_cores: Vec<Option<f64>>,
    pub server_memory_bytes: Vec<f64>,
    /// Non-empty buckets of each step: `[index into heat_edges_us, deliveries]`.
    pub heat: Vec<Vec<(u32, u64)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    pub name: PhaseName,
    pub start_s: f64,
    pub end_s: f64,
    /// Time at which all deliveries had arrived, or at which waiting timed out. The time from `end_s` to here belongs
    /// to the phase.
    pub drained_s: f64,
}

/// One combination of part, target and transport over its loads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    pub part: String,
    pub target: String,
    pub transport: String,
    /// Indexes into [`Analysis::points`], by rising load.
    pub points: Vec<u32>,
    /// Load at which the server is saturated. `None` if the server carried all loads.
    pub knee: Option<Knee>,
    /// Highest p99 that does not count as late for the knee.
    pub knee_p99_s_max: f64,
    /// Fit of the scalability law. Present with [`USL_POINTS_MIN`] loads or more, if the fit is determined.
    pub usl: Option<UslPanel>,
    /// Memory as a function of connections, if the number of connections is the load.
    pub memory: Option<MemoryLine>,
}

/// Minimum number of loads for a fit of the Universal Scalability Law. A fit needs more than three loads, and an
/// interval needs twice as many.
pub const USL_POINTS_MIN: usize = 6;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UslPanel {
    /// Deliveries per second of one unit of load.
    pub lambda: Interval,
    /// Contention.
    pub sigma: Interval,
    /// Coherence.
    pub kappa: Interval,
    /// Load at which throughput is highest. `None` if the curve has no maximum.
    pub peak_load: Option<f64>,
    /// Points by rising load.
    pub points: Vec<UslPoint>,
    /// Largest absolute residual.
    pub residual_max: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UslPoint {
    pub load: f64,
    pub seen_per_s: f64,
    pub fitted_per_s: f64,
    /// `seen / fitted - 1`.
    pub residual: f64,
}

/// Line `memory = base + bytes_per_connection x connections`, fitted by least squares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryLine {
    pub bytes_per_connection: Interval,
    pub base_bytes: Interval,
    /// Share of the variance that the line explains.
    pub r_squared: f64,
    /// Largest relative distance of a run from the line.
    pub residual_max: f64,
    /// Connections and bytes of each run.
    pub points: Vec<(f64, f64)>,
}

/// Comparison of the first target with another target. A ratio below 1 means that the first target has the lower
/// value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rival {
    /// Indexes into [`Analysis::points`].
    pub point: u32,
    pub rival_point: u32,
    pub target: String,
    pub rival: String,
    pub transport: String,
    pub load: Load,
    pub metric: Metric,
    /// `ratio` is target over rival. The verdict is about `target`: `improved` means better than the rival.
    pub comparison: Comparison,
}

/// Short entry for one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunNote {
    pub part: String,
    pub target: String,
    pub transport: String,
    pub load: Load,
    pub repeat: u32,
    /// Position in the execution order of all runs of its recording.
    pub order: u32,
    /// Index of its recording among the analyzed recordings.
    pub recording: u32,
    pub is_valid: bool,
    /// Findings against the run, as `code: detail`.
    pub findings: Vec<String>,
}
