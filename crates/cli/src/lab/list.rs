//! `millrace lab list`

use std::process::ExitCode;

use clap::Args as ClapArgs;
use millrace_lab::{
    scenarios::SCENARIOS,
    targets::{Options, TARGETS},
};

#[derive(ClapArgs)]
#[command(after_help = "Example: all there is, and what of it can be had here\n  millrace lab list")]
pub struct Args {}

pub fn run(_: &Args) -> anyhow::Result<ExitCode> {
    println!("scenarios, for `millrace lab run NAME`:");
    for scenario in SCENARIOS {
        println!("  {:<22} {}", scenario.name, scenario.about().summary);
    }
    println!("\ntargets, for --targets:");
    for target in TARGETS {
        let transports: Vec<&str> = target.transports().iter().map(|transport| transport.name()).collect();
        let version = match target.version(&Options::default()) {
            Ok(version) => version,
            Err(error) => format!("not here: {error}"),
        };
        println!("  {:<14} {:<58} {version}", target.name(), transports.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}
