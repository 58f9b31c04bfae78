//! Tables with the figures of the thesis and ours side by side.

use serde_json::{Value, json};

use super::{cpu_percent, mode::Mode, traffic::Step};
use crate::{
    histogram::Histogram,
    host::Series,
    judged::{PASSED, PROMISED},
    recording::Table,
    scenarios::{carcare_latency::mean_and_sd, table::table},
};

/// Figures of the thesis by number of peers: the columns of a file in `crates/lab/data`.
pub struct ThesisFigures(Vec<Vec<f64>>);

/// Reads the figures of one table of the thesis.
macro_rules! thesis {
    ($name:literal) => {
        ThesisFigures::read(include_str!(concat!("../../../data/karadogan_", $name, ".csv")))
    };
}

impl ThesisFigures {
    pub fn read(text: &str) -> ThesisFigures {
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        ThesisFigures(reader.deserialize().map(|row| row.expect("every cell holds a number")).collect())
    }

    /// Returns a cell of the row for `peers`. Column 0 is the number of peers, so `column` counts from 1.
    pub fn at(&self, peers: usize, column: usize) -> Value {
        let row = self.0.iter().find(|row| row[0] == peers as f64);
        row.map_or(Value::Null, |row| json!(row[column]))
    }
}

pub fn delay_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Forward => "forward-delay",
        Mode::Multiplex => "multiplex-delay",
        Mode::Demultiplex => "demultiplex-delay",
        Mode::Bidirectional => "both-delay",
    }
}

/// Returns the tables of a mode. `judges`: true if a missed limit makes the whole recording fail.
pub fn tables(mode: Mode, steps: &[Step], series: &Series, judges: bool) -> Vec<Table> {
    let cpu = |title: &str, thesis: Option<(ThesisFigures, ThesisFigures)>| cpu(mode, title, thesis, steps, series);
    let mut tables = match mode {
        Mode::Forward => {
            vec![forward_delay(steps), bytes(steps), cpu("CPU of the gateway, one to one", None)]
        }
        Mode::Multiplex => {
            let thesis = (thesis!("t3_8_mux_cpu"), thesis!("t3_9_mux_power"));
            vec![multiplex_delay(steps), cpu("CPU of the gateway, many as one (tables 3.8 and 3.9)", Some(thesis))]
        }
        Mode::Demultiplex => {
            let thesis = (thesis!("t3_11_demux_cpu"), thesis!("t3_12_demux_power"));
            vec![demultiplex_delay(steps), cpu("CPU of the gateway, one to many (tables 3.11 and 3.12)", Some(thesis))]
        }
        Mode::Bidirectional => vec![both_delay(steps), cpu("CPU of the gateway, both directions", None)],
    };
    tables.push(promises(mode, steps, judges));
    tables
}

fn forward_delay(steps: &[Step]) -> Table {
    let (ip, browser) = (thesis!("t3_3_owd_network_layer"), thesis!("t3_4_owd_application_layer"));
    let row = |step: &Step| {
        let thesis =
            [ip.at(step.peers, 1), browser.at(step.peers, 1), browser.at(step.peers, 2), browser.at(step.peers, 3)];
        let ours = statistics(&step.delay).to_vec();
        [vec![json!(step.peers)], thesis.to_vec(), ours, vec![longest(&step.joining)], counts(step)].concat()
    };
    table(
        delay_name(Mode::Forward),
        "One-way delay, one to one (tables 3.3 and 3.4)",
        &[
            ("peers", ""),
            ("thesis mean, by IP", "ms"),
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
            ("maximum while peers joined", "ms"),
            ("sent", ""),
            ("received", ""),
            ("late p99", "ms"),
        ],
        steps.iter().map(row).collect(),
        [
            "The thesis measured over Wi-Fi, a phone and 3G; this run uses loopback. Compare the growth with the number of peers, and the losses.",
            "In the thesis, the phone was saturated at 25 peers: it received 89 % of the messages and forwarded 90 % of those (E-K10). The thesis has no figures for 50 peers.",
            "The thesis excludes spikes of up to 4 s while channels opened. Ours are in the column `maximum while peers joined`.",
            "late: the time from the due time of a message until it was sent. The delay includes this time.",
        ],
    )
}

