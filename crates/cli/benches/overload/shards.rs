//! One shard and two, each with the same part of its own CPU: measures whether the second carries as much as the first.

use crate::{
    args::Args,
    capped::{self, CappedRun, Work},
    figures::median,
    quota,
};

/// Part of a CPU per shard, small enough to leave the generator clearly idle time.
const CORES: f64 = 0.3;
const CHANNELS: usize = 8;
/// The more sockets a shard has, the more each one costs, because fewer of them fit in its cache. So the compared cases
/// have the same number per shard.
const READERS_PER_SHARD: usize = 2000;

const COALESCED: Work = Work { name: "saturated fan-out", channels: CHANNELS, readers_per_channel: 0, burst: 32 };
const ONE_BY_ONE: Work = Work { name: "one send per delivery", channels: CHANNELS, readers_per_channel: 0, burst: 1 };

/// Number of shards, and the total number of readers as a multiple of [`READERS_PER_SHARD`].
const CASES: [(usize, usize); 3] = [(1, 1), (2, 2), (1, 2)];

/// Returns two workloads: each write carries many messages, or one message.
pub fn works(readers: usize) -> [Work; 2] {
    [COALESCED, ONE_BY_ONE].map(|work| Work { readers_per_channel: readers / CHANNELS, ..work })
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(why) = quota::unavailable() {
        println!("\nshards: SKIPPED, nothing was measured: {why}");
        return Ok(());
    }
    for index in 0..works(0).len() {
        let work = works(0)[index];
        println!(
            "\nshards: {}: {CHANNELS} channels, {} publications of each at once, {CORES} of a CPU per shard, in turns",
            work.name, work.burst
        );
        let mut per_s = CASES.map(|_| Vec::new());
        let mut unproven = 0;
        for pass in 1..=args.passes {
            for ((shards, times), per_s) in CASES.into_iter().zip(&mut per_s) {
                let readers = times * READERS_PER_SHARD;
                let seen = capped::run(works(readers)[index], shards, CORES, args.seconds)?;
                println!("  pass {pass}, {readers} WebSockets on {shards} shards: {}", seen.show());
                unproven += usize::from(!seen.is_by_shards());
                per_s.push(seen.per_s);
            }
        }
        let [one, two, crowded] = &per_s;
        println!("  two shards carry {} of one with as many WebSockets per shard", CappedRun::ratio(two, one));
        println!("                   {} of one with as many in all", CappedRun::ratio(two, crowded));
        if unproven > 0 {
            println!("  In {unproven} runs the shards were not the limit: these ratios prove nothing.");
        }
        let [one, two, crowded] = per_s.map(|per_s| median(per_s) / 1000.0);
        println!("  medians: {one:.0}, {two:.0} and {crowded:.0} k/s");
    }
    Ok(())
}
