//! An engine in another process that is killed, or whose disk is full.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use millrace_delivery::PageLimit;
use millrace_engine::{Config, Engine, HistoryConfig, SqliteEngine};
use millrace_protocol::{Code, Epoch, Position, Since, session::Policy};
use rand_pcg::{Pcg32, rand_core::Rng};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{BOUND, Opened, Readers, folder, open, sql, try_open};
use crate::worlds::{LIMIT, channel, text, wait};

/// A full disk refuses publications, and nothing else. A refused publication never becomes visible.
#[test]
fn full_disk_refuses_appends_and_serves_reads() {
    let folder = folder();
    let mut child = Publisher::start(&folder.path().join("data.db"), "full");
    let said = child.until("refused");
    let accepted: Vec<_> = said.iter().filter(|line| line.starts_with("accepted")).collect();
    assert!(accepted.len() > 10, "{said:?}");
    assert!(child.until("reads").last().unwrap().ends_with(&format!(" {}", accepted.len())), "all that was accepted");
    child.until("up again");
    child.kill();
    let opened = open(&folder.path().join("data.db"));
    let (gap, offsets) = opened.read("safe/a", Since::Earliest);
    assert_eq!((gap, offsets), (None, (1..=accepted.len() as u64 + 1).collect()));
}

/// `MILLRACE_KILLS=1000 cargo test -p millrace-engine --test it kill` runs more kills; `MILLRACE_KILL_SEED` repeats a
/// run.
#[test]
fn sigkill_loses_no_acknowledged_publication() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (kills, seed) = (number("MILLRACE_KILLS", 60), number("MILLRACE_KILL_SEED", 1));
    let folder = folder();
    let path = folder.path().join("data.db");
    let mut dice = Pcg32::new(seed, 1);
    let mut seen = KnownPublications::default();
    let (mut answered, mut delivered) = (0, 0);
    let started = Instant::now();
    for kill in 0..kills {
        let context = format!("seed {seed}, kill {kill}");
        let mut child = Publisher::start(&path, "publish");
        child.until("open");
        // From before the first publication is answered to long after it. A checkpoint happens about every 500
        // publications.
        let lines = dice.next_u32() % 600;
        let pause = Duration::from_micros((dice.next_u32() % 2000).into());
        let mut said: Vec<String> = (0..lines).map(|_| child.line().expect("it goes on")).collect();
        let from = Instant::now();
        while from.elapsed() < pause {
            std::hint::spin_loop();
        }
        said.extend(child.kill());
        for line in said {
            let [what, position, data, "end"] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
            seen.note(position.parse().unwrap(), data, &context);
            *(if what == "accepted" { &mut answered } else { &mut delivered }) += 1;
        }
        if kill % 10 == 0 || kill + 1 == kills {
            let found: String = sql(&path, "PRAGMA integrity_check");
            assert_eq!(found, "ok", "{context}");
        }
        seen.check(&open_durable(&path), 5000, &context);
    }
    seen.check(&open_durable(&path), u64::MAX, "all of it");
    println!(
        "{kills} kills in {:.1?}: {answered} answers and {delivered} deliveries, {} publications in the file",
        started.elapsed(),
        seen.0.len()
    );
    assert!(answered > 20 * kills && delivered > 20 * kills, "{answered} {delivered}");
}

fn open_durable(path: &Path) -> Opened {
    try_open(path, all_durable()).unwrap()
}

fn all_durable() -> Config {
    let history = HistoryConfig {
        durable: true,
        count_max: usize::MAX,
        bytes_max: usize::MAX,
        age_max: FOREVER,
        ..HistoryConfig::default()
    };
    Config { history, history_bytes_max: 1 << 40, ..Config::default() }
}

/// Maximum size of a file on the simulated disk that fills up.
const DISK_BYTES: u64 = 2 << 20;

const FOREVER: Duration = Duration::from_secs(1 << 32);

/// Everything that was answered or delivered: each position belongs to one publication.
#[derive(Default)]
struct KnownPublications(std::collections::BTreeMap<u64, String>, Option<Epoch>);

impl KnownPublications {
    fn note(&mut self, position: Position, data: &str, context: &str) {
        assert_eq!(*self.1.get_or_insert(position.epoch), position.epoch, "{context}: the log went on");
        let known = self.0.entry(position.offset).or_insert_with(|| data.to_owned());
        assert_eq!(known, data, "{context}: {position} was used twice");
    }

