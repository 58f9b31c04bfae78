//! Calls with their figures, and their tables: by machine, by browser, recorder beside `getStats`, by stream.

use millrace_link::Direction;
use serde_json::{Value, json};

use super::{
    browser,
    call::{Measured, Outcome, SERVER, name_of},
    conditions::{Cell, Choice, NONE},
    figures::{Capture, Stream, streams},
};
use crate::{
    host::series::Series,
    recording::{Finding, LinkRun, Table},
    scenarios::lozano::{
        figures::{Pooled, deviation, mean},
        tables::{COLUMNS, cells as figures_of, table},
    },
};

pub const MAIN: &str = "browsers";

/// Columns that identify a condition.
pub const KEYS: [(&str, &str); 7] = [
    ("test", ""),
    ("latency", "ms"),
    ("loss", "%"),
    ("bottleneck", ""),
    ("queue", "ms"),
    ("flows per direction", ""),
    ("browsers", ""),
];

/// Columns that identify a condition in tables for readers.
pub const SHORT_KEYS: [(&str, &str); 2] = [("condition", ""), ("browsers", "")];

/// Share of idle CPU below which a call is not valid: contention looks like congestion.
const IDLE_MIN: f64 = 0.15;
/// One call, and its place in the list of conditions.
pub struct Call {
    pub cell: usize,
    pub repeat: u32,
    pub streams: Vec<Stream>,
    pub host: Vec<Second>,
    idle: Option<f64>,
    /// Direction of each TCP flow, and its rate in each of its seconds, in kbit/s.
    pub flows: Vec<(Direction, Vec<f64>)>,
    findings: Vec<Finding>,
    user_agents: Vec<String>,
    pub failure: Option<String>,
}

/// CPU and memory in one second.
pub struct Second {
    pub at_s: f64,
    /// Percent of all cores of the machine.
    pub machine_percent: f64,
    /// Percent of one core, and megabytes: each participant, then the server.
    pub trees: Vec<(f64, Option<f64>)>,
}

impl Call {
    /// `calls`: of each two participants.
    pub fn of(cell: usize, calls: usize, repeat: u32, outcome: Outcome) -> Self {
        let mut call = Self {
            cell,
            repeat,
            streams: Vec::new(),
            host: Vec::new(),
            idle: None,
            flows: Vec::new(),
            findings: Vec::new(),
            user_agents: Vec::new(),
            failure: None,
        };
        match outcome {
            Outcome::Failed(why) => call.failure = Some(why),
            Outcome::Measured(measured) => call.fill(&measured, calls),
        }
        call
    }

    fn fill(&mut self, measured: &Measured, calls: usize) {
        self.streams = streams(measured);
        let count = measured.ends.len();
        if self.streams.len() != count * (count - 1) * calls {
            self.failure = Some("a browser has reported no statistics of a stream".to_owned());
        }
        let began = self.streams.iter().map(|stream| stream.began.as_secs_f64()).fold(f64::MAX, f64::min);
        let ended = self.streams.iter().map(|stream| stream.ended.as_secs_f64()).fold(0.0, f64::max);
        let names: Vec<String> = (0..count).map(name_of).chain([SERVER.to_owned()]).collect();
        self.host = seconds(&measured.series, &names, began, ended);
        self.idle = measured.series.machine(began, ended).and_then(|machine| Some(1.0 - mean(&machine.busy)?));
        self.flows = measured.flows.iter().map(|flow| (flow.direction, flow.kbit_per_s(measured.ended))).collect();
        self.user_agents = measured.ends.iter().map(|end| end.user_agent.clone()).collect();
        for (n, end) in measured.ends.iter().enumerate() {
            let run: LinkRun = end.report.link_run(format!("link of {}", name_of(n)), String::new(), 0);
            self.findings.extend(run.findings());
        }
        if let Some(idle) = self.idle.filter(|idle| *idle < IDLE_MIN) {
            self.findings.push(Finding {
                code: "crowded".into(),
                detail: format!(
                    "{:.0} % of the CPU was idle, at least {:.0} % are needed",
                    idle * 100.0,
                    IDLE_MIN * 100.0
                ),
                invalidates: true,
            });
        }
    }
}