fn bytes(steps: &[Step]) -> Table {
    let (ip, thesis) = (thesis!("t3_5_throughput_network_layer"), thesis!("t3_6_throughput_application_layer"));
    let row = |step: &Step| {
        let expected = 245.0 * 4.0 * step.peers as f64;
        vec![
            json!(step.peers),
            json!(expected),
            ip.at(step.peers, 1),
            thesis.at(step.peers, 1),
            thesis.at(step.peers, 3),
            json!(step.received_bytes_per_s.round()),
            deviation(&step.bytes_by_second, 0),
            json!(step.sent_bytes_per_s.round()),
            deviation(&step.bytes_by_second, 1),
            json!(round(100.0 * step.came as f64 / step.sent.max(1) as f64)),
        ]
    };
    table(
        "forward-throughput",
        "Bytes through the gateway, one to one (tables 3.5 and 3.6)",
        &[
            ("peers", ""),
            ("thesis expected", "B/s"),
            ("thesis, by IP", "B/s"),
            ("thesis received", "B/s"),
            ("thesis sent", "B/s"),
            ("received", "B/s"),
            ("received, sd", "B/s"),
            ("sent", "B/s"),
            ("sent, sd", "B/s"),
            ("messages received", "%"),
        ],
        steps.iter().map(row).collect(),
        [
            "Bytes at IP level. In the thesis, each peer sends four messages of 100 characters per second; each takes about 245 bytes.",
            "Ours: datagrams from senders to the gateway, and from the gateway to receivers, including ICE. Acknowledgments have the opposite direction and are not included.",
        ],
    )
}

fn multiplex_delay(steps: &[Step]) -> Table {
    let thesis = thesis!("t3_7_mux_delay");
    let row = |step: &Step| {
        let [whole, ..] = figures(&step.gathered);
        let thesis = [thesis.at(step.peers, 1), thesis.at(step.peers, 2), thesis.at(step.peers, 3)];
        let ours = statistics(&step.beyond).to_vec();
        [vec![json!(step.peers)], thesis.to_vec(), ours, vec![longest(&step.joining), whole], counts(step)].concat()
    };
    table(
        delay_name(Mode::Multiplex),
        "Delay of gathering, without the window (table 3.7)",
        &[
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
            ("maximum while peers joined", "ms"),
            ("one-way mean, window included", "ms"),
            ("sent", ""),
            ("received", ""),
            ("late p99", "ms"),
        ],
        steps.iter().map(row).collect(),
        [
            "Thesis: measured inside the phone, without the window of 250 ms and without the network path.",
            "Ours: measured from outside, from the due time of the first message of a bundle to the arrival of the bundle, minus the window. This includes the network path and the timer that ends the window.",
            "A message that is not the first of its bundle waits for the rest of the window: half a window on average.",
        ],
    )
}

fn demultiplex_delay(steps: &[Step]) -> Table {
    let thesis = thesis!("t3_10_demux_delay");
    let row = |step: &Step| {
        let thesis = [thesis.at(step.peers, 1), thesis.at(step.peers, 2), thesis.at(step.peers, 3)];
        let ours = statistics(&step.delay).to_vec();
        [vec![json!(step.peers)], thesis.to_vec(), ours, vec![longest(&step.joining)], counts(step)].concat()
    };
    table(
        delay_name(Mode::Demultiplex),
        "One-way delay of the parts of bundles (table 3.10)",
        &[
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
            ("maximum while peers joined", "ms"),
            ("sent", ""),
            ("received", ""),
            ("late p99", "ms"),
        ],
        steps.iter().map(row).collect(),
        [
            "Thesis: measured inside the phone. Ours: from the due time of the bundle to the arrival of the part, including the network path.",
        ],
    )
}

