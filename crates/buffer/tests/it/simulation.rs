//! One seed is one history: publications, lost requests and answers, refusals, kills and power failures.
//!
//! `MILLRACE_SIM_SEEDS=100000` runs more seeds, `MILLRACE_SIM_SEED=N` replays one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use millrace_buffer::{Batch, Buffer, Config, HistoryMessage, LineResult, Message, Outcome, PutError, Step, Urgent};
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};
use serde_json::Value;

use crate::disk::MemoryDisk;

const SEEDS: u64 = 1000;
const STEPS: u32 = 300;
const CHANNELS: u64 = 4;
/// Longest time of a request.
const ANSWER_MS: u64 = 30_000;
const KEYS_MS: u64 = 5 * 60_000;
const START_MS: u64 = 1_800_000_000_000;

/// A server: one log per channel. It remembers idempotency keys.
#[derive(Default)]
struct Server {
    logs: BTreeMap<String, Vec<u64>>,
    /// Time of each key; the server forgets keys after [`KEYS_MS`].
    keys: BTreeMap<(String, String), u64>,
    lines: u64,
}

/// Knowledge of the publishers.
#[derive(Default)]
struct Published {
    /// Numbers with a receipt, in order.
    stored: BTreeMap<String, Vec<u64>>,
    /// Numbers without a receipt: the process was killed meanwhile.
    unknown: BTreeSet<u64>,
}

