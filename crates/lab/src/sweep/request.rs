//! A request to run a scenario, or to measure its capacity.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::atomic::AtomicBool,
    time::{Duration, SystemTime},
};

use anyhow::{Context, ensure};

use super::{
    Bench, Capacity, Design, Event, Kind, Machine, Scenario, Settings, Store, Verdict, View, capacity, design,
    scenario::Sweep,
};
use crate::{
    host::{
        provenance::Provenance,
        validity::{Before, Limits},
    },
    recording::{FORMAT, Form, Recording},
    slo::Slo,
    targets::{self, Options},
};

/// Time for which other processes are observed before the first run.
const WATCH: Duration = Duration::from_millis(500);

/// Scenario to run, its settings, and the output folder.
pub struct Request {
    pub scenario: &'static Scenario,
    pub form: Form,
    pub settings: Settings,
    pub seed: u64,
    pub slo: Option<Slo>,
    /// Programs that the user has named for targets.
    pub binaries: BTreeMap<String, PathBuf>,
    /// Maximum duration. Levels are removed if the runs would take longer.
    pub budget: Option<Duration>,
    pub folder: PathBuf,
    /// True to continue the recording in the folder.
    pub resume: bool,
    /// Command line as typed.
    pub command: String,
}

impl Request {
    /// Runs the scenario to its end, or until `stop`.
    ///
    /// Errors: [`Interrupted`]; a target cannot be started, with the end of its log; the folder contains a different
    /// recording.
    pub fn run(self, view: &mut dyn View, stop: &AtomicBool) -> anyhow::Result<Verdict> {
        self.on_bench(view, stop, |request, design, bench| {
            match request.scenario.kind {
                Kind::Sweep(Sweep { tables, measure }) => {
                    bench.sweep(&design.jobs)?;
                    measure(bench)?;
                    tables(&Store::read(&request.folder)?).into_iter().try_for_each(|table| bench.table(table))?;
                }
                Kind::Experiment(experiment) => {
                    bench.view.show(&Event::Planned { runs: 0, done: 0, estimate_s: design.estimate_s() });
                    for part in request.settings.parts.values() {
                        experiment.run(part, bench)?;
                    }
                }
            }
            bench.verdict.missed += bench.failed();
            bench.verdict.invalid += bench.invalid_tables();
            Ok(bench.verdict)
        })
    }

    /// Finds the largest load that keeps the service level, for each part, target and transport.
    ///
    /// Errors: like [`Request::run`]; there is no service level; the scenario is not a sweep along clients or rates.
    pub fn capacity(self, view: &mut dyn View, stop: &AtomicBool) -> anyhow::Result<Vec<Capacity>> {
        ensure!(self.slo.is_some(), "missing service level: add --slo, for example --slo 'p99<100ms'");
        ensure!(matches!(self.scenario.kind, Kind::Sweep(_)), "{} has no load that could grow", self.scenario.name);
        self.on_bench(view, stop, |request, design, bench| capacity::measure(bench, &request.settings.sweep()?, design))
    }

    /// Prepares the bench for the first run, then calls `act`.
    fn on_bench<T>(
        mut self,
        view: &mut dyn View,
        stop: &AtomicBool,
        act: impl FnOnce(&Request, &Design, &mut Bench<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let machine = Machine::read()?;
        if let Some(budget) = self.budget.filter(|_| !self.resume) {
            let left_out = design::thin(self.scenario, &mut self.settings, &machine, budget)?;
            left_out.iter().for_each(|what| view.show(&Event::Note(what)));
        }
        let design = Design::of(self.scenario, &self.settings, &machine, self.seed)?;
        design.left_out.iter().for_each(|what| view.show(&Event::Note(what)));
        let versions = self.versions(&design)?;
        let head = self.head(&versions, design.jobs.len() as u32)?;
        let store = if self.resume { Store::resume(&self.folder, head)? } else { Store::create(&self.folder, head)? };
        let mut bench = Bench {
            form: self.form,
            seed: self.seed,
            slo: self.slo.as_ref(),
            machine: &machine,
            binaries: &self.binaries,
            versions: &versions,
            store,
            view,
            stop,
            kept: Vec::new(),
            verdict: Verdict::default(),
            left_s: design.estimate_s(),
        };
        for finding in Limits::default().before(&Before::observe(WATCH, &[])?).iter().filter(|gate| !gate.passed) {
            bench.note(&format!("before the first run: {finding}"));
        }
        act(&self, &design, &mut bench)
    }

    fn head(&self, versions: &BTreeMap<String, String>, planned: u32) -> anyhow::Result<Recording> {
        Ok(Recording {
            format: FORMAT,
            scenario: self.scenario.name.into(),
            form: self.form,
            parameters: self.settings.to_json(),
            seed: self.seed,
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            provenance: serde_json::to_value(Provenance::read(versions.clone()))?,
            command: self.command.clone(),
            slo: self.slo.as_ref().map(Slo::to_string),
            planned,
            runs: Vec::new(),
            tables: Vec::new(),
            wire_cost: None,
        })
    }

    /// Errors: a target is not available.
    fn versions(&self, design: &Design) -> anyhow::Result<BTreeMap<String, String>> {
        let mut versions = BTreeMap::new();
        for name in &design.targets {
            let binary = self.binaries.get(name).cloned();
            let version = targets::find(name)?.version(&Options { binary, ..Options::default() });
            versions.insert(name.clone(), version.with_context(|| format!("target {name} cannot be had here"))?);
        }
        Ok(versions)
    }
}
