//! Runs a plan: starts the threads, moves them from stage to stage, and combines their reports with the samples of
//! the server.

use std::{
    collections::BTreeMap,
    sync::{
        atomic::{AtomicU32, AtomicU64, Ordering::*},
        mpsc::{Receiver as Inbox, RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    dialect::{LoadTarget, Role},
    ledger::PublicationTable,
    link::Link,
    plan::Plan,
    shared::{Clock, Report, Shared, Stage},
    thread_stats::{PROBE, PhaseStats, Receiver},
    usage, verdict,
    worker::{Assigned, Worker},
};
use crate::{
    histogram::Histogram,
    host::{
        limits,
        scheduling::{self, SchedulingTime},
    },
    recording::{Counts, Finding, Phase, PhaseName, Second, TEST_LEAD, Usage},
};
use anyhow::bail;
use serde::{Deserialize, Serialize};

/// Sample of server and machine that an observer outside the generator takes once a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Usage since the start of the server.
    pub server: Usage,
    /// Steal time of the machine since its start, in seconds.
    pub steal_s: f64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Start of the run; the times of phases and seconds are relative to it.
    pub started: Instant,
    pub phases: Vec<Phase>,
    pub seconds: Vec<Second>,
    pub validity: Vec<Finding>,
}

impl Outcome {
    pub fn phase(&self, name: PhaseName) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }
}

/// Runs the plan to its end. Calls `observe` once a second, and at the start and the end of each phase. If `observe`
/// fails because the server died, the run ends early; its results are kept and marked invalid.
///
/// Errors: the plan cannot run on this machine, or not all connections could be opened.
pub fn run(
    plan: &Plan,
    target: &dyn LoadTarget,
    observe: &mut dyn FnMut() -> anyhow::Result<Sample>,
) -> anyhow::Result<Outcome> {
    run_with(plan, target, Hooks { observe, see: &mut |_| {}, reach: &mut |_| Ok(()) })
}

/// Moment of a run at which its caller may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Milestone {
    /// All connections are open.
    Connected,
    /// The test begins; its first publication is due after [`TEST_LEAD`].
    Test,
    /// Half of the test is over.
    Halfway,
    /// The test is over, and all deliveries have arrived or are given up.
    Drained,
}

/// Functions that a run calls.
pub struct Hooks<'a> {
    /// Samples the server: once a second, and at the start and the end of each phase.
    pub observe: &'a mut dyn FnMut() -> anyhow::Result<Sample>,
    /// Takes each second when it is complete, which is one second later.
    pub see: &'a mut dyn FnMut(&Second),
    /// Acts at a milestone. The run goes on when the function returns.
    pub reach: &'a mut dyn FnMut(Milestone) -> anyhow::Result<()>,
}

/// Runs the plan like [`run`], with all hooks.
pub fn run_with(plan: &Plan, target: &dyn LoadTarget, hooks: Hooks<'_>) -> anyhow::Result<Outcome> {
    plan.check()?;
    let (sender, inbox) = channel();
    let shared = Shared {
        clock: Clock(Instant::now()),
        stage: AtomicU32::new(Stage::Connect as u32),
        test_at_ns: AtomicU64::new(0),
        ledger: PublicationTable::new(plan.publications(), plan.streams(), plan.copies(), plan.threads),
        published: (0..plan.streams()).map(|_| AtomicU32::new(0)).collect(),
        published_all: AtomicU32::new(0),
        reports: sender,
    };
    let assigned = assign(plan, target);
    let links: usize = assigned.iter().map(Vec::len).sum();
    limits::raise_descriptors(links as u64 + 64)?;
    thread::scope(|scope| {
        for (index, assigned) in assigned.into_iter().enumerate() {
            let shared = &shared;
            let body = move || {
                let run = || -> anyhow::Result<()> {
                    settle(plan, index)?;
                    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                    let _ = shared.reports.send(Report::Begun(thread));
                    Worker::new(plan, target, shared, index, assigned)?.run()
                };
                if let Err(error) = run() {
                    let _ = shared.reports.send(Report::Failed(error));
                }
            };
            thread::Builder::new().name(format!("lab-load-{index}")).spawn_scoped(scope, body)?;
        }
        let mut controller = RunController::new(plan, &shared, inbox, hooks);
        let outcome = controller.conduct();
        shared.stage.store(Stage::Stop as u32, Release);
        outcome
    })
}

