use millrace_sfu::congestion::Algorithm;
use serde_json::{Value, json};

use super::topology::{Access, Case, Control, Policy, ReceivedStream};
use crate::{
    histogram::Histogram,
    recording::Table,
    scenarios::lozano::{
        choice::Common,
        figures::{deviation, mean},
        published,
        tables::{Check, table},
    },
    stats::fairness::jain,
};

pub const STREAMS: &str = "multiparty";
/// Seconds at the start that do not count in checks.
const RAMP_S: usize = 5;
/// Rate of the thesis's mesh of three, in kbit/s (table 13).
const THESIS_MESH: f64 = 362.88;
/// With pass-through and RRTCC, a receiver with a wide downlink has less than this share of its rate with layers.
const STARVED_SHARE: f64 = 0.6;
/// Maximum number of participants for which this is promised: in a larger unit, the reports of the narrow receiver are
/// few among those of the others.
const STARVED_PEERS_MAX: usize = 10;

/// All streams of one call.
pub struct Measured {
    pub case: Case,
    pub algorithm: Algorithm,
    pub streams: Vec<ReceivedStream>,
}

/// Streams of one case and one controller over all repeats.
struct Point<'a> {
    case: Case,
    algorithm: Algorithm,
    calls: Vec<&'a [ReceivedStream]>,
}

impl Point<'_> {
    /// Returns the mean rates of the streams behind the ramp, in kbit/s.
    fn rates(&self, is_wanted: impl Fn(&ReceivedStream) -> bool) -> Vec<f64> {
        let streams = self.calls.iter().flat_map(|streams| streams.iter());
        streams.filter(|stream| is_wanted(stream)).map(rate).collect()
    }

    /// Returns the share of broken frames of receivers with a narrow downlink, from 0 to 1.
    fn broken_when_narrow(&self) -> f64 {
        let streams = self.calls.iter().flat_map(|streams| streams.iter()).filter(|stream| stream.is_narrow);
        let (broken, all) = streams.fold((0, 0), |(broken, all), stream| {
            let of = &stream.statistics;
            (broken + of.broken_frames, all + of.broken_frames + of.frames)
        });
        broken as f64 / all.max(1) as f64
    }
}

fn rate(stream: &ReceivedStream) -> f64 {
    let rates = &stream.watch.rates;
    mean(&rates[RAMP_S.min(rates.len())..]).unwrap_or_default()
}

pub fn describe(measured: &Measured) -> String {
    let rates: Vec<f64> = measured.streams.iter().map(rate).collect();
    format!(
        "{:<34} {:<13} {:>6.0} kbit/s per stream, lowest {:.0}",
        measured.case.to_string(),
        measured.algorithm.name(),
        mean(&rates).unwrap_or_default(),
        rates.iter().copied().fold(f64::INFINITY, f64::min)
    )
}

/// Returns the table of the streams, and the checks.
pub fn tables(common: &Common, access: &Access, measured: &[Measured]) -> (Vec<Table>, Vec<Check>) {
    let mut points: Vec<Point<'_>> = Vec::new();
    for one in measured {
        let known = points.iter_mut().find(|point| (point.case, point.algorithm) == (one.case, one.algorithm));
        match known {
            Some(point) => point.calls.push(&one.streams),
            None => points.push(Point { case: one.case, algorithm: one.algorithm, calls: vec![&one.streams[..]] }),
        }
    }
    (vec![streams(common, access, &points)], promises(&points))
}

