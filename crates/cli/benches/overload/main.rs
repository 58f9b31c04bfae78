//! Behavior of Millrace under overload: load beyond capacity, a stall of all readers, readers that never read, the two
//! scenarios of Thorsen's thesis on every transport, and the scaling with more shards.
//!
//! `cargo bench -p millrace-cli --bench overload` runs all scenarios; `-- --seconds 60` is the full form,
//! `-- --scenarios levels,stall` runs a part.
//!
//! The server is pinned to CPU 0, this generator to CPU 1. `shards` and `scaling` give both a part of both CPUs
//! (`capped.rs`), which requires root and control groups. The age of a message is the time from its due time until its
//! reader has read it. The generator checks order and completeness per reader and ends with an error at the first
//! silent loss.
//!
//! The generator prints CPU shares, the share of time spent waiting for a CPU that others used, and its own lateness.
//! It marks a row `generator-bound` when the generator, not the server, was the limit.

mod args;
mod capped;
mod dead_weight;
mod figures;
mod levels;
mod probe;
mod quota;
mod reader;
mod reader_group;
mod scaling;
#[path = "../common/server.rs"]
mod server;
mod setup;
mod shards;
mod stall;
mod thorsen;
mod upstream;

use clap::Parser;
use millrace_lab::host::scheduling::pin;

use args::{Args, Scenario};

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    pin(&[1])?;
    let wanted = |scenario| args.scenarios.is_empty() || args.scenarios.contains(&scenario);
    if wanted(Scenario::Levels) {
        levels::run(&args)?;
    }
    if wanted(Scenario::Stall) {
        stall::run(&args)?;
    }
    if wanted(Scenario::DeadWeight) {
        dead_weight::run(&args)?;
    }
    if wanted(Scenario::Thorsen) {
        thorsen::run(&args)?;
    }
    if wanted(Scenario::Shards) {
        shards::run(&args)?;
    }
    if wanted(Scenario::Scaling) {
        scaling::run(&args)?;
    }
    Ok(())
}
