//! Combines the repeats of a measurement into one point.

use crate::{
    recording::{LinkCounts, LinkRun, Phase, PhaseName, Run, Usage},
    stats::{self, bootstrap},
};

use super::{
    BEYOND_MIN, Figure, LinkFigures, LittlePanel, Percentile, PhaseFigures, Point,
    metric::{Metric, lasted_s},
    series,
};

/// Steps of the percentile curve: as many as a chart over `1 / (1 - p)` shows.
const SHARES: [f64; 19] = [
    0.0, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999,
    0.999999,
];

/// Builds a point from at least one run. All runs are repeats, each with its index. A run that failed before it
/// started has no phases.
pub(super) fn point(runs: &[(u32, &Run)], steps_max: usize) -> Point {
    let (_, first) = runs[0];
    let valid: Vec<(u32, &Run)> = runs.iter().copied().filter(|(_, run)| run.is_valid()).collect();
    let is_invalid = valid.is_empty();
    let used = if is_invalid { runs } else { &valid };
    let only: Vec<&Run> = used.iter().map(|(_, run)| *run).collect();
    let middle = middle(used);
    Point {
        part: first.part.clone(),
        target: first.target.clone(),
        transport: first.transport.clone(),
        load: first.load,
        factors: first.factors,
        runs: runs.iter().map(|(index, _)| *index).collect(),
        runs_valid: valid.len() as u32,
        is_invalid,
        metrics: Metric::ALL.into_iter().filter_map(|metric| Some((metric, figure_of(metric, &only)?))).collect(),
        phases: phases(&only),
        percentiles: percentiles(&only),
        little: little(&only),
        meets_slo: None,
        link: link(&only),
        series: series::series(middle.0, middle.1, steps_max),
    }
}

/// Returns the run with the median p99 latency. Runs without a latency are ordered by memory. Returns the first run
/// if no run has a value.
fn middle<'a>(runs: &[(u32, &'a Run)]) -> (u32, &'a Run) {
    let key = |run: &Run| Metric::LatencyP99Us.of(run).or_else(|| Metric::ServerMemoryBytes.of(run));
    let mut known: Vec<(f64, (u32, &Run))> =
        runs.iter().filter_map(|&(index, run)| Some((key(run)?, (index, run)))).collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0));
    known.get(known.len().saturating_sub(1) / 2).map_or(runs[0], |(_, run)| *run)
}

fn figure_of(metric: Metric, runs: &[&Run]) -> Option<Figure> {
    let mut figure = figure(runs.iter().filter_map(|run| metric.of(run)).collect())?;
    figure.samples_beyond = runs.iter().filter_map(|run| metric.samples_beyond(run)).min();
    figure.is_thin = figure.samples_beyond.is_some_and(|beyond| beyond < BEYOND_MIN);
    Some(figure)
}

/// Returns the median of one value per run, or `None` without values. The same values always give the same interval.
pub(super) fn figure(runs: Vec<f64>) -> Option<Figure> {
    let first = *runs.first()?;
    let interval = match runs.as_slice() {
        [_] => None,
        same if same.iter().all(|run| *run == first) => Some((first, first)),
        _ => bootstrap::median(&runs, 1).map(|interval| (interval.low, interval.high)),
    };
    Some(Figure { median: stats::median(&runs), ci95: interval, runs, samples_beyond: None, is_thin: false })
}

