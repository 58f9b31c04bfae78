//! One run: a server on its CPUs, a load from other CPUs, an observer, and the findings about the validity of the
//! run.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use millrace_link::Traces;

use super::{
    Event, Job, Machine, Store, View,
    reader_traffic::{self, Window},
};
use crate::{
    judged::judged,
    load::{self, Hooks, Milestone, Plan},
    observe::Watch,
    path::{Report, TunCable, activity::PACKETS_MAX, congestion_control},
    recording::{Finding, Form, PhaseName, ReaderTraffic, Run, Second, Table},
    slo::Slo,
    spread::{Assignment, Division, Generators, Network},
    targets::{CLUSTER_NODE, Endpoint, Options, PublisherPlace, Server},
    wire::namespace::{self, FAR_DEVICE, NEAR_DEVICE},
    wire_cost::WireCostReport,
};

/// Descriptors of a node in addition to those of its connections.
const SERVER_DESCRIPTORS_BESIDE: u64 = 100;

/// Result of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub runs: u32,
    /// Number of runs that missed the service level, plus the number of failed checks in tables and wire cost report.
    pub missed: u32,
    /// Number of invalid runs, plus the number of invalid tables.
    pub invalid: u32,
}

/// Error: the user asked to stop. All completed runs are recorded.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Makes and records runs. Scenarios with their own code receive it.
pub struct Bench<'a> {
    pub form: Form,
    pub seed: u64,
    pub machine: &'a Machine,
    pub(super) slo: Option<&'a Slo>,
    pub(super) binaries: &'a BTreeMap<String, PathBuf>,
    pub(super) versions: &'a BTreeMap<String, String>,
    pub(super) store: Store,
    pub(super) view: &'a mut dyn View,
    pub(super) stop: &'a AtomicBool,
    /// Running servers that are kept for further runs, with their target and number of CPUs.
    pub(super) kept: Vec<(String, u64, Server)>,
    pub(super) verdict: Verdict,
    pub(super) left_s: f64,
}

