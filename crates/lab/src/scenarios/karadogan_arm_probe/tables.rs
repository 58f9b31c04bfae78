//! The tables of the scenario: one row per topology, over all repeats.

use std::time::Duration;

use millrace_link::{Config, PipeConfig};
use serde_json::{Value, json};

use super::{
    choice::Choice,
    measure::{Cost, Measured},
    movements::Deliveries,
    topology::Topology,
};
use crate::{
    histogram::Histogram,
    judged::{PASSED, PROMISED},
    recording::{Finding, Table},
    scenarios::table::{NO_NOTES, table},
};

pub const DELAY: &str = "arm-probe-delay";
/// Maximum time from a movement until another wearer feels it. Source: section 1.2.
const P99_MAX_MS: f64 = 500.0;
/// Tolerance of the delay of the links: clocks and histograms are not exact.
const SHORTEST_SHARE: f64 = 0.99;

/// One topology over all repeats.
struct Point<'a> {
    topology: Topology,
    repeats: Vec<&'a Measured>,
    deliveries: Deliveries,
}

impl Point<'_> {
    fn quantile_ms(&self, q: f64) -> Option<f64> {
        quantile_ms(&self.deliveries.delay, q)
    }

    /// Returns a cost per second of the test, summed over all repeats. `None` if a repeat does not have it.
    fn cost_per_s(&self, test: Duration, of: fn(&Cost) -> Option<u64>) -> Option<f64> {
        let sum: u64 = self.repeats.iter().map(|repeat| of(&repeat.cost)).sum::<Option<u64>>()?;
        Some(sum as f64 / (test.as_secs_f64() * self.repeats.len() as f64))
    }

    fn names(&self) -> [Value; 3] {
        [json!(self.topology.name()), json!(self.topology.transport().name()), json!(self.topology.urgent())]
    }
}

/// `link`: the link that was emulated, if any.
pub fn tables(choice: &Choice, link: Option<&Config>, measured: &[Measured]) -> Vec<Table> {
    let point = |&topology: &Topology| {
        let repeats: Vec<&Measured> = measured.iter().filter(|one| one.topology == topology).collect();
        let mut deliveries = Deliveries::default();
        repeats.iter().for_each(|one| deliveries.add(&one.deliveries));
        Point { topology, repeats, deliveries }
    };
    let points: Vec<Point<'_>> = choice.topologies.iter().map(point).collect();
    let mut tables = vec![delay(&points, link), deliveries(choice, &points), promises(choice, link, &points)];
    let of = |one: &Measured| {
        let name = one.topology.label();
        one.findings
            .iter()
            .map(move |finding| Finding { detail: format!("{name}: {}", finding.detail), ..finding.clone() })
            .collect::<Vec<_>>()
    };
    let findings: Vec<Finding> = measured.iter().flat_map(of).collect();
    tables.iter_mut().for_each(|table| table.validity.clone_from(&findings));
    tables
}

/// Describes a repeat in one line for the console.
pub fn describe(measured: &Measured) -> String {
    let deliveries = &measured.deliveries;
    let ms = |q: f64| quantile_ms(&deliveries.delay, q).map_or("-".to_owned(), |ms| format!("{ms:.1}"));
    format!(
        "{:<31} {} movements, {} of {} felt, {} duplicated, {} reordered, p50 / p99 {} / {} ms",
        measured.topology.label(),
        deliveries.moved,
        deliveries.felt,
        deliveries.expected,
        deliveries.duplicated,
        deliveries.reordered,
        ms(0.5),
        ms(0.99)
    )
}

fn quantile_ms(delay: &Histogram, q: f64) -> Option<f64> {
    delay.quantile_us(q).map(|us| us as f64 / 1000.0)
}

fn delay(points: &[Point<'_>], link: Option<&Config>) -> Table {
    let row = |point: &Point<'_>| {
        let delay = &point.deliveries.delay;
        let ms = |us: Option<f64>| json!(us.map(|us| us / 1000.0));
        let p99s: Vec<f64> = point.repeats.iter().filter_map(|one| quantile_ms(&one.deliveries.delay, 0.99)).collect();
        let of_p99s = |pick: fn(f64, f64) -> f64| json!(p99s.iter().copied().reduce(pick));
        let mut row = point.names().to_vec();
        row.extend([0.5, 0.95, 0.99].map(|q| json!(point.quantile_ms(q))));
        row.extend([ms(delay.max_us().map(|us| us as f64)), ms(delay.mean_us()), ms(delay.sd_us())]);
        row.extend([json!(delay.count()), of_p99s(f64::min), of_p99s(f64::max)]);
        row
    };
    let columns = [
        ("topology", ""),
        ("connection", ""),
        ("urgent", ""),
        ("p50", "ms"),
        ("p95", "ms"),
        ("p99", "ms"),
        ("max", "ms"),
        ("mean", "ms"),
        ("sd", "ms"),
        ("n", ""),
        ("lowest p99 of a repeat", "ms"),
        ("highest p99 of a repeat", "ms"),
    ];
    let notes = vec![
        match link {
            Some(link) => format!("Link that each connection passes: {}.", of_link(link)),
            None => "Over loopback: no link was emulated.".to_owned(),
        },
        "One-way delay: from the due time of a movement until another wearer has received it.".to_owned(),
        "A movement passes the link once in a mesh, and to and from the hub of a star. It passes the link twice through a server or a relay, and between two wearers of a star that are not the hub.".to_owned(),
        "urgent: off: the gateway of the relay gathers movements for a window before it sends them.".to_owned(),
    ];
    table(DELAY, "Delay of the movements", &columns, points.iter().map(row).collect(), notes)
}