struct World {
    random: Pcg64Mcg,
    buffer: Option<Buffer<MemoryDisk>>,
    config: Config,
    server: Server,
    published: Published,
    now_ms: u64,
    next: u64,
    power_failures: u32,
    full: u64,
    checks: u32,
    /// Batch whose outcome is not known yet, and the time of its request.
    in_flight: Option<(u64, Batch)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut config = Config { urgent: Urgent::new(vec!["cars/3/#".into()]), ..Config::default() };
        config.batch_count_max = 1 + random.next_u64() as usize % 8;
        config.slack_bytes = random.next_u64() % 4000;
        if random.next_u64().is_multiple_of(3) {
            config.count_max = 20 + random.next_u64() as usize % 40;
        }
        let mut world = Self {
            random,
            buffer: None,
            config,
            server: Server::default(),
            published: Published::default(),
            now_ms: START_MS,
            next: 0,
            power_failures: 0,
            full: 0,
            checks: 0,
            in_flight: None,
        };
        world.open(MemoryDisk::default());
        world
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.next_u64() % n
    }

    fn open(&mut self, mut disk: MemoryDisk) {
        disk.restart();
        let random = self.random.next_u64();
        self.buffer = Some(Buffer::open(self.config.clone(), disk, self.now_ms, random).expect("the disk works"));
    }

    fn buffer(&mut self) -> &mut Buffer<MemoryDisk> {
        self.buffer.as_mut().expect("it is open except during a restart")
    }

    fn restart(&mut self, loses_power: bool) {
        let mut disk = self.buffer.take().expect("it is open").into_disk();
        if loses_power {
            self.power_failures += 1;
            disk.lose_power(&mut self.random);
        }
        self.in_flight = None;
        self.now_ms += self.random.next_u64() % (2 * KEYS_MS);
        self.open(disk);
    }

    fn publish(&mut self) {
        let channel = format!("cars/{}/telemetry", self.below(CHANNELS));
        let count = 1 + self.below(4);
        let numbers: Vec<u64> = (self.next..self.next + count).collect();
        self.next += count;
        let has_key = self.below(2) == 0;
        let messages: Vec<Message<'_>> = numbers
            .iter()
            .map(|n| {
                let key = has_key.then(|| format!("key-{n}"));
                Message::new(&channel, key.as_deref(), None, format!("\"data\":{n}")).expect("good names")
            })
            .collect();
        let now_ms = self.now_ms;
        match self.buffer().put(now_ms, &messages) {
            // The process was killed before it could answer.
            Ok(_) if self.buffer().disk_mut().is_killed() => self.published.unknown.extend(&numbers),
            Ok(receipts) => {
                assert!(receipts.iter().all(|receipt| !receipt.is_repeated));
                self.published.stored.entry(channel.clone()).or_default().extend(&numbers);
                if has_key && self.below(4) == 0 {
                    // The publisher has lost the answer and repeats its request.
                    let repeated = self.buffer().put(now_ms, &messages);
                    if let Ok(repeated) = repeated {
                        let pairs = || receipts.iter().zip(&repeated).zip(&numbers);
                        // A dropped message is stored again, at the end.
                        let again = pairs().filter(|((_, again), _)| !again.is_repeated).map(|(_, n)| *n);
                        let again: Vec<u64> = again.collect();
                        pairs().filter(|((_, b), _)| b.is_repeated).for_each(|((a, b), _)| assert_eq!(a.seq, b.seq));
                        self.published.unknown.extend(again);
                    } else {
                        self.published.unknown.extend(&numbers);
                    }
                }
            }
            Err(PutError::Full) => {
                self.full += count;
                self.published.unknown.extend(&numbers);
            }
            Err(PutError::Disk(_)) => self.published.unknown.extend(&numbers),
            Err(error) => panic!("{error}"),
        }
    }

    /// The request arrives at the server, which answers line by line.
    fn serve(&mut self, body: &[u8], is_healthy: bool) -> Vec<LineResult> {
        let mut refusing: BTreeSet<String> = BTreeSet::new();
        let mut results = Vec::new();
        for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line: HashMap<String, Value> = serde_json::from_slice(line).expect("a line is JSON");
            let text = |name: &str| line[name].as_str().expect("text").to_owned();
            let (channel, key) = (text("channel"), text("idempotency_key"));
            self.server.lines += 1;
            if refusing.contains(&channel) || (!is_healthy && self.below(10) == 0) {
                refusing.insert(channel);
                results.push(LineResult::Retry);
                continue;
            }
            let now_ms = self.now_ms;
            self.server.keys.retain(|_, at| now_ms - *at < KEYS_MS);
            if !self.server.keys.contains_key(&(channel.clone(), key.clone())) {
                self.server.keys.insert((channel.clone(), key), now_ms);
                self.server.logs.entry(channel).or_default().push(line["data"].as_u64().expect("a number"));
            }
            results.push(LineResult::Accepted);
        }
        results
    }

    /// Reads the history of a channel.
    fn check(&mut self, mut check: millrace_buffer::Check) {
        self.checks += 1;
        for (n, data) in self.server.logs.get(&check.channel).into_iter().flatten().enumerate() {
            let position = format!("e:{}", n + 1);
            let message = HistoryMessage { position, time: 0, key: None, data: (*data).into(), deleted: false };
            check.handle_message(message);
        }
        self.buffer().handle_check(&check, true);
    }

    fn send(&mut self) {
        let now_ms = self.now_ms;
        let batch = match self.in_flight.take() {
            Some((sent_ms, batch)) if now_ms - sent_ms > ANSWER_MS => {
                let outcome = Outcome::Failed { retry_after_ms: None };
                return self.buffer().handle_outcome(now_ms, &batch, outcome, 0.5);
            }
            Some((_, batch)) => batch,
            None => match self.buffer().poll_step(now_ms) {
                // A killed process sends nothing.
                Ok(Some(Step::Send(_))) if self.buffer().disk_mut().is_killed() => return,
                Ok(Some(Step::Send(batch))) => batch,
                Ok(Some(Step::Check(check))) => match self.below(3) {
                    0 => return self.buffer().handle_failed_check(now_ms, 0.5),
                    _ => return self.check(check),
                },
                _ => return,
            },
        };
        let outcome = match self.below(7) {
            0 => Outcome::Failed { retry_after_ms: None },
            6 => Outcome::NotReached,
            1 => {
                // The server has accepted a part, and the answer is lost.
                let lines: Vec<_> = batch.body.split_inclusive(|byte| *byte == b'\n').collect();
                let count = self.below(lines.len() as u64 + 1) as usize;
                let body = lines[..count].concat();
                self.serve(&body, false);
                Outcome::Failed { retry_after_ms: Some(100) }
            }
            2 => {
                self.in_flight = Some((now_ms, batch));
                return;
            }
            _ => Outcome::Answered(self.serve(&batch.body, false)),
        };
        self.buffer().handle_outcome(now_ms, &batch, outcome, 0.5);
    }

    fn step(&mut self) {
        match self.below(20) {
            0..8 => self.publish(),
            8..17 => self.send(),
            // Sometimes the outage is longer than the server remembers keys.
            17 if self.below(4) == 0 => self.now_ms += self.random.next_u64() % (3 * KEYS_MS),
            17 => self.now_ms += self.random.next_u64() % 5000,
            // The process is killed at one of the next writes.
            18 => {
                let writes = self.below(8) as u32;
                self.buffer().disk_mut().killed_in = Some(writes);
            }
            _ => {
                let loses_power = self.below(2) == 0;
                self.restart(loses_power);
            }
        }
        if self.buffer().disk_mut().is_killed() {
            let loses_power = self.below(2) == 0;
            self.restart(loses_power);
        }
    }

    /// Everything works again: the buffer must become empty.
    fn settle(&mut self) {
        if self.buffer().disk_mut().killed_in.is_some() {
            self.restart(false);
        }
        while self.in_flight.is_some() {
            self.send();
        }
        for _ in 0..10_000 {
            let now_ms = self.now_ms;
            match self.buffer().poll_step(now_ms).expect("the disk works") {
                Some(Step::Check(check)) => self.check(check),
                Some(Step::Send(batch)) => {
                    let results = self.serve(&batch.body, true);
                    self.buffer().handle_outcome(now_ms, &batch, Outcome::Answered(results), 0.5);
                }
                None => match self.buffer().poll_timeout() {
                    Some(next) => self.now_ms = next.max(now_ms + 1),
                    None => return,
                },
            }
        }
        panic!("the buffer does not become empty: {:?}", self.buffer().stats(0));
    }

    fn judge(&mut self) {
        let now_ms = self.now_ms;
        let stats = self.buffer().stats(now_ms);
        assert_eq!((stats.waiting, stats.waiting_bytes), (0, 0));
        let mut missing = 0;
        for channel in (0..CHANNELS).map(|n| format!("cars/{n}/telemetry")) {
            let log = self.server.logs.get(&channel).cloned().unwrap_or_default();
            let unique: BTreeSet<_> = log.iter().copied().collect();
            let known = |n: &&u64| !self.published.unknown.contains(n);
            assert_eq!(unique.len(), log.len(), "{channel} has a message twice: {log:?}");
            let sure: Vec<_> = log.iter().filter(known).copied().collect();
            assert!(sure.is_sorted(), "{channel} is out of order: {log:?}");
            let stored = self.published.stored.get(&channel).cloned().unwrap_or_default();
            missing += stored.iter().filter(|n| !unique.contains(n) && known(n)).count() as u64;
        }
        assert!(missing <= stats.counters.dropped, "{missing} messages are lost; {stats:?}");
        let counters = stats.counters;
        assert_eq!((counters.expired, counters.refused), (0, 0), "{counters:?}");
        if self.power_failures == 0 && self.full == 0 && self.published.unknown.is_empty() {
            assert_eq!(missing, counters.dropped, "{counters:?}");
            assert_eq!(counters.stored, counters.sent + counters.dropped, "{counters:?}");
        }
    }
}

