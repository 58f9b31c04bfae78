//! Measures an open-loop publisher and a hundred honest clients, spread over all transports. Uses the load generator
//! of the lab.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use millrace_lab::{
    histogram::Histogram,
    load::{self, Dialect, LoadTarget, Outcome, Plan, Role, Sample},
    recording::{Counts, PhaseName},
    targets::{ClientOptions, Transport},
};

use crate::server::millrace;

pub const CLIENTS: usize = 100;
const PER_S: f64 = 40.0;
/// Polling interval. A polling client waits half of this interval on average.
const POLL_EVERY: Duration = Duration::from_millis(40);
/// Maximum lateness (p99) of the load generator. A run above this limit is invalid: the generator itself, or other
/// work on this machine, was too slow. The lateness also counts as latency.
const LATE_MAX: Duration = Duration::from_millis(50);

/// Outcome of one run.
pub struct HonestOutcome {
    outcome: Outcome,
}

/// Runs the honest clients for `lasts`; clients connect during the first second. Blocks.
pub fn listen(server: SocketAddr, cpu: usize, lasts: Duration) -> anyhow::Result<HonestOutcome> {
    let plan = Plan {
        clients: CLIENTS,
        rate: load::Rate::Open { per_s: PER_S, arrivals: load::Arrivals::Even },
        test: lasts,
        patience: Duration::from_secs(5),
        probe: Duration::ZERO,
        cpus: vec![cpu],
        channel: "honest".into(),
        ..Plan::default()
    };
    let target = Everywhere { server, next: AtomicUsize::new(0) };
    let outcome = load::run(&plan, &target, &mut || Ok(Sample::default()))?;
    Ok(HonestOutcome { outcome })
}

/// Assigns the transports to clients in turn. The publisher uses HTTP, because an HTTP response reports a refusal.
struct Everywhere {
    server: SocketAddr,
    next: AtomicUsize,
}

impl LoadTarget for Everywhere {
    fn address(&self) -> SocketAddr {
        self.server
    }

    fn is_duplex(&self) -> bool {
        false
    }

    fn dialect(&self, role: Role, channel: &str) -> Box<dyn Dialect> {
        let transport = match role {
            Role::Publisher => Transport::Polling,
            _ => Transport::ALL[self.next.fetch_add(1, Relaxed) % Transport::ALL.len()],
        };
        millrace().dialect(transport, &ClientOptions { role, channel, poll_every: POLL_EVERY })
    }
}

impl HonestOutcome {
    /// Returns the latencies of the deliveries that arrived in these seconds of the run.
    pub fn latency(&self, seconds: std::ops::Range<usize>) -> Histogram {
        let mut sum = Histogram::default();
        let within = |at_s: f64| seconds.contains(&(at_s as usize));
        self.outcome.seconds.iter().filter(|second| within(second.at_s)).for_each(|second| sum.add(&second.latency_us));
        sum
    }

    pub fn started(&self) -> Instant {
        self.outcome.started
    }

    pub fn counts(&self) -> Counts {
        self.outcome.phase(PhaseName::Test).map(|phase| phase.counts).unwrap_or_default()
    }

    /// Returns one line for each kind of loss or error in the run.
    pub fn losses(&self) -> Vec<String> {
        let counts = self.counts();
        let Counts { lost, duplicated, reordered, corrupt, gaps, refused, broken, .. } = counts;
        [
            (lost, "deliveries never came"),
            (duplicated, "came again"),
            (reordered, "came behind later ones"),
            (corrupt, "were not what was published"),
            (gaps, "gaps were told"),
            (refused, "publications were refused"),
            (broken, "connections broke"),
            (counts.scheduled - counts.sent.min(counts.scheduled), "publications were not taken"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect()
    }

    /// Returns the reason why the run is invalid: the load generator was late, not the server.
    pub fn is_invalid(&self) -> Option<String> {
        let test = self.outcome.phase(PhaseName::Test)?;
        let p99 = |what: &Histogram| Duration::from_micros(what.quantile_us(0.99).unwrap_or(0));
        let (late, lag) = (p99(&test.lateness_us), p99(&test.lag_us));
        (late.max(lag) > LATE_MAX)
            .then(|| format!("who measures was late: publishing {late:.1?}, reading {lag:.1?} (p99)"))
    }
}