fn of_link(link: &Config) -> String {
    let direction = |name: &str, of: &PipeConfig| {
        let delay = of.delay.as_secs_f64() * 1000.0;
        format!("{name} {delay} ms, {} % of the packets lost", of.loss.get() * 100.0)
    };
    format!("{}; {}", direction("up", &link.up), direction("down", &link.down))
}

fn deliveries(choice: &Choice, points: &[Point<'_>]) -> Table {
    let row = |point: &Point<'_>| {
        let deliveries = &point.deliveries;
        let mut row = point.names().to_vec();
        row.extend([deliveries.moved, deliveries.expected, deliveries.felt].map(|count| json!(count)));
        row.extend([deliveries.lost(), deliveries.duplicated, deliveries.reordered].map(|count| json!(count)));
        let late_ms = quantile_ms(&deliveries.late, 0.99);
        let cpu = point.cost_per_s(choice.test, |cost| cost.cpu_ns).map(|ns| ns / 1e7);
        let bytes = point.cost_per_s(choice.test, |cost| cost.bytes);
        row.extend([json!(late_ms), json!(cpu), json!(bytes.map(f64::round))]);
        row
    };
    let columns = [
        ("topology", ""),
        ("connection", ""),
        ("urgent", ""),
        ("movements", ""),
        ("to be felt", ""),
        ("felt", ""),
        ("lost", ""),
        ("duplicated", ""),
        ("reordered", ""),
        ("late p99", "ms"),
        ("CPU of server or gateway", "%"),
        ("over the link", "B/s"),
    ];
    let mut notes = vec![
        "late: from the due time of a movement until it was sent. The delay includes this time.".to_owned(),
        "over the link: all bytes at IP level in both directions while the wearers moved, with acknowledgments and the checks of ICE. A mesh of ten has 45 connections, which check their path all the time.".to_owned(),
    ];
    for point in points {
        let name = point.topology.label();
        let links = point.repeats.iter().enumerate().filter_map(|(repeat, one)| Some((repeat + 1, one.link.as_ref()?)));
        notes.extend(links.map(|(repeat, link)| {
            let congestion = match link.congestion.as_str() {
                "" => String::new(),
                algorithm => format!("; TCP with {algorithm}"),
            };
            format!("{name}, repeat {repeat}: {}{congestion}.", link.cost())
        }));
    }
    table("arm-probe-deliveries", "Deliveries and their cost", &columns, points.iter().map(row).collect(), notes)
}

