//! Prints an analysis and a comparison as plain text for terminals. Columns are as wide as their cells.

use std::fmt::{self, Write};

use super::{
    Analysis, Figure, Judged, LinkFigures, Metric, Point,
    build::said,
    compare::{Outcome, Overall, Row},
};

/// Columns of [`summary`], after target, transport and load.
const COLUMNS: [(Metric, &str); 5] = [
    (Metric::ServerCpuUsPerDelivery, "CPU/delivery"),
    (Metric::DeliveriesPerS, "deliveries/s"),
    (Metric::LatencyP50Us, "p50"),
    (Metric::LatencyP99Us, "p99"),
    (Metric::ServerMemoryBytes, "memory"),
];

/// Returns one line per point, followed by notes that are needed to read the figures.
pub fn summary(analysis: &Analysis) -> String {
    let has_parts = analysis.points.iter().any(|point| !point.part.is_empty());
    let mut head = vec!["target", "transport", "load"];
    if has_parts {
        head.insert(0, "part");
    }
    let names = head.len();
    head.extend(COLUMNS.iter().map(|(_, name)| *name));
    head.push("verdict");
    let row = |point: &Point| {
        let mut cells = vec![point.target.clone(), point.transport.clone(), said(point.load)];
        if has_parts {
            cells.insert(0, point.part.clone());
        }
        cells.extend(COLUMNS.iter().map(|(metric, _)| cell(*metric, point.metrics.get(metric))));
        cells.push(verdict(analysis, point));
        cells
    };
    let rows: Vec<_> = analysis.points.iter().map(row).collect();
    let mut text = if rows.is_empty() { String::new() } else { table(&head, rows, names) };
    let head = &analysis.head;
    if head.runs_planned > 0 {
        let _ = writeln!(text, "{} of {} runs are valid", head.runs_valid, head.runs_total);
    }
    for link in worst_links(analysis) {
        let _ = writeln!(
            text,
            "path {}: the emulator used {:.1} us of CPU per packet and added {:.0} us (p50), {:.0} us (p99) of delay",
            link.path, link.cpu_us_per_packet, link.added_delay_p50_us, link.added_delay_p99_us
        );
    }
    for Judged { what, total, failed } in &head.judged {
        let _ = writeln!(text, "{} of {total} {what}", *total as usize - failed.len());
        failed.iter().for_each(|failed| {
            let _ = writeln!(text, "  failed: {failed}");
        });
    }
    for gate in head.gates.iter().filter(|gate| !gate.passed) {
        let value = gate.value.map_or(String::new(), |value| {
            let limit = gate.limit.map_or(String::new(), |limit| format!(", at most {limit:.2}"));
            format!(": {value:.2} {}{limit}", gate.unit)
        });
        let note = gate.note.as_deref().map_or(String::new(), |note| format!(" ({note})"));
        // A gate of a table fails in no run.
        let of_runs = if gate.runs_failed > 0 { format!(" in {} runs", gate.runs_failed) } else { String::new() };
        let _ = writeln!(text, "  failed{of_runs}: {}{value}{note}", gate.label);
    }
    if let Some(slo) = &head.slo {
        let kept = if slo.passed { "kept" } else { "MISSED" };
        let _ =
            writeln!(text, "{}: {kept} at {} of {} points", slo.slo, slo.points - slo.missed.len() as u32, slo.points);
        slo.missed.iter().for_each(|missed| {
            let _ = writeln!(text, "  {missed}");
        });
    }
    if analysis.points.iter().flat_map(|point| point.metrics.values()).any(|figure| figure.is_thin) {
        let _ = writeln!(text, "~ rests on fewer than {} samples", super::BEYOND_MIN);
    }
    text
}

/// Returns the link with the largest delay by the emulator, for each path.
fn worst_links(analysis: &Analysis) -> Vec<&LinkFigures> {
    let mut worst: Vec<&LinkFigures> = Vec::new();
    for link in analysis.points.iter().filter_map(|point| point.link.as_ref()) {
        match worst.iter_mut().find(|known| known.path == link.path) {
            Some(known) if known.added_delay_p99_us < link.added_delay_p99_us => *known = link,
            Some(_) => {}
            None => worst.push(link),
        }
    }
    worst
}

fn cell(metric: Metric, figure: Option<&Figure>) -> String {
    figure.map_or("-".to_owned(), |figure| {
        format!("{}{}", if figure.is_thin { "~" } else { "" }, shown(metric, figure.median))
    })
}

/// Returns the most serious problem of a point, or `ok`.
fn verdict(analysis: &Analysis, point: &Point) -> String {
    let curve = analysis
        .curves
        .iter()
        .find(|curve| (&curve.part, &curve.target, &curve.transport) == (&point.part, &point.target, &point.transport));
    let is_saturated = curve.and_then(|curve| curve.knee).is_some_and(|knee| point.load.value >= knee.saturated);
    let repeats = point.runs.len() as u32;
    if point.is_invalid {
        "INVALID".into()
    } else if point.little.is_some_and(|panel| panel.is_broken) {
        "INVALID: Little's law does not hold".into()
    } else if point.meets_slo == Some(false) {
        "SLO missed".into()
    } else if point.metrics.get(&Metric::Lost).is_some_and(|lost| lost.median > 0.0) {
        "loses".into()
    } else if is_saturated {
        "saturated".into()
    } else if point.runs_valid < repeats {
        format!("{} of {repeats} runs valid", point.runs_valid)
    } else {
        "ok".into()
    }
}

