//! The threads of each node: what each shard does, and the CPU time of every thread.

use std::{collections::HashMap, fs, time::Duration};

use millrace_protocol::Error;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{
    Admin,
    nodes::{Gathered, NodeQuestion},
    recorder::{Rates, number},
    requests::no_parameters,
};

/// Minimum time between two readings of the CPU times. Requests in between see the last rates.
const READ: Duration = Duration::from_millis(500);
/// After this time without a request, rates begin again.
const STALE: Duration = Duration::from_secs(10);
/// Prefix of the names of the threads of shards.
const SHARD: &str = "shard-";

/// CPU times of all threads of this process at the last request.
#[derive(Default)]
pub struct CpuTimes {
    read_at: Option<Instant>,
    threads: Vec<Thread>,
}

#[derive(Clone)]
struct Thread {
    id: u64,
    name: String,
    cpu_ns: u64,
    /// CPU seconds per second. NaN: unknown.
    rate: f64,
}

impl CpuTimes {
    /// Replaces the CPU times, and computes the rates since the last ones.
    fn update(&mut self, at: Instant, mut threads: Vec<Thread>) {
        let before: HashMap<u64, u64> = self.threads.iter().map(|thread| (thread.id, thread.cpu_ns)).collect();
        let elapsed = self.read_at.map(|read_at| at.duration_since(read_at)).filter(|elapsed| *elapsed < STALE);
        for thread in &mut threads {
            if let (Some(elapsed), Some(before)) = (elapsed, before.get(&thread.id)) {
                thread.rate = thread.cpu_ns.saturating_sub(*before) as f64 / 1e9 / elapsed.as_secs_f64();
            }
        }
        (self.read_at, self.threads) = (Some(at), threads);
    }
}

/// Reads the CPU times of all threads. Cost: two small files per thread. Source: proc(5), `/proc/pid/task`;
/// `Documentation/scheduler/sched-stats.rst` of Linux, `/proc/pid/schedstat`.
fn read() -> Vec<Thread> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let read = |task: fs::DirEntry| {
        let id = task.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?.trim_end().to_owned();
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let cpu_ns = times.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Thread { id, name, cpu_ns, rate: f64::NAN })
    };
    let mut threads: Vec<Thread> = tasks.filter_map(read).collect();
    threads.sort_by_key(|thread| thread.id);
    threads
}

impl Admin {
    /// Returns the threads of all nodes: `{"threads": [..]}`.
    pub async fn threads(&self, query: &str) -> Result<Value, Error> {
        no_parameters(query)?;
        let Gathered { answers, missing, .. } = self.gather(&NodeQuestion::Threads {}).await?;
        let mut rows = Vec::new();
        for (node, mut answer) in answers {
            if let Value::Array(threads) = answer["threads"].take() {
                rows.extend(threads.into_iter().map(|mut row| {
                    row["node"] = node.as_str().into();
                    row
                }));
            }
        }
        Ok(Gathered::with_missing(missing, json!({ "threads": rows })))
    }

    /// Returns the threads of this node: the shards first, then the others by name.
    pub fn own_threads(&self) -> Value {
        let mut times = self.cpu_times.borrow_mut();
        let now = Instant::now();
        if times.read_at.is_none_or(|read_at| now.duration_since(read_at) >= READ) {
            times.update(now, read());
        }
        json!({ "threads": rows(&times.threads, self.recorder.borrow().newest()) })
    }
}

fn rows<'a>(threads: &'a [Thread], rates: Option<&Rates>) -> Vec<Value> {
    let shard = |thread: &Thread| thread.name.strip_prefix(SHARD)?.parse::<usize>().ok();
    let mut order: Vec<&'a Thread> = threads.iter().collect();
    order.sort_by_key(|thread| (shard(thread).unwrap_or(usize::MAX), thread.name.as_str(), thread.id));
    let mut counts: HashMap<&'a str, u32> = HashMap::new();
    let row = |thread: &'a Thread| {
        let mut row = shard(thread).and_then(|id| of_shard(id, rates?)).unwrap_or_default();
        let count = counts.entry(&thread.name).or_default();
        *count += 1;
        // Several threads may have one name, such as those that read the history of SQLite.
        let name = if *count == 1 { thread.name.clone() } else { format!("{} {count}", thread.name) };
        row.insert("thread".into(), name.into());
        row.insert("cpu".into(), number(thread.rate));
        row.insert("cpu_s_total".into(), number(thread.cpu_ns as f64 / 1e9));
        Value::Object(row)
    };
    order.into_iter().map(row).collect()
}

fn of_shard(id: usize, rates: &Rates) -> Option<Map<String, Value>> {
    let (counters, rates) = (rates.counters.shards.get(id)?, rates.shards.get(id)?);
    let Value::Object(figures) = json!({
        "connections": counters.connections,
        "messages_in_per_s": number(rates.messages_in),
        "messages_out_per_s": number(rates.messages_out),
        "messages_in_total": counters.messages_in,
        "messages_out_total": counters.messages_out,
        "pings_total": counters.pings,
        "turn_p99_ms": number(rates.turn_p99_ms),
        "loop_lag_ms": number(rates.loop_lag_ms),
    }) else {
        return None;
    };
    Some(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(id: u64, name: &str, cpu_ns: u64) -> Thread {
        Thread { id, name: name.into(), cpu_ns, rate: f64::NAN }
    }

    #[test]
    fn rates_are_those_between_two_readings() {
        let (mut times, begin) = (CpuTimes::default(), Instant::now());
        times.update(begin, vec![thread(1, "shard-0", 1_000_000_000)]);
        assert!(times.threads[0].rate.is_nan());
        times.update(begin + Duration::from_secs(2), vec![thread(1, "shard-0", 2_000_000_000), thread(2, "new", 5)]);
        assert_eq!(times.threads[0].rate, 0.5);
        assert!(times.threads[1].rate.is_nan(), "a thread that has started meanwhile");
        times.update(begin + STALE * 2, vec![thread(1, "shard-0", 9_000_000_000)]);
        assert!(times.threads[0].rate.is_nan(), "the last reading is too old");
    }

    #[test]
    fn threads_have_distinct_names_and_shards_come_first() {
        let threads = [thread(1, "admin", 0), thread(2, "shard-10", 0), thread(3, "shard-2", 0), thread(4, "admin", 0)];
        let names: Vec<Value> = rows(&threads, None).into_iter().map(|mut row| row["thread"].take()).collect();
        assert_eq!(names, ["shard-2", "shard-10", "admin", "admin 2"]);
    }

    #[test]
    fn own_thread_is_read() {
        let spun = std::thread::Builder::new().name("spinning".into()).spawn(|| {
            let begin = std::time::Instant::now();
            while begin.elapsed() < Duration::from_millis(20) {
                std::hint::spin_loop();
            }
            read().into_iter().find(|thread| thread.name == "spinning").map(|thread| thread.cpu_ns)
        });
        let cpu_ns = spun.expect("a thread").join().expect("no panic").expect("the thread is listed");
        assert!(cpu_ns > 0, "{cpu_ns}");
    }
}