fn promises(choice: &Choice, link: Option<&Config>, points: &[Point<'_>]) -> Table {
    let said = |is_so: bool| json!(if is_so { "yes" } else { "no" });
    let mut rows = Vec::new();
    for point in points {
        let mut check = |check: String, promised: bool, passed: bool| {
            let mut row = point.names().to_vec();
            row.extend([json!(check), said(promised), said(passed)]);
            rows.push(row);
        };
        let is_below = |q: f64, limit_ms: f64| point.quantile_ms(q).is_some_and(|ms| ms < limit_ms);
        let shortest = link.map_or(Duration::ZERO, |link| point.topology.shortest(link));
        let shortest_ms = shortest.as_secs_f64() * 1000.0;
        check("every movement was felt once and in order".into(), true, point.deliveries.is_complete());
        // Movements that are not urgent may wait for the window: this row shows what the flag is for.
        let is_promised = point.topology != Topology::Relay;
        check(format!("p99 below {P99_MAX_MS} ms"), is_promised, is_below(0.99, P99_MAX_MS));
        let is_physical = point.quantile_ms(0.0).is_some_and(|ms| ms >= shortest_ms * SHORTEST_SHARE);
        check(format!("no movement was faster than the link allows, {shortest_ms} ms"), true, is_physical);
        if point.topology == Topology::RelayUrgent {
            let limit_ms = shortest_ms + choice.window.as_secs_f64() * 500.0;
            check(
                format!("urgent movements did not wait for the window, p50 below {limit_ms} ms"),
                true,
                is_below(0.5, limit_ms),
            );
        }
    }
    let columns = [("topology", ""), ("connection", ""), ("urgent", ""), ("check", ""), (PROMISED, ""), (PASSED, "")];
    table("arm-probe-promises", "Checks", &columns, rows, NO_NOTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::LinkRun;

    fn choice(topologies: &[Topology]) -> Choice {
        let file: toml::Table = include_str!("scenario.toml").parse().expect("a table");
        let choice = Choice::read(file["parameters"].as_table().expect("a table")).expect("valid");
        Choice { topologies: topologies.to_vec(), ..choice }
    }

    /// One movement of one wearer, felt by nine after these times, the last one for all others.
    fn measured(topology: Topology, delays_ms: &[u64]) -> Measured {
        let mut deliveries = Deliveries { moved: 1, expected: 9, felt: 9, ..Deliveries::default() };
        (0..9).for_each(|n| deliveries.delay.record_us(delays_ms[n.min(delays_ms.len() - 1)] * 1000));
        let cost = Cost { cpu_ns: Some(15_000_000_000), bytes: Some(1500) };
        Measured { topology, deliveries, cost, link: Some(LinkRun::default()), findings: Vec::new() }
    }

    /// Returns whether each promised check passed.
    fn passed(topology: Topology, measured: &[Measured]) -> Vec<Value> {
        let choice = choice(&[topology]);
        let link = choice.path.config_without_trace().expect("a link");
        let tables = tables(&choice, link.as_ref(), measured);
        assert!(tables.iter().all(|table| table.rows.iter().all(|row| row.len() == table.columns.len())));
        tables[2].rows.iter().filter(|row| row[4] == "yes").map(|row| row[5].clone()).collect()
    }

    #[test]
    fn incomplete_slow_and_impossible_deliveries_break_the_promises() {
        let good = || measured(Topology::Server, &[101, 120]);
        let of = |change: fn(&mut Deliveries)| {
            let mut bad = good();
            change(&mut bad.deliveries);
            passed(Topology::Server, &[good(), bad])
        };
        assert_eq!(passed(Topology::Server, &[good(), good()]), ["yes", "yes", "yes"]);
        assert_eq!(of(|deliveries| deliveries.felt = 8), ["no", "yes", "yes"]);
        assert_eq!(of(|deliveries| deliveries.duplicated = 1), ["no", "yes", "yes"]);
        assert_eq!(of(|deliveries| deliveries.reordered = 1), ["no", "yes", "yes"]);
        assert_eq!(of(|deliveries| deliveries.delay.record_us(501_000)), ["yes", "no", "yes"]);
        assert_eq!(of(|deliveries| deliveries.delay.record_us(98_000)), ["yes", "yes", "no"]);
        assert_eq!(passed(Topology::Mesh, &[measured(Topology::Mesh, &[51])]), ["yes", "yes", "yes"]);
        assert_eq!(passed(Topology::Mesh, &[]), ["no", "no", "no"]);
    }

    #[test]
    fn only_urgent_movements_must_not_wait_for_the_window() {
        let slow = |topology| passed(topology, &[measured(topology, &[350, 600])]);
        assert_eq!(slow(Topology::Relay), ["yes", "yes"]);
        assert_eq!(slow(Topology::RelayUrgent), ["yes", "no", "yes", "no"]);
        assert_eq!(passed(Topology::RelayUrgent, &[measured(Topology::RelayUrgent, &[110])]), ["yes"; 4]);
    }

    #[test]
    fn repeats_are_merged_into_one_row() {
        let choice = choice(&[Topology::Star, Topology::RelayUrgent]);
        let mut findings = vec![Finding { code: "link_late".into(), detail: "late".into(), invalidates: true }];
        let mut first = measured(Topology::Star, &[60]);
        first.findings.append(&mut findings);
        let measured = [first, measured(Topology::RelayUrgent, &[110]), measured(Topology::Star, &[80])];
        let [delay, deliveries, _] = &tables(&choice, None, &measured)[..] else { panic!("three tables") };
        let (star, relay) = (&delay.rows[0], &delay.rows[1]);
        assert_eq!(star[..3], [json!("star"), json!("data-channel"), Value::Null]);
        assert_eq!(relay[..3], [json!("relay"), json!("data-channel"), json!("on")]);
        assert_eq!((&star[9], relay[9].as_u64()), (&json!(18), Some(9)));
        let about = |cell: &Value, ms: f64| cell.as_f64().is_some_and(|cell| (cell - ms).abs() < 0.5);
        assert!(about(&star[10], 60.0) && about(&star[11], 80.0), "{star:?}");
        // 15 s of CPU time and 1,500 bytes in each test of 15 s.
        assert_eq!(deliveries.rows[0][10..], [json!(100.0), json!(100.0)]);
        assert_eq!(delay.validity[0].detail, "star, data-channel: late");
        assert!(!delay.is_valid() && delay.notes[0].contains("loopback"));
    }
}
