//! The scenarios: what is measured, and why. Each has a folder and a line in [`SCENARIOS`].
//!
//! A scenario is a TOML file. It has code of its own only if load alone does not suffice:
//!
//! ```toml
//! title = "One source, many readers"             # title of its page and report
//! summary = "140 characters every 5 ms to ..."   # one line of `millrace lab list`
//! source = "Thorsen 2015, scenario 1"
//! rows = ["T-06"]                                # rows of docs/theses.md
//! needs = ["links"]                              # only if a part has an emulated link: `sweep::Need`
//!
//! [parameters]                                   # values for every part and form; the keys: `sweep::Parameters`
//! clients = [1, 50, 100]                         # a list is a factor: all combinations of all lists are run
//!
//! [parts.cores]                                  # only if it has several parts: the values that differ in this part
//! axis = "server-cpus"
//!
//! [quick]                                        # values that differ in a form: quick, full, thesis
//! clients = [10]
//! only = ["cores"]                               # only if not all parts are run in this form
//! [quick.parts.cores]                            # values that differ in one part of a form
//! bytes = [100]
//! ```
//!
//! Later values override earlier ones, in this order: defaults, `[parameters]`, `[parts.P]`, `[FORM]`,
//! `[FORM.parts.P]`, `--set key=value`, `--set P.key=value`. An unknown key is an error.
//!
//! To add a scenario, add a folder with `scenario.toml`, and a line in [`SCENARIOS`]. A sweep can add tables that are
//! computed from all its runs. If a sweep is not enough, implement [`Experiment`](crate::sweep::Experiment). All its
//! parameters are then in `[parameters]`, and it reads them into its own type. `targets`, if present, are looked up
//! before. An experiment records [tables](crate::recording::Table), runs, or both.

mod carcare_latency;
mod carcare_load;
mod carcare_reliability;
pub mod carcare_wire;
mod karadogan_arm_probe;
mod karadogan_forwarding;
mod karadogan_gateway;
mod karadogan_servo;
mod lozano;
mod lozano_browsers;
mod lozano_free;
mod lozano_mobile;
mod lozano_multiparty;
mod lozano_parallel;
mod lozano_paths;
mod lozano_queues;
mod lozano_tcp;
mod networks;
mod somogyi_tls;
mod table;
#[cfg(test)]
mod test_parameters;

use crate::{nearest::nearest, sweep::Scenario};

/// All scenarios, in the order in which they are listed.
pub static SCENARIOS: &[Scenario] = &[
    Scenario::sweep("thorsen-broadcast", include_str!("thorsen_broadcast/scenario.toml")),
    Scenario::sweep("thorsen-chat", include_str!("thorsen_chat/scenario.toml")),
    Scenario::sweep("karadogan-pairs", include_str!("karadogan_pairs/scenario.toml")),
    Scenario::experiment(
        "karadogan-gateway",
        include_str!("karadogan_gateway/scenario.toml"),
        &karadogan_gateway::KaradoganGateway,
    ),
    Scenario::experiment(
        "karadogan-forwarding",
        include_str!("karadogan_forwarding/scenario.toml"),
        &karadogan_forwarding::KaradoganForwarding,
    ),
    Scenario::experiment(
        "karadogan-servo",
        include_str!("karadogan_servo/scenario.toml"),
        &karadogan_servo::KaradoganServo,
    ),
    Scenario::experiment(
        "karadogan-arm-probe",
        include_str!("karadogan_arm_probe/scenario.toml"),
        &karadogan_arm_probe::KaradoganArmProbe,
    ),
    Scenario::sweep("carcare-latency", include_str!("carcare_latency/scenario.toml")).with(carcare_latency::tables),
    Scenario::experiment("carcare-wire", include_str!("carcare_wire/scenario.toml"), &carcare_wire::CarcareWire),
    Scenario::experiment(
        "carcare-reliability",
        include_str!("carcare_reliability/scenario.toml"),
        &carcare_reliability::CarcareReliability,
    ),
    Scenario::sweep("carcare-load", include_str!("carcare_load/scenario.toml")).with(carcare_load::tables),
    Scenario::sweep("networks", include_str!("networks/scenario.toml")).with(networks::tables),
    Scenario::sweep("somogyi-tls", include_str!("somogyi_tls/scenario.toml"))
        .with_measured(somogyi_tls::tables, somogyi_tls::bytes::measure),
    Scenario::experiment("lozano-paths", include_str!("lozano_paths/scenario.toml"), &lozano_paths::LozanoPaths),
    Scenario::experiment("lozano-queues", include_str!("lozano_queues/scenario.toml"), &lozano_queues::LozanoQueues),
    Scenario::experiment("lozano-free", include_str!("lozano_free/scenario.toml"), &lozano_free::LozanoFree),
    Scenario::experiment("lozano-tcp", include_str!("lozano_tcp/scenario.toml"), &lozano_tcp::LozanoTcp),
    Scenario::experiment(
        "lozano-parallel",
        include_str!("lozano_parallel/scenario.toml"),
        &lozano_parallel::LozanoParallel,
    ),
    Scenario::experiment(
        "lozano-multiparty",
        include_str!("lozano_multiparty/scenario.toml"),
        &lozano_multiparty::LozanoMultiparty,
    ),
    Scenario::experiment("lozano-mobile", include_str!("lozano_mobile/scenario.toml"), &lozano_mobile::LozanoMobile),
    Scenario::experiment(
        "lozano-browsers",
        include_str!("lozano_browsers/scenario.toml"),
        &lozano_browsers::LozanoBrowsers,
    ),
    Scenario::sweep("muller-pingpong", include_str!("muller_pingpong/scenario.toml")),
    Scenario::sweep("connections", include_str!("connections/scenario.toml")),
    Scenario::sweep("storm", include_str!("storm/scenario.toml")),
];