/// Returns CPU and memory of each second in a range.
///
/// CPU: 100 x busy time / time. The script of the thesis prints a tenth of it (E-L29).
fn seconds(series: &Series, names: &[String], from_s: f64, to_s: f64) -> Vec<Second> {
    let pair = |pair: &[crate::host::series::Sample]| -> Option<Second> {
        let (from, to) = (pair[0].at_s, pair[1].at_s);
        let busy = series.machine(from, to)?.busy;
        let tree = |name: &String| {
            let usage = series.usage_by(name, from, to)?;
            Some((usage.cores * 100.0, usage.pss_bytes.map(|bytes| bytes as f64 / 1e6)))
        };
        Some(Second {
            at_s: to - from_s,
            machine_percent: mean(&busy)? * 100.0,
            trees: names.iter().map(tree).collect::<Option<Vec<_>>>()?,
        })
    };
    let is_meant = |pair: &&[crate::host::series::Sample]| pair[0].at_s >= from_s && pair[1].at_s <= to_s;
    series.samples.windows(2).filter(is_meant).filter_map(pair).collect()
}

pub fn rounded(value: f64, digits: i32) -> Value {
    if value.is_finite() { json!((value * 10_f64.powi(digits)).round() / 10_f64.powi(digits)) } else { Value::Null }
}

pub fn or_null(value: Option<f64>, digits: i32) -> Value {
    value.map_or(Value::Null, |value| rounded(value, digits))
}

fn key(cell: &Cell) -> Vec<Value> {
    cell.key.iter().cloned().chain([json!(browser::names(&cell.browsers))]).collect()
}

pub fn short_key(cell: &Cell) -> Vec<Value> {
    vec![json!(condition(cell)), json!(browser::names(&cell.browsers))]
}

pub fn case(cell: &Cell) -> String {
    format!("{}, {}", condition(cell), browser::names(&cell.browsers))
}

/// Returns the values of a key that are known, as a text.
fn condition(cell: &Cell) -> String {
    let text = |((name, unit), value): (&(&str, &str), &Value)| match value {
        Value::Null => None,
        Value::String(text) if *name == "test" => Some(text.clone()),
        Value::String(text) if text == NONE => None,
        Value::String(text) => Some(format!("{name} {text}")),
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            (number > 0.0).then(|| format!("{name} {number} {unit}").trim().to_owned())
        }
        _ => None,
    };
    KEYS.iter().zip(&cell.key).filter_map(text).collect::<Vec<_>>().join(", ")
}

/// Returns the name of a stream: `A-B`, or `A-B 2` in the second of parallel calls.
pub fn stream_name(stream: &Stream) -> String {
    let pair = format!("{}-{}", name_of(stream.from), name_of(stream.to));
    if stream.call == 0 { pair } else { format!("{pair} {}", stream.call + 1) }
}

/// Returns what has failed, without the logs of the browsers that follow.
pub fn first_line(failure: &str) -> &str {
    failure.lines().next().unwrap_or_default()
}

pub fn describe(cell: &Cell, call: &Call) -> String {
    if let Some(why) = &call.failure {
        return format!("{}: failed: {why}", case(cell));
    }
    let of = |stream: &Stream| {
        let unexplained = [&stream.sent, &stream.received].map(|capture| capture.difference().unexplained());
        format!(
            "{} {:.0} kbit/s, {:.0} frames/s, loss {:.2} %, unexplained {:.2} %",
            stream_name(stream),
            stream.figures.rate(),
            stream.frames_per_s,
            stream.figures.lost as f64 / stream.figures.sent.max(1) as f64 * 100.0,
            unexplained[0].max(unexplained[1]) * 100.0
        )
    };
    let streams = call.streams.iter().map(of).collect::<Vec<_>>().join("; ");
    format!("{}: {streams}; idle {:.0} %", case(cell), call.idle.unwrap_or_default() * 100.0)
}

