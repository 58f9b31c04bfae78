//! Records the counters of this node once per second: rates for the overview, and the last minutes for charts.

use std::{collections::VecDeque, rc::Rc, time::Duration};

use millrace_node::histogram::Samples;
use millrace_protocol::Error;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{Admin, counters::Counters, requests::no_parameters};

/// Interval between two samples.
pub const EVERY: Duration = Duration::from_secs(1);
/// Number of samples that are kept: 15 minutes.
const SAMPLES: usize = 900;
/// Interval between two measurements of the history, as a multiple of the time that one takes: O(channels).
const SIZE_SHARE: u32 = 1000;
/// A shard reports its CPU time once per second. After this time without a report it is unknown.
const CPU_UNKNOWN: Duration = Duration::from_secs(3);

/// Samples of the last minutes, and the counters from which the newest was made.
#[derive(Default)]
pub struct Recorder {
    last: Option<Counters>,
    newest: Option<Rates>,
    cpu: Vec<CpuTime>,
    times_ms: VecDeque<u64>,
    /// Values by name, each as many as there are times. NaN: unknown.
    columns: Vec<(String, VecDeque<f32>)>,
}

/// CPU time of a shard's thread as last reported.
struct CpuTime {
    ns: u64,
    at: Instant,
    /// CPU seconds per second.
    rate: f64,
}

/// The last second of this node. NaN: unknown.
pub struct Rates {
    pub counters: Counters,
    pub messages_in: f64,
    pub messages_out: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
    pub gaps: f64,
    pub refused: f64,
    /// CPU seconds of the process per second.
    pub cpu: f64,
    pub delivery: Delivery,
    /// By the index of the transport in the counters.
    pub transports: Vec<Delivery>,
    pub shards: Vec<ShardRates>,
}

/// Writes of publications in the last second.
#[derive(Clone, Copy)]
pub struct Delivery {
    pub per_s: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

pub struct ShardRates {
    pub cpu: f64,
    pub loop_lag_ms: f64,
    pub turn_p99_ms: f64,
    pub messages_in: f64,
    pub messages_out: f64,
}

impl Admin {
    /// Samples the counters once per second. Never returns.
    pub async fn record(self: Rc<Self>) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut history_bytes, mut measure_at) = (0, Instant::now());
        loop {
            ticks.tick().await;
            let began = Instant::now();
            if began >= measure_at {
                history_bytes = self.engine.size().1 as u64;
                measure_at = began + began.elapsed() * SIZE_SHARE;
            }
            let counters = Counters::read(&self.site, history_bytes);
            self.recorder.borrow_mut().record(counters, millrace_engine::unix_ms());
        }
    }

    /// Returns the samples of this node: `{"every_ms", "times_ms", "columns"}`.
    pub async fn samples(&self, query: &str) -> Result<Value, Error> {
        no_parameters(query)?;
        Ok(self.recorder.borrow().to_json())
    }
}

impl Recorder {
    pub fn newest(&self) -> Option<&Rates> {
        self.newest.as_ref()
    }

    fn record(&mut self, counters: Counters, time_ms: u64) {
        let cpu = self.cpu_rates(&counters);
        let rates = Rates::between(self.last.as_ref(), counters, &cpu);
        self.times_ms.push_back(time_ms);
        if self.times_ms.len() > SAMPLES {
            self.times_ms.pop_front();
        }
        for (name, value) in rates.columns() {
            self.push(name, value);
        }
        self.last = Some(rates.counters.clone());
        self.newest = Some(rates);
    }

    /// Returns the CPU seconds per second of each shard. A shard reports about once per second, not in step with the
    /// samples, so the rate is that of the time since the previous report.
    fn cpu_rates(&mut self, counters: &Counters) -> Vec<f64> {
        let at = counters.at;
        for (shard, now) in counters.shards.iter().enumerate() {
            match self.cpu.get_mut(shard) {
                None => self.cpu.push(CpuTime { ns: now.cpu_ns, at, rate: f64::NAN }),
                Some(known) if known.ns != now.cpu_ns => {
                    let rate = (now.cpu_ns - known.ns) as f64 / 1e9 / at.duration_since(known.at).as_secs_f64();
                    *known = CpuTime { ns: now.cpu_ns, at, rate };
                }
                Some(known) if at.duration_since(known.at) > CPU_UNKNOWN => known.rate = f64::NAN,
                Some(_) => {}
            }
        }
        self.cpu.iter().map(|known| known.rate).collect()
    }

