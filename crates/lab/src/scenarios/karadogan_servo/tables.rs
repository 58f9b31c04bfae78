//! The tables of the scenario.

use serde_json::{Value, json};

use super::{Choice, Repeat, controller::Step};
use crate::{
    histogram::Histogram,
    judged::{PASSED, PROMISED},
    recording::Table,
    scenarios::table::{NO_NOTES, table},
};

pub const SERVO: &str = "servo";
/// Promised latency from pattern to sensor: the thesis' limit for people who work with their hands.
const P99_MAX_MS: f64 = 500.0;
/// Width of a bin of the histogram, in ms.
const BIN_MS: u64 = 20;

pub fn tables(choice: &Choice, repeats: &[Repeat]) -> Vec<Table> {
    let mut tables = vec![figures(choice, repeats), histogram(repeats), promises(choice, repeats)];
    let findings: Vec<_> = repeats.iter().flat_map(|repeat| repeat.link.findings()).collect();
    tables.iter_mut().for_each(|table| table.validity.clone_from(&findings));
    tables
}

/// Describes a repeat in one line for the console.
pub fn describe(repeat: &Repeat) -> String {
    let latency = latency(&repeat.steps);
    let ms = |us: Option<u64>| us.map_or("-".to_owned(), |us| format!("{:.0}", us as f64 / 1000.0));
    format!(
        "{} of {} steps detected once, p50 / p99 {} / {} ms",
        once(&repeat.steps),
        repeat.steps.len(),
        ms(latency.quantile_us(0.5)),
        ms(latency.quantile_us(0.99))
    )
}

fn latency(steps: &[Step]) -> Histogram {
    let mut latency = Histogram::default();
    steps.iter().filter_map(|step| step.latency).for_each(|time| latency.record_ns(time.as_nanos() as u64));
    latency
}

fn all(repeats: &[Repeat]) -> Histogram {
    let mut sum = Histogram::default();
    repeats.iter().for_each(|repeat| sum.add(&latency(&repeat.steps)));
    sum
}

/// Returns the number of steps that were detected exactly once.
fn once(steps: &[Step]) -> usize {
    steps.iter().filter(|step| step.latency.is_some() && step.changes == 1).count()
}

fn figures(choice: &Choice, repeats: &[Repeat]) -> Table {
    let columns = [
        ("path", ""),
        ("repeat", ""),
        ("steps", ""),
        ("detected once", ""),
        ("mean", "ms"),
        ("sd", "ms"),
        ("median", "ms"),
        ("p95", "ms"),
        ("p99", "ms"),
        ("max", "ms"),
        ("late, max", "ms"),
    ];
    let ms = |us: Option<f64>| json!(us.map(|us| us / 1000.0));
    let row = |name: Value, latency: &Histogram, steps: &[&Step]| {
        let quantile = |q: f64| ms(latency.quantile_us(q).map(|us| us as f64));
        let late = steps.iter().map(|step| step.late).max().unwrap_or_default();
        let detected = steps.iter().filter(|step| step.latency.is_some() && step.changes == 1).count();
        let mut row = vec![json!(choice.path.name()), name, json!(steps.len()), json!(detected)];
        row.extend([ms(latency.mean_us()), ms(latency.sd_us()), quantile(0.5), quantile(0.95), quantile(0.99)]);
        row.extend([ms(latency.max_us().map(|us| us as f64)), json!(late.as_secs_f64() * 1000.0)]);
        row
    };
    let mut rows: Vec<_> = repeats
        .iter()
        .enumerate()
        .map(|(number, repeat)| {
            row(json!(number + 1), &latency(&repeat.steps), &repeat.steps.iter().collect::<Vec<_>>())
        })
        .collect();
    let steps: Vec<&Step> = repeats.iter().flat_map(|repeat| &repeat.steps).collect();
    rows.push(row(json!("all"), &all(repeats), &steps));
    let notes = [
        "Latency: from the due time of a change of the lamp until the controller has a reading that shows it."
            .to_owned(),
        "late: from the due time until the change was published. The latency includes this time.".to_owned(),
    ];
    let cost =
        repeats.iter().enumerate().map(|(number, repeat)| format!("Repeat {}: {}.", number + 1, repeat.link.cost()));
    table(SERVO, "Latency of the loop", &columns, rows, notes.into_iter().chain(cost))
}

fn histogram(repeats: &[Repeat]) -> Table {
    let mut bins: Vec<u64> = Vec::new();
    for time in repeats.iter().flat_map(|repeat| &repeat.steps).filter_map(|step| step.latency) {
        let bin = (time.as_millis() as u64 / BIN_MS) as usize;
        bins.resize(bins.len().max(bin + 1), 0);
        bins[bin] += 1;
    }
    let first = bins.iter().position(|count| *count > 0).unwrap_or_default();
    let rows = (first..bins.len()).map(|bin| {
        let from = bin as u64 * BIN_MS;
        vec![json!(format!("{from} to {} ms", from + BIN_MS)), json!(bins[bin])]
    });
    let columns = [("latency", ""), ("steps", "")];
    table("servo-histogram", "Histogram of the latency", &columns, rows.collect(), NO_NOTES)
}

fn promises(choice: &Choice, repeats: &[Repeat]) -> Table {
    let said = |is_so: bool| json!(if is_so { "yes" } else { "no" });
    let total: usize = repeats.iter().map(|repeat| repeat.steps.len()).sum();
    let detected: usize = repeats.iter().map(|repeat| once(&repeat.steps)).sum();
    let p99_ms = all(repeats).quantile_us(0.99).map_or(f64::INFINITY, |us| us as f64 / 1000.0);
    let path = choice.path.name();
    let row = |check: String, passed: bool| vec![json!(path), json!(check), said(true), said(passed)];
    let rows = vec![
        row("every step was detected once".into(), detected == total && total > 0),
        row(format!("p99 below {P99_MAX_MS} ms"), p99_ms < P99_MAX_MS),
    ];
    let columns = [("path", ""), ("check", ""), (PROMISED, ""), (PASSED, "")];
    table("servo-promises", "Checks", &columns, rows, NO_NOTES)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::recording::LinkRun;

    fn repeat(latencies_ms: &[(Option<u64>, u32)]) -> Repeat {
        let step = |(ms, changes): &(Option<u64>, u32)| Step {
            latency: ms.map(Duration::from_millis),
            changes: *changes,
            late: Duration::from_millis(1),
        };
        Repeat { steps: latencies_ms.iter().map(step).collect(), link: LinkRun::default() }
    }

    fn passed(repeats: &[Repeat]) -> Vec<Value> {
        let file: toml::Table = include_str!("scenario.toml").parse().unwrap();
        let choice = Choice::read(file["parameters"].as_table().unwrap()).unwrap();
        let tables = tables(&choice, repeats);
        assert!(tables.iter().all(|table| table.rows.iter().all(|row| row.len() == table.columns.len())));
        tables[2].rows.iter().map(|row| row[3].clone()).collect()
    }

    #[test]
    fn missed_repeated_and_slow_steps_break_the_promises() {
        let good = || repeat(&[(Some(200), 1), (Some(220), 1)]);
        assert_eq!(passed(&[good(), good()]), ["yes", "yes"]);
        assert_eq!(passed(&[good(), repeat(&[(None, 0)])]), ["no", "yes"]);
        assert_eq!(passed(&[good(), repeat(&[(Some(200), 3)])]), ["no", "yes"]);
        assert_eq!(passed(&[good(), repeat(&[(Some(600), 1)])]), ["yes", "no"]);
    }
}
