//! Tables of the scenarios: figures by machine, distribution of the delay, rate over time, checks.

use millrace_sfu::congestion::Algorithm;
use serde_json::{Value, json};

use super::{
    choice::Common,
    figures::{Pooled, StreamFigures},
    study::{Measured, Point, Study, points},
};
use crate::{
    histogram::Histogram,
    judged::{PASSED, PROMISED},
    recording::Table,
    scenarios::table::NO_NOTES,
};

pub use crate::scenarios::table::table;

/// Width of a bin of the distribution of delays.
const BIN_US: u64 = 10_000;
/// Longer delays are one bin.
const BINS_MAX: u64 = 100;

/// Result of a check.
pub struct Check {
    /// Cells of the row: the key of a cell and the controller.
    pub of: String,
    pub check: String,
    pub is_promised: bool,
    pub passed: bool,
    pub found: String,
}

/// Describes one run in one line for the console.
pub fn describe(study: &Study, measured: &Measured) -> String {
    let key = study.cells[measured.cell].key.iter().map(cell_text).collect::<Vec<_>>().join(", ");
    let pooled = Pooled::of(measured.run.calls.iter().flat_map(|call| &call.received));
    let ms = |q: f64| pooled.delay.quantile_us(q).map_or("-".to_owned(), |us| format!("{:.1}", us as f64 / 1000.0));
    format!(
        "{:<28} {:<13} {:>6.0} kbit/s, delay p50 / p95 {} / {} ms, loss {:.2} %, after repair {:.2} %",
        key,
        measured.algorithm.name(),
        pooled.rate,
        ms(0.5),
        ms(0.95),
        pooled.packet_loss * 100.0,
        pooled.residual_loss * 100.0
    )
}

/// Returns the key of a cell and its controller as a text.
pub fn case(point: &Point<'_>) -> String {
    let key = point.cell.key.iter().map(cell_text);
    key.chain([point.algorithm.to_string()]).collect::<Vec<String>>().join(", ")
}

fn cell_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the main table, its summary, the distribution of delays, and the rate over time.
pub fn tables(study: &Study, common: &Common, measured: &[Measured]) -> anyhow::Result<Vec<Table>> {
    let algorithms = common.algorithms()?;
    let points = points(study, &algorithms, measured);
    let summary = summary(study, &algorithms, &points);
    Ok(vec![figures(study, common, &points), summary, distribution(study, &points), time(study, &points)])
}

