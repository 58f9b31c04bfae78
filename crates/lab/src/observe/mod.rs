//! Observes a server and the machine during one run, on the clock of that run.

mod metrics;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

use crate::{
    host::{
        Root, Sample, Sampler, Series, Settings,
        validity::{Finding as Gated, Gate, Generator, Limits},
    },
    load,
    recording::{Finding, Phase, PhaseName, Second, Usage, Watched},
};
use metrics::Scraper;

/// Interval of reading the proportional memory (PSS). This reading is expensive: 10 ms per GiB.
const PSS_EVERY: Duration = Duration::from_millis(500);
/// Interval of the sampler's own readings. The run itself reads once a second; this interval matters only if the run
/// hangs.
const AT_LEAST_EVERY: Duration = Duration::from_secs(5);
/// Maximum distance in seconds between the end of a phase or second and the reading that is used for it.
const APART_S: f64 = 0.5;

pub struct Watch {
    sampler: Sampler,
    scraper: Option<Scraper>,
    started: Instant,
    pss_bytes: u64,
}

/// Observations of a run, to be assigned to phases and seconds.
pub struct Observations {
    series: Series,
    metrics: Vec<(f64, metrics::Counters)>,
    /// Difference between the clock of the run and the clock of the samples.
    offset_s: f64,
}

impl Watch {
    /// Starts to observe. `metrics`: address and path of the server's metrics, if it has any.
    ///
    /// Errors: the machine cannot be observed.
    pub fn start(pids: &[u32], metrics: Option<(SocketAddr, &'static str)>) -> anyhow::Result<Watch> {
        Self::start_beside(pids, &[], metrics)
    }

    /// Starts to observe like [`Watch::start`]. `generators`: processes that do not count as other processes of the
    /// machine.
    pub fn start_beside(
        pids: &[u32],
        generators: &[u32],
        metrics: Option<(SocketAddr, &'static str)>,
    ) -> anyhow::Result<Watch> {
        let started = Instant::now();
        let roots: Vec<Root> = pids.iter().map(|pid| Root { name: "server".into(), pid: *pid }).collect();
        let settings = Settings { interval: AT_LEAST_EVERY, pss_interval: PSS_EVERY, ..Settings::default() };
        let sampler = Sampler::start_beside(&roots, generators, settings, move || started.elapsed())?;
        let scraper = metrics.map(|(address, path)| Scraper::start(address, path, started)).transpose()?;
        Ok(Watch { sampler, scraper, started, pss_bytes: 0 })
    }

    /// Takes a sample for [`load::run`].
    ///
    /// Errors: none of the server's processes is left.
    pub fn look(&mut self) -> anyhow::Result<load::Sample> {
        let sample = self.sampler.look().context("/proc cannot be read")?;
        ensure!(sample.trees.iter().any(|tree| !tree.processes.is_empty()), "its process has ended");
        let mut server = Usage::default();
        for tree in &sample.trees {
            server.cpu_user_s += tree.cpu.user_ns as f64 / 1e9;
            server.cpu_system_s += tree.cpu.system_ns as f64 / 1e9;
            server.descriptors += tree.descriptors;
            server.context_switches += tree.switches.voluntary + tree.switches.involuntary;
        }
        self.pss_bytes = pss_bytes(&sample).unwrap_or(self.pss_bytes);
        server.pss_bytes = self.pss_bytes;
        Ok(load::Sample { server, steal_s: sample.machine.cores.iter().map(|core| core.steal_s).sum() })
    }

    /// Ends the observation. `started`: start of the run.
    pub fn finish(self, started: Instant) -> Observations {
        let metrics = self.scraper.map(Scraper::finish).unwrap_or_default();
        let offset_s = (started - self.started).as_secs_f64();
        Observations { series: self.sampler.finish(), metrics, offset_s }
    }
}

fn pss_bytes(sample: &Sample) -> Option<u64> {
    sample.trees.iter().filter_map(|tree| tree.pss_bytes).reduce(|sum, bytes| sum + bytes)
}

impl Observations {
    /// Stores the observations in the phases and seconds.
    pub fn fill_in(&self, phases: &mut [Phase], seconds: &mut [Second]) {
        for phase in phases {
            phase.watched = self.between(phase.start_s, phase.drained_s);
        }
        for second in seconds {
            second.watched = self.between(second.at_s, second.at_s + 1.0);
        }
    }

    /// Returns the findings about the machine that speak against a run.
    pub fn findings(&self, phases: &[Phase]) -> Vec<Finding> {
        let Some(test) = phases.iter().find(|phase| phase.name == PhaseName::Test) else { return Vec::new() };
        let Some(machine) = self.part(test.start_s, test.drained_s).and_then(|part| part.machine(0.0, f64::MAX)) else {
            return Vec::new();
        };
        // The generator's own figures are judged in `load::verdict`, which knows them better.
        let generator = Generator { lateness_p99_s: 0.0, latency_p50_s: 0.0, cpu: 0.0 };
        let gates = Limits::default().during(&machine, &generator);
        gates.into_iter().filter(|gate| !gate.passed).map(|gate| finding(&gate)).collect()
    }

    /// Returns the samples from the one nearest to `from_s` to the one nearest to `to_s`, on the clock of the run.
    fn part(&self, from_s: f64, to_s: f64) -> Option<Series> {
        let samples = &self.series.samples;
        let next_to = |at_s: f64| {
            let at_s = at_s + self.offset_s;
            let apart = |sample: &Sample| (sample.at_s - at_s).abs();
            let near = (0..samples.len()).min_by(|a, b| apart(&samples[*a]).total_cmp(&apart(&samples[*b])))?;
            (apart(&samples[near]) < APART_S).then_some(near)
        };
        let (first, last) = (next_to(from_s)?, next_to(to_s)?);
        (first < last).then(|| Series { trees: self.series.trees.clone(), samples: samples[first..=last].to_vec() })
    }

    fn between(&self, from_s: f64, to_s: f64) -> Option<Watched> {
        let part = self.part(from_s, to_s)?;
        let (used, machine) = (part.usage(0.0, f64::MAX)?, part.machine(0.0, f64::MAX)?);
        let last = part.samples.last()?;
        Some(Watched {
            seconds: used.seconds,
            cpu_user_s: used.cpu.user_ns as f64 / 1e9,
            cpu_system_s: used.cpu.system_ns as f64 / 1e9,
            pss_bytes: used.pss_bytes,
            rss_bytes: last.trees.iter().map(|tree| tree.rss_bytes).sum(),
            descriptors: last.trees.iter().map(|tree| tree.descriptors).sum(),
            threads: last.trees.iter().map(|tree| tree.threads).sum(),
            switches_voluntary: used.switches.voluntary,
            switches_involuntary: used.switches.involuntary,
            cores_busy: machine.busy,
            steal: machine.steal,
            pressure: machine.pressure,
            others_cores: machine.others_cores,
            tcp_memory_bytes: last.machine.tcp_memory_bytes,
            metrics: metrics::between(&self.metrics, from_s + self.offset_s, to_s + self.offset_s),
        })
    }
}

fn finding(gate: &Gated) -> Finding {
    let code = match gate.gate {
        Gate::PressureBefore => "pressure_before",
        Gate::OthersBefore => "others_before",
        Gate::Steal => "steal",
        Gate::Others => "others",
        Gate::Lateness => "lateness",
        Gate::GeneratorCpu => "generator_cpu",
    };
    let text = gate.to_string();
    let detail = text.trim_start_matches("FAILED").trim_start().to_owned();
    Finding { code: code.into(), detail, invalidates: true }
}
