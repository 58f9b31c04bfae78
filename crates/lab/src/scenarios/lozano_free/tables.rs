use std::time::Duration;

use serde_json::{Value, json};

use super::pair::{Stream, Streams};
use crate::{
    histogram::Histogram,
    recording::{Form, Table},
    scenarios::lozano::{
        figures::{deviation, mean},
        tables::{Check, checks, table},
    },
};

pub const FREE: &str = "free";
/// Figures of the thesis's table 8.
const THESIS_RATE: f64 = 1949.7;
const THESIS_DELAY_MS: f64 = 5.12;
const THESIS_SETUP_MS: f64 = 1441.88;

pub fn describe_setups(setups: &[Option<Duration>]) -> String {
    let done = setup_times(setups);
    let failed = setups.len() - done.len();
    format!("{} calls, {failed} failed, set-up {:.0} ms on average", setups.len(), mean(&done).unwrap_or(f64::NAN))
}

pub fn describe(streams: &Streams) -> String {
    let rates: Vec<f64> = streams.iter().filter_map(|stream| mean(&stream.rates)).collect();
    let delays: Vec<f64> = streams.iter().filter_map(|stream| stream.delay.mean_us()).collect();
    let (rate, delay) = (mean(&rates).unwrap_or(f64::NAN), mean(&delays).unwrap_or(f64::NAN) / 1000.0);
    format!("{rate:.0} kbit/s per direction, one-way delay {delay:.2} ms on average")
}

/// Returns the set-up times of the calls that did not fail, in milliseconds.
fn setup_times(setups: &[Option<Duration>]) -> Vec<f64> {
    setups.iter().flatten().map(|setup| setup.as_secs_f64() * 1000.0).collect()
}

pub fn tables(patience: &Duration, setups: &[Option<Duration>], calls: &[Streams], form: Form) -> Vec<Table> {
    vec![
        figures(setups, calls),
        setup(patience, setups),
        distribution(calls),
        checks(FREE, promises(setups, calls, form)),
    ]
}

fn number(value: Option<f64>) -> Value {
    value.map_or(Value::Null, |value| json!((value * 1000.0).round() / 1000.0))
}

fn figures(setups: &[Option<Duration>], calls: &[Streams]) -> Table {
    let times = setup_times(setups);
    let row = |(machine, ends): (&str, &[usize])| {
        let streams: Vec<&Stream> = calls.iter().flat_map(|call| ends.iter().map(move |end| &call[*end])).collect();
        let of = |of: &dyn Fn(&Stream) -> Option<f64>| {
            mean(&streams.iter().filter_map(|stream| of(stream)).collect::<Vec<f64>>())
        };
        let mut delay = Histogram::default();
        streams.iter().for_each(|stream| delay.add(&stream.delay));
        let (sent, lost) = streams.iter().fold((0, 0), |(sent, lost), stream| (sent + stream.sent, lost + stream.lost));
        let ms = |us: Option<f64>| number(us.map(|us| us / 1000.0));
        let at = |q: f64| ms(delay.quantile_us(q).map(|us| us as f64));
        let loss = number((sent > 0).then(|| lost as f64 / sent as f64 * 100.0));
        vec![
            json!("none"),
            json!(machine),
            number(of(&|stream| mean(&stream.rates))),
            number(of(&|stream| deviation(&stream.rates))),
            ms(delay.mean_us()),
            ms(delay.sd_us()),
            at(0.5),
            at(0.95),
            at(0.99),
            ms(delay.max_us().map(|us| us as f64)),
            json!(delay.count()),
            loss.clone(),
            loss,
            number(mean(&times)),
            number(deviation(&times)),
            json!(calls.len()),
        ]
    };
    let columns = [
        ("constraint", ""),
        ("machine", ""),
        ("rate", "kbit/s"),
        ("rate sd", "kbit/s"),
        ("mean", "ms"),
        ("sd", "ms"),
        ("median", "ms"),
        ("p95", "ms"),
        ("p99", "ms"),
        ("max", "ms"),
        ("n", ""),
        ("residual loss", "%"),
        ("packet loss", "%"),
        ("set-up", "ms"),
        ("set-up sd", "ms"),
        ("calls", ""),
    ];
    let notes = vec![
        "Real time, over UDP sockets on loopback, with ICE, DTLS and SRTP; both ends are in one thread. The thesis has two virtual machines and a relay between them.".to_owned(),
        "rate: received RTP in bins of one second, with heads. mean to n: one-way delay, from the call of `send` until the packet is decrypted. The video has a fixed rate: nothing limits it.".to_owned(),
        "Set-up times are those of the table below. The thesis names one failed call, two failed calls, and no loss for the same test (E-L25).".to_owned(),
    ];
    let rows = [("A", &[0][..]), ("B", &[1][..]), ("overall", &[0, 1][..])].map(row).to_vec();
    table(FREE, "Free calls", &columns, rows, notes)
}