/// Returns the number of checks.
fn run(seed: u64) -> u32 {
    let mut world = World::new(seed);
    (0..STEPS).for_each(|_| world.step());
    world.settle();
    world.judge();
    world.checks
}

#[test]
fn nothing_is_lost_doubled_or_reordered_in_any_seed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("MILLRACE_SIM_SEED") {
        run(seed);
        return;
    }
    let mut checks = 0;
    for seed in 0..number("MILLRACE_SIM_SEEDS").unwrap_or(SEEDS) {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(made) => checks += made,
            Err(panic) => {
                eprintln!("seed {seed}: replay with MILLRACE_SIM_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(checks > 0, "no seed had an outage longer than the server remembers keys");
}

fn message(channel: &str, data: &str) -> Message<'static> {
    Message::new(channel, None, None, format!("\"data\":{data}")).expect("good names")
}

fn poll_batch(buffer: &mut Buffer<MemoryDisk>, now_ms: u64) -> Option<Batch> {
    match buffer.poll_step(now_ms).expect("the disk works")? {
        Step::Send(batch) => Some(batch),
        Step::Check(check) => panic!("{check:?}"),
    }
}

fn open(config: Config, disk: MemoryDisk) -> Buffer<MemoryDisk> {
    Buffer::open(config, disk, START_MS, 7).expect("the disk works")
}

fn lines(batch: &Batch) -> Vec<Value> {
    let lines = batch.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("JSON")).collect()
}