fn both_delay(steps: &[Step]) -> Table {
    let row = |step: &Step| {
        let ([up, _, _, up_p99], [whole, ..]) = (figures(&step.beyond), figures(&step.gathered));
        let [down, _, _, down_p99] = figures(&step.delay);
        let ours = [up, up_p99, whole, down, down_p99, longest(&step.joining)];
        [vec![json!(step.peers)], ours.to_vec(), counts(step)].concat()
    };
    table(
        delay_name(Mode::Bidirectional),
        "Both directions: many devices to one uplink, and the uplink to the devices",
        &[
            ("peers", ""),
            ("up without the window, mean", "ms"),
            ("up without the window, p99", "ms"),
            ("up one-way mean, window included", "ms"),
            ("down one-way, mean", "ms"),
            ("down one-way, p99", "ms"),
            ("maximum while peers joined", "ms"),
            ("sent", ""),
            ("received", ""),
            ("late p99", "ms"),
        ],
        steps.iter().map(row).collect(),
        [
            "The thesis has no figures for this task; it is future work there. The number of messages is equal in both directions. A bundle has at most ten messages.",
        ],
    )
}

fn cpu(
    mode: Mode,
    title: &str,
    thesis: Option<(ThesisFigures, ThesisFigures)>,
    steps: &[Step],
    series: &Series,
) -> Table {
    let mut columns = vec![("peers", "")];
    if thesis.is_some() {
        columns.extend([("thesis mean", "%"), ("thesis sd", "%"), ("thesis median", "%"), ("thesis power", "mW")]);
    }
    columns.extend([("mean", "%"), ("sd", "%"), ("median", "%"), ("p95", "%"), ("p99", "%"), ("max", "%"), ("n", "")]);
    columns.push(("per message", "us"));
    let row = |step: &Step| {
        let mut row = vec![json!(step.peers)];
        if let Some((cpu, power)) = &thesis {
            row.extend([cpu.at(step.peers, 1), cpu.at(step.peers, 2), cpu.at(step.peers, 3), power.at(step.peers, 1)]);
        }
        let percent = cpu_percent(series, step);
        let spread = spread(&percent);
        let per_s = step.sent as f64 / (step.to_s - step.from_s);
        let each = spread[0].as_f64().map(|percent| round(percent / 100.0 / per_s.max(1.0) * 1e6));
        row.extend(spread);
        row.push(json!(each));
        row
    };
    let mut notes = vec![
        "Ours: user and system time of the gateway process in percent of one core. This includes encryption and sending in the kernel.",
        "n: number of sampling intervals.",
        "per message: CPU time divided by the number of messages that devices sent.",
    ];
    if thesis.is_some() {
        notes.push("The phone of the thesis had four cores of 2012 and ran a browser. This run does not measure power. The power of the thesis includes the idle phone: 1,195 mW for gathering, 1,058 mW for splitting.");
    }
    table(&format!("{}-cpu", mode.name()), title, &columns, steps.iter().map(row).collect(), &notes)
}

/// Returns the table of the checks that docs/theses.md requires.
fn promises(mode: Mode, steps: &[Step], judges: bool) -> Table {
    let mean_ms = |histogram: &Histogram| histogram.mean_us().map(|us| us / 1000.0);
    let (mut delay, mut beyond) = (None, None);
    for step in steps {
        delay = mean_ms(&step.delay).into_iter().chain(delay).reduce(f64::max);
        beyond = mean_ms(&step.beyond).into_iter().chain(beyond).reduce(f64::max);
    }
    let spikes = steps.iter().filter_map(|step| step.joining.max_us()).max().map(|us| us as f64 / 1000.0);
    let all_came = steps.iter().all(|step| step.came == step.sent && step.sent > 0);
    let mut rows = vec![("every message arrived once and in order".to_owned(), judges, all_came)];
    let mut below = |what: &str, value: Option<f64>, limit: f64| {
        let said = value.map_or("no value".into(), |value| format!("{value:.2} ms"));
        rows.push((format!("{what}: {said}, below {limit} ms"), judges, value.is_some_and(|value| value < limit)));
    };
    match mode {
        Mode::Forward => below("mean delay of every step", delay, 500.0),
        Mode::Multiplex => {
            below("mean delay of gathering at every step; the limit is that of the thesis at 45 peers", beyond, 4.66)
        }
        Mode::Demultiplex => {
            below("mean delay of splitting at every step; the limit is that of the thesis at 40 peers", delay, 2.98)
        }
        Mode::Bidirectional => {
            below("mean delay of gathering at every step", beyond, 4.66);
            below("mean delay of splitting at every step", delay, 2.98);
        }
    }
    below("maximum delay while peers joined", spikes, 500.0);
    let said = |is_so: bool| json!(if is_so { "yes" } else { "no" });
    table(
        &format!("{}-promises", mode.name()),
        &format!("Checks: {}", mode.name()),
        &[("check", ""), (PROMISED, ""), (PASSED, "")],
        rows.into_iter().map(|(what, judged, passed)| vec![json!(what), said(judged), said(passed)]).collect(),
        [
            "A check is promised only if server and load have separate CPUs, and not in the quick form, which is too short.",
        ],
    )
}