fn streams(common: &Common, access: &Access, points: &[Point<'_>]) -> Table {
    let mut rows = Vec::new();
    for point in points {
        let is_unit = matches!(point.case, Case::Unit(..));
        let kinds: &[(&str, Option<bool>)] = match is_unit {
            true => &[("wide", Some(false)), ("narrow", Some(true)), ("overall", None)],
            false => &[("overall", None)],
        };
        for (receivers, narrow) in kinds {
            let wanted = |stream: &ReceivedStream| narrow.is_none_or(|narrow| stream.is_narrow == narrow);
            rows.push(row(point, receivers, wanted));
        }
    }
    let columns = [
        ("topology", ""),
        ("variant", ""),
        ("participants", ""),
        ("controller", ""),
        ("receivers", ""),
        ("rate", "kbit/s"),
        ("rate sd", "kbit/s"),
        ("lowest stream", "kbit/s"),
        ("Jain's index", ""),
        ("thesis", "kbit/s"),
        ("mean", "ms"),
        ("sd", "ms"),
        ("median", "ms"),
        ("p95", "ms"),
        ("p99", "ms"),
        ("max", "ms"),
        ("n", ""),
        ("residual loss", "%"),
        ("packet loss", "%"),
        ("broken frames", "%"),
    ];
    let notes = vec![
        format!("Virtual time: calls of {} s, {} per row and controller.", common.test.as_secs(), common.repeats),
        format!(
            "mesh: each participant has {} in both directions. unit: {} up, and {} down per stream; the last participant has {} down per stream (narrow). Queues of {} ms.",
            access.mesh,
            access.up,
            access.down,
            access.narrow,
            access.queue.as_millis()
        ),
        format!("rate: received RTP of one stream, from second {RAMP_S} on. rate sd: mean of the deviations within each stream. mean to n: from the camera of the sender until a video packet has arrived."),
        "pass-through: the sender gets the feedback of all receivers, as in the thesis. lowest: the rate of the slowest receiver. per receiver: three layers, and one controller per receiver.".to_owned(),
        "thesis: three participants without a bottleneck, limited by the CPU of its machines: 363 kbit/s in a mesh, 630 in the unit, which is 1.74 times as much, not twice (E-L23). Both tables have the same caption (E-L22), and the residual loss of table 14 is a slip (E-L24).".to_owned(),
    ];
    table(STREAMS, "Streams of several participants", &columns, rows, notes)
}

fn row(point: &Point<'_>, receivers: &str, is_wanted: impl Fn(&ReceivedStream) -> bool) -> Vec<Value> {
    let streams: Vec<&ReceivedStream> =
        point.calls.iter().flat_map(|streams| streams.iter()).filter(|stream| is_wanted(stream)).collect();
    let rates: Vec<f64> = streams.iter().map(|stream| rate(stream)).collect();
    let sds: Vec<f64> = streams
        .iter()
        .filter_map(|stream| deviation(&stream.watch.rates[RAMP_S.min(stream.watch.rates.len())..]))
        .collect();
    let mut delay = Histogram::default();
    let delays = streams.iter().flat_map(|stream| &stream.watch.delays_us);
    delays.for_each(|us| delay.record_us(u64::from(*us)));
    let sum = |of: &dyn Fn(&ReceivedStream) -> u64| streams.iter().map(|stream| of(stream)).sum::<u64>() as f64;
    let expected = sum(&|stream| stream.statistics.packets + stream.statistics.lost).max(1.0);
    let frames = sum(&|stream| stream.statistics.frames + stream.statistics.broken_frames).max(1.0);
    let number = |value: Option<f64>, digits: i32| {
        value.map_or(Value::Null, |value| json!((value * 10_f64.powi(digits)).round() / 10_f64.powi(digits)))
    };
    let ms = |us: Option<f64>| number(us.map(|us| us / 1000.0), 2);
    let at = |q: f64| ms(delay.quantile_us(q).map(|us| us as f64));
    let thesis = match point.case {
        Case::Mesh(Control::Independent, 3) => published::rate_kbit_s(published::MESH, &[]),
        Case::Unit(Policy::PassThrough, 3) => published::rate_kbit_s(published::UNIT, &[]),
        _ => None,
    };
    let lowest = rates.iter().copied().reduce(f64::min);
    let lost = sum(&|stream| stream.statistics.lost) / expected * 100.0;
    let residual = sum(&|stream| stream.statistics.residual) / expected * 100.0;
    let broken = sum(&|stream| stream.statistics.broken_frames) / frames * 100.0;
    let mut row = vec![
        json!(point.case.topology()),
        json!(point.case.variant()),
        json!(point.case.peers()),
        json!(point.algorithm.name()),
        json!(receivers),
    ];
    row.extend([number(mean(&rates), 1), number(mean(&sds), 1), number(lowest, 1), number(jain(&rates), 3)]);
    row.push(number(thesis.filter(|_| receivers == "overall"), 2));
    row.extend([ms(delay.mean_us()), ms(delay.sd_us()), at(0.5), at(0.95), at(0.99)]);
    row.extend([ms(delay.max_us().map(|us| us as f64)), json!(delay.count())]);
    row.extend([number(Some(residual), 3), number(Some(lost), 3), number(Some(broken), 2)]);
    row
}

fn promises(points: &[Point<'_>]) -> Vec<Check> {
    let find = |case: Case, algorithm: Algorithm| {
        points.iter().find(move |point| point.case == case && point.algorithm == algorithm)
    };
    let mut checks = Vec::new();
    for point in points {
        let algorithm = point.algorithm;
        if point.case == Case::Mesh(Control::Coupled, 3) {
            let rate = mean(&point.rates(|_| true)).unwrap_or_default();
            checks.push(Check {
                of: format!("{}, {algorithm}", point.case),
                check: format!("rate per stream above the thesis's {THESIS_MESH} kbit/s"),
                is_promised: algorithm == Algorithm::Gcc,
                passed: rate > THESIS_MESH,
                found: format!("{rate:.0} kbit/s"),
            });
        }
        let Case::Unit(Policy::PassThrough, peers) = point.case else { continue };
        // The cure is ours: layers and a controller per receiver, with the controller of browsers today.
        let Some(layers) = find(Case::Unit(Policy::PerReceiver, peers), Algorithm::Gcc) else { continue };
        let wide = |point: &Point<'_>| mean(&point.rates(|stream| !stream.is_narrow)).unwrap_or_default();
        let (passed, with_layers) = (wide(point), wide(layers));
        checks.push(Check {
            of: format!("unit of {peers}, {algorithm}"),
            check: format!("pass-through starves wide receivers: below {STARVED_SHARE} of gcc per receiver"),
            is_promised: matches!(algorithm, Algorithm::Rrtcc(_)) && peers <= STARVED_PEERS_MAX,
            passed: passed < STARVED_SHARE * with_layers,
            found: format!("{passed:.0} kbit/s instead of {with_layers:.0}"),
        });
        let (broken, with_layers) = (point.broken_when_narrow(), layers.broken_when_narrow());
        checks.push(Check {
            of: format!("unit of {peers}, {algorithm}"),
            check: "a narrow receiver has fewer broken frames with gcc per receiver than with pass-through".into(),
            is_promised: algorithm == Algorithm::Gcc,
            passed: with_layers < broken,
            found: format!("{:.1} % instead of {:.1} %", with_layers * 100.0, broken * 100.0),
        });
    }
    checks
}
