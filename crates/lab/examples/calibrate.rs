//! Measures the maximum load of the generator, against a null server that only forwards messages, on a CPU of its own.
//!
//! ```sh
//! cargo run --release -p millrace-lab --example calibrate
//! ```

use std::time::Duration;

use anyhow::Context;
use millrace_lab::{
    load::{
        Arrivals, Plan, Rate, Sample, Shape,
        null::{Behaviour, Null},
        run,
    },
    recording::{PhaseName, Usage},
};

fn main() -> anyhow::Result<()> {
    let even = |per_s| Rate::Open { per_s, arrivals: Arrivals::Even };
    let most = Rate::Closed { in_flight: 32 };
    println!("null server on CPU 0, generator on CPU 1, payload of 173 bytes");
    for (name, shape, clients, rate, batches) in [
        ("one write each, most", Shape::Broadcast, 100, most, false),
        ("one write each, most", Shape::Broadcast, 1000, most, false),
        ("batched, most", Shape::Broadcast, 100, most, true),
        ("batched, most", Shape::Broadcast, 1000, most, true),
        ("one write each, 200/s", Shape::Broadcast, 1000, even(200.0), false),
        ("pairs, 4/s each", Shape::Pairs, 2000, even(8000.0), false),
        ("idle connections", Shape::Idle, 8000, even(0.0), false),
    ] {
        let null = Null::start(Behaviour { batches, ..Behaviour::default() }, Some(0))?;
        let test = Duration::from_secs(3);
        let plan = Plan { shape, clients, rate, test, cpus: vec![1], ramp_per_s: 20_000.0, ..Plan::default() };
        let outcome = run(&plan, &null, &mut || {
            Ok(Sample { server: Usage { cpu_user_s: null.cpu_s()?, ..Usage::default() }, steal_s: 0.0 })
        })?;
        let phase = outcome.phase(PhaseName::Test).context("no test")?;
        let connect = outcome.phase(PhaseName::Connect).context("no connections")?;
        let (took_s, delivered) = (phase.drained_s - phase.start_s, phase.counts.delivered.max(1) as f64);
        let ms = |q| phase.latency_us.quantile_us(q).unwrap_or(0) as f64 / 1000.0;
        println!(
            "{name:<22} {clients:>5}: {:>9.0} deliveries/s, generator {:.3} us and {:>3.0} % CPU, server {:.3} us and {:>3.0} %; \
             p50 {:.2} p99 {:.2} ms, late p99 {} us, lag p99 {} us; {:.0} connections/s, {:.0} us CPU each; {}",
            phase.counts.delivered as f64 / took_s,
            phase.generator.cpu_s() * 1e6 / delivered,
            phase.generator.cpu_s() / took_s * 100.0,
            phase.server.cpu_s() * 1e6 / delivered,
            phase.server.cpu_s() / took_s * 100.0,
            ms(0.5),
            ms(0.99),
            phase.lateness_us.quantile_us(0.99).unwrap_or(0),
            phase.lag_us.quantile_us(0.99).unwrap_or(0),
            connect.counts.connected as f64 / (connect.end_s - connect.start_s),
            connect.generator.cpu_s() * 1e6 / connect.counts.connected as f64,
            outcome.validity.iter().map(|finding| finding.code.as_str()).collect::<Vec<_>>().join(" "),
        );
    }
    Ok(())
}
