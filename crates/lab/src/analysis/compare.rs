//! Compares two recordings, A and B, point by point.
//!
//! The comparison is refused if the recordings differ in anything except what is compared. Only a few metrics decide
//! ([`Metric::PRIMARY`]). A verdict needs two conditions: [`stats::compare`] finds a difference outside the band, and
//! the difference is still significant when all questions are tested together ([`max_t`]). A p99 must also differ by
//! more than the lateness of the generator.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::{
    host::provenance::{self, Provenance},
    recording::{Load, Recording, Run},
    stats::{
        self,
        compare::{Comparison, RUNS_MIN, Terms, Verdict, compare as compare_runs},
        max_t::{self, Question},
        pairs::{self, PAIRS_MIN},
    },
};

use super::{
    Metric,
    build::{pinning, point_key, said},
};

/// Aspects that must be equal. Otherwise a comparison does not show a property of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Aspect {
    Scenario,
    Form,
    /// Parameters of the scenario, except targets and transports: points are paired by those.
    Parameters,
    Machine,
    /// Kernel version and settings.
    Kernel,
    /// CPUs of server and generator.
    Pinning,
    /// The lab itself.
    Generator,
}

impl Aspect {
    pub const ALL: [Aspect; 7] = [
        Aspect::Scenario,
        Aspect::Form,
        Aspect::Parameters,
        Aspect::Machine,
        Aspect::Kernel,
        Aspect::Pinning,
        Aspect::Generator,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Aspect::Scenario => "scenario",
            Aspect::Form => "form",
            Aspect::Parameters => "parameters",
            Aspect::Machine => "machine",
            Aspect::Kernel => "kernel",
            Aspect::Pinning => "pinning",
            Aspect::Generator => "generator",
        }
    }
}

impl fmt::Display for Aspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Aspect {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        match Aspect::ALL.into_iter().find(|aspect| aspect.name() == name) {
            Some(aspect) => Ok(aspect),
            None => {
                bail!("nothing called {name} must be equal; these must: {}", Aspect::ALL.map(Aspect::name).join(", "))
            }
        }
    }
}

/// One difference between two recordings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Aspect that must be equal. `None` if this value may differ, such as the version of a target.
    pub aspect: Option<Aspect>,
    /// Name of the value, such as `sysctl net.ipv4.tcp_mem`, `parameters.clients`.
    pub what: String,
    /// Value of A and of B. Empty if the side has no such value.
    pub a: String,
    pub b: String,
}

/// Options of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Largest relative change that counts as no change.
    pub band: f64,
    /// Probability of any false alarm over all questions together.
    pub alpha: f64,
    /// Aspects that may differ because the user allows it.
    pub despite: Vec<Aspect>,
    /// Both sides were measured in turns: runs with the same repeat number are pairs ([`pairs`]).
    #[serde(default)]
    pub in_turns: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { band: 0.03, alpha: 0.05, despite: Vec::new(), in_turns: false }
    }
}

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub verdict: Overall,
    /// The verdict as a readable sentence, with the decisive figure.
    pub sentence: String,
    pub options: Options,
    /// All differences: intended, allowed, and those that caused a refusal.
    pub differences: Vec<Difference>,
    /// Compared figures, largest effect first. Empty if the comparison was refused.
    pub rows: Vec<Row>,
    /// Points that only one side has, or that have too few valid runs: `only A: millrace sse at 50 clients`.
    pub unpaired: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overall {
    WithinNoise,
    Improved,
    /// At least one metric regressed, even if others improved.
    Regressed,
    /// The recordings differ in an aspect that must be equal.
    Refused,
    /// No figure could be judged.
    NoVerdict,
}

/// Comparison of one metric at one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub part: String,
    pub target: String,
    pub transport: String,
    pub load: Load,
    pub metric: Metric,
    pub median_a: f64,
    pub median_b: f64,
    /// Verdict with all questions counted together.
    pub verdict: Verdict,
    /// Comparison of this metric alone.
    pub comparison: Comparison,
    /// p-value adjusted for all questions. `None` if the question could not be tested.
    pub p_adjusted: Option<f64>,
}

impl Row {
    /// Returns the distance of the ratio from 1 on a log scale, on which half and double are equally far.
    fn effect(&self) -> f64 {
        self.comparison.ratio.map_or(0.0, |ratio| ratio.estimate.ln().abs())
    }
}