impl Bench<'_> {
    /// Shows a text to the user.
    pub fn note(&mut self, text: &str) {
        self.view.show(&Event::Note(text));
    }

    /// Checks whether to continue. Call this function during everything that takes more than a second.
    ///
    /// Errors: [`Interrupted`].
    pub fn go_on(&self) -> anyhow::Result<()> {
        check(self.stop)
    }

    /// Returns a function like [`Bench::go_on`] for another thread.
    pub fn go_on_elsewhere(&self) -> impl Fn() -> anyhow::Result<()> + Send + Sync + '_ {
        let stop = self.stop;
        move || check(stop)
    }

    /// Returns the options of a target: its program and CPUs.
    pub fn options(&self, target: &str, cpus: &[usize]) -> Options {
        Options { cpus: cpus.to_vec(), binary: self.binaries.get(target).cloned(), ..Options::default() }
    }

    /// Returns the version of a target as recordings contain it.
    pub fn version(&self, target: &str) -> &str {
        self.versions.get(target).map_or("", String::as_str)
    }

    /// Records a table, replacing an older one with the same name. Its findings become notes, too.
    pub fn table(&mut self, mut table: Table) -> anyhow::Result<()> {
        self.accept_noise(&mut table.validity);
        let note = |finding: &Finding| {
            format!("{}: {}.", if finding.invalidates { "Not valid" } else { "Finding" }, finding.detail)
        };
        table.notes.extend(table.validity.iter().map(note));
        self.store.add_table(table)
    }

    /// In the quick form, noise of the machine does not invalidate results: that form checks whether things work, not
    /// how fast they are.
    fn accept_noise(&self, findings: &mut [Finding]) {
        if self.form == Form::Quick {
            findings.iter_mut().filter(|finding| finding.is_noise()).for_each(|finding| finding.invalidates = false);
        }
    }

    pub fn has_table(&self, name: &str) -> bool {
        self.store.tables().iter().any(|table| table.name == name)
    }

    /// Records the wire cost report, replacing an older one.
    pub fn set_wire_cost(&mut self, wire_cost: WireCostReport) -> anyhow::Result<()> {
        self.store.set_wire_cost(wire_cost)
    }

    pub fn has_wire_cost(&self) -> bool {
        self.store.wire_cost().is_some()
    }

    /// Returns the number of failed checks in the tables and the wire cost report.
    pub(super) fn failed(&self) -> u32 {
        judged(self.store.wire_cost(), self.store.tables()).iter().map(|judged| judged.failed.len() as u32).sum()
    }

    /// Returns the number of tables that are invalid.
    pub(super) fn invalid_tables(&self) -> u32 {
        self.store.tables().iter().filter(|table| !table.is_valid()).count() as u32
    }

    /// Returns true if a run with this part, target, transport, factors and repeat is recorded.
    pub fn has_run(&self, run: &Run) -> bool {
        self.store.has(run)
    }

    /// Records a run and judges it by the service level.
    pub fn record(&mut self, mut run: Run) -> anyhow::Result<()> {
        run.order = self.store.runs();
        let missed = self.missed(&run);
        self.verdict.runs += 1;
        self.verdict.invalid += u32::from(!run.is_valid());
        self.verdict.missed += u32::from(!missed.is_empty());
        self.store.add_run(&run)?;
        self.view.show(&Event::Ended { run: &run, missed: &missed });
        Ok(())
    }

    /// Returns the objectives of the service level that a run missed.
    pub fn missed(&self, run: &Run) -> Vec<String> {
        self.slo.map(|slo| slo.missed(run)).unwrap_or_default()
    }

    /// Makes and records all runs that are not recorded yet.
    pub(super) fn sweep(&mut self, jobs: &[Job]) -> anyhow::Result<()> {
        let of = jobs.len() as u32;
        let done = self.store.runs();
        self.view.show(&Event::Planned { runs: of, done, estimate_s: self.left_s });
        for job in jobs {
            if self.has_run(&job.run()) {
                self.left_s -= job.estimate_s();
            }
        }
        for (index, job) in jobs.iter().enumerate() {
            if self.has_run(&job.run()) {
                continue;
            }
            let label = job.label();
            self.view.show(&Event::Begun { index: index as u32, of, label: &label, left_s: self.left_s });
            let run = self.measure(job)?;
            self.left_s -= job.estimate_s();
            self.record(run)?;
        }
        Ok(())
    }

    /// Makes a run without recording it.
    ///
    /// Errors: [`Interrupted`]; the server does not start, with the end of its log. A later failure becomes a finding
    /// of the run.
    pub fn measure(&mut self, job: &Job) -> anyhow::Result<Run> {
        check(self.stop)?;
        let p = &job.parameters;
        let placement = self.machine.place(job.factors.server_cpus as usize, p.threads);
        let name = &job.name;
        let reused = self.kept.iter().position(|(of, cpus, _)| of == name && *cpus == job.factors.server_cpus);
        let mut link = p.path.config()?;
        let congestion = link.as_ref().map(|_| congestion_control(&p.congestion)).transpose()?.unwrap_or_default();
        let no_link = link.as_ref().and_then(|_| TunCable::check().err());
        let mut options = self.options(name, &placement.server_cpus);
        options.public_address = (link.is_some() && no_link.is_none()).then_some(namespace::FAR);
        let start = || job.target.start(&options).with_context(|| format!("target {name} does not start"));
        let plan = Plan {
            cpus: placement.generator_cpus.clone(),
            channel: format!("lab-{}", self.store.runs()),
            seed: self.seed.wrapping_add(u64::from(job.repeat)),
            ..p.plan(&job.factors)
        };
        let mut run = Run { target_version: self.version(name).to_owned(), placement, ..job.run() };
        if let Some(error) = no_link {
            link = None;
            run.validity.push(Finding {
                code: "no_link".into(),
                detail: format!("over loopback instead of the path {}: {error:#}", p.path.name()),
                invalidates: self.form != Form::Quick,
            });
        }
        let mut server = match link {
            Some(config) => {
                let cable = TunCable::new(config, Traces::default(), plan.seed, None).with_activity();
                self.load_over(cable.with_congestion(congestion), &mut run, &plan, job, start)?
            }
            None if p.connections_per_node > 0 => {
                self.spread(&mut run, &plan, job, &options)?;
                self.accept_noise(&mut run.validity);
                return Ok(run);
            }
            None => {
                let mut server = reused.map_or_else(start, |index| Ok(self.kept.swap_remove(index).2))?;
                self.load(&mut run, &plan, job, &mut server);
                server
            }
        };
        if self.stop.load(Relaxed) {
            return Err(Interrupted.into());
        }
        self.accept_noise(&mut run.validity);
        if run.placement.is_shared {
            run.validity.push(Finding {
                code: "shared_cpu".into(),
                detail: "server and generator had to share a CPU".into(),
                invalidates: false,
            });
        }
        let died = !server.is_alive();
        if died {
            let tail = server.log_tail();
            let finding = run.validity.iter_mut().find(|finding| finding.invalidates);
            finding.into_iter().for_each(|finding| finding.detail += &format!("; its log ends:\n{tail}"));
        } else if !p.fresh_server && p.path.is_none() {
            self.kept.push((name.clone(), job.factors.server_cpus, server));
        }
        Ok(run)
    }

    /// Starts the server at the far end of an emulated link, and loads it from the near end.
    fn load_over(
        &mut self,
        cable: TunCable,
        run: &mut Run,
        plan: &Plan,
        job: &Job,
        start: impl FnOnce() -> anyhow::Result<Server> + Send,
    ) -> anyhow::Result<Server> {
        let parameters = &job.parameters;
        let publishers = match parameters.publisher {
            PublisherPlace::Clients => namespace::FAR,
            PublisherPlace::Server => namespace::BYPASS_FAR,
        };
        let congestion = cable.congestion().to_owned();
        let (server, started, drops) = namespace::across(&cable, start, |mut server| {
            server.move_to(namespace::FAR, publishers);
            let started = self.load(run, plan, job, &mut server);
            // A server that has died is a finding of its own.
            let far = server.root_pids().first().and_then(|pid| namespace::drops(Some(*pid), FAR_DEVICE).ok());
            let drops = namespace::drops(None, NEAR_DEVICE)? + far.unwrap_or_default();
            Ok((server, started, drops))
        })?;
        let report = cable.finish()?;
        let mut link = report.link_run(parameters.path.name(), congestion, drops);
        run.validity.extend(link.findings());
        if let Some(started) = started {
            link.readers = traffic_of_readers(run, plan, job, &report, started)?;
            if link.readers.is_none() {
                run.validity.push(Finding {
                    code: "long_activity".into(),
                    detail: format!("bytes and energy of the readers are unknown after {PACKETS_MAX} packets"),
                    invalidates: false,
                });
            }
        }
        run.link = Some(link);
        Ok(server)
    }

    /// Loads the server and fills in the run. Returns the time from which the times of the run count, or `None` if the
    /// run failed.
    fn load(&mut self, run: &mut Run, plan: &Plan, job: &Job, server: &mut Server) -> Option<Instant> {
        let (stop, view) = (self.stop, &mut *self.view);
        let is_far = server.address.ip() == namespace::FAR;
        // Metrics do not pass the link: their packets would take its rate and keep its radio active.
        let from = if is_far { namespace::BYPASS_FAR.into() } else { server.address.ip() };
        let metrics = job.target.metrics().map(|path| ((from, server.address.port()).into(), path));
        let mut endpoint = Endpoint::new(job.target, job.transport, server, job.parameters.poll_every)
            .with_publisher(job.parameters.publisher);
        if is_far {
            endpoint = endpoint.with_devices(namespace::device);
        }
        let mut make = || -> anyhow::Result<Instant> {
            let mut watch = Watch::start(&server.root_pids(), metrics)?;
            let hooks = Hooks {
                observe: &mut || {
                    check(stop)?;
                    watch.look()
                },
                see: &mut |second| view.show(&Event::Second(second)),
                reach: &mut |milestone| match milestone {
                    Milestone::Halfway if job.parameters.failover => server.kill_part(CLUSTER_NODE),
                    _ => Ok(()),
                },
            };
            let outcome = load::run_with(plan, &endpoint, hooks)?;
            let seen = watch.finish(outcome.started);
            (run.phases, run.seconds, run.validity) = (outcome.phases, outcome.seconds, outcome.validity);
            seen.fill_in(&mut run.phases, &mut run.seconds);
            run.validity.extend(seen.findings(&run.phases));
            Ok(outcome.started)
        };
        match make() {
            Ok(started) => Some(started),
            Err(error) => {
                run.validity.push(Finding { code: "failed".into(), detail: format!("{error:#}"), invalidates: true });
                None
            }
        }
    }
}

