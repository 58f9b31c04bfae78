//! Tables with the figures of the thesis and ours side by side.

use serde_json::{Value, json};

use super::{cpu_percent, mode::Mode, traffic::Step};
use crate::{
    histogram::Histogram,
    host::Series,
    judged::{PASSED, PROMISED},
    recording::{Column, Table},
    scenarios::carcare_latency::mean_and_sd,
};

/// Figures of the thesis by number of peers: the columns of a file in `crates/lab/data`.
struct ThesisFigures(Vec<Vec<f64>>);

macro_rules! his {
    ($name:literal) => {
        ThesisFigures::read(include_str!(concat!("../../../data/karadogan_", $name, ".csv")))
    };
}

impl ThesisFigures {
    fn read(text: &str) -> ThesisFigures {
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        ThesisFigures(reader.deserialize().map(|row| row.expect("every cell holds a number")).collect())
    }

    /// Returns a cell of the row for `peers`. Column 0 is the number of peers, so `column` counts from 1.
    fn at(&self, peers: usize, column: usize) -> Value {
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
    let cpu = |title: &str, his: Option<(ThesisFigures, ThesisFigures)>| cpu(mode, title, his, steps, series);
    let mut tables = match mode {
        Mode::Forward => {
            vec![forward_delay(steps), bytes(steps), cpu("CPU of the gateway, one to one", None)]
        }
        Mode::Multiplex => {
            let his = (his!("t3_8_mux_cpu"), his!("t3_9_mux_power"));
            vec![multiplex_delay(steps), cpu("CPU of the gateway, many as one (tables 3.8 and 3.9)", Some(his))]
        }
        Mode::Demultiplex => {
            let his = (his!("t3_11_demux_cpu"), his!("t3_12_demux_power"));
            vec![demultiplex_delay(steps), cpu("CPU of the gateway, one to many (tables 3.11 and 3.12)", Some(his))]
        }
        Mode::Bidirectional => vec![both_delay(steps), cpu("CPU of the gateway, both ways at once", None)],
    };
    tables.push(promises(mode, steps, judges));
    tables
}

fn forward_delay(steps: &[Step]) -> Table {
    let (ip, browser) = (his!("t3_3_owd_network_layer"), his!("t3_4_owd_application_layer"));
    let row = |step: &Step| {
        let [mean, sd, median, p99] = figures(&step.delay);
        let his =
            [ip.at(step.peers, 1), browser.at(step.peers, 1), browser.at(step.peers, 2), browser.at(step.peers, 3)];
        let ours = [mean, sd, median, p99, longest(&step.joining)];
        [vec![json!(step.peers)], his.to_vec(), ours.to_vec(), counts(step)].concat()
    };
    table(
        delay_name(Mode::Forward),
        "One-way delay, one to one (tables 3.3 and 3.4)",
        &[
            ("peers", ""),
            ("his mean, by IP", "ms"),
            ("his mean", "ms"),
            ("his sd", "ms"),
            ("his median", "ms"),
            ("mean", "ms"),
            ("sd", "ms"),
            ("median", "ms"),
            ("p99", "ms"),
            ("longest while others joined", "ms"),
            ("sent", ""),
            ("came", ""),
            ("late p99", "ms"),
        ],
        steps.iter().map(row).collect(),
        &[
            "The thesis measured over Wi-Fi, a phone and 3G; this run uses loopback. Compare the growth with the number of peers, and the losses.",
            "In the thesis the phone was saturated at 25 peers: it received 89 % of the messages and forwarded 90 % of those (E-K10). 50 peers were not tried.",
            "He left out spikes of up to 4 s while channels opened; ours of that time are in a column of their own.",
            "late: from when a message was due until it was sent; it is in the delay.",
        ],
    )
}

fn bytes(steps: &[Step]) -> Table {
    let (ip, his) = (his!("t3_5_throughput_network_layer"), his!("t3_6_throughput_application_layer"));
    let row = |step: &Step| {
        let expected = 245.0 * 4.0 * step.peers as f64;
        vec![
            json!(step.peers),
            json!(expected),
            ip.at(step.peers, 1),
            his.at(step.peers, 1),
            his.at(step.peers, 3),
            json!(step.received_bytes_per_s.round()),
            json!(step.sent_bytes_per_s.round()),
            json!(round(100.0 * step.came as f64 / step.sent.max(1) as f64)),
        ]
    };
    table(
        "forward-throughput",
        "Bytes through the gateway, one to one (tables 3.5 and 3.6)",
        &[
            ("peers", ""),
            ("his expected", "B/s"),
            ("his, by IP", "B/s"),
            ("his received", "B/s"),
            ("his sent", "B/s"),
            ("received", "B/s"),
            ("sent", "B/s"),
            ("messages that came", "%"),
        ],
        steps.iter().map(row).collect(),
        &[
            "At the level of IP. He has about 245 bytes per message of 100 characters, four a second of each peer.",
            "Ours: datagrams of those that send to the gateway, and from it to those that receive, ICE included; acknowledgements go the other way.",
        ],
    )
}

fn multiplex_delay(steps: &[Step]) -> Table {
    let his = his!("t3_7_mux_delay");
    let row = |step: &Step| {
        let ([mean, sd, median, p99], [whole, ..]) = (figures(&step.beyond), figures(&step.gathered));
        let ours = [mean, sd, median, p99, longest(&step.joining), whole];
        let his = [his.at(step.peers, 1), his.at(step.peers, 2), his.at(step.peers, 3)];
        [vec![json!(step.peers)], his.to_vec(), ours.to_vec(), counts(step)].concat()
    };
    table(
        delay_name(Mode::Multiplex),
        "What gathering takes beside waiting (table 3.7)",
        &[
            ("peers", ""),
            ("his mean", "ms"),
            ("his sd", "ms"),
            ("his median", "ms"),
            ("mean", "ms"),
            ("sd", "ms"),
            ("median", "ms"),
            ("p99", "ms"),
            ("longest while others joined", "ms"),
            ("one-way mean, window included", "ms"),
            ("sent", ""),
            ("came", ""),
            ("late p99", "ms"),
        ],
        steps.iter().map(row).collect(),
        &[
            "Thesis: measured inside the phone, without the window of 250 ms and without the network path. Here: measured from outside, from the scheduled time of the first message of a bundle to the arrival of the bundle, minus the window. It includes the round trip and the timer that ends the window.",
            "One message waits for the rest of a window that another one has begun, half of it on average.",
        ],
    )
}

fn demultiplex_delay(steps: &[Step]) -> Table {
    let his = his!("t3_10_demux_delay");
    let row = |step: &Step| {
        let [mean, sd, median, p99] = figures(&step.delay);
        let his = [his.at(step.peers, 1), his.at(step.peers, 2), his.at(step.peers, 3)];
        [vec![json!(step.peers)], his.to_vec(), vec![mean, sd, median, p99, longest(&step.joining)], counts(step)]
            .concat()
    };
    table(
        delay_name(Mode::Demultiplex),
        "One-way delay of the parts of bundles (table 3.10)",
        &[
            ("peers", ""),
            ("his mean", "ms"),
            ("his sd", "ms"),
            ("his median", "ms"),
            ("mean", "ms"),
            ("sd", "ms"),
            ("median", "ms"),
            ("p99", "ms"),
            ("longest while others joined", "ms"),
            ("sent", ""),
            ("came", ""),
            ("late p99", "ms"),
        ],
        steps.iter().map(row).collect(),
        &[
            "Thesis: measured inside the phone. Here: from the scheduled time of the bundle to the arrival of the part, including the round trip.",
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
        "Both ways at once: devices to one uplink, and back",
        &[
            ("peers", ""),
            ("up beside the window, mean", "ms"),
            ("up beside the window, p99", "ms"),
            ("up one-way mean, window included", "ms"),
            ("down one-way, mean", "ms"),
            ("down one-way, p99", "ms"),
            ("longest while others joined", "ms"),
            ("sent", ""),
            ("came", ""),
            ("late p99", "ms"),
        ],
        steps.iter().map(row).collect(),
        &["He names it as future work and has no figures. As many messages go down as go up, ten in a bundle at most."],
    )
}

fn cpu(mode: Mode, title: &str, his: Option<(ThesisFigures, ThesisFigures)>, steps: &[Step], series: &Series) -> Table {
    let mut columns = vec![("peers", "")];
    if his.is_some() {
        columns.extend([("his mean", "%"), ("his sd", "%"), ("his median", "%"), ("his power", "mW")]);
    }
    columns.extend([("mean", "%"), ("sd", "%"), ("median", "%"), ("each message", "us")]);
    let row = |step: &Step| {
        let mut row = vec![json!(step.peers)];
        if let Some((cpu, power)) = &his {
            row.extend([cpu.at(step.peers, 1), cpu.at(step.peers, 2), cpu.at(step.peers, 3), power.at(step.peers, 1)]);
        }
        let percent = cpu_percent(series, step);
        let [mean, sd, median] = spread(&percent);
        let per_s = step.sent as f64 / (step.to_s - step.from_s);
        let each = mean.as_f64().map(|percent| round(percent / 100.0 / per_s.max(1.0) * 1e6));
        row.extend([mean, sd, median, json!(each)]);
        row
    };
    let mut notes = vec![
        "Ours: user and system time of the gateway's process, from outside, in percent of one core; encryption and the kernel's part of sending included.",
        "each message: that CPU, by messages of devices that go through.",
    ];
    if his.is_some() {
        notes.push("The phone of the thesis had four cores of 2012 and ran a browser. Power cannot be measured here; the figures of the thesis include the idle phone (1,195 mW when bundling, 1,058 mW when splitting).");
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
    let mut rows = vec![("all that was sent came, once and in order".to_owned(), judges, all_came)];
    let mut below = |what: &str, value: Option<f64>, limit: f64| {
        let said = value.map_or("nothing".into(), |value| format!("{value:.2} ms"));
        rows.push((format!("{what}: {said}, below {limit} ms"), judges, value.is_some_and(|value| value < limit)));
    };
    match mode {
        Mode::Forward => below("mean delay of every step", delay, 500.0),
        Mode::Multiplex => below("mean of gathering at every step; his at 45 peers is the limit", beyond, 4.66),
        Mode::Demultiplex => below("mean of splitting at every step; his at 40 peers is the limit", delay, 2.98),
        Mode::Bidirectional => {
            below("mean of gathering at every step", beyond, 4.66);
            below("mean of splitting at every step", delay, 2.98);
        }
    }
    below("longest delay while others joined", spikes, 500.0);
    let said = |is_so: bool| json!(if is_so { "yes" } else { "no" });
    table(
        &format!("{}-promises", mode.name()),
        &format!("What was to be shown: {}", mode.name()),
        &[("check", ""), (PROMISED, ""), (PASSED, "")],
        rows.into_iter().map(|(what, judged, passed)| vec![json!(what), said(judged), said(passed)]).collect(),
        &["Promised where server and load have CPUs of their own, and not in the quick form, which is short."],
    )
}

/// Returns a one-line summary for the console.
pub fn say(mode: Mode, step: &Step, cpu: &[f64]) -> String {
    let of = |histogram: &Histogram| {
        let ms = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{:.2}", us / 1000.0));
        format!("{} / {} ms", ms(histogram.mean_us()), ms(histogram.quantile_us(0.99).map(|us| us as f64)))
    };
    let delays = match mode {
        Mode::Forward | Mode::Demultiplex => format!("mean / p99 {}", of(&step.delay)),
        Mode::Multiplex => format!("beside the window {}", of(&step.beyond)),
        Mode::Bidirectional => format!("up beside the window {}, down {}", of(&step.beyond), of(&step.delay)),
    };
    let cpu = spread(cpu)[0].as_f64().unwrap_or(0.0);
    format!(
        "{:<12} {:>3} peers  {delays}  {} of {} came  CPU {cpu:.1} %",
        mode.name(),
        step.peers,
        step.came,
        step.sent
    )
}

/// Returns mean, standard deviation, median and p99 in milliseconds.
fn figures(of: &Histogram) -> [Value; 4] {
    let ms = |us: Option<f64>| us.map_or(Value::Null, |us| json!(round(us / 1000.0)));
    let (mean, sd) = mean_and_sd(of);
    let at = |q| of.quantile_us(q).map(|us| us as f64);
    [ms(mean), ms(sd), ms(at(0.5)), ms(at(0.99))]
}

fn longest(of: &Histogram) -> Value {
    of.max_us().map_or(Value::Null, |us| json!(round(us as f64 / 1000.0)))
}

fn counts(step: &Step) -> Vec<Value> {
    vec![json!(step.sent), json!(step.came), figures(&step.late)[3].clone()]
}

/// Returns mean, standard deviation and median.
fn spread(of: &[f64]) -> [Value; 3] {
    if of.is_empty() {
        return [Value::Null, Value::Null, Value::Null];
    }
    let mean = of.iter().sum::<f64>() / of.len() as f64;
    let variance = of.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / of.len() as f64;
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    [mean, variance.sqrt(), sorted[sorted.len() / 2]].map(|value| json!(round(value)))
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn table(name: &str, title: &str, columns: &[(&str, &str)], rows: Vec<Vec<Value>>, notes: &[&str]) -> Table {
    Table {
        name: name.into(),
        title: title.into(),
        columns: columns.iter().map(|(name, unit)| Column { name: (*name).into(), unit: (*unit).into() }).collect(),
        rows,
        notes: notes.iter().map(|note| (*note).to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(peers: usize, us: u64) -> Step {
        let mut step = Step { peers, from_s: 1.0, to_s: 2.0, sent: 4, came: 4, ..Step::default() };
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
        assert_eq!(cell(Mode::Forward, 0, "his mean", 0), json!(431.03));
        assert_eq!(cell(Mode::Forward, 0, "his mean, by IP", 1), json!(249.35));
        assert_eq!(cell(Mode::Forward, 0, "his mean", 1), Value::Null);
        assert_eq!(cell(Mode::Forward, 0, "mean", 0), json!(1.0));
        assert_eq!(cell(Mode::Forward, 1, "his sent", 0), json!(19586.51));
        assert_eq!(cell(Mode::Multiplex, 0, "his median", 1), json!(3.39));
        assert_eq!(cell(Mode::Multiplex, 1, "his power", 1), json!(1490.85));
        assert_eq!(cell(Mode::Demultiplex, 0, "his sd", 1), json!(2.58));
        assert_eq!(cell(Mode::Demultiplex, 1, "his mean", 1), json!(34.72));
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
        assert_eq!(spread(&[1.0, 2.0, 3.0]), [json!(2.0), json!(0.82), json!(2.0)]);
        assert_eq!(spread(&[]), [Value::Null, Value::Null, Value::Null]);
    }
}
