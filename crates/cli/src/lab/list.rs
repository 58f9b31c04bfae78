//! `millrace lab list`: lists scenarios and targets.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use millrace_lab::{
    scenarios::SCENARIOS,
    targets::{Options, TARGETS},
};

use crate::output;

#[derive(ClapArgs)]
#[command(after_help = "Example: list everything, with the version of each target installed here\n  millrace lab list")]
pub struct Args {}

pub fn run(_: &Args) -> anyhow::Result<ExitCode> {
    output::line("scenarios, for `millrace lab run NAME`:")?;
    for scenario in SCENARIOS {
        output::line(format_args!("  {:<22} {}", scenario.name, scenario.about().summary))?;
    }
    output::line("\ntargets, for --targets:")?;
    for target in TARGETS {
        let transports: Vec<&str> = target.transports().iter().map(|transport| transport.name()).collect();
        let version = match target.version(&Options::default()) {
            Ok(version) => version,
            Err(error) => format!("not available: {error}"),
        };
        output::line(format_args!("  {:<14} {:<58} {version}", target.name(), transports.join(", ")))?;
    }
    Ok(ExitCode::SUCCESS)
}