impl Bench<'_> {
    /// Starts as many nodes as the load requires, loads each from a generator process of its own, and fills in the run.
    ///
    /// Errors: a node does not start.
    fn spread(&mut self, run: &mut Run, plan: &Plan, job: &Job, options: &Options) -> anyhow::Result<()> {
        let p = &job.parameters;
        let connections_max = self.machine.connections(p.connections_per_node);
        let division = Division::of(plan, connections_max)?;
        let network = Network::new(job.target);
        let options = Options { descriptors: connections_max + SERVER_DESCRIPTORS_BESIDE, ..options.clone() };
        let start =
            |i| network.start_node(i, job.target, &options).with_context(|| format!("node {i} of {}", job.name));
        let servers = (0..division.nodes()).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        if let Some(why) = network.why_loopback() {
            let detail = format!("over loopback instead of network namespaces: {why}");
            run.validity.push(Finding { code: "no_namespace".into(), detail, invalidates: false });
        }
        let assign = |(i, (plan, server)): (usize, (Plan, &Server))| Assignment {
            plan,
            target: job.target.name().into(),
            transport: job.transport,
            server: server.address,
            sources: network.sources(i),
            poll_every: p.poll_every,
            publisher: p.publisher,
        };
        let assignments: Vec<_> = division.plans(plan).into_iter().zip(&servers).enumerate().map(assign).collect();
        let (stop, view) = (self.stop, &mut *self.view);
        let mut make = || -> anyhow::Result<()> {
            let generators = Generators::start(&network, servers.len())?;
            let pids: Vec<u32> = servers.iter().flat_map(Server::root_pids).collect();
            let mut watch = Watch::start_beside(&pids, &generators.pids(), None)?;
            let mut observe = || {
                check(stop)?;
                watch.look()
            };
            let mut see = |second: &Second| view.show(&Event::Second(second));
            let (outcome, spread) = generators.run(plan, &assignments, &mut observe, &mut see)?;
            let seen = watch.finish(outcome.started);
            (run.phases, run.seconds, run.spread) = (outcome.phases, outcome.seconds, Some(spread));
            run.validity.extend(outcome.validity);
            seen.fill_in(&mut run.phases, &mut run.seconds);
            run.validity.extend(seen.findings(&run.phases));
            Ok(())
        };
        if let Err(error) = make() {
            check(stop)?;
            let tail = servers.first().map(Server::log_tail).unwrap_or_default();
            let detail = format!("{error:#}; the log of the first node ends:\n{tail}");
            run.validity.push(Finding { code: "failed".into(), detail, invalidates: true });
        }
        Ok(())
    }
}

/// Returns the traffic of the readers during the test of a run; `None` if the link had too many packets to record.
fn traffic_of_readers(
    run: &Run,
    plan: &Plan,
    job: &Job,
    report: &Report,
    started: Instant,
) -> anyhow::Result<Option<ReaderTraffic>> {
    let (Some(test), Some(packets)) = (run.phase(PhaseName::Test), report.activity.packets()) else { return Ok(None) };
    let offset = started.saturating_duration_since(report.started);
    let at = |seconds: f64| offset + Duration::from_secs_f64(seconds);
    let radio = job.parameters.radio()?;
    let readers = (0..plan.clients).map(namespace::device);
    let start = at(test.start_s);
    // The first publication is due a little after the start of the phase.
    let window = Window { start, end: start + plan.test, drained: at(test.drained_s) };
    Ok(Some(reader_traffic::traffic(packets, readers, window, radio.as_ref())))
}

fn check(stop: &AtomicBool) -> anyhow::Result<()> {
    ensure!(!stop.load(Relaxed), Interrupted);
    Ok(())
}