/// Assigns the connections to the threads: subscribers first, then publishers, then the probe, in the order of
/// opening.
fn assign(plan: &Plan, target: &dyn LoadTarget) -> Vec<Vec<Assigned>> {
    let mut threads: Vec<Vec<Assigned>> = (0..plan.threads).map(|_| Vec::new()).collect();
    let both = plan.shares_connections() && target.is_duplex();
    let mut ordinal = 0;
    let mut add = |thread: usize, role, channel: &str, receiver, stream| {
        let link = Link::new(target.dialect(role, channel), receiver, stream);
        threads[thread % plan.threads].push(Assigned { link, ordinal });
        ordinal += 1;
    };
    let heard = plan.heard_by_each() as u32;
    for i in 0..plan.clients {
        let receiver = Receiver { first_stream: plan.first_heard(i) as u32, streams: heard, tallies_at: 0 };
        let (role, stream) = if both { (Role::Both, Some(i as u32)) } else { (Role::Subscriber, None) };
        add(i, role, &plan.channel_of(i), Some(receiver), stream);
    }
    if !both {
        (0..plan.streams()).for_each(|i| add(i, Role::Publisher, &plan.channel_of(i), None, Some(i as u32)));
    }
    if !plan.probe.is_zero() {
        let channel = format!("{}/probe", plan.channel);
        let receiver = Some(Receiver { first_stream: PROBE, streams: 1, tallies_at: 0 });
        if target.is_duplex() {
            add(0, Role::Both, &channel, receiver, Some(PROBE));
        } else {
            add(0, Role::Subscriber, &channel, receiver, None);
            add(0, Role::Publisher, &channel, None, Some(PROBE));
        }
    }
    threads
}

/// Pins this thread to its CPU and minimizes its timer slack. By default, the kernel may wake a thread up to 50 us
/// late.
fn settle(plan: &Plan, index: usize) -> anyhow::Result<()> {
    if !plan.cpus.is_empty() {
        scheduling::pin(&[plan.cpus[index % plan.cpus.len()]])?;
    }
    limits::raise_priority();
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    Ok(())
}

struct RunController<'a, 'h> {
    plan: &'a Plan,
    shared: &'a Shared,
    inbox: Inbox<Report>,
    hooks: Hooks<'h>,
    threads: Vec<u32>,
    connected: usize,
    drained: usize,
    pages: BTreeMap<Stage, (usize, PhaseStats)>,
    seconds: BTreeMap<u64, Second>,
    /// Number of the full second at which the usage is read next.
    next_second: u64,
    /// Readings at the last full second.
    last: Reading,
    trouble: Option<String>,
    findings: Vec<Finding>,
    server_is_gone: bool,
    /// Share of the test in which the threads were runnable while other threads had the CPU.
    waited_share: f64,
}

/// Readings of server and generator at one moment.
#[derive(Clone, Copy, Default)]
struct Reading {
    at_ns: u64,
    sample: Sample,
    generator: Usage,
}

impl<'a, 'h> RunController<'a, 'h> {
    fn new(plan: &'a Plan, shared: &'a Shared, inbox: Inbox<Report>, hooks: Hooks<'h>) -> Self {
        Self {
            plan,
            shared,
            inbox,
            hooks,
            threads: Vec::new(),
            connected: 0,
            drained: 0,
            pages: BTreeMap::new(),
            seconds: BTreeMap::new(),
            next_second: 1,
            last: Reading::default(),
            trouble: None,
            findings: Vec::new(),
            server_is_gone: false,
            waited_share: 0.0,
        }
    }

