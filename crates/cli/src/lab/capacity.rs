//! `millrace lab capacity`

use std::{path::PathBuf, process::ExitCode};

use anyhow::ensure;
use clap::Args as ClapArgs;
use millrace_lab::{scenarios, sweep::Capacity};

use super::{
    EXIT_INVALID, EXIT_MISSED,
    run::{What, command_line, fresh_folder},
    stop_by_signal, view,
};

#[derive(ClapArgs)]
#[command(
    after_help = "Doubles the load from the scenario's lowest level until the service level is missed, then halves what lies between, to 5 %.\n\
    A level is kept or missed when two runs agree. With --quick, noise of the machine counts for nothing: only to try it.\n\
    Ends with 1 if not even the lowest is kept, 2 if that could not be judged.\n\n\
    Example: how many readers of 200 messages per second, by WebSocket\n  \
    millrace lab capacity thorsen-broadcast --transports websocket --slo 'p99<100ms'\n\
    Example: how many messages per second to 100 readers\n  \
    millrace lab capacity thorsen-broadcast --slo 'p99<100ms' --set axis=each-per-s --set clients=100 --set each_per_s=100"
)]
pub struct Args {
    /// What to run: `millrace lab list`
    scenario: String,
    #[command(flatten)]
    what: What,
    /// Where to, instead of lab-results/capacity-SCENARIO-TIME
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    ensure!(args.what.slo.is_some(), "which service level? --slo 'p99<100ms'");
    let scenario = scenarios::find(&args.scenario)?;
    let folder = args.out.unwrap_or_else(|| fresh_folder(&format!("capacity-{}", scenario.name)));
    let request = args.what.request(scenario, folder.clone(), None, command_line())?;
    let stop = stop_by_signal()?;
    let mut view = view::of_terminal();
    let found = request.capacity(&mut *view, &stop);
    drop(view);
    if folder.exists() {
        println!("{}", folder.display());
    }
    let found = found?;
    let any = |of: fn(&Capacity) -> bool| found.iter().any(of);
    Ok(if any(|capacity| capacity.kept.is_none() && capacity.missed.is_none()) {
        ExitCode::from(EXIT_INVALID)
    } else if any(|capacity| capacity.kept.is_none()) {
        ExitCode::from(EXIT_MISSED)
    } else {
        ExitCode::SUCCESS
    })
}
