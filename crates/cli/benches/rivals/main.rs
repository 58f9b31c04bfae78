//! Cost of Millrace on one core, in one run beside uWebSockets (as part of Bun) and `ws` over WebSocket, and beside
//! Nchan and durable-streams over HTTP. The rivals take turns, and each figure is the median over the passes.
//! `make bench` runs it. The rivals are installed into a cache when they are first needed; those that must be built are
//! installed only with `--build`.
//!
//! The server is pinned to CPU 0, this generator to CPU 1. Figures of different machines cannot be compared; ratios of
//! one run can.

#[path = "../common/client.rs"]
mod client;
mod client_group;
mod figures;
mod idle;
mod load;
mod target;

use anyhow::{Context, ensure};
use clap::Parser;
use millrace_lab::host::scheduling::pin;

use figures::Figures;
use load::Workload;
use target::Target;

#[derive(Parser)]
struct Args {
    /// Passes over all targets and workloads; medians are reported
    #[arg(long, default_value_t = 5)]
    passes: usize,
    /// Servers to measure, each with the workloads that it supports
    #[arg(long, value_delimiter = ',', default_value = "millrace,bun,ws,nchan,durable-streams")]
    targets: Vec<Target>,
    /// Build rivals that come as source (durable-streams: a few minutes); without this flag, rivals that are not built
    /// yet are skipped
    #[arg(long)]
    build: bool,
    /// Workloads to run; all if none is given
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Seconds of load per workload
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Heartbeat in seconds that idle connections request (Millrace only; the others have intervals of their own).
    /// Their CPU is then measured for this time plus ten seconds, and pings are answered
    #[arg(long)]
    heartbeat: Option<u64>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let all = Workload::all(args.seconds, args.heartbeat);
    let wanted =
        |workload: &Workload| args.workloads.is_empty() || args.workloads.iter().any(|name| *name == workload.name());
    let workloads: Vec<Workload> = all.into_iter().filter(wanted).collect();
    ensure!(!workloads.is_empty(), "no such workload; there are {}", Workload::names().join(", "));
    let mut targets = Vec::new();
    for target in args.targets {
        // A rival that cannot be installed is skipped.
        match target.install(args.build) {
            Ok(()) => targets.push(target),
            Err(error) => eprintln!("SKIPPED: {}: {error:#}", target.name()),
        }
    }
    pin(&[1])?;
    let mut figures: Vec<Vec<Vec<Figures>>> = vec![vec![Vec::new(); targets.len()]; workloads.len()];
    for pass in 1..=args.passes {
        for (workload, by_target) in workloads.iter().zip(&mut figures) {
            for (target, runs) in targets.iter().zip(by_target).filter(|(target, _)| workload.takes(**target)) {
                let run = workload.run(*target).with_context(|| format!("{} {}", workload.name(), target.name()))?;
                eprintln!("pass {pass} {:<17} {:<15} {run}", workload.name(), target.name());
                runs.push(run);
            }
        }
    }
    for (workload, by_target) in workloads.iter().zip(&figures) {
        println!("\n{}", workload.describe());
        let measured = || targets.iter().zip(by_target).filter(|(_, runs)| !runs.is_empty());
        let first = measured().next().map(|(_, runs)| Figures::median(runs));
        for (target, runs) in measured() {
            let median = Figures::median(runs);
            let ratio = first.as_ref().map(|first| first.ratio(&median)).unwrap_or_default();
            println!("  {:<15} {median}  {ratio}", target.name());
        }
    }
    println!(
        "\nRatios: the first target of each workload over the target of the row. Medians of {} passes.",
        args.passes
    );
    Ok(())
}
