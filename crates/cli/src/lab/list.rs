//! `millrace lab list`: lists scenarios and targets.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use millrace_lab::catalogue::catalogue;

use crate::output;

#[derive(ClapArgs)]
#[command(
    after_help = "Example: list everything, with the version of each target installed here\n  millrace lab list\n\
    Example: the names of the scenarios that need no root privileges\n  \
    millrace lab list --json | jq -r '.scenarios[] | select(.needs == []) | .name'"
)]
pub struct Args {
    /// Print JSON, with durations and parameters of the scenarios
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let catalogue = catalogue()?;
    if args.json {
        output::line(serde_json::to_string(&catalogue)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line("scenarios, for `millrace lab run NAME`:")?;
    for scenario in &catalogue.scenarios {
        output::line(format_args!("  {:<22} {}", scenario.name, scenario.summary))?;
    }
    output::line("\ntargets, for --targets:")?;
    for target in catalogue.targets {
        let version = target.version.or_else(|| Some(format!("not available: {}", target.missing?)));
        let (name, transports) = (target.name, target.transports.join(", "));
        output::line(format_args!("  {name:<14} {transports:<58} {}", version.unwrap_or_default()))?;
    }
    Ok(ExitCode::SUCCESS)
}