    fn conduct(&mut self) -> anyhow::Result<Outcome> {
        let plan = self.plan;
        let all = plan.threads;
        self.until(plan.patience, |controller| controller.threads.len() == all)?;
        self.last = self.read();
        let begun = self.last;
        let links = plan.clients + plan.streams() + 2;
        let ramp = Duration::from_secs_f64(links as f64 / plan.ramp_per_s) + plan.patience;
        self.until(ramp, |controller| controller.connected == all)?;
        if self.connected < all {
            let why = self.trouble.as_deref().unwrap_or("the server did not answer in time");
            bail!("not all connections could be opened within {ramp:?}: {why}");
        }
        let mut marks = vec![(PhaseName::Connect, begun, self.now_ns(), self.read())];
        (self.hooks.reach)(Milestone::Connected)?;
        if !plan.idle.is_zero() || !plan.probe.is_zero() {
            let idle = self.enter(Stage::Idle);
            self.until(plan.idle, |_| false)?;
            let end = self.now_ns();
            marks.push((PhaseName::Idle, idle, end, self.read()));
        }
        self.shared.test_at_ns.store(self.now_ns() + TEST_LEAD.as_nanos() as u64, Release);
        let waited = self.waited_ns();
        let test = self.enter(Stage::Test);
        (self.hooks.reach)(Milestone::Test)?;
        self.until(plan.test / 2 + TEST_LEAD, |_| false)?;
        (self.hooks.reach)(Milestone::Halfway)?;
        self.until(plan.test - plan.test / 2, |_| false)?;
        let end = self.now_ns();
        let is_quiet = plan.streams() == 0;
        self.until(if is_quiet { Duration::ZERO } else { plan.patience }, |controller| controller.drained == all)?;
        marks.push((PhaseName::Test, test, end, self.read()));
        let took_ns = (self.now_ns() - test.at_ns).max(1);
        self.waited_share = (self.waited_ns() - waited) as f64 / (took_ns as f64 * all as f64);
        let after = self.enter(Stage::After);
        (self.hooks.reach)(Milestone::Drained)?;
        self.until(plan.after, |_| false)?;
        let end = self.now_ns();
        marks.push((PhaseName::After, after, end, self.read()));
        self.shared.stage.store(Stage::Stop as u32, Release);
        self.wait(Duration::from_secs(5), |controller| {
            controller.pages.get(&Stage::After).is_some_and(|(of, _)| *of == all)
        })?;
        self.show(self.next_second.checked_sub(2));
        Ok(self.conclude(&marks))
    }

    fn now_ns(&self) -> u64 {
        self.shared.clock.now_ns()
    }

    fn waited_ns(&self) -> u64 {
        let threads: Vec<_> = self.threads.iter().map(|thread| usage::folder(*thread)).collect();
        SchedulingTime::of_threads(&threads).waited_ns
    }

    fn enter(&mut self, stage: Stage) -> Reading {
        let reading = self.read();
        self.shared.stage.store(stage as u32, Release);
        reading
    }

    fn read(&mut self) -> Reading {
        let generator = usage::of_generator(&self.threads).unwrap_or(self.last.generator);
        Reading { at_ns: self.now_ns(), sample: self.sample(), generator }
    }

    /// Returns a sample of the server. After the server's death, returns the last one.
    fn sample(&mut self) -> Sample {
        if self.server_is_gone {
            return self.last.sample;
        }
        (self.hooks.observe)().unwrap_or_else(|error| {
            self.server_is_gone = true;
            self.findings.push(Finding {
                code: "server_died".into(),
                detail: format!("the server could not be observed any more: {error:#}"),
                invalidates: true,
            });
            self.last.sample
        })
    }

    /// Waits for the given duration, until `done`, or until the server is gone.
    fn until(&mut self, lasts: Duration, done: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        self.wait(lasts, |controller| controller.server_is_gone || done(controller))
    }

