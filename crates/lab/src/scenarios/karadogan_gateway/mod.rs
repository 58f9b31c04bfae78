//! The tasks of the browser on Karadogan's phone, done by `millrace gateway` (rows K-10 to K-12, K-16): forwarding
//! between data channels, gathering many messages into one, splitting one into many, and both at once.
//!
//! Each part has a table of delays, one of CPU usage, and one of bytes if the thesis has such figures. The thesis's
//! figures stand beside ours.
//!
//! - this file: parameters, one gateway per part
//! - [`mode`]: tasks of the gateway
//! - [`joining`]: how peers reach the gateway
//! - [`traffic`]: peers and messages, step by step
//! - [`tables`]: figures of the thesis and ours

pub(super) mod joining;
pub(super) mod mode;
pub(super) mod tables;
pub(super) mod traffic;

use std::{
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use millrace_link::Config;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Deserialize;

use crate::{
    host::{Root, Sampler, Series, Settings},
    path::{
        PathSettings, TunCable,
        gateway::{Forwarding, GatewayNetwork},
    },
    recording::{Form, Placement},
    sweep::{Bench, Experiment},
    targets,
};

use mode::Mode;
use traffic::{BYTES_MIN, Joining, Plan, Step, Traffic};

/// Entry in the list of scenarios.
pub struct KaradoganGateway;

/// Maximum number of native peers on one machine, each with a socket.
const PEERS_MAX: usize = 1000;
/// Estimated time for joining and for the start of a step, in seconds.
const STEP_S: f64 = 1.2;
const CPU_SAMPLES_MIN: u32 = 5;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    /// Only Millrace is possible: no other target has a gateway.
    targets: Vec<String>,
    mode: Mode,
    peers: Vec<usize>,
    #[serde(with = "humantime_serde")]
    test: Duration,
    each_per_s: f64,
    bytes: usize,
    #[serde(with = "humantime_serde")]
    window: Duration,
    fan_out: usize,
    /// Emulated link between the gateway and the servers. By default, everything uses loopback.
    path: PathSettings,
}

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<Choice> {
        let choice: Choice = parameters.clone().try_into()?;
        ensure!(choice.targets == ["millrace"], "targets: millrace alone, which has a gateway");
        let rising = choice.peers.windows(2).all(|pair| pair[0] < pair[1]);
        ensure!(rising && !choice.peers.is_empty(), "peers: one at least, each more than the one before");
        let in_bounds = choice.peers.iter().all(|peers| (1..=PEERS_MAX).contains(peers));
        ensure!(in_bounds, "peers: 1 to {PEERS_MAX}");
        ensure!((Duration::from_millis(500)..=Duration::from_secs(3600)).contains(&choice.test), "test: 500ms to 1h");
        ensure!((0.1..=1000.0).contains(&choice.each_per_s), "each_per_s: 0.1 to 1,000");
        ensure!((BYTES_MIN..=8192).contains(&choice.bytes), "bytes: {BYTES_MIN} to 8,192");
        ensure!((1..=100).contains(&choice.fan_out), "fan_out: 1 to 100");
        let windows = Duration::from_millis(1)..=Duration::from_secs(10);
        ensure!(windows.contains(&choice.window), "window: 1ms to 10s");
        choice.path.config_without_trace()?;
        Ok(choice)
    }
}

