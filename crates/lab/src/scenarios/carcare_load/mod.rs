//! Two tables beside the runs: what each number of cars costs on each transport, and what a client notices when its
//! node dies.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    histogram::Histogram,
    judged::{PASSED, PROMISED},
    recording::{Counts, Phase, PhaseName, Recording, Run, Table},
    scenarios::table::table,
    targets::Transport,
};

const CARS: &str = "cars";
const FAILOVER: &str = "failover";
const NOISE_NOTE: &str = "Noise of the machine makes a run invalid for comparisons of latency: with `generator_bound`, the load generator was late or received late, so its latencies are upper bounds. Counts, memory and network bytes hold.";

/// All repeats of one transport and one number of cars whose counts hold.
struct Group<'a> {
    transport: &'a str,
    cars: u64,
    runs: Vec<&'a Run>,
}

pub fn tables(recording: &Recording) -> Vec<Table> {
    [cars(recording), failover(recording)].into_iter().filter(|table| !table.rows.is_empty()).collect()
}

/// Returns the groups of a part, in the order of transports and cars.
fn groups<'a>(recording: &'a Recording, part: &str) -> Vec<Group<'a>> {
    let runs = || recording.runs.iter().filter(|run| run.part == part && run.has_valid_counts());
    let rank = |name: &str| Transport::ALL.iter().position(|transport| transport.name() == name);
    let keys: BTreeSet<_> = runs().map(|run| (rank(&run.transport), &*run.transport, run.factors.clients)).collect();
    let group = |(_, transport, cars)| {
        let of = |run: &&Run| run.transport == transport && run.factors.clients == cars;
        Group { transport, cars, runs: runs().filter(of).collect() }
    };
    keys.into_iter().map(group).collect()
}

impl Group<'_> {
    fn tests(&self) -> impl Iterator<Item = &Phase> {
        self.runs.iter().filter_map(|run| run.phase(PhaseName::Test))
    }

    fn mean(&self, of: impl Fn(&Phase) -> f64) -> Option<f64> {
        let all: Vec<f64> = self.tests().map(of).collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }

    fn latency(&self) -> Histogram {
        let mut latency = Histogram::default();
        self.tests().for_each(|test| latency.add(&test.latency_us));
        latency
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.tests().for_each(|test| counts += test.counts);
        counts
    }

    /// Returns the codes of the noise that makes runs invalid. No noise is an empty cell.
    fn noise(&self) -> Value {
        let findings = self.runs.iter().flat_map(|run| &run.validity).filter(|finding| finding.invalidates);
        let codes: BTreeSet<&str> = findings.map(|finding| &*finding.code).collect();
        let codes: Vec<&str> = codes.into_iter().collect();
        json!((!codes.is_empty()).then(|| codes.join(", ")))
    }

    /// Returns the bytes per delivered message between generators and servers.
    fn bytes_per_delivery(&self) -> Option<f64> {
        let (mut bytes, mut delivered) = (0, 0);
        for run in &self.runs {
            let (spread, test) = (run.spread.as_ref()?, run.phase(PhaseName::Test)?);
            bytes += spread.up_bytes? + spread.down_bytes?;
            delivered += test.counts.delivered;
        }
        (delivered > 0).then(|| bytes as f64 / delivered as f64)
    }

    /// Returns the megabits per second from the servers to the phones and cars, or in the other direction.
    fn mbit_per_s(&self, bytes: impl Fn(&Run) -> Option<u64>) -> Option<f64> {
        let rate = |run: &&Run| {
            let test = run.phase(PhaseName::Test)?;
            Some(bytes(run)? as f64 * 8.0 / 1e6 / seconds(test))
        };
        let all: Vec<f64> = self.runs.iter().map(rate).collect::<Option<_>>()?;
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }
}

fn seconds(test: &Phase) -> f64 {
    (test.drained_s - test.start_s).max(1e-9)
}

fn ms(histogram: &Histogram, quantile: f64) -> Value {
    json!(histogram.quantile_us(quantile).map(|us| us as f64 / 1000.0))
}

