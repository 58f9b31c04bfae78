use millrace_lab::{
    analysis::{
        Metric,
        compare::{Aspect, Options, Overall, compare},
    },
    recording::{Form, Recording},
    stats::compare::Verdict,
};

use super::{Chance, provenance, recording, run, test_of, with};

/// Differences between simulated runs of the same build, as standard deviations of logarithms.
#[derive(Clone, Copy)]
struct Noise {
    cpu: f64,
    latency: f64,
    memory: f64,
    /// Probability of a disturbed run: 10 % more CPU, twice the latency.
    disturbed: f64,
}

/// Not measured: assumes a machine that is mostly idle. `scripts/lab-aa.sh` measures a real machine.
const ASSUMED: Noise = Noise { cpu: 0.015, latency: 0.10, memory: 0.01, disturbed: 0.05 };

/// Returns a recording of three points with `repeats` runs each.
fn recorded(chance: &mut Chance, noise: Noise, cpu_factor: f64, repeats: u32) -> Recording {
    let mut runs = Vec::new();
    for (transport, clients, cpu_us, median_us) in
        [("websocket", 50, 1.4, 210.0), ("sse", 50, 1.6, 230.0), ("websocket", 200, 1.2, 480.0)]
    {
        for repeat in 0..repeats {
            let is_disturbed = chance.unit() < noise.disturbed;
            let (more_cpu, more_latency) = if is_disturbed { (1.1, 2.0) } else { (1.0, 1.0) };
            let cpu_us = cpu_us * cpu_factor * more_cpu * (noise.cpu * chance.normal()).exp();
            let median_us = median_us * more_latency * (noise.latency * chance.normal()).exp();
            let mut run = with(run("millrace", transport, clients, repeat), cpu_us, median_us);
            test_of(&mut run).server.pss_bytes = (2e7 * (noise.memory * chance.normal()).exp()) as u64;
            runs.push(run);
        }
    }
    recording(runs)
}

fn verdicts(tries: u64, noise: Noise, cpu_factor: f64) -> Vec<Overall> {
    let mut chance = Chance::new(2026);
    let mut one = || {
        let a = recorded(&mut chance, noise, 1.0, 5);
        let b = recorded(&mut chance, noise, cpu_factor, 5);
        compare(&a, &b, &Options::default()).verdict
    };
    (0..tries).map(|_| one()).collect()
}

/// At least 95 % of 1,000 simulated pairs.
#[test]
fn the_same_build_is_within_noise() {
    let seen = verdicts(1000, ASSUMED, 1.0);
    let alarms = seen.iter().filter(|verdict| **verdict != Overall::WithinNoise).count();
    assert!(alarms <= 50, "{alarms} false alarms of 1,000");
}

#[test]
fn ten_percent_more_cpu_is_found() {
    // Detection by CPU noise: up to 3 % nearly always, at 6 % no longer.
    let found = |cpu: f64| {
        let seen = verdicts(100, Noise { cpu, disturbed: 0.0, ..ASSUMED }, 1.1);
        seen.iter().filter(|verdict| **verdict == Overall::Regressed).count()
    };
    let (at_assumed, at_3, at_6) = (found(ASSUMED.cpu), found(0.03), found(0.06));
    assert!(at_assumed >= 99 && at_3 >= 95 && at_6 < 80, "{at_assumed}, {at_3}, {at_6} of 100");
}

#[test]
fn two_targets_of_one_recording_are_compared() {
    let mut chance = Chance::new(3);
    let named = |name: &str, mut recording: Recording| {
        recording.runs.iter_mut().for_each(|run| run.target = name.into());
        recording
    };
    let quiet = Noise { disturbed: 0.0, ..ASSUMED };
    let mut both = named("millrace@old", recorded(&mut chance, quiet, 1.0, 8));
    both.runs.extend(named("millrace@new", recorded(&mut chance, quiet, 1.1, 8)).runs);
    assert_eq!(both.targets(), ["millrace@old", "millrace@new"]);
    let side = |name: &str| both.of_target(name, "millrace");
    let in_turns = Options { in_turns: true, ..Options::default() };
    let seen = compare(&side("millrace@old"), &side("millrace@new"), &in_turns);
    assert_eq!(seen.verdict, Overall::Regressed, "{}", seen.sentence);
    assert!(seen.sentence.contains("(millrace ") && seen.differences.is_empty() && seen.unpaired.is_empty());
}

#[test]
fn comparison_names_place_and_size() {
    let mut chance = Chance::new(1);
    let quiet = Noise { cpu: 0.01, latency: 0.02, memory: 0.005, disturbed: 0.0 };
    let a = recorded(&mut chance, quiet, 1.0, 5);
    let b = recorded(&mut chance, quiet, 1.1, 5);
    let worse = compare(&a, &b, &Options::default());
    assert_eq!((worse.verdict, worse.verdict.exit_code()), (Overall::Regressed, 1));
    assert!(worse.sentence.starts_with("regressed in 3 of 12 figures, most CPU per delivery +"), "{}", worse.sentence);
    assert!(worse.rows.is_sorted_by(|a, b| {
        let effect = |row: &millrace_lab::analysis::compare::Row| row.comparison.ratio.unwrap().estimate.ln().abs();
        effect(a) >= effect(b)
    }));
    assert!(
        worse.rows[..3].iter().all(|row| row.metric == Metric::ServerCpuUsPerDelivery && row.p_adjusted < Some(0.05))
    );
    let better = compare(&b, &a, &Options::default());
    assert_eq!((better.verdict, better.verdict.exit_code()), (Overall::Improved, 0));
    let wide = compare(&a, &b, &Options { band: 0.2, ..Options::default() });
    assert_eq!(wide.verdict, Overall::WithinNoise);
    let text = worse.to_string();
    assert!(
        text.contains("millrace sse") && text.contains("regressed") && text.ends_with(&format!("{}\n", worse.sentence))
    );
    let json = serde_json::to_string(&worse).unwrap();
    let read: millrace_lab::analysis::compare::Outcome = serde_json::from_str(&json).unwrap();
    assert_eq!((read.verdict, read.rows.len(), read.options), (worse.verdict, 12, worse.options));
}