/// Returns one row per cell: the rate of the thesis, and rate and delay of each controller.
fn summary(study: &Study, algorithms: &[Algorithm], points: &[Point<'_>]) -> Table {
    let row = |points: &[Point<'_>]| {
        let mut row = points[0].cell.key.clone();
        row.push(json!(points[0].cell.thesis_kbit_s.map(|rate| rate.round())));
        for point in points {
            let pooled = Pooled::of(point.runs.iter().flat_map(|run| &run.calls).flat_map(|call| &call.received));
            let p95_ms = pooled.delay.quantile_us(0.95).map(|us| (us as f64 / 100.0).round() / 10.0);
            row.extend([json!(pooled.rate.round()), json!(p95_ms)]);
        }
        row
    };
    // The points of one cell follow each other.
    let rows = points.chunks(algorithms.len()).map(row).collect();
    let own = algorithms.iter().flat_map(|algorithm| {
        [(algorithm.name().to_owned(), "kbit/s".to_owned()), (format!("{} p95", algorithm.name()), "ms".to_owned())]
    });
    let keys = study.keys.iter().map(|(name, unit)| ((*name).to_owned(), (*unit).to_owned()));
    let columns: Vec<(String, String)> = keys.chain([("thesis".to_owned(), "kbit/s".to_owned())]).chain(own).collect();
    let columns: Vec<(&str, &str)> = columns.iter().map(|(name, unit)| (name.as_str(), unit.as_str())).collect();
    let notes = vec![
        "Rate of a stream, mean of both directions, and the 95th percentile of its one-way delay.".to_owned(),
        "thesis: mean of its machines; its overall values contain slips (E-L1, E-L4, E-L10).".to_owned(),
    ];
    table(&format!("{}-summary", study.name), "Rate and delay of each controller", &columns, rows, notes)
}

/// Columns behind the key columns of the main table.
pub const COLUMNS: [(&str, &str); 21] = [
    ("controller", ""),
    ("machine", ""),
    ("rate", "kbit/s"),
    ("rate sd", "kbit/s"),
    ("thesis", "kbit/s"),
    ("ours / thesis", ""),
    ("utilization", ""),
    ("RTT", "ms"),
    ("RTT sd", "ms"),
    ("mean", "ms"),
    ("sd", "ms"),
    ("median", "ms"),
    ("p95", "ms"),
    ("p99", "ms"),
    ("max", "ms"),
    ("n", ""),
    ("residual loss", "%"),
    ("packet loss", "%"),
    ("goodput", "kbit/s"),
    ("broken frames", "%"),
    ("calls", ""),
];

fn figures(study: &Study, common: &Common, points: &[Point<'_>]) -> Table {
    let mut rows = Vec::new();
    for point in points {
        for (machine, ends) in [("A", &[0][..]), ("B", &[1][..]), ("overall", &[0, 1][..])] {
            let calls = || point.runs.iter().flat_map(|run| &run.calls);
            let streams = calls().flat_map(|call| ends.iter().map(move |end| &call.received[*end]));
            let mut row = point.cell.key.clone();
            row.extend([json!(point.algorithm.name()), json!(machine)]);
            let is_overall = machine == "overall";
            let thesis = point.cell.thesis_kbit_s.filter(|_| is_overall);
            row.extend(cells(&Pooled::of(streams), thesis, point.cell.capacity_kbit_s, calls().count()));
            rows.push(row);
        }
    }
    let mut notes = study.notes.clone();
    notes.extend(notes_of(common));
    let columns = [&study.keys[..], &COLUMNS[..]].concat();
    table(study.name, study.title, &columns, rows, notes)
}

/// Returns the cells behind `machine`.
pub fn cells(pooled: &Pooled, thesis: Option<f64>, capacity: Option<f64>, calls: usize) -> Vec<Value> {
    let round = |value: f64, digits: i32| json!((value * 10_f64.powi(digits)).round() / 10_f64.powi(digits));
    let or_null = |value: Option<f64>, digits| value.map_or(Value::Null, |value| round(value, digits));
    let delay = &pooled.delay;
    let ms = |us: Option<f64>| or_null(us.map(|us| us / 1000.0), 2);
    let at = |q: f64| ms(delay.quantile_us(q).map(|us| us as f64));
    vec![
        round(pooled.rate, 1),
        round(pooled.rate_sd, 1),
        or_null(thesis, 2),
        or_null(thesis.map(|thesis| pooled.rate / thesis), 2),
        or_null(capacity.map(|capacity| pooled.rate / capacity), 3),
        or_null(pooled.rtt, 2),
        or_null(pooled.rtt_sd, 2),
        ms(delay.mean_us()),
        ms(delay.sd_us()),
        at(0.5),
        at(0.95),
        at(0.99),
        ms(delay.max_us().map(|us| us as f64)),
        json!(delay.count()),
        round(pooled.residual_loss * 100.0, 3),
        round(pooled.packet_loss * 100.0, 3),
        round(pooled.goodput, 1),
        round(pooled.broken * 100.0, 2),
        json!(calls),
    ]
}

pub fn notes_of(common: &Common) -> Vec<String> {
    vec![
        format!(
            "Virtual time: calls of {} s, {} per row and controller; the load of this machine has no influence.",
            common.test.as_secs(),
            common.repeats
        ),
        "rate: received RTP in bins of one second, with heads, retransmissions and forward error correction, from the first second on. goodput: payload of the video, received or repaired. rate sd: the mean of the deviations within each call.".to_owned(),
        "mean to n: one-way delay of video packets by sequence number, without repair. RTT: from sender and receiver reports, each second.".to_owned(),
        "packet loss: what the network lost. residual loss: what was lost after repair, within one second.".to_owned(),
        "thesis: mean of its machines; its overall values contain slips (E-L1, E-L4, E-L10).".to_owned(),
    ]
}

/// Returns the shares of packets up to each delay, in bins of 10 ms.
fn distribution(study: &Study, points: &[Point<'_>]) -> Table {
    let mut rows = Vec::new();
    for point in points {
        let pooled = Pooled::of(point.runs.iter().flat_map(|run| &run.calls).flat_map(|call| &call.received));
        rows.extend(shares(&pooled.delay).into_iter().map(|(upper_ms, share)| {
            let mut row = point.cell.key.clone();
            row.extend([json!(point.algorithm.name()), json!(upper_ms), json!((share * 1e6).round() / 1e6)]);
            row
        }));
    }
    let columns = [&study.keys[..], &[("controller", ""), ("delay up to", "ms"), ("share", "")][..]].concat();
    let notes = vec![format!(
        "One-way delay of all video packets in bins of 10 ms. Bins without packets are left out. The last bin has all delays above {} ms.",
        BINS_MAX * BIN_US / 1000
    )];
    table(&format!("{}-delay", study.name), "Distribution of the one-way delay", &columns, rows, notes)
}

/// Returns the upper end of each bin in milliseconds, `null` for the last one, and the share of values up to it.
pub fn shares(delay: &Histogram) -> Vec<(Option<u64>, f64)> {
    let mut counts = vec![0_u64; BINS_MAX as usize + 1];
    for (us, count) in delay.cells() {
        counts[(us / BIN_US).min(BINS_MAX) as usize] += count;
    }
    let (all, mut sum, mut shares) = (delay.count().max(1) as f64, 0, Vec::new());
    for (bin, count) in (1..).zip(counts).filter(|(_, count)| *count > 0) {
        sum += count;
        shares.push(((bin <= BINS_MAX).then_some(bin * BIN_US / 1000), sum as f64 / all));
    }
    shares
}

/// Returns the rates of each second of the first repeat.
fn time(study: &Study, points: &[Point<'_>]) -> Table {
    let mut rows = Vec::new();
    for point in points {
        let calls = point.runs.first().map(|run| &run.calls[..]).unwrap_or_default();
        for (n, call) in calls.iter().enumerate() {
            let at = |values: &[f64], second: usize| {
                values.get(second).map_or(Value::Null, |value: &f64| json!(value.round()))
            };
            let [to_a, to_b]: &[StreamFigures; 2] = &call.received;
            for second in 0..to_a.rates.len() {
                let mut row = point.cell.key.clone();
                let since = call.start.as_secs() as usize + second;
                row.extend([json!(point.algorithm.name()), json!(n + 1), json!(since)]);
                row.extend([at(&to_a.rates, second), at(&to_b.rates, second), at(&to_a.targets, second)]);
                let delay = |stream: &StreamFigures| stream.delays.get(second).copied().flatten();
                row.extend([to_a, to_b].map(|stream| json!(delay(stream).map(|ms| (ms * 10.0).round() / 10.0))));
                rows.push(row);
            }
        }
    }
    let own = [
        ("controller", ""),
        ("call", ""),
        ("second", "s"),
        ("to A", "kbit/s"),
        ("to B", "kbit/s"),
        ("target to A", "kbit/s"),
        ("delay to A", "ms"),
        ("delay to B", "ms"),
    ];
    let notes = vec!["The first repeat. target: of the congestion controller, at the end of the second. delay: mean of the packets sent in the second.".to_owned()];
    table(&format!("{}-time", study.name), "Rate over time", &[&study.keys[..], &own[..]].concat(), rows, notes)
}

/// Returns the table of checks.
pub fn checks(name: &str, checks: Vec<Check>) -> Table {
    let said = |is_so: bool| json!(if is_so { "yes" } else { "no" });
    let row = |check: Check| {
        let Check { of, check, is_promised, passed, found } = check;
        vec![json!(of), json!(check), json!(found), said(is_promised), said(passed)]
    };
    let columns = [("case", ""), ("check", ""), ("found", ""), (PROMISED, ""), (PASSED, "")];
    table(&format!("{name}-checks"), "Checks", &columns, checks.into_iter().map(row).collect(), NO_NOTES)
}

/// Checks that heads explain the difference between captures and statistics of all streams.
pub fn heads_check(measured: &[Measured]) -> Check {
    let streams = measured.iter().flat_map(|one| &one.run.calls).flat_map(|call| &call.received);
    let worst = streams.filter_map(|stream| Some(stream.difference?.unexplained())).fold(0.0, f64::max);
    Check {
        of: "all calls".into(),
        check: "heads explain the difference between capture and statistics within 1 %".into(),
        is_promised: true,
        passed: worst < 0.01,
        found: format!("{:.4} %", worst * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_has_bins_of_10_ms() {
        let mut delay = Histogram::default();
        [0, 9_000, 11_000, 400_000, 2_000_000].into_iter().for_each(|us| delay.record_us(us));
        let expected = [(Some(10), 0.4), (Some(20), 0.6), (Some(410), 0.8), (None, 1.0)];
        assert_eq!(shares(&delay), expected);
        assert!(shares(&Histogram::default()).is_empty());
    }
}