pub fn tables(choice: &Choice, cells: &[Cell], calls: &[Call]) -> Vec<Table> {
    vec![main(choice, cells, calls), summary(cells, calls), recorder(cells, calls), per_call(cells, calls)]
}

/// Returns the calls of a condition that did not fail.
pub fn of_cell(calls: &[Call], cell: usize) -> impl Iterator<Item = &Call> {
    calls.iter().filter(move |call| call.cell == cell && call.failure.is_none())
}

fn main(choice: &Choice, cells: &[Cell], calls: &[Call]) -> Table {
    // `getStats` does not say which frames were broken.
    let broken = COLUMNS.iter().position(|(name, _)| *name == "broken frames");
    let is_kept = |(at, _): &(usize, &(&str, &str))| Some(*at) != broken;
    // The key has the browsers in place of the controller.
    let own = COLUMNS.iter().enumerate().skip(1).filter(is_kept).map(|(_, column)| *column);
    let more = [("frames", "/s"), ("set-up", "ms"), ("set-up sd", "ms"), ("failed", "")];
    let columns: Vec<(&str, &str)> = KEYS.into_iter().chain(own).chain(more).collect();
    let mut rows = Vec::new();
    for (n, cell) in cells.iter().enumerate() {
        let machines = (0..cell.browsers.len()).map(|end| (name_of(end), Some(end)));
        for (machine, end) in machines.chain([("overall".to_owned(), None)]) {
            let streams: Vec<&Stream> = of_cell(calls, n)
                .flat_map(|call| &call.streams)
                .filter(|stream| end.is_none_or(|end| stream.to == end))
                .collect();
            let pooled = Pooled::of(streams.iter().map(|stream| &stream.figures));
            let thesis = cell.thesis_kbit_s.filter(|_| end.is_none());
            let count = of_cell(calls, n).count();
            let figures = figures_of(&pooled, thesis, cell.capacity_kbit_s, count);
            let place = broken.map(|at| at - 2);
            let figures = figures.into_iter().enumerate().filter(|(at, _)| Some(*at) != place).map(|(_, value)| value);
            let setups: Vec<f64> = streams.iter().map(|stream| stream.setup_ms).collect();
            let frames: Vec<f64> = streams.iter().map(|stream| stream.frames_per_s).collect();
            let failed = calls.iter().filter(|call| call.cell == n && call.failure.is_some()).count();
            let mut row = key(cell);
            row.push(json!(machine));
            row.extend(figures);
            row.extend([or_null(mean(&frames), 1), or_null(mean(&setups), 1), or_null(deviation(&setups), 1)]);
            row.push(json!(failed));
            rows.push(row);
        }
    }
    let mut agents: Vec<&String> = calls.iter().flat_map(|call| &call.user_agents).collect();
    agents.sort_unstable();
    agents.dedup();
    let mut notes = vec![
        format!(
            "Real time, calls of {} s: browsers in network namespaces, with their own congestion control, through our relay. machine: the receiver of a stream. RTT: by its own reports.",
            choice.test.as_secs()
        ),
        "latency: one way, once per direction (E-L33). loss: configured; each packet passes the lossy rule twice, into the relay and out of it (E-L3). bottleneck: up, or down/up, in Mbit/s, or the link of A.".to_owned(),
        "rate: RTP at the receiver's end of the link in bins of one second, with heads and retransmissions, from the first second with media of all participants on. goodput: payload by `getStats`.".to_owned(),
        "mean to n: one-way delay of video packets by sequence number, from one recorder to the other. packet loss: between the recorders. residual loss: lost packets less retransmitted packets that arrived, by `getStats`; retransmissions that Chromium sends as probes count as well. Firefox reports none, so its residual loss is the packet loss.".to_owned(),
        "set-up: from the creation of the connection until the first frame, without the start of the browser. thesis: mean of its machines (E-L1, E-L4, E-L10).".to_owned(),
        format!("Browsers: {}.", agents.iter().map(|agent| agent.as_str()).collect::<Vec<_>>().join("; ")),
    ];
    notes.extend(calls.iter().filter_map(|call| {
        let failure = call.failure.as_ref()?;
        Some(format!("Failed: {}: {}", case(&cells[call.cell]), first_line(failure)))
    }));
    let mut main = table(MAIN, "Calls between browsers", &columns, rows, notes);
    main.validity = findings(cells, calls);
    main
}

