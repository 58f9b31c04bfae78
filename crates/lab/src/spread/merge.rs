//! One result from those of all generators.

use std::{collections::BTreeMap, time::Instant};

use crate::{
    load::{Outcome, Plan, Sample},
    recording::{Finding, Phase, PhaseName, Second, TEST_LEAD, Usage},
};

/// Share of the CPUs of all generators above which they, not the servers, may be the bottleneck.
const CPU_SHARE: f64 = 0.8;

/// Result of one generator.
#[derive(Clone, Debug)]
pub struct Part {
    pub index: usize,
    pub phases: Vec<Phase>,
    pub validity: Vec<Finding>,
}

/// A sample of all servers, on the clock of the whole run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    pub at_s: f64,
    pub sample: Sample,
}

/// Readings at the borders of the phases.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    pub begun: Reading,
    pub connected: Reading,
    pub idle: Reading,
    pub test: Reading,
    pub drained: Reading,
    pub end: Reading,
}

/// Returns the result of the whole load.
pub fn outcome(plan: &Plan, started: Instant, parts: Vec<Part>, seconds: Vec<Second>, marks: &Marks) -> Outcome {
    let test_end_s = (marks.test.at_s + (TEST_LEAD + plan.test).as_secs_f64()).min(marks.drained.at_s);
    let phases: Vec<Phase> = [
        (PhaseName::Connect, marks.begun, marks.connected.at_s, marks.connected),
        (PhaseName::Idle, marks.idle, marks.test.at_s, marks.test),
        (PhaseName::Test, marks.test, test_end_s, marks.drained),
        (PhaseName::After, marks.drained, marks.end.at_s, marks.end),
    ]
    .into_iter()
    .map(|(name, first, end_s, last)| {
        let mut sum = Phase { name, start_s: first.at_s, end_s, drained_s: last.at_s, ..Phase::default() };
        parts
            .iter()
            .flat_map(|part| &part.phases)
            .filter(|phase| phase.name == name)
            .for_each(|one| add(&mut sum, one));
        sum.server = last.sample.server.since(&first.sample.server);
        sum
    })
    .collect();
    let mut validity = findings(&parts);
    validity.extend(generator_bound(plan, &phases));
    Outcome { started, phases, seconds, validity }
}

/// Adds the figures of one generator.
fn add(sum: &mut Phase, one: &Phase) {
    sum.counts += one.counts;
    for (sum, one) in [
        (&mut sum.latency_us, &one.latency_us),
        (&mut sum.service_us, &one.service_us),
        (&mut sum.spread_us, &one.spread_us),
        (&mut sum.connect_us, &one.connect_us),
        (&mut sum.probe_us, &one.probe_us),
        (&mut sum.lateness_us, &one.lateness_us),
        (&mut sum.lag_us, &one.lag_us),
    ] {
        sum.add(one);
    }
    sum.silence_us = sum.silence_us.max(one.silence_us);
    let Usage { cpu_user_s, cpu_system_s, pss_bytes, descriptors, context_switches } = one.generator;
    sum.generator.cpu_user_s += cpu_user_s;
    sum.generator.cpu_system_s += cpu_system_s;
    sum.generator.pss_bytes += pss_bytes;
    sum.generator.descriptors += descriptors;
    sum.generator.context_switches += context_switches;
}

/// Returns each kind of finding once, with the text of the first generator that has it.
fn findings(parts: &[Part]) -> Vec<Finding> {
    let mut found: BTreeMap<&str, (usize, Finding)> = BTreeMap::new();
    for finding in parts.iter().flat_map(|part| &part.validity) {
        let (generators, first) = found.entry(&finding.code).or_insert_with(|| (0, finding.clone()));
        *generators += 1;
        first.invalidates |= finding.invalidates;
    }
    let of = |(generators, finding): (usize, Finding)| match parts.len() {
        1 => finding,
        all => Finding { detail: format!("{} (one of {generators} of {all} generators)", finding.detail), ..finding },
    };
    found.into_values().map(of).collect()
}

/// Returns a finding if all generators together used almost all of their CPUs.
fn generator_bound(plan: &Plan, phases: &[Phase]) -> Option<Finding> {
    let test = phases.iter().find(|phase| phase.name == PhaseName::Test)?;
    let cpus = plan.cpus.len().max(1) as f64;
    let share = test.generator.cpu_s() / ((test.drained_s - test.start_s) * cpus).max(1e-9);
    (share > CPU_SHARE).then(|| Finding {
        code: "generator_bound".into(),
        detail: format!("all generators together used {:.0} % of their CPUs", share * 100.0),
        invalidates: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Counts;

    fn part(index: usize, us: u64, lost: u64) -> Part {
        let counts = Counts { delivered: 10, lost, ..Counts::default() };
        let generator = Usage { cpu_user_s: 0.5, pss_bytes: 100, ..Usage::default() };
        let mut test = Phase { name: PhaseName::Test, counts, generator, silence_us: us, ..Phase::default() };
        test.latency_us.record_us(us);
        let finding = || Finding { code: "lost".into(), detail: format!("{lost} lost"), invalidates: false };
        Part { index, phases: vec![test], validity: (lost > 0).then(finding).into_iter().collect() }
    }

    fn marks() -> Marks {
        let at = |at_s: f64, cpu_user_s: f64| Reading {
            at_s,
            sample: Sample { server: Usage { cpu_user_s, ..Usage::default() }, steal_s: 0.0 },
        };
        Marks {
            begun: at(0.0, 0.0),
            connected: at(1.0, 0.5),
            idle: at(1.0, 0.5),
            test: at(2.0, 0.6),
            drained: at(14.0, 1.6),
            end: at(14.0, 1.6),
        }
    }

    #[test]
    fn figures_of_generators_are_added() {
        let plan = Plan { test: std::time::Duration::from_secs(10), ..Plan::default() };
        let outcome = outcome(&plan, Instant::now(), vec![part(0, 100, 0), part(1, 300, 2)], Vec::new(), &marks());
        let test = outcome.phase(PhaseName::Test).unwrap();
        assert_eq!((test.counts.delivered, test.counts.lost, test.silence_us), (20, 2, 300));
        assert_eq!((test.latency_us.count(), test.latency_us.max_us()), (2, Some(300)));
        assert_eq!((test.generator.cpu_s(), test.generator.pss_bytes), (1.0, 200));
        assert!((test.server.cpu_s() - 1.0).abs() < 1e-9 && (test.end_s - 12.02).abs() < 1e-9, "{test:?}");
        let [lost] = &outcome.validity[..] else { panic!("{:?}", outcome.validity) };
        assert_eq!(lost.detail, "2 lost (one of 1 of 2 generators)");
    }

    #[test]
    fn generators_without_cpu_left_are_reported() {
        let plan = Plan { test: std::time::Duration::from_secs(10), ..Plan::default() };
        let mut busy = part(0, 100, 0);
        busy.phases[0].generator.cpu_user_s = 11.0;
        let outcome = outcome(&plan, Instant::now(), vec![busy], Vec::new(), &marks());
        assert!(outcome.validity.iter().any(|finding| finding.code == "generator_bound"), "{:?}", outcome.validity);
    }
}
