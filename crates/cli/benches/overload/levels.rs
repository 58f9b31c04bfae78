//! Load below, above and far above capacity: measures whether data stays fresh, memory stays flat, and every loss is
//! reported.

use std::time::Duration;

use crate::{
    args::Args,
    figures::{max_ms, quantile_ms},
    probe::Probe,
    reader::Transport,
    reader_group::{Load, ReaderGroup},
    setup::{BYTES, KEYS, prime, publisher, start},
};

const LEVELS: [f64; 3] = [0.5, 1.2, 2.0];
const CAPACITY_SECONDS: f64 = 3.0;

pub fn run(args: &Args) -> anyhow::Result<()> {
    println!("\nlevels: {} readers, messages of {} bytes; ages are p50/p99/max in ms, by second", args.readers, BYTES);
    for transport in args.transports(&[Transport::WebSocket, Transport::Sse]) {
        for latest in [false, true] {
            let most = capacity(transport, latest, args.readers)?;
            let policy = if latest { "latest" } else { "every" };
            println!("\n{transport:?} {policy}: most {:.0} k deliveries/s", most / 1000.0);
            let mut half_bytes = None;
            for level in LEVELS {
                let server = start(1, &[0])?;
                let mut options = prime(&server, transport)?;
                if latest {
                    (options.latest, options.sources) = (true, KEYS);
                }
                let group = ReaderGroup::new(&server, args.readers, &options)?;
                let mut upstream = publisher(&server, latest)?;
                let probe = Probe::start(server.address);
                let per_s = most * level / args.readers as f64;
                let load = Load { per_s, seconds: args.seconds, slice: Duration::from_secs(1), stall: None };
                let outcome = group.open_loop(&server, &mut upstream, &load)?;
                let pings = probe.finish()?;
                let all = outcome.ages.all();
                let bytes = outcome.pss_bytes[1] as f64;
                let ratio = bytes / *half_bytes.get_or_insert(bytes);
                println!(
                    "  {:3.0} %: age p50 {:.1} p99 {:.1} max {:.1} ms, ping p50 {:.1} p99 {:.1} ms, PSS x{ratio:.2}; {}",
                    level * 100.0,
                    quantile_ms(&all, 0.5),
                    quantile_ms(&all, 0.99),
                    max_ms(&all),
                    quantile_ms(&pings, 0.5),
                    quantile_ms(&pings, 0.99),
                    outcome.costs(),
                );
                println!("         {}", outcome.losses()?);
                println!("         {}", outcome.ages.by_slice());
            }
        }
    }
    Ok(())
}

/// Measures the maximum deliveries per second to readers of every message. `keyed`: a session publishes.
pub fn capacity(transport: Transport, keyed: bool, readers: usize) -> anyhow::Result<f64> {
    let server = start(1, &[0])?;
    let options = prime(&server, transport)?;
    let mut group = ReaderGroup::new(&server, readers, &options)?;
    Ok(group.closed_loop(&mut publisher(&server, keyed)?, CAPACITY_SECONDS)?.0)
}