fn setup(patience: &Duration, setups: &[Option<Duration>]) -> Table {
    let times = setup_times(setups);
    let mut histogram = Histogram::default();
    setups.iter().flatten().for_each(|setup| histogram.record_us(setup.as_micros() as u64));
    let at = |q: f64| number(histogram.quantile_us(q).map(|us| us as f64 / 1000.0));
    let failed = setups.len() - times.len();
    let row = vec![
        json!(setups.len()),
        json!(failed),
        number(Some(failed as f64 / setups.len().max(1) as f64 * 100.0)),
        number(mean(&times)),
        number(deviation(&times)),
        at(0.5),
        at(0.95),
        at(0.99),
        number(times.iter().copied().reduce(f64::max)),
        json!(times.len()),
    ];
    let columns = [
        ("calls", ""),
        ("failed", ""),
        ("failed share", "%"),
        ("mean", "ms"),
        ("sd", "ms"),
        ("median", "ms"),
        ("p95", "ms"),
        ("p99", "ms"),
        ("max", "ms"),
        ("n", ""),
    ];
    let notes = vec![format!(
        "Set-up: from the creation of the connection objects until both ends have media. Failed: not within {} s. Signaling takes no time.",
        patience.as_secs()
    )];
    table("free-setup", "Set-up time", &columns, vec![row], notes)
}

fn distribution(calls: &[Streams]) -> Table {
    let mut delay = Histogram::default();
    calls.iter().flatten().for_each(|stream| delay.add(&stream.delay));
    let rows = crate::scenarios::lozano::tables::shares(&delay)
        .into_iter()
        .map(|(upper, share)| vec![json!(upper), json!((share * 1e6).round() / 1e6)])
        .collect();
    let columns = [("delay up to", "ms"), ("share", "")];
    table("free-delay", "Distribution of the one-way delay", &columns, rows, vec!["Bins of 10 ms.".to_owned()])
}

fn promises(setups: &[Option<Duration>], calls: &[Streams], form: Form) -> Vec<Check> {
    let times = setup_times(setups);
    let mean_ms = mean(&times).unwrap_or(f64::NAN);
    let streams = || calls.iter().flatten();
    let rate = mean(&streams().filter_map(|stream| mean(&stream.rates)).collect::<Vec<f64>>()).unwrap_or(f64::NAN);
    let mut delay = Histogram::default();
    streams().for_each(|stream| delay.add(&stream.delay));
    let delay_ms = delay.mean_us().unwrap_or(f64::NAN) / 1000.0;
    // In the quick form, other programs may use the machine.
    let is_full = form != Form::Quick;
    let check = |check: String, is_promised, passed, found: String| Check {
        of: "free call".into(),
        check,
        is_promised,
        passed,
        found,
    };
    vec![
        check(
            "no call fails".into(),
            true,
            times.len() == setups.len(),
            format!("{} of {}", setups.len() - times.len(), setups.len()),
        ),
        check(
            format!("set-up takes at most the thesis's {THESIS_SETUP_MS} ms on average"),
            true,
            mean_ms <= THESIS_SETUP_MS,
            format!("{mean_ms:.0} ms"),
        ),
        check(
            format!("rate at least the thesis's {THESIS_RATE} kbit/s"),
            is_full,
            rate >= THESIS_RATE,
            format!("{rate:.0} kbit/s"),
        ),
        check(
            format!("one-way delay at most the thesis's {THESIS_DELAY_MS} ms on average"),
            is_full,
            delay_ms <= THESIS_DELAY_MS,
            format!("{delay_ms:.2} ms"),
        ),
    ]
}
