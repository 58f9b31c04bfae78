//! Cost of the hook `publish` with a trivial back end on this machine: CPU time of the server per publication, and the
//! time that a publication takes longer. docs/explanation/performance.md has the figures of one machine.
//!
//! The server is pinned to CPU 0. The publishers and the back end share CPU 1: the back end is a thread that answers
//! `{"allow":true}` without looking at the question. Publishers send one `POST` after the other, at a fixed rate in
//! total (latency) or as fast as they can (CPU). Runs without and with the hook alternate.

#[path = "common/publishers.rs"]
mod publishers;
#[path = "common/server.rs"]
mod server;

use std::time::{Duration, Instant};

use clap::Parser;
use millrace_lab::host::scheduling::pin;
use publishers::{back_end, publish};

const SECRET: &str = "hooks.secrets=a secret of 32 bytes for the test";

#[derive(Parser)]
struct Args {
    /// Publishers at full speed
    #[arg(long, default_value_t = 16)]
    publishers: usize,
    /// Publications per second for the latency
    #[arg(long, default_value_t = 500)]
    rate: u64,
    /// Seconds of each run
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Pairs of runs
    #[arg(long, default_value_t = 5)]
    passes: usize,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Figures of one run.
#[derive(Clone, Copy, Default)]
struct Figures {
    cpu_us: f64,
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    pin(&[1])?;
    let back_end = back_end("{\"allow\":true}")?;
    let url = format!("hooks.publish=http://{back_end}/");
    println!("hook     CPU us each   publications/s   p50 us   p99 us");
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..args.passes {
        for (name, settings, all) in
            [("off", &[][..], &mut without), ("on", &["--set", SECRET, "--set", &url][..], &mut with)]
        {
            let figures = run(settings, &args)?;
            let Figures { cpu_us, per_s, p50_us, p99_us } = figures;
            println!("{name:<8} {cpu_us:>11.1} {per_s:>16.0} {p50_us:>8.0} {p99_us:>8.0}");
            all.push(figures);
        }
    }
    let added = |of: fn(&Figures) -> f64| median(&with, of) - median(&without, of);
    println!(
        "A hook adds {:.1} us of CPU per publication, {:.0} us at p50 and {:.0} us at p99 (medians of {} runs).",
        added(|figures| figures.cpu_us),
        added(|figures| figures.p50_us),
        added(|figures| figures.p99_us),
        args.passes
    );
    Ok(())
}

fn median(all: &[Figures], of: fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn run(settings: &[&str], args: &Args) -> anyhow::Result<Figures> {
    let server = server::start(1, &[0], settings)?;
    let time = Duration::from_secs_f64(args.seconds);
    // The first publications open the connection to the back end.
    publish(server.address, "", 1, 100, Duration::from_millis(500))?;
    let mut latencies = publish(server.address, "", 1, args.rate, time)?;
    latencies.sort_unstable();
    let at = |part: f64| latencies.get((latencies.len() as f64 * part) as usize).map_or(0.0, |ns| *ns as f64 / 1e3);
    let (before, started) = (server.scheduling_time()?.cpu_ns, Instant::now());
    let count = publish(server.address, "", args.publishers, u64::MAX, time)?.len() as f64;
    let used_ns = server.scheduling_time()?.cpu_ns - before;
    Ok(Figures {
        cpu_us: used_ns as f64 / 1e3 / count,
        per_s: count / started.elapsed().as_secs_f64(),
        p50_us: at(0.5),
        p99_us: at(0.99),
    })
}