fn cars(recording: &Recording) -> Table {
    let row = |group: &Group<'_>| {
        let (latency, counts) = (group.latency(), group.counts());
        let spread =
            |of: fn(&crate::recording::Spread) -> Option<u64>| move |run: &Run| run.spread.as_ref().and_then(of);
        let first = group.runs.first().and_then(|run| run.spread.as_ref());
        let per_connection = |test: &Phase| test.server.pss_bytes as f64 / 1000.0 / (2 * group.cars) as f64;
        let cpu_us: f64 = group.tests().map(|test| test.server.cpu_s() * 1e6).sum();
        vec![
            json!(group.transport),
            json!(group.cars),
            json!(first.map(|spread| spread.nodes)),
            json!(group.mean(|test| test.server.cpu_s() / seconds(test))),
            json!((counts.delivered > 0).then(|| cpu_us / counts.delivered as f64)),
            json!(group.mean(|test| test.server.pss_bytes as f64 / 1e6)),
            json!(group.mean(per_connection)),
            json!(group.mbit_per_s(spread(|spread| spread.up_bytes))),
            json!(group.mbit_per_s(spread(|spread| spread.down_bytes))),
            json!(group.bytes_per_delivery()),
            ms(&latency, 0.5),
            ms(&latency, 0.95),
            ms(&latency, 0.99),
            ms(&latency, 0.999),
            json!(counts.lost),
            group.noise(),
        ]
    };
    table(
        "carcare-load",
        "Cars with data every 5 s, each with one phone",
        &[
            ("transport", ""),
            ("cars", ""),
            ("nodes", ""),
            ("CPU", "cores"),
            ("CPU per delivery", "us"),
            ("memory", "MB"),
            ("memory per connection", "kB"),
            ("up", "Mbit/s"),
            ("down", "Mbit/s"),
            ("network per delivery", "bytes"),
            ("p50", "ms"),
            ("p95", "ms"),
            ("p99", "ms"),
            ("p99.9", "ms"),
            ("lost", ""),
            ("noise", ""),
        ],
        groups(recording, CARS).iter().map(row).collect(),
        [
            "A car has two connections: its own, and that of its phone. CPU and memory are those of all nodes together.",
            "Network: Ethernet frames in both directions, with requests, answers and ACKs of cars and phones, as the thesis counted. Empty without network namespaces.",
            "Polling: a message waits for the next poll, up to 4 s; its network bytes include the empty polls.",
            NOISE_NOTE,
        ],
    )
}