#[test]
fn full_buffer_drops_oldest_and_spares_urgent_channels() {
    let urgent = Urgent::new(vec!["alarms/#".into()]);
    let mut buffer = open(Config { count_max: 3, urgent, ..Config::default() }, MemoryDisk::default());
    buffer.put(START_MS, &[message("alarms/1", "0")]).unwrap();
    for n in 1..=4 {
        buffer.put(START_MS + n, &[message("cars/1", &n.to_string())]).unwrap();
    }
    let stats = buffer.stats(START_MS + 4);
    assert_eq!((stats.waiting, stats.counters.dropped, stats.counters.stored, stats.oldest_ms), (3, 2, 5, 4));
    let batch = poll_batch(&mut buffer, START_MS + 4).expect("messages wait");
    assert_eq!(lines(&batch).iter().map(|line| line["data"].clone()).collect::<Vec<_>>(), [0, 3, 4]);
    // Counters survive a restart.
    let buffer = open(Config::default(), buffer.into_disk());
    assert_eq!(buffer.stats(START_MS).counters.dropped, 2);
}

#[test]
fn age_and_time_to_live_count_the_time_in_the_buffer() {
    let mut buffer = open(Config { age_max_ms: 60_000, ..Config::default() }, MemoryDisk::default());
    let with_ttl = |seconds| Message::new("a", None, Some(seconds), "\"data\":1".into()).expect("good names");
    buffer.put(START_MS, &[with_ttl(5), with_ttl(30), message("a", "2")]).unwrap();
    let batch = poll_batch(&mut buffer, START_MS + 10_500).expect("messages wait");
    let lines = lines(&batch);
    assert_eq!((lines.len(), lines[0]["ttl"].as_u64(), lines[1].get("ttl")), (2, Some(20), None));
    buffer.handle_outcome(START_MS + 10_500, &batch, Outcome::Failed { retry_after_ms: None }, 0.0);
    assert_eq!(buffer.poll_timeout().map(|at| at <= START_MS + 60_001), Some(true));
    assert!(poll_batch(&mut buffer, START_MS + 60_001).is_none());
    assert_eq!(buffer.stats(START_MS).counters.expired, 3);
}

#[test]
fn refused_message_is_set_aside_and_does_not_block() {
    let mut buffer = open(Config::default(), MemoryDisk::default());
    buffer.put(START_MS, &[message("a", "1"), message("a", "2"), message("b", "3")]).unwrap();
    let batch = poll_batch(&mut buffer, START_MS).expect("messages wait");
    let results = vec![LineResult::Refused, LineResult::Accepted, LineResult::Retry];
    buffer.handle_outcome(START_MS, &batch, Outcome::Answered(results), 0.0);
    let counters = buffer.stats(START_MS).counters;
    assert_eq!((counters.refused, counters.sent, buffer.stats(START_MS).waiting), (1, 1, 1));
    // The channel that was refused for now waits, and then returns with the same key.
    assert!(poll_batch(&mut buffer, START_MS + 100).is_none());
    let again = poll_batch(&mut buffer, START_MS + 600).expect("the wait is over");
    assert_eq!(lines(&again)[0], lines(&batch)[2]);
    let disk = buffer.into_disk();
    assert!(disk.set_aside.len() == 1 && disk.set_aside[0].contains("\"data\":1"), "{:?}", disk.set_aside);
}

