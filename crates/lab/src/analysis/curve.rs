//! Results over all loads of one target and transport: saturation, scalability, and memory per connection.

use crate::{
    recording::{LoadUnit, PhaseName, Run},
    stats::{
        knee::{self, Knee},
        line::Line,
        usl::Usl,
    },
};

use super::{Curve, MemoryLine, Metric, Point, USL_POINTS_MIN, UslPanel, UslPoint};

/// Highest p99 that does not count as late: Nielsen's limit below which a person notices no delay.
pub(super) const P99_S_MAX: f64 = 0.1;

/// Builds the curve of points that differ only in load. Each point comes with its index.
pub(super) fn curve(points: &[(u32, &Point)], runs: &[&Run]) -> Curve {
    let mut points = points.to_vec();
    points.sort_by(|a, b| a.1.load.value.total_cmp(&b.1.load.value));
    let first = points[0].1;
    Curve {
        part: first.part.clone(),
        target: first.target.clone(),
        transport: first.transport.clone(),
        points: points.iter().map(|(index, _)| *index).collect(),
        knee: knee(&points),
        knee_p99_s_max: P99_S_MAX,
        usl: usl(&points),
        memory: memory(&points, runs),
    }
}

fn value(point: &Point, metric: Metric) -> Option<f64> {
    point.metrics.get(&metric).map(|figure| figure.median)
}

fn knee(points: &[(u32, &Point)]) -> Option<Knee> {
    let seen = |(_, point): &(u32, &Point)| {
        Some(knee::Point {
            load: point.load.value,
            offered_per_s: value(point, Metric::OfferedPerS)?,
            delivered_per_s: value(point, Metric::DeliveriesPerS)?,
            // A p99 above the range of the histogram counts as late.
            p99_s: value(point, Metric::LatencyP99Us).map_or(f64::INFINITY, |us| us / 1e6),
        })
    };
    knee::saturation(&points.iter().filter_map(seen).collect::<Vec<_>>(), P99_S_MAX)
}

fn usl(points: &[(u32, &Point)]) -> Option<UslPanel> {
    let seen = |(_, point): &(u32, &Point)| Some((point.load.value, value(point, Metric::DeliveriesPerS)?));
    let seen: Vec<(f64, f64)> = points.iter().filter_map(seen).filter(|(n, x)| *n > 0.0 && *x > 0.0).collect();
    if seen.len() < USL_POINTS_MIN {
        return None;
    }
    let law = Usl::fit(&seen)?;
    let fit = Usl::fit_with_intervals(&seen, 1)?;
    let point = |(&(load, seen_per_s), &residual): (&(f64, f64), &f64)| UslPoint {
        load,
        seen_per_s,
        fitted_per_s: law.at(load),
        residual,
    };
    Some(UslPanel {
        lambda: fit.lambda,
        sigma: fit.sigma,
        kappa: fit.kappa,
        peak_load: law.peak(),
        points: seen.iter().zip(&fit.residuals).map(point).collect(),
        residual_max: fit.residuals.iter().fold(0.0, |most, residual| residual.abs().max(most)),
    })
}

/// Fits memory over connections. Uses the idle phase if it exists, because delivery buffers are not part of the cost
/// of a connection.
fn memory(points: &[(u32, &Point)], runs: &[&Run]) -> Option<MemoryLine> {
    if points[0].1.load.counts != LoadUnit::Connections {
        return None;
    }
    let of_run = |run: &Run| {
        let phase = run.phase(PhaseName::Idle).or_else(|| run.phase(PhaseName::Test))?;
        (run.is_valid() && phase.server.pss_bytes > 0).then_some((run.load.value, phase.server.pss_bytes as f64))
    };
    let all = points.iter().flat_map(|(_, point)| &point.runs);
    let seen: Vec<(f64, f64)> = all.filter_map(|index| of_run(runs[*index as usize])).collect();
    let fit = Line::fit_with_intervals(&seen, 1)?;
    let line = Line { base: fit.base.estimate, slope: fit.slope.estimate };
    let residuals = seen.iter().map(|(x, y)| (y / line.at(*x) - 1.0).abs());
    Some(MemoryLine {
        bytes_per_connection: fit.slope,
        base_bytes: fit.base,
        r_squared: fit.r_squared,
        residual_max: residuals.fold(0.0, f64::max),
        points: seen,
    })
}
