//! `millrace lab`: measures this server and others. One file per subcommand; all but flags and printing is
//! `millrace-lab`.

mod battery;
mod capacity;
mod compare;
mod doctor;
mod exit;
mod export;
mod feed;
mod heartbeat;
mod link;
mod link_live;
mod list;
mod live;
mod report;
mod run;
mod signals;
mod supervised;
mod view;
mod worker;

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use millrace_lab::sweep::Interrupted;

pub use exit::EXIT_ERROR;

use crate::output;
use exit::EXIT_INTERRUPTED;

#[derive(ClapArgs)]
#[command(
    after_help = "Exit codes: 0 success, 1 a service level was missed or a check failed, 2 a run is invalid, 3 error, 130 interrupted.\n\n\
    Example: a short trial run\n  millrace lab run thorsen-broadcast --quick\n\
    Example: check the limits of this machine\n  millrace lab doctor"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List scenarios and targets
    List(list::Args),
    /// Run a scenario
    Run(run::Args),
    /// Find the maximum load that keeps a service level
    Capacity(capacity::Args),
    /// Compare two recordings and report regressions
    Compare(compare::Args),
    /// Create an HTML report from a recording
    Report(report::Args),
    /// Write the figures of a recording as CSV files, with the columns of the theses
    Export(export::Args),
    /// Emulate a network: run a program behind it, or check that it is exact
    Link(link::Args),
    /// Find the longest heartbeat interval that a network permits
    Heartbeat(heartbeat::Args),
    /// Compute the power and battery life of a phone that forwards messages
    Battery(battery::Args),
    /// Show the limits of this machine and the commands that raise them
    Doctor(doctor::Args),
    /// Make the load that standard input assigns, as a process of `run`
    #[command(hide = true)]
    Worker(worker::Args),
}

pub fn run(args: Args) -> ExitCode {
    let result = match args.command {
        Command::List(args) => list::run(&args),
        Command::Run(args) => run::run(args),
        Command::Capacity(args) => capacity::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Report(args) => report::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Link(args) => link::run(args),
        Command::Heartbeat(args) => heartbeat::run(args),
        Command::Battery(args) => battery::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Worker(args) => worker::run(&args),
    };
    result.unwrap_or_else(|error| {
        if output::is_closed_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        output::note(format_args!("millrace: {error:#}"));
        ExitCode::from(if error.is::<Interrupted>() { EXIT_INTERRUPTED } else { EXIT_ERROR })
    })
}