/// Returns one row per condition, and per browsers of sender and receiver.
fn summary(cells: &[Cell], calls: &[Call]) -> Table {
    let mut rows = Vec::new();
    for (n, cell) in cells.iter().enumerate() {
        let names = |stream: &Stream| [stream.from, stream.to].map(|end| cell.browsers[end].name());
        let mut all: Vec<&Stream> = of_cell(calls, n).flat_map(|call| &call.streams).collect();
        all.sort_by_key(|stream| names(stream));
        for streams in all.chunk_by(|a, b| names(a) == names(b)) {
            let pooled = Pooled::of(streams.iter().map(|stream| &stream.figures));
            let frames: Vec<f64> = streams.iter().map(|stream| stream.frames_per_s).collect();
            let at = |q: f64| or_null(pooled.delay.quantile_us(q).map(|us| us as f64 / 1000.0), 1);
            let [from, to] = names(streams[0]);
            rows.push(vec![
                json!(condition(cell)),
                json!(from),
                json!(to),
                or_null(cell.thesis_kbit_s, 0),
                rounded(pooled.rate, 0),
                or_null(mean(&frames), 1),
                or_null(pooled.rtt, 1),
                at(0.5),
                at(0.95),
                rounded(pooled.packet_loss * 100.0, 2),
                rounded(pooled.residual_loss * 100.0, 2),
            ]);
        }
    }
    let columns = [
        ("condition", ""),
        ("from", ""),
        ("to", ""),
        ("thesis", "kbit/s"),
        ("rate", "kbit/s"),
        ("frames", "/s"),
        ("RTT", "ms"),
        ("delay p50", "ms"),
        ("delay p95", "ms"),
        ("packet loss", "%"),
        ("residual loss", "%"),
    ];
    let notes =
        vec!["Mean of all streams from one browser to the other. RTT: by the reports of the receiver.".to_owned()];
    table("browsers-summary", "Calls by browser", &columns, rows, notes)
}

fn findings(cells: &[Cell], calls: &[Call]) -> Vec<Finding> {
    let of = |call: &Call| {
        let name = case(&cells[call.cell]);
        let named =
            move |finding: &Finding| Finding { detail: format!("{name}: {}", finding.detail), ..finding.clone() };
        call.findings.iter().map(named).collect::<Vec<_>>()
    };
    calls.iter().flat_map(of).collect()
}

