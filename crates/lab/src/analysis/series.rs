//! Time series of a run.

use crate::{
    histogram::{Histogram, MAX_US},
    recording::{PhaseName, Run, Second, TEST_LEAD},
    stats::little,
};

use super::{LittlePanel, Series, Span};

/// Buckets of the heat map per factor of ten. With eight, Nielsen's limits (0.1 s, 1 s, 10 s) are bucket edges.
const PER_DECADE: i32 = 8;
/// Shortest part of a step for which a rate is computed, in seconds. In a shorter part, a single poll or burst would
/// appear as a peak.
const RATE_MIN_S: f64 = 0.25;
/// Minimum number of publications in flight for a useful count once per second. One of 40 is 2.5 %, half the
/// tolerance of Little's law.
const INSIDE_MIN: f64 = 40.0;
/// Minimum sum of these counts over all seconds. With random arrivals, the error of the mean is then 1 in 60.
const COUNTED_MIN: f64 = 3600.0;

pub(super) fn heat_edges_us() -> Vec<f64> {
    let edges = (0..).map(|step| rounded(10f64.powf(f64::from(step) / f64::from(PER_DECADE))));
    edges.take_while(|edge| *edge < MAX_US as f64).collect()
}

/// Rounds to four digits. A chart shows fewer, and the report needs half the bytes.
pub(super) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// Builds a time series with at most `steps_max` steps of equal whole seconds. Returns `None` if the run has no
/// seconds.
pub(super) fn series(index: u32, run: &Run, steps_max: usize) -> Option<Series> {
    let per_step = run.seconds.len().div_ceil(steps_max.max(1));
    if per_step == 0 {
        return None;
    }
    let edges = heat_edges_us();
    let phases = run.phases.iter();
    let span = |phase: &crate::recording::Phase| Span {
        name: phase.name,
        start_s: rounded_ms(phase.start_s),
        end_s: rounded_ms(phase.end_s),
        drained_s: rounded_ms(phase.drained_s),
    };
    let mut series =
        Series { run: index, phases: phases.map(span).collect(), step_s: per_step as f64, ..Series::default() };
    let test = run.phase(PhaseName::Test);
    let due = test.map(|test| (test.start_s + TEST_LEAD.as_secs_f64(), test.end_s));
    let read = test.map(|test| (test.start_s + TEST_LEAD.as_secs_f64(), test.drained_s.max(test.end_s)));
    let ends_s = run.phases.iter().map(|phase| phase.drained_s.max(phase.end_s)).fold(0.0, f64::max);
    for seconds in run.seconds.chunks(per_step) {
        let step = (seconds[0].at_s, seconds[seconds.len() - 1].at_s + 1.0);
        let sum = |of: fn(&Second) -> f64| seconds.iter().map(of).sum::<f64>();
        // CPU is read at the end of each second, so the last, incomplete second of a run has no reading.
        let cores = |of| (step.1 <= ends_s).then(|| rounded(sum(of) / (step.1 - step.0)));
        let mut latency = Histogram::default();
        seconds.iter().for_each(|second| latency.add(&second.latency_us));
        let quantile = |share| latency.quantile_us(share).map(|us| rounded(us as f64));
        series.at_s.push(seconds[0].at_s);
        series.published_per_s.push(rate(sum(|second| second.counts.scheduled as f64), step, due));
        series.deliveries_per_s.push(rate(sum(|second| second.counts.delivered as f64), step, read));
        series.latency_p50_us.push(quantile(0.5));
        series.latency_p99_us.push(quantile(0.99));
        series.server_cpu_cores.push(cores(|second| second.server_cpu_s));
        series.generator_cpu_cores.push(cores(|second| second.generator_cpu_s));
        series.steal_cores.push(cores(|second| second.steal_s));
        series.server_memory_bytes.push(seconds[seconds.len() - 1].server_pss_bytes as f64);
        series.heat.push(heat(&latency, &edges));
    }
    Some(series)
}

/// Returns the events per second of a step. If only part of the step lies in the period of events, the rate is over
/// that part.
///
/// A test begins and ends within a second. Without this correction, the first and the last step would show a false
/// drop.
fn rate(count: f64, (from, to): (f64, f64), during: Option<(f64, f64)>) -> Option<f64> {
    let covered_s = during.map_or(0.0, |(start, end)| to.min(end) - from.max(start)).max(0.0);
    if covered_s > 0.0 {
        return (covered_s >= RATE_MIN_S).then(|| rounded(count / covered_s));
    }
    Some(rounded(count / (to - from)))
}

