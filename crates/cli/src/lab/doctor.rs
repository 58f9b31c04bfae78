//! `millrace lab doctor`: shows which limits of this machine a run would hit.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use millrace_lab::host::doctor::Machine;

use super::exit::EXIT_MISSED;
use crate::{number::number, output};

#[derive(ClapArgs)]
#[command(after_help = "Exit code 1 if the machine limits a run of that size, otherwise 0.\n\n\
    Example: check this machine for 50,000 connections\n  millrace lab doctor --connections 50000")]
pub struct Args {
    /// Connections of the largest run; both ends are on this machine
    #[arg(long, default_value_t = 5000, value_parser = number::<u64, _>(1..=10_000_000))]
    connections: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let diagnosis = Machine::read().examine(args.connections);
    if args.json {
        output::line(serde_json::to_string_pretty(&diagnosis)?)?;
    } else {
        output::text(&diagnosis)?;
    }
    Ok(ExitCode::from(if diagnosis.is_good() { 0 } else { EXIT_MISSED }))
}
