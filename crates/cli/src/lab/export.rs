//! `millrace lab export`: writes the figures of a recording as CSV files.

use std::{path::PathBuf, process::ExitCode};

use clap::Args as ClapArgs;
use millrace_lab::{export::export, sweep::Store};

use crate::output;

#[derive(ClapArgs)]
#[command(
    after_help = "Writes one file for each table of the thesis that belongs to the scenario, with its name and columns, then mean, sd, median, p95, p99, \
    max and n, then the columns that identify our series; runs.csv with one line per run; and one file for each recorded table. \
    An empty cell is an unknown value. export.json lists all files and explains them.\n\n\
    Replaces the files of an earlier export, and no others.\n\n\
    Example: write the files to the folder csv beside the recording\n  millrace lab export lab-results/karadogan-pairs-20261121T200000Z\n\
    Example: write them to another folder\n  millrace lab export lab-results/karadogan-pairs-20261121T200000Z --out figures"
)]
pub struct Args {
    /// Folder with the recording.json of `millrace lab run`
    dir: PathBuf,
    /// Folder for the files [default: DIR/csv]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let recording = Store::read(&args.dir)?;
    let folder = args.out.clone().unwrap_or_else(|| args.dir.join("csv"));
    let exported = export(&recording, &folder)?;
    for note in &exported.notes {
        output::note(format_args!("note: {note}"));
    }
    if exported.runs < exported.runs_planned {
        let dir = args.dir.display();
        output::note(format_args!("to continue the run: millrace lab run --resume {dir}; then export again"));
    }
    for file in exported.files.iter().filter(|file| file.rows == 0) {
        output::note(format_args!("no rows: {}: {}", file.name, file.note));
    }
    let rows: usize = exported.files.iter().map(|file| file.rows).sum();
    output::note(format_args!("{} files with {rows} rows", exported.files.len()));
    output::line(folder.display())?;
    Ok(ExitCode::SUCCESS)
}