/// Compares `b` with `a`.
///
/// Cost: about 10 ms per point.
pub fn compare(a: &Recording, b: &Recording, options: &Options) -> Outcome {
    let mut outcome = Outcome {
        verdict: Overall::Refused,
        sentence: String::new(),
        options: options.clone(),
        differences: differences(a, b),
        rows: Vec::new(),
        unpaired: Vec::new(),
    };
    let against = |difference: &&Difference| difference.aspect.is_some_and(|aspect| !options.despite.contains(&aspect));
    let mut forbidden: Vec<&str> =
        outcome.differences.iter().filter(against).filter_map(|difference| Some(difference.aspect?.name())).collect();
    forbidden.dedup();
    if !forbidden.is_empty() {
        outcome.sentence = format!(
            "refused: A and B differ in {}, so a difference would not describe the servers; to compare anyway: --despite {}",
            forbidden.join(" and "),
            forbidden.join(",")
        );
        return outcome;
    }
    let (of_a, of_b) = (points(a), points(b));
    for (side, of, other) in [("only A", &of_a, &of_b), ("only B", &of_b, &of_a)] {
        let alone = of.iter().filter(|(key, _)| !other.contains_key(*key));
        outcome.unpaired.extend(alone.map(|(_, runs)| format!("{side}: {}", place(runs[0]))));
    }
    let mut questions = Vec::new();
    for (group, (a, b)) in of_a.iter().filter_map(|(key, a)| Some((a, of_b.get(key)?))).enumerate() {
        let together = in_pairs(a, b);
        let in_turns = options.in_turns && together.0.len() >= PAIRS_MIN;
        let (a, b) = if in_turns { (&together.0, &together.1) } else { (a, b) };
        if a.len().min(b.len()) < RUNS_MIN {
            outcome.unpaired.push(format!("{} and {} valid runs: {}", a.len(), b.len(), place(a[0])));
        }
        for metric in Metric::PRIMARY {
            let values = |runs: &[&Run]| runs.iter().filter_map(|run| metric.of(run)).collect::<Vec<_>>();
            let (values_a, values_b) = (values(a), values(b));
            let Some(better) = metric.info().better else { continue };
            if values_a.is_empty() || values_b.is_empty() {
                continue;
            }
            let terms = Terms { band: options.band, alpha: options.alpha, ..Terms::new(better) };
            let in_turns = in_turns && values_a.len() == a.len() && values_b.len() == b.len();
            let compare_them = if in_turns { pairs::compare } else { compare_runs };
            let mut comparison = compare_them(&values_a, &values_b, &terms);
            let change = (stats::median(&values_b) - stats::median(&values_a)).abs();
            if is_judged(comparison.verdict) && metric == Metric::LatencyP99Us && change <= lateness_us(a, b) {
                comparison.verdict = Verdict::WithinNoise;
            }
            outcome.rows.push(Row {
                part: a[0].part.clone(),
                target: a[0].target.clone(),
                transport: a[0].transport.clone(),
                load: a[0].load,
                metric,
                median_a: stats::median(&values_a),
                median_b: stats::median(&values_b),
                verdict: comparison.verdict,
                comparison,
                p_adjusted: None,
            });
            if is_judged(comparison.verdict) {
                // If some runs lack a value, the set of runs differs from the group, so the question gets its own
                // group for shuffling.
                let is_whole = values_a.len() == a.len() && values_b.len() == b.len();
                let group = if is_whole { group } else { of_a.len() + outcome.rows.len() };
                questions.push((outcome.rows.len() - 1, Question { group, in_turns, a: values_a, b: values_b }));
            }
        }
    }
    let (asked, questions): (Vec<usize>, Vec<Question>) = questions.into_iter().unzip();
    for (index, p) in asked.into_iter().zip(max_t::adjusted_p(&questions, 1)) {
        let row = &mut outcome.rows[index];
        row.p_adjusted = Some(p);
        if p > options.alpha {
            row.verdict = Verdict::WithinNoise;
        }
    }
    outcome.rows.sort_by(|a, b| b.effect().total_cmp(&a.effect()));
    (outcome.verdict, outcome.sentence) = conclude(&outcome);
    outcome
}

/// Returns the runs of each side that have a run with the same repeat number on the other side, in the order of the
/// repeats.
fn in_pairs<'a>(a: &[&'a Run], b: &[&'a Run]) -> (Vec<&'a Run>, Vec<&'a Run>) {
    a.iter().filter_map(|of_a| Some((*of_a, *b.iter().find(|of_b| of_b.repeat == of_a.repeat)?))).unzip()
}

/// Returns the generator's lateness: the median of its p99s, of the side where it is larger.
///
/// Latency counts from the scheduled publication, so it includes this lateness. A smaller difference is not a
/// property of the server.
fn lateness_us(a: &[&Run], b: &[&Run]) -> f64 {
    let of_side = |runs: &[&Run]| {
        let late: Vec<f64> = runs.iter().filter_map(|run| Metric::GeneratorLatenessP99Us.of(run)).collect();
        if late.is_empty() { 0.0 } else { stats::median(&late) }
    };
    of_side(a).max(of_side(b))
}

fn is_judged(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Improved | Verdict::Regressed | Verdict::WithinNoise)
}

