//! One shard and two, free to use both CPUs. With two CPUs the generator shares one of them, so throughput says little; what says more is
//! the CPU time of a delivery: two shards with a CPU each carry `2 x (one shard's) / (two shards')`, unless they wait for each other.

use std::time::Duration;

use crate::{
    Args, Transport,
    crowd::{Crowd, Load},
    median, prime, publisher, start,
};

const READERS: usize = 1000;
const PER_S: f64 = 100.0;

pub fn run(args: &Args) -> anyhow::Result<()> {
    println!(
        "\nshards: {READERS} WebSockets at {PER_S} messages/s, one send per delivery, the server free on both CPUs, in turns"
    );
    let mut cpu_us = [Vec::new(), Vec::new()];
    for pass in 1..=args.passes {
        for shards in [1, 2] {
            let server = start(shards, &[0, 1])?;
            let wish = prime(&server, Transport::WebSocket)?;
            let crowd = Crowd::new(&server, READERS, &wish)?;
            let before = server.threads_ns()?;
            let load = Load { per_s: PER_S, seconds: args.seconds, slice: Duration::from_secs(1), stall: None };
            let outcome = crowd.open_loop(&server, &mut publisher(&server, false)?, &load)?;
            let mut busy: Vec<u64> =
                server.threads_ns()?.iter().zip(&before).map(|(now, then)| now.0 - then.0).collect();
            busy.sort_unstable_by(|a, b| b.cmp(a));
            busy.truncate(shards);
            let mean = busy.iter().sum::<u64>() as f64 / shards as f64;
            let all = outcome.ages.all();
            println!(
                "  pass {pass}, {shards} shards: age p50 {:.1} p99 {:.1} ms, imbalance {:.2} (busiest shard over mean); {}; {}",
                all.quantile_ms(0.5),
                all.quantile_ms(0.99),
                busy[0] as f64 / mean,
                outcome.costs(),
                outcome.losses()?
            );
            cpu_us[shards - 1].push(outcome.cpu_us);
        }
    }
    let [one, two] = cpu_us.map(median);
    println!(
        "  medians: {one:.3} -> {two:.3} us CPU per delivery: two shards with a CPU each carry x{:.2}",
        2.0 * one / two
    );
    Ok(())
}