fn recorder(cells: &[Cell], calls: &[Call]) -> Table {
    let own = [
        ("repeat", ""),
        ("stream", ""),
        ("end", ""),
        ("recorder", "kbit/s"),
        ("IP and UDP heads", "kbit/s"),
        ("TURN heads", "kbit/s"),
        ("RTP heads", "kbit/s"),
        ("SRTP tags", "kbit/s"),
        ("padding", "kbit/s"),
        ("retransmissions", "kbit/s"),
        ("getStats", "kbit/s"),
        ("unexplained", "%"),
        ("packets", ""),
        ("packets by getStats", ""),
        ("lost", ""),
        ("lost by getStats", ""),
    ];
    let mut rows = Vec::new();
    for call in calls {
        for stream in &call.streams {
            for (end, capture) in [("sender", &stream.sent), ("receiver", &stream.received)] {
                let mut row = short_key(&cells[call.cell]);
                row.extend([json!(call.repeat + 1), json!(stream_name(stream)), json!(end)]);
                row.extend(recorder_cells(capture));
                rows.push(row);
            }
        }
    }
    let notes = vec![
        "Both count the same time: from the first until the last reading of `getStats`. recorder: all bytes of media packets at the end of the link, with heads. getStats: payload.".to_owned(),
        "padding: heads and padding by `getStats` less the heads of the recorder, for which the length of padding is encrypted. retransmissions: their payload, if the browser does not count it (Firefox). unexplained: recorder less heads, tags, padding, retransmissions and `getStats`, as a part of the recorder.".to_owned(),
        "lost: by the sequence numbers at both ends, from the start of the call until one second before its end. lost by getStats: between the two readings.".to_owned(),
    ];
    table("browsers-recorder", "Recorder beside getStats", &[&SHORT_KEYS[..], &own].concat(), rows, notes)
}

fn recorder_cells(capture: &Capture) -> Vec<Value> {
    let kbit = |bytes: u64| rounded(bytes as f64 * 8.0 / 1000.0 / capture.seconds, 2);
    let parts = [
        capture.ip_bytes,
        capture.ip_udp_bytes,
        capture.turn_bytes,
        capture.rtp_head_bytes,
        capture.tag_bytes,
        capture.padding_bytes,
        capture.retransmitted_bytes,
        capture.statistics_bytes,
    ];
    let counts = [json!(capture.packets), json!(capture.statistics_packets)];
    let lost = [json!(capture.lost), json!(capture.statistics_lost)];
    let unexplained = rounded(capture.difference().unexplained() * 100.0, 3);
    parts.map(kbit).into_iter().chain([unexplained]).chain(counts).chain(lost).collect()
}

fn per_call(cells: &[Cell], calls: &[Call]) -> Table {
    let own = [
        ("repeat", ""),
        ("stream", ""),
        ("rate", "kbit/s"),
        ("frames", "/s"),
        ("size", ""),
        ("freezes", ""),
        ("codec", ""),
        ("candidates", ""),
        ("set-up", "ms"),
        ("CPU of sender", "%"),
        ("CPU of server", "%"),
        ("CPU of machine", "%"),
        ("memory of sender", "MB"),
    ];
    let mut rows = Vec::new();
    for call in calls {
        let server = cells[call.cell].browsers.len();
        let of = |of: &dyn Fn(&Second) -> Option<f64>| mean(&call.host.iter().filter_map(of).collect::<Vec<f64>>());
        for stream in &call.streams {
            let mut row = short_key(&cells[call.cell]);
            row.extend([json!(call.repeat + 1), json!(stream_name(stream))]);
            row.extend([rounded(stream.figures.rate(), 1), rounded(stream.frames_per_s, 1)]);
            row.push(json!(format!("{}x{}", stream.size.0, stream.size.1)));
            row.extend([json!(stream.freezes), json!(stream.codec), json!(stream.route), rounded(stream.setup_ms, 1)]);
            row.push(or_null(of(&|second| Some(second.trees[stream.from].0)), 1));
            row.push(or_null(of(&|second| Some(second.trees[server].0)), 2));
            row.push(or_null(of(&|second| Some(second.machine_percent)), 1));
            row.push(or_null(of(&|second| second.trees[stream.from].1), 0));
            rows.push(row);
        }
    }
    let notes = vec![
        "size: the last one that the sender encoded. CPU of sender and server: percent of one core; of machine: percent of all cores. memory: proportional set size of all processes of the browser.".to_owned(),
    ];
    table("browsers-calls", "Streams of each call", &[&SHORT_KEYS[..], &own].concat(), rows, notes)
}
