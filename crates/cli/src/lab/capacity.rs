//! `millrace lab capacity`: finds the largest load that keeps a service level.

use std::{path::PathBuf, process::ExitCode};

use anyhow::ensure;
use clap::Args as ClapArgs;
use millrace_lab::{scenarios, sweep::Capacity};

use super::{
    exit::{EXIT_INVALID, EXIT_MISSED},
    run::{Selection, command_line, fresh_folder},
    signals::stop_by_signal,
    view,
};

use crate::output;

#[derive(ClapArgs)]
#[command(
    after_help = "Doubles the load from the scenario's lowest level until the service level is missed, then bisects the interval to 5 %.\n\
    A level counts as kept or missed when two runs agree. With --quick, noise of the machine is ignored: use it only as a trial.\n\
    Exit codes: 1 if the lowest level already misses, 2 if the runs were invalid.\n\n\
    Example: how many WebSocket subscribers at 200 messages per second\n  \
    millrace lab capacity thorsen-broadcast --transports websocket --slo 'p99<100ms'\n\
    Example: how many messages per second to 100 subscribers\n  \
    millrace lab capacity thorsen-broadcast --slo 'p99<100ms' --set axis=each-per-s --set clients=100 --set each_per_s=100"
)]
pub struct Args {
    /// Scenario to run; `millrace lab list` lists them
    scenario: String,
    #[command(flatten)]
    selection: Selection,
    /// Output folder [default: lab-results/capacity-SCENARIO-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    ensure!(args.selection.slo.is_some(), "missing --slo: name the service level, for example --slo 'p99<100ms'");
    let scenario = scenarios::find(&args.scenario)?;
    let folder = args.out.unwrap_or_else(|| fresh_folder(&format!("capacity-{}", scenario.name)));
    let request = args.selection.request(scenario, folder.clone(), None, command_line())?;
    let stop = stop_by_signal()?;
    let mut view = view::of_terminal();
    let found = request.capacity(&mut *view, &stop);
    drop(view);
    if folder.exists() {
        output::line(folder.display())?;
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
