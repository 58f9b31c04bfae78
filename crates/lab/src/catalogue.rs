//! The scenarios and targets as data, for programs and pages that offer them.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::{
    recording::Form,
    scenarios::SCENARIOS,
    sweep::{Design, Machine, Scenario, Settings},
    targets::{Options, TARGETS},
};

/// Everything that `millrace lab run` can run on this machine.
#[derive(Serialize)]
pub struct Catalogue {
    pub scenarios: Vec<ScenarioEntry>,
    pub targets: Vec<TargetEntry>,
}

#[derive(Serialize)]
pub struct ScenarioEntry {
    pub name: &'static str,
    pub title: String,
    pub summary: String,
    pub source: String,
    pub needs: Vec<NeedEntry>,
    pub forms: Vec<FormEntry>,
    /// Keys that `--set` accepts, without those of single parts.
    pub parameters: BTreeSet<String>,
}

#[derive(Serialize)]
pub struct NeedEntry {
    pub need: &'static str,
    /// Reason why this machine does not meet the condition; `None` if it does.
    pub missing: Option<String>,
}

#[derive(Serialize)]
pub struct FormEntry {
    pub form: Form,
    /// Estimated duration in seconds.
    pub estimate_s: f64,
    /// Number of planned runs; 0 if the scenario has its own code.
    pub runs: usize,
    pub targets: BTreeSet<String>,
}

#[derive(Serialize)]
pub struct TargetEntry {
    pub name: &'static str,
    pub transports: Vec<&'static str>,
    /// Version of the program here, or of the package that is installed on first use.
    pub version: Option<String>,
    /// Reason why the target cannot be measured here.
    pub missing: Option<String>,
}

/// Returns all scenarios and targets. Runs each target's program for its version.
///
/// Errors: the CPUs of this machine are unknown.
pub fn catalogue() -> anyhow::Result<Catalogue> {
    let machine = Machine::read()?;
    let scenarios = SCENARIOS.iter().map(|scenario| of(scenario, &machine)).collect();
    let targets = TARGETS.iter().map(|target| {
        let (version, missing) = match target.version(&Options::default()) {
            Ok(version) => (Some(version), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        let transports = target.transports().iter().map(|transport| transport.name()).collect();
        TargetEntry { name: target.name(), transports, version, missing }
    });
    Ok(Catalogue { scenarios, targets: targets.collect() })
}

fn of(scenario: &'static Scenario, machine: &Machine) -> ScenarioEntry {
    let about = scenario.about();
    let needs = about.needs.iter().map(|need| NeedEntry {
        need: need.description(),
        missing: need.check().err().map(|error| format!("{error:#}")),
    });
    let mut parameters = BTreeSet::new();
    let mut forms = Vec::new();
    for form in [Form::Quick, Form::Full, Form::Thesis] {
        let Ok(settings) = Settings::read(scenario, form, &[]) else { continue };
        parameters.extend(settings.parts.values().flat_map(|part| part.keys().cloned()));
        // A form with a level that this machine cannot run at all is left out.
        let Ok(design) = Design::of(scenario, &settings, machine, 1) else { continue };
        let (estimate_s, runs) = (design.estimate_s(), design.jobs.len());
        forms.push(FormEntry { form, estimate_s, runs, targets: design.targets });
    }
    let (name, needs) = (scenario.name, needs.collect());
    let (title, summary, source) = (about.title, about.summary, about.source);
    ScenarioEntry { name, title, summary, source, needs, forms, parameters }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catalogue_has_each_scenario_with_its_duration() {
        let machine = Machine { cpus: vec![0, 1], descriptors: 20_000, memory_bytes: 24 << 30 };
        for scenario in SCENARIOS {
            let entry = of(scenario, &machine);
            let quick = entry.forms.iter().find(|form| form.form == Form::Quick).expect("a quick form");
            assert!(quick.estimate_s > 0.0 && quick.targets.contains("millrace"), "{}", scenario.name);
            assert!(!entry.parameters.is_empty() && entry.forms.len() == 3, "{}", scenario.name);
        }
    }
}
