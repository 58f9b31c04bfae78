//! From recordings to all that a report and a terminal show, computed once.
//!
//! The run is the unit: every figure is the median of one value per valid run, with an interval that the bootstrap gives (see
//! [`crate::stats`]). Invalid runs are listed and counted, and enter no figure unless a point has no others.
//! Units are in the names. Numbers are rounded to four digits where a curve is only drawn.

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
    recording::{Factors, Form, Load, PhaseName, Table},
    stats::{bootstrap::Interval, compare::Comparison, knee::Knee, little::Little},
    wire::Bill,
};

pub use {
    build::analyse,
    metric::{Metric, MetricInfo},
};

/// Raised when a field changes its meaning; a reader refuses what it does not know.
pub const FORMAT: u32 = 1;

/// What is behind one report: `DIR/analysis.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    pub format: u32,
    pub head: Head,
    /// The metrics that occur below, in the order in which they are shown.
    pub metrics: Vec<MetricInfo>,
    /// By target, transport, load; targets and transports in the order of their first run.
    pub points: Vec<Point>,
    /// One per target and transport: what lies across its loads.
    pub curves: Vec<Curve>,
    /// The first target against each other one, where both have the same transport and load.
    pub rivals: Vec<Rival>,
    /// What scenarios with code of their own have found, as recorded.
    pub tables: Vec<Table>,
    /// Bytes and energy, of the first recording that has counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bill: Option<Bill>,
    pub runs: Vec<RunNote>,
    /// Lower ends of the buckets of [`Series::heat`], in microseconds; each bucket ends where the next begins, the last at 60 s.
    pub heat_edges_us: Vec<f64>,
}

/// What was run, on what, and whether it is to be believed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub scenario: String,
    pub title: String,
    /// Rows of docs/theses.md, such as `T-03`.
    pub thesis_rows: Vec<String>,
    pub form: Form,
    pub seed: u64,
    /// RFC 3339; of the first recording.
    pub started: String,
    /// What to type for the same again.
    pub command: String,
    /// What the scenario was given, defaults included.
    pub parameters: serde_json::Value,
    /// By target.
    pub target_versions: BTreeMap<String, String>,
    pub machine: Machine,
    /// Each gate once, with its worst run.
    pub gates: Vec<Gate>,
    /// Nothing speaks against any run.
    pub is_valid: bool,
    /// Runs that were to be; more than there are if it was interrupted.
    pub runs_planned: u32,
    pub runs_total: u32,
    pub runs_valid: u32,
    /// None if the scenario promises nothing.
    pub slo: Option<SloVerdict>,
    /// What is judged beside runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judged: Vec<Judged>,
}

/// Where it ran. Empty or none: the machine does not tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub kernel: String,
    pub cpu_model: String,
    pub cores: u64,
    pub cpu_quota_cores: Option<f64>,
    pub memory_bytes: u64,
    /// Which CPUs server and generator ran on, such as `server 0, generator 1`.
    pub cpu_pinning: String,
    /// `0.1.0 (3f2a91c, release)`.
    pub lab: String,
}

/// A badge: something that must hold for figures to be believed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// Short and stable: `steal`, `generator_lateness`; otherwise the code of a finding.
    pub code: String,
    /// For people: `CPU taken by the hypervisor`.
    pub label: String,
    /// Of the worst run; none if it is no number.
    pub value: Option<f64>,
    /// The highest value that passes.
    pub limit: Option<f64>,
    /// Of both: `%`, `ms`, `cores`, or empty.
    pub unit: String,
    /// False: runs are invalid for it. True above the limit: the form grants that, and `note` says so.
    pub passed: bool,
    /// Runs that failed it, of [`Head::runs_total`].
    pub runs_failed: u32,
    /// What was found in the first run that failed it.
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SloVerdict {
    /// Such as `p99<100ms`.
    pub slo: String,
    pub passed: bool,
    /// Points that were judged.
    pub points: u32,
    /// One sentence for each that missed it: `millrace sse at 500 clients: p99 1.2 s, at most 1 s`.
    pub missed: Vec<String>,
}

/// One (part, target, transport, load): the repeats of it together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Of the scenario; empty if it has only one.
    pub part: String,
    pub target: String,
    pub transport: String,
    pub load: Load,
    pub factors: Factors,
    /// Indexes into [`Analysis::runs`], in the order of their repeats.
    pub runs: Vec<u32>,
    pub runs_valid: u32,
    /// No run is valid: what is shown is of invalid ones.
    pub is_invalid: bool,
    /// Only those that the runs have.
    pub metrics: BTreeMap<Metric, Figure>,
    /// In the order in which they were; connect, idle, test, after.
    pub phases: Vec<PhaseFigures>,
    /// The curve of latency on the axis `1 / (1 - p)`: medians over runs.
    pub percentiles: Vec<Percentile>,
    /// None where it cannot be told: too little was inside to be counted once a second, or deliveries were lost.
    pub little: Option<LittlePanel>,
    pub meets_slo: Option<bool>,
    /// Of the run in the middle; none without seconds.
    pub series: Option<Series>,
}