fn conclude(outcome: &Outcome) -> (Overall, String) {
    let with = |verdict: Verdict| outcome.rows.iter().filter(move |row| row.verdict == verdict);
    let reported = |row: &Row| {
        let change = row.comparison.ratio.map_or(String::new(), |ratio| {
            let percent = |ratio: f64| (ratio - 1.0) * 100.0;
            format!(" {:+.1} % [{:+.1} %, {:+.1} %]", percent(ratio.estimate), percent(ratio.low), percent(ratio.high))
        });
        format!("{}{change} ({} {} at {})", row.metric.info().label, row.target, row.transport, said(row.load))
    };
    let judged = outcome.rows.iter().filter(|row| is_judged(row.verdict)).count();
    let (worse, better) = (with(Verdict::Regressed).count(), with(Verdict::Improved).count());
    // Rows are sorted, so the first one has the largest effect.
    let first = |verdict| with(verdict).next().map(reported).unwrap_or_default();
    match (worse, better) {
        (0, 0) if judged == 0 => (
            Overall::NoVerdict,
            format!("no verdict: no point has {RUNS_MIN} valid runs on both sides; run both with --repeats 5"),
        ),
        (0, 0) => (
            Overall::WithinNoise,
            format!(
                "within noise: none of {judged} figures differs by more than {} % beyond what chance explains",
                (outcome.options.band * 1000.0).round() / 10.0
            ),
        ),
        (0, better) => {
            (Overall::Improved, format!("improved in {better} of {judged} figures, most {}", first(Verdict::Improved)))
        }
        (worse, better) => {
            let others = if better > 0 { format!("; improved in {better}") } else { String::new() };
            let most = first(Verdict::Regressed);
            (Overall::Regressed, format!("regressed in {worse} of {judged} figures, most {most}{others}"))
        }
    }
}

/// Returns the valid runs of each point, in a stable order.
fn points(recording: &Recording) -> BTreeMap<String, Vec<&Run>> {
    let mut points: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
    for run in recording.runs.iter().filter(|run| run.is_valid()) {
        points.entry(point_key(run)).or_default().push(run);
    }
    points
}

/// Formats the point of a run: `latency, millrace sse at 50 clients`.
fn place(run: &Run) -> String {
    let part = if run.part.is_empty() { String::new() } else { format!("{}, ", run.part) };
    format!("{part}{} {} at {}", run.target, run.transport, said(run.load))
}

/// Returns all differences between two recordings, except measured values and times.
pub fn differences(a: &Recording, b: &Recording) -> Vec<Difference> {
    let mut differences = Vec::new();
    let mut differ = |aspect, what: &str, a: String, b: String| {
        if a != b {
            differences.push(Difference { aspect: Some(aspect), what: what.to_owned(), a, b });
        }
    };
    let form = |recording: &Recording| format!("{:?}", recording.form).to_lowercase();
    differ(Aspect::Scenario, "scenario", a.scenario.clone(), b.scenario.clone());
    differ(Aspect::Form, "form", form(a), form(b));
    let (of_a, mut of_b) = (parameters(a), parameters(b));
    for (name, value) in of_a {
        let other = of_b.remove(&name).unwrap_or_default();
        differ(Aspect::Parameters, &name, value, other);
    }
    of_b.into_iter().for_each(|(name, value)| differ(Aspect::Parameters, &name, String::new(), value));
    // Points that only one side has are not compared, so their CPUs do not matter.
    let (of_a, of_b) = (points(a), points(b));
    let pinned = |of: &BTreeMap<String, Vec<&Run>>, other: &BTreeMap<String, Vec<&Run>>| {
        let paired = of.iter().filter(|(key, _)| other.contains_key(*key)).flat_map(|(_, runs)| runs);
        paired.map(|run| pinning(&run.placement)).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("; ")
    };
    differ(Aspect::Pinning, "CPUs", pinned(&of_a, &of_b), pinned(&of_b, &of_a));
    let read = |recording: &Recording| serde_json::from_value::<Provenance>(recording.provenance.clone());
    match (read(a), read(b)) {
        (Ok(a), Ok(b)) => differences.extend(provenance::differs(&a, &b).into_iter().map(|difference| Difference {
            aspect: aspect(&difference.what),
            what: difference.what,
            a: difference.a,
            b: difference.b,
        })),
        _ => differ(Aspect::Machine, "provenance", a.provenance.to_string(), b.provenance.to_string()),
    }
    differences.sort_by(|a, b| (a.aspect, &a.what).cmp(&(b.aspect, &b.what)));
    differences
}

/// Returns the aspect of a provenance difference. Returns `None` for targets, because they are compared.
fn aspect(what: &str) -> Option<Aspect> {
    match what {
        what if what.starts_with("target ") => None,
        what if what.starts_with("lab ") => Some(Aspect::Generator),
        what if what.starts_with("sysctl ") => Some(Aspect::Kernel),
        "kernel" => Some(Aspect::Kernel),
        _ => Some(Aspect::Machine),
    }
}

/// Returns each leaf of the parameters by its path. Targets, transports and repeats are left out, because only common
/// points are compared.
fn parameters(recording: &Recording) -> BTreeMap<String, String> {
    const FREE: [&str; 3] = ["targets", "transports", "repeats"];
    fn walk(path: &str, value: &serde_json::Value, leaves: &mut BTreeMap<String, String>) {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields.iter().filter(|(name, _)| !FREE.contains(&name.as_str())) {
                    walk(&format!("{path}.{name}"), value, leaves);
                }
            }
            leaf => {
                leaves.insert(path.to_owned(), leaf.to_string());
            }
        }
    }
    let mut leaves = BTreeMap::new();
    walk("parameters", &recording.parameters, &mut leaves);
    leaves
}