    fn push(&mut self, name: String, value: f64) {
        let times = self.times_ms.len();
        let column = match self.columns.iter().position(|(known, _)| *known == name) {
            Some(column) => &mut self.columns[column].1,
            None => {
                let unknown = std::iter::repeat_n(f32::NAN, times - 1).collect();
                self.columns.push((name, unknown));
                &mut self.columns.last_mut().expect("just added").1
            }
        };
        column.push_back(value as f32);
        if column.len() > times {
            column.pop_front();
        }
    }

    fn to_json(&self) -> Value {
        let column = |(name, values): &(String, VecDeque<f32>)| {
            let values: Vec<Value> = values.iter().map(|value| number(f64::from(*value))).collect();
            (name.clone(), Value::from(values))
        };
        let columns: Map<String, Value> = self.columns.iter().map(column).collect();
        json!({ "every_ms": EVERY.as_millis() as u64, "times_ms": self.times_ms, "columns": columns })
    }
}

impl Rates {
    /// Returns the rates between two samples. Without an earlier sample they are unknown.
    fn between(last: Option<&Counters>, now: Counters, cpu: &[f64]) -> Self {
        let seconds = last.map_or(f64::NAN, |last| now.at.duration_since(last.at).as_secs_f64());
        let rate = |of: &dyn Fn(&Counters) -> u64| {
            last.map_or(f64::NAN, |last| of(&now).wrapping_sub(of(last)) as f64 / seconds)
        };
        let since = |of: &dyn Fn(&Counters) -> &Samples| last.map(|last| of(&now).since(of(last))).unwrap_or_default();
        let written: Vec<Samples> =
            (0..now.transports.len()).map(|at| since(&|counters| &counters.transports[at].written)).collect();
        let shard = |at: usize| ShardRates {
            cpu: cpu[at],
            loop_lag_ms: ms(since(&|counters| &counters.shards[at].loop_lag).mean_s()),
            turn_p99_ms: ms(since(&|counters| &counters.shards[at].turn_time).quantile_s(0.99)),
            messages_in: rate(&|counters| counters.shards[at].messages_in),
            messages_out: rate(&|counters| counters.shards[at].messages_out),
        };
        Self {
            messages_in: rate(&|counters| counters.messages_in),
            messages_out: rate(&|counters| counters.messages_out),
            bytes_in: rate(&|counters| counters.bytes_in),
            bytes_out: rate(&|counters| counters.bytes_out),
            gaps: rate(&|counters| counters.gaps),
            refused: rate(&|counters| counters.refused),
            cpu: rate(&|counters| counters.cpu_ns) / 1e9,
            delivery: Delivery::of(&Samples::sum(written.clone()), seconds),
            transports: written.iter().map(|written| Delivery::of(written, seconds)).collect(),
            shards: (0..now.shards.len()).map(shard).collect(),
            counters: now,
        }
    }

    /// Returns the values of a sample with the names of their columns.
    fn columns(&self) -> Vec<(String, f64)> {
        let single = [
            ("messages_in", self.messages_in),
            ("messages_out", self.messages_out),
            ("bytes_in", self.bytes_in),
            ("bytes_out", self.bytes_out),
            ("delivery_p50_ms", self.delivery.p50_ms),
            ("delivery_p99_ms", self.delivery.p99_ms),
            ("gaps", self.gaps),
            ("refused", self.refused),
            ("cpu", self.cpu),
        ];
        let single = single.into_iter().map(|(name, value)| (name.to_owned(), value));
        let transports = self.counters.transports.iter();
        let connections = transports.map(|one| (format!("connections.{}", one.name), one.open as f64));
        let memory = self.counters.memory.iter().map(|(kind, bytes)| (format!("memory.{kind}"), *bytes as f64));
        let of_shard = |(id, shard): (usize, &ShardRates)| {
            [(format!("cpu.{id}"), shard.cpu), (format!("loop_lag_ms.{id}"), shard.loop_lag_ms)]
        };
        let shards = self.shards.iter().enumerate().flat_map(of_shard);
        single.chain(connections).chain(memory).chain(shards).collect()
    }
}

