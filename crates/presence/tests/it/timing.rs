//! When a node writes: at once, in batches, after the grace time, or never.

use std::sync::Arc;

use millrace_engine::{Config, HistoryConfig, MemoryEngine};
use millrace_presence::{Now, Request, Writer, execute};
use millrace_protocol::{ChannelName, Epoch};

use crate::world::{Nowhere, ready};

const GRACE_MS: u64 = 2000;

/// One node whose requests are executed at once.
struct Bench {
    writer: Writer,
    engine: MemoryEngine<Nowhere>,
    ms: u64,
    roster: ChannelName,
    /// Time and key of each write into the roster; a deletion has `-` before the key.
    writes: Vec<(u64, String)>,
}

impl Bench {
    fn new() -> Self {
        let history = HistoryConfig { roster: true, ..HistoryConfig::default() };
        let internal_states = Some(HistoryConfig { state: true, ..HistoryConfig::default() });
        let config = Config { namespaces: [("chat".into(), history)].into(), internal_states, ..Config::default() };
        let engine = MemoryEngine::new(config, Epoch(1), Arc::new(Nowhere), || 1_000_000);
        let roster = ChannelName::parse("chat/1/:members").expect("a name");
        let writer = Writer::new("1", false, Now { ms: 0, unix_ms: 0 });
        let mut bench = Self { writer, engine, ms: 0, roster, writes: Vec::new() };
        bench.run_until(0);
        bench
    }

    fn now(&self) -> Now {
        Now { ms: self.ms, unix_ms: self.ms }
    }

    fn change(&mut self, key: &str, change: i64) {
        let (roster, now) = (self.roster.clone(), self.now());
        self.writer.change(&roster, &key.into(), change, None, GRACE_MS, now);
        self.execute();
    }

    fn execute(&mut self) {
        while let Some((id, request)) = self.writer.poll_request() {
            if let Request::Append { channel, publication } = &request
                && *channel == self.roster
            {
                let sign = if publication.is_deletion { "-" } else { "" };
                let key = publication.key.as_deref().unwrap_or_default();
                self.writes.push((self.ms, format!("{sign}{key}")));
            }
            let response = ready(execute(&self.engine, request));
            let now = self.now();
            self.writer.handle_response(id, response, now);
        }
    }

    /// Advances the clock from one deadline of the writer to the next.
    fn run_until(&mut self, ms: u64) {
        loop {
            self.writer.tick(self.now());
            self.execute();
            let next_ms = self.writer.timeout_ms(self.now());
            assert!(next_ms > self.ms, "a deadline that never ends");
            if next_ms > ms {
                self.ms = ms;
                return;
            }
            self.ms = next_ms;
        }
    }

    fn written(&mut self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.writes)
    }
}

fn at(ms: u64, keys: &[&str]) -> Vec<(u64, String)> {
    keys.iter().map(|key| (ms, (*key).to_owned())).collect()
}

/// More members than the writes that may be in progress at a time join at once.
#[test]
fn every_member_of_a_large_batch_is_written() {
    let mut bench = Bench::new();
    bench.change("first", 1);
    let (roster, now) = (bench.roster.clone(), bench.now());
    for i in 0..5000 {
        bench.writer.change(&roster, &format!("member {i}").into(), 1, None, GRACE_MS, now);
    }
    bench.run_until(2000);
    assert_eq!((bench.writer.stats().entries, bench.writes.len()), (5001, 5001));
}

#[test]
fn joins_are_written_at_once_then_in_batches() {
    let mut bench = Bench::new();
    bench.run_until(5000);
    bench.change("a", 1);
    assert_eq!(bench.written(), at(5000, &["a"]), "the list was quiet");
    for i in 1..=5 {
        bench.run_until(5000 + 100 * i);
        bench.change(&format!("b{i}"), 1);
    }
    assert_eq!(bench.written(), []);
    bench.run_until(7500);
    assert_eq!(bench.written(), at(6000, &["b1", "b2", "b3", "b4", "b5"]), "one batch, one second later");
    bench.change("c", 1);
    assert_eq!(bench.written(), at(7500, &["c"]), "the list was quiet again");
}

#[test]
fn leave_waits_for_grace_time_and_reconnect_is_not_written() {
    let mut bench = Bench::new();
    bench.change("a", 1);
    assert_eq!(bench.written().len(), 1);
    bench.run_until(10_000);
    bench.change("a", -1);
    bench.run_until(10_000 + GRACE_MS - 1);
    bench.change("a", 1);
    bench.run_until(20_000);
    assert_eq!(bench.written(), [], "the client has reconnected in time");
    bench.change("a", -1);
    bench.run_until(20_000 + GRACE_MS - 1);
    assert_eq!(bench.written(), []);
    bench.run_until(30_000);
    assert_eq!(bench.written(), at(20_000 + GRACE_MS, &["-a"]));
    bench.change("b", 1);
    bench.change("b", 1);
    assert_eq!(bench.written().len(), 1);
    bench.change("b", -1);
    bench.run_until(40_000);
    assert_eq!(bench.written(), [], "the number has returned to the written one");
}

#[test]
fn leaving_node_waits_for_nothing() {
    let mut bench = Bench::new();
    bench.change("a", 1);
    bench.run_until(500);
    bench.change("b", 1);
    bench.written();
    bench.writer.leave(bench.now());
    bench.execute();
    assert_eq!(bench.written(), at(500, &["-a"]));
    assert!(bench.writer.has_left());
    bench.change("c", 1);
    assert_eq!(bench.written(), []);
}