fn failover(recording: &Recording) -> Table {
    let row = |group: &Group<'_>| {
        let (latency, counts) = (group.latency(), group.counts());
        let silence = group.tests().map(|test| test.silence_us).max();
        let Counts { scheduled, sent, delivered, lost, duplicated, gaps, refused, .. } = counts;
        let is_complete = sent == scheduled && delivered == sent && lost + duplicated + gaps + refused == 0;
        vec![
            json!(group.transport),
            json!(group.cars),
            json!("yes"),
            json!(if is_complete { "yes" } else { "no" }),
            json!(counts.broken),
            json!(silence.map(|us| us as f64 / 1e6)),
            json!(latency.max_us().map(|us| us as f64 / 1e6)),
            json!(sent),
            json!(lost),
            json!(duplicated),
            json!(gaps),
            group.noise(),
        ]
    };
    let each_per_s = recording.parameters[FAILOVER]["each_per_s"][0].as_f64().unwrap_or_default();
    let interval = format!(
        "Each car publishes {each_per_s} times per second, so that a phone without any fault is silent for {:.2} s.",
        1.0 / each_per_s.max(f64::MIN_POSITIVE)
    );
    table(
        "carcare-failover",
        "One of two nodes behind HAProxy is killed in the middle of the test",
        &[
            ("transport", ""),
            ("cars", ""),
            (PROMISED, ""),
            (PASSED, ""),
            ("connections lost", ""),
            ("longest silence", "s"),
            ("longest latency", "s"),
            ("sent", ""),
            ("lost", ""),
            ("doubled", ""),
            ("gaps", ""),
            ("noise", ""),
        ],
        groups(recording, FAILOVER).iter().map(row).collect(),
        [
            "Passes if every message arrived exactly once and no gap was reported. The nodes share one Redis.",
            &interval,
            "Cars repeat a POST without an answer, with the same Idempotency-Key. Phones resume at their last position, those on a bare WebSocket by counting messages (`millrace.bare+position`).",
            NOISE_NOTE,
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        judged::judged,
        recording::{Factors, Finding, Spread, Usage},
    };

    fn run(part: &str, transport: &str, cars: u64, counts: Counts) -> Run {
        let mut latency_us = Histogram::default();
        (1..=1000).for_each(|us| latency_us.record_us(us * 10));
        let server = Usage { cpu_user_s: 2.0, pss_bytes: 80_000_000, ..Usage::default() };
        let (start_s, drained_s, silence_us) = (1.0, 11.0, 1_500_000);
        let name = PhaseName::Test;
        let test = Phase { name, latency_us, counts, server, start_s, drained_s, silence_us, ..Phase::default() };
        let spread = Spread { nodes: 2, namespaces: 2, up_bytes: Some(1_000_000), down_bytes: Some(500_000) };
        Run {
            part: part.into(),
            transport: transport.into(),
            factors: Factors { clients: cars, ..Factors::default() },
            phases: vec![test],
            spread: Some(spread),
            ..Run::default()
        }
    }

    fn of(runs: Vec<Run>) -> Recording {
        let parameters = json!({ "failover": { "each_per_s": [4.0] } });
        let head = json!({"format": 1, "scenario": "carcare-load", "form": "full", "seed": 1, "started": "",
            "provenance": null, "runs": [], "parameters": parameters});
        Recording { runs, ..serde_json::from_value(head).unwrap() }
    }

    fn cell<'a>(table: &'a Table, row: usize, column: &str) -> &'a Value {
        let at = table.columns.iter().position(|one| one.name == column);
        &table.rows[row][at.unwrap_or_else(|| panic!("no column {column}"))]
    }

    #[test]
    fn rows_follow_transports_and_cars() {
        let counts = Counts { scheduled: 10_000, sent: 10_000, delivered: 10_000, ..Counts::default() };
        let run = |transport, cars| run(CARS, transport, cars, counts);
        let recording = of(vec![run("polling", 5000), run("websocket", 5000), run("websocket", 4000)]);
        let [table] = &tables(&recording)[..] else { panic!("one table") };
        let keys: Vec<_> = (0..3).map(|row| (cell(table, row, "transport"), cell(table, row, "cars"))).collect();
        assert_eq!(keys[0], (&json!("websocket"), &json!(4000)));
        assert_eq!(keys[1].1, &json!(5000));
        let is = |column: &str, expected: f64| {
            let value = cell(table, 0, column).as_f64().unwrap();
            assert!((value - expected).abs() < expected * 0.01, "{column}: {value}, expected {expected}");
        };
        is("CPU", 0.2);
        is("CPU per delivery", 200.0);
        is("memory per connection", 10.0);
        is("up", 0.8);
        is("down", 0.4);
        is("network per delivery", 150.0);
        is("p50", 5.0);
        is("p99.9", 9.99);
    }

    #[test]
    fn failover_that_loses_or_doubles_fails() {
        let good = Counts { scheduled: 100, sent: 100, delivered: 100, broken: 30, ..Counts::default() };
        let bad = [
            Counts { delivered: 99, lost: 1, ..good },
            Counts { duplicated: 1, ..good },
            Counts { gaps: 1, ..good },
            Counts { sent: 99, delivered: 99, ..good },
        ];
        let failed = |counts| {
            let [table] = &tables(&of(vec![run(FAILOVER, "sse", 50, counts)]))[..] else { panic!("one table") };
            assert_eq!(cell(table, 0, "longest silence"), &json!(1.5));
            judged(None, std::slice::from_ref(table))[0].failed.len()
        };
        assert_eq!(failed(good), 0);
        assert_eq!(bad.map(failed), [1; 4]);
    }

    #[test]
    fn noise_hides_no_lost_message() {
        let finding = |code: &str| Finding { code: code.into(), detail: String::new(), invalidates: true };
        let counts = Counts { scheduled: 100, sent: 100, delivered: 99, lost: 1, ..Counts::default() };
        let noisy = Run { validity: vec![finding("generator_bound")], ..run(FAILOVER, "sse", 50, counts) };
        let broken = Run { validity: vec![finding("failed")], ..noisy.clone() };
        let [table] = &tables(&of(vec![noisy, broken]))[..] else { panic!("one table") };
        assert_eq!((cell(table, 0, "noise"), cell(table, 0, "sent")), (&json!("generator_bound"), &json!(100)));
        assert_eq!(judged(None, std::slice::from_ref(table))[0].failed.len(), 1);
    }
}