/// Formats a value with a suitable unit: `312 us`, `1.24 ms`, `48.1 MB`, `12,345`.
pub fn shown(metric: Metric, value: f64) -> String {
    let unit = metric.info().unit;
    match unit.as_str() {
        "us" if value >= 1e6 => format!("{} s", digits(value / 1e6)),
        "us" if value >= 1e3 => format!("{} ms", digits(value / 1e3)),
        "us" => format!("{} us", digits(value)),
        "bytes" if value >= 1e6 => format!("{} MB", digits(value / 1e6)),
        "bytes" if value >= 1e3 => format!("{} kB", digits(value / 1e3)),
        "bytes" => format!("{value:.0} B"),
        "share" => format!("{:.2} %", value * 100.0),
        _ => digits(value),
    }
}

/// Formats a number with three significant digits, or with commas between thousands.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 999.5 => {
            let whole = format!("{value:.0}");
            let places: Vec<&str> =
                whole.as_bytes().rchunks(3).rev().filter_map(|chunk| str::from_utf8(chunk).ok()).collect();
            places.join(",").replace("-,", "-")
        }
        size if size >= 99.95 || value == value.trunc() => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a table. The first `names` columns and the last column are text.
fn table(head: &[&str], rows: Vec<Vec<String>>, names: usize) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            let _ = match column < names || column + 1 == widths.len() {
                true => write!(line, "{gap}{cell:<width$}"),
                false => write!(line, "{gap}{cell:>width$}"),
            };
        }
        format!("{}\n", line.trim_end())
    };
    let mut text = line(&mut head.iter().copied());
    rows.iter().for_each(|row| text += &line(&mut row.iter().map(String::as_str)));
    text
}

/// Prints the table of rows, the differences and the summary sentence.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.rows.is_empty() {
            let percent = |ratio: f64| format!("{:+.1} %", (ratio - 1.0) * 100.0);
            let row = |row: &Row| {
                let part = if row.part.is_empty() { String::new() } else { format!("{}: ", row.part) };
                let ratio = row.comparison.ratio;
                vec![
                    row.metric.info().label,
                    format!("{part}{} {}", row.target, row.transport),
                    said(row.load),
                    shown(row.metric, row.median_a),
                    shown(row.metric, row.median_b),
                    ratio.map_or("-".into(), |ratio| percent(ratio.estimate)),
                    ratio.map_or("-".into(), |ratio| format!("{} .. {}", percent(ratio.low), percent(ratio.high))),
                    row.p_adjusted.map_or("-".into(), |p| format!("{p:.3}")),
                    row.verdict.to_string(),
                ]
            };
            let head = ["figure", "of", "at", "A", "B", "change", "95 %", "p", "verdict"];
            writeln!(f, "{}", table(&head, self.rows.iter().map(row).collect(), 3))?;
        }
        for difference in &self.differences {
            let side = |value: &str| if value.is_empty() { "nothing".to_owned() } else { value.to_owned() };
            let kind = difference.aspect.map_or(String::new(), |aspect| format!("{aspect}: "));
            writeln!(f, "  {kind}{}: A has {}, B has {}", difference.what, side(&difference.a), side(&difference.b))?;
        }
        self.unpaired.iter().try_for_each(|what| writeln!(f, "  not compared, {what}"))?;
        writeln!(f, "{}", self.sentence)
    }
}

impl Overall {
    /// Returns the exit code of the command: 0 no regression, 1 regression, 2 refused or no verdict.
    pub fn exit_code(self) -> u8 {
        match self {
            Overall::WithinNoise | Overall::Improved => 0,
            Overall::Regressed => 1,
            Overall::Refused | Overall::NoVerdict => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_use_a_unit_of_fitting_size() {
        for (metric, value, said) in [
            (Metric::LatencyP99Us, 312.0, "312 us"),
            (Metric::LatencyP99Us, 1239.0, "1.24 ms"),
            (Metric::LatencyP99Us, 6e7, "60 s"),
            (Metric::ServerCpuUsPerDelivery, 3.456, "3.46 us"),
            (Metric::DeliveriesPerS, 1_234_567.8, "1,234,568"),
            (Metric::DeliveriesPerS, 999.6, "1,000"),
            (Metric::ServerMemoryBytes, 48_123_456.0, "48.1 MB"),
            (Metric::ShareWithin1S, 0.99951, "99.95 %"),
        ] {
            assert_eq!(shown(metric, value), said);
        }
    }

    #[test]
    fn columns_fit_their_widest_cell() {
        let rows =
            vec![vec!["ws".into(), "1,000".into(), "ok".into()], vec!["millrace".into(), "7".into(), "no".into()]];
        let text = table(&["target", "n", "verdict"], rows, 1);
        assert_eq!(text, "target        n  verdict\nws        1,000  ok\nmillrace      7  no\n");
    }
}
