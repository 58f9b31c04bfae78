//! Arguments of the benchmark.

use clap::Parser;

use crate::reader::{Transport, transport};

#[derive(Parser)]
pub struct Args {
    /// Scenarios to run; all if none is given
    #[arg(long, value_delimiter = ',')]
    pub scenarios: Vec<Scenario>,
    /// Transports of `levels`, `stall` and `thorsen`; each scenario uses all that it supports if none is given
    #[arg(long, value_delimiter = ',', value_parser = transport())]
    pub transports: Vec<Transport>,
    /// Seconds of each run
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Readers of `levels` and `stall`
    #[arg(long, default_value_t = 100)]
    pub readers: usize,
    /// Clients of `thorsen`
    #[arg(long, default_value_t = 500)]
    pub clients: usize,
    /// Passes of `dead-weight`, `shards` and `scaling`; medians are reported
    #[arg(long, default_value_t = 5)]
    pub passes: usize,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Scenario {
    /// 50 %, 120 % and 200 % of the capacity
    Levels,
    /// All readers stop reading for 300 ms
    Stall,
    /// 100 readers that never read among 1,000 that do
    DeadWeight,
    /// A ticker and a chat on every transport
    Thorsen,
    /// One shard and two, each with a part of a CPU
    Shards,
    /// One to six shards, and larger and smaller parts of a CPU
    Scaling,
}

impl Args {
    /// Returns those of the transports of a scenario that the user wants.
    pub fn transports(&self, all: &[Transport]) -> Vec<Transport> {
        all.iter().copied().filter(|one| self.transports.is_empty() || self.transports.contains(one)).collect()
    }
}
