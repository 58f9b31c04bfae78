//! `millrace lab report`

use std::{path::PathBuf, process::ExitCode};

use clap::Args as ClapArgs;
use millrace_lab::{analysis::analyse, report, sweep::Store};

#[derive(ClapArgs)]
#[command(
    after_help = "Writes report.html, one file that opens anywhere and asks nobody, and analysis.json with all of its figures.\n\n\
    Example: draw what was recorded, and open it\n  \
    xdg-open \"$(millrace lab report lab-results/thorsen-broadcast-20261121T200000Z)\"\n\
    Example: again, after Millrace has learned to draw something new\n  millrace lab report lab-results/thorsen-broadcast-20261121T200000Z"
)]
pub struct Args {
    /// A folder with a recording.json, as `millrace lab run` writes it
    dir: PathBuf,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let analysis = analyse(&[Store::read(&args.dir)?])?;
    println!("{}", report::write(&args.dir, &analysis)?.display());
    Ok(ExitCode::SUCCESS)
}