/// Returns a one-line summary for the console.
pub fn describe(mode: Mode, step: &Step, cpu: &[f64]) -> String {
    let of = |histogram: &Histogram| {
        let ms = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{:.2}", us / 1000.0));
        format!("{} / {} ms", ms(histogram.mean_us()), ms(histogram.quantile_us(0.99).map(|us| us as f64)))
    };
    let delays = match mode {
        Mode::Forward | Mode::Demultiplex => format!("mean / p99 {}", of(&step.delay)),
        Mode::Multiplex => format!("without the window {}", of(&step.beyond)),
        Mode::Bidirectional => format!("up without the window {}, down {}", of(&step.beyond), of(&step.delay)),
    };
    let cpu = spread(cpu)[0].as_f64().unwrap_or(0.0);
    format!(
        "{:<12} {:>3} peers  {delays}  {} of {} received  CPU {cpu:.1} %",
        mode.name(),
        step.peers,
        step.came,
        step.sent
    )
}

/// Returns mean, standard deviation, median and p99 in milliseconds.
pub fn figures(of: &Histogram) -> [Value; 4] {
    let ms = |us: Option<f64>| us.map_or(Value::Null, |us| json!(round(us / 1000.0)));
    let (mean, sd) = mean_and_sd(of);
    let at = |q| of.quantile_us(q).map(|us| us as f64);
    [ms(mean), ms(sd), ms(at(0.5)), ms(at(0.99))]
}

/// Returns mean, standard deviation, median, p95, p99 and maximum in milliseconds, and the number of messages.
fn statistics(of: &Histogram) -> [Value; 7] {
    let [mean, sd, median, p99] = figures(of);
    let p95 = of.quantile_us(0.95).map_or(Value::Null, |us| json!(round(us as f64 / 1000.0)));
    [mean, sd, median, p95, p99, longest(of), json!(of.count())]
}

pub fn longest(of: &Histogram) -> Value {
    of.max_us().map_or(Value::Null, |us| json!(round(us as f64 / 1000.0)))
}

fn counts(step: &Step) -> Vec<Value> {
    vec![json!(step.sent), json!(step.came), figures(&step.late)[3].clone()]
}

/// Returns mean, standard deviation, median, p95, p99, maximum and number of values.
fn spread(of: &[f64]) -> [Value; 7] {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(&max) = sorted.last() else {
        return [Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, json!(0)];
    };
    let mean = of.iter().sum::<f64>() / of.len() as f64;
    let variance = of.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / of.len() as f64;
    let at = |share: f64| sorted[((share * of.len() as f64).ceil() as usize).max(1) - 1];
    let [mean, sd, median, p95, p99, max] =
        [mean, variance.sqrt(), sorted[sorted.len() / 2], at(0.95), at(0.99), max].map(|value| json!(round(value)));
    [mean, sd, median, p95, p99, max, json!(of.len())]
}

