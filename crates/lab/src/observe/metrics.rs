//! Reads the metrics of a server once a second, in the text format of Prometheus.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::recording::Metrics;

const EVERY: Duration = Duration::from_secs(1);
/// Timeout of each step of a request. After a timeout, the server is asked again.
const PATIENCE: Duration = Duration::from_secs(5);
const BYTES_MAX: u64 = 1 << 20;

/// Counters since the start of the server, except `answer_us`, which is the duration of this request.
pub type Counters = Metrics;

pub struct Scraper {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Vec<(f64, Counters)>>,
}

impl Scraper {
    /// Starts to read. Times are in seconds since `origin`.
    pub fn start(address: SocketAddr, path: &'static str, origin: Instant) -> std::io::Result<Scraper> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().name("scraper".into()).spawn(move || {
            let mut all = Vec::new();
            loop {
                let asked = Instant::now();
                if let Some(text) = ask(address, path) {
                    let answer_us = asked.elapsed().as_micros() as u64;
                    all.push(((asked - origin).as_secs_f64(), Counters { answer_us, ..read(&text) }));
                }
                let rest = EVERY.saturating_sub(asked.elapsed());
                if stopped.recv_timeout(rest) != Err(mpsc::RecvTimeoutError::Timeout) {
                    return all;
                }
            }
        })?;
        Ok(Scraper { stop, thread })
    }

    pub fn finish(self) -> Vec<(f64, Counters)> {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_default()
    }
}

/// Returns the response, or `None` if the server does not respond with 200.
fn ask(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.take(BYTES_MAX).read_to_string(&mut text).ok()?;
    text.starts_with("HTTP/1.1 200").then_some(text)
}

/// Parses the metrics. Sums each family over its labels. A missing family counts as zero.
fn read(text: &str) -> Counters {
    let sum = |family: &str| {
        let values = text.lines().filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            let name = name.split('{').next()?;
            (name == family).then(|| value.parse::<f64>().ok()).flatten()
        });
        values.sum::<f64>() as u64
    };
    Counters {
        publications: sum("millrace_publications_total"),
        refused: sum("millrace_publications_refused_total"),
        turns: sum("millrace_turns_total"),
        writes: sum("millrace_writes_total"),
        sent_bytes: sum("millrace_sent_bytes_total"),
        answer_us: 0,
    }
}

/// Returns the difference between the last responses requested before each of the two moments. Returns `None` if no
/// response lies between them.
pub fn between(all: &[(f64, Counters)], from_s: f64, to_s: f64) -> Option<Metrics> {
    let before = |at_s: f64| all.partition_point(|(asked_s, _)| *asked_s <= at_s).checked_sub(1);
    let (first, last) = (before(from_s).unwrap_or(0), before(to_s)?);
    let (a, b) = (all.get(first)?.1, all.get(last)?.1);
    (first < last).then(|| Metrics {
        publications: b.publications.saturating_sub(a.publications),
        refused: b.refused.saturating_sub(a.refused),
        turns: b.turns.saturating_sub(a.turns),
        writes: b.writes.saturating_sub(a.writes),
        sent_bytes: b.sent_bytes.saturating_sub(a.sent_bytes),
        answer_us: all[first + 1..=last].iter().map(|(_, counters)| counters.answer_us).max().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_summed_and_differences_taken() {
        let text = "HTTP/1.1 200 OK\r\n\r\n# TYPE millrace_writes_total counter\nmillrace_writes_total 7\n\
            millrace_publications_total{x=\"a b\"} 3\nmillrace_publications_total{x=\"c\"} 4\nmillrace_turns 9\n";
        let read = read(text);
        assert_eq!((read.writes, read.publications, read.turns), (7, 7, 0));
        let at = |s: f64, publications, answer_us| (s, Counters { publications, answer_us, ..Counters::default() });
        let all = [at(0.0, 1, 900), at(1.0, 5, 30), at(2.0, 11, 70), at(3.0, 20, 40)];
        let found = between(&all, 0.5, 2.5).unwrap();
        assert_eq!((found.publications, found.answer_us), (10, 70));
        assert_eq!(between(&all, -5.0, 9.0).unwrap().publications, 19);
        assert_eq!(between(&all, 1.1, 1.9), None);
        assert_eq!(between(&[], 0.0, 1.0), None);
    }
}
