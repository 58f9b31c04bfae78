//! A servo loop: a controller changes a lamp of a simulated kit, and the kit's light sensor reports the change (row
//! K-17, which the thesis names as future work).
//!
//! The loop: controller → server → emulated 3G → kit → serial connection → firmware → I2C → LED driver → lamp → light
//! sensor → firmware → serial connection → kit → emulated 3G → server → controller.
//!
//! - this file: parameters, processes and networks
//! - [`controller`]: the steps, and when the sensor reports them
//! - [`tables`]: percentiles, histogram, promises

mod controller;
mod tables;

use std::{
    fs::File,
    net::SocketAddr,
    process::{Child, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use millrace_link::{Config, Traces};
use serde::Deserialize;

use crate::{
    path::{PathSettings, TunCable, congestion_control},
    recording::{Form, LinkRun},
    sweep::{Bench, Experiment},
    targets::{Options, find, kit},
    wire::namespace::{self, BYPASS_FAR, FAR, FAR_DEVICE, NEAR_DEVICE},
};

use controller::{Plan, Step};

/// Entry in the list of scenarios.
pub struct KaradoganServo;

const NAME: &str = "servo";
/// Estimated time to start server and kit, and to measure the light of the lamp switched off and on, in seconds.
const START_S: f64 = 5.0;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    targets: Vec<String>,
    steps: u32,
    #[serde(with = "humantime_serde")]
    every: Duration,
    repeats: u32,
    path: PathSettings,
}

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<Choice> {
        let choice: Choice = parameters.clone().try_into()?;
        ensure!(choice.targets == ["millrace"], "targets: millrace alone, which has the kit");
        ensure!((2..=100_000).contains(&choice.steps), "steps: 2 to 100,000");
        let every = Duration::from_millis(200)..=Duration::from_secs(60);
        ensure!(every.contains(&choice.every), "every: 200ms to 1min");
        ensure!((1..=100).contains(&choice.repeats), "repeats: 1 to 100");
        choice.link()?;
        Ok(choice)
    }

    fn link(&self) -> anyhow::Result<Config> {
        Ok(self.path.config_without_trace()?.unwrap_or_default())
    }
}

/// All steps over one network, and what passed its link.
struct Repeat {
    steps: Vec<Step>,
    link: LinkRun,
}

impl Experiment for KaradoganServo {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |choice: Choice| {
            f64::from(choice.repeats) * (START_S + f64::from(choice.steps) * choice.every.as_secs_f64())
        };
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let choice = Choice::read(parameters)?;
        if bench.has_table(tables::SERVO) {
            return Ok(());
        }
        if let Err(error) = TunCable::check() {
            ensure!(bench.form == Form::Quick, "no emulated links on this machine: {error:#}");
            bench.note(&format!("skipped: karadogan-servo needs emulated links: {error:#}"));
            return Ok(());
        }
        let options = bench.options("millrace", &[]);
        let mut repeats = Vec::new();
        for repeat in 0..choice.repeats {
            bench.go_on()?;
            let go_on = bench.go_on_elsewhere();
            let repeat = measure(&choice, &options, bench.seed.wrapping_add(repeat.into()), &go_on)?;
            drop(go_on);
            bench.note(&tables::describe(&repeat));
            repeats.push(repeat);
        }
        for table in tables::tables(&choice, &repeats) {
            bench.table(table)?;
        }
        Ok(())
    }
}

/// Runs all steps over one network. The kit is at the near end of the link, the server at the far end; the controller
/// reaches the server beside the link.
fn measure(
    choice: &Choice,
    options: &Options,
    seed: u64,
    go_on: &(dyn Fn() -> anyhow::Result<()> + Sync),
) -> anyhow::Result<Repeat> {
    let cable = TunCable::new(choice.link()?, Traces::default(), seed, None);
    // The kit names the server by its address at the link.
    let arguments = vec!["--set".into(), format!(r#"server.hosts=["{FAR}"]"#)];
    let start = || find("millrace")?.start(&Options { arguments, ..options.clone() });
    let (steps, drops) = namespace::across(&cable, start, |mut server| {
        server.move_to(FAR, BYPASS_FAR);
        let kit = Kit::start(server.address, options)?;
        let plan = Plan { steps: choice.steps, every: choice.every, seed, name: NAME };
        let beside = SocketAddr::from((BYPASS_FAR, server.address.port()));
        let steps = controller::run(beside, &plan, go_on).with_context(|| kit.log())?;
        drop(kit);
        let far = server.root_pids().first().and_then(|pid| namespace::drops(Some(*pid), FAR_DEVICE).ok());
        Ok((steps, namespace::drops(None, NEAR_DEVICE)? + far.unwrap_or_default()))
    })?;
    let link = cable.finish()?.link_run(choice.path.name(), congestion_control("")?, drops);
    Ok(Repeat { steps, link })
}

/// The process of the kit. It ends with this value.
struct Kit {
    process: Child,
    log: tempfile::NamedTempFile,
}

impl Kit {
    fn start(server: SocketAddr, options: &Options) -> anyhow::Result<Self> {
        let log = tempfile::NamedTempFile::new()?;
        let mut command = kit(server, NAME, options)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(log.path())?);
        Ok(Self { process: command.spawn().context("cannot start the kit")?, log })
    }

    /// Returns the output of the process, for an error.
    fn log(&self) -> String {
        format!("the kit wrote: {}", std::fs::read_to_string(self.log.path()).unwrap_or_default())
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::test_parameters::parameters;

    fn read(text: &str) -> anyhow::Result<Choice> {
        Choice::read(&parameters(include_str!("scenario.toml"), text))
    }

    #[test]
    fn invalid_parameters_are_refused() {
        assert!(read("").is_ok() && read("path = \"lte\"").is_ok());
        for refused in
            ["targets = [\"ws\"]", "steps = 1", "every = \"10ms\"", "repeats = 0", "path = \"9g\"", "other = 1"]
        {
            assert!(read(refused).is_err(), "{refused}");
        }
    }
}