/// Former names of scenarios, and their names now.
const RENAMED: [(&str, &str); 1] = [("karadogan-topologies", "karadogan-arm-probe")];

/// Returns the scenario with this name, or with this former name.
///
/// Errors: no scenario has this name. The error names the most similar one.
pub fn find(name: &str) -> anyhow::Result<&'static Scenario> {
    let name = RENAMED.iter().find(|(former, _)| *former == name).map_or(name, |(_, now)| now);
    SCENARIOS.iter().find(|scenario| scenario.name == name).ok_or_else(|| {
        let names = SCENARIOS.iter().map(|scenario| scenario.name);
        anyhow::anyhow!("no scenario {name}{}; `millrace lab list` has all", nearest(name, names))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        path::PathSettings,
        recording::Form,
        sweep::{Design, Machine, Need, Settings},
    };

    const FORMS: [Form; 3] = [Form::Quick, Form::Full, Form::Thesis];

    #[test]
    fn every_form_of_every_scenario_can_be_run() {
        let machine = Machine { cpus: vec![0, 1], descriptors: 20_000, memory_bytes: 24 << 30 };
        for scenario in SCENARIOS {
            let about = scenario.about();
            assert!(!about.title.is_empty() && about.summary.len() <= 110, "{}: {about:?}", scenario.name);
            for form in FORMS {
                let what = format!("{} {form:?}", scenario.name);
                let settings = Settings::read(scenario, form, &[]).unwrap_or_else(|error| panic!("{what}: {error:#}"));
                let design = Design::of(scenario, &settings, &machine, 1);
                let design = design.unwrap_or_else(|error| panic!("{what}: {error:#}"));
                let most = if form == Form::Quick { 60.0 } else { 48.0 * 3600.0 };
                assert!(design.estimate_s() < most, "{what} takes {} s", design.estimate_s());
            }
        }
    }

    #[test]
    fn scenario_with_a_path_needs_links() {
        for scenario in SCENARIOS {
            let has_path = FORMS.into_iter().any(|form| {
                let parts = Settings::read(scenario, form, &[]).expect("a form").parts;
                let paths = parts.values().filter_map(|part| part.get("path"));
                paths.map(|path| path.clone().try_into::<PathSettings>().expect("a path")).any(|path| !path.is_none())
            });
            assert_eq!(scenario.about().needs.contains(&Need::Links), has_path, "{}", scenario.name);
        }
    }

    #[test]
    fn names_are_folders_and_rows() {
        let rows = include_str!("../../../../docs/theses.md");
        for scenario in SCENARIOS {
            let file = format!("src/scenarios/{}/scenario.toml", scenario.name.replace('-', "_"));
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), Some(scenario.toml()), "{}", path.display());
            for row in scenario.about().rows {
                assert!(rows.contains(&format!("| {row} |")), "{}: no row {row}", scenario.name);
            }
        }
    }

    #[test]
    fn former_name_finds_the_scenario() {
        for (former, now) in RENAMED {
            assert!(SCENARIOS.iter().all(|scenario| scenario.name != former), "{former} is in use");
            assert_eq!(find(former).map(|scenario| scenario.name).ok(), Some(now));
        }
    }

    #[test]
    fn unknown_scenario_suggests_the_nearest() {
        let error = find("thorsen-brodcast").err().unwrap().to_string();
        assert!(error.contains("did you mean thorsen-broadcast?"), "{error}");
        let error = find("x").err().unwrap().to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }
}
