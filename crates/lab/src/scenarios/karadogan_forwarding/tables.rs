//! Tables with the figures of the thesis and ours side by side.

use millrace_link::Config;
use serde_json::{Value, json};

use super::{Choice, Repeat};
use crate::{
    histogram::Histogram,
    judged::{PASSED, PROMISED},
    path::gateway::Forwarding,
    recording::{LinkRun, Table},
    scenarios::{
        karadogan_gateway::{
            tables::{ThesisFigures, deviation, figures, longest, round},
            traffic::Step,
        },
        table::{NO_NOTES, table},
    },
};

pub const DELAY: &str = "forwarding-delay";
/// Bytes of a message of the thesis at IP level.
const MESSAGE_BYTES: f64 = 245.0;

/// Reads the figures of one table of the thesis.
macro_rules! thesis {
    ($name:literal) => {
        ThesisFigures::read(include_str!(concat!("../../../data/karadogan_", $name, ".csv")))
    };
}

/// One step of a forwarding, over all repeats.
struct Point<'a> {
    forwarding: Forwarding,
    peers: usize,
    steps: Vec<&'a Step>,
}

/// `judges`: true if an emulator that was the limit makes the tables invalid.
pub fn tables(choice: &Choice, links: &[Config; 2], repeats: &[Repeat], judges: bool) -> Vec<Table> {
    let points: Vec<Point> = choice
        .forwarding
        .iter()
        .flat_map(|&forwarding| {
            let of = move |peers: usize| {
                let steps = repeats.iter().filter(move |repeat| repeat.forwarding == forwarding);
                let steps = steps.flat_map(|repeat| &repeat.steps).filter(|step| step.peers == peers).collect();
                Point { forwarding, peers, steps }
            };
            choice.peers.iter().map(move |peers| of(*peers))
        })
        .collect();
    let mut tables = vec![delay(&points), throughput(choice, &points), link_table(repeats), promises(links, repeats)];
    let links = || repeats.iter().flat_map(|repeat| [&repeat.wifi, &repeat.mobile]);
    for mut finding in links().flat_map(LinkRun::findings) {
        finding.invalidates &= judges;
        if tables[0].validity.iter().all(|known| known.code != finding.code) {
            tables.iter_mut().for_each(|table| table.validity.push(finding.clone()));
        }
    }
    tables
}

impl Point<'_> {
    fn all(&self, of: impl Fn(&Step) -> &Histogram) -> Histogram {
        let mut all = Histogram::default();
        self.steps.iter().for_each(|step| all.add(of(step)));
        all
    }

    fn mean(&self, of: impl Fn(&Step) -> f64) -> f64 {
        self.steps.iter().map(|step| of(step)).sum::<f64>() / self.steps.len().max(1) as f64
    }
}

fn delay(points: &[Point]) -> Table {
    let (ip, browser) = (thesis!("t3_3_owd_network_layer"), thesis!("t3_4_owd_application_layer"));
    let row = |point: &Point| {
        let thesis = if point.forwarding == Forwarding::Gateway { &browser } else { &ip };
        let delay = point.all(|step| &step.delay);
        let [mean, sd, median, p99] = figures(&delay);
        let means: Vec<f64> = point.steps.iter().filter_map(|step| step.delay.mean_us()).collect();
        let of_means = |pick: fn(f64, f64) -> f64| means.iter().copied().reduce(pick).map(|us| round(us / 1000.0));
        vec![
            json!(point.forwarding.name()),
            json!(point.peers),
            thesis.at(point.peers, 1),
            thesis.at(point.peers, 2),
            thesis.at(point.peers, 3),
            mean,
            sd,
            median,
            delay.quantile_us(0.95).map_or(Value::Null, |us| json!(round(us as f64 / 1000.0))),
            p99,
            longest(&delay),
            json!(delay.count()),
            json!(of_means(f64::min)),
            json!(of_means(f64::max)),
            longest(&point.all(|step| &step.joining)),
            figures(&point.all(|step| &step.late))[3].clone(),
        ]
    };
    table(
        DELAY,
        "One-way delay from a device to its server (tables 3.3 and 3.4)",
        &[
            ("forwarding", ""),
            ("peers", ""),
            ("thesis mean", "ms"),
            ("thesis sd", "ms"),
            ("thesis median", "ms"),
            ("mean", "ms"),
            ("sd", "ms"),
            ("median", "ms"),
            ("p95", "ms"),
            ("p99", "ms"),
            ("max", "ms"),
            ("n", ""),
            ("lowest mean of a repeat", "ms"),
            ("highest mean of a repeat", "ms"),
            ("maximum while peers joined", "ms"),
            ("late p99", "ms"),
        ],
        points.iter().map(row).collect(),
        [
            "Thesis: a phone of 2013 between Wi-Fi and 3G; table 3.3 for forwarding of packets, table 3.4 (a browser) for the gateway. It reports 25 peers at most for the browser.",
            "Ours: two emulated links, whose delay is not that of the thesis's networks. Compare the growth with the number of peers: 10 ms per 5 peers in table 3.3 (E-K8).",
            "late: the time from the due time of a message until it was sent. The delay includes this time.",
        ],
    )
}

