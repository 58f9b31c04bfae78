//! All readers stop for a while at full load: measures the time until data is fresh again.

use std::time::Duration;

use crate::{
    args::Args,
    figures::quantile_ms,
    levels,
    reader::Transport,
    reader_group::{Load, ReaderGroup},
    setup::{prime, publisher, start},
};

/// Loads as shares of the capacity.
const LEVELS: [f64; 3] = [0.5, 0.9, 1.2];
/// Start and duration of the stall, in seconds.
const STALL: (f64, f64) = (2.0, 0.3);
const SLICE: Duration = Duration::from_millis(250);
const FRESH_MS: f64 = 5.0;

pub fn run(args: &Args) -> anyhow::Result<()> {
    println!(
        "\nstall: {} readers do not read for {} s after {} s; ages are p50/p99/max in ms, each 250 ms",
        args.readers, STALL.1, STALL.0
    );
    for transport in args.transports(&[Transport::WebSocket, Transport::Sse]) {
        let most = levels::capacity(transport, false, args.readers)?;
        println!("\n{transport:?}: most {:.0} k deliveries/s", most / 1000.0);
        for level in LEVELS {
            let server = start(1, &[0])?;
            let options = prime(&server, transport)?;
            let group = ReaderGroup::new(&server, args.readers, &options)?;
            let mut upstream = publisher(&server, false)?;
            let seconds = args.seconds.max(STALL.0 + 3.0);
            let load = Load { per_s: most * level / args.readers as f64, seconds, slice: SLICE, stall: Some(STALL) };
            let outcome = group.open_loop(&server, &mut upstream, &load)?;
            let over = ((STALL.0 + STALL.1) / SLICE.as_secs_f64()) as usize;
            let fresh_after = |q: f64| {
                let mut slices = outcome.ages.slices.iter().enumerate().skip(over);
                let fresh = slices.find(|(_, slice)| slice.count() > 0 && quantile_ms(slice, q) < FRESH_MS);
                let end_s = |(index, _)| (index + 1) as f64 * SLICE.as_secs_f64() - STALL.0 - STALL.1;
                fresh.map(end_s).map_or("never".into(), |after_s| format!("after {after_s:.2} s"))
            };
            println!(
                "  {:3.0} %: below {FRESH_MS} ms {} (p50), {} (p99); {}",
                level * 100.0,
                fresh_after(0.5),
                fresh_after(0.99),
                outcome.costs()
            );
            println!("         {}", outcome.losses()?);
            println!("         {}", outcome.ages.by_slice());
        }
    }
    Ok(())
}
