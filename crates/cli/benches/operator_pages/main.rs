//! Cost of an open operator page: CPU time of a server that delivers 100,000 messages per second, with and without a
//! page. docs/how-to/operator-pages.md and docs/explanation/performance.md have the figures of one machine.
//!
//! The server is pinned to CPU 0, and has the default number of shards. Readers, publishers and the page share CPU 1.
//! Each page is open for some seconds between two periods without a page; the cost of the page is the difference from
//! their mean. The whole runs without idle connections, and with them. A page here is what the server sees of it: the
//! views that it follows over one WebSocket.

#[path = "../common/client.rs"]
mod client;
mod cpu;
mod load;
mod page;
#[path = "../common/server.rs"]
mod server;

use std::{
    fmt,
    sync::atomic::Ordering::Relaxed,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::ensure;
use clap::Parser;
use cpu::{CpuTimes, Used};
use load::{Load, Plan};
use millrace_lab::{
    host::{limits, scheduling::pin},
    stats::median,
    targets::Server,
};
use page::{KINDS, Page};

/// Time from the start of the load to the first measurement.
const WARM_UP: Duration = Duration::from_secs(3);
/// Time from the opening or closing of a page to the next measurement.
const SETTLE: Duration = Duration::from_secs(2);
/// Minimum share of the planned deliveries in a period.
const REACHED_MIN: f64 = 0.98;
/// Maximum cost of a page, in percent of a core.
const LIMIT_PERCENT: f64 = 2.0;

#[derive(Parser)]
struct Args {
    /// Repetitions of all pages
    #[arg(long, default_value_t = 5)]
    passes: usize,
    /// Seconds of each period
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Readers over WebSocket; a multiple of the channels
    #[arg(long, default_value_t = 1000)]
    readers: usize,
    /// Channels with publications
    #[arg(long, default_value_t = 10)]
    channels: usize,
    /// Publications per second on all channels together
    #[arg(long, default_value_t = 1000)]
    per_s: u64,
    /// Numbers of idle WebSockets, one series each
    #[arg(long, value_delimiter = ',', default_value = "0,10000")]
    idle: Vec<usize>,
    /// Channels with one message and without readers
    #[arg(long, default_value_t = 1000)]
    quiet: usize,
    /// CPUs of the server
    #[arg(long, value_delimiter = ',', default_value = "0")]
    cpus: Vec<usize>,
    /// Shards of the server; 0: its default, one per CPU
    #[arg(long, default_value_t = 0)]
    shards: usize,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Figures of one period, per second. CPU is in percent of a core.
#[derive(Clone, Copy)]
struct Figures {
    shards: f64,
    others: f64,
    deliveries: f64,
    updates: f64,
    page_bytes: f64,
}

/// Cost of a page, in percent of a core: the figures with the page minus those without.
#[derive(Clone, Copy)]
struct Cost {
    all: f64,
    others: f64,
    /// Percent of the CPU time of the server without the page.
    share: f64,
    updates: f64,
    page_bytes: f64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(args.passes > 0 && args.seconds > 0.0 && args.per_s > 0, "--passes, --seconds and --per-s must not be 0");
    pin(&[1])?;
    // Otherwise the readers would fall behind while other programs of the machine are busy.
    limits::raise_priority();
    let most = args.idle.iter().max().copied().unwrap_or_default();
    limits::raise_descriptors((args.readers + most) as u64 + 1000)?;
    let mut is_within = true;
    for idle in &args.idle {
        is_within &= run(&args, *idle)?;
    }
    let met = if is_within { "met" } else { "NOT met" };
    println!("Limit: at most {LIMIT_PERCENT} % of a core per page (median): {met}.");
    Ok(())
}

/// Measures all pages. Returns whether each costs at most the limit.
fn run(args: &Args, idle: usize) -> anyhow::Result<bool> {
    let settings = ["limits.connections_per_address_max=50000", "limits.connects_per_address_per_s=50000"];
    let settings: Vec<&str> = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
    let server = server::start(args.shards, &args.cpus, &settings)?;
    load::fill(server.address, args.quiet)?;
    let plan = Plan { readers: args.readers, channels: args.channels, per_s: args.per_s, idle };
    let load = Load::start(server.address, plan)?;
    sleep(WARM_UP);
    println!(
        "\n{} readers on {} channels, {} publications/s, {idle} idle connections, {} quiet channels, server on CPUs {:?}",
        args.readers, args.channels, args.per_s, args.quiet, args.cpus
    );
    println!(
        "pass  {:<12} {:>8} {:>7} {:>7} {:>13} {:>10} {:>10}",
        "page", "CPU %", "shards", "others", "deliveries/s", "updates/s", "page kB/s"
    );
    let measured = passes(args, plan, &server, &load);
    // If the load has failed, its own error has the reason.
    load.finish()?;
    let (without, costs) = measured?;
    println!("No message was lost or doubled. Medians of {} passes, ranges in brackets:", args.passes);
    println!(
        "{:<12} {:<24} {:>16} {:>16} {:>10} {:>10}",
        "page", "added, % of a core", "by other threads", "% of the server", "updates/s", "page kB/s"
    );
    let mut is_within = true;
    for (kind, costs) in KINDS.iter().zip(&costs) {
        let of = |value: fn(&Cost) -> f64| median(&costs.iter().map(value).collect::<Vec<_>>());
        let all: Vec<f64> = costs.iter().map(|cost| cost.all).collect();
        let range = (all.iter().copied().fold(f64::MAX, f64::min), all.iter().copied().fold(f64::MIN, f64::max));
        println!(
            "{:<12} {:>6.2} ({:>5.2} to {:>5.2}) {:>18.2} {:>16.2} {:>10.1} {:>10.1}",
            kind.name,
            median(&all),
            range.0,
            range.1,
            of(|cost| cost.others),
            of(|cost| cost.share),
            of(|cost| cost.updates),
            of(|cost| cost.page_bytes) / 1e3,
        );
        is_within &= median(&all) <= LIMIT_PERCENT;
    }
    let of = |value: fn(&Figures) -> f64| median(&without.iter().map(value).collect::<Vec<_>>());
    println!(
        "Without a page: {:.1} % of a core, {:.2} % of it by threads other than the shards; {:.0} deliveries/s.",
        of(Figures::cpu),
        of(|figures| figures.others),
        of(|figures| figures.deliveries)
    );
    Ok(is_within)
}

/// Measures without a page, and with each page between two periods without one. Returns the periods without a page, and
/// the costs of each page.
fn passes(args: &Args, plan: Plan, server: &Server, load: &Load) -> anyhow::Result<(Vec<Figures>, [Vec<Cost>; 4])> {
    let time = Duration::from_secs_f64(args.seconds);
    let period = |pass: usize, name: &str, page: Option<&Page>| -> anyhow::Result<Figures> {
        sleep(SETTLE);
        let figures = measure(server, load, page, time)?;
        println!("{pass:>4}  {name:<12} {figures}");
        let (reached, planned) = (figures.deliveries, plan.deliveries_per_s());
        ensure!(reached >= planned * REACHED_MIN, "{reached:.0} of {planned:.0} deliveries/s were reached");
        ensure!(page.is_none() || figures.updates > 0.0, "the page received no update");
        Ok(figures)
    };
    let mut costs = KINDS.map(|_| Vec::new());
    let mut without = vec![period(0, "none", None)?];
    for pass in 1..=args.passes {
        for (kind, costs) in KINDS.iter().zip(&mut costs) {
            let before = without[without.len() - 1];
            let page = Page::open(server.address, kind)?;
            let with = period(pass, kind.name, Some(&page))?;
            page.close()?;
            let after = period(pass, "none", None)?;
            without.push(after);
            costs.push(Cost::of(&with, &[before, after]));
        }
    }
    Ok((without, costs))
}

fn measure(server: &Server, load: &Load, page: Option<&Page>, time: Duration) -> anyhow::Result<Figures> {
    let counted = || {
        let received = page.map(|page| (page.received.updates.load(Relaxed), page.received.bytes.load(Relaxed)));
        let (updates, bytes) = received.unwrap_or_default();
        [load.delivered(), updates, bytes]
    };
    let (before, counts, began) = (CpuTimes::read(server)?, counted(), Instant::now());
    sleep(time);
    let (Used { shards_ns, others_ns }, counts_now) = (CpuTimes::read(server)?.since(&before), counted());
    let seconds = began.elapsed().as_secs_f64();
    ensure!(!load.has_failed(), "the load has ended");
    let percent = |ns: u64| ns as f64 / 1e7 / seconds;
    let [deliveries, updates, page_bytes] = [0, 1, 2].map(|i| (counts_now[i] - counts[i]) as f64 / seconds);
    Ok(Figures { shards: percent(shards_ns), others: percent(others_ns), deliveries, updates, page_bytes })
}

impl Figures {
    fn cpu(&self) -> f64 {
        self.shards + self.others
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shards, others, deliveries, updates, page_bytes } = self;
        let (cpu, page_kb) = (self.cpu(), page_bytes / 1e3);
        write!(f, "{cpu:>8.2} {shards:>7.2} {others:>7.2} {deliveries:>13.0} {updates:>10.1} {page_kb:>10.1}")
    }
}

impl Cost {
    /// Returns the difference from the mean of the periods before and after.
    fn of(with: &Figures, without: &[Figures; 2]) -> Self {
        let mean = |of: fn(&Figures) -> f64| without.iter().map(of).sum::<f64>() / without.len() as f64;
        let all = with.cpu() - mean(Figures::cpu);
        Self {
            all,
            others: with.others - mean(|figures| figures.others),
            share: all / mean(Figures::cpu) * 100.0,
            updates: with.updates,
            page_bytes: with.page_bytes,
        }
    }
}