fn throughput(choice: &Choice, points: &[Point]) -> Table {
    let (ip, browser) = (thesis!("t3_5_throughput_network_layer"), thesis!("t3_6_throughput_application_layer"));
    let row = |point: &Point| {
        let thesis = if point.forwarding == Forwarding::Gateway { &browser } else { &ip };
        let by_second: Vec<[f64; 2]> =
            point.steps.iter().flat_map(|step| step.bytes_by_second.iter().copied()).collect();
        let (sent, came): (u64, u64) =
            point.steps.iter().fold((0, 0), |(sent, came), step| (sent + step.sent, came + step.came));
        vec![
            json!(point.forwarding.name()),
            json!(point.peers),
            json!(MESSAGE_BYTES * choice.each_per_s * point.peers as f64),
            thesis.at(point.peers, 1),
            thesis.at(point.peers, 2),
            json!(point.mean(|step| step.received_bytes_per_s).round()),
            deviation(&by_second, 0),
            json!(point.mean(|step| step.sent_bytes_per_s).round()),
            deviation(&by_second, 1),
            json!(sent),
            json!(round(100.0 * came as f64 / sent.max(1) as f64)),
        ]
    };
    table(
        "forwarding-throughput",
        "Bytes per second, sent and received (tables 3.5 and 3.6)",
        &[
            ("forwarding", ""),
            ("peers", ""),
            ("thesis expected", "B/s"),
            ("thesis received", "B/s"),
            ("thesis sd", "B/s"),
            ("sent by devices", "B/s"),
            ("sent by devices, sd", "B/s"),
            ("received by servers", "B/s"),
            ("received by servers, sd", "B/s"),
            ("messages sent", ""),
            ("messages received", "%"),
        ],
        points.iter().map(row).collect(),
        [
            "Bytes at IP level. In the thesis, a message of 100 characters takes about 245 bytes, so 245 x 4 x peers is expected; it received 95 % of that at 50 peers (E-K10).",
            "Ours: datagrams from the devices, and to the servers, including ICE. Acknowledgments have the opposite direction and are not included.",
        ],
    )
}

fn link_table(repeats: &[Repeat]) -> Table {
    let row = |forwarding: Forwarding, link: &LinkRun| {
        let (up, down) = (&link.up, &link.down);
        vec![
            json!(forwarding.name()),
            json!(link.path),
            json!(up.received_bytes),
            json!(up.delivered_bytes),
            json!(up.lost + down.lost),
            json!(up.dropped + down.dropped),
            json!(up.queue_packets_max),
            json!(round(link.cpu_us_per_packet)),
            json!(round(link.cpu_cores * 100.0)),
            json!(round(link.late_p50_us)),
            json!(round(link.late_p99_us)),
            json!(link.kernel_drops),
        ]
    };
    table(
        "forwarding-links",
        "The emulated links, and what they cost",
        &[
            ("forwarding", ""),
            ("link", ""),
            ("received, up", "B"),
            ("delivered, up", "B"),
            ("lost", "packets"),
            ("dropped by the queue", "packets"),
            ("longest queue, up", "packets"),
            ("CPU of the emulator", "us/packet"),
            ("CPU of the emulator", "%"),
            ("added delay p50", "us"),
            ("added delay p99", "us"),
            ("dropped by the kernel", "packets"),
        ],
        repeats
            .iter()
            .flat_map(|repeat| [row(repeat.forwarding, &repeat.wifi), row(repeat.forwarding, &repeat.mobile)])
            .collect(),
        [
            "up: from the devices to the servers. One line per link and repeat.",
            "added delay: how late the emulator released packets, compared with their link.",
        ],
    )
}

/// Returns the table of the checks that docs/theses.md requires.
fn promises(links: &[Config; 2], repeats: &[Repeat]) -> Table {
    let said = |is_so: bool| json!(if is_so { "yes" } else { "no" });
    let shortest_ms = links.iter().map(|link| link.up.delay.as_secs_f64() * 1000.0).sum::<f64>();
    let mut rows = Vec::new();
    let mut names: Vec<Forwarding> = Vec::new();
    for repeat in repeats {
        if !names.contains(&repeat.forwarding) {
            names.push(repeat.forwarding);
        }
    }
    for forwarding in names {
        let of: Vec<&Repeat> = repeats.iter().filter(|repeat| repeat.forwarding == forwarding).collect();
        let steps = || of.iter().flat_map(|repeat| &repeat.steps);
        let mut check = |what: String, promised: bool, passed: bool| {
            rows.push(vec![json!(forwarding.name()), json!(what), said(promised), said(passed)]);
        };
        let all_came = steps().all(|step| step.came == step.sent && step.sent > 0);
        check("every message arrived once and in order".into(), true, all_came);
        if forwarding != Forwarding::Gateway {
            let all_bytes = |repeat: &&Repeat| {
                let (into, out) = (repeat.wifi.up.delivered_bytes, repeat.mobile.up.received_bytes);
                into == out && into > 0
            };
            check("all bytes from the Wi-Fi link entered the 3G link".into(), true, of.iter().all(all_bytes));
        }
        let fastest = steps().filter_map(|step| step.delay.quantile_us(0.0)).min();
        let is_physical = fastest.is_some_and(|us| us as f64 / 1000.0 >= shortest_ms * 0.99);
        check(format!("no message was faster than the links allow, {shortest_ms} ms"), true, is_physical);
    }
    table(
        "forwarding-promises",
        "Checks",
        &[("forwarding", ""), ("check", ""), (PROMISED, ""), (PASSED, "")],
        rows,
        NO_NOTES,
    )
}

