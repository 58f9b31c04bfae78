//! `millrace lab report`: creates the HTML report of a recording.

use std::{path::PathBuf, process::ExitCode};

use clap::Args as ClapArgs;
use millrace_lab::{analysis::analyse, report, sweep::Store};

use crate::output;

#[derive(ClapArgs)]
#[command(
    after_help = "Writes report.html, a self-contained page that works offline, and analysis.json with all its figures.\n\n\
    Example: create a report and open it\n  \
    xdg-open \"$(millrace lab report lab-results/thorsen-broadcast-20261121T200000Z)\"\n\
    Example: create the report again with a newer Millrace\n  millrace lab report lab-results/thorsen-broadcast-20261121T200000Z"
)]
pub struct Args {
    /// Folder with the recording.json of `millrace lab run`
    dir: PathBuf,
    /// Print the data of the page as JSON, and write no file
    #[arg(long)]
    data: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let analysis = analyse(&[Store::read(&args.dir)?])?;
    match args.data {
        true => output::line(report::data(&analysis)?)?,
        false => output::line(report::write(&args.dir, &analysis)?.display())?,
    }
    Ok(ExitCode::SUCCESS)
}