#[test]
fn comparison_needs_four_runs() {
    let mut chance = Chance::new(3);
    let quiet = Noise { cpu: 0.005, latency: 0.02, memory: 0.005, disturbed: 0.0 };
    let mut of = |factor, repeats| recorded(&mut chance, quiet, factor, repeats);
    let (a, b) = (of(1.0, 4), of(1.3, 4));
    assert_eq!(compare(&a, &b, &Options::default()).verdict, Overall::Regressed);
    let few = compare(&a, &of(1.3, 3), &Options::default());
    assert_eq!((few.verdict, few.verdict.exit_code()), (Overall::NoVerdict, 2));
    assert!(few.rows.iter().all(|row| row.verdict == Verdict::TooFewRuns) && few.unpaired.len() == 3);
}

#[test]
fn invalid_runs_do_not_count() {
    let mut chance = Chance::new(4);
    let a = recorded(&mut chance, ASSUMED, 1.0, 5);
    let mut b = recorded(&mut chance, ASSUMED, 1.0, 5);
    for run in b.runs.iter_mut().filter(|run| run.repeat < 2) {
        let detail = "1.2 ms late".into();
        run.validity.push(millrace_lab::recording::Finding {
            code: "generator_bound".into(),
            detail,
            invalidates: true,
        });
    }
    assert_eq!(compare(&a, &b, &Options::default()).verdict, Overall::NoVerdict);
}

#[test]
fn different_conditions_are_reported() {
    let mut chance = Chance::new(5);
    let a = recorded(&mut chance, ASSUMED, 1.0, 5);
    type Change = fn(&mut Recording);
    let with_provenance = |recording: &mut Recording, change: fn(&mut millrace_lab::host::provenance::Provenance)| {
        let mut other = provenance();
        change(&mut other);
        recording.provenance = serde_json::to_value(other).unwrap();
    };
    let cases: [(Aspect, &str, Change); 7] = [
        (Aspect::Scenario, "scenario", |b| b.scenario = "thorsen-chat".into()),
        (Aspect::Form, "form", |b| b.form = Form::Quick),
        (Aspect::Parameters, "parameters.main.test", |b| b.parameters["main"]["test"] = "6s".into()),
        (Aspect::Machine, "cores", |b| b.provenance["cores"] = 4.into()),
        (Aspect::Kernel, "kernel", |b| b.provenance["kernel"] = "6.1".into()),
        (Aspect::Pinning, "CPUs", |b| b.runs[0].placement.server_cpus = vec![1]),
        (Aspect::Generator, "lab profile", |b| b.provenance["lab_profile"] = "debug".into()),
    ];
    for (aspect, what, change) in cases {
        let mut b = a.clone();
        change(&mut b);
        let refused = compare(&a, &b, &Options::default());
        assert_eq!((refused.verdict, refused.verdict.exit_code()), (Overall::Refused, 2), "{what}");
        assert!(refused.differences.iter().any(|one| one.aspect == Some(aspect) && one.what == what), "{refused}");
        assert!(refused.sentence.contains(&format!("--despite {aspect}")) && refused.rows.is_empty());
        let despite = Options { despite: vec![aspect], ..Options::default() };
        let compared = compare(&a, &b, &despite);
        assert_eq!(compared.verdict, Overall::WithinNoise, "{what}");
        assert!(!compared.differences.is_empty(), "it stays to be seen");
        assert_eq!(aspect.name().parse::<Aspect>().unwrap(), aspect);
    }
    assert!("weather".parse::<Aspect>().unwrap_err().to_string().contains("machine, kernel"));
    let mut b = a.clone();
    b.seed = 8;
    b.parameters["main"]["targets"] = serde_json::json!(["millrace", "ws"]);
    with_provenance(&mut b, |other| drop(other.targets.insert("millrace".into(), "0.2.0".into())));
    let compared = compare(&a, &b, &Options::default());
    assert_eq!(compared.verdict, Overall::WithinNoise, "builds are what is compared");
    assert_eq!(compared.differences[0].what, "target millrace");
}

#[test]
fn generator_lateness_is_not_server_latency() {
    let recorded = |median_us: f64, late_us: u64| {
        let runs = (0..5).map(|repeat| {
            let mut run = with(run("millrace", "sse", 50, repeat), 3.0, median_us * (1.0 + 0.01 * f64::from(repeat)));
            test_of(&mut run).lateness_us.record_us(late_us);
            run
        });
        recording(runs.collect())
    };
    let verdict =
        |late_us: u64| compare(&recorded(1000.0, 50), &recorded(1400.0, late_us), &Options::default()).verdict;
    // The p99 rises by 1.3 ms.
    assert_eq!((verdict(50), verdict(3000)), (Overall::Regressed, Overall::WithinNoise));
}