fn rounded_ms(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// Returns the row of the heat map. Durations above 60 s count in the last bucket.
fn heat(latency: &Histogram, edges: &[f64]) -> Vec<(u32, u64)> {
    let last = edges.len() as u32 - 1;
    let mut row: Vec<(u32, u64)> = Vec::new();
    let beyond = (latency.overflow() > 0).then_some((last, latency.overflow()));
    let bucket = |us: u64| edges.partition_point(|edge| *edge <= us as f64).saturating_sub(1) as u32;
    for (bucket, count) in latency.cells().map(|(us, count)| (bucket(us), count)).chain(beyond) {
        match row.last_mut() {
            Some((same, sum)) if *same == bucket => *sum += count,
            _ => row.push((bucket, count)),
        }
    }
    row
}

/// Checks a run with Little's law.
///
/// Counts the messages in flight at each full second of the test: the deliveries due so far, minus those that have
/// arrived. This count uses no latencies, so it can be compared with the latencies of the same seconds.
///
/// Returns `None` if the comparison would only show noise: deliveries were lost, publications were not sent, or too
/// few were in flight.
pub(super) fn little(run: &Run) -> Option<LittlePanel> {
    let test = run.phase(PhaseName::Test)?;
    let counts = &test.counts;
    if counts.lost > 0 || counts.sent == 0 || counts.sent != counts.scheduled || test.latency_us.overflow() > 0 {
        return None;
    }
    let copies = counts.delivered as f64 / counts.sent as f64;
    // For each second that lies completely in the test: the number in flight at its end, and its latencies.
    let mut inside: Vec<(f64, &Histogram)> = Vec::new();
    let (mut due, mut arrived) = (0u64, 0u64);
    for second in &run.seconds {
        (due, arrived) = (due + second.counts.scheduled, arrived + second.counts.delivered);
        if second.at_s >= test.start_s && second.at_s + 1.0 <= test.end_s {
            inside.push((due as f64 * copies - arrived as f64, &second.latency_us));
        }
    }
    // Each second needs a count at its start and its end. The first second has no count at its start.
    let mut latency = Histogram::default();
    inside.iter().skip(1).for_each(|(_, of_second)| latency.add(of_second));
    let full_s = inside.len().saturating_sub(1).max(1) as f64;
    let residence_s = latency.mean_us()? / 1e6;
    let mean = inside.windows(2).map(|pair| (pair[0].0 + pair[1].0) / 2.0).sum::<f64>() / full_s;
    let publications = mean / copies;
    if publications < INSIDE_MIN || publications * full_s < COUNTED_MIN {
        return None;
    }
    let little = little::check(mean, latency.count() as f64 / full_s, residence_s);
    let counts: Vec<f64> = inside.iter().map(|(count, _)| *count).collect();
    let is_steady = little::stationarity(&counts, counts.len().min(10)).is_some_and(|seen| seen.is_steady());
    Some(LittlePanel { little, is_steady, is_broken: is_steady && !little.holds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nielsens_limits_are_bucket_edges() {
        let edges = heat_edges_us();
        for limit in [1.0, 1e5, 1e6, 1e7] {
            assert!(edges.contains(&limit), "{limit}");
        }
        assert!(edges.is_sorted() && edges.len() == 63);
    }

    #[test]
    fn values_keep_four_significant_digits() {
        for (value, shown) in
            [(0.0, 0.0), (12_345_678.0, 12_350_000.0), (0.000_123_456, 0.000_123_5), (-9.99996, -10.0)]
        {
            assert!((rounded(value) - shown).abs() <= 1e-12 * f64::abs(shown), "{value}");
        }
    }

    #[test]
    fn rate_of_partial_second_uses_covered_time() {
        let test = Some((1.5, 4.1));
        assert_eq!(rate(0.0, (0.0, 1.0), test), Some(0.0));
        assert_eq!(rate(100.0, (1.0, 2.0), test), Some(200.0));
        assert_eq!(rate(200.0, (2.0, 3.0), test), Some(200.0));
        // 0.1 s is too short for a rate. After the test, each step is complete again.
        assert_eq!(rate(50.0, (4.0, 5.0), test), None);
        assert_eq!(rate(3.0, (5.0, 6.0), test), Some(3.0));
        assert_eq!(rate(500.0, (0.0, 4.0), test), Some(200.0));
        assert_eq!(rate(8.0, (0.0, 4.0), None), Some(2.0));
    }

    #[test]
    fn heat_map_counts_every_sample() {
        let mut latency = Histogram::default();
        [1, 1, 999, 100_000, 59_000_000, 61_000_000].into_iter().for_each(|us| latency.record_us(us));
        let edges = heat_edges_us();
        let row = heat(&latency, &edges);
        assert_eq!(row.iter().map(|(_, count)| count).sum::<u64>(), 6);
        assert_eq!(row[0], (0, 2));
        assert!(row.iter().any(|(bucket, _)| edges[*bucket as usize] == 1e5), "{row:?}");
        assert_eq!(*row.last().unwrap(), (62, 2), "{row:?}");
    }
}
