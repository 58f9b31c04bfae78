//! Synthetic recordings, so that the expected result is known.

mod compare;
mod points;

use millrace_lab::{
    histogram::Histogram,
    recording::{
        Counts, FORMAT, Factors, Form, Load, LoadUnit, Phase, PhaseName, Placement, Recording, Run, Second, Usage,
    },
};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

pub struct Chance(Pcg64Mcg);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a normally distributed number, by the Box-Muller method.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Returns a run from second 1.0 to 6.0: 200 publications per second to `clients`.
pub fn run(target: &str, transport: &str, clients: u64, repeat: u32) -> Run {
    let placement = Placement { server_cpus: vec![0], generator_cpus: vec![1], is_shared: false };
    Run {
        target: target.into(),
        target_version: "1".into(),
        transport: transport.into(),
        load: Load { value: clients as f64, counts: LoadUnit::Clients },
        factors: Factors { clients, each_per_s: 200.0, publishers: 1, bytes: 173, server_cpus: 1 },
        placement,
        repeat,
        phases: vec![phase(PhaseName::Connect, 0.0, 0.5), phase(PhaseName::Idle, 0.5, 1.0), test(clients)],
        ..Run::default()
    }
}

pub fn phase(name: PhaseName, start_s: f64, end_s: f64) -> Phase {
    let empty = Histogram::default;
    Phase {
        name,
        start_s,
        end_s,
        drained_s: end_s,
        counts: Counts::default(),
        latency_us: empty(),
        service_us: empty(),
        spread_us: empty(),
        connect_us: empty(),
        probe_us: empty(),
        lateness_us: empty(),
        lag_us: empty(),
        silence_us: 0,
        server: Usage { pss_bytes: 10_000_000, ..Usage::default() },
        generator: Usage::default(),
        watched: None,
    }
}

fn test(clients: u64) -> Phase {
    let counts = Counts { scheduled: 1000, sent: 1000, delivered: 1000 * clients, ..Counts::default() };
    Phase { counts, ..phase(PhaseName::Test, 1.0, 6.0) }
}

pub fn test_of(run: &mut Run) -> &mut Phase {
    run.phases.last_mut().expect("a run has a test")
}

/// Sets the CPU per delivery, and a log-normal latency with this median.
pub fn with(mut run: Run, cpu_us: f64, median_us: f64) -> Run {
    let test = test_of(&mut run);
    test.server.cpu_user_s = cpu_us * test.counts.delivered as f64 / 1e6;
    // 200 quantiles represent the distribution. The standard deviation of the logarithm is 0.5.
    for step in 0..200 {
        let z = normal_quantile((f64::from(step) + 0.5) / 200.0);
        test.latency_us.record_us((median_us * (0.5 * z).exp()) as u64);
    }
    run
}

/// Returns a normal quantile, accurate to 5e-4. Source: M. Abramowitz, I. Stegun, "Handbook of Mathematical Functions",
/// 26.2.23.
fn normal_quantile(p: f64) -> f64 {
    let tail = p.min(1.0 - p);
    let t = (-2.0 * tail.ln()).sqrt();
    let z =
        t - (2.515_517 + t * (0.802_853 + t * 0.010_328)) / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308)));
    if p < 0.5 { -z } else { z }
}

pub fn second(at_s: f64, scheduled: u64, delivered: u64) -> Second {
    Second {
        at_s,
        counts: Counts { scheduled, sent: scheduled, delivered, ..Counts::default() },
        latency_us: Histogram::default(),
        server_cpu_s: 0.25,
        server_pss_bytes: 10_000_000,
        generator_cpu_s: 0.125,
        steal_s: 0.0,
        watched: None,
    }
}

pub fn recording(runs: Vec<Run>) -> Recording {
    Recording {
        format: FORMAT,
        scenario: "thorsen-broadcast".into(),
        form: Form::Full,
        parameters: serde_json::json!({"main": {"clients": [50, 100], "targets": ["millrace"], "test": "5s"}}),
        seed: 7,
        started: "2026-11-21T20:00:00Z".into(),
        provenance: serde_json::to_value(provenance()).expect("it is plain"),
        command: "millrace lab run thorsen-broadcast".into(),
        slo: None,
        planned: runs.len() as u32,
        runs,
        tables: Vec::new(),
        wire_cost: None,
    }
}

pub fn provenance() -> millrace_lab::host::provenance::Provenance {
    millrace_lab::host::provenance::Provenance {
        kernel: "6.18.44".into(),
        cores: 2,
        lab_version: "0.1.0".into(),
        lab_profile: "release".into(),
        ..Default::default()
    }
}
