//! The sampler against processes that know their own resource usage.
#![allow(clippy::unwrap_used, reason = "a test may stop where it is wrong")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use millrace_lab::host::{
    Root, Sample, Sampler, Series, Settings, TreeSample,
    validity::{Before, Gate, Limits},
};
use rustix::time::{ClockId, clock_gettime};

/// A process that prints a line when it is ready and then waits until its input closes.
struct Subject {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Subject {
    fn start(mut command: Command) -> Subject {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Subject { child, stdin, stdout }
    }

    fn shell(script: &str) -> Subject {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Subject::start(command)
    }

    /// Starts this test binary again with only the test `name`, which is ignored otherwise.
    fn myself(name: &str) -> Subject {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads", "1"]).env(CHILD, "1");
        Subject::start(command)
    }

    /// Returns the rest of the next line that contains `beginning`.
    fn line(&mut self, beginning: &str) -> String {
        let mut line = String::new();
        while self.stdout.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.split_once(beginning) {
                return rest.1.trim().to_owned();
            }
            line.clear();
        }
        panic!("it ended without {beginning:?}")
    }

    fn root(&self) -> Root {
        Root { name: "subject".into(), pid: self.child.id() }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const CHILD: &str = "MILLRACE_LAB_TEST_CHILD";
/// Maximum time that a test waits for anything.
const BOUND: Duration = Duration::from_secs(30);

fn start(subject: &Subject, interval_ms: u64, samples_max: usize) -> Sampler {
    let origin = Instant::now();
    let interval = Duration::from_millis(interval_ms);
    let settings = Settings { interval, pss_interval: interval, samples_max };
    Sampler::start(&[subject.root()], settings, move || origin.elapsed()).unwrap()
}

fn wait_for(sampler: &Sampler, is_so: impl Fn(&Sample) -> bool) {
    let started = Instant::now();
    while !sampler.latest().is_some_and(|sample| is_so(&sample)) {
        assert!(started.elapsed() < BOUND, "{:?}", sampler.latest());
        thread::sleep(Duration::from_millis(2));
    }
}

fn whole(series: &Series) -> (&Sample, &Sample) {
    (series.samples.first().unwrap(), series.samples.last().unwrap())
}

fn near(seen: f64, known: f64, share: f64, absolute: f64) -> bool {
    (seen - known).abs() <= share * known + absolute
}

fn cpu_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the user-mode CPU time of this process as the kernel counts it, in hundredths of a second. Source: proc(5).
fn user_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(11).unwrap().parse().unwrap()
}

/// Runs `work` until this thread has used `milliseconds` more of CPU.
fn burn(milliseconds: u64, mut work: impl FnMut()) {
    let until = cpu_ns(ClockId::ThreadCPUTime) + milliseconds * 1_000_000;
    while cpu_ns(ClockId::ThreadCPUTime) < until {
        work();
    }
}

#[test]
#[ignore = "the process that others watch"]
fn burner() {
    assert!(std::env::var_os(CHILD).is_some(), "it waits for its input to end");
    let compute = || {
        std::hint::black_box((0..200_000u64).fold(1, |sum, i| std::hint::black_box(sum ^ i)));
    };
    // A thread that has ended when the sampler reads the process.
    thread::Builder::new().name("gone".into()).spawn(move || burn(200, compute)).unwrap().join().unwrap();
    let stays = thread::Builder::new().name("stays".into()).spawn(move || {
        burn(300, compute);
        let mut zero = fs::File::open("/dev/zero").unwrap();
        let mut buffer = vec![0; 1 << 20];
        burn(300, || zero.read_exact(&mut buffer).unwrap());
        println!("user {}", user_ticks());
        println!("used {}", cpu_ns(ClockId::ProcessCPUTime));
        let _ = std::io::stdin().read(&mut [0]);
    });
    stays.unwrap().join().unwrap();
}

#[test]
fn cpu_matches_the_process_own_count() {
    let mut subject = Subject::myself("sampler::burner");
    let sampler = start(&subject, 20, 4096);
    let user_s = subject.line("user ").parse::<f64>().unwrap() / 100.0;
    let used_ns: u64 = subject.line("used ").parse().unwrap();
    let series = sampler.finish();
    let (first, last) = whole(&series);
    let (tree, process) = (&last.trees[0], &last.trees[0].processes[0]);
    assert!(near(tree.cpu.total_s(), used_ns as f64 / 1e9, 0.0, 0.01), "{used_ns} ns, {tree:?}");
    assert_eq!(tree.cpu, process.cpu);
    // 0.5 s of computing and 0.3 s of copying zeros, divided as the kernel's ticks saw it. On a busy machine the ticks
    // miss some of it.
    assert!(near(tree.cpu.user_ns as f64 / 1e9, user_s, 0.0, 0.03), "{user_s} s, {tree:?}");
    assert!((0.25..0.7).contains(&user_s), "{user_s} s, {tree:?}");
    let stays = process.threads["stays"] as f64 / 1e9;
    assert!(near(stays, 0.6, 0.05, 0.02), "{stays} s");
    let gone = process.threads["gone"] as f64 / 1e9;
    assert!((0.02..0.23).contains(&gone), "{gone} s: what it used in its last interval, which may be long, is missing");
    let usage = series.usage(0.0, f64::MAX).unwrap();
    assert_eq!(usage.cpu, tree.cpu.since(&first.trees[0].cpu));
    assert!(near(usage.cores * usage.seconds, usage.cpu.total_s(), 1e-9, 0.0));
    let runs_backwards = |pair: &[Sample]| {
        let (before, after) = (pair[0].trees[0].cpu, pair[1].trees[0].cpu);
        after.user_ns < before.user_ns || after.system_ns < before.system_ns || pair[1].at_s <= pair[0].at_s
    };
    assert!(!series.samples.windows(2).any(runs_backwards), "{series:?}");
}

#[test]
fn short_lived_children_are_counted() {
    let mut subject = Subject::shell(
        "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do head -c 8000000 /dev/urandom > /dev/null; done; times; echo end; read line",
    );
    let sampler = start(&subject, 15, 4096);
    let own = subject.line("");
    let children = subject.line("");
    subject.line("end");
    let series = sampler.finish();
    // `times` prints two lines, for the shell and for its children, each like `0m0.010000s 0m0.020000s`.
    let seconds = |line: &str| -> f64 {
        let time =
            |word: &str| word.trim_end_matches('s').split_once('m').map(|(m, s)| (m.parse::<f64>(), s.parse::<f64>()));
        line.split(' ').filter_map(time).map(|(m, s)| m.unwrap() * 60.0 + s.unwrap()).sum()
    };
    let (known, seen) = (seconds(&own) + seconds(&children), whole(&series).1.trees[0].cpu.total_s());
    assert!(known > 0.05, "{own} / {children}");
    // Each child is counted in ticks of a hundredth of a second.
    assert!(near(seen, known, 0.1, 0.05), "{seen} s, the shell says {known} s");
}

#[test]
fn shared_memory_is_divided_among_processes() {
    // A subshell is a fork: both processes map the 50 MB and share them.
    let mut subject =
        Subject::shell("exec 3<&0; x=$(head -c 50000000 /dev/zero | tr '\\0' x); read line <&3 & echo forked; wait");
    subject.line("forked");
    let sampler = start(&subject, 10, 4096);
    let of = |pid: u32, key: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
        line.split_ascii_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
    };
    let known = |tree: &TreeSample, key: &str| tree.processes.iter().map(|process| of(process.pid, key)).sum::<f64>();
    // Both processes run on for a moment after the fork, so several samples may pass until ours and the kernel's
    // describe the same moment.
    wait_for(&sampler, |sample| {
        let tree = &sample.trees[0];
        let (rss, pss) = (known(tree, "Rss:"), known(tree, "Pss:"));
        tree.processes.len() == 2
            && near(tree.rss_bytes as f64, rss, 0.01, 1e6)
            && near(tree.pss_bytes.unwrap_or(0) as f64, pss, 0.01, 1e6)
    });
    let series = sampler.finish();
    let tree = &whole(&series).1.trees[0];
    let (rss, pss) = (tree.rss_bytes as f64, tree.pss_bytes.unwrap() as f64);
    assert!(near(rss, 2.0 * 52e6, 0.1, 0.0) && near(pss, 52e6, 0.1, 0.0), "{tree:?}");
    let pids: Vec<u32> = tree.processes.iter().map(|process| process.pid).collect();
    let descriptors = |pid: &u32| fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
    assert_eq!(tree.descriptors, pids.iter().map(descriptors).sum::<u64>(), "{tree:?}");
    assert_eq!(tree.threads, 2);
}