impl Delivery {
    fn of(written: &Samples, seconds: f64) -> Self {
        let [p50_ms, p99_ms] = [0.5, 0.99].map(|fraction| ms(written.quantile_s(fraction)));
        Self { per_s: written.count() as f64 / seconds, p50_ms, p99_ms }
    }
}

fn ms(seconds: Option<f64>) -> f64 {
    seconds.map_or(f64::NAN, |seconds| seconds * 1000.0)
}

/// Returns a number rounded to three decimals; null if it is unknown.
pub fn number(value: f64) -> Value {
    let rounded = (value * 1000.0).round() / 1000.0;
    match rounded.fract() == 0.0 && rounded.abs() < 1e15 {
        true => (rounded as i64).into(),
        false => rounded.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::counters::{ShardCounters, TransportCounters};
    use millrace_node::Histogram;

    fn counters(at: Instant, messages: u64, cpu_ns: u64, written: &Histogram) -> Counters {
        let shard = ShardCounters {
            cpu_ns,
            connections: 1,
            messages_in: messages,
            messages_out: 2 * messages,
            pings: 0,
            loop_lag: written.samples(),
            turn_time: written.samples(),
        };
        Counters {
            at,
            messages_in: messages,
            messages_out: 2 * messages,
            bytes_in: 0,
            bytes_out: 0,
            gaps: 0,
            refused: 0,
            cpu_ns,
            channels_open: 0,
            memory: vec![("rss", 1 << 20)],
            transports: vec![TransportCounters { name: "sse", open: 3, written: written.samples() }],
            shards: vec![shard],
        }
    }

    #[test]
    fn rates_are_of_the_last_interval() {
        let (mut recorder, begin, written) = (Recorder::default(), Instant::now(), Histogram::default());
        recorder.record(counters(begin, 100, 0, &written), 1000);
        let column = |json: &Value, name: &str| json["columns"][name].clone();
        assert_eq!(column(&recorder.to_json(), "messages_in"), json!([null]), "unknown after one sample");
        written.add(Duration::from_micros(1500), 10);
        recorder.record(counters(begin + 2 * EVERY, 300, 500_000_000, &written), 3000);
        let json = recorder.to_json();
        assert_eq!((&json["times_ms"], &json["every_ms"]), (&json!([1000, 3000]), &json!(1000)));
        assert_eq!(column(&json, "messages_in"), json!([null, 100]));
        assert_eq!(column(&json, "messages_out"), json!([null, 200]));
        assert_eq!(column(&json, "connections.sse"), json!([3, 3]));
        assert_eq!((column(&json, "cpu.0"), column(&json, "cpu")), (json!([null, 0.25]), json!([null, 0.25])));
        assert_eq!(
            (column(&json, "delivery_p50_ms"), column(&json, "loop_lag_ms.0")),
            (json!([null, 1.5]), json!([null, 1.5]))
        );
        assert_eq!(recorder.newest().unwrap().transports[0].per_s, 5.0);
    }

    #[test]
    fn cpu_rate_holds_between_reports_and_then_is_unknown() {
        let (mut recorder, begin, written) = (Recorder::default(), Instant::now(), Histogram::default());
        for (second, cpu_s) in [(0, 0), (1, 1), (2, 1), (3, 3), (4, 3), (7, 3)] {
            let at = begin + second * EVERY;
            recorder.record(counters(at, 0, cpu_s * 1_000_000_000, &written), 0);
        }
        assert_eq!(recorder.to_json()["columns"]["cpu.0"], json!([null, 1, 1, 1, 1, null]));
    }

    #[test]
    fn samples_are_bounded() {
        let (mut recorder, begin, written) = (Recorder::default(), Instant::now(), Histogram::default());
        for second in 0..SAMPLES as u32 + 5 {
            recorder.record(counters(begin + second * EVERY, u64::from(second), 0, &written), u64::from(second));
        }
        assert_eq!((recorder.times_ms.len(), recorder.times_ms[0]), (SAMPLES, 5));
        assert!(recorder.columns.iter().all(|(_, values)| values.len() == SAMPLES));
    }
}