    /// Checks that every answered publication is in the file. The file may hold a few more that were committed before
    /// the end but not answered; they count from now on. Reads only the newest ones: the others were checked earlier,
    /// and are checked again at the end.
    fn check(&mut self, opened: &Opened, newest: u64, context: &str) {
        let (mut since, mut found) = (Since::Earliest, 0);
        if let Some(before) = self.0.keys().last().and_then(|last| last.checked_sub(newest))
            && let Some(epoch) = self.1
        {
            since = Since::Position(Position { epoch, offset: before });
            found = before;
        }
        loop {
            let page = wait(opened.engine.page(&channel("safe/a"), since, Policy::Every, LIMIT)).unwrap();
            assert_eq!(page.gap, None, "{context}");
            for publication in &page.publications {
                found += 1;
                assert_eq!(publication.offset, found, "{context}");
                let position = Position { epoch: page.top.epoch, offset: found };
                self.note(position, std::str::from_utf8(publication.data()).expect("text"), context);
            }
            if page.end == page.top {
                break;
            }
            since = Since::Position(page.end);
        }
        assert_eq!(self.0.keys().last().copied().unwrap_or(0), found, "{context}: what was answered is there");
    }
}

/// Another process with an engine, which prints every answer and delivery.
struct Publisher {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Publisher {
    fn start(path: &Path, what: &str) -> Self {
        // A file that exceeds the size limit causes an error and does not end the process.
        let mut command = match what {
            "full" => Command::new("sh"),
            _ => Command::new(std::env::current_exe().unwrap()),
        };
        if what == "full" {
            let run = format!("trap '' XFSZ; ulimit -S -f {}; exec \"$0\" \"$@\"", DISK_BYTES / 512);
            command.args(["-c", &run]).arg(std::env::current_exe().unwrap());
        }
        let test = "sqlite::crash::in_another_process";
        command.args([test, "--exact", "--ignored", "--nocapture", "--quiet"]).env("MILLRACE_TEST_PUBLISHER", what);
        command.env("MILLRACE_TEST_FILE", path).stdout(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> Option<String> {
        self.lines.next().map(|line| line.unwrap())
    }

    /// Returns all lines up to and including the first that begins with `beginning`.
    fn until(&mut self, beginning: &str) -> Vec<String> {
        let mut said = Vec::new();
        while let Some(line) = self.line() {
            let is_it = line.starts_with(beginning);
            said.push(line);
            if is_it {
                return said;
            }
        }
        panic!("it ended without {beginning:?}: {said:#?}")
    }

    /// Kills the process with `kill -9`. Returns the complete lines that were still unread.
    fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut rest: Vec<String> = self.lines.by_ref().map_while(Result::ok).collect();
        // The process may be killed within a line, so the last line may be incomplete.
        rest.retain(|line| line.ends_with(" end"));
        rest
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: the program that [`Publisher`] runs.
#[test]
#[ignore = "part of other tests"]
fn in_another_process() {
    let Ok(what) = std::env::var("MILLRACE_TEST_PUBLISHER") else { return };
    let path = PathBuf::from(std::env::var("MILLRACE_TEST_FILE").unwrap());
    match what.as_str() {
        "publish" => publish_for_ever(&path),
        "full" => fill_the_disk(&path),
        other => panic!("{other}"),
    }
}

/// Prints one line with one write, so that a line is complete or lacks its end.
fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Publishes on four threads, so that batches of all sizes form. All publications are different.
fn publish_for_ever(path: &Path) {
    let unique = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let readers = Readers(Box::new(|position, data| print_line(&format!("delivered {position} {data} end"))));
    let engine = SqliteEngine::open(path, all_durable(), Arc::new(readers), || 1_000_000).unwrap();
    print_line("open");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0.. {
                    let data = (0..round % 8 + 1).map(|i| format!("{unique}-{thread}-{round}-{i}"));
                    let name = channel("safe/a");
                    let waiting: Vec<_> = data.map(|data| (engine.append(&name, text(&data)), data)).collect();
                    for (answer, data) in waiting {
                        let position = wait(answer).unwrap();
                        print_line(&format!("accepted {position} {data} end"));
                    }
                }
            });
        }
    });
}

/// Files may grow to [`DISK_BYTES`]. Publishes until that limit is reached, reads, and publishes again after the limit
/// is raised.
fn fill_the_disk(path: &Path) {
    let opened = open_durable(path);
    // More data than the memory holds, so that the file is read.
    let data = "x".repeat(10_000);
    let mut accepted = 0;
    let refused = loop {
        match wait(opened.engine.append(&channel("safe/a"), text(&data))) {
            Ok(position) => {
                accepted += 1;
                assert_eq!(position.offset, accepted);
                print_line("accepted");
            }
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code, Code::Unavailable);
    assert!(!opened.engine.is_up());
    print_line("refused");
    let limit = PageLimit { count: 10_000, bytes: 1 << 30 };
    let (_, offsets) = opened.read_by("safe/a", Since::Earliest, Policy::Every, limit);
    print_line(&format!("reads {}", offsets.len()));
    setrlimit(Resource::Fsize, Rlimit { current: None, maximum: None }).unwrap();
    let deadline = Instant::now() + BOUND;
    while !opened.engine.is_up() {
        assert!(Instant::now() < deadline, "it does not try again");
        std::thread::yield_now();
    }
    assert_eq!(opened.publish("safe/a", "after").offset, accepted + 1);
    print_line("up again");
}
