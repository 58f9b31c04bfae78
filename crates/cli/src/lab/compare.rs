//! `millrace lab compare`

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, ensure};
use clap::Args as ClapArgs;
use millrace_lab::{
    analysis::compare::{Aspect, Options, compare},
    report,
    sweep::Store,
};

#[derive(ClapArgs)]
#[command(
    after_help = "Judged by CPU per delivery, deliveries per second, p99 and memory, at each point that both have. A figure has changed if chance \
    explains it in less than one of 20 comparisons, all figures counted together, and if it changed by more than the band. That takes 4 \
    valid runs on both sides.\n\n\
    Two builds are measured by one lab: --targets names their programs. A lab that starts its own file shares memory with that server, \
    which then seems to need less: name two files, neither of them the one that runs the lab.\n\n\
    Exit codes: 0 no regression, 1 regression, 2 refused or no verdict, 3 error.\n\n\
    Example: is my change slower than the old build\n  \
    millrace lab run thorsen-broadcast --repeats 5 --targets millrace=old/millrace --out before\n  \
    millrace lab run thorsen-broadcast --repeats 5 --targets millrace=target/release/millrace --out after\n  \
    millrace lab compare before after\n\
    Example: in spite of another kernel, and only what changed by more than 5 %\n  \
    millrace lab compare monday tuesday --despite kernel --band 5%\n\
    Example: as a page to send around\n  millrace lab compare before after --html comparison.html"
)]
pub struct Args {
    /// Results to compare with: a folder that `millrace lab run` wrote
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Results that are judged
    #[arg(value_name = "B")]
    b: PathBuf,
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
    let (a, b) = (Store::read(&args.a)?, Store::read(&args.b)?);
    let options = Options { band: args.band, despite: args.despite, ..Options::default() };
    let outcome = compare(&a, &b, &options);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        print!("{outcome}");
    }
    if let Some(file) = args.html {
        let labels = [&args.a, &args.b].map(|folder| folder.display().to_string());
        report::write_comparison(&file, [&labels[0], &labels[1]], [&a, &b], &outcome)?;
    }
    Ok(ExitCode::from(outcome.verdict.exit_code()))
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