/// Returns a one-line summary for the console.
pub fn describe(forwarding: Forwarding, step: &Step) -> String {
    let ms = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{:.1}", us / 1000.0));
    format!(
        "{:<16} {:>3} peers  mean / p99 {} / {} ms  {} of {} received  {:.0} B/s",
        forwarding.name(),
        step.peers,
        ms(step.delay.mean_us()),
        ms(step.delay.quantile_us(0.99).map(|us| us as f64)),
        step.came,
        step.sent,
        step.sent_bytes_per_s
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::LinkCounts;

    fn repeat(forwarding: Forwarding, delay_ms: u64) -> Repeat {
        let step = |peers| {
            let mut step = Step { peers, sent: 4, came: 4, sent_bytes_per_s: 4900.0, ..Step::default() };
            (0..4).for_each(|n| step.delay.record_us((delay_ms + n) * 1000));
            step
        };
        let link = |bytes| LinkRun {
            up: LinkCounts { received_bytes: bytes, delivered_bytes: bytes, ..LinkCounts::default() },
            ..LinkRun::default()
        };
        Repeat { forwarding, steps: vec![step(5), step(30)], wifi: link(1000), mobile: link(1000) }
    }

    fn choice() -> Choice {
        let file: toml::Table = include_str!("scenario.toml").parse().expect("a table");
        Choice { peers: vec![5, 30], ..Choice::read(file["parameters"].as_table().expect("a table")).expect("valid") }
    }

    fn checks(repeats: &[Repeat]) -> Vec<(String, bool)> {
        let choice = choice();
        let tables = tables(&choice, &choice.links().expect("links"), repeats, true);
        for table in &tables {
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{table:?}");
        }
        let name = |row: &Vec<Value>| row[1].as_str().expect("a name").to_owned();
        tables[3].rows.iter().map(|row| (name(row), row[3] == "yes")).collect()
    }

    /// Compares with the values that the thesis prints.
    #[test]
    fn thesis_figures_are_beside_ours() {
        let choice = choice();
        let repeats =
            [repeat(Forwarding::IpForward, 70), repeat(Forwarding::Gateway, 80), repeat(Forwarding::IpForward, 90)];
        let tables = tables(&choice, &choice.links().expect("links"), &repeats, true);
        let (router, gateway) = (&tables[0].rows[0], &tables[0].rows[6]);
        assert_eq!(router[..3], [json!("ip-forward"), json!(5), json!(185.77)]);
        assert_eq!(
            (&router[5], &router[11], &router[12], &router[13]),
            (&json!(81.5), &json!(8), &json!(71.5), &json!(91.5))
        );
        assert_eq!((&gateway[0], &gateway[2]), (&json!("gateway"), &json!(187.02)));
        assert_eq!(tables[0].rows[7][2], Value::Null, "the thesis has no browser with 30 peers");
        assert_eq!(tables[1].rows[0][2..4], [json!(4900.0), json!(4954.21)]);
        assert_eq!(tables[2].rows.len(), 6);
    }

    #[test]
    fn failed_checks_are_shown() {
        assert!(
            checks(&[repeat(Forwarding::IpForward, 70), repeat(Forwarding::Gateway, 70)]).iter().all(|check| check.1)
        );
        let failed = |change: fn(&mut Repeat)| {
            let mut repeat = repeat(Forwarding::Bridge, 70);
            change(&mut repeat);
            checks(&[repeat]).iter().position(|check| !check.1)
        };
        assert_eq!(failed(|repeat| repeat.steps[1].came = 3), Some(0));
        assert_eq!(failed(|repeat| repeat.mobile.up.received_bytes = 999), Some(1));
        assert_eq!(failed(|repeat| repeat.steps[0].delay.record_us(61_000)), Some(2));
        let mut slow = repeat(Forwarding::Bridge, 70);
        slow.wifi.kernel_drops = 1;
        let choice = choice();
        for judges in [true, false] {
            let tables = tables(&choice, &choice.links().expect("links"), std::slice::from_ref(&slow), judges);
            assert!(tables.iter().all(|table| table.is_valid() != judges && table.validity[0].code == "link_drops"));
        }
    }
}