    /// Processes reports for the given duration, or until `done`. Reads the usage of server and generator once a
    /// second.
    fn wait(&mut self, lasts: Duration, done: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let end = self.now_ns() + lasts.as_nanos() as u64;
        while !done(self) {
            let now = self.now_ns();
            if now >= end {
                break;
            }
            if now >= self.next_second * 1_000_000_000 {
                self.turn_second(now);
                continue;
            }
            let wait = end.min(self.next_second * 1_000_000_000).saturating_sub(now);
            match self.inbox.recv_timeout(Duration::from_nanos(wait)) {
                Ok(report) => self.take(report)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the threads of the generator are gone"),
            }
        }
        Ok(())
    }

    fn turn_second(&mut self, now: u64) {
        let generator = usage::of_threads(&self.threads).unwrap_or(self.last.generator);
        let reading = Reading { at_ns: now, sample: self.sample(), generator };
        let last = std::mem::replace(&mut self.last, reading);
        let second = self.second(self.next_second - 1);
        second.server_cpu_s = reading.sample.server.since(&last.sample.server).cpu_s();
        second.server_pss_bytes = reading.sample.server.pss_bytes;
        second.generator_cpu_s = reading.generator.since(&last.generator).cpu_s();
        second.steal_s = reading.sample.steal_s - last.sample.steal_s;
        self.show(self.next_second.checked_sub(2));
        self.next_second = now / 1_000_000_000 + 1;
    }

    /// Passes a second to `see`. All reports of that second have arrived.
    fn show(&mut self, index: Option<u64>) {
        if let Some(second) = index.and_then(|index| self.seconds.get(&index)) {
            (self.hooks.see)(second);
        }
    }

    fn second(&mut self, index: u64) -> &mut Second {
        self.seconds.entry(index).or_insert_with(|| Second {
            at_s: index as f64,
            counts: Counts::default(),
            latency_us: Histogram::default(),
            server_cpu_s: 0.0,
            server_pss_bytes: 0,
            generator_cpu_s: 0.0,
            steal_s: 0.0,
            watched: None,
        })
    }

    fn take(&mut self, report: Report) -> anyhow::Result<()> {
        match report {
            Report::Begun(thread) => self.threads.push(thread),
            Report::Connected => self.connected += 1,
            Report::Drained => self.drained += 1,
            Report::Second(index, counts, latency) => {
                let second = self.second(index);
                second.counts += counts;
                second.latency_us.add(&latency);
            }
            Report::PhaseStats(stage, page) => {
                let (pages, sum) = self.pages.entry(stage).or_default();
                *pages += 1;
                sum.add(&page);
            }
            Report::Trouble(why) => {
                self.trouble.get_or_insert(why);
            }
            Report::Failed(error) => return Err(error.context("the generator cannot go on")),
        }
        Ok(())
    }

    fn conclude(&mut self, marks: &[(PhaseName, Reading, u64, Reading)]) -> Outcome {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let mut phases = Vec::new();
        for (name, first, end_ns, last) in marks {
            let stage = match name {
                PhaseName::Connect => Stage::Connect,
                PhaseName::Idle => Stage::Idle,
                PhaseName::Test => Stage::Test,
                PhaseName::After => Stage::After,
            };
            let page = self.pages.remove(&stage).map(|(_, page)| page).unwrap_or_default();
            phases.push(Phase {
                name: *name,
                start_s: seconds(first.at_ns),
                end_s: seconds(*end_ns),
                drained_s: seconds(last.at_ns),
                counts: page.counts,
                latency_us: page.latency,
                service_us: page.service,
                spread_us: page.spread,
                connect_us: page.connect,
                probe_us: page.probe,
                lateness_us: page.lateness,
                lag_us: page.lag,
                silence_us: page.silence_ns / 1000,
                server: last.sample.server.since(&first.sample.server),
                generator: last.generator.since(&first.generator),
                watched: None,
            });
        }
        let mut validity = std::mem::take(&mut self.findings);
        validity.extend(verdict::findings(self.plan, &phases, self.waited_share, self.trouble.as_deref()));
        Outcome {
            started: self.shared.clock.0,
            phases,
            seconds: std::mem::take(&mut self.seconds).into_values().collect(),
            validity,
        }
    }
}
