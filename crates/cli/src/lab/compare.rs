//! `millrace lab compare`

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

#[derive(ClapArgs)]
#[command(
    after_help = "Two builds, or two servers, are best measured in turns, by one run with two targets, so that what changes with time changes both. \
    From 6 repeats on, each run is then compared with the one beside it. \
    Two folders were measured one after the other: what the machine did meanwhile is then taken for the build.\n\n\
    Judged by CPU per delivery, deliveries per second, p99 and memory, at each point that both have. A figure has changed if chance \
    explains it in less than one of 20 comparisons, all figures counted together, and if it changed by more than the band. That takes 4 \
    valid runs on both sides.\n\n\
    A lab that starts its own file shares memory with that server, which then seems to need less: name two files, neither of them the one \
    that runs the lab.\n\n\
    Exit codes: 0 no regression, 1 regression, 2 refused or no verdict, 3 error.\n\n\
    Example: is my change slower than the old build\n  \
    millrace lab run thorsen-broadcast --repeats 10 --targets millrace@old=old/millrace,millrace@new=new/millrace --out change\n  \
    millrace lab compare change --targets millrace@old,millrace@new\n\
    Example: two results\n  millrace lab compare before after\n\
    Example: in spite of another kernel, and only what changed by more than 5 %\n  \
    millrace lab compare monday tuesday --despite kernel --band 5%\n\
    Example: as a page to send around\n  millrace lab compare before after --html comparison.html"
)]
pub struct Args {
    /// Results to compare with: a folder that `millrace lab run` wrote
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Results that are judged
    #[arg(value_name = "B", required_unless_present = "targets")]
    b: Option<PathBuf>,
    /// Two targets of the one result A: what to compare with, and what is judged
    #[arg(long, value_name = "OLD,NEW", value_delimiter = ',', conflicts_with = "b")]
    targets: Vec<String>,
    /// A change by at most this much is none
    #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = percent)]
    band: f64,
    /// What may differ although it should be equal: scenario, form, parameters, machine, kernel, pinning, generator
    #[arg(long, value_name = "WHAT,..", value_delimiter = ',')]
    despite: Vec<Aspect>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// As a page, too: one file for any browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (a, b, labels) = args.sides()?;
    let in_turns = !args.targets.is_empty();
    let options = Options { band: args.band, despite: args.despite.clone(), in_turns, ..Options::default() };
    let outcome = compare(&a, &b, &options);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        print!("{outcome}");
    }
    if let Some(file) = args.html {
        report::write_comparison(&file, [&labels[0], &labels[1]], [&a, &b], &outcome)?;
    }
    Ok(ExitCode::from(outcome.verdict.exit_code()))
}

impl Args {
    /// What is compared, and what each is called.
    fn sides(&self) -> anyhow::Result<(Recording, Recording, [String; 2])> {
        let a = Store::read(&self.a)?;
        let [old, new] = self.targets.as_slice() else {
            let folder = self.b.as_ref().context("--targets takes two: OLD,NEW")?;
            return Ok((a, Store::read(folder)?, [&self.a, folder].map(|folder| folder.display().to_string())));
        };
        let seen = a.targets().join(", ");
        for name in [old, new] {
            ensure!(a.targets().contains(&name.as_str()), "{} has no runs of {name}, but of {seen}", self.a.display());
        }
        let both = if kind(old) == kind(new) { kind(old).to_owned() } else { format!("{new} against {old}") };
        Ok((a.of_target(old, &both), a.of_target(new, &both), [old.clone(), new.clone()]))
    }
}

/// `3%` or `0.03`.
fn percent(text: &str) -> anyhow::Result<f64> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.trim().parse::<f64>().context("a share, such as 3% or 0.03")? / unit;
    ensure!((0.0..1.0).contains(&share), "at least 0%, less than 100%");
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
