//! `millrace lab compare`: compares two recordings, or two targets of one recording.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, ensure};
use clap::Args as ClapArgs;
use millrace_lab::{
    analysis::compare::{Aspect, Options, compare},
    recording::Recording,
    report,
    sweep::Store,
    targets::kind,
};

use crate::output;

#[derive(ClapArgs)]
#[command(
    after_help = "Measure two builds or two servers in one run with two targets: the lab alternates between them, so that drift of the machine affects both. \
    With 6 repeats or more, each run is compared with its neighbour. \
    Two folders were measured one after the other, so drift of the machine looks like a difference between the builds.\n\n\
    Compares CPU per delivery, deliveries per second, p99 latency and memory at each point that both have. A metric has changed if the \
    difference is significant at the 5 % level, corrected for the number of metrics, and larger than the band. That requires 4 \
    valid runs on each side.\n\n\
    A server started from the lab's own executable shares memory pages with the lab and appears smaller: name two executables, and run the \
    lab from a third.\n\n\
    Exit codes: 0 no regression, 1 regression, 2 refused or no verdict, 3 error.\n\n\
    Example: compare a change with the old build\n  \
    millrace lab run thorsen-broadcast --repeats 10 --targets millrace@old=old/millrace,millrace@new=new/millrace --out change\n  \
    millrace lab compare change --targets millrace@old,millrace@new\n\
    Example: compare two recordings\n  millrace lab compare before after\n\
    Example: accept different kernels, and ignore changes of up to 5 %\n  \
    millrace lab compare monday tuesday --despite kernel --band 5%\n\
    Example: write a page to share\n  millrace lab compare before after --html comparison.html"
)]
pub struct Args {
    /// Baseline: a folder written by `millrace lab run`
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Recording to judge against the baseline
    #[arg(value_name = "B", required_unless_present = "targets")]
    b: Option<PathBuf>,
    /// Compare two targets of recording A: the baseline, and the one to judge
    #[arg(long, value_name = "OLD,NEW", value_delimiter = ',', conflicts_with = "b")]
    targets: Vec<String>,
    /// Ignore changes up to this size
    #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = percent)]
    band: f64,
    /// Allow these conditions to differ: scenario, form, parameters, machine, kernel, pinning, generator
    #[arg(long, value_name = "WHAT,..", value_delimiter = ',')]
    despite: Vec<Aspect>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the data of the HTML page as JSON
    #[arg(long, conflicts_with = "json")]
    data: bool,
    /// Write the comparison as a self-contained HTML page, too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (a, b, labels) = args.sides()?;
    let in_turns = !args.targets.is_empty();
    let options = Options { band: args.band, despite: args.despite.clone(), in_turns, ..Options::default() };
    let outcome = compare(&a, &b, &options);
    let data = || report::comparison_data([&labels[0], &labels[1]], [&a, &b], &outcome);
    if args.data {
        output::line(data()?)?;
    } else if args.json {
        output::line(serde_json::to_string_pretty(&outcome)?)?;
    } else {
        output::text(&outcome)?;
    }
    if let Some(file) = args.html {
        report::write_comparison(&file, &data()?)?;
    }
    Ok(ExitCode::from(outcome.verdict.exit_code()))
}

impl Args {
    /// Returns the two recordings to compare, and the label of each.
    fn sides(&self) -> anyhow::Result<(Recording, Recording, [String; 2])> {
        let a = Store::read(&self.a)?;
        let [old, new] = self.targets.as_slice() else {
            let folder = self.b.as_ref().context("--targets takes two: OLD,NEW")?;
            return Ok((a, Store::read(folder)?, [&self.a, folder].map(|folder| folder.display().to_string())));
        };
        let seen = a.targets().join(", ");
        for name in [old, new] {
            ensure!(
                a.targets().contains(&name.as_str()),
                "{} has no runs of target {name}; it has {seen}",
                self.a.display()
            );
        }
        let both = if kind(old) == kind(new) { kind(old).to_owned() } else { format!("{new} against {old}") };
        Ok((a.of_target(old, &both), a.of_target(new, &both), [old.clone(), new.clone()]))
    }
}

/// A clap parser for a share: `3%` or `0.03`.
fn percent(text: &str) -> anyhow::Result<f64> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.trim().parse::<f64>().context("expected a share, for example 3% or 0.03")? / unit;
    ensure!((0.0..1.0).contains(&share), "expected at least 0% and less than 100%");
    Ok(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_are_shares() {
        assert_eq!((percent("5%").unwrap(), percent("0.05").unwrap(), percent("0").unwrap()), (0.05, 0.05, 0.0));
        assert!(percent("5").is_err() && percent("-1%").is_err() && percent("much").is_err());
    }
}