impl Experiment for KaradoganGateway {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |choice: Choice| choice.peers.len() as f64 * (choice.test.as_secs_f64() + STEP_S);
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let choice = Choice::read(parameters)?;
        if bench.has_table(tables::delay_name(choice.mode)) {
            return Ok(());
        }
        bench.go_on()?;
        let placement = bench.machine.place(1, 1);
        let mut options = bench.options("millrace", &placement.server_cpus);
        options.arguments = ["--mode", choice.mode.name(), "--peers", "10000"].map(str::to_owned).to_vec();
        if choice.mode.gathers() {
            options.arguments.extend(["--window".to_owned(), format!("{}ms", choice.window.as_millis())]);
        }
        let network = network(&choice, bench)?;
        let gateway = match &network {
            Some(network) => joining::start_gateway(network, options)?,
            None => targets::start_gateway(Ipv4Addr::LOCALHOST, &options)?,
        };
        let began = Instant::now();
        let interval = (choice.test / CPU_SAMPLES_MIN).min(Duration::from_secs(1));
        let settings = Settings { interval, ..Settings::default() };
        let root = Root { name: "gateway".into(), pid: gateway.root_pids()[0] };
        let sampler = Sampler::start(&[root], settings, move || began.elapsed())?;
        let joining = match &network {
            Some(network) => joining::over(network, gateway.address.port()),
            None => joining::over_loopback(gateway.address),
        };
        let plan = Plan {
            mode: choice.mode,
            period: Duration::from_secs_f64(1.0 / choice.each_per_s),
            bytes: choice.bytes,
            window: choice.window,
            fan_out: choice.fan_out,
        };
        let steps = load(plan, joining, (&choice.peers, choice.test), &placement, began, bench);
        let steps = steps
            .with_context(|| format!("{}; the gateway's log ends:\n{}", choice.mode.name(), gateway.log_tail()))?;
        let series = sampler.finish();
        for step in &steps {
            bench.note(&tables::describe(choice.mode, step, &cpu_percent(&series, step)));
        }
        let judges = bench.form != Form::Quick && !placement.is_shared;
        let mut tables = tables::tables(choice.mode, &steps, &series, judges);
        if let Some(network) = network {
            let report = network.finish()?;
            let run = report.mobile.link_run(choice.path.name(), String::new(), report.kernel_drops[1]);
            let mut findings = run.findings();
            findings.iter_mut().for_each(|finding| finding.invalidates &= bench.form != Form::Quick);
            for table in &mut tables {
                table.notes.push(format!("The servers are behind a link: {}.", run.cost()));
                table.validity.extend(findings.clone());
            }
        }
        tables.into_iter().try_for_each(|table| bench.table(table))
    }
}

/// Returns the emulated links, if the servers are behind a path. The devices have a link that changes nothing.
///
/// Errors: no emulated links on this machine, except in the quick form, which uses loopback then.
fn network(choice: &Choice, bench: &mut Bench<'_>) -> anyhow::Result<Option<GatewayNetwork>> {
    let Some(path) = choice.path.config_without_trace()? else { return Ok(None) };
    if let Err(error) = TunCable::check() {
        ensure!(bench.form == Form::Quick, "no emulated links on this machine: {error:#}");
        bench.note(&format!("over loopback instead of the path {}: {error:#}", choice.path.name()));
        return Ok(None);
    }
    GatewayNetwork::new(Forwarding::Gateway, [Config::default(), path], bench.seed).map(Some)
}

/// Runs all steps in a thread with its own CPUs. `steps`: the number of peers at each step, and its duration.
///
/// Errors: those of [`Traffic::step`].
pub(super) fn load(
    plan: Plan,
    joining: Joining,
    steps: (&[usize], Duration),
    placement: &Placement,
    began: Instant,
    bench: &Bench<'_>,
) -> anyhow::Result<Vec<Step>> {
    let go_on = bench.go_on_elsewhere();
    thread::scope(|scope| {
        let work = move || -> anyhow::Result<Vec<Step>> {
            let mut set = CpuSet::new();
            placement.generator_cpus.iter().for_each(|cpu| set.set(*cpu));
            if !placement.generator_cpus.is_empty() {
                sched_setaffinity(None, &set).context("no such CPU")?;
            }
            let mut traffic = Traffic::new(plan, joining, began)?;
            steps.0.iter().map(|peers| traffic.step(*peers, steps.1, &go_on)).collect()
        };
        let thread = thread::Builder::new().name("lab-peers".into()).spawn_scoped(scope, work)?;
        thread.join().expect("it does not panic")
    })
}

/// Returns the CPU usage of the gateway in percent of one core, for each sampling interval of a step.
fn cpu_percent(series: &Series, step: &Step) -> Vec<f64> {
    let of_step = |at_s: f64| (step.from_s..=step.to_s).contains(&at_s);
    let samples: Vec<(f64, f64)> = series
        .samples
        .iter()
        .filter(|sample| of_step(sample.at_s))
        .map(|sample| (sample.at_s, sample.trees.iter().map(|tree| tree.cpu.total_s()).sum()))
        .collect();
    samples.windows(2).map(|pair| (pair[1].1 - pair[0].1) / (pair[1].0 - pair[0].0) * 100.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::test_parameters::parameters;

    #[test]
    fn invalid_parameters_are_refused() {
        let read = |text: &str| Choice::read(&parameters(include_str!("scenario.toml"), text));
        assert!(read("").is_ok());
        for refused in [
            "targets = [\"ws\"]",
            "mode = \"mixed\"",
            "peers = []",
            "peers = [10, 5]",
            "peers = [0]",
            "test = \"1ms\"",
            "bytes = 5",
            "fan_out = 0",
            "window = \"0s\"",
            "path = \"3gg\"",
            "other = 1",
        ] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }
}