#[test]
fn full_disk_refuses_messages_and_still_sends() {
    let mut buffer = open(Config::default(), MemoryDisk::default());
    buffer.put(START_MS, &[message("a", "1")]).unwrap();
    let length = buffer.disk_mut().journal_bytes();
    buffer.disk_mut().capacity = Some(length);
    assert!(matches!(buffer.put(START_MS, &[message("a", "2")]), Err(PutError::Disk(_))));
    let batch = poll_batch(&mut buffer, START_MS).expect("a message waits");
    buffer.handle_outcome(START_MS, &batch, Outcome::Answered(vec![LineResult::Accepted]), 0.0);
    assert_eq!(buffer.stats(START_MS).waiting, 0);
    // The disk has room again: the acknowledgment and the next message are written.
    buffer.disk_mut().capacity = None;
    buffer.put(START_MS, &[message("a", "3")]).unwrap();
    let mut buffer = open(Config::default(), buffer.into_disk());
    let batch = poll_batch(&mut buffer, START_MS).expect("a message waits");
    assert_eq!(lines(&batch).iter().map(|line| line["data"].clone()).collect::<Vec<_>>(), [3]);
}

#[test]
fn journal_stays_bounded_while_messages_pass() {
    let mut buffer = open(Config::default(), MemoryDisk::default());
    let large = format!("\"{}\"", "x".repeat(10_000));
    let mut longest = 0;
    for n in 0..1000 {
        let now_ms = START_MS + n * 1000;
        buffer.put(now_ms, &[message("a", &large)]).unwrap();
        let batch = poll_batch(&mut buffer, now_ms).expect("a message waits");
        buffer.handle_outcome(now_ms, &batch, Outcome::Answered(vec![LineResult::Accepted]), 0.0);
        longest = longest.max(buffer.disk_mut().journal_bytes());
    }
    assert!(longest < (1 << 20) + 20_000, "{longest}");
    assert_eq!(buffer.stats(START_MS).counters.sent, 1000);
}

#[test]
fn rate_limits_a_backlog() {
    let mut buffer = open(Config { rate_per_s: 10, batch_count_max: 5, ..Config::default() }, MemoryDisk::default());
    let backlog: Vec<_> = (0..100).map(|n| message("a", &n.to_string())).collect();
    buffer.put(START_MS, &backlog).unwrap();
    let (mut now_ms, mut sent) = (START_MS, 0);
    while now_ms < START_MS + 3000 {
        if let Some(batch) = poll_batch(&mut buffer, now_ms) {
            sent += batch.seqs.len();
            let results = vec![LineResult::Accepted; batch.seqs.len()];
            buffer.handle_outcome(now_ms, &batch, Outcome::Answered(results), 0.0);
        }
        now_ms = buffer.poll_timeout().unwrap().max(now_ms + 1);
    }
    assert!((30..=36).contains(&sent), "{sent}");
}

#[test]
fn batch_that_is_too_large_is_halved_until_one_message_is_refused() {
    let mut buffer = open(Config::default(), MemoryDisk::default());
    let all: Vec<_> = (0..8).map(|n| message("a", &n.to_string())).collect();
    buffer.put(START_MS, &all).unwrap();
    let mut sizes = Vec::new();
    // The server takes no batch with the message 0, as a proxy with a limit of bytes does.
    while let Some(batch) = poll_batch(&mut buffer, START_MS) {
        sizes.push(batch.seqs.len());
        let outcome = match batch.seqs.contains(&0) {
            true => Outcome::TooLarge,
            false => Outcome::Answered(vec![LineResult::Accepted; batch.seqs.len()]),
        };
        buffer.handle_outcome(START_MS, &batch, outcome, 0.0);
    }
    assert_eq!(sizes[..4], [8, 4, 2, 1]);
    let counters = buffer.stats(START_MS).counters;
    assert_eq!((counters.refused, counters.sent, buffer.stats(START_MS).waiting), (1, 7, 0));
    assert!(buffer.into_disk().set_aside[0].contains("\"data\":0"));
}