fn phases(runs: &[&Run]) -> Vec<PhaseFigures> {
    let names = [PhaseName::Connect, PhaseName::Idle, PhaseName::Test, PhaseName::After];
    let of_phase = |name: PhaseName| {
        let phases: Vec<&Phase> = runs.iter().filter_map(|run| run.phase(name)).collect();
        let of = |value: &dyn Fn(&Phase) -> f64| figure(phases.iter().map(|phase| value(phase)).collect());
        let cores = |cpu_s: fn(&Usage) -> f64, of_server: bool| {
            of(&|phase| cpu_s(if of_server { &phase.server } else { &phase.generator }) / lasted_s(phase))
        };
        let probe = |share: f64| {
            figure(phases.iter().filter_map(|phase| Some(phase.probe_us.quantile_us(share)? as f64)).collect())
        };
        Some(PhaseFigures {
            name,
            duration_s: of(&lasted_s)?,
            server_cpu_cores: cores(Usage::cpu_s, true)?,
            server_cpu_system_cores: cores(|usage| usage.cpu_system_s, true)?,
            generator_cpu_cores: cores(Usage::cpu_s, false)?,
            server_memory_bytes: of(&|phase| phase.server.pss_bytes as f64)?,
            server_descriptors: of(&|phase| phase.server.descriptors as f64)?,
            probe_p50_us: probe(0.5),
            probe_p99_us: probe(0.99),
        })
    };
    names.into_iter().filter_map(of_phase).collect()
}

/// Returns the percentiles up to the last one that has a sample above it in every run.
fn percentiles(runs: &[&Run]) -> Vec<Percentile> {
    let latencies: Vec<_> = runs.iter().filter_map(|run| Some(&run.phase(PhaseName::Test)?.latency_us)).collect();
    let fewest = latencies.iter().map(|latency| latency.count()).min().unwrap_or(0);
    let at = |share: f64| {
        let all: Option<Vec<f64>> =
            latencies.iter().map(|latency| latency.quantile_us(share).map(|us| us as f64)).collect();
        let beyond = latencies.iter().filter_map(|latency| Some(latency.beyond(latency.quantile_us(share)?))).min()?;
        let one_in = 1.0 / (1.0 - share);
        (one_in <= fewest as f64).then_some(all)?.map(|all| Percentile {
            share,
            one_in: series::rounded(one_in),
            latency_us: stats::median(&all),
            samples_beyond: beyond,
        })
    };
    SHARES.into_iter().map_while(at).collect()
}

/// Combines the links of the runs. Runs without a link, which used loopback, are left out.
fn link(runs: &[&Run]) -> Option<LinkFigures> {
    let links: Vec<&LinkRun> = runs.iter().filter_map(|run| run.link.as_ref()).collect();
    let first = links.first()?;
    let counts = |of: fn(&LinkRun) -> &LinkCounts| {
        links.iter().map(|link| of(link)).fold(LinkCounts::default(), |sum, one| LinkCounts {
            received: sum.received + one.received,
            received_bytes: sum.received_bytes + one.received_bytes,
            delivered: sum.delivered + one.delivered,
            delivered_bytes: sum.delivered_bytes + one.delivered_bytes,
            lost: sum.lost + one.lost,
            dropped: sum.dropped + one.dropped,
            queue_packets_max: sum.queue_packets_max.max(one.queue_packets_max),
            queue_delay_max_ms: sum.queue_delay_max_ms.max(one.queue_delay_max_ms),
        })
    };
    let values = |of: fn(&LinkRun) -> f64| links.iter().map(|link| of(link)).collect::<Vec<_>>();
    let most = |of: fn(&LinkRun) -> f64| values(of).into_iter().fold(0.0, f64::max);
    Some(LinkFigures {
        path: first.path.clone(),
        congestion: first.congestion.clone(),
        up: counts(|link| &link.up),
        down: counts(|link| &link.down),
        cpu_us_per_packet: stats::median(&values(|link| link.cpu_us_per_packet)),
        added_delay_p50_us: stats::median(&values(|link| link.late_p50_us)),
        added_delay_p99_us: most(|link| link.late_p99_us),
        cpu_cores: most(|link| link.cpu_cores),
        kernel_drops: links.iter().map(|link| link.kernel_drops).sum(),
    })
}

/// Checks all runs with Little's law, and returns the result with the median absolute error.
fn little(runs: &[&Run]) -> Option<LittlePanel> {
    let mut all: Vec<LittlePanel> = runs.iter().filter_map(|run| series::little(run)).collect();
    all.sort_by(|a, b| a.little.relative_error.abs().total_cmp(&b.little.relative_error.abs()));
    all.get(all.len().saturating_sub(1) / 2).copied()
}