/// A value per run, and their middle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub median: f64,
    /// The confidence interval of 95 % of the median; none with a single run.
    pub ci95: Option<(f64, f64)>,
    /// In the order of [`Point::runs`], invalid ones left out.
    pub runs: Vec<f64>,
    /// Of percentiles: the fewest samples above it in any run.
    pub samples_beyond: Option<u64>,
    /// A percentile with fewer than [`BEYOND_MIN`] samples above it: to be greyed.
    pub is_thin: bool,
}

/// A percentile with fewer samples than this above it rests on too little.
pub const BEYOND_MIN: u64 = 10;

/// Little's law as a check of our own measurement, in the run in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LittlePanel {
    pub little: Little,
    /// What was inside neither grew nor shrank; the law asks for it.
    pub is_steady: bool,
    /// Steady, and still off by more than 5 %: a clock or a counter of ours is wrong, and nothing here is to be believed.
    pub is_broken: bool,
}

/// What was used in one phase. CPU in cores: 0.5 is half of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseFigures {
    pub name: PhaseName,
    pub duration_s: Figure,
    pub server_cpu_cores: Figure,
    /// Of that, in the kernel.
    pub server_cpu_system_cores: Figure,
    pub generator_cpu_cores: Figure,
    /// Proportional memory (PSS) of the server at the end of the phase.
    pub server_memory_bytes: Figure,
    pub server_descriptors: Figure,
    /// There and back: Thorsen's response time. None without probes.
    pub probe_p50_us: Option<Figure>,
    pub probe_p99_us: Option<Figure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    /// 0.99 for the 99th.
    pub share: f64,
    /// `1 / (1 - share)`: one in so many takes longer.
    pub one_in: f64,
    pub latency_us: f64,
    /// The fewest in any run.
    pub samples_beyond: u64,
}

/// A run second by second; several together if it was long. All lists are as long as `at_s`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Index into [`Analysis::runs`].
    pub run: u32,
    pub phases: Vec<Span>,
    /// Seconds in each step.
    pub step_s: f64,
    /// When each step began, since the first connection was due.
    pub at_s: Vec<f64>,
    /// Rates over that part of a step in which there could be any; `null` where that part is too short for a rate.
    pub published_per_s: Vec<Option<f64>>,
    pub deliveries_per_s: Vec<Option<f64>>,
    /// `null` where nothing was delivered.
    pub latency_p50_us: Vec<Option<f64>>,
    pub latency_p99_us: Vec<Option<f64>>,
    /// `null` in the step in which the run ends.
    pub server_cpu_cores: Vec<Option<f64>>,
    pub generator_cpu_cores: Vec<Option<f64>>,
    pub steal_cores: Vec<Option<f64>>,
    pub server_memory_bytes: Vec<f64>,
    /// Per step the buckets with something in them: `[index into heat_edges_us, deliveries]`.
    pub heat: Vec<Vec<(u32, u64)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    pub name: PhaseName,
    pub start_s: f64,
    pub end_s: f64,
    /// When all had arrived, or was given up; what is between `end_s` and this belongs to the phase.
    pub drained_s: f64,
}

/// One (part, target, transport) over its loads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    pub part: String,
    pub target: String,
    pub transport: String,
    /// Indexes into [`Analysis::points`], by rising load.
    pub points: Vec<u32>,
    /// From which load on it was saturated; none if it carried all.
    pub knee: Option<Knee>,
    /// What the knee counts as late.
    pub knee_p99_s_max: f64,
    /// With [`USL_POINTS_MIN`] loads or more, where the fit is determined.
    pub usl: Option<UslPanel>,
    /// Memory over connections, if connections are the load.
    pub memory: Option<MemoryLine>,
}

/// The Universal Scalability Law asks for more than three loads to say anything, and for twice that to say it with an interval.
pub const USL_POINTS_MIN: usize = 6;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UslPanel {
    /// Deliveries per second of one unit of load.
    pub lambda: Interval,
    /// Contention.
    pub sigma: Interval,
    /// Coherence.
    pub kappa: Interval,
    /// Where the curve bends down; none if it does not.
    pub peak_load: Option<f64>,
    /// By rising load.
    pub points: Vec<UslPoint>,
    /// The largest residual, without its sign.
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

/// `memory = base + per connection x connections`, least squares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryLine {
    pub bytes_per_connection: Interval,
    pub base_bytes: Interval,
    /// Share of the variance that the line explains.
    pub r_squared: f64,
    /// The largest distance of a run from the line, as a share of the line.
    pub residual_max: f64,
    /// Connections and bytes of each run.
    pub points: Vec<(f64, f64)>,
}

/// The first target over another one: below 1 it has less.
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
    /// `ratio` is target over rival; the verdict is on `target`: `improved` is better than the rival.
    pub comparison: Comparison,
}

/// A run in a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunNote {
    pub part: String,
    pub target: String,
    pub transport: String,
    pub load: Load,
    pub repeat: u32,
    /// When it was run among all of its recording.
    pub order: u32,
    /// Index of its recording among those analysed.
    pub recording: u32,
    pub is_valid: bool,
    /// `code: detail` of what speaks against it.
    pub findings: Vec<String>,
}