#[test]
fn usage_of_an_ended_process_tree_is_kept() {
    let mut subject = Subject::myself("sampler::burner");
    let sampler = start(&subject, 10, 4096);
    let used_ns: u64 = subject.line("used ").parse().unwrap();
    wait_for(&sampler, |sample| sample.trees[0].cpu.total_ns() >= used_ns);
    drop(subject);
    wait_for(&sampler, |sample| sample.trees[0].processes.is_empty());
    let series = sampler.finish();
    let last = &whole(&series).1.trees[0];
    assert!(last.cpu.total_ns() >= used_ns, "{last:?}");
    assert_eq!((last.rss_bytes, last.descriptors, last.threads), (0, 0, 0));
}

#[test]
fn context_switches_are_counted() {
    let mut subject = Subject::shell("echo ready; while read line; do echo $line; done");
    subject.line("ready");
    let sampler = start(&subject, 10, 4096);
    let before = sampler.latest().unwrap().trees[0].switches;
    for round in 0..200 {
        use std::io::Write;
        writeln!(subject.stdin.as_mut().unwrap(), "{round}").unwrap();
        subject.line(&round.to_string());
    }
    let after = whole(&sampler.finish()).1.trees[0].switches;
    // The process waits for each line. Where all cores are busy, it may instead be preempted by its sender.
    let (waited, pushed) = (after.voluntary - before.voluntary, after.involuntary - before.involuntary);
    assert!(waited > 0 && (180..=1000).contains(&(waited + pushed)), "{waited} and {pushed}");
}

