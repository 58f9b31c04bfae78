//! Rules that find problems of a run, independent of human judgment.

use crate::recording::{Finding, Phase, PhaseName};

use super::plan::{Plan, Rate};

/// Lateness of the generator in microseconds above which it matters, if it also exceeds [`LATENESS_SHARE`] of the
/// median latency.
const LATENESS_US: u64 = 1000;
const LATENESS_SHARE: f64 = 0.1;
/// CPU share of the generator threads above which the generator, not the server, may be the bottleneck.
const CPU_SHARE: f64 = 0.8;
/// Maximum share of the test in which the generator threads may be runnable without a CPU. Above it, other processes
/// use the CPUs, or the machine is too small.
const WAITED_SHARE: f64 = 0.05;

pub fn findings(plan: &Plan, phases: &[Phase], waited_share: f64, trouble: Option<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |code: &str, detail: String, invalidates| {
        findings.push(Finding { code: code.into(), detail, invalidates });
    };
    let sum = |pick: fn(&Phase) -> u64| phases.iter().map(pick).sum::<u64>();
    let with_trouble = |text: String| match trouble {
        Some(trouble) => format!("{text}; first error: {trouble}"),
        None => text,
    };
    let Some(test) = phases.iter().find(|phase| phase.name == PhaseName::Test) else { return findings };
    let counts = test.counts;
    if let Some((cpu_share, late_us)) = generator_bound(plan, test) {
        find(
            "generator_bound",
            format!("the generator used {:.0} % of its CPU and was up to {late_us} us late (p99)", cpu_share * 100.0),
            true,
        );
    }
    if waited_share > WAITED_SHARE {
        find("crowded", format!("the generator waited for a CPU for {:.0} % of the time", waited_share * 100.0), false);
    }
    for (code, count, what, invalidates) in [
        ("lost", counts.lost, "sent deliveries did not arrive", false),
        ("duplicated", counts.duplicated, "deliveries were duplicates", false),
        ("reordered", counts.reordered, "deliveries arrived out of order", false),
        ("corrupt", sum(|phase| phase.counts.corrupt), "messages differ from every publication", true),
        ("refused", counts.refused, "publications were refused", false),
        (
            "not_sent",
            counts.scheduled - counts.sent.min(counts.scheduled),
            "scheduled publications were not accepted",
            false,
        ),
        ("overflow", test.latency_us.overflow(), "deliveries took more than 60 s", false),
        ("gaps", counts.gaps, "gaps were reported to receivers", false),
    ] {
        if count > 0 {
            find(code, format!("{count} {what}"), invalidates);
        }
    }
    let broken = sum(|phase| phase.counts.broken);
    if broken > 0 {
        find("broken", with_trouble(format!("{broken} connections were lost")), false);
    }
    if counts.scheduled > 0 && counts.delivered == 0 {
        find("nothing", with_trouble("nothing was delivered".into()), true);
    }
    findings
}

/// Returns the CPU share and the lateness (p99) of the generator if it was, or may have been, the bottleneck of the
/// run.
fn generator_bound(plan: &Plan, test: &Phase) -> Option<(f64, u64)> {
    let took_s = test.drained_s - test.start_s;
    let cpu_share = test.generator.cpu_s() / (took_s * plan.threads as f64).max(1e-9);
    let late_us = test.lateness_us.quantile_us(0.99).unwrap_or(0);
    let median_us = test.latency_us.quantile_us(0.5).unwrap_or(0);
    let is_late = matches!(plan.rate, Rate::Open { .. })
        && late_us > LATENESS_US
        && late_us as f64 > LATENESS_SHARE * median_us as f64;
    (is_late || cpu_share > CPU_SHARE).then_some((cpu_share, late_us))
}
