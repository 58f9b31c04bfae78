//! Opens many idle connections from one process and measures the generator's own cost of each connection.
//!
//! ```sh
//! cargo run --release -p millrace-lab --example connections -- 50000 null
//! cargo run --release -p millrace-lab --example connections -- 50000 millrace target/release/millrace
//! ```

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use millrace_lab::{
    host::{Root, Sampler, Settings, limits},
    load::{
        Arrivals, LoadTarget, Outcome, Plan, Rate, Sample, Shape,
        null::{Behaviour, Null},
        run,
    },
    recording::{PhaseName, Usage},
    targets::{Endpoint, Options, Transport, find},
};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let clients: usize = arguments.next().context("how many?")?.parse()?;
    let target = arguments.next().context("null or millrace?")?;
    let plan = Plan {
        shape: Shape::Idle,
        clients,
        rate: Rate::Open { per_s: 0.0, arrivals: Arrivals::Even },
        ramp_per_s: 10_000.0,
        probe: Duration::ZERO,
        idle: Duration::from_secs(5),
        test: Duration::from_secs(5),
        ..Plan::default()
    };
    // The null server runs in this process, so each connection needs two descriptors.
    if target == "null" {
        limits::raise_descriptors(2 * clients as u64 + 1024)?;
    }
    let outcome = match target.as_str() {
        "null" => {
            let null = Null::start(Behaviour::default(), None)?;
            go(&plan, &null, &mut || Ok(Usage { cpu_user_s: null.cpu_s()?, ..Usage::default() }))?
        }
        "millrace" => {
            let target = find("millrace")?;
            let options = Options {
                binary: arguments.next().map(Into::into),
                descriptors: clients as u64 + 1024,
                ..Options::default()
            };
            let server = target.start(&options)?;
            let endpoint = Endpoint::new(target, Transport::WebSocket, &server, Duration::from_secs(1));
            let pid = *server.root_pids().first().context("no process")?;
            let began = Instant::now();
            let every = Duration::from_millis(500);
            let settings = Settings { interval: every, pss_interval: every, ..Settings::default() };
            let sampler = Sampler::start(&[Root { name: "millrace".into(), pid }], settings, move || began.elapsed())?;
            go(&plan, &endpoint, &mut || {
                let Some(sample) = sampler.latest() else { return Ok(Usage::default()) };
                let tree = sample.trees.first().context("no tree")?;
                Ok(Usage { cpu_user_s: tree.cpu.total_s(), pss_bytes: tree.pss_bytes.unwrap_or(0), ..Usage::default() })
            })?
        }
        other => bail!("{other}: null or millrace"),
    };
    let phase = |name| outcome.phase(name).context("a phase is missing");
    let (connect, idle) = (phase(PhaseName::Connect)?, phase(PhaseName::Idle)?);
    let each = |bytes: u64| bytes as f64 / clients as f64;
    println!(
        "{clients} connections to {target}: {:.0} per s; generator {:.0} bytes and {:.1} us CPU each, {:.3} % CPU while idle; \
         server {:.0} bytes each, {:.3} % CPU while idle; broken {}",
        connect.counts.connected as f64 / (connect.end_s - connect.start_s),
        each(idle.generator.pss_bytes),
        connect.generator.cpu_s() * 1e6 / clients as f64,
        idle.generator.cpu_s() / (idle.end_s - idle.start_s) * 100.0,
        each(idle.server.pss_bytes),
        idle.server.cpu_s() / (idle.end_s - idle.start_s) * 100.0,
        outcome.phases.iter().map(|phase| phase.counts.broken).sum::<u64>(),
    );
    Ok(())
}

fn go(
    plan: &Plan,
    target: &dyn LoadTarget,
    usage: &mut dyn FnMut() -> anyhow::Result<Usage>,
) -> anyhow::Result<Outcome> {
    run(plan, target, &mut || Ok(Sample { server: usage()?, steal_s: 0.0 }))
}