/// Returns the standard deviation of the bytes of whole seconds: of those to the gateway (0), or from it (1). Null with
/// fewer than two seconds.
pub fn deviation(by_second: &[[f64; 2]], direction: usize) -> Value {
    let bytes: Vec<f64> = by_second.iter().map(|both| both[direction]).collect();
    if bytes.len() < 2 { Value::Null } else { spread(&bytes)[1].clone() }
}

/// Rounds to four digits behind the point, such as tenths of a microsecond in milliseconds.
pub fn round(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(peers: usize, us: u64) -> Step {
        let mut step = Step { peers, from_s: 1.0, to_s: 2.0, sent: 4, came: 4, ..Step::default() };
        step.bytes_by_second = vec![[100.0, 7.0], [200.0, 7.0]];
        for histogram in [&mut step.delay, &mut step.beyond, &mut step.gathered, &mut step.joining, &mut step.late] {
            histogram.record_us(us);
        }
        step
    }

    /// Compares with the values that the thesis prints.
    #[test]
    fn thesis_figures_are_in_the_rows_of_ours() {
        let series = Series::default();
        let cell = |mode, table: usize, column: &str, row: usize| {
            let steps = [step(25, 1000), step(40, 2000), step(60, 2000)];
            let table = &tables(mode, &steps, &series, true)[table];
            let at = table.columns.iter().position(|known| known.name == column).expect("the column is there");
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{table:?}");
            table.rows[row][at].clone()
        };
        assert_eq!(cell(Mode::Forward, 0, "thesis mean", 0), json!(431.03));
        assert_eq!(cell(Mode::Forward, 0, "thesis mean, by IP", 1), json!(249.35));
        assert_eq!(cell(Mode::Forward, 0, "thesis mean", 1), Value::Null);
        assert_eq!(cell(Mode::Forward, 0, "mean", 0), json!(1.0));
        assert_eq!(cell(Mode::Forward, 1, "thesis sent", 0), json!(19586.51));
        assert_eq!(cell(Mode::Forward, 1, "received, sd", 0), json!(50.0));
        assert_eq!(cell(Mode::Forward, 1, "sent, sd", 0), json!(0.0));
        assert_eq!((cell(Mode::Multiplex, 0, "max", 0), cell(Mode::Multiplex, 0, "n", 0)), (json!(1.0), json!(1)));
        assert_eq!(cell(Mode::Multiplex, 0, "thesis median", 1), json!(3.39));
        assert_eq!(cell(Mode::Multiplex, 1, "thesis power", 1), json!(1490.85));
        assert_eq!(cell(Mode::Demultiplex, 0, "thesis sd", 1), json!(2.58));
        assert_eq!(cell(Mode::Demultiplex, 1, "thesis mean", 1), json!(34.72));
        assert_eq!(cell(Mode::Bidirectional, 0, "down one-way, mean", 1), json!(2.0));
    }

    #[test]
    fn failed_checks_are_shown() {
        let passed = |mode, steps: &[Step]| {
            let table = promises(mode, steps, true);
            table.rows.iter().map(|row| row[2] == "yes").collect::<Vec<_>>()
        };
        assert_eq!(passed(Mode::Multiplex, &[step(5, 1000)]), [true, true, true]);
        assert_eq!(passed(Mode::Multiplex, &[step(5, 1000), step(10, 5000)]), [true, false, true]);
        assert_eq!(passed(Mode::Forward, &[step(5, 600_000)]), [true, false, false]);
        assert_eq!(passed(Mode::Demultiplex, &[Step { came: 3, ..step(5, 1000) }]), [false, true, true]);
        assert_eq!(passed(Mode::Demultiplex, &[Step::default()]), [false, false, false]);
    }

    #[test]
    fn spread_uses_the_population_deviation() {
        let [mean, sd, median, p95, p99, max, n] = spread(&[1.0, 2.0, 3.0]);
        assert_eq!(
            [mean, sd, median, p95, p99, max, n],
            [json!(2.0), json!(0.8165), json!(2.0), json!(3.0), json!(3.0), json!(3.0), json!(3)]
        );
        assert_eq!(spread(&[])[5..], [Value::Null, json!(0)]);
    }
}
