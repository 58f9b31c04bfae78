//! `millrace lab`: measures this server and others. One file per subcommand; all but flags and printing is `millrace-lab`.

mod capacity;
mod compare;
mod doctor;
mod list;
mod live;
mod report;
mod run;
mod view;

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use clap::{Args as ClapArgs, Subcommand};
use millrace_lab::sweep::{Interrupted, Verdict};
use tokio::signal::unix::{SignalKind, signal};

/// Exit codes, for scripts.
pub const EXIT_MISSED: u8 = 1;
pub const EXIT_INVALID: u8 = 2;
pub const EXIT_ERROR: u8 = 3;
/// Source: the convention of shells, 128 + SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

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
    /// Show the limits of this machine and the commands that raise them
    Doctor(doctor::Args),
}

pub fn run(args: Args) -> ExitCode {
    let result = match args.command {
        Command::List(args) => list::run(&args),
        Command::Run(args) => run::run(args),
        Command::Capacity(args) => capacity::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Report(args) => report::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("millrace: {error:#}");
        ExitCode::from(if error.is::<Interrupted>() { EXIT_INTERRUPTED } else { EXIT_ERROR })
    })
}

/// An invalid run cannot judge a service level, so it takes precedence.
fn exit_code(verdict: &Verdict) -> ExitCode {
    match verdict {
        Verdict { invalid: 1.., .. } => ExitCode::from(EXIT_INVALID),
        Verdict { missed: 1.., .. } => ExitCode::from(EXIT_MISSED),
        _ => ExitCode::SUCCESS,
    }
}

/// Returns a flag that SIGINT or SIGTERM sets; the run then keeps its recording and stops its servers. A second signal exits
/// immediately.
fn stop_by_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stop = Arc::new(AtomicBool::new(false));
    let signalled = Arc::clone(&stop);
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
                if signalled.swap(true, Relaxed) {
                    std::process::exit(EXIT_INTERRUPTED.into());
                }
            }
        });
    })?;
    Ok(stop)
}
