//! Scenario: a TOML file and, if load alone does not suffice, code of its own. [`crate::scenarios`] has all scenarios.

use serde::{Deserialize, Serialize};

use super::Bench;
use crate::{
    path::TunCable,
    recording::{Recording, Table},
};

/// A scenario: its file, and whether a sweep or code of its own runs it.
pub struct Scenario {
    pub name: &'static str,
    pub(super) toml: &'static str,
    pub kind: Kind,
}

pub enum Kind {
    /// Runs all combinations of its factors; each run is one load on one server. Then adds tables that are computed
    /// from all runs, if any.
    Sweep(Sweep),
    /// Runs its own code.
    Experiment(&'static dyn Experiment),
}

/// Functions of a sweep that act after all runs.
pub struct Sweep {
    /// Returns tables that are computed from all runs.
    pub tables: fn(&Recording) -> Vec<Table>,
    /// Measures and records figures that are not runs.
    pub measure: fn(&mut Bench<'_>) -> anyhow::Result<()>,
}

impl Sweep {
    pub const PLAIN: Sweep = Sweep { tables: |_| Vec::new(), measure: |_| Ok(()) };
}

/// A scenario with its own code.
pub trait Experiment: Sync {
    /// Errors: a parameter is invalid.
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()>;

    /// Returns the estimated duration in seconds, including the start of servers.
    fn estimate_s(&self, parameters: &toml::Table) -> f64;

    /// Runs the experiment. Whatever it has recorded is kept if it is interrupted; [`Bench::has_table`] and
    /// [`Bench::has_run`] report what is already recorded.
    ///
    /// Errors: the experiment cannot run on this machine, or was stopped.
    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()>;
}

/// Description of a scenario.
#[derive(Clone, Debug, Deserialize)]
pub struct About {
    pub title: String,
    pub summary: String,
    /// Thesis, and section in it.
    pub source: String,
    pub rows: Vec<String>,
    /// Conditions that a machine may not meet.
    #[serde(default)]
    pub needs: Vec<Need>,
}

/// A condition of a scenario that a machine may not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// Emulated links between network namespaces. Without them, a quick run measures over loopback or leaves parts out,
    /// and says so; other runs fail.
    Links,
}

impl Need {
    pub fn description(self) -> &'static str {
        match self {
            Need::Links => "root, for emulated links between network namespaces",
        }
    }

    /// Checks whether this machine meets the condition.
    ///
    /// Errors: the reason why not.
    pub fn check(self) -> anyhow::Result<()> {
        match self {
            Need::Links => TunCable::check(),
        }
    }
}

impl Scenario {
    /// Creates a scenario that runs all combinations of its factors. `toml`: the text of its `scenario.toml`.
    pub const fn sweep(name: &'static str, toml: &'static str) -> Self {
        Self { name, toml, kind: Kind::Sweep(Sweep::PLAIN) }
    }

    /// Adds tables that are computed from all runs of a sweep.
    pub const fn with(self, tables: fn(&Recording) -> Vec<Table>) -> Self {
        Self { kind: Kind::Sweep(Sweep { tables, ..Sweep::PLAIN }), name: self.name, toml: self.toml }
    }

    /// Adds tables like [`Scenario::with`], and figures that are not runs.
    pub const fn with_measured(
        self,
        tables: fn(&Recording) -> Vec<Table>,
        measure: fn(&mut Bench<'_>) -> anyhow::Result<()>,
    ) -> Self {
        Self { kind: Kind::Sweep(Sweep { tables, measure }), name: self.name, toml: self.toml }
    }

    /// Creates a scenario with its own code.
    pub const fn experiment(name: &'static str, toml: &'static str, experiment: &'static dyn Experiment) -> Self {
        Self { name, toml, kind: Kind::Experiment(experiment) }
    }

    /// Returns the text of `scenario.toml`.
    pub fn toml(&self) -> &'static str {
        self.toml
    }

    pub fn about(&self) -> About {
        toml::from_str(self.toml).expect("each scenario is read by a test")
    }
}