#[test]
fn a_long_series_is_thinned() {
    let mut subject = Subject::shell("echo ready; read line");
    subject.line("ready");
    let sampler = start(&subject, 1, 16);
    wait_for(&sampler, |_| true);
    let early_s = sampler.latest().unwrap().at_s;
    wait_for(&sampler, |sample| sample.at_s > early_s + 0.25);
    let series = sampler.finish();
    let (first, last) = whole(&series);
    assert!(series.samples.len() <= 16, "{}", series.samples.len());
    assert!(first.at_s <= early_s && last.at_s > early_s + 0.25, "{first:?} {last:?}");
    assert_eq!(series.trees, ["subject"]);
}

#[test]
fn machine_is_sampled() {
    let mut subject = Subject::myself("sampler::burner");
    let sampler = start(&subject, 50, 4096);
    let used_ns: u64 = subject.line("used ").parse().unwrap();
    let series = sampler.finish();
    let seen = series.machine(0.0, f64::MAX).unwrap();
    let cores = thread::available_parallelism().unwrap().get();
    assert!(seen.busy.len() >= cores && seen.busy.iter().all(|busy| (0.0..=1.0).contains(busy)), "{seen:?}");
    let (first, last) = whole(&series);
    let all: f64 = first.machine.cores.iter().zip(&last.machine.cores).map(|(a, b)| b.all_s - a.all_s).sum();
    let busy: f64 = first.machine.cores.iter().zip(&last.machine.cores).map(|(a, b)| b.busy_s - a.busy_s).sum();
    let passed = (last.at_s - first.at_s) * seen.busy.len() as f64;
    assert!(near(all, passed, 0.1, 0.1), "{all} s of {passed} s");
    assert!(busy > 0.8 * used_ns as f64 / 1e9 - 0.05, "at least what our own process used: {busy} s");
    assert!((0.0..=1.0).contains(&seen.steal));
}

#[test]
fn other_processes_are_noticed_before_a_run() {
    let mut subject = Subject::shell("echo ready; while :; do :; done");
    subject.line("ready");
    let watch = Duration::from_millis(400);
    let seen = Before::observe(watch, &[]).unwrap();
    // Three other processes may share two cores with it; the limit is a tenth of a core.
    assert!(seen.others_cores > 0.2, "{seen:?}");
    let failed =
        |gate: Gate| Limits::default().before(&seen).iter().any(|finding| finding.gate == gate && !finding.passed);
    assert!(failed(Gate::OthersBefore));
    let ours = Before::observe(watch, &[subject.child.id()]).unwrap();
    assert!(ours.busiest_other.is_none_or(|busy| busy.pid != subject.child.id()));
}
